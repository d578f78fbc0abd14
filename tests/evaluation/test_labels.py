"""Scores of a labeled sample against plain loops, closed forms and invariances."""

import math
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import homogeneity_completeness_v_measure

from informin.errors import UndefinedScoreError
from informin.evaluation import labels, neighbors
from informin.evaluation.encode import unit
from informin.evaluation.labels import LabeledSentences, few_shot_accuracy, load_labels, score_labels
from informin.evaluation.measures import LABELS
from informin.evaluation.neighbors import nearest
from tests.conftest import raises_usage

HEADER = "text\tlabel\n"


def write(path, content: str):
    path.write_text(content, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "name, content",
    [
        ("a.tsv", "label\tid\ttext\n1\t7\tone, two\n\n1\t8\tthré\n2\t9\tc\n"),
        ("a.csv", 'text,label\n"one, two",1\nthré,1\nc,2\n'),
        ("b.jsonl", '{"text": "one, two", "label": 1.0}\n{"label": 1, "text": "thré"}\n{"text": "c", "label": 2.0}'),
        ("a.jsonl", '{"text": "one, two", "label": 1}\n{"label": "1 ", "text": "thré"}\n{"text": "c", "label": 2}'),
    ],
)
def test_load_labels(tmp_path, name, content):
    found = load_labels(str(write(tmp_path / name, content)), "labels")
    assert (found.name, found.sentences, found.labels) == (name, ["one, two", "thré", "c"], ["1", "1", "2"])
    assert found.counts == {"kind": "labels", "n": 3, "classes": 2}


@pytest.mark.parametrize(
    "content, option",
    [
        (None, "labels"),
        ("text\ttag\na\tx\n", "labels"),
        (HEADER, "labels"),
        (HEADER + "a\tx\nb\tx\n", "labels"),
        (HEADER + "a\tx\nb\ty\nb\tz\n", "labels"),
        (HEADER + "a\tx\nb\tx\ty\n", None),
    ],
    ids=["no file", "no column", "no row", "one label", "each sentence its own label", "too many fields"],
)
def test_unusable_files_are_rejected(tmp_path, content, option):
    if content is not None:
        write(tmp_path / "a.tsv", content)
    with raises_usage(option=option):
        load_labels(tmp_path / "a.tsv", "labels")


def test_the_options_that_choose_columns_are_named(tmp_path):
    """Training has no such options for this file."""
    path = write(tmp_path / "a.tsv", "text\ttag\na\tx\n")
    with raises_usage(option="labels", fix="`text_column` and `label_column`"):
        load_labels(path)
    with raises_usage(option="eval_labels") as info:
        load_labels(path, "eval_labels")
    assert info.value.fix is None


def test_texts_must_be_text(tmp_path):
    with raises_usage(found="line 1: the column text contains 3"):
        load_labels(write(tmp_path / "a.jsonl", '{"text": 3, "label": "x"}'), "labels")


@pytest.mark.parametrize(
    "name, content",
    [
        ("a.csv", "id,ticket,team\n1,a,x\n2,b,\n3,c,x\n4, ,x\n5,e,y\n"),
        (
            "a.jsonl",
            "".join(
                f'{{"ticket": "{a}", "team": {b}}}\n' for a, b in zip("abcde", ['"x"', "null", '"x"', '""', '"y"'])
            ),
        ),
    ],
)
def test_own_columns_and_rows_without_a_label(tmp_path, caplog, name, content):
    path = write(tmp_path / name, content)
    found = load_labels(path, "labels", text_column="ticket", label_column="team")
    assert (found.sentences, found.labels) == (["a", "c", "e"], ["x", "x", "y"])
    assert "2 rows without a text or a label skipped" in caplog.text


def test_joined_columns(tmp_path):
    path = write(tmp_path / "a.csv", "subject,body,label\na,b,x\n,c,x\nd, ,y\n,,y\n")
    found = load_labels(path, "labels", text_column="subject,body")
    assert (found.sentences, found.labels) == (["a b", "c", "d"], ["x", "x", "y"])
    with raises_usage(option="labels"):
        load_labels(path, "labels", text_column="title,body")


