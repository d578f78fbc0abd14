"""Escape text from files and users, so that it cannot change the structure of a Markdown page."""

import json
import re
from typing import Any

# Characters with a meaning in Markdown. An underscore within a word and brackets without a link target have none.
MARKUP = re.compile(r"[\\`*<>|~$]|\](?=\()|&(?=#?\w+;)|(?<![^\W_])_|_(?![^\W_])")
ENTITIES = {"<": "&lt;", ">": "&gt;", "&": "&amp;"}


class Markdown(str):
    """Text that is Markdown already, with outside text in it escaped by `escape`.

    The template escapes all other values.
    """


def escape(value: object) -> Markdown:
    """Return a value on a single line with its markup escaped. `Markdown` is returned unchanged."""
    if isinstance(value, Markdown):
        return value
    line = " ".join(str(value).split())
    return Markdown(MARKUP.sub(lambda match: ENTITIES.get(match[0], f"\\{match[0]}"), line))


def code(value: str) -> Markdown:
    """Return a name in backticks, or escaped if it contains markup such as a backtick."""
    return Markdown(f"`{value}`") if escape(value) == value else escape(value)


def in_quotes(value: str) -> Markdown:
    """Return a text for use between double quotes in Python code."""
    return Markdown(json.dumps(value, ensure_ascii=False)[1:-1])


def single_line(value: Any) -> Any:
    """Return a JSON value with line breaks in its texts replaced by spaces. File names may contain anything."""
    if isinstance(value, dict):
        return {single_line(name): single_line(item) for name, item in value.items()}
    if isinstance(value, list):
        return [single_line(item) for item in value]
    return " ".join(value.split()) if isinstance(value, str) else value


def markdown_table(heads: list, rows: list[list], align: str = " --- |") -> str:
    """Return a table. `align` is the delimiter of every column but the first."""
    first, *lines = [f"| {' | '.join(map(escape, row))} |" for row in (heads, *rows)]
    return "\n".join([first, f"| --- |{align * len(heads[1:])}", *lines])
