"""The report of `informin study`, from its summary.json."""

import json
import shutil

import pytest

from informin.cli import report as command
from informin.cli import study
from informin.report.page import page
from informin.report.study import verdict
from tests.conftest import ROOT
from tests.report.helpers import SCRIPT, addresses

SUMMARY = ROOT / "results" / "studies" / "main-small" / "summary.json"


@pytest.fixture
def folder(tmp_path):
    shutil.copy(SUMMARY, tmp_path)
    return tmp_path


def test_study_leaves_a_page_with_its_tables(folder, capsys):
    assert study.main([str(folder / "summary.json")]) == 0
    assert f"Report: {folder / 'report.html'}" in capsys.readouterr().out
    html = (folder / "report.html").read_text()
    assert addresses(html) == [] and "<script" not in html
    for paired in json.loads(SUMMARY.read_text())["differences"]:
        assert f"<td>{paired['mean']:+.2f}</td>" in html
    assert "Mixed." in html and "Helped: informin against simcse +1.25 (+0.75 to +1.74, 5 seeds)" in html
    assert html.count("max_seq_length") == 1 and "reconstruction_weight 0.4" in html  # shared, and of one setting
    assert command.main([str(folder)]) == 0
    assert (folder / "report.html").read_text() == html


def test_names_are_escaped(folder):
    path = folder / "summary.json"
    path.write_text(path.read_text().replace("The family", SCRIPT).replace('"scd"', f'"{SCRIPT}"'))
    html = page(folder)
    assert "<script" not in html and "&lt;script&gt;alert(1)&lt;/script&gt;, MiniLM" in html


def test_damaged_summaries_are_refused(folder, capsys):
    (folder / "summary.json").write_text('{"shared": {}, "runs": []}')
    assert command.main([str(folder)]) == 2
    assert capsys.readouterr().err.startswith("error: ") and not (folder / "report.html").exists()


def gain(mean: float, verdict: str = "signal") -> dict:
    interval = [mean - 0.1, mean + 0.1]
    return dict(setting="a", baseline="b", measure="sts", mean=mean, n=5, t=interval, verdict=verdict)


@pytest.mark.parametrize(
    "gains, word",
    [
        ([gain(1)], "Helped"),
        ([gain(-1)], "Hurt"),
        ([gain(0, "not shown")], "No evidence"),
        ([gain(1), gain(-1)], "Mixed"),
        ([gain(1) | {"t": None, "verdict": "n < 3: no interval"}], "No evidence"),
        ([], "No evidence"),
    ],
)
def test_verdict_follows_the_differences(gains, word):
    assert verdict({"differences": gains}).word == word


def test_verdict_on_equal_differences():
    equal = gain(1) | {"t": None, "verdict": "equal differences"}
    assert "The differences of all seeds are equal" in verdict({"differences": [equal]}).sentence
    assert "over three seeds or more" in verdict({"differences": [equal | {"n": 2}]}).sentence
