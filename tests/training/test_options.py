"""The checks of options with their messages, on the command line and from Python."""

import copy
import dataclasses
import json
import re

import pytest
from transformers import TrainingArguments

from informin.encoders.loading import load_config
from informin.errors import UsageError
from informin.training.command_line import parse
from informin.training.options import InforMinTrainingArguments


@pytest.mark.parametrize(
    "argv, expected",
    [
        ([], {"eval_steps": 125, "save_steps": 125, "eval_on_start": True, "load_best_model_at_end": True}),
        (["--eval_steps=40"], {"eval_steps": 40, "save_steps": 40}),
        (["--eval_steps=40", "--save_steps=80"], {"eval_steps": 40, "save_steps": 80}),
        (
            ["--eval_strategy=no", "--save_total_limit=1"],
            {"eval_on_start": False, "load_best_model_at_end": False, "metric_for_best_model": None, "save_steps": 125},
        ),
        (["--load_best_model_at_end=false", "--save_total_limit=1"], {"save_total_limit": 1}),
        (["--objective=simcse"], {"reconstruction_weight": 0.0}),
        (["--objective=simcse", "--reconstruction_weight=0"], {"reconstruction_weight": 0.0}),
    ],
)
def test_options_that_follow_others(options, argv, expected):
    found = options(*argv)
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(
    "argv, message",
    [
        (["--reconstruction_weight=-1"], r"`reconstruction_weight` is -1\.0; expected 0 or more"),
        (["--reconstruction_weight=inf"], "`reconstruction_weight` is inf; expected 0 or more"),
        (["--mlm_weight=-0.1"], r"`mlm_weight` is -0\.1; expected 0 or more"),
        (["--mlm_weight=nan"], "`mlm_weight` is nan; expected 0 or more"),
        (["--temperature=0"], r"`temperature` is 0\.0; expected a number above 0"),
        (["--temperature=inf"], "`temperature` is inf; expected a number above 0"),
        (
            ["--mlm_weight=0.1", "--mlm_probability=0"],
            r"`mlm_probability` is 0\.0; expected a fraction between 0 and 1",
        ),
        (
            ["--mlm_weight=0.1", "--mlm_probability=15"],
            r"`mlm_probability` is 15\.0; expected a fraction between 0 and 1",
        ),
        (
            ["--masked_views"],
            "`masked_views` True has no effect .* with `mlm_weight` above 0 also mlm_prob.*, masked_views",
        ),
        (["--per_device_train_batch_size=1"], "A batch of 1 sentence is too small for contrast, which needs 2 or more"),
        (["--save_total_limit=1"], "`save_total_limit` 1 cannot keep both the best and the newest checkpoint"),
        (
            ["--objective=simcse", "--reconstruction_weight=4"],
            r"`reconstruction_weight` 4\.0 has no effect with `objective` simcse",
        ),
        (["--train_file=a.txt", "--dataset_name=b"], "`train_file` and `dataset_name` both say what to train on"),
        (["--max_train_samples=0"], "`max_train_samples` is 0; expected 1 or more"),
        (["--max_seq_length=2"], "`max_seq_length` is 2; expected 3 or more"),
        (["--save_steps=100"], "100, which is not a round multiple of 125"),  # transformers' own check
    ],
)
def test_checks(options, argv, message):
    with pytest.raises(UsageError, match=message):
        options(*argv)


def test_a_simcse_recipe_with_a_weight_in_yaml_is_refused_too(options):
    with pytest.raises(UsageError, match="has no effect with `objective` simcse"):
        options("--objective=simcse", yaml="reconstruction_weight: 4")


@pytest.mark.parametrize("name, plugin", [("FSDP", "FSDP"), ("DeepSpeed", "DEEPSPEED")])
def test_what_needs_whole_weights_is_refused_where_they_are_parted(model, monkeypatch, name, plugin):
    plain, queue, packed = (
        InforMinTrainingArguments(objective="simcse", use_cpu=True, **given)
        for given in ({}, {"queue_size": 8}, {"padding_free": True})
    )
    monkeypatch.setenv(f"ACCELERATE_USE_{plugin}", "true")  # only now: transformers would look for the package
    config = load_config(model())
    plain.for_model(model(), config)
    assert plain.padding_free is False
    with pytest.raises(UsageError, match=f"^`queue_size` needs whole weights, .* {name} parts them"):
        queue.for_model(model(), config)
    with pytest.raises(UsageError, match=f"^`padding_free` does not go with {name}"):
        packed.for_model(model(), config)


def test_several_gpus_in_one_process_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(TrainingArguments, "n_gpu", property(lambda self: 3))
    with pytest.raises(UsageError, match=r"3 GPUs in one process .* Start 3 processes with accelerate launch"):
        InforMinTrainingArguments(str(tmp_path), use_cpu=True)


