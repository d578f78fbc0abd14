"""Interfaces between guides and the terms that use them."""

from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor


@dataclass(frozen=True)
class GuideNeeds:
    """What a term needs from a guide.

    Attributes:
        sentences: The sentences whose embeddings it uses: those of the training data, or the general sentences of the
            replay.
        same_dimension: Whether the guide's embeddings must have the dimension of the trained encoder's.
        neighbors: Number of nearest neighbors per sentence.
        neighbors_option: Name of the option that sets this number.
    """

    sentences: Literal["training", "general"] = "training"
    same_dimension: bool = False
    neighbors: int = 0
    neighbors_option: str | None = None


class Guide(Protocol):
    """A frozen encoder's embeddings of N sentences. `informin.guide.cache.CachedGuide` is the implementation."""

    def lookup(self, indices: Tensor) -> Tensor:
        """Return the unit vectors (B, d) float32 of the sentences with these indices (B,), on the same device."""

    def quantile(self, fraction: float) -> float:
        """Return the cosine that this fraction of all pairs of different sentences exceeds."""

    def neighborhood_means(self, k: int) -> "Guide":
        """Return a guide whose embeddings are means over each sentence and its k nearest neighbors."""
