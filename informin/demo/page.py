"""The search page: a Gradio app with a search box, a map and the models' reports.

It loads nothing from other hosts and sends nothing to them. `Guard` refuses every request that it does not make.
"""

import os
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from informin.demo.guard import Guard
from informin.demo.hosts import hosts_of
from informin.demo.load import find_report, load_search
from informin.demo.map_html import SCRIPT, map_html
from informin.demo.points import map_points
from informin.demo.render import CSS, heading, note, report_html, results_html
from informin.demo.search import HITS, Search
from informin.demo.server import LOCAL, address_of, listen, start
from informin.errors import UsageError
from informin.labeled_sentences import load_labeled_sentences
from informin.models.open_model import load_model

if TYPE_CHECKING:
    import fastapi
    import gradio

WAITING = 100  # queries at a time
EMPTY = f"Type a few words or a sentence and press Enter to see the {HITS} nearest sentences."
REPORT_HINT = "Training and `informin fit` write one."


def require_gradio():
    """Return the module gradio.

    Raises:
        UsageError: It is not installed.
    """
    try:
        import gradio
    except ImportError:
        fix = "Install the extra `demo` (see Install in README)."
        raise UsageError("The search page needs the package gradio, which is not installed", fix=fix) from None
    return gradio


def build_page(search: Search) -> "gradio.Blocks":
    """Return the page of models with their sentences."""
    gr = require_gradio()
    names = [model.name for model in search.models]
    with gr.Blocks(title=f"Search with {' and '.join(names)}", analytics_enabled=False, fill_width=True) as page:
        gr.HTML(heading(names, len(search)))
        with gr.Tabs():
            with gr.Tab("Search"):
                _search_tab(gr, search)
            with gr.Tab("Map"), gr.Row():
                for name, vectors in zip(names, search.vectors):
                    with gr.Column(min_width=280):
                        points = map_points(search.sentences, vectors)
                        gr.HTML(map_html(name, points, len(search)), js_on_load=SCRIPT)
            with gr.Tab("Report"):
                for model in search.models:
                    gr.HTML(report_html(model.name, find_report(model.encoder.name), REPORT_HINT))
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


def serve(
    page: "gradio.Blocks", host: str | None = LOCAL, port: int | None = None, allowed_hosts: Collection[str] = ()
) -> str:
    """Start the server of a page in the background and return its URL.

    Args:
        page: From `build_page`.
        host: Address to listen on; None for GRADIO_SERVER_NAME, which Spaces set.
        port: Port; None for GRADIO_SERVER_PORT, or the first free one from 7860.
        allowed_hosts: Further host names under which the page may be opened. In a Space, all names are served.

    Raises:
        UsageError: The address, the port or a host name cannot be used.
    """
    address = address_of(host)
    hosts = None if os.environ.get("SPACE_ID") else hosts_of(address, allowed_hosts)
    listener = listen(address, port)
    return start(Guard(app_of(page), hosts), listener)


def app_of(page: "gradio.Blocks") -> "fastapi.FastAPI":
    """Return the ASGI app of a page, with everything off that the page does not need."""
    import fastapi  # comes with gradio

    gr = require_gradio()
    page.queue(max_size=WAITING)
    return gr.mount_gradio_app(
        fastapi.FastAPI(openapi_url=None),
        page,
        path="/",
        show_error=False,
        ssr_mode=False,
        mcp_server=False,
        run_history=False,
        enable_monitoring=False,
        footer_links=[],
        theme=_theme(gr),
        css=CSS,
    )


def _theme(gr):
    """Return a theme with the system's fonts, and a button that is dark enough to read."""
    fonts = {"font": ["system-ui", "sans-serif"], "font_mono": ["ui-monospace", "monospace"]}
    button = {f"button_primary_background_fill{end}": "*primary_700" for end in ("", "_dark")}
    button |= {f"button_primary_background_fill_hover{end}": "*primary_800" for end in ("", "_dark")}
    return gr.themes.Default(primary_hue="blue", **fonts).set(**button)


def space_page(models: Sequence[str], sentences: str | Path) -> "gradio.Blocks":
    """Return the page of a Space.

    Args:
        models: One or two Hub ids.
        sentences: See `load_labeled_sentences`.
    """
    encoders = [load_model(name) for name in models]
    return build_page(load_search(encoders, load_labeled_sentences(sentences)))
