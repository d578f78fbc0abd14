"""Files and requests for the tests of tests/hub_server.py."""

import json

import httpx2
from huggingface_hub.utils import get_session

WEIGHTS = bytes(range(256)) * 40_000  # 10.2 MB
SMALL = {"config.json": b"{}\n", "README.md": b"---\nlicense: mit\ntags:\n- a\n---\nA model.\n"}


def send(hub, method: str, path: str, token: str = "hf_alice", **options) -> httpx2.Response:
    """Send a request that the client itself would not send."""
    return get_session().request(method, hub.url + path, headers={"Authorization": f"Bearer {token}"}, **options)


def send_commit(hub, *files: dict) -> httpx2.Response:
    """Commit files to alice/m that the client has not announced."""
    operations = [{"key": "lfsFile" if "oid" in file else "file", "value": file} for file in files]
    header = {"key": "header", "value": {"summary": "Add", "description": ""}}
    lines = "".join(json.dumps(line) + "\n" for line in [header, *operations])
    return send(hub, "POST", "/api/models/alice/m/commit/main", content=lines)
