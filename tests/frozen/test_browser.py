"""The search page in a browser."""

from importlib.util import find_spec

import pytest

from informin.frozen.index import Index
from informin.frozen.search_page import index_page
from tests.conftest import make_sentences

pytestmark = pytest.mark.skipif(not find_spec("gradio"), reason="gradio is not installed")
LONG = "https://example.org/" + "x" * 300
TEXTS = [
    *make_sentences(120),
    "dog <img src=x onerror=\"document.title='owned'\"> ${document.title='owned'} {{7*7}}",
    LONG,
]


FIELDS = [{"url": "https://example.org/1"} for _ in TEXTS]


@pytest.fixture(scope="module")
def url(st_mean):
    page = index_page(Index.build(st_mean, TEXTS, fields=FIELDS))
    page.launch(server_name="127.0.0.1", quiet=True, prevent_thread_lock=True)
    yield page.local_url
    page.close()


def test_typed_query_shows_cards_and_can_be_shared(url, browser):
    browser.show(url)
    browser.wait_for(lambda: browser.texts("textarea"))
    browser.type("textarea", "dog house\n")
    browser.wait_for(lambda: len(browser.texts(".card")) == 10)
    assert "dog" in browser.texts(".card mark")
    browser.click("#more")
    browser.wait_for(lambda: len(browser.texts(".card")) == 20)
    first, shared = browser.texts(".card")[0], browser.address()
    browser.show("about:blank")
    browser.show(shared)
    browser.wait_for(lambda: len(browser.texts(".card")) == 20)
    assert browser.texts(".card")[0] == first


@pytest.mark.parametrize("dark", [False, True])
def test_cards_fit_a_phone(url, browser, dark):
    browser.show(f"{url}?q=dog&hits=120", width=390, dark=dark)
    browser.wait_for(lambda: len(browser.texts(".card")) == 120)
    browser.click(".card")
    assert browser.wider_than_screen() == []


def test_links_begin_where_texts_do(url, browser):
    browser.show(f"{url}?q=dog")
    browser.wait_for(lambda: browser.texts(".card h3 a"))
    assert browser.run("return getComputedStyle(document.querySelector('.card h3 a')).paddingLeft") == "0px"


def test_texts_run_no_code(url, browser):
    browser.show(f"{url}?q=document+title+owned+img")
    browser.wait_for(lambda: browser.texts(".card"))
    assert TEXTS[-2] in browser.texts(".card .text")
    assert browser.run("return document.title") == "Search"


def test_long_words_fit_a_phone(url, browser):
    browser.show(f"{url}?q={LONG}", width=390)
    browser.wait_for(lambda: browser.texts(".card"))
    assert LONG in browser.texts(".card .text")
    assert browser.wider_than_screen() == []
