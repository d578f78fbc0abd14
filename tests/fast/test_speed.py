"""A model that is sped up gives the embeddings of sentence-transformers, from packed batches on all cores."""

import copy
import sys

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Dense, Pooling, StaticEmbedding, Transformer
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.processors import TemplateProcessing
from transformers import BertConfig, BertModel, ByT5Tokenizer

import informin
import informin.fast.speed as speed
from informin.errors import UsageError
from informin.fast.speed import batches, speed_up
from informin.fast.threads import BATCHES_PER_CORE
from informin.model import embedding
from informin.model.embedding import count_truncated, encode_in_shares
from informin.model.open import load_model
from tests.conftest import FOUR_STEPS, SIZES, how_to_train, make_sentences, raises_usage, save_sentence_transformer
from tests.fast.test_cpu_threads import cores
from trainer_informin import InforMinTrainer

TEXTS = ["dog", *make_sentences(40), "the old dog sleeps under the red house and not in the street today", ""]

# RoBERTa differs from BERT only in its position ids, which pooling does not read.
POOLED = [("bert", "cls"), ("bert", "mean"), ("bert", "lasttoken"), ("roberta", "mean")]


@pytest.fixture
def packed_batches(monkeypatch):
    """The masks of the packed forward passes."""
    masks, pack = [], speed.pack_tokens

    def spy(tokens, mask, *options):
        masks.append(mask)
        return pack(tokens, mask, *options)

    monkeypatch.setattr(speed, "pack_tokens", spy)
    return masks


@pytest.mark.parametrize("encoder, pooling", POOLED, indirect=["encoder"])
def test_embeddings_are_equal(tmp_path, encoder, pooling, packed_batches):
    """In one thread and in three."""
    prompts = dict(prompts={"query": "the ", "document": ""}, default_prompt_name="query")
    torch.manual_seed(1)  # for the Dense module
    folder = str(save_sentence_transformer(tmp_path / "model", encoder, Dense(32, 8), pooling=pooling, **prompts))
    plain, fast = SentenceTransformer(folder, device="cpu"), speed_up(SentenceTransformer(folder, device="cpu"))
    for how in ({}, dict(batch_size=9, truncate_dim=4, normalize_embeddings=True, prompt="red ")):
        expected = plain.encode(TEXTS, **how)
        for threads in (1, 3):
            with cores(threads):
                np.testing.assert_allclose(fast.encode(TEXTS, **how), expected, atol=1e-5, err_msg=f"{threads}, {how}")
    assert packed_batches and fast.encode("the dog").shape == (8,) and len(fast.encode([])) == 0
    np.testing.assert_allclose(fast.encode_query(TEXTS), plain.encode_query(TEXTS), atol=1e-5)
    again = copy.deepcopy(fast)
    again[0].auto_model.embeddings.word_embeddings.weight.data[:, 0] += 1
    assert not np.allclose(again.encode(TEXTS), fast.encode(TEXTS)), "a copy embeds with its own weights"


@pytest.mark.parametrize("encoder, pooling", [("bert", "lasttoken"), ("roberta", "mean")], indirect=["encoder"])
def test_last_hidden_states_are_equal(tmp_path, encoder, pooling, packed_batches):
    folder = str(save_sentence_transformer(tmp_path / "model", encoder, Dense(32, 8), pooling=pooling))
    plain, fast = SentenceTransformer(folder, device="cpu"), speed_up(SentenceTransformer(folder, device="cpu"))
    how = dict(output_value=None, prompt="red ", truncate_dim=4)
    expected, packed = plain.encode(TEXTS, **how), fast.encode(TEXTS, **how)
    assert packed_batches and len(packed) == len(TEXTS)
    for one, other in zip(packed, expected):
        tokens = other["attention_mask"].bool()
        assert one["input_ids"].tolist() == other["input_ids"][tokens].tolist()
        assert one["attention_mask"].all() and len(one["attention_mask"]) == len(one["input_ids"])
        torch.testing.assert_close(one["token_embeddings"], other["token_embeddings"][tokens], atol=5e-5, rtol=0)
        torch.testing.assert_close(one["sentence_embedding"], other["sentence_embedding"], atol=5e-5, rtol=0)


