"""HTML of a map of sentences: a dot per sentence, a legend, and a line that shows the sentence of a dot."""

from collections import Counter
from html import escape
from pathlib import Path

import numpy as np

from informin.demo.points import NO_LABEL, OTHER, Points
from informin.errors import counted

SIZE, MARGIN = 600, 12  # of the drawing, in its own units
COLORS = (  # by frequency of the label
    *("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#bcbd22", "#17becf", "#3b528b"),
    *("#e6ab02", "#66a61e", "#1b9e77", "#d95f02", "#7570b3", "#e7298a", "#a6761d", "#00a0a0", "#5f7fff", "#b15928"),
)
GRAY = "#8a8a8a"
SCRIPT = (Path(__file__).parent / "templates" / "map.js").read_text(encoding="utf-8")  # run for each map


def map_html(name: str, points: Points, sentences: int) -> str:
    """Return the map of one model.

    Args:
        name: Name of the model.
        points: The dots.
        sentences: Number of sentences that the dots are a sample of.
    """
    colors = label_colors(points.labels)
    share = f"{100 * points.explained:.0f}% of the variance"
    sample = f"{len(points.texts):,} of " if len(points.texts) < sentences else ""
    about = f"The first two principal components ({share}) of {sample}{counted(sentences, 'sentence')}."
    title, hint = escape(name), "Point at a dot to read its sentence, or use the arrow keys."
    drawing = f'<svg viewBox="0 0 {SIZE} {SIZE}" aria-hidden="true">{"".join(_dots(points, colors))}</svg>'
    return (
        f'<h2>{title}</h2><p class="note">{escape(about)}</p>'
        f'<div class="map" role="group" tabindex="0" aria-label="Map of {title}. {hint}">{drawing}</div>'
        f'<p class="map-caption" dir="auto" aria-live="polite">{hint}</p>{_legend(colors)}'
    )


def label_colors(labels: list[str] | None) -> dict[str, str]:
    """Return a color per label, the most frequent label first. Gray is for other labels and none."""
    frequent = [label for label, _ in Counter(labels or []).most_common()]
    named = [label for label in frequent if label not in (OTHER, NO_LABEL)]
    return dict(zip(named, COLORS)) | {label: GRAY for label in (OTHER, NO_LABEL) if label in frequent}


def _dots(points: Points, colors: dict[str, str]) -> list[str]:
    """Return the dots from left to right, with the same scale on both axes."""
    low, high = points.xy.min(0), points.xy.max(0)
    middle, extent = (low + high) / 2, max((high - low).max(), 1e-12)
    places = SIZE / 2 + (points.xy - middle) * (SIZE - 2 * MARGIN) / extent * (1, -1)  # y grows downward
    dots = []
    for row in np.argsort(places[:, 0], kind="stable"):
        x, y = places[row]
        label = points.labels[row] if points.labels else ""
        text = f"{points.texts[row]} ({label})" if label and label != NO_LABEL else points.texts[row]
        fill = colors.get(label, COLORS[0])
        dots.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{fill}"><title>{escape(text)}</title></circle>')
    return dots


def _legend(colors: dict[str, str]) -> str:
    if not colors:
        return ""
    items = (
        f'<li dir="auto"><span class="dot" style="background: {color}"></span>{escape(label)}</li>'
        for label, color in colors.items()
    )
    return f'<ul class="legend" role="list" aria-label="Colors of the labels">{"".join(items)}</ul>'
