"""Schemas of JSON files. A file is checked once, when it is read, so that other code can rely on its values.

A schema is a `Kind` for a value, `Keys` for a mapping, or `Each` for a list.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Union

from informin.errors import UsageError
from informin.files import read_json

DEEPEST = 50  # nested levels of lists and mappings in `ANY`
LARGEST = 10**15
Kind = tuple[Callable[[Any], bool], str]  # a test of a value, and a description of valid values
Schema = Union[Kind, "Keys", "Each"]


@dataclass(frozen=True)
class Keys:
    """A mapping.

    Attributes:
        needed: Schemas of required keys.
        optional: Schemas of optional keys.
        others: Schema of all other keys; None if no other keys are allowed.
        null: Also accept null instead of the mapping.
    """

    needed: Mapping[str, Schema] = field(default_factory=dict)
    optional: Mapping[str, Schema] = field(default_factory=dict)
    others: Schema | None = None
    null: bool = False


@dataclass(frozen=True)
class Each:
    """A list of any length whose items all have the same schema."""

    of: Schema


def read_checked(path: str | Path, schema: Keys, fix: str) -> dict:
    """Read a JSON file and check it against a schema.

    Args:
        fix: What to do about an invalid file, as a full sentence.

    Raises:
        UsageError: The file does not match; the message names the first such key. Also as `read_json`.
    """
    value = read_json(path, object)
    if found := problem(value, schema):
        raise UsageError(f"{path}: {found}", fix=fix)
    return value


def problem(value: object, schema: Schema, name: str = "") -> str | None:
    """Return what is wrong with a value, with the name of the key; None if it is valid.

    Args:
        name: Name of the value, such as `data.sources`; empty for the whole file.
    """
    if isinstance(schema, tuple):
        return None if schema[0](value) else f"{name or 'it'} is {_shown(value)}; expected {schema[1]}"
    if isinstance(schema, Each):
        if not isinstance(value, list):
            return f"{name or 'it'} is {_shown(value)}; expected a list"
        found = (problem(item, schema.of, f"{name}[{i}]") for i, item in enumerate(value))
        return next(filter(None, found), None)
    return _problem_of_keys(value, schema, name)


def _problem_of_keys(value: object, schema: Keys, name: str) -> str | None:
    if value is None and schema.null:
        return None
    if not isinstance(value, dict):
        return f"{name or 'it'} is {_shown(value)}; expected a mapping{', or null' * schema.null}"
    within = f"{name}." if name else ""
    for key in schema.needed:
        if key not in value:
            return f"{within}{key} is missing"
    known = {**schema.needed, **schema.optional}
    for key, item in value.items():
        inner = known.get(key, schema.others)
        if inner is None:
            return f"{within}{_shown(key, 40)[1:-1]} is not a known key"
        if found := problem(item, inner, f"{within}{_shown(key, 40)[1:-1]}"):
            return found
    return None


def _shown(value: object, most: int = 60) -> str:
    """Format a value for a message, on one line and truncated."""
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = repr(value[: most + 1] if isinstance(value, str) else value)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def number(value: Any) -> bool:
    """Return whether a value is a finite number, not a bool."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def one_of(*choices: object) -> Kind:
    return (
        lambda value: value in choices and type(value) in map(type, choices),
        f"one of: {', '.join(map(str, choices))}",
    )


def integer(least: int) -> Kind:
    return lambda value: type(value) is int and least <= value <= LARGEST, f"an integer of {least} or more"


def or_none(kind: Kind) -> Kind:
    return lambda value: value is None or kind[0](value), f"{kind[1]}, or null"


def list_of(kind: Kind) -> Kind:
    return lambda value: isinstance(value, list) and all(map(kind[0], value)), f"a list, each {kind[1]}"


def _plain(value: object) -> bool:
    found = [(value, 0)]
    while found:
        item, depth = found.pop()
        if isinstance(item, dict | list):
            if depth == DEEPEST:
                return False
            found += [(inner, depth + 1) for inner in (item.values() if isinstance(item, dict) else item)]
        elif not (item is None or isinstance(item, bool | str) or number(item)):
            return False
    return True


TEXT: Kind = (lambda value: isinstance(value, str), "text")
FLAG: Kind = (lambda value: isinstance(value, bool), "true or false")
RATE: Kind = (lambda value: number(value) and 0 <= value <= 1, "a number from 0 to 1")
NUMBER: Kind = (number, "a finite number")
SCORE: Kind = (lambda value: number(value) and abs(value) <= LARGEST, "a number between -10^15 and 10^15")
AMOUNT: Kind = (lambda value: number(value) and 0 <= value <= LARGEST, "a number from 0 to 10^15")
LOGGED: Kind = (lambda value: type(value) in (int, float), "a number")  # in a log, where NaN is allowed
TEXTS: Kind = (
    lambda value: isinstance(value, dict) and all(isinstance(item, str) for item in [*value, *value.values()]),
    "a mapping from names to texts",
)
ANY: Kind = (_plain, f"finite numbers, texts, lists and mappings, nested up to {DEEPEST} deep")
