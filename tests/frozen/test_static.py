"""Tables of token vectors: the regression against a dense solution, its scale and its limits."""

import numpy as np
import pytest
from scipy.sparse import csr_array
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import BoW
from tokenizers import Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import BPE, Unigram, WordPiece

from informin.frozen import static as table
from informin.frozen.adapter import LinearAdapter, smooth_rows
from informin.frozen.static import (
    adapted_parts,
    add_words,
    conjugate_gradients,
    count_tokens,
    embed_tokens,
    fit_table,
    tokenizer_of,
)
from tests.conftest import WORDS, raises_usage

DRAW = np.random.default_rng(0)
COUNTS = csr_array(DRAW.poisson(0.3, size=(60, 12)) * (np.arange(12) != 5)).astype(np.float32)  # token 5 never occurs
COUNTS = csr_array(COUNTS[COUNTS.sum(1) > 0])
TARGET = DRAW.normal(size=(COUNTS.shape[0], 4)).astype(np.float32)
ALONE = DRAW.normal(size=(12, 4)).astype(np.float32)
WHOLE = [(np.arange(len(TARGET)), TARGET)]


@pytest.fixture(autouse=True)
def exact(monkeypatch):
    monkeypatch.setattr(table, "RESIDUAL", 1e-6)


def weighted() -> tuple[np.ndarray, np.ndarray]:
    """Return the weights (V,) of tokens, and the weighted counts (N, V) with rows of unit length."""
    counts = COUNTS.toarray().astype(float)
    weights = np.log(1 + len(counts) / np.maximum((counts > 0).sum(0), 1))
    return weights, counts * weights / np.linalg.norm(counts * weights, axis=1, keepdims=True)


def test_the_table_solves_the_ridge_regression():
    weights, a = weighted()
    penalty = 32 / a.sum(1).mean() ** 2
    scale = (a @ ALONE * TARGET).sum() / ((a @ ALONE) ** 2).sum()
    t = np.linalg.solve(a.T @ a + penalty * np.eye(12), a.T @ TARGET + penalty * scale * ALONE)
    rows = fit_table(COUNTS, WHOLE, ALONE, "clustering")
    np.testing.assert_allclose(rows, weights[:, None] * t, rtol=1e-4, atol=1e-4)


def test_for_search_it_solves_the_regression_on_means_weighted_by_the_effective_length():
    weights, a = weighted()
    sums = a.sum(1)
    means, lengths = a / sums[:, None], np.diag(sums**2)  # rows that sum to 1, with the inverse of their sum of squares
    np.testing.assert_allclose(sums**2, 1 / (means**2).sum(1))
    penalty = 8 / sums.mean() ** 2
    scale = (lengths @ (means @ ALONE) * TARGET).sum() / (lengths @ (means @ ALONE) ** 2).sum()
    left = means.T @ lengths @ means + penalty * np.eye(12)
    t = np.linalg.solve(left, means.T @ lengths @ TARGET + penalty * scale * ALONE)
    rows = fit_table(COUNTS, WHOLE, ALONE, "search")
    np.testing.assert_allclose(rows, weights[:, None] * t, rtol=1e-4, atol=1e-4)


def test_a_sum_of_rows_has_the_direction_of_the_weighted_mean():
    weights, a = weighted()
    rows = fit_table(COUNTS, WHOLE, ALONE, "search")
    means, expected = COUNTS.toarray() @ rows, a @ (rows / weights[:, None])
    cosines = (means * expected).sum(1) / np.linalg.norm(means, axis=1) / np.linalg.norm(expected, axis=1)
    np.testing.assert_allclose(cosines, 1, atol=1e-6)


@pytest.mark.parametrize("shrinkage", [0.1, 1e4])
def test_token_vectors_are_found_again(monkeypatch, shrinkage):
    """If embeddings are weighted sums or means of scaled token vectors, the table is these, whatever the shrinkage."""
    weights, a = weighted()
    for task, targets in (("clustering", a @ (0.7 * ALONE)), ("search", a / a.sum(1, keepdims=True) @ (0.7 * ALONE))):
        monkeypatch.setitem(table.SHRINKAGE, task, shrinkage)
        rows = fit_table(COUNTS, [(np.arange(len(targets)), targets.astype(np.float32))], ALONE, task)
        np.testing.assert_allclose(rows, 0.7 * weights[:, None] * ALONE, atol=1e-4)


