"""Defaults from the paper, the objective and the hardware, in Python and on the command line."""

import json
import logging
from dataclasses import asdict, fields, replace
from types import SimpleNamespace

import pytest
import torch
from informin.models.checkpoint import Checkpoint
from informin.models.native_loading import load_config
from informin.training.term_fields import term_options

from informin.objectives import OBJECTIVES
from informin.training import defaults
from informin.training.defaults import filled_in, mixed_precision, paper_row, uneven_batch
from informin.training.options import InforMinTrainingArguments
from tests.conftest import resolve_for

COMPARED = [field.name for field in fields(InforMinTrainingArguments) if field.init]


PAPERS = [  # objective, architecture, hidden size, batch, learning rate, lambda
    ("informin", "bert", 768, 128, 3e-5, 0.4),
    ("informin", "roberta", 768, 128, 1e-5, 4.0),
    ("informin", "roberta", 1024, 128, 3e-5, 4.0),
    ("simcse", "bert", 768, 64, 3e-5, 0.0),
    ("simcse", "bert", 1024, 64, 1e-5, 0.0),
    ("simcse", "roberta", 768, 512, 1e-5, 0.0),
    ("simcse", "roberta", 1024, 512, 3e-5, 0.0),
]
NO_ROW = [  # these take their architecture's base row
    ("informin", "bert", 1024, 128, 3e-5, 0.4),
    ("informin", "bert", 32, 128, 3e-5, 0.4),
    ("simcse", "roberta", 32, 512, 1e-5, 0.0),
]


@pytest.mark.parametrize("objective, architecture, hidden_size, batch, rate, weight", PAPERS + NO_ROW)
def test_published_values_of_informin_and_simcse(
    options, model, objective, architecture, hidden_size, batch, rate, weight
):
    found = options(f"--objective={objective}", name=model(architecture, hidden_size))
    names = ("per_device_train_batch_size", "learning_rate", "reconstruction_weight")
    assert [found[name] for name in names] == [batch, rate, weight]


SISTERS = [  # objective, architecture, batch, learning rate, what else the paper names
    ("scd", "bert", 192, 3e-5, dict(decorrelation_weight=0.005, off_diagonal_weight=0.013, view_dropout=[0.05, 0.15])),
    (
        *("scd", "roberta", 192, 3e-5),
        dict(decorrelation_weight=0.0033, off_diagonal_weight=0.028, view_dropout=[0.065, 0.24]),
    ),
    ("micse", "bert", 50, 3e-5, dict(attention_mi_weight=2.5e-3, queue_size=384, warmup_steps=250)),
]


@pytest.mark.parametrize("objective, architecture, batch, rate, others", SISTERS)
@pytest.mark.parametrize("hidden_size", [768, 32])
def test_published_values_of_scd_and_micse(options, model, objective, architecture, batch, rate, others, hidden_size):
    found = options(f"--objective={objective}", name=model(architecture, hidden_size))
    assert found | others | {"per_device_train_batch_size": batch, "learning_rate": rate} == found
    assert found["projection_head"] == ("none" if objective == "scd" else "mlp")


def test_every_paper_row_is_tested():
    rows = {(name, *key) for name, objective in OBJECTIVES.items() for key in objective.rows}
    assert rows == {case[:3] for case in PAPERS} | {(*case[:2], 768) for case in SISTERS}


ENCODERS = [("bert", 768), ("bert", 1024), ("roberta", 768), ("roberta", 1024), ("roberta", 32)]


@pytest.mark.parametrize("objective", [name for name, objective in OBJECTIVES.items() if objective.rows])
@pytest.mark.parametrize("encoder", ENCODERS, ids=str)
def test_python_and_command_line_fill_in_the_same_values(options, python, model, objective, encoder):
    """Compare every option, including those of transformers."""
    name = model(*encoder)
    ours, theirs = python(name, objective=objective), options(f"--objective={objective}", name=name)
    assert {option: ours[option] for option in COMPARED} == {option: theirs[option] for option in COMPARED}
    row = OBJECTIVES[objective].row(*encoder)
    assert (ours["per_device_train_batch_size"], ours["learning_rate"]) == (row.batch_size, row.learning_rate)
    assert ours["paper_row"] == theirs["paper_row"] == row.name
    assert ours["warmup_steps"] == row.options.get("warmup_steps", 0)


