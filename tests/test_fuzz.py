"""Some mutations of each kind of file; `python -m tools.fuzz_files` tries hundreds."""

import json

import pytest

from informin.schema import ANY, DEEPEST, Each, Keys, integer, number, problem
from tools.fuzz_files import CORRECT, REFUSED, fuzz
from tools.fuzz_kinds import build

MUTATIONS = 6
SCHEMA = Keys({"steps": integer(1)}, {"parts": Each(Keys({"name": ANY}))})


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    return folder, build(folder)


def test_each_case_ends_in_correct_work_or_one_line(base):
    folder, kinds = base
    cases = [
        (name, outcome, message)
        for name, kind in kinds.items()
        for outcome, message, _ in fuzz(kind, name, folder, MUTATIONS, seed=2)
    ]
    failed = [case for case in cases if case[1] not in (CORRECT, REFUSED)]
    assert len(cases) == MUTATIONS * len(kinds) and not failed, failed[0]
    assert {outcome for _, outcome, _ in cases} == {CORRECT, REFUSED}


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ({"steps": 1}, None),
        ({"steps": 1, "parts": [{"name": None}]}, None),
        ([], "it is a list; expected a mapping"),
        ({}, "steps is missing"),
        ({"steps": True}, "steps is True; expected an integer of 1 or more"),
        ({"steps": 10**400}, f"steps is 1{'0' * 56}...; expected an integer of 1 or more"),
        ({"steps": 1, "x\n": 0}, "x\\n is not a known key"),
        ({"steps": 1, "parts": {}}, "parts is a mapping; expected a list"),
        ({"steps": 1, "parts": [{"name": 1}, {}]}, "parts[1].name is missing"),
    ],
    ids=str,
)
def test_first_invalid_key_is_named(value, found):
    assert problem(value, SCHEMA) == found


def nested(levels: int) -> list:
    return json.loads("[" * levels + "]" * levels)


def test_any_value_is_finite_and_not_too_deep():
    assert problem(nested(DEEPEST), ANY) is None and problem(nested(DEEPEST + 1), ANY)
    assert not any(map(number, (float("nan"), float("inf"), 10**400, True, "1")))
