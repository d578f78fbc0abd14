"""Keep the index of an old model when queries come from a new one."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer

from informin.adapters.linear import LinearAdapter
from informin.errors import UsageError

STAY, FIT, BRIDGE, AGAIN = DECISIONS = "stay", "fit", "bridge", "again"
FEWEST = 20  # texts that both models embedded
NEIGHBORS = 10
FORMAT = "informin-bridge"
HELD_OUT = 1_000  # texts whose neighbors are compared
# How much more a change of the model must agree with word search than the best use of the old model alone. Smaller
# differences do not predict which of two models is better: docs/results.md.
MARGIN = 1.25


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
    """What each decision is expected to give, by agreement with word search; higher is better.

    Attributes:
        agreement: For each decision, the mean fraction of a text's 10 nearest texts that TF-IDF also finds.
        texts: Number of held-out texts.
    """

    agreement: dict[str, float]
    texts: int

    @property
    def best(self) -> str:
        """The decision: to embed again only if it is far better, then to bridge, then to fit or to stay."""
        own = max((FIT, STAY), key=lambda name: self.agreement[name])
        return next((name for name in (AGAIN, BRIDGE) if self._far_better(name, own)), own)

    @property
    def best_with_old_index(self) -> str:
        """The decision if the texts cannot be embedded again."""
        own = max((FIT, STAY), key=lambda name: self.agreement[name])
        return BRIDGE if self._far_better(BRIDGE, own) else own

    def _far_better(self, name: str, own: str) -> bool:
        return self.agreement[name] > MARGIN * self.agreement[own]


def check_texts(texts: Sequence[str]) -> None:
    """Raise UsageError if there are fewer than 100 texts."""
    if len(texts) < 5 * FEWEST:
        raise UsageError(f"has {len(texts)} texts", option="texts", needed=f"{5 * FEWEST} or more")


def expect(texts: Sequence[str], new: np.ndarray, old: np.ndarray, seed: int = 0) -> Expected:
    """Compare the decisions on a fifth of the texts, up to 1,000, that no map is fitted on.

    Args:
        texts: N texts.
        new: (N, d_new) their embeddings by the new model.
        old: (N, d_old) their embeddings by the old model.
        seed: Seed of the held-out texts.

    Raises:
        UsageError: As `Bridge.fit`; or there are fewer than 100 texts, or the texts have no words.
    """
    check_texts(texts)
    order = np.random.default_rng(seed).permutation(len(texts))
    held, kept = np.split(order, [min(HELD_OUT, len(texts) // 5)])
    bridge = Bridge.fit(new[kept], old[kept])
    try:
        words = TfidfVectorizer(stop_words="english", sublinear_tf=True).fit_transform(texts)
    except ValueError:
        raise UsageError("has no words", option="texts", needed="texts with words") from None
    right = _nearest((words[held] @ words.T).toarray(), held)
    index, again = bridge.index(old), bridge.new.transform(new)
    unit = old / np.linalg.norm(old, axis=1, keepdims=True).clip(min=1e-12)
    sides = {
        STAY: (unit[held], unit),
        FIT: (index[held], index),
        BRIDGE: (bridge.transform(new[held]), index),
        AGAIN: (again[held], again),
    }
    found = {}
    for name, (queries, documents) in sides.items():
        nearest = _nearest(queries @ documents.T, held)
        found[name] = float((nearest[:, :, None] == right[:, None, :]).any(-1).mean())
    return Expected(found, len(held))


def _nearest(similarities: np.ndarray, own: np.ndarray) -> np.ndarray:
    """Return the indices (m, 10) of the highest similarities (m, N), without the text itself."""
    similarities[np.arange(len(own)), own] = -np.inf
    return np.argsort(-similarities, axis=1, kind="stable")[:, :NEIGHBORS]
