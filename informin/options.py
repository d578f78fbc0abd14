"""Options: fields of dataclasses that are also options of the command line."""

from collections.abc import Collection
from dataclasses import field, fields
from typing import Any

from informin.errors import UsageError


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


def check_choice(declaring: Any, field_name: str, option_name: str) -> None:
    """Raise UsageError if a field of a dataclass has a value that is not among its choices.

    Args:
        declaring: The object.
        field_name: Name of the field.
        option_name: Its name in the message.
    """
    declared = {one.name: one for one in fields(declaring)}[field_name]
    value = getattr(declaring, field_name)
    choices = declared.metadata.get("choices", (value,))
    check_value(value in choices, option_name, value, f"one of: {', '.join(map(str, choices))}")


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
