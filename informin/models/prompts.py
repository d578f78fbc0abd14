"""The prompts that a model stores: by name, and for queries and documents."""

from collections.abc import Mapping

from informin.errors import UsageError

# Names of prompts in config_sentence_transformers.json, in order of preference; upper and lower case are the same.
SIDES = {
    "query": ("query", "search_query", "retrieval.query", "retrieval-query", "s2p_query"),
    "document": ("document", "passage", "corpus", "search_document", "retrieval.passage", "retrieval-document"),
}


def side_prompts(prompts: Mapping[str, str], default: str) -> tuple[str, str]:
    """Return the prompts for queries and for documents.

    If a model stores a prompt for one side only, the other side has none. If it stores neither, both have the default
    prompt.

    Args:
        prompts: The model's prompts by name.
        default: Its default prompt.
    """
    query, document = (_find(prompts, SIDES[side]) for side in ("query", "document"))
    if query is None and document is None:
        return default, default
    return query or "", document or ""


def named_prompt(prompts: Mapping[str, str], name: str) -> str:
    """Return a stored prompt by its name; `query` and `document` also find it under another usual name.

    Raises:
        UsageError: The model stores no such prompt.
    """
    found = prompts.get(name, _find(prompts, SIDES.get(name, ())))
    if found is None:
        stored = ", ".join(prompts) or "none, so set `prompt` instead"
        raise UsageError(f"is {name}", option="prompt_name", needed=f"a prompt that the model stores: {stored}")
    return found


def side_of(name: str) -> str:
    """Return the side (query or document) of a prompt, by its name. Prompts of other names are for documents."""
    return "query" if name.lower() in SIDES["query"] else "document"


def _find(prompts: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    by_name = {name.lower(): text for name, text in prompts.items()}
    return next((by_name[name] for name in names if name in by_name), None)
