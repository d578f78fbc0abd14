"""Placement of the labels of a scatter plot, without overlaps."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

LABEL_RINGS = (7, 12, 18, 25, 33, 42, 53, 66, 82, 100)  # distances of a name from its point, in typographic points


def place_labels(axes: Axes, x: np.ndarray, y: np.ndarray, names: Sequence[str]) -> None:
    """Write a name next to each point so that, if space allows, names cover neither each other nor points.

    A name without space next to its point is placed further away, with a line to the point. Fixes the layout of the
    figure. (The package adjustText leaves names on points or beyond the edge in half of the crowded test figures.)
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    renderer, scale = FigureCanvasAgg(figure).get_renderer(), 72 / figure.dpi
    points = axes.transData.transform(np.column_stack([x, y])) * scale  # (N, 2), in typographic points
    inside = np.array(axes.get_window_extent(renderer).extents) * scale
    taken = np.hstack([points - 8, points + 8])  # (N, 4): left, bottom, right, top
    line: dict[str, Any] = dict(arrowstyle="-", color="#777777", linewidth=0.7, shrinkA=0, shrinkB=4)
    look: dict[str, Any] = dict(textcoords="offset points", ha="center", va="center", size=9, arrowprops=line)
    labels = [axes.annotate(name, place, (0, 0), **look) for name, place in zip(names, zip(x, y))]
    extents = [Text.get_window_extent(label, renderer) for label in labels]  # without the line
    halves = np.array([(extent.width, extent.height) for extent in extents]) * scale / 2 + 1
    orders = [order[::step] for order in (np.arange(len(x)), np.argsort(x), np.argsort(y)) for step in (1, -1)]
    tried = [_arrange(order, points, halves, inside, taken) for order in orders]
    _, places = min(tried, key=lambda arrangement: arrangement[0])
    for i, (radius, offset) in places.items():
        labels[i].set_in_layout(False)
        labels[i].xyann = tuple(offset)
        if line_to_point := labels[i].arrow_patch:
            line_to_point.set_visible(radius > LABEL_RINGS[0])


def _arrange(order, points, halves, inside, taken) -> tuple[tuple[float, float], dict[int, tuple]]:
    """Assign each label in turn the nearest free position, or the one with the least overlap.

    Args:
        order: Order in which the N labels are placed.
        points: Points of the labels (N, 2).
        halves: Half the width and height of each label (N, 2).
        inside: Box that labels must stay in (4,).
        taken: Boxes around the points that labels must avoid (N, 4).

    Returns:
        Total overlap and total distance, lower is better, and distance and offset of each label.
    """
    places, area, distance = {}, 0.0, 0
    for i in order:
        best = None
        others = np.delete(taken, i, axis=0)
        own = np.concatenate([points[i] - 5, points[i] + 5])[None]  # a label may be closer to its own point
        for radius, angle in itertools.product(LABEL_RINGS, np.deg2rad(np.arange(0, 360, 15))):
            offset = (halves[i] + radius) * [math.cos(angle), math.sin(angle)]
            box = np.concatenate([points[i] + offset - halves[i], points[i] + offset + halves[i]])[None]
            outside = np.prod(2 * halves[i]) - _covered(box, inside[None])
            covered = _covered(box, others) + _covered(box, own) + outside
            if best and covered >= best[0]:
                continue
            # Approximate the line by small boxes.
            steps = points[i] + offset * np.linspace(0.1, 0.9, 40 * (radius > LABEL_RINGS[0]))[:, None]
            line = np.hstack([steps - 1, steps + 1])
            covered += _covered(line, others)
            if not best or covered < best[0]:
                best = (covered, radius, offset, np.vstack([box, line]))
            if covered < 1e-6:  # no overlap up to rounding
                break
        assert best is not None
        covered, radius, offset, boxes = best
        places[i], area, distance = (radius, offset), area + covered, distance + radius
        taken = np.vstack([taken, boxes])
    return (area, distance), places


def _covered(boxes: np.ndarray, others: np.ndarray) -> float:
    """Return the overlap of boxes (K, 4) with others (M, 4), summed over all pairs."""
    sides = np.minimum(boxes[:, None, 2:], others[:, 2:]) - np.maximum(boxes[:, None, :2], others[:, :2])  # (K, M, 2)
    return float(sides.clip(min=0).prod(-1).sum())
