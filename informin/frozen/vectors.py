"""What `fit` and `distill` start from: the vectors of the texts, embedded by a model, or given and checked."""

from collections.abc import Callable, Sequence
from copy import copy
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import ArrayLike
from safetensors import SafetensorError, safe_open
from sentence_transformers import SentenceTransformer

from informin.errors import UsageError, counted
from informin.evaluation.encode import unit
from informin.evaluation.rows import CHUNK, native, raise_if_not_finite, rows_of
from informin.model.embedding import DOCUMENT_PROMPTS, encode_in_shares, raise_if_other_texts, side_prompt
from informin.model.open import Loading, load_model, name_of
from informin.options import with_home

EMBEDDING_SUFFIXES = (".npy", ".parquet", ".safetensors")
CHECKED = 5  # texts that are embedded again
SPREAD_OF = 500  # rows that measure how far apart texts are
# Largest distance to the model's embedding, as a fraction of the spread of the rows, which is 1.4 for another text.
# The rounding of float16 and int8 stays below 0.1. A prompt, another model or another order exceed it.
FARTHEST = 0.2
ALLOWED_DISTANCE = 1e-3  # distance that is always allowed, for texts that are all alike


def side_of(task: str) -> str | None:
    """Return the side of search whose prompt the texts of a task get."""
    return "document" if task == "search" else None


def open_with_prompt(
    model: str | Path | SentenceTransformer, prompt: str | None, pooler: str, loading: Loading
) -> SentenceTransformer:
    """Open a model that prepends a prompt to texts and documents. None keeps the stored prompt; queries keep theirs.

    Its prompt `document` is that of documents, also if the model stores it under another name.
    """
    opened = load_model(model, pooler=pooler, **loading)
    prompted = copy(opened)
    if prompt is None:
        stored = side_prompt(opened, "document")  # maybe of passages, which `encode_document` ignores
        prompted.prompts = opened.prompts | ({"document": stored} if stored else {})
        return prompted
    replaced = [name for name in DOCUMENT_PROMPTS if name in opened.prompts]  # `side_prompt` skips empty ones
    prompted.prompts = opened.prompts | dict.fromkeys([*replaced, "document", "text"], prompt)
    prompted.default_prompt_name = "text"
    return prompted


def refuse_without_model(prompt: str | None, pooler: str, loading: Loading) -> None:
    """Raise UsageError for an option of the model if embeddings are given without a model."""
    given = {"prompt": prompt, "pooler": None if pooler == "auto" else pooler} | loading
    for option, value in given.items():
        if value is not None:
            raise UsageError("is set without a model", option=option, fix="Give the model, or leave the option out.")


def given_vectors(embeddings: str | Path | ArrayLike, texts: list[str] | None) -> np.ndarray:
    """Read embeddings.

    Raises:
        UsageError: There is not one row per text, or they are a file that `embed` wrote for other texts.
    """
    vectors = load_vectors(embeddings)
    if texts is None:
        return vectors
    if len(vectors) != len(texts):
        found = f"has {counted(len(vectors), 'row')} for {counted(len(texts), 'text')}"
        raise UsageError(found, option="embeddings")
    if isinstance(embeddings, str | Path):
        raise_if_other_texts(Path(with_home(embeddings)), texts)
    return vectors


def vectors_of(
    model: SentenceTransformer, texts: list[str], vectors: np.ndarray | None, side: str | None, batch_size: int
) -> np.ndarray:
    """Embed the texts, or check that the vectors are their embeddings."""

    def encode(some: Sequence[str]) -> np.ndarray:
        return encode_in_shares(model, some, side=side, batch_size=batch_size)

    if vectors is None:
        return encode(texts)
    check_vectors(vectors, texts, encode, name_of(model))
    return vectors


def load_vectors(source: str | Path | ArrayLike) -> np.ndarray:
    """Read embeddings (n, d).

    Args:
        source: An array or tensor, or a file:

            * `.npy`: a two-dimensional array, which is memory-mapped.
            * `.parquet`: the only column of lists of floating-point numbers, of equal length and without nulls.
            * `.safetensors`: the only two-dimensional tensor. bfloat16 and float8 become float32.

    Returns:
        (n, d) float16, float32 or float64.

    Raises:
        UsageError: It does not exist, its suffix is not supported, it does not hold one matrix of floating-point
            numbers, or it contains a null, NaN or infinity.
    """
    if not isinstance(source, str | Path):
        array = _numpy(source) if isinstance(source, torch.Tensor) else np.asarray(source)
        return _validated(array, "the array")
    path = Path(with_home(source))
    if path.suffix not in EMBEDDING_SUFFIXES:
        raise UsageError(f"is {path}", option="embeddings", needed=f"a file ending in {', '.join(EMBEDDING_SUFFIXES)}")
    if not path.is_file():
        raise UsageError(f"{path} does not exist", option="embeddings")
    try:
        array = _read(path)
    except UsageError:
        raise
    # Also nulls in lists of a fixed size, which older versions of pyarrow cannot read.
    except (ValueError, EOFError, pa.ArrowInvalid, SafetensorError) as error:
        fix = "Write the file again. Rows that are null must be recomputed first."
        raise UsageError(f"is {path}, which cannot be read ({error})", option="embeddings", fix=fix) from error
    return _validated(array, str(path))


