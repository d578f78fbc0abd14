"""All objectives in the Trainer and in complete runs: heads, loss, terms, checkpoints, exports."""

import json
import shutil
from dataclasses import dataclass, fields
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import cosine_similarity
from transformers import AutoConfig, AutoModel, TrainerCallback

import run_export
import run_unsup
from informin.encoders.encoder import load_encoder
from informin.encoders.loading import load_config
from informin.objectives import OBJECTIVES, Objective, Term
from informin.objectives.attention_mi import attention_mi
from informin.objectives.contrast import contrast
from informin.objectives.decorrelation import decorrelation, self_contrast
from informin.objectives.masked_lm import masked_lm
from informin.objectives.reconstruction import reconstruction
from informin.objectives.terms import Head, option, require
from informin.training.command_line import parse
from informin.training.defaults import published
from informin.training.options import arguments_class
from informin.views.attention import ViewDropout
from tests.conftest import make_sentences, raises_usage, save_bert
from tests.objectives.conftest import logged, model_of, rows
from trainer_informin import InforMinTrainer, InforMinTrainingArguments

SCD = dict(objective="scd", projector_size=16)
MICSE = dict(objective="micse", queue_size=24)
EVERYTHING = dict(
    **dict(
        objective="informin",
        reconstruction_weight=0.7,
        attention_mi_weight=0.3,
        attention_mi_layers=[0, 1],
        queue_size=24,
    ),
    **dict(decorrelation_weight=0.2, projector_size=8, off_diagonal_weight=0.1, mlm_weight=0.2),
    **dict(view_dropout=[0.1, 0.3], temperature=0.1, attention_mi_form="reference"),
)
SCD_ROWS = {  # Klein and Nabi (2022), section 4
    "bert": dict(view_dropout=[0.05, 0.15], decorrelation_weight=0.005, off_diagonal_weight=0.013),
    "roberta": dict(view_dropout=[0.065, 0.24], decorrelation_weight=0.0033, off_diagonal_weight=0.028),
}


@pytest.mark.parametrize(
    "options, heads",
    [
        (SCD, {"decorrelation"}),
        (dict(objective="scd", decorrelation_weight=0), set()),
        (dict(objective="simcse"), {"mlp"}),
        (MICSE, {"mlp", "queue"}),
        (MICSE | dict(queue_size=0), {"mlp"}),
        (EVERYTHING, {"mlp", "queue", "decorrelation", "cls"}),
    ],
    ids=["scd", "scd-without", "simcse", "micse", "micse-without", "everything"],
)
def test_only_heads_in_use_are_built(build, options, heads):
    model = build(**options).model
    built = {name for name, _ in model.named_children()} - {model.base_model_prefix, "heads"} | set(model.heads)
    assert {"cls" if name == "lm_head" else name for name in built} == heads


def expected_loss(options, seen, model):
    """Compute the loss of a step from the pure functions, with the same weights and random state."""
    model.load_state_dict(seen["state"])
    torch.set_rng_state(seen["rng"])
    outputs = model.train()(**seen["inputs"])
    size, mask = 16, seen["inputs"]["attention_mask"][:16]
    z1, z2 = outputs.projection[:size], outputs.projection[size : 2 * size]
    if options["objective"] == "scd":
        features = [model.heads["decorrelation"].layers(view) for view in (z1, z2)]
        options = SCD_ROWS[model.config.model_type] | options
        loss = self_contrast(z1, z2, options.get("self_contrast_form", "paper"))
        loss = loss + options["decorrelation_weight"] * decorrelation(*features, options["off_diagonal_weight"])
    else:
        loss = contrast(z1, z2, options.get("temperature", 0.05), seen["state"]["heads.queue.embeddings"])
        loss = loss + options.get("reconstruction_weight", 0) * reconstruction(z1, z2)
        if "decorrelation_weight" in options:
            features = [model.heads["decorrelation"].layers(view) for view in (z1, z2)]
            loss = loss + options["decorrelation_weight"] * decorrelation(*features, options["off_diagonal_weight"])
        maps = torch.stack(outputs.attentions, 1)
        ami, _ = attention_mi(maps[:size], maps[size : 2 * size], mask, options.get("attention_mi_form", "paper"))
        loss = loss + options.get("attention_mi_weight", 2.5e-3) * ami
    if "mlm_weight" in options:
        loss = loss + options["mlm_weight"] * masked_lm(outputs.lm_losses)
    return loss.item()


