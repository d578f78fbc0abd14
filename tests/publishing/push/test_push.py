"""Pushing an exported folder: permissions, repositories, branches, and a Hub that fails."""

from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import HfApi

from informin.cli import push as push_command
from informin.errors import UsageError
from informin.publishing.hub import prepare, push_card, push_folder, push_in_background
from tests.conftest import raises_usage
from tests.hub_server import HubServer
from tests.publishing.push.push_helpers import (
    ATTRIBUTES,
    FOREIGN,
    LOST,
    PUBLISHED,
    REPO,
    read_files,
    remote,
    results_of,
    state,
)

pytestmark = pytest.mark.usefixtures("logged_in", "logging_as_before")


def test_a_checkpoint_that_cannot_be_exported_is_reported_once(hub, folder, caplog):
    """Nothing is uploaded."""
    to = prepare(REPO)
    before = len(hub.requests)
    push_in_background(str(folder / "checkpoint-4"), to, "Training in progress", None).result()
    assert caplog.text.count("The push of checkpoint-4 failed: ") == 1 and len(hub.requests) == before


@pytest.mark.parametrize(
    ("user", "repo", "message"),
    [
        (None, "bob/new", "No Hub token was found. Create a token with write access"),
        (dict(token="hf_gone"), "bob/new", "the token is unknown to the Hub or has expired (401). Create a token with"),
        (dict(role="read"), "bob/new", "The token of bob is read-only. Create a token with write"),
        (dict(role="fineGrained", scopes=["bob/other"]), "bob/new", "the token has no write access to bob/new (403: "),
        (dict(role="fineGrained", scopes=["bob/other"]), "bob/old", "the token has no write access to bob/old (403: "),
        (dict(), "carol/new", "the token has no write access to carol/new (403: You don't have the rights to"),
        (dict(), "carol/old", "the token has no write access to carol/old (403: Authorization error). Create"),
        (dict(), "carol/secret", "the token has no write access to carol/secret (403: "),
        (dict(orgs={"group": "read"}), "group/new", "In an organization, you also need a role with write access."),
        (dict(orgs={"group": "read"}), "group/old", "In an organization, you also need a role with write access."),
        (dict(orgs={"group": "contributor"}), "group/old", "the token has no write access to group/old (403: "),
    ],
)
def test_who_may_not_push(hub, monkeypatch, user, repo, message):
    """The error is one line that says what to do. No repository or commit is created."""
    for name in ("bob/old", "carol/old", "carol/secret", "group/old"):
        hub.add_repo(name, ATTRIBUTES, private=name == "carol/secret")
    before = state(hub)
    monkeypatch.delenv("HF_TOKEN")
    if user is not None:
        hub.add_user("bob", **user | {"token": "hf_bob"})
        monkeypatch.setenv("HF_TOKEN", user.get("token", "hf_bob"))
    with pytest.raises(UsageError) as caught:
        prepare(repo)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert state(hub) == before
    assert (not hub.requests) == (user is None)


@pytest.mark.parametrize(
    ("user", "repo", "expected"),
    [
        (dict(), "new", "bob/new"),
        (dict(), "bob/new", "bob/new"),
        (dict(), "bob/empty", "bob/empty"),
        (dict(role="fineGrained", scopes=["bob"]), "new", "bob/new"),
        (dict(role="fineGrained", scopes=["group/empty"], orgs={"group": "write"}), "group/empty", "group/empty"),
        (dict(orgs={"group": "write"}), "group/new", "group/new"),
        (dict(orgs={"group": "admin"}), "group/empty", "group/empty"),
    ],
)
def test_who_may_push(hub, folder, user, repo, expected):
    """`prepare` creates the repository if needed. Whatever it accepts can be pushed twice."""
    for name in ("bob/empty", "group/empty"):
        hub.add_repo(name, ATTRIBUTES, author="bob")
    hub.add_user("bob", token="hf_bob", **user)
    for _ in range(2):
        to = prepare(repo, token="hf_bob")
        assert (to.repo, to.branch) == (expected, None) and ("model", expected) in hub.repos
        assert push_folder(folder, to) == f"{hub.url}/{expected}"
    assert hub.commits(expected)[0].author == "bob" and remote(hub, expected).keys() == PUBLISHED


def test_token_of_a_browser_login(hub, monkeypatch):
    """whoami does not report the permissions of a token from a browser login."""
    whoami = HfApi.whoami
    monkeypatch.setattr(HfApi, "whoami", lambda api: whoami(api) | {"auth": {"type": "oauth"}})
    assert prepare("m").repo == REPO


