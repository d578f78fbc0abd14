"""save_pretrained and push_to_hub write the files of sentence-transformers, which otherwise pools by the mean."""

import json

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from informin.models.checkpoint import Checkpoint
from informin.models.native_loading import load_trainable
from informin.models.open_model import in_memory, load_model
from informin.models.tokenizer import load_tokenizer
from informin.publishing.export import export_folder
from informin.publishing.published import check_export
from modeling_informin import BertForInforMinCL
from tests.conftest import WORDS, make_sentences, raises_usage, save_roberta

SentenceTransformer = pytest.importorskip("sentence_transformers").SentenceTransformer
TEXTS = ["the dog", "The Dog", *make_sentences(4), " ".join(WORDS * 3)]  # the last is longer than the maximum
FILES = {"max_seq_length": 12, "do_lower_case": True, "prompts": {"query": "old "}, "similarity_fn_name": "dot"}


def build(encoder, **informin):
    """Return a model with other settings than the defaults, and its tokenizer."""
    model = load_trainable(Checkpoint(encoder), {"projection_head": "mlp", "lm_head": False})
    model.config.informin |= informin
    return model, load_tokenizer(Checkpoint(encoder))


def save(model, tokenizer, folder):
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def by_st(folder, **how) -> np.ndarray:
    return SentenceTransformer(str(folder), device="cpu", **how).encode(TEXTS)


def by_us(folder) -> np.ndarray:
    (embeddings,) = load_model(str(folder), device="cpu")(TEXTS).values()
    return embeddings


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("bert", dict(pooling="cls")),
        ("roberta", dict(pooling="mean", normalize=True, prompt="old ")),
        ("distilbert", dict(pooling="last", sentence_transformers=FILES, prompt="a ")),
    ],
    ids=["bert-cls", "roberta-mean", "distilbert-last"],
)
def test_sentence_transformers_gives_the_same_embeddings(folder_of, tmp_path, name, settings):
    model, tokenizer = build(folder_of(name), **settings)
    folder = save(model, tokenizer, tmp_path / "model")
    expected = by_us(folder)
    np.testing.assert_allclose(by_st(folder), expected, atol=1e-5)
    batch = tokenizer([settings.get("prompt", "") + TEXTS[0]], return_tensors="pt")
    with torch.no_grad():
        np.testing.assert_allclose(model.eval()(**batch).pooler_output[0].numpy(), expected[0], atol=1e-5)
    if files := settings.get("sentence_transformers"):
        loaded = SentenceTransformer(str(folder), device="cpu")
        assert (loaded.similarity_fn_name, loaded.max_seq_length) == ("dot", 12)
        assert loaded.prompts.items() >= files["prompts"].items()
        assert loaded.prompts[loaded.default_prompt_name] == "a "


@pytest.mark.parametrize("normalize", [False, True])
def test_adapter_is_saved_for_sentence_transformers(bert, tmp_path, normalize):
    model, tokenizer = build(bert, pooling="mean", normalize=normalize, adapter=True)
    model.adapter = torch.nn.Linear(32, 32)
    folder = save(model, tokenizer, tmp_path / "model")
    expected = by_us(folder)
    np.testing.assert_allclose(by_st(folder), expected, atol=1e-5)
    again = BertForInforMinCL.from_pretrained(folder).eval()
    with torch.no_grad():
        batch = tokenizer(TEXTS[:6], padding=True, return_tensors="pt")
        np.testing.assert_allclose(again(**batch).pooler_output.numpy(), expected[:6], atol=1e-5)
    for key, value in model.adapter.state_dict().items():
        assert torch.equal(again.adapter.state_dict()[key], value)


def test_settings_of_the_loaded_folder_are_saved_again(bert, tmp_path):
    """They are in other files than config.json, both of an export and of a folder that save_pretrained wrote."""
    model, tokenizer = build(bert, pooling="mean", sentence_transformers=FILES, prompt="a ")
    export_folder(in_memory(model, tokenizer), tmp_path / "0")
    for i in range(2):
        model = AutoModel.from_pretrained(tmp_path / str(i), trust_remote_code=True)
        save(model, AutoTokenizer.from_pretrained(tmp_path / str(i)), tmp_path / str(i + 1))
        for name in ("config_sentence_transformers.json", "sentence_bert_config.json", "1_Pooling/config.json"):
            values = [json.loads((tmp_path / str(j) / name).read_text()) for j in (0, i + 1)]
            assert values[0] == values[1], name
    np.testing.assert_allclose(by_st(tmp_path / "2"), by_us(tmp_path / "0"), atol=1e-5)


def test_roberta_without_a_maximum_in_its_tokenizer(tmp_path):
    """Its first position is after the padding index, so that it reads two tokens fewer than it has positions."""
    model, tokenizer = build(save_roberta(tmp_path / "base"), pooling="mean")
    tokenizer.model_max_length = 10**30
    folder = save(model, tokenizer, tmp_path / "model")
    assert SentenceTransformer(str(folder), device="cpu").max_seq_length == 64
    np.testing.assert_allclose(by_st(folder), by_us(folder), atol=1e-5)


def test_other_processes_and_files_in_the_place_of_folders_write_nothing(bert, tmp_path):
    model, _ = build(bert)
    model.save_pretrained(tmp_path / "other", is_main_process=False)
    assert not list((tmp_path / "other").iterdir())
    (tmp_path / "file").write_text("mine")
    model.save_pretrained(tmp_path / "file")  # transformers logs an error
    assert (tmp_path / "file").read_text() == "mine"


def test_saved_model_is_not_published_as_an_export(bert, tmp_path):
    """Its weights have other names, and include the heads."""
    folder = save(*build(bert), tmp_path / "model")
    with raises_usage(found="is a checkpoint, which cannot be published", fix="Export it first"):
        check_export(folder)


@pytest.mark.parametrize("way", ["push_to_hub", "save_pretrained", "save_pretrained again"])
def test_the_files_are_pushed(hub, logged_in, bert, tmp_path, monkeypatch, way):
    monkeypatch.setattr("transformers.utils.hub._hf_api", None)  # made for another address
    model, tokenizer = build(bert, pooling="mean", normalize=True, prompt="old ")
    model.config.informin["adapter"], model.adapter = True, torch.nn.Linear(32, 32)
    if way == "push_to_hub":
        model.push_to_hub("alice/m")
    else:
        if way.endswith("again"):
            save(model, tokenizer, tmp_path / "m")
        model.save_pretrained(tmp_path / "m", push_to_hub=True, repo_id="alice/m")
    tokenizer.push_to_hub("alice/m")
    assert {"modules.json", "1_Pooling/config.json", "3_Dense/model.safetensors"} <= hub.files("alice/m").keys()
    for name, content in hub.files("alice/m").items():
        (tmp_path / "downloaded" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "downloaded" / name).write_bytes(content)
    expected = by_us(save(model, tokenizer, tmp_path / "local"))
    np.testing.assert_allclose(by_st(tmp_path / "downloaded"), expected, atol=1e-5)
