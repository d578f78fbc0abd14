"""docs/papers.md: each study on the page is a file, and holds the paper's numbers."""

import re

import pytest

from experiments.studies.plan import read_study
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if re.search(r"experiments\.study \S+\.yaml", line)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[2:50])
def test_studies_have_the_published_scores(row):
    paper, command = (cell.strip() for cell in row.strip("|").split("|")[1:3])
    study = read_study(ROOT / re.search(r"experiments\.study (\S+\.yaml)", command)[1])
    published = {f"{score:.2f}" for scores in study.published.values() for score in scores.values()}
    assert set(re.findall(r"\d\d\.\d\d", paper)) <= published


def test_most_rows_of_the_page_are_checked():
    assert len(ROWS) > 15
