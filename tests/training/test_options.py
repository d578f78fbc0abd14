"""The training arguments: precedence, paper's values, fields, copies and checks."""

import copy
import dataclasses
import pickle
from types import SimpleNamespace

import pytest
from informin.training.command_line import OFTEN_USED, Parser, ours, parse
from informin.training.defaults import filled_in, mixed_precision, option_defaults
from transformers import HfArgumentParser, TrainingArguments

from informin.objectives import OBJECTIVES
from informin.training.options import RECIPES, InforMinTrainingArguments
from informin.views import VIEWS, View
from tests.conftest import raises_usage, resolve_for, save_bert, save_roberta


@pytest.fixture(scope="session")
def roberta_base(tmp_path_factory):
    """An encoder without meaning, as wide as the papers'."""
    sizes = dict(hidden_size=768, num_attention_heads=12, num_hidden_layers=1)
    return save_roberta(tmp_path_factory.mktemp("models") / "roberta-base", **sizes)


@pytest.fixture(scope="session")
def bert_large(tmp_path_factory):
    sizes = dict(hidden_size=1024, num_attention_heads=16, num_hidden_layers=1)
    return save_bert(tmp_path_factory.mktemp("models") / "bert-large", **sizes)


@pytest.mark.parametrize(
    "option, default, row, yaml, flag",
    [
        ("learning_rate", 3e-5, 1e-5, 2e-5, 4e-5),
        ("reconstruction_weight", 0.4, 4.0, 0.0, 1.0),
        ("per_device_train_batch_size", 128, 512, 32, 16),
        ("temperature", 0.05, None, 0.1, 0.2),
        ("projection_head", "mlp", None, "none", "mlp"),
        ("max_seq_length", 32, None, 64, 48),
    ],
)
def test_precedence_flag_yaml_paper_default(options, roberta_base, option, default, row, yaml, flag):
    # SimCSE's values for RoBERTa differ from the default in the batch size, InforMin-CL's in the others.
    simcse = ["--objective=simcse"] if option == "per_device_train_batch_size" else []
    assert options(*simcse, name=roberta_base)[option] == (default if row is None else row)
    assert options(*simcse, name=roberta_base, yaml=f"{option}: {yaml}")[option] == yaml
    assert options(*simcse, f"--{option}={flag}", name=roberta_base, yaml=f"{option}: {yaml}")[option] == flag


def test_published_values(options, roberta_base, bert_large):
    scd = options("--objective=scd")
    assert (scd["self_contrast_weight"], scd["decorrelation_weight"], scd["off_diagonal_weight"]) == (1, 0.005, 0.013)
    assert scd["view_dropout"] == [0.05, 0.15] and scd["per_device_train_batch_size"] == 192
    assert options("--objective=scd", name=roberta_base)["view_dropout"] == [0.065, 0.24]
    assert options("--objective=scd", "--view_dropout=0.2")["view_dropout"] == [0.2]
    micse = options("--objective=micse", "--attention_mi_layers", "0", "1")
    assert (micse["queue_size"], micse["momentum_decay"], micse["warmup_steps"]) == (384, 0.995, 250)
    assert options("--objective=simcse", name=bert_large)["learning_rate"] == 1e-5


def test_options_may_come_from_python_a_recipe_and_the_command_line(bert, options):
    model_name, *_, args = parse([f"--model_name={bert}", "--seed=3"], {"seed": 1, "temperature": 0.1, "use_cpu": True})
    assert (model_name, args.seed, args.temperature) == (str(bert), 3, 0.1)
    recipe = options("--recipe=informin-released", "--temperature=0.05", "--mlm_weight=0.2")
    assert recipe["mlm_weight"] == 0.2 and recipe["masked_views"] is True
    args = InforMinTrainingArguments(recipe="adapt", use_cpu=True)
    assert args.max_steps == 80 and args.recipe is None
    assert dataclasses.replace(args, max_steps=-1).max_steps == -1


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_recipes_are_options(bert, path):
    *_, args = parse([f"--model_name={bert}", f"--recipe={path.stem}", "--use_cpu=true"])
    assert args.terms


