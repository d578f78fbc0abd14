"""Transfer tasks compared with plain loops that follow SentEval's protocols."""

import numpy as np
import pytest
from sklearn.model_selection import StratifiedKFold

from informin.errors import UndefinedScoreError
from informin.evaluation import transfer
from informin.evaluation.senteval import TransferTask
from informin.evaluation.transfer import LogisticPath, score_transfer
from tests.conftest import make_sentences
from tests.evaluation.transfer_helpers import NESTED, fitted

FOLDS = [2.0**t for t in range(-1, 6)]


def examples(count: int, classes: int, seed: int = 0, sides: int = 1, noise: float = 2.0):
    """Return sentences of 3 to 9 words for each side, labels, and a partly predictive vector for each sentence.

    Lengths repeat, so that the order within a length matters, and labels are mixed.
    """
    source = np.random.default_rng(seed)
    sentences = make_sentences(count * sides, seed=seed + 1)
    texts = tuple(sentences[side::sides] for side in range(sides))
    labels = source.integers(0, classes, count)
    centers = source.normal(size=(classes, 6))
    vectors = {}
    for side in texts:
        for sentence, label in zip(side, labels):
            vectors[sentence] = (centers[label] + noise * source.normal(size=6)).astype(np.float32)
    return texts, labels, vectors


def encoder(vectors):
    return lambda sentences: np.stack([vectors[sentence] for sentence in sentences])


def one_against_the_rest(x, labels, c: float):
    """Predict with scikit-learn's regressions: one per class, or a single one for two classes."""
    classes = sorted(set(labels.tolist()))
    if len(classes) == 2:
        return fitted(x, labels, c).predict
    regressions = [fitted(x, labels == label, c) for label in classes]
    return lambda other: np.argmax([r.decision_function(other.astype(np.float64)) for r in regressions], axis=0)


def accuracy(predict, x, labels) -> float:
    return float(np.mean(predict(x) == labels))


def splits(x, labels):
    return list(StratifiedKFold(n_splits=10, shuffle=True, random_state=1111).split(x, labels))


def over_folds(x, labels, c: float) -> float:
    scores = [accuracy(one_against_the_rest(x[a], labels[a], c), x[b], labels[b]) for a, b in splits(x, labels)]
    return round(100 * np.mean(scores), 2)


def senteval_nested(vectors, sentences, labels):
    """SentEval's InnerKFoldClassifier in plain loops. Returns the test and the dev accuracy x 100."""
    rows = sorted(zip(sentences, labels), key=lambda row: (len(row[0].split()), row[1]))
    x, y = np.stack([vectors[sentence] for sentence, _ in rows]), np.array([label for _, label in rows])
    dev, test = [], []
    for train, held_out in splits(x, y):
        scores = [over_folds(x[train], y[train], c) for c in NESTED]
        dev.append(max(scores))
        best = one_against_the_rest(x[train], y[train], NESTED[int(np.argmax(scores))])
        test.append(100 * accuracy(best, x[held_out], y[held_out]))
    return np.mean(test), np.mean(dev)


def senteval_folds(features, labels, parts, lengths):
    """SentEval's KFoldClassifier, with each part sorted by lengths and labels."""
    order = {
        part: sorted(range(rows.start, rows.stop), key=lambda i: (*lengths[i], labels[i]))
        for part, rows in parts.items()
    }
    (x, y), (test_x, test_y) = ((features[order[part]], labels[order[part]]) for part in ("train", "test"))
    scores = [over_folds(x, y, c) for c in FOLDS]
    best = one_against_the_rest(x, y, FOLDS[int(np.argmax(scores))])
    return 100 * accuracy(best, test_x, test_y), max(scores)


def test_nested_cross_validation_equals_senteval():
    (sentences,), labels, vectors = examples(120, 2, seed=3)
    found = score_transfer(encoder(vectors), TransferTask("MR", (sentences,), labels, "nested", {}, [], "test"))
    test, dev = senteval_nested(vectors, sentences, labels)
    assert found == {"score": pytest.approx(test), "dev": pytest.approx(dev, abs=5e-3), "n": 120}
    assert 55 < test < 95 and test != pytest.approx(dev, abs=0.1), "the example can tell them apart"


PARTS = {"train": slice(0, 100), "test": slice(100, 150)}


