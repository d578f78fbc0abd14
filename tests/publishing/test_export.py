import json
import shutil
import stat
from functools import partial

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, StaticEmbedding
from transformers import AutoModel, AutoTokenizer

from informin.errors import SaveError
from informin.model.open import load_model
from informin.model.records import RunRecord
from informin.publishing import export
from informin.publishing.export import export_checkpoint, save_model
from modeling_informin import HEAD_FILE
from tests.conftest import raises_usage
from tests.publishing.helpers import (
    PUBLISHED,
    TEXTS,
    change_json,
    contents,
    export_of,
    largest_difference,
    read_json,
    results_of,
)


def tokens_of(folder):
    return AutoTokenizer.from_pretrained(folder)(TEXTS, padding=True, truncation=True, return_tensors="pt")


@pytest.mark.parametrize("pooling, normalize", [("cls", False), ("mean", True)])
def test_all_readers_compute_equal_embeddings(encoder, tmp_path, pooling, normalize):
    folder = export_of(encoder, tmp_path / "export", pooling=pooling, normalize=normalize)
    before = load_model(folder.with_name("export-source"), device="cpu").encode(TEXTS)
    read = SentenceTransformer(str(folder), device="cpu")
    with torch.no_grad():
        ours = AutoModel.from_pretrained(folder, trust_remote_code=True).eval()(**tokens_of(folder)).pooler_output
        plain = AutoModel.from_pretrained(folder).eval()(**tokens_of(folder)).last_hidden_state
    mask = tokens_of(folder)["attention_mask"][..., None]
    plain = plain[:, 0] if pooling == "cls" else (plain * mask).sum(1) / mask.sum(1)
    plain = torch.nn.functional.normalize(plain) if normalize else plain
    size = max(1.0, np.abs(before).max())  # rounding is relative
    for embeddings in (read.encode(TEXTS), ours, plain):
        assert largest_difference(before, embeddings) < 1e-6 * size