@pytest.mark.parametrize(
    "options",
    [
        SCD,
        SCD | dict(decorrelation_weight=0.1, off_diagonal_weight=0.5, self_contrast_form="reference"),
        SCD | dict(mlm_weight=0.2),
        MICSE,
        MICSE | dict(attention_mi_weight=2.0, attention_mi_layers=[1], temperature=0.2),
        EVERYTHING,
    ],
    ids=["scd", "scd-reference", "scd-mlm", "micse", "micse-one-layer", "everything"],
)
def test_loss_is_the_objective_on_the_batch(build, options):
    """At the second step, when the queue has the keys of the first."""
    trainer, steps = build(max_steps=2, lr_scheduler_type="constant", **options), []

    def watch(module, args, kwargs):
        seen = {"rng": torch.get_rng_state(), "inputs": dict(kwargs)}
        seen["state"] = {name: value.clone() for name, value in module.state_dict().items()}
        steps.append(seen)

    compute_loss = trainer.compute_loss

    def keep_labels(model, inputs, **kwargs):
        loss = compute_loss(model, inputs, **kwargs)
        steps[-1]["labels"] = inputs.get("lm_labels")
        return loss

    trainer.compute_loss = keep_labels
    hook = trainer.model.register_forward_pre_hook(watch, with_kwargs=True)
    trainer.train()
    hook.remove()
    assert len(steps) == 2
    for seen, loss in zip(steps, logged(trainer, "loss")):
        assert expected_loss(options, seen, trainer.model) == pytest.approx(loss, rel=1e-4)
    if "queue" in trainer.model.heads:
        filled = [seen["state"]["heads.queue.embeddings"].any(-1).sum().item() for seen in steps]
        assert filled == [0, 16]


@pytest.mark.parametrize("options", [SCD, SCD | dict(mlm_weight=0.2), MICSE, EVERYTHING], ids=lambda o: f"{len(o)}")
def test_terms_are_logged_unweighted_and_sum_to_the_loss(build, options):
    trainer = build(**options)
    trainer.train()
    entries = [entry for entry in trainer.state.log_history if "loss" in entry]
    weights = {term.name: term.strength for term in trainer.terms if term.summand}
    assert len(entries) == 3 and len(weights) > 1
    for entry in entries:
        assert entry["loss"] == pytest.approx(sum(w * entry[f"terms/{name}"] for name, w in weights.items()), rel=1e-4)
    if "attention_mi" in weights:
        assert all(3 <= entry["attention_mi_positions"] <= 150 for entry in entries)


@pytest.mark.parametrize(
    "options, rates",
    [
        (SCD, None),
        (SCD | dict(mlm_weight=0.1, view_dropout=[0.02, 0.4]), (0.02, 0.4, 0.1)),
        (SCD | dict(mlm_weight=0.1, masked_views=True), None),
        (dict(objective="simcse", view_dropout=[0.0, 0.5]), (0.0, 0.5)),
    ],
    ids=["scd", "mlm", "masked-views", "simcse"],
)
def test_views_use_their_dropout_rates_in_training(build, options, rates):
    """None stands for the published rates."""
    trainer, dropped = build(max_steps=1, **options), []
    rates = rates or tuple(SCD_ROWS[trainer.model.config.model_type]["view_dropout"])
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
    """The momentum encoder's pass without gradient must not leave cast weights in autocast's cache."""
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
    """The attention maps are recorded outside the layer's output, and are recomputed all the same."""
    gradients = []
    for checkpointing in (False, True):
        trainer = build(callbacks=[kept := Gradients()], max_steps=2, max_grad_norm=0.0, **EVERYTHING)
        if checkpointing:
            trainer.model.gradient_checkpointing_enable()
        trainer.train()
        gradients.append(kept.kept)
    assert gradients[0].keys() == gradients[1].keys()
    torch.testing.assert_close(gradients[0], gradients[1])


def test_export_does_not_change_the_model_in_training(build, tmp_path):
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
    """Without decorrelation, the mean cosine of the two views falls."""
    trainer = build(objective="scd", decorrelation_weight=0, max_steps=12)
    trainer.train()
    cosines = logged(trainer, "terms/self_contrast")
    assert cosines[-1] < cosines[0] - 0.1
    z1, z2 = trainer.model.train()(**rows(encoder)).projection.chunk(2)
    assert cosine_similarity(z1, z2).mean().item() < cosines[0]


@dataclass
class Spread(Term):
    """Minus the variance of the projections to a power, times the number of steps counted by its head."""

    name = "spread"
    title = "a toy"
    weight = "spread_weight"

    spread_weight: float = option(0, "Of the spread.")
    spread_power: float = option(1.0, "Its power.")

    def check(self):
        require(self.spread_power > 0, "spread_power", self.spread_power, "a number above 0")

    def head(self, model):
        return Counter()

    def loss(self, views):
        seen.append(views)
        means, steps = views.heads["spread"]
        value = -(1 + steps) * means.var(0).mean() ** self.spread_power
        return {"spread": value, "length": views.mask.sum(1).float()[0]}


class Counter(Head):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, model, projection, input_ids, attention_mask, sentence_ids, gather):
        return gather(projection), self.steps.clone()

    def after_step(self, model):
        self.steps += 1


