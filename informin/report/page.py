"""Write report.html at the end of a training run or a fit. The page needs no other file and no network.

`drift` is the entry `drift` of training.json; see `informin.evaluation.drift`. `examples` are texts with the neighbors
that they lost and gained; see `informin.evaluation.drift`.
"""

import base64
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from informin.evaluation.drift import MAIN, MEASURES, drift_table
from informin.evaluation.measures import ALL
from informin.outputs import save_text
from informin.report.html import PAGES

TERM, SCORE = "terms/", "eval_"  # prefixes of names in the log
NOT_SCORES = ("eval_runtime", "eval_samples_per_second", "eval_steps_per_second")
COLUMNS = 3  # plots of scores beside each other
MOST_MARKERS = 25
PAGE = "report.html"


def loss_figure(history: Sequence[Mapping]) -> str | None:
    """Return a figure of the loss and its unweighted terms; None if no loss was logged.

    Args:
        history: The `log_history` of a Trainer.

    Returns:
        A PNG as a `data:` URL.
    """
    names = ["loss", *_names(history, TERM)]
    if not _series(history, "loss")[0]:
        return None
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot(xlabel="step", ylabel="loss, and its terms without weights")
    for name in names:
        _draw(axes, history, name, label=name.removeprefix(TERM).replace("_", " "))
    values = [value for name in names for value in _series(history, name)[1]]
    if min(values) > 0:  # terms differ by orders of magnitude
        axes.set_yscale("log")
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    return _as_url(figure)


def score_figure(history: Sequence[Mapping]) -> str | None:
    """Return a figure with a plot for each evaluation score; None if nothing was scored. See `loss_figure`."""
    names = [name for name in _names(history, SCORE) if name not in NOT_SCORES]
    if not names:
        return None
    columns, rows = min(COLUMNS, len(names)), math.ceil(len(names) / COLUMNS)
    figure = Figure(figsize=(3.2 * columns, 2.6 * rows), layout="constrained")
    for i, name in enumerate(names):
        short = name.removeprefix(SCORE)
        axes = figure.add_subplot(
            rows, columns, i + 1, xlabel="step", title=ALL[short].title if short in ALL else short
        )
        _draw(axes, history, name)
    return _as_url(figure)


def _names(history: Sequence[Mapping], prefix: str) -> list[str]:
    """Return the logged numbers whose name has a prefix."""
    names = dict.fromkeys(name for entry in history for name in entry if name.startswith(prefix))
    return [name for name in names if _series(history, name)[0]]


def _series(history: Sequence[Mapping], name: str) -> tuple[list[int], list[float]]:
    """Return the steps at which a finite number was logged, and the numbers."""
    points = [(entry["step"], entry[name]) for entry in history if isinstance(entry.get(name), int | float)]
    finite = [(step, value) for step, value in points if math.isfinite(value)]
    return [step for step, _ in finite], [value for _, value in finite]


def _draw(axes: Axes, history: Sequence[Mapping], name: str, label: str | None = None) -> None:
    steps, values = _series(history, name)
    axes.plot(steps, values, marker="o", markersize=3, markevery=math.ceil(len(steps) / MOST_MARKERS), label=label)
    axes.grid(alpha=0.3)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))


def _as_url(figure: Figure) -> str:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=144)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


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
