import json
import os
import re

import pytest
import torch
from safetensors.torch import load_file, save_file

from informin.publishing.export import check_export, published_files
from tests.conftest import raises_usage
from tests.publishing.helpers import PUBLISHED, change_json, results_of

PRIVATE = [
    *("report.json", "report.html", "guide/embeddings.npy", "documents.npy", "index/texts.jsonl", "runs/events.out"),
    *("checkpoint-4/config.json", "checkpoint-4/model.safetensors", "checkpoint-4/optimizer.pt", "training_args.bin"),
    *("optimizer.pt", "notes.txt", ".env", "results/notes.txt", "results/model.txt", "onnx/model.onnx.tmp"),
    *("1_Pooling/config.json.bak", "secret.py", "texts.txt", "embeddings.npy.json", "model-secret.safetensors"),
    *("other/config.json", "manifest.json", "heads.safetensors", "trained.safetensors", "adapter.safetensors"),
]


def published(folder) -> set[str]:
    return {path.as_posix() for path in published_files(folder)}


def test_only_listed_files_are_published(folder):
    for name in PRIVATE:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("private")
    assert published(folder) == PUBLISHED


def test_onnx_files_and_added_results_are_published(folder):
    (folder / "onnx").mkdir()
    (folder / "onnx/model.onnx").write_text("x")
    results_of(folder, folder / "results/model.json", model="this model")
    results_of(folder, folder / "results/base-cls.json", model="before training")
    results_of(folder, folder / "results/other_seeds/seed2.json", model="seed 2")
    new = {"onnx/model.onnx", "results/model.json", "results/base-cls.json", "results/other_seeds/seed2.json"}
    assert published(folder) == PUBLISHED | new


def test_results_with_a_path_are_not_published(folder):
    results_of(folder, folder / "results/model.json")
    assert published(folder) == PUBLISHED


