"""Adapt a model or its embeddings to texts in closed form, without training or labels."""

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from typing_extensions import Unpack

from informin.adapters.linear import ROTATIONS, LinearAdapter
from informin.adapters.prediction import HURTS, PRESETS, Prediction, Width, shortest
from informin.adapters.scores import scores_line
from informin.distributed import first_only, rank
from informin.errors import UsageError, counted
from informin.evaluation.drift import MAIN, draw, drift_table
from informin.files import last_name
from informin.jobs.fit_files import changes_of, prediction_record, sample_of_vectors, vectors_of, write_fit
from informin.jobs.given_vectors import check_rows, check_vectors, given_vectors
from informin.jobs.models import (
    ModelKeywords,
    ModelOptions,
    embed_in_memory,
    options_of,
    refuse_other_pooling,
    text_encoder,
)
from informin.jobs.shared_lines import checked_lines
from informin.jobs.verdict import AUTO, chosen_adapter, reason, verdict_line
from informin.models.model import Model
from informin.models.texts import as_texts
from informin.models.windows import told_truncated
from informin.outputs import only_writer
from informin.program import require_seed
from informin.report.html import tables_html, values_html
from informin.report.verdicts import Verdict, of_fit

logger = logging.getLogger(__name__)

DOCUMENTS = ("adapted", "smoothed")


@dataclass(repr=False)
class FitResult:
    """A fitted adapter, its predicted effect, and what it changes.

    Attributes:
        adapter: The fitted adapter.
        preset: Name of its preset: `documents` or `short_texts`.
        prediction: The numbers behind `verdict`; None for embeddings without a model.
        changes: `drift`, `general` and `snapshot` of report.json. Empty except in the first process.
        seconds: Time that the final fit took.
        vectors: (N, d) embeddings of the texts, before the adapter.
        encoder: The model; None for embeddings without one.
        embeddings: File of the embeddings, if one was given.
        options: Preset and model options as they were given, for the report.
        name: What the report and the card call the model; None for embeddings without a name.
        curve: Predicted quality by the number of dimensions, longest first. Empty without a model, or with fewer than
            50 held-out texts.
    """

    adapter: LinearAdapter
    preset: str
    prediction: Prediction | None
    changes: dict
    seconds: float
    vectors: np.ndarray
    encoder: Model | None
    embeddings: str | None
    options: dict
    name: str | None
    curve: list[Width] = field(default_factory=list)

    @property
    def verdict(self) -> Verdict:
        """Whether the adapter is likely to help, in words. It is predicted without labels."""
        return of_fit({"prediction": prediction_record(self.prediction), "options": self.options})

    @property
    def drift(self) -> dict | None:
        """What the adapter changes on a sample of the texts; None for fewer than 30 texts."""
        return self.changes.get("drift")

    def refuse_harm(self) -> None:
        """Raise UsageError if the preset was auto, and the adapter is likely to hurt."""
        if self._was_chosen and self.prediction and self.prediction.verdict == HURTS:
            raise UsageError(
                "auto finds that the adapter is likely to hurt",
                option="preset",
                fix=f"Use the model as it is, or write the adapter anyway with the preset {self.preset}.",
            )

    def save(self, output_dir: str | Path, *, documents: str | None = None) -> None:
        """Write the folder that `informin fit` writes: the model with the adapter, or the adapter itself.

        With several processes, all of them call this function, and the first writes.

        Args:
            output_dir: Missing or empty folder. It appears once it is complete.
            documents: Also write documents.npy, the vectors of the texts for an index: `adapted`, or `smoothed`, each
                also averaged with its nearest texts. Default: adapted for embeddings without a model.

        Raises:
            UsageError: The folder is in use or cannot be written. Or the preset was auto, and the adapter is likely to
                hurt: give the preset to write it anyway.
        """
        self.refuse_harm()
        if documents not in (None, *DOCUMENTS):
            raise UsageError(f"is {documents}", option="documents", needed=f"one of: {', '.join(DOCUMENTS)}")
        with first_only(only_writer(output_dir, "output_dir")):
            if rank() == 0:
                write_fit(self, output_dir, documents)

    def summary(self) -> dict[str, str]:
        """Return the main figures by name."""
        rows, dimensions = self.vectors.shape
        found = {
            "fitted on": f"{counted(rows, 'embedding')} of {dimensions} dimensions, in {self.seconds:.1f} s",
            "preset": self.preset + (f", {reason(self.prediction)}" if self._was_chosen and self.prediction else ""),
            **({"dimensions": f"{len(self.adapter.coef_):,} of {dimensions:,}"} if self.adapter.n_components else {}),
            "strength": f"{self.adapter.strength_:.2f} (1 is the full effect; with few texts, it is less)",
        }
        if self.adapter.scores_:
            found["scores"] = scores_line(self.adapter.scores_)
        if self.prediction:
            found["verdict"] = verdict_line(self.prediction, self._was_chosen)
        return found | {f"warning {i}": f"the adapter {text}" for i, text in enumerate(self._warnings, start=1)}

    @property
    def _title(self) -> str:
        return f"Adapter for {self.name or 'embeddings'}"

    @property
    def _was_chosen(self) -> bool:
        return self.options["preset"] == AUTO

    @property
    def _warnings(self) -> list[str]:
        return self.drift["warnings"] if self.drift else []

    def __repr__(self) -> str:
        return "\n".join([self._title, *(f"  {name}: {value}" for name, value in self.summary().items())])

    def _repr_html_(self) -> str:
        tables = [drift_table({"adapted": self.drift}, "before", MAIN)] if self.drift else []
        return values_html(self._title, self.summary()) + tables_html(tables)


