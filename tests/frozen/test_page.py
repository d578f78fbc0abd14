"""The page of an index, and its server."""

import sys
import urllib.request
from dataclasses import replace
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest

from informin.cli import run_command
from informin.frozen import search_page as local
from informin.frozen.bm25 import z_scores
from informin.frozen.index import Index
from informin.frozen.page import (
    EXCERPT,
    MOST,
    STEP,
    STYLE,
    Card,
    build_page,
    card_html,
    cards_html,
    number_of_hits,
)
from informin.frozen.search_page import cards_of, index_page, parts_of, shares_of
from tests.conftest import make_sentences, raises_usage

TEXTS = [*make_sentences(120), "<b>cats</b> & dogs"]


@pytest.fixture(scope="module")
def index(st_mean) -> Index:
    return Index.build(st_mean, TEXTS)


pytestmark = pytest.mark.skipif(not find_spec("gradio"), reason="gradio is not installed")


def answer_of(page):
    """Return the function that answers a query."""
    return next(iter(page.fns.values())).fn


def opened(page, query: str):
    """Return what the page shows when it is opened with a query in its address."""
    import gradio as gr

    request = gr.Request(
        request=SimpleNamespace(query_params=dict(part.split("=") for part in query.split("&") if part))
    )
    return list(page.fns.values())[-1].fn(request)


def test_cards_are_the_hits(index):
    hits = index.search(["two dogs"], 5)[0]
    cards = cards_of(index, "two dogs", 5)
    assert [card.text for card in cards] == [hit.text for hit in hits]
    assert [card.number for card in cards] == [f"row {hit.row}" for hit in hits]
    assert [card.score for card in cards] == [f"{hit.score:.2f}" for hit in hits]
    assert [card.badge == "relevant" for card in cards] == [bool(hit.relevant) for hit in hits]


@pytest.mark.parametrize(
    "relevant, said", [((True, False), False), ((False, False), True), ((None, None), False)], ids=str
)
def test_a_heading_says_that_no_hit_is_relevant(index, monkeypatch, relevant, said):
    """None is that of an index with too few texts to measure a threshold."""
    hits = [replace(hit, relevant=one) for hit, one in zip(index.search("two dogs", 2), relevant)]
    monkeypatch.setattr(Index, "search", lambda *given: hits)
    cards = cards_of(index, "two dogs", 2)
    assert {card.group for card in cards} == {local.UNRELATED if said else ""}
    assert (local.UNRELATED in cards_html(cards, "two dogs")) == said


def test_id_title_url_and_other_fields_are_shown(st_mean):
    fields = [{"title": "On dogs", "url": "https://x.org/1", "year": 1990}, {}]
    index = Index.build(st_mean, ["the dog runs", "a bird sings"], ids=["d-7", None], fields=fields)
    cards = {card.text: card for card in cards_of(index, "dog", 2)}
    card = cards["the dog runs"]
    assert (card.number, card.title, card.url, card.fields) == ("d-7", "On dogs", "https://x.org/1", {"year": 1990})
    assert '<a href="https://x.org/1"' in card_html(card) and "year: 1990" in card_html(card)
    assert cards["a bird sings"].number == "row 1"


def test_empty_fields_are_not_shown(st_mean):
    fields = [{"title": None, "url": None, "year": None, "pages": 0}]
    (card,) = cards_of(Index.build(st_mean, ["the dog runs"], fields=fields), "dog", 1)
    assert (card.title, card.url, card.fields) == ("", "", {"pages": 0})


def test_words_of_the_query_are_marked(index):
    for card in cards_of(index, "the dogs' house", len(TEXTS)):
        found = [card.text[start:end] for start, end in card.marked]
        assert found == [word for word in card.text.split() if word in ("dog", "dogs", "house")]


def test_tokens_that_match_are_marked(st_mean, index):
    looking = Index.build(st_mean, TEXTS, rerank=True)
    cards = cards_of(looking, "the dog", 20)
    rows = [hit.row for hit in looking.search("the dog", 20)]
    words = {card.text: set(card.marked) for card in cards_of(index, "the dog", len(TEXTS))}
    matched = looking.matched_spans("the dog", rows)
    for card, spans in zip(cards, matched):
        assert set(card.marked) == {*words[card.text], *spans}
    assert any(set(spans) - words[card.text] for card, spans in zip(cards, matched))
    assert "matching tokens" in str(index_page(looking).config).replace("\\n", " ")
    assert "matching tokens" not in str(index_page(index).config)