def test_targets_in_parts_and_rows_in_blocks_change_nothing(monkeypatch):
    expected = fit_table(COUNTS, WHOLE, ALONE, "search")
    monkeypatch.setattr(table, "TOKENIZED_ROWS", 7)
    parts = [(rows, TARGET[rows]) for rows in (np.arange(1, len(TARGET), 2), np.arange(0, len(TARGET), 2))]
    np.testing.assert_allclose(fit_table(COUNTS, parts, ALONE, "search"), expected, atol=1e-5)


def test_conjugate_gradients_stop_at_a_column_of_zeros():
    right = DRAW.normal(size=(6, 3))
    right[:, 1] = 0
    matrix = DRAW.normal(size=(6, 6))
    matrix = matrix @ matrix.T + np.eye(6)
    np.testing.assert_allclose(
        conjugate_gradients(lambda x: matrix @ x, right), np.linalg.solve(matrix, right), atol=1e-4
    )
    assert not conjugate_gradients(lambda x: matrix @ x, 0 * right).any()


def test_counts_are_those_of_the_tokens(st_mean, monkeypatch):
    monkeypatch.setattr(table, "TOKENIZED_ROWS", 2)
    tokenizer = tokenizer_of(SentenceTransformer(str(st_mean), device="cpu"))
    texts = ["the dog sees the cat", "", *["the " * 100] * 2, "a bird"]
    counts = count_tokens(tokenizer, texts).toarray()
    ids = [tokenizer.token_to_id(word) for word in ("the", "dog", "cat", "sees")]
    np.testing.assert_array_equal(counts[0, ids], [2, 1, 1, 1])
    np.testing.assert_array_equal(counts.sum(1), [5, 0, 100, 100, 2])  # neither truncated nor padded


