"""Values of another type than an option has, in every function of the package."""

import json
import typing
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from inspect import Parameter
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pandas as pd
import pytest
from sentence_transformers import SentenceTransformer

from informin import Contrast, Index, InforMinTrainingArguments, Term, embed
from informin.cli.train_options import TrainParser
from informin.objectives import TERMS
from informin.options import checked_value
from informin.training.arguments import RANGES
from informin.training.data import as_data
from informin.training.inputs import SourceArguments
from informin.views import VIEWS, View
from tests.conftest import make_sentences, raises_usage

WRONG = object()  # fits no type of an option
NAN = float("nan")


@pytest.mark.parametrize("kind", [*TERMS, *VIEWS.values()], ids=lambda kind: kind.__name__)
def test_terms_and_views_name_the_option(kind):
    for declared in fields(kind):
        with raises_usage(option=kind.option_name(declared.name)):
            kind(**{declared.name: WRONG})


OWN = {*SourceArguments.__annotations__, *InforMinTrainingArguments.__annotations__}


@pytest.mark.parametrize("name", sorted({*OWN, *RANGES, "max_steps"}))
def test_training_arguments_name_the_option(name):
    with raises_usage(option=name):
        InforMinTrainingArguments(**{"output_dir": "x", "use_cpu": True, name: WRONG})


@pytest.mark.parametrize(
    "kind, right, wrong",
    [
        (int, [3, np.int64(3), np.uint8(3)], [2.5, 2.0, "3", None, [1], True, np.float32(2), np.array([1])]),
        (float, [0.5, 2, np.float16(2), np.int32(2), NAN], ["0.5", None, [1.0], True, 1j]),
        (bool, [True, np.bool_(False)], ["false", 1, None]),
        (str, ["x", np.str_("x"), Path("x")], [5, b"x", None, ["x"]]),
        (int | None, [None, 3], [2.5]),
        (Optional[float], [None, 3], ["3"]),
        (list[float], [[0.1], (0.1, 1), np.array([0.1]), pd.Series([0.1]), []], [0.1, "0.1", ["0.1"], {0.1: 1}]),
        (Sequence[str | Path], [["x"], [Path("x")], np.array(["x"])], ["x", [5], b"x", None]),
        (Iterable[str], [["x"], iter("x"), ("x" for _ in "x"), pd.Series(["x"])], ["x", 5, None, {"x": 1}]),
        (Sequence[Any], [[None], range(3)], ["x", 3]),
        (list, [[1]], ["x"]),
        (vars(typing)["List"], [["x", 1]], ["x"]),
        (dict[str, Any], [{}], [[], None]),
        (str | Path | SentenceTransformer, ["x"], [5]),
        ("int", ["x", 3], []),
        (Any, ["x", 3], []),
    ],
)
def test_types(kind, right, wrong):
    for value in right:
        found = checked_value("k", value, kind, Parameter.empty)
        assert not isinstance(found, np.generic) and (found is value or found == value or found != found)
    for value in wrong:
        with raises_usage(option="k"):
            checked_value("k", value, kind, Parameter.empty)


@pytest.fixture(scope="module")
def index(st_mean) -> Index:
    return Index.build(st_mean, make_sentences(20), rerank=True)


def test_texts_are_a_list_of_texts(index):
    for texts in (None, 5, 2.5, {"a": 1}, b"a", [1, 2], ["a", None]):
        with raises_usage(option="queries"):
            index.search(texts)
        with raises_usage(option="texts"):
            Index.build(index.model, texts)
        with raises_usage(option="train_dataset"):
            as_data(texts)


def test_texts_may_come_from_an_iterator(index):
    grown = Index.build(index.model, iter(["a dog", " ", "a cat"]))
    assert grown.rows.tolist() == [0, 2] and grown.add(iter(["", "a bird"])).tolist() == [4]


def test_rows_are_whole_numbers(index):
    for rows in (None, 1, ["1"], [1.5], [True], [[1]], np.array([1.0])):
        for method in (index.rerank, index.matched_spans):
            with raises_usage(option="rows"):
                method("a dog", rows)


def test_sides_of_search(st_mean):
    with raises_usage(option="side"):
        embed(st_mean, ["a dog"], side="doc", device="cpu")


def test_numbers_of_numpy_are_numbers(st_mean, tmp_path):
    index = Index.build(st_mean, make_sentences(20), word_weight=np.float32(0.5), batch_size=np.int64(7))
    index.save(tmp_path)
    assert Index.load(tmp_path).record.word_weight == 0.5
    assert len(index.search("a dog", k=np.int32(3))) == 3
    assert json.dumps(Contrast(queue_size=np.int64(8), temperature=np.float32(0.5)).options())
    assert type(InforMinTrainingArguments("x", use_cpu=True, max_steps=np.int64(3)).max_steps) is int


def test_a_default_needs_no_type():
    @dataclass
    class Margin(Term):
        margin: float = None

        def loss(self, views):
            return views.z1.sum()

    assert Margin().margin is None and Margin(margin=np.float32(2)).margin == 2
    with raises_usage(option="margin"):
        Margin(margin="2")


def test_a_parser_of_the_command_line_changes_no_type():
    """It replaces `Optional[int]` by `int` in the fields of the class."""
    TrainParser()
    args = InforMinTrainingArguments("x", use_cpu=True, save_total_limit=None, view_dropout=[0.1], bf16=None)
    assert args.save_total_limit is None
    with raises_usage(option="save_total_limit"):
        InforMinTrainingArguments("x", use_cpu=True, save_total_limit="2")
    with raises_usage(option="view_dropout"):
        InforMinTrainingArguments("x", use_cpu=True, view_dropout=0.1)


def test_a_view_of_the_user_is_checked():
    @dataclass
    class First(View):
        number: int = 3

        def change(self, tokens, generator):
            return tokens[: self.number]

    with raises_usage(option="first_number"):
        First(number="3")
