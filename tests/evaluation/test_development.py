"""Development sets: at most one of each kind, and each sentence is encoded once."""

import hashlib
import math

import datasets
import numpy as np
import pytest
from sentence_transformers.sentence_transformer.evaluation import (
    EmbeddingSimilarityEvaluator,
    InformationRetrievalEvaluator,
)

from informin.evaluation.development import Development, as_development
from informin.evaluation.labels import LabeledSentences, score_labels
from informin.evaluation.measures import ALL, KINDS
from informin.evaluation.pairs import GradedPairs, load_pairs, score_pairs
from informin.evaluation.retrieval import Collection
from tests.conftest import raises_usage

PAIRS = GradedPairs("pairs", ["a", "b", "c"], ["b", "c", "a"], np.array([1.0, 5.0, 2.0]))
LABELS = LabeledSentences("titles", list("abcdefgh"), list("xxxxyyyy"))
SEARCH = Collection.of_pairs("faq", ["a", "b"], ["d", "z"])


def letters(sentences) -> np.ndarray:
    source = np.random.default_rng(3).normal(size=(26, 8))
    return np.stack([source[ord(letter) - ord("a")] for letter in sentences])


def test_all_sets_are_scored_and_each_sentence_is_encoded_once():
    calls = []
    scores, problems = Development((SEARCH, LABELS, PAIRS)).score(lambda s: calls.append(list(s)) or letters(s))
    assert len(calls) == 1 and sorted(calls[0]) == sorted("abcdefghz")
    expected = score_pairs(letters, PAIRS) | score_labels(letters, LABELS) | SEARCH.score(letters)
    assert problems == {} and scores == pytest.approx({name: expected[name] for name in ALL})
    assert list(scores) == list(ALL), "in the order of the kinds, whatever was given first"


def test_undefined_score_does_not_affect_other_sets():
    """All cosines of the pairs are equal; labels and retrieval still have scores."""
    pairs = GradedPairs("pairs", ["a", "a"], ["b", "b"], np.array([1.0, 2.0]))
    scores, problems = Development((pairs, LABELS)).score(letters)
    assert list(problems) == ["pairs"] and "so the correlation is undefined" in problems["pairs"]
    assert all(math.isnan(scores[name]) for name in KINDS["pairs"])
    assert all(math.isfinite(scores[name]) for name in KINDS["labels"])


def test_names_and_checksums():
    """A single set keeps its own name and checksum, so that runs of older versions can resume."""
    alone, several = Development((PAIRS,)), Development((LABELS, PAIRS))
    assert (alone.name, alone.sha256) == ("pairs", PAIRS.sha256) and several.name == "pairs, titles"
    assert several.sha256 == hashlib.sha256((PAIRS.sha256 + LABELS.sha256).encode()).hexdigest()
    assert next(iter(several.measures)) == "spearman" and next(iter(Development((LABELS,)).measures)) == "v_measure"
    other = LabeledSentences("titles", LABELS.sentences, list("xxxxyyyx"))
    assert len({one.sha256 for one in (LABELS, other, SEARCH, PAIRS)}) == 4


def test_two_sets_of_one_kind_are_rejected():
    with raises_usage(option="eval_dataset", found="titles and more", needed="at most one of each kind"):
        Development((LABELS, PAIRS, LabeledSentences("more", LABELS.sentences, LABELS.labels)))


@pytest.mark.parametrize(
    "create",
    [
        lambda: LabeledSentences("titles", ["a", "b"], ["x", "y", "x"]),
        lambda: Collection.of_pairs("faq", ["a", "b"], ["d"]),
        lambda: Collection.of_pairs("faq", ["a", "b"], ["d", "z"], relevance=[1]),
    ],
)
def test_columns_of_different_lengths_are_rejected(create):
    with raises_usage(needed="per"):
        create()


def test_datasets_are_read_as_files():
    def the_set(**columns):
        return as_development(datasets.Dataset.from_dict(columns)).sets[0]

    found = the_set(query=["a", "a", "b"], document=["d", "z", "d"], relevance=[0, 2, 0])
    assert (found.queries, found.documents, found.grades) == (["a"], ["d", "z"], [{1: 2}])
    found = the_set(text=["a", "b", "c", "d", ""], label=["x", "x", "y", None, "y"])
    assert (found.sentences, found.labels) == (["a", "b", "c"], ["x", "x", "y"])
    found = the_set(text=["a", "b", "c", "d", "e"], label=[1.0, 1.0, 2.0, float("nan"), float("nan")])
    assert (found.sentences, found.labels) == (["a", "b", "c"], ["1", "1", "2"])
    found = the_set(sentence1=["a", "b"], sentence2=["c", "d"], score=[1, 0])
    assert (found.sentences1, found.sentences2, found.scores.tolist()) == (["a", "b"], ["c", "d"], [1.0, 0.0])
    data = datasets.Dataset.from_dict({"text": ["a", "b", "c"], "label": ["x", "x", "y"]})
    changed = data.with_transform(lambda batch: {"text": [text * 2 for text in batch["text"]], "label": batch["label"]})
    assert as_development(changed).sets[0].sentences == ["aa", "bb", "cc"]
    for missing in ({"sentence2": ["c", None]}, {"score": [1, None]}):
        with raises_usage(found="row 1"):
            the_set(**{"sentence1": ["a", "b"], "sentence2": ["c", "d"], "score": [1, 0]} | missing)
    with raises_usage(found="'label'"):
        the_set(query=["a", "b"], document=["c", "d"], label=[1, 0])


@pytest.mark.parametrize(
    "setting, value", [("query_prompt", "query: "), ("corpus_prompt_name", "document"), ("truncate_dim", 4)]
)
def test_evaluators_of_other_embeddings_are_rejected(setting, value):
    texts = {"q": "a"}, {"d": "b", "e": "c"}, {"q": {"d"}}
    development = as_development(InformationRetrievalEvaluator(*texts, **{setting: value}, write_csv=False))
    with raises_usage(option="eval_dataset", found="evaluator with"):
        development.score(letters)


def test_evaluators_of_quantized_embeddings_are_rejected():
    development = as_development(EmbeddingSimilarityEvaluator(["a", "b"], ["c", "d"], [1.0, 0.5], precision="binary"))
    with raises_usage(option="eval_dataset", found="precision"):
        development.score(letters)


def test_eval_dataset_may_be_a_path_a_set_or_a_list(pairs_file):
    assert as_development(None) is None
    for given in (pairs_file, str(pairs_file), load_pairs(pairs_file)):
        assert as_development(given).sha256 == load_pairs(pairs_file).sha256
    several = as_development([LABELS, pairs_file])
    assert as_development(several) is several and several.name == "pairs.tsv, titles"


@pytest.mark.parametrize(
    "given, found",
    [([], "is empty"), ({"a": 1}, "a int"), ([LABELS, 3], "a int"), ([None], "a NoneType")],
)
def test_other_eval_datasets_are_rejected(given, found):
    with raises_usage(option="eval_dataset", found=found, needed="GradedPairs, LabeledSentences, Collection"):
        as_development(given)
