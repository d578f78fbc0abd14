"""On a CPU, each core trains on its own part of a packed batch, with the gradient of one thread."""

import shutil
import threading

import pytest
import torch
from transformers import AutoModel

import modeling_informin
from informin.models import cpu_parts
from informin.models.cpu_parts import OwnDropout, keep_mask, packed_forward_in_parts
from informin.models.packing import Packed, layer_forward, packed_forward, run_layers
from tests.conftest import FOUR_STEPS, how_to_train, make_sentences, raises_usage, tokenizer_of
from tests.models.test_cpu_threads import cores
from trainer_informin import InforMinTrainer

CORES = 3
SENTENCES = ["dog", *make_sentences(20), "the dog", "today"]


def batch_of(folder, sentences=SENTENCES) -> tuple[torch.Tensor, torch.Tensor]:
    batch = tokenizer_of(folder)(sentences, padding=True, return_tensors="pt")
    return batch["input_ids"], batch["attention_mask"]


def gradients(encoder, *outputs: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """Return the gradients of the weights, for a function whose gradient differs at every number."""
    encoder.zero_grad()
    numbers = torch.cat([x.flatten() for x in outputs if x is not None])
    (torch.linspace(-1, 1, len(numbers)) * numbers.sin()).mean().backward()
    return {name: x.grad.clone() for name, x in encoder.named_parameters() if x.grad is not None}


def test_parts_have_all_sentences_and_about_the_same_number_of_tokens():
    lengths = torch.tensor([3, 9, 1, 4, 4, 7, 2, 2, 5])
    mask = (torch.arange(9) < lengths[:, None]).long()
    packed = Packed.of(mask)
    parts = packed.split(CORES)
    assert len(parts) == CORES
    assert torch.cat([part.order for part in parts]).equal(packed.order)
    assert torch.cat([part.at for part in parts]).equal(packed.at)
    assert all(abs(len(part.at) - mask.sum() / CORES) <= lengths.max() for part in parts)
    for part in parts:
        own = lengths[part.order]
        assert [length for number, length in part.runs for _ in range(number)] == own.tolist()
        assert part.starts.equal(own.cumsum(0) - own)


def test_few_sentences_have_few_parts():
    assert [len(part.order) for part in Packed.of(torch.ones(2, 5, dtype=torch.long)).split(8)] == [1, 1]
    (whole,) = Packed.of(torch.ones(2, 5, dtype=torch.long)).split(1)
    assert whole.runs == [(2, 5)]


@pytest.mark.parametrize("selected", [False, True], ids=["", "selected tokens"])
@pytest.mark.parametrize("pooling", modeling_informin.POOLINGS)
def test_outputs_and_gradients_equal_those_of_one_thread(encoder, pooling, selected):
    ids, mask = batch_of(encoder)
    encoder = AutoModel.from_pretrained(encoder).eval()
    wanted = mask.bool() & (torch.rand(mask.shape) < 0.3) if selected else None
    one = packed_forward(encoder, ids, mask, pooling, wanted)
    with cores(CORES):
        parts = packed_forward_in_parts(encoder, ids, mask, pooling, wanted)
    for x, expected in zip(parts, one):
        assert (x is None) == (expected is None)
        if x is not None:
            torch.testing.assert_close(x, expected, atol=1e-5, rtol=0)
    with cores(CORES):
        found = gradients(encoder, *parts)
    whole = gradients(encoder, *one)
    assert found.keys() == whole.keys() and len(found) > 10
    for weight in found:
        torch.testing.assert_close(found[weight], whole[weight], atol=1e-6, rtol=0, msg=weight)


@pytest.mark.parametrize("number, parts", [(CORES, 3), (8, 4), (10, 2)])
def test_each_part_has_a_thread_with_its_share_of_cores_and_the_settings_of_the_caller(
    bert, monkeypatch, number, parts
):
    encoder = AutoModel.from_pretrained(bert).train()
    seen = []

    def spy(*args):
        hidden = run_layers(*args)
        state = torch.get_num_threads(), torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")
        seen.append((threading.get_ident(), *state))
        return hidden

    monkeypatch.setattr(cpu_parts, "run_layers", spy)
    with cores(number), torch.autocast("cpu", torch.bfloat16):
        packed_forward_in_parts(encoder, *batch_of(bert), "mean")
        assert torch.get_num_threads() == number
    assert len(seen) == parts and threading.get_ident() not in {thread for thread, *_ in seen}
    assert {tuple(state) for _, *state in seen} == {(number // parts, True, True)}
    seen.clear()
    with cores(number), torch.no_grad():
        assert not packed_forward_in_parts(encoder, *batch_of(bert), "mean")[0].requires_grad
    assert {tuple(state) for _, *state in seen} == {(number // parts, False, False)}


def test_cores_that_cannot_be_shared_out_compute_together():
    assert [cpu_parts.number_of_parts(cores) for cores in (1, 2, 3, 4, 5, 6, 7, 64)] == [1, 2, 3, 4, 1, 3, 1, 4]


def test_frozen_weights_get_no_gradient(bert):
    encoder = AutoModel.from_pretrained(bert)
    frozen = encoder.encoder.layer[0].requires_grad_(False)
    with cores(CORES):
        found = gradients(encoder, packed_forward_in_parts(encoder, *batch_of(bert), "mean")[0])
    assert "embeddings.word_embeddings.weight" in found and "encoder.layer.1.output.dense.weight" in found
    assert all(x.grad is None for x in frozen.parameters())


def test_one_thread_is_bit_equal_with_dropout(bert):
    encoder = AutoModel.from_pretrained(bert).train()
    found = []
    for forward in (packed_forward, packed_forward_in_parts):
        torch.manual_seed(1)
        with cores(1):
            embeddings, _ = forward(encoder, *batch_of(bert), "mean")
            found.append([embeddings, *gradients(encoder, embeddings).values(), torch.get_rng_state()])
    assert len(found[0]) > 10 and all(x.equal(y) for x, y in zip(*found))


# Dropout


def test_same_seed_gives_the_same_masks_and_parts_have_different_ones(bert):
    encoder = AutoModel.from_pretrained(bert).train()
    encoder.embeddings.dropout.p = 0.0
    batch = batch_of(bert, ["the dog sleeps"] * CORES)
    found = []
    with cores(CORES):
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            embeddings, _ = packed_forward_in_parts(encoder, *batch, "mean")
            found.append((embeddings, gradients(encoder, embeddings)))
    (once, first), (again, second), (other, _) = found
    assert once.equal(again) and all(first[name].equal(second[name]) for name in first) and not once.equal(other)
    assert len({tuple(row.tolist()) for row in once}) == CORES


def test_mask_has_the_rate_and_keeps_the_mean():
    generator = torch.Generator().manual_seed(0)
    for rate in (0.1, 0.5):
        mask = keep_mask(torch.empty(1001, 999), rate, generator)
        assert (mask == 0).double().mean().item() == pytest.approx(rate, abs=2e-3)
        assert mask.double().mean().item() == pytest.approx(1, abs=2e-3) and len(mask.unique()) == 2
    assert not keep_mask(torch.empty(5, 5), 1.0, generator).any()
    halves = keep_mask(torch.empty(1000, 1000), 0.5, generator) > 0
    assert (halves[:, 1:] == halves[:, :-1]).double().mean().item() == pytest.approx(0.5, abs=3e-3)


def test_all_dropout_of_a_layer_uses_the_generator(bert):
    layer = AutoModel.from_pretrained(bert).train().encoder.layer[0]
    packed, hidden = Packed.of(torch.ones(4, 5, dtype=torch.long)), torch.randn(20, 32)
    before = torch.get_rng_state()
    for module in (layer.attention.self, layer.attention.output, layer.output):
        for other in (layer.attention.self, layer.attention.output, layer.output):
            other.dropout.p = 0.5 if other is module else 0.0
        found = []
        for seed in (1, 1, 2):
            with OwnDropout(torch.Generator().manual_seed(seed)):
                found.append(layer_forward(layer, hidden, packed))
        assert found[0].equal(found[1]) and not found[0].equal(found[2])
    assert torch.get_rng_state().equal(before)


# Training


def trainer_of(folder, output_dir, **options) -> InforMinTrainer:
    how = FOUR_STEPS | dict(objective="simcse", eval_strategy="no", save_strategy="no", report_to=[]) | options
    return InforMinTrainer(str(folder), train_dataset=make_sentences(96), **how_to_train(str(output_dir), **how))


@pytest.mark.parametrize(
    "options, expected",
    [
        ({}, "parts"),
        (dict(mlm_weight=0.1), "parts"),
        (dict(gradient_cache_chunk_size=8), "whole"),
        (dict(bf16=True), "parts"),
        (dict(padding_free=False), "padded"),
        (dict(view_dropout=[0.1, 0.2]), "padded"),
        (dict(attention_mi_weight=0.1), "padded"),
    ],
    ids=str,
)
def test_parts_are_used_where_supported(bert, tmp_path, options, expected):
    forwards = {"parts": packed_forward_in_parts, "whole": packed_forward, "padded": None}
    with cores(2):
        assert trainer_of(bert, tmp_path, **options).model.packed_forward is forwards[expected]


@pytest.mark.parametrize("options", [{}, dict(mlm_weight=0.1, dataloader_num_workers=2)], ids=str)
def test_resumed_run_is_bit_equal_on_the_same_number_of_cores(bert, tmp_path, options):
    """Workers of the data loader start in a process that has threads already."""
    if options:
        options = options | dict(dataloader_multiprocessing_context="fork")
    saves = options | dict(
        save_strategy="steps", save_steps=1, save_total_limit=8, max_steps=8
    )  # the first epoch has 6 steps
    with cores(2):
        whole = trainer_of(bert, tmp_path / "whole", **saves)
        whole.train()
        shutil.copytree(tmp_path / "whole" / "checkpoint-3", tmp_path / "run" / "checkpoint-3")
        resumed = trainer_of(bert, tmp_path / "run", **saves)
        resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-3"))
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
        with raises_usage(option="resume_from_checkpoint", found="cpu_parts"):
            trainer.train(resume_from_checkpoint=True)
