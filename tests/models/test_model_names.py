"""Names of models that do not exist, and errors of the Hub."""

import shutil
from pathlib import Path

import pytest

from informin.errors import UsageError
from informin.models.checkpoint import Checkpoint
from informin.models.native_loading import load_config
from informin.models.open_model import load_model
from tests.conftest import raises_usage

pytestmark = pytest.mark.usefixtures("small_senteval")


@pytest.fixture
def folder_with_models(bert, tmp_path, monkeypatch) -> Path:
    """A working folder with the model outputs/run and folders that are not models."""
    shutil.copytree(bert, tmp_path / "work" / "outputs" / "run")
    for name in ("rum", "1_Pooling"):
        (tmp_path / "work" / "outputs" / name).mkdir()
    (tmp_path / "work" / "outputs" / "1_Pooling" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


OFFLINE = "there is no such folder, and it is not in the local cache of the Hub, and HF_HUB_OFFLINE is set"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("outputs/rnu", f" cannot be loaded: {OFFLINE}. Did you mean outputs/run?"),
        ("run", f" cannot be loaded: {OFFLINE}. Did you mean outputs/run?"),
        ("output/run", f" cannot be loaded: {OFFLINE}. Did you mean outputs/run?"),
        ("bert", f" cannot be loaded: {OFFLINE}."),
        ("a b", " cannot be loaded: there is no such folder, and it is not a valid name on the Hub."),
        ("", " cannot be loaded: there is no such folder, and it is not a valid name on the Hub."),
        ("./outputs/ru", ": there is no such folder. Did you mean outputs/run?"),
        ("~/outputs/rnu", ": there is no such folder. Did you mean HOME/outputs/run?"),
        ("outputs/run/checkpoint-9", ": there is no such folder."),
        ("x" * 300, " cannot be loaded: there is no such folder, and it is not a valid name on the Hub."),
        ("outputs", " cannot be loaded: the folder has no config.json. Did you mean outputs/run?"),
        ("outputs/rum", " cannot be loaded: the folder has no config.json. Did you mean outputs/run?"),
        ("outputs/run/model.safetensors", " is a file; expected its folder. Use `model_name` outputs/run"),
    ],
)
def test_names_of_missing_models(folder_with_models, monkeypatch, name, message):
    monkeypatch.setenv("HOME", str(folder_with_models))
    expected = f"`model_name` {name}{message}".replace("HOME", str(folder_with_models))
    for load in (lambda name: load_config(Checkpoint(name)), lambda name: load_model(name, ("cls",))):
        with pytest.raises(UsageError) as caught:
            load(name)
        assert str(caught.value) == expected


@pytest.mark.parametrize(
    ("name", "revision", "problem"),
    [
        ("alice/none", None, "the Hub has no such repository, or it is private (`hf auth login`)"),
        ("alice/bare", None, "its repository on the Hub has no config.json"),
        ("alice/bert", "v9", "its repository on the Hub has no revision v9"),
        ("alice/none", "unreachable", "the Hub (http://127.0.0.1:1) cannot be reached"),
    ],
)
def test_hub_errors_are_explained(folder_with_models, logged_in, bert, monkeypatch, name, revision, problem):
    logged_in.add_repo("alice/bare", {"notes.txt": b""})
    logged_in.add_repo("alice/bert", {path.name: path.read_bytes() for path in bert.iterdir()})
    assert load_config(Checkpoint("alice/bert")).model_type == "bert"
    if revision == "unreachable":
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:1")
        where = "http://127.0.0.1:1/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", where)
    with raises_usage(option="model_name", found=f"{name} cannot be loaded: there is no such folder, and {problem}"):
        load_config(Checkpoint(name, revision))
