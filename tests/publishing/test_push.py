"""Pushing an exported folder: who may, what goes up, what a failure leaves, and how it is finished.

The client is the real one; its server is tests/hub_server.py.
"""

import hashlib
import shlex
import shutil
from pathlib import Path

import huggingface_hub
import pytest
import torch
from huggingface_hub import HfApi, snapshot_download
from transformers import AutoModel

import run_push
from informin import program
from informin.encoders.encoder import load_encoder
from informin.encoders.loading import load_config, load_model
from informin.errors import PushError, UsageError
from informin.evaluation.results import add_task, new_results, save_results
from informin.publishing.export import export_folder
from informin.publishing.hub import prepare, push_card, push_folder, push_in_background
from tests.conftest import raises_usage, tokenizer_of
from tests.hub_server import GITATTRIBUTES, HubServer

REPO = "alice/m"
SETTINGS = {"objective": "informin", "pooling": "cls", "projection_head": "mlp", "lm_head": False, "max_seq_length": 32}
WEIGHTS = "model.safetensors"
HEAD = "projection_head/model.safetensors"
PUBLISHED = {
    *("1_Pooling/config.json", "README.md", "config.json", "config_sentence_transformers.json", WEIGHTS, HEAD),
    *("modeling_informin.py", "modules.json", "sentence_bert_config.json", "tokenizer.json", "tokenizer_config.json"),
}
ATTRIBUTES = {".gitattributes": GITATTRIBUTES}  # in every repository that the Hub makes
FOREIGN = {"config.json": b'{"model_type": "bert"}', "pytorch_model.bin": b"weights", "README.md": b"# Another model\n"}
LOST = "no connection to the Hub ("


pytestmark = pytest.mark.usefixtures("logged_in", "logging_as_before")


def export(bert: Path, folder: Path, seed: int = 0) -> Path:
    """An exported folder; another seed has other weights."""
    torch.manual_seed(seed)
    model = load_model(load_config(str(bert)), str(bert), SETTINGS)
    model.get_input_embeddings().weight.data += seed
    export_folder(model, tokenizer_of(bert), folder)
    return folder


@pytest.fixture(scope="module")
def exported(bert, tmp_path_factory) -> Path:
    return export(bert, tmp_path_factory.mktemp("push") / "export")


@pytest.fixture
def folder(exported, tmp_path) -> Path:
    """An export as a run leaves it, among checkpoints, logs and whatever lies about, and with a blank in its path."""
    folder = Path(shutil.copytree(exported, tmp_path / "my models" / "m"))
    for name in (
        *("checkpoint-4/config.json", "checkpoint-4/model.safetensors", "checkpoint-4/optimizer.pt", "runs/events.out"),
        *("training_args.bin", "trainer_state.json", "optimizer.pt", "notes.txt", ".env", "results/notes.txt"),
        *("1_Pooling/config.json.bak", "onnx/model.onnx.tmp", "results/other_seeds/seed2.log"),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"not to be uploaded")
    return folder


def load(name: str | Path, **options) -> dict[str, torch.Tensor]:
    """The weights of a model, read by its own code."""
    model = AutoModel.from_pretrained(name, trust_remote_code=True, **options)
    assert type(model).__name__ == "BertForInforMinCL"
    return model.state_dict()


