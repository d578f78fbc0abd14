"""Values of options: unknown choices, numbers out of range, and trackers."""

import pytest

from informin.training import option_checks as checks
from informin.training.options import InforMinTrainingArguments
from tests.conftest import raises_usage

RATES = "two increasing rates, at least 0 and below 1"
BATCH = "per_device_train_batch_size"
BAD = [  # objective, options, then the error's option, found and needed
    ("scd", dict(view_dropout=[0.2, 0.1]), "view_dropout", "0.2 0.1", RATES),
    ("scd", dict(view_dropout=[0.1, 0.1]), "view_dropout", "0.1 0.1", RATES),
    ("scd", dict(view_dropout=[0.1, 0.2, 0.3]), "view_dropout", "0.1 0.2 0.3", RATES),
    ("scd", dict(view_dropout=[0.1]), "view_dropout", "0.1", RATES),
    ("simcse", dict(view_dropout=[0.1, 1.0]), "view_dropout", "0.1 1.0", RATES),
    ("simcse", dict(view_dropout=[-0.1, 0.1]), "view_dropout", "-0.1 0.1", RATES),
    ("scd", {BATCH: 1}, BATCH, "1 sentence, which is too small for decorrelation of features", "2 or more"),
    ("guided", {"guided_weight": 1.0, BATCH: 2}, BATCH, "2 sentences", "3 or more"),
    ("scd", dict(projector_size=0), "projector_size", "is 0", "1 or more"),
    ("scd", dict(off_diagonal_weight=-1.0), "off_diagonal_weight", "-1.0", "0 or more"),
    ("scd", dict(decorrelation_weight=-1.0), "decorrelation_weight", "-1.0", "0 or more"),
    ("scd", dict(self_contrast_weight=0.0, decorrelation_weight=0.0), "objective", "scd has no term", ""),
    ("micse", dict(queue_size=-1), "queue_size", "-1", "0 or more"),
    ("micse", dict(momentum_decay=1.0), "momentum_decay", "1.0", "between 0 and 1"),
    ("micse", dict(momentum_dropout=1.0), "momentum_dropout", "1.0", "0 or more, and below 1"),
    ("micse", dict(momentum_dropout=-0.1), "momentum_dropout", "-0.1", "0 or more, and below 1"),
    ("micse", dict(attention_mi_weight=float("inf")), "attention_mi_weight", "inf", "0 or more"),
]


@pytest.mark.parametrize("objective, given, option, found, needed", BAD)
def test_invalid_values_of_terms_are_rejected(options, tmp_path, objective, given, option, found, needed):
    """On the command line and from Python."""
    argv = [f"--objective={objective}"]
    for name, value in given.items():
        argv += [f"--{name}", *map(str, value)] if isinstance(value, list) else [f"--{name}={value}"]
    calls = [
        lambda: options(*argv),
        lambda: InforMinTrainingArguments(str(tmp_path), use_cpu=True, objective=objective, **given),
    ]
    for call in calls:
        with raises_usage(option=option, found=found, needed=needed):
            call()


@pytest.mark.parametrize(
    "given, option, needed",
    [
        (dict(objective="barlow"), "objective", "one of: informin, simcse, scd, micse"),
        (dict(reconstruction_form="l1"), "reconstruction_form", "one of: squared_l2, unit_"),
        (dict(objective="micse", attention_mi_form="code"), "attention_mi_form", "one of: paper, reference"),
        (dict(objective="scd", self_contrast_form="code"), "self_contrast_form", "one of: pap"),
    ],
)
def test_unknown_choices_are_rejected_in_python_and_on_the_command_line(options, tmp_path, given, option, needed):
    with raises_usage(option=option, found=f"is {given[option]}", needed=needed):
        InforMinTrainingArguments(str(tmp_path), use_cpu=True, **given)
    with raises_usage(option=option, found=f"is '{given[option]}'", needed=needed):  # from argparse
        options(*[f"--{name}={value}" for name, value in given.items()])


NUMBER = "a number above 0"
SEED = "an integer from 0 to 4294967295"


@pytest.mark.parametrize(
    "argument, found, needed",
    [
        ("--learning_rate=-1", "is -1.0", NUMBER),
        ("--learning_rate=0", "is 0.0", NUMBER),
        ("--learning_rate=nan", "is nan", NUMBER),
        ("--learning_rate=inf", "is inf", NUMBER),
        ("--seed=-1", "is -1", SEED),
        (f"--seed={10**14}", f"is {10**14}", SEED),
        ("--data_seed=-2", "is -2", SEED),
        ("--num_train_epochs=-3", "is -3.0", NUMBER),
        ("--max_steps=0", "is 0", "1 or more"),
        ("--max_steps=-2", "is -2", "1 or more"),
        ("--per_device_train_batch_size=0", "is 0", "1 or more"),
        ("--per_device_eval_batch_size=-1", "is -1", "1 or more"),
        ("--gradient_accumulation_steps=0", "is 0", "1 or more"),
        ("--save_total_limit=0", "is 0", "1 or more"),
        ("--logging_steps=0", "is 0.0", NUMBER),
        ("--eval_steps=-5", "is -5.0", NUMBER),
        ("--warmup_steps=-1", "is -1.0", "0 or more"),
        ("--weight_decay=-1", "is -1.0", "0 or more"),
        ("--max_grad_norm=nan", "is nan", "0 or more"),
        ("--adam_beta2=1", "is 1.0", "0 or more, and below 1"),
        ("--metric_for_best_model=eval_loss", "is eval_loss", "one of: "),
        ("--greater_is_better=false", "is False, which would keep the checkpoint with the worst spearman", ""),
        ("--resume_from_checkpoint=", "is empty", "a checkpoint folder, or `last`"),
        ("--report_to=wandb", "is wandb, which is not installed", ""),
        ("--report_to=tensorbord", "is tensorbord", "one of: azure_ml, "),
    ],
)
def test_numbers_and_trackers_are_checked_when_options_are_built(options, monkeypatch, argument, found, needed):
    monkeypatch.setattr(checks, "get_available_reporting_integrations", lambda: ["tensorboard"])
    with raises_usage(option=argument.partition("=")[0].removeprefix("--"), found=found, needed=needed):
        options(argument)


@pytest.mark.parametrize(
    "name, fix", [("wandb", "pip install wandb"), ("trackio", "pip install trackio"), ("tensorbord", "tensorboard?")]
)
def test_errors_about_trackers_say_what_to_do(monkeypatch, name, fix):
    monkeypatch.setattr(checks, "get_available_reporting_integrations", lambda: ["tensorboard"])
    with raises_usage(option="report_to", fix=fix):
        InforMinTrainingArguments(report_to=name, use_cpu=True)


@pytest.mark.parametrize(
    "name, given, value",
    [("max_steps", -1, -1), ("max_grad_norm", 0, 0), ("seed", 2**32 - 1, 2**32 - 1), ("report_to", "none", [])],
)
def test_numbers_at_their_limits_are_accepted(options, name, given, value):
    assert options(f"--{name}={given}")[name] == value
