"""`informin push` from the command line, with tests/hub_server.py as the Hub."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from huggingface_hub import snapshot_download
from safetensors.torch import load_file, save_file

from informin.cli import push as push_command
from informin.publishing.published import published_files
from tests.cli.push_command.helpers import UPLOADED, fails
from tests.publishing.push.push_helpers import (
    HEAD,
    REPO,
    WEIGHTS,
    finish,
    read_files,
    remote,
    results_of,
    state,
)

pytestmark = pytest.mark.usefixtures("logged_in", "logging_as_before")


def test_push(hub, folder, capsys):
    """It lists what is uploaded and what is not, and uploads it."""
    assert push_command.main([str(folder), "m", "--private"]) == 0
    out = capsys.readouterr().out
    sizes = {name: (folder / name).stat().st_size for name in UPLOADED}
    for name in UPLOADED - {"README.md"}:  # which is pinned after that
        assert f"{sizes[name]:>13,}  {name}\n" in out
    assert (
        f" bytes in {len(UPLOADED)} files\n" in out and "Not uploaded: checkpoint-2, checkpoint-4, report.html" in out
    )
    assert out.endswith(f"The model is at {hub.url}/alice/m\n")
    assert remote(hub) == {name: (folder / name).read_bytes() for name in UPLOADED} and state(hub)[REPO][0]
    assert push_command.main([str(folder), REPO]) == 0


def test_dry_run(hub, folder, capsys, monkeypatch):
    """No request is sent and no token is needed. The card is written, and the list is that of a push."""
    monkeypatch.delenv("HF_TOKEN")
    (folder / "notes.txt").write_text("mine")
    results = results_of(folder, folder.parent / "scores" / "m.json", 12.34)
    assert push_command.main([str(folder), "bob/m", "--results", str(results), "--dry_run"]) == 0
    assert hub.requests == []
    out = capsys.readouterr().out
    assert out.endswith(
        f"{sum((folder / name).stat().st_size for name in UPLOADED | {'results/model.json'}):>13,}"
        f"  bytes in {len(UPLOADED) + 1} files\nNot uploaded: checkpoint-2, checkpoint-4, notes.txt, "
        "report.html, report.json\n"
        "Nothing was uploaded to bob/m.\n"
    )
    listed = [line.split("  ")[-1] for line in out.splitlines()[: len(UPLOADED) + 1]]
    assert listed == [path.as_posix() for path in published_files(folder)]
    assert set(listed) == UPLOADED | {"results/model.json"}
    card = (folder / "README.md").read_text()
    assert 'from_pretrained("bob/m")' in card and "12.34" in card


def test_results_and_update_card(hub, folder, capsys):
    """--results are added to the folder, its card and the Hub. --update_card uploads no weights."""
    results = results_of(folder, folder.parent / "scores" / "m.json", 12.34)
    assert push_command.main([str(folder), REPO, "--results", str(results)]) == 0
    assert json.loads(remote(hub)["results/model.json"])["model"] == "this model"
    results_of(folder, results, 56.78)
    head, sent = hub.commits(REPO)[0].sha, len(hub.requests)
    assert push_command.main([str(folder), REPO, "--update_card", "--results", str(results.parent)]) == 0
    assert f"The card is at {hub.url}/alice/m" in capsys.readouterr().out
    assert not [path for _, path in hub.requests[sent:] if "lfs" in path]
    assert hub.commits(REPO)[0].changed == ["README.md", "results/model.json"]
    card = remote(hub)["README.md"].decode()
    assert "56.78" in card and "12.34" not in card and f'revision="{head}"' in card


def test_wrong_options(hub, folder, capsys, tmp_path, bert):
    """Each gives one line and exit code 2, and nothing is uploaded."""
    assert "gone does not exist; expected a folder that training" in fails(capsys, 2, tmp_path / "gone", REPO)
    assert "is not an InforMin-CL model" in fails(capsys, 2, bert, REPO)
    assert "--seeds is set without --results. Give the results" in fails(capsys, 2, folder, REPO, "--seeds", folder)
    assert f"{REPO} does not exist. Push the model first, without --update_card." in fails(
        capsys, 2, folder, REPO, "--update_card"
    )
    before = read_files(folder)
    for name in ('me/m")\nimport evil\n("', "me/<b>", "a/b/c"):  # it would get into the card's code
        assert "is not a valid repository name" in fails(capsys, 2, folder, name, "--dry_run")
    assert read_files(folder) == before
    with pytest.raises(SystemExit) as caught:
        push_command.main([str(folder), REPO, "--force"])
    assert caught.value.code == 2
    assert not any(remote(hub, name) for _, name in hub.repos)


def test_checkpoint_is_refused_with_the_command_that_exports_it(hub, folder, capsys, tmp_path):
    from informin.cli import export as export_command

    error = fails(capsys, 2, folder / "checkpoint-4", REPO)
    assert f"{folder / 'checkpoint-4'} is a checkpoint, which cannot be published" in error
    *command, checkpoint, new = error.partition("Export it first: ")[2].split()
    assert command == ["python", "-m", "informin", "export"] and new == "NEW_FOLDER" and hub.requests == []
    assert export_command.main([checkpoint, str(tmp_path / "new")]) == 0
    assert push_command.main([str(tmp_path / "new"), REPO]) == 0
    assert remote(hub).keys() == UPLOADED


@pytest.mark.parametrize("how", ["", "--dry_run", "--update_card", "--results"])
@pytest.mark.parametrize(
    ("name", "to"),
    [("vocab.txt", "notes.txt"), ("README.md", "notes.txt"), ("README.md", "new.txt"), ("onnx", ""), ("results", "")],
)
def test_link_is_refused(hub, folder, capsys, tmp_path, name, to, how):
    """It is refused before any request, and before anything is written through it."""
    results = results_of(folder, tmp_path / "scores" / "m.json")
    private = tmp_path / "private"
    private.mkdir()
    (private / "notes.txt").write_text("mine")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(private / to)
    error = fails(capsys, 2, folder, REPO, *[how] * bool(how), *[results] * (how == "--results"))
    assert f"{folder / name} is a link; expected regular files, because a link may lead to private data." in error
    assert error.endswith("Replace each link with a copy of its target, or remove it.")
    assert hub.requests == [] and read_files(private) == {"notes.txt": b"mine"} and (folder / name).is_symlink()


def test_a_snapshot_in_the_hubs_cache_must_be_copied_first(hub, folder, capsys, tmp_path):
    """In the cache every file is a link. The command in the message creates a folder that can be pushed."""
    assert push_command.main([str(folder), REPO]) == 0
    snapshot = Path(snapshot_download(REPO))
    error = fails(capsys, 2, snapshot, "other")
    assert f"is a link (so are {len(UPLOADED) - 1} others); expected" in error
    command = error.partition("with the targets of its links: ")[2].replace("NEW_FOLDER", str(tmp_path / "new"))
    subprocess.run(command, shell=True, check=True)
    assert push_command.main([str(tmp_path / "new"), "other"]) == 0
    weights = {name: content for name, content in remote(hub, "alice/other").items() if name != "README.md"}
    assert weights == {name: (folder / name).read_bytes() for name in UPLOADED - {"README.md"}}


@pytest.mark.parametrize(("file", "value"), [(WEIGHTS, float("nan")), (HEAD, float("inf"))])
def test_broken_weights_are_refused(hub, folder, capsys, file, value):
    weights = load_file(folder / file)
    name = max(weights)
    weights[name][3] = value
    save_file(weights, folder / file, metadata={"format": "pt"})
    error = fails(capsys, 2, folder, REPO)
    assert f"NaN or infinity in 1 weight, such as {name}" in error and hub.requests == []
    (folder / file).write_bytes(b"cut off")
    assert f"{folder} cannot be read: " in fails(capsys, 2, folder, REPO) and hub.requests == []


def test_results_of_another_model_are_refused(hub, folder, trained, capsys, tmp_path):
    other = Path(shutil.copytree(trained, tmp_path / "other"))
    weights = load_file(other / WEIGHTS)
    save_file({name: 2 * tensor for name, tensor in weights.items()}, other / WEIGHTS, metadata={"format": "pt"})
    results = results_of(other, tmp_path / "scores" / "other.json")
    error = fails(capsys, 2, folder, REPO, "--results", results)
    assert (
        f"{results} has results of another model (this model); expected the weights of {folder}, of its source" in error
    )
    assert hub.requests == [] and not (folder / "results").exists()


def test_failed_push_exits_with_1(hub, folder, capsys):
    hub.fail("POST", "/commit/main", status=403)
    error = fails(capsys, 1, folder, REPO)
    assert f"The push to alice/m failed: the token has no write access to {REPO} (403: " in error
    assert finish(error) == 0
    assert remote(hub) == {name: (folder / name).read_bytes() for name in UPLOADED}


def test_refused_push_exits_with_2(hub, folder, capsys, monkeypatch):
    hub.add_repo(REPO, {"a.txt": b"mine"}, author="alice")
    assert "has files that InforMin-CL did not upload" in fails(capsys, 2, folder, REPO)
    assert push_command.main([str(folder), REPO, "--overwrite"]) == 0
    assert remote(hub).keys() == UPLOADED | {"a.txt"}
    monkeypatch.setenv("HF_TOKEN", "hf_gone")
    assert "the token is unknown to the Hub" in fails(capsys, 2, folder, REPO)
