"""HTML of the search page. Sentences, labels and names are text: none of their characters becomes markup."""

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

from informin.demo.index import DEPTH
from informin.demo.load import REPORT
from informin.demo.search import Hit, Results
from informin.errors import counted

FOLDED = 400  # characters above which a sentence is folded
SHOWN = 300  # characters of a folded sentence
NOTHING = (
    "Nothing relevant found: about one unrelated sentence per query is expected above a cosine of {threshold:.3f}."
)
MOST_CELLS, CELL = 8, 60  # shown cells of other columns, and the characters of each

# For a report in a frame: no scripts, and nothing from the network.
REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
REPORT_HEAD = (
    f'<meta http-equiv="Content-Security-Policy" content="{REPORT_POLICY}">'
    '<meta http-equiv="x-dns-prefetch-control" content="off">'
)
# Browsers connect to the addresses in these elements even if the policy forbids to load them. Our reports have none.
CONNECTING = re.compile("<(?=link|i?frame)", re.IGNORECASE)

CSS = (Path(__file__).parent / "templates" / "page.css").read_text(encoding="utf-8")


def heading(models: Sequence[str], sentences: int) -> str:
    """Return the head of the page.

    Args:
        models: Names of the models.
        sentences: Number of distinct sentences.
    """
    compared = " and ".join(f"<strong>{escape(name)}</strong>" for name in models)
    return f'<h1>Search</h1><p class="note">{counted(sentences, "sentence")}, embedded with {compared}.</p>'


def note(text: str, role: str = "note") -> str:
    """Return a paragraph of plain text."""
    return f'<p class="note" role="{role}">{escape(text)}</p>'


def results_html(found: Sequence[Results], sentences: int, seconds: float) -> str:
    """Return the lists of one or two models, side by side on wide screens.

    Args:
        found: The results of each model.
        sentences: Number of distinct sentences.
        seconds: Time that the search took.
    """
    status = f"{len(found[0].hits)} nearest of {counted(sentences, 'sentence')} in {1000 * seconds:.0f} ms."
    if cut := [results.model for results in found if results.truncated]:
        status += f" The query is longer than the maximum length of {' and '.join(cut)}, which read only its beginning."
    if len(found) == 2:
        status += f" Arrows show how ranks change from {found[0].model} to {found[1].model}."
    lists = "".join(_list(results, place, len(found)) for place, results in enumerate(found))
    return f'{note(status, "status")}<div class="columns">{lists}</div>'


def _list(results: Results, place: int, models: int) -> str:
    hits = "".join(_hit(hit, results.measure, place, models) for hit in results.hits)
    name = escape(results.model)
    told = note(NOTHING.format(threshold=results.threshold), "status") if results.nothing_relevant else ""
    return f'<section aria-label="{name}"><h2>{name}</h2>{told}<ol class="hits" role="list">{hits}</ol></section>'


def _hit(hit: Hit, measure: str, place: int, models: int) -> str:
    facts = [f'<span class="rank">{hit.rank}</span>', f"<span>{measure} {hit.similarity:.3f}</span>"]
    if models == 2:
        facts.append(_change(hit, after=place == 1))
    if hit.label:
        facts.append(f'<span class="label" dir="auto">{escape(hit.label)}</span>')
    cells = [(name, cell) for name, cell in hit.columns.items() if cell][:MOST_CELLS]
    facts += [f'<span dir="auto">{escape(_cut(name))}: {escape(_cut(cell))}</span>' for name, cell in cells]
    return f'<li><div class="facts">{"".join(facts)}</div>{sentence_html(hit.text)}</li>'


def _cut(text: str) -> str:
    return text if len(text) <= CELL else f"{text[: CELL - 1]}…"


def _change(hit: Hit, after: bool) -> str:
    """Return how the rank changes from the first model to the second, in a list of one of them."""
    word = "was" if after else "now"
    if hit.other_rank is None:
        kind, sign, number = ("up", "▲", "") if after else ("down", "▼", "")
        where = f"{word} below {DEPTH:,}"
    else:
        risen = (hit.other_rank - hit.rank) * (1 if after else -1)
        kind, sign = ("same", "=") if risen == 0 else ("up", "▲") if risen > 0 else ("down", "▼")
        number = f"&nbsp;{abs(risen):,}" if risen else ""
        where = f"{word} {hit.other_rank:,}" if risen else "same rank"
    return f'<span class="{kind}"><span aria-hidden="true">{sign}{number}</span> {where}</span>'


def sentence_html(text: str) -> str:
    """Return a sentence in its own writing direction. A long sentence is collapsed to its first characters."""
    if len(text) <= FOLDED:
        return f'<p class="sentence" dir="auto">{escape(text)}</p>'
    summary = f'<summary dir="auto">{escape(text[:SHOWN])}…</summary>'
    return f'<details class="sentence">{summary}<p class="sentence" dir="auto">{escape(text)}</p></details>'


def report_html(name: str, report: str | None, created_by: str) -> str:
    """Return a sandboxed iframe with the report of a model, or a note on how to create the report.

    The report cannot run scripts, reach this page or load anything, because it may come from another repository.

    Args:
        name: Name of the model.
        report: The report's HTML; None if the model has none.
        created_by: The command that creates a report.
    """
    if report is None:
        return note(f"{name} has no {REPORT}. {created_by}")
    document = REPORT_HEAD + CONNECTING.sub("&lt;", report)
    return (
        f"<h2>{escape(name)}</h2>"
        f'<iframe class="report" sandbox="" title="Report of {escape(name)}" srcdoc="{escape(document)}"></iframe>'
    )
