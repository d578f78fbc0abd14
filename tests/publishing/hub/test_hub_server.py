"""tests/hub_server.py with the real client: storage, branches, permissions and cards."""

import base64
import hashlib
import subprocess
import sys
import warnings
from pathlib import Path

import httpx2
import pytest
from huggingface_hub import CommitOperationAdd, HfApi
from huggingface_hub.errors import (
    BadRequestError,
    HfHubHTTPError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from tests.conftest import ROOT
from tests.publishing.hub.hub_helpers import SMALL, WEIGHTS, send, send_commit


def write_files(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def read_files(folder: str) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()
    }


def test_round_trip(hub, api, tmp_path):
    """Upload a folder, change it, and download the current and the previous version."""
    first = SMALL | {"model.safetensors": WEIGHTS, "ids.dat": b"\xff\x00\x80", "long.txt": b"a" * 10_000_001}
    first["notes/ä.txt"] = b"a" + "ä".encode() * 400  # the client shows the Hub half of the 256th ä
    folder = write_files(tmp_path / "model", first)
    assert api.create_repo("m").repo_id == "alice/m"
    old = api.upload_folder(repo_id="alice/m", folder_path=folder, commit_message="First").oid
    write_files(folder, {"config.json": b'{"a": 1}\n'})
    new = api.upload_folder(repo_id="alice/m", folder_path=folder, commit_message="Second").oid
    assert sum(method == "PUT" for method, _ in hub.requests) == 3  # binary or long: once each

    attributes = {".gitattributes": hub.files("alice/m")[".gitattributes"]}
    assert b"*.safetensors filter=lfs" in attributes[".gitattributes"]
    assert read_files(api.snapshot_download("alice/m", cache_dir=tmp_path / "a", revision=old)) == first | attributes
    second = first | attributes | {"config.json": b'{"a": 1}\n'}
    assert read_files(api.snapshot_download("alice/m", cache_dir=tmp_path / "b")) == second == hub.files("alice/m")
    assert hub.files("alice/m", revision=old) == first | attributes

    commits = hub.commits("alice/m")
    assert [(commit.sha, commit.title) for commit in commits[:2]] == [(new, "Second"), (old, "First")]
    assert [commit.changed for commit in commits] == [["config.json"], sorted(first), [".gitattributes"]]
    listed = api.list_repo_commits("alice/m")
    assert [(commit.commit_id, commit.title, commit.authors) for commit in listed] == [
        (commit.sha, commit.title, ["alice"]) for commit in commits
    ]


def test_nothing_to_send(hub, api):
    """Hashes equal the real Hub's. Files that it has under any path are neither uploaded nor committed again."""
    hub.add_repo("alice/m", {"a.bin": b"lfs", "a.txt": b"regular"})
    for _ in range(2):
        adds = {"a.bin": b"lfs", "a.txt": b"regular", "b.bin": b"lfs", "b.txt": b"regular"}
        sha = api.create_commit("alice/m", [CommitOperationAdd(*add) for add in adds.items()], commit_message="Add").oid
    assert [(commit.title, commit.changed) for commit in hub.commits("alice/m")] == [
        ("Add", ["b.bin", "b.txt"]),
        ("Add files", ["a.bin", "a.txt"]),
    ]
    assert sha == hub.commits("alice/m")[0].sha
    assert "PUT" not in [method for method, _ in hub.requests]


def test_refusals_look_like_the_hubs(hub, api):
    hub.add_repo("org/m", {})
    answer = send(hub, "GET", "/api/models/org/m/tree/main/ä")
    assert answer.status_code == 404 and answer.headers["X-Error-Code"] == "EntryNotFound"
    assert answer.headers["X-Error-Message"] == "? does not exist on main"
    assert answer.json() == {"error": "ä does not exist on main"}
    hub.fail("GET", "/whoami", status=503)
    answer = send(hub, "GET", "/api/whoami-v2")
    assert (answer.status_code, answer.headers["X-Error-Message"]) == (503, "Service Unavailable")
    assert answer.headers["Retry-After"] == "0"  # the client's shortest wait
    assert send(hub, "GET", "/api/whoami-v2").status_code == 200
    assert send(hub, "GET", "/api/spaces/org/m").status_code == 404


def test_information_about_a_repository(hub, api):
    first = hub.add_repo("team/m", SMALL | {"onnx/model.onnx": b"weights"}, author="bob", private=True)
    last = hub.commit("team/m", {"config.json": None, "a.txt": b"a"})
    info = api.model_info("team/m", files_metadata=True)
    assert (info.id, info.sha, info.private, info.card_data.license) == ("team/m", last, True, "mit")
    assert api.repo_info("team/m", revision=first).sha == first
    files = {sibling.rfilename: sibling for sibling in info.siblings}
    assert files.keys() == {"README.md", "a.txt", "onnx/model.onnx"}
    assert files["a.txt"].blob_id == "2e65efe2a145dda7ee51d1741299f848e5bf752e" and files["a.txt"].lfs is None
    assert files["onnx/model.onnx"].lfs.sha256 == hashlib.sha256(b"weights").hexdigest()
    assert files["onnx/model.onnx"].size == 7

    assert [entry.path for entry in api.list_repo_tree("team/m")] == ["README.md", "a.txt", "onnx"]
    assert [entry.path for entry in api.list_repo_tree("team/m", "onnx")] == ["onnx/model.onnx"]
    assert "config.json" in api.list_repo_files("team/m", revision=first)
    with pytest.raises(RemoteEntryNotFoundError):
        list(api.list_repo_tree("team/m", "elsewhere"))
    assert [entry.path for entry in api.get_paths_info("team/m", ["a.txt", "onnx", "none"])] == ["a.txt", "onnx"]
    assert not api.file_exists("team/m", "config.json") and api.file_exists("team/m", "config.json", revision=first)
    with pytest.raises(RevisionNotFoundError, match="Invalid rev id: v9"):
        api.model_info("team/m", revision="v9")
    user = api.whoami()
    assert user["name"] == "alice" and user["auth"]["accessToken"]["role"] == "write"
    assert [(org["name"], org["roleInOrg"]) for org in user["orgs"]] == [("team", "write"), ("readers", "read")]


def test_branches_and_deletions(hub, api):
    first = hub.add_repo("alice/m", {"a/b.txt": b"b", "a/c.txt": b"c", "d.txt": b"d"})
    api.create_branch("alice/m", branch="dev/x")
    api.upload_file(repo_id="alice/m", path_in_repo="e.txt", path_or_fileobj=b"e", revision="dev/x")
    api.delete_folder("a", "alice/m", revision="dev/x")
    assert hub.files("alice/m", revision="dev/x") == {"d.txt": b"d", "e.txt": b"e"}
    refs = {branch.name: branch.target_commit for branch in api.list_repo_refs("alice/m").branches}
    assert refs == {"main": first, "dev/x": hub.commits("alice/m", revision="dev/x")[0].sha}
    with pytest.raises(HfHubHTTPError, match="Reference already exists"):
        api.create_branch("alice/m", branch="dev/x")
    with pytest.raises(RemoteEntryNotFoundError, match="A file with this name doesn't exist"):
        api.delete_file("none.txt", "alice/m")
    assert hub.commits("alice/m")[0].sha == first


def test_data_set(hub, api, tmp_path):
    hub.add_repo("org/data", {"train.txt": b"a\nb\n"}, kind="dataset")
    path = api.hf_hub_download("org/data", "train.txt", repo_type="dataset", cache_dir=tmp_path)
    assert Path(path).read_bytes() == b"a\nb\n"
    assert api.dataset_info("org/data").sha == hub.commits("org/data", kind="dataset")[0].sha
    with pytest.raises(RepositoryNotFoundError):
        api.model_info("org/data")


@pytest.mark.parametrize(
    "user, name, allowed",
    [
        (dict(name="carol", role="write"), "carol/m", True),
        (dict(name="carol", role="read"), "carol/m", False),
        (dict(name="carol", role="write"), "team/m", False),
        (dict(name="carol", role="write", orgs={"team": "read"}), "team/m", False),
        (dict(name="carol", role="write", orgs={"team": "contributor"}), "team/m", False),
        (dict(name="bob", role="write", orgs={"team": "contributor"}), "team/m", True),
        (dict(name="carol", role="write", orgs={"team": "admin"}), "team/m", True),
        (dict(name="carol", role="fineGrained", scopes=["carol"]), "carol/m", True),
        (dict(name="carol", role="fineGrained", scopes=["carol/other"]), "carol/m", False),
        (dict(name="carol", role="fineGrained", scopes=["team/m"], orgs={"team": "write"}), "team/m", True),
    ],
)
def test_who_may_write(hub, api, user, name, allowed):
    """The check agrees with the upload. `bob` created the repository."""
    hub.add_user(token="hf_user", **user)
    sha = hub.add_repo(name, SMALL, author="bob")
    client = HfApi(token="hf_user")
    assert client.whoami()["auth"]["accessToken"]["role"] == user["role"]

    def upload():
        client.upload_file(repo_id=name, path_in_repo="a.bin", path_or_fileobj=b"a")

    if allowed:
        client.auth_check(name, write=True)
        upload()
        assert hub.commits(name)[0].author == user["name"]
        return
    for attempt in (lambda: client.auth_check(name, write=True), upload):
        with pytest.raises(HfHubHTTPError, match="Authorization error") as caught:
            attempt()
        assert caught.value.response.status_code == 403
    api_of, lfs = f"/api/models/{name}", f"/{name}.git/info/lfs/objects"
    for path in (
        f"{api_of}/preupload/main",
        f"{api_of}/commit/main",
        f"{api_of}/branch/x",
        f"{lfs}/batch",
        f"{lfs}/verify",
    ):
        assert send(hub, "POST", path, token="hf_user", json={}).status_code == 403
    client.auth_check(name)
    assert hub.commits(name)[0].sha == sha


def test_private_repository(hub, api, tmp_path):
    """Only users who may read it learn that it exists."""
    api.create_repo("team/m", private=True)
    hub.add_repo("team/public", SMALL)
    hub.add_user("dave", token="hf_dave")
    hub.add_user("erin", token="hf_erin", role="read", orgs={"team": "read"})
    assert HfApi(token="hf_erin").model_info("team/m").private
    for token, status in (("hf_dave", 404), (False, 401)):  # False: a stranger
        client = HfApi(token=token)
        attempts = [
            (client.model_info, {}),
            (client.auth_check, {}),
            (client.hf_hub_download, dict(filename=".gitattributes", cache_dir=tmp_path)),
            (client.upload_file, dict(path_in_repo="a", path_or_fileobj=b"a")),
        ]
        for attempt, options in attempts:
            with pytest.raises(RepositoryNotFoundError) as caught:
                attempt(repo_id="team/m", **options)
            assert caught.value.response.status_code == status
        assert client.model_info("team/public").id == "team/public"
    with pytest.raises(HfHubHTTPError, match="Invalid credentials") as caught:
        HfApi(token="hf_nobody").model_info("team/public")
    assert caught.value.response.status_code == 401
    with pytest.raises(HfHubHTTPError, match="Invalid user token"):
        HfApi(token="hf_nobody").whoami()


def test_creating(hub, api):
    hub.add_repo("other/m", SMALL)
    assert api.create_repo("team/m", private=True) == f"{hub.url}/team/m"
    assert api.create_repo("team/m", exist_ok=True) == f"{hub.url}/team/m"
    with pytest.raises(HfHubHTTPError, match="You already created this model repo") as caught:
        api.create_repo("team/m")
    assert caught.value.response.status_code == 409
    for options in (dict(repo_id="other/n"), dict(repo_id="other/n", exist_ok=True)):
        with pytest.raises(HfHubHTTPError, match='rights to create a model under the namespace "other"') as caught:
            api.create_repo(**options)
        assert caught.value.response.status_code == 403
    assert api.create_repo("other/m", exist_ok=True).repo_id == "other/m"  # it exists: no matter whose
    hub.add_user("alice", token="hf_reader", role="read")
    with pytest.raises(HfHubHTTPError, match="403 Forbidden"):
        HfApi(token="hf_reader").create_repo("alice/m")
    assert set(hub.repos) == {("model", "team/m"), ("model", "other/m")}


@pytest.mark.parametrize("name", ["m.ipynb", "m.git", "a--b", "a..b", "-a", "a.", "a b", "ä", "a" * 97, ""])
def test_invalid_names_are_refused(hub, api, name):
    answer = send(hub, "POST", "/api/repos/create", json={"name": name, "organization": None})
    assert answer.status_code == 400 and "Max length is 96" in answer.json()["error"]
    assert not hub.repos


def test_names_that_only_the_hub_refuses(hub, api):
    with pytest.raises(BadRequestError, match="The name cannot end with"):
        api.create_repo("alice/m.ipynb")


def test_commit_after_another_users(hub, api):
    before = hub.add_repo("alice/m", SMALL)
    theirs = hub.commit("alice/m", {"theirs.txt": b"1"}, author="bob")

    def push(parent: str):
        adds = [CommitOperationAdd("mine.txt", b"2")]
        return api.create_commit("alice/m", adds, commit_message="Mine", parent_commit=parent).oid

    with pytest.raises(HfHubHTTPError, match="A commit has happened since") as caught:
        push(before)
    assert caught.value.response.status_code == 412
    assert hub.commits("alice/m")[0].sha == theirs
    assert push(theirs) == hub.commits("alice/m")[0].sha
    assert {"mine.txt", "theirs.txt"} <= hub.files("alice/m").keys()


def test_cards(hub, api):
    """Metadata is checked before the upload and in the commit."""
    sha = hub.add_repo("alice/m", SMALL)

    def push(card: str):
        api.upload_file(repo_id="alice/m", path_in_repo="README.md", path_or_fileobj=card.encode())

    for wrong in (
        "---\na: [\n---\n",
        "---\n- a\n---\n",
        "---\nlicense: 3\n---\n",
        "---\nmodel-index:\n- name: m\n---\n",
    ):
        with pytest.raises(ValueError, match=r"Invalid metadata in README\.md"):
            push(wrong)
    answer = send_commit(hub, {"path": "README.md", "content": base64.b64encode(wrong.encode()).decode()})
    assert answer.status_code == 400 and "Invalid metadata" in answer.json()["error"]
    assert hub.commits("alice/m")[0].sha == sha
    with pytest.warns(UserWarning, match="empty or missing yaml metadata"):
        push("No metadata.\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        push("---\nlicense: mit\nmodel-index: []\n---\nGood.\n")
    assert hub.files("alice/m")["README.md"].endswith(b"Good.\n")


def test_command_line():
    """The command in the docstring prints its address and serves requests."""
    command = [sys.executable, "-m", "tests.hub_server", "--user", "alice:hf_alice"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        url = server.stdout.readline().split()[0].removeprefix("HF_ENDPOINT=")
        answer = httpx2.get(f"{url}/api/whoami-v2", headers={"Authorization": "Bearer hf_alice"}, trust_env=False)
        server.terminate()
    assert answer.json()["name"] == "alice"
