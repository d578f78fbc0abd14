"""docs/papers.md: each command parses, and its study holds the paper's numbers."""

import re
import shlex

import pytest

from informin.cli import analyze
from informin.studies.plan import read_study
from tests.conftest import ROOT

VERDICTS = {"reproduced", "depends on the encoder", "not at this scale", "contradicted", "contradicted in short runs"}
PAGE = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
ROWS = [line.strip("|").split("|") for line in PAGE.splitlines() if line.startswith("| ") and "`informin" in line]
ROWS = [[cell.strip() for cell in row] for row in ROWS]


def test_every_row_has_a_command_and_a_verdict():
    lines = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| what ")]
    assert len(ROWS) == len(lines) > 20
    assert {row[4] for row in ROWS} == VERDICTS
    assert [row[0] for row in ROWS if row[4] != "not at this scale" and not row[3]] == [], "a verdict needs a figure"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_command_parses_and_its_study_has_the_published_scores(row, bert):
    _, paper, command, _, _ = row
    program, name, *arguments = shlex.split(command.strip("`"))
    assert program == "informin" and name in ("study", "analyze")
    if name == "analyze":
        analyze.parser().parse_args(arguments)
        assert not paper
    else:
        (path,) = arguments
        study = read_study(ROOT / path, [f"model_name={bert}"])
        published = {f"{score:.2f}" for scores in study.published.values() for score in scores.values()}
        assert set(re.findall(r"\d\d\.\d\d", paper)) <= published
