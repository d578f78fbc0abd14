"""The defaults that come from the Hub, from a server on 127.0.0.1 that speaks enough of its protocol: real client, real
bytes, an empty cache."""

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from informin.data import HUB_DATA, HUB_SENTENCES, HUB_SENTEVAL
from tests.conftest import ROOT, make_sentences

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def stsb_dev() -> str:
    """1,500 pairs in SentEval's layout, of which some share words."""
    first, second = make_sentences(1500, seed=5), make_sentences(1500, seed=6)
    rows = [f"g\tf\t2012\t{i:04}\t{i % 6}.000\t{a}\t{b}" for i, (a, b) in enumerate(zip(first, second))]
    return "\n".join(rows) + "\n"


def senteval_tar() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        content = stsb_dev().encode()
        member = tarfile.TarInfo("STS/STSBenchmark/sts-dev.csv")
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


class Handler(BaseHTTPRequestHandler):
    """GET and HEAD of /REPO/resolve/REVISION/FILE; everything else is not found."""

    files: dict[str, bytes] = {}
    fetched: list[str] = []

    def answer(self, body: bool) -> None:
        content = self.files.get(self.path)
        if content is None:
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.fetched.append(self.path)
            self.wfile.write(content)

    def do_GET(self):
        self.answer(body=True)

    def do_HEAD(self):
        self.answer(body=False)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(bert):
    """Serves a tiny model as org/tiny, and the data set that holds the default sentences and SentEval."""
    data = f"/datasets/{HUB_DATA}/resolve/main"
    files = {f"{data}/{HUB_SENTENCES}": ("\n".join(make_sentences(64)) + "\n").encode()}
    files[f"{data}/{HUB_SENTEVAL}"] = senteval_tar()
    for path in bert.iterdir():
        files[f"/org/tiny/resolve/main/{path.name}"] = path.read_bytes()
    handler = type("Hub", (Handler,), {"files": files, "fetched": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield handler, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def run(endpoint: str, home: Path, *options: str) -> subprocess.CompletedProcess:
    environment = {name: value for name, value in os.environ.items() if name != "SENTEVAL_DATA"}
    environment |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0", "OMP_NUM_THREADS": "1"}
    arguments = "--model_name=org/tiny --max_steps=2 --eval_steps=2 --per_device_train_batch_size=16 --bf16=false"
    return subprocess.run(
        [sys.executable, str(ROOT / "run_unsup.py"), *arguments.split(), "--disable_tqdm=true", *options],
        env=environment,
        cwd=home.parent,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_only_a_model_name(hub, tmp_path):
    """Model, sentences and STS-B dev come from the Hub; the second run fetches none of the data again."""
    handler, endpoint = hub
    first = run(endpoint, tmp_path / "home")
    assert first.returncode == 0, first.stderr[-3000:]
    assert "64 of 64 sentences" in first.stderr and "STS-B dev, Spearman x 100" in first.stdout
    assert (tmp_path / "outputs" / "tiny-informin-seed42" / "model.safetensors").is_file()
    data = [path for path in handler.fetched if HUB_DATA in path]
    assert len(data) == 2
    second = run(endpoint, tmp_path / "home", "--seed=7")
    assert second.returncode == 0, second.stderr[-3000:]
    assert [path for path in handler.fetched if HUB_DATA in path] == data
    assert (tmp_path / "outputs" / "tiny-informin-seed7").is_dir()


def test_data_that_the_hub_does_not_have(hub, tmp_path):
    """Said before training, with the way to go on without."""
    handler, endpoint = hub
    for path in [path for path in handler.files if path.endswith(HUB_SENTEVAL)]:
        del handler.files[path]
    result = run(endpoint, tmp_path / "home")
    assert result.returncode == 2
    assert "senteval.tar cannot be fetched from the Hub data set" in result.stderr
    assert "--eval_strategy no" in result.stderr and "Traceback" not in result.stderr
    assert not (tmp_path / "outputs").exists()