def test_autocast_of_the_caller_is_used(st_mean):
    fast = load_model(st_mean)
    exact = fast.encode(TEXTS)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = fast.encode(TEXTS)
    assert rounded.dtype == np.float32 and 1e-5 < np.abs(rounded - exact).max() < 0.05


@pytest.mark.parametrize("pooling", ["max", "weightedmean", "mean_sqrt_len_tokens"])
def test_every_pooling_is_packed(tmp_path, bert, pooling, packed_batches):
    folder = str(save_sentence_transformer(tmp_path / "model", bert, pooling=pooling))
    plain, fast = SentenceTransformer(folder, device="cpu"), speed_up(SentenceTransformer(folder, device="cpu"))
    np.testing.assert_allclose(fast.encode(TEXTS), plain.encode(TEXTS), atol=1e-5)
    assert packed_batches


def test_other_calls_are_computed_as_before(st_mean, packed_batches):
    fast, plain = load_model(st_mean), SentenceTransformer(str(st_mean), device="cpu")
    for one, other in zip(*(m.encode(TEXTS[:3], output_value="token_embeddings") for m in (fast, plain))):
        torch.testing.assert_close(one, other)
    assert not packed_batches
    fast.tokenizer.padding_side = "left"
    fast.encode(TEXTS)
    assert not packed_batches, "positions of packed batches are those of padding on the right"


def test_a_text_without_tokens_is_embedded_as_before(st_mean, packed_batches):
    fast, plain = load_model(st_mean), SentenceTransformer(str(st_mean), device="cpu")
    for model in (fast, plain):
        model.tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="$A", special_tokens=[])
    np.testing.assert_allclose(fast.encode(TEXTS), plain.encode(TEXTS), atol=1e-5)
    assert not packed_batches


def test_a_prompt_that_the_pooling_leaves_out(tmp_path, bert, packed_batches):
    folder = str(save_sentence_transformer(tmp_path / "model", bert))
    plain, fast = SentenceTransformer(folder, device="cpu"), speed_up(SentenceTransformer(folder, device="cpu"))
    plain[1].include_prompt = fast[1].include_prompt = False
    with_prompt = fast.encode(TEXTS, prompt="red house ")
    np.testing.assert_allclose(with_prompt, plain.encode(TEXTS, prompt="red house "), atol=1e-5)
    fast[1].include_prompt = True
    assert packed_batches and not np.allclose(with_prompt, fast.encode(TEXTS, prompt="red house "), atol=1e-3)


