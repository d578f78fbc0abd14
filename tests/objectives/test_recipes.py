"""Recipes agree with the published values, which are defined next to their terms, and with the default form."""

import pytest
import yaml
from informin.training.defaults import filled_in, option_defaults, paper_row
from transformers import BertConfig, RobertaConfig

from experiments.studies.plan import read_study
from informin.objectives import OBJECTIVES
from informin.objectives.attention_mi import attention_layers
from informin.objectives.reconstruction import FORMS
from informin.training.options import InforMinTrainingArguments
from tests.conftest import ROOT

LARGE = dict(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
ENCODERS = {
    "bert-base-uncased": BertConfig(),
    "bert-large-uncased": BertConfig(**LARGE),
    "roberta-base": RobertaConfig(),
    "roberta-large": RobertaConfig(**LARGE),
}
OTHERS = ("informin-released", "scd-released", "micse-released", "quickstart")  # deliberately different from the paper
OWN = ("adapt", "esimcse-bert-base", "rankcse-bert-base")  # without a row of hyperparameters
RECIPES = sorted(path for path in (ROOT / "informin/recipes").glob("*.yaml") if path.stem not in OTHERS + OWN)


def read(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipe_equals_its_paper_row(path):
    options = read(path)
    config = ENCODERS[options.pop("model_name")]
    assert options.pop("pooler", "cls") == "cls"
    chosen = {name: options[name] for name in ("objective", "mlm_weight", "reconstruction_form") if name in options}
    args = InforMinTrainingArguments(use_cpu=True, **chosen)
    filled = {name: getattr(args, name) for name in options} | filled_in(args, config)
    if "attention_mi_layers" in options:
        filled["attention_mi_layers"] = attention_layers(config.num_hidden_layers, args.attention_mi_layers)
    assert options.items() <= filled.items()
    row = OBJECTIVES[args.objective].rows[config.model_type, config.hidden_size]
    assert paper_row(args.objective, config) == row
    assert {"learning_rate", "per_device_train_batch_size", *row.options} <= options.keys()


def test_other_recipes_differ_from_their_paper_row():
    assert len(RECIPES) >= 8
    for name in OTHERS:
        options = read(ROOT / f"informin/recipes/{name}.yaml")
        row = OBJECTIVES[options["objective"]].row("bert", 768)
        published = {"learning_rate": row.learning_rate, "per_device_train_batch_size": row.batch_size, **row.options}
        assert any(options.get(key, value) != value for key, value in published.items()), name


FORM = option_defaults()["reconstruction_form"]
STUDIES = sorted((ROOT / "experiments" / "configs").glob("*.yaml"))


@pytest.mark.parametrize("path", sorted((ROOT / "informin/recipes").glob("*.yaml")), ids=lambda path: path.stem)
def test_recipes_have_the_default_form_unless_their_name_says_more(path):
    form = read(path).get("reconstruction_form", FORM)
    assert FORM == "code" and (form == FORM) == (f"-{form}-form" not in path.stem)


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_rows_of_studies_have_the_default_form_unless_they_say_more(path):
    study = read_study(path)
    for setting in study.settings:
        form = setting.options.get("reconstruction_form", FORM)
        named = [one for one in FORMS if f"{one} form" in f"{setting.name}, {study.title}"]
        assert named in ([form], [] if form == FORM else None), setting.name
