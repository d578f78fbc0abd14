"""Score models on STS and transfer tasks, labeled sentences and retrieval."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from typing_extensions import Unpack

from informin.distributed import first_only, on_first
from informin.errors import UsageError
from informin.evaluation.labels import LABEL_COLUMNS
from informin.evaluation.result_tables import load_others, refuse_other_samples, tables_text, write_report
from informin.evaluation.scoring import (
    ALL_DIMENSIONS,
    Sides,
    Tasks,
    WhiteningOptions,
    load_tasks,
    score_encoder,
    whitening_options,
)
from informin.evaluation.senteval import chosen_tasks
from informin.evaluation.senteval_files import senteval_folder
from informin.evaluation.table import FORMATS, Table, checkpoint_label, new_label, render, score_tables
from informin.jobs.collections import CollectionScores, CollectionSearch, is_collection
from informin.jobs.models import ModelKeywords, ModelOptions, loaded, models_of, name_of, sides_of
from informin.models.model import Model
from informin.outputs import only_writers, refuse_unwritable
from informin.report.html import tables_html

Paths = str | Path | Sequence[str | Path]
Outputs = Callable[[str, str], Path]  # the results file of a model and a pooling


@dataclass(repr=False)
class Evaluation:
    """Scores of one or more models.

    Attributes:
        rows: Results of each model and pooling on tasks and files; see `informin.evaluation.results`.
        others: Results to compare with: one for all rows, or one per row.
        collections: Scores on each test collection.
        notes: Notes about the scores on test collections.
    """

    rows: list[dict]
    others: list[dict] = field(default_factory=list)
    collections: list[CollectionScores] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def scores(self) -> dict[str, dict[str, float | None]]:
        """The scores x 100 by model and task: nDCG@10 of a test collection, None for an undefined score."""
        found: dict[str, dict[str, float | None]] = {}
        for row in self.rows:
            label = new_label(found, checkpoint_label(row), checkpoint_label(row, whole=True))
            found[label] = {name: task["score"] for name, task in row["tasks"].items()}
        for collection in self.collections:
            for name, scores in collection.scores.items():
                found.setdefault(name, {})[collection.name] = float(scores["ndcg_10"].mean())
        return found

    def table(self, format: str = "text", *, seeds: bool = False) -> str:
        """Return all tables and notes.

        Args:
            format: text, markdown, latex or json (the results themselves).
            seeds: The models are seeds of one recipe: adds mean ± sd.
        """
        if format not in FORMATS:
            raise UsageError(f"is {format}", option="format", needed=f"one of: {', '.join(FORMATS)}")
        if format == "json" and self.collections:
            found = {one.name: {row.label: dict(row.values) for row in one.table.rows} for one in self.collections}
            return json.dumps({"collections": found, "results": self.rows}, indent=1, ensure_ascii=False)
        parts = [self._collections_text(format)] if self.collections else []
        if self.rows or not parts:
            parts.append(tables_text(self.rows, self.others, seeds, format))
        return "\n\n".join(parts)

    def save(self, output_dir: str | Path, *, seeds: bool = False) -> None:
        """Write table.md, and summary.json with all results on tasks and files.

        Args:
            output_dir: A folder, which may have these files from an earlier call.
            seeds: The models are seeds of one recipe: adds mean ± sd.

        Raises:
            UsageError: The folder has other files with these names, or cannot be written.
        """
        before = [self._collections_text("markdown")] if self.collections else []
        write_report(str(output_dir), self.rows, self.others, seeds, before)

    def _collections_text(self, form: str) -> str:
        def noted(note: str) -> str:
            return f"% {note}" if form == "latex" else note

        shown: list[str] = []
        for found in self.collections:
            shown.append(render(found.table, form))
            shown += [noted(found.note)] if found.note else []
        return "\n".join([*shown, *map(noted, self.notes)])

    def _tables(self) -> list[Table]:
        return [*(found.table for found in self.collections), *score_tables(self.rows, self.others)]

    def __repr__(self) -> str:
        return "\n\n".join(render(table, "text") for table in self._tables())

    def _repr_html_(self) -> str:
        return tables_html(self._tables())


def evaluate(
    model: str | Path | Model | Iterable[str | Path | Model],
    *,
    tasks: str | Sequence[str] = (),
    labels: Paths = (),
    text_column: str | None = None,
    label_column: str | None = None,
    retrieval: Paths = (),
    bm25: bool = False,
    query_prompt: str | None = None,
    document_prompt: str | None = None,
    senteval_dir: str | Path | None = None,
    split: str = "test",
    whitening: float | None = None,
    whitening_file: str | Path | None = None,
    output: str | Path | None = None,
    compare: Paths = (),
    **options: Unpack[ModelKeywords],
) -> Evaluation:
    """Score one model or several on STS and transfer tasks, labeled sentences and retrieval.

    Args:
        model: Hub id, folder, or a model from `load_model`; or several of them.
        tasks: `all`, `sts`, `transfer`, or names of SentEval tasks. Default: all if no files are given.
        labels: One labeled file or several, one task each: TSV, CSV or JSONL with the columns text and label. Rows
            without a label are skipped.
        text_column: Column of `labels` with the texts, or several to join, such as subject,body. Default: text.
        label_column: Column of `labels` with the labels. Default: label.
        retrieval: Test collections: folders in BEIR's layout, or names of mteb tasks. Or files with the columns query,
            document and optionally relevance (or score) and negative, one task each.
        bm25: With a test collection: add BM25 and its rank fusion with the first model.
        query_prompt: Text before queries of `retrieval`. Default: `prompt`, or the stored prompt named query.
        document_prompt: The same for documents. Default: `prompt`, or the prompt named document or passage.
        senteval_dir: SentEval's data/downstream. Default: $SENTEVAL_DATA, or senteval.tar from the Hub.
        split: `test`; or `dev`: STS-B, SICK-R and the accuracy that selects C.
        whitening: Whiten the embeddings and keep this number of dimensions; `math.inf` for all.
        whitening_file: Sentences to fit the whitening on. Default: each task's own.
        output: Save results here and resume from them: a .json file for one row, a folder for several.
        compare: Results files or folders to subtract: one for all rows, or one per row.
        options: How models embed that are given by name; see `informin.jobs.models.ModelOptions`. With several
            poolings in `pooler`, each is a row.

    Returns:
        The scores, `table`, and `save`.

    Raises:
        UsageError: An option, a model or a file cannot be used.
    """
    how, models = ModelOptions(**options), models_of(model, "model")
    _refuse_other_splits(split)
    own, found = _listed(labels), _listed(retrieval)
    collections, files = [[path for path in found if is_collection(path) is folder] for folder in (True, False)]
    columns = _columns(own, text_column, label_column)
    prompts = {"query_prompt": query_prompt, "document_prompt": document_prompt}
    _refuse_unused({} if found else prompts, "without `retrieval`")
    _refuse_unused({} if collections else {"bm25": bm25 or None}, "without a test collection in `retrieval`")
    unused = {"output": output, "compare": compare or None, "whitening": whitening}
    _refuse_unused(unused if collections else {}, "with a test collection", "Leave it out.")
    search = CollectionSearch(collections, bm25) if collections else None
    asked = _listed(tasks) or ([] if own or found else ["all"])
    numbers = [len(one.poolers) if isinstance(one, Model) else len(_poolers(how)) for one in models]
    outputs = _output_paths(output, [name_of(one) for one in models], sum(numbers), whitening, split)
    others = load_others(_listed(compare), sum(numbers), split)
    whitened = whitening_options(whitening, str(whitening_file) if whitening_file else None)
    data = _load(asked, split, own, files, senteval_dir, columns)
    refuse_other_samples(others, data)
    if data.data:
        for one in models[1:]:
            loaded(one, how)  # report a wrong name before scoring the first model
    rows: list[dict] = []
    for one in models:
        encoder = loaded(one, how)
        sides = sides_of(encoder, how.prompt, **prompts) if found else None
        if search:
            search.add(encoder, sides)
        if data.data:
            rows += _score(encoder, data, whitened, outputs, sides if files else None)
    return Evaluation(rows, others, search.scores() if search else [], search.notes if search else [])


def _refuse_other_splits(split: str) -> None:
    if split not in ("test", "dev"):
        raise UsageError(f"is {split}", option="split", needed="test or dev")


def _columns(labels: list[str], text_column: str | None, label_column: str | None) -> tuple[str, str]:
    """Return the columns of labeled files."""
    _refuse_unused({} if labels else {"text_column": text_column, "label_column": label_column}, "without `labels`")
    return text_column or LABEL_COLUMNS[0], label_column or LABEL_COLUMNS[1]


def _load(
    tasks: list[str],
    split: str,
    labels: list[str],
    retrieval: list[str],
    senteval_dir: str | Path | None,
    columns: tuple[str, str],
) -> Tasks:
    names = chosen_tasks(tasks, split)
    folder = senteval_folder(str(senteval_dir) if senteval_dir else None) if names else None
    return load_tasks(folder, names, split, labels, retrieval, columns)


def _refuse_unused(options: dict, where: str, fix: str | None = None) -> None:
    """Raise UsageError if one of these options, which have no effect there, is not None."""
    for name, value in options.items():
        if value is not None:
            raise UsageError(f"has no effect {where}", option=name, fix=fix)


def _score(
    encoder: Model, tasks: Tasks, whitening: WhiteningOptions | None, outputs: Outputs | None, sides: Sides | None
) -> list[dict]:
    """Return the results of a model on the tasks, without those of other tasks in the same results file."""
    kept = {pooler: outputs(encoder.name, pooler) for pooler in encoder.poolers} if outputs else None
    with first_only(only_writers(kept.values() if kept else ())):
        rows = score_encoder(encoder, tasks, whitening, kept, sides)
    return [row | {"tasks": {name: row["tasks"][name] for name in tasks.data}} for row in rows]


def _listed(names: Paths) -> list[str]:
    """Return one name or several as a list."""
    return [str(names)] if isinstance(names, str | Path) else [*map(str, names)]


def _poolers(options: ModelOptions) -> Sequence[str]:
    return (options.pooler,) if isinstance(options.pooler, str) else options.pooler


def _output_paths(
    output: str | Path | None, models: list[str], rows: int, whitening: float | None, split: str
) -> Outputs | None:
    """Return a function from model and pooler to the results file; None without an output.

    Raises:
        UsageError: Several rows would share a file, or the folder cannot be written.
    """
    if not output:
        return None
    target, names = Path(output), [Path(name).name for name in models]
    if str(output).endswith(".json"):
        if rows > 1:
            raise UsageError(
                f"is {output}, a single file, and there are {rows} rows of scores",
                option="output",
                fix="Give a folder.",
            )
        on_first(lambda: refuse_unwritable(target))
        return lambda model, pooler: target
    if len(set(names)) < len(names):
        raise UsageError(
            f"is {output}, but two models have the same folder name ({', '.join(names)})",
            option="output",
            fix="Rename one.",
        )
    on_first(lambda: refuse_unwritable(target / "results"))
    dimensions = "" if whitening == ALL_DIMENSIONS else whitening
    whitened = "" if whitening is None else f"-whitening{dimensions}"
    suffix = "" if split == "test" else f"-{split}"
    return lambda model, pooler: target / f"{Path(model).name}-{pooler}{whitened}{suffix}.json"