def test_the_files_are_those_of_older_versions(exported):
    assert set(contents(exported)) == PUBLISHED
    modules = read_json(exported / "modules.json")
    assert [one["type"] for one in modules] == [
        f"sentence_transformers.models.{kind}" for kind in ("Transformer", "Pooling", "Normalize")
    ]
    assert read_json(exported / "1_Pooling/config.json") == {
        "word_embedding_dimension": 32,
        **{"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True},
        **{"pooling_mode_max_tokens": False, "pooling_mode_mean_sqrt_len_tokens": False},
    }
    assert read_json(exported / "sentence_bert_config.json")["max_seq_length"] == 66
    assert read_json(exported / "config.json")["auto_map"] == {"AutoModel": "modeling_informin.BertForInforMinCL"}


def test_files_have_the_usual_mode(exported):
    modes = {stat.S_IMODE(path.stat().st_mode) for path in exported.rglob("*") if path.is_file()}
    (exported.parent / "new").touch()
    assert modes == {stat.S_IMODE((exported.parent / "new").stat().st_mode)}


def test_no_file_contains_a_local_path(exported):
    source = exported.with_name("export-source")
    assert not [name for name, content in contents(exported).items() if str(source.parent).encode() in content]


def test_the_tokenizer_is_saved_without_truncation_and_padding(bert, tmp_path):
    model = load_model(export_of(bert, tmp_path / "one"), device="cpu")
    model.tokenizer(["a dog"], padding="max_length", truncation=True, max_length=8)
    (tmp_path / "two").mkdir()
    save_model(model, tmp_path / "two")
    values = read_json(tmp_path / "two" / "tokenizer.json")
    assert values["truncation"] is None and values["padding"] is None
    assert not {"max_length", "stride", "name_or_path", "is_local"} & set(
        read_json(tmp_path / "two" / "tokenizer_config.json")
    )


def test_prompts_are_kept_without_those_that_are_empty(bert, tmp_path):
    prompts = {"prompts": {"query": "old ", "document": ""}, "default_prompt_name": "query"}
    folder = export_of(bert, tmp_path / "export", **prompts)
    declared = read_json(folder / "config_sentence_transformers.json")
    assert declared == {"prompts": {"query": "old "}, "default_prompt_name": "query", "similarity_fn_name": "cosine"}
    assert SentenceTransformer(str(folder), device="cpu").default_prompt_name == "query"


def test_a_head_of_a_checkpoint_is_exported_beside_the_encoder(exported, tmp_path):
    checkpoint = tmp_path / "checkpoint"
    export_checkpoint(exported, checkpoint)
    weights = load_file(checkpoint / "model.safetensors")
    head = {"dense.weight": torch.randn(32, 32), "dense.bias": torch.randn(32)}
    ours = {f"bert.{name}": weight for name, weight in weights.items()}
    save_file(ours | {f"mlp.{name}": x for name, x in head.items()}, checkpoint / "model.safetensors", {"format": "pt"})
    export_checkpoint(checkpoint, tmp_path / "export")
    assert load_file(tmp_path / "export" / "model.safetensors").keys() == weights.keys()
    loaded = AutoModel.from_pretrained(tmp_path / "export", trust_remote_code=True).mlp.state_dict()
    assert all(torch.equal(loaded[name], head[name]) for name in head)
    export_checkpoint(tmp_path / "export", tmp_path / "again")
    assert contents(tmp_path / "again")[HEAD_FILE] == contents(tmp_path / "export")[HEAD_FILE]


def test_the_encoders_own_dropout_is_exported(exported, tmp_path):
    checkpoint = tmp_path / "checkpoint"
    export_checkpoint(exported, checkpoint)
    config = read_json(checkpoint / "config.json")
    own = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    change_json(checkpoint / "config.json", hidden_dropout_prob=0.3, informin=config["informin"] | {"dropouts": own})
    export_checkpoint(checkpoint, tmp_path / "export")
    exported_config = read_json(tmp_path / "export" / "config.json")
    assert exported_config["hidden_dropout_prob"] == 0.1 and "dropouts" not in exported_config["informin"]


def test_an_export_of_an_export_is_equal(exported, tmp_path):
    again = tmp_path / "again" / exported.name  # which is the title of the card
    export_checkpoint(exported, again)
    assert contents(again) == contents(exported)


def test_weights_in_half_precision(exported, tmp_path):
    export_checkpoint(exported, tmp_path / "half", dtype="float16")
    assert {x.dtype for x in load_file(tmp_path / "half" / "model.safetensors").values()} == {torch.float16}
    half = SentenceTransformer(str(tmp_path / "half"), device="cpu", model_kwargs={"dtype": torch.float32})
    assert largest_difference(half.encode(TEXTS), load_model(exported, device="cpu").encode(TEXTS)) < 0.01


def test_weights_too_large_for_half_precision_are_not_exported(folder, tmp_path):
    weights = load_file(folder / "model.safetensors")
    weights["embeddings.word_embeddings.weight"][3, 3] = 1e6
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with raises_usage():
        export_checkpoint(folder, tmp_path / "half", dtype="float16")
    assert not (tmp_path / "half").exists()


def test_an_error_leaves_the_folder_as_it_was(folder, tmp_path, monkeypatch):
    before = contents(folder)

    def fail(*_args, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export, "set_usual_modes", fail)
    with pytest.raises(SaveError):
        export.export_model(load_model(folder, device="cpu"), folder, RunRecord.load(folder), "float16")
    assert contents(folder) == before
    with pytest.raises(SaveError):
        export_checkpoint(folder, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "change", ["nothing", "weights", "pooling", "dimensions", "prompt", "length", "similarity", "tokens", "shards"]
)
def test_results_and_onnx_of_another_model_are_removed(folder, change, monkeypatch):
    model = load_model(folder, device="cpu")
    encoder = model[0].auto_model
    if change == "shards":  # as of weights above 50 GB
        monkeypatch.setattr(encoder, "save_pretrained", partial(encoder.save_pretrained, max_shard_size="10KB"))
        export.export_model(model, folder, RunRecord.load(folder))
    stale = ["results/model.json", "results/other_seeds/seed2.json", "onnx/model.onnx"]
    for name in stale:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")
    if change in ("weights", "shards"):
        encoder.embeddings.word_embeddings.weight.data += 1
    if change == "tokens":
        model.tokenizer.add_tokens(["zebra"])
    if change == "pooling":
        model[1].pooling_mode = "max"
    if change == "dimensions":
        model.truncate_dim = 8
    if change == "prompt":
        model.prompts, model.default_prompt_name = {"query": "query: "}, "query"
    if change == "length":
        model.max_seq_length = 16
    if change == "similarity":
        model.similarity_fn_name = "dot"
    if change == "nothing":
        for name in stale[:2]:  # the card reads results
            (folder / name).unlink()
    export.export_model(model, folder, RunRecord.load(folder))
    assert [name for name in stale if (folder / name).exists()] == (stale[2:] if change == "nothing" else [])


def test_a_head_and_scores_of_another_source_model_are_removed(folder):
    of_source = {"base-cls.json": "1" * 64, "base-mean.json": "2" * 64}
    for name, weights in of_source.items():
        results_of(folder, folder / "results" / name, weights_sha256=weights)
    model, record = load_model(folder, device="cpu"), RunRecord.load(folder)
    export.export_model(model, folder, record, head={"dense.weight": torch.eye(32)})
    assert export.projection_head(folder)
    export.export_model(model, folder, record)
    assert export.projection_head(folder) is None
    assert [path.name for path in (folder / "results").iterdir()] == ["base-cls.json"]


def test_a_tokenizer_of_another_model_is_removed(exported, folder):
    before = tokens_of(folder)["input_ids"]
    (folder / "special_tokens_map.json").write_text('{"cls_token": "dog"}')
    assert not torch.equal(tokens_of(folder)["input_ids"], before)
    (folder / "notes.txt").touch()
    export.export_model(load_model(exported, device="cpu"), folder, RunRecord.load(folder))
    assert torch.equal(tokens_of(folder)["input_ids"], before) and (folder / "notes.txt").exists()


def test_an_export_truncates_embeddings_as_the_source(st_mean, tmp_path):
    source = SentenceTransformer(str(st_mean), device="cpu", truncate_dim=8)
    source.save_pretrained(str(tmp_path / "source"), create_model_card=False)
    export.export_checkpoint(tmp_path / "source", tmp_path / "new")
    after = SentenceTransformer(str(tmp_path / "new"), device="cpu").encode(TEXTS)
    assert np.array_equal(after, source.encode(TEXTS))


def test_other_modules_keep_the_format_of_sentence_transformers(bert, tmp_path):
    torch.manual_seed(0)
    model = load_model(export_of(bert, tmp_path / "export"), device="cpu")
    model.append(Dense(32, 16))  # with tanh, which AutoModel would leave out
    before = model.encode(TEXTS)
    (tmp_path / "dense").mkdir()
    save_model(model, tmp_path / "dense")
    assert "auto_map" not in read_json(tmp_path / "dense" / "config.json")
    after = SentenceTransformer(str(tmp_path / "dense"), device="cpu")
    assert largest_difference(before, after.encode(TEXTS)) < 1e-6


def test_a_static_model_is_saved_and_read(bert, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(bert).backend_tokenizer
    weights = np.random.default_rng(0).normal(size=(tokenizer.get_vocab_size(), 8)).astype("float32")
    model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_weights=weights)], device="cpu")
    before = model.encode(TEXTS)
    (tmp_path / "static").mkdir()
    save_model(model, tmp_path / "static")
    read = SentenceTransformer(str(tmp_path / "static"), device="cpu").encode(TEXTS)
    assert largest_difference(before, read) < 1e-6
    with raises_usage("model_name", found="StaticEmbedding"):  # it is one already
        export_checkpoint(tmp_path / "static", tmp_path / "exported")