def sample(count: int = 90, classes: int = 4, spread: float = 0.9, seed: int = 0):
    """Return labeled sentences whose embeddings lie around one center per class."""
    source = np.random.default_rng(seed)
    y = source.integers(0, classes, count)
    x = source.normal(size=(classes, 16))[y] + spread * source.normal(size=(count, 16))
    texts = [f"sentence {i}" for i in range(count)]
    return LabeledSentences("sample", texts, [f"class {c}" for c in y]), dict(zip(texts, x.astype(np.float32)))


def encoder(vectors, calls=None):
    def encode(sentences):
        if calls is not None:
            calls.append(list(sentences))
        return np.stack([vectors[sentence] for sentence in sentences])

    return encode


def cosine(x, y) -> float:
    return float(x @ y / math.sqrt((x @ x) * (y @ y)))


def test_neighbors_equal_plain_loops(monkeypatch):
    """For any block size."""
    labeled, vectors = sample(spread=1.5)
    right, right_10 = 0, 0
    for text, label in zip(labeled.sentences, labeled.labels):
        others = zip(labeled.sentences, labeled.labels)
        near = [(cosine(vectors[text], vectors[other]), c) for other, c in others if other != text]
        near = sorted(near, key=lambda pair: -pair[0])[:10]
        votes = Counter()
        for value, other in near:
            votes[other] += max(value, 0)
        right += near[0][1] == label
        right_10 += votes.most_common(1)[0][0] == label
    expected = [100 * right / 90, 100 * right_10 / 90]
    assert 30 < min(expected) < max(expected) < 100
    for block in (neighbors.MOST_COSINES, 7 * 90, 1):
        monkeypatch.setattr(neighbors, "MOST_COSINES", block)
        found = score_labels(encoder(vectors), labeled)
        assert [found["nearest_neighbor"], found["nearest_10"]] == pytest.approx(expected)


def test_scores_of_classes_far_apart_are_100():
    labeled, vectors = sample(spread=0.01)
    calls = []
    found = score_labels(encoder(vectors, calls), labeled)
    assert [found[name] for name in LABELS] == pytest.approx([100] * 4)
    assert found["v_measure_sd"] == found["few_shot_sd"] == pytest.approx(0)
    assert calls == [labeled.sentences], "encoded once"


def test_v_measure_is_the_mean_over_seeds_of_the_harmonic_mean(monkeypatch):
    labeled, vectors = sample(spread=1.5)
    seen = []

    class Spied(labels.KMeans):
        def fit_predict(self, x, y=None):
            clusters = super().fit_predict(x)
            seen.append((self.random_state, self.n_clusters, self.n_init, clusters))
            return clusters

    monkeypatch.setattr(labels, "KMeans", Spied)
    found = score_labels(encoder(vectors), labeled)
    assert [(seed, k, starts) for seed, k, starts, _ in seen] == [(seed, 4, 1) for seed in range(10)]
    values = []
    for *_, clusters in seen:
        homogeneity, completeness, _ = homogeneity_completeness_v_measure(labeled.labels, clusters)
        values.append(100 * 2 * homogeneity * completeness / (homogeneity + completeness))
    assert found["v_measure"] == pytest.approx(np.mean(values)) and len(set(values)) > 1
    assert found["v_measure_sd"] == pytest.approx(np.std(values, ddof=1))


def test_few_shots_learn_from_8_of_each_class_or_half(monkeypatch):
    fitted = []

    class Spied(labels.LogisticRegression):
        def fit(self, x, y):
            fitted.append(((100 * x[:, 0]).round().astype(int).tolist(), y.tolist()))
            return super().fit(x, y)

        def score(self, x, y):
            fitted[-1] += ((100 * x[:, 0]).round().astype(int).tolist(),)
            return super().score(x, y)

    monkeypatch.setattr(labels, "LogisticRegression", Spied)
    y = np.array([0] * 30 + [1] * 9 + [2] * 8 + [3] * 3 + [4])
    found = few_shot_accuracy(np.arange(len(y))[:, None] / 100, y)
    assert len(found) == len(fitted) == 10
    for rows, classes, rest in fitted:
        assert Counter(classes) == {0: 8, 1: 8, 2: 4, 3: 1, 4: 1} and [y[row] for row in rows] == classes
        assert sorted(rows + rest) == list(range(len(y)))
    assert len({str(rows) for rows, *_ in fitted}) == 10, "each draw is another one"


