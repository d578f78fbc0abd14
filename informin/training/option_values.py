"""Values of options as JSON for the record of a run: without folders, and unequal if the values are.

A checkpoint is resumed only with equal values. So what JSON cannot hold, or what is long, is recorded as a checksum.
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import PureWindowsPath
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
from torch import nn

from informin.errors import UsageError, error_line
from informin.files import last_name

LONGEST = 500  # characters of a value as JSON; a longer one is recorded as a checksum
# A path from the root, the home folder, a drive, or here; or one with folders and a suffix, which no Hub id has.
PATH = re.compile(r"(file:|~|/|\\\\|[A-Za-z]:[\\/]|\.{1,2}[\\/])|(?!\w+://)\S*[\\/]\S*\.[A-Za-z]\w{0,7}$")
# The folders of a path within a text.
FOLDERS = re.compile(r"(?<![\w./\\~-])(~\w*/|/(?!/)|[A-Za-z]:[\\/])([^\s/\\:,;]+[/\\])+")


def as_json(value: Any, name: str) -> Any:
    """Return the value of an option as JSON. Of a path, only the last part is kept.

    Args:
        value: The value.
        name: Name of the option.

    Raises:
        UsageError: The value has no checksum, such as an open file.
    """
    try:
        found = _plain(value)
    except Exception as error:  # of pickle, or of the user's class
        raise UsageError(
            f"is a {type(value).__name__}, which cannot be recorded ({error_line(error)})",
            option=name,
            needed="a value that can be pickled, such as an array, so that a resumed run can be compared",
        ) from error
    text = json.dumps(found, sort_keys=True)
    return found if isinstance(found, str) or len(text) <= LONGEST else _with_checksum(value, text)


def _plain(value: Any) -> Any:
    """Return a value as JSON, of any length."""
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        kept = last_part(value) if is_path(value) else FOLDERS.sub("", value)
        return kept.encode(errors="backslashreplace").decode()  # the name of a file may not be UTF-8
    if isinstance(value, os.PathLike):
        return last_part(os.fsdecode(value))
    if isinstance(value, Mapping):
        return _plain_mapping(value)
    if isinstance(value, Set):
        return sorted((_plain(item) for item in value), key=json.dumps)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return [_plain(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type | nn.Module):
        return {declared.name: _plain(getattr(value, declared.name)) for declared in fields(value)}
    if isinstance(value, type | BuiltinFunctionType):
        return f"{value.__module__}.{value.__qualname__}"
    return _with_checksum(value, _hash(value))


def _plain_mapping(value: Mapping) -> Any:
    """Return a mapping as JSON: an object if all keys are text, else pairs, sorted."""
    pairs = [[_plain(key), _plain(item)] for key, item in value.items()]
    names = {key for key, _ in pairs if isinstance(key, str)}
    return dict(pairs) if len(names) == len(pairs) else sorted(pairs, key=json.dumps)


def _hash(value: Any) -> str:
    """Return a checksum of an object. Weights to train do not count: a checkpoint has those of a head."""
    from datasets.fingerprint import Hasher  # this import takes a second

    if isinstance(value, nn.Module):
        trained = {name for name, weight in value.named_parameters() if weight.requires_grad}
        value = {name: weight for name, weight in value.state_dict().items() if name not in trained}
    return Hasher.hash(value)


def _with_checksum(value: Any, content: str) -> str:
    """Return the name of a value's class or function with a checksum of its content."""
    name = value.__qualname__ if isinstance(value, FunctionType) else type(value).__name__
    return f"{name} (checksum {hashlib.sha256(content.encode()).hexdigest()[:16]})"


def is_path(text: str) -> bool:
    """Return whether a text is the path of a file or folder, which need not exist, and not only its name."""
    has_folder = "/" in text or os.sep in text
    return bool(PATH.match(text)) or (has_folder and len(text) < 1024 and "\0" not in text and os.path.lexists(text))


def last_part(path: str) -> str:
    """Return the name of a file or folder from its path, also from one of Windows."""
    is_windows = "\\" in path or re.match("[A-Za-z]:", path)
    return PureWindowsPath(path).name if is_windows else last_name(path)
