"""Tables of several results as text, optionally compared with other results."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from informin.errors import UsageError, one_line
from informin.evaluation.results import Results, load_all_results
from informin.evaluation.table import footnotes, render, score_tables


def load_others(paths: Iterable[str | Path], rows: int, split: str) -> list[Results]:
    """Load the results to compare with.

    Args:
        paths: Files or folders.
        rows: Number of results that are compared with them.
        split: Split of these results, test or dev.

    Raises:
        UsageError: Their number is neither 1 nor `rows`, or they have another split.
    """
    others = load_all_results(paths)
    if len(others) not in (0, 1, rows):
        raise UsageError(f"has {len(others)} results", option="compare", needed=f"1, or one for each row ({rows})")
    for other in others:
        if other.split != split:
            raise UsageError(f"{other.model} was scored on the {other.split} split", option="compare", needed=split)
    return others


def check_same_files(others: Sequence[Results], sums: dict[str, dict[str, str]]) -> None:
    """Raise UsageError if results to compare with were computed on another file of the same name.

    Args:
        sums: SHA-256 of the files of each task; see `informin.evaluation.scoring.Tasks`.
    """
    for other in others:
        for name, entry in other.samples().items():
            if name in sums and [*entry["data"].values()] != [*sums[name].values()]:
                raise UsageError(f"{other.model} was scored on another {name}", option="compare")


def tables_text(
    rows: Sequence[Results], others: Sequence[Results] = (), seeds: bool = False, form: str = "text"
) -> str:
    """Return tables and notes as text, Markdown or LaTeX, or the results as JSON."""
    if form == "json":
        return json.dumps([asdict(results) for results in rows], indent=1, ensure_ascii=False)
    tables = [render(table, form) for table in score_tables(rows, others, seeds)]
    notes = map(one_line, footnotes(rows, others))
    return "\n\n".join([*tables, *(f"% {note}" if form == "latex" else note for note in notes)])
