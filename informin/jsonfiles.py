"""Read JSON Lines files, and files with one JSON array."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from informin.errors import UsageError
from informin.textlines import decoded_lines

ONE_OBJECT = "one JSON object per line"
MOST_BYTES = 2**28  # of a JSON array, which is parsed from memory
SPACE = re.compile(r"[ \t\r\n]*")


def json_records(path: Path) -> Iterator[tuple[int, dict]]:
    """Yield the objects of a JSON Lines file, or of a file with one JSON array, with their line numbers.

    A blank line and null yield an empty object. A string in an array is an object with the key `text`.

    Raises:
        UsageError: As `decoded_lines`. Also for a line that is not a JSON object, and an array with other items.
    """
    if _is_array(path):
        yield from _items(path)
        return
    for number, line in decoded_lines(path):
        try:
            record = json.loads(line) if line.strip() else {}
        except (ValueError, RecursionError) as error:  # ValueError: JSON's own, and a number of too many digits
            raise _not_json(path, number, error) from None
        if not isinstance(record, dict):
            raise UsageError(f"{path}, line {number}: found {line[:40]!r}", needed=ONE_OBJECT)
        yield number, record


def _is_array(path: Path) -> bool:
    lines = (line.strip() for _, line in decoded_lines(path, most=MOST_BYTES))
    return next((line for line in lines if line), "").startswith("[")


def _items(path: Path) -> Iterator[tuple[int, dict]]:
    """Yield the items of a JSON array as objects, with the numbers of the lines in which they begin."""
    text = _whole(path)
    decoder, counted, number = json.JSONDecoder(), 0, 1
    at, end = _skip(text, text.index("[") + 1), "]"
    try:
        while text[at : at + 1] != "]" or end == ",":
            value, after = decoder.raw_decode(text, at)
            number, counted = number + text.count("\n", counted, at), at
            yield number, _record(path, number, value)
            at = _skip(text, after)
            end = text[at : at + 1]
            if end not in (",", "]"):
                raise json.JSONDecodeError("Expecting ',' or ']'", text, at)
            at = _skip(text, at + 1) if end == "," else at
        if text[at + 1 :].strip():
            raise json.JSONDecodeError("Text after the array", text, _skip(text, at + 1))
    except UsageError:
        raise
    except (ValueError, RecursionError) as error:
        raise _not_json(path, getattr(error, "lineno", number), error) from None


def _whole(path: Path) -> str:
    lines, size = [], 0
    for _, line in decoded_lines(path, most=MOST_BYTES):
        lines.append(line)
        size += len(line) + 1
        if size > MOST_BYTES:
            raise UsageError(
                f"{path} is a JSON array of more than {MOST_BYTES:,} characters",
                needed=ONE_OBJECT,
                fix=f"Convert it: jq -c '.[]' {path.name} > {path.stem}.jsonl.",
            )
    return "\n".join(lines)


def _record(path: Path, number: int, value: object) -> dict:
    if isinstance(value, dict):
        return value
    if value is None or isinstance(value, str):
        return {} if value is None else {"text": value}
    raise UsageError(
        f"{path}, line {number}: found {json.dumps(value)[:40]} in the array", needed="JSON objects or strings"
    )


def _skip(text: str, at: int) -> int:
    match = SPACE.match(text, at)
    return match.end() if match else at


def _not_json(path: Path, number: int, error: Exception) -> UsageError:
    return UsageError(
        f"{path}, line {number}: not JSON ({error})",
        needed=f"{ONE_OBJECT}, or one array of objects or strings",
        fix="With pandas: frame.to_json(path, orient='records', lines=True).",
    )
