"""Build report.html from the records in the output folder of a run. It needs no other file and no network."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from informin.errors import UsageError, counted
from informin.evaluation.drift import MAIN, MEASURES, drift_table
from informin.evaluation.measures import ALL, KINDS, Measure
from informin.evaluation.snapshot import GROUPS, SHOWN
from informin.files import regular_text
from informin.outputs import save_text
from informin.publishing.record import TRAINING, load_record
from informin.publishing.report_record import REPORT, load_report
from informin.report import charts, verdicts
from informin.report.comparison import COMPARE, of_comparison
from informin.report.html import PAGES
from informin.report.widths import width_table

PAGE = "report.html"
SUMMARY = "summary.json"
EMPTY: dict[str, Any] = {  # parts that not all pages have
    **dict.fromkeys(("warnings", "scores", "charts", "tables", "wide", "notes"), ()),
    **dict.fromkeys(("snapshot", "drift", "general", "geometry")),
    "measures": {MEASURES[name].title: meaning for name, meaning in MAIN.items()},
}
# In the head of every page: this one's, and that of pages of earlier versions.
GENERATED = ('<meta name="generator" content="informin">', "content=\"default-src 'none'; style-src 'unsafe-inline'\">")
HEAD = 1_000  # characters


def write_page(folder: str | Path) -> Path:
    """Write report.html of a run, atomically, and return its path.

    Raises:
        UsageError: The record of the run is missing or damaged, the page cannot be written, or another file has its
            name.
    """
    path = Path(folder, PAGE)
    if os.path.lexists(path) and not _is_page(path):
        raise UsageError(f"{path} exists, and this program did not write it", fix="Rename or delete the file.")
    save_text(path, page(folder))
    return path


def _is_page(path: Path) -> bool:
    """Return whether a file is a page of this program."""
    try:
        return any(mark in regular_text(path)[:HEAD] for mark in GENERATED)
    except (OSError, ValueError):
        return False


def page(folder: str | Path) -> str:
    """Return the page of a run. The same records give the same page."""
    if not Path(folder, REPORT).exists() and Path(folder, SUMMARY).exists():
        from informin.report.study import of_study  # it imports the options of training, which other pages do not need

        return render(of_study(Path(folder, SUMMARY)))
    if not Path(folder, REPORT).exists() and Path(folder, COMPARE).exists():
        return render(of_comparison(Path(folder, COMPARE)))
    record = load_report(folder)
    content = {"train": _of_training, "fit": _of_fit}[record["command"]](Path(folder), record)
    return render(content | _of_snapshot(record))


def render(content: Mapping[str, Any]) -> str:
    """Return the HTML of a page; the template lists what `content` may have. All texts are escaped."""
    return PAGES.get_template("report.html").render(EMPTY | dict(content))


def _of_fit(folder: Path, record: dict) -> dict:
    texts = f"{counted(record['texts'], 'text')}, {record['dimensions']:,} dimensions"
    options = record["options"] | {
        "strength": f"{record['strength']:.2f} (1 is the full effect; with few texts, it is less)"
    }
    return {
        "title": f"Adapter for {record['model'] or 'embeddings'}",
        "subtitle": f"informin fit, {texts}",
        "verdict": verdicts.of_fit(record),
        "warnings": _warnings(record["drift"], "The adapter"),
        "drift": drift_table({"after": record["drift"]}, "before", MAIN) if record["drift"] else None,
        "heading": "Fewer dimensions",
        "tables": [width_table(record["curve"])] if record["curve"] else [],
        "options": options,
        "versions": record["environment"],
    }


def _of_training(folder: Path, record: dict) -> dict:
    training = load_record(folder)
    if training is None:
        raise UsageError(f"{folder} has no {TRAINING}", fix="Copy the file next to report.json again.")
    base, data = training["base_model"] or {"name": "an encoder"}, training["data"] or {}
    sentences = counted(data["sentences"], "sentence") if data.get("sentences") else "a stream of sentences"
    objective = (training.get("objective") or {"title": training["options"].get("objective", "")})["title"]
    drawn = [charts.terms(record["log"]), *charts.scores(record["log"], training["kept_step"])]
    drift = training.get("drift")
    return {
        "title": f"{objective} on {base['name']}",
        "subtitle": f"informin train, {sentences}, {counted(training['steps'], 'step')}, seed {training['seed']}",
        "verdict": verdicts.of_training(record["scores"], training["chosen"], bool(training["history"])),
        "warnings": _warnings(drift, "Training"),
        "drift": drift_table({"after": drift}, "before", MAIN) if drift else None,
        "options": {"data": ", ".join(data.get("sources") or []), "seed": training["seed"], **training["options"]},
        "versions": training["environment"],
        "scores": (rows := _score_rows(record["scores"], training)),
        "geometry": any("uniformity" in row["name"] for row in rows),
        "charts": [chart for chart in drawn if chart],
    }


def _of_snapshot(record: Mapping) -> dict:
    """Return the parts of the page that show sentences, hubs and the map."""
    snapshot, general = record["snapshot"], record["general"]
    found: dict[str, Any] = {"general": drift_table({"after": general}, "before", MAIN)} if general else {}
    if snapshot is None:
        return found
    numbered = list(enumerate(snapshot["examples"], start=1))
    groups = (("Most changed", True), ("Drawn at random", False))
    return found | {
        "snapshot": snapshot,
        "examples": {
            heading: [(number, one) for number, one in numbered if one["most_changed"] == most]
            for heading, most in groups
        },
        "shown": SHOWN,
        "clusters": GROUPS,
        "maps": charts.maps(snapshot["map"], len(snapshot["examples"])),
        "hubs": charts.hubs(snapshot["hubs"]),
    }


def _warnings(drift: Mapping | None, subject: str) -> list[str]:
    return [f"{subject} {warning}" for warning in (drift["warnings"] if drift else [])]


def _score_rows(scores: Sequence[Mapping], training: Mapping) -> list[dict[str, str]]:
    """Return the rows with intervals, then the other scores in the history of training.json."""
    rows = [_score_row(entry) for entry in scores]
    history = training["history"]
    kept: Mapping = next((entry for entry in history if entry["step"] == training["kept_step"]), {})
    first = history[0] if history and history[0]["step"] == 0 else {}
    names = {one["kind"]: one["name"] for one in training.get("development_sets", [])}
    shown = {entry["measure"] for entry in scores}
    for kind, measures in KINDS.items():
        for key, measure in measures.items():
            if kept.get(key) is not None and key not in shown:
                before, after = first.get(key), kept[key]
                change = None if before is None else after - before
                name = f"{names.get(kind, training.get('development'))}, {measure.title}"
                values = {"before": before, "after": after, "change": change}
                rows.append({"name": name, "n": ""} | {column: _shown(measure, values, column) for column in values})
    for key, after in kept.items():
        if key not in ("step", *ALL) and after is not None:  # a score of the user's own
            before = first.get(key)
            cells = {"before": "" if before is None else f"{before:.4g}", "after": f"{after:.4g}"}
            cells["change"] = "" if before is None else f"{after - before:+.4g}"
            rows.append({"name": key, "n": "", **cells})
    return rows


def _shown(measure: Measure, values: Mapping[str, float | None], column: str) -> str:
    value = values[column]
    return "" if value is None else f"{value:{'+' if column == 'change' else ''}.{measure.digits}f}"


def _score_row(entry: Mapping) -> dict[str, str]:
    measure = ALL[entry["measure"]]

    def shown(values: list[float], sign: str = "") -> str:
        value, low, high = (f"{value:{sign}.{measure.digits}f}" for value in values)
        return f"{value} ({low} to {high})"

    return {
        "name": f"{entry['name']}, {measure.title}",
        "n": f"{entry['n']:,}",
        "before": shown(entry["old"]),
        "after": shown(entry["new"]),
        "change": shown(entry["difference"], "+"),
    }
