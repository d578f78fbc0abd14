"""Format results as tables like those in papers, in text, Markdown or LaTeX."""

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path

import numpy as np

from informin.errors import counted, one_line
from informin.evaluation.measures import KINDS
from informin.evaluation.senteval import GROUPS, TASKS, YEARS
from informin.evaluation.similarity import COSINE, DOT

FORMATS = ("text", "markdown", "latex", "json")
TITLES = {"sts": "STS, Spearman x 100", "transfer": "Transfer, accuracy x 100"}
AVERAGE = "Avg"


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


def checkpoint_label(results: dict, whole: bool = False) -> str:
    """Return the name of a checkpoint, or its whole path, with its pooling, such as `all-MiniLM-L6-v2, cls`."""
    whitening = results["whitening"]
    size = f" {whitening['dimensions']}" if whitening and whitening["dimensions"] else ""
    prompt = f", prompt {results['prompt']!r}" if results["prompt"] else ""
    name = results["model"] if whole else Path(results["model"]).name
    return f"{name}, {results['pooler']}{prompt}{f', whitening{size}' if whitening else ''}"


def new_label(taken: Container[str], *labels: str) -> str:
    """Return the first label that is not taken, or the last one with a number."""
    numbered = (f"{labels[-1]} ({number})" for number in count(2))
    return next(label for label in chain(labels, numbered) if label not in taken)


def score_tables(rows: Sequence[dict], others: Sequence[dict] = (), seeds: bool = False) -> list[Table]:
    """Return the tables of scores: STS and transfer if there are such tasks, then one table per sample.

    Args:
        rows: Results.
        others: Results to compare with: one for all rows, or one per row. The table shows them first, and the
            differences (row minus other) last.
        seeds: Rows are seeds of one recipe. Adds mean ± standard deviation (n - 1), also of the differences.
    """
    tables = []
    for group, tasks in GROUPS.items():
        columns = [task for task in tasks if any(task in results["tasks"] for results in rows)]
        if not columns:
            continue

        # The average is shown only together with all of its seven scores.
        def line(results, columns=columns, average=group if columns == list(tasks) else None):
            scores = {task: results["tasks"].get(task, {}).get("score") for task in columns}
            return Row(checkpoint_label(results), scores | {AVERAGE: average and results["average"][average]})

        lines = _compared(list(map(line, others)), list(map(line, rows)), seeds)
        tables.append(Table(TITLES[group], [*columns, AVERAGE], lines))
    for name, entry in {name: entry for results in rows for name, entry in samples(results).items()}.items():
        measures = KINDS[entry["kind"]]

        def line(results, name=name, measures=measures):
            scores = results["tasks"].get(name, {}).get("measures", {})
            return Row(checkpoint_label(results), {measure.title: scores.get(key) for key, measure in measures.items()})

        lines = _compared(list(map(line, others)), list(map(line, rows)), seeds)
        tables.append(Table(_sample_title(name, entry), [measure.title for measure in measures.values()], lines))
    return tables


def samples(results: dict) -> dict[str, dict]:
    """Return the entries of the user's own samples by name."""
    return {name: entry for name, entry in results["tasks"].items() if "kind" in entry}


def _sample_title(name: str, entry: dict) -> str:
    if entry["kind"] == "labels":
        return f"{name}: {counted(entry['n'], 'sentence')} of {entry['classes']:,} classes, x 100"
    return f"{name}: search, {entry['n']:,} queries among {counted(entry['documents'], 'document')}, x 100"


def _compared(before: list[Row], own: list[Row], seeds: bool) -> list[Row]:
    """Return rows to compare with, own rows, and their differences; with the mean of each block if they are seeds."""
    gains = [difference(row, other) for row, other in zip(own, before * len(own))]  # one for all, or one per row
    return [row for block in (before, own, gains) for row in (_with_mean(block) if seeds else block)]


def aggregation_table(rows: Sequence[dict]) -> list[Table]:
    """Return a table of STS12 to STS16 by each aggregation over subsets; an empty list without such a task."""
    columns = [task for task in YEARS if any(task in results["tasks"] for results in rows)]
    if not columns:
        return []
    lines = [
        Row(f"{checkpoint_label(results)}: {name}", {task: results["tasks"].get(task, {}).get(key) for task in columns})
        for results in rows
        for key, name in (("score", "all pairs at once"), ("mean", "mean of subsets"), ("wmean", "weighted mean"))
    ]
    return [Table("STS12-16 by aggregation", columns, lines)]


