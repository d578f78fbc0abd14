"""The page of an index, and its server."""

import urllib.request
from types import SimpleNamespace

import pytest

pytest.importorskip("gradio")

from informin.cli import search
from informin.demo import local
from informin.demo.local import UNRELATED, index_page, rows_of
from informin.demo.page import build_page
from informin.search.index import Index
from tests.conftest import make_sentences

TEXTS = [*make_sentences(120), "<b>cats</b> & dogs"]


@pytest.fixture(scope="module")
def index(st_mean) -> Index:
    return Index.build(st_mean, TEXTS)


def answer_of(page):
    """Return the function that answers a query."""
    return next(iter(page.fns.values())).fn


def test_rows_show_the_parts_of_the_score(index):
    hits = index.search(["two dogs"], 5)[0]
    rows = rows_of(index, "two dogs", 5)
    assert [row[0] for row in rows] == [hit.row for hit in hits]
    assert [row[-1] for row in rows] == [hit.text for hit in hits]
    for row, hit in zip(rows, hits):
        assert row[1:4] == [f"{hit.score:.2f}", row[2], f"{hit.word_score:.2f}"]
        assert row[2].startswith(f"{hit.vector_score:.3f}")
        assert row[2].endswith(UNRELATED) == (hit.relevant is False)
        assert row[4] == ("dog" if "dog" in hit.text.split() or "dogs" in hit.text else "")


def test_page_answers_queries(index):
    answer = answer_of(index_page(index))
    assert [row[-1] for row in answer("cats", 3)] == [hit.text for hit in index.search(["cats"], 3)[0]]
    assert answer("  ", 3) == []


def test_texts_are_not_markup(index):
    page = index_page(index)
    assert "<b>cats</b> & dogs" in [row[-1] for row in answer_of(page)("cats", 121)]
    (table,) = [block for block in page.blocks.values() if block.get_block_name() == "dataframe"]
    assert {*([table.datatype] if isinstance(table.datatype, str) else table.datatype)} == {"str"}


def test_title_is_not_markup():
    page = build_page("<script>", "a & b", "Query", ("score", "text"), lambda query, k: [])
    (head,) = [block for block in page.blocks.values() if block.get_block_name() == "html"]
    assert head.value == "<h1>&lt;script&gt;</h1><p>a &amp; b</p>"


def test_command_serves_the_page(index, tmp_path, monkeypatch, capsys):
    """Until a signal, which the event stands for."""
    index.save(tmp_path)
    pages = []

    class Event:
        def wait(self):
            url = capsys.readouterr().out.split()[5]
            with urllib.request.urlopen(url, timeout=60) as page:
                pages.append(page.read().decode())
            raise KeyboardInterrupt

    monkeypatch.setattr(local, "threading", SimpleNamespace(Event=Event))
    assert search.main(["--index", str(tmp_path)]) == 130
    assert "gradio" in pages[0]
