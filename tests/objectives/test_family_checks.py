"""Mistakes in the choice of terms, options and encoders are rejected."""

import dataclasses
import json
import shutil
from dataclasses import fields

import datasets
import pytest

from informin.models.checkpoint import Checkpoint
from informin.models.native_loading import load_config
from informin.objectives import OBJECTIVES
from informin.training.command_line import parse
from informin.training.defaults import published
from tests.conftest import make_sentences, raises_usage, save_bert
from tests.objectives.conftest import logged, model_of
from tests.objectives.family_helpers import EVERYTHING, MICSE, NONCONTRASTIVE, SCD
from trainer_informin import InforMinTrainer, InforMinTrainingArguments


@pytest.mark.parametrize(
    "given, built, name, found, needed",
    [
        (SCD, "mlp", "projection_head", "mlp", "none"),
        (MICSE, "none", "projection_head", "none", "mlp"),
        (MICSE | dict(mlm_weight=0.1), "mlp", "lm_head", "False", "True"),
    ],
    ids=["scd", "micse", "mlm"],
)
def test_model_with_other_heads_is_rejected(build, encoder, given, built, name, found, needed):
    trainer, model = build(**given), model_of(encoder, built)
    with raises_usage(found=f"built with {name} = {found}", needed=f"{name} = {needed} for this objective"):
        InforMinTrainer(model, trainer.args, trainer.train_dataset, processing_class=trainer.processing_class)


def test_heads_of_a_second_trainer_replace_those_of_the_first(build):
    """An encoder can be trained with one objective after another; unused heads are removed."""
    first, second = build(**EVERYTHING), build(objective="simcse", mlm_weight=0.1, max_steps=1)
    first.train()
    again = InforMinTrainer(first.model, second.args, second.train_dataset, processing_class=second.processing_class)
    assert not again.model.heads and again.model is first.model
    again.train()
    assert len(logged(again, "terms/contrast")) == 1 and not logged(again, "terms/attention_mi")


@pytest.mark.parametrize(
    "options, batch, last, term, smallest",
    [
        (SCD, 9, "1 sentence", "decorrelation of features", 2),
        (dict(objective="simcse"), 9, "1 sentence", "contrast", 2),
        (dict(objective="guided", guided_weight=1), 9, "1 sentence", "guided similarity", 3),
        (dict(objective="guided", guided_weight=1), 31, "2 sentences", "guided similarity", 3),
    ],
    ids=["scd", "simcse", "guided", "guided, 2 sentences"],
)
def test_small_last_batch_is_rejected_before_the_guide_embeds(build, monkeypatch, options, batch, last, term, smallest):
    with monkeypatch.context() as without:
        without.setattr("informin.training.guided_data.load_guide", None)
        found = f"The last batch has {last} (64 sentences in batches of {batch}), which is too small for {term}"
        with raises_usage(found=found, needed=f"a batch of {smallest} or more"):
            build(per_device_train_batch_size=batch, dataloader_drop_last=False, **options)
    build(per_device_train_batch_size=batch, **options)
    build(per_device_train_batch_size=10, dataloader_drop_last=False, **options)


def test_the_last_batch_of_a_stream_is_dropped_if_it_may_be_too_small(build):
    trainer = build(objective="simcse")
    args = dataclasses.replace(trainer.args, dataloader_drop_last=False)
    stream = datasets.Dataset.from_dict({"text": make_sentences(64)}).to_iterable_dataset()
    with raises_usage(option="dataloader_drop_last", found="the last batch of a stream may be too small for contrast"):
        InforMinTrainer(trainer.model, args, stream, processing_class=trainer.processing_class)


def test_smallest_batch_of_each_term_is_exact(build):
    """A batch with one sentence fewer is rejected."""
    for options, smallest in (
        (SCD, 2),
        (dict(objective="simcse"), 2),
        (dict(objective="guided", guided_weight=1), 3),
        (NONCONTRASTIVE, 1),
        (dict(objective="guided", distillation_weight=1), 1),
    ):
        trainer = build(per_device_train_batch_size=smallest, max_steps=1, **options)
        assert max(term.smallest_batch for term in trainer.terms) == smallest
        trainer.train()
        if smallest > 1:
            with raises_usage(option="per_device_train_batch_size", needed=f"a batch of {smallest} or more"):
                build(per_device_train_batch_size=smallest - 1, **options)


def test_negatives_need_a_contrast():
    for name, value in (("queue_size", 8), ("temperature", 0.1), ("false_negative_fraction", 0.1)):
        with raises_usage(option=name, found=f"{value} has no effect with `objective` noncontrastive"):
            InforMinTrainingArguments(use_cpu=True, **NONCONTRASTIVE, **{name: value})
    with raises_usage(option="objective", found="noncontrastive has no term with a weight above 0"):
        InforMinTrainingArguments(objective="noncontrastive", use_cpu=True)


