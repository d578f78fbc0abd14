"""Compare embedding models on unlabeled texts: how well they fit, speed, dimensions, and what an adapter gains."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from typing_extensions import Unpack

from informin.adapters.halves import HalvesScore, draw_texts, mean_cosine, score_halves, word_agreement
from informin.adapters.prediction import hold_out, make_test
from informin.adapters.rows import read_rows
from informin.adapters.scores import unrelated_scores
from informin.adapters.vectors import load_vectors
from informin.errors import UsageError, error_line, one_line
from informin.evaluation.table import Table, render
from informin.files import last_name
from informin.jobs.compare_files import all_notes, texts_per_second, write_comparison
from informin.jobs.compare_table import Entry, Sizes, table
from informin.jobs.given_vectors import check_halves, is_vector_file
from informin.jobs.models import ModelKeywords, ModelOptions, embed_in_memory, models_of, name_of, text_encoder
from informin.jobs.shared_lines import checked_lines
from informin.models.model import Model
from informin.models.texts import as_texts
from informin.outputs import only_writer
from informin.program import require_seed
from informin.report.html import notes_html, tables_html


@dataclass(repr=False)
class Comparison:
    """Models on the same texts.

    Attributes:
        entries: What was measured, in the order in which the models were given. A model that failed has an `error`.
        sizes: Numbers of texts.
        seed: Seed of the sample and of the held-out texts.
        notes: What a reader of the table needs to know.
    """

    entries: list[Entry]
    sizes: Sizes
    seed: int
    notes: list[str]

    @property
    def table(self) -> Table:
        """The table: one row per model, best first."""
        return table(self.entries, self.sizes)

    def save(self, output_dir: str | Path) -> None:
        """Write compare.json, table.md, the figure and report.html.

        Args:
            output_dir: Missing or empty folder. It appears once it is complete.

        Raises:
            UsageError: The folder is in use or cannot be written.
        """
        with only_writer(output_dir, "output_dir"):
            write_comparison(self, output_dir)

    def __repr__(self) -> str:
        return "\n".join([render(self.table, "text"), *self.notes])

    def _repr_html_(self) -> str:
        return tables_html([self.table]) + notes_html(self.notes)


@dataclass(frozen=True)
class Drawn:
    """The texts of a comparison.

    Attributes:
        texts: All texts.
        rows: Indices of the sample.
        sample: The sampled texts.
        held_out: Indices, in the sample, of the texts that are cut in halves.
    """

    texts: list[str]
    rows: list[int]
    sample: list[str]
    held_out: np.ndarray

    @property
    def complete_rows(self) -> int:
        """Number of rows of `write_texts`: the sample and the halves of the held-out texts."""
        return len(self.sample) + 2 * len(self.held_out)


def draw(texts: list[str], max_texts: int = 5_000, seed: int = 0) -> Drawn:
    """Draw the sample and the held-out texts.

    Raises:
        UsageError: `max_texts` is below 2, or the seed is out of range.
    """
    require_seed(seed)
    if max_texts < 2:
        raise UsageError(f"is {max_texts}", option="max_texts", needed="2 or more")
    rows = draw_texts(texts, max_texts, seed)
    sample = [texts[i] for i in rows]
    return Drawn(texts, rows, sample, hold_out(sample, seed))


def compare(
    models: str | Path | Model | Iterable[str | Path | Model],
    texts: Iterable[str],
    *,
    max_texts: int = 5_000,
    seed: int = 0,
    strip_shared_lines: bool = False,
    progress: Callable[[Entry], object] | None = None,
    **options: Unpack[ModelKeywords],
) -> Comparison:
    """Compare embedding models on your unlabeled texts.

    Args:
        models: Hub ids, folders, or models from `load_model`. Or files of embeddings (.npy, .parquet or .safetensors)
            with one row per text, or with the rows that `informin compare --write_texts` writes.
        texts: The texts: a list, or another iterable of strings.
        max_texts: Compare on a random sample of at most this many texts.
        seed: Seed of the sample and of the held-out texts.
        strip_shared_lines: Remove lines at the beginning or end of texts that many of them share, such as signatures.
            Without it, a note names them.
        progress: Called with what was measured of each model.
        options: How models embed that are given by name; see `informin.jobs.models.ModelOptions`.

    Returns:
        The table, what was measured of each model, and `save`. A model that fails is a row with its error.

    Raises:
        UsageError: An option or the texts cannot be used, there is no model, or no model can be used.
    """
    how = ModelOptions(**options)
    given = models_of(models, "models")
    if strip_shared_lines and (files := [name_of(model) for model in given if is_vector_file(model)]):
        raise UsageError(
            f"changes the texts, and {files[0]} has the embeddings of the original ones",
            option="strip_shared_lines",
            fix="Leave one of them out.",
        )
    texts, message = checked_lines(as_texts(texts, "texts"), strip_shared_lines)
    drawn = draw(texts, max_texts, seed)
    if not drawn.texts:
        raise UsageError("is empty", option="texts", needed="one text or more")
    entries: list[Entry] = []
    encoders: dict[str, Model] = {}
    errors: list[Exception] = []
    for label, model in _labels(given):
        entry = Entry(label)
        entries.append(entry)
        try:
            if is_vector_file(model):
                _score_file(entry, str(model), drawn, seed)
            else:
                encoders[label] = _score_model(entry, text_encoder(model, how), drawn.sample, len(drawn.texts), seed)
        except Exception as error:  # a model's own code can raise anything; compare the others
            errors.append(error)
            entry.error = (
                str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error_line(error)}"
            )
        if progress:
            progress(entry)
    if len(errors) == len(entries) and isinstance(errors[0], UsageError):
        raise errors[0]
    speeds = texts_per_second(encoders, drawn.sample, seed)
    for entry in entries:
        entry.speeds = speeds.get(entry.label, [])
    sizes = Sizes(len(drawn.texts), len(drawn.sample), len(drawn.held_out))
    return Comparison(entries, sizes, seed, all_notes(entries, sizes) + ([message] if message else []))


def _labels(models: list[str | Path | Model]) -> list[tuple[str, str | Path | Model]]:
    """Return each model with its label in the table: the last part of its name, or all of it if two models share it.

    A model that is given twice counts once. Loaded models with equal names get numbers.
    """
    unique = list({id(model) if isinstance(model, Model) else str(model): model for model in models}.values())
    names = [name_of(model) for model in unique]
    short = [last_name(name) if Path(name).exists() else name for name in names]
    labels = [
        one_line(name if short.count(one) > 1 and names.count(name) == 1 else one) for one, name in zip(short, names)
    ]
    numbered = [
        label if labels.count(label) == 1 else f"{label} ({labels[: i + 1].count(label)})"
        for i, label in enumerate(labels)
    ]
    return [*zip(numbered, unique)]


def _score(texts: list[str], vectors: np.ndarray, encode: Callable, seed: int) -> HalvesScore | None:
    """Return the score; None if there is no text to cut in two halves."""
    test = make_test(texts, vectors, encode, seed)
    return score_halves(test) if len(test.first) else None


def _score_model(entry: Entry, encoder: Model, sample: list[str], texts: int, seed: int) -> Model:
    (pooler,) = encoder.poolers
    entry.dimensions, entry.length, entry.prompt = encoder.dimensions, encoder.length, encoder.prompt
    entry.pooler, entry.device, entry.similarity = pooler, encoder.device, encoder.similarity
    vectors = embed_in_memory(encoder, sample)
    entry.unrelated = unrelated_scores(vectors, texts=texts)
    entry.mean_cosine, entry.words = mean_cosine(vectors), word_agreement(sample, vectors, seed)
    entry.score = _score(sample, vectors, lambda parts: embed_in_memory(encoder, parts), seed)
    entry.truncated = len(encoder.truncated.intersection(sample))
    return encoder


def _score_file(entry: Entry, name: str, drawn: Drawn, seed: int) -> None:
    vectors = load_vectors(name)
    entry.dimensions = vectors.shape[1]
    texts, sample, complete = drawn.texts, drawn.sample, drawn.complete_rows
    if len(vectors) not in (len(texts), complete):
        raise UsageError(
            f"{name} has {len(vectors):,} rows",
            needed=f"{len(texts):,}, one per text that is not blank, or {complete:,}, those of `write_texts`",
        )
    own = read_rows(vectors, slice(0, len(sample)) if len(vectors) == complete else np.array(drawn.rows))
    entry.mean_cosine, entry.words = mean_cosine(own), word_agreement(sample, own, seed)
    entry.unrelated = unrelated_scores(own, texts=len(texts))
    if len(vectors) == complete:
        check_halves(name, vectors, drawn.held_out, len(sample))
        entry.score = _score(sample, own, lambda parts: read_rows(vectors, slice(len(sample), complete)), seed)
