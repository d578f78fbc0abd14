"""report.html: self-contained, escaped, without paths, and with everything that was measured."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from informin.evaluation.table import Row, Table, tables_html, values_html
from informin.model.records import RunRecord
from informin.publishing.report import changed, facts, plots, tables_of_record, write_fit_report, write_training_report

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
    {"step": 3, "loss": 0.25, "terms/contrast": 0.2, "eval_spearman": 44.0},
]
RECORD = RunRecord(
    seed=7,
    options={"learning_rate": 3e-5, "precision": "fp32"},
    objective={"name": "simcse", "title": "SimCSE on <b>", "terms": [{"name": "contrast", "title": "contrast"}]},
    steps=3,
    kept_step=2,
    chosen=True,
    environment={"device": "cpu x86_64"},
    base_model={"name": "tiny-bert"},
    data={"sources": [f"{SCRIPT}.txt"], "sentences": 60},
    development="pairs.tsv",
    development_sets=[{"kind": "pairs", "name": "pairs.tsv"}],
    history=[
        {"step": 0, "spearman": 40.0, "alignment": None},
        {"step": 2, "spearman": 45.0, "alignment": 0.2, "mine": 0.25},
        {"step": 3, "spearman": 44.0, "alignment": 0.3, "mine": 0.5},
    ],
    drift=DRIFT,
    sentences_per_second=1234.5,
)


class Tags(HTMLParser):
    """Collects tags and texts."""

    def __init__(self, html: str):
        super().__init__()
        self.tags = []
        self.texts = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.texts.append(data)


@pytest.fixture(scope="module")
def html(tmp_path_factory):
    """A page of a training run with all parts."""
    path = write_training_report(tmp_path_factory.mktemp("run"), RECORD, HISTORY, EXAMPLES)
    return path.read_text(encoding="utf-8")


def test_page_loads_nothing_and_runs_nothing(html):
    tags = Tags(html).tags
    assert {"script", "iframe", "object", "link", "b", "i", "img"}.isdisjoint(tag for tag, _ in tags)
    assert not re.search(r"https?://|url\(|@import|href=|src=", html)
    policy = next(attrs["content"] for tag, attrs in tags if attrs.get("http-equiv") == "Content-Security-Policy")
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"


def test_sentences_are_escaped_and_keep_their_direction(html):
    page = Tags(html)
    assert SCRIPT in page.texts and EXAMPLES[1]["sentence"] in page.texts  # as text
    assert "{{ 7 * 7 }} {% if %}" in page.texts
    assert f'<bdi dir="auto">{ARABIC}</bdi>' in html


def test_page_has_all_parts(html):
    page = Tags(html)
    titles = [attrs["aria-label"].partition(" over")[0] for tag, attrs in page.tags if tag == "svg"]
    assert titles == ["loss", "contrast", "Spearman x 100", "mine"]
    assert {"SimCSE on <b>, tiny-bert", "83.5", "not scored", "learning rate", "3e-05"} <= set(page.texts)
    assert {"45.00", "+5.00", "pairs.tsv, Spearman x 100"} <= set(page.texts)
    assert "created hubs: <i>" in html.replace("&lt;i&gt;", "<i>")
    assert "cosine 0.90 → 0.12" in page.texts and "kept 9 of 10" in page.texts
    assert page.texts.count("none") == 2
    assert "45.00 at the best step" in page.texts


def test_one_value_has_one_label(html):
    """`mine` was logged once, as 0.25 at step 2."""
    drawing = html.partition('aria-label="mine over')[2].partition("</svg>")[0]
    assert re.findall("<text.*?>(.*?)</text>", drawing) == ["0.25", "step 2"]


def test_only_a_resumed_run_says_so():
    assert "resumed" not in str(facts(RECORD, 0))
    assert "resumed from step 2" in str(facts(RECORD, 2))


def test_weights_of_the_best_step_are_named_only_if_they_were_kept():
    assert "step 2" in facts(RECORD, 0)["weights"]
    assert "weights" not in facts(replace(RECORD, chosen=False, kept_step=3), 0)


def test_scores_are_those_of_the_kept_step():
    (table,) = tables_of_record(RECORD)
    cells = {row.label: [row.cell(column) for column in table.columns] for row in table.rows}
    assert cells["pairs.tsv, Spearman x 100"] == ["40.00", "45.00", "+5.00"]
    assert cells["pairs.tsv, alignment"] == ["-", "0.200", "-"]
    assert cells["mine"] == ["-", "0.25", "-"]
    assert tables_of_record(replace(RECORD, history=[])) == []


def test_plots_have_finite_numbers_in_their_box():
    drawn = plots(HISTORY, best_step=2)
    (loss, contrast), (spearman, mine) = drawn.values()
    assert loss.dots == [(0, 0), (300, 110)] and (loss.high, loss.low) == ("0.5", "0.25")
    assert len(contrast.dots) == 2  # without infinity
    assert spearman.dots == [(0, 110), (200.0, 0), (300, 22)]
    assert (spearman.best, spearman.best_value, spearman.first, spearman.last) == (200.0, "45.00", 0, 3)
    assert mine.dots == [(150, 55)]  # one value
    assert plots([{"step": 1, "loss": float("nan"), "eval_spearman": float("nan"), "eval_runtime": 1.0}]) == {}


def test_best_step_is_marked_only_if_there_is_one():
    assert all(plot.best is None for several in plots(HISTORY).values() for plot in several)


def test_words_that_only_one_side_has_are_marked():
    sides = {"lost": ["A shared bank account", "The river"], "gained": ["Banks of the river"]}
    example = {name: [{"sentence": text, "old": 0, "new": 1} for text in texts] for name, texts in sides.items()}
    (one,) = changed([{"sentence": "the BANK of a river", "kept": 1, **example}])
    marked = [[text for text, is_marked in neighbor.pieces if is_marked] for neighbor in (*one.lost, *one.gained)]
    assert marked == [["A", "bank"], [], ["of"]]
    assert ["".join(text for text, _ in neighbor.pieces) for neighbor in one.lost] == sides["lost"]


def test_common_words_are_not_marked():
    """Words that many examples have, such as stop words."""
    neighbor = {"sentence": "the dog and the bank", "old": 0, "new": 1}
    first = {"sentence": "the bank", "kept": 9, "lost": [neighbor], "gained": []}
    others = [{"sentence": text, "kept": 10, "lost": [], "gained": []} for text in ("the cat", "the bird", "a bank")]
    for examples, expected in (([first, *others], ["bank"]), ([first], ["the", "the", "bank"])):
        one = changed(examples)[0]
        assert [text for text, is_marked in one.lost[0].pieces if is_marked] == expected


def test_page_of_a_fit_without_drift_has_only_the_summary(tmp_path):
    """As after a fit of a few embeddings."""
    path = write_fit_report(tmp_path, "Adapter for m", {"task": "search"})
    page = Tags(path.read_text(encoding="utf-8"))
    assert path == tmp_path / "report.html" and "search" in page.texts
    assert {"h2", "svg", "details"}.isdisjoint(tag for tag, _ in page.tags)


def test_second_report_replaces_the_first(tmp_path):
    write_fit_report(tmp_path, "a", {"task": "search"})
    write_fit_report(tmp_path, "a", {"task": "clustering"})
    assert "clustering" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_tables_for_notebooks_are_escaped():
    page = Tags(tables_html([Table(SCRIPT, ["a"], [Row("<b>", {"a": 1.0})])]) + values_html("t", {"n": SCRIPT}))
    assert "script" not in [tag for tag, _ in page.tags]
    assert page.texts.count(SCRIPT) == 2 and "1.00" in page.texts


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_page_fits_the_screen(tmp_path, browser, width, dark):
    record = replace(RECORD, options=RECORD.options | {"prompt": "x" * 300})
    path = write_training_report(tmp_path, record, HISTORY, EXAMPLES)
    browser.show(path.as_uri(), width, dark)
    browser.run("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert browser.wider_than_screen() == []
    light = browser.run("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert light != dark


def test_the_title_names_the_encoder_by_its_hub_id(tmp_path):
    """Its folder may be called `model`."""
    record = replace(RECORD, base_model={"name": "model", "hub_id": "me/tiny-bert"})
    page = write_training_report(tmp_path, record, HISTORY).read_text(encoding="utf-8")
    assert "SimCSE on <b>, me/tiny-bert" in Tags(page).texts


def test_the_page_says_that_it_contains_sentences_only_if_it_does(tmp_path):
    without = write_training_report(tmp_path, RECORD, HISTORY).read_text(encoding="utf-8")
    assert "contains sentences" not in without and "not published" in without
    assert "contains sentences" in write_training_report(tmp_path, RECORD, HISTORY, EXAMPLES).read_text(
        encoding="utf-8"
    )
