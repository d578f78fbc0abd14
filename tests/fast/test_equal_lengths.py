"""Encoders that cannot read packed texts embed them in batches of nearly equal length on a CPU."""

import logging
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Dense, Pooling, StaticEmbedding, Transformer
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoConfig, AutoModel

import informin.fast.speed as speed
from informin.fast.speed import batches, speed_up
from informin.model.open import load_model
from tests.conftest import WORDS, make_sentences, tokenizer_of
from tests.fast.test_cpu_threads import cores

TEXTS = ["dog", *make_sentences(30), "the old dog sleeps under the red house and not in the street today", ""]
SIZES = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, initializer_range=0.2)
KINDS = {
    "mpnet": SIZES,
    "deberta-v2": SIZES | dict(relative_attention=True, pos_att_type=["p2c", "c2p"], type_vocab_size=0),
    "t5": dict(d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4),
}


def save_other(kind: str, path, bert) -> str:
    """Save a finished model with another kind of encoder, mean pooling and a Dense module, and return its folder."""
    config = AutoConfig.for_model(kind, vocab_size=5 + len(WORDS), pad_token_id=0, **KINDS[kind])
    torch.manual_seed(1)
    AutoModel.from_config(config).save_pretrained(path / "encoder")
    tokenizer_of(bert).save_pretrained(path / "encoder")
    modules = [Transformer(str(path / "encoder")), Pooling(32, pooling_mode="mean"), Dense(32, 8)]
    prompts = dict(prompts={"query": "the ", "document": ""}, default_prompt_name="query")
    SentenceTransformer(modules=modules, device="cpu", **prompts).save_pretrained(str(path / "model"))
    return str(path / "model")


@pytest.fixture(scope="session", params=KINDS)
def folder(request, tmp_path_factory, bert):
    """Each kind in turn. It differs in the forward pass of its encoder, and what surrounds that is tested with one."""
    return save_other(request.param, tmp_path_factory.mktemp(request.param), bert)


@pytest.fixture(scope="session")
def mpnet(tmp_path_factory, bert):
    return save_other("mpnet", tmp_path_factory.mktemp("mpnet"), bert)


@pytest.fixture
def filled(monkeypatch):
    """The lengths of the texts in each batch of nearly equal length."""
    found, forward = [], speed.SortedInference._forward

    def spy(self, ids, *options, **how):
        found.append([len(text) for text in ids])
        return forward(self, ids, *options, **how)

    monkeypatch.setattr(speed.SortedInference, "_forward", spy)
    return found


def test_embeddings_are_equal(folder, filled, monkeypatch):
    """In one thread and in three, of which each computes a batch."""
    monkeypatch.setattr(speed, "SORTED_TOKENS", 40)
    monkeypatch.setattr(speed, "FEWEST_TOKENS", 0)
    plain, fast = SentenceTransformer(folder, device="cpu"), load_model(folder, device="cpu")
    for how in (dict(truncate_dim=4, normalize_embeddings=True, prompt="red "), dict(convert_to_tensor=True)):
        expected = plain.encode(TEXTS, **how)
        for threads in (1, 3):
            with cores(threads):
                found = fast.encode(TEXTS, **how)
            assert type(found) is type(expected) and found.dtype == expected.dtype
            np.testing.assert_allclose(found, expected, atol=1e-5, err_msg=f"{threads}, {how}")
    np.testing.assert_allclose(fast.encode_document(TEXTS), plain.encode_document(TEXTS), atol=1e-5)
    assert len(filled) > 20 and all(min(lengths) >= 0.9 * max(lengths) for lengths in filled)
    assert max(sum(lengths) for lengths in filled) <= 40


def test_a_prompt_that_the_pooling_leaves_out(mpnet, filled):
    plain, fast = SentenceTransformer(mpnet, device="cpu"), load_model(mpnet, device="cpu")
    with_prompt = fast.encode(TEXTS, prompt="red house ")
    plain[1].include_prompt = fast[1].include_prompt = False
    found = fast.encode(TEXTS, prompt="red house ")
    np.testing.assert_allclose(found, plain.encode(TEXTS, prompt="red house "), atol=1e-5)
    assert filled and not np.allclose(found, with_prompt, atol=1e-3)