@pytest.mark.parametrize("classes", [2, 4])
def test_folds_equal_senteval(classes):
    """Like TREC: one class against the rest."""
    (sentences,), labels, vectors = examples(150, classes, noise=1.5)
    found = score_transfer(encoder(vectors), TransferTask("TREC", (sentences,), labels, "folds", PARTS, [], "test"))
    x, lengths = encoder(vectors)(sentences), [(len(sentence.split()),) for sentence in sentences]
    test, dev = senteval_folds(x, labels, PARTS, lengths)
    assert found == {"score": pytest.approx(test), "dev": pytest.approx(dev, abs=5e-3), "n": 50}
    assert 40 < test < 95 and test != pytest.approx(dev, abs=0.1)


def test_pairs_are_classified_by_difference_and_product():
    """Like MRPC: [|u - v|, u * v], sorted by both lengths."""
    (first, second), labels, vectors = examples(150, 2, seed=1, sides=2)
    for i, label in enumerate(labels):  # where it is 1, the second is like the first
        if label:
            vectors[second[i]] = vectors[first[i]] + 0.9 * vectors[second[i]]
    found = score_transfer(encoder(vectors), TransferTask("MRPC", (first, second), labels, "folds", PARTS, [], "test"))
    u, v = encoder(vectors)(first), encoder(vectors)(second)
    features = np.array([[*abs(a - b), *(a * b)] for a, b in zip(u, v)])
    lengths = [(len(a.split()), len(b.split())) for a, b in zip(first, second)]
    test, dev = senteval_folds(features, labels, PARTS, lengths)
    assert found == {"score": pytest.approx(test), "dev": pytest.approx(dev, abs=5e-3), "n": 50}
    for columns in (features[:, :6], features[:, 6:], np.hstack([u, v])):
        assert senteval_folds(columns, labels, PARTS, lengths) != (pytest.approx(test), pytest.approx(dev, abs=5e-3))


THREE = {"train": slice(0, 90), "dev": slice(90, 125), "test": slice(125, 180)}


def senteval_dev(x, labels):
    """SentEval's SplitClassifier."""
    train, dev, test = THREE.values()
    fits = [one_against_the_rest(x[train], labels[train], c) for c in NESTED]
    scores = [100 * accuracy(fit, x[dev], labels[dev]) for fit in fits]
    return 100 * accuracy(fits[int(np.argmax(scores))], x[test], labels[test]), max(scores)


@pytest.mark.parametrize("seed", range(3))
def test_dev_part_selects_c(seed):
    """Like SST2."""
    (sentences,), labels, vectors = examples(180, 2, seed)
    task = TransferTask("SST2", (sentences,), labels, "dev", THREE, [], "test")
    test, dev = senteval_dev(encoder(vectors)(sentences), labels)
    found = score_transfer(encoder(vectors), task)
    assert found == {"score": pytest.approx(test), "dev": pytest.approx(dev), "n": 55} and test != pytest.approx(dev)


@pytest.mark.parametrize("protocol, parts, n", [("nested", {}, 180), ("dev", THREE, 35), ("folds", THREE, 90)])
def test_dev_split_reports_the_accuracy_that_selects_c(protocol, parts, n):
    (sentences,), labels, vectors = examples(180, 2, seed=4)
    test, dev = (
        score_transfer(encoder(vectors), TransferTask("any", (sentences,), labels, protocol, parts, [], split))
        for split in ("test", "dev")
    )
    assert dev == {"score": test["dev"], "dev": test["dev"], "n": n} and dev["score"] != test["score"]
    assert {type(value) for value in test.values()} == {float, int}, "plain numbers, that a results file can hold"


@pytest.mark.parametrize(
    "protocol, parts, grid", [("nested", {}, NESTED), ("dev", THREE, NESTED), ("folds", THREE, FOLDS)]
)
def test_grid_matches_senteval(protocol, parts, grid, monkeypatch):
    """One path for two classes, three for three. All use one C, then the next."""
    asked, solve = [], LogisticPath.decision_values
    monkeypatch.setattr(LogisticPath, "decision_values", lambda path, c: asked.append(c) or solve(path, c))
    for classes, paths in ((2, 1), (3, 3)):
        (sentences,), labels, vectors = examples(180, classes)
        score_transfer(encoder(vectors), TransferTask("any", (sentences,), labels, protocol, parts, [], "test"))
        assert asked == [c for c in grid for _ in range(paths)]
        asked.clear()


