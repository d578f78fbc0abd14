"""The search page of an index on this machine."""

import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import regex

from informin.errors import counted, raise_if_missing
from informin.files import last_name
from informin.frozen.bm25 import CHARACTER, RUN, UNSPACED_START, spread
from informin.frozen.index import Index
from informin.frozen.index_search import Hit
from informin.frozen.page import Card, build_page

if TYPE_CHECKING:
    import gradio as gr

NOTE = "{texts}, embedded with {model}.{relevant}"
RELEVANT = " “Relevant” marks a cosine that at most about one unrelated text per query reaches."
UNRELATED = "No relevant text was found. The closest ones:"
# What each color of the bars means.
LEGEND = {"vectors": "vectors: cosine of the embeddings", "words": "words: those of the query, marked in the text"}
RERANKED_LEGEND = {"tokens": "vectors, words and, in the best 50 texts, matching tokens"}
NO_SPACES = regex.compile(r"[^\s\u200b]+")
EDGE = regex.compile(r"^[\p{P}\p{S}--[#+]]+|[\p{P}\p{S}--[#+]]+$", regex.V1)  # but c# and c++ are words
LETTERS = regex.compile(r"[\p{L}\p{M}\p{N}_\p{Cf}]+")
Split = Callable[[Sequence[str]], list[list[Any]]]
Span = tuple[int, int]


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


def index_page(index: Index) -> "gr.Blocks":
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
        legend=RERANKED_LEGEND if index.record.rerank else LEGEND,
    )


def cards_of(index: Index, query: str, k: int) -> list[Card]:
    """Return the hits of a query as cards of the page, with the words of the query marked in each.

    If the index reranks, tokens that match those of the query are marked, too. A heading says if no hit is relevant.
    """
    hits = index.search(query, k)
    marked = matching_spans([hit.text for hit in hits], query, index.bm25.numbers)
    if index.record.rerank:
        matched = index.matched_spans(query, [hit.row for hit in hits])
        marked = [joined(words + tokens) for words, tokens in zip(marked, matched)]
    shares = shares_of(index, query, hits)
    group = UNRELATED if all(hit.relevant is False for hit in hits) else ""
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
            group=group,
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
    """Return the parts of each score that come from vectors and from BM25, as shares of the best score.

    If the index reranks, the whole score is one part.
    """
    if hits[0].token_score is not None:
        best = max(hit.score for hit in hits)
        return [{"tokens": max(0.0, hit.score / best)} if best > 0 else {} for hit in hits]
    words = index.bm25.scores([query])
    scale = index.record.word_weight / float(spread(words)[0, 0])
    mean = float(words.mean())
    shares = []
    for hit in hits:
        from_words = max(0.0, scale * (hit.word_score - mean))
        from_vectors = max(0.0, hit.score - from_words)
        best = max(hits[0].score, from_words + from_vectors)
        shares.append({"vectors": from_vectors / best, "words": from_words / best} if best > 0 else {})
    return shares


def matching_spans(texts: Sequence[str], query: str, split: Split) -> list[list[Span]]:
    """Return for each text the spans (start, end) of words that are also in the query.

    Args:
        texts: N texts.
        query: The query.
        split: Function from texts to the words of each that are compared, such as `BM25.numbers`.
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