def check_vectors(
    vectors: np.ndarray, texts: Sequence[str], encode: Callable[[Sequence[str]], np.ndarray], name: str
) -> None:
    """Embed five texts again, and compare them with their rows by direction.

    Args:
        vectors: (N, d) embeddings.
        texts: N texts.
        encode: Function from M texts to the model's embeddings (M, d).
        name: Name of the model, for messages.

    Raises:
        UsageError: The widths differ, or a row is not the embedding of its text.
    """
    fix = "Give the embeddings of this model with the same prompt and maximum length, in the order of the texts."
    drawn = np.random.default_rng(0).permutation(len(vectors))
    again = unit(encode([texts[row] for row in drawn[:CHECKED]]))
    rows = unit(rows_of(vectors, drawn[:SPREAD_OF]))
    if rows.shape[1] != again.shape[1]:
        different = f"has {rows.shape[1]} dimensions, and {name} has {again.shape[1]}"
        raise UsageError(different, option="embeddings", fix=fix)
    spread = float(np.sqrt(((rows - rows.mean(0)) ** 2).sum(-1).mean()))
    distances = np.linalg.norm(again - rows[: len(again)], axis=-1)
    worst = int(distances.argmax())
    if distances[worst] > FARTHEST * spread + ALLOWED_DISTANCE:
        raise UsageError(
            f"has embeddings that differ from those of {name}: in row {drawn[worst]}, counted from 0, the cosine "
            f"between both is {float(again[worst] @ rows[worst]):.3f}",
            option="embeddings",
            fix=fix,
        )


def _validated(array: np.ndarray, name: str) -> np.ndarray:
    """Return an array that adapters can use. Raise UsageError if it is not a matrix of finite numbers."""
    if array.ndim != 2 or array.dtype.kind != "f" or len(array) < 1 or array.shape[1] < 2:
        raise UsageError(
            f"has the shape {array.shape} and the type {array.dtype} in {name}",
            option="embeddings",
            needed="a matrix (n, d) of floating-point numbers with two columns or more",
        )
    array = array.astype(np.float64) if array.dtype.itemsize > 8 else native(array)
    for start in range(0, len(array), CHUNK):
        raise_if_not_finite(rows_of(array, slice(start, start + CHUNK)), start, name)
    return array


def _read(path: Path) -> np.ndarray:
    if path.suffix == ".npy":
        array = np.load(path, mmap_mode="r")
        if not isinstance(array, np.ndarray):
            raise ValueError("it is an archive of several arrays")
        return array
    return _parquet(path) if path.suffix == ".parquet" else _safetensors(path)


def _parquet(path: Path) -> np.ndarray:
    table = pq.read_table(path, columns=[_column(pq.read_schema(path), path)])
    lists = table.column(0).combine_chunks()
    values = lists.flatten()  # without the null lists
    widths = set(lists.value_lengths().to_pylist())
    if lists.null_count or values.null_count or len(widths) != 1:
        problem = "a null row or number" if lists.null_count or values.null_count else f"lists of lengths {widths}"
        raise UsageError(f"{path} has {problem}", option="embeddings", fix="Remove or recompute these rows.")
    return values.to_numpy(zero_copy_only=False).reshape(len(lists), widths.pop())


def _column(schema: pa.Schema, path: Path) -> str:
    names = [field.name for field in schema if pa.types.is_floating(getattr(field.type, "value_type", pa.null()))]
    if len(names) != 1:
        raise UsageError(
            f"{path} has {len(names)} columns of lists of floating-point numbers", option="embeddings", needed="one"
        )
    return names[0]


def _safetensors(path: Path) -> np.ndarray:
    with safe_open(path, "pt") as file:
        names = [name for name in file.keys() if len(file.get_slice(name).get_shape()) == 2]
        if len(names) != 1:
            raise UsageError(f"{path} has {len(names)} matrices", option="embeddings", needed="one")
        return _numpy(file.get_tensor(names[0]))


def _numpy(tensor: torch.Tensor) -> np.ndarray:
    exact = tensor.dtype in (torch.float16, torch.float32, torch.float64) or not tensor.is_floating_point()
    return (tensor if exact else tensor.float()).detach().cpu().numpy()
