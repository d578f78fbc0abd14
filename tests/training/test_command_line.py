"""Parsing the command line and YAML: precedence, types of values, `--help` and typos."""

import re

import pytest

from informin.errors import UsageError
from informin.training.command_line import OFTEN_USED, option_names, own_fields, parse
from tests.conftest import raises_usage


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
def test_precedence_flag_yaml_paper_default(options, model, option, default, row, yaml, flag):
    assert own_fields()[option].default is None
    assert str(default) in own_fields()[option].metadata["help"].replace("3e-5", "3e-05")
    # SimCSE's values for RoBERTa differ from the default in the batch size, InforMin-CL's in the others.
    simcse = ["--objective=simcse"] if option == "per_device_train_batch_size" else []
    roberta = model("roberta")
    assert options(*simcse, name=roberta)[option] == (default if row is None else row)
    assert options(*simcse, name=roberta, yaml=f"{option}: {yaml}")[option] == yaml
    assert options(*simcse, f"--{option}={flag}", name=roberta, yaml=f"{option}: {yaml}")[option] == flag


def test_yaml_file_overrides_values_from_python(model, tmp_path):
    """As in studies: values of all runs, then a recipe, then those of one run."""
    (tmp_path / "run.yaml").write_text("seed: 2\ntemperature: 0.2")
    argv = [f"--model_name={model()}", f"--config={tmp_path / 'run.yaml'}", "--seed=3"]
    *_, args = parse(argv, {"seed": 1, "temperature": 0.1, "learning_rate": "2e-5", "use_cpu": True, "run_name": None})
    assert (args.seed, args.temperature, args.learning_rate) == (3, 0.2, 2e-5)
    with raises_usage(found="--learning_rat=1: no such option", fix="Did you mean --learning_rate?"):
        parse(argv, {"learning_rat": 1})


@pytest.mark.parametrize(
    "yaml, expected",
    [
        ("train_file: [a.txt, b c.txt]", {"train_file": ["a.txt", "b c.txt"]}),
        ("train_file:\n- a.txt", {"train_file": ["a.txt"]}),
        ("train_file: a.txt", {"train_file": ["a.txt"]}),
        ("train_file: [1, true, 2020-01-01]", {"train_file": ["1", "yes", "2020-01-01"]}),
        ("train_file: []", {"train_file": None}),
        ("view_dropout: [1e-1, .2]", {"view_dropout": [0.1, 0.2]}),
        ("objective: micse\nattention_mi_layers: 3", {"attention_mi_layers": [3]}),
        ("report_to: none\noptim_target_modules: all-linear", {"report_to": [], "optim_target_modules": "all-linear"}),
        ("report_to: [none]\noptim_target_modules: [a, b]", {"report_to": [], "optim_target_modules": ["a", "b"]}),
        ("eval_on_start: false\nmasked_views: no", {"eval_on_start": False, "masked_views": False}),
        ("save_only_model: true", {"save_only_model": True}),
        ("save_steps: null\nrun_name: ~\nseed: 7", {"save_steps": 125, "run_name": None, "seed": 7}),
        ("max_steps: -1\nadam_beta1: 0.5\nseed: 3", {"max_steps": -1, "adam_beta1": 0.5, "seed": 3}),
        ("learning_rate: 3e-5\nadam_epsilon: 1E-8\nmax_grad_norm: +2e0", {"learning_rate": 3e-5, "max_grad_norm": 2.0}),
        ("learning_rate: '3e-5'\nseed: '7'", {"learning_rate": 3e-5, "seed": 7}),
        ("learning_rate: 3e-4\nmlm_weight: 1.0e-1", {"learning_rate": 3e-4, "mlm_weight": 0.1}),
        ("run_name: -dash\nhub_model_id: 'ü b'", {"run_name": "-dash", "hub_model_id": "ü b"}),
        ("lr_scheduler_kwargs: {num_cycles: 2}", {"lr_scheduler_kwargs": {"num_cycles": 2}}),
        ("eval_strategy: 'no'", {"eval_strategy": "no"}),
        ("eval_on_start: yes\nbf16: 'no'", {"eval_on_start": True, "bf16": False}),
        ("eval_strategy: no", {"eval_strategy": "no"}),  # YAML parses it as false
    ],
)
def test_yaml_values_are_converted(options, yaml, expected):
    found = options(yaml=yaml)
    assert {name: found[name] for name in expected} == expected


