"""tests/hub_server.py with the real client: injected failures, broken connections and damaged uploads."""

import hashlib
from pathlib import Path

import httpx2
import pytest
from huggingface_hub import CommitOperationAdd
from huggingface_hub.errors import (
    HfHubHTTPError,
    LocalEntryNotFoundError,
)
from huggingface_hub.utils import get_session

from tests.publishing.hub.hub_helpers import SMALL, WEIGHTS, send, send_commit

FAILURES = [  # which request, what happens to it, how often until it shows, the status (None: the connection is lost)
    ("GET", "/api/whoami-v2", dict(status=401), 1, 401),
    ("GET", "/auth-check/write", dict(status=500), 1, 500),
    ("POST", "/api/repos/create", dict(status=500), 1, 500),
    ("POST", "/api/repos/create", dict(cut=True), 1, None),
    ("POST", "/preupload/", dict(status=500), 6, 500),
    ("POST", "/preupload/", dict(status=403), 1, 403),
    ("POST", "/objects/batch", dict(status=503), 6, 503),
    ("PUT", "/lfs-upload/", dict(status=403), 1, 403),
    ("PUT", "/lfs-upload/", dict(status=500), 6, 500),
    ("PUT", "/lfs-upload/", dict(cut=True), 6, None),
    ("POST", "/objects/verify", dict(status=404), 1, 404),
    ("POST", "/commit/main", dict(status=500), 1, 500),
    ("POST", "/commit/main", dict(cut=True), 1, None),
    ("GET", "/tree/", dict(cut=True), 6, None),
]


@pytest.mark.parametrize("method, pattern, what, times, status", FAILURES)
def test_failures(hub, api, method, pattern, what, times, status):
    """Each gives the client's own error after this many requests, changes nothing, and then ends."""
    sha = hub.add_repo("alice/m", SMALL)

    def push():
        api.whoami()
        api.create_repo("alice/m", exist_ok=True)
        api.auth_check("alice/m", write=True)
        adds = [CommitOperationAdd("model.safetensors", WEIGHTS), CommitOperationAdd("a.txt", b"a")]
        api.create_commit("alice/m", adds, commit_message="Add")
        api.list_repo_files("alice/m")

    hub.fail(method, pattern, times=times, **what)
    with pytest.raises((HfHubHTTPError, httpx2.TransportError, RuntimeError)) as caught:
        push()
    error = caught.value
    if type(error) is RuntimeError:  # what the client makes of a failed upload of an LFS file
        assert "Error while uploading 'model.safetensors' to the Hub" in str(error) and "lfs" in str(hub.requests[-1])
        error = error.__cause__
    assert isinstance(error, httpx2.TransportError) if status is None else error.response.status_code == status
    assert sum(pattern in path for _, path in hub.requests) == times and pattern in hub.requests[-1][1]
    if pattern != "/tree/":  # which comes after the commit
        assert hub.commits("alice/m")[0].sha == sha and hub.files("alice/m") == SMALL
        push()
    assert hub.files("alice/m") == SMALL | {"model.safetensors": WEIGHTS, "a.txt": b"a"}


def test_broken_connections_are_resumed(hub, api, tmp_path):
    """A few cuts go unnoticed: the client restarts the upload and resumes the download."""
    api.create_repo("alice/m")
    hub.fail("PUT", "/lfs-upload/", cut=True)
    api.upload_file(repo_id="alice/m", path_in_repo="a.bin", path_or_fileobj=WEIGHTS)
    hub.fail("GET", "/resolve/main/a.bin", cut=True)
    path = api.hf_hub_download("alice/m", "a.bin", cache_dir=tmp_path)
    assert Path(path).read_bytes() == WEIGHTS
    assert sum(request == ("GET", "/alice/m/resolve/main/a.bin") for request in hub.requests) == 2
    part = get_session().get(f"{hub.url}/alice/m/resolve/main/a.bin", headers={"Range": "bytes=5-"})
    assert (part.status_code, part.content) == (206, WEIGHTS[5:])


@pytest.mark.parametrize(
    "method, what, times, expected",
    [
        ("HEAD", dict(status=500), 7, LocalEntryNotFoundError),
        ("HEAD", dict(cut=True), 1, httpx2.RemoteProtocolError),
        ("GET", dict(status=500), 1, HfHubHTTPError),
        ("GET", dict(cut=True), 6, httpx2.RemoteProtocolError),
    ],
)
def test_downloads_that_fail(hub, api, tmp_path, method, what, times, expected):
    hub.add_repo("org/m", SMALL)
    hub.fail(method, "/resolve/", times=times, **what)
    with pytest.raises(expected):
        api.hf_hub_download("org/m", "config.json", cache_dir=tmp_path)
    assert [request for request, _ in hub.requests].count(method) == times
    path = api.hf_hub_download("org/m", "config.json", cache_dir=tmp_path)
    assert Path(path).read_bytes() == SMALL["config.json"]


def test_uploads_are_checked(hub, api):
    """Files with other bytes than announced, or that were never uploaded, cannot be committed."""
    sha = hub.add_repo("alice/m", SMALL)
    oid = hashlib.sha256(b"right").hexdigest()
    batch = {"operation": "upload", "objects": [{"oid": oid, "size": 5}]}
    answer = send(hub, "POST", "/alice/m.git/info/lfs/objects/batch", json=batch).json()
    actions = answer["objects"][0]["actions"]
    assert get_session().put(actions["upload"]["href"], content=b"wrong").status_code == 400
    assert get_session().post(actions["verify"]["href"], json={"oid": oid, "size": 5}).status_code == 401
    assert send(hub, "POST", "/alice/m.git/info/lfs/objects/verify", json={"oid": oid, "size": 5}).status_code == 404
    assert get_session().put(f"{hub.url}/lfs-upload/guessed/{oid}", content=b"right").status_code == 403
    answer = send_commit(hub, {"path": "a.txt", "content": "YQ=="}, {"path": "a.bin", "oid": oid})
    assert answer.status_code == 400 and "does not exist" in answer.json()["error"]
    assert hub.commits("alice/m")[0].sha == sha and "a.txt" not in hub.files("alice/m")
