"""SCD, miCSE and their parts in the model, the Trainer and a whole run: projector, momentum encoder, queue, terms."""

import copy
import json
import shutil
from importlib import import_module
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import cosine_similarity, relu
from transformers import AutoConfig, AutoModel, TrainerCallback

import run_export
import run_unsup
from informin.encoders.encoder import load_encoder
from informin.encoders.loading import load_config, load_model
from informin.errors import UsageError
from informin.objectives import (
    OBJECTIVES,
    Objective,
    Term,
    attention_mi,
    contrast,
    decorrelation,
    masked_lm,
    reconstruction,
    self_contrast,
)
from informin.training.command_line import parse
from informin.training.sentences import refuse_few_sentences, tokenise
from informin.views.attention import ViewDropout
from tests.conftest import make_sentences, tokenizer_of
from trainer_informin import InforMinTrainer, InforMinTrainingArguments

SCD = dict(objective="scd", projection_head="none", projector_size=16)
MICSE = dict(objective="micse", queue_size=24)
EVERYTHING = dict(
    **dict(objective="informin", reconstruction_weight=0.7, ami_weight=0.3, ami_layers=[0, 1], queue_size=24),
    **dict(decorrelation_weight=0.2, projector_size=8, off_diagonal_weight=0.1, mlm_weight=0.2),
    **dict(view_dropout=[0.1, 0.3], temperature=0.1, ami_form="reference"),
)


@pytest.fixture
def build(encoder, tmp_path):
    """A trainer on 64 sentences, unscored; keywords are training arguments."""
    import datasets

    def make(callbacks=None, projection_head="mlp", sentences=64, **options):
        common = dict(
            **dict(output_dir=str(tmp_path / "run"), use_cpu=True, per_device_train_batch_size=16, max_steps=3),
            **dict(logging_steps=1, learning_rate=1e-3, disable_tqdm=True, eval_strategy="no", save_strategy="no"),
        )
        args = InforMinTrainingArguments(**(common | options))
        tokenizer = tokenizer_of(encoder)
        torch.manual_seed(args.seed)
        settings = {"projection_head": projection_head, **args.heads}
        return InforMinTrainer(
            model=load_model(load_config(str(encoder)), str(encoder), settings),
            args=args,
            train_dataset=tokenise(datasets.Dataset.from_dict({"text": make_sentences(sentences)}), tokenizer, 32),
            processing_class=tokenizer,
            callbacks=callbacks,
        )

    return make


class Steps(TrainerCallback):
    """Keeps what the model holds after each step, and the momentum encoder's projections in it."""

    def __init__(self):
        self.weights, self.keys = [], []

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.watch(model)
        keep = lambda module, inputs, outputs: self.keys.append(outputs.momentum_projection)  # noqa: E731
        model.register_forward_hook(keep)

    def on_step_end(self, args, state, control, model=None, **kwargs):
        self.watch(model)

    def watch(self, model):
        self.weights.append({name: value.clone() for name, value in model.state_dict().items()})


def logged(trainer, key):
    return [entry[key] for entry in trainer.state.log_history if key in entry]


def rows(folder, count=6, copies=2):
    batch = tokenizer_of(folder)(make_sentences(count), padding=True, return_tensors="pt", return_token_type_ids=False)
    return {name: batch[name].repeat(copies, 1) for name in ("input_ids", "attention_mask")}


def model_of(folder, **settings):
    return load_model(load_config(str(folder)), str(folder), {"projection_head": "mlp", "lm_head": False} | settings)


# The momentum encoder


def test_the_momentum_encoder_starts_as_a_copy_and_the_queue_empty(encoder):
    model = model_of(encoder, queue_size=5)
    with torch.no_grad():
        for parameter in model.base_model.parameters():
            parameter.add_(1)
        model.queue.add_(1)
    model.start_momentum()
    slow, fast = model.momentum_encoder.state_dict(), model.base_model.state_dict()
    assert slow.keys() == fast.keys()
    assert [name for name in fast if not torch.equal(slow[name], fast[name])] == []
    assert all(slow[name].data_ptr() != fast[name].data_ptr() for name in fast)
    assert not model.queue.any()