@pytest.mark.parametrize(
    "model",
    [
        WordPiece({"[UNK]": 0, "a": 1, "b": 2}, unk_token="[UNK]"),
        BPE({"<unk>": 0, "a": 1, "b": 2}, [], unk_token="<unk>"),
        Unigram([("<unk>", 0), ("a", -1), ("b", -1)], unk_id=0),
        BPE({"x": 0, "a": 1, "b": 2}, []),  # without an unknown token
    ],
)
def test_the_unknown_token_does_not_count_and_has_a_row_of_zeros(model):
    """model2vec leaves it out of the mean, and sentence-transformers does not."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    counts = count_tokens(tokenizer, ["a ?", "b", "? ?", "a b b"])
    assert counts.toarray().tolist() == [[0, 1, 0], [0, 0, 1], [0, 0, 0], [0, 1, 2]]
    alone = embed_tokens(lambda texts: np.ones((len(texts), 4), np.float32), tokenizer, counts)
    targets = [(np.arange(4), TARGET[:4])]
    rows = fit_table(counts, targets, alone, "clustering")
    assert rows.any(1).tolist() == [model.unk_token is None if isinstance(model, BPE) else False, True, True]


def test_words_of_several_tokens_in_two_texts_become_tokens(monkeypatch):
    pieces = ["[UNK]", "the", "photo", "##n", "##s", "gl", "##uon", "##3"]
    old = Tokenizer(WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    old.normalizer, old.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.BertPreTokenizer()
    texts = ["the Photons the photons", "photons, gluon", "the gluon"]
    texts += ["glns glns", "gl3", "gl3"]  # one text has glns, and gl3 might be the number of a customer
    new = add_words(old, texts)

    def tokens(text: str) -> list[str]:
        return [new.id_to_token(token) for token in new.encode(text).ids]

    assert tokens("The PHOTONS, gluon") == ["the", "photons", "[UNK]", "gluon"]
    assert tokens("glns photonss") == ["gl", "##n", "##s", "photo", "##n", "##s", "##s"]
    assert new.get_vocab_size() == 10 and old.get_vocab_size() == 8
    again = add_words(new, [*texts, "glns"])
    assert again.token_to_id("photons") == new.token_to_id("photons") and again.token_to_id("glns") == 10
    assert add_words(old, 2 * ["photons"]).token_to_id("photons") is None, "a copy is no second text"
    monkeypatch.setattr(table, "WORDS", 1)
    assert add_words(old, [*texts, "gluon"]).token_to_id("photons") is None  # more texts have gluon


def test_vowel_signs_are_part_of_a_word():
    """As those of Hindi, which Python's re does not count among the letters."""
    hindi = "\u0939\u093f\u0902\u0926\u0940"
    pieces = ["[UNK]", hindi[0], *(f"##{sign}" for sign in hindi[1:])]
    old = Tokenizer(WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    old.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    assert add_words(old, [hindi, f"{hindi}."]).encode(f"{hindi} {hindi}").ids == [len(pieces)] * 2


def test_words_become_tokens_where_the_normalizer_replaces_spaces():
    """As in Llama's tokenizer and wordllama."""
    old = Tokenizer(Unigram([("<unk>", 0), ("▁the", -1), ("▁ion", -1), ("s", -1), ("▁", -2)], unk_id=0))
    old.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    new = add_words(old, ["the ions", "ions"])
    assert new.encode("the ions, the ions").ids.count(new.token_to_id("ions")) == 2


def test_a_vocabulary_whose_numbers_have_gaps():
    """As where vocab.txt had lines twice. Added words would get the numbers of other tokens."""
    gaps = Tokenizer(WordPiece({"[UNK]": 0, "a": 1, "b": 3, "##b": 4}, unk_token="[UNK]"))
    gaps.pre_tokenizer = pre_tokenizers.Whitespace()
    texts = ["ab", "ab b", "a"]
    tokenizer = add_words(gaps, texts)
    counts = count_tokens(tokenizer, texts)
    assert counts.toarray().tolist() == [[0, 1, 0, 0, 1], [0, 1, 0, 1, 1], [0, 1, 0, 0, 0]]
    alone = embed_tokens(lambda texts: np.ones((len(texts), 4), np.float32), tokenizer, counts)
    rows = fit_table(counts, [(np.arange(3), TARGET[:3])], alone, "search")
    assert rows.shape == (5, 4) and np.isfinite(rows).all()


def test_a_tokenizer_in_python_has_no_table():
    model = SentenceTransformer(modules=[BoW(WORDS)], device="cpu")
    with raises_usage("model_name"):
        tokenizer_of(model)


def test_a_large_vocabulary_gets_vectors_for_the_tokens_of_the_texts_only(st_mean, monkeypatch):
    model = SentenceTransformer(str(st_mean), device="cpu")
    tokenizer = tokenizer_of(model)
    counts = count_tokens(tokenizer, ["the dog", "a cat"])
    every = embed_tokens(model.encode, tokenizer, counts)
    ids = [tokenizer.token_to_id(word) for word in WORDS]
    np.testing.assert_allclose(every[ids], model.encode(WORDS), atol=1e-5)
    monkeypatch.setattr(table, "VOCABULARY", 9)
    some = embed_tokens(model.encode, tokenizer, counts)
    seen = np.unique(counts.indices)
    np.testing.assert_allclose(some[seen], every[seen], atol=1e-5)
    assert not np.delete(some, seen, axis=0).any() and every.shape == some.shape


def test_targets_are_adapted_and_smoothed_within_parts(monkeypatch):
    x = DRAW.normal(size=(40, 6)).astype(np.float32)
    adapter = LinearAdapter().fit(x)
    ((rows, vectors),) = adapted_parts(adapter, x, smooth=False)
    np.testing.assert_allclose(vectors, adapter.transform(x), atol=1e-5)
    monkeypatch.setattr(table, "SMOOTHED_AT_ONCE", 15)
    parts = list(adapted_parts(adapter, x, smooth=True))
    assert sorted(np.concatenate([rows for rows, _ in parts])) == list(range(40)) and len(parts) == 3
    for rows, vectors in parts:
        np.testing.assert_allclose(vectors, smooth_rows(adapter.transform(x[rows])), atol=1e-5)
