"""The search page: a Gradio app with a search box, a map and the models' reports.

It loads nothing from other hosts and sends nothing to them.
"""

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from informin.demo.load import find_report, load_search
from informin.demo.points import map_points
from informin.demo.render import CSS, heading, note, report_html, results_html
from informin.demo.search import HITS, Search
from informin.demo.sentences import load_labeled_sentences
from informin.encoders.encoder import load_encoder
from informin.errors import UsageError, counted

if TYPE_CHECKING:
    import gradio

LOCAL = "127.0.0.1"
EMPTY = f"Type a few words or a sentence and press Enter to see the {HITS} nearest sentences."
X, Y, LABEL, SENTENCE = "component 1", "component 2", "label", "sentence"  # columns of a map
REPORT_HINT = "Training and `informin fit` write one."
HEIGHT = 520  # of a map, in pixels


def require_gradio():
    """Return the module gradio.

    Raises:
        UsageError: It is not installed.
    """
    try:
        import gradio
    except ImportError:
        fix = "Install it: pip install 'informin-cl[demo]'"
        raise UsageError("The search page needs the package gradio, which is not installed", fix=fix) from None
    return gradio


def build_page(search: Search, report_hint: str = REPORT_HINT) -> "gradio.Blocks":
    """Return the page.

    Args:
        search: The models with their sentences.
        report_hint: How to create a report, for models without one.
    """
    gr = require_gradio()
    names = [model.name for model in search.models]
    with gr.Blocks(title=f"Search with {' and '.join(names)}", analytics_enabled=False) as page:
        gr.HTML(heading(names, len(search)))
        with gr.Tabs():
            with gr.Tab("Search"):
                _search_tab(gr, search)
            with gr.Tab("Map"):
                for name, vectors in zip(names, search.vectors):
                    _map(gr, name, search, vectors)
            with gr.Tab("Report"):
                for model in search.models:
                    gr.HTML(report_html(model.name, find_report(model.encoder.name), report_hint))
    return page


def answer(search: Search, query: str | None) -> str:
    """Return the results of a query as HTML, or what is wrong with it."""
    query = (query or "").strip()
    if not query:
        return note(EMPTY, "status")
    start = time.perf_counter()
    try:
        found = search(query)
    except UsageError as error:
        return note(str(error), "alert")
    return results_html(found, len(search), time.perf_counter() - start)


def _search_tab(gr, search: Search) -> None:
    with gr.Row(equal_height=True):
        box = gr.Textbox(label="Sentence to search for", lines=1, max_lines=1, autofocus=True, scale=5, min_width=200)
        button = gr.Button("Search", variant="primary", scale=1, min_width=100)
    results = gr.HTML(answer(search, ""))
    for event in (box.submit, button.click):
        event(lambda query: answer(search, query), box, results, show_progress="hidden", api_visibility="private")


def _map(gr, name: str, search: Search, vectors) -> None:
    import pandas as pd  # which gradio needs

    points = map_points(search.sentences, vectors)
    frame = pd.DataFrame({X: points.xy[:, 0], Y: points.xy[:, 1], SENTENCE: points.texts})
    if points.labels:
        frame[LABEL] = points.labels
    share = f"{100 * points.explained:.0f}% of the variance"
    shown = f"{len(frame):,} of {counted(len(search), 'sentence')}" if len(frame) < len(search) else "all sentences"
    gr.HTML(note(f"{name}: the first two principal components ({share}) of {shown}. Point at a dot to read it."))
    gr.ScatterPlot(
        frame, x=X, y=Y, color=LABEL if points.labels else None, tooltip=[SENTENCE], height=HEIGHT, show_label=False
    )


def serve(page: "gradio.Blocks", host: str | None = LOCAL, port: int | None = None) -> str:
    """Start the server of a page in the background and return its URL.

    Args:
        page: From `build_page`.
        host: Address to listen on; None for GRADIO_SERVER_NAME, which Spaces set.
        port: Port; None for GRADIO_SERVER_PORT, or the first free one from 7860.

    Raises:
        UsageError: The address or the port cannot be used.
    """
    gr = require_gradio()
    fonts = {"font": ["system-ui", "sans-serif"], "font_mono": ["ui-monospace", "monospace"]}  # of the system
    try:
        _, url, _ = page.launch(
            server_name=host,
            server_port=port,
            share=False,
            prevent_thread_lock=True,
            quiet=True,
            ssr_mode=False,
            mcp_server=False,
            run_history=False,
            enable_monitoring=False,
            footer_links=[],
            theme=gr.themes.Default(**fonts),
            css=CSS,
        )
    except OSError as error:
        raise UsageError(
            f"is {port or 'not set'}, and no server can listen there on {host}: {' '.join(str(error).split())}",
            option="port",
            fix="Choose another port.",
        ) from None
    return url


def wait() -> None:
    """Keep the server running until a signal."""
    threading.Event().wait()


def start(models: Sequence[str], sentences: str | Path) -> None:
    """Serve the page of one or two models as the app of a Space. Returns never.

    Args:
        models: Hub ids.
        sentences: See `load_labeled_sentences`.
    """
    search = load_search([load_encoder(name) for name in models], load_labeled_sentences(sentences))
    serve(build_page(search), host=None)
    wait()