@pytest.mark.parametrize(
    "name, given, filled",
    [
        ("learning_rate", 2e-5, 1e-5),
        ("per_device_train_batch_size", 7, 512),
        ("bf16", False, True),
        ("projection_head", "none", "mlp"),
        ("output_dir", "here", "outputs/roberta-768-simcse-batch512-lr1e-5-seed42"),
        ("temperature", 0.1, 0.05),
    ],
)
@pytest.mark.parametrize("how", ["given", "set"])
def test_resolve_keeps_given_options(model, monkeypatch, name, given, filled, how):
    """An attribute that is set after construction is kept, too."""
    monkeypatch.setattr(defaults, "mixed_precision", lambda args: {"bf16": True, "fp16": False})
    chosen = InforMinTrainingArguments(objective="simcse", use_cpu=True, **({name: given} if how == "given" else {}))
    left_open = InforMinTrainingArguments(objective="simcse", use_cpu=True)
    if how == "set":
        setattr(chosen, name, given)
    for encoder in (("bert", 1024), ("roberta", 768)):
        for args in (chosen, left_open):
            resolved = resolve_for(args, model(*encoder))
            assert getattr(resolved, name) == given or args is left_open
        assert getattr(args, name) is None, "the original object is unchanged"
    assert getattr(resolved, name) == filled, "the value for the second encoder"


RESOLVED = {"informin": {}, "simcse": {"queue_size": 8}, "scd": {}, "micse": {"prompt": "a ", "fp16": False}}
RESOLVED["noncontrastive"] = {"attention_mi_weight": 1.0}
RESOLVED["guided"] = {"guided_weight": 1.0, "pooler": "mean", "eval_strategy": "no"}


@pytest.mark.parametrize("objective", RESOLVED)
def test_resolve_is_idempotent_and_does_not_change_its_object(model, objective):
    args = InforMinTrainingArguments(objective=objective, use_cpu=True, **RESOLVED[objective])
    before = asdict(args)
    resolved = resolve_for(args, model("roberta"))
    assert asdict(args) == before and resolved is not args
    again = resolve_for(resolved, model("roberta"))
    assert asdict(again) == asdict(resolved) and again == resolved
    assert args.learning_rate is None and resolved.learning_rate is not None


@pytest.mark.parametrize("objective", RESOLVED)
def test_replace_keeps_resolved_values(model, objective):
    args = InforMinTrainingArguments(objective=objective, use_cpu=True, **RESOLVED[objective])
    resolved = resolve_for(args, model("roberta"))
    other = resolve_for(replace(resolved, seed=2), model("roberta"))
    assert other.seed == 2 and replace(other, seed=resolved.seed) == resolved
    assert other.objective_options == resolved.objective_options
    direct = resolve_for(replace(args, seed=2), model("roberta"))
    assert replace(other, output_dir=direct.output_dir) == direct


def test_resolved_weight_can_be_replaced(model):
    """Options of a term that is turned off still have their defaults."""
    resolved = resolve_for(InforMinTrainingArguments(use_cpu=True), model())
    off = replace(resolved, reconstruction_weight=0)
    assert [term.name for term in off.terms] == ["contrast"]


PUBLISHED = ["learning_rate", "per_device_train_batch_size", "view_dropout", "off_diagonal_weight", "warmup_steps"]


@pytest.mark.parametrize(
    "name", [*PUBLISHED, "bf16", "projection_head", "padding_free", "max_seq_length", "save_steps"]
)
def test_none_means_not_set(python, name):
    assert python(objective="scd", **{name: None})[name] == python(objective="scd")[name] is not None


def test_to_dict_has_the_options_of_the_terms(arguments, bert):
    """Trackers and Trainer's log use `to_dict`."""
    args = resolve_for(arguments(objective="micse", queue_size=8), bert)
    assert args.to_dict() | {"queue_size": 8, "attention_mi_weight": 2.5e-3, "temperature": 0.05} == args.to_dict()
    assert term_options().keys() <= args.to_dict().keys() and json.loads(args.to_json_string())["queue_size"] == 8


