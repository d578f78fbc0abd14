"""Draw the figure of README: what each objective gains over SimCSE, from the table in docs/results.md.

python -m experiments.figures.objectives --table docs/results.md --output docs/images/objectives.png
"""

import argparse
import re
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

BEGIN = "| | all-MiniLM-L6-v2, 40 to 80 steps |"  # of the line above the rows
ENCODERS = ("all-MiniLM-L6-v2", "minilm-mlm-wiki", "raw BERT")
GRAY, BLUE = "#8a8f98", "#2f63d9"
CELL = re.compile(r"([-+]\d+\.\d+) \(([-+]\d+\.\d+) to ([-+]\d+\.\d+)\)")


@dataclass(frozen=True)
class Difference:
    """A cell of the table: an STS average minus that of SimCSE, with the ends of its 95% interval."""

    objective: str
    encoder: str
    is_long: bool
    mean: float
    low: float
    high: float


def read_differences(table: Path) -> list[Difference]:
    """Return the cells with a difference of the table that begins with BEGIN."""
    lines = table.read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(BEGIN))
    found = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        objective, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        for column, cell in enumerate(cells):
            if match := CELL.fullmatch(cell):
                mean, low, high = map(float, match.groups())
                found.append(Difference(objective, ENCODERS[column // 2], column % 2 == 1, mean, low, high))
    return found


def draw(differences: list[Difference]) -> Figure:
    """Return the figure: a panel for each encoder, with a short and a long run on each objective's line."""
    objectives = list(dict.fromkeys(one.objective for one in differences))
    figure = Figure(figsize=(9, 0.42 * len(objectives) + 1.2), layout="constrained")
    panels = figure.subplots(1, len(ENCODERS), sharey=True)
    for axes, encoder in zip(panels, ENCODERS):
        axes.axvline(0, color=GRAY, linewidth=1)
        for one in (one for one in differences if one.encoder == encoder):
            place = len(objectives) - objectives.index(one.objective) + (-0.16 if one.is_long else 0.16)
            color = BLUE if one.is_long else GRAY
            axes.plot([one.low, one.high], [place, place], color=color, linewidth=2)
            axes.plot(one.mean, place, "o", color=color, markersize=5)
        axes.set_title(encoder, fontsize=10)
        axes.set_yticks(range(len(objectives), 0, -1), objectives)
        axes.tick_params(axis="y", length=0)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.grid(axis="x", color="#e5e5e5")
        axes.set_axisbelow(True)
    panels[1].set_xlabel("STS average minus that of SimCSE, with 95% interval")
    for color, label in ((GRAY, "short run (40 to 80 steps)"), (BLUE, "200 steps")):
        panels[0].plot([], [], "o-", color=color, linewidth=2, markersize=5, label=label)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=2, frameon=False)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=Path, default=Path("docs/results.md"), help="Default: %(default)s.")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="A .png or .svg file.")
    args = parser.parse_args()
    args.output.parent.mkdir(parents=True, exist_ok=True)
    draw(read_differences(args.table)).savefig(args.output, dpi=130)
    print(args.output)


if __name__ == "__main__":
    main()
