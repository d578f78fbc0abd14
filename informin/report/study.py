"""The report of `informin study`, from summary.json."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from informin.errors import UsageError, counted
from informin.report import charts
from informin.report.verdicts import Verdict
from informin.studies.summary import load_study
from informin.studies.table import SIGNAL, name_of, notes, plot_rows, summarize, tables


def of_study(path: Path) -> dict[str, Any]:
    """Return the content of the page.

    Raises:
        UsageError: The study has no finished runs, or summary.json is damaged.
    """
    study, records = load_study(path)
    summary = summarize(study, records)
    if not records:
        raise UsageError(f"{path} has no finished runs", fix="Run the study again.")
    first = next(iter(records.values()))
    sizes = counted(len(summary["settings"]), "setting"), counted(len(summary["seeds"]), "seed")
    return {
        "title": summary["title"],
        "subtitle": f"informin study, {', '.join(sizes)}",
        "verdict": verdict(summary),
        "tables": tables(summary),
        "heading": "Scores over seeds",
        "wide": charts.seeds(plot_rows(summary)),
        "notes": notes(summary),
        "options": _study_options(summary["settings"]),
        "versions": first["environment"],
    }


def _study_options(settings: Mapping[str, Mapping]) -> dict[str, Any]:
    """Return the options that all settings share by name, then the others of each setting."""
    every = [setting["options"] for setting in settings.values()]
    names = every[0] if every else {}
    shared = {name: names[name] for name in names if all(name in one and one[name] == names[name] for one in every)}
    own = {
        f"setting {label}": ", ".join(
            f"{name} {value}" for name, value in setting["options"].items() if name not in shared
        )
        for label, setting in settings.items()
    }
    return shared | own


def verdict(summary: Mapping) -> Verdict:
    """Return the verdict of a study: which settings differ from their baselines by the first measure compared."""
    compared = summary["differences"]
    measure = compared[0]["measure"] if compared else None
    found = [gain for gain in compared if gain["measure"] == measure and gain["t"]]
    if not found:
        if equal := [gain for gain in compared if gain["measure"] == measure and gain["n"] >= 3]:
            names = "; ".join(f"{gain['setting']} against {gain['baseline']} {gain['mean']:+.2f}" for gain in equal)
            sentence = f"The differences of all seeds are equal, so there is no interval: {names}."
            return Verdict("unclear", "No evidence", sentence, "Check that the seeds differ.")
        sentence = "No setting was compared with a baseline over three seeds or more."
        return Verdict("unclear", "No evidence", sentence, "Name a baseline in the study, and run more seeds.")
    listed: dict[str, list[str]] = {"good": [], "bad": [], "unclear": []}
    for gain in found:
        kind = "unclear" if gain["verdict"] != SIGNAL else "good" if gain["mean"] > 0 else "bad"
        low, high = gain["t"]
        listed[kind].append(
            f"{gain['setting']} against {gain['baseline']} {gain['mean']:+.2f} ({low:+.2f} to {high:+.2f}, "
            f"{counted(gain['n'], 'seed')})"
        )
    words = {"good": "Helped", "bad": "Hurt", "unclear": "No evidence"}
    kinds = [kind for kind in words if listed[kind]]
    parts = [f"{words[kind]}: {'; '.join(listed[kind])}." for kind in kinds]
    kind, word = (kinds[0], words[kinds[0]]) if len(kinds) == 1 else ("unclear", "Mixed")
    scope = "The 95% intervals cover variation between seeds, not between test sentences."
    many = f" Of {len(found)} comparisons, chance alone makes about {0.05 * len(found):.2g} look like an effect."
    return Verdict(kind, word, f"By {name_of(str(measure))}. {' '.join(parts)}", scope + many * (len(found) > 1))
