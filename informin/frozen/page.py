"""The search page of an index on this machine."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import regex

from informin.frozen.bm25 import CHARACTER, RUN, UNSPACED_START, spread

if TYPE_CHECKING:
    import gradio as gr

import os
import threading
from typing import TYPE_CHECKING

from informin.errors import counted, raise_if_missing
from informin.files import last_name
from informin.frozen.index import Index
from informin.frozen.index_state import Hit

if TYPE_CHECKING:
    import gradio


NO_SPACES = regex.compile(r"[^\s\u200b]+")
EDGE = regex.compile(r"^[\p{P}\p{S}--[#+]]+|[\p{P}\p{S}--[#+]]+$", regex.V1)  # but c# and c++ are words
LETTERS = regex.compile(r"[\p{L}\p{M}\p{N}_\p{Cf}]+")
Split = Callable[[Sequence[str]], list[list[Any]]]
Span = tuple[int, int]


def matching_spans(texts: Sequence[str], query: str, split: Split) -> list[list[Span]]:
    """Return for each text the spans (start, end) of words that are also in the query.

    Args:
        texts: N texts.
        query: The query.
        split: Function from texts to the words of each that are compared, such as `Words.numbers`.
    """
    wanted = set(split([query])[0])
    return [joined(_matching(text, wanted, split)) for text in texts]


def joined(spans: Sequence[Span]) -> list[Span]:
    """Return spans in order, those that touch or overlap as one."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _matching(text: str, wanted: set[str], split: Split) -> list[Span]:
    """Return the spans of a text whose words are wanted."""
    pieces = [match.span() for match in NO_SPACES.finditer(text)]
    spans: list[Span] = []
    parts: list[Span] = []
    for (start, end), words in zip(pieces, split([text[start:end] for start, end in pieces])):
        if not wanted.intersection(words):
            continue
        if len(words) == 1:
            spans.append(_without_edges(text, start, end))
        else:
            parts += _spans_of_parts(text, start, end)
    words_of = split([text[start:end] for start, end in parts])
    return spans + [span for span, words in zip(parts, words_of) if wanted.intersection(words)]


def _without_edges(text: str, start: int, end: int) -> Span:
    """Return a span without the punctuation at its ends."""
    kept = EDGE.sub("", text[start:end])
    begin = text.index(kept, start)
    return begin, begin + len(kept)


def _spans_of_parts(text: str, start: int, end: int) -> list[Span]:
    """Return the runs of letters of a span, those of scripts without spaces character by character."""
    parts = []
    for letters in LETTERS.finditer(text, start, end):
        for run in RUN.finditer(text, *letters.span()):
            unit = CHARACTER if UNSPACED_START.match(run[0]) else LETTERS
            parts += [match.span() for match in unit.finditer(text, *run.span())]
    return parts


STYLE = Path(__file__).parent / "page.css"
STEP = 10  # hits at first, unless the address has a number, and hits that the button adds
MOST = 200  # hits on a page
EXCERPT = 600  # characters of a text that are shown at once
LINKED = ("http://", "https://")  # a link from data may run code with another scheme
# Runs in the browser before a search. The address has the query and the number of hits, so that it can be shared.
TO_ADDRESS = """(query, count) => {
    const hits = HITS;
    const words = new URLSearchParams({q: query, hits: hits});
    history.replaceState(null, "", query.trim() ? `?${words}` : location.pathname);
    return [query, hits];
}"""


@dataclass(frozen=True)
class Card:
    """A hit on the page. All texts are plain text.

    Attributes:
        text: The text that was found.
        score: The score, as it is shown.
        shares: Parts of the bar by name, each between 0 and 1, together at most 1.
        parts: What the score consists of, in words.
        marked: Spans (start, end) of the text that match the query, in order and without overlap.
        title, url: Title of the text, and its address.
        fields: Further values by name.
        badge: A word about the hit, such as relevant.
        number: The row or id of the text.
        group: Heading of this card and those that follow with the same one.
    """

    text: str
    score: str
    shares: Mapping[str, float]
    parts: str = ""
    marked: Sequence[tuple[int, int]] = ()
    title: str = ""
    url: str = ""
    fields: Mapping[str, object] = field(default_factory=dict)
    badge: str = ""
    number: str = ""
    group: str = ""


