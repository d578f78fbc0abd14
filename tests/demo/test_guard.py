"""Which requests reach the search page: its own, under its own name, and no others."""

import asyncio
import json
import os
import re
import tempfile
from pathlib import Path

import pytest

from informin.demo import guard
from informin.demo.guard import LARGEST, Guard
from informin.demo.hosts import host_name, hosts_of
from informin.demo.page import app_of, build_page
from tests.conftest import raises_usage
from tests.demo.helpers import AFTER, BEFORE, search_of

gradio = pytest.importorskip("gradio")
from starlette.testclient import TestClient

JOIN = dict(data=["query"], event_data=None, fn_index=0, trigger_id=5, session_hash="s")
FILE = {"path": "https://example.com/file", "meta": {"_type": "gradio.FileData"}}


@pytest.fixture(scope="module")
def app():
    return app_of(build_page(search_of(BEFORE, AFTER)))


@pytest.fixture(scope="module", autouse=True)
def temporary(tmp_path_factory):
    """A temporary folder for everything that Gradio may write."""
    folder, before = tmp_path_factory.mktemp("temporary"), tempfile.tempdir
    tempfile.tempdir = str(folder)
    yield folder
    tempfile.tempdir = before


@pytest.fixture(scope="module")
def client(app):
    with TestClient(Guard(app, hosts_of("127.0.0.1")), base_url="http://127.0.0.1:7860") as client:
        yield client


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def gradio_routes(app) -> set[tuple[str, str]]:
    """Return the methods and paths of Gradio's routes, with parameters filled in."""
    (mounted,) = (route.app for route in app.routes if getattr(route, "app", None))
    found = set()
    pending = [*mounted.routes]
    while pending:
        route = pending.pop()
        if hasattr(route, "methods"):
            path = re.sub(r"\{(\w+)(:\w+)?\}", "1", route.path)
            found |= {(method, path) for method in route.methods or ()}
        pending += getattr(route, "routes", None) or getattr(getattr(route, "original_router", None), "routes", ())
    return found


ALLOWED = {
    *(("GET", path) for path in ("/", "/config", "/favicon.ico", "/manifest.json", "/robots.txt", "/theme.css")),
    *(("GET", f"/{folder}/1") for folder in ("assets", "static", "svelte")),
    *(("GET", f"/gradio_api/{name}") for name in ("app_id", "heartbeat/1", "info", "queue/data", "theme.css")),
    ("HEAD", "/"),
    ("POST", "/gradio_api/cancel"),
    ("POST", "/gradio_api/queue/join"),
}


def test_only_the_routes_that_the_page_needs_are_allowed(app):
    """Gradio has about a hundred. A new version may add some, which are refused too."""
    found = gradio_routes(app)
    assert len(found) > 60 and {("POST", "/gradio_api/upload"), ("GET", "/gradio_api/file=1")} <= found
    passed = {(m, p) for m, p in found if guard.refused_route({"method": m, "path": p}) is None}
    assert passed == ALLOWED


UPLOADS = (
    *("/gradio_api/upload", "/gradio_api/upload/", "//gradio_api/upload", "/gradio_api//upload", "/upload"),
    *("/gradio_api/%75pload", "/assets/../gradio_api/upload", "/assets/%2e%2e/gradio_api/upload", "/GRADIO_API/UPLOAD"),
    *(
        "/gradio_api/upload?upload_id=1",
        "/gradio_api/upload;x",
        "/gradio_api/./upload",
        "/gradio_api/queue/join/../upload",
    ),
    *("/static/..%2fgradio_api/upload", "/gradio_api\\upload", "/gradio_api/upload%00", "/gradio_api/upload%0a"),
)


@pytest.mark.parametrize("path", UPLOADS)
def test_uploads_are_refused(client, temporary, path):
    files = {"files": ("a.bin", b"0" * 3_000_000)}
    for method in ("POST", "PUT", "PATCH"):
        assert client.request(method, path, files=files).status_code in (404, 413)
    assert files_in(temporary) == []


@pytest.mark.parametrize(
    "path",
    [
        *("/gradio_api/file=/etc/passwd", "/gradio_api/file/etc/passwd", "/gradio_api/proxy=http://127.0.0.1/"),
        *("/gradio_api/stream/1/1/1/playlist.m3u8", "/gradio_api/upload_progress?upload_id=1", "/gradio_api/deep_link"),
        *("/login", "/monitoring", "/monitoring/summary", "/docs", "/openapi.json", "/gradio_api/openapi.json"),
        *(
            "/gradio_api/custom_component/1/client/1/1",
            "/gradio_api/dev/reload",
            "/gradio_api/runs",
            "/gradio_api/token",
        ),
        *(
            "/gradio_api/startup-events",
            "/pwa_icon",
            "/redoc",
            "/gradio_api/mcp/sse",
            "/assets/",
            "/assets//etc/passwd",
        ),
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "POST", "DELETE"])
def test_nothing_else_is_served(client, method, path):
    origin = {"Origin": "http://127.0.0.1:7860", "Access-Control-Request-Method": "POST"}
    assert client.request(method, path, headers=origin).status_code == 404


