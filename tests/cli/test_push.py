"""`informin push` and `export`, with tests/support/hub_server.py as the Hub."""

import json
import shlex
import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import HfApi
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer

from informin.cli import run_command, train
from informin.frozen.adapter import LinearAdapter
from informin.model.open import load_model
from informin.publishing.export import published_files
from tests.conftest import make_sentences
from tests.publishing.helpers import save_adapted

REPO = "alice/m"
needs_gradio = pytest.mark.skipif(not find_spec("gradio"), reason="gradio is not installed")  # imported by the page


@pytest.fixture
def folder(model, tmp_path) -> Path:
    """An exported folder: a model with an adapter."""
    loaded = load_model(model, device="cpu")
    vectors = loaded.encode(make_sentences(60))
    save_adapted(loaded, LinearAdapter().fit(vectors), tmp_path / "model")
    return tmp_path / "model"


def words(folder, *others: object) -> list[str]:
    return ["--model_name", str(folder), "--hub_model_id", REPO, *map(str, others)]


def remote(hub) -> dict[str, bytes]:
    """Return the files on the Hub without those that it created itself."""
    return {name: content for name, content in hub.files(REPO).items() if name != ".gitattributes"}


def local(folder: Path) -> dict[str, bytes]:
    return {path.as_posix(): (folder / path).read_bytes() for path in published_files(folder)}


def fails(capsys, code: int, *argv: str) -> str:
    """Run `informin push`, which must fail, and return its message."""
    assert run_command("push", *list(argv)) == code
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith("error: ")
    return error


def test_push(logged_in, folder, capsys):
    """It lists what is uploaded and what is not, and uploads it. Sentences in the report stay here."""
    (folder / "report.html").write_text("sentences")
    (folder / "a\x1b]0;b\n").write_text("a name that a terminal would obey")
    assert run_command("push", *words(folder, "--private")) == 0
    out = capsys.readouterr().out
    assert remote(logged_in) == local(folder) and "report.html" not in remote(logged_in)
    assert "Not uploaded: a\\x1b]0;b\\n, report.html\n" in out and out.endswith(
        f"The model is at {logged_in.url}/{REPO}\n"
    )
    for name, content in local(folder).items():
        if name != "README.md":  # which is pinned after that
            assert f"{len(content):>13,}  {name}\n" in out
    assert run_command("push", *words(folder)) == 0


@needs_gradio
def test_space(logged_in, folder, capsys):
    assert run_command("push", *words(folder, "--space", "page")) == 0
    assert capsys.readouterr().out.endswith(f"The page is at {logged_in.url}/spaces/alice/page\n")
    page = logged_in.files("alice/page", kind="space")
    assert json.loads(page["model.json"])["model"] == REPO and "app.py" in page


@needs_gradio
def test_space_of_low_rank_matrices_on_a_branch(logged_in, folder):
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "alice/source"}')
    logged_in.add_repo(REPO, {}, author="alice")
    HfApi().create_branch(REPO, branch="dev")
    assert run_command("push", *words(folder, "--revision", "dev", "--space", "page")) == 0
    page = logged_in.files("alice/page", kind="space")
    assert json.loads(page["model.json"]) == {"model": REPO, "revision": "dev"}
    assert b"\npeft>=" in page["requirements.txt"]


def own_class(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoModel": "own.OwnBert"}}))


def own_module(folder: Path) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps([*modules[:-1], modules[-1] | {"type": "own.Normalize"}]))


@needs_gradio
@pytest.mark.parametrize(
    ("change", "options"),
    [(None, ["--private"]), (None, ["--create_pr"]), (own_class, []), (own_module, []), (None, [])],
    ids=["private", "pull request", "class of the encoder", "class of a module", "private since an earlier push"],
)
def test_space_that_cannot_load_the_model_is_refused(logged_in, folder, capsys, change, options):
    logged_in.add_repo(REPO, {}, author="alice", private=True)
    if change:
        change(folder)
    message = fails(capsys, 2, *words(folder, "--space", "page", *options))
    assert message.startswith("error: --space is set, but ")
    assert not remote(logged_in) and ("space", "alice/page") not in logged_in.repos


def test_dry_run_sends_and_changes_nothing(logged_in, folder, capsys, monkeypatch):
    """It shows the card and the files, of their sizes."""
    monkeypatch.delenv("HF_TOKEN")
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}
    assert run_command("push", *words(folder, "--dry_run")) == 0
    out = capsys.readouterr().out
    assert logged_in.requests == [] and out.endswith(f"Nothing was uploaded to {REPO}.\n")
    assert f'SentenceTransformer("{REPO}"' in out
    assert f"{(folder / 'model.safetensors').stat().st_size:>13,}  model.safetensors\n" in out
    after = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}
    assert after == before