def build_page(
    title: str,
    note: str,
    label: str,
    search: Callable[[str, int], Sequence[Card]],
    *,
    legend: Mapping[str, str] | None = None,
    lines: int = 1,
    value: str = "",
) -> "gr.Blocks":
    """Return a page with a text box and the cards of what is found.

    Args:
        title, note: Title, and a sentence below it, in plain text.
        label: What the empty text box says.
        search: Function from what was typed and a number of hits to the cards.
        legend: What each color of the bars means, by the name of the part.
        lines: Lines of the text box. Enter starts the search if it is one.
        value: Text in the box at the beginning.

    Raises:
        ImportError: gradio is not installed.
    """
    import gradio as gr  # takes seconds, which the cards alone do not need

    def answer(query: str, count: int) -> tuple[Any, ...]:
        cards = search(query, count) if query.strip() else []
        return count, cards_html(cards, query), gr.update(visible=count <= len(cards) and count < MOST)

    def opened(request: gr.Request) -> tuple[Any, ...]:
        if "q" not in request.query_params:  # somebody may type already
            return gr.skip(), gr.skip(), gr.skip(), gr.skip()
        query = request.query_params["q"]
        return query, *answer(query, number_of_hits(request.query_params.get("hits", "")))

    with gr.Blocks(title=title, analytics_enabled=False) as page:
        style = f"<style>{STYLE.read_text(encoding='utf-8')}</style>"
        head = f"<h1>{escape(title)}</h1><p>{escape(note)}</p>{legend_html(legend or {})}"
        gr.HTML(f"{style}{head}", elem_id="title")
        with gr.Row(elem_id="ask"):
            box = gr.Textbox(
                value,
                label=label,
                show_label=False,
                container=False,
                placeholder=label,
                autofocus=True,
                lines=lines,
                max_lines=10 * lines,
                scale=8,
                min_width=240,
            )
            button = gr.Button("Search", variant="primary", scale=1, min_width=100)
        cards = gr.HTML(elem_id="hits")
        more = gr.Button(f"Show {STEP} more", visible=False, elem_id="more")
        count = gr.Number(STEP, visible=False, precision=0)
        shown = [count, cards, more]
        further = f"Math.min(count + {STEP}, {MOST})"
        for event, hits in ((box.submit, STEP), (button.click, STEP), (more.click, further)):
            event(answer, [box, count], shown, js=TO_ADDRESS.replace("HITS", str(hits)), api_visibility="private")
        page.load(opened, None, [box, *shown], api_visibility="private")
    return page


def legend_html(legend: Mapping[str, str]) -> str:
    """Return what each color of the bars means."""
    entries = [f'<li><i class="{escape(name)}"></i>{escape(text)}</li>' for name, text in legend.items()]
    return f'<ul class="legend">{"".join(entries)}</ul>' if entries else ""


def number_of_hits(text: str) -> int:
    """Return the number of hits that an address asks for, up to MOST; STEP if it is not a positive number."""
    asked = int(text[:6]) if text.isdecimal() else 0
    return min(asked, MOST) if asked else STEP


def cards_html(cards: Sequence[Card], query: str) -> str:
    """Return the cards as HTML. All texts are escaped."""
    if not query.strip():
        return ""
    if not cards:
        return "<p>Nothing was found.</p>"
    parts = []
    group = ""
    for card in cards:
        if card.group != group:
            parts.append(f'<h2 dir="auto">{escape(card.group)}</h2>')
            group = card.group
        parts.append(card_html(card))
    return "".join(parts)


def card_html(card: Card) -> str:
    """Return one card as HTML."""
    title = escape(card.title or card.url)
    if card.url.startswith(LINKED):
        title = f'<a href="{escape(card.url)}" target="_blank" rel="noopener noreferrer">{title}</a>'
    heading = f'<h3 dir="auto">{title}</h3>' if title else ""
    values = " · ".join(f"{escape(name)}: {escape(str(value))}" for name, value in card.fields.items())
    fields = f'<p class="fields">{values}</p>' if values else ""
    badge = f'<span class="badge">{escape(card.badge)}</span>' if card.badge else ""
    text = f'<div class="text" dir="auto">{text_html(card.text, card.marked)}</div>'
    score = f'{bar_html(card)}<span class="score">{escape(card.score)}</span>{badge}'
    origin = f'<span class="parts">{escape(card.parts)}</span><span class="number">{escape(card.number)}</span>'
    return f'<article class="card">{heading}{text}{fields}<p class="facts">{score}{origin}</p></article>'


def bar_html(card: Card) -> str:
    """Return the bar of a score, with one piece for each part."""
    pieces = (f'<i class="{escape(name)}" style="width:{100 * share:.1f}%"></i>' for name, share in card.shares.items())
    return f'<span class="bar" role="img" aria-label="score {escape(card.score)}">{"".join(pieces)}</span>'


