"""Figure of `informin compare`: rank with and without an adapter, and speed. See `informin.figures.plots`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from informin.figures.drawing import COLORS, STYLE, Files, require, require_finite, save

HEADER = ["name", "rank", "adapted", "low", "high", "texts_per_second"]


@matplotlib.rc_context(STYLE)
def model_comparison(rows: Sequence[Mapping], held_out: int, stem: str | Path) -> Files:
    """Plot the rank of each model's second halves before and after the adapter, and its speed.

    Args:
        rows: One row per model, best first, with `name`, `rank` (geometric mean), `adapted` (with the adapter), `low`
            and `high` (the ends of the rank's interval as factors of it) and `texts_per_second`, or None.
        held_out: Number of texts that were cut in halves.
    """
    figure = comparison_figure(rows, held_out)
    return save(figure, stem, HEADER, ([row[name] for name in HEADER] for row in rows))


def comparison_figure(rows: Sequence[Mapping], held_out: int) -> Figure:
    """Return the figure of `model_comparison`."""
    require(rows, "model")
    for row in rows:
        require_finite(row["name"], "ranks", [row[name] for name in HEADER[1:5]])
    timed = any(row["texts_per_second"] for row in rows)
    figure = Figure(figsize=(9.5 if timed else 6.5, 1.7 + 0.5 * len(rows)))
    grid = figure.subplots(1, 1 + timed, sharey=True, squeeze=False, width_ratios=[3, 2][: 1 + timed])[0]
    _draw_ranks(grid[0], rows)
    grid[0].set_title(f"Finding the second half of {held_out:,} texts with the first")
    if timed:
        for i, row in enumerate(rows):
            if row["texts_per_second"]:
                grid[1].plot([row["texts_per_second"]], [i], color=COLORS[2], marker="s", markersize=7, linestyle="")
        _logarithmic(grid[1], "texts per second\nhigher is better →")
        grid[1].set_title("Speed")
        grid[1].tick_params(axis="y", length=0)
    grid[0].set(yticks=range(len(rows)), ylim=(len(rows) - 0.5, -0.5))
    grid[0].set_yticklabels([row["name"] for row in rows])
    return figure


def _draw_ranks(axes: Axes, rows: Sequence[Mapping]) -> None:
    for i, row in enumerate(rows):
        rank = row["rank"]
        axes.plot([rank * row["low"], rank * row["high"]], [i, i], color=COLORS[0], linewidth=1.5)
        axes.plot([rank], [i], color=COLORS[0], marker="o", markersize=8, label=None if i else "as it is, ± 2 SE")
        look: dict[str, Any] = dict(color=COLORS[1], marker="D", markersize=6, linestyle="", markerfacecolor="none")
        axes.plot([row["adapted"]], [i + 0.22], **look, label=None if i else "with adapter")
    _logarithmic(axes, "geometric mean rank of the second half\n← lower is better")
    axes.figure.legend(loc="outside lower center", ncols=2)


def _logarithmic(axes: Axes, label: str) -> None:
    axes.set(xscale="log", xlabel=label)
    axes.margins(x=0.12)
    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(subs=[1, 2, 5] if high < 50 * low else [1]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
