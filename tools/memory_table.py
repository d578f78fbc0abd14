"""Compute the memory that training needs, by model size: python -m tools.memory_table [--sentences 128] [--tokens 32]

Parameters are counted on models without storage, built from the published configurations. The rest is computed, not
measured:

* full: float32 weights, gradients and the two moments of AdamW, 16 bytes per parameter
* LoRA (r = 16, all linear layers): frozen weights in bfloat16, 2 bytes per parameter, and 16 per trained parameter
* activations in bfloat16 of two views of each sentence, by the formula of Korthikanti et al. (2022), "Reducing
  Activation Recomputation in Large Transformer Models", equation 2 without tensor parallelism. Recomputed (gradient
  checkpointing): the input of each layer, and one layer's activations
"""

import argparse

import torch
from transformers import BertConfig, BertModel, PreTrainedConfig, Qwen3Config, Qwen3Model

from informin.models.lora import linear_layers

GIB = 2**30
RANK = 16


def qwen3(hidden: int, layers: int, heads: int, width: int) -> PreTrainedConfig:
    """Return the configuration of a Qwen3-Embedding model."""
    return Qwen3Config(
        **dict(hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=width),
        **dict(num_key_value_heads=8, head_dim=128, vocab_size=151_669, max_position_embeddings=32_768),
    )


MODELS = {
    "all-MiniLM-L6-v2": (
        BertModel,
        BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536),
    ),
    "bert-base-uncased": (BertModel, BertConfig()),
    "Qwen3-Embedding-0.6B": (Qwen3Model, qwen3(1024, 28, 16, 3072)),
    "Qwen3-Embedding-4B": (Qwen3Model, qwen3(2560, 36, 32, 9728)),
    "Qwen3-Embedding-8B": (Qwen3Model, qwen3(4096, 36, 32, 12_288)),
}


def row(name: str, sentences: int, tokens: int) -> list[str]:
    """Return a row of the table: parameters in millions, and GiB."""
    kind, config = MODELS[name]
    with torch.device("meta"):
        model = kind(config)
    number = sum(weight.numel() for weight in model.parameters())
    names = linear_layers(model)
    layers = [module for path, module in model.named_modules() if path.rpartition(".")[2] in names]
    low_rank = sum(RANK * (layer.in_features + layer.out_features) for layer in layers)
    rows, h, heads = 2 * sentences, config.hidden_size, config.num_attention_heads
    layer_bytes = rows * tokens * h * (34 + 5 * heads * tokens / h)
    kept, recomputed = (
        config.num_hidden_layers * layer_bytes,
        config.num_hidden_layers * rows * tokens * h * 2 + layer_bytes,
    )
    values = [16 * number, 2 * number + 16 * low_rank, kept, recomputed]
    return [name, f"{number / 1e6:,.0f}", f"{low_rank / 1e6:.1f}", *(f"{value / GIB:.1f}" for value in values)]


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=32)
    args = parser.parse_args()
    heads = ["model", "parameters (10^6)", "LoRA (10^6)", "full", "LoRA", "activations", "activations, recomputed"]
    print(f"| {' | '.join(heads)} |\n|---|{'---:|' * (len(heads) - 1)}")
    for name in MODELS:
        print(f"| {' | '.join(row(name, args.sentences, args.tokens))} |")


if __name__ == "__main__":
    main()
