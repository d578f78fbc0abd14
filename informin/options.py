"""Options: fields of dataclasses that are also options of the command line."""

from collections.abc import Callable, Collection, Container
from dataclasses import field, fields
from inspect import get_annotations
from typing import Any

from informin.errors import UsageError
from informin.option_types import checked_value


def option(default, help: str, choices: Collection[str] | None = None) -> Any:
    """Declare a field of a dataclass that is also an option of the command line.

    Args:
        default: Default value.
        help: Help text, one sentence.
        choices: Allowed values; None allows any.
    """
    metadata: dict[str, Any] = {"help": help}
    if choices:
        metadata["choices"] = choices
    return field(default=default, metadata=metadata)


def check_fields(declaring: Any, option_name: Callable[[str], str] = str, names: Container[str] | None = None) -> None:
    """Raise UsageError if a field of a dataclass does not have the declared type, or is not among its choices.

    Args:
        declaring: The object. NumPy numbers in it become numbers of Python.
        option_name: Function from the name of a field to its name in messages.
        names: Names of the fields to check; None for all.
    """
    kinds = annotations_of(type(declaring))
    for declared in fields(declaring):
        if names is not None and declared.name not in names:
            continue
        name = option_name(declared.name)
        value = checked_value(name, getattr(declaring, declared.name), kinds[declared.name], declared.default)
        setattr(declaring, declared.name, value)
        choices = declared.metadata.get("choices")
        if choices:
            check_value(value in choices, name, value, f"one of: {', '.join(map(str, choices))}")


def annotations_of(kind: type) -> dict[str, Any]:
    """Return the annotations of a class and its bases. HfArgumentParser changes the types of fields."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        found |= get_annotations(base)
    return found


def check_value(fits: bool, name: str, value: object, needed: str) -> None:
    """Raise UsageError for an option's value unless it `fits`.

    Args:
        fits: Whether the value is valid.
        name: Name of the option.
        value: The value that was given.
        needed: Description of valid values, such as "a number above 0".
    """
    if not fits:
        shown = " ".join(map(str, value)) if isinstance(value, list) else value
        raise UsageError(f"is {shown}", option=name, needed=needed)
