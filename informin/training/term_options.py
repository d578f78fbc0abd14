"""The options of all terms and views, as fields of the training arguments."""

from dataclasses import Field, field, fields, make_dataclass
from typing import Any, Optional, get_type_hints

from informin.objectives import OBJECTIVES, Term
from informin.views import VIEWS, View


def terms() -> list[type[Term]]:
    """Return the terms of all objectives, without duplicates."""
    return list(dict.fromkeys(term for objective in OBJECTIVES.values() for term in objective.terms))


def option_kinds() -> list[type[Term] | type[View]]:
    """Return the terms of all objectives and the views, whose fields are options."""
    return [*terms(), *VIEWS.values()]


def option_defaults() -> dict[str, Any]:
    """Return the options of all terms and views, with their own defaults."""
    return {field.name: field.default for kind in option_kinds() for field in fields(kind)}


def option_fields() -> list[tuple[str, Any, Field]]:
    """Return the options of terms and views as fields for `dataclasses.make_dataclass`.

    Each field is None by default: `InforMinTrainingArguments.resolve` fills in the paper's value, else the term's
    default. The help text names both.
    """
    declared: list[tuple[str, Any, Field]] = []
    for kind in option_kinds():
        hints = get_type_hints(kind)
        for one in fields(kind):
            metadata = dict(one.metadata) | {"help": one.metadata["help"] + default_text(one.name, one.default)}
            if one.type is bool:
                metadata |= {"nargs": "?", "const": True}  # `--masked_views` alone means true
            argument: Any = field(default=None, metadata=metadata)
            declared.append((one.name, Optional[hints[one.name]], argument))
    return declared


def default_text(name: str, default: object) -> str:
    """Return the sentence about an option's default for its help text: the papers' values, then the general one."""
    published = {key: entry.defaults[name] for key, entry in OBJECTIVES.items() if name in entry.defaults}
    general = "0 (off)" if default == 0 and default is not False else str(default).lower()
    if not published or list(published.values()) == [default]:
        return "" if default is None else f" Default: {general}."
    values = [f"{' '.join(map(str, v)) if isinstance(v, list) else v} for {key}" for key, v in published.items()]
    return f" Default: {', '.join(values + ([] if default is None else [f'else {general}']))}."


TermOptions: Any = make_dataclass(
    "TermOptions",
    option_fields(),
    repr=False,
    namespace={"__module__": __name__, "__doc__": "Options of the terms and views."},
)
