"""Draw the figure of README: nDCG@10 of vectors alone and of the index, from the table in docs/search.md.

python -m experiments.figures.gains --table docs/search.md --output docs/images/gains.png
"""

import argparse
import re
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

BEGIN = "| | vectors |"  # of the line above the rows
GRAY, BLUE = "#8a8f98", "#2f63d9"


@dataclass(frozen=True)
class Gain:
    """A row of the table: nDCG@10 of the vectors, and how much the index adds to it, with its standard error."""

    label: str
    vectors: float
    gain: float
    error: float


def read_gains(table: Path) -> list[Gain]:
    """Return the rows of the table that begins with BEGIN; its second column is the index."""
    lines = iter(table.read_text(encoding="utf-8").splitlines())
    for line in lines:
        if line.startswith(BEGIN):
            break
    next(lines)  # the rule below the header
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        label, vectors, index = [cell.strip() for cell in line.split("|")[1:4]]
        gain, error = re.findall(r"[-+]?\d+\.\d+", index)
        rows.append(Gain(label, float(vectors), float(gain), float(error)))
    return rows


def draw(rows: list[Gain]) -> Figure:
    """Return the figure: one line for each row, from the score of the vectors to that of the index."""
    figure = Figure(figsize=(7.2, 0.36 * len(rows) + 0.9), layout="constrained")
    axes = figure.add_subplot(xlabel="nDCG@10")
    places = range(len(rows), 0, -1)
    for place, row in zip(places, rows):
        after = row.vectors + row.gain
        axes.plot([row.vectors, after], [place, place], color=BLUE, linewidth=2, zorder=1)
        axes.errorbar(after, place, xerr=row.error, color=BLUE, capsize=2, linewidth=1, zorder=1)
        axes.annotate(
            f"{row.gain:+.1f}",
            (after + row.error, place),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            color=BLUE,
        )
    axes.scatter([row.vectors for row in rows], places, color=GRAY, zorder=2, label="vectors alone")
    axes.scatter([row.vectors + row.gain for row in rows], places, color=BLUE, zorder=2, label="informin index")
    axes.set_yticks(places, [row.label for row in rows])
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.grid(axis="x", color="#e5e5e5")
    axes.set_axisbelow(True)
    figure.legend(loc="outside upper left", ncols=2, frameon=False)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=Path, default=Path("docs/search.md"), help="Default: %(default)s.")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="A .png or .svg file.")
    args = parser.parse_args()
    args.output.parent.mkdir(parents=True, exist_ok=True)
    draw(read_gains(args.table)).savefig(args.output, dpi=130)
    print(args.output)


if __name__ == "__main__":
    main()
