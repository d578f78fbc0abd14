"""`informin.upgrade`: the decision and the bridge."""

import json

import numpy as np
import pytest

import informin
from informin.adapters.bridge import Bridge, expect
from informin.adapters.prediction import make_tests
from informin.jobs.compare import draw
from informin.jobs.compare_files import write_texts
from tests.conftest import make_sentences, raises_usage
from tests.models.any_encoder.st_models import static

TEXTS = make_sentences(300)


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """A static model."""
    return static(tmp_path_factory.mktemp("models") / "words")


def rows_of(folder) -> list[str]:
    """The rows of informin compare --write_texts."""
    drawn = draw(TEXTS)
    write_texts(folder / "rows.jsonl", drawn.sample, drawn.held_out)
    return [json.loads(line)["text"] for line in (folder / "rows.jsonl").read_text().splitlines()]


def test_models_and_files_give_the_same_decision(words, tmp_path):
    rows = rows_of(tmp_path)
    vectors = informin.embed(str(words), rows, device="cpu")
    np.save(tmp_path / "words.npy", vectors)
    np.save(tmp_path / "old.npy", vectors @ np.random.default_rng(1).normal(size=(vectors.shape[1], 6)))
    results = [
        informin.upgrade(tmp_path / "old.npy", new, iter(TEXTS))
        for new in (words, tmp_path / "words.npy", informin.load_model(words))
    ]
    shown = repr(results[0])
    assert [result.expected.log_ranks for result in results] == [results[0].expected.log_ranks] * 3
    assert [result.expected.query_log_ranks is None for result in results] == [True] * 3, "files have no short queries"
    assert f"Decision: {results[0].decision}" in shown and shown.count("\n  ") == 4
    assert "60 held-out texts" in shown
    expected = results[0].expected
    assert 10 < expected.rank("stay") < 60 and f"stay   {expected.rank('stay'):6.2f}" in shown


def test_it_is_that_of_the_adapters_package(words):
    encoder = informin.load_model(words, device="cpu")
    (pooler,) = encoder.poolers
    vectors = encoder(TEXTS)[pooler]
    encode = lambda parts: encoder(parts)[pooler]  # noqa: E731
    (test,) = make_tests(TEXTS, vectors, encode, encode, seed=3, most=1)
    result = informin.upgrade(words, words, TEXTS, seed=3, device="cpu")
    expected = expect(test, test)
    assert result.expected.log_ranks == pytest.approx(expected.log_ranks)
    assert result.expected.query_log_ranks == pytest.approx(expected.query_log_ranks)
    np.testing.assert_allclose(result.bridge.rotation, Bridge.fit(vectors, vectors).rotation, atol=1e-6)


def test_the_lines_for_faiss_and_qdrant_follow_a_bridge(words):
    result = informin.upgrade(words, words, TEXTS, device="cpu")
    assert "# FAISS" not in repr(result)
    result.expected.log_ranks.update(stay=3.0, fit=3.0, bridge=3.0, again=1.0)
    result.expected.query_log_ranks.update(stay=3.0, fit=3.0, bridge=3.0, again=1.0)
    assert (
        result.decision == "again"
        and result.bridge_is_best
        and "# FAISS" in repr(result)
        and "# Qdrant" in repr(result)
    )


def test_files_need_the_rows_of_the_halves_and_texts_must_be_enough(words, tmp_path):
    np.save(tmp_path / "old.npy", np.ones((300, 6)))
    with raises_usage(found="old.npy has 300 rows", needed="420, those of `write_texts`"):
        informin.upgrade(tmp_path / "old.npy", words, TEXTS)
    with raises_usage(option="texts", found="has 20 texts"):
        informin.upgrade(words, words, TEXTS[:100])
