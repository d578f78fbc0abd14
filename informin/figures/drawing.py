"""What all figures share: style, colors, checks, panels and saving."""

import csv
import io
import math
import os
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from informin.errors import UsageError
from informin.outputs import new_files, writing

PROGRAM = "InforMin-CL"  # in the metadata of the figures
HEAD = 4_096  # bytes that contain the metadata
SUFFIXES = ("png", "svg", "csv")
Files = tuple[Path, Path, Path]  # PNG, SVG, CSV
Panel = tuple[str, np.ndarray, np.ndarray]  # name of a checkpoint, and two arrays of N rows

STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.labelsize": 10,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.fontsize": 9,
    "legend.title_fontsize": 9,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E5E5E5",
    "figure.constrained_layout.use": True,
    "savefig.dpi": 200,
    "text.parse_math": False,  # keep a $ in the name of a checkpoint
    "svg.hashsalt": "informin",  # otherwise, ids in the file are random
    # Draw letters as outlines, so that they look the same everywhere and keep the widths used to place the labels.
    # The file also contains each text as a comment.
    "svg.fonttype": "path",
}
# Okabe & Ito (2008), safe for color-blind readers, with black and yellow last; two more for ten clusters.
COLORS = "#0072B2 #D55E00 #009E73 #CC79A7 #56B4E9 #E69F00 #000000 #F0E442 #882255 #999999".split()
MARKERS = "o s ^ D v P X p < *".split()


def require(rows: Sequence, what: str) -> None:
    """Raise UsageError if there are no rows."""
    if not rows:
        raise UsageError("There is nothing to draw", needed=f"at least one {what}")


def require_finite(name: str, what: str, numbers) -> None:
    """Raise UsageError if a number is NaN or infinite."""
    if not np.isfinite(np.asarray(numbers, dtype=np.float64)).all():
        raise UsageError(f"{name}: {what} contain NaN or infinity", needed="finite numbers")


def numbers(rows: Iterable[Mapping], name: str) -> np.ndarray:
    """Return a column in float64, with NaN for None."""
    return np.array([row[name] for row in rows], dtype=np.float64)


def appearance(i: int) -> dict:
    """Return the color and marker of category i; the combinations repeat after 100."""
    return dict(color=COLORS[i % 10], marker=MARKERS[(i + i // 10) % 10])


def make_panels(titles: Sequence[str], size: tuple[float, float], shared: bool) -> tuple[Figure, list[Axes]]:
    """Return a figure with one axes of about this size in inches per title: up to three in a row, more in a square."""
    titles = ["\n".join(textwrap.fill(line, 32) for line in title.splitlines()) for title in titles]
    columns = len(titles) if len(titles) <= 3 else math.ceil(math.sqrt(len(titles)))
    lines = math.ceil(len(titles) / columns)
    height = size[1] + 0.17 * max(title.count("\n") for title in titles)
    figure = Figure(figsize=(size[0] * columns + 1, height * lines))
    grid = figure.subplots(lines, columns, sharex=shared, sharey=shared, squeeze=False).ravel()
    for axes, title in zip(grid, titles):
        axes.set_title(title)
    for axes in grid[len(titles) :]:
        axes.remove()
    return figure, list(grid[: len(titles)])


def save(figure: Figure, stem: str | Path, header: Sequence[str], rows: Iterable, replaceable: bool = False) -> Files:
    """Write STEM.png, STEM.svg and STEM.csv. None of them appears before all are complete.

    Args:
        figure: The figure.
        stem: Path without suffix.
        header: Header of the CSV file.
        rows: Its rows.
        replaceable: Existing files with these names are known to be ours.

    Raises:
        UsageError: A file with one of these names is not such a figure, or they cannot be written.
    """
    if not replaceable:
        refuse_foreign(stem, header)
    folder, name = Path(stem).parent, Path(stem).name
    with writing(stem, "output"), new_files(folder) as new:
        png, svg, numbers = (new / f"{name}.{suffix}" for suffix in SUFFIXES)
        figure.savefig(png, metadata={"Software": PROGRAM})
        figure.savefig(svg, metadata={"Date": None, "Creator": PROGRAM})
        with open(numbers, "w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([header, *rows])
    return folder / png.name, folder / svg.name, folder / numbers.name


def refuse_foreign(stem: str | Path, header: Sequence[str] | None = None) -> None:
    """Raise UsageError if STEM.png, STEM.svg or STEM.csv exists and `save` did not write it.

    Args:
        stem: Path without suffix.
        header: Header of the CSV file; None before it is known, when only files without the other two are refused.
    """
    if os.fspath(stem).endswith(os.sep):
        raise UsageError(f"is {stem}", option="output", needed="the path of the files without their suffix")
    png, svg, numbers = (Path(f"{stem}.{suffix}") for suffix in SUFFIXES)
    # Figures of earlier versions have no mark.
    same = numbers.is_file() and png.is_file()
    if header is not None:
        line = io.StringIO()
        csv.writer(line).writerow(header)
        same = _starts(numbers, line.getvalue().encode())
    ours = {
        png: same or _starts(png, PROGRAM.encode()),
        svg: same or _starts(svg, PROGRAM.encode()),
        numbers: same or _starts(png, PROGRAM.encode()),
    }
    for path, known in ours.items():
        if os.path.lexists(path) and not known:
            found = f"{path} exists, and this program did not write it"
            raise UsageError(found, option="output", fix="Choose another name, or delete the file.")


def _starts(path: Path, mark: bytes) -> bool:
    """Return whether the first bytes of a regular file contain a mark."""
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        return mark in file.read(HEAD)
