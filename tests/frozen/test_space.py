"""The Space of a published model."""

import runpy
import sys
from importlib.util import find_spec

import pytest
from huggingface_hub import RepoCard

from informin.files import read_json, write_json
from informin.frozen.space import write_space
from informin.publishing.push import SPACE_TAG
from informin.texts import GENERAL_SENTENCES

pytestmark = pytest.mark.skipif(not find_spec("gradio"), reason="gradio is not installed")


def test_files(tmp_path):
    write_space(tmp_path, "ann/better", revision="1234")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["README.md", "app.py", "model.json", "page.css", "page.py", "requirements.txt", "sentences.txt"]
    )
    card = RepoCard.load(tmp_path / "README.md")
    assert card.data.title == "better" and card.data.models == ["ann/better"] and SPACE_TAG in card.data.tags
    assert card.data.sdk == "gradio" and card.data.app_file == "app.py"
    assert read_json(tmp_path / "model.json") == {"model": "ann/better", "revision": "1234"}
    lines = (tmp_path / "requirements.txt").read_text().splitlines()
    assert all("==" in line and "+" not in line for line in lines)


def test_app_compares_sentences_without_this_package(tmp_path, st_mean, monkeypatch):
    write_space(tmp_path, "ann/better")
    write_json(tmp_path / "model.json", {"model": str(st_mean), "revision": None})
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.partition(".")[0] in ("informin", "page")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "informin", None)  # any import fails
    app = runpy.run_path(str(tmp_path / "app.py"))
    cards = app["compare"]("the dog sleeps\n\nthe dog sleeps today\nthe dog sleeps\n", 2)
    assert [card.group for card in cards] == ["the dog sleeps"] * 2 + ["the dog sleeps today"] * 2
    assert cards[0].text == "the dog sleeps today" and cards[2].text == "the dog sleeps"
    assert cards[0].score == cards[2].score
    known = {"the dog sleeps", "the dog sleeps today", *GENERAL_SENTENCES.read_text().splitlines()}
    assert {card.text for card in cards} <= known
    assert app["demo"].title == str(st_mean)
