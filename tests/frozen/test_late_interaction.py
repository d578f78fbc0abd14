"""Token vectors: where they come from, their scores, and what a removed text leaves behind."""

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import maxsim
from torch import nn

from informin.frozen import late_interaction
from informin.frozen import token_vectors as tokens_module
from informin.frozen.late_interaction import CANDIDATES, Projection, TokenVectors, without_context
from informin.frozen.token_vectors import embed_documents, embed_queries
from informin.model.embedding import encode_in_shares
from informin.model.open import load_model
from tests.conftest import make_sentences, raises_usage, save_letters, save_sentence_transformer

QUERIES = ["the old dog runs", "a small house", "not"]


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return make_sentences(150)


@pytest.fixture(scope="module")
def model(st_mean):
    return load_model(st_mean)


@pytest.fixture(scope="module")
def stored(model, texts) -> TokenVectors:
    return embed_documents(model, texts)[1]


@pytest.fixture(scope="module")
def asked(model, stored):
    return embed_queries(model, QUERIES, stored.projection)[1]


def drawn(lengths: list[int], vocabulary: int = 500, dimensions: int = 64) -> TokenVectors:
    """Texts of random tokens whose vectors do not depend on the context."""
    source = np.random.default_rng(0)
    table = source.standard_normal((vocabulary, dimensions), dtype=np.float32)
    texts = [source.integers(vocabulary, size=length) for length in lengths]
    return TokenVectors.of([(ids, table[ids]) for ids in texts], Projection.fit(table))


def tokens_of(stored: TokenVectors, place: int) -> slice:
    return slice(stored.starts[place], stored.starts[place + 1])


def test_one_pass_gives_embeddings_and_hidden_states(model, st_mean, texts, monkeypatch):
    monkeypatch.setattr(tokens_module, "TEXTS_IN_MEMORY", 40)  # of 150, in random order
    vectors, stored = embed_documents(model, texts)
    np.testing.assert_allclose(vectors, encode_in_shares(model, texts, side="document"), atol=1e-5)
    plain = SentenceTransformer(str(st_mean), device="cpu")
    for place, text in enumerate(texts):
        own = tokens_of(stored, place)
        assert stored.ids[own].tolist() == plain.tokenizer(text, add_special_tokens=False)["input_ids"]
        states = plain.encode(text, output_value="token_embeddings")[1:-1].numpy()  # without [CLS] and [SEP]
        expected = stored.projection.apply(states)
        rows = stored.rows[own].astype(float)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        np.testing.assert_allclose(rows, expected, atol=0.02)
        assert np.abs(stored.rows[own]).max(1).tolist() == [127] * len(rows)


def test_prompts_are_read_but_are_not_among_the_tokens(tmp_path, bert):
    prompts = {"query": "the ", "document": "old dog "}
    prompted = load_model(save_sentence_transformer(tmp_path / "prompted", bert, prompts=prompts))
    plain = load_model(save_sentence_transformer(tmp_path / "plain", bert))
    texts = ["the old dog runs", "old dog", "red"]
    (vectors, stored), (other_vectors, other) = (embed_documents(m, texts) for m in (prompted, plain))
    assert stored.ids.tolist() == other.ids.tolist() and stored.starts.tolist() == other.starts.tolist()
    assert not np.allclose(vectors, other_vectors) and not np.array_equal(stored.rows, other.rows)
    queries = [embed_queries(m, ["the cat"], stored.projection)[1][0] for m in (prompted, plain)]
    assert queries[0][0].tolist() == queries[1][0].tolist() and not np.allclose(queries[0][1], queries[1][1])
    ids, _ = embed_queries(plain, ["og runs"], stored.projection, prompt="old d")[1][0]
    assert ids.tolist() == plain.tokenizer("dog runs", add_special_tokens=False)["input_ids"], "d is part of a word"
    asked = embed_queries(plain, ["cat"], stored.projection, prompt="the ")[1][0]
    np.testing.assert_allclose(asked[1], embed_queries(plain, ["the cat"], stored.projection)[1][0][1][1:], atol=1e-5)


def test_a_static_model_has_a_vector_for_each_token(tmp_path):
    model = load_model(save_letters(tmp_path / "letters"))
    vectors, stored = embed_documents(model, ["abc", "a", "ca"])
    np.testing.assert_allclose(vectors, encode_in_shares(model, ["abc", "a", "ca"]), atol=1e-5)
    assert np.diff(stored.starts).tolist() == [3, 1, 2]
    table = model[0].embedding.weight.detach().numpy()
    expected = late_interaction._as_int8(stored.projection.apply(table[stored.ids]))
    np.testing.assert_allclose(stored.rows, expected, atol=1)  # the places of rows differ in rounding
    assert stored.ids[3] == stored.ids[0], "the letter a at the start of a word"