@pytest.mark.parametrize("place", ["model", "transformer", "layer", "embeddings", "pooling"])
def test_hooks_of_every_module_are_called(st_mean, place, packed_batches):
    """Each hook changes the output of its module."""
    plain, fast = (
        SentenceTransformer(str(st_mean), device="cpu"),
        speed_up(SentenceTransformer(str(st_mean), device="cpu")),
    )
    without = fast.encode(TEXTS)

    def scaled(module, given, output):
        if isinstance(output, torch.Tensor):
            return output * torch.linspace(0.5, 2, output.shape[-1])
        name = next(name for name in ("sentence_embedding", "token_embeddings", "last_hidden_state") if name in output)
        output[name] = output[name] * torch.linspace(0.5, 2, output[name].shape[-1])
        return output

    for model in (plain, fast):
        encoder = model[0].auto_model
        places = {"model": model, "transformer": model[0], "encoder": encoder, "layer": encoder.encoder.layer[0]}
        places |= {"embeddings": encoder.embeddings.word_embeddings, "pooling": model[1]}
        places[place].register_forward_hook(scaled)
    np.testing.assert_allclose(fast.encode(TEXTS), plain.encode(TEXTS), atol=1e-5)
    assert packed_batches and not np.allclose(fast.encode(TEXTS), without, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_embeddings_have_the_data_type_of_the_model_or_float32(st_mean, dtype, packed_batches):
    plain, fast = (
        SentenceTransformer(str(st_mean), device="cpu"),
        speed_up(SentenceTransformer(str(st_mean), device="cpu")),
    )
    plain, fast = plain.to(dtype), fast.to(dtype)
    found, expected = (model.encode(TEXTS, convert_to_tensor=True) for model in (fast, plain))
    is_half = dtype == torch.bfloat16
    assert expected.dtype == dtype and found.dtype == (torch.float32 if is_half else dtype) and packed_batches
    torch.testing.assert_close(found, expected, atol=0.05 if is_half else 1e-5, rtol=0, check_dtype=False)
    assert fast.encode(TEXTS).dtype == (np.float32 if is_half else plain.encode(TEXTS).dtype)


@pytest.mark.parametrize("use", ["load_model", "embed", "fit", "evaluate", "trainer", "guide"])
def test_a_model_that_is_passed_in_comes_back_as_it_was(tmp_path, st_mean, use):
    """It embeds bit-equal, by its own code, with its own attention and settings."""
    model = SentenceTransformer(str(st_mean), device="cpu")
    expected = model.encode(TEXTS)  # which sets the evaluation mode
    before = dict(vars(model))
    config = model[0].auto_model.config.to_dict()
    texts, labels = make_sentences(40), tmp_path / "labels.tsv"
    labels.write_text("text\tlabel\n" + "".join(f"{text}\t{i % 2}\n" for i, text in enumerate(texts)))
    how = FOUR_STEPS | dict(eval_strategy="no", save_strategy="no", report_to=[], learning_rate=0.0, max_steps=1)
    out = str(tmp_path / "out")
    if use == "load_model":
        load_model(model).encode(TEXTS)
    elif use == "embed":
        informin.embed(model, texts)
    elif use == "fit":
        informin.fit(model, texts, task="clustering")
    elif use == "evaluate":
        informin.evaluate(model, labels=labels)
    elif use == "trainer":
        InforMinTrainer(model, train_dataset=texts, **how_to_train(out, objective="simcse", **how)).train()
    else:
        InforMinTrainer(model, train_dataset=texts, **how_to_train(out, objective="guided", **how)).train()
    assert vars(model).keys() == before.keys()
    for name, value in before.items():
        assert vars(model)[name] is value or vars(model)[name] == value, name
    assert model[0].auto_model.config.to_dict() == config
    np.testing.assert_array_equal(model.encode(TEXTS), expected)


def test_a_tokenizer_in_python_stays_as_it_was(tmp_path):
    """`load_model` lets its own copy pad on the right, and truncate texts to the positions of the encoder."""
    BertModel(BertConfig(vocab_size=384, **SIZES)).save_pretrained(tmp_path)
    ByT5Tokenizer().save_pretrained(tmp_path)
    transformer = Transformer(str(tmp_path))
    model = SentenceTransformer(modules=[transformer, Pooling(SIZES["hidden_size"])], device="cpu")
    tokenizer = model.tokenizer
    tokenizer.padding_side, tokenizer.model_max_length = "left", 100
    assert not tokenizer.is_fast
    opened = load_model(model)
    assert (opened.tokenizer.padding_side, opened.tokenizer.model_max_length) == ("right", 66)
    assert model.tokenizer is tokenizer and (tokenizer.padding_side, tokenizer.model_max_length) == ("left", 100)
    assert opened.tokenizer(TEXTS)["input_ids"] == tokenizer(TEXTS)["input_ids"]


def test_batches_are_limited_by_texts_and_tokens():
    lengths = torch.tensor([3, 40, 10, 10, 10, 2, 2])
    assert list(batches(lengths, 3, 30)) == [[1], [2, 3, 4], [0, 5, 6]]
    assert list(batches(lengths, 2, 30)) == [[1], [2, 3], [4, 0], [5, 6]]


def test_half_precision_has_larger_batches(st_mean, packed_batches):
    texts = make_sentences(96)
    for precision, most in (("fp32", 4), ("bf16", 96 // BATCHES_PER_CORE)):
        packed_batches.clear()
        model = speed_up(SentenceTransformer(str(st_mean), device="cpu"), precision=precision)
        with cores(1):
            embeddings = model.encode(texts, batch_size=4)
        assert {len(mask) for mask in packed_batches} == {most}
        np.testing.assert_allclose(embeddings, SentenceTransformer(str(st_mean), device="cpu").encode(texts), atol=0.02)


def test_the_parts_of_a_long_list_are_tokenized_one_after_another(st_mean, monkeypatch):
    fast = load_model(st_mean)
    whole = fast.encode(TEXTS)
    monkeypatch.setattr(speed, "TOKENIZED_AT_ONCE", 7)
    np.testing.assert_allclose(fast.encode(TEXTS), whole, atol=1e-5)


# Embedding for commands


def test_sides_have_their_prompts(tmp_path, bert):
    prompts = {"query": "the ", "passage": "red "}
    model = load_model(save_sentence_transformer(tmp_path / "model", bert, prompts=prompts))
    for side, prompt in (("query", "the "), ("document", "red "), (None, "")):
        expected = model.encode([prompt + text for text in TEXTS])
        np.testing.assert_allclose(encode_in_shares(model, TEXTS, side=side), expected, atol=1e-5)
        np.testing.assert_allclose(encode_in_shares(model, TEXTS, side=side, prompt=""), model.encode(TEXTS), atol=1e-5)


def test_progress_counts_texts_and_chunks_keep_the_order(st_mean, monkeypatch):
    monkeypatch.setattr(embedding, "TEXTS_PER_CALL", 7)
    model, counts = load_model(st_mean), []
    np.testing.assert_allclose(encode_in_shares(model, TEXTS, progress=counts.append), model.encode(TEXTS), atol=1e-5)
    assert sum(counts) == len(TEXTS) and max(counts) == 7
    assert encode_in_shares(model, []).shape == (0, 32)


@pytest.mark.parametrize("kind", ["st_mean", "static"])
def test_the_bar_moves_with_each_batch_and_the_model_stays_as_it_was(st_mean, kind, monkeypatch):
    model = load_model(st_mean)
    if kind == "static":
        tokenizer = Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
        model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=4)], device="cpu")
    moves = []
    monkeypatch.setattr("informin.model.embedding.hidden", lambda: False)

    def update(bar, rows: int) -> None:
        if not bar.disable:
            moves.append(rows)

    monkeypatch.setattr("informin.model.embedding.tqdm.update", update)
    encode_in_shares(model, [f"the dog {number}" for number in range(64)], batch_size=4)
    assert len(moves) == 16 and sum(moves) == 64
    assert not model[-1]._forward_hooks


