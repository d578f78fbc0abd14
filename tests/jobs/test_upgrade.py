"""`informin.upgrade`: the decision and the bridge."""

import numpy as np

import informin
from tests.adapters.test_bridge import topical
from tests.conftest import raises_usage


def test_files_and_arrays_give_the_same_decision(tmp_path):
    texts, new = topical()
    old = np.random.default_rng(1).normal(size=(400, 6))
    np.save(tmp_path / "old.npy", old)
    found, again = informin.upgrade(tmp_path / "old.npy", new, texts), informin.upgrade(old, new.tolist(), iter(texts))
    assert found.decision == again.decision == "again" and found.expected == again.expected
    np.testing.assert_array_equal(found.bridge.transform(new), again.bridge.transform(new))
    shown = repr(found)
    assert "Decision: again" in shown and shown.count("\n  ") == 4 and "80 held-out texts" in shown


def test_the_lines_for_faiss_and_qdrant_follow_a_bridge():
    texts, new = topical()
    result = informin.upgrade(np.random.default_rng(1).normal(size=(400, 6)), new, texts)
    result.expected.agreement.update(stay=0.1, fit=0.1, bridge=0.9, again=0.1)
    assert result.decision == "bridge" and "# FAISS" in repr(result) and "# Qdrant" in repr(result)


def test_one_row_per_text_is_needed():
    texts, new = topical()
    with raises_usage(option="embeddings", found="399 rows, and there are 400 texts"):
        informin.upgrade(new[1:], new, texts)
