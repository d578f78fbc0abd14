"""Charts of a report as inline SVG, drawn with Matplotlib. Text and lines take the colors of the page."""

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from informin.evaluation.measures import ALL, KINDS
from informin.figures.drawing import STYLE, appearance
from informin.figures.model_comparison import comparison_figure
from informin.figures.plots import draw_occurrences
from informin.figures.run_plots import draw_curve, draw_terms, seeds_figure, series

SIZE = (4.3, 3.3)  # inches; on a phone, a point is then about a pixel
SQUARE = (4.3, 4.3)
INLINE: dict[Any, Any] = STYLE | {"svg.fonttype": "none", "grid.color": "black", "grid.alpha": 0.15}
# Colors of Matplotlib, and of CSS: the text and the background of the page, in light and dark mode.
THEME = {"#000000": "currentColor", "#ffffff": "Canvas"}
NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # control characters in a name
REFERENCE = re.compile(r"(?:url\(#|^#)([^)]+)")


@matplotlib.rc_context(INLINE)
def terms(log: Sequence[Mapping]) -> Markup | None:
    """Return the chart of the loss and its terms over the steps; None if no loss was logged."""
    steps = [{name: value for name, value in entry.items() if value is not None} for entry in log]
    steps = [step for step in steps if "loss" in step]
    if not steps:
        return None
    figure = Figure(figsize=SIZE)
    draw_terms(figure.add_subplot(), steps)
    first, last = (f"{step['loss']:.4f} at step {step['step']}" for step in (steps[0], steps[-1]))
    return as_svg(figure, "terms", f"Loss and its unweighted terms over the steps. The loss is {first} and {last}.")


@matplotlib.rc_context(INLINE)
def scores(log: Sequence[Mapping], kept_step: int) -> list[Markup]:
    """Return a chart over the steps for the first measure of each kind of development data that was scored."""
    rows = [{name.removeprefix("eval_"): value for name, value in entry.items()} for entry in log]
    found = []
    for measures in KINDS.values():
        name = next(iter(measures))
        at, values = series([row for row in rows if row.get(name) is not None], name)
        if not at:
            continue
        figure = Figure(figsize=SIZE)
        axes = figure.add_subplot(ylabel=ALL[name].title)
        draw_curve(axes, at, values, **appearance(0))
        if kept_step in at:
            kept = values[at.index(kept_step)]
            star: dict[str, Any] = dict(color="#D55E00", marker="*", markersize=13, markeredgecolor="black")
            axes.plot([kept_step], [kept], linestyle="", label="saved model", **star)
            axes.legend()
        span = f"{ALL[name].shown(values[0])} at step {at[0]} and {ALL[name].shown(values[-1])} at step {at[-1]}"
        found.append(as_svg(figure, f"score-{name}", f"{ALL[name].title} over the steps: {span}."))
    return found


@matplotlib.rc_context(INLINE)
def maps(drawn: Mapping, examples: int) -> list[Markup]:
    """Return the maps before and after with the same axes. The first points are the numbered examples."""
    points = np.array([drawn["old"], drawn["new"]])  # (2, N, 2)
    margin = 0.03 * np.ptp(points, (0, 1)) + 0.1
    (left, bottom), (right, top) = points.min((0, 1)) - margin, points.max((0, 1)) + margin
    group, found = np.array(drawn["group"]), []
    for name, xy in zip(("before", "after"), points):
        figure = Figure(figsize=SQUARE)
        axes = figure.add_subplot(xticks=[], yticks=[], xlim=(left, right), ylim=(bottom, top))
        axes.set_title(name)
        axes.spines[:].set_visible(False)
        titles = {}
        for number in np.unique(group):
            rows = np.flatnonzero(group == number)
            gid = f"group{number}"
            titles[gid] = [drawn["sentences"][row] for row in rows]
            axes.scatter(xy[rows, 0], xy[rows, 1], s=14, linewidths=0, gid=gid, **appearance(int(number)))
        titles["examples"] = drawn["sentences"][:examples]
        axes.scatter(
            xy[:examples, 0],
            xy[:examples, 1],
            s=80,
            color="white",
            edgecolors="black",
            linewidths=0.8,
            gid="examples",
            zorder=3,
        )
        for i, place in enumerate(xy[:examples], start=1):
            axes.annotate(str(i), place, ha="center", va="center", fontsize=7, zorder=4)
        label = f"Map of {len(xy)} sentences {name} the run. Nearby points are sentences with similar embeddings."
        found.append(as_svg(figure, f"map-{name}", label, titles))
    return found