def test_dry_run_of_a_card_in_another_encoding(folder, capsys):
    """An editor of another language saves it so; the push uploads it unchanged."""
    (folder / "README.md").write_bytes("# Modèle".encode("latin-1"))
    assert run_command("push", *words(folder, "--dry_run")) == 0
    assert capsys.readouterr().out.startswith("# Mod\N{REPLACEMENT CHARACTER}le\n")


@pytest.mark.parametrize(("option", "name"), [("--hub_model_id", "a bad name!"), ("--space", "a/b/c")])
def test_names_that_the_hub_refuses_are_errors_without_it(folder, capsys, option, name):
    """A dry run would otherwise write them into the card."""
    card = (folder / "README.md").read_text()
    assert option in fails(capsys, 2, *words(folder, "--dry_run", option, name))
    assert (folder / "README.md").read_text() == card


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--commit_message", "Release 1", "--private"],
        pytest.param(["--space", "page"], marks=needs_gradio),
    ],
    ids=str,
)
def test_finish_of_a_failed_push(logged_in, folder, capsys, options):
    """The error ends with a command that publishes the same."""
    logged_in.fail("POST", "/commit/main", status=403)
    error = fails(capsys, 1, *words(folder, *options))
    command = shlex.split(error.partition("Finish with: ")[2])
    assert command == ["informin", "push", *words(folder, *options)]
    assert run_command("push", *command[2:]) == 0
    assert remote(logged_in) == local(folder)


def test_files_of_others_are_kept(logged_in, folder, capsys):
    logged_in.add_repo(REPO, {"a.txt": b"mine"}, author="alice")
    assert "--overwrite" in fails(capsys, 2, *words(folder))
    assert remote(logged_in) == {"a.txt": b"mine"}
    assert run_command("push", *words(folder, "--overwrite")) == 0
    assert remote(logged_in).keys() == {*local(folder), "a.txt"}


def test_unusable_folders_are_refused_before_any_request(logged_in, folder, model, capsys, tmp_path):
    assert f"--model_name is {tmp_path / 'gone'}, which is not a folder" in fails(capsys, 2, *words(tmp_path / "gone"))
    assert "--model_name" in fails(capsys, 2, *words(model))  # not of this project
    linked = Path(shutil.copytree(folder, tmp_path / "linked"))
    (linked / "vocab.txt").symlink_to(folder / "config.json")
    assert str(linked / "vocab.txt") in fails(capsys, 2, *words(linked))
    weights = load_file(folder / "model.safetensors")
    next(iter(weights.values()))[0] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert "NaN" in fails(capsys, 2, *words(folder))
    assert logged_in.requests == []


def test_trained_model_is_exported_scored_and_pushed(logged_in, command, tmp_path, capsys):
    """From a checkpoint: export, eval, and push with the results on the card."""
    assert train.main(command()) == 0
    checkpoint, new, scores = tmp_path / "run" / "checkpoint-4", tmp_path / "new", tmp_path / "scores.json"
    assert "informin export" in fails(capsys, 2, *words(checkpoint))
    assert run_command("export", *["--model_name", str(checkpoint), "--output_dir", str(new)]) == 0
    assert capsys.readouterr().out.split() == [path.as_posix() for path in published_files(new)]
    vectors = [SentenceTransformer(str(path), device="cpu").encode(["the old dog"]) for path in (checkpoint, new)]
    np.testing.assert_allclose(*vectors, atol=1e-5)
    pairs = tmp_path / "faq.tsv"
    pairs.write_text(
        "query\tdocument\n" + "".join(f"{a}\t{b}\n" for a, b in zip(make_sentences(9), make_sentences(9, 1)))
    )
    assert run_command("eval", *["--model_name", str(new), "--retrieval", str(pairs), "--output", str(scores)]) == 0
    assert run_command("push", *words(new, "--results", scores)) == 0
    assert json.loads(remote(logged_in)["results/model.json"])["model"] == "this model"
    assert str(tmp_path).encode() not in b"".join(remote(logged_in).values())


def test_results_of_another_model_are_refused(logged_in, folder, capsys, tmp_path):
    (tmp_path / "scores.json").write_text("{}")
    assert "--results" in fails(capsys, 2, *words(folder, "--results", tmp_path / "scores.json"))
    assert logged_in.requests == [] and not (folder / "results").exists()


def test_export_in_half_precision(folder, tmp_path):
    argv = ["--model_name", folder, "--output_dir", tmp_path / "half", "--dtype", "float16"]
    assert run_command("export", *list(map(str, argv))) == 0
    weights = load_file(tmp_path / "half" / "model.safetensors")
    assert {str(weight.dtype) for weight in weights.values()} == {"torch.float16"}
    assert run_command("export", *list(map(str, argv))) == 2, "the folder is in use"


def test_int8_needs_onnx(tmp_path, capsys):
    words = ["--model_name", "m", "--output_dir", str(tmp_path / "new"), "--int8"]
    assert run_command("export", *words) == 2 and "--int8" in capsys.readouterr().err
