"""Graded pairs and their scores against plain loops and closed forms."""

import math

import datasets
import numpy as np
import pytest

from informin.errors import UndefinedScoreError
from informin.evaluation import encode as geometry
from informin.evaluation.encode import alignment, uniformity
from informin.evaluation.pairs import GradedPairs, load_pairs, score_pairs
from informin.evaluation.senteval import STSB_DEV, load_stsb_dev
from tests.conftest import make_sentences, raises_usage

HEADER = "sentence1,sentence2,score\n"
GRADE = '{"sentence1": "a", "sentence2": "b", "score": %s}\n'


def write(path, content: str):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "name, content",
    [
        ("a.tsv", "sentence1\tsentence2\tscore\none, two\tthré\t-1\n\na\tb\t2.5\n"),
        ("a.csv", 'id,score,sentence2,sentence1\n1,-1,thré,"one, two"\n2,2.5,b,a\n'),
        (
            "a.jsonl",
            '{"sentence1": "one, two", "sentence2": "thré", "score": -1}\n\n'
            '{"score": "2.5", "sentence2": "b", "sentence1": "a", "id": 7}',
        ),
    ],
)
def test_load_pairs(tmp_path, name, content):
    pairs = load_pairs(str(write(tmp_path / name, content)))
    assert (pairs.name, pairs.sentences1, pairs.sentences2) == (name, ["one, two", "a"], ["thré", "b"])
    assert pairs.scores.tolist() == [-1.0, 2.5] and len(pairs) == 2


@pytest.mark.parametrize(
    "content, option",
    [
        (None, "eval_pairs"),
        ("sentence1,b,score\n", "eval_pairs"),
        (HEADER + "a,b,1\na,b,high\n", None),
        (HEADER + "a,b,1\na,b,nan\n", None),
        (HEADER + "a,b,1\na,b\n", None),
        (HEADER + "a,,1\na,b,2\n", None),
        (HEADER + "a,b,c,1\n", None),
        (HEADER, "eval_pairs"),
        (HEADER + "a,b,1\nc,d,1\n", "eval_pairs"),
    ],
    ids=["no file", "no column", "word", "nan", "no score", "no text", "too many fields", "no pairs", "equal scores"],
)
def test_unusable_pairs_are_rejected(tmp_path, content, option):
    if content is not None:
        write(tmp_path / "a.csv", content)
    with raises_usage(option=option):
        load_pairs(tmp_path / "a.csv")


def test_one_pair_of_different_sentences_is_enough(tmp_path):
    assert len(load_pairs(write(tmp_path / "a.csv", HEADER + "a,a,1\na,b,2\n"))) == 2


def stsb_line(i: int) -> str:
    return f'genre\tfile\tyear\t{i:04}\t{i % 6}.250\tone "{i}"\ttwo {i}\ta link after it\n'


def test_load_stsb_dev(tmp_path):
    write(tmp_path / STSB_DEV, "".join(map(stsb_line, range(1500))))
    pairs = load_stsb_dev(tmp_path)
    assert pairs.name == "STS-B dev" and len(pairs) == 1500
    assert (pairs.sentences1[7], pairs.sentences2[7], pairs.scores[7]) == ('one "7"', "two 7", 1.25)


@pytest.mark.parametrize("count", [1499, 1501])
def test_stsb_dev_with_another_number_of_pairs_is_rejected(tmp_path, count):
    write(tmp_path / STSB_DEV, "".join(map(stsb_line, range(count))))
    with raises_usage(found=f"{tmp_path / STSB_DEV}: found {count} pairs", needed="1500"):
        load_stsb_dev(tmp_path)


def test_stsb_dev_with_short_lines_is_rejected(tmp_path):
    write(tmp_path / STSB_DEV, stsb_line(0) + "a\tb\t3\n")
    with pytest.raises(ValueError):
        load_stsb_dev(tmp_path)


def random_pairs(count: int = 30) -> tuple[GradedPairs, dict[str, np.ndarray]]:
    """Return pairs with tied grades and repeated sentences, and an embedding for each sentence."""
    source = np.random.default_rng(0)
    sentences = make_sentences(count)
    first, second = sentences[:20] + sentences[:10], sentences[10:] + sentences[20:]
    pairs = GradedPairs("random", first, second, source.integers(2, 8, count) / 2)
    return pairs, {sentence: source.normal(size=8).astype(np.float32) for sentence in sentences}


def average_ranks(values) -> np.ndarray:
    return np.array([sum(v < x for v in values) + (sum(v == x for v in values) + 1) / 2 for x in values])


def cosine(x, y) -> float:
    return float(x @ y / math.sqrt((x @ x) * (y @ y)))


def test_scores_equal_plain_loops():
    pairs, vectors = random_pairs()
    calls = []
    scores = score_pairs(lambda sentences: calls.append(sentences) or np.stack([vectors[s] for s in sentences]), pairs)

    vectors = {sentence: vector.astype(np.float64) for sentence, vector in vectors.items()}
    cosines = [cosine(vectors[a], vectors[b]) for a, b in zip(pairs.sentences1, pairs.sentences2)]
    spearman = 100 * np.corrcoef(average_ranks(cosines), average_ranks(pairs.scores))[0, 1]
    # Grades run from 1 to 3.5: above 80% of the scale is above 3.
    graded = zip(pairs.sentences1, pairs.sentences2, pairs.scores)
    squared = [2 - 2 * cosine(vectors[a], vectors[b]) for a, b, grade in graded if grade > 3]
    distinct = sorted({*pairs.sentences1, *pairs.sentences2})
    close = [math.exp(-4 + 4 * cosine(vectors[a], vectors[b])) for a in distinct for b in distinct if a != b]
    expected = {"spearman": spearman, "alignment": np.mean(squared), "uniformity": math.log(np.mean(close))}
    assert 0 < len(squared) < len(pairs) and (pairs.scores.min(), pairs.scores.max()) == (1, 3.5)
    assert scores == pytest.approx(expected, rel=1e-5)
    assert len(calls) == 1 and sorted(calls[0]) == distinct, "each distinct sentence is encoded once"