def test_the_error_about_an_encoder_without_pooling_names_an_option_of_export(bert, tmp_path):
    with raises_usage("model_name", needed="exported folder"):
        export_checkpoint(bert, tmp_path / "exported")


def test_a_used_folder_is_not_overwritten(exported, folder):
    before = contents(folder)
    with raises_usage():
        export_checkpoint(exported, folder)
    assert contents(folder) == before


def test_json_files_are_valid(exported):
    for path in exported.rglob("*.json"):
        json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda name: pytest.fail(name))


def test_a_copy_that_sentence_transformers_saved_opens_as_docs_and_card_say(exported, tmp_path):
    """It has no modeling file: with the file, or exported again, remote code gives the embedding."""
    model = SentenceTransformer(str(exported), device="cpu")
    model.save_pretrained(str(tmp_path / "copy"))
    export_checkpoint(tmp_path / "copy", tmp_path / "again")
    shutil.copy(exported / "modeling_informin.py", tmp_path / "copy")
    batch = model.tokenizer(TEXTS, padding=True, return_tensors="pt")
    for name in ("copy", "again"):
        opened = AutoModel.from_pretrained(tmp_path / name, trust_remote_code=True).eval()
        assert largest_difference(opened(**batch).pooler_output.detach(), model.encode(TEXTS)) < 1e-6
    assert "lacks `modeling_informin.py`" in (exported / "README.md").read_text(encoding="utf-8")