seen = []


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setitem(OBJECTIVES, "toy", Objective("a toy", (Spread, *OBJECTIVES["simcse"].terms[-1:])))
    seen.clear()


def test_objective_can_be_added_with_one_class_and_one_line(build, toy):
    """It has options and a head, and is combined with an existing term."""
    trainer = build(objective="toy", spread_weight=2.0, spread_power=0.5, gradient_accumulation_steps=2)
    trainer.train()
    terms = logged(trainer, "terms/spread")
    assert logged(trainer, "loss") == pytest.approx([2 * term for term in terms], rel=1e-5) and len(terms) == 3
    lengths = [float(views.mask.sum(1)[0]) for views in seen]
    assert logged(trainer, "length") == [sum(pair) / 2 for pair in zip(lengths[::2], lengths[1::2])]
    assert [views.heads["spread"][1].item() for views in seen] == [0, 0, 1, 1, 2, 2]
    for views in seen:
        means, _ = views.heads["spread"]
        assert means.shape == (32, 32) and torch.equal(means, torch.cat([views.z1, views.z2]))
        assert views.maps1 is views.maps2 is views.lm_losses is None
    spreads = [-views.heads["spread"][0].var(0).mean().sqrt().item() for views in seen]
    assert terms == pytest.approx([step * sum(spreads[2 * step - 2 : 2 * step]) / 2 for step in (1, 2, 3)], rel=1e-5)
    assert trainer.args.objective_options == dict(objective="toy", spread_weight=2.0, spread_power=0.5)


@pytest.mark.parametrize(
    "options, option, found, fix",
    [
        (
            dict(objective="toy", spread_weight=1, attention_mi_weight=1.0),
            "attention_mi_weight",
            "1.0",
            "spread_weight",
        ),
        (
            *(dict(objective="toy", spread_power=2.0), "spread_power"),
            *("2.0 has no effect", "with `spread_weight` above 0 also spread_power"),
        ),
        (dict(objective="toy", spread_weight=1, spread_power=-1), "spread_power", "is -1", ""),
        (dict(objective="toy"), "objective", "toy has no term with a weight above 0", ""),
        (dict(objective="simcse", spread_weight=1), "spread_weight", "1 has no effect with `objective` simcse", ""),
    ],
    ids=["another-terms", "off", "check", "nothing", "another-objective"],
)
def test_options_of_an_added_objective_are_checked(toy, tmp_path, options, option, found, fix):
    with raises_usage(option=option, found=found, fix=fix):
        arguments_class()(str(tmp_path), **options)


def test_term_can_only_use_its_declared_options(build, monkeypatch):

    class Greedy(Term):
        name = title = "greedy"

        def loss(self, views):
            return {"greedy": views.z1.sum() * self.temperature}

    monkeypatch.setitem(OBJECTIVES, "toy", Objective("a toy", (Greedy,)))
    with pytest.raises(AttributeError, match="temperature"):
        build(objective="toy").train()


def test_loaded_model_resumes_with_its_heads(build, encoder):
    """The heads of terms come from the options, not from the model's configuration."""

    def trainer():
        given = build(save_strategy="steps", save_steps=2, max_steps=4, **MICSE)
        rows, tokenizer = given.train_dataset, given.processing_class
        return InforMinTrainer(model_of(encoder), given.args, rows, processing_class=tokenizer)

    through = trainer()
    through.train()
    shutil.rmtree(Path(through.args.output_dir, "checkpoint-4"))
    resumed = trainer()
    resumed.train(resume_from_checkpoint=True)
    expected = through.model.state_dict()
    assert resumed.state.global_step == 4 and resumed.model.state_dict().keys() == expected.keys()
    assert [k for k, v in resumed.model.state_dict().items() if not torch.equal(v, expected[k])] == []


# Mistakes


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


def test_smallest_batch_of_each_term_is_exact(build):
    """A batch with one sentence fewer is rejected."""
    for options, smallest in (
        (SCD, 2),
        (dict(objective="simcse"), 2),
        (dict(objective="guided", guided_weight=1), 3),
        (dict(objective="guided", distillation_weight=1), 1),
    ):
        trainer = build(per_device_train_batch_size=smallest, max_steps=1, **options)
        assert max(term.smallest_batch for term in trainer.terms) == smallest
        trainer.train()
        if smallest > 1:
            with raises_usage(option="per_device_train_batch_size", needed=f"a batch of {smallest} or more"):
                build(per_device_train_batch_size=smallest - 1, **options)


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


# Whole runs: both architectures once each, and what is done with what they leave

