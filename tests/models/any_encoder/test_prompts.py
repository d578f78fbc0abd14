"""Prompts in training, in exported folders and in evaluation."""

import re

import numpy as np
import pytest

from informin.models.embedding_config import EmbeddingConfig
from informin.models.open_model import load_model
from informin.publishing.export import export_checkpoint
from informin.training.run_summary import prompt_line
from modeling_informin import with_default_prompt
from tests.conftest import raises_usage
from tests.models.any_encoder.helpers import (
    LENGTH,
    PROMPTS,
    SENTENCES,
    by_sentence_transformers,
    general_trainer,
    read,
    sentence_transformer,
)

OWN_PROMPTS = {"prompts": PROMPTS, "default_prompt_name": "query"}


@pytest.mark.parametrize(
    ("given", "written"),
    [
        (dict(prompt="a "), OWN_PROMPTS),
        (dict(prompt="today "), OWN_PROMPTS),
        (dict(prompt=""), OWN_PROMPTS),
        (dict(prompt="a ", export_prompt=True), OWN_PROMPTS | {"default_prompt_name": "document"}),
        (
            dict(prompt="today ", export_prompt=True),
            {"prompts": PROMPTS | {"default": "today "}, "default_prompt_name": "default"},
        ),
        (dict(prompt="", export_prompt=True), OWN_PROMPTS | {"default_prompt_name": None}),
    ],
)
def test_given_prompt_is_exported_only_on_request(bert, trainer, tmp_path, given, written):
    """Without `export_prompt`, it is used only in training, and the encoder's own prompts are kept."""
    run = trainer(sentence_transformer(bert, tmp_path / "start"), **given)
    run.export(tmp_path / "export")
    assert written.items() <= read(tmp_path / "export", "config_sentence_transformers.json").items()
    assert "training_prompt" not in read(tmp_path / "export")["informin"]
    trained = run.encode(SENTENCES)
    default = written["prompts"].get(written["default_prompt_name"], "")
    encoder = load_model(str(tmp_path / "export"))
    assert encoder.prompt == default
    np.testing.assert_allclose(by_sentence_transformers(tmp_path / "export"), encoder(SENTENCES)["mean"], atol=1e-5)
    plain = load_model(str(tmp_path / "export"), prompt="")
    longer = [given["prompt"] + sentence for sentence in SENTENCES]
    np.testing.assert_allclose(plain(longer)["mean"], trained, atol=1e-5)
    assert plain.truncated == {s for s in longer if len(s.split()) > LENGTH - 2}
    exactly = "." * (LENGTH - 2)  # as many tokens as fit, without room for a prompt
    encoder.truncated.clear()
    encoder([exactly])
    assert encoder.truncated == ({exactly} if default else set())
    if default == given["prompt"]:
        np.testing.assert_allclose(encoder(SENTENCES)["mean"], trained, atol=1e-5)


def test_training_prompt_is_not_added_to_exported_folder(folder_of, trainer, tmp_path):
    """Users add the prompt themselves, as for E5, and the model card says so."""
    from sentence_transformers import SentenceTransformer

    run = trainer("bert", prompt="the old ", save_strategy="steps", save_steps=2)
    run.train()
    run.export()
    themselves = ["the old " + sentence for sentence in SENTENCES]
    expected = run.encode(SENTENCES)
    np.testing.assert_allclose(by_sentence_transformers(tmp_path / "run", themselves), expected, atol=1e-5)
    assert read(tmp_path / "run", "config_sentence_transformers.json")["prompts"] == {}
    card = (tmp_path / "run" / "README.md").read_text()
    assert "Training used the prompt `the old`, but sentence-transformers adds none" in card
    model = SentenceTransformer(str(tmp_path / "run"), device="cpu")
    assert 'model.encode(["A dog sleeps.", "The dog is asleep.", "It rains."], prompt="the old ")' in card
    np.testing.assert_allclose(model.encode(SENTENCES, prompt="the old "), expected, atol=1e-5)
    export_checkpoint(tmp_path / "run" / "checkpoint-2", tmp_path / "again")
    assert "adds none: pass `prompt`" in (tmp_path / "again" / "README.md").read_text()
    assert read(tmp_path / "again") == read(tmp_path / "run")
    # A resumed run uses the training prompt again.
    resumed = trainer(
        "bert", prompt="the old ", save_strategy="steps", save_steps=2, max_steps=3, resume_with_changes=True
    )
    resumed.train(resume_from_checkpoint="last")
    assert resumed.model.config.informin["training_prompt"] == "the old "


@pytest.mark.parametrize(
    ("usage", "exported", "said"),
    [
        (EmbeddingConfig("mean"), False, None),
        (
            EmbeddingConfig("mean", prompt="a "),
            False,
            "'a ', the encoder's own default prompt; sentence-transformers adds it",
        ),
        (
            EmbeddingConfig("mean", prompt="a "),
            True,
            "'a ', the default prompt of the folder; sentence-transformers adds it",
        ),
        (
            EmbeddingConfig("mean", training_prompt="a "),
            False,
            "'a ' in training only; the folder does not add it .prepend it",
        ),
        (
            EmbeddingConfig("mean", prompt="b ", training_prompt=""),
            False,
            "none in training; the folder keeps .* 'b '",
        ),
    ],
)
def test_description_of_the_prompt(usage, exported, said):
    line = prompt_line(usage, exported)
    assert line is None if said is None else re.match(said, line)


@pytest.mark.parametrize(
    ("prompts", "default", "prompt", "expected"),
    [
        ({}, None, "", ({}, None)),
        ({}, None, "today ", ({"default": "today "}, "default")),
        ({"a": "the "}, "a", "the ", ({"a": "the "}, "a")),
        ({"a": "the ", "b": "today "}, "a", "today ", ({"a": "the ", "b": "today "}, "b")),
        ({"a": "the "}, "a", "", ({"a": "the "}, None)),
        ({"default": "the "}, "default", "today ", ({"default": "the ", "default_2": "today "}, "default_2")),
    ],
)
def test_new_default_prompt_gets_an_unused_name(prompts, default, prompt, expected):
    assert with_default_prompt(prompts, default, prompt) == expected


@pytest.mark.parametrize("backend", ["native", "st"])
@pytest.mark.parametrize("stored", ["query", None])
def test_both_backends_name_a_new_default_prompt_alike(bert, tmp_path, backend, stored):
    run = general_trainer(
        sentence_transformer(bert, tmp_path / "model", prompt=stored),
        tmp_path / "run",
        backend=backend,
        prompt="today ",
        export_prompt=True,
    )
    run.export(tmp_path / "export")
    values = read(tmp_path / "export", "config_sentence_transformers.json")
    assert (values["default_prompt_name"], values["prompts"]) == ("default", PROMPTS | {"default": "today "})


def test_export_prompt_requires_a_prompt(trainer):
    with raises_usage(option="export_prompt", found="has no effect without `prompt`"):
        trainer("bert", export_prompt=True)
