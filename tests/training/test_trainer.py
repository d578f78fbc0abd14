"""InforMinTrainer: losses, gradients, logs and options of Trainer."""

import json
import math
from inspect import signature
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Trainer, TrainerCallback

from informin.objectives.contrast import contrast
from informin.objectives.masked_lm import masked_lm
from informin.objectives.reconstruction import reconstruction
from informin.objectives.term import Masking
from informin.training.batch import StackedViews, step_seed
from informin.training.callbacks import logged_terms
from informin.views.view import SentenceTokens
from tests.conftest import make_sentences, raises_usage, save_bert
from tests.training.helpers import logged
from trainer_informin import InforMinTrainer


@pytest.fixture
def build_unscored(build):
    """Build a trainer of two steps without evaluation and checkpoints; keywords are options."""

    def make(callbacks=None, **options):
        return build(callbacks, **(dict(max_steps=2, eval_strategy="no", save_strategy="no") | options))

    return make


class Gradients(TrainerCallback):
    """Store the gradients of the first optimizer step."""

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        if state.global_step == 0:
            self.kept = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(  # none of the heads, each of them alone or with another one, and most at once
    "options",
    [
        dict(objective="simcse", projection_head="none"),
        dict(objective="informin", mlm_weight=0.1),
        dict(objective="scd", projector_size=16, projection_head="none", mlm_weight=0.1),
        dict(objective="micse", queue_size=24, projection_head="none", view_dropout=[0.1, 0.2], warmup_steps=0),
        dict(objective="informin", attention_mi_weight=0.1, queue_size=16, decorrelation_weight=0.1, projector_size=8),
    ],
    ids=lambda options: "-".join(str(value) for value in options.values()),
)
def test_training_moves_every_parameter(build_unscored, options):
    trainer = build_unscored(**options)
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    trainer.train()
    # Positions past the longest sentence and words that no sentence has get no gradient; the tables move elsewhere.
    still = [name for name, p in trainer.model.named_parameters() if torch.equal(p, before[name])]
    assert still == []


def test_terms_are_logged_unweighted_and_sum_to_the_loss(build_unscored):
    trainer = build_unscored(reconstruction_weight=3.0, mlm_weight=0.1, include_num_input_tokens_seen="all")
    trainer.train()
    entries = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(entries) == 2
    for entry in entries:
        terms = logged_terms(entry)
        assert list(terms) == ["contrast", "reconstruction", "mlm"] and entry["num_input_tokens_seen"]
        total = terms["contrast"] + 3.0 * terms["reconstruction"] + 0.1 * terms["mlm"]
        assert entry["loss"] == pytest.approx(total, rel=1e-5)


def test_a_second_run_does_not_log_the_last_steps_of_the_first(build_unscored):
    trainer = build_unscored(max_steps=3, logging_steps=2, learning_rate=0.0, objective="simcse")
    trainer.train()
    trainer.train()
    for entry in trainer.state.log_history:
        assert entry.get("loss") == pytest.approx(entry.get("terms/contrast"), abs=1e-5)


def test_simcse_has_only_the_contrast_term(build_unscored):
    trainer = build_unscored(objective="simcse", max_steps=1)
    trainer.train()
    assert logged(trainer, "loss") == pytest.approx(logged(trainer, "terms/contrast"), rel=1e-5)
    assert not logged(trainer, "terms/reconstruction") and not logged(trainer, "terms/mlm")


