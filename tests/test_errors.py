"""The fields of errors and the line that they build."""

import doctest
import pickle

import pytest

from informin import errors
from informin.errors import NonFiniteLossError, PushError, UsageError
from tests.conftest import raises_usage


@pytest.mark.parametrize(
    "fields, line",
    [
        (dict(found="is -1", option="rate", needed="0 or more"), "`rate` is -1; expected 0 or more."),
        (dict(found="is -1", option="rate", fix="Leave it out."), "`rate` is -1. Leave it out."),
        (dict(found="No sentences in a.txt", needed="one per line"), "No sentences in a.txt; expected one per line."),
        (dict(found="A full sentence, as it is"), "A full sentence, as it is"),
    ],
)
def test_message_is_built_from_the_fields(fields, line):
    error = UsageError(**fields)
    assert str(error) == line
    assert {name: getattr(error, name) for name in fields} == fields


def test_message_is_one_printable_line():
    error = UsageError("is a\nb\x1b[31m", option="prompt")
    assert str(error) == "`prompt` is a\\nb\\x1b[31m." and error.found == "is a\nb\x1b[31m"
    assert str(NonFiniteLossError("a\u2028b")) == "a\\u2028b"
    long = str(UsageError("x" * 200_000, fix="Shorten it."))
    assert len(long) < 2_100 and long.endswith("xxx. Shorten it.")


def test_fields_survive_pickling():
    error = pickle.loads(pickle.dumps(UsageError("is -1", option="rate", fix="Leave it out.")))
    assert (str(error), error.option, error.fix) == ("`rate` is -1. Leave it out.", "rate", "Leave it out.")
    pushed = pickle.loads(pickle.dumps(PushError("No answer", {"hub_model_id": "me/model"})))
    assert (str(pushed), pushed.finish) == ("No answer", {"hub_model_id": "me/model"})


def test_raises_usage_checks_option_and_texts():
    with raises_usage("rate", found="-1", fix="Leave"):
        raise UsageError("is -1", option="rate", fix="Leave it out.")
    for wrong in (dict(option="other"), dict(option="rate", found="-2")):
        with pytest.raises(AssertionError), raises_usage(**wrong):
            raise UsageError("is -1", option="rate")


def test_examples_of_the_docstrings():
    assert doctest.testmod(errors).failed == 0