def fit(
    model: str | Path | Model | None = None,
    texts: Iterable[str] | None = None,
    *,
    embeddings: str | Path | ArrayLike | None = None,
    preset: str = AUTO,
    n_neighbors: int = 10,
    whitening: float | None = None,
    self_weight: float | None = None,
    dimension: int | Literal["auto"] | None = None,
    rotation: str = "principal",
    seed: int = 0,
    senteval_dir: str | Path | None = None,
    name: str | None = None,
    strip_shared_lines: bool = False,
    **options: Unpack[ModelKeywords],
) -> FitResult:
    """Adapt a model, or embeddings from any source, to your texts in closed form, without training or labels.

    Args:
        model: Hub id, folder, SentenceTransformer, or a model from `load_model`. The adapter is saved as a part of it.
        texts: N texts: a list, or another iterable of strings. A model needs them.
        embeddings: (N, d) embeddings of the texts, or a file of them (.npy, .parquet or .safetensors). Without a model,
            they can be from any source. With one, they must be this model's, and save the time to embed.
        preset: `documents` for search, with whitening; `short_texts` for titles and questions, without; `auto` for the
            one with the larger predicted gain.
        n_neighbors: Number of neighbors of each text.
        whitening: Exponent of the whitening, from 0 (none) to 0.5 (full). Default: that of the preset.
        self_weight: Fraction of a text in its own neighborhood mean. Default: that of the preset.
        dimension: Number of dimensions of the adapted vectors. `auto`: the smallest one with a small predicted loss.
            It needs a model. Default: all.
        rotation: `principal`: the first numbers of a vector approximate it best, for vectors that are cut later.
            `bits`: for binary quantization, one bit per number.
        seed: Seed of the held-out texts, and of the sample of texts if there are more than 50,000.
        senteval_dir: SentEval's data/downstream, to measure STS-B dev. Default: $SENTEVAL_DATA, or not measured.
        name: What the report and the card call the model. Default: the name of its folder or on the Hub or, for a
            folder such as `model`, the title of its card. A Hub id also becomes `base_model` in the card.
        strip_shared_lines: Remove lines at the beginning or end of texts that many of them share, such as signatures.
            Without it, a warning names them. Remove them from queries and new texts, too.
        options: How the model embeds; see `informin.jobs.models.ModelOptions`.

    Returns:
        The adapter, its verdict, and `save`, which writes the adapted model.

    Raises:
        UsageError: An option, the model, the texts or the embeddings cannot be used.

    Example:
        >>> import informin, numpy as np
        >>> result = informin.fit(embeddings=np.random.default_rng(0).normal(size=(500, 16)))
        >>> result.adapter.transform(result.vectors).shape
        (500, 16)
    """
    how = ModelOptions(**options)
    require_seed(seed)
    _check(model, texts, embeddings, preset, name, dimension, rotation, how)
    texts = [] if texts is None else _texts_to_fit(texts, strip_shared_lines, embeddings is not None)
    if model is not None and not texts:
        raise UsageError("is empty", option="texts", needed="one text or more")
    vectors, source = (None, "") if embeddings is None else given_vectors(embeddings)
    if vectors is not None and texts:
        check_rows(source, vectors, texts)
    encoder = None if model is None else text_encoder(model, how)
    if vectors is None:
        assert encoder is not None  # `_check` requires a model or embeddings
        vectors = _embedded(encoder, texts)
    elif encoder:
        check_vectors(source, vectors, texts, encoder, seed)
    given = {"n_neighbors": n_neighbors, "whitening": whitening, "self_weight": self_weight}
    _check_dimension(dimension, vectors.shape[1])
    chosen, adapter, predicted, curve = chosen_adapter(preset, given, encoder, vectors, texts, seed)
    if dimension == AUTO:
        dimension = shortest(curve) if curve else None
    adapter.set_params(n_components=dimension, rotation=rotation)
    start = time.monotonic()
    adapter.fit(vectors)
    seconds = time.monotonic() - start
    adapter.measure_scores(vectors)
    changes = _changes(adapter, encoder, vectors, texts, senteval_dir) if rank() == 0 else {}
    file = source if isinstance(embeddings, str | Path) else None
    recorded = {"preset": preset} | options_of(model, how)
    recorded |= {"strip_shared_lines": True} if strip_shared_lines else {}
    if name is None and encoder:
        name = encoder.checkpoint.title if encoder.checkpoint else last_name(encoder.name)
    return FitResult(adapter, chosen, predicted, changes, seconds, vectors, encoder, file, recorded, name, curve)