def test_scores_are_invariant_to_rotation_scale_and_class_names():
    labeled, vectors = sample(spread=1.2)
    found = score_labels(encoder(vectors), labeled)
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(16, 16)))[0]
    turned = {text: 7 * (x.astype(np.float64) @ turn) for text, x in vectors.items()}
    renamed = LabeledSentences("b", labeled.sentences, [f"1{label}" for label in labeled.labels])
    assert score_labels(encoder(turned), renamed) == pytest.approx(found, abs=1e-6)
    assert score_labels(encoder(vectors), labeled) == found


def test_first_label_of_duplicates_counts():
    """A duplicate would be its own nearest neighbor."""
    labeled, vectors = sample(spread=1.5)
    again = LabeledSentences("b", labeled.sentences + labeled.sentences, labeled.labels + labeled.labels[::-1])
    assert score_labels(encoder(vectors), again) == score_labels(encoder(vectors), labeled)
    assert again.counts == labeled.counts and again.sha256 != labeled.sha256


def test_ties_go_to_the_first_and_equal_embeddings_have_scores():
    x = np.ones((5, 3), dtype=np.float32) / np.sqrt(3)
    index, cosines = nearest(x, 2)
    assert index.tolist() == [[1, 2], [0, 2], [0, 1], [0, 1], [0, 1]] and cosines == pytest.approx(1)
    many = np.random.default_rng(240).normal(size=(203, 37))
    many[::5] = many[0]
    found = nearest(unit(many).astype(np.float32), 2)[0]
    assert (found[10::5] == [0, 5]).all(), "their cosines differ in the last bits"
    collapsed = LabeledSentences("a", list("abcd"), ["x", "x", "y", "y"])
    found = score_labels(lambda sentences: np.ones((len(sentences), 3)), collapsed)
    assert found["v_measure"] == 0 and found["nearest_neighbor"] == 50  # of a and b the nearest is the other one
    assert found["nearest_10"] == 0  # both others of a class outvote the one of the own


def test_labels_of_a_program():
    """Numbers are accepted, and labels that a file could not have have no score."""
    numbered = LabeledSentences("dev", np.array(["a", "b", "c"]), [0, 1, 0])
    assert numbered.sha256 == LabeledSentences("dev", ["a", "b", "c"], ["0", "1", "0"]).sha256
    for given in (["x", "x", "x"], ["x", "y", "z"]):
        with pytest.raises(UndefinedScoreError, match="dev needs two or more labels, and one that two sentences have"):
            score_labels(lambda texts: np.eye(3)[: len(texts)], LabeledSentences("dev", ["a", "b", "c"], given))


def test_nan_of_json_is_a_missing_label(tmp_path):
    """Python writes it for what pandas has as missing."""
    rows = "".join(
        f'{{"text": "{text}", "label": {label}}}\n' for text, label in zip("abcde", [1.0, 1, 2.0, "NaN", "NaN"])
    )
    assert load_labels(write(tmp_path / "a.jsonl", rows)).labels == ["1", "1", "2"]


def test_labels_of_an_object_are_read_as_those_of_a_file():
    assert LabeledSentences("o", ["a", "b", "c"], pd.Series([1, 1.0, "1 "])).labels == ["1", "1", "1"]
    for missing in (None, float("nan"), pd.NA):
        with raises_usage(found="row 1"):
            LabeledSentences("o", ["a", "b"], ["nan", missing])


def test_embeddings_that_are_not_finite():
    labeled, vectors = sample()
    vectors["sentence 3"][2] = np.nan
    with pytest.raises(UndefinedScoreError, match="the embeddings of 1 of 90 sentences are not finite"):
        score_labels(encoder(vectors), labeled)
