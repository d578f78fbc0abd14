"""Recipes agree with the published values, which are defined next to their terms."""

import pytest
from transformers import BertConfig, RobertaConfig

from informin.models.embedding_config import EmbeddingConfig
from informin.models.native import NativeModel
from informin.objectives import OBJECTIVES
from informin.objectives.attention_mi import attention_layers
from informin.training.command_line import read_options_file
from tests.conftest import ROOT
from trainer_informin import InforMinTrainingArguments

LARGE = dict(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
ENCODERS = {
    "bert-base-uncased": BertConfig(),
    "bert-large-uncased": BertConfig(**LARGE),
    "roberta-base": RobertaConfig(),
    "roberta-large": RobertaConfig(**LARGE),
}
OTHERS = ("informin-released", "scd-released", "micse-released", "quickstart")  # deliberately different from the paper
OWN = ("adapt",)  # not from a paper
RECIPES = sorted(path for path in (ROOT / "informin/recipes").glob("*.yaml") if path.stem not in OTHERS + OWN)


def recipe(path):
    """Return the model of a recipe, its other options, and those that the paper row does not fill in.

    Recipes set the paper's form of the reconstruction loss. The default is the form in the authors' code.
    """
    options = read_options_file(path)
    given = ("objective", "mlm_weight", "reconstruction_form")
    return options.pop("model_name"), options, {name: options[name] for name in given if name in options}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipe_equals_its_paper_row(path):
    model_name, options, given = recipe(path)
    config = ENCODERS[model_name]
    model = NativeModel(model_name, None, config, EmbeddingConfig())
    args = InforMinTrainingArguments(use_cpu=True, **given).resolve(model)
    filled = {name: getattr(args, name) for name in options}
    if "attention_mi_layers" in options:
        filled["attention_mi_layers"] = attention_layers(config.num_hidden_layers, args.attention_mi_layers)
    assert options == filled
    row = OBJECTIVES[args.objective].rows[config.model_type, config.hidden_size]
    assert args.paper_row == row.name
    assert {"learning_rate", "per_device_train_batch_size", *row.options} <= options.keys()
    assert args.objective_options.keys() - {"masked_views"} <= options.keys(), "it says all that counts"


def test_other_recipes_differ_from_their_paper_row():
    assert len(RECIPES) >= 8
    for name in OTHERS:
        options = read_options_file(ROOT / f"informin/recipes/{name}.yaml")
        row = OBJECTIVES[options["objective"]].row("bert", 768)
        published = {"learning_rate": row.learning_rate, "per_device_train_batch_size": row.batch_size, **row.options}
        assert any(options.get(key, value) != value for key, value in published.items()), name