@pytest.mark.parametrize("query", range(len(QUERIES)))
def test_scores_are_those_of_maxsim(stored, asked, query):
    ids, vectors = asked[query]
    weights = stored.weights(ids)
    places = np.array([5, 0, 149, 77])
    documents = [stored.rows[tokens_of(stored, place)].astype(np.float32) for place in places]
    documents = [torch.from_numpy(rows / np.linalg.norm(rows, axis=1, keepdims=True)) for rows in documents]
    weighted = torch.from_numpy(vectors * (weights / weights.sum())[:, None]).float()
    np.testing.assert_allclose(stored.scores((ids, vectors), places), maxsim([weighted], documents)[0], atol=1e-5)


def test_rare_tokens_count_more(model, texts):
    stored = embed_documents(model, [*texts, "the zyzzyva"])[1]
    frequencies = [sum(word in text.split() for text in texts) for word in ("dog", "cat")]
    ids = model.tokenizer("dog cat", add_special_tokens=False)["input_ids"]
    expected = np.log(152 / (np.array(frequencies) + 1)) ** 2
    np.testing.assert_allclose(stored.weights(np.array(ids)), expected)
    unknown = stored.weights(np.array([10**6, ids[0]]))
    np.testing.assert_allclose(unknown, [np.log(152) ** 2, expected[0]])


def test_longer_texts_gain_less_by_their_length():
    lengths = np.random.default_rng(1).integers(5, 200, size=400)
    stored = drawn(lengths.tolist())
    query = stored.ids[:8], stored.projection.apply(np.random.default_rng(2).standard_normal((8, 64)))
    places = np.arange(400)
    scores, added = stored.rerank(query, places)
    before, after = (np.corrcoef(values, np.log(lengths))[0, 1] for values in (scores, added))
    assert before > 0.5 and 0.1 < after < 0.85 * before
    assert abs(added.mean()) < 0.1 and 0.2 < added.std() / late_interaction.TOKEN_WEIGHT < 2


def test_what_is_added_does_not_depend_on_the_other_candidates(stored, asked):
    places = np.arange(CANDIDATES)
    scores, added = stored.rerank(asked[0], places)
    some_scores, some = stored.rerank(asked[0], places[[7, 3]])
    np.testing.assert_allclose(some, added[[7, 3]], atol=1e-4)  # in deviations of the scores
    np.testing.assert_allclose(some_scores, stored.scores(asked[0], places[[7, 3]]), atol=1e-5)
    assert np.corrcoef(scores, added)[0, 1] > 0.8


def test_a_text_with_the_words_of_the_query_is_first(model, texts):
    stored = embed_documents(model, texts)[1]
    for place in (3, 60, 149):
        query = embed_queries(model, [texts[place]], stored.projection)[1][0]
        assert stored.scores(query, np.arange(150)).argmax() == place
        nearest, cosines = stored.matches(query, place)
        assert nearest.tolist() == list(range(len(query[0]))) and cosines.min() > 0.99


def test_mean_vectors_of_tokens(monkeypatch):
    monkeypatch.setattr(late_interaction, "AVERAGED", 7)  # of 60 tokens
    projection = Projection(np.zeros(8, np.float32), np.eye(8, dtype=np.float32))
    source = np.random.default_rng(0)
    ids = source.integers(2, 6, size=60)
    states = source.standard_normal((60, 8), dtype=np.float32)
    stored = TokenVectors.of(list(zip(np.split(ids, 6), np.split(states, 6))), projection)
    unit = states / np.linalg.norm(states, axis=1, keepdims=True)
    expected = np.zeros((6, 8))
    for number in range(2, 6):
        mean = unit[ids == number].mean(0)
        expected[number] = mean / np.linalg.norm(mean)
    means = stored.means()
    np.testing.assert_allclose(means, expected, atol=0.01)
    asked, vectors = without_context(np.array([3, 0, 9, 5]), means)
    assert asked.tolist() == [3, 5], "no text has 0 and 9"
    np.testing.assert_array_equal(vectors, means[[3, 5]])