def test_it_follows_the_encoder_after_each_optimizer_step(build):
    """A numpy loop over what the encoder was; with accumulation too, where not every batch is a step."""
    trainer = build([steps := Steps()], momentum_decay=0.9, gradient_accumulation_steps=2, **MICSE)
    trainer.train()
    assert len(steps.weights) == 4 and len(steps.keys) == 6
    prefix = trainer.model.base_model_prefix
    names = [name for name, _ in trainer.model.base_model.named_parameters()]
    for name in names:
        expected = steps.weights[0][f"{prefix}.{name}"].double().numpy()
        for after in steps.weights[1:]:
            expected = 0.9 * expected + (1 - 0.9) * after[f"{prefix}.{name}"].double().numpy()
        found = steps.weights[-1][f"momentum_encoder.{name}"]
        torch.testing.assert_close(found, torch.from_numpy(expected).float(), rtol=1e-4, atol=1e-6, msg=name)
        assert not torch.equal(found, steps.weights[-1][f"{prefix}.{name}"]), name


def test_no_optimizer_has_it(build):
    trainer = build(**MICSE)
    slow = {id(parameter) for parameter in trainer.model.momentum_encoder.parameters()}
    assert not any(parameter.requires_grad for parameter in trainer.model.momentum_encoder.parameters())
    optimised = {id(p) for group in trainer.create_optimizer().param_groups for p in group["params"]}
    assert optimised == {id(p) for p in trainer.model.parameters()} - slow


def test_its_dropout_is_its_own(build, encoder):
    """Whatever the views' rates are, its attention is transformers' own, and evaluation has no dropout."""
    trainer = build(momentum_dropout=0.35, view_dropout=[0.1, 0.2], **MICSE)
    model = trainer.model
    slow, fast = (
        [module for module in part.modules() if isinstance(module, torch.nn.Dropout)]
        for part in (model.momentum_encoder, model.base_model)
    )
    assert {(type(module), module.p) for module in slow} == {(torch.nn.Dropout, 0.35)}
    assert {module.rates for module in fast} == {(0.1, 0.2)} and len(slow) == len(fast)
    assert model.momentum_encoder.config._attn_implementation == "sdpa"
    assert model.config.hidden_dropout_prob == model.config.attention_probs_dropout_prob == 0.1
    batch = rows(encoder)
    first, second = (model.train()(**batch, num_sentences=6).momentum_projection for _ in range(2))
    assert not torch.equal(first, second)
    assert model.eval()(**batch, num_sentences=6).momentum_projection is None


@pytest.mark.parametrize("projection_head", ["mlp", "none"])
def test_its_projection_is_the_encoders_own_head_on_the_first_views_sentences(encoder, projection_head):
    model, batch = model_of(encoder, queue_size=5, momentum_dropout=0.0, projection_head=projection_head), rows(encoder)
    with torch.no_grad():
        for parameter in model.momentum_encoder.parameters():  # no copy of the encoder any more
            parameter.mul_(1.5)
    batch["input_ids"][6:] = batch["input_ids"][6:].roll(1, 0)
    found = model.train()(**batch, num_sentences=6).momentum_projection
    cls = model.momentum_encoder(**{name: value[:6] for name, value in batch.items()}).last_hidden_state[:, 0]
    torch.testing.assert_close(found, torch.tanh(model.mlp.dense(cls)) if projection_head == "mlp" else cls)
    assert not found.requires_grad
    assert not any("mlp" in name for name in model.momentum_encoder.state_dict())


# The queue


def test_newest_keys_come_first_and_the_oldest_leave(encoder):
    model = model_of(encoder, queue_size=5)
    keys, ids = torch.arange(1.0, 13.0)[:, None].expand(12, 32), torch.arange(101, 113)
    for group, expected in (((0, 2), [1, 2, 0, 0, 0]), ((2, 4), [3, 4, 1, 2, 0]), ((4, 6), [5, 6, 3, 4, 1])):
        model.enqueue(keys[slice(*group)].bfloat16(), ids[slice(*group)])
        assert model.queue[:, 7].tolist() == expected
        assert model.queue_ids.tolist() == [100 + key if key else 0 for key in expected]
    model.enqueue(keys[5:], ids[5:])
    assert model.queue[:, 31].tolist() == [6, 7, 8, 9, 10]
    assert model.queue.shape == (5, 32) and model.queue.dtype == torch.float32


@pytest.mark.parametrize("queue_size", [24, 40, 7])
def test_the_contrast_has_the_keys_of_earlier_batches(build, monkeypatch, queue_size):
    """Never those of the batch itself, whose second views are candidates already."""
    seen = []

    def watch(z1, z2, temperature, queue, same):
        seen.append(queue.clone())
        return contrast(z1, z2, temperature, queue, same)

    monkeypatch.setattr(import_module("informin.objectives.contrast"), "contrast", watch)
    build([steps := Steps()], **(MICSE | dict(queue_size=queue_size))).train()
    assert len(seen) == len(steps.keys) == 3
    for step, queue in enumerate(seen):
        earlier = [key for keys in reversed(steps.keys[:step]) for key in keys]
        expected = torch.stack([*earlier, *torch.zeros(queue_size, 32)])[:queue_size]
        assert torch.equal(queue, expected)