def test_a_given_token_is_used(hub, monkeypatch):
    hub.add_user("bob", token="hf_bob")
    assert prepare("m", token="hf_bob").repo == "bob/m"
    monkeypatch.delenv("HF_TOKEN")
    Path(huggingface_hub.constants.HF_TOKEN_PATH).write_text("hf_alice")  # as `hf auth login` leaves it
    assert prepare("m").repo == REPO


@pytest.mark.parametrize("name", ["a b", "a--b", "-m", "m.", "x" * 97, "alice/m/x", "https://huggingface.co/m", ""])
def test_invalid_repository_names(hub, name):
    with raises_usage(found=f"{name!r} is not a valid repository name: ", fix="USER/NAME"):
        prepare(name)
    assert not hub.requests


def test_names_that_only_the_hub_refuses(hub):
    with raises_usage(found="Cannot push to m.ipynb: the Hub answered 400: ") as caught:
        prepare("m.ipynb")
    assert "The name cannot end with" in caught.value.found and "\n" not in str(caught.value) and not hub.repos


def test_private(hub, caplog):
    """A new repository is private if requested. An existing public one is refused."""
    caplog.set_level("INFO", logger="informin")
    prepare("secret", private=True)
    prepare("open")
    assert caplog.messages == [
        f"Created the {what}repository {hub.url}/alice/{name}" for what, name in (("private ", "secret"), ("", "open"))
    ]
    assert {name: private for name, (private, _) in state(hub).items()} == {"alice/secret": True, "alice/open": False}
    for private in (True, None, False):
        prepare("secret", private=private)
    before = state(hub)
    with raises_usage(found="alice/open is public", needed="a private repository"):
        prepare("open", private=True)
    assert state(hub) == before


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (FOREIGN, "(README.md, config.json, pytorch_model.bin, 3 in total)"),
        ({"notes.txt": b"mine"}, "(notes.txt, 1 in total)"),
        ({"config.json": b"no JSON"}, "(config.json, 1 in total)"),
        ({"config.json": b"[]"}, "(config.json, 1 in total)"),
    ],
)
def test_foreign_files_are_not_overwritten(hub, folder, files, message):
    """Only with `overwrite`."""
    hub.add_repo(REPO, ATTRIBUTES | files, author="alice")
    before = state(hub)
    expected = f"alice/m has files that InforMin-CL did not upload {message}"
    with raises_usage(found=expected, fix="Nothing was changed. Choose another repository, or set `overwrite` (in"):
        prepare(REPO, folder=folder)
    assert state(hub) == before
    push_folder(folder, prepare(REPO, overwrite=True))
    files_now = remote(hub)
    assert {name: files_now[name] for name in PUBLISHED} == {name: read_files(folder)[name] for name in PUBLISHED}
    assert files_now.keys() - PUBLISHED == files.keys() - PUBLISHED


def test_models_of_others_in_an_organization_are_not_overwritten(hub, folder):
    hub.add_user("bob", token="hf_bob", orgs={"team": "write"})
    push_folder(folder, prepare("team/m"))
    before = state(hub)
    with raises_usage(found="team/m has commits by alice", fix="Nothing was changed."):
        prepare("team/m", token="hf_bob")
    assert state(hub) == before
    assert prepare("team/m").repo == prepare("team/m", token="hf_bob", overwrite=True).repo == "team/m"


def test_an_empty_repository_of_another_user_is_accepted(hub, folder):
    """The Hub's first commit of a new repository does not count as foreign work."""
    hub.add_user("admin", token="hf_admin", orgs={"team": "admin"})
    HfApi(token="hf_admin").create_repo("team/m")
    for _ in range(2):
        push_folder(folder, prepare("team/m"))
    assert remote(hub, "team/m").keys() == PUBLISHED
    assert [commit.author for commit in hub.commits("team/m")] == [*["alice"] * 4, "admin"]


def test_a_card_edited_on_the_hub_is_kept(hub, folder):
    """It is kept, unless the local card was also edited."""
    push_folder(folder, prepare(REPO))
    card = folder / "README.md"
    hub.commit(REPO, {"README.md": card.read_bytes() + b"\nEdited on the Hub.\n"}, author="alice")
    before = state(hub)
    for local in (None, folder, folder.parent):  # unknown, as it was written, none there
        with raises_usage(found="alice/m has a README.md that was edited by hand", fix="Nothing was changed."):
            prepare(REPO, folder=local)
    assert state(hub) == before
    prepare(REPO, overwrite=True)
    card.write_text(card.read_text() + "\nEdited here.\n")
    prepare(REPO, folder=folder)
    assert push_command.main([str(folder), REPO]) == 0
    assert remote(hub)["README.md"].endswith(b"Edited here.\n")


