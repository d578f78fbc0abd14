"""Recognize the card of a model with a linear adapter, and make its examples load a repository."""

import re
from pathlib import Path

TAG = "linear-adapter"
LOADED = r"(SentenceTransformer\(|informin search )\"{}\""  # what a card's examples load


def is_adapter_card(path: Path) -> bool:
    """Return whether a file exists and is the card of a model with a linear adapter."""
    return path.is_file() and f"\n- {TAG}\n" in path.read_text(encoding="utf-8", errors="replace")


def with_name(page: str, name: str, revision: str | None = None) -> str:
    """Return the page of an adapter's card with another model in its title and in the examples that load it.

    Args:
        page: The page without its checksum.
        name: Hub id of the model.
        revision: Commit that the Python example pins.
    """
    found = re.search(LOADED.format('([^"]*)'), page)
    if not found:
        return page
    old = found[2]
    title, new = re.escape(old.rpartition("/")[2]), name.rpartition("/")[2]
    page = re.sub(rf"^# {title}$", f"# {new}", page, count=1, flags=re.MULTILINE)
    page = re.sub(LOADED.format(re.escape(old)), rf'\1"{name}"', page)
    pin = f'"{name}", revision="{revision}"' if revision else f'"{name}"'
    return re.sub(rf'SentenceTransformer\("{re.escape(name)}"(, revision="\w+")?', f"SentenceTransformer({pin}", page)