def text_html(text: str, marked: Sequence[tuple[int, int]]) -> str:
    """Return a text with its marked spans. What follows the excerpt can be unfolded."""
    if len(text) <= EXCERPT * 1.2:
        return span_html(text, marked, 0, len(text))
    end = text.rfind(" ", 0, EXCERPT) + 1 or EXCERPT
    while any(start < end < stop for start, stop in marked):
        end += 1
    rest = span_html(text, marked, end, len(text))
    return f"{span_html(text, marked, 0, end)}<details><summary>Show the rest</summary>{rest}</details>"


def span_html(text: str, marked: Sequence[tuple[int, int]], begin: int, end: int) -> str:
    """Return the part of a text between two places, with its marked spans."""
    parts = []
    last = begin
    for start, stop in marked:
        if begin <= start and stop <= end:
            parts.append(f"{escape(text[last:start])}<mark>{escape(text[start:stop])}</mark>")
            last = stop
    return "".join(parts) + escape(text[last:end])


NOTE = "{texts}, embedded with {model}.{relevant}"
RELEVANT = " “Relevant” marks a cosine that at most about one unrelated text per query reaches."
# What each color of the bars means.
LEGEND = {"vectors": "vectors: cosine of the embeddings", "words": "words: those of the query, marked in the text"}
SECOND_LEGEND = {"tokens": "vectors, words and, in the best 50 texts, matching tokens"}


def cards_of(index: Index, query: str, k: int) -> list[Card]:
    """Return the hits of a query as cards of the page, with the words of the query marked in each.

    With a second look, the tokens that match those of the query are marked, too.
    """
    hits = index.search(query, k)
    marked = matching_spans([hit.text for hit in hits], query, index.words.numbers)
    if index.record.second_look:
        matched = index.matched_spans(query, [hit.row for hit in hits])
        marked = [joined(words + tokens) for words, tokens in zip(marked, matched)]
    shares = shares_of(index, query, hits)
    cards = []
    for hit, spans, share in zip(hits, marked, shares):
        fields = hit.shown_fields
        card = Card(
            text=hit.text,
            score=f"{hit.score:.2f}",
            shares=share,
            parts=parts_of(hit),
            marked=spans,
            title=str(fields.pop("title", "")),
            url=str(fields.pop("url", "")),
            fields=fields,
            badge="relevant" if hit.relevant else "",
            number=f"row {hit.row:,}" if hit.id is None else str(hit.id),
        )
        cards.append(card)
    return cards


def parts_of(hit: Hit) -> str:
    """Return what a score consists of as text."""
    parts = [f"vectors {hit.vector_score:.3f}", f"words {hit.word_score:.2f}"]
    if hit.token_score is not None:
        parts.append(f"tokens {hit.token_score:.3f}")
    return ", ".join(parts)


def shares_of(index: Index, query: str, hits: list[Hit]) -> list[dict[str, float]]:
    """Return the parts of each score that come from vectors and from words, as shares of the best score.

    With a second look, which reorders the hits, the whole score is one part.
    """
    if hits[0].token_score is not None:
        best = max(hit.score for hit in hits)
        return [{"tokens": max(0.0, hit.score / best)} if best > 0 else {} for hit in hits]
    words = index.words.scores([query])
    scale = index.record.word_weight / float(spread(words)[0, 0])
    mean = float(words.mean())
    shares = []
    for hit in hits:
        from_words = max(0.0, scale * (hit.word_score - mean))
        from_vectors = max(0.0, hit.score - from_words)
        best = max(hits[0].score, from_words + from_vectors)
        shares.append({"vectors": from_vectors / best, "words": from_words / best} if best > 0 else {})
    return shares


def index_page(index: Index) -> "gradio.Blocks":
    """Return the page of an index.

    Raises:
        UsageError: gradio is not installed.
    """
    raise_if_missing("demo", what="The search page (without a query)")
    note = NOTE.format(
        texts=counted(len(index), "text"),
        model=last_name(index.record.model),
        relevant="" if index.threshold is None else RELEVANT,
    )
    return build_page(
        "Search",
        note,
        f"Search {counted(len(index), 'text')}",
        lambda query, k: cards_of(index, query, k),
        legend=SECOND_LEGEND if index.record.second_look else LEGEND,
    )


def serve(index: Index, host: str = "127.0.0.1", port: int | None = None) -> None:
    """Serve the page of an index until a signal.

    Args:
        index: The index.
        host: Address to listen on.
        port: Port; None for the first free one from 7860.
    """
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    page = index_page(index)
    page.launch(
        server_name=host,
        server_port=port,
        share=False,
        show_error=True,
        quiet=True,
        prevent_thread_lock=True,
        footer_links=[],
    )
    print(f"The search page is at {page.local_url} (Ctrl-C stops it)", flush=True)
    try:
        threading.Event().wait()
    finally:
        page.close()