def test_yaml_file_may_contain_the_model_name(model, tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(f"model_name: {model('roberta', 1024)}\nobjective: simcse\nuse_cpu: true")
    checkpoint, *_, args = parse(["--config", str(path)])
    assert checkpoint.name == model("roberta", 1024)
    assert (args.learning_rate, args.per_device_train_batch_size) == (3e-5, 512)


@pytest.mark.parametrize(
    "yaml, found, fix",
    [
        ("learning_rat: 1\nzzzz: 2", "no such option: learning_rat, zzzz", "Did you mean learning_rate?"),
        ("zzzz: 1", "no such option: zzzz", ""),
        ("1: 2", "no such option: 1", ""),
        ("config: other.yaml", "no such option: config", ""),
    ],
)
def test_unknown_options_in_yaml_are_errors(options, yaml, found, fix):
    with raises_usage(option="config", found=found, fix=fix):
        options(yaml=yaml)


@pytest.mark.parametrize(
    "yaml, message",
    [
        ("- a\n- b", "list.*lines of `option: value`"),
        ("", "NoneType.*lines of `option: value`"),
        ("a: [", "run.yaml cannot be read: while parsing"),
        ("[a, b]: 1", "run.yaml cannot be read: while constructing a mapping"),
        ("seed: 1\ntemperature: 1\nseed: 2", "run.yaml cannot be read: found 'seed' twice"),
    ],
)
def test_files_that_are_not_yaml_mappings_are_errors(options, yaml, message):
    with pytest.raises(UsageError) as error:
        options(yaml=yaml)
    assert re.search(message, str(error.value))


@pytest.mark.parametrize(
    "yaml, option, found, needed",
    [
        ("seed: 1.5", "seed", "is '1.5'", "an integer"),
        ("seed: yes", "seed", "is 'yes'", "an integer"),
        ("seed: {a: 1}", "seed", """is '{"a": 1}'""", "an integer"),
        ("learning_rate: fast", "learning_rate", "is 'fast'", "a number"),
        ("objective: other", "objective", "is 'other'", "one of: informin, simcse, "),
        ("attention_mi_form: code", "attention_mi_form", "is 'code'", "one of: "),
        ("bf16: maybe", "bf16", "is 'maybe'", "true or false"),
        ("view_dropout: [x, y]", "view_dropout", "is 'x'", "a number"),
        ("objective: micse\nattention_mi_layers: [1.5]", "attention_mi_layers", "is '1.5'", "an integer"),
        ("debug: x", "debug", "is 'x'", "a DebugOption"),
        ("learning_rate: [1, 2]", "learning_rate", "is [1, 2]", "one value instead of a list"),
        ("objective: [simcse]", "objective", "is ['simcse']", "one value"),
        ("temperature: -1", "temperature", "is -1.0", "a number above 0"),
    ],
)
def test_wrong_values_in_yaml_are_errors(options, yaml, option, found, needed):
    with raises_usage(option=option, found=found, needed=needed):
        options(yaml=yaml)


def test_missing_yaml_file_is_an_error(options):
    with pytest.raises(UsageError) as error:
        options("--config=/nowhere/a.yaml")
    assert "/nowhere/a.yaml cannot be read" in str(error.value)


def test_help_lists_every_option_in_groups(capsys):
    with pytest.raises(SystemExit) as caught:
        parse(["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    groups = [line for line in lines if re.fullmatch(r"\S.*:", line)]
    assert [group.split(",")[0].rstrip(":") for group in groups] == [
        *("model", "objective", "data and evaluation data", "model card", "training", "training")
    ]
    listed = re.findall(r"^  --(\w+)", text, re.MULTILINE)
    assert sorted(listed) == sorted(option_names())
    assert len(lines) <= 400
    # Our groups come first, the rest of transformers' options last.
    places = [lines.index(next(line for line in lines if line.startswith(f"  --{name} "))) for name in OFTEN_USED]
    assert lines.index(groups[4]) < min(places) and max(places) < lines.index(groups[5])
    for name, group in [("model_name", 0), ("temperature", 1), ("train_file", 2), ("license", 3), ("ddp_backend", 5)]:
        place = next(i for i, line in enumerate(lines) if line.startswith(f"  --{name} "))
        assert lines.index(groups[group]) < place < [*map(lines.index, groups), len(lines)][group + 1]


@pytest.mark.parametrize(
    "argument, found, fix",
    [
        ("--nonsense=1", "--nonsense=1: no such option", "See --help."),
        ("--nonsense=a. b", "--nonsense=a", "b: no such option. See --help."),
        ("--learning_rat=1", "--learning_rat=1: no such option", "Did you mean --learning_rate? See --help."),
        ("--Train-File", "--Train-File: no such option", "Did you mean --train_file? See --help."),
        ("stray", "stray: no such option", "See --help."),
    ],
)
def test_unknown_options_on_the_command_line_are_errors(options, argument, found, fix):
    with raises_usage(found=found, fix=fix):
        options(argument)


@pytest.mark.parametrize(
    "argument, option, found, needed",
    [
        ("--view_dropout=a", "view_dropout", "is 'a'", "a number"),
        ("--view-dropout", "view_dropout", "has no value", ""),
        ("--seed=x", "seed", "is 'x'", "an integer"),
        ("--seed", "seed", "has no value", ""),
        ("--objective=other", "objective", "is 'other'", "one of: informin, simcse, "),
    ],
)
def test_wrong_values_on_the_command_line_are_errors(options, argument, option, found, needed):
    with raises_usage(option=option, found=found, needed=needed):
        options(argument)


def test_error_of_training_arguments_is_one_line(options):
    with raises_usage(found="TrainingArguments: ", fix="informin train --help"):
        options("--fp16=true", "--bf16=true")


@pytest.mark.parametrize("argv", [[], ["--seed=1"], ["--model_name="]])
def test_model_name_is_required(argv):
    with raises_usage(option="model_name", found="is missing"):
        parse(argv)


def test_missing_model_folder_is_an_error():
    with pytest.raises(UsageError) as error:
        parse(["--model_name=/nowhere/model"])
    assert "/nowhere/model" in str(error.value)


def test_given_options_override_a_recipe_even_with_a_default_value(model):
    *_, args = parse([f"--model_name={model()}", "--use_cpu=true", "--recipe=adapt", "--max_steps=-1"])
    assert (args.max_steps, args.objective, args.guided_neighbors) == (-1, "guided", 10)


def test_recipe_and_config_exclude_each_other(model):
    with raises_usage(option="recipe", found="together with `config`"):
        parse([f"--model_name={model()}", "--recipe=adapt", "--config=a.yaml"])


@pytest.mark.parametrize(
    "argv, expected",
    [
        ([], None),
        (["--resume_from_checkpoint"], "last"),
        (["--resume_from_checkpoint", "--seed=1"], "last"),
        (["--resume_from_checkpoint", "runs/checkpoint-5"], "runs/checkpoint-5"),
    ],
)
def test_resume_from_checkpoint(options, argv, expected):
    assert options(*argv)["resume_from_checkpoint"] == expected


def test_dashes_are_accepted_instead_of_underscores(model):
    checkpoint, *_, args = parse([f"--model-name={model()}", "--use-cpu=true", "--learning-rate=1e-4"])
    assert checkpoint.name == model() and args.learning_rate == 1e-4