def test_branches(hub, folder):
    """A branch must exist. Files on main are neither checked nor changed."""
    main = hub.add_repo(REPO, ATTRIBUTES | FOREIGN)
    api = HfApi()
    with raises_usage(found="Cannot push to alice/m: the Hub answered 404: Invalid rev id: v2"):
        prepare(REPO, branch="v2", overwrite=True)
    api.create_branch(REPO, branch="v2")
    with raises_usage(found="alice/m has files that InforMin-CL did not upload"):
        prepare(REPO, branch="v2")
    for name in FOREIGN:
        api.delete_file(name, REPO, revision="v2")
    to = prepare(REPO, branch="v2", overwrite=True)
    push_folder(folder, to)
    assert remote(hub, revision="v2").keys() == PUBLISHED
    pinned = hub.commits(REPO, revision="v2")[1].sha
    assert f'revision="{pinned}"' in (folder / "README.md").read_text()
    results_of(folder, folder / "results" / "model.json")
    push_card(folder, to)
    assert hub.commits(REPO, revision="v2")[0].changed == ["README.md", "results/model.json"]
    assert hub.commits(REPO)[0].sha == main


def test_a_branch_without_foreign_commits(hub, folder):
    push_folder(folder, prepare("team/m"))
    HfApi().create_branch("team/m", branch="v2")
    hub.commit("team/m", {"config.json": (folder / "config.json").read_bytes() + b"\n"}, author="bob")
    assert prepare("team/m", branch="v2").branch == "v2"
    with raises_usage(found="team/m has commits by bob"):
        prepare("team/m")


def test_new_repository_has_no_branch(hub):
    """The repository is not created either."""
    with raises_usage(found="alice/m does not exist, so it has no branch v2", fix="Push to main first."):
        prepare(REPO, branch="v2")
    assert not hub.repos


def test_offline(hub, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with raises_usage(found="Cannot push to alice/m: HF_HUB_OFFLINE is set", fix="Unset it."):
        prepare(REPO)
    assert not hub.requests


def test_nobody_answers(hub, monkeypatch):
    with HubServer() as gone:
        pass
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", gone.url)
    with raises_usage(found=f"Cannot push to alice/m: {LOST}ConnectError: ", fix="Check your network") as caught:
        prepare(REPO)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("method", "pattern", "what", "times", "message"),
    [
        ("GET", "whoami", dict(status=500), 1, "the Hub answered 500: Internal Server Error."),
        ("GET", "whoami", dict(status=429), 1, "the Hub answered 429: "),
        ("GET", "whoami", dict(cut=True), 1, LOST),
        ("GET", "/api/models/alice/m$", dict(status=500), 1, "the Hub answered 500: Internal Server Error."),
        ("POST", "/repos/create", dict(status=500), 1, "the Hub answered 500: Internal Server Error."),
        ("POST", "/repos/create", dict(cut=True), 1, LOST),
        ("GET", "/auth-check/write", dict(status=500), 1, "the Hub answered 500: Internal Server Error."),
        ("GET", "/commits/", dict(status=500), 6, "the Hub answered 500: Internal Server Error."),
        ("HEAD", "/config.json", dict(status=500), 7, "the Hub answered 500: "),
        ("HEAD", "/config.json", dict(cut=True), 1, LOST),
        ("GET", "/config.json", dict(status=500), 1, "the Hub answered 500: Internal Server Error."),
        ("GET", "/README.md", dict(cut=True), 6, LOST),
    ],
)
def test_hub_fails_before_the_push(hub, exported, method, pattern, what, times, message):
    """The error is one line, and the next attempt works."""
    if "create" not in pattern:
        hub.add_repo(REPO, ATTRIBUTES | {name: read_files(exported)[name] for name in PUBLISHED}, author="alice")
    before = state(hub)
    hub.fail(method, pattern, times=times, **what)
    with pytest.raises(UsageError) as caught:
        prepare(REPO)
    assert str(caught.value).startswith(f"Cannot push to alice/m: {message}")
    assert "\n" not in str(caught.value) and not hub.failures and state(hub) == before
    prepare(REPO)
