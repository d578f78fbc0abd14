"""Figures of training runs: curves over steps, and scores of seeds.

See `informin.figures.plots` for arguments and errors.
"""

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from informin.errors import UsageError
from informin.figures.drawing import COLORS, STYLE, Files, appearance, numbers, require, require_finite, save
from informin.training.history import logged_terms

MEAN_LOOK: dict[str, Any] = dict(color="black", marker="|", markersize=11, markeredgewidth=1.6)


@matplotlib.rc_context(STYLE)
def training_curves(log_history: Sequence[Mapping], stem: str | Path) -> Files:
    """Plot the unweighted loss terms and the evaluation scores of a run over its steps.

    The CSV has one row per step, with every column of the log.

    Args:
        log_history: `log_history` of trainer_state.json; see `informin.training.checkpoints.read_history`.
    """
    by_step: dict[int, dict] = {}
    for entry in log_history:
        by_step.setdefault(entry["step"], {}).update(entry)
    steps = [by_step[step] for step in sorted(by_step)]
    logged, scored = (any(row.get(name) is not None for row in steps) for name in ("loss", "eval_spearman"))
    if not (logged or scored):
        raise UsageError("The log contains neither a loss nor an evaluation", fix="Choose a run that has started.")
    columns = logged + 2 * scored
    figure = Figure(figsize=(3.6 * columns, 4.2))
    grid = figure.add_gridspec(2, columns)
    if logged:
        draw_terms(figure.add_subplot(grid[:, 0]), steps)
    if scored:
        _draw_spearman(figure.add_subplot(grid[:, -2]), steps)
        upper = figure.add_subplot(grid[0, -1], ylabel="alignment\n← lower is better")
        lower = figure.add_subplot(grid[1, -1], ylabel="uniformity\n← lower is better", sharex=upper)
        draw_curve(upper, *series(steps, "eval_alignment"), **appearance(0))
        draw_curve(lower, *series(steps, "eval_uniformity"), **appearance(0))
        upper.set_xlabel("")
        figure.align_ylabels([upper, lower])
    header = list(dict.fromkeys(["step", *(name for row in steps for name in row)]))
    return save(figure, stem, header, ([row.get(name) for name in header] for row in steps))


@matplotlib.rc_context(STYLE)
def information(rows: Sequence[Mapping], stem: str | Path) -> Files:
    """Plot runs in the plane of the two theorems of InforMin-CL: a line over the steps, with a marker at the last one.

    Args:
        rows: One row per run and log entry, in the order of the steps, with `run`, `step`, `infonce_bound`,
            `conditional_entropy` and `spearman`, the last score on the development pairs until then, or None.
    """
    require(rows, "run")
    figure = Figure(figsize=(7, 4.8))
    axes = figure.add_subplot()
    for i, name in enumerate(dict.fromkeys(row["run"] for row in rows)):
        own = [row for row in rows if row["run"] == name]
        x, y = numbers(own, "conditional_entropy"), numbers(own, "infonce_bound")
        require_finite(name, "the measures of information", [x, y])
        score = own[-1]["spearman"]
        label = textwrap.fill(name if score is None else f"{name}: {score:.2f}", 36)
        axes.plot(x, y, markevery=[-1], markersize=8, linewidth=1, label=label, **appearance(i))
    axes.set_xlabel(
        "conditional entropy of one view given the other, nats per dimension\n← less that the views do not share"
    )
    axes.set_ylabel("InfoNCE bound of mutual information, nats\nmore that the views share →")
    figure.legend(loc="outside right upper", title="run: development pairs,\nSpearman x 100")
    header = ["run", "step", "infonce_bound", "conditional_entropy", "spearman"]
    return save(figure, stem, header, ([row[name] for name in header] for row in rows))


@matplotlib.rc_context(STYLE)
def seeds(rows: Sequence[Mapping], title: str, stem: str | Path) -> Files:
    """Plot the score of each seed of each setting, with mean and standard deviation, in one panel per measure.

    Existing files are replaced: the folder's summary.json shows that they are of a study.

    Args:
        rows: One row per measure, setting and seed with `measure`, `setting`, `seed`, `value` (x 100) and
            `baseline_mean`, the mean of the setting it is compared with, or None.
        title: Title of the study.
    """
    figure = seeds_figure(rows, title)
    header = ["measure", "setting", "seed", "value", "baseline_mean"]
    return save(figure, stem, header, ([row[name] for name in header] for row in rows), replaceable=True)


