"""The search page of an index on this machine."""

import os
import threading
from typing import TYPE_CHECKING

from informin.errors import UsageError, counted
from informin.search.index import Index

if TYPE_CHECKING:
    import gradio

COLUMNS = ("row", "score", "vectors", "words", "words found", "text")
UNRELATED = " (may be unrelated)"


def rows_of(index: Index, query: str, k: int) -> list[list[object]]:
    """Return the hits of a query as rows of the page, with the words of the query in each."""
    hits = index.search([query], k)[0]
    searched, *words = index.words.split([query, *(hit.text for hit in hits)])
    rows: list[list[object]] = []
    for hit, own in zip(hits, words):
        cosine = f"{hit.vector_score:.3f}{UNRELATED if hit.relevant is False else ''}"
        shared = " ".join(word for word in dict.fromkeys(searched) if word in own)
        rows.append([hit.row, f"{hit.score:.2f}", cosine, f"{hit.word_score:.2f}", shared, hit.text])
    return rows


def index_page(index: Index) -> "gradio.Blocks":
    """Return the page of an index.

    Raises:
        UsageError: gradio is not installed.
    """
    try:
        from informin.demo.page import build_page
    except ImportError:
        fix = "Install the extra `demo` (see Install in README), or search with a query."
        raise UsageError("The search page needs the package gradio, which is not installed", fix=fix) from None
    note = (
        f"{counted(len(index), 'text')}, embedded with {index.record.model}. The score adds the cosine of the vectors "
        f"and {index.record.word_weight:g} times the BM25 score of the words, in standard deviations among all texts."
    )
    return build_page("Search", note, "Query", COLUMNS, lambda query, k: rows_of(index, query, k))


def serve(index: Index, host: str = "127.0.0.1", port: int | None = None) -> None:
    """Serve the page of an index until a signal.

    Args:
        index: The index.
        host: Address to listen on.
        port: Port; None for the first free one from 7860.
    """
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    page = index_page(index)
    page.launch(server_name=host, server_port=port, share=False, show_error=True, quiet=True, prevent_thread_lock=True)
    print(f"The search page is at {page.local_url} (Ctrl-C stops it)", flush=True)
    try:
        threading.Event().wait()
    finally:
        page.close()
