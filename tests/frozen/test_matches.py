"""Where the tokens stand in a text that match the tokens of a query."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer, models, pre_tokenizers

from informin.frozen.index import Index
from informin.frozen.token_vectors import embed_queries
from informin.model.open import load_model
from tests.conftest import make_sentences, raises_usage
from tests.frozen.test_index import QUERIES

TEXTS = [*make_sentences(150), "the  cat, a\ndog", "the [SEP] dog"]


@pytest.fixture(scope="module")
def looking(st_mean) -> Index:
    return Index.build(st_mean, TEXTS, rerank=True)


def words_at(index: Index, query: str, rows: list[int]) -> list[list[str]]:
    return [
        [index.texts[row][start:end] for start, end in spans]
        for row, spans in zip(rows, index.matched_spans(query, rows))
    ]


@pytest.mark.parametrize("query", QUERIES)
def test_spans_are_those_of_the_nearest_tokens(looking, query):
    tokens = looking._state.tokens
    _, asked = embed_queries(looking.model, [query], tokens.projection)
    weights = tokens.weights(asked[0][0])
    for row in (0, 7, 150, 151):
        nearest, cosines = tokens.matches(asked[0], row)
        added = weights * cosines
        expected = sorted({place for place, share in zip(nearest, added) if share >= added.mean()})
        split = looking.model.tokenizer.tokenize(TEXTS[row])
        split = [word for word in split if word not in ("[UNK]", "[SEP]")]  # they are not stored
        assert words_at(looking, query, [row])[0] == [split[place] for place in expected]


def test_a_truncated_text_has_spans_at_its_start(st_mean):
    index = Index.build(load_model(st_mean, max_seq_length=4), ["the dog runs", "the cat sees the dog"], rerank=True)
    (words,) = words_at(index, "cat", [1])
    assert words and set(words) <= {"the", "cat"}


def test_a_tokenizer_in_python_tells_no_spans(looking, monkeypatch):
    monkeypatch.setattr("informin.frozen.static.fast_tokenizer", lambda model: None)
    index = Index(looking.model, looking._state)
    assert index.matched_spans("dog", [0, 7]) == [[], []]


def test_a_text_that_had_other_tokens_behind_a_prompt_has_no_spans(looking):
    tokens = looking._state.tokens
    ids = np.append(tokens.ids[:-1], tokens.ids[0])  # of the last text, "dog" is now another token
    index = Index(looking.model, replace(looking._state, tokens=replace(tokens, ids=ids)))
    assert looking.matched_spans("dog", [151]) != [[]] == index.matched_spans("dog", [151])


@pytest.fixture(scope="module")
def spaced(tmp_path_factory) -> Path:
    """A static model whose tokens begin with the space before a word."""
    words = ["<unk>", *(f"\u2581{word}" for word in ("the", "a", "dog", "cat", "runs", ","))]
    backend = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    weights = np.random.default_rng(0).normal(size=(len(words), 8)).astype(np.float32)
    folder = tmp_path_factory.mktemp("spaced")
    SentenceTransformer(modules=[StaticEmbedding(backend, embedding_weights=weights)]).save_pretrained(str(folder))
    return folder


@pytest.mark.parametrize("queries", ["model", "static"])
def test_spans_have_neither_spaces_nor_punctuation(spaced, queries):
    texts = ["the , dog runs", "a , dog", "the cat", *["a cat runs"] * 5]
    index = Index.build(spaced, texts, queries=queries, rerank=True)
    assert words_at(index, "dog", [0, 1]) == [["dog"], ["dog"]]
    assert words_at(index, ",", [0, 1]) == [[], []]


@pytest.mark.filterwarnings("error")
def test_queries_without_tokens_and_rows_that_do_not_exist(looking, built):
    assert looking.matched_spans("", [0, 5]) == [[], []]
    with raises_usage("rows"):
        looking.matched_spans("dog", [len(TEXTS)])
    with raises_usage("rerank"):
        built.matched_spans("dog", [0])