@pytest.mark.parametrize(
    "yaml, expected",
    [
        ("train_file: [a.txt, b c.txt]", {"train_file": ["a.txt", "b c.txt"]}),
        ("objective: micse\nattention_mi_layers: [0, 1]", {"attention_mi_layers": [0, 1]}),
        ("eval_on_start: false\nmasked_views: true\nmlm_weight: 1", {"eval_on_start": False, "masked_views": True}),
        ("save_steps: null\nseed: 7", {"save_steps": 125, "seed": 7}),
        ("learning_rate: 3e-4\nmlm_weight: 1.0e-1", {"learning_rate": 3e-4, "mlm_weight": 0.1}),
        ("eval_strategy: no", {"eval_strategy": "no"}),  # YAML parses it as false
    ],
)
def test_yaml_values_are_converted(options, yaml, expected):
    values = options(yaml=yaml)
    assert {name: values[name] for name in expected} == expected


@pytest.mark.parametrize("yaml", ["learning_rat: 1", "- a", "", "recipe: other.yaml"])
def test_files_that_are_not_options_are_errors(options, yaml):
    with raises_usage(option="recipe"):
        options(yaml=yaml)


@pytest.mark.parametrize("argument, code", [("--seed=x", 2), ("--objective=other", 2), ("--help", 0)])
def test_wrong_arguments_end_the_program(options, argument, code):
    with pytest.raises(SystemExit) as caught:
        options(argument)
    assert caught.value.code == code
    with raises_usage(found="--learning_rat=1"):  # no abbreviations
        options("--learning_rat=1")


def test_help_shows_our_options_and_the_often_used_ones(capsys):
    text = Parser().format_help()
    shown = {line.split()[0][2:] for line in text.splitlines() if line.startswith("  --")}
    assert {"temperature", "train_file", "license", "max_steps", "model_name", "recipe", *OFTEN_USED} <= shown
    assert not {"ddp_backend", "adam_beta1", "no_load_best_model_at_end"} & shown
    assert ours() <= shown and "TrainingArguments are accepted" in " ".join(text.split())


def test_wrong_options_are_errors():
    with raises_usage(option="model_name"):
        parse([])
    with raises_usage(option="recipe"):
        parse(["--recipe=nonsense"])
    with raises_usage():  # of TrainingArguments
        parse(["--model_name=x", "--fp16=true", "--bf16=true"])


@pytest.mark.parametrize(
    "given, expected",
    [
        ([], {"eval_steps": 125, "save_steps": 125, "eval_on_start": True, "load_best_model_at_end": True}),
        (["--eval_steps=40"], {"eval_steps": 40, "save_steps": 40}),
        (["--eval_steps=40", "--save_steps=80"], {"eval_steps": 40, "save_steps": 80}),
        (
            ["--eval_strategy=no", "--save_total_limit=1"],
            {"eval_on_start": False, "load_best_model_at_end": False, "metric_for_best_model": None, "save_steps": 125},
        ),
        (["--eval_strategy=epoch"], {"save_strategy": "epoch"}),
        (["--objective=simcse"], {"reconstruction_weight": 0.0, "measure_drift": False}),
        (["--objective=guided", "--guided_weight=1"], {"measure_drift": True, "projection_head": "none"}),
    ],
)
def test_defaults_that_depend_on_other_options(options, given, expected):
    values = options(*given)
    assert {name: values[name] for name in expected} == expected


@pytest.mark.parametrize(
    "option, given",
    [
        ("reconstruction_weight", dict(reconstruction_weight=-1.0)),
        ("temperature", dict(temperature=0.0)),
        ("per_device_train_batch_size", dict(per_device_train_batch_size=1)),
        ("view_dropout", dict(view_dropout=[0.2, 0.1])),
        ("view_dropout", dict(view_dropout=[0.0])),
        ("view_dropout", dict(view_dropout=[0.1, 0.2, 0.3])),
        ("objective", dict(objective="other")),
        ("view", dict(view="other")),
        ("objective", dict(objective="noncontrastive", reconstruction_weight=0.0)),
        ("auto_find_batch_size", dict(auto_find_batch_size=True)),
        ("greater_is_better", dict(metric_for_best_model="alignment", greater_is_better=True)),
        ("save_strategy", dict(eval_strategy="epoch", save_strategy="steps", save_steps=1)),
        ("recipe", dict(recipe="other")),
        # Options of terms and views that are off.
        ("reconstruction_weight", dict(objective="simcse", reconstruction_weight=4.0)),
        ("masked_views", dict(masked_views=True)),
        ("queue_size", dict(objective="scd", queue_size=8)),
        ("crop_min_fraction", dict(crop_min_fraction=0.3)),
    ],
)
def test_invalid_options_are_rejected(option, given):
    with raises_usage(option=option):
        InforMinTrainingArguments(use_cpu=True, **given)


