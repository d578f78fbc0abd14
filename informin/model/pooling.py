"""Poolings by name: those of sentence-transformers, and those that the papers read hidden layers with."""

from collections.abc import Callable
from typing import Any

from safetensors.torch import load_file
from sentence_transformers.models import Pooling, Transformer
from torch import Tensor, nn

from informin.errors import UsageError
from modeling_informin import HEAD_FILE, ProjectionHead, pool

MODES = {"cls": "cls", "mean": "mean", "last": "lasttoken"}  # ours -> those of sentence-transformers
NAMES = {mode: name for name, mode in MODES.items()}
LAYERS = {"first_last": (1, -1), "embeddings_last": (0, -1), "last2": (-2, -1)}
POOLERS = (*MODES, *LAYERS, "mlp")


class LayerPooling(nn.Module):
    """Mean over the tokens of the mean of two hidden layers.

    * `first_last`: the first and the last layer (SimCSE's code; BERT-base: 60.73 STS average).
    * `embeddings_last`: the embedding layer and the last layer (the papers' "first-last avg"; BERT-base: 56.70).
    * `last2`: the last two layers.
    """

    def __init__(self, width: int, pooler: str):
        super().__init__()
        self.width, self.layers = width, LAYERS[pooler]

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        first, last = (features["all_layer_embeddings"][layer] for layer in self.layers)  # (N, L, d) each
        return features | {"sentence_embedding": pool("mean", (first + last) / 2, features["attention_mask"])}

    def get_embedding_dimension(self) -> int:
        return self.width


class Projection(nn.Module):
    """The projection head of training, applied to the embedding."""

    def __init__(self, width: int, weights: dict[str, Tensor]):
        super().__init__()
        self.width, self.mlp = width, ProjectionHead(width)
        self.mlp.load_state_dict(weights)

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        return features | {"sentence_embedding": self.mlp(features["sentence_embedding"])}

    def get_embedding_dimension(self) -> int:
        return self.width


def layer_pooling(transformer: Transformer, pooler: str, file: Callable[[str], str | None]) -> list[nn.Module]:
    """Return the modules after a transformer that compute a pooling of `LAYERS`, or `mlp`.

    Args:
        transformer: It is changed to return all hidden layers, if they are needed.
        pooler: Name of the pooling.
        file: Returns the path of a file of the model.

    Raises:
        UsageError: The pooling is unknown, or the model has no projection head.
    """
    width = transformer.get_embedding_dimension()
    if pooler in LAYERS:
        transformer.config.output_hidden_states = True
        return [LayerPooling(width, pooler)]
    if pooler != "mlp":
        raise UsageError(f"is {pooler}", option="pooler", needed=f"one of: auto, {', '.join(POOLERS)}")
    path = file(HEAD_FILE)
    if path is None:
        raise UsageError(f"is mlp, but the model has no {HEAD_FILE}", option="pooler")
    mode = getattr(transformer.config, "informin", {}).get("pooling", "cls")
    return [Pooling(width, pooling_mode=MODES[mode]), Projection(width, load_file(path))]
