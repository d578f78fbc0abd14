"""docs/papers.md, studies, recipes and drawings print the papers' figures of experiments/published.yaml."""

import re

import pytest
import yaml

from experiments.published import figure, published
from experiments.studies.plan import read_study
from experiments.studies.table import summarize, tables
from tests.conftest import ROOT, raises_usage

PAGE = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
METHOD, CLAIMS = PAGE.split("## Claims")
STUDIES = [
    path for path in sorted(ROOT.glob("experiments/configs/*.yaml")) if "\npublished:" in path.read_text("utf-8")
]
NUMBER = r"[+-]?\d+\.\d+"
FIGURE = r"(?<![\d.-])[+-]?\d\d\.\d\d(?!\d|%)"  # of an average, in a text


def rows():
    """Yield paper, subject, figures and command of each row, from the sections' tables."""
    for section in CLAIMS.split("\n### ")[1:]:
        title, lines = section.split("\n", 1)
        for line in re.findall(r"^\| (?!what|-)(.*) \|$", lines, re.MULTILINE):
            subject, figures, command = [cell.strip() for cell in line.split("|")][:3]
            yield subject.split()[0] if title == "Later papers" else title, subject, figures, command


ROWS = list(rows())
PRINTED = [row for row in ROWS if re.search(r"\d", row[2])]


def found(paper: str, subject: str, name: str) -> set[float]:
    """Return the figures called `name` in the table that a row's subject names most fully: all words of its place."""

    def named(words: list[str]) -> bool:
        return all(re.search(rf"(?<![\w.]){re.escape(word)}(?!\w)", subject, re.IGNORECASE) for word in words)

    places = [(place, value) for (source, *place, row), value in published().items() if (source, row) == (paper, name)]
    places = [(place, value) for place, value in places if named(place)]
    return {value for place, value in places if len(place) == max(len(other) for other, _ in places)}


@pytest.mark.parametrize(
    "paper, subject, figures, command", PRINTED, ids=[f"{row[0]}: {row[1][:50]}" for row in PRINTED]
)
def test_rows_print_the_figures_of_their_table(paper, subject, figures, command):
    for part in re.split("[,;] ", figures):
        if re.search(r"\d", part):
            name, value = re.fullmatch(rf"(.+) ({NUMBER})", part).groups()
            assert found(paper, subject, name) == {float(value)}, part


@pytest.mark.parametrize(
    "paper, subject, figures, command", PRINTED, ids=[f"{row[0]}: {row[1][:50]}" for row in PRINTED]
)
def test_studies_have_the_figures_of_their_rows(paper, subject, figures, command):
    if study := re.search(r"experiments\.study (\S+\.yaml)", command):
        scores = read_study(ROOT / study[1]).published.values()
        assert set(map(float, re.findall(FIGURE, figures))) <= {score for by in scores for score in by.values()}


def test_most_rows_are_checked():
    assert len(PRINTED) > 20 and len(PRINTED) < len(ROWS)


def test_the_text_prints_published_figures():
    (own,) = re.findall(r"^\* \*\*The paper's own figures\*\*.*?(?=^\* )", METHOD, re.MULTILINE | re.DOTALL)
    of_the_paper = {value for (paper, *_), value in published().items() if paper == "InforMin-CL"}
    numbers = set(map(float, re.findall(NUMBER, re.sub(r"\[.*?\]\(.*?\)", "", own))))
    assert len(numbers) == 4 and numbers <= of_the_paper
    gain = figure("InforMin-CL, table 2, BERT-base, InforMin-CL") - figure("InforMin-CL, table 2, BERT-base, SimCSE")
    assert re.search(rf"gain\s+over\s+its own SimCSE, {gain:.2f},", METHOD)
    sentence = re.search(r"the SimCSE of\s+its own table: (.*?)\.\n", CLAIMS, re.DOTALL)[1]
    for value, paper in re.findall(rf"({NUMBER}) in (\S+)'s", sentence):
        assert float(value) in {v for key, v in published().items() if key[0] == paper and key[-1] == "SimCSE"}, paper


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_studies_refer_to_published_figures(path):
    text = path.read_text(encoding="utf-8")
    references = [ref for measures in yaml.safe_load(text)["published"].values() for ref in measures.values()]
    assert references and all(isinstance(figure(reference), float) for reference in references)
    assert set(map(float, re.findall(FIGURE, text))) <= set(published().values())


@pytest.mark.parametrize("place", ["informin/recipes/*.yaml", "experiments/figures/*.py"])
def test_recipes_and_drawings_print_no_other_figures(place):
    texts = [path.read_text(encoding="utf-8") for path in ROOT.glob(place)]
    printed = {value for text in texts for value in re.findall(FIGURE, text)}
    assert texts and set(map(float, printed)) <= set(published().values())


def test_a_figure_of_a_study_that_is_not_in_the_file_is_refused(tmp_path):
    study = "recipes: {simcse: {}}\nseeds: [1]\npublished: {simcse: {sts: %s}}"
    for wrong in ("76.25", '"InforMin-CL, table 2, BERT-base, SCD"'):
        (tmp_path / "study.yaml").write_text(study % wrong, encoding="utf-8")
        with raises_usage():
            read_study(tmp_path / "study.yaml")


def test_averages_that_follow_from_printed_columns():
    for name in ("self-contrast alone", "decorrelation alone", "both"):
        five, *others = (figure(f"SCD, table 3, {name}, {column}") for column in ("STS12-16", "STS-B", "SICK-R"))
        average = (5 * five + sum(others)) / 7
        assert figure(f"SCD, table 3 over seven tests, STS, {name}") == pytest.approx(average, abs=0.015), name


def test_a_study_s_table_shows_the_baselines_of_other_papers():
    (means, *_) = tables(summarize(read_study(ROOT / "experiments/configs/main.yaml"), {}))
    cells = {row.split("|")[1].strip(): row.split("|")[-3:-1] for row in means.splitlines() if row.startswith("|")}
    assert [float(cell) for cell in cells["simcse in the paper on SCD"]] == [
        figure("SCD, STS table, BERT-base, SimCSE"),
        figure("SCD, transfer table, BERT-base, SimCSE"),
    ]