def test_in_a_second_epoch_no_sentence_meets_itself_in_the_queue(build, monkeypatch):
    """32 sentences, a queue of 32: when the second epoch begins, every anchor is in it, and once."""
    seen = []

    def watch(z1, z2, temperature, queue, same):
        seen.append(same)
        return contrast(z1, z2, temperature, queue, same)

    monkeypatch.setattr(import_module("informin.objectives.contrast"), "contrast", watch)
    build(**(MICSE | dict(queue_size=32)), sentences=32, max_steps=4).train()
    assert [same.shape for same in seen] == [(16, 32)] * 4
    assert [same.sum(1).tolist() for same in seen[:3]] == [[0] * 16, [0] * 16, [1] * 16]
    assert seen[3].sum(1).max() == 1


# The projector


def test_each_view_is_normalised_by_itself(encoder):
    """The three layers written out; the statistics of both views together would give others."""
    model, batch = model_of(encoder, projector_size=8).train(), rows(encoder, count=12, copies=3)
    outputs = model(**batch, num_sentences=12)
    (first, norm1, _, second, norm2, _, third) = model.projector

    def normalise(x, norm):
        return (x - x.mean(0)) / (x.var(0, unbiased=False) + norm.eps).sqrt() * norm.weight + norm.bias

    def project(x):
        hidden = relu(normalise(x @ first.weight.T + first.bias, norm1))
        return relu(normalise(hidden @ second.weight.T, norm2)) @ third.weight.T

    views = outputs.projection[:24].chunk(2)  # the third copy, MLM's, is no view
    assert len(outputs.features) == 2
    for found, view in zip(outputs.features, views):
        torch.testing.assert_close(found, project(view), rtol=1e-4, atol=1e-5)
    together = project(torch.cat(views)).chunk(2)
    assert (together[0] - outputs.features[0]).abs().max() > 0.01


def test_it_normalises_over_what_gather_joins(encoder):
    model, batch = model_of(encoder, projector_size=8).train(), rows(encoder)
    gathered = []

    def gather(x):
        gathered.append(x)
        return torch.cat([x, 2 * x])

    outputs = model(**batch, num_sentences=6, gather=gather)
    assert [torch.equal(x, view) for x, view in zip(gathered, outputs.projection.chunk(2))] == [True, True]
    for features, view in zip(outputs.features, gathered):
        torch.testing.assert_close(features, model.projector(torch.cat([view, 2 * view])))


@pytest.mark.parametrize(
    "options, heads",
    [
        (SCD, {"projector"}),
        (dict(objective="scd", projection_head="none", decorrelation_weight=0), set()),
        (dict(objective="simcse"), {"mlp"}),
        (MICSE, {"mlp", "momentum_encoder"}),
        (MICSE | dict(queue_size=0), {"mlp"}),
        (EVERYTHING, {"mlp", "momentum_encoder", "projector", "cls"}),
    ],
    ids=["scd", "scd-without", "simcse", "micse", "micse-without", "everything"],
)
def test_only_the_heads_that_the_objective_reads_are_built(build, options, heads):
    model = build(**options).model
    built = {name for name, _ in model.named_children()} - {model.base_model_prefix}
    assert {"cls" if name == "lm_head" else name for name in built} == heads
    assert hasattr(model, "queue") == ("momentum_encoder" in heads)


def test_outside_training_heads_say_nothing(encoder):
    model, batch = model_of(encoder, projector_size=8, queue_size=5), rows(encoder)
    for outputs in (model.eval()(**batch, num_sentences=6), model.train()(**batch)):
        assert outputs.features is None and outputs.momentum_projection is None


# The trainer


