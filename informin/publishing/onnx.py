"""ONNX files of an exported folder, for ONNX Runtime in any language, without torch.

onnx/model.onnx holds all modules: pooling, linear adapter and normalization. Inputs are input_ids, attention_mask and,
for BERT and some others, token_type_ids, each (N, L) int64. The outputs are

    last_hidden_state (N, L, d)             hidden states of the tokens
    sentence_embedding (N, e)               the embedding
    repeated_sentence_embedding (N, L, e)   the embedding, once per token

Clients such as fastembed take the first output, pool and normalize it. The first one is last_hidden_state if this
gives the embedding, and repeated_sentence_embedding otherwise, such as with a linear adapter. Clients that look for the
name last_hidden_state, such as a transformers.js pipeline, lose the adapter. The ONNX backend of sentence-transformers
applies all modules to the output of this name.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from informin.errors import SaveError, UsageError, raise_if_missing
from informin.files import last_name, new_file
from informin.model.open import load_model
from informin.publishing.card import settings_for_clients
from informin.publishing.export import ONNX_FILE, QUANTIZED, remove_model_args

TOKENS = "last_hidden_state"
EMBEDDING = "sentence_embedding"
REPEATED = "repeated_sentence_embedding"
# The first opset with GELU as a single operator, which ONNX Runtime fuses with the bias. Needs onnxruntime 1.18.
OPSET = 20
ONNX_TOLERANCE = 1e-4
COMPARED_TEXTS_OF_ONNX = ["word " * 100, "Two men play chess in the park.", "A dog."]  # of several lengths


class _AllModules(nn.Module):
    """All modules of a SentenceTransformer, as a function of tensors."""

    def __init__(self, model: SentenceTransformer, inputs: list[str], outputs: list[str]):
        super().__init__()
        self.steps = nn.ModuleList(model)
        self.inputs = inputs
        self.outputs = outputs
        self.width = model.truncate_dim

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        features = dict(zip(self.inputs, inputs))
        for step in self.steps:
            features = step(features)
        tokens, embedding = features["token_embeddings"], features["sentence_embedding"][:, : self.width]
        repeated = embedding[:, None].expand(-1, tokens.shape[1], -1)
        found = {TOKENS: tokens, EMBEDDING: embedding, REPEATED: repeated}
        return tuple(found[name] for name in self.outputs)


def advice_for_clients(folder: str | Path) -> str:
    """Return which output of a folder's ONNX file to take, in a sentence or two."""
    advice = f"{ONNX_FILE}: the output {EMBEDDING} is the embedding."
    settings = settings_for_clients(folder)
    if settings:
        return f"{advice} Clients that pool {TOKENS} get the same with {settings}."
    return f"{advice} Do not pool {TOKENS}, as a pipeline of transformers.js does: the modules after it are missing."


def export_onnx(folder: str | Path, trust_remote_code: bool = False) -> Path:
    """Write `ONNX_FILE` in float32, for any batch size and any length up to the maximum, and return its path.

    Uses transformers' `eager` attention: `sdpa` exports checks for rows without a token, which make a file 10% slower.

    Args:
        folder: An exported folder whose first module is a Transformer.
        trust_remote_code: Run the model's own code, if it needs it to be loaded.

    Raises:
        UsageError: A package of the extra `onnx` is not installed, the pooling leaves out a stored prompt, or the
            weights are too large for a file.
        SaveError: The embeddings of the file differ from those of the model.
    """
    raise_if_missing("onnx", option="onnx")
    import onnx
    from onnxruntime import InferenceSession

    model = load_model(folder, device="cpu", trust_remote_code=trust_remote_code)
    if any(model.prompts.values()) and not all(getattr(module, "include_prompt", True) for module in model):
        found = f"is set, but the pooling of {last_name(folder)} leaves out the prompt, which an ONNX file cannot do"
        raise UsageError(found, option="onnx", fix="Use sentence-transformers.")
    size = 4 * sum(weight.numel() for weight in model.parameters())
    if size >= 2**31:
        found = f"is set, but the weights of {last_name(folder)} have {size / 2**30:.1f} GiB in float32"
        raise UsageError(found, option="onnx", needed="less than 2 GiB, the limit of a file")
    transformer: Any = model[0]
    transformer.auto_model.set_attn_implementation("eager")
    tokens = model.preprocess(COMPARED_TEXTS_OF_ONNX)
    inputs = {name: value for name, value in tokens.items() if isinstance(value, Tensor)}
    names = list(inputs)
    outputs = [TOKENS, EMBEDDING] if settings_for_clients(folder) else [REPEATED, TOKENS, EMBEDDING]
    path = Path(folder, ONNX_FILE)
    with new_file(path) as new, warnings.catch_warnings(), _quiet_exporter():
        warnings.simplefilter("ignore")  # they concern only the exporter's own code
        program: Any = torch.onnx.export(
            _AllModules(model, names, outputs).eval(),
            tuple(inputs.values()),
            input_names=names,
            output_names=outputs,
            dynamic_shapes=(tuple({0: "batch_size", 1: "sequence_length"} for _ in names),),
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
        model_proto = program.model_proto  # a new copy each time
        graph = model_proto.graph
        for noted in (graph, *graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer):
            del noted.metadata_props[:]  # stack traces with local paths
        del graph.value_info[:]  # quantization infers the shapes again, and may find others
        onnx.save(model_proto, new)
        embeddings = InferenceSession(new).run([EMBEDDING], {name: x.numpy() for name, x in inputs.items()})[0]
        expected = model.encode(COMPARED_TEXTS_OF_ONNX, prompt="")
        if not np.abs(embeddings - expected).max() <= ONNX_TOLERANCE:  # also true for NaN
            raise SaveError("The embeddings of the ONNX file differ from those of the model. The file was deleted")
        Path(folder, QUANTIZED).unlink(missing_ok=True)  # of other weights, maybe
    remove_model_args(folder)
    return path


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Let the logger of the exporter show only errors: it warns that torchvision is missing."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def quantize_onnx(folder: str | Path) -> Path:
    """Write `QUANTIZED` from `ONNX_FILE`: 8-bit linear layers and embedding tables, with dynamic activation scales.

    `per_channel` uses one scale per output of a layer. The embeddings are several times closer to float32 than with one
    scale per layer, at the same speed. `reduce_range` uses 7 of the 8 bits at almost no cost; without it, CPUs without
    VNNI overflow when they add two products in 16 bits. Unsigned weights do not overflow but are slower than float32.

    The sentences of a batch share the scale of the activations, so an embedding depends on its batch about as much as
    on the rounding to 8 bits. To compare embeddings exactly, use `ONNX_FILE` or a batch size of 1.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with new_file(Path(folder, QUANTIZED)) as path:
        quantize_dynamic(
            Path(folder, ONNX_FILE),
            path,
            op_types_to_quantize=["MatMul", "Gather"],
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
        )
    return Path(folder, QUANTIZED)