def test_first_loss_is_the_objective_on_the_first_batch(build_unscored):
    """Compare with the pure functions, using the same random state."""
    how = dict(reconstruction_weight=0.7, reconstruction_form="paper", mlm_weight=0.2, temperature=0.1)
    trainer = build_unscored(objective="informin", fast=False, max_steps=1, **how)
    seen = {}

    def watch(module, args, kwargs):
        seen.setdefault("rng", torch.get_rng_state())
        tensors = {name: value.clone() for name, value in kwargs.items() if isinstance(value, torch.Tensor)}
        seen.setdefault("inputs", tensors | {"split_batch": kwargs["split_batch"]})

    hook = trainer.model.register_forward_pre_hook(watch, with_kwargs=True)
    weights = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    trainer.train()
    hook.remove()
    trainer.model.load_state_dict(weights)
    inputs = seen["inputs"]
    rows = {name: inputs[name][:16] for name in ("input_ids", "attention_mask")}
    rows = StackedViews(SentenceTokens(trainer.processing_class), Masking(0.15, of_views=False))(
        rows, step_seed(42, 0, 0, 0)
    )
    assert torch.equal(rows["input_ids"], inputs["input_ids"])
    torch.set_rng_state(seen["rng"])
    outputs = trainer.model.train()(**inputs)
    z1, z2, _ = outputs.projection.chunk(3)
    assert len(outputs.lm_losses) == (rows["lm_labels"] >= 0).sum()
    expected = contrast(z1, z2, 0.1) + 0.7 * reconstruction(z1, z2, "paper") + 0.2 * masked_lm(outputs.lm_losses)
    assert logged(trainer, "loss")[0] == pytest.approx(expected.item(), rel=1e-5)


def test_raw_distances_log_the_norm_of_the_projection(build_unscored):
    trainer = build_unscored(reconstruction_form="paper", reconstruction_weight=0.4, max_steps=1)
    trainer.train()
    assert logged(trainer, "terms/reconstruction/projection_norm")[0] > 0
    assert logged(trainer, "loss")[0] == pytest.approx(
        logged(trainer, "terms/contrast")[0] + 0.4 * logged(trainer, "terms/reconstruction")[0], rel=1e-5
    )


def test_gradient_accumulation_is_the_mean_of_the_micro_batches(build_unscored):
    gradients = Gradients()
    trainer = build_unscored(
        [gradients],
        gradient_accumulation_steps=2,
        per_device_train_batch_size=8,
        mlm_weight=0.3,
        max_grad_norm=0.0,
        max_steps=1,
    )
    for module in trainer.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    batches = []
    fetch = trainer.get_batch_samples

    def keep(*args):
        batches.extend(fetch(*args)[0])
        return list(batches), None

    trainer.get_batch_samples = keep
    weights = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    trainer.train()
    assert len(batches) == 2 and not torch.equal(batches[0]["input_ids"], batches[1]["input_ids"])
    trainer.model.load_state_dict(weights)
    trainer.model.train().zero_grad()
    for batch in batches:
        (trainer.compute_loss(trainer.model, batch) / 2).backward()
    for name, parameter in trainer.model.named_parameters():
        torch.testing.assert_close(gradients.kept[name], parameter.grad, rtol=1e-4, atol=1e-7, msg=name)


def test_micro_batches_and_processes_draw_different_masks(build, monkeypatch):
    trainer = build(mlm_weight=0.3, gradient_accumulation_steps=2, per_device_train_batch_size=8)
    batch = {name: torch.tensor([trainer.train_dataset[0][name]] * 8) for name in ("input_ids", "attention_mask")}
    drawn = []
    for process in (0, 1):
        monkeypatch.setattr(type(trainer.args), "process_index", process)
        drawn += trainer.get_batch_samples(iter([batch, batch]), 2, torch.device("cpu"))[0]
    assert len({str(rows["lm_labels"].tolist()) for rows in drawn}) == 4


def test_initial_mlm_loss_equals_that_of_the_pretrained_model(build, encoder):
    """Random weights would give about log V; the head is loaded from the checkpoint."""
    from transformers import AutoModelForMaskedLM

    trainer = build(mlm_weight=0.1)
    plain = AutoModelForMaskedLM.from_pretrained(encoder).eval()
    with torch.no_grad():  # confident predictions, so that random weights cannot pass by chance
        for model in (plain, trainer.model):
            model.base_model.embeddings.word_embeddings.weight.mul_(20)
    batch = trainer.processing_class(make_sentences(16), padding=True, return_tensors="pt")
    rows = StackedViews(SentenceTokens(trainer.processing_class), Masking(0.15, of_views=False))(batch, seed=3)
    inputs, labels = {name: rows[name] for name in ("input_ids", "attention_mask")}, rows["lm_labels"]
    ours = masked_lm(trainer.model.eval()(**inputs, lm_labels=labels).lm_losses)
    theirs = plain(**inputs, labels=labels).loss
    torch.testing.assert_close(ours, theirs)
    assert abs(ours.item() - math.log(plain.config.vocab_size)) > 0.1


