"""`informin train` names wrong options before it imports torch, and says what they are called here."""

import re

import pytest

from informin.cli.train_names import check_names, given_options, option_names
from informin.cli.train_options import TrainParser
from informin.training.inputs import LEFT_OUT, OLD_NAMES
from tests.cli.test_commands import informin
from tests.conftest import raises_usage


def test_the_names_are_those_of_the_parser():
    spellings = [name for action in TrainParser()._actions for name in action.option_strings if name[:2] == "--"]
    parsed = {name[2:].replace("-", "_") for name in spellings}
    assert {name for name in parsed if not name.startswith("no_")} == option_names()


@pytest.mark.parametrize("columns", [60, 100])
def test_help_is_wrapped_to_the_terminal_before_the_slow_imports(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    done = informin("train", "--help")
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and lines[-1] == "imported []"
    names = (f"--{name}" for name in ("model_name", "temperature", "crop_min_fraction", "fast"))
    assert all(f"\n  {name} " in done.stdout for name in names)
    wide = [line for line in lines if len(line) > columns and not line.startswith(("Usage", "  --"))]
    assert wide == [] and max(map(len, lines)) > columns - 10


@pytest.mark.parametrize(
    "words, named",
    [
        (["--model_name=m", "--learing_rate=1"], "--learning_rate"),
        (["--model_name_or_path=m"], "--model_name"),
        (["--temp", "0.05", "--model_name", "m"], "--temperature"),
        (["--objective=simcse"], "--model_name"),
        (["--model_name=m", "--recipe=nonsense"], "--recipe"),
        (["--model_name=m", "--train_file=a", "--dataset_name=b"], "--train_file"),
        (["--model_name=m", "--dataset_split=b"], "--dataset_split"),
        (["--model_name=m", "--overwrite_output_dir"], "--overwrite_output_dir"),
    ],
)
def test_mistakes_are_found_before_the_slow_imports(words, named):
    done = informin("train", *words)
    assert done.returncode == 2 and done.stdout == "imported []\n"
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1 and named in done.stderr


@pytest.mark.parametrize("name", OLD_NAMES)
def test_names_of_other_programs(name):
    assert name not in option_names() and OLD_NAMES[name] in option_names()
    with raises_usage(found=f"--{name}", fix=f"--{OLD_NAMES[name]}"):
        check_names([name])


@pytest.mark.parametrize("name", LEFT_OUT)
def test_options_of_other_programs_without_a_counterpart(name):
    assert name not in option_names() and name not in OLD_NAMES
    with raises_usage(found=f"--{name}", fix=LEFT_OUT[name]):
        check_names([name])


def test_every_option_that_a_fix_names_exists():
    named = {*re.findall(r"`(\w+)`", " ".join(LEFT_OUT.values()))} - {"eval_dataset"}  # of InforMinTrainer
    assert named and named <= option_names()


def test_a_file_of_options_is_named_with_the_wrong_one():
    with raises_usage(option="recipe", found="a.yaml: no such option: temp", fix="temperature"):
        check_names({"temp": 0.1, "seed": 1}, "recipe", "a.yaml: ")
    with raises_usage(option="recipe", found="recipe"):
        check_names(["recipe"], "recipe", "a.yaml: ")


def test_options_in_both_spellings_and_their_values():
    words = ["--train-file", "a", "b", "--seed=-1", "--bf16", "--no_lora_merge", "--seed", "2"]
    given = given_options(words)
    assert given == {"train_file": ["a", "b"], "seed": ["2"], "bf16": [], "no_lora_merge": []}
    check_names(given)
