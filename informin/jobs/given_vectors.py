"""The embeddings that a user gives: read them, and check that they are those of the model and the texts."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike

from informin.adapters import vectors as adapter_vectors
from informin.adapters.rows import read_rows, unit_rows
from informin.errors import UsageError
from informin.inputfiles import VECTORS
from informin.models.model import Model
from informin.models.windows import Windows

EMBEDDED = 5  # texts that are embedded again
SPREAD_OF = 500  # rows that measure how far apart texts are
# Largest distance to the model's own embedding, as a fraction of the spread of the rows, which is 1.4 for another text.
# The rounding of float16 and int8 stays below 0.1. A prompt, another model or another order exceed it.
FARTHEST = 0.2
FEWEST_HALVES = 10  # held-out texts from which one can tell whether halves belong to them
ROUNDING = 1e-3  # distance that is always allowed, for texts that are all alike


def is_vector_file(model: object) -> bool:
    """Return whether this is the name of a file of embeddings, instead of a model."""
    return isinstance(model, str | Path) and Path(model).suffix.lower() in VECTORS and not Path(model).is_dir()


def given_vectors(embeddings: str | Path | ArrayLike) -> tuple[np.ndarray, str]:
    """Return embeddings (N, d) from a file or an array, and their name in messages.

    Raises:
        UsageError: As `informin.adapters.vectors.load_vectors`.
    """
    if isinstance(embeddings, str | Path):
        return adapter_vectors.load_vectors(embeddings), str(embeddings)
    name = "the array"
    if isinstance(embeddings, torch.Tensor):
        half = embeddings.dtype == torch.bfloat16  # which numpy does not have
        embeddings = (embeddings.float() if half else embeddings).detach().cpu()
    return adapter_vectors.check_vectors(np.asarray(embeddings), name), name


def check_rows(name: str, vectors: np.ndarray, texts: list[str]) -> None:
    """Raise UsageError if there is not one row per text."""
    if len(vectors) != len(texts):
        raise UsageError(
            f"{name} has {len(vectors):,} rows, and there are {len(texts):,} texts",
            option="embeddings",
            fix="Give one row per text, in the order of the texts without blank lines.",
        )


def check_halves(name: str, vectors: np.ndarray, held_out: np.ndarray, size: int) -> None:
    """Raise UsageError if the rows of halves are not those of the held-out texts, such as with another seed.

    Args:
        name: File of the embeddings, for messages.
        vectors: The rows of `write_texts`: the sample, then the first and the second halves of the held-out texts.
        held_out: Indices (M,) of the held-out texts in the sample.
        size: Number of texts in the sample.
    """
    if len(held_out) < FEWEST_HALVES:
        return
    rows = (read_rows(vectors, chosen) for chosen in (held_out, slice(size, size + len(held_out))))
    whole, first = (unit_rows(torch.from_numpy(part).double()) for part in rows)
    nearer = (whole * first).sum(1) - (whole * first.roll(1, 0)).sum(1)  # than the half of another text
    if nearer.mean() < 2 * nearer.std() / len(nearer) ** 0.5:
        raise UsageError(
            f"In {name}, halves are no nearer to their own texts than to others",
            needed="embeddings of `write_texts` with the same files, `max_texts` and `seed`",
        )


def check_vectors(name: str, vectors: np.ndarray, texts: list[str], encoder: Model, seed: int = 0) -> None:
    """Embed five texts and compare them with their rows, by direction.

    Args:
        name: File of the embeddings, for messages.
        vectors: (N, d) embeddings.
        texts: N texts.
        encoder: The model that is said to have embedded them.
        seed: Seed of the sample of texts.

    Raises:
        UsageError: The widths differ, or a row is not the embedding of its text.
    """
    if vectors.shape[1] != encoder.dimensions:
        raise UsageError(
            f"{name} has {vectors.shape[1]} dimensions, and {encoder.name} has {encoder.dimensions}",
            option="embeddings",
            fix="Give the embeddings of this model, or leave them out.",
        )
    drawn = np.random.default_rng(seed).permutation(len(vectors))
    (pooler,) = encoder.poolers
    sample = [texts[row] for row in drawn[:EMBEDDED]]
    own = _units(encoder(sample)[pooler])
    given = _units(read_rows(vectors, drawn[:SPREAD_OF]))
    spread = float((given - given.mean(0)).square().sum(-1).mean().sqrt())
    distances = (own - given[: len(own)]).norm(dim=-1)
    if encoder.truncated.intersection(sample):  # or they were read in windows
        in_windows = (_units(Windows(encoder)(sample)[pooler]) - given[: len(own)]).norm(dim=-1)
        distances = distances.minimum(in_windows)
    worst = int(distances.argmax())
    if distances[worst] > FARTHEST * spread + ROUNDING:
        cosine = float(own[worst] @ given[worst])
        raise UsageError(
            f"{name} does not have the embeddings of {encoder.name} for these texts: in row {drawn[worst]}, counted "
            f"from 0, the cosine between both is {cosine:.3f}",
            option="embeddings",
            fix="Give the embeddings of this model with the same prompt and maximum length, in the order of the texts, "
            "or leave them out.",
        )


def _units(vectors: np.ndarray) -> torch.Tensor:
    return unit_rows(torch.from_numpy(vectors.astype(np.float64)))
