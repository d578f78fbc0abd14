"""Write report.html at the end of a training run or a fit. The page needs no other file and no network.

It names no folder of this machine. `examples` are texts with the neighbors that they lost and gained; see
`informin.evaluation.drift`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from informin.errors import capitalized, counted
from informin.evaluation.drift import MAIN, MEASURES, drift_table
from informin.evaluation.measures import ALL, KINDS
from informin.evaluation.table import Row, Table, difference
from informin.outputs import save_text
from informin.records import RunRecord
from informin.report.html import PAGES
from informin.report.neighbors import changed
from informin.report.plot import plots

PAGE = "report.html"


def write_training_report(
    folder: str | Path,
    record: RunRecord,
    history: Sequence[Mapping],
    examples: Sequence[Mapping] = (),
    *,
    resumed_from: int = 0,
) -> Path:
    """Write the page of a training run, and return its path.

    Args:
        folder: Output folder of the run.
        record: What the run did.
        history: The `log_history` of the Trainer. Numbers that are not finite are left out.
        examples: Sentences with the neighbors that they lost and gained.
        resumed_from: Step of the checkpoint that the run was resumed from; 0 for a run that was not resumed.
    """
    base = record.base_model or {}
    name = base.get("hub_id") or base.get("name", "a model")
    content = {
        "title": f"{capitalized(record.objective['title'])}, {name}",
        "facts": facts(record, resumed_from),
        "scores": tables_of_record(record),
        "plots": plots(history, record.kept_step if record.chosen else None),
        "options": {name.replace("_", " "): value for name, value in record.options.items()},
    }
    return _write_page(folder, content, record.drift, examples)


def write_fit_report(
    folder: str | Path,
    title: str,
    summary: Mapping[str, str],
    drift: Mapping | None = None,
    examples: Sequence[Mapping] = (),
) -> Path:
    """Write the page of a fit, and return its path.

    Args:
        folder: Output folder.
        title: Title of the page.
        summary: Names and values to show below the title.
        drift: Entry `drift` of fit.json, if it was measured.
        examples: Texts with the neighbors that they lost and gained.
    """
    return _write_page(folder, {"title": title, "facts": summary}, drift, examples)


def facts(record: RunRecord, resumed_from: int) -> dict[str, str]:
    """Return the main facts of a run by name."""
    data = record.data or {}
    found: dict[str, Any] = {"terms": ", ".join(term["title"] for term in record.objective["terms"])}
    if data.get("sources"):
        found["data"] = ", ".join(data["sources"])
    if data.get("sentences"):
        found["sentences"] = f"{data['sentences']:,}"
    found["steps"] = f"{record.steps:,}" + (f", resumed from step {resumed_from:,}" if resumed_from else "")
    if record.chosen:
        found["weights"] = f"of step {record.kept_step:,}, which had the best score"
    if record.development:
        found["evaluated on"] = record.development
    if record.sentences_per_second:
        found["speed"] = f"{record.sentences_per_second:,.0f} sentences per second"
    found["device"] = f"{record.environment.get('device', 'unknown')}, {record.options.get('precision', '')}".strip(
        ", "
    )
    found["seed"] = str(record.seed)
    return found


def tables_of_record(record: RunRecord) -> list[Table]:
    """Return the table of scores before the first step and of the weights that were kept."""
    at = {entry["step"]: entry for entry in record.history}
    if not at:
        return []
    after = at.get(record.kept_step, record.history[-1])
    before = at.get(0, {}) if after["step"] else {}
    rows = []
    for name in after:
        if name != "step":
            measure = ALL.get(name)
            values = {"before": before.get(name), "after": after[name]}
            old, new = (Row("", {"": value}) for value in values.values())
            change = difference(new, old).values[""]
            digits = measure.digits if measure else 2
            values["change"] = None if change is None else f"{change:+.{digits}f}"
            rows.append(Row(_score_title(record, name), values, digits=digits))
    return [Table(f"Scores before training and at step {after['step']:,}", ["before", "after", "change"], rows)]


def _score_title(record: RunRecord, name: str) -> str:
    """Return the title of a score, with the name of its data."""
    if name not in ALL:
        return name
    sets = {one["kind"]: one["name"] for one in record.development_sets}
    kind = next(kind for kind, measures in KINDS.items() if name in measures)
    return f"{sets[kind]}, {ALL[name].title}" if kind in sets else ALL[name].title


def _write_page(
    folder: str | Path, content: Mapping[str, Any], drift: Mapping | None, examples: Sequence[Mapping]
) -> Path:
    empty: dict[str, Any] = {"scores": [], "plots": {}, "options": {}}
    changes: dict[str, Any] = {
        "drift": drift_table({"after": dict(drift)}, "before", MAIN) if drift else None,
        "warnings": drift["warnings"] if drift else [],
        "meanings": {MEASURES[name].title: meaning for name, meaning in MAIN.items()},
        "examples": changed(examples),
        "counted": counted,
    }
    path = Path(folder, PAGE)
    save_text(path, PAGES.get_template(PAGE).render(empty | changes | dict(content)))
    return path