def expected_loss(options, seen, model):
    """From the pure functions and the forward pass, both replayed as they were at that step."""
    model.load_state_dict(seen["state"])
    torch.set_rng_state(seen["rng"])
    outputs = model.train()(**seen["inputs"])
    size, mask = 16, seen["inputs"]["attention_mask"][:16]
    z1, z2 = outputs.projection[:size], outputs.projection[size : 2 * size]
    if options["objective"] == "scd":
        features = [model.projector(view) for view in (z1, z2)]
        loss = self_contrast(z1, z2, options.get("self_contrast_form", "paper"))
        loss = loss + options.get("decorrelation_weight", 0.005) * decorrelation(
            *features, options.get("off_diagonal_weight", 0.013)
        )
    else:
        loss = contrast(z1, z2, options.get("temperature", 0.05), seen["state"]["queue"])
        loss = loss + options.get("reconstruction_weight", 0) * reconstruction(z1, z2)
        if "decorrelation_weight" in options:
            features = [model.projector(view) for view in (z1, z2)]
            loss = loss + options["decorrelation_weight"] * decorrelation(*features, options["off_diagonal_weight"])
        maps = torch.stack(outputs.attentions, 1)
        ami, _ = attention_mi(maps[:size], maps[size : 2 * size], mask, options.get("ami_form", "paper"))
        loss = loss + options.get("ami_weight", 2.5e-3) * ami
    if "mlm_weight" in options:
        labels = seen["labels"][seen["labels"] >= 0]
        loss = loss + options["mlm_weight"] * masked_lm(outputs.mlm_logits, labels)
    return loss.item()


@pytest.mark.parametrize(
    "options",
    [
        SCD,
        SCD | dict(decorrelation_weight=0.1, off_diagonal_weight=0.5, self_contrast_form="reference"),
        SCD | dict(mlm_weight=0.2),
        MICSE,
        MICSE | dict(ami_weight=2.0, ami_layers=[1], temperature=0.2),
        EVERYTHING,
    ],
    ids=["scd", "scd-reference", "scd-mlm", "micse", "micse-one-layer", "everything"],
)
def test_loss_is_the_objective_on_the_batch(build, options):
    """At the second step, where the queue holds the first one's keys."""
    trainer, found = build(max_steps=2, lr_scheduler_type="constant", **options), []

    def watch(module, args, kwargs):
        seen = {"rng": torch.get_rng_state(), "inputs": dict(kwargs)}
        seen["state"] = {name: value.clone() for name, value in module.state_dict().items()}
        found.append(seen)

    compute_loss = trainer.compute_loss

    def keep_labels(model, inputs, **kwargs):
        loss = compute_loss(model, inputs, **kwargs)
        found[-1]["labels"] = inputs.get("mlm_labels")
        return loss

    trainer.compute_loss = keep_labels
    hook = trainer.model.register_forward_pre_hook(watch, with_kwargs=True)
    trainer.train()
    hook.remove()
    assert len(found) == 2
    for seen, loss in zip(found, logged(trainer, "loss")):
        assert expected_loss(options, seen, trainer.model) == pytest.approx(loss, rel=1e-4)
    if "queue" in found[0]["state"]:
        filled = [seen["state"]["queue"].any(-1).sum().item() for seen in found]
        assert filled == [0, 16]


@pytest.mark.parametrize("options", [SCD, SCD | dict(mlm_weight=0.2), MICSE, EVERYTHING], ids=lambda o: f"{len(o)}")
def test_terms_are_logged_unweighted_and_sum_to_the_loss(build, options):
    trainer = build(**options)
    trainer.train()
    entries = [entry for entry in trainer.state.log_history if "loss" in entry]
    weights = trainer.args.term_weights
    assert len(entries) == 3 and len(weights) > 1
    for entry in entries:
        assert entry["loss"] == pytest.approx(sum(w * entry[name] for name, w in weights.items()), rel=1e-4)
    if "ami" in weights:
        assert all(3 <= entry["ami_positions"] <= 150 for entry in entries)


@pytest.mark.parametrize(
    "options, rates",
    [
        (SCD, (0.05, 0.15)),
        (SCD | dict(mlm_weight=0.1, view_dropout=[0.02, 0.4]), (0.02, 0.4, 0.1)),
        (SCD | dict(mlm_weight=0.1, masked_views=True), (0.05, 0.15)),
        (dict(objective="simcse", view_dropout=[0.0, 0.5]), (0.0, 0.5)),
    ],
    ids=["scd", "mlm", "masked-views", "simcse"],
)
def test_the_views_have_their_rates_in_the_training_step(build, options, rates):
    trainer, dropped = build(max_steps=1, **options), []
    assert trainer.model.base_model.config._attn_implementation == "informin_views"
    embedded = trainer.model.base_model.embeddings.dropout
    hook = embedded.register_forward_hook(lambda module, inputs, outputs: dropped.append(outputs))
    trainer.train()
    hook.remove()
    parts = dropped[0].chunk(len(rates))
    assert len(parts[0]) == 16
    for part, rate in zip(parts, rates):
        assert (part == 0).float().mean().item() == pytest.approx(rate, abs=0.03)
    modules = [module for module in trainer.model.base_model.modules() if isinstance(module, torch.nn.Dropout)]
    assert {module.rates for module in modules} == {rates} and len(modules) > 4


