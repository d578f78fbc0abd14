"""The table of baseline maps: its p values, its signs, and CSLS."""

import numpy as np
import pytest

from benchmarks.baselines import CSLS, MAPS, compared, csls, table
from benchmarks.significance import permutation_p


def test_p_values():
    source = np.random.default_rng(0)
    assert permutation_p(source.normal(size=60) + 1.0) < 0.001
    assert permutation_p(source.normal(size=60)) > 0.1
    assert permutation_p(np.array([1.0, -1.0, 0.0])) == 1.0
    assert permutation_p(np.array([1.0, 1.0])) == pytest.approx(0.5, abs=0.02)  # the signs are equal in 2 of 4 cases


def test_csls_takes_a_hub_from_the_first_place():
    similarity = np.full((12, 11), 0.1)
    similarity[:, 0] = 0.6  # near to every query
    similarity[0, 3] = 0.55
    assert similarity[0].argmax() == 0 and csls(similarity)[0].argmax() == 3


@pytest.mark.parametrize("name", MAPS)
def test_maps_keep_rows_and_give_finite_vectors(name):
    source = np.random.default_rng(0)
    documents, queries = source.normal(size=(60, 8)), source.normal(size=(7, 8))
    x, y = MAPS[name](documents, queries)
    assert (len(x), len(y)) == (60, 7) and x.shape[1] == y.shape[1]
    assert np.isfinite(x).all() and np.isfinite(y).all()


def test_the_table_marks_clear_differences():
    raw = np.random.default_rng(0).normal(size=80)
    own = {"original": raw, "short_texts": raw + 2, "documents": raw - 1, CSLS: raw + 1}
    rows = compared([{"encoder": "e", "data": "banking-test", "map": name, "scores": x} for name, x in own.items()])
    lines = {line.split("|")[1].strip(): line.split("|")[2].split() for line in table(rows).splitlines()[2:]}
    assert {name: cell[1:] for name, cell in lines.items()} == {
        "original": ["<"],
        "short_texts": ["+"],
        "documents": ["-", "<"],
        CSLS: ["+", "<"],
    }
