"""Files in a model's folder cannot make a command read files outside of it."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import run_unsup
from informin.cli import export as export_command
from informin.errors import UsageError
from informin.files import damage, leads_outside, write_manifest
from informin.models.checkpoint import Checkpoint
from informin.models.native_loading import load_saved, load_tokenizer, load_trainable
from informin.models.open_model import in_memory, load_model
from informin.publishing.export import export_folder
from modeling_informin import HEAD_FILE
from tests.conftest import raises_usage, tokenizer_of

SETTINGS = {"projection_head": "mlp", "lm_head": False, "pooling": "cls"}
INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def exported(bert, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "model"
    export_folder(in_memory(load_trainable(Checkpoint(bert), dict(SETTINGS)), tokenizer_of(bert)), folder)
    return folder


@pytest.fixture
def model(exported, tmp_path) -> Path:
    return shutil.copytree(exported, tmp_path / "model")


def change(folder: Path, name: str, **values) -> None:
    path = folder / name
    path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | values))


def shard(folder: Path, name: str, index: str = INDEX) -> None:
    """Move half of the weights to another file, under the name in the index."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    half = names[: len(names) // 2]
    (folder / name).parent.mkdir(exist_ok=True)
    save_file({key: weights[key] for key in half}, folder / name, {"format": "pt"})
    save_file({key: weights[key] for key in names if key not in half}, folder / "rest.safetensors", {"format": "pt"})
    shards = {key: str(name) if key in half else "rest.safetensors" for key in names}
    (folder / index).write_text(json.dumps({"metadata": {}, "weight_map": shards}))


def refused(folder: Path) -> str:
    """Return the error that every loader raises for the folder."""
    said = set()
    for load in (load_model, lambda name: load_trainable(Checkpoint(name), dict(SETTINGS, pooling="auto"))):
        with pytest.raises(UsageError) as caught:
            load(str(folder))
        said.add(str(caught.value))
    (line,) = said
    assert "\n" not in line
    return line


@pytest.mark.parametrize("where", ["../elsewhere", "ABSOLUTE", "1_Pooling/../../elsewhere", "..\\elsewhere", "link"])
def test_module_outside_of_the_folder_is_refused(model, where):
    """Its config.json would define the pooling."""
    elsewhere = shutil.copytree(model / "1_Pooling", model.parent / "elsewhere")
    (model / "link").symlink_to(elsewhere)
    path = str(elsewhere) if where == "ABSOLUTE" else where
    modules = json.loads((model / "modules.json").read_text())
    modules[1]["path"] = path
    (model / "modules.json").write_text(json.dumps(modules))
    change(model, "config.json", informin=None)
    assert refused(model) == (
        f"`model_name` {model}: modules.json names {path!r}, which is outside of the folder; expected a file inside. "
        "Copy the model again from its source."
    )


@pytest.mark.parametrize("where", ["../half.safetensors", "ABSOLUTE", "link/half.safetensors", "link.safetensors"])
def test_shard_outside_of_the_folder_is_refused(model, where):
    outside = model.parent / "half.safetensors"
    shard(model, str(outside) if where == "ABSOLUTE" else "../half.safetensors")
    (model / "link").symlink_to(model.parent)
    path = str(outside) if where == "ABSOLUTE" else where
    index = model / INDEX
    index.write_text(index.read_text().replace(json.dumps(str(outside)), json.dumps("../half.safetensors")))
    index.write_text(index.read_text().replace("../half.safetensors", path))
    if where == "link.safetensors":
        (model / where).symlink_to(outside)
        message = f"{where} is a link to a file outside of the folder"
    else:
        message = f"{INDEX} names {path!r}, which is outside of the folder; expected a file inside. Copy the model"
    assert message in refused(model)


def test_weights_outside_of_the_folder_are_refused(model):
    shutil.move(model / "model.safetensors", model.parent / "outside.safetensors")
    (model / "inner").symlink_to(model.parent)  # which transformers does not look at
    change(model, "config.json", transformers_weights="inner/outside.safetensors")
    assert "config.json names 'inner/outside.safetensors', which is outside of the folder" in refused(model)
    shutil.move(model.parent / "outside.safetensors", model / "named.safetensors")
    change(model, "config.json", transformers_weights="named.safetensors")
    load_saved(Checkpoint(model))
    shard_index = "named.safetensors.index.json"
    shutil.move(model / "named.safetensors", model / "model.safetensors")
    shard(model, "../half.safetensors", shard_index)
    change(model, "config.json", transformers_weights=shard_index)
    assert f"{shard_index} names '../half.safetensors'" in refused(model)


def test_tokenizer_outside_of_the_folder_is_refused(model):
    shutil.move(model / "tokenizer.json", model.parent / "tokenizer.5.0.0.json")
    change(model, "tokenizer_config.json", fast_tokenizer_files=["../tokenizer.5.0.0.json"])
    with raises_usage(option="model_name", found="tokenizer_config.json names '../tokenizer.5.0.0.json', which"):
        load_tokenizer(Checkpoint(model))