def test_several_processes_need_batches_of_one_size(tmp_path, monkeypatch):
    monkeypatch.setattr(TrainingArguments, "world_size", property(lambda self: 2))
    one_each = InforMinTrainingArguments(str(tmp_path), use_cpu=True, per_device_train_batch_size=1)
    assert one_each.dataloader_drop_last
    with pytest.raises(UsageError, match="leave `dataloader_drop_last` on"):
        InforMinTrainingArguments(str(tmp_path), use_cpu=True, dataloader_drop_last=False)


@pytest.mark.parametrize(
    "argv, weights",
    [
        ([], {"contrast": 1.0, "reconstruction": 0.4}),
        (["--objective=simcse"], {"contrast": 1.0}),
        (["--reconstruction_weight=0", "--mlm_weight=0.1"], {"contrast": 1.0, "mlm": 0.1}),
    ],
)
def test_term_weights_are_those_that_are_on(model, argv, weights):
    *_, args = parse([f"--model_name={model()}", "--use_cpu=true", *argv])
    assert {term.name: term.strength for term in args.terms} == weights


OF_A_GUIDE = "guided_weight, neighbor_weight, distillation_weight, replay_weight"
WITH_A_GUIDE = (
    "with `guided_weight` above 0 also student_temperature, guide_temperature, guided_neighbors; "
    "with `neighbor_weight` above 0 also neighbor_count; with `replay_weight` above 0 also replay_size; "
)
READ = {  # the list in the message: what is read as it is set, then what a weight above 0 would add
    "scd": (
        "view_dropout, self_contrast_weight, self_contrast_form, decorrelation_weight, off_diagonal_weight, "
        f"projector_size, {OF_A_GUIDE}, mlm_weight; {WITH_A_GUIDE}"
        "with `mlm_weight` above 0 also mlm_probability, masked_views."
    ),
    "micse": (
        "view_dropout, temperature, false_negative_fraction, queue_size, momentum_decay, momentum_dropout, "
        f"attention_mi_weight, attention_mi_form, attention_mi_layers, reconstruction_weight, "
        f"{OF_A_GUIDE}, mlm_weight; with `reconstruction_weight` above 0 also reconstruction_form; {WITH_A_GUIDE}"
        "with `mlm_weight` above 0 also mlm_probability, masked_views."
    ),
    "simcse": (
        f"view_dropout, temperature, false_negative_fraction, queue_size, attention_mi_weight, decorrelation_weight, "
        f"{OF_A_GUIDE}, mlm_weight; "
        "with `queue_size` above 0 also momentum_decay, momentum_dropout; "
        "with `attention_mi_weight` above 0 also attention_mi_form, attention_mi_layers; "
        f"with `decorrelation_weight` above 0 also off_diagonal_weight, projector_size; {WITH_A_GUIDE}"
        "with `mlm_weight` above 0 also mlm_probability, masked_views."
    ),
}
UNREAD = [
    ("scd", "temperature", 0.1, READ["scd"]),
    ("scd", "queue_size", 8, READ["scd"]),
    ("scd", "attention_mi_layers", [0, 1], READ["scd"]),
    ("scd", "reconstruction_weight", 0.4, READ["scd"]),
    ("scd", "mlm_probability", 0.3, READ["scd"]),
    ("micse", "self_contrast_form", "reference", READ["micse"]),
    ("micse", "decorrelation_weight", 0.1, READ["micse"]),
    ("micse", "reconstruction_form", "reference", READ["micse"]),
    ("simcse", "momentum_dropout", 0.1, READ["simcse"]),
    ("simcse", "attention_mi_form", "reference", READ["simcse"]),
    ("simcse", "projector_size", 64, READ["simcse"]),
    ("simcse", "reconstruction_form", "unit_squared_l2", READ["simcse"]),
    ("simcse", "masked_views", True, READ["simcse"]),
]


@pytest.mark.parametrize("objective, name, value, read", UNREAD)
def test_an_option_that_the_objective_does_not_read_is_refused(options, tmp_path, objective, name, value, read):
    """On the command line, in YAML and from Python."""
    words = [str(item) for item in value] if isinstance(value, list) else [str(value)]
    message = f"`{name}` {value} has no effect with `objective` {objective} as it is set. It reads: {read}"
    calls = [
        lambda: options(f"--objective={objective}", f"--{name}", *words),
        lambda: options(f"--objective={objective}", yaml=f"{name}: {json.dumps(value)}"),
        lambda: InforMinTrainingArguments(str(tmp_path), use_cpu=True, objective=objective, **{name: value}),
    ]
    for call in calls:
        with pytest.raises(UsageError) as caught:
            call()
        assert str(caught.value) == message


