"""Positions on the map."""

import numpy as np
import pytest

from informin.demo.points import few_labels, map_points, shorten
from informin.labeled_sentences import Sentences

DRAW = np.random.default_rng(0)


def test_the_map_has_the_two_directions_of_largest_variance():
    scales = np.array([1, 9, 3, 0.1])
    vectors = DRAW.normal(size=(300, 4)) * scales
    points = map_points(Sentences([str(i) for i in range(300)]), vectors)
    assert abs(np.corrcoef(points.xy[:, 0], vectors[:, 1])[0, 1]) > 0.999
    assert abs(np.corrcoef(points.xy[:, 1], vectors[:, 2])[0, 1]) > 0.99
    variances = vectors.var(0)
    assert points.explained == pytest.approx((variances[1] + variances[2]) / variances.sum(), abs=0.01)
    assert points.labels is None


def test_large_files_are_sampled():
    """Sentences, labels and positions stay together."""
    texts = [str(i) for i in range(50)]
    vectors = np.stack([np.arange(50.0), np.zeros(50)], axis=1)
    points = map_points(Sentences(texts, [f"l{i % 2}" for i in range(50)]), vectors, most=20)
    rows = [int(text) for text in points.texts]
    assert len(rows) == 20 and rows == sorted(set(rows)) and points.labels == [f"l{i % 2}" for i in rows]
    x = points.xy[:, 0] - points.xy[0, 0]
    assert np.allclose(np.abs(x), np.array(rows) - rows[0])


@pytest.mark.parametrize("vectors", [np.ones((1, 3)), np.ones((4, 3)), np.ones((3, 1))])
def test_maps_of_a_point(vectors):
    points = map_points(Sentences(["a"] * len(vectors)), vectors)
    assert points.xy.shape == (len(vectors), 2) and np.allclose(points.xy, 0) and points.explained == 0


def test_rare_labels_share_a_color():
    labels = [*"aab", *(f"n{i}" for i in range(19)), "", "rare"]
    found = few_labels([*labels, *labels[:22]])
    assert found[:3] == ["a", "a", "b"] and found[22:24] == ["no label", "other labels"]
    assert len({*found}) == 22
    points = map_points(Sentences(list("abc") * 10, [f"n{i}" for i in range(30)]), np.eye(30))
    assert points.labels is not None and points.labels.count("other labels") == 10


def test_shortened_sentences_are_one_line():
    assert shorten("a\n b\t c") == "a b c"
    assert shorten("x" * 300) == "x" * 197 + "..."