def test_attention_maps_need_a_view_that_keeps_tokens(monkeypatch):
    class Words(View):
        title = "other words"

        def change(self, tokens, generator):
            return tokens + 1

    monkeypatch.setitem(VIEWS, "words", Words)
    with raises_usage(option="attention_mi_weight"):
        InforMinTrainingArguments(use_cpu=True, objective="micse", view="words")


@pytest.mark.parametrize("given", [dict(objective="simcse", reconstruction_weight=0.0), dict(masked_views=False)])
def test_zeros_and_defaults_of_other_terms_are_accepted(given):
    InforMinTrainingArguments(use_cpu=True, **given)


def test_several_gpus_or_unequal_batches_are_rejected(monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(TrainingArguments, "n_gpu", property(lambda self: 3))
        with raises_usage(found="3 GPUs"):
            InforMinTrainingArguments(use_cpu=True)
    monkeypatch.setattr(TrainingArguments, "world_size", property(lambda self: 2))
    InforMinTrainingArguments(use_cpu=True, per_device_train_batch_size=1)
    with raises_usage(option="dataloader_drop_last"):
        InforMinTrainingArguments(use_cpu=True, dataloader_drop_last=False)


def test_batch_of_the_paper_is_split_across_processes(monkeypatch):
    args = InforMinTrainingArguments(use_cpu=True)
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert filled_in(args)["per_device_train_batch_size"] == 32


@pytest.mark.parametrize(
    "given, weights",
    [
        ({}, {"contrast": 1.0, "reconstruction": 0.4}),
        (dict(objective="simcse"), {"contrast": 1.0}),
        (dict(reconstruction_weight=0.0, mlm_weight=0.1), {"contrast": 1.0, "mlm": 0.1}),
    ],
)
def test_terms_with_a_weight_are_active(given, weights):
    args = InforMinTrainingArguments(use_cpu=True, **given)
    assert {term.name: term.strength for term in args.terms} == weights


def test_resolve_fills_in_once_and_does_not_change_its_object(bert):
    args = InforMinTrainingArguments(use_cpu=True, temperature=0.1)
    before = dataclasses.asdict(args)
    resolved = resolve_for(args, bert)
    assert dataclasses.asdict(args) == before and args.learning_rate is None
    assert (resolved.learning_rate, resolved.temperature, resolved.pooler) == (3e-5, 0.1, "cls")
    assert resolved.output_dir == "outputs/tiny-bert-informin-batch128-lr3e-5-seed42" and resolved.paper_row
    assert resolve_for(resolved, bert) is resolved
    assert dataclasses.replace(resolved, seed=3).learning_rate == 3e-5


def test_objective_may_change_before_resolve(bert):
    args = InforMinTrainingArguments(objective="micse", use_cpu=True)
    args.objective = "simcse"
    args = resolve_for(args, bert)
    assert args.warmup_steps == 0 and [term.name for term in args.terms] == ["contrast"]


def test_copies_pickles_and_parsers_have_every_field():
    first, second = (InforMinTrainingArguments(temperature=t, use_cpu=True, hub_token="hf_x") for t in (0.1, 0.2))
    assert first != second and first == copy.copy(first) == dataclasses.replace(first)
    assert "temperature=0.1" in str(first) and "hf_x" not in repr(first)
    assert pickle.loads(pickle.dumps(first)) == first
    assert option_defaults().keys() <= dataclasses.asdict(first).keys()
    (args,) = HfArgumentParser(InforMinTrainingArguments).parse_args_into_dataclasses(
        "--objective micse --queue_size 8 --mlm_weight 0.1 --masked_views --view_dropout 0.1 0.2 --use_cpu".split()
    )
    assert (args.queue_size, args.masked_views, args.view_dropout) == (8, True, [0.1, 0.2])
    for field in dataclasses.fields(InforMinTrainingArguments):
        assert not field.init or field.metadata.get("help"), field.name


@pytest.mark.parametrize("given, expected", [({}, True), (dict(fp16=True), False), (dict(bf16=False), False)])
def test_bf16_follows_the_hardware(monkeypatch, given, expected):
    monkeypatch.setattr("torch.cpu._is_avx512_bf16_supported", lambda: True)
    args = SimpleNamespace(**({"bf16": None, "fp16": False, "use_cpu": True} | given))
    assert mixed_precision(args)["bf16"] is expected


def test_every_objective_has_a_title_and_terms():
    assert all(objective.title and objective.terms for objective in OBJECTIVES.values())