def _check(
    model, texts, embeddings, preset: str, name: str | None, dimension: object, rotation: str, how: ModelOptions
) -> None:
    if model is None and embeddings is None:
        raise UsageError("is missing", option="model", fix="Give a model with texts, or `embeddings`.")
    if model is not None and texts is None:
        raise UsageError("is missing", option="texts", fix="A model needs the texts.")
    if preset not in (AUTO, *PRESETS):
        raise UsageError(f"is {preset}", option="preset", needed=f"one of: {', '.join((AUTO, *sorted(PRESETS)))}")
    if rotation not in ROTATIONS:
        raise UsageError(f"is {rotation}", option="rotation", needed=f"one of: {', '.join(ROTATIONS)}")
    whole = isinstance(dimension, int) and not isinstance(dimension, bool) and dimension >= 1
    if not (dimension in (None, AUTO) or whole):
        raise UsageError(f"is {dimension}", option="dimension", needed="auto, or an integer of 1 or more")
    if dimension == AUTO and model is None:
        raise UsageError("is auto", option="dimension", fix="Give a model and texts, or a number of dimensions.")
    if model is not None:
        refuse_pooler(how.pooler)
    if isinstance(model, Model):
        refuse_other_pooling(model)
    if name is not None and not name.strip():
        raise UsageError("is blank", option="name", fix="Give a name, or leave it out.")


def _check_dimension(dimension: object, most: int) -> None:
    if isinstance(dimension, int) and dimension > most:
        raise UsageError(f"is {dimension}", option="dimension", needed=f"at most {most}, that of the model")


def _texts_to_fit(texts: Iterable[str], strip: bool, embedded: bool) -> list[str]:
    """Return the texts as a list, and log which lines many of them share; with `strip`, without these lines."""
    if strip and embedded:
        raise UsageError(
            "changes the texts, and `embeddings` are those of the original ones",
            option="strip_shared_lines",
            fix="Leave one of them out.",
        )
    found, message = checked_lines(as_texts(texts, "texts"), strip)
    if message and rank() == 0:
        logger.warning(message)
    return found


def _embedded(encoder: Model, texts: list[str]) -> np.ndarray:
    """Embed the texts, and log how many of them are truncated."""
    known = set(encoder.truncated)
    vectors = embed_in_memory(encoder, texts)
    if (message := told_truncated(encoder.truncated - known, encoder.length)) and rank() == 0:
        logger.warning(message)
    return vectors


def refuse_pooler(pooler: str | Sequence[str]) -> None:
    """Raise UsageError for another pooling than the model's own."""
    if pooler != "auto":
        raise UsageError(
            f"is {pooler}", option="pooler", needed="auto", fix="The output keeps the pooling of the model."
        )


def _changes(
    adapter: LinearAdapter,
    encoder: Model | None,
    vectors: np.ndarray,
    texts: list[str],
    senteval_dir: str | Path | None,
) -> dict:
    if encoder:
        sample = draw(texts)
        return changes_of(vectors_of(sample, vectors, texts), sample, adapter, encoder, senteval_dir)
    known = sample_of_vectors(vectors, texts)
    return changes_of(known, list(known), adapter)
