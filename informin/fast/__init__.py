"""What makes training and `encode` fast, with the same results up to rounding and dropout masks.

Outside, rows in parts are only passed on, as the entry `split_batch` of a batch.

Training enters by `forward.FastForward`, which computes the embeddings of a step as `plan.plan_of` says. `encode`
enters by `speed.speed_up`, which changes how a SentenceTransformer embeds texts. Both use

    packing          texts in a row without padding, and attention within each of them
    short_attention  a Triton kernel for attention within short texts, imported on a GPU only
    attention        dropout rates per view and kept attention maps of padded rows; also without the fast paths
    embeddings       views that scale the output of the embedding layer; also without the fast paths
    masks            dropout masks from NumPy, on a CPU
    threads          parts of a batch in threads, on a CPU
    graphs           CUDA graphs
    precision        the precision of weights that a device computes fastest
"""
