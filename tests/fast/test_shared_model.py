"""Threads share a model: each gets the numbers of one thread, and no call changes a setting that another one reads."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

import informin
from informin.fast.threads import BATCHES_PER_CORE, parallel_map
from informin.model.embedding import bar_of_texts, count_truncated
from informin.model.open import load_model
from tests.conftest import make_sentences, save_sentence_transformer
from tests.fast.test_cpu_threads import CORES, cores, in_new_thread

TEXTS = make_sentences(12)
THREADS = 8


def together(model: SentenceTransformer, number: int = THREADS) -> None:
    """Let forward passes of a number of threads wait for each other before the first layer."""
    model.encode(TEXTS)  # the first call tries whether the model can be packed
    meet = threading.Barrier(number, timeout=60)
    model[0].auto_model.encoder.layer[0].register_forward_pre_hook(lambda *_: (meet.wait(), None)[1])


def in_threads(calls: list) -> list:
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(timeout=120) for future in [pool.submit(call) for call in calls]]


def numbers(outputs) -> np.ndarray:
    """Return the embeddings, or the hidden states of the tokens, that `encode` returns."""
    if isinstance(outputs, np.ndarray):
        return outputs
    if isinstance(outputs[0], dict):
        return np.concatenate([one["token_embeddings"][one["attention_mask"].bool()].numpy() for one in outputs])
    return np.concatenate([one.numpy() for one in outputs])


def test_eight_threads_get_the_numbers_of_one(st_mean):
    fast, plain = load_model(st_mean, device="cpu"), SentenceTransformer(str(st_mean), device="cpu")
    kinds = ["sentence_embedding", "token_embeddings", None, "sentence_embedding"]
    how = [dict(sentences=TEXTS[place:], output_value=kinds[place % 4]) for place in range(THREADS)]
    expected = [numbers(plain.encode(**one)) for one in how]
    together(fast)
    found = in_threads([lambda one=one: numbers(fast.encode(**one)) for one in how])
    for own, other in zip(found, expected):
        np.testing.assert_allclose(own, other, rtol=1e-5, atol=1e-5)


def test_each_of_two_models_keeps_its_numbers(tmp_path, bert, st_mean):
    folders = [str(st_mean), str(save_sentence_transformer(tmp_path / "cls", bert, pooling="cls"))]
    models = [load_model(folder, device="cpu") for folder in folders]
    expected = [SentenceTransformer(folder, device="cpu").encode(TEXTS) for folder in folders]
    for model in models:
        together(model, THREADS // 2)
    found = in_threads([lambda place=place: models[place % 2].encode(TEXTS) for place in range(THREADS)])
    for place, own in enumerate(found):
        np.testing.assert_allclose(own, expected[place % 2], rtol=1e-5, atol=1e-5)


def test_one_trains_while_another_encodes(st_mean):
    """The same model: dropout stays on in training, with the masks of a step alone."""
    model = informin.speed_up(SentenceTransformer(str(st_mean), device="cpu"))
    rows = model.preprocess(TEXTS)
    weight = model[0].auto_model.encoder.layer[1].output.dense.weight
    expected = model.encode(TEXTS)

    def step() -> torch.Tensor:
        torch.manual_seed(0)
        loss = model(dict(rows))["sentence_embedding"].square().sum()
        return torch.autograd.grad(loss, weight)[0]

    model.train()
    alone = step()
    together(model, 2)
    gradient, embeddings = in_threads([step, lambda: model.encode(TEXTS)])
    assert gradient.equal(alone) and alone.any() and all(module.training for module in model.modules())
    np.testing.assert_allclose(embeddings, expected, rtol=1e-5, atol=1e-5)


def test_encode_changes_no_setting_of_the_model(st_mean):
    """Neither for the time of a call: the settings are read during the forward pass."""
    model = load_model(st_mean, device="cpu")
    model.encode(TEXTS)  # the first call tries whether the model can be packed
    model.encode(TEXTS, output_value="token_embeddings")  # which pads
    encoder, backend = model[0].auto_model, model.tokenizer.backend_tokenizer

    def settings() -> tuple:
        return encoder.config._attn_implementation, encoder.training, backend.padding, backend.truncation

    before, during = settings(), []
    encoder.encoder.layer[0].register_forward_hook(lambda *_: during.append(settings()))
    model.encode(TEXTS)
    assert count_truncated(model, ["the dog " * 300]) == 1
    assert during == [before] and settings() == before


def test_only_the_texts_of_a_call_move_its_bar(st_mean, monkeypatch):
    model, moves = load_model(st_mean, device="cpu"), []
    monkeypatch.setattr("informin.model.embedding.hidden", lambda: False)

    def update(bar, rows: int) -> None:
        if not bar.disable:
            moves.append((bar.total, rows))

    monkeypatch.setattr("informin.model.embedding.tqdm.update", update)
    with bar_of_texts(model, 3) as one, bar_of_texts(model, 5) as other:
        one.encode(TEXTS[:3])
        other.encode(TEXTS[:5])
        model.encode(TEXTS)
    assert moves == [(3, 3), (5, 5)]


def test_workers_leave_the_number_of_threads_of_others():
    """PyTorch gives a new thread the number that any thread set last."""
    meet = threading.Barrier(CORES + 1, timeout=60)
    number = BATCHES_PER_CORE * CORES

    def wait(batch: int) -> None:
        for _ in range(2 * (batch < CORES)):
            meet.wait()

    def look() -> int:
        meet.wait()
        found = in_new_thread(torch.get_num_threads)
        meet.wait()
        return found

    with cores(CORES), ThreadPoolExecutor(1) as pool, parallel_map(number) as run:
        other = pool.submit(look)
        list(run(wait, range(number)))
        assert other.result() == CORES


@pytest.mark.parametrize("how", [{}, dict(prompt="red "), dict(normalize_embeddings=True)])
def test_outputs_of_every_kind_have_the_keys_of_sentence_transformers(tmp_path, bert, how):
    folder = str(save_sentence_transformer(tmp_path / "model", bert, pooling="mean"))
    fast, plain = load_model(folder, device="cpu"), SentenceTransformer(folder, device="cpu")
    own, other = (model.encode(TEXTS, output_value=None, **how) for model in (fast, plain))
    assert [set(one) for one in own] == [set(one) for one in other]
    for one, expected in zip(own, other):
        there = expected["attention_mask"].bool()
        assert one["token_type_ids"].equal(expected["token_type_ids"][there]) and one["modality"] == "text"
        assert one.get("prompt_length") == expected.get("prompt_length")
        torch.testing.assert_close(one["sentence_embedding"], expected["sentence_embedding"], rtol=1e-5, atol=1e-6)
