"""Escape text from files and users, so that it cannot change the structure of a Markdown page."""

import json
import re
from typing import Any

# Characters with a meaning in Markdown. An underscore within a word and brackets without a link target have none.
MARKUP = re.compile(r"[\\`*<>|~$]|\](?=\()|&(?=#?\w+;)|(?<![^\W_])_|_(?![^\W_])")
ENTITIES = {"<": "&lt;", ">": "&gt;", "&": "&amp;"}


def escape(value: object) -> str:
    """Return a value on a single line with its markup escaped."""
    line = " ".join(str(value).split())
    return MARKUP.sub(lambda match: ENTITIES.get(match[0], f"\\{match[0]}"), line)


def escaped(value: Any) -> Any:
    """Return a JSON value with the markup in its texts escaped, also in names."""
    if isinstance(value, dict):
        return {escape(name): escaped(item) for name, item in value.items()}
    if isinstance(value, list):
        return [escaped(item) for item in value]
    return escape(value) if isinstance(value, str) else value


def in_quotes(value: str) -> str:
    """Return a text for use between double quotes in Python code."""
    return json.dumps(value, ensure_ascii=False)[1:-1].replace("`", "\\x60")
