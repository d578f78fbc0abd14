"""Tables of scores: what they contain, and how they look as text, Markdown, LaTeX, JSON and HTML."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from informin.errors import UsageError, counted, one_line
from informin.evaluation.measures import KINDS
from informin.evaluation.results import COSINE, Results, load_rows
from informin.evaluation.retrieval import TRIALS, randomization_test
from informin.evaluation.senteval import GROUPS

TITLES = {"sts": "STS, Spearman x 100", "transfer": "Transfer, accuracy x 100"}
AVERAGE = "Avg"
SIMILARITY_TITLES = {
    "dot": "dot product",
    "euclidean": "negative Euclidean distance",
    "manhattan": "negative Manhattan distance",
}
LATEX = {character: f"\\{character}" for character in "_&%#${}"}
LATEX |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
# Rankings of a test collection beside that of the vectors, by their names in results.
RANKING_LABELS = {
    "smoothed": "smoothed: {}",
    "with_words": "with BM25: {}",
    "reranked": "with BM25, reranked: {}",
    "bm25": "BM25",
    "fused": "rank fusion: BM25 + {}",
}


@dataclass(frozen=True)
class Row:
    """Row of a table."""

    label: str
    values: Mapping[str, float | str | None]  # by column; text is printed unchanged
    spread: Mapping[str, float] | None = None  # standard deviations by column, for the mean of several seeds
    signed: bool = False  # print the sign of positive numbers, for differences
    digits: int = 2  # decimals

    def cell(self, column: str, plus_minus: str = "±") -> str:
        value = self.values.get(column)
        if isinstance(value, str):
            return value.replace("±", plus_minus)
        if value is None or math.isnan(value):
            return "-"
        text = f"{value:{'+' if self.signed else ''}.{self.digits}f}"
        return f"{text} {plus_minus} {self.spread[column]:.{self.digits}f}" if self.spread else text


@dataclass(frozen=True)
class Table:
    """Table with a title. The first column holds the labels of the rows and has no name."""

    title: str
    columns: list[str]
    rows: list[Row]


def score_tables(rows: Sequence[Results], others: Sequence[Results] = (), seeds: bool = False) -> list[Table]:
    """Return the tables of scores: STS and transfer if there are such tasks, then one table per file or collection.

    Args:
        rows: Results.
        others: Results to compare with: one for all rows, or one per row. The table shows them first, and the
            differences (row minus other) last.
        seeds: Rows are seeds of one recipe. Adds mean ± standard deviation (n - 1), also of the differences; one of
            each pooling, if there are several.
    """
    tables = []
    for group, tasks in GROUPS.items():
        if not (columns := [task for task in tasks if any(task in results.tasks for results in rows)]):
            continue
        line = partial(_group_line, columns=columns, group=group)
        tables.append(Table(TITLES[group], [*columns, AVERAGE], _compared(rows, others, line, seeds)))
    for name, entry in {name: entry for results in rows for name, entry in results.samples().items()}.items():
        every = [results.tasks[name] for results in (*others, *rows) if name in results.tasks]
        first = next((task for task in every if "queries" in task), every[0])  # an undefined score has none
        line = partial(_sample_line, name=name, baseline=first | first.get("with_words", {}))
        lines = _compared(rows, others, line, seeds) + _ranking_lines(name, rows, line, seeds)
        columns = list(dict.fromkeys(column for row in lines for column in row.values)) or list(KINDS[entry["kind"]])
        if entry["kind"] == "labels":
            size = f"{counted(entry['n'], 'sentence')} of {entry['classes']:,} classes"
        else:
            size = f"{entry['n']:,} queries, {counted(entry['documents'], 'document')}"
        tables.append(Table(f"{name}: {size}, x 100", columns, lines))
    return tables


def model_label(results: Results, whole: bool = False) -> str:
    """Return the name of a model, or its whole path, with its pooling, such as `all-MiniLM-L6-v2, cls`."""
    return f"{results.model if whole else Path(results.model).name}, {_embedding_label(results)}"


def _embedding_label(results: Results) -> str:
    """Return how a model's embeddings are made, such as `cls, 128 dimensions`."""
    whitening = results.whitening
    size = f" {whitening['dimensions']}" if whitening and whitening["dimensions"] else ""
    prompt = f", prompt {results.prompt!r}" if results.prompt else ""
    width = "" if results.truncate_dim is None else f", {results.truncate_dim} dimensions"
    return f"{results.pooler}{width}{prompt}{f', whitening{size}' if whitening else ''}"


def _group_line(results: Results, columns: list[str], group: str) -> Row:
    """Return the scores of a group, and their average if the table has all of them."""
    values = {task: results.tasks.get(task, {}).get("score") for task in columns}
    average = results.average[group] if columns == list(GROUPS[group]) else None
    return Row(model_label(results), values | {AVERAGE: average})