def equal_weights(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def read_files(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def remote(hub: HubServer, repo: str = REPO, **revision) -> dict[str, bytes]:
    """What the Hub has, without what it made itself."""
    return {name: content for name, content in hub.files(repo, **revision).items() if name != ".gitattributes"}


def state(hub: HubServer) -> dict:
    """Everything that a push could change."""
    return {name: (repo.private, dict(repo.branches)) for (_, name), repo in hub.repos.items()}


def results_of(folder: Path, path: Path, score: float = 70.0) -> Path:
    """A results file of this folder's weights."""
    sha256 = load_encoder(str(folder), device="cpu").weights_sha256()
    identity = dict(pooler="cls", normalized=False, prompt=None, whitening=None, max_length=66)
    identity |= dict(precision="fp32", split="test")
    results = new_results(str(folder), identity | {"weights_sha256": sha256}, {"torch": "2"})
    entry = {"score": score, "n": 9, "truncated": 0, "data": {}, "seconds": {"encode": 1.0, "score": 1.0}}
    add_task(results, "STS12", entry)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_results(path, results)
    return path


def finish(error: PushError | str) -> int:
    """Runs the command that finishes a push, or that a program's message ends with, as a shell would split it."""
    printed = isinstance(error, str)
    command = error.partition("Finish with: ")[2] if printed else program.finishing_command(error)
    words = shlex.split(command)
    arguments = words[4:]
    assert words[:4] == ["python", "-m", "informin", "push"]
    return run_push.main(arguments)


def test_a_checkpoint_that_cannot_be_exported_is_said_once(hub, folder, caplog):
    """And nothing is sent."""
    to = prepare(REPO)
    before = len(hub.requests)
    push_in_background(str(folder / "checkpoint-4"), to, "Training in progress", None).result()
    assert caplog.text.count("The push of checkpoint-4 failed: ") == 1 and len(hub.requests) == before


# Who may push


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
    """One line that says what to do, and neither a repository nor a commit more than before."""
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
    """`prepare` creates what is not there, and what it lets through can be pushed, then pushed again."""
    for name in ("bob/empty", "group/empty"):
        hub.add_repo(name, ATTRIBUTES, author="bob")
    hub.add_user("bob", token="hf_bob", **user)
    for _ in range(2):
        to = prepare(repo, token="hf_bob")
        assert (to.repo, to.branch) == (expected, None) and ("model", expected) in hub.repos
        assert push_folder(folder, to) == f"{hub.url}/{expected}"
    assert hub.commits(expected)[0].author == "bob" and remote(hub, expected).keys() == PUBLISHED


def test_token_of_a_browser_login(hub, monkeypatch):
    """`hf auth login` through the browser gives a token about whose rights whoami says nothing."""
    whoami = HfApi.whoami
    monkeypatch.setattr(HfApi, "whoami", lambda api: whoami(api) | {"auth": {"type": "oauth"}})
    assert prepare("m").repo == REPO


def test_the_token_that_is_given_is_used(hub, monkeypatch):
    hub.add_user("bob", token="hf_bob")
    assert prepare("m", token="hf_bob").repo == "bob/m"
    monkeypatch.delenv("HF_TOKEN")
    Path(huggingface_hub.constants.HF_TOKEN_PATH).write_text("hf_alice")  # as `hf auth login` leaves it
    assert prepare("m").repo == REPO


@pytest.mark.parametrize("name", ["a b", "a--b", "-m", "m.", "x" * 97, "alice/m/x", "https://huggingface.co/m", ""])
def test_names_that_no_repository_can_have(hub, name):
    with raises_usage(found=f"{name!r} is not a valid repository name: ", fix="USER/NAME"):
        prepare(name)
    assert not hub.requests


def test_name_that_only_the_hub_refuses(hub):
    with raises_usage(found="Cannot push to m.ipynb: the Hub answered 400: ") as caught:
        prepare("m.ipynb")
    assert "The name cannot end with" in caught.value.found and "\n" not in str(caught.value) and not hub.repos


# The repository


def test_private(hub, caplog):
    """Private is what is asked for when it is created; one that is public stays public, and is refused."""
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
    """Unless the user says so."""
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


def test_model_of_somebody_else_in_an_organization(hub, folder):
    hub.add_user("bob", token="hf_bob", orgs={"team": "write"})
    push_folder(folder, prepare("team/m"))
    before = state(hub)
    with raises_usage(found="team/m has commits by alice", fix="Nothing was changed."):
        prepare("team/m", token="hf_bob")
    assert state(hub) == before
    assert prepare("team/m").repo == prepare("team/m", token="hf_bob", overwrite=True).repo == "team/m"


def test_repository_that_somebody_else_created_empty(hub, folder):
    """The commit that the Hub makes for whoever creates a repository is no work on a model."""
    hub.add_user("admin", token="hf_admin", orgs={"team": "admin"})
    HfApi(token="hf_admin").create_repo("team/m")
    for _ in range(2):
        push_folder(folder, prepare("team/m"))
    assert remote(hub, "team/m").keys() == PUBLISHED
    assert [commit.author for commit in hub.commits("team/m")] == [*["alice"] * 4, "admin"]


def test_card_that_was_edited_on_the_hub(hub, folder):
    """It is kept, unless the user has a card of his own to put there."""
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
    assert run_push.main([str(folder), REPO]) == 0
    assert remote(hub)["README.md"].endswith(b"Edited here.\n")


def test_branches(hub, folder):
    """A branch has to be there; what is on main does not matter to it, and is left alone."""
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


def test_branch_that_somebody_else_did_not_touch(hub, folder):
    push_folder(folder, prepare("team/m"))
    HfApi().create_branch("team/m", branch="v2")
    hub.commit("team/m", {"config.json": (folder / "config.json").read_bytes() + b"\n"}, author="bob")
    assert prepare("team/m", branch="v2").branch == "v2"
    with raises_usage(found="team/m has commits by bob"):
        prepare("team/m")


def test_new_repository_has_no_branch(hub):
    """And is not made for nothing."""
    with raises_usage(found="alice/m does not exist, so it has no branch v2", fix="Push to main first."):
        prepare(REPO, branch="v2")
    assert not hub.repos


# The Hub fails, or is not there


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
    """One line, and the next try works."""
    if "create" not in pattern:
        hub.add_repo(REPO, ATTRIBUTES | {name: read_files(exported)[name] for name in PUBLISHED}, author="alice")
    before = state(hub)
    hub.fail(method, pattern, times=times, **what)
    with pytest.raises(UsageError) as caught:
        prepare(REPO)
    assert str(caught.value).startswith(f"Cannot push to alice/m: {message}")
    assert "\n" not in str(caught.value) and not hub.failures and state(hub) == before
    prepare(REPO)


# What goes up


def test_what_is_uploaded(hub, folder):
    """The published files, byte for byte, in one commit; then the card, which pins that commit."""
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
def test_what_is_no_export_is_not_uploaded(hub, folder, push):
    """Refused before anything is written, there or here."""
    to = prepare(REPO)
    (folder / "modules.json").unlink()
    before, card = state(hub), (folder / "README.md").read_text()
    with raises_usage(
        found="is a checkpoint, which cannot be published: it has no modules.json", fix="Export it first"
    ):
        push(folder, to)
    assert state(hub) == before and (folder / "README.md").read_text() == card


def test_pushing_again(hub, folder, bert):
    """Unchanged, no weights are sent; trained again, the new weights are pinned, and nothing of the old ones stays."""
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


def test_card_that_was_edited_here(hub, folder, caplog):
    """It goes up as it is, in one commit, with the weights or alone."""
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


# A failure in the middle


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
def test_failure_in_the_middle(hub, folder, capsys, method, pattern, what, times, message):
    """Nothing is half there, nothing here is lost, and what the error holds finishes the push."""
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


def test_failure_on_this_machine(hub, folder, monkeypatch):
    """The message does not speak of the connection."""
    to = prepare(REPO)
    with monkeypatch.context() as patched, pytest.raises(PushError) as caught:
        patched.setattr(HfApi, "upload_folder", lambda *_, **__: open(folder / "gone"))
        push_folder(folder, to)
    assert "No such file or directory" in str(caught.value) and LOST not in str(caught.value)
    assert finish(caught.value) == 0


def test_failure_between_the_two_commits(hub, folder, monkeypatch):
    """The weights are up, the card pins nothing yet."""
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


def test_a_token_that_was_given_is_not_told(hub, folder):
    """The command needs it, and is printed: it is asked for, and stands nowhere in the error."""
    hub.add_user("bob", token="hf_bob")
    to = prepare("m", token="hf_bob")
    hub.fail("POST", "/commit/main")
    with pytest.raises(PushError) as caught:
        push_folder(folder, to)
    assert str(caught.value).endswith(f"is saved in {folder}. Set HF_TOKEN to the same token.")
    assert "hf_bob" not in f"{caught.value!r} {caught.value.finish} {program.finishing_command(caught.value)}"


def test_consent_is_part_of_the_finishing_command(hub, folder):
    """Foreign files and the branch: what was asked for is asked for again."""
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


# The card alone


def test_card_and_results_alone(hub, folder):
    """No weights are sent, and the card pins a commit that holds them."""
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
def test_card_of_weights_that_are_not_there(hub, folder, bert, tmp_path, held):
    """The scores of one model under another's name: refused, with what puts the weights there."""
    if held == "other weights":
        push_folder(export(bert, tmp_path / "other", seed=1), prepare(REPO))
    else:
        files = {"config.json": (folder / "config.json").read_bytes()} if held != "nothing" else {}
        hub.add_repo(REPO, ATTRIBUTES | files, author="alice")
    to, before = prepare(REPO), state(hub)
    with raises_usage(found=f"alice/m does not have the weights of {folder}", fix="first, without `update_card`."):
        push_card(folder, to)
    assert state(hub) == before
    assert run_push.main([str(folder), REPO]) == 0
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
def test_failure_of_the_card_alone(hub, folder, method, pattern, what, message):
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
