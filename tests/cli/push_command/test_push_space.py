"""`informin push --space`, with tests/hub_server.py as the Hub."""

import json
from pathlib import Path

import pytest
from huggingface_hub import SpaceCard

from informin.cli import push as push_command
from tests.cli.push_command.helpers import UPLOADED, fails
from tests.publishing.push.push_helpers import REPO, finish, remote, state

pytest.importorskip("gradio")
pytestmark = pytest.mark.usefixtures("logged_in", "logging_as_before")
SPACE = "alice/my-space"
TOP = {"README.md", "app.py", "requirements.txt", "sentences.jsonl", "modeling_informin.py", "informin"}


@pytest.fixture
def mine(tmp_path) -> Path:
    path = tmp_path / "mine.tsv"
    path.write_text("text\tlabel\tcustomer\nhello\ta\tCustomer-1\nbye\tb\tBob\n", encoding="utf-8")
    return path


def files_of(hub) -> dict[str, bytes]:
    return remote(hub, SPACE, kind="space")


def test_model_and_space(hub, folder, mine, capsys):
    """The Space names the model and its base. Other columns of the sentences are not published."""
    hub.add_repo("org/base", {"config.json": b"{}"})
    options = ["--space", "my-space", "--space_sentences", str(mine), "--space_compare", "org/base", "--private"]
    assert push_command.main([str(folder), "m", *options]) == 0
    out = capsys.readouterr().out
    assert f"The model is at {hub.url}/alice/m\n" in out
    assert out.endswith(f"The search page is at {hub.url}/spaces/alice/my-space\n")
    assert remote(hub).keys() == UPLOADED
    files = files_of(hub)
    assert {name.partition("/")[0] for name in files} == TOP
    assert hub.repos["space", SPACE].private and hub.repos["model", REPO].private
    card = SpaceCard(files["README.md"].decode()).data.to_dict()
    assert card["sdk"] == "gradio" and card["models"] == ["alice/m", "org/base"]
    assert 'MODELS = ["alice/m", "org/base"]' in files["app.py"].decode()
    assert [json.loads(line) for line in files["sentences.jsonl"].splitlines()] == [
        {"text": "hello", "label": "a"},
        {"text": "bye", "label": "b"},
    ]
    for content in files.values():
        assert b"Customer-1" not in content and str(mine.parent).encode() not in content and b"hf_alice" not in content


def test_again(hub, folder, mine):
    """The same Space is updated: modules that are gone disappear, and files of its owner stay."""
    command = [str(folder), REPO, "--space", SPACE]
    assert push_command.main(command) == 0
    assert files_of(hub)["sentences.jsonl"].count(b"\n") == 1762
    hub.commit(SPACE, {"informin/old.py": b"old", "picture.png": b"mine"}, kind="space", author="alice")
    assert push_command.main([*command, "--space_sentences", str(mine), "--update_card"]) == 0
    files = files_of(hub)
    assert "informin/old.py" not in files and files["picture.png"] == b"mine"
    assert files["sentences.jsonl"].count(b"\n") == 2


def test_dry_run(hub, folder, capsys, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    assert push_command.main([str(folder), REPO, "--space", SPACE, "--dry_run"]) == 0
    out = capsys.readouterr().out
    assert hub.requests == [] and "Space alice/my-space:\n" in out
    assert {line.split("  ")[-1].partition("/")[0] for line in out.partition("my-space:\n")[2].splitlines()[:-1]} == TOP
    assert out.endswith("Nothing was uploaded to alice/m and alice/my-space.\n")


def test_wrong_options(hub, folder, mine, capsys):
    """Nothing is uploaded, neither the model nor the Space."""
    hub.add_repo("carol/s", {"app.py": b"import gradio"}, kind="space")
    hub.add_repo("alice/other", {"app.py": b"import gradio"}, kind="space", author="alice")
    error = fails(capsys, 2, folder, REPO, "--space_sentences", mine)
    assert "--space_sentences is set without --space. Name the Space with --space." in error
    assert "is not a valid repository name" in fails(capsys, 2, folder, REPO, "--space", "a b")
    assert "is not a valid repository name" in fails(capsys, 2, folder, REPO, "--space", "s", "--space_compare", "<b>")
    assert "does not exist" in fails(capsys, 2, folder, REPO, "--space", SPACE, "--space_sentences", "gone.txt")
    assert "has no write access to carol/s" in fails(capsys, 2, folder, REPO, "--space", "carol/s")
    error = fails(capsys, 2, folder, REPO, "--space", "alice/other")
    assert "alice/other has files that InforMin-CL did not upload (app.py, 1 in total)" in error
    error = fails(capsys, 2, folder, REPO, "--space", SPACE, "--space_compare", "org/gone")
    assert "--space_compare is org/gone, which is not on the Hub" in error
    assert not remote(hub, REPO)
    assert files_of(hub).keys() == {"README.md"}  # which the Hub puts into a new Space


def test_a_space_that_was_edited_by_hand(hub, folder, capsys):
    assert push_command.main([str(folder), REPO, "--space", SPACE]) == 0
    card = files_of(hub)["README.md"].replace(b"Search with m", b"My search")
    hub.commit(SPACE, {"README.md": card}, kind="space", author="alice")
    before = state(hub)
    error = fails(capsys, 2, folder, REPO, "--space", SPACE)
    assert "alice/my-space has a README.md that was edited by hand" in error and state(hub) == before
    assert push_command.main([str(folder), REPO, "--space", SPACE, "--overwrite"]) == 0
    assert b"My search" not in files_of(hub)["README.md"]


@pytest.mark.parametrize("failing", [f"/api/models/{REPO}/commit", f"/api/spaces/{SPACE}/commit"])
def test_failed_upload(hub, folder, mine, capsys, failing):
    """The command in the message finishes the push of both."""
    hub.fail("POST", failing)
    error = fails(capsys, 1, folder, REPO, "--space", SPACE, "--space_sentences", mine)
    assert "failed: the Hub answered 500" in error
    assert finish(error) == 0
    assert remote(hub).keys() == UPLOADED and files_of(hub)["sentences.jsonl"].count(b"\n") == 2