@pytest.mark.parametrize("options", [SCD, MICSE], ids=["scd", "micse"])
def test_bf16_trains_close_to_fp32(build, options):
    """The momentum encoder's pass, without gradient, must not leave the head a cast weight without gradient."""
    losses = []
    for bf16 in (False, True):
        trainer = build(bf16=bf16, view_dropout=[0.05, 0.15], **options)
        before = {name: parameter.detach().clone() for name, parameter in trainer.model.named_parameters()}
        trainer.train()
        losses.append(logged(trainer, "loss"))
        assert [name for name, p in trainer.model.named_parameters() if torch.equal(p, before[name])] == []
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.05, abs=0.05)


class Gradients(TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.kept = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def test_activation_checkpointing_gives_the_same_gradients(build):
    """The maps leave a layer by its side door, and are still recomputed with it."""
    gradients = []
    for checkpointing in (False, True):
        trainer = build(callbacks=[kept := Gradients()], max_steps=2, max_grad_norm=0.0, **EVERYTHING)
        if checkpointing:
            trainer.model.gradient_checkpointing_enable()
        trainer.train()
        gradients.append(kept.kept)
    assert gradients[0].keys() == gradients[1].keys()
    torch.testing.assert_close(gradients[0], gradients[1])


def test_an_export_leaves_the_model_in_training_as_it_was(build, tmp_path):
    trainer = build(**EVERYTHING)
    trainer.train()
    model = trainer.model
    before = {name: value.clone() for name, value in model.state_dict().items()}
    learning, settings = {name: p.requires_grad for name, p in model.named_parameters()}, model.config.to_dict()
    trainer.export(str(tmp_path / "export"))
    assert model.config.to_dict() == settings and settings["informin"]["queue_size"] == 24
    assert model.config._attn_implementation == "informin_views"
    assert {name: p.requires_grad for name, p in model.named_parameters()} == learning
    after = model.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


def test_self_contrast_pushes_the_views_apart(build, encoder):
    """With repulsion alone the mean cosine of the two views falls."""
    trainer = build(objective="scd", projection_head="none", decorrelation_weight=0, max_steps=12)
    trainer.train()
    cosines = logged(trainer, "self_contrast")
    assert cosines[-1] < cosines[0] - 0.1
    z1, z2 = trainer.model.train()(**rows(encoder)).projection.chunk(2)
    assert cosine_similarity(z1, z2).mean().item() < cosines[0]


def test_a_seventh_objective_is_one_file_and_one_line(build, monkeypatch):
    """A term of its own, which reads the hidden states, beside one that is there."""

    def spread(tokens, mask, scale):
        """Minus the variance of the mean token."""
        means = (tokens * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return -scale * means.var(0).mean()

    seen = []

    def loss(views, options):
        seen.append((views, options))
        value = spread(views.tokens1, views.mask, options.temperature)
        return {"spread": value, "length": views.mask.sum(1).float()[0]}

    toy = Term("spread", loss=loss, options=("temperature",))
    monkeypatch.setitem(OBJECTIVES, "toy", Objective("a toy", (toy, *OBJECTIVES["simcse"].terms[-1:]), {}))
    trainer = build(objective="toy", temperature=2.0, max_steps=2)
    trainer.train()
    assert logged(trainer, "loss") == pytest.approx(logged(trainer, "spread"), rel=1e-5) and len(seen) == 2
    assert logged(trainer, "length") == [float(views.mask.sum(1)[0]) for views, _ in seen]
    assert logged(trainer, "spread")[1] < logged(trainer, "spread")[0] < 0
    for views, options in seen:
        assert views.tokens1.shape == (*views.mask.shape, 32) and vars(options) == {"temperature": 2.0}
        assert views.maps1 is views.features1 is views.queue is views.mlm_logits is None
    with pytest.raises(UsageError, match=r"--ami_weight 1\.0 has no effect with --objective toy .* temperature, mlm_w"):
        build(objective="toy", ami_weight=1.0)


def test_terms_get_no_option_that_they_do_not_name(build, monkeypatch):
    """What is refused as unread is unread."""
    read = Term("greedy", loss=lambda views, options: {"greedy": views.z1.sum() * options.temperature})
    monkeypatch.setitem(OBJECTIVES, "toy", Objective("a toy", (read,), {}))
    with pytest.raises(AttributeError, match="temperature"):
        build(objective="toy").train()


# Mistakes


@pytest.mark.parametrize(
    "given, built, name",
    [
        (SCD, dict(), "projector_size = 16, but the model was built with projector_size = 0"),
        (MICSE, dict(), "queue_size = 24, but the model was built with queue_size = 0"),
        (MICSE, dict(queue_size=12), "queue_size = 24, but the model was built with queue_size = 12"),
        (MICSE, dict(queue_size=24, momentum_decay=0.9), "momentum_decay = 0.995, but .* momentum_decay = 0.9"),
        (MICSE, dict(queue_size=24, momentum_dropout=0.1), "momentum_dropout = 0.3, but .* momentum_dropout = 0.1"),
        (dict(objective="simcse"), dict(queue_size=12), "queue_size = 0, but .* queue_size = 12"),
        (dict(objective="simcse"), dict(projector_size=8), "projector_size = 0, but .* projector_size = 8"),
    ],
)
def test_heads_that_do_not_fit_are_refused(build, encoder, given, built, name):
    trainer = build(**given)
    with pytest.raises(
        UsageError, match=f"The objective needs {name}.*Load it with informin.encoders.loading.load_model"
    ):
        InforMinTrainer(
            model=model_of(encoder, **built),
            args=trainer.args,
            train_dataset=trainer.train_dataset,
            processing_class=trainer.processing_class,
        )


@pytest.mark.parametrize(
    "most, options",
    [
        (64, dict(max_steps=-1)),
        (64, dict(max_steps=9)),
        (48, dict()),
        (32, dict(max_steps=1, gradient_accumulation_steps=2)),
    ],
    ids=["epoch", "epochs", "steps", "accumulation"],
)
def test_a_queue_larger_than_the_sentences_seen_is_refused(build, most, options):
    message = f"--queue_size {most + 1} is more than the {most} sentences that the run reads: .* at most {most}"
    with pytest.raises(UsageError, match=message):
        build(objective="micse", queue_size=most + 1, **options)
    build(objective="micse", queue_size=most, **options)


def test_a_queue_larger_than_the_steps_of_a_stream_is_refused(build):
    trainer = build(objective="micse", queue_size=48)
    stream = trainer.train_dataset.to_iterable_dataset()
    refuse_few_sentences(stream, trainer.args)
    trainer.args.queue_size = 49
    with pytest.raises(UsageError, match="--queue_size 49 is more than the 48 sentences that the run reads"):
        refuse_few_sentences(stream, trainer.args)


@pytest.mark.parametrize("options", [SCD, dict(objective="simcse")], ids=["scd", "simcse"])
def test_a_last_batch_of_one_sentence_is_refused(build, options):
    with pytest.raises(UsageError, match="The last batch of 64 sentences by 9 would be 1 sentence"):
        build(per_device_train_batch_size=9, dataloader_drop_last=False, **options)
    build(per_device_train_batch_size=9, **options)
    build(per_device_train_batch_size=10, dataloader_drop_last=False, **options)


@pytest.mark.parametrize("layers", [[2], [0, 2], [1, 0], [1, 1], [-1], []], ids=str)
def test_layers_that_the_encoder_has_not_are_refused(build, layers):
    with pytest.raises(UsageError, match=r"The attention layers \[.*\] cannot be used: the encoder has 2 layers"):
        build(ami_layers=layers, **MICSE)


@pytest.mark.parametrize("options", [MICSE, SCD], ids=["micse", "scd"])
def test_attention_without_maps_or_rates_is_refused(build, options):
    trainer = build(objective="simcse")
    args = copy.copy(build(**options).args)
    trainer.model.config.informin |= args.heads
    trainer.model.config._attn_implementation_internal = "flash_attention_2"
    with pytest.raises(UsageError, match="attn_implementation='flash_attention_2', which cannot give"):
        InforMinTrainer(trainer.model, args, trainer.train_dataset, processing_class=trainer.processing_class)


# Whole runs: both architectures once each, and what is done with what they leave

RUNS = {"scd": dict(projector_size=16), "micse": dict(queue_size=40, warmup_steps=0)}
OPTIONS = {  # of the record: those that are read
    "scd": dict(
        **dict(objective="scd", projection_head="none", view_dropout=[0.05, 0.15], self_contrast_weight=1.0),
        **dict(self_contrast_form="paper", decorrelation_weight=0.005, off_diagonal_weight=0.013, projector_size=16),
    ),
    "micse": dict(
        **dict(objective="micse", projection_head="mlp", temperature=0.05, ami_weight=2.5e-3, ami_form="paper"),
        **dict(queue_size=40, momentum_decay=0.995, momentum_dropout=0.3),
    ),
}
ROBERTA_ROW = dict(view_dropout=[0.065, 0.24], decorrelation_weight=0.0033, off_diagonal_weight=0.028)
NOT_THE_OBJECTIVES = {
    *("max_seq_length", "sentences_per_step", "learning_rate", "lr_scheduler_type", "warmup_steps", "weight_decay"),
    *("max_grad_norm", "optim", "adam_beta1", "adam_beta2", "adam_epsilon", "gradient_accumulation_steps"),
    *("precision", "processes", "max_steps"),
}
TERMS = {"scd": ["self_contrast", "decorrelation"], "micse": ["contrast", "ami", "ami_positions"]}


@pytest.fixture(scope="module")
def runs():
    return {}


@pytest.fixture(params=["scd", "micse"])
def run(request, runs, encoder, command, capsys, tmp_path_factory):
    """A run of four steps: objective, folder, command line, what it printed. Done once for each."""
    key = (request.param, encoder)
    if key not in runs:
        folder = tmp_path_factory.mktemp("runs") / "run"
        options = dict(model_name=encoder, output_dir=folder, objective=request.param, **RUNS[request.param])
        arguments = command(save_total_limit=4, **options)
        assert run_unsup.main(arguments) == 0
        runs[key] = (request.param, folder, arguments, capsys.readouterr().out)
    return runs[key]


def read_json(path: Path):
    return json.loads(path.read_text())


def test_a_run_prints_its_terms_and_records_its_options(run, encoder):
    objective, folder, _, out = run
    (line,) = [line for line in out.splitlines() if line.startswith("terms at the end, unweighted")]
    terms = line.removeprefix("terms at the end, unweighted").replace(";", ",").split(",")
    listed = [term.split()[0] for term in terms]
    assert listed == [*TERMS[objective], "loss"]
    found = {k: v for k, v in read_json(folder / "training.json")["options"].items() if k not in NOT_THE_OBJECTIVES}
    roberta = load_config(str(encoder)).model_type == "roberta"
    assert found == OPTIONS[objective] | (ROBERTA_ROW if objective == "scd" and roberta else {})
    settings = read_json(folder / "config.json")["informin"]
    assert settings["objective"] == objective and settings["pooling"] == "cls"


def test_a_checkpoint_has_all_that_training_needs(run):
    objective, folder, _, _ = run
    weights = load_file(folder / "checkpoint-4" / "model.safetensors")
    settings = read_json(folder / "checkpoint-4" / "config.json")["informin"]
    heads = {name.partition(".")[0] for name in weights} - {"bert", "roberta"}
    assert heads == {"scd": {"projector"}, "micse": {"mlp", "momentum_encoder", "queue", "queue_ids"}}[objective]
    assert (settings["projector_size"], settings["queue_size"]) == {"scd": (16, 0), "micse": (0, 40)}[objective]
    if objective == "micse":
        assert weights["queue"].any(-1).all(), "64 keys for 40 places"


def test_a_resumed_run_equals_one_run_through(run, tmp_path):
    """Weights, momentum encoder, queue, batch statistics: the whole checkpoint to the bit."""
    _, folder, arguments, _ = run
    (tmp_path / "run").mkdir()
    shutil.copytree(folder / "checkpoint-2", tmp_path / "run" / "checkpoint-2")
    arguments = [a for a in arguments if not a.startswith("--output_dir")]
    assert run_unsup.main([*arguments, f"--output_dir={tmp_path / 'run'}", "--resume_from_checkpoint"]) == 0
    through, resumed, half = (
        load_file(path / "model.safetensors")
        for path in (folder / "checkpoint-4", tmp_path / "run" / "checkpoint-4", folder / "checkpoint-2")
    )
    assert through.keys() == resumed.keys()
    assert [name for name in through if not torch.equal(through[name], resumed[name])] == []
    assert [name for name in through if name.startswith(("queue", "momentum", "projector"))]
    still = [name for name in through if torch.equal(through[name], half[name])]
    assert still == []


@pytest.mark.parametrize("how", ["run", "run_export"])
def test_an_export_is_an_encoder_and_its_projection_head(run, tmp_path, capsys, how):
    objective, folder, _, _ = run
    kept = folder / f"checkpoint-{read_json(folder / 'training.json')['kept_step']}"
    checksums = {load_encoder(str(path), ("cls",), device="cpu").weights_sha256() for path in (kept, folder)}
    assert len(checksums) == 1, "results of the checkpoint are results of the export"
    if how == "run_export":
        assert run_export.main([str(kept), str(tmp_path / "export")]) == 0
        assert (tmp_path / "export" / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
        folder = tmp_path / "export"
    plain = AutoModel.from_config(AutoConfig.from_pretrained(folder), add_pooling_layer=False)
    assert load_file(folder / "model.safetensors").keys() == plain.state_dict().keys()
    settings = read_json(folder / "config.json")["informin"]
    assert (settings["lm_head"], settings["projector_size"], settings["queue_size"]) == (False, 0, 0)
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*.safetensors")}
    files = {name for name in files if not name.startswith("checkpoint-")}
    heads = {"projection_head/model.safetensors"} if objective == "micse" else set()
    assert files == {"model.safetensors"} | heads
    assert (folder / "projection_head").exists() == bool(heads)
    for name in heads:
        assert load_file(folder / name).keys() == {"dense.weight", "dense.bias"}


def test_an_export_gives_the_vectors_of_its_checkpoint(run, encoder):
    _, folder, _, _ = run
    kept = folder / f"checkpoint-{read_json(folder / 'training.json')['kept_step']}"
    batch = rows(encoder)
    exported = AutoModel.from_pretrained(folder, add_pooling_layer=False)
    trained = load_file(kept / "model.safetensors")
    for name, value in exported.state_dict().items():
        assert torch.equal(trained[f"{exported.base_model_prefix}.{name}"], value), name
    ours = AutoModel.from_pretrained(folder, trust_remote_code=True)
    assert torch.equal(ours(**batch).pooler_output, exported(**batch).last_hidden_state[:, 0])
    assert ours.config._attn_implementation == "sdpa"
    assert not any(isinstance(module, ViewDropout) for module in ours.modules())


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(ami_form="paper"), "this encoder has 5 a layer. Use an encoder with an even number of heads"),
        (dict(ami_form="reference", ami_layers=[1]), "pairs layers in the form 'reference', and 1 are chosen"),
    ],
    ids=["heads", "layers"],
)
def test_maps_that_cannot_be_paired_are_refused_before_training(bert, tmp_path, options, message):
    from tests.conftest import save_bert

    folder = save_bert(tmp_path / "odd", num_attention_heads=5, hidden_size=40)
    args = InforMinTrainingArguments(output_dir=str(tmp_path / "run"), use_cpu=True, **(MICSE | options))
    model = load_model(load_config(str(folder)), str(folder), {"projection_head": "mlp", **args.heads})
    with pytest.raises(UsageError, match=message):
        InforMinTrainer(model=model, args=args, train_dataset=[None] * 200, processing_class=tokenizer_of(folder))
    assert not (tmp_path / "run").exists()


