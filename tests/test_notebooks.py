"""The notebooks in examples/ run on small data, and their saved outputs are complete."""

import json
import shutil
import socketserver
import sys
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest

from tests import forked
from tests.conftest import make_sentences, save_bert
from tests.publishing.test_adapted import sentence_transformer
from tools.notebooks import NOTEBOOKS, execute, last_state, path_in

SAVED = {path.stem: nbformat.read(path, as_version=4) for path in NOTEBOOKS}
NAMES = sorted(SAVED)


@pytest.fixture
def folder(tmp_path):
    """What the notebooks read: a tiny model under the name that they use, titles, abstracts and a test collection."""
    pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    pytest.importorskip("faiss", reason="faiss is not installed")
    model = tmp_path / "sentence-transformers" / "all-MiniLM-L6-v2"
    sentence_transformer(save_bert(tmp_path / "bert"), model)
    shutil.rmtree(tmp_path / "bert")
    texts = make_sentences(120)
    (tmp_path / "titles.txt").write_text("\n".join(texts) + "\n")
    for name in ("abstracts", "cisi"):
        (tmp_path / name).mkdir()
    for part, rows in enumerate((texts[:50], texts[50:])):
        (tmp_path / "abstracts" / f"part{part}.txt").write_text("\n".join(rows) + "\n")
    for name, rows in (("corpus", texts), ("queries", make_sentences(8, seed=1))):
        lines = [f"{name}{number}\t{text}" for number, text in enumerate(rows)]
        (tmp_path / "cisi" / f"{name}.tsv").write_text("\n".join(["id\ttext", *lines]) + "\n")
    judged = [f"queries{query}\tcorpus{query * 5 + place}" for query in range(8) for place in (0, 1)]
    (tmp_path / "cisi" / "qrels.tsv").write_text("\n".join(["query\tdocument", *judged]) + "\n")
    return tmp_path


# Asks the test to run `python -m NAME WORDS`, and ends like it.
CLIENT = """#!{python} -SE
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect({address!r})
    connection.sendall(json.dumps([sys.argv[2], sys.argv[3:], os.getcwd(), dict(os.environ)]).encode() + b"\\n")
    code, out, err = json.loads(connection.makefile().readline())
sys.stdout.write(out)
sys.stderr.write(err)
sys.exit(code)
"""


class Commands(socketserver.StreamRequestHandler):
    """Runs a command in a fork of a process that has loaded torch."""

    def handle(self) -> None:
        name, words, folder, environment = json.loads(self.rfile.readline())
        done = forked.run(forked.module(name, words, env=environment, cwd=folder), timeout=300)
        self.wfile.write(json.dumps([done.returncode, done.stdout, done.stderr]).encode() + b"\n")


@pytest.fixture
def python(monkeypatch):
    """Commands of a notebook are forks."""
    with tempfile.TemporaryDirectory() as folder:
        client, address = Path(folder, "python"), str(Path(folder, "socket"))
        client.write_text(CLIENT.format(python=sys.executable, address=address))
        client.chmod(0o755)
        monkeypatch.setattr("tools.notebooks.sys", SimpleNamespace(executable=str(client)))
        with socketserver.ThreadingUnixStreamServer(address, Commands) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield
            server.shutdown()


def outputs_of(notebook) -> list:
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def kinds(notebook) -> list[str]:
    """Whether each code cell prints or shows a figure."""
    found = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            figure = any("image/png" in output.get("data", {}) for output in cell.outputs)
            found.append("figure" if figure else "text" if cell.outputs else "nothing")
    return found


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NAMES)
def test_it_runs(name, folder, python):
    notebook = execute(nbformat.from_dict(SAVED[name]), folder)
    for output in outputs_of(notebook):
        assert output.get("name") != "stderr" or "Traceback" not in output.text
        assert "error:" not in output.get("text", "")
    assert kinds(notebook) == kinds(SAVED[name])


@pytest.mark.parametrize("name", NAMES)
def test_saved_outputs_are_complete(name):
    """A figure, progress bars, and no path of the machine that ran it."""
    notebook = SAVED[name]
    text = "".join(output.get("text", "") for output in outputs_of(notebook))
    assert "figure" in kinds(notebook) and "100%|" in text and "rror:" not in text
    assert path_in(notebook) is None
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))


def test_a_path_is_found():
    output = nbformat.v4.new_output("stream", text="done\n/home/me/model saved\n")
    cell = nbformat.v4.new_code_cell("print()", outputs=[output])
    assert path_in(nbformat.v4.new_notebook(cells=[cell])) == "/home/me/model"
    cell.outputs = [nbformat.v4.new_output("stream", text="models/home/model, https://example.com/home/me\n")]
    assert path_in(nbformat.v4.new_notebook(cells=[cell])) is None


def test_the_last_state_of_a_bar_is_kept():
    assert last_state("a: 10%\ra: 100%") == "a: 100%"
    assert last_state("a: 10%\ra: 90%\r        \r") == "a: 90%"
    assert last_state("") == "" and last_state("a line") == "a line"