def test_truncated_texts_are_counted(st_mean):
    model = load_model(st_mean, max_seq_length=6)
    assert count_truncated(model, ["the dog sees the cat", "the dog sees the", "dog"]) == 1
    assert count_truncated(model, ["the dog sees the"], prompt="old ") == 1


def test_long_texts_are_counted_in_blocks(st_mean, monkeypatch):
    """The tokens of a million long texts do not fit in memory."""
    model, sizes = load_model(st_mean, max_seq_length=6), []
    count = type(model.tokenizer).__call__

    def spy(tokenizer, texts, **options):
        sizes.append(len(texts))
        return count(tokenizer, texts, **options)

    monkeypatch.setattr(type(model.tokenizer), "__call__", spy)
    monkeypatch.setattr("informin.model.embedding.TEXTS_PER_CALL", 4)
    assert count_truncated(model, ["the dog sees the cat", "the dog sees the", "dog"] * 5) == 5
    assert max(sizes) <= 4


def test_texts_take_no_more_memory_after_they_were_embedded(st_mean):
    """A tokenizer that reads a string that is not ASCII leaves its UTF-8 bytes with the string."""
    model, texts = load_model(st_mean, device="cpu"), [f"the döner sees the cat {number}" * 9 for number in range(9)]
    before = [sys.getsizeof(text) for text in texts]
    encode_in_shares(model, texts)
    assert [sys.getsizeof(text) for text in texts] == before


def test_an_embedding_that_is_not_finite_is_an_error(st_mean):
    model = load_model(st_mean)
    model[0].auto_model.encoder.layer[0].output.dense.weight.data[0, 0] = float("nan")
    with pytest.raises(UsageError):
        encode_in_shares(model, TEXTS)


def test_a_text_is_not_a_boolean(st_mean):
    """bf16="false" would otherwise mean true."""
    with raises_usage(option="bf16"):
        speed_up(SentenceTransformer(str(st_mean), device="cpu"), bf16="false")
