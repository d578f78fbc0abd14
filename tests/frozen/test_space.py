"""The Space of a published model."""

import json
import re
import runpy
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from huggingface_hub import HfApi, RepoCard
from safetensors.torch import load, save
from sentence_transformers import SentenceTransformer

from informin.files import read_json, write_json
from informin.frozen.space import write_space
from informin.publishing.push import SPACE_TAG
from informin.texts import GENERAL_SENTENCES
from tests.conftest import ROOT
from tests.publishing.helpers import contents

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


def test_low_rank_matrices_need_the_versions_of_the_extra(tmp_path):
    write_space(tmp_path, "ann/better", low_rank=True)
    names = ("sentence-transformers", "torch", "numpy")
    lines = (tmp_path / "requirements.txt").read_text().splitlines()
    declared = re.search(r"(?m)^lora = (\[.*?\])", (ROOT / "pyproject.toml").read_text())[1]
    assert {line for line in lines if not line.startswith(names)} == set(json.loads(declared))


def test_app_reads_low_rank_matrices_of_a_branch(logged_in, tmp_path, st_mean, monkeypatch):
    """Libraries would take the configuration from the branch, and the weights from main."""
    peft = pytest.importorskip("peft")
    logged_in.add_repo("alice/source", contents(st_mean))
    model = SentenceTransformer("alice/source", device="cpu")
    model.add_adapter(peft.LoraConfig(r=2, target_modules=["query"], init_lora_weights=False))
    expected = model.encode(["the dog sleeps"])
    model.save_pretrained(str(tmp_path / "matrices"), create_model_card=False)
    files = contents(tmp_path / "matrices")
    zeros = {name: 0 * weight for name, weight in load(files["adapter_model.safetensors"]).items()}
    logged_in.add_repo("alice/m", files | {"adapter_model.safetensors": save(zeros, {"format": "pt"})}, author="alice")
    HfApi().create_branch("alice/m", branch="dev")
    HfApi().upload_folder(repo_id="alice/m", folder_path=tmp_path / "matrices", revision="dev")
    (tmp_path / "page").mkdir()
    write_space(tmp_path / "page", "alice/m", revision="dev", low_rank=True)
    (tmp_path / "page" / "sentences.txt").write_text("The cat sleeps.\n")
    monkeypatch.syspath_prepend(str(tmp_path / "page"))
    monkeypatch.delitem(sys.modules, "page", raising=False)
    app = runpy.run_path(str(tmp_path / "page" / "app.py"))
    np.testing.assert_allclose(app["model"].encode(["the dog sleeps"]), expected, atol=1e-6)


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