def _sample_line(results: Results, name: str, baseline: dict) -> Row:
    """Return the scores on a file or collection, and of retrieval the p-values against the entry `baseline`."""
    entry = results.tasks.get(name, {})
    scores = entry.get("measures", {})
    measures = KINDS[baseline["kind"]]
    values: dict[str, Any] = {measure.title: scores.get(key) for key, measure in measures.items()}
    if (
        entry.get("queries") != baseline.get("queries")
        and "queries" in entry
        and "queries" in baseline
        and entry["data"] == baseline["data"]
    ):
        for key in entry["queries"]:
            p = randomization_test(np.array(entry["queries"][key]), np.array(baseline["queries"][key]))
            values[f"p, {measures[key].title}"] = f"{p:.4f}"
    return Row(model_label(results), values)


def _ranking_lines(name: str, rows: Sequence[Results], line: Callable[[Results], Row], seeds: bool) -> list[Row]:
    """Return the rows of each further ranking of a test collection, with their mean if they are seeds."""
    lines: list[Row] = []
    for key, label in RANKING_LABELS.items():
        ranked = [results for results in rows if key in results.tasks.get(name, {})]
        tasks = [results.tasks[name] for results in ranked]
        found = [line(replace(results, tasks={name: task | task[key]})) for results, task in zip(ranked, tasks)]
        if seeds and key != "bm25":
            found = _with_means(found, ranked)
        found = [replace(row, label=label.format(row.label)) for row in found]
        # BM25 is the same for all models.
        lines += [row for number, row in enumerate(found) if key != "bm25" or row not in found[:number]]
    return lines


def _compared(
    rows: Sequence[Results], others: Sequence[Results], line: Callable[[Results], Row], seeds: bool
) -> list[Row]:
    """Return rows to compare with, rows, and their differences; with the mean of each block if they are seeds."""
    before = list(map(line, others))
    after = list(map(line, rows))
    gains = [difference(row, other) for row, other in zip(after, before * len(after))]  # one for all, or one per row
    blocks = ((before, others), (after, rows), (gains, rows))
    return [row for block, models in blocks for row in (_with_means(block, models) if seeds else block)]


def difference(row: Row, other: Row) -> Row:
    """Return a row minus another, in the columns where both have a number."""
    values: dict[str, float | None] = {}
    for name, value in row.values.items():
        subtracted = other.values.get(name)
        if isinstance(value, float | int) and isinstance(subtracted, float | int):
            values[name] = value - subtracted
        else:
            values[name] = None
    return Row(f"{row.label} - {other.label}", values, signed=True, digits=row.digits)


def _with_means(rows: list[Row], models: Sequence[Results]) -> list[Row]:
    """Append the mean and standard deviation of the rows of each pooling, where each row has a number."""
    seeds_of: dict[str, list[Row]] = {}
    for row, results in zip(rows, models):
        seeds_of.setdefault(_embedding_label(results), []).append(row)
    means = []
    for way, seeds in seeds_of.items():
        if len(seeds) < 2:
            continue
        complete: dict[str, list[float]] = {}
        for name in seeds[0].values:
            values = [value for row in seeds if isinstance(value := row.values.get(name), float | int)]
            if len(values) == len(seeds):
                complete[name] = values
        mean = {name: float(np.mean(values)) for name, values in complete.items()}
        spread = {name: float(np.std(values, ddof=1)) for name, values in complete.items()}
        which = f"these {len(seeds)}" if len(seeds_of) == 1 else f"{len(seeds)}, {way}"
        means.append(Row(f"mean ± sd of {which}", mean, spread, seeds[0].signed, seeds[0].digits))
    return [*rows, *means]


def footnotes(rows: Sequence[Results], others: Sequence[Results] = ()) -> list[str]:
    """Return notes about undefined scores, prompts of queries and documents, similarities and p-values."""
    notes = []
    for results in rows:
        label = model_label(results)
        for name, task in results.tasks.items():
            if task["score"] is None:
                notes.append(f"{label}: {name} has no score: {task['error']}.")
            if prompts := task.get("prompts"):
                query, document = (repr(prompts[side]) if prompts[side] else "none" for side in ("query", "document"))
                notes.append(f"{label}: {name}, prompt of queries: {query}; of documents: {document}.")
        if results.similarity != COSINE:
            what = SIMILARITY_TITLES.get(results.similarity, results.similarity)
            notes.append(f"Similarity in STS and retrieval: {what}, as declared by {label}.")
    return notes + _notes_of_tests([*others, *rows])


def _notes_of_tests(every: Sequence[Results]) -> list[str]:
    """Return notes about what the p-values of each collection are computed against; one if it is the same for all."""
    names_of: dict[str, list[str]] = {}
    for name in dict.fromkeys(name for results in every for name, task in results.tasks.items() if "queries" in task):
        tested = [results for results in every if "queries" in results.tasks.get(name, {})]
        if len(tested) > 1 or any("bm25" in results.tasks[name] for results in tested):
            bm25 = "with BM25: " if "with_words" in tested[0].tasks[name] else ""
            names_of.setdefault(f"{bm25}{model_label(tested[0])}", []).append(name)
    notes = []
    for baseline, names in names_of.items():
        which = f" of {', '.join(names)}" if len(names_of) > 1 else ""
        against = f"against {baseline}, two-sided, {TRIALS:,} sign flips over queries"
        notes.append(f"p{which}: paired randomization test {against}.")
    return notes