@pytest.mark.parametrize(
    "argv, filled",
    [
        (
            [],
            "InforMin-CL, table 3, roberta-base): "
            "per_device_train_batch_size 128, learning_rate 1e-05, reconstruction_weight 4.0",
        ),
        (["--learning_rate=1"], "table 3, roberta-base): per_device_train_batch_size 128, reconstruction_weight 4.0"),
        (
            ["--objective=simcse"],
            "SimCSE, appendix A, roberta-base): per_device_train_batch_size 512, learning_rate 1e-05",
        ),
        (["--objective=simcse", "--learning_rate=1", "--per_device_train_batch_size=2"], None),
    ],
)
def test_values_from_the_paper_are_logged_in_one_line(options, model, caplog, argv, filled):
    caplog.set_level(logging.INFO, InforMinTrainingArguments.__module__)
    options(*argv, name=model("roberta"))
    assert not caplog.messages, "a word in the headline is enough"
    options(*argv, "--verbose=true", name=model("roberta"))
    lines = [message for message in caplog.messages if "paper" in message]
    assert len(lines) == (filled is not None) and all(line.endswith(filled) for line in lines)


@pytest.mark.parametrize("processes, batch", [("1", 128), ("4", 32), ("3", 42), ("1000", 1)])
def test_batch_of_the_paper_is_split_across_processes(model, monkeypatch, processes, batch):
    config = load_config(Checkpoint(model()))
    left_open, given = (InforMinTrainingArguments(use_cpu=True, per_device_train_batch_size=b) for b in (None, 7))
    monkeypatch.setattr(defaults, "number_of_processes", lambda: int(processes))
    assert filled_in(left_open, config)["per_device_train_batch_size"] == batch
    assert paper_row("informin", config).name == "InforMin-CL, table 3, bert-base"
    assert "per_device_train_batch_size" not in filled_in(given, config)


@pytest.mark.parametrize(
    "processes, given, said",
    [
        ("1", {}, None),
        ("4", {}, None),
        ("3", {}, "128 sentences cannot be split evenly across 3 processes: each uses 42 per step, 126 in total"),
        ("3", {"per_device_train_batch_size": 7}, None),
    ],
)
def test_uneven_split_of_the_batch_logs_a_warning(model, monkeypatch, caplog, processes, given, said):
    args = InforMinTrainingArguments(use_cpu=True, **given)
    monkeypatch.setattr(defaults, "number_of_processes", lambda: int(processes))
    uneven = uneven_batch(args, load_config(Checkpoint(model())))
    assert uneven is None if said is None else said in uneven
    resolve_for(args, model())
    assert [message for message in caplog.messages if "split evenly" in message] == ([uneven] if said else [])


@pytest.mark.parametrize(
    "argv, expected",
    [
        ([], "outputs/bert-768-informin-batch128-lr3e-5-seed42"),
        (["--objective=simcse", "--seed=7"], "outputs/bert-768-simcse-batch64-lr3e-5-seed7"),
        (
            ["--learning_rate=0.001", "--per_device_train_batch_size=8"],
            "outputs/bert-768-informin-batch8-lr0.001-seed42",
        ),
        (["--output_dir=here"], "here"),
    ],
)
@pytest.mark.parametrize("slash", ["", "/"])
def test_default_output_dir(options, model, argv, expected, slash):
    assert options(*argv, name=model() + slash)["output_dir"] == expected


@pytest.mark.parametrize(
    "accelerator, avx512, amx, gpu, expected",
    [
        (None, False, False, True, False),
        (None, True, False, False, True),
        (None, False, True, False, True),
        (torch.device("cuda"), True, True, False, False),
        (torch.device("cuda"), False, False, True, True),
    ],
)
def test_bf16_follows_the_hardware(monkeypatch, accelerator, avx512, amx, gpu, expected):
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION", raising=False)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_: accelerator)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr(defaults, "is_torch_bf16_gpu_available", lambda: gpu)

    def chosen(**options):
        return mixed_precision(SimpleNamespace(**{"bf16": None, "fp16": None, "use_cpu": False} | options))["bf16"]

    assert chosen() is expected
    for given in ({"bf16": False}, {"bf16": True}, {"fp16": True}, {"fp16": False}):
        assert chosen(**given) is False, "the user chose"
    assert chosen(use_cpu=True) is (avx512 or amx)
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    assert chosen() is False, "the launcher chose"
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    assert chosen() is expected


@pytest.mark.parametrize("given", [True, False])
def test_bf16_default_in_python_and_on_the_command_line(options, python, monkeypatch, given):
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION", raising=False)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_: None)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    for found in (options(*["--bf16=false"] * given), python(**{"bf16": False} if given else {})):
        assert found["bf16"] is not given and found["use_cpu"]