RUNS = {"scd": dict(projector_size=16), "micse": dict(queue_size=40, warmup_steps=0)}
OPTIONS = {  # options in the record
    "scd": dict(
        **dict(objective="scd", projection_head="none", self_contrast_weight=1.0),
        **dict(self_contrast_form="paper", projector_size=16),
    ),
    "micse": dict(
        **dict(
            objective="micse",
            projection_head="mlp",
            temperature=0.05,
            attention_mi_weight=2.5e-3,
            attention_mi_form="paper",
        ),
        **dict(queue_size=40, momentum_decay=0.995, momentum_dropout=0.3),
    ),
}
NOT_THE_OBJECTIVES = {
    *("max_seq_length", "sentences_per_step", "learning_rate", "lr_scheduler_type", "warmup_steps", "weight_decay"),
    *("max_grad_norm", "optim", "adam_beta1", "adam_beta2", "adam_epsilon", "gradient_accumulation_steps"),
    *("precision", "processes", "max_steps"),
}
TERMS = {"scd": ["self_contrast", "decorrelation"], "micse": ["contrast", "attention_mi"]}


@pytest.fixture(scope="module")
def runs():
    return {}


@pytest.fixture(params=["scd", "micse"])
def run(request, runs, encoder, command, capsys, tmp_path_factory):
    """Return the objective, folder, command line and output of a run of four steps, done once per objective."""
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


def test_run_prints_its_terms_and_records_its_options(run, encoder):
    objective, folder, _, out = run
    (line,) = [line for line in out.splitlines() if line.startswith("last terms, unweighted")]
    terms = line.removeprefix("last terms, unweighted").replace(";", ",").split(",")
    listed = [term.split()[0] for term in terms]
    assert listed == [*TERMS[objective], "loss"]
    options = {k: v for k, v in read_json(folder / "training.json")["options"].items() if k not in NOT_THE_OBJECTIVES}
    row = SCD_ROWS[load_config(str(encoder)).model_type] if objective == "scd" else {}
    assert options == OPTIONS[objective] | row
    settings = read_json(folder / "config.json")["informin"]
    assert settings["objective"] == objective and settings["pooling"] == "cls"


def test_checkpoint_has_everything_that_training_needs(run):
    objective, folder, _, _ = run
    weights = load_file(folder / "checkpoint-4" / "model.safetensors")
    settings = read_json(folder / "checkpoint-4" / "config.json")["informin"]
    heads = {".".join(name.split(".")[: 3 if name.startswith("heads.") else 1]) for name in weights}
    queue = {"mlp", "heads.queue.encoder", "heads.queue.embeddings", "heads.queue.ids"}
    assert heads - {"bert", "roberta"} == {"scd": {"heads.decorrelation.layers"}, "micse": queue}[objective]
    sizes = {name: settings[name] for name in ("projector_size", "queue_size") if name in settings}
    assert sizes == {"scd": {"projector_size": 16}, "micse": {"queue_size": 40}}[objective]
    if objective == "micse":
        assert weights["heads.queue.embeddings"].any(-1).all(), "64 keys for 40 places"


def test_resumed_run_equals_an_uninterrupted_one(run, tmp_path):
    """The checkpoints are bit-equal: weights, momentum encoder, queue and batch statistics."""
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
    assert [name for name in through if name.startswith("heads.")]
    still = [name for name in through if torch.equal(through[name], half[name])]
    assert still == []


@pytest.mark.parametrize("how", ["run", "run_export"])
def test_export_has_the_encoder_and_the_projection_head(run, tmp_path, capsys, how):
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
    assert read_json(folder / "config.json")["informin"]["lm_head"] is False
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*.safetensors")}
    files = {name for name in files if not name.startswith("checkpoint-")}
    heads = {"projection_head/model.safetensors"} if objective == "micse" else set()
    assert files == {"model.safetensors"} | heads
    assert (folder / "projection_head").exists() == bool(heads)
    for name in heads:
        assert load_file(folder / name).keys() == {"dense.weight", "dense.bias"}


def test_export_gives_the_embeddings_of_its_checkpoint(run, encoder):
    _, folder, _, _ = run
    kept = folder / f"checkpoint-{read_json(folder / 'training.json')['kept_step']}"
    batch = rows(encoder)
    exported = AutoModel.from_pretrained(folder, add_pooling_layer=False)
    trained = load_file(kept / "model.safetensors")
    for name, value in exported.state_dict().items():
        assert torch.equal(trained[f"{exported.base_model_prefix}.{name}"], value), name
    ours = AutoModel.from_pretrained(folder, trust_remote_code=True)
    assert torch.equal(ours(**batch).pooler_output, exported(**batch).last_hidden_state[:, 0])
    assert ours.config._attn_implementation == "sdpa" and not ours.heads
    assert not any(isinstance(module, ViewDropout) for module in ours.modules())


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
    filled = published(left_open, load_config(str(encoder)))
    assert "learning_rate" in filled and not filled.keys() & unread
    assert all(getattr(args, name) == value for name, value in filled.items())
