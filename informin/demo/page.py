"""The search page. It imports nothing of informin, because a Space has a copy of this file."""

from collections.abc import Callable, Sequence
from html import escape

import gradio as gr

MOST = 100  # rows of the table
WIDE = "60%"  # of the page, for the text


def build_page(
    title: str,
    note: str,
    label: str,
    columns: Sequence[str],
    search: Callable[[str, int], Sequence[Sequence[object]]],
    lines: int = 1,
    value: str = "",
) -> gr.Blocks:
    """Return a page with a text box and a table of what is found.

    Args:
        title, note: Title, and a sentence below it, in plain text.
        label: Label of the text box.
        columns: Names of the columns of the table. The last one is the text.
        search: Function from what was typed and a number of rows to the rows.
        lines: Lines of the text box. Enter starts the search if it is one.
        value: Text in the box at the beginning.
    """

    def answer(query: str, rows: float) -> list[list[str]]:
        # Cells are text, so that none of their characters becomes markup.
        return [[str(cell) for cell in row] for row in search(query, int(rows))] if query.strip() else []

    widths: list[str | int] = [f"{40 // (len(columns) - 1)}%" for _ in columns[1:]]
    widths.append(WIDE)
    with gr.Blocks(title=title, analytics_enabled=False, fill_width=True) as page:
        gr.HTML(f"<h1>{escape(title)}</h1><p>{escape(note)}</p>")
        box = gr.Textbox(value, label=label, lines=lines, max_lines=10 * lines, autofocus=True)
        with gr.Row():
            number = gr.Slider(1, MOST, 10, step=1, label="Rows")
            button = gr.Button("Search", variant="primary")
        table = gr.Dataframe(
            headers=list(columns), datatype="str", type="array", interactive=False, wrap=True, column_widths=widths
        )
        for event in (box.submit, button.click):
            event(answer, [box, number], table, api_visibility="private")
    return page
