"""What a push uploads: weights, cards and results."""

import hashlib

import pytest
from huggingface_hub import snapshot_download

from informin.cli import push as push_command
from informin.errors import PushError
from informin.publishing.hub import prepare, push_card, push_folder
from tests.conftest import raises_usage
from tests.publishing.push.push_helpers import (
    ATTRIBUTES,
    HEAD,
    LOST,
    PUBLISHED,
    REPO,
    WEIGHTS,
    equal_weights,
    export,
    finish,
    load,
    read_files,
    remote,
    results_of,
    state,
)

pytestmark = pytest.mark.usefixtures("logged_in", "logging_as_before")


def test_what_is_uploaded(hub, folder):
    """All published files in one commit, then the card, which pins that commit."""
    (folder / "onnx" / "model.onnx").write_bytes(b"onnx")
    results_of(folder, folder / "results" / "model.json")
    results_of(folder, folder / "results" / "other_seeds" / "seed2.json")
    expected = PUBLISHED | {"onnx/model.onnx", "results/model.json", "results/other_seeds/seed2.json"}
    before = read_files(folder)
    assert push_folder(folder, prepare(REPO, private=True), "My model") == f"{hub.url}/alice/m"
    after = read_files(folder)
    assert remote(hub) == {name: after[name] for name in expected}
    assert {name for name in after if after[name] != before.get(name)} == {"README.md"}

    last, first, made = hub.commits(REPO)
    assert (first.title, set(first.changed)) == ("My model", expected)
    assert (last.title, last.changed) == ("Model card: pin the commit that holds the weights", ["README.md"])
    assert made.changed == [".gitattributes"] and {last.author, first.author} == {"alice"}
    card = after["README.md"].decode()
    assert card.count(f'"alice/m", revision="{first.sha}"') >= 3 and "path/to/this/folder" not in card
    assert 'from_pretrained("alice/m")' in first.files["README.md"].content.decode()


def test_the_pinned_commit_can_be_loaded(hub, folder):
    push_folder(folder, prepare(REPO))
    pinned = remote(hub)["README.md"].decode().partition('revision="')[2][:40]
    hub.commit(REPO, {WEIGHTS: None, HEAD: None})  # what is on main since does not matter
    weights = load(folder)
    assert "mlp.dense.weight" in weights and equal_weights(weights, load(REPO, revision=pinned))
    assert equal_weights(weights, load(snapshot_download(REPO, revision=pinned)))


@pytest.mark.parametrize("push", [push_folder, push_card])
def test_folders_that_are_not_exports_are_not_uploaded(hub, folder, push):
    """They are refused before anything is written locally or on the Hub."""
    to = prepare(REPO)
    (folder / "modules.json").unlink()
    before, card = state(hub), (folder / "README.md").read_text()
    with raises_usage(
        found="is a checkpoint, which cannot be published: it has no modules.json", fix="Export it first"
    ):
        push(folder, to)
    assert state(hub) == before and (folder / "README.md").read_text() == card


def test_pushing_again(hub, folder, bert):
    """Unchanged weights are not uploaded. After more training, the card pins the new weights only."""
    (folder / "onnx" / "model.onnx").write_bytes(b"onnx")
    results_of(folder, folder / "results" / "model.json")
    push_folder(folder, prepare(REPO))
    first, sent = hub.commits(REPO)[1], len(hub.requests)
    push_folder(folder, prepare(REPO))
    assert not [path for method, path in hub.requests[sent:] if method == "PUT"]
    weights = remote(hub)[WEIGHTS]
    pinned = remote(hub)["README.md"].decode().partition('revision="')[2][:40]
    assert pinned != first.sha and hub.files(REPO, revision=pinned)[WEIGHTS] == weights

    again = export(bert, folder.parent / "again", seed=2)
    push_folder(again, prepare(REPO))
    pinned = remote(hub)["README.md"].decode().partition('revision="')[2][:40]
    assert hub.files(REPO, revision=pinned)[WEIGHTS] == (again / WEIGHTS).read_bytes() != weights
    assert remote(hub).keys() == PUBLISHED  # scores and ONNX of other weights would be wrong


