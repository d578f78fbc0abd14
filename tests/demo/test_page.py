"""The page itself: what it answers, where it listens, and what it needs. tools/browser_checks.py drives a browser."""

import json
import os
import re
import signal
import socket
import sys
from dataclasses import replace

import httpx
import psutil
import pytest

from informin.cli.search import main
from informin.demo.page import answer, app_of, build_page, serve
from informin.demo.server import address_of, listen, url_of
from tests import forked
from tests.conftest import ROOT, raises_usage
from tests.demo.helpers import AFTER, BEFORE, search_of

gradio = pytest.importorskip("gradio")
from starlette.testclient import TestClient


@pytest.fixture(scope="module")
def url():
    """A page of two models."""
    return serve(build_page(search_of(BEFORE, AFTER))).rstrip("/")


def test_answers():
    search = search_of(BEFORE, AFTER)
    assert 'class="hits"' in answer(search, " query ")
    for query in ("", " \n", None):
        assert answer(search, query).startswith('<p class="note" role="status">Type a few words')
    assert 'role="alert">The query has 100,001 characters; expected up to 100,000.' in answer(search, "x" * 100_001)


def test_a_visitor_gets_the_results(url):
    """With the requests that the page sends."""
    config = json.loads(re.search(r"window.gradio_config = (\{.*?\});</script>", httpx.get(url).text)[1])
    assert config["analytics_enabled"] is False and config["title"] == "Search with model-0 and model-1"
    for dependency in (0, 1):  # Enter and the button
        with httpx.Client(base_url=f"{url}/gradio_api", timeout=30) as client:
            joined = dict(data=["query"], fn_index=dependency, session_hash="s")
            assert client.post("/queue/join", json=joined).status_code == 200
            events = [
                line for line in client.get("/queue/data?session_hash=s").text.splitlines() if "completed" in line
            ]
        (html,) = json.loads(events[0].removeprefix("data:"))["output"]["data"]
        assert html.count("<li>") == 6 and "model-1" in html


def test_nothing_comes_from_other_hosts(url):
    page = httpx.get(url).text
    loaded = re.findall(r"(?:src|href)=[\"']?(https?://[^\"' >]*)", page)
    theme = httpx.get(f"{url}/theme.css").text
    assert loaded == [] and "http" not in re.sub(r"http://www.w3.org/\d+/svg", "", theme) and "system-ui" in theme


def test_the_guard_is_in_front_of_the_page(url):
    """test_guard.py has the details."""
    files = {"files": ("a.bin", b"0" * 3_000_000)}
    assert httpx.post(f"{url}/gradio_api/upload", files=files, timeout=30).status_code == 404
    assert httpx.post(f"{url}/gradio_api/upload", files=files, headers={"Connection": "close"}).status_code == 404
    assert httpx.get(url, headers={"Host": "evil.example"}).status_code == 421
    assert httpx.get(url, headers={"Origin": "http://evil.example"}).status_code == 403
    assert "default-src 'self'" in httpx.get(url).headers["Content-Security-Policy"]


def test_names_of_models_are_text():
    """Also in the title of the page, and in the data that the page's script reads."""
    search = search_of(BEFORE)
    name = "</title></script><script>window.ran = 1</script>"
    search.models = [replace(search.models[0], name=name)]
    with TestClient(app_of(build_page(search))) as client:
        html = client.get("/").text
    assert "window.ran" in html and "<script>window.ran" not in html


