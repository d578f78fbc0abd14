"""Poolings by name: those of sentence-transformers, and those that the papers read hidden layers with."""

from typing import Any

from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Normalize, Pooling, StaticEmbedding
from torch import Tensor, nn

from informin.errors import UsageError
from modeling_informin import HEAD_FILE, ProjectionHead

POOLERS: dict[str, str | tuple[int, int] | None] = {
    # The pooling mode of sentence-transformers, which a checkpoint stores.
    "cls": "cls",
    "mean": "mean",
    "last": "lasttoken",
    # Mean over the tokens of the mean of two hidden states, of which 0 is that of the embedding layer.
    "first_last": (1, -1),  # SimCSE's code; BERT-base: 60.73 STS average
    "embeddings_last": (0, -1),  # the papers' "first-last avg"; BERT-base: 56.70
    "last2": (-2, -1),
    # The projection head of training, applied to the embedding.
    "mlp": None,
}
MODES = {name: mode for name, mode in POOLERS.items() if isinstance(mode, str)}
NAME_OF_MODE = {mode: name for name, mode in MODES.items()}


def raise_if_unknown(pooler: str) -> None:
    """Raise UsageError for a name that is not in `POOLERS`."""
    if pooler not in POOLERS:
        raise UsageError(f"is {pooler}", option="pooler", needed=f"one of: auto, {', '.join(POOLERS)}")


def with_pooling(model: SentenceTransformer, pooler: str, projection_head: str | None = None) -> SentenceTransformer:
    """Return a model with another pooling of its transformer's tokens, without its other modules.

    The projection head reads what it read in training: the embedding, without a normalization at the end.

    Args:
        model: A model whose first module is a Transformer, which is changed to return all hidden layers if needed.
        pooler: One of `POOLERS`.
        projection_head: File with the weights of the projection head, for `mlp`; None if the model has none.

    Raises:
        UsageError: The pooling is unknown, the model is static, or it has no projection head.
    """
    transformer = model[0]
    width, modules = transformer.get_embedding_dimension(), []
    raise_if_unknown(pooler)
    how = POOLERS[pooler]
    if how is not None and isinstance(transformer, StaticEmbedding):
        found = f"is {pooler}, but the model is static: it averages its token vectors by itself"
        raise UsageError(found, option="pooler", needed="auto")
    pools_prompt = all(getattr(module, "include_prompt", True) for module in model)
    if isinstance(how, str):
        modules = [Pooling(width, pooling_mode=how, include_prompt=pools_prompt or how == "cls")]  # [CLS] comes first
    elif how is not None:
        transformer.config.output_hidden_states = True
        modules = [LayerPooling(width, how, pools_prompt)]
    elif projection_head is None:
        raise UsageError(f"is mlp, but the model has no {HEAD_FILE}", option="pooler")
    else:
        modules = [module for module in list(model)[1:] if module is not model[-1] or not isinstance(module, Normalize)]
        modules.append(ProjectionPooling(load_file(projection_head)))
    kept = ("prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim")
    settings = {key: getattr(model, key) for key in kept}
    return SentenceTransformer(modules=[transformer, *modules], device=str(model.device), **settings).eval()


class LayerPooling(nn.Module):
    """Mean over the tokens of the mean of two hidden layers."""

    def __init__(self, width: int, layers: tuple[int, int], include_prompt: bool):
        super().__init__()
        self.width, self.layers, self.include_prompt = width, layers, include_prompt

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        first, last = (features["all_layer_embeddings"][layer] for layer in self.layers)  # (N, L, d) each
        mean = Pooling(self.width, pooling_mode="mean", include_prompt=self.include_prompt)
        pooled = mean(features | {"token_embeddings": (first + last) / 2})
        return features | {"sentence_embedding": pooled["sentence_embedding"]}

    def get_embedding_dimension(self) -> int:
        return self.width

    def get_config_dict(self) -> dict[str, Any]:
        """Return the settings, which checksums of models read."""
        return {"layers": self.layers} | ({} if self.include_prompt else {"include_prompt": False})


class ProjectionPooling(nn.Module):
    """The projection head of training, applied to the embedding."""

    def __init__(self, weights: dict[str, Tensor]):
        super().__init__()
        self.width = len(weights["dense.weight"])
        self.mlp = ProjectionHead(self.width)
        self.mlp.load_state_dict(weights)

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        return features | {"sentence_embedding": self.mlp(features["sentence_embedding"])}

    def get_embedding_dimension(self) -> int:
        return self.width