@pytest.mark.parametrize("optimizer, scheduler", [("adamw_torch", "cosine"), ("sgd", "constant_with_warmup")])
def test_optimizers_and_schedulers_of_trainer_work(build_unscored, optimizer, scheduler):
    trainer = build_unscored(optim=optimizer, lr_scheduler_type=scheduler, warmup_steps=1)
    trainer.train()
    assert trainer.state.global_step == 2


def test_gradient_clipping_bounds_the_step(build_unscored):
    """With plain SGD at rate 1 the weights move by the clipped gradient."""
    how = dict(optim="sgd", learning_rate=1.0, max_grad_norm=1e-3, lr_scheduler_type="constant")
    trainer = build_unscored(max_steps=1, **how)
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    trainer.train()
    moved = torch.stack([(p - before[name]).norm() for name, p in trainer.model.named_parameters()]).norm()
    assert moved.item() == pytest.approx(1e-3, rel=1e-2)


def test_bf16_trains_close_to_fp32(build_unscored):
    """Without dropout, whose masks differ, because rows are longer in bf16."""
    losses = []
    for bf16 in (False, True):
        trainer = build_unscored(bf16=bf16)
        for module in trainer.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        trainer.train()
        losses.append(logged(trainer, "loss"))
        assert trainer.model.base_model.embeddings.word_embeddings.weight.dtype == torch.float32
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.05)


def test_tensorboard_gets_every_term(build, monkeypatch, tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "events"))
    build(max_steps=2, report_to="tensorboard", mlm_weight=0.1).train()
    (folder,) = {path.parent for path in (tmp_path / "events").rglob("events.out.tfevents.*")}
    tags = set(EventAccumulator(str(folder)).Reload().Tags()["scalars"])
    terms = {"train/loss", *(f"train/terms/{name}" for name in ("contrast", "reconstruction", "mlm"))}
    assert terms | {"eval/spearman", "eval/alignment", "eval/uniformity"} <= tags


def test_checkpoints_hold_no_pickled_options_and_no_truncation(build_unscored):
    trainer = build_unscored(max_steps=1, save_strategy="steps")
    trainer.train()
    folder = Path(trainer.args.output_dir) / "checkpoint-1"
    assert not (folder / "training_args.bin").exists()
    saved = json.loads((folder / "tokenizer.json").read_text())
    assert saved["truncation"] is None and saved["padding"] is None


def test_fewer_sentences_than_a_batch_are_rejected(build):
    with raises_usage(found="fewer than one batch of 65"):
        build(per_device_train_batch_size=65)


def test_revision_selects_the_weights_and_is_recorded(bert, arguments, logged_in, tmp_path):
    files = {path.name: path.read_bytes() for path in bert.iterdir() if path.is_file()}
    first = logged_in.add_repo("alice/encoder", files)
    other = save_bert(tmp_path / "other", num_hidden_layers=1, initializer_range=0.1)
    logged_in.commit("alice/encoder", {"model.safetensors": (other / "model.safetensors").read_bytes()})
    for revision, weights in ((first, bert), (None, other)):
        args = arguments(eval_strategy="no", revision=revision)
        pinned, expected = (
            InforMinTrainer(str(name), args, train_dataset=make_sentences(64)) for name in ("alice/encoder", weights)
        )
        assert np.array_equal(pinned.encode(["a dog"]), expected.encode(["a dog"])), revision
        assert (pinned.record().base_model["revision"] == first) is (revision == first)


def test_positional_arguments_have_the_order_of_trainer():
    ours, theirs = (list(signature(kind).parameters.values()) for kind in (InforMinTrainer, Trainer))
    positional = [each.name for each in ours if each.kind is each.POSITIONAL_OR_KEYWORD]
    assert len(positional) > 3 and positional == [each.name for each in theirs[: len(positional)]]
