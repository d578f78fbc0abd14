"""summary.json: every run of a study or an evaluation in one file, from which its tables and figures are made again.

`shared` holds what all runs have in common, once; `runs` holds the rest of each run.
"""

from collections.abc import Sequence
from pathlib import Path

from informin.errors import UsageError
from informin.files import read_json, write_json


def write_summary(path: str | Path, values: dict, runs: Sequence[dict]) -> None:
    """Writes `values`, which name neither `shared` nor `runs`, and the runs."""
    common = _common(runs)
    write_json(path, values | {"shared": common, "runs": [_without(run, common) for run in runs]})


def read_summary(path: str | Path) -> tuple[dict, list[dict]]:
    """The values and the runs of a summary. Raises UsageError where the file is not one."""
    found = read_json(path)
    if not is_summary(found):
        raise UsageError(
            f"{path} is not a summary.json: it has no keys shared and runs", fix="Choose a summary.json from results/."
        )
    common, runs = found.pop("shared"), found.pop("runs")
    return found, [_merged(common, run) for run in runs]


def is_summary(found: object) -> bool:
    """Whether a JSON value has what `write_summary` writes."""
    if not (isinstance(found, dict) and isinstance(found.get("shared"), dict) and isinstance(found.get("runs"), list)):
        return False
    return all(isinstance(run, dict) for run in found["runs"])


def _common(records: Sequence[dict]) -> dict:
    """The entries, at any depth, that all of several records have with the same value."""
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
    """A record without what is common."""
    rest = {}
    for name, value in record.items():
        if name not in common:
            rest[name] = value
        elif isinstance(value, dict) and (inner := _without(value, common[name])):
            rest[name] = inner
    return rest


def _merged(common: dict, rest: dict) -> dict:
    """The record that `_without` made `rest` of."""
    merged = common | rest
    for name in common.keys() & rest.keys():
        if isinstance(common[name], dict) and isinstance(rest[name], dict):  # else the file was changed since
            merged[name] = _merged(common[name], rest[name])
    return merged
