"""Keep the index of an old model when queries come from a new one."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from informin.adapters.linear import LinearAdapter
from informin.adapters.prediction import FEWEST as FEWEST_HELD_OUT
from informin.adapters.prediction import HalvesTest, log_ranks
from informin.errors import UsageError

STAY, FIT, BRIDGE, AGAIN = DECISIONS = "stay", "fit", "bridge", "again"
FEWEST = 20  # texts that both models embedded
FORMAT = "informin-bridge"
# How much lower the mean log rank of another model must be than that of the best use of the old model alone, in nats.
# Smaller differences do not predict which of two models is better: results/search.md.
MARGIN = 0.25
# How much higher the mean log rank of the bridge may be than that of the old model, for a few words of a text. Such
# queries share words with their texts, which favors one model for both. A bridge that comes close is then better.
ALLOWANCE = 0.45


@dataclass(frozen=True)
class Bridge:
    """A map from one model's embeddings to an index of another's.

    Attributes:
        new: Adapter of the new model.
        old: Adapter of the old model, which the index went through.
        rotation: (d_new, d_old) matrix between their adapted embeddings.
        mean: (d_new,) mean of the adapted new embeddings.
    """

    new: LinearAdapter
    old: LinearAdapter
    rotation: np.ndarray
    mean: np.ndarray

    @classmethod
    def fit(cls, new: np.ndarray, old: np.ndarray) -> "Bridge":
        """Fit an adapter on each model's embeddings, and the orthogonal Procrustes rotation between the two.

        Args:
            new: (n, d_new) embeddings of n texts by the new model.
            old: (n, d_old) embeddings of the same texts by the old model.

        Raises:
            UsageError: The numbers of rows differ, there are fewer than 20, or an embedding is NaN or infinity.
        """
        if len(new) != len(old) or len(new) < FEWEST:
            raise UsageError(
                f"new has {len(new)} rows and old has {len(old)}",
                needed=f"embeddings of the same {FEWEST} texts or more by both models",
            )
        adapters = LinearAdapter().fit(new), LinearAdapter().fit(old)
        x, y = (np.float64(adapter.transform(part)) for adapter, part in zip(adapters, (new, old)))
        mean = x.mean(0)
        left, _, right = np.linalg.svd((x - mean).T @ (y - y.mean(0)), full_matrices=False)
        return cls(*adapters, left @ right, mean)

    def transform(self, queries: np.ndarray) -> np.ndarray:
        """Return vectors (m, d_old) of unit length for the adapted index, of the new model's queries (m, d_new)."""
        moved = (self.new.transform(queries) - self.mean) @ self.rotation
        return moved / np.linalg.norm(moved, axis=-1, keepdims=True).clip(min=1e-12)

    def index(self, old: np.ndarray) -> np.ndarray:
        """Return the vectors (n, d_old) of an index from its old vectors."""
        return self.old.transform(old)

    def save(self, path: str | Path) -> None:
        """Write a safetensors file with the matrices `new`, `old` and `rotation` and the vector `mean`, in float32."""
        from safetensors.numpy import save_file

        parts = {"new": self.new.coef_, "old": self.old.coef_, "rotation": self.rotation, "mean": self.mean}
        save_file({name: part.astype(np.float32) for name, part in parts.items()}, path, metadata={"format": FORMAT})

    @classmethod
    def load(cls, path: str | Path) -> "Bridge":
        """Read a bridge that `save` or `informin upgrade` wrote.

        Raises:
            UsageError: The file is no bridge.
        """
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, "numpy") as file:
                form = (file.metadata() or {}).get("format")
                parts = {name: file.get_tensor(name) for name in file.keys()} if form == FORMAT else {}
        except (SafetensorError, OSError):
            parts = {}
        if not parts:
            raise UsageError(f"{path} is not a bridge", needed="a file that `Bridge.save` or informin upgrade wrote")
        new, old = (LinearAdapter.of_matrix(parts[name]) for name in ("new", "old"))
        return cls(new, old, parts["rotation"], parts["mean"])


@dataclass(frozen=True)
class Expected:
    """What each decision is expected to give: how early the second half of a text is found with its first half.

    Attributes:
        log_ranks: For each decision, the mean log of the rank of the right half; lower is better.
        texts: Number of held-out texts.
        query_log_ranks: The same for the rank of the whole text, found with a few of its words. None if they were not
            embedded.
    """

    log_ranks: dict[str, float]
    texts: int
    query_log_ranks: dict[str, float] | None = None

    def rank(self, decision: str) -> float:
        """The geometric mean of the ranks; 1 is best."""
        return float(np.exp(self.log_ranks[decision]))

    @property
    def best(self) -> str:
        """The decision: to embed again only if it is far better, or the better use of the old model alone."""
        return AGAIN if self._is_far_better else self._own

    @property
    def best_with_old_index(self) -> str:
        """The decision if the texts cannot be embedded again: a bridge only to a far better model."""
        ranks = self.query_log_ranks
        if not self._is_far_better or ranks is None:
            return self._own
        return BRIDGE if ranks[BRIDGE] < min(ranks[STAY], ranks[FIT]) + ALLOWANCE else self._own

    @property
    def _own(self) -> str:
        return min((FIT, STAY), key=lambda name: self.log_ranks[name])

    @property
    def _is_far_better(self) -> bool:
        return self.log_ranks[self._own] - self.log_ranks[AGAIN] > MARGIN


def check_held_out(texts: int) -> None:
    """Raise UsageError if fewer than 50 texts are held out."""
    if texts < FEWEST_HELD_OUT:
        needed = f"{FEWEST_HELD_OUT} or more, which 250 texts give"
        raise UsageError(f"has {texts} texts of four words or more to hold out", option="texts", needed=needed)


def expect(new: HalvesTest, old: HalvesTest) -> Expected:
    """Compare the decisions on held-out texts that no map is fitted on.

    Args:
        new: Embeddings of the texts and of the halves of the held-out ones by the new model.
        old: Embeddings of the same by the old model.

    Raises:
        UsageError: As `Bridge.fit`; or fewer than 50 texts are held out.
    """
    check_held_out(len(old.first))
    bridge = Bridge.fit(new.fit_on, old.fit_on)
    by_halves = _log_ranks(bridge, new.first, new.second, old.first, old.second)
    by_queries = None
    if new.queries is not None and old.queries is not None:
        assert new.whole is not None and old.whole is not None
        by_queries = _log_ranks(bridge, new.queries, new.whole, old.queries, old.whole)
    return Expected(by_halves, len(old.first), by_queries)


def _log_ranks(
    bridge: Bridge, new_queries: np.ndarray, new_texts: np.ndarray, old_queries: np.ndarray, old_texts: np.ndarray
) -> dict[str, float]:
    """Return the mean log rank of the right text by decision."""
    index = bridge.index(old_texts)
    sides = {
        STAY: (old_queries, old_texts),
        FIT: (bridge.index(old_queries), index),
        BRIDGE: (bridge.transform(new_queries), index),
        AGAIN: (bridge.new.transform(new_queries), bridge.new.transform(new_texts)),
    }
    return {name: float(log_ranks(*pair).mean()) for name, pair in sides.items()}
