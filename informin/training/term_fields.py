"""The options of all terms and views, as fields of the training arguments."""

from collections.abc import Iterable
from dataclasses import Field, field, fields
from typing import Any, Optional, get_type_hints

from informin.objectives import OBJECTIVES, Term
from informin.views import VIEWS, View


def terms() -> list[type[Term]]:
    """Return the terms of all objectives, without duplicates."""
    return list(dict.fromkeys(term for objective in OBJECTIVES.values() for term in objective.terms))


def term_options() -> dict[str, object]:
    """Return the options of all terms and views, with their own defaults."""
    return {field.name: field.default for kind in option_kinds() for field in fields(kind)}


def option_kinds() -> list[type[Term] | type[View]]:
    """Return the terms of all objectives and the views, whose fields are options."""
    return [*terms(), *VIEWS.values()]


def term_fields(kinds: Iterable[type[Term] | type[View]]) -> list[tuple[str, Any, Field]]:
    """Return the options of terms and views as fields for `dataclasses.make_dataclass`.

    Each field is None by default: `InforMinTrainingArguments.resolve` fills in the paper's value, else the term's
    default. The help text names both.
    """
    found: list[tuple[str, Any, Field]] = []
    for kind in kinds:
        hints = get_type_hints(kind)
        for own in fields(kind):
            metadata = dict(own.metadata) | {"help": own.metadata["help"] + default_text(own.name, own.default)}
            if own.type is bool:
                metadata |= {"nargs": "?", "const": True}  # `--masked_views` alone means true
            argument: Any = field(default=None, metadata=metadata)
            found.append((own.name, Optional[hints[own.name]], argument))
    return found


def default_text(name: str, default: object) -> str:
    """Return the sentence about an option's default for its help text: the papers' values, then the general one."""
    published = {key: entry.defaults[name] for key, entry in OBJECTIVES.items() if name in entry.defaults}
    if not published or list(published.values()) == [default]:
        return "" if default is None else f" Default: {_shown(default)}."
    values = [f"{' '.join(map(str, v)) if isinstance(v, list) else v} for {key}" for key, v in published.items()]
    general = [] if default is None else [f"else {_shown(default)}"]
    return f" Default: {', '.join([*values, *general])}."


def _shown(default: object) -> str:
    return "0 (off)" if default == 0 and default is not False else str(default).lower()