@pytest.mark.parametrize("layers", [[2], [0, 2], [1, 0], [1, 1], [-1], []], ids=str)
def test_layers_that_the_encoder_lacks_are_rejected(build, layers):
    with raises_usage(option="attention_mi_layers", found="the encoder has 2 layers"):
        build(attention_mi_layers=layers, **MICSE)


@pytest.mark.parametrize("options", [MICSE, SCD], ids=["micse", "scd"])
def test_attention_without_maps_or_rates_is_rejected(build, options):
    trainer = build(**options)
    trainer.model.config._attn_implementation_internal = "flash_attention_2"
    with raises_usage(found="attn_implementation='flash_attention_2', which does not support", needed="sdpa or eager"):
        InforMinTrainer(trainer.model, trainer.args, trainer.train_dataset, processing_class=trainer.processing_class)


@pytest.mark.parametrize(
    "options, found",
    [
        (dict(attention_mi_form="paper"), "this encoder has 5 heads per layer"),
        (dict(attention_mi_form="reference", attention_mi_layers=[1]), "reference pairs layers, but 1 are selected"),
    ],
    ids=["heads", "layers"],
)
def test_unpairable_attention_maps_are_rejected_before_training(tmp_path, options, found):
    folder = save_bert(tmp_path / "odd", num_attention_heads=5, hidden_size=40)
    args = InforMinTrainingArguments(output_dir=str(tmp_path / "run"), use_cpu=True, **(MICSE | options))
    with raises_usage(option="attention_mi_form", found=found):
        InforMinTrainer(str(folder), args, make_sentences(200))
    assert not (tmp_path / "run").exists()


def test_attention_maps_without_gradient_are_rejected(tmp_path):
    """Reentrant checkpointing runs the forward pass without gradient, so recorded maps have none."""
    common = dict(output_dir=str(tmp_path), use_cpu=True, gradient_checkpointing=True, **MICSE)
    InforMinTrainingArguments(**common)
    with raises_usage(option="gradient_checkpointing", found="gives attention maps no gradient"):
        InforMinTrainingArguments(**common, gradient_checkpointing_kwargs={"use_reentrant": True})


def test_warmup_longer_than_the_run_logs_a_warning(build, caplog):
    build(warmup_steps=250).train()
    assert "The warmup takes 250 steps, but the run has only 3. The learning rate never reaches 0.001" in caplog.text
    caplog.clear()
    build(warmup_steps=2).train()
    assert "never reaches" not in caplog.text


def test_encoder_without_dropout_requires_view_dropout(encoder, tmp_path):
    """The momentum encoder's dropout does not make views differ."""

    config = json.loads((encoder / "config.json").read_text())
    config |= dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    shutil.copytree(encoder, tmp_path / "still")
    (tmp_path / "still" / "config.json").write_text(json.dumps(config))

    def trainer(**options):
        args = InforMinTrainingArguments(str(tmp_path), use_cpu=True, eval_strategy="no", **(MICSE | options))
        return InforMinTrainer(str(tmp_path / "still"), args, make_sentences(200))

    with raises_usage(found="Every dropout rate of this model is 0", fix="`view_dropout`"):
        trainer()
    assert trainer(view_dropout=[0.0, 0.1]).model.base_model.embeddings.dropout.rates == (0.0, 0.1)


@pytest.mark.parametrize("objective", [name for name, objective in OBJECTIVES.items() if objective.rows])
def test_published_values_fill_in_only_options_in_use(objective, encoder):
    """With all optional terms off, their published values are not filled in, and nothing is rejected."""
    weights = [t.weight for t in OBJECTIVES[objective].terms if t.weight and t.name != "self_contrast"]
    off = [f"--{weight}=0" for weight in weights]
    _, _, _, args = parse([f"--model_name={encoder}", f"--objective={objective}", *off])
    on = {term.name: term for term in args.terms}
    assert "self_contrast" in on if objective == "scd" else not [term for term in on.values() if term.weight]
    unread = {own.name for term in OBJECTIVES[objective].terms if term.name not in on for own in fields(term)}
    left_open = InforMinTrainingArguments(objective=objective, use_cpu=True, **dict.fromkeys(weights, 0))
    filled = published(left_open, load_config(Checkpoint(encoder)))
    assert "learning_rate" in filled and not filled.keys() & unread
    assert all(getattr(args, name) == value for name, value in filled.items())
