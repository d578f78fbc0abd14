"""The HTML of a map."""

import re

import numpy as np
import pytest

from informin.demo.map_html import COLORS, GRAY, label_colors, map_html
from informin.demo.points import NO_LABEL, OTHER, Points
from tests.demo.test_render import HOSTILE, Elements


def points_of(xy, texts, labels=None) -> Points:
    return Points(np.array(xy, float), texts, labels, 0.25)


def test_dots_go_from_left_to_right_with_one_scale():
    """The axes have the same scale, and y points upward."""
    html = map_html("m", points_of([[4, 0], [0, 2], [2, 1]], ["right", "left", "middle"]), 3)
    dots = re.findall(r'cx="([\d.]+)" cy="([\d.]+)".*?<title>(.*?)</title>', html)
    assert [(float(x), float(y), text) for x, y, text in dots] == [
        (12, 156, "left"),
        (300, 300, "middle"),
        (588, 444, "right"),
    ]
    assert "(25% of the variance) of 3 sentences." in html and "legend" not in html
    assert "(25% of the variance) of 3 of 9 sentences." in map_html("m", points_of([[0, 0]] * 3, ["a"] * 3), 9)


def test_labels_have_colors():
    labels = ["b", "a", "a", OTHER, NO_LABEL]
    assert label_colors(labels) == {"a": COLORS[0], "b": COLORS[1], OTHER: GRAY, NO_LABEL: GRAY}
    found = Elements(map_html("m", points_of(np.zeros((5, 2)), [*"vwxyz"], labels), 5))
    assert [one["fill"] for one in found.attributes if "fill" in one] == [COLORS[1], COLORS[0], COLORS[0], GRAY, GRAY]
    assert {"v (b)", "w (a)", f"y ({OTHER})", "z"} <= {*found.texts} and found.tags.count("li") == 4
    assert label_colors(None) == {} and len({*COLORS}) == len(COLORS) == 20


@pytest.mark.parametrize("labels", [None, [HOSTILE]])
def test_sentences_and_names_are_text(labels):
    found = Elements(map_html(HOSTILE, points_of([[0, 0]], [HOSTILE], labels), 1))
    expected = {"h2", "p", "div", "svg", "circle", "title", *(["ul", "li", "span"] if labels else [])}
    assert {*found.tags} == expected and HOSTILE in found.texts
    assert next(one["aria-label"] for one in found.attributes if one.get("class") == "map").startswith(
        f"Map of {HOSTILE}."
    )
