"""On a CPU, each core trains on its own part of a packed batch, with the gradient of one thread."""

import shutil
import threading

import numpy as np
import pytest
import torch
from transformers import AutoModel

from informin.fast.forward import FastForward
from informin.fast.masks import NumpyDropout, keep_mask
from informin.fast.packing import pack, packed_copy
from informin.fast.plan import Plan
from informin.fast.threads import number_of_parts
from informin.model.open import load_model
from tests.conftest import FOUR_STEPS, how_to_train, make_sentences, raises_usage, tokenizer_of
from tests.fast.test_cpu_threads import cores
from trainer_informin import InforMinTrainer

CORES = 3
SENTENCES = ["dog", *make_sentences(20), "the dog", "today"]


def batch_of(folder, sentences=SENTENCES) -> tuple[torch.Tensor, torch.Tensor]:
    batch = tokenizer_of(folder)(sentences, padding=True, return_tensors="pt")
    return batch["input_ids"], batch["attention_mask"]


def forward_of(folder, threads: int, pooling: str = "mean") -> FastForward:
    """Return the packed forward pass of a model, in evaluation mode, with a number of parts."""
    st = load_model(folder, pooler=pooling, device="cpu")
    return FastForward(st, Plan(packs=True, device=torch.device("cpu"), threads=threads))


def run(forward: FastForward, folder, labels=None, sentences=SENTENCES) -> list[torch.Tensor]:
    """Return the embeddings, and the hidden states of labeled tokens if there are labels."""
    ids, mask = batch_of(folder, sentences)
    rows = {"input_ids": ids, "attention_mask": mask, "lm_labels": labels, "sentence_ids": torch.arange(len(ids))}
    embeddings, _, tokens, _ = forward.run(forward.split(rows))
    return [embeddings] if tokens is None else [embeddings, tokens]