def load_others(paths: Iterable[str | Path], rows: int, split: str) -> list[Results]:
    """Load the results to compare with.

    Args:
        paths: Files or folders.
        rows: Number of results that are compared with them.
        split: Split of these results, test or dev.

    Raises:
        UsageError: Their number is neither 1 nor `rows`, or they have another split.
    """
    others = [row for path in paths for row in load_rows([path])]  # a file can be named for several rows
    if len(others) not in (0, 1, rows):
        raise UsageError(f"has {len(others)} results", option="compare", needed=f"1, or one for each row ({rows})")
    for other in others:
        if other.split != split:
            raise UsageError(f"{other.model} was scored on the {other.split} split", option="compare", needed=split)
    return others


def check_same_files(others: Sequence[Results], sums: dict[str, dict[str, str]], option: str = "compare") -> None:
    """Raise UsageError if results to compare with were computed on another file of the same name.

    Args:
        sums: SHA-256 of the files of each task; see `informin.evaluation.evaluate.Tasks`.
        option: Option that names the results.
    """
    for other in others:
        for name, entry in other.tasks.items():
            if name in sums and list(entry["data"].values()) != list(sums[name].values()):
                fix = "Score all models on the same file, and rename files that differ."
                raise UsageError(f"{other.model} was scored on another {name}", option=option, fix=fix)


def check_one_table(results: Sequence[Results], option: str) -> None:
    """Raise UsageError if saved results of one table have different splits, or different files of the same name."""
    for one in results:
        if one.split != results[0].split:
            found = f"{one.model} was scored on the {one.split} split"
            raise UsageError(found, option=option, needed=f"{results[0].split}, as {results[0].model}")
        check_same_files(results, {name: entry["data"] for name, entry in one.tasks.items()}, option)


def tables_text(
    rows: Sequence[Results], others: Sequence[Results] = (), seeds: bool = False, form: str = "text"
) -> str:
    """Return tables and notes as text, Markdown or LaTeX, or the results as JSON."""
    if form == "json":
        return json.dumps([asdict(results) for results in rows], indent=1)
    tables = [render(table, form) for table in score_tables(rows, others, seeds)]
    start = "% " if form == "latex" else ""
    notes = [start + one_line(note) for note in footnotes(rows, others)]
    return "\n\n".join(tables + notes)


def render(table: Table, form: str) -> str:
    """Format a table as `text`, `markdown` or `latex` (booktabs)."""
    if form == "latex":
        return _latex(table)
    cells = [["", *table.columns]]
    for row in table.rows:
        cells.append([row.label, *map(row.cell, table.columns)])
    cells = [[one_line(text) for text in line] for line in cells]  # names from files can contain line breaks
    if form == "markdown":
        cells = [[text.replace("|", "\\|") for text in line] for line in cells]
    widths = [max(map(len, column)) for column in zip(*cells)]
    cells = [
        [text.rjust(width) if i else text.ljust(width) for i, (text, width) in enumerate(zip(line, widths))]
        for line in cells
    ]
    if form == "text":
        lines = ["  ".join(line).rstrip() for line in cells]
        return "\n".join([one_line(table.title), *lines])
    rule = ["-" * (width - 1) + ":" for width in widths]
    rule[0] = "-" * widths[0]
    cells.insert(1, rule)
    lines = [f"| {' | '.join(line)} |" for line in cells]
    return "\n".join([f"**{one_line(table.title)}**", "", *lines])


def _latex(table: Table) -> str:
    def escaped(text: str) -> str:
        return "".join(LATEX.get(character, character) for character in one_line(text))

    cells = [["", *map(escaped, table.columns)]]
    for row in table.rows:
        values = [one_line(row.cell(column, "$\\pm$")) for column in table.columns]
        cells.append([escaped(row.label), *values])
    header, *lines = (" & ".join(line) + " \\\\" for line in cells)
    begin = f"% {one_line(table.title)}\n\\begin{{tabular}}{{l{'r' * len(table.columns)}}}"
    return "\n".join([begin, "\\toprule", header, "\\midrule", *lines, "\\bottomrule", "\\end{tabular}"])


PAGES = Environment(
    loader=FileSystemLoader(Path(__file__).parents[1] / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def tables_html(tables: Sequence[Table]) -> str:
    """Return tables of numbers. All texts are escaped."""
    macros: Any = PAGES.get_template("tables.html").module
    return "".join(str(macros.number_table(table)) for table in tables)


def values_html(title: str, values: Mapping[str, Any]) -> str:
    """Return a table of names and values. All texts are escaped."""
    macros: Any = PAGES.get_template("tables.html").module
    return str(macros.value_table(title, values))
