"""Read and write summary.json: all runs of a study or an evaluation, from which tables and figures are regenerated.

`shared` holds the values that all runs have in common, and `runs` the remaining values of each run.
"""

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from informin.errors import UsageError
from informin.files import read_json
from informin.outputs import save_text

SUMMARY, TABLE = "summary.json", "table.md"


def write_summary(path: str | Path, values: dict, runs: Sequence[dict]) -> None:
    """Write a summary of runs; see `summary_text`. Raise UsageError if that fails."""
    save_text(path, summary_text(values, runs))


def summary_text(values: dict, runs: Sequence[dict]) -> str:
    """Return the content of a summary of runs.

    Args:
        values: Other values of the file, without the keys `shared` and `runs`.
    """
    common = _common(runs)
    content = values | {"shared": common, "runs": [_without(run, common) for run in runs]}
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def read_summary(path: str | Path) -> tuple[dict, list[dict]]:
    """Return the values and the runs of a summary. Raise UsageError if the file is not a summary."""
    found = read_json(path)
    if not is_summary(found):
        raise UsageError(
            f"{path} is not a summary.json: it has no keys shared and runs", fix="Choose a summary.json from results/."
        )
    common, runs = found.pop("shared"), found.pop("runs")
    return found, [_merged(common, run) for run in runs]


def is_summary(found: object) -> bool:
    """Return whether a JSON value has the format of `write_summary`."""
    if not (isinstance(found, dict) and isinstance(found.get("shared"), dict) and isinstance(found.get("runs"), list)):
        return False
    return all(isinstance(run, dict) for run in found["runs"])


def refuse_foreign(folder: str | Path, others: Sequence[str] = ()) -> None:
    """Raise UsageError if a folder has a summary.json or table.md that this program did not write.

    A summary is known by its keys. The other files are written with it.

    Args:
        folder: Folder of the summary.
        others: Names of other files that are written with the summary.
    """
    summary = Path(folder, SUMMARY)
    known = False
    if summary.is_file():
        with suppress(UsageError):
            known = is_summary(read_json(summary))
    for path in (summary, *(Path(folder, name) for name in (TABLE, *others))):
        if os.path.lexists(path) and not known:
            raise UsageError(f"{path} exists, and this program did not write it", fix="Choose another folder.")


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
    """Return a record without the common entries."""
    rest = {}
    for name, value in record.items():
        if name not in common:
            rest[name] = value
        elif isinstance(value, dict) and (inner := _without(value, common[name])):
            rest[name] = inner
    return rest


def _merged(common: dict, rest: dict) -> dict:
    """Return the record from which `_without` removed the common entries."""
    merged = common | rest
    for name in common.keys() & rest.keys():
        if isinstance(common[name], dict) and isinstance(rest[name], dict):  # false only if the file was edited
            merged[name] = _merged(common[name], rest[name])
    return merged
