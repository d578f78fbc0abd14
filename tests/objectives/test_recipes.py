"""Presets are what the papers print; recipes and studies have the default form unless their names say more."""

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
    "bert-base": BertConfig(),
    "bert-large": BertConfig(**LARGE),
    "roberta-base": RobertaConfig(),
    "roberta-large": RobertaConfig(**LARGE),
}
SCD = dict(self_contrast_weight=1, self_contrast_form="paper", projector_size=4096, projection_head="none")
QUEUE = dict(queue_size=384, momentum_decay=0.995, momentum_dropout=0.3, warmup_steps=250)
PUBLISHED = [  # objective, encoder, batch size, learning rate, and what else the paper sets
    ("informin", "bert-base", 128, 3e-5, dict(reconstruction_weight=0.4)),
    ("informin", "roberta-base", 128, 1e-5, dict(reconstruction_weight=4)),
    ("informin", "roberta-large", 128, 3e-5, dict(reconstruction_weight=4)),
    ("simcse", "bert-base", 64, 3e-5, dict(temperature=0.05)),
    ("simcse", "bert-large", 64, 1e-5, dict(temperature=0.05)),
    ("simcse", "roberta-base", 512, 1e-5, dict(temperature=0.05)),
    ("simcse", "roberta-large", 512, 3e-5, dict(temperature=0.05)),
    (
        "scd",
        "bert-base",
        192,
        3e-5,
        SCD | dict(decorrelation_weight=0.005, view_dropout=[0.05, 0.15], off_diagonal_weight=0.013),
    ),
    (
        "scd",
        "roberta-base",
        192,
        3e-5,
        SCD | dict(decorrelation_weight=0.0033, view_dropout=[0.065, 0.24], off_diagonal_weight=0.028),
    ),
    ("micse", "bert-base", 50, 3e-5, QUEUE | dict(attention_mi_weight=2.5e-3, attention_mi_form="paper")),
]
FOR_ALL = dict(max_seq_length=32, num_train_epochs=1, eval_steps=125, warmup_steps=0, projection_head="mlp")
RELEASED = ("informin-released", "scd-released", "micse-released", "quickstart")  # deliberately unlike the paper


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


@pytest.mark.parametrize("objective, encoder, batch, rate, others", PUBLISHED)
def test_presets_are_the_papers(objective, encoder, batch, rate, others):
    """Without a recipe, `informin train --objective NAME` runs what a paper prints."""
    config = ENCODERS[encoder]
    found = values_for(config, {"objective": objective})
    expected = FOR_ALL | dict(per_device_train_batch_size=batch, learning_rate=rate) | others
    assert {name: found[name] for name in expected} == expected
    own = Encoder(model_type=config.model_type, width=config.hidden_size)
    assert PRESETS[objective].papers[config.model_type, config.hidden_size] == PRESETS[objective].paper(own)


def test_micse_reads_the_upper_layers():
    assert attention_layers(12) == [8, 9, 10, 11]


def test_other_recipes_differ_from_the_paper():
    for name in RELEASED:
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
