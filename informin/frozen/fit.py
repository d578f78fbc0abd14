"""Adapt a model or its embeddings to texts in closed form, without training or labels."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import ArrayLike
from safetensors import SafetensorError, safe_open
from sentence_transformers import SentenceTransformer
from typing_extensions import Unpack

from informin.distributed import first_only, rank
from informin.errors import UsageError, counted
from informin.evaluation.drift import FEWEST, SAMPLED_TEXTS, SEED, drift_warnings, measure_drift, neighbor_examples
from informin.evaluation.rows import CHUNK, native, raise_if_not_finite, rows_of, unit_rows
from informin.evaluation.table import values_html
from informin.files import last_name, new_folder, only_writer
from informin.frozen.adapted import save_adapted
from informin.frozen.adapter import TASKS, LinearAdapter
from informin.model.embedding import encode_in_shares, raise_if_other_texts, width_of
from informin.model.open import Loading, load_model, name_of
from informin.model.pooling import MODES, LayerPooling, ProjectionPooling
from informin.model.records import ADAPTER, FITTED
from informin.options import check_value, with_home
from informin.publishing.report import write_fit_report
from informin.texts import as_texts

logger = logging.getLogger(__name__)


EMBEDDING_SUFFIXES = (".npy", ".parquet", ".safetensors")
CHECKED = 5  # texts that are embedded again
SPREAD_OF = 500  # rows that measure how far apart texts are
# Largest distance to the model's embedding, as a fraction of the spread of the rows, which is 1.4 for another text.
# The rounding of float16 and int8 stays below 0.1. A prompt, another model or another order exceed it.
FARTHEST = 0.2
ALLOWED_DISTANCE = 1e-3  # distance that is always allowed, for texts that are all alike


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
        UsageError: Its suffix is not supported, it does not hold one matrix of floating-point numbers, or it contains a
            null, NaN or infinity.
    """
    if not isinstance(source, str | Path):
        array = _numpy(source) if isinstance(source, torch.Tensor) else np.asarray(source)
        return _validated(array, "the array")
    path = Path(with_home(source))
    if path.suffix not in EMBEDDING_SUFFIXES:
        raise UsageError(f"is {path}", option="embeddings", needed=f"a file ending in {', '.join(EMBEDDING_SUFFIXES)}")
    try:
        array = _read(path)
    except UsageError:
        raise
    # Also nulls in lists of a fixed size, which older versions of pyarrow cannot read.
    except (ValueError, pa.ArrowInvalid, SafetensorError) as error:
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
        UsageError: There is not one row per text, the widths differ, or a row is not the embedding of its text.
    """
    check_rows(vectors, texts)
    fix = "Give the embeddings of this model with the same prompt and maximum length, in the order of the texts."
    drawn = np.random.default_rng(0).permutation(len(vectors))
    again = _unit_vectors(encode([texts[row] for row in drawn[:CHECKED]]))
    rows = _unit_vectors(rows_of(vectors, drawn[:SPREAD_OF]))
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


def check_rows(vectors: np.ndarray, texts: Sequence[str]) -> None:
    """Raise UsageError if there is not one row per text."""
    if len(vectors) != len(texts):
        found = f"has {counted(len(vectors), 'row')} for {counted(len(texts), 'text')}"
        raise UsageError(found, option="embeddings")


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
        return np.load(path, mmap_mode="r")
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


def _unit_vectors(vectors: np.ndarray) -> np.ndarray:
    return unit_rows(vectors.astype(np.float64))


DOCUMENTS = "documents.npy"
FEW = {"search": 300, "clustering": 500}  # texts: with fewer, the shrinkage leaves little of the adapter
SEARCH_HINT = (
    "helps where queries resemble the texts (titles, abstracts, similar documents), can hurt where they are questions; "
    "`informin eval --retrieval` with 50 judged queries decides"
)


@dataclass(repr=False)
class FitResult:
    """A fitted adapter, and what it changes.

    Attributes:
        adapter: The fitted adapter.
        task: `clustering` or `search`.
        vectors: (N, d) embeddings of the texts, before the adapter.
        seconds: Time that the fit took, without the embedding.
        drift: What the adapter changes on a sample of the texts, as in `informin.evaluation.drift`; None for fewer than
            30 different texts.
        model: The model; None for embeddings without one.
        examples: Texts with neighbors that they lost and gained, for report.html.
        folder: Where the result was saved.
    """

    adapter: LinearAdapter
    task: str
    vectors: np.ndarray
    seconds: float
    drift: dict | None = None
    model: SentenceTransformer | None = None
    examples: list[dict] = field(default_factory=list)
    folder: Path | None = None

    @property
    def threshold(self) -> float | None:
        """Cosine above which a query finds at most about one unrelated text; None for fewer than 100 texts."""
        return self.adapter.threshold() if self.adapter.scores_ else None

    def save(self, output_dir: str | Path, *, overwrite: bool = False) -> None:
        """Write the model with the adapter or, for embeddings alone, adapter.safetensors and the adapted documents.npy.

        report.html shows examples of the texts; it is never published. In a distributed run, all processes call this
        function, and the first writes.

        Args:
            output_dir: Missing or empty folder. It appears once it is complete.
            overwrite: Whether to replace an older output of `save` in the folder.

        Raises:
            UsageError: The folder is in use, or another process writes it.
        """
        check_value(isinstance(overwrite, bool), "overwrite", overwrite, "True or False")
        output_dir = with_home(output_dir)
        kind = FITTED if self.model else ADAPTER
        with first_only(only_writer(output_dir, "output_dir")):
            if rank() == 0:
                with new_folder(output_dir, "output_dir", kind if overwrite else None) as folder:
                    self._write(folder)
        self.folder = Path(output_dir)

    def _write(self, folder: Path) -> None:
        if self.model:
            save_adapted(self.model, self.adapter, folder, texts=len(self.vectors), task=self.task, drift=self.drift)
        else:
            self.adapter.save(folder / ADAPTER)
            np.save(folder / DOCUMENTS, self.adapter.transform(self.vectors))
        write_fit_report(folder, self.title, self.summary(), self.drift, self.examples)

    @property
    def title(self) -> str:
        return f"Adapter for {last_name(name_of(self.model)) if self.model else 'embeddings'}"

    def summary(self) -> dict[str, str]:
        """Return the main figures by name."""
        rows, width = self.vectors.shape
        distinct = self.adapter.n_samples_
        copies = f", {distinct:,} of them different" if distinct < rows else ""
        values = {
            "task": self.task,
            "texts": f"{rows:,}{copies}; {width} dimensions to {len(self.adapter.coef_)}",
            "seconds": f"{self.seconds:.1f}",
        }
        if self.drift:
            new = self.drift["new"]
            values["drift"] = (
                f"{new['neighbors_kept']:.0f}% of the 10 nearest texts kept, cosine to the old embedding "
                f"{new['rotated_cosine']:.2f}"
            )
        if self.threshold is not None:
            values["scores"] = f"above a cosine of {self.threshold:.3f}, at most about one unrelated text per query"
        if self.task == "search":
            values["search"] = SEARCH_HINT
        return values

    def __repr__(self) -> str:
        folder = self.folder or "FOLDER"
        adapted = f'embeddings @ safetensors.numpy.load_file("{folder}/{ADAPTER}")["coef"].T'
        load = f'SentenceTransformer("{folder}")' if self.model else adapted
        values = self.summary() | {"load": load if self.folder else f'result.save("{folder}"); {load}'}
        return "\n".join([self.title, *(f"  {name}: {value}" for name, value in values.items())])

    def _repr_html_(self) -> str:
        return values_html(self.title, self.summary())


def fit(
    model: str | Path | SentenceTransformer | None = None,
    texts: Iterable[str] | None = None,
    *,
    task: str,
    embeddings: str | Path | ArrayLike | None = None,
    dimension: int | None = None,
    rotation: str = "principal",
    seed: int = 0,
    prompt: str | None = None,
    batch_size: int = 64,
    pooler: str = "auto",
    **loading: Unpack[Loading],
) -> FitResult:
    """Adapt a model, or embeddings from any source, to your texts in closed form, without training or labels.

    Args:
        model: Hub id, folder, or SentenceTransformer. The options about loading concern a name or folder.
        texts: N texts: a list, or another iterable of strings. A model needs them. Use 300 or more for search,
            and 500 or more for clustering.
        task: `clustering`, also for labels and near-duplicates; or `search`, for queries that resemble the texts.
        embeddings: (N, d) embeddings of the texts, or a file of them (.npy, .parquet or .safetensors). Without a model,
            they can be from any source. With one, they must be this model's, and save the time to embed.
        dimension: Number of dimensions of the adapted vectors. Default: all.
        rotation: `principal`: the first numbers of a vector approximate it best, for vectors that are cut later.
            `bits`: for binary quantization, one bit per number.
        seed: Seed of the sample of texts if there are more than 50,000.
        prompt: Prompt prepended to each text, instead of the stored prompt. The saved model embeds documents with it,
            too.
        batch_size: Texts per forward pass.
        pooler, loading: Options of `informin.load_model`.

    Returns:
        The adapter, what it changes, and `save`, which writes the adapted model.

    Raises:
        UsageError: An option, the model, the texts or the embeddings cannot be used.

    Example:
        >>> import informin, numpy as np
        >>> result = informin.fit(task="search", embeddings=np.random.default_rng(0).normal(size=(500, 16)))
        >>> result.adapter.transform(result.vectors).shape
        (500, 16)
    """
    if task not in TASKS:
        raise UsageError(f"is {task}", option="task", needed=f"one of: {', '.join(TASKS)}")
    texts = None if texts is None else as_texts(texts)
    vectors = None if embeddings is None else given_vectors(embeddings, texts)
    st = None
    if model is None:
        if vectors is None:
            raise UsageError("is missing", option="model_name", fix="Give a model with texts, or `embeddings`.")
        for option in loading:
            raise UsageError("is set without a model", option=option, fix="Give the model, or leave the option out.")
    elif not texts:
        raise UsageError("is missing or empty", option="train_file", fix="A model needs the texts.")
    else:
        st = open_with_prompt(model, prompt, pooler, loading)
        raise_if_not_savable(st)
        check_dimension(dimension, width_of(st))
        vectors = vectors_of(st, texts, vectors, side_of(task), batch_size)
    check_dimension(dimension, vectors.shape[1])
    start = time.monotonic()
    adapter = LinearAdapter(**TASKS[task], n_components=dimension, rotation=rotation, random_state=seed).fit(vectors)
    seconds = time.monotonic() - start
    if adapter.n_samples_ < FEW[task]:
        found = f"Found {counted(adapter.n_samples_, 'different text')}"
        logger.warning(f"{found}. With fewer than {FEW[task]}, the adapter changes little.")
    adapter.measure_scores(vectors)
    drift, examples = _changes(adapter, vectors, texts) if rank() == 0 else (None, [])
    return FitResult(adapter, task, vectors, seconds, drift, st, examples)


def check_dimension(dimension: int | None, width: int) -> None:
    """Raise UsageError if vectors of a width cannot have so many dimensions."""
    if dimension is not None:
        is_number = isinstance(dimension, int | np.integer) and dimension is not True
        check_value(is_number and 1 <= dimension <= width, "dimension", dimension, f"1 to {width}")


def raise_if_not_savable(model: SentenceTransformer) -> None:
    """Raise UsageError for a pooling that sentence-transformers lacks: no folder can hold a model with it."""
    if any(isinstance(module, LayerPooling | ProjectionPooling) for module in model):
        raise UsageError(
            "names a pooling with which no model can be saved",
            option="pooler",
            needed=f"one of: auto, {', '.join(MODES)}",
            fix="Or embed the texts with this pooling, and fit to the embeddings without the model.",
        )


def side_of(task: str) -> str | None:
    """Return the side of search whose prompt the texts of a task get."""
    return "document" if task == "search" else None


def open_with_prompt(
    model: str | Path | SentenceTransformer, prompt: str | None, pooler: str, loading: Loading
) -> SentenceTransformer:
    """Open a model that prepends a prompt to texts and documents, unless it is None; queries keep their prompt."""
    opened = load_model(model, pooler=pooler, **loading)
    if prompt is None:
        return opened
    prompted = copy(opened)
    prompted.prompts = opened.prompts | {"document": prompt, "text": prompt}
    prompted.default_prompt_name = "text"
    return prompted


def given_vectors(embeddings: str | Path | ArrayLike, texts: list[str] | None) -> np.ndarray:
    """Read embeddings. Raises UsageError if they are a file that `embed` wrote for other texts."""
    if isinstance(embeddings, str | Path):
        embeddings = with_home(embeddings)
    vectors = load_vectors(embeddings)
    if texts is not None:
        check_rows(vectors, texts)
        if isinstance(embeddings, str | Path):
            raise_if_other_texts(Path(embeddings), texts)
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


def _changes(adapter: LinearAdapter, vectors: np.ndarray, texts: list[str] | None) -> tuple[dict | None, list[dict]]:
    """Measure the drift on a sample of the texts, and collect examples."""
    rows = np.random.default_rng(SEED).permutation(len(vectors))[:SAMPLED_TEXTS]
    names = [" ".join(texts[row].split()) if texts else f"row {row:,}" for row in rows]
    before = dict(zip(names, rows_of(vectors, rows)))
    sample = list(before)
    if len(sample) < FEWEST:
        return None, []

    def old(some: Sequence[str]) -> np.ndarray:
        return np.stack([before[text] for text in some])

    def new(some: Sequence[str]) -> np.ndarray:
        return adapter.transform(old(some))

    drift = measure_drift(old, new, sample).record()
    drift["warnings"] = drift_warnings(drift["old"], drift["new"], trained=False)
    return drift, neighbor_examples(sample, old, new)
