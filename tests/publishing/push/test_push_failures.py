"""A push that fails halfway can be finished, and leaks no token."""

import hashlib

import pytest
from huggingface_hub import HfApi

from informin import program
from informin.errors import PushError
from informin.publishing.hub import prepare, push_folder
from tests.publishing.push.push_helpers import (
    ATTRIBUTES,
    FOREIGN,
    LOST,
    PUBLISHED,
    REPO,
    WEIGHTS,
    finish,
    load,
    read_files,
    remote,
)

pytestmark = pytest.mark.usefixtures("logged_in", "logging_as_before")


@pytest.mark.parametrize(
    ("method", "pattern", "what", "times", "message"),
    [
        ("POST", "/preupload/", dict(status=503), 6, "the Hub answered 503: Service Unavailable."),
        ("POST", "/preupload/", dict(status=404), 1, "the Hub answered 404: Not Found."),
        ("POST", "/objects/batch", dict(status=500), 6, "the Hub answered 500: Internal Server Error."),
        ("PUT", "/lfs-upload/.*/WEIGHTS", dict(status=500), 6, "the Hub answered 500: Internal Server Error."),
        ("PUT", "/lfs-upload/.*/WEIGHTS", dict(cut=True), 6, LOST),
        (
            "POST",
            "/commit/main",
            dict(status=401),
            1,
            "the token is unknown to the Hub or has expired (401). Create",
        ),
        (
            "POST",
            "/commit/main",
            dict(status=403),
            1,
            "the token has no write access to alice/m (403: Forbidden). Create",
        ),
        ("POST", "/commit/main", dict(status=500), 1, "the Hub answered 500: Internal Server Error."),
        ("POST", "/commit/main", dict(cut=True), 1, LOST),
    ],
)
def test_failure_during_the_upload(hub, folder, capsys, method, pattern, what, times, message):
    """No partial state is left, no local file is lost, and the command in the error finishes the push."""
    to, before = prepare(REPO), read_files(folder)
    sha256 = hashlib.sha256(before[WEIGHTS]).hexdigest()
    hub.fail(method, pattern.replace("WEIGHTS", sha256), times=times, **what)
    with pytest.raises(PushError) as caught:
        push_folder(folder, to)
    error = str(caught.value)
    assert error.startswith(f"The push to alice/m failed: {message}") and "\n" not in error
    assert error.endswith(f" The model is saved in {folder}.")
    assert caught.value.finish == {"folder": str(folder), "repo": "alice/m"}
    assert not hub.failures and remote(hub) == {} and len(hub.commits(REPO)) == 1
    after = read_files(folder)
    assert {name for name in before if after[name] != before[name]} <= {"README.md"} and after.keys() == before.keys()
    assert "mlp.dense.weight" in load(folder)
    assert finish(caught.value) == 0
    assert f"The model is at {hub.url}/alice/m" in capsys.readouterr().out
    assert remote(hub) == {name: (folder / name).read_bytes() for name in PUBLISHED}
    assert f'revision="{hub.commits(REPO)[1].sha}"' in (folder / "README.md").read_text()


def test_local_failures(hub, folder, monkeypatch):
    """The message does not mention the connection."""
    to = prepare(REPO)
    with monkeypatch.context() as patched, pytest.raises(PushError) as caught:
        patched.setattr(HfApi, "upload_folder", lambda *_, **__: open(folder / "gone"))
        push_folder(folder, to)
    assert "No such file or directory" in str(caught.value) and LOST not in str(caught.value)
    assert finish(caught.value) == 0


def test_failure_between_the_two_commits(hub, folder, monkeypatch):
    """The weights are uploaded, but the card pins no commit yet."""
    to, next_failure, commits = prepare(REPO), hub.next_failure, []

    def second_commit(method, path):
        if "/commit/" in path:
            commits.append(path)
        return (500, False) if "/commit/" in path and len(commits) == 2 else next_failure(method, path)

    monkeypatch.setattr(hub, "next_failure", second_commit)
    with pytest.raises(PushError, match="the Hub answered 500") as caught:
        push_folder(folder, to)
    assert remote(hub).keys() == PUBLISHED and 'from_pretrained("alice/m")' in remote(hub)["README.md"].decode()
    weights = hub.commits(REPO)[0].sha
    assert finish(caught.value) == 0
    assert remote(hub) == {name: (folder / name).read_bytes() for name in PUBLISHED}
    assert f'revision="{weights}"' in (folder / "README.md").read_text() and len(hub.commits(REPO)) == 3


def test_a_given_token_is_not_printed(hub, folder):
    """The printed command asks for the token instead of containing it."""
    hub.add_user("bob", token="hf_bob")
    to = prepare("m", token="hf_bob")
    hub.fail("POST", "/commit/main")
    with pytest.raises(PushError) as caught:
        push_folder(folder, to)
    assert str(caught.value).endswith(f"is saved in {folder}. Set HF_TOKEN to the same token.")
    assert "hf_bob" not in f"{caught.value!r} {caught.value.finish} {program.finishing_command(caught.value)}"


def test_the_finishing_command_keeps_overwrite_and_branch(hub, folder):
    """It repeats the options for foreign files and the branch."""
    hub.add_repo(REPO, ATTRIBUTES | FOREIGN)
    HfApi().create_branch(REPO, branch="v2")
    to = prepare(REPO, branch="v2", overwrite=True)
    hub.fail("POST", "/commit/v2")
    with pytest.raises(PushError) as caught:
        push_folder(folder, to)
    own = {"folder": str(folder), "repo": REPO}
    assert caught.value.finish == own | {"branch": "v2", "overwrite": True}
    assert finish(caught.value) == 0
    assert PUBLISHED <= remote(hub, revision="v2").keys() and remote(hub) == FOREIGN
