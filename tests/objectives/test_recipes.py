"""Recipes agree with the published values, and with the default form."""

from dataclasses import asdict

import pytest
import yaml
from transformers import BertConfig, RobertaConfig

from experiments.studies.plan import read_study
from informin.cli.train_options import parse
from informin.objectives import PRESETS, Reconstruction
from informin.objectives.attention_mi import attention_layers
from informin.objectives.presets import Encoder
from informin.objectives.reconstruction import FORMS
from informin.training.arguments import with_paper_values
from informin.training.inputs import RECIPES as FOLDER
from informin.training.objective import activate
from tests.conftest import ROOT

LARGE = dict(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
ENCODERS = {
    "bert-base-uncased": BertConfig(),
    "bert-large-uncased": BertConfig(**LARGE),
    "roberta-base": RobertaConfig(),
    "roberta-large": RobertaConfig(**LARGE),
}
OTHERS = ("informin-released", "scd-released", "micse-released", "quickstart")  # deliberately different from the paper
OWN = ("adapt", "esimcse-bert-base", "rankcse-bert-base")  # without published hyperparameters
RECIPES = sorted(path for path in FOLDER.glob("*.yaml") if path.stem not in OTHERS + OWN)


def read(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def values_for(config, options: dict) -> dict:
    """Return all options of a run for an encoder."""
    given = parse(["--model_name=x", "--use_cpu=true"], options)
    encoder = Encoder(model_type=config.model_type, width=config.hidden_size)
    args = with_paper_values(given.args, given.objective, encoder, "x")
    active = activate(given.objective, encoder, given.view, args.view_dropout)
    resolved = {"max_seq_length": given.objective.max_seq_length, "projection_head": given.objective.projection_head}
    return asdict(args) | active.options | resolved


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipe_equals_the_paper(path):
    options = read(path)
    config = ENCODERS[options.pop("model_name")]
    assert options.pop("pooler", "cls") == "cls"
    chosen = {name: options[name] for name in ("objective", "mlm_weight", "reconstruction_form") if name in options}
    filled = values_for(config, chosen)
    if "attention_mi_layers" in options:
        filled["attention_mi_layers"] = attention_layers(config.num_hidden_layers)
    assert options.items() <= filled.items()
    encoder = Encoder(model_type=config.model_type, width=config.hidden_size)
    preset = PRESETS[options["objective"]]
    assert preset.papers[config.model_type, config.hidden_size] == preset.paper(encoder)
    weights = {term.option_name("weight") for term in preset.terms(encoder)} - {"contrast_weight"}
    assert {"learning_rate", "per_device_train_batch_size"} | weights <= options.keys()


def test_other_recipes_differ_from_the_paper():
    assert len(RECIPES) >= 8
    for name in OTHERS:
        options = read(FOLDER / f"{name}.yaml")
        published = values_for(BertConfig(), {"objective": options["objective"]})
        assert any(published.get(key, value) != value for key, value in options.items() if key in SHAPING), name


SHAPING = {"learning_rate", "per_device_train_batch_size", "reconstruction_weight", "self_contrast_form", "queue_size"}
SHAPING |= {"decorrelation_weight", "off_diagonal_weight", "attention_mi_weight", "view_dropout"}
FORM = Reconstruction().form
STUDIES = sorted((ROOT / "experiments" / "configs").glob("*.yaml"))


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
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
