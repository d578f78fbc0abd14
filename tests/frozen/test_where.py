"""Searches among the texts that have some values in their fields."""

import json

import numpy as np
import pytest

from informin.cli import run_command
from informin.frozen import index_search
from informin.frozen.index import Index
from tests.conftest import raises_usage

QUERIES = ["the old dog runs", "a small house"]


@pytest.fixture(scope="module")
def kept(st_mean, texts) -> Index:
    """Texts of two products and ten years. The last is a copy of the first with different fields. Do not change it."""
    texts = [*texts[:149], texts[0]]
    fields = [{"product": ["svn", "git"][row % 2], "year": 2000 + row % 10, "on": row < 20} for row in range(150)]
    return Index.build(st_mean, texts, fields=fields)


def chosen(kept: Index, hits, **where) -> list:
    """Return of all hits those whose fields have these values."""
    return [hit for hit in hits if all(hit.fields[name] in allowed for name, allowed in where.items())]


@pytest.mark.parametrize(
    "where",
    [
        {"product": ["git"]},
        {"product": ["svn"], "year": [2000, 2004]},
        {"year": [2003]},
        {"on": [True]},
        {"year": [1999]},  # none
    ],
)
@pytest.mark.parametrize("compared", [2**24, 0])
def test_hits_are_those_of_the_whole_search(kept, monkeypatch, where, compared):
    every = kept.search(QUERIES, 150)
    monkeypatch.setattr(index_search, "COMPARED", compared)
    monkeypatch.setattr(index_search, "BLOCK", 16)
    vectors = index_search.Vectors(kept.documents, kept._state.duplicates.first)
    monkeypatch.setitem(vars(kept._state), "compared", vectors)
    for found, hits in zip(kept.search(QUERIES, 7, where=where), every, strict=True):
        wanted = chosen(kept, hits, **where)[:7]
        assert [hit.row for hit in found] == [hit.row for hit in wanted]
        np.testing.assert_allclose([hit.score for hit in found], [hit.score for hit in wanted], atol=1e-4)


def test_one_value_and_duplicates(kept, texts):
    (first,) = kept.search(texts[0], 1, where={"product": "svn"})
    (last,) = kept.search(texts[0], 1, where={"product": "git"})
    assert (first.row, last.row) == (0, 149)
    assert first.text == last.text


def test_reranking(st_mean, texts):
    fields = [{"half": row // 75} for row in range(150)]
    index = Index.build(st_mean, texts, fields=fields, rerank=True)
    for found in index.search(QUERIES, 60, where={"half": 1}):
        assert len(found) == 60
        assert all(hit.row >= 75 and hit.token_score is not None for hit in found)
        scores = [hit.score for hit in found]
        assert scores[:50] == sorted(scores[:50], reverse=True)


@pytest.mark.parametrize("where", [{}, "product", {"color": "red"}])
def test_what_no_text_has(kept, where):
    with raises_usage("where"):
        kept.search("dog", where=where)


def test_names_of_fields_are_text(st_mean, texts):
    index = Index.build(st_mean, texts[:4], fields=[{1: row} for row in range(4)])
    assert [hit.row for hit in index.search("dog", where={1: 2})] == [2]


def test_an_index_without_fields(built):
    with raises_usage("where"):
        built.search("dog", where={"product": "svn"})


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1e999"])
def test_words_that_json_reads_as_no_number(st_mean, tmp_path, capsys, value):
    fields = [{"brand": value}, {"brand": None}, {"brand": "other"}]
    Index.build(st_mean, ["old dog", "a cat", "a bird"], fields=fields).save(tmp_path / "index")
    words = ["search", "old dog", "--index", str(tmp_path / "index"), "--format", "json", "--where", f"brand={value}"]
    assert run_command(*words) == 0
    assert [hit["row"] for hit in json.loads(capsys.readouterr().out)] == [0]


@pytest.mark.parametrize("value", ["true", "True"])  # of JSON, and as hits show it
def test_booleans(kept, value, tmp_path, capsys):
    kept.save(tmp_path / "index")
    words = ["search", "old dog", "--index", str(tmp_path / "index"), "--k", "3", "--where", f"on={value}"]
    assert run_command(*words) == 0
    assert capsys.readouterr().out.count("on: True") == 3


def test_command(kept, tmp_path, capsys):
    kept.save(tmp_path / "index")
    words = ["search", "old dog", "--index", str(tmp_path / "index"), "--format", "json", "--where"]
    assert run_command(*words, "product=git", "--where", "year=2001", "--where", "year=2003", "--where", "on=true") == 0
    hits = json.loads(capsys.readouterr().out)
    assert {(hit["fields"]["product"], hit["fields"]["year"]) for hit in hits} == {("git", 2001), ("git", 2003)}
    assert all(hit["row"] < 20 for hit in hits)
    assert run_command(*words, "git") == 2
    assert "--where" in capsys.readouterr().err
    options_first = ["search", *words[2:], "product=git", words[1]]  # --where takes all words after it
    assert run_command(*options_first) == 2
    assert "before the options" in capsys.readouterr().err
    words[4:6] = []
    assert run_command(*words, "product=cvs") == 0
    assert "--where" in capsys.readouterr().out, "a line says why there is no hit"
