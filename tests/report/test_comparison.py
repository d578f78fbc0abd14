"""The report of `informin compare`, from compare.json."""

import json

import numpy as np
import pytest

from informin.cli import compare
from informin.cli import report as command
from informin.report import verdicts
from informin.report.page import page
from tests.conftest import make_sentences
from tests.report.helpers import SCRIPT, addresses, comparison_record


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Output of a comparison of two files of embeddings, one of texts that are not cut in halves."""
    folder = tmp_path_factory.mktemp("compare")
    texts = make_sentences(300)
    (folder / "texts.txt").write_text("\n".join(texts))
    sizes = {"halves": 300 + 2 * sum(len(text.split()) >= 4 for text in texts), "whole": 300}
    files = []
    for name in ("one", "other"):
        np.save(folder / f"{name}.npy", np.random.default_rng(len(name)).normal(size=(sizes["whole"], 8)))
        files.append(str(folder / f"{name}.npy"))
    words = [*files, "--train_file", str(folder / "texts.txt"), "--output_dir", str(folder / "out")]
    assert compare.main(words) == 0
    return folder / "out"


def test_comparison_leaves_a_page(folder, capsys):
    html = (folder / "report.html").read_text()
    assert addresses(html) == [] and "<script" not in html
    shown = json.loads((folder / "compare.json").read_text())["shown"]
    for text in (shown["title"], *shown["columns"], *(row["label"] for row in shown["rows"])):
        assert text in html
    assert command.main([str(folder)]) == 0
    assert (folder / "report.html").read_text() == html


def test_names_are_escaped_and_damage_is_refused(folder, tmp_path, capsys):
    record = json.loads((folder / "compare.json").read_text())
    record["shown"]["rows"][0]["label"] = SCRIPT
    row = dict(name=SCRIPT, rank=3.0, adapted=2.5, low=0.9, high=1.1, texts_per_second=None)
    record["figure"] = [row]
    (tmp_path / "compare.json").write_text(json.dumps(record))
    assert command.main([str(tmp_path)]) == 0
    html = (tmp_path / "report.html").read_text()
    assert "<script" not in html and html.count("&lt;script&gt;alert(1)") >= 2 and "<svg" in html
    del record["shown"]
    (tmp_path / "compare.json").write_text(json.dumps(record))
    assert command.main([str(tmp_path)]) == 2
    assert "shown" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["a\0b", "\x1b[31m red", "\ufffe", "a\tb\nc", "$x_{", "\u202eabc"])
def test_every_name_can_be_drawn(name, tmp_path):
    """XML does not allow control characters."""
    record = comparison_record()
    record["figure"][0]["name"] = name
    (tmp_path / "compare.json").write_text(json.dumps(record))
    html = page(tmp_path)
    assert "<svg" in html and "\x1b" not in html.partition("<svg")[2].partition("</svg>")[0].partition(">")[2]


@pytest.mark.parametrize(
    "others, word",
    [
        ([{"clear": True}], "A clear best"),
        ([{"clear": True}, {"clear": False}], "No clear best"),
        ([], "No evidence"),
    ],
)
def test_verdict_names_the_best_model(others, word):
    models = [{"model": f"m{i}", "rank": 2.0 + i, **one} for i, one in enumerate([{"clear": False}, *others])]
    verdict = verdicts.of_comparison([*models, {"model": "broken", "error": "no"}])
    assert verdict.word == word and (not others or verdict.sentence.startswith("m0 "))
