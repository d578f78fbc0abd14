"""report.html: self-contained, escaped, with everything that was measured."""

import re
from html.parser import HTMLParser

import pytest

from informin.evaluation.table import Row, Table
from informin.report.html import tables_html, values_html
from informin.report.page import write_fit_report, write_training_report

SCRIPT = "<script>alert(1)</script>"
ARABIC = "القطة نائمة على السجادة"
EXAMPLES = [
    {
        "sentence": SCRIPT,
        "kept": 9,
        "lost": [{"sentence": "{{ 7 * 7 }} {% if %}", "old": 0.9, "new": 0.125}],
        "gained": [{"sentence": ARABIC, "old": 0.1, "new": 0.8}],
    },
    {"sentence": 'a "quoted" & <b>bold</b> text', "kept": 10, "lost": [], "gained": []},
]
MEASURES = dict.fromkeys(("neighbors_kept", "rotated_cosine", "neighbor_distance", "hubness"), 1.0)
DRIFT = {
    "sentences": 60,
    "old": MEASURES | {"stsb_dev": None},
    "new": MEASURES | {"neighbors_kept": 83.5, "stsb_dev": None},
    "warnings": ["created hubs: <i>"],
}
HISTORY = [
    {"step": 0, "eval_spearman": 40.0, "eval_runtime": 1.0},
    {"step": 1, "loss": 0.5, "terms/contrast": 0.4},
    {"step": 2, "loss": float("nan"), "terms/contrast": float("inf")},
    {"step": 2, "eval_spearman": 45.0, "eval_mine": 0.25},
]


class Tags(HTMLParser):
    """Collects tags and texts."""

    def __init__(self, html: str):
        super().__init__()
        self.tags, self.texts = [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.texts.append(data)

    def images(self) -> list[str]:
        return [attrs["alt"] for tag, attrs in self.tags if tag == "img"]


@pytest.fixture(scope="module")
def html(tmp_path_factory):
    """A page of a training run with all parts."""
    summary = {"data": f"{SCRIPT}, 60 sentences"}
    path = write_training_report(
        tmp_path_factory.mktemp("run"), HISTORY, DRIFT, EXAMPLES, title="SimCSE on <b>", summary=summary
    )
    return path.read_text(encoding="utf-8")


def test_page_loads_nothing_and_runs_nothing(html):
    tags = Tags(html).tags
    assert {"script", "iframe", "object", "link", "b", "i"}.isdisjoint(tag for tag, _ in tags)
    assert all(attrs["src"].startswith("data:image/png;base64,") for tag, attrs in tags if tag == "img")
    assert not re.search(r"https?://|url\(|@import|href=", html)
    policy = next(attrs["content"] for tag, attrs in tags if attrs.get("http-equiv") == "Content-Security-Policy")
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def test_sentences_are_escaped_and_keep_their_direction(html):
    page = Tags(html)
    assert SCRIPT in page.texts and EXAMPLES[1]["sentence"] in page.texts  # as text
    assert "{{ 7 * 7 }} {% if %}" in page.texts
    assert f'<bdi dir="auto">{ARABIC}</bdi>' in html


def test_page_has_all_parts(html):
    page = Tags(html)
    assert page.images() == ["Loss over the steps", "Scores over the steps"]
    assert {"83.5", "1.0", "not scored"} <= set(page.texts)
    assert "created hubs: <i>" in html.replace("&lt;i&gt;", "<i>")
    assert "cosine 0.90 → 0.12" in page.texts and "kept 9 of its 10 neighbors" in page.texts
    assert page.texts.count("none") == 2


def test_figures_need_finite_numbers(tmp_path):
    nan = [{"step": 1, "loss": float("nan"), "eval_spearman": float("nan"), "eval_runtime": 1.0}]
    page = write_training_report(tmp_path, nan).read_text(encoding="utf-8")
    assert Tags(page).images() == []


def test_loss_of_a_run_without_scores(tmp_path):
    """SCD's loss is negative, so its axis is not logarithmic."""
    page = write_training_report(tmp_path, [{"step": 1, "loss": -0.5}, {"step": 2, "loss": -0.6}])
    assert Tags(page.read_text(encoding="utf-8")).images() == ["Loss over the steps"]


def test_page_of_a_fit_without_drift_has_only_the_summary(tmp_path):
    """As after a fit of a few embeddings."""
    path = write_fit_report(tmp_path, {"task": "search"}, title="Adapter for m")
    page = Tags(path.read_text(encoding="utf-8"))
    assert path == tmp_path / "report.html" and "search" in page.texts
    assert {"h2", "img"}.isdisjoint(tag for tag, _ in page.tags)


def test_second_report_replaces_the_first(tmp_path):
    write_fit_report(tmp_path, {"task": "search"})
    write_fit_report(tmp_path, {"task": "clustering"})
    assert "clustering" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_tables_for_notebooks_are_escaped():
    page = Tags(tables_html([Table(SCRIPT, ["a"], [Row("<b>", {"a": 1.0})])]) + values_html("t", {"n": SCRIPT}))
    assert "script" not in [tag for tag, _ in page.tags]
    assert page.texts.count(SCRIPT) == 2 and "1.00" in page.texts