@matplotlib.rc_context(INLINE)
def hubs(counts: Mapping[str, Sequence[int]]) -> Markup:
    """Return the chart of how many sentences are a neighbor of at least x others, before and after."""
    figure = Figure(figsize=SIZE)
    axes = figure.add_subplot(xlabel="neighbor of at least x other sentences", ylabel="sentences (%)")
    axes.set(xscale="log", yscale="log")
    most = {}
    for i, (key, name) in enumerate({"old": "before", "new": "after"}.items()):
        occurrences = np.repeat(np.arange(len(counts[key])), counts[key])
        most[name] = int(occurrences.max())
        line = {"label": name, "linestyle": ("--", "-")[i], "markerfacecolor": ("none", None)[i]}
        draw_occurrences(axes, occurrences, **appearance(i), **line)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())
    axes.legend()
    span = f"{most['before']} others before and of {most['after']} after"
    return as_svg(figure, "hubs", f"Distribution of neighbor counts. The largest hub is a neighbor of {span}.")


@matplotlib.rc_context(INLINE)
def seeds(rows: Sequence[Mapping]) -> list[Markup]:
    """Return a chart of the scores of all seeds for each measure; see `run_plots.seeds`."""
    found = []
    for i, measure in enumerate(dict.fromkeys(row["measure"] for row in rows)):
        own = [row for row in rows if row["measure"] == measure]
        settings = ", ".join(dict.fromkeys(row["setting"] for row in own))
        found.append(as_svg(seeds_figure(own, ""), f"seeds{i}", f"{measure} of each seed of {settings}."))
    return found


@matplotlib.rc_context(INLINE)
def comparison(rows: Sequence[Mapping], held_out: int) -> Markup:
    """Return the chart of ranks and speed of models; see `model_comparison`."""
    names = ", ".join(f"{row['name']} {row['rank']:.2f}" for row in rows)
    return as_svg(
        comparison_figure(rows, held_out), "comparison", f"Rank of the second half by model, best first: {names}."
    )


def as_svg(figure: Figure, name: str, label: str, titles: Mapping[str, Sequence[str]] | None = None) -> Markup:
    """Return a figure as an SVG element that scales with the page.

    Args:
        name: Prefix of the ids in the figure, unique on the page.
        label: Description for screen readers.
        titles: Texts to show when the pointer is on a marker, by the gid of a scatter plot, one per marker in order.
    """
    file = io.BytesIO()
    figure.savefig(file, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    root = ElementTree.fromstring(NOT_XML.sub("\N{REPLACEMENT CHARACTER}", file.getvalue().decode()))
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        element.attrib = {key.rpartition("}")[2]: _themed(value) for key, value in element.attrib.items()}
        for style in element.findall("{*}style") if element.tag == "defs" else []:
            element.remove(style)
    for gid, texts in (titles or {}).items():
        group = next(element for element in root.iter("g") if element.get("id") == gid)
        for marker, text in zip(group.iter("use"), texts, strict=True):
            ElementTree.SubElement(marker, "title").text = text
    _keep_used_ids(root, name)
    box = root.get("viewBox", "")
    root.attrib = {"viewBox": box, "role": "img", "aria-label": label}
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _themed(value: str) -> str:
    """Replace colors by those of the page, and leave the font to it."""
    for color, theme in THEME.items():
        value = value.replace(color, theme)
    return re.sub(r"font-family: [^;]*; ?", "", value)


def _keep_used_ids(root: ElementTree.Element, name: str) -> None:
    """Prefix ids that the figure refers to, and remove the others, since a page has several figures."""
    used = {one for element in root.iter() for one in _references(element)}
    for element in root.iter():
        found = element.attrib.pop("id", None)
        if found in used:
            element.set("id", f"{name}-{found}")
        for key, value in list(element.attrib.items()):
            if key != "id":
                element.set(key, REFERENCE.sub(lambda match: match[0].replace(match[1], f"{name}-{match[1]}"), value))


def _references(element: ElementTree.Element) -> Iterator[str]:
    return (match[1] for value in element.attrib.values() for match in REFERENCE.finditer(value))
