import shutil

import pytest
import torch
from safetensors.torch import load_file, save
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize
from torch.nn import Identity
from transformers import AutoModel, AutoTokenizer, DistilBertConfig, DistilBertModel

from informin.model.open import load_model
from informin.publishing.export import check_export, export_checkpoint, published_files
from tests.conftest import FOUR_STEPS, make_sentences, raises_usage, save_sentence_transformer, tokenizer_of
from tests.publishing.helpers import TEXTS, change_json, contents, largest_difference, read_json
from trainer_informin import InforMinTrainer, InforMinTrainingArguments

SENTENCES = make_sentences(64)


def trained(model, folder, **options) -> InforMinTrainer:
    options = FOUR_STEPS | dict(eval_strategy="no", save_steps=2, output_dir=str(folder)) | options
    model = model if isinstance(model, SentenceTransformer) else str(model)
    trainer = InforMinTrainer(model, InforMinTrainingArguments(**options), train_dataset=SENTENCES)
    trainer.train()
    return trainer


@pytest.mark.parametrize("kind", ["BERT", "SentenceTransformer"])
def test_a_run_is_exported(bert, st_mean, tmp_path, kind):
    model = str(bert) if kind == "BERT" else SentenceTransformer(str(st_mean), device="cpu")
    trainer = trained(model, tmp_path / "run")
    trainer.export(report=False)
    expected = trainer.encode(TEXTS)
    read = SentenceTransformer(str(tmp_path / "run"), device="cpu").encode(TEXTS)
    batch = AutoTokenizer.from_pretrained(tmp_path / "run")(TEXTS, padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        ours = AutoModel.from_pretrained(tmp_path / "run", trust_remote_code=True).eval()(**batch).pooler_output
    assert largest_difference(read, expected) < 1e-5 and largest_difference(ours, expected) < 1e-5
    record = read_json(tmp_path / "run" / "training.json")
    assert (record["steps"], record["data"]["sentences"]) == (4, 64)
    check_export(tmp_path / "run")


def test_an_encoder_without_code_of_its_own_loads_with_trust(roberta, tmp_path):
    """The checkpoints of an XLM-RoBERTa name the class of training, whose file is not in the export."""
    source = shutil.copytree(roberta, tmp_path / "source")
    change_json(source / "config.json", model_type="xlm-roberta")
    trainer = trained(source, tmp_path / "run", max_steps=2)
    trainer.export(report=False)
    assert type(AutoModel.from_pretrained(tmp_path / "run", trust_remote_code=True)).__name__ == "XLMRobertaModel"
    read = SentenceTransformer(str(tmp_path / "run"), device="cpu", trust_remote_code=True)
    assert largest_difference(read.encode(TEXTS), trainer.encode(TEXTS)) < 1e-5


@pytest.mark.parametrize("kind", ["distilbert", "adapted"])
def test_a_projection_head_reads_the_embedding_as_in_training(bert, tmp_path, kind):
    modules = [Normalize(), Dense(32, 8, activation_function=Identity())] if kind == "adapted" else []
    if kind == "distilbert":
        sizes = dict(dim=32, n_layers=1, n_heads=4, hidden_dim=64, initializer_range=0.2)
        DistilBertModel(DistilBertConfig(vocab_size=40, **sizes)).save_pretrained(tmp_path / "encoder")
        tokenizer_of(bert).save_pretrained(tmp_path / "encoder")
        bert = tmp_path / "encoder"
    source = save_sentence_transformer(tmp_path / "source", bert, *modules)
    trainer = trained(SentenceTransformer(str(source), device="cpu"), tmp_path / "run", max_steps=1, save_steps=1)
    trainer.export(report=False)
    tokens = trainer.trained.finished.preprocess(TEXTS)
    with torch.no_grad():
        expected = trainer.model.eval()(tokens["input_ids"], tokens["attention_mask"]).projection
    export_checkpoint(tmp_path / "run" / "checkpoint-1", tmp_path / "export")
    for folder in ("run", "export"):
        read = load_model(tmp_path / folder, pooler="mlp", device="cpu")
        assert largest_difference(read.encode(TEXTS), expected) < 1e-5
    trusted = SentenceTransformer(str(tmp_path / "run"), device="cpu", trust_remote_code=True)
    assert largest_difference(trusted.encode(TEXTS), trainer.encode(TEXTS)) < 1e-5


def test_nothing_private_is_published(bert, tmp_path):
    trainer = trained(bert, tmp_path / "run")
    trainer.export()
    files = [(tmp_path / "run" / name).read_bytes() for name in published_files(tmp_path / "run")]
    everything = b"".join(files)
    assert str(tmp_path).encode() not in everything
    assert not [text for text in SENTENCES if text.encode() in everything]


def test_checkpoints_have_a_record_and_no_pickle(bert, tmp_path):
    trained(bert, tmp_path / "run")
    names = contents(tmp_path / "run" / "checkpoint-4")
    assert "training.json" in names and "training_args.bin" not in names


def test_low_rank_matrices_are_merged_or_kept(st_mean, tmp_path):
    trainer = trained(st_mean, tmp_path / "merged", lora_r=2)
    trainer.export(report=False)
    expected = trainer.encode(TEXTS)
    read = SentenceTransformer(str(tmp_path / "merged"), device="cpu").encode(TEXTS)
    assert largest_difference(read, expected) < 1e-5
    trainer.args.lora_merge = False
    trainer.export(tmp_path / "alone", report=False)
    assert (tmp_path / "alone" / "adapter_model.safetensors").is_file()
    assert not (tmp_path / "alone" / "model.safetensors").exists()
    with raises_usage(fix="lora_merge"):
        check_export(tmp_path / "alone")


def test_low_rank_matrices_in_a_checkpoint_belong_to_the_revision(logged_in, st_mean, tmp_path):
    """Libraries would load them onto the default branch. An export of the checkpoint has merged weights."""
    first = logged_in.add_repo("alice/source", contents(st_mean))
    weights = {name: 2 * weight for name, weight in load_file(st_mean / "model.safetensors").items()}
    logged_in.commit("alice/source", {"model.safetensors": save(weights, {"format": "pt"})})
    trainer = trained("alice/source", tmp_path / "run", lora_r=2, revision=first)
    expected = trainer.encode(TEXTS)
    export_checkpoint(tmp_path / "run" / "checkpoint-4", tmp_path / "exported")
    check_export(tmp_path / "exported")
    for folder in (tmp_path / "run" / "checkpoint-4", tmp_path / "exported"):
        read = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
        assert largest_difference(read, expected) < 1e-5


def test_a_run_is_pushed_at_its_end(logged_in, bert, tmp_path):
    trainer = trained(bert, tmp_path / "run", push_to_hub=True, hub_model_id="alice/m", hub_strategy="end")
    assert not logged_in.files("alice/m").keys() - {".gitattributes"}
    assert trainer.push_to_hub() == f"{logged_in.url}/alice/m"
    assert "model.safetensors" in logged_in.files("alice/m")


def test_a_pull_request_is_for_one_push(logged_in, bert, tmp_path):
    trainer = trained(bert, tmp_path / "run", push_to_hub=True, hub_model_id="alice/m", hub_strategy="end")
    assert trainer.push_to_hub(create_pr=True) == f"{logged_in.url}/alice/m/discussions/1"
    assert "model.safetensors" not in logged_in.files("alice/m")
    assert trainer.push_to_hub() == f"{logged_in.url}/alice/m"
    assert "model.safetensors" in logged_in.files("alice/m")


def test_every_save_is_pushed(logged_in, bert, tmp_path):
    trained(bert, tmp_path / "run", push_to_hub=True, hub_model_id="alice/m", hub_strategy="every_save")
    files = logged_in.files("alice/m")
    assert b'"steps": 4' in files["training.json"]
    assert not [name for name in files if "optimizer" in name or "checkpoint" in name]


def test_a_failed_push_of_a_checkpoint_does_not_end_the_run(logged_in, bert, tmp_path, monkeypatch, caplog):
    def fail(*_args, **_options):
        raise RuntimeError("lost")

    monkeypatch.setattr("huggingface_hub.HfApi.upload_folder", fail)
    how = dict(push_to_hub=True, hub_model_id="alice/m", hub_strategy="every_save")
    assert trained(bert, tmp_path / "run", **how).state.global_step == 4
    assert "checkpoint-4 was not pushed" in caplog.text


def test_a_push_that_cannot_work_fails_before_training(logged_in, bert, tmp_path, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    with raises_usage(fix="hf auth login"):
        trained(bert, tmp_path / "run", push_to_hub=True, hub_model_id="alice/m")
    assert not (tmp_path / "run" / "checkpoint-2").exists()


def test_low_rank_matrices_of_a_local_model_are_not_pushed(logged_in, st_mean, tmp_path):
    how = dict(push_to_hub=True, hub_model_id="alice/m", lora_r=2, lora_merge=False)
    with raises_usage("lora_merge"):
        trained(st_mean, tmp_path / "run", **how)


def test_an_export_can_be_trained_again(bert, tmp_path):
    trained(bert, tmp_path / "run").export(report=False)
    again = trained(tmp_path / "run", tmp_path / "again")
    again.export(report=False)
    check_export(tmp_path / "again")