def test_texts_and_queries_without_tokens(model):
    stored = embed_documents(model, ["", "the dog", "", "cat", ""])[1]
    assert len(stored) == 5 and stored.lengths(np.arange(5)).tolist() == [0, 2, 0, 1, 0]
    full, empty = embed_queries(model, ["cat dog", ""], stored.projection)[1]
    scores, added = stored.rerank(full, np.arange(5))
    assert scores[[0, 2, 4]].tolist() == [0, 0, 0] and (scores[[1, 3]] > 0).all() and np.isfinite(added).all()
    assert stored.scores(empty, np.arange(5)).tolist() == [0] * 5
    assert stored.rerank(empty, np.arange(5))[1].tolist() == [0] * 5
    blank = embed_documents(model, ["", ""])[1]
    assert blank.rerank(full, np.arange(2))[1].tolist() == [0, 0]


def test_added_texts_and_an_index_of_all_are_alike(model, texts, stored, asked):
    first = stored.take(np.arange(100))
    added = embed_documents(model, texts[100:], projection=stored.projection)[1]
    joined = TokenVectors.join([first, added])
    assert joined.starts.tolist() == stored.starts.tolist() and joined.ids.tolist() == stored.ids.tolist()
    assert joined.frequencies.tolist() == stored.frequencies.tolist()
    assert np.abs(joined.rows.astype(int) - stored.rows).max() <= 1  # batches differ in rounding
    places = np.arange(150)
    np.testing.assert_allclose(joined.scores(asked[0], places), stored.scores(asked[0], places), atol=1e-3)


def test_saved_and_loaded(tmp_path, stored, asked):
    stored.save(tmp_path / "tokens")
    loaded = TokenVectors.load(tmp_path / "tokens")
    assert isinstance(loaded.rows.base, np.memmap)
    places = np.array([4, 9, 2])
    for one, other in zip(loaded.rerank(asked[0], places), stored.rerank(asked[0], places)):
        np.testing.assert_array_equal(one, other)
    np.save(tmp_path / "tokens/rows.npy", stored.rows[:-1])
    with raises_usage():
        TokenVectors.load(tmp_path / "tokens")


def test_nothing_of_a_removed_text_is_kept(tmp_path, model, texts):
    stored = embed_documents(model, [*texts, "street"])[1]
    gone = stored.rows[tokens_of(stored, 150)].tobytes()
    kept = stored.take(np.delete(np.arange(151), 150))
    kept.save(tmp_path / "tokens")
    files = [path.read_bytes() for path in (tmp_path / "tokens").iterdir()]
    assert not any(gone in data for data in files)
    assert all(array.base is None or array.base.nbytes <= array.nbytes for array in (kept.ids, kept.rows))
    token = model.tokenizer("street", add_special_tokens=False)["input_ids"][0]
    assert kept.frequencies[token] == stored.frequencies[token] - 1


def test_texts_are_taken_in_any_order():
    stored = drawn([3, 0, 5, 2])
    taken = stored.take(np.array([3, 1, 0]))
    assert np.diff(taken.starts).tolist() == [2, 0, 3]
    assert taken.ids.tolist() == [*stored.ids[8:10], *stored.ids[:3]]
    np.testing.assert_array_equal(taken.rows, np.concatenate([stored.rows[8:10], stored.rows[:3]]))


def test_parts_are_joined_in_another_order():
    whole = drawn([3, 0, 5, 2, 4])
    parts = [whole.take(np.array(places)) for places in ([4], [1, 3, 0], [2])]
    joined = TokenVectors.join(parts, np.array([4, 1, 3, 0, 2]))
    for name in ("starts", "ids", "rows", "frequencies"):
        np.testing.assert_array_equal(getattr(joined, name), getattr(whole, name))
    assert not parts, "rows are in memory twice at most"


def test_integers_keep_cosines():
    stored = drawn([50] * 20)
    table = stored.projection.apply(np.random.default_rng(3).standard_normal((30, 64)))
    rounded = late_interaction._as_int8(table).astype(float)
    rounded /= np.linalg.norm(rounded, axis=1, keepdims=True)
    np.testing.assert_allclose(rounded @ rounded.T, table @ table.T, atol=0.02)


def test_models_without_token_vectors(texts):
    model = SentenceTransformer(modules=[nn.Identity()])
    with raises_usage("rerank"):
        embed_documents(model, texts)


def test_the_bar_moves_with_each_batch(model, texts, monkeypatch):
    moves = []

    def update(bar, rows: int) -> None:
        if not bar.disable:
            moves.append(rows)

    monkeypatch.setattr("informin.model.embedding.hidden", lambda: False)
    monkeypatch.setattr("informin.model.embedding.tqdm.update", update)
    embed_documents(model, texts, batch_size=10)
    assert len(moves) == 15 and sum(moves) == 150
