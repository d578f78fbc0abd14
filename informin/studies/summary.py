"""The summary.json of a study: its numbers, and the run.json of each finished run. It stands for the per-run files."""

from pathlib import Path

from informin.errors import UsageError
from informin.studies.plan import BEFORE, Setting, Study
from informin.studies.table import SCHEMA, summarize
from informin.summaries import read_summary, write_summary

Records = dict[tuple[str, int | None], dict]  # run.json by the setting's name and the seed


def save_study(path: str | Path, study: Study, records: Records) -> dict:
    """Writes the summary of the finished runs, and returns its numbers."""
    numbers = summarize(study, records)
    write_summary(path, numbers, [{"setting": name, **record} for (name, _), record in records.items()])
    return numbers


def load_study(path: str | Path) -> tuple[Study, Records]:
    """A study and its finished runs, from its summary alone. Raises UsageError where the file holds something else."""
    numbers, runs = read_summary(path)
    if numbers.get("schema") != SCHEMA:
        found = numbers.get("schema")
        raise UsageError(f"{path} has `schema` {found}; needed {SCHEMA}. Write it again from its runs, by `report`.")
    settings = [
        Setting(name, setting["recipe"], setting["options"], setting["baseline"])
        for name, setting in numbers["settings"].items()
    ]
    study = Study(
        name=numbers["name"],
        title=numbers["title"],
        settings=settings,
        seeds=numbers["seeds"],
        tasks=numbers["tasks"],
        grid=numbers["grid"],
        samples={name: (kind, file) for name, (kind, file) in numbers["samples"].items()},
        before=[Setting(name, BEFORE, {}, trained=False) for name in numbers["before"]],
    )
    return study, {(run.pop("setting"), run["seed"]): run for run in runs}