@pytest.mark.parametrize("sign", [1, -1])
def test_spearman_of_cosines_in_order_of_the_grades_is_100(sign):
    """Angles decrease with the grades; lengths have no effect."""
    grades = np.array([0.0, 1.0, 2.5, 4.0, 5.0])
    vectors = {str(i): (i + 1) * np.array([np.cos(i / 2), sign * np.sin(i / 2)]) for i in range(5)}
    pairs = GradedPairs("line", ["0"] * 5, ["0", "1", "2", "3", "4"], sign * -grades)
    scores = score_pairs(lambda sentences: np.stack([vectors[s] for s in sentences]), pairs)
    assert scores["spearman"] == pytest.approx(100 * sign)


def test_alignment_looks_at_the_pairs_above_80_percent_of_the_scale():
    """On the scale of STS-B, 0 to 5, a pair with grade 4 is not positive."""
    vectors = {"a": [1.0, 0.0], "b": [0.0, 2.0], "c": [-3.0, 0.0]}
    pairs = GradedPairs("scale", ["a", "a", "a"], ["a", "c", "b"], np.array([0.0, 4.0, 5.0]))
    scores = score_pairs(lambda sentences: np.array([vectors[s] for s in sentences]), pairs)
    assert scores["alignment"] == pytest.approx(2.0)


def test_one_nan_embedding_makes_the_score_undefined():
    pairs, vectors = random_pairs()
    best = int(pairs.scores.argmax())
    vectors[pairs.sentences1[best]][0] = np.nan
    with pytest.raises(UndefinedScoreError, match=r"the embeddings of 1 of \d+ sentences are not finite"):
        score_pairs(lambda sentences: np.stack([vectors[s] for s in sentences]), pairs)


def test_equal_embeddings_have_no_score():
    """Cosines of equal vectors differ in their last bits, so their ranks would be noise."""
    pairs, _ = random_pairs()
    vector = np.random.default_rng(0).normal(size=64).astype(np.float32)
    with pytest.raises(UndefinedScoreError, match=r"all \d+ predictions are equal, so the correlation is undefined"):
        score_pairs(lambda sentences: np.stack([vector * (1 + i) for i in range(len(sentences))]), pairs)


def test_columns_of_tables_are_accepted():
    first, second, scores = ["a", "b", "c"], ["d", "e", "a"], [1, 2, 3]
    pairs = GradedPairs("dev", first, second, scores)
    table = datasets.Dataset.from_dict({"first": first, "second": second})
    for one, other in ((np.array(first, object), np.array(second, object)), (table["first"], table["second"])):
        same = GradedPairs("dev", one, other, scores)
        assert same.texts() == pairs.texts() == ["a", "b", "c", "d", "e"] and same.sha256 == pairs.sha256
    with raises_usage(found="dev"):
        GradedPairs("dev", first, second[1:], scores)


def test_uniformity_in_blocks_of_rows(monkeypatch):
    x = np.random.default_rng(0).normal(size=(50, 4))
    expected = uniformity(x)
    for rows in (7, 25, 49):
        monkeypatch.setattr(geometry, "ROWS_AT_ONCE", rows)
        assert uniformity(x) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rows, columns", [(2, 3), (17, 5)])
def test_alignment_and_uniformity_equal_double_loops(rows, columns, dtype):
    source = np.random.default_rng(rows)
    x, y = source.normal(size=(2, rows, columns)).astype(dtype)
    u, v = ([row / math.sqrt(sum(a * a for a in row)) for row in z.astype(np.float64)] for z in (x, y))
    distance = [sum((a - b) ** 2 for a, b in zip(u[i], v[i])) for i in range(rows)]
    close = [math.exp(-2 * sum((u[i] - u[j]) ** 2)) for i in range(rows) for j in range(rows) if i != j]
    assert alignment(x, y) == pytest.approx(sum(distance) / rows, rel=1e-12)
    assert uniformity(x) == pytest.approx(math.log(sum(close) / len(close)), rel=1e-12)


@pytest.mark.parametrize(
    "x, y, aligned, uniform",
    [
        ([[1, 0], [-3, 0]], [[2, 0], [-1, 0]], 0, -8),  # two opposite points
        ([[1, 0], [0, 5]], [[0, 1], [1, 0]], 2, -4),  # at right angles
        ([[2, 0], [1, 0]], [[-1, 0], [-4, 0]], 4, 0),  # one point twice, its opposite
        (np.eye(4), -np.eye(4)[::-1], 2, -4),
        ([[1, 0], [0, 1], [-1, 0], [0, -1]], [[1, 0]] * 4, 2, np.log((2 * np.exp(-4) + np.exp(-8)) / 3)),  # a square
    ],
)
def test_closed_forms(x, y, aligned, uniform):
    assert alignment(np.array(x), np.array(y)) == pytest.approx(aligned)
    assert uniformity(np.array(x)) == pytest.approx(uniform)
