"""Adapt a model or its embeddings to texts in closed form, without training or labels, and save the result."""

import logging
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize
from torch import nn
from typing_extensions import Unpack

from informin import __version__
from informin.distributed import first_only, rank
from informin.errors import UsageError, counted
from informin.evaluation.drift import FEWEST, SAMPLED_TEXTS, SEED, drift_warnings, measure_drift, neighbor_examples
from informin.evaluation.rows import rows_of
from informin.evaluation.table import values_html
from informin.fast.precision import chosen_precision, encoders, precision_of
from informin.files import last_name, new_folder, only_writer
from informin.frozen.adapter import TASKS, LinearAdapter
from informin.frozen.vectors import given_vectors, open_with_prompt, refuse_without_model, side_of, vectors_of
from informin.model.embedding import width_of
from informin.model.open import Loading, has_own_code, in_precision, loading_to_embed, name_of, source_of
from informin.model.pooling import MODES, LayerPooling, ProjectionPooling
from informin.model.records import ADAPTER, FitRecord, has_adapter
from informin.options import check_value, with_home
from informin.publishing.card import license_of, write_card
from informin.publishing.export import save_model
from informin.publishing.report import write_fit_report
from informin.texts import as_texts

logger = logging.getLogger(__name__)


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
        model: The model in float32, which `save` writes with the adapter; None for embeddings without one.
        precision: Precision of the weights that embedded the texts; None for given embeddings.
        examples: Texts with neighbors that they lost and gained, for report.html.
        folder: Where the result was saved.
    """

    adapter: LinearAdapter
    task: str
    vectors: np.ndarray
    seconds: float
    drift: dict | None = None
    model: SentenceTransformer | None = None
    precision: str | None = None
    examples: list[dict] = field(default_factory=list)
    folder: Path | None = None

    @property
    def threshold(self) -> float | None:
        """Cosine above which a query finds at most about one unrelated text.

        None for fewer than 100 different texts, or if they form no topics.
        """
        return self.adapter.threshold() if self.adapter.scores_ else None

    def save(self, output_dir: str | Path, *, overwrite: bool = False) -> None:
        """Write the model with the adapter or, for embeddings alone, adapter.safetensors and the adapted documents.npy.

        report.html shows examples of the texts; it is never published. In a distributed run, all processes call this
        function, and the first writes.

        Args:
            output_dir: Missing or empty folder. It appears once it is complete.
            overwrite: Whether to replace an older output of `save`, with all files that were added to its folder.

        Raises:
            UsageError: The folder is in use, or another process writes it.
        """
        check_value(isinstance(overwrite, bool), "overwrite", overwrite, "True or False")
        output_dir = with_home(output_dir)
        is_older = FitRecord.is_in if self.model else has_adapter
        with first_only(only_writer(output_dir, "output_dir")):
            if rank() == 0:
                with new_folder(output_dir, "output_dir", is_older if overwrite else None) as folder:
                    self._write(folder)
        self.folder = Path(output_dir)

    def _write(self, folder: Path) -> None:
        if self.model:
            record = fit_record(
                self.model,
                task=self.task,
                texts=len(self.vectors),
                dimensions=len(self.adapter.coef_),
                options=self.adapter.get_params(),
                drift=self.drift,
                precision=self.precision,
                remote_code=has_own_code(self.model),
            )
            write_fitted(with_adapter(self.model, self.adapter), record, folder)
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
        model: Hub id, folder, or SentenceTransformer. Options for loading apply only to a name or folder. The result
            shares the weights of a SentenceTransformer: save it before you train or convert the object.
        texts: N texts: a list, or another iterable of strings. A model needs them. Use 300 or more for search,
            and 500 or more for clustering.
        task: `clustering`, also for labels and near-duplicates; or `search`, for queries that resemble the texts.
        embeddings: (N, d) embeddings of the texts, or a file of them (.npy, .parquet or .safetensors). Without a model,
            they can be from any source. With a model, they must be this model's, and are used instead of embedding the
            texts.
        dimension: Number of dimensions of the adapted vectors. Default: all.
        rotation: `principal`: the first numbers of a vector approximate it best, for vectors that are truncated later.
            `bits`: for binary quantization, one bit per number.
        seed: Seed of the sample of texts if there are more than 50,000.
        prompt: Prompt prepended to each text, instead of the stored prompt. The saved model also uses it for documents.
        batch_size: Texts per forward pass.
        pooler, loading: Options of `informin.load_model`. `precision` embeds the texts, by default auto for a name or
            folder; the model is saved in float32.

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
    check_value(task in TASKS, "task", task, f"one of: {', '.join(TASKS)}")
    is_seed = isinstance(seed, int | np.integer) and 0 <= seed < 2**32  # of NumPy
    check_value(is_seed, "seed", seed, "a whole number from 0 to 4,294,967,295")
    texts = None if texts is None else as_texts(texts)
    vectors = None if embeddings is None else given_vectors(embeddings, texts)
    st = precision = None
    if model is None:
        if vectors is None:
            raise UsageError("is missing", option="model_name", fix="Give a model with texts, or `embeddings`.")
        refuse_without_model(prompt, pooler, loading)
    elif not texts:
        raise UsageError("is missing or empty", option="train_file", fix="A model needs the texts.")
    else:
        st = open_with_prompt(model, prompt, pooler, {**loading, "precision": "fp32", "bf16": False})  # to be saved
        raise_if_not_savable(st)
        check_dimension(dimension, width_of(st))
        wanted = loading_to_embed(model, loading)
        chosen = chosen_precision(wanted.get("precision"), wanted.get("bf16"), st.device)
        own = precision_of(model) if isinstance(model, SentenceTransformer) else None
        is_auto_table = wanted.get("precision") == "auto" and not encoders(st)  # which needs no warning
        embedding = st if is_auto_table else in_precision(st, chosen or own)
        precision = precision_of(embedding) if vectors is None else None
        vectors = vectors_of(embedding, texts, vectors, side_of(task), batch_size)
    check_dimension(dimension, vectors.shape[1])
    start = time.monotonic()
    adapter = LinearAdapter(**TASKS[task], n_components=dimension, rotation=rotation, random_state=seed)
    adapter.set_output(transform="default").fit(vectors)  # arrays, also if scikit-learn is set to return tables
    seconds = time.monotonic() - start
    if adapter.n_samples_ < FEW[task]:
        found = f"Found {counted(adapter.n_samples_, 'different text')}"
        logger.warning(f"{found}. With fewer than {FEW[task]}, the adapter changes little.")
    adapter.measure_scores(vectors)
    drift, examples = _changes(adapter, vectors, texts) if rank() == 0 else (None, [])
    return FitResult(adapter, task, vectors, seconds, drift, st, precision, examples)


def check_dimension(dimension: int | None, width: int) -> None:
    """Raise UsageError if vectors of a width cannot have so many dimensions."""
    if dimension is not None:
        is_number = isinstance(dimension, int | np.integer) and dimension is not True
        check_value(is_number and 1 <= dimension <= width, "dimension", dimension, f"1 to {width}")


def raise_if_not_savable(model: SentenceTransformer) -> None:
    """Raise UsageError for a pooling that sentence-transformers lacks, or 8-bit weights: no folder can hold either."""
    if any(isinstance(module, LayerPooling | ProjectionPooling) for module in model):
        raise UsageError(
            "names a pooling with which no model can be saved",
            option="pooler",
            needed=f"one of: auto, {', '.join(MODES)}",
            fix="Or embed the texts with this pooling, and fit to the embeddings without the model.",
        )
    if not all(isinstance(value, torch.Tensor) and not value.is_quantized for value in model.state_dict().values()):
        raise UsageError(
            f"is {name_of(model)}, whose weights are quantized in memory, and no folder can hold them",
            option="model_name",
            fix="Fit the model that was quantized, or embed the texts, and fit to the embeddings without the model.",
        )


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


def fit_record(model: SentenceTransformer, **entries: Any) -> FitRecord:
    """Return the record of what was fitted on a model, with further entries."""
    source = source_of(model)
    hub_id = source.hub_id
    name = hub_id or last_name(source.folder or source.name)
    return FitRecord(
        informin=__version__,
        base_model={"name": name, "hub_id": hub_id, "revision": source.revision},
        **license_of(source),
        **entries,
    )


def write_fitted(model: SentenceTransformer, record: FitRecord, folder: Path) -> None:
    """Write a model with its record and card into an empty folder."""
    save_model(model, folder)
    record.save(folder)
    write_card(folder)


def with_adapter(model: SentenceTransformer, adapter: LinearAdapter) -> SentenceTransformer:
    """Return a model with an affine map of its unit-length embedding, which shares the modules of `model`.

    Appends a Dense module, after a Normalize module if the model has none. A model that normalized its embeddings
    still does. A `truncate_dim` becomes a Dense module before the map.
    """
    normalized = type(list(model)[-1]).__name__ == "Normalize" and model.truncate_dim is None
    more: list[nn.Module] = [] if normalized else [Normalize()]
    if model.truncate_dim is not None:
        with model.truncate_embeddings(None):
            whole = model.get_embedding_dimension()
        more = [_linear(np.eye(width_of(model), whole)), *more]
    more += [_linear(adapter.coef_, adapter.intercept_), *([Normalize()] if normalized else [])]
    named: Any = OrderedDict(model.named_children())
    named |= {str(i): module for i, module in enumerate(more, start=len(named))}
    settings: dict[str, Any] = {name: getattr(model, name) for name in ("prompts", "default_prompt_name")}
    adapted = SentenceTransformer(modules=named, device=str(model.device), similarity_fn_name="cosine", **settings)
    adapted.module_kwargs = model.module_kwargs
    return adapted


def _linear(weight: np.ndarray, bias: np.ndarray | None = None) -> Dense:
    narrow, wide = weight.shape
    with torch.device("meta"):  # on which no weights are drawn, so that torch's random state stays as it is
        module = Dense(wide, narrow, bias=bias is not None, activation_function=nn.Identity())
    module.linear.weight = nn.Parameter(torch.from_numpy(weight.astype(np.float32)))
    if bias is not None:
        module.linear.bias = nn.Parameter(torch.from_numpy(bias.astype(np.float32)))
    return module
