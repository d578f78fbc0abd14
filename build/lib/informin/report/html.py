"""HTML tables, for pages and for results in a notebook. All texts are escaped."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from informin.evaluation.table import Table

PAGES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def tables_html(tables: Sequence[Table]) -> str:
    """Return tables of numbers."""
    return "".join(str(_macros().number_table(table)) for table in tables)


def values_html(title: str, values: Mapping[str, Any]) -> str:
    """Return a table of names and values."""
    return str(_macros().value_table(title, values))


def _macros() -> Any:
    return PAGES.get_template("tables.html").module
