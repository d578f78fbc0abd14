"""The files of a Space, and its app started the way the Hub starts it."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from importlib.util import find_spec

import httpx
import pytest
from huggingface_hub import SpaceCard

from informin.demo.space import FOR_OTHER_MODELS, REQUIREMENTS, SENTENCES, requirements, write_space
from informin.labeled_sentences import LABEL, Sentences, load_labeled_sentences
from informin.publishing.card import is_edited
from tests.conftest import make_sentences
from tests.publishing.push.push_helpers import export
from tests.test_layering import MODULES, reachable

gradio = pytest.importorskip("gradio")
# Packages that the app can do without, gradio, which the card names, and what comes with it or with transformers.
OPTIONAL = {"gradio", "fastapi", "uvicorn", "packaging", "tokenizers", "faiss", "sentence_transformers", "peft"}
IMPORTED_AS = {"scikit-learn": "sklearn"}


@pytest.fixture
def space(bert, tmp_path):
    folder = tmp_path / "space"
    folder.mkdir()
    write_space(folder, "Search with m", [str(bert), "org/base"], Sentences(make_sentences(20), ["<b>"] * 20))
    return folder


def test_files(space):
    assert {path.name for path in space.iterdir()} == {
        *("README.md", "app.py", "requirements.txt", SENTENCES, "modeling_informin.py", "informin")
    }
    assert {path.suffix for path in (space / "informin").rglob("*") if path.is_file()} == {".py", ".css", ".js"}
    assert load_labeled_sentences(space / SENTENCES) == Sentences(make_sentences(20), ["<b>"] * 20)


def test_every_module_that_the_page_imports_is_there(space):
    copied = {path.relative_to(space).with_suffix("") for path in space.rglob("*.py")}
    copied = {".".join(path.parts).removesuffix(".__init__") for path in copied}
    assert {name for name in reachable("informin.demo.page") if name in MODULES} <= copied
    assert not any(name.startswith("informin.training") for name in copied)


def test_card(space, bert):
    data = SpaceCard.load(space / "README.md").data.to_dict()
    assert data["sdk"] == "gradio" and data["sdk_version"] == gradio.__version__ and data["app_file"] == "app.py"
    assert data["models"] == [str(bert), "org/base"] and re.fullmatch(r"3\.\d+", data["python_version"])
    assert not is_edited(space / "README.md") and "nearest of 20 sentences" in (space / "README.md").read_text()


def test_requirements_cover_every_import():
    """Each is pinned to the version tested here, unless the Hub's own packages need others. None is local."""
    ours = {name.partition(".")[0] for name in MODULES}
    found = {name.partition(".")[0] for name in reachable("informin.demo.page")} - ours - {*sys.stdlib_module_names}
    assert found - OPTIONAL == {IMPORTED_AS.get(name, name) for name in REQUIREMENTS}
    missing = set() if find_spec("sentence_transformers") else {"sentence-transformers"}
    lines = dict(line.partition("==")[::2] for line in requirements())
    assert [name for name in lines if name not in FOR_OTHER_MODELS] == list(REQUIREMENTS)
    assert ("peft" in lines) == (find_spec("peft") is not None) and "sentence-transformers" in {*lines, *missing}
    assert "+" not in "".join(lines.values())
    assert {name for name, version in lines.items() if not version} == {"psutil"}


def test_no_labels(tmp_path, bert):
    write_space(tmp_path, "t", ["me/m"], Sentences(["a", "b"]))
    assert [json.loads(line) for line in (tmp_path / SENTENCES).read_text().splitlines()] == [
        {"text": "a"},
        {"text": "b"},
    ]
    assert LABEL not in (tmp_path / SENTENCES).read_text()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def test_the_app_starts_from_its_own_folder(bert, tmp_path):
    """Like the Hub: `python app.py` in the folder, with the address in the environment, and no other copy of us."""
    folder = tmp_path / "app"
    folder.mkdir()
    model = export(bert, tmp_path / "model")
    write_space(folder, "Search", [str(model)], Sentences(make_sentences(20)))
    app = folder / "app.py"
    app.write_text(app.read_text().replace("MODELS = ", "import informin; print(informin.__file__); MODELS = "))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    port = free_port()
    environment |= {"HF_HOME": str(tmp_path / "home"), "PYTHONUNBUFFERED": "1"}
    environment |= {"GRADIO_SERVER_NAME": "127.0.0.1", "GRADIO_SERVER_PORT": str(port)}
    with (tmp_path / "log").open("w+") as log:
        process = subprocess.Popen([sys.executable, "app.py"], cwd=folder, env=environment, stdout=log, stderr=log)
        try:
            page, end = "", time.monotonic() + 90
            while not page and time.monotonic() < end and process.poll() is None:
                time.sleep(0.2)
                try:
                    page = httpx.get(f"http://127.0.0.1:{port}/").text
                except httpx.TransportError:
                    pass
        finally:
            process.terminate()
            process.wait(30)
        log.seek(0)
        printed = log.read()
    assert "20 sentences" in page, printed
    assert f"{folder}/informin/__init__.py" in printed
