"""The summary.json of a study: its numbers, and the run.json of each finished run. It stands for the per-run files."""

from pathlib import Path

from informin.errors import UsageError
from informin.schema import ANY, SCORE, TEXT, Each, Keys, integer, list_of, one_of, or_none, problem
from informin.studies.plan import BEFORE, SAMPLES, Setting, Study
from informin.studies.runs import RECORD
from informin.studies.table import SCHEMA, summarize
from informin.summaries import read_summary, write_summary

AGAIN = "Write it again from its runs with `report`."
SUMMARY = Keys(
    {
        "schema": one_of(SCHEMA),
        "name": TEXT,
        "title": TEXT,
        "tasks": list_of(TEXT),
        "grid": list_of(TEXT),
        "seeds": list_of(integer(0)),
        "samples": Keys(others=list_of(TEXT)),
        "before": Keys(others=ANY),
        "settings": Keys(
            others=Keys({"recipe": TEXT, "options": Keys(others=ANY), "baseline": or_none(TEXT)}, {}, ANY)
        ),
    },
    {"published": Keys(others=Keys(others=SCORE))},
    others=ANY,
)
RUNS = Each(Keys({"setting": TEXT, "seed": or_none(integer(0))}, others=ANY))
Records = dict[tuple[str, int | None], dict]  # run.json by the setting's name and the seed


def save_study(path: str | Path, study: Study, records: Records) -> dict:
    """Write the summary of the finished runs and return its numbers."""
    numbers = summarize(study, records)
    write_summary(path, numbers, [{"setting": name, **record} for (name, _), record in records.items()])
    return numbers


def load_study(path: str | Path) -> tuple[Study, Records]:
    """Load a study and its finished runs from its summary. Raise UsageError if the file is invalid."""
    numbers, runs = read_summary(path)
    if numbers.get("schema") != SCHEMA:
        found = numbers.get("schema")
        raise UsageError(f"{path} has schema {found}", needed=str(SCHEMA), fix=AGAIN)
    found = problem(numbers, SUMMARY) or _dangling(numbers) or problem(runs, RUNS, "runs")
    if found := found or problem(runs, Each(RECORD), "runs"):
        raise UsageError(f"{path}: {found}", fix=AGAIN)
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
        published=numbers.get("published", {}),
    )
    return study, {(run.pop("setting"), run["seed"]): run for run in runs}


def _dangling(numbers: dict) -> str | None:
    """Return what is wrong with the references between settings and samples, or None."""
    for name, sample in numbers["samples"].items():
        if len(sample) != 2 or sample[0] not in SAMPLES:
            return f"samples.{name:.60} is {sample}; expected {' or '.join(SAMPLES)}, and a file"
    for name, setting in numbers["settings"].items():
        if setting["baseline"] not in (None, *numbers["settings"]):
            return f"settings.{name:.60}.baseline is {setting['baseline']!r:.60}; expected a setting, or null"
    return None