def test_the_page_and_its_files_are_served(client):
    html = client.get("/").text
    names = {match[1] for match in re.finditer(r'(?:src|href)="\.?(/(?:assets|static)/[^"]+)"', html)}
    assert names and all(client.get(name).status_code == 200 for name in names)
    for path in ("/config", "/theme.css", "/favicon.ico", "/manifest.json", "/gradio_api/info", "/gradio_api/app_id"):
        assert client.get(path).status_code == 200
    assert client.head("/").status_code == 200
    assert client.post("/gradio_api/queue/join", json=JOIN).status_code == 200
    assert "completed" in client.get("/gradio_api/queue/data?session_hash=s").text


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (413, json.dumps(JOIN | {"data": ["x" * LARGEST]}).encode()),
        (400, b"{"),
        (400, b"\xff"),
        (400, b"[" * 200_000),
        (400, b'{"fn_index": ' + b"9" * 10_000 + b"}"),
        (400, json.dumps(JOIN | {"data": ["\ud800"]}).encode()),
        (422, b"[]"),
        (422, json.dumps(JOIN | {"data": [FILE]}).encode()),
        (422, json.dumps(JOIN | {"data": [[FILE]]}).encode()),
        (422, json.dumps(JOIN | {"data": FILE}).encode()),
        (422, json.dumps(JOIN | {"data": [1]}).encode()),
        (422, json.dumps(JOIN | {"data": ["a", "b"]}).encode()),
        (422, json.dumps(JOIN | {"event_data": FILE}).encode()),
    ],
)
@pytest.mark.parametrize("path", ["/gradio_api/queue/join", "/gradio_api/cancel"])
def test_bodies_are_small_and_flat(client, temporary, monkeypatch, path, status, body):
    """Gradio would download the address of a file in `data` into the temporary folder."""
    monkeypatch.setattr(gradio.processing_utils, "async_ssrf_protected_download", lambda *_: pytest.fail("downloads"))
    found = client.post(path, content=body, headers={"Content-Type": "application/json"})
    assert found.status_code == status and found.text.count("\n") == 1 and len(found.text) < 300
    assert files_in(temporary) == []


def test_long_queries_are_answered(client):
    """The longest query is shorter than the limit of a body in every script."""
    client.post("/gradio_api/queue/join", json=JOIN | {"data": ["\U0001f600" * 100_001]})
    assert "expected up to 100,000" in client.get("/gradio_api/queue/data?session_hash=s").text


class Recorder:
    """An ASGI app that records the bytes that reach it."""

    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self, scope, receive, send) -> None:
        self.calls += 1
        message = await receive() if scope["method"] == "POST" else {}
        body = message.get("body", b"")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})


def exchange(hosts, headers, method="GET", path="/", parts=(b"",)):
    """Send a request, whose body comes in parts, and return status, headers, text and the number of parts taken."""
    app, sent = Recorder(), []
    left = [{"type": "http.request", "body": part, "more_body": i < len(parts) - 1} for i, part in enumerate(parts)]

    async def receive():
        return left.pop(0)

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "headers": headers}
    asyncio.run(Guard(app, hosts)(scope, receive, send))
    text = b"".join(message.get("body", b"") for message in sent).decode()
    return sent[0]["status"], dict(sent[0]["headers"]), text, app.calls, len(parts) - len(left)