def test_a_card_edited_locally_is_uploaded(hub, folder, caplog):
    """It is uploaded unchanged in one commit, with the weights or alone."""
    caplog.set_level("INFO", logger="informin")
    card = folder / "README.md"
    edited = card.read_bytes() + "\nMïne.\n".encode()
    card.write_bytes(edited)
    push_folder(folder, prepare(REPO))
    assert card.read_bytes() == edited == remote(hub)["README.md"] and len(hub.commits(REPO)) == 2
    assert f"{card} was edited by hand and is uploaded unchanged." in caplog.text
    card.write_bytes(edited + b"More.\n")
    push_card(folder, prepare(REPO, folder=folder))
    assert card.read_bytes() == edited + b"More.\n" == remote(hub)["README.md"] and len(hub.commits(REPO)) == 3


def test_card_with_metadata_that_the_hub_refuses(hub, folder):
    (folder / "README.md").write_text("---\nlicense: 3\n---\nMine.\n")
    with pytest.raises(PushError, match=r'failed: the Hub answered 400: "license" must be a string\. Fix') as caught:
        push_folder(folder, prepare(REPO))
    assert len(hub.commits(REPO)) == 1
    (folder / "README.md").unlink()
    assert finish(caught.value) == 0


def test_pushing_only_the_card_and_results(hub, folder):
    """No weights are uploaded, and the card pins a commit that has them."""
    push_folder(folder, prepare(REPO))
    head, sent = hub.commits(REPO)[0].sha, len(hub.requests)
    results_of(folder, folder / "results" / "model.json", score=12.34)
    assert push_card(folder, prepare(REPO, folder=folder)) == f"{hub.url}/alice/m"
    assert not [path for _, path in hub.requests[sent:] if "lfs" in path]
    last, before = hub.commits(REPO)[:2]
    assert (last.title, last.changed) == ("Update model card and results", ["README.md", "results/model.json"])
    assert before.sha == head and last.files[WEIGHTS] is before.files[WEIGHTS]
    card = remote(hub)["README.md"].decode()
    assert "12.34" in card and f'"alice/m", revision="{head}"' in card and card == (folder / "README.md").read_text()


@pytest.mark.parametrize("held", ["nothing", "a model without weights", "other weights"])
def test_a_card_of_other_weights_is_refused(hub, folder, bert, tmp_path, held):
    """The error names the command that uploads the weights."""
    if held == "other weights":
        push_folder(export(bert, tmp_path / "other", seed=1), prepare(REPO))
    else:
        files = {"config.json": (folder / "config.json").read_bytes()} if held != "nothing" else {}
        hub.add_repo(REPO, ATTRIBUTES | files, author="alice")
    to, before = prepare(REPO), state(hub)
    with raises_usage(found=f"alice/m does not have the weights of {folder}", fix="first, without `update_card`."):
        push_card(folder, to)
    assert state(hub) == before
    assert push_command.main([str(folder), REPO]) == 0
    assert remote(hub)[WEIGHTS] == (folder / WEIGHTS).read_bytes()
    push_card(folder, to)


@pytest.mark.parametrize(
    ("method", "pattern", "what", "message"),
    [
        ("POST", "/commit/main", dict(status=500), "the Hub answered 500: Internal Server Error."),
        ("POST", "/commit/main", dict(status=403), "the token has no write access to alice/m (403: Forbidden)."),
        ("GET", r"/m\?blobs=", dict(cut=True), LOST),
    ],
)
def test_failure_while_pushing_only_the_card(hub, folder, method, pattern, what, message):
    to = prepare(REPO)
    push_folder(folder, to)
    head, files = hub.commits(REPO)[0].sha, remote(hub)
    results_of(folder, folder / "results" / "model.json")
    hub.fail(method, pattern, **what)
    with pytest.raises(PushError) as caught:
        push_card(folder, to)
    assert str(caught.value).startswith(f"The push to alice/m failed: {message}")
    assert caught.value.finish["update_card"] is True and remote(hub) == files
    assert finish(caught.value) == 0
    assert hub.commits(REPO)[0].changed == ["README.md", "results/model.json"] and hub.commits(REPO)[1].sha == head
    assert hashlib.sha256(remote(hub)[WEIGHTS]).digest() == hashlib.sha256((folder / WEIGHTS).read_bytes()).digest()