def test_a_space_is_served_under_every_name(monkeypatch):
    page = build_page(search_of(BEFORE))
    for name, value in {"SPACE_ID": "me/space", "GRADIO_SERVER_NAME": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    url = serve(page, host=None)
    assert httpx.get(url, headers={"Host": "me-space.hf.space"}).status_code == 200
    assert httpx.post(f"{url}gradio_api/upload", files={"files": b"0"}).status_code == 404


def test_the_environment_does_not_open_more(monkeypatch):
    """Gradio reads these variables. Workers would serve uploads on ports of their own."""
    on = ("GRADIO_MCP_SERVER", "GRADIO_SHARE", "GRADIO_SSR_MODE", "GRADIO_RUN_HISTORY", "GRADIO_ANALYTICS_ENABLED")
    for name in on:
        monkeypatch.setenv(name, "True")
    monkeypatch.setenv("GRADIO_NUM_WORKERS", "2")
    monkeypatch.setenv("GRADIO_ALLOWED_PATHS", "/")
    url = serve(build_page(search_of(BEFORE)))
    assert httpx.get(f"{url}gradio_api/file=/etc/passwd").status_code == 404
    children = psutil.Process().children(recursive=True)
    assert not [child for child in children if child.net_connections("inet")]


def test_addresses(monkeypatch):
    monkeypatch.delenv("GRADIO_SERVER_NAME", raising=False)
    assert address_of(None) == address_of("") == "127.0.0.1" and address_of("[::1]") == "::1"
    monkeypatch.setenv("GRADIO_SERVER_NAME", "0.0.0.0")
    assert address_of(None) == "0.0.0.0" and address_of("127.0.0.1") == "127.0.0.1"
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        monkeypatch.setenv("GRADIO_SERVER_PORT", str(port))
        with listen("127.0.0.1") as next_free:
            assert port < next_free.getsockname()[1] < port + 100
    for host, name in (("0.0.0.0", "localhost"), ("localhost", "127.0.0.1"), ("::1", "[::1]")):
        with listen(host, 0) as listener:
            assert re.fullmatch(rf"http://{re.escape(name)}:\d+/", url_of(listener))


def test_files_of_this_machine_are_not_served(url):
    for path in (ROOT / "README.md", "README.md"):
        assert httpx.get(f"{url}/gradio_api/file={path}").status_code == 404


def test_only_this_machine_is_served(url):
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", url)
    port = int(url.rpartition(":")[2])
    outside = socket.gethostbyname(socket.gethostname())
    if not outside.startswith("127."):
        with pytest.raises(OSError):
            socket.create_connection((outside, port), timeout=5)


def test_addresses_where_no_server_can_listen(url):
    page = build_page(search_of(BEFORE))
    used = int(url.rpartition(":")[2])
    for port in (used, 99_999):
        with raises_usage("port", found=f"is {port}, where no server can listen: ", fix="Choose another port."):
            serve(page, port=port)
    with raises_usage("host", found="is nowhere.invalid, where no server can listen: "):
        serve(page, host="nowhere.invalid")


@pytest.mark.usefixtures("logging_as_before")
def test_gradio_is_missing(monkeypatch, capsys, sentences_file):
    monkeypatch.setitem(sys.modules, "gradio", None)
    assert main(["model", "--train_file", str(sentences_file)]) == 2
    error = capsys.readouterr().err
    assert error == (
        "error: The search page needs the package gradio, which is not installed. "
        "Install the extra `demo` (see Install in README).\n"
    )


def test_command(bert, sentences_file, tmp_path):
    """It serves until Ctrl-C, and leaves nothing in the temporary folder."""
    words = ["search", bert, bert, "--pooler", "mean", "--device", "cpu", "--train_file", sentences_file]
    (tmp_path / "temporary").mkdir()
    environment = os.environ | {"HF_HOME": str(tmp_path / "home"), "GRADIO_SERVER_NAME": "0.0.0.0"}
    environment |= {"TMPDIR": str(tmp_path / "temporary")}
    home = "import os; from huggingface_hub import constants; constants.HF_HOME = os.environ['HF_HOME']"
    process = forked.module("informin", words, home, env=environment)
    try:
        assert process.stdout.readline() == f"96 sentences from {sentences_file}\n"
        found = re.fullmatch(
            r"The search page is at (http://127.0.0.1:\d+/) \(Ctrl-C stops it\)\n", process.stdout.readline()
        )
        assert "96 sentences" in httpx.get(found[1]).text
        files = {"files": ("a.bin", b"0" * 3_000_000)}
        assert httpx.post(f"{found[1]}gradio_api/upload", files=files).status_code == 404
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr.read().strip() in ("interrupted", "Interrupted.", "")
    finally:
        process.kill()
    assert [path for path in (tmp_path / "temporary").rglob("*") if path.is_file()] == []
    assert len(list((tmp_path / "home" / "informin-cl" / "embeddings").glob("*.npy"))) == 1
