"""Markdown tables, and summary.json: all runs of a study in one file."""

import json
from collections.abc import Sequence
from pathlib import Path


def markdown(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table in Markdown. The first column is text, the others are numbers; None becomes a dash."""
    cells = [["-" if cell is None else str(cell) for cell in row] for row in [columns, *rows]]
    widths = [max(map(len, column)) for column in zip(*cells)]
    lines = [[cell.rjust(width) for cell, width in zip(row, widths)] for row in cells]
    for line, row in zip(lines, cells):
        line[0] = row[0].ljust(widths[0])
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return f"**{title}**\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in [lines[0], rule, *lines[1:]])


def write_summary(path: str | Path, values: dict, runs: Sequence[dict]) -> None:
    """Write the values of a study and its runs; `shared` holds what all runs have in common."""
    common = _common(runs)
    content = values | {"shared": common, "runs": [_without(run, common) for run in runs]}
    Path(path).write_text(json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


def read_summary(path: str | Path) -> tuple[dict, list[dict]]:
    """Return the values and the runs of a summary."""
    values = json.loads(Path(path).read_text(encoding="utf-8"))
    common, runs = values.pop("shared"), values.pop("runs")
    return values, [_merged(common, run) for run in runs]


def _common(records: Sequence[dict]) -> dict:
    """Return the entries, at any depth, that are equal in all records."""
    common, (first, *others) = {}, records or [{}]
    for name, value in first.items():
        values = [value, *(record.get(name) for record in others)]
        if all(isinstance(one, dict) for one in values):
            if (inner := _common(values)) or not any(values):
                common[name] = inner
        elif all(name in record and record[name] == value for record in others):
            common[name] = value
    return common


def _without(record: dict, common: dict) -> dict:
    rest = {}
    for name, value in record.items():
        if name not in common:
            rest[name] = value
        elif isinstance(value, dict) and (inner := _without(value, common[name])):
            rest[name] = inner
    return rest


def _merged(common: dict, rest: dict) -> dict:
    merged = common | rest
    for name in common.keys() & rest.keys():
        if isinstance(common[name], dict) and isinstance(rest[name], dict):
            merged[name] = _merged(common[name], rest[name])
    return merged