@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "tokenizer.json", "modules.json", "1_Pooling/config.json", HEAD_FILE]
)
def test_link_to_a_file_outside_is_refused(model, name):
    shutil.move(model / name, model.parent / "private")
    (model / name).symlink_to(model.parent / "private")
    if name == "1_Pooling/config.json":
        change(model, "config.json", informin=None)
    assert f": {name} is a link to a file outside of the folder; expected a file inside. Replace the" in refused(model)


def test_linked_folder_outside_is_refused(model):
    shutil.move(model / "projection_head", model.parent / "head")
    (model / "projection_head").symlink_to(model.parent / "head")
    assert f"{HEAD_FILE} is a link to a file outside of the folder" in refused(model)


def test_commands_print_one_line(model, command, tmp_path, capsys):
    shard(model, "../half.safetensors")
    for main, argv in (
        (run_unsup.main, command(model_name=model)),
        (export_command.main, [str(model), str(tmp_path / "export")]),
    ):
        assert main(argv) == 2
        err = capsys.readouterr().err
        assert err.count("error: ") == 1 and f"{INDEX} names '../half.safetensors'" in err
    assert not (tmp_path / "export").exists() and not list((tmp_path / "run").glob("[!.]*"))


def test_links_and_paths_inside_are_accepted(model, tmp_path):
    """Shards, links within the folder, a linked folder, and unused links to other folders."""
    expected = load_model(str(model))(["the dog"])["cls"]
    shard(model, "parts/half.safetensors")
    shutil.move(model / "tokenizer.json", model / "parts" / "tokenizer.json")
    (model / "tokenizer.json").symlink_to("parts/tokenizer.json")
    (model / "notes.md").symlink_to(tmp_path / "notes.md")
    (model / "data").symlink_to(tmp_path)
    (tmp_path / "link").symlink_to(model)
    for folder in (model, tmp_path / "link"):
        assert np.allclose(load_model(str(folder))(["the dog"])["cls"], expected, atol=1e-6)


def test_snapshot_in_the_hub_cache_is_accepted(model, tmp_path):
    """All files are links to blobs of the same repository."""
    expected = load_model(str(model))(["the dog"])["cls"]
    snapshot = tmp_path / "models--alice--bert" / "snapshots" / "abc"
    blobs = tmp_path / "models--alice--bert" / "blobs"
    blobs.mkdir(parents=True)
    for i, path in enumerate(sorted(path for path in model.rglob("*") if path.is_file())):
        shutil.copy(path, blobs / str(i))
        link = snapshot / path.relative_to(model)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blobs / str(i), link.parent))
    assert (load_model(str(snapshot))(["the dog"])["cls"] == expected).all()
    (snapshot / "config.json").unlink()
    (snapshot / "config.json").symlink_to(model / "config.json")
    assert "config.json is a link to a file outside of the folder" in refused(snapshot)
    shutil.move(blobs, tmp_path / "moved")  # a folder of blobs that is a link says nothing
    blobs.symlink_to(tmp_path)
    assert leads_outside(snapshot, "tokenizer.json")


def test_model_from_the_hub_is_checked(logged_in, model):
    """Its files are links in the cache. An index with a file outside is refused before the file is opened."""
    logged_in.add_repo(
        "alice/bert", {str(p.relative_to(model)): p.read_bytes() for p in model.rglob("*") if p.is_file()}
    )
    expected = load_model(str(model))(["the dog"])["cls"]
    assert (load_model("alice/bert")(["the dog"])["cls"] == expected).all()
    shard(model, "../half.safetensors")
    logged_in.add_repo("alice/sharded", {p.name: p.read_bytes() for p in model.iterdir() if p.is_file()})
    found = f"alice/sharded: {INDEX} names '../half.safetensors', which is outside of the folder"
    with raises_usage(option="model_name", found=found):
        load_model("alice/sharded")


@pytest.mark.parametrize("value", [3, None, ["x"], "/etc/passwd", "C:\\x", "..", "a/../b", "a\0b"])
def test_names_outside_of_the_folder(tmp_path, value):
    assert leads_outside(tmp_path, value)


def test_manifest_with_a_file_outside_is_refused(model):
    write_manifest(model)
    assert damage(model) is None
    listed = json.loads((model / "manifest.json").read_text())["files"]
    (model.parent / "private").write_text("mine")
    change(model, "manifest.json", files=listed | {"../private": {"size": 4, "sha256": "0"}})
    assert damage(model) == "its manifest.json lists '../private', which is outside of the folder"


def test_pickled_weights_run_no_code(model, tmp_path):
    """A file with another name that PyTorch can load, and a pickle named model.safetensors."""

    class Evil:
        def __reduce__(self):
            return Path.touch, (tmp_path / "was-run",)

    (model / "model.safetensors").unlink()
    for name in ("pytorch_model.bin", "model.safetensors"):
        torch.save({"embeddings": Evil()}, model / name)
        assert "cannot be loaded: " in refused(model)
        (model / name).unlink()
    assert not (tmp_path / "was-run").exists()
    torch.load(_saved(tmp_path / "pickle", Evil()), weights_only=False)  # so that this test can fail
    assert (tmp_path / "was-run").exists()


def _saved(path: Path, value: object) -> Path:
    torch.save(value, path)
    return path
