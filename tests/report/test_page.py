"""report.html: self-contained, escaped, the same bytes for the same record."""

import json
import shutil
from html.parser import HTMLParser

import pytest

from informin.cli import report as command
from informin.publishing.report_record import load_report
from informin.report.page import page
from tests.conftest import raises_usage
from tests.report.helpers import ARABIC, HOSTILE, LONG, SCRIPT, addresses, fit_record, snapshot
from tools.fuzz_mutations import DEEP, JSON


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A folder with the record of a fit."""
    folder = tmp_path_factory.mktemp("fit")
    (folder / "report.json").write_text(json.dumps(fit_record(snapshot())))
    return folder


@pytest.fixture(scope="module")
def html(fitted):
    return page(fitted)


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


def test_page_is_one_small_file_without_scripts_or_addresses(html):
    assert len(html.encode()) < 3 * 2**20
    assert addresses(html) == []
    tags = [tag for tag, _ in Tags(html).tags]
    assert {"script", "iframe", "object", "link", "img", "b", "i"}.isdisjoint(tags)
    assert {"main", "h1", "svg", "table"} <= set(tags)


def test_the_policy_of_the_page_comes_before_everything_that_it_forbids(html):
    tags = [(tag, attrs) for tag, attrs in Tags(html).tags if tag not in ("html", "head")]
    assert tags[0] == ("meta", {"charset": "utf-8"})
    policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    assert tags[1] == ("meta", {"http-equiv": "Content-Security-Policy", "content": policy})


def test_sentences_and_options_are_escaped(html):
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html and "<script" not in html
    assert SCRIPT in "".join(Tags(html).texts)  # as text
    assert "{{ 7 * 7 }}" in html


def test_long_sentences_are_cut_and_right_to_left_ones_marked(html):
    assert LONG not in html and f"{'x' * 239}…" in html
    assert f'<bdi dir="auto">{ARABIC}</bdi>' in html
    shown = [attrs for tag, attrs in Tags(html).tags if tag == "bdi"]
    assert len(shown) > 20 and all(attrs == {"dir": "auto"} for attrs in shown)


def test_page_has_all_parts(html, fitted):
    record = load_report(fitted)
    assert "▲ Likely to help." in html and "the rank of its second half changes by -39%" in html
    assert "+0.50 (95% interval +0.30 to +0.70)" in html
    assert html.count('class="number"') == len(record["snapshot"]["examples"]) == 20
    for heading in ("Warnings", "Neighbors gained and lost", "Map", "Hubs", "Drift", "Options and versions"):
        assert f"<h2>{heading}</h2>" in html
    assert "<td>83.5</td>" in html and "created hubs: &lt;i&gt;" in html
    charts = [attrs for tag, attrs in Tags(html).tags if tag == "svg"]
    assert len(charts) == 3 and all(attrs["role"] == "img" and attrs["aria-label"] for attrs in charts)
    ids = [attrs["id"] for _, attrs in Tags(html).tags if "id" in attrs]
    assert len(ids) == len(set(ids)) > 0
    assert "mathdefault" not in html  # labels of ticks that were not formatted


@pytest.mark.parametrize("place, side", enumerate(["old", "new"]))
def test_markers_on_the_map_have_their_sentence(fitted, place, side):
    """Each mark of the maps before and after shows the text that is at its place in the record."""
    drawn = load_report(fitted)["snapshot"]["map"]
    shown = page(fitted).split('aria-label="Map of')[1 + place].partition("</svg>")[0]
    titles = Tags(shown).texts
    assert [text for text in titles if text.strip() in drawn["sentences"]]
    assert shown.count("<title>") == len(drawn["sentences"]) + 20
    marks = [float(attrs["x"]) for tag, attrs in Tags(shown).tags if tag == "use"]
    xs = {text: x for text, (x, _) in zip(drawn["sentences"], drawn[side])}
    names = [text for text in titles if text in xs]
    order = sorted(range(len(names)), key=lambda i: marks[i])
    assert [xs[names[i]] for i in order] == pytest.approx(sorted(xs[name] for name in names), abs=0.5)


def test_command_writes_the_same_bytes_again(fitted, tmp_path, capsys):
    shutil.copytree(fitted, tmp_path / "run")
    assert command.main([str(tmp_path / "run")]) == 0
    first = (tmp_path / "run" / "report.html").read_bytes()
    (tmp_path / "run" / "report.html").unlink()
    assert command.main([str(tmp_path / "run")]) == 0
    assert (tmp_path / "run" / "report.html").read_bytes() == first
    assert capsys.readouterr().out.split() == [str(tmp_path / "run" / "report.html")] * 2
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["report.html", "report.json"]


def no_points(record):
    record["snapshot"].update(examples=[], map=dict(sentences=[], old=[], new=[], group=[]))


@pytest.mark.parametrize(
    "damage, found",
    [
        (lambda record: record.pop("snapshot"), "snapshot"),
        (lambda record: record.update(schema=9), "schema"),
        (lambda record: record.update(command="<b>"), "command"),
        (lambda record: record["snapshot"]["examples"][0].update(kept="many"), "kept"),
        (lambda record: record["snapshot"]["map"].update(old=[[1]]), "snapshot.map.old"),
        (lambda record: record["snapshot"]["map"]["group"].pop(), "snapshot.map"),
        (lambda record: record["snapshot"]["hubs"].update(new=[]), "snapshot.hubs"),
        (lambda record: record["snapshot"]["map"].update(old=[[1e300, 0]]), "snapshot.map.old"),
        (lambda record: record["snapshot"]["examples"][0]["lost"].append(dict(sentence="", old=1e300, new=0)), "lost"),
        (no_points, "snapshot.map has no points"),
        (lambda record: record["prediction"].update(verdict="<b>"), "prediction.verdict"),
        (lambda record: record["prediction"].update(gain=-1e300), "prediction.gain"),
        (lambda record: record["prediction"].update(error=101), "prediction.error"),
        (lambda record: record["prediction"].update(halves=1e300), "prediction.halves"),
        (lambda record: record["prediction"].update(halves=float("nan")), "prediction.halves"),
        (lambda record: record.update(options={"x": eval("[" * 60 + "]" * 60)}), "options.x"),
        (lambda record: record.update(options=DEEP), "nested too deeply"),
        (lambda record: record.update(model="\ud800"), "surrogates"),
    ],
)
def test_damaged_records_are_refused_in_one_line(damage, found, fitted, tmp_path, capsys):
    record = json.loads((fitted / "report.json").read_text())
    damage(record)
    (tmp_path / "report.json").write_bytes(JSON.spell(record, b""))
    assert command.main([str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and found in error and error.count("\n") == 1
    assert not (tmp_path / "report.html").exists()


def test_missing_records_are_refused(tmp_path):
    with raises_usage(found="has no report.json"):
        load_report(tmp_path)
    (tmp_path / "report.json").write_text("{")
    with raises_usage(found="is not JSON"):
        load_report(tmp_path)


def test_page_without_a_snapshot(tmp_path):
    """As after a fit on a few embeddings."""
    empty = {"drift": None, "general": None, "prediction": None, "model": None}
    (tmp_path / "report.json").write_text(json.dumps(fit_record(None) | empty))
    html = page(tmp_path)
    assert "● No evidence." in html and "<h2>Map</h2>" not in html and "Options and versions" in html
    assert not any(text in html for text in HOSTILE[2:])