def test_bar_is_split_as_the_score_is(index):
    query = "a dog sees the house"
    hits = index.search([query], 20)[0]
    from_words = index.record.word_weight * z_scores(index.bm25.scores([query]))[0]
    for hit, share in zip(hits, shares_of(index, query, hits)):
        parts = np.array([hit.score - from_words[hit.row], from_words[hit.row]])
        if (parts > 0).all():
            np.testing.assert_allclose([share["vectors"], share["words"]], parts / hits[0].score, atol=1e-5)
        assert 0 <= share["words"] <= share["vectors"] + share["words"] <= 1 + 1e-6


def test_score_of_reranked_hits_is_one_part(index):
    hits = [replace(hit, token_score=0.5) for hit in index.search("two dogs", 3)]
    assert [list(share) for share in shares_of(index, "two dogs", hits)] == [["tokens"]] * 3
    assert shares_of(index, "two dogs", hits)[0]["tokens"] == 1
    assert parts_of(hits[0]).endswith("tokens 0.500")


@pytest.mark.parametrize("rerank", [False, True])
def test_legend_explains_the_colors_of_the_bars(st_mean, rerank):
    index = Index.build(st_mean, TEXTS, rerank=rerank)
    used = {name for card in cards_of(index, "two dogs", 3) for name in card.shares}
    head = next(block for block in index_page(index).blocks.values() if block.get_block_name() == "html")
    assert used == {name for name in ("vectors", "words", "tokens") if f'<i class="{name}"></i>' in head.value}
    assert all(f"i.{name} {{" in STYLE.read_text() for name in used)


def test_page_answers_queries(index):
    answer = answer_of(index_page(index))
    count, cards, more = answer("cats", 10)
    assert count == 10 and cards.count("<article") == 10 and more["visible"]
    assert not answer("cats", len(TEXTS) + 9)[2]["visible"]
    assert answer("  ", 10)[1] == ""


@pytest.mark.parametrize("hits", [5, 20])
def test_address_opens_the_same_search(index, hits):
    page = index_page(index)
    query, count, cards, _ = opened(page, f"q=cats&hits={hits}")
    assert (query, count, cards) == ("cats", hits, answer_of(page)("cats", hits)[1])
    assert cards.count("<article") == hits


def test_page_without_a_query_in_its_address_keeps_what_is_typed(index):
    import gradio as gr

    assert all(one == gr.skip() for one in opened(index_page(index), ""))


@pytest.mark.parametrize(
    "text, hits",
    [("", STEP), ("-3", STEP), ("0", STEP), ("two", STEP), ("²", STEP), ("5", 5), ("37", 37), ("9" * 5000, MOST)],
)
def test_number_of_hits_of_an_address(text, hits):
    assert number_of_hits(text) == hits


def test_texts_are_not_markup():
    card = Card("<b>", "<1>", {}, "<2>", [(0, 1)], "<3>", "https://x/?a=1&b='\"", {"<4>": "<5>"}, "<6>", "<7>", "<8>")
    html = cards_html([card], "q")
    assert "<b>" not in html and "<mark>&lt;</mark>b&gt;" in html
    assert not any(f"<{number}>" in html for number in range(1, 9))
    assert 'href="https://x/?a=1&amp;b=&#x27;&quot;"' in html


@pytest.mark.parametrize("url", ["javascript:alert(1)", "data:text/html,x", "//x", "JAVASCRIPT:x"])
def test_only_web_addresses_are_links(url):
    assert "href" not in card_html(Card("a", "1", {}, url=url))


def test_long_text_is_folded_and_complete():
    text = "word " * EXCERPT
    marked = [(start, start + 4) for start in range(0, len(text), 5)]
    html = card_html(Card(text, "1", {}, marked=marked))
    shown, rest = html.split("<details><summary>Show the rest</summary>")
    assert shown.count("<mark>word</mark>") + rest.count("<mark>word</mark>") == len(marked)
    assert len(text) > EXCERPT > shown.count("<mark>") * 4


def test_without_gradio_the_page_is_an_error(index, monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    with raises_usage(found="gradio"):
        index_page(index)


def test_title_is_not_markup():
    page = build_page("<script>", "a & b", "Query", lambda query, k: [])
    head = next(block for block in page.blocks.values() if block.get_block_name() == "html")
    assert head.value.endswith("<h1>&lt;script&gt;</h1><p>a &amp; b</p>")


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
    assert run_command("search", *["--index", str(tmp_path)]) == 130
    assert "gradio" in pages[0]


def test_a_page_names_no_folder_of_this_machine(index, tmp_path_factory):
    page = index_page(index)
    assert "st-mean" in str(page.config) and str(tmp_path_factory.getbasetemp()) not in str(page.config)
