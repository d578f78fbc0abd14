"""Small plots of numbers over the steps of a run, drawn as SVG by templates/plots.html."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from informin.evaluation.measures import ALL

TERM, SCORE = "terms/", "eval_"  # prefixes of names in the log
LOSS = "loss"
NOT_SCORES = ("eval_runtime", "eval_samples_per_second", "eval_steps_per_second")
WIDTH, HEIGHT = 300, 110  # of the drawing, without its labels
MOST_DOTS = 40

Points = list[tuple[int, float]]


@dataclass(frozen=True)
class Plot:
    """A number over the steps.

    Attributes:
        title: What it is.
        dots: Places (x, y) of the values in the drawing.
        high, low: Labels of the top and the bottom.
        first, last: Steps at the left and the right.
        best: Place of the step whose weights were kept; None without one.
        best_value: Value at that step; empty if it was not logged then.
    """

    title: str
    dots: list[tuple[float, float]]
    high: str
    low: str
    first: int
    last: int
    best: float | None = None
    best_value: str = ""

    @property
    def line(self) -> str:
        """The attribute `points` of a polyline."""
        return " ".join(f"{x},{y}" for x, y in self.dots)

    @property
    def has_dots(self) -> bool:
        return len(self.dots) <= MOST_DOTS


def plots(history: Sequence[Mapping], best_step: int | None = None) -> dict[str, list[Plot]]:
    """Return the plots of a log under up to three headings: the loss with its unweighted terms, their further values,
    and the scores.

    Args:
        history: The `log_history` of a Trainer. Numbers that are not finite are left out.
        best_step: Step whose weights were kept because they had the best score; None without one.
    """
    terms = [LOSS, *(name for name in _names(history, TERM) if "/" not in name.removeprefix(TERM))]
    further = [name for name in _names(history, TERM) if name not in terms]
    scores = [name for name in _names(history, SCORE) if name not in NOT_SCORES]
    drawn = {
        "Loss and its terms, unweighted": [_plot(history, name, best_step) for name in terms],
        "Further values of the terms": [_plot(history, name, best_step) for name in further],
        "Scores": [_plot(history, name, best_step) for name in scores],
    }
    found = {heading: [plot for plot in several if plot] for heading, several in drawn.items()}
    return {heading: several for heading, several in found.items() if several}


def _names(history: Sequence[Mapping], prefix: str) -> list[str]:
    """Return the logged names that have a prefix, in their order."""
    return list(dict.fromkeys(name for entry in history for name in entry if name.startswith(prefix)))


def _points(history: Sequence[Mapping], name: str) -> Points:
    """Return the steps at which a finite number was logged, with the numbers."""
    logged = [(entry["step"], entry[name]) for entry in history if isinstance(entry.get(name), int | float)]
    return [(step, value) for step, value in logged if math.isfinite(value)]


def _plot(history: Sequence[Mapping], name: str, best_step: int | None) -> Plot | None:
    """Return the plot of a logged number; None if it was never finite."""
    points = _points(history, name)
    if not points:
        return None
    short = name.removeprefix(TERM).removeprefix(SCORE)
    measure = ALL.get(short)
    shown = measure.shown if measure else "{:.4g}".format
    steps = [step for step, _ in points]
    values = [value for _, value in points]
    low, high = min(values), max(values)
    across = [round(_share(step, steps[0], steps[-1]) * WIDTH, 1) for step in steps]
    down = [round(HEIGHT - _share(value, low, high) * HEIGHT, 1) for value in values]
    best = None
    if best_step is not None and steps[0] <= best_step <= steps[-1]:
        best = round(_share(best_step, steps[0], steps[-1]) * WIDTH, 1)
    at_best = dict(points).get(best_step) if best_step is not None else None
    return Plot(
        title=measure.title if measure else short.replace("_", " "),
        dots=list(zip(across, down)),
        high=shown(high),
        low=shown(low),
        first=steps[0],
        last=steps[-1],
        best=best,
        best_value="" if at_best is None else shown(at_best),
    )


def _share(value: float, low: float, high: float) -> float:
    """Return where a value is between two others, from 0 to 1; the middle if these are equal."""
    return (value - low) / (high - low) if high > low else 0.5
