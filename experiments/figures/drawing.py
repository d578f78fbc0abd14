"""What all figures share: style, colors, panels and saving."""

import csv
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.titlesize": 11,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E5E5E5",
    "figure.constrained_layout.use": True,
    "savefig.dpi": 200,
    "text.parse_math": False,  # keep a $ in the name of a checkpoint
}
# Okabe & Ito (2008), safe for color-blind readers, with black and yellow last; two more for ten clusters.
COLORS = "#0072B2 #D55E00 #009E73 #CC79A7 #56B4E9 #E69F00 #000000 #F0E442 #882255 #999999".split()
MARKERS = "o s ^ D v P X p < *".split()


def appearance(i: int) -> dict:
    """Return the color and marker of category i; the combinations repeat after 100."""
    return dict(color=COLORS[i % 10], marker=MARKERS[(i + i // 10) % 10])


def column(rows: Iterable[Mapping], name: str) -> np.ndarray:
    """Return a column in float64, with NaN for None."""
    return np.array([row[name] for row in rows], dtype=np.float64)


def make_panels(titles: Sequence[str], size: float, shared: bool) -> tuple[Figure, list[Axes]]:
    """Return a figure with one square axes of about this size in inches per title, three in a row."""
    columns = min(3, len(titles))
    lines = math.ceil(len(titles) / columns)
    figure = Figure(figsize=(size * columns + 1, size * lines))
    grid = list(figure.subplots(lines, columns, sharex=shared, sharey=shared, squeeze=False).ravel())
    for axes, title in zip(grid, titles):
        axes.set_title("\n".join(textwrap.fill(line, 32) for line in title.splitlines()))
    for axes in grid[len(titles) :]:
        axes.remove()
    return figure, grid[: len(titles)]


def save(figure: Figure, stem: str | Path, header: Sequence[str], rows: Iterable) -> list[Path]:
    """Write STEM.png, STEM.svg and STEM.csv, which holds the numbers of the figure, and return their paths."""
    paths = [Path(f"{stem}.{suffix}") for suffix in ("png", "svg", "csv")]
    paths[0].parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(paths[0])
    figure.savefig(paths[1], metadata={"Date": None})
    with open(paths[2], "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return paths