@pytest.mark.parametrize("path", ["", "0_Router/"])
def test_files_of_modules_and_of_routes_are_published(folder, path):
    modules = [{"path": path.rstrip("/"), "type": "sentence_transformers.models.Router"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    before = published(folder)
    for name in ("query_0_WordEmbeddings/tokenizer.json", "query_0_WordEmbeddings/texts.json"):
        (folder / path / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / path / name).write_text("{}")
    (folder / path / "router_config.json").write_text('{"types": {"query_0_WordEmbeddings": "x.WordEmbeddings"}}')
    assert published(folder) - before == {
        *(f"{path}router_config.json", f"{path}query_0_WordEmbeddings/tokenizer.json"),
    }


def test_code_of_a_model_is_published_with_what_it_imports(folder):
    (folder / "custom.py").write_text("from .helper import x\n")
    (folder / "helper.py").write_text("x = 1\n")
    (folder / "other.py").write_text("secret = 1\n")
    change_json(folder / "config.json", auto_map={"AutoModel": "custom.Model", "AutoConfig": "someone/m--other.Config"})
    assert published(folder) - PUBLISHED == {"custom.py", "helper.py"}


@pytest.mark.parametrize("path", ["..", "../other", "/etc"])
def test_modules_outside_of_the_folder_are_not_published(folder, path):
    (folder.parent / "config.json").write_text("{}")
    (folder / "modules.json").write_text(f'[{{"path": "{path}", "type": "x.Pooling"}}]')
    assert not [name for name in published(folder) if name.startswith(("..", "/"))]


def test_shards_are_published(folder):
    (folder / "model-00001-of-00002.safetensors").write_bytes(b"x")
    assert "model-00001-of-00002.safetensors" in published(folder)


@pytest.mark.parametrize("name", ["config.json", "results/model.json", "notes.txt", "1_Pooling"])
def test_links_are_not_published(folder, tmp_path, name):
    private = tmp_path / "private"
    private.mkdir()
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    if path.is_dir():
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
    path.unlink(missing_ok=True)
    os.symlink(private, path)
    with raises_usage():
        check_export(folder)


def test_links_in_checkpoints_are_ignored(folder, tmp_path):
    (folder / "checkpoint-4").mkdir()
    os.symlink(tmp_path, folder / "checkpoint-4" / "link")
    check_export(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "training.json", "modules.json"])
def test_an_incomplete_copy_is_not_published(folder, name):
    os.truncate(folder / name, 100)
    with raises_usage(option="model_name"):
        check_export(folder)


@pytest.mark.parametrize("name", ["config_sentence_transformers.json", "modules.json"])
def test_a_file_that_is_not_utf8_is_damaged(folder, name):
    (folder / name).write_bytes((folder / name).read_bytes()[:-2] + b"\xe9")
    with raises_usage(option="model_name", found="damaged"):
        check_export(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_folder_that_lacks_a_file_is_not_published(folder, name):
    """The push would delete it from the repository."""
    (folder / name).unlink()
    with raises_usage(option="model_name"):
        check_export(folder)


@pytest.mark.parametrize("is_whole", [True, False])
def test_all_shards_are_published(folder, is_whole):
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    shards = {f"model-{number:05d}-of-00002.safetensors": list(weights)[number - 1 :: 2] for number in (1, 2)}
    for shard, names in shards.items():
        save_file({name: weights[name] for name in names}, folder / shard, {"format": "pt"})
    shard_of = {name: shard for shard, names in shards.items() for name in names}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": shard_of}))
    if is_whole:
        check_export(folder)
        assert set(shards) < published(folder)
        return
    (folder / "model-00002-of-00002.safetensors").unlink()
    with raises_usage(option="model_name"):
        check_export(folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_not_published(folder, value):
    weights = load_file(folder / "model.safetensors")
    weights["embeddings.word_embeddings.weight"][0, 0] = torch.tensor(value)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with raises_usage():
        check_export(folder)


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "training.json", "1_Pooling/config.json"])
@pytest.mark.parametrize("where", ["folder", "file in it"])
def test_paths_of_this_machine_are_not_published(folder, name, where):
    path = folder if where == "folder" else folder / "config.json"
    change_json(folder / name, something={"deep": [str(path)]})
    with raises_usage():
        check_export(folder)


def test_a_path_in_the_home_folder_is_not_published(folder):
    change_json(folder / "config.json", x=os.path.expanduser("~/gone/model"))
    with raises_usage():
        check_export(folder)


def test_paths_with_other_characters_are_found(folder):
    path = folder / "älter"
    path.mkdir()
    change_json(folder / "config.json", x=str(path))  # written as \u00e4
    with raises_usage():
        check_export(folder)


def test_texts_that_are_no_paths_are_published(folder):
    change_json(folder / "tokenizer_config.json", sep_token="/", other="/not/here", route="a/b")
    check_export(folder)


def as_low_rank(folder, base: str) -> None:
    """Give the folder the files of low-rank matrices of a source model."""
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))


@pytest.mark.parametrize("base", ["/home/me/model", "../model", "outputs/a/b", ""])
def test_low_rank_matrices_of_a_local_model_are_not_published(folder, base, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    as_low_rank(folder, base)
    if base:
        with raises_usage(fix="lora_merge"):
            check_export(folder)
    else:
        check_export(folder)


def test_low_rank_matrices_of_a_model_on_the_hub_are_published(folder):
    as_low_rank(folder, "google-bert/bert-base-uncased")
    check_export(folder)
    (folder / "adapter_model.safetensors").unlink()
    with raises_usage(option="model_name"):
        check_export(folder)


def test_a_local_folder_that_looks_like_a_hub_id_is_not_one(folder, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "mine").mkdir(parents=True)
    as_low_rank(folder, "models/mine")
    with raises_usage():
        check_export(folder)


def test_checkpoints_are_not_published(folder):
    (folder / "trainer_state.json").write_text("{}")
    with raises_usage("model_name", fix="informin export"):
        check_export(folder)


@pytest.mark.parametrize("name", ["training.json", "modules.json"])
def test_other_folders_are_not_published(folder, name):
    (folder / name).unlink()
    with raises_usage("model_name"):
        check_export(folder)


def test_the_list_of_files_can_be_parsed():
    """The dry run prints `  SIZE  name` lines; no published name contains a space."""
    from informin.publishing.export import MODULE, ROOT

    assert all(re.fullmatch(r"[\w./-]+", name) for name in (*ROOT, *MODULE))