def time_table(rows: Sequence[dict]) -> Table:
    """Return a table of the seconds per task."""
    found = dict.fromkeys(task for results in rows for task in results["tasks"])
    columns = [*(task for task in TASKS if task in found), *(task for task in found if task not in TASKS)]
    lines = []
    for results in rows:
        for part in ("encode", "score"):
            seconds = {name: task["seconds"][part] for name, task in results["tasks"].items()}
            lines.append(Row(f"{checkpoint_label(results)}: {part}", seconds | {"all": sum(seconds.values())}))
    return Table("Seconds", [*columns, "all"], lines)


def footnotes(rows: Sequence[dict]) -> list[str]:
    """Return notes about undefined scores, prompts of queries and documents, similarities, and truncated sentences."""
    notes = []
    for results in rows:
        for name, task in results["tasks"].items():
            if task["score"] is None:
                notes.append(f"{checkpoint_label(results)}: {name} has no score: {task['error']}.")
            if prompts := task.get("prompts"):
                notes.append(f"{checkpoint_label(results)}: {name}, {prompts_note(**prompts)}")
        if (other := results.get("similarity", COSINE)) != COSINE:
            notes.append(similarity_note(other, checkpoint_label(results)))
        cut = sum(task["truncated"] for task in results["tasks"].values())
        if cut:
            notes.append(
                f"{checkpoint_label(results)}: {cut:,} sentences were truncated to {results['max_length']} tokens."
            )
    return notes


def similarity_note(similarity: str, name: str) -> str:
    """Return a note about a similarity that is not the cosine."""
    word = {DOT: "dot product"}.get(similarity, f"negative {similarity} distance")
    return f"Similarity in STS and retrieval: {word}, as declared by {name}."


def prompts_note(query: str, document: str) -> str:
    """Return a note about the prompts for queries and documents."""
    named = [repr(prompt) if prompt else "none" for prompt in (query, document)]
    return f"prompt of queries: {named[0]}; of documents: {named[1]}."


def render(table: Table, form: str) -> str:
    """Format a table as `text`, `markdown` or `latex` (booktabs)."""
    if form == "latex":
        return _latex(table)
    found = [["", *table.columns], *([row.label, *map(row.cell, table.columns)] for row in table.rows)]
    cells = [[one_line(text) for text in line] for line in found]  # names from files can contain line breaks
    if form == "markdown":
        cells = [[text.replace("|", "\\|") for text in line] for line in cells]
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    lines = [[text.ljust(w) if i == 0 else text.rjust(w) for i, (text, w) in enumerate(zip(c, widths))] for c in cells]
    if form == "text":
        return "\n".join([one_line(table.title), *("  ".join(line).rstrip() for line in lines)])
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join(
        [f"**{one_line(table.title)}**", "", *(f"| {' | '.join(line)} |" for line in [lines[0], rule, *lines[1:]])]
    )


def _latex(table: Table) -> str:
    def escaped(text: str) -> str:
        return "".join(f"\\{c}" if c in "_&%#$" else c for c in one_line(text))

    cells = [
        [escaped(row.label), *(one_line(row.cell(column, "$\\pm$")) for column in table.columns)] for row in table.rows
    ]
    header, *lines = (" & ".join(line) + " \\\\" for line in [["", *map(escaped, table.columns)], *cells])
    begin = f"% {one_line(table.title)}\n\\begin{{tabular}}{{l{'r' * len(table.columns)}}}"
    return "\n".join([begin, "\\toprule", header, "\\midrule", *lines, "\\bottomrule", "\\end{tabular}"])


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


def _with_mean(rows: list[Row]) -> list[Row]:
    """Append the mean and standard deviation of several rows, in the columns where each row has a number."""
    if len(rows) < 2:
        return rows
    known: dict[str, list[float]] = {}
    for name in rows[0].values:
        values = [value for row in rows if isinstance(value := row.values[name], float | int)]
        if len(values) == len(rows):
            known[name] = values
    means = {name: float(np.mean(values)) for name, values in known.items()}
    spread = {name: float(np.std(values, ddof=1)) for name, values in known.items()}
    return [*rows, Row(f"mean ± sd of these {len(rows)}", means, spread, rows[0].signed, rows[0].digits)]
