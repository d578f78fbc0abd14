"""Write report.html at the end of a training run or a fit. The page needs no other file and no network.

It names no folder of this machine. `examples` are texts with the neighbors that they lost and gained; see
`informin.evaluation.drift`.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from informin.errors import capitalized, counted
from informin.evaluation.drift import MAIN, MEASURES, drift_table
from informin.evaluation.measures import ALL, KINDS
from informin.evaluation.table import PAGES, Row, Table, difference
from informin.files import save_text
from informin.model.records import RunRecord

PAGE = "report.html"


def write_training_report(
    folder: str | Path,
    record: RunRecord,
    history: Sequence[Mapping],
    examples: Sequence[Mapping] = (),
    *,
    resumed_from: int = 0,
) -> Path:
    """Write the page of a training run, and return its path.

    Args:
        folder: Output folder of the run.
        record: What the run did.
        history: The `log_history` of the Trainer. Numbers that are not finite are left out.
        examples: Sentences with the neighbors that they lost and gained.
        resumed_from: Step of the checkpoint that the run was resumed from; 0 for a run that was not resumed.
    """
    base = record.base_model or {}
    name = base.get("hub_id") or base.get("name", "a model")
    content = {
        "title": f"{capitalized(record.objective['title'])}, {name}",
        "facts": facts(record, resumed_from),
        "scores": tables_of_record(record),
        "plots": plots(history, record.kept_step if record.chosen else None),
        "options": {name.replace("_", " "): value for name, value in record.options.items()},
    }
    return _write_page(folder, content, record.drift, examples)


def write_fit_report(
    folder: str | Path,
    title: str,
    summary: Mapping[str, str],
    drift: Mapping | None = None,
    examples: Sequence[Mapping] = (),
) -> Path:
    """Write the page of a fit, and return its path.

    Args:
        folder: Output folder.
        title: Title of the page.
        summary: Names and values to show below the title.
        drift: Entry `drift` of fit.json, if it was measured.
        examples: Texts with the neighbors that they lost and gained.
    """
    return _write_page(folder, {"title": title, "facts": summary}, drift, examples)


def _write_page(
    folder: str | Path, content: Mapping[str, Any], drift: Mapping | None, examples: Sequence[Mapping]
) -> Path:
    empty: dict[str, Any] = {"scores": [], "plots": {}, "options": {}}
    changes: dict[str, Any] = {
        "drift": drift_table({"after": dict(drift)}, "before", MAIN) if drift else None,
        "warnings": drift["warnings"] if drift else [],
        "meanings": {MEASURES[name].title: meaning for name, meaning in MAIN.items()},
        "examples": changed(examples),
        "counted": counted,
    }
    path = Path(folder, PAGE)
    save_text(path, PAGES.get_template(PAGE).render(empty | changes | dict(content)))
    return path


def facts(record: RunRecord, resumed_from: int) -> dict[str, str]:
    """Return the main facts of a run by name."""
    data = record.data or {}
    found: dict[str, Any] = {"terms": ", ".join(term["title"] for term in record.objective["terms"])}
    if data.get("sources"):
        found["data"] = ", ".join(data["sources"])
    if data.get("sentences"):
        found["sentences"] = f"{data['sentences']:,}"
    found["steps"] = f"{record.steps:,}" + (f", resumed from step {resumed_from:,}" if resumed_from else "")
    if record.chosen:
        found["weights"] = f"of step {record.kept_step:,}, with the best score of all checkpoints"
    if record.development:
        found["evaluated on"] = record.development
    if record.sentences_per_second:
        found["speed"] = f"{record.sentences_per_second:,.0f} sentences per second"
    device = record.environment.get("device", "unknown")
    found["device"] = ", ".join(filter(None, [device, record.options.get("precision")]))
    found["seed"] = str(record.seed)
    return found


def tables_of_record(record: RunRecord) -> list[Table]:
    """Return the table of scores before the first step and of the weights that were kept."""
    at = {entry["step"]: entry for entry in record.history}
    if not at:
        return []
    after = at.get(record.kept_step, record.history[-1])
    before = at.get(0, {}) if after["step"] else {}
    rows = []
    for name in after:
        if name != "step":
            measure = ALL.get(name)
            values = {"before": before.get(name), "after": after[name]}
            old, new = (Row("", {"": value}) for value in values.values())
            change = difference(new, old).values[""]
            digits = measure.digits if measure else 2
            values["change"] = None if change is None else f"{change:+.{digits}f}"
            rows.append(Row(_score_title(record, name), values, digits=digits))
    return [Table(f"Scores before training and at step {after['step']:,}", ["before", "after", "change"], rows)]


def _score_title(record: RunRecord, name: str) -> str:
    """Return the title of a score, with the name of its data."""
    if name not in ALL:
        return name
    sets = {one["kind"]: one["name"] for one in record.development_sets}
    kind = next(kind for kind, measures in KINDS.items() if name in measures)
    return f"{sets[kind]}, {ALL[name].title}" if kind in sets else ALL[name].title


# Plots

TERM, SCORE = "terms/", "eval_"  # prefixes of names in the log
LOSS = "loss"
NOT_A_SCORE = "eval_runtime"
WIDTH, HEIGHT = 300, 110  # of the drawing, without its labels
MOST_DOTS = 40


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
    scores = [name for name in _names(history, SCORE) if name != NOT_A_SCORE]
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


def _plot(history: Sequence[Mapping], name: str, best_step: int | None) -> Plot | None:
    """Return the plot of a logged number; None if it was never finite."""
    logged = [(entry["step"], entry[name]) for entry in history if isinstance(entry.get(name), int | float)]
    points = [(step, value) for step, value in logged if math.isfinite(value)]
    if not points:
        return None

    def share(value: float, low: float, high: float) -> float:
        """Return where a value is between two others, from 0 to 1; the middle if these are equal."""
        return (value - low) / (high - low) if high > low else 0.5

    short = name.removeprefix(TERM).removeprefix(SCORE)
    measure = ALL.get(short)
    shown = measure.shown if measure else "{:.4g}".format
    steps = [step for step, _ in points]
    values = [value for _, value in points]
    low, high = min(values), max(values)
    across = [round(share(step, steps[0], steps[-1]) * WIDTH, 1) for step in steps]
    down = [round(HEIGHT - share(value, low, high) * HEIGHT, 1) for value in values]
    best = None
    if best_step is not None and steps[0] <= best_step <= steps[-1]:
        best = round(share(best_step, steps[0], steps[-1]) * WIDTH, 1)
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


# Texts whose neighbors changed

WORD = re.compile(r"\w+")
COMMON = 1 / 4  # fraction of the examples with a word above which it says nothing about one of them, such as "the"
FEWEST = 3  # examples with such a word


@dataclass(frozen=True)
class Neighbor:
    """A neighbor of a text.

    Attributes:
        pieces: Its text in pieces, each with whether it is marked.
        old, new: Its cosine to the text before and after.
    """

    pieces: list[tuple[str, bool]]
    old: float
    new: float


@dataclass(frozen=True)
class Changed:
    """A text with the neighbors that it lost and gained; `kept` is how many of its 10 neighbors it kept."""

    sentence: str
    kept: int
    lost: list[Neighbor]
    gained: list[Neighbor]


def changed(examples: Sequence[Mapping]) -> list[Changed]:
    """Return examples for the page.

    A word of the text is marked in its neighbors if only the lost ones or only the gained ones have it, and it is not
    common: the language of the texts is unknown, so there is no list of stop words.

    Args:
        examples: See `informin.evaluation.drift.neighbor_examples`.
    """
    having: Counter[str] = Counter()  # how many examples have a word, in the text or in a neighbor
    for example in examples:
        having.update(_words(example, *example["lost"], *example["gained"]))
    most = max(FEWEST - 1, COMMON * len(examples))
    common = {word for word, number in having.items() if number > most}

    def marked(example: Mapping, side: str, other: str) -> list[Neighbor]:
        own = _words(example) - _words(*example[other]) - common
        return [Neighbor(_pieces(one["sentence"], own), one["old"], one["new"]) for one in example[side]]

    return [
        Changed(
            sentence=example["sentence"],
            kept=example["kept"],
            lost=marked(example, "lost", "gained"),
            gained=marked(example, "gained", "lost"),
        )
        for example in examples
    ]


def _words(*texts: Mapping) -> set[str]:
    """Return the words of texts without their case."""
    return {word.casefold() for text in texts for word in WORD.findall(text["sentence"])}


def _pieces(text: str, wanted: set[str]) -> list[tuple[str, bool]]:
    """Return a text in pieces, and whether each is a wanted word."""
    pieces = []
    last = 0
    for match in WORD.finditer(text):
        if match[0].casefold() in wanted:
            pieces += [(text[last : match.start()], False), (match[0], True)]
            last = match.end()
    pieces.append((text[last:], False))
    return [piece for piece in pieces if piece[0]]
