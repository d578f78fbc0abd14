"""The HTML of the page. Nothing in a sentence becomes markup."""

from html.parser import HTMLParser

import pytest

from informin.demo.render import heading, report_html, results_html, sentence_html
from informin.demo.search import Hit, Results

HOSTILE = '<script>alert("1")</script><img src=x onerror=alert(2)> & \' ${7*7} {{value}} </p></li>'


class Elements(HTMLParser):
    """The tags of a text with their attributes, and its text."""

    def __init__(self, html: str):
        super().__init__()
        self.tags, self.open, self.texts, self.attributes = [], [], [], []
        self.feed(html)
        assert self.open == []  # every element is closed

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes.append(dict(attributes))
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def test_other_columns_are_shown():
    cells = {"id": "7", "empty": "", "long": "x" * 100, HOSTILE: HOSTILE} | {f"c{i}": "1" for i in range(10)}
    found = Elements(results_html([Results("m", [Hit("a", "", 1, 0.5, columns=cells)])], 3, 0.1))
    assert {"id: 7", f"long: {'x' * 59}…", "c4: 1"} <= {*found.texts} and "c5: 1" not in found.texts
    assert {*found.tags} == {"p", "div", "section", "h2", "ol", "li", "span"}


def test_sentences_labels_and_names_are_text():
    hits = [Hit(HOSTILE, HOSTILE, 1, 0.5, 2)]
    found = Elements(results_html([Results(HOSTILE, hits, True), Results("after", hits)], 3, 0.1))
    assert {*found.tags} == {"p", "div", "section", "h2", "ol", "li", "span"}
    assert found.texts.count(HOSTILE) == 5  # a heading, two labels, two sentences
    assert not [name for names in found.attributes for name in names if name.startswith("on")]
    assert "script" not in Elements(heading([HOSTILE], 3)).tags


@pytest.mark.parametrize(
    ("rank", "other", "before", "after"),
    [
        (2, 5, "▼ 3 now 5", "▲ 3 was 5"),
        (5, 2, "▲ 3 now 2", "▼ 3 was 2"),
        (1, 1235, "▼ 1,234 now 1,235", "▲ 1,234 was 1,235"),
        (4, 4, "= same rank", "= same rank"),
        (3, None, "▼ now below 1,000", "▲ was below 1,000"),
    ],
)
def test_rank_changes_go_from_the_first_model_to_the_second(rank, other, before, after):
    """In both lists, an arrow up means that the second model ranks the sentence higher."""
    lists = [Results(name, [Hit("a", "", rank, 0.5, other)]) for name in "xy"]
    texts = "".join(Elements(results_html(lists, 9, 0.1)).texts).replace("\xa0", " ")
    assert f"cosine 0.500{before}a" in texts and f"cosine 0.500{after}a" in texts


def test_one_model_has_no_changes():
    html = results_html([Results("x", [Hit("a", "", 1, 0.5)])], 9, 0.0124)
    assert "1 nearest of 9 sentences in 12 ms." in html and "▲" not in html and "Arrows" not in html


def test_long_sentences_are_folded():
    long = "word " * 100
    found = Elements(sentence_html(long))
    assert found.tags == ["details", "summary", "p"] and found.texts == [f"{long[:300]}…", long]
    assert Elements(sentence_html("w" * 400)).tags == ["p"]
    assert [names["dir"] for names in found.attributes if "dir" in names] == ["auto", "auto"]


def test_a_report_cannot_run_scripts_or_load_anything():
    links = "<LiNk rel=preconnect href=//x><iframe src=//x></iframe><frame src=//x><p>a</p>"
    page = f"<!doctype html><title>Report</title>{HOSTILE}"
    found = Elements(report_html(HOSTILE, page + links, "hint"))
    assert found.tags == ["h2", "iframe"] and found.attributes[1]["sandbox"] == ""
    policy, *_, rest = found.attributes[1]["srcdoc"].partition(page)
    assert policy == (  # before anything that the report could load
        """<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; """
        """base-uri 'none'; form-action 'none'"><meta http-equiv="x-dns-prefetch-control" content="off">"""
    )
    assert rest == "&lt;LiNk rel=preconnect href=//x>&lt;iframe src=//x></iframe>&lt;frame src=//x><p>a</p>"
    missing = Elements(report_html("m", None, "Create it with: make it"))
    assert missing.tags == ["p"] and missing.texts == ["m has no report.html. Create it with: make it"]


def test_nothing_relevant():
    hit = Hit("a sentence", "", 1, 0.31)
    said = "Nothing relevant found: about one unrelated sentence per query is expected above a cosine of 0.400."
    assert said in results_html([Results("model", [hit], threshold=0.4)], 5, 0.1)
    assert "Nothing relevant" not in results_html([Results("model", [hit], threshold=0.3)], 5, 0.1)
    assert "Nothing relevant" not in results_html([Results("model", [hit])], 5, 0.1)
