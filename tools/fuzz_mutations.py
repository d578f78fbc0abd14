"""Seeded mutations of a file, of its bytes or of its values."""

import ast
import json
import random
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import yaml

# Replacement values. Python would write the first two differently, so they are replaced in the text.
DEEP, DIGITS = "@deep@", "@digits@"
SPELLED = {f'"{DEEP}"': "[" * 100_000 + "]" * 100_000, f'"{DIGITS}"': "9" * 5_000}
VALUES = [
    *(None, True, False, 0, 1, -1, 2, 7, 2**31, 2**63, 10**9, 10**300, 0.5, -0.5, 1e308, float("nan"), float("inf")),
    *("", "x", "0", "../x", "/etc/passwd", "a\nb", "\0", "\ud800", "é" * 100, "x" * 200_000, "true", "null", "cls"),
    *([], [[]], [1], ["x"], [None], {}, {"x": 1}, {"": {}}, DEEP, DIGITS),
]
# Raised if an earlier mutation made the file invalid.
SPOILED = (ValueError, yaml.YAMLError, RecursionError, struct.error, LookupError, TypeError, SyntaxError)


@dataclass(frozen=True)
class Format:
    """Conversion of a file's bytes to lists and mappings, and back.

    Attributes:
        parse: Convert bytes to values.
        spell: Convert values to bytes; also takes the original bytes.
        head: Number of bytes that can be mutated, from the beginning; None for all.
        dangers: Mappings of which a mutation adds one to a mapping of the file, every other time.
    """

    parse: Callable[[bytes], object]
    spell: Callable[[object, bytes], bytes]
    head: Callable[[bytes], int] = len
    dangers: Sequence[Mapping] = ()


def mutated(data: bytes, form: Format | None, source: random.Random) -> bytes:
    """Return a file with one to three mutations, only of its bytes if it has no format."""
    for _ in range(source.choice((1, 1, 1, 2, 3))):
        if not data:  # after a cut at the beginning
            break
        try:
            by_value = form and source.choice((True, True, True, False))
            data = _by_value(data, form, source) if by_value else _by_byte(data, form, source)
        except SPOILED:
            data = _by_byte(data, None, source)
    return data


def _by_byte(data: bytes, form: Format | None, source: random.Random) -> bytes:
    at = source.randrange(min(len(data), form.head(data) if form else len(data)) or 1)
    end = at + source.randint(1, 40)
    return source.choice(
        (
            lambda: data[:at] + bytes([data[at] ^ 1 << source.randrange(8)]) + data[at + 1 :],
            lambda: data[:at],
            lambda: data[:at] + b"\xff\xfe\x80" + data[at:],
            lambda: data[:at] + data[end:],
            lambda: data[:at] + data[at:end] * 2 + data[end:],
            lambda: data[:at] + source.randbytes(end - at) + data[end:],
        )
    )()


def _by_value(data: bytes, form: Format, source: random.Random) -> bytes:
    tree = form.parse(data)
    places = list(_places(tree))
    if form.dangers and source.random() < 0.5:
        mappings = [tree, *(parent[key] for parent, key in places)]
        source.choice([one for one in mappings if isinstance(one, dict)]).update(source.choice(form.dangers))
        return form.spell(tree, data)
    parent, key = source.choice(places)
    action = source.choice(("replace", "replace", "replace", "delete", "rename", "copy"))
    if action == "replace":
        parent[key] = source.choice(VALUES)
    elif action == "delete":
        del parent[key]
    elif action == "rename" and isinstance(parent, dict):
        parent[source.choice(("x", "", f"{key}_", "\ud800"))] = parent.pop(key)
    else:  # another value of the same file
        other, name = source.choice(places)
        parent[key] = json.loads(json.dumps(other[name]))
    return form.spell(tree, data)


def _places(tree: object) -> Iterator[tuple]:
    """Yield every container of a tree with each of its keys or indices."""
    for key, value in list(tree.items() if isinstance(tree, dict) else enumerate(tree)):
        yield tree, key
        if isinstance(value, dict | list) and value:
            yield from _places(value)


def _spelled(text: str) -> bytes:
    for name, value in SPELLED.items():
        text = text.replace(name, value)
    return text.encode(errors="surrogatepass")


def _weights_head(data: bytes) -> int:
    return 8 + struct.unpack("<Q", data[:8])[0]


def _parse_weights(data: bytes) -> object:
    return json.loads(data[8 : _weights_head(data)])


def _spell_weights(tree: object, before: bytes) -> bytes:
    header = _spelled(json.dumps(tree))
    return struct.pack("<Q", len(header)) + header + before[_weights_head(before) :]


def _spell_lines(rows: list, before: bytes = b"") -> bytes:
    return b"\n".join(_spelled(json.dumps(row)) for row in rows) + b"\n"


def _spell_table(rows: list, before: bytes = b"") -> bytes:
    lines = ("\t".join(map(str, row)) if isinstance(row, list) else str(row) for row in rows)
    return "\n".join(lines).encode(errors="surrogatepass")


def _npy_head(data: bytes) -> int:
    return 10 + struct.unpack("<H", data[8:10])[0]


def _parse_npy(data: bytes) -> object:
    header = ast.literal_eval(data[10 : _npy_head(data)].decode("latin1").strip())
    return {name: list(value) if isinstance(value, tuple) else value for name, value in header.items()}


def _spell_npy(tree: object, before: bytes) -> bytes:
    if isinstance(tree, dict):
        tree = {name: tuple(value) if isinstance(value, list) else value for name, value in tree.items()}
    header = repr(tree).encode(errors="surrogatepass")[: 2**16 - 2] + b"\n"
    return before[:8] + struct.pack("<H", len(header)) + header + before[_npy_head(before) :]


JSON = Format(json.loads, lambda tree, before: _spelled(json.dumps(tree)))
YAML = Format(
    yaml.safe_load,
    lambda tree, before: _spelled(yaml.safe_dump(tree, sort_keys=False, default_style='"', width=10**6)),
)
JSON_LINES = Format(lambda data: [json.loads(line) for line in data.splitlines()], _spell_lines)
TSV = Format(lambda data: [line.split("\t") for line in data.decode().split("\n")], _spell_table)
NPY = Format(_parse_npy, _spell_npy, _npy_head)
SAFETENSORS = Format(_parse_weights, _spell_weights, _weights_head)
