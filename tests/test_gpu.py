"""Training, resuming and embedding on a GPU. Skipped without one, as on the machines of the continuous integration."""

import numpy as np
import pytest
import torch
from transformers import AutoModel

import modeling_informin
import run_unsup
from informin.models.open_model import load_model
from informin.models.packing import packed_forward
from informin.publishing.record import load_record
from tests.cli.test_run import assert_same_weights
from tests.conftest import FOUR_STEPS, make_sentences
from tests.models.test_packing import assert_same_gradients, batch_of
from tests.training.resuming_helpers import interrupted_copy
from tests.training.test_gradient_cache import OBJECTIVES, assert_same, one_step, trainer_of

# SCD's two rates of dropout need a padded batch.
CASES = [(name, packed) for name in OBJECTIVES for packed in (False, True) if not (packed and "scd" in name)]
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
GPU = "cuda"


@pytest.mark.parametrize("pooling", modeling_informin.POOLINGS)
def test_packed_batches_give_the_embeddings_and_gradients_of_padded_ones(encoder, pooling):
    """In float32. The gradient of the sum of sines differs at every number."""
    model = AutoModel.from_pretrained(encoder).eval().to(GPU)
    ids, mask = (x.to(GPU) for x in batch_of(encoder))
    packed, _ = packed_forward(model, ids, mask, pooling)
    padded = modeling_informin.pool(pooling, model(input_ids=ids, attention_mask=mask).last_hidden_state, mask)
    torch.testing.assert_close(packed, padded, atol=1e-5, rtol=0)
    assert_same_gradients(model, packed.cpu(), padded.cpu())


@pytest.mark.parametrize("name, packed", CASES)
def test_a_step_has_the_loss_and_the_gradient_of_a_cpu(bert, tmp_path, name, packed):
    options = OBJECTIVES[name] | dict(padding_free=packed)
    runs = (trainer_of(bert, tmp_path / str(cpu), use_cpu=cpu, **options) for cpu in (True, False))
    cpu, gpu = (one_step(run, dropout=False) for run in runs)
    assert_same((gpu[0], {name: gradient.cpu() for name, gradient in gpu[1].items()}), cpu, 1e-4)


@pytest.mark.parametrize("precision", [{}, dict(bf16=True)], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name, packed", [case for case in CASES if case[0] in ("informin", "scd, mlm", "guided")])
def test_gradient_caching_repeats_the_dropout_masks(bert, tmp_path, monkeypatch, name, packed, precision):
    options = OBJECTIVES[name] | precision | dict(use_cpu=False, padding_free=packed, gradient_cache_chunk_size=8)
    cached = one_step(trainer_of(bert, tmp_path / "cached", **options), dropout=True)
    monkeypatch.setattr(modeling_informin, "checkpoint", lambda read, *args, use_reentrant: read(*args))
    kept = one_step(trainer_of(bert, tmp_path / "kept", **options), dropout=True)
    assert_same(cached, kept)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("packed", ["true", "false"])
def test_resuming_gives_the_same_weights(command, tmp_path, precision, packed):
    options = {"use_cpu": "false", "bf16": "false", precision: "true", "padding_free": packed}
    whole = tmp_path / "whole"
    assert run_unsup.main(command(**options, output_dir=whole)) == 0
    half = interrupted_copy(whole, tmp_path / "run")
    assert run_unsup.main([*command(**options), "--resume_from_checkpoint"]) == 0
    assert load_record(whole)["environment"]["device"] == torch.cuda.get_device_name()
    assert_same_weights(half / "checkpoint-4", whole / "checkpoint-4")


@pytest.mark.parametrize("backend", ["native", "st"])
def test_embeddings_equal_those_of_a_cpu(bert, backend):
    texts = make_sentences(200)
    poolers = ("mean", "cls") if backend == "native" else ("auto",)
    cpu, gpu = (load_model(str(bert), poolers, device=device, backend=backend)(texts) for device in ("cpu", GPU))
    for pooler, vectors in cpu.items():
        np.testing.assert_allclose(gpu[pooler], vectors, atol=1e-5)


@pytest.mark.parametrize("options", [{}, dict(objective="simcse", false_negative_fraction=0.1)], ids=["", "own guide"])
def test_any_encoder_trains(bert, tmp_path, options):
    """With the sentence-transformers backend."""
    how = options | dict(use_cpu=False, backend="st", max_steps=FOUR_STEPS["max_steps"])
    run = trainer_of(bert, tmp_path / "run", **how)
    run.train()
    assert run.args.device.type == GPU and all(np.isfinite(entry["loss"]) for entry in run.state.log_history[:-1])