def test_bodies_without_a_length_are_limited_too():
    """Chunked bodies: those that are small arrive in one part, and large ones are received but not kept."""
    host = [(b"host", b"localhost")]
    join = ("POST", "/gradio_api/queue/join")
    assert exchange(hosts_of("127.0.0.1"), host, *join, [b'{"data"', b': ["a"]}'])[:4:2] == (200, '{"data": ["a"]}')
    status, _, _, calls, taken = exchange(hosts_of("127.0.0.1"), host, *join, [b"0" * 2**20] * 9)
    assert (status, calls, taken) == (413, 0, 9)
    status, _, _, calls, taken = exchange(
        hosts_of("127.0.0.1"), host, "POST", "/gradio_api/upload", [b"0" * 2**20] * 99
    )
    assert (status, calls, taken) == (404, 0, guard.DISCARDED // 2**20)


LOCAL = ("127.0.0.1", "localhost", "LOCALHOST:7860", "localhost.", "[::1]:7860", "127.0.0.1:1")
FOREIGN = (
    *("evil.example", "evil.example:7860", "localhost.evil.example", "127.0.0.1.evil.example", "evil-localhost", ""),
    *(
        "localhost@evil.example",
        "evil.example/localhost",
        "evil.example#localhost",
        "localhost, evil.example",
        "local host",
    ),
    *("localhost:7860:1", "localhost:", "[::1", "::1", "0", "2130706433", "evil.example\tlocalhost", "foo.localhost"),
)


@pytest.mark.parametrize("address", ["127.0.0.1", "192.0.2.7", "box", "0.0.0.0", "::", "[::1]"])
@pytest.mark.parametrize("path", ["/", "/config", "/gradio_api/queue/join"])
def test_only_its_own_host_names_are_served(address, path):
    """So that a website cannot read the page by pointing its own name at this machine."""
    hosts, method = hosts_of(address), "POST" if "join" in path else "GET"

    def status(*names: str) -> int:
        found = exchange(hosts, [(b"host", name.encode("latin-1")) for name in names], method, path, [b"{}"])
        assert found[3] == (found[0] == 200)
        return found[0]

    assert {status(name) for name in LOCAL} == {200}
    assert {status(name) for name in FOREIGN} == {421} == {status(), status("localhost", "evil.example")}
    everywhere = address in ("0.0.0.0", "::")
    assert status("203.0.113.9") == (200 if everywhere else 421)
    assert status(os.uname().nodename) == (200 if everywhere else 421)
    assert everywhere or status(address) == 200


def test_the_message_names_the_option():
    text = exchange(hosts_of("127.0.0.1"), [(b"host", b"search.example:80")])[2]
    assert text == (
        "This page is not served for the host name 'search.example'. "
        "To allow it, start the page with the option `allowed_hosts` search.example.\n"
    )


@pytest.mark.parametrize(
    ("status", "host", "origin"),
    [
        (200, "localhost:7860", "http://localhost:7860"),
        (200, "127.0.0.1", "https://search.example"),  # a proxy that does not pass on its own name
        (200, "search.example", "https://search.example"),
        (403, "localhost:7860", "http://localhost:3000"),
        (403, "127.0.0.1:7860", "http://localhost:7860"),
        *(
            (403, "localhost:7860", bad)
            for bad in ("null", "http://evil.example", "file://localhost:7860", "", "http://")
        ),
        (403, "localhost:7860", "http://localhost:7860@evil.example"),
        (421, "evil.example", "http://evil.example"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_other_websites_cannot_send_requests(method, status, host, origin):
    headers = [(b"host", host.encode()), (b"origin", origin.encode())]
    path = "/" if method == "GET" else "/gradio_api/queue/join"
    found, answered, *_ = exchange(hosts_of("127.0.0.1", ["Search.example"]), headers, method, path, [b"{}"])
    assert found == (404 if method == "OPTIONS" and status == 200 else status)
    assert not [name for name in answered if b"access-control" in name]


def test_names_with_scheme_or_port_are_refused():
    for name in ("https://a.example", "a.example:80", "*:1", "", "a/b"):
        with raises_usage("allowed_hosts", found=f"has {name!r}", needed="host names without scheme and port"):
            hosts_of("127.0.0.1", [name])
    assert host_name("A.example:80") == "a.example" and host_name("[::1]:80") == "::1"


def test_a_space_is_served_under_every_name_and_in_a_frame():
    """The Hub chooses its name, and huggingface.co shows it in a frame. Its routes are limited too."""
    headers = [(b"host", b"me-space.hf.space"), (b"origin", b"https://huggingface.co")]
    status, answered, *_ = exchange(None, headers)
    assert status == 200 and b"frame-ancestors" not in answered[b"content-security-policy"]
    assert exchange(None, headers, "POST", "/gradio_api/upload")[0] == 404


def test_every_answer_has_a_policy(client):
    """The page loads and calls nothing but its own server, whatever is in a sentence or a report."""
    for path in ("/", "/config", "/nothing"):
        answered = client.get(path).headers
        policy = dict(part.split(" ", 1) for part in answered["content-security-policy"].split("; "))
        assert policy["default-src"] == "'self' 'unsafe-inline' 'unsafe-eval' data: blob:"
        assert policy["connect-src"] == policy["frame-ancestors"] == "'self'"
        assert policy["frame-src"] == policy["object-src"] == policy["form-action"] == "'none'"
        assert answered["x-content-type-options"] == "nosniff" and answered["referrer-policy"] == "no-referrer"


def test_websockets_are_closed():
    sent = []

    async def send(message):
        sent.append(message)

    asyncio.run(Guard(None, None)({"type": "websocket", "path": "/"}, None, send))
    assert sent == [{"type": "websocket.close", "code": 1008}]
