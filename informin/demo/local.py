"""The search page of an index on this machine."""

import os
import threading
from typing import TYPE_CHECKING

from informin.demo.marks import joined, matching_spans
from informin.demo.page import Card, build_page
from informin.errors import counted
from informin.evaluation.words import spread
from informin.files import last_name
from informin.packages import raise_if_missing
from informin.search.index import Index
from informin.search.record import Hit

if TYPE_CHECKING:
    import gradio

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
