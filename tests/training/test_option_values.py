"""Values of options as JSON: of paths only the last part, and different JSON for different values."""

import functools
import json
import math
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import numpy as np
import pytest
import torch

from informin.training.objective import recorded_value
from tests.conftest import raises_usage


@dataclass
class Settings:
    """A field of a term may be a dataclass."""

    rate: float = 0.5
    file: str = "/home/alice/settings.txt"


class Kind(Enum):
    NOUN = "noun"


class Thing:
    def __init__(self, value):
        self.value = value


def test_json_values_stay_as_they_are():
    for value in (
        None,
        True,
        3,
        0.5,
        "text",
        "user/repo",
        "BAAI/bge-small-en-v1.5",
        "and/or",
        "https://x.org/a",
        [1],
        {"a": [1]},
    ):
        assert recorded_value(value, "field") == value
    for value, expected in ((np.float32(0.5), 0.5), ((1, 2), [1, 2]), ({2, 1}, [1, 2]), (Kind.NOUN, "noun")):
        assert recorded_value(value, "field") == expected


@pytest.mark.parametrize(
    "value",
    [
        "/home/alice/words.npy",
        Path("/home/alice/words.npy"),
        "~alice/words.npy",
        "../alice/words.npy",
        "alice/words.npy",
        "C:\\Users\\alice\\words.npy",
        "file:///home/alice/words.npy",
        "weights=/home/alice/words.npy, 3",
        b"/home/alice/words.npy",
        [("/home/alice/words.npy",)],
        {"/home/alice/words.npy": {"deep": Path("alice/words.npy")}},
        {1: "/home/alice/words.npy"},
        Settings(),
        ["/home/alice/words.npy"] * 100,
        Thing("/home/alice/words.npy"),
        "/home/alice/caf\udce9.npy",
        "caf\udce9 and /home/alice/words.npy",
    ],
    ids=range(17),
)
def test_no_folder_of_a_path_is_recorded(value):
    text = json.dumps(recorded_value(value, "field"), ensure_ascii=False)
    assert text.encode() and "alice" not in text and "home" not in text and len(text) > 2


def test_a_folder_that_exists_is_a_path(tmp_path, monkeypatch):
    (tmp_path / "alice/words").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert recorded_value("alice/words", "field") == "words" and recorded_value("alice/other", "field") == "alice/other"


VALUES = {
    "infinity": lambda x: math.inf if x else -math.inf,
    "nan": lambda x: math.nan if x else 1.0,
    "dictionary": lambda x: {"noun": x},
    "keys": lambda x: {x: 1, "1.0": 2},
    "set": lambda x: {x, "a"},
    "long list": lambda x: [x] * 1000,
    "array": lambda x: np.full(3, x),
    "objects": lambda x: np.array([x, None], dtype=object),
    "tensor": lambda x: torch.full((2,), x, dtype=torch.bfloat16),
    "bytes": lambda x: str(x).encode(),
    "dataclass": lambda x: Settings(x),
    "object": lambda x: Thing(x),
    "function": lambda x: (lambda y: y + 1) if x else (lambda y: y + 2),
    "partial": lambda x: functools.partial(max, x),
    "builtin": lambda x: torch.relu if x else torch.tanh,
    "frozen module": lambda x: torch.nn.Linear(1, 1).requires_grad_(False).apply(lambda m: m.weight.data.fill_(x)),
}


@pytest.mark.parametrize("make", VALUES.values(), ids=VALUES)
def test_equal_values_have_equal_json_and_others_another(make):
    torch.manual_seed(0)
    one = recorded_value(make(1.0), "field")
    torch.manual_seed(0)
    assert json.loads(json.dumps(one, allow_nan=False)) == recorded_value(make(1.0), "field")
    assert one != recorded_value(make(0.0), "field") and len(json.dumps(one)) < 600


def test_a_value_without_a_checksum_is_refused():
    with raises_usage(option="field"):
        recorded_value((number for number in range(3)), "field")
