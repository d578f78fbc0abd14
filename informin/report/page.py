"""Write report.html at the end of a training run or a fit. The page needs no other file and no network.

`drift` is the entry `drift` of training.json; see `informin.evaluation.drift`. `examples` are texts with the neighbors
that they lost and gained; see `informin.evaluation.snapshot`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from informin.evaluation.drift import MAIN, MEASURES, drift_table
from informin.outputs import save_text
from informin.report.figures import loss_figure, score_figure
from informin.report.html import PAGES

PAGE = "report.html"


def write_training_report(
    folder: str | Path,
    history: Sequence[Mapping],
    drift: Mapping | None = None,
    examples: Sequence[Mapping] | None = None,
    *,
    title: str = "Training",
    summary: Mapping[str, str] | None = None,
) -> Path:
    """Write the page of a training run, and return its path.

    Args:
        folder: Output folder of the run.
        history: The `log_history` of the Trainer. Numbers that are not finite are left out.
        drift: Drift on training sentences, if it was measured.
        examples: Sentences with the neighbors that they lost and gained.
        title: Title of the page.
        summary: Names and values to show below the title.
    """
    figures = {"Loss": loss_figure(history), "Scores": score_figure(history)}
    return _write(folder, title, summary or {}, figures, drift, examples)


def write_fit_report(
    folder: str | Path,
    summary: Mapping[str, str],
    drift: Mapping | None = None,
    examples: Sequence[Mapping] | None = None,
    *,
    title: str = "Adapter",
) -> Path:
    """Write the page of a fit, and return its path; see `write_training_report`."""
    return _write(folder, title, summary, {}, drift, examples)


def _write(
    folder: str | Path,
    title: str,
    summary: Mapping[str, str],
    figures: Mapping[str, str | None],
    drift: Mapping | None,
    examples: Sequence[Mapping] | None,
) -> Path:
    content: dict[str, Any] = {
        "title": title,
        "summary": summary,
        "figures": {name: figure for name, figure in figures.items() if figure},
        "drift": drift_table({"after": dict(drift)}, "before", MAIN) if drift else None,
        "warnings": drift["warnings"] if drift else [],
        "meanings": {MEASURES[name].title: meaning for name, meaning in MAIN.items()},
        "examples": examples or [],
    }
    path = Path(folder, PAGE)
    save_text(path, PAGES.get_template("report.html").render(content))
    return path
