"""Print and save tables of several results, optionally compared with other results."""

import json
from collections.abc import Iterable, Sequence

from informin.errors import UsageError, one_line
from informin.evaluation.results import load_all_results
from informin.evaluation.scoring import Tasks
from informin.evaluation.table import Table, aggregation_table, footnotes, render, samples, score_tables, time_table
from informin.outputs import save_texts
from informin.summaries import SUMMARY, TABLE, refuse_foreign, summary_text


def load_others(paths: Iterable[str] | None, rows: int, split: str) -> list[dict]:
    """Load the results to compare with.

    Args:
        paths: Files or folders.
        rows: Number of results that are compared with them.
        split: Split of these results, test or dev.

    Raises:
        UsageError: Their number is neither 1 nor `rows`, or they have another split.
    """
    others = load_all_results(paths or [])
    if len(others) not in (0, 1, rows):
        raise UsageError(f"has {len(others)} results", option="compare", needed=f"1, or one for each row ({rows})")
    for other in others:
        if other["split"] != split:
            raise UsageError(
                f"{other['model']} was scored on the {other['split']} split",
                option="compare",
                needed=f"the {split} split",
            )
    return others


def refuse_other_samples(others: list[dict], tasks: Tasks) -> None:
    """Raise UsageError if results to compare with were computed on another file of the same name."""
    for other in others:
        for name, entry in samples(other).items():
            if name in tasks.data and [*entry["data"].values()] != [*tasks.checksums[name].values()]:
                raise UsageError(
                    f"{other['model']} was scored on another {name}", option="compare", fix="Score it on this file."
                )


def tables_text(rows: list[dict], others: list[dict], seeds: bool, form: str) -> str:
    """Return tables and notes as text, Markdown or LaTeX, or the results as JSON."""
    if form == "json":
        return json.dumps(rows, indent=1, ensure_ascii=False)
    tables = all_tables(rows, others, seeds) if form == "text" else score_tables(rows, others, seeds)
    shown = "\n\n".join(render(table, form) for table in tables)
    return shown + "".join(
        f"\n% {note}" if form == "latex" else f"\n\n{note}" for note in map(one_line, footnotes(rows))
    )


def write_report(folder: str, rows: list[dict], others: list[dict], seeds: bool, before: Sequence[str] = ()) -> None:
    """Write FOLDER/table.md, and FOLDER/summary.json with all results.

    Args:
        before: Other parts of table.md, which come first.

    Raises:
        UsageError: The folder has other files with these names, or cannot be written.
    """
    shown = [render(table, "markdown") for table in all_tables(rows, others, seeds)] if rows or not before else []
    refuse_foreign(folder)
    table = "\n\n".join([*before, *shown, *map(one_line, footnotes(rows))]) + "\n"
    save_texts(folder, {SUMMARY: summary_text({}, rows), TABLE: table})


def all_tables(rows: list[dict], others: list[dict], seeds: bool) -> list[Table]:
    """Return the tables of scores, of other aggregations, and of seconds."""
    return [*score_tables(rows, others, seeds), *aggregation_table(rows), time_table(rows)]