@pytest.mark.parametrize(
    "folder, precision", [("mpnet", "bf16"), ("mpnet", "fp16"), ("deberta-v2", "bf16")], indirect=["folder"]
)
def test_half_precision(folder, filled, precision):
    """Pooling, the Dense module and normalization are in float32."""
    exact, rounded = (load_model(folder, precision=each, device="cpu") for each in ("fp32", precision))
    expected, found = (model.encode(TEXTS, normalize_embeddings=True) for model in (exact, rounded))
    assert found.dtype == np.float32 and filled and np.abs(found - expected).max() > 1e-6
    np.testing.assert_allclose(np.linalg.norm(found.astype(np.float64), axis=1), 1, atol=1e-6)
    assert (found * expected).sum(1).min() >= 0.9995


def test_texts_padded_on_the_left(folder, filled):
    """Only an encoder without a table of positions embeds them equally at all."""
    plain, fast = SentenceTransformer(folder, device="cpu"), SentenceTransformer(folder, device="cpu")
    speed_up(fast)
    plain.tokenizer.padding_side = fast.tokenizer.padding_side = "left"
    np.testing.assert_allclose(fast.encode(TEXTS), plain.encode(TEXTS), atol=1e-5)
    assert bool(filled) != speed.has_position_table(fast[0].auto_model)


def test_other_calls_are_computed_as_before(mpnet, filled):
    plain, fast = SentenceTransformer(mpnet, device="cpu"), load_model(mpnet, device="cpu")
    np.testing.assert_array_equal(fast.encode("the dog"), plain.encode("the dog"))
    for value in ("token_embeddings", None):
        found, expected = (model.encode(TEXTS[:3], output_value=value) for model in (fast, plain))
        for one, other in zip(found, expected):
            tokens = "token_embeddings"
            torch.testing.assert_close(one[tokens] if value is None else one, other[tokens] if value is None else other)
    compiled = load_model(mpnet, device="cpu")
    compiled[0].auto_model.forward = compiled[0].auto_model.forward  # as accelerate does
    compiled.encode(TEXTS[:3])
    assert not filled


def test_threads_share_a_model(mpnet):
    """One of them trains it."""
    model = load_model(mpnet, device="cpu")
    expected = model.encode(TEXTS)
    model.train()
    with ThreadPoolExecutor(3) as pool:
        for found in pool.map(lambda number: model.encode(TEXTS, prompt=None, batch_size=number), range(1, 7)):
            np.testing.assert_allclose(found, expected, atol=1e-5)
    assert model.training


def test_calls_that_are_computed_as_before_leave_dropout_on(mpnet):
    """For another thread that trains the model."""
    model = SentenceTransformer(mpnet, device="cpu")
    expected = model.encode("the dog")
    fast = load_model(model.train())
    np.testing.assert_array_equal(fast.encode("the dog"), expected)
    fast.encode(TEXTS[:3], output_value="token_embeddings")
    assert all(module.training for module in model.modules())


def test_it_says_what_it_does(mpnet, st_mean, caplog):
    static = StaticEmbedding(Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]")), embedding_dim=4)
    images = SentenceTransformer(mpnet, device="cpu")
    images[0].processor = None  # an encoder of images has no tokenizer
    with caplog.at_level(logging.INFO, "informin"):
        for model in (
            SentenceTransformer(mpnet, device="cpu"),
            SentenceTransformer(str(st_mean), device="cpu"),
            SentenceTransformer(modules=[static], device="cpu"),
            images,
        ):
            speed_up(model)
    sorts, packs, nothing, neither = (record.message for record in caplog.records)
    assert "nearly equal length" in sorts and "fp32" in sorts and "thread" in sorts
    assert "packed" in packs and "StaticEmbedding" in nothing and "stays" in nothing and "stays" in neither


def test_a_batch_is_filled():
    lengths = torch.tensor([20, 10, 10, 9, 8, 8, 7])
    assert list(batches(lengths, 10, 30, least_filled=0.9)) == [[0], [1, 2, 3], [4, 5], [6]]
    assert list(batches(lengths, 10, 20, least_filled=0.8)) == [[0], [1, 2], [3, 4], [5, 6]]
    assert list(batches(lengths, 10, 60, least_filled=0.9, fewest_tokens=40)) == [[0, 1], [2, 3, 4, 5], [6]]
