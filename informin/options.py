"""Options: fields of dataclasses that are also options of the command line."""

import os
import re
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import field, fields
from inspect import get_annotations
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

import numpy as np

from informin.errors import UsageError

# Fields that several terms have. In messages, records and options of the command line, the term's name precedes them.
SHARED_FIELDS = ("weight", "form", "layers", "neighbors", "size")
UNIONS = (Union, UnionType)
CLASSES: dict[Any, Any] = {
    int: Integral,
    float: Real,
    bool: bool | np.bool_,
    str: str | PathLike,  # options of the command line declare paths as text
    Path: PathLike,
}
NAMES: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "text",
    Path: "a path",
    Mapping: "a dictionary",
    dict: "a dictionary",
    NoneType: "None",
}


def checked_value(name: str, value: Any, kind: Any, default: Any) -> Any:
    """Return the value of an option, with a NumPy number as a number of Python.

    Args:
        name: Name of the option.
        value: The value.
        kind: Its annotation.
        default: The default of the option, which is returned as it is.

    Raises:
        UsageError: The value has another type.
    """
    if value is default:
        return value
    if not fits(value, kind):
        raise UsageError(f"is {value!r:.60}", option=name, needed=described(kind))
    return value.item() if isinstance(value, np.generic) else value


def with_home(value: Any) -> Any:
    """Return a path, or a list of paths, with the home folder in place of a leading `~`. Other values stay as they are.

    A shell expands `~` only at the start of a word, not in `--output_dir=~/x`; YAML and Python never do.
    """
    if isinstance(value, str | PathLike):
        expanded = os.path.expanduser(value)
        return Path(expanded) if isinstance(value, Path) else expanded
    if isinstance(value, list | tuple) and any(isinstance(item, str | PathLike) for item in value):
        return [with_home(item) for item in value]
    return value


def fits(value: Any, kind: Any) -> bool:
    """Return whether a value has the type of an annotation. The items of an `Iterable` are not checked."""
    origin = get_origin(kind)
    if origin in UNIONS:
        return any(fits(value, one) for one in get_args(kind))
    if origin in (list, Sequence):
        return is_list(value, Collection) and all(fits(item, item_kind(kind)) for item in value)
    if origin is Iterable:
        return is_list(value, Iterable)
    if kind in CLASSES:
        is_boolean = isinstance(value, bool | np.bool_)
        return isinstance(value, CLASSES[kind]) and is_boolean is (kind is bool)
    expected = origin or kind
    is_class = isinstance(expected, type) and expected is not Any  # a class since Python 3.11
    return not is_class or getattr(expected, "_is_protocol", False) or isinstance(value, expected)


def is_list(value: Any, kind: Any) -> bool:
    """Return whether a value is a collection or an iterable, and not a text or a dictionary."""
    return isinstance(value, kind) and not isinstance(value, str | bytes | Mapping)


def item_kind(kind: Any) -> Any:
    """Return the annotation of the items of a list."""
    kinds = get_args(kind)
    return kinds[0] if kinds else Any


def described(kind: Any) -> str:
    """Return the description of an annotation in a message, such as "a whole number or None"."""
    origin = get_origin(kind)
    if origin in UNIONS:
        return " or ".join(described(one) for one in get_args(kind))
    if origin in (list, Sequence, Iterable):
        item = item_kind(kind)
        return "a list" if item is Any else f"a list (each {described(item)})"
    expected = origin or kind
    return NAMES.get(expected, getattr(expected, "__name__", str(expected)))


def snake_case(name: str) -> str:
    """Return the name of a class in snake case, as options have it: MaskedLM becomes masked_lm."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


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


def default_text(by_objective: Mapping[str, str], general: str | None) -> str:
    """Return the sentence of a help text about a default, such as "Default: 384 for micse, else 0 (off).".

    Args:
        by_objective: Values of some objectives, by the name of the objective.
        general: The value of the other ones; None without one.
    """
    names_of: dict[str, list[str]] = {}
    for name, value in by_objective.items():
        if value != general:
            names_of.setdefault(value, []).append(name)
    values = [f"{value} for {', '.join(names)}" for value, names in names_of.items()]
    if general is not None:
        values.append(f"else {general}" if values else general)
    return f"Default: {', '.join(values)}." if values else ""


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
        if not (declared.init or hasattr(declaring, declared.name)):  # `check` sets it
            continue
        name = option_name(declared.name)
        value = checked_value(name, getattr(declaring, declared.name), kinds[declared.name], declared.default)
        setattr(declaring, declared.name, value)
        choices = declared.metadata.get("choices")
        if choices and value is not declared.default:
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