def gradients(encoder, *outputs: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the gradients of the weights, for a function whose gradient differs at every number."""
    encoder.zero_grad()
    numbers = torch.cat([x.flatten() for x in outputs])
    (torch.linspace(-1, 1, len(numbers)) * numbers.sin()).mean().backward()
    return {name: x.grad.clone() for name, x in encoder.named_parameters() if x.grad is not None}


def test_parts_have_all_sentences_and_about_the_same_number_of_tokens(bert):
    lengths = torch.tensor([3, 9, 1, 4, 4, 7, 2, 2, 5])
    mask = (torch.arange(9) < lengths[:, None]).long()
    parts = forward_of(bert, CORES)._rows_of_parts(mask, len(mask))
    assert len(parts) == CORES and sorted(torch.cat(list(parts)).tolist()) == list(range(9))
    assert all(abs(lengths[rows].sum() - mask.sum() / CORES) <= lengths.max() for rows in parts)
    few = forward_of(bert, 8)._rows_of_parts(torch.ones(2, 5, dtype=torch.long), 2)
    assert [len(rows) for rows in few] == [1, 1]


@pytest.mark.parametrize("chunk, expected", [(6, [2, 2, 2]), (4, [1, 1, 1, 1, 1, 1]), (20, [6])])
def test_a_chunk_has_all_views_of_its_sentences(bert, chunk, expected):
    forward = forward_of(bert, 1)
    forward.plan.chunk_size = chunk
    parts = forward._rows_of_parts(torch.ones(18, 5, dtype=torch.long), 6)
    assert [len(rows) // 3 for rows in parts] == expected
    assert all((rows.view(3, -1) % 6 == rows.view(3, -1)[0]).all() for rows in parts)


# RoBERTa differs from BERT only in its position ids, which pooling does not read.
@pytest.mark.parametrize(
    "encoder, pooling, selected",
    [("bert", "cls", True), ("bert", "mean", False), ("bert", "last", True), ("roberta", "mean", True)],
    indirect=["encoder"],
)
def test_outputs_and_gradients_equal_those_of_one_thread(encoder, pooling, selected):
    _, mask = batch_of(encoder)
    chosen = mask.bool() & (torch.rand(mask.shape) < 0.3)
    labels = torch.where(chosen, torch.arange(mask.numel()).view_as(mask), -100) if selected else None
    one, parts = forward_of(encoder, 1, pooling), forward_of(encoder, CORES, pooling)
    whole = run(one, encoder, labels)
    with cores(CORES):
        found = run(parts, encoder, labels)
        own = gradients(parts.st, *(x.sort(dim=0).values for x in found))
    expected = gradients(one.st, *(x.sort(dim=0).values for x in whole))
    torch.testing.assert_close(found[0], whole[0], atol=5e-5, rtol=0)
    for x, y in zip(found[1:], whole[1:]):  # in the order of the parts
        torch.testing.assert_close(x.sort(dim=0).values, y.sort(dim=0).values, atol=5e-5, rtol=0)
    assert own.keys() == expected.keys() and len(own) > 10
    for weight in own:
        torch.testing.assert_close(own[weight], expected[weight], atol=1e-5, rtol=1e-4, msg=weight)


def test_labels_come_in_the_order_of_the_hidden_states(bert):
    """With the word embeddings as hidden states, each labeled token is found by its own id."""
    ids, mask = batch_of(bert)
    labels = torch.where(mask.bool() & (torch.rand(mask.shape) < 0.4), ids, -100)
    for threads, packs in ((1, False), (1, True), (CORES, True)):
        forward = forward_of(bert, threads)
        forward.plan.packs = packs
        forward.st[0].auto_model.encoder.layer = torch.nn.ModuleList()
        table = forward.st[0].auto_model.embeddings
        table.LayerNorm = torch.nn.Identity()
        for other in (table.position_embeddings, table.token_type_embeddings):
            torch.nn.init.zeros_(other.weight)
        rows = {"input_ids": ids, "attention_mask": mask, "lm_labels": labels, "sentence_ids": torch.arange(len(ids))}
        batch = forward.split(rows)
        with cores(threads):
            _, _, tokens, _ = forward.run(batch)
        assert len(batch.labels) == (labels >= 0).sum() > 10
        torch.testing.assert_close(tokens, table.word_embeddings.weight[batch.labels])


@pytest.mark.parametrize("number, parts", [(CORES, 3), (8, 4), (10, 2)])
def test_each_part_has_a_thread_with_its_share_of_cores_and_the_settings_of_the_caller(bert, number, parts):
    forward, seen = forward_of(bert, parts), []

    def spy(*_):
        state = torch.get_num_threads(), torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")
        seen.append((threading.get_ident(), *state))

    forward.st[0].auto_model.encoder.layer[0].register_forward_hook(spy)
    with cores(number), torch.autocast("cpu", torch.bfloat16):
        run(forward, bert)
        assert torch.get_num_threads() == number
    assert len(seen) == parts and threading.get_ident() not in {thread for thread, *_ in seen}
    assert {tuple(state) for _, *state in seen} == {(number // parts, True, True)}
    seen.clear()
    with cores(number), torch.no_grad():
        assert not run(forward, bert)[0].requires_grad
    assert {tuple(state) for _, *state in seen} == {(number // parts, False, False)}


def test_cores_that_cannot_be_shared_out_compute_together():
    assert [number_of_parts(cores) for cores in (1, 2, 3, 4, 5, 6, 7, 64)] == [1, 2, 3, 4, 1, 3, 1, 4]


def test_frozen_weights_get_no_gradient(bert):
    forward = forward_of(bert, CORES)
    frozen = forward.st[0].auto_model.encoder.layer[0].requires_grad_(False)
    with cores(CORES):
        found = gradients(forward.st[0].auto_model, *run(forward, bert))
    assert "embeddings.word_embeddings.weight" in found and "encoder.layer.1.output.dense.weight" in found
    assert all(x.grad is None for x in frozen.parameters())


# Dropout


def test_same_seed_gives_the_same_masks_and_parts_have_different_ones(bert):
    forward = forward_of(bert, CORES)
    forward.st.train()
    found = []
    with cores(CORES):
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            (embeddings,) = run(forward, bert, sentences=["the dog sleeps"] * CORES)
            found.append((embeddings, gradients(forward.st, embeddings)))
    (once, first), (again, second), (other, _) = found
    assert once.equal(again) and all(first[name].equal(second[name]) for name in first) and not once.equal(other)
    assert len({tuple(row.tolist()) for row in once}) == CORES


def test_mask_has_the_rate_and_keeps_the_mean():
    generator = np.random.default_rng(0)
    for rate in (0.1, 0.5):
        mask = keep_mask(torch.empty(1001, 999), rate, generator)
        assert (mask == 0).double().mean().item() == pytest.approx(rate, abs=2e-3)
        assert mask.double().mean().item() == pytest.approx(1, abs=2e-3) and len(mask.unique()) == 2
    assert not keep_mask(torch.empty(5, 5), 1.0, generator).any()
    halves = keep_mask(torch.empty(1000, 1000), 0.5, generator) > 0
    assert (halves[:, 1:] == halves[:, :-1]).double().mean().item() == pytest.approx(0.5, abs=3e-3)


def test_all_dropout_of_an_encoder_uses_the_generator(bert):
    encoder = AutoModel.from_pretrained(bert).train()
    row = pack(*batch_of(bert)).features()
    before = torch.get_rng_state()
    modules = [module for module in encoder.modules() if isinstance(module, torch.nn.Dropout)]
    for module in modules:
        for other in modules:
            other.p = 0.5 if other is module else 0.0
        found = []
        for seed in (1, 1, 2):
            with NumpyDropout(seed):
                found.append(packed_copy(encoder)(**row).last_hidden_state)
        assert found[0].equal(found[1]) and not found[0].equal(found[2])
    assert torch.get_rng_state().equal(before)


@pytest.mark.parametrize(
    "causal, masked, heads", [(False, None, 4), (True, None, 4), (False, bool, 2), (False, float, 4)]
)
def test_attention_with_own_dropout_equals_that_of_pytorch(causal, masked, heads):
    query = torch.randn(2, 4, 5, 8)
    key, value = torch.randn(2, 2, heads, 5, 8)
    seen = torch.ones(5, 5, dtype=torch.bool).tril(1)
    mask = {None: None, bool: seen, float: torch.where(seen, 0.0, -9.0)}[masked]
    how = {"attn_mask": mask, "is_causal": causal, "scale": None if causal else 0.3, "enable_gqa": heads < 4}
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, **how)
    found = NumpyDropout()._attention(query, key, value, dropout_p=0.0, **how)
    torch.testing.assert_close(found, expected)


# Training


def trainer_of(folder, output_dir, **options) -> InforMinTrainer:
    how = FOUR_STEPS | dict(objective="simcse", eval_strategy="no", save_strategy="no", report_to=[]) | options
    return InforMinTrainer(str(folder), train_dataset=make_sentences(96), **how_to_train(str(output_dir), **how))


@pytest.mark.parametrize(
    "options, expected",
    [
        (
            dict(mlm_weight=0.1, view_dropout=[0.1, 0.2], attention_mi_weight=0.1),
            {"padding_free": True, "cpu_parts": 2},
        ),
        (dict(gradient_cache_chunk_size=8), {"padding_free": True}),
        (dict(bf16=True), {"padding_free": True, "cpu_parts": 2}),
        (dict(padding_free=False), {}),
        (dict(attention_mi_weight=0.1, attention_mi_form="code"), {}),
    ],
    ids=str,
)
def test_parts_are_used_where_supported(bert, tmp_path, options, expected):
    with cores(2):
        assert trainer_of(bert, tmp_path, **options).trained.packing == expected


def test_resumed_run_is_bit_equal_on_the_same_number_of_cores(bert, tmp_path):
    """Workers of the data loader start in a process that has threads already."""
    workers = dict(dataloader_num_workers=2, dataloader_multiprocessing_context="fork")
    # The first epoch has 3 steps.
    saves = dict(per_device_train_batch_size=32, save_strategy="steps", save_steps=2, save_total_limit=3, max_steps=4)
    saves |= dict(mlm_weight=0.1, **workers)
    with cores(2):
        whole = trainer_of(bert, tmp_path / "whole", **saves)
        whole.train()
        shutil.copytree(tmp_path / "whole" / "checkpoint-2", tmp_path / "run" / "checkpoint-2")
        resumed = trainer_of(bert, tmp_path / "run", **saves)
        resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    weights = resumed.model.state_dict()
    assert all(x.equal(weights[name]) for name, x in whole.model.state_dict().items())


def test_another_number_of_parts_is_refused(bert, tmp_path):
    """The dropout masks would differ."""
    saves = dict(save_strategy="steps", save_steps=1, max_steps=2)
    with cores(2):
        trainer_of(bert, tmp_path / "run", **saves).train()
    shutil.rmtree(tmp_path / "run" / "checkpoint-2")
    with cores(1):
        trainer = trainer_of(bert, tmp_path / "run", **saves)
        with raises_usage(option="resume_from_checkpoint", found="OMP_NUM_THREADS"):
            trainer.train(resume_from_checkpoint=True)
