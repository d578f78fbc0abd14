"""A page with a text box and cards of what is found. It needs gradio alone: a Space on the Hub has a copy of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import gradio as gr

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