def patterns(monkeypatch, wrong):
    """Makes the regressions wrong only for these cells: for each C a list of (row, training set)."""

    def correct(features, labels, masks, grid):
        right = np.ones((len(grid), *masks.shape), bool)
        for cells, of_c in zip(wrong(masks, len(grid)), right):
            of_c[tuple(zip(*cells))] = False
        return list(right)

    monkeypatch.setattr(transfer, "_correct", correct)


def test_test_part_uses_the_c_selected_on_the_dev_part(monkeypatch):
    """The third C is selected. Each C has a different accuracy on the test part."""

    def wrong(masks, count):
        return [[(i, 0) for i in [*range(90, 91 + abs(k - 2)), *range(125, 126 + k)]] for k in range(count)]

    patterns(monkeypatch, wrong)
    sentences = make_sentences(180)
    task = TransferTask("SST2", (sentences,), np.arange(180) % 2, "dev", THREE, [], "test")
    found = score_transfer(encoder(dict.fromkeys(sentences, np.ones(2, np.float32))), task)
    assert found == {"score": pytest.approx(100 - 300 / 55), "dev": pytest.approx(100 - 100 / 35), "n": 55}


@pytest.mark.parametrize("more, score, dev", [(0, 100, 100 - 10 / 525), (1, 0, 100 - 10 / 526)])
def test_smallest_c_wins_ties(monkeypatch, more, score, dev):
    """At SentEval's two decimals of a percentage: an error in a fold of 525 rows weighs as one in a fold of 526.

    The exact means differ by 0.00004%. One error more, 0.02%, counts. On the test part the first C is always right and
    the others are always wrong.
    """

    def wrong(masks, count):
        sizes = (~masks[:5255, :10]).sum(0)
        small, large = int(sizes.argmin()), int(sizes.argmax())
        assert (sizes[small], sizes[large]) == (525, 526)
        rows = {fold: np.flatnonzero(~masks[:5255, fold]).tolist() for fold in (small, large)}
        first = [(row, small) for row in rows[small][: 1 + more]]
        return [first, *[[(rows[large][0], large), *((i, 10) for i in range(5255, 5260))]] * (count - 1)]

    patterns(monkeypatch, wrong)
    sentences, labels = [f"sentence {i}" for i in range(5260)], np.arange(5260) % 2
    parts = {"train": slice(0, 5255), "test": slice(5255, 5260)}
    vectors = dict.fromkeys(sentences, np.ones(2, np.float32))
    found = score_transfer(encoder(vectors), TransferTask("TREC", (sentences,), labels, "folds", parts, [], "test"))
    assert found == {"score": score, "dev": pytest.approx(dev, abs=1e-6), "n": 5}


def test_each_sentence_is_encoded_once():
    (first, second), labels, vectors = examples(150, 2, sides=2)
    second[7:20] = first[3:16]
    calls = []
    task = TransferTask("MRPC", (first, second), labels, "folds", PARTS, [], "test")
    score_transfer(lambda sentences: calls.append(list(sentences)) or encoder(vectors)(sentences), task)
    assert calls == [task.texts()] and len(calls[0]) == 300 - 13


def test_embedding_not_finite_has_no_score():
    (sentences,), labels, vectors = examples(150, 2)
    vectors[sentences[140]][3] = np.nan
    with pytest.raises(UndefinedScoreError, match="the embeddings of 1 of 150 sentences are not finite"):
        score_transfer(encoder(vectors), TransferTask("TREC", (sentences,), labels, "folds", PARTS, [], "test"))


@pytest.mark.parametrize("protocol, parts", [("nested", {}), ("dev", THREE), ("folds", THREE)])
def test_equal_embeddings_predict_the_largest_class(protocol, parts):
    """Equal embeddings have no correlation, but an accuracy."""
    sentences, labels = make_sentences(180), np.arange(180) % 3 // 2  # two of three are 0
    encode = encoder(dict.fromkeys(sentences, np.float32([1, 2, 3])))
    found = score_transfer(encode, TransferTask("any", (sentences,), labels, protocol, parts, [], "test"))
    expected = np.mean(labels[parts["test"]] == 0) if parts else 2 / 3
    assert found["score"] == pytest.approx(100 * expected)