@pytest.mark.parametrize(
    "argv, expected",
    [
        (["--objective=scd", "--queue_size=0", "--reconstruction_weight=0", "--masked_views=false"], {"queue_size": 0}),
        (["--objective=micse", "--decorrelation_weight=0"], {"attention_mi_weight": 2.5e-3}),
        (
            ["--objective=micse", "--queue_size=0", "--attention_mi_weight=0"],
            {"queue_size": 0, "attention_mi_weight": 0},
        ),
        (
            ["--objective=simcse", "--queue_size=8", "--momentum_decay=0.9"],
            {"momentum_decay": 0.9, "attention_mi_weight": 0},
        ),
        (
            ["--objective=simcse", "--attention_mi_weight=1", "--attention_mi_layers", "7", "9"],
            {"attention_mi_layers": [7, 9]},
        ),
        (["--decorrelation_weight=0.1", "--projector_size=64"], {"projector_size": 64, "reconstruction_weight": 0.4}),
        (["--objective=scd", "--decorrelation_weight=0"], {"decorrelation_weight": 0, "self_contrast_weight": 1.0}),
    ],
)
def test_options_that_are_read_or_turn_something_off_pass(options, argv, expected):
    found = options(*argv)
    assert {name: found[name] for name in expected} == expected


BAD = [
    (
        "scd",
        dict(view_dropout=[0.2, 0.1]),
        "`view_dropout` is 0.2 0.1; expected two rates of which the second is higher",
    ),
    ("scd", dict(view_dropout=[0.1, 0.1]), "`view_dropout` is 0.1 0.1; expected two rates"),
    ("scd", dict(view_dropout=[0.1, 0.2, 0.3]), "`view_dropout` is 0.1 0.2 0.3; expected two rates"),
    ("scd", dict(view_dropout=[0.1]), "`view_dropout` is 0.1; expected two rates"),
    ("simcse", dict(view_dropout=[0.1, 1.0]), "`view_dropout` is 0.1 1.0; expected two rates .* below 1"),
    ("simcse", dict(view_dropout=[-0.1, 0.1]), "`view_dropout` is -0.1 0.1; expected two rates .* at least 0"),
    (
        "scd",
        dict(per_device_train_batch_size=1),
        "A batch of 1 sentence is too small for decorrelation of features, which needs 2",
    ),
    (
        "guided",
        dict(guided_weight=1.0, per_device_train_batch_size=2),
        "A batch of 2 sentences .* similarity, which needs 3",
    ),
    ("scd", dict(projector_size=0), "`projector_size` is 0; expected 1 or more"),
    ("scd", dict(off_diagonal_weight=-1.0), r"`off_diagonal_weight` is -1\.0; expected 0 or more"),
    ("scd", dict(decorrelation_weight=-1.0), r"`decorrelation_weight` is -1\.0; expected 0 or more"),
    (
        *("scd", dict(self_contrast_weight=0.0, decorrelation_weight=0.0)),
        "Every term of `objective` scd has the weight 0: there is nothing to learn",
    ),
    ("micse", dict(queue_size=-1), "`queue_size` is -1; expected 0 or more"),
    ("micse", dict(momentum_decay=1.0), r"`momentum_decay` is 1\.0; expected a fraction between 0 and 1"),
    ("micse", dict(momentum_dropout=1.0), r"`momentum_dropout` is 1\.0; expected 0 or more, and below 1"),
    ("micse", dict(momentum_dropout=-0.1), r"`momentum_dropout` is -0\.1; expected 0 or more, and below 1"),
    ("micse", dict(attention_mi_weight=float("inf")), "`attention_mi_weight` is inf; expected 0 or more"),
]


@pytest.mark.parametrize("objective, given, message", BAD)
def test_values_that_the_family_cannot_use(options, tmp_path, objective, given, message):
    """On the command line and from Python."""
    argv = [f"--objective={objective}"]
    for name, value in given.items():
        argv += [f"--{name}", *map(str, value)] if isinstance(value, list) else [f"--{name}={value}"]
    calls = [
        lambda: options(*argv),
        lambda: InforMinTrainingArguments(str(tmp_path), use_cpu=True, objective=objective, **given),
    ]
    for call in calls:
        with pytest.raises(UsageError, match=message):
            call()


@pytest.mark.parametrize(
    "given, message",
    [
        (dict(objective="barlow"), "`objective` barlow is unknown; needed one of: informin, simcse, scd, micse"),
        (dict(reconstruction_form="l1"), "`reconstruction_form` is l1; expected one of: squared_l2, unit_"),
        (
            dict(objective="micse", attention_mi_form="code"),
            "`attention_mi_form` is code; expected one of: paper, reference",
        ),
        (dict(objective="scd", self_contrast_form="code"), "`self_contrast_form` is code; expected one of: pap"),
    ],
)
def test_unknown_names_are_refused_from_python_and_the_command_line(options, tmp_path, given, message):
    with pytest.raises(UsageError, match=message):
        InforMinTrainingArguments(str(tmp_path), use_cpu=True, **given)
    with pytest.raises(UsageError, match="invalid choice"):  # argparse's own words
        options(*[f"--{name}={value}" for name, value in given.items()])