def seeds_figure(rows: Sequence[Mapping], title: str) -> Figure:
    """Return the figure of `seeds`."""
    require(rows, "run")
    measures, settings = (list(dict.fromkeys(row[name] for row in rows)) for name in ("measure", "setting"))
    for setting in settings:
        require_finite(setting, "scores", [row["value"] for row in rows if row["setting"] == setting])
    figure = Figure(figsize=(3 + 3.6 * len(measures), 1.6 + 0.42 * len(settings)))
    grid = figure.subplots(1, len(measures), sharey=True, squeeze=False)[0]
    for axes, measure in zip(grid, measures):
        for i, setting in enumerate(settings):
            own = [row for row in rows if (row["measure"], row["setting"]) == (measure, setting)]
            _draw_seeds(axes, i, own)
        axes.set(xlabel=f"{measure}, x 100", yticks=range(len(settings)), ylim=(len(settings) - 0.5, -0.5))
        axes.set_yticklabels([textwrap.fill(setting, 36) for setting in settings])
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        axes.grid(axis="y", visible=False)
    figure.suptitle(title, fontsize=STYLE["axes.titlesize"])
    handles = [
        Line2D([], [], linestyle="", label="one seed", alpha=0.7, **appearance(0)),
        Line2D([], [], label="mean ± sd", **MEAN_LOOK),
    ]
    if any(row["baseline_mean"] is not None for row in rows):
        handles.append(Line2D([], [], color=COLORS[1], linestyle="--", label="mean of its baseline"))
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


def _draw_seeds(axes: Axes, y: int, rows: Sequence[Mapping]) -> None:
    """Draw the values of one setting at height y, slightly above their mean so that it does not hide them."""
    values = numbers(rows, "value")
    axes.plot(values, np.full(len(values), y - 0.14), linestyle="", alpha=0.7, markersize=5, **appearance(0))
    if len(values) > 1:
        axes.errorbar(values.mean(), y + 0.14, xerr=np.std(values, ddof=1), **MEAN_LOOK)
    line = rows[0]["baseline_mean"] if rows else None
    if line is not None:
        axes.vlines(line, y - 0.45, y + 0.45, color=COLORS[1], linestyle="--", linewidth=1.2, zorder=1)


def draw_terms(axes: Axes, steps: Sequence[Mapping]) -> None:
    """Draw the unweighted terms over the steps, and the loss if there are several, with a legend above."""
    terms = [{"step": row["step"], **logged_terms(row)} for row in steps]
    names = list(dict.fromkeys(name for row in terms for name in row if name != "step" and row[name] is not None))
    for i, name in enumerate(names):
        draw_curve(axes, *series(terms, name), label=name.replace("_", " "), **appearance(i))
    if len(names) != 1:  # with a single term, the loss equals it
        axes.plot(*series(steps, "loss"), "--", color="black", linewidth=1, label="loss (weighted sum)")
    # Terms differ by orders of magnitude, so use a log axis.
    if all(np.min(line.get_ydata()) > 0 for line in axes.lines):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel("terms, unweighted")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, columnspacing=1)


def draw_curve(axes: Axes, steps: Sequence[int], values: Sequence[float], **look) -> None:
    """Draw a line over the steps, with at most about 25 markers."""
    axes.plot(steps, values, markersize=4, markevery=max(1, math.ceil(len(steps) / 25)), **look)
    axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10], integer=True))
    axes.set_xlabel("step")


def _draw_spearman(axes: Axes, steps: Sequence[Mapping]) -> None:
    at, scores = series(steps, "eval_spearman")
    draw_curve(axes, at, scores, **appearance(0))
    if np.isfinite(scores).any():
        best = int(np.nanargmax(scores))
        axes.plot(at[best], scores[best], "*", markersize=14, color=COLORS[1], markeredgecolor="black")
        axes.set_title(f"best: {scores[best]:.2f} at step {at[best]}")
    axes.set_ylabel("development pairs, Spearman x 100")  # STS-B dev or other pairs: the log does not say which


def series(rows: Iterable[Mapping], name: str) -> tuple[list, list]:
    """Return the steps at which a column was logged, and its values."""
    logged = [row for row in rows if row.get(name) is not None]  # report.json has null for a number that is not finite
    return [row["step"] for row in logged], [row[name] for row in logged]