def test_maps_without_a_gradient_are_refused(tmp_path):
    """Reentrant checkpointing runs the forward pass without gradient, the maps it records included."""
    common = dict(output_dir=str(tmp_path), use_cpu=True, gradient_checkpointing=True, **MICSE)
    InforMinTrainingArguments(**common)
    with pytest.raises(UsageError, match="no gradient under --gradient_checkpointing with use_reentrant"):
        InforMinTrainingArguments(**common, gradient_checkpointing_kwargs={"use_reentrant": True})


def test_a_warm_up_longer_than_the_run_is_said(build, caplog):
    build(warmup_steps=250).train()
    assert "rises over 250 steps and the run has 3: it never reaches 0.001" in caplog.text
    caplog.clear()
    build(warmup_steps=2).train()
    assert "never reaches" not in caplog.text


def test_views_without_dropout_are_refused_unless_they_have_rates_of_their_own(encoder, tmp_path):
    """The momentum encoder's dropout is no view's."""

    def still(settings):
        config = load_config(str(encoder))
        config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
        return load_model(config, str(encoder), settings)

    def trainer(**options):
        args = InforMinTrainingArguments(
            output_dir=str(tmp_path), use_cpu=True, eval_strategy="no", **(MICSE | options)
        )
        model = still({"projection_head": "mlp", **args.heads})
        return InforMinTrainer(model, args, train_dataset=[None] * 200, processing_class=tokenizer_of(encoder))

    with pytest.raises(UsageError, match=r"Every dropout of this model is 0, .* or give --view_dropout"):
        trainer()
    trainer(view_dropout=[0.0, 0.1])


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_papers_rows_fill_in_nothing_that_is_not_read(objective, encoder):
    """With every term off that can be: a row's values for them are left out, and nothing is refused."""
    off = [f"--{t.weight}=0" for t in OBJECTIVES[objective].terms if t.weight and t.name != "self_contrast"]
    parse([f"--model_name={encoder}", f"--objective={objective}", *off])
