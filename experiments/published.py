"""The figures that the papers print, from published.yaml."""

from functools import cache
from pathlib import Path

import yaml

from informin.errors import UsageError

FILE = Path(__file__).with_suffix(".yaml")


@cache
def published() -> dict[tuple[str, ...], float]:
    """Return all figures by the words of their references: (paper, table, row), or (paper, table, group, row)."""
    return _figures(yaml.safe_load(FILE.read_text(encoding="utf-8")))


def _figures(content: dict, before: tuple[str, ...] = ()) -> dict[tuple[str, ...], float]:
    found = {}
    for name, value in content.items():
        words = (*before, *str(name).split(", "))
        found |= _figures(value, words) if isinstance(value, dict) else {words: float(value)}
    return found


def figure(reference: str) -> float:
    """Return the figure of a reference such as "InforMin-CL, table 2, BERT-base, SimCSE".

    Raises:
        UsageError: There is no such figure.
    """
    words = tuple(reference.split(", "))
    if words not in published():
        raise UsageError(f"{FILE.name} has no figure {reference!r}", fix="Write it there, with its paper and table.")
    return published()[words]