@pytest.mark.parametrize(
    "argument, message",
    [
        ("--learning_rate=-1", "`learning_rate` is -1.0; expected a number above 0."),
        ("--learning_rate=0", "`learning_rate` is 0.0; expected a number above 0."),
        ("--learning_rate=nan", "`learning_rate` is nan; expected a number above 0."),
        ("--learning_rate=inf", "`learning_rate` is inf; expected a number above 0."),
        ("--seed=-1", "`seed` is -1; expected a whole number from 0 to 4294967295."),
        (f"--seed={10**14}", f"`seed` is {10**14}; expected a whole number from 0 to 4294967295."),
        ("--data_seed=-2", "`data_seed` is -2; expected a whole number from 0 to 4294967295."),
        ("--num_train_epochs=-3", "`num_train_epochs` is -3.0; expected a number above 0."),
        ("--max_steps=0", "`max_steps` is 0; expected 1 or more."),
        ("--max_steps=-2", "`max_steps` is -2; expected 1 or more."),
        ("--per_device_train_batch_size=0", "`per_device_train_batch_size` is 0; expected 1 or more."),
        ("--per_device_eval_batch_size=-1", "`per_device_eval_batch_size` is -1; expected 1 or more."),
        ("--gradient_accumulation_steps=0", "`gradient_accumulation_steps` is 0; expected 1 or more."),
        ("--save_total_limit=0", "`save_total_limit` is 0; expected 1 or more."),
        ("--logging_steps=0", "`logging_steps` is 0.0; expected a number above 0."),
        ("--eval_steps=-5", "`eval_steps` is -5.0; expected a number above 0."),
        ("--warmup_steps=-1", "`warmup_steps` is -1.0; expected 0 or more."),
        ("--weight_decay=-1", "`weight_decay` is -1.0; expected 0 or more."),
        ("--max_grad_norm=nan", "`max_grad_norm` is nan; expected 0 or more."),
        (
            "--metric_for_best_model=eval_loss",
            "`metric_for_best_model` eval_loss is unknown; needed one of: ",
        ),
        (
            "--greater_is_better=false",
            "`greater_is_better` False with spearman would keep the worst one.",
        ),
        ("--resume_from_checkpoint=", "`resume_from_checkpoint` is empty. Name a checkpoint, or `last` for the newest"),
        ("--adam_beta2=1", "`adam_beta2` is 1.0; expected 0 or more, and below 1."),
        ("--report_to=wandb", "`report_to` wandb: wandb is not installed. Install it: pip install wandb"),
        ("--report_to=trackio", "`report_to` trackio: trackio is not installed. Install it: pip install trackio"),
        (
            "--report_to=tensorbord",
            "`report_to` tensorbord is unknown. Did you mean tensorboard? Needed of: azure_ml, ",
        ),
    ],
)
def test_numbers_and_loggers_are_checked_when_options_are_built(options, monkeypatch, argument, message):
    monkeypatch.setattr("informin.training.options.get_available_reporting_integrations", lambda: ["tensorboard"])
    with pytest.raises(UsageError, match=re.escape(message)):
        options(argument)


def test_of_alignment_the_lower_is_the_better(options):
    assert options("--metric_for_best_model=eval_alignment")["greater_is_better"] is False
    assert options()["greater_is_better"] is True


@pytest.mark.parametrize(
    "name, given, value",
    [("max_steps", -1, -1), ("max_grad_norm", 0, 0), ("seed", 2**32 - 1, 2**32 - 1), ("report_to", "none", [])],
)
def test_numbers_at_their_limits_pass(options, name, given, value):
    assert options(f"--{name}={given}")[name] == value


def test_another_objective_leaves_nothing_of_the_first(model):
    args, other = (InforMinTrainingArguments(objective=name, use_cpu=True) for name in ("micse", "simcse"))
    args.objective = "simcse"
    for each in (args, other):
        each.for_model(model(), load_config(model()))
    assert args == other and args.warmup_steps == 0 and [term.name for term in args.terms] == ["contrast"]


def test_options_are_compared_and_shown_with_those_of_the_terms():
    first, second = (InforMinTrainingArguments(temperature=t, use_cpu=True) for t in (0.1, 0.2))
    assert first != second and first == copy.copy(first)
    assert "temperature=0.1" in str(first) and "temperature=0.2" in repr(second)


def test_replace_which_would_lose_the_terms_options_is_refused():
    args = InforMinTrainingArguments(temperature=0.1, use_cpu=True)
    with pytest.raises(UsageError, match=r"Every option is given, as by dataclasses\.replace"):
        dataclasses.replace(args, seed=3)
