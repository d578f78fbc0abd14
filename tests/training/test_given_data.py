"""What a trainer accepts as `train_dataset`, and errors that say what to give."""

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from informin.training.given_data import as_data
from tests.conftest import make_sentences, raises_usage

SENTENCES = make_sentences(6)
TABLE = datasets.Dataset.from_dict(
    {"n": range(6), "text": SENTENCES, "other": SENTENCES, "list": [[s] for s in SENTENCES]}
)
STREAM = TABLE.to_iterable_dataset()
UNTYPED = datasets.IterableDataset.from_generator(lambda: ({"text": text} for text in SENTENCES))


def test_the_column_can_be_named():
    reversed_rows = [{"text": "wrong", "body": text} for text in SENTENCES]
    renamed = TABLE.rename_columns({"text": "body", "other": "text"})
    for data in (renamed, reversed_rows, STREAM.rename_column("text", "body")):
        assert [row["text"] for row in as_data(data, "body")[1]] == SENTENCES
    with raises_usage(option="text_column", found="is body, and the data has the columns n, text, other, list"):
        as_data(TABLE, "body")
    with raises_usage(
        option="train_dataset", found="has the columns n, list", fix="Name the column with `text_column`"
    ):
        as_data(TABLE.select_columns(["n", "list"]))
    with raises_usage(option="train_dataset", found="has the splits test", needed="a split train"):
        as_data(datasets.DatasetDict(test=TABLE))


class Items(torch.utils.data.Dataset):
    """A data set of PyTorch."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, row):
        return self.items[row]


GIVEN = {
    "list": SENTENCES,
    "tuple": tuple(SENTENCES),
    "generator": (text for text in SENTENCES),
    "iterator": iter(SENTENCES),
    "NumPy strings": np.array(SENTENCES),
    "NumPy objects": np.array(SENTENCES, object),
    "Series": pd.Series(SENTENCES, index=range(7, 13)),
    "categories": pd.Series(SENTENCES, dtype="category"),
    "Arrow array": pa.array(SENTENCES),
    "Arrow chunks": pa.chunked_array([SENTENCES[:2], SENTENCES[2:]]),
    "column": TABLE["text"],
    "other column": TABLE["other"],
    "part of a column": TABLE["text"][:6],
    "rows": [{"text": text, "n": 1} for text in SENTENCES],
    "iterator of rows": ({"text": text} for text in SENTENCES),
    "rows without text": [{"n": 1}, *({"text": text} for text in SENTENCES), {"text": None}, {"text": " "}],
    "data set": TABLE,
    "formatted data set": TABLE.with_format("numpy"),
    "DataFrame": pd.DataFrame({"n": 1, "text": SENTENCES}),
    "Arrow table": pa.table({"n": range(6), "text": SENTENCES}),
    "PyTorch data set": Items(SENTENCES),
    "PyTorch data set of rows": Items([{"text": text} for text in SENTENCES]),
    "stream": STREAM,
    "column of a stream": STREAM["other"],
    "stream without types": UNTYPED,
    "column sentence": TABLE.select_columns(["n", "other"]).rename_column("other", "sentence"),
    "only column": TABLE.select_columns("other"),
    "splits": datasets.DatasetDict(train=TABLE, test=TABLE.select([0])),
    "dictionary of data sets": {"a": TABLE.select(range(2)), "b": TABLE.select_columns("other").select(range(2, 6))},
    "blank ones too": ["", *SENTENCES, "\n "],
}


@pytest.mark.parametrize("kind", GIVEN)
def test_sentences_of_every_kind_are_equal(kind):
    _, found = as_data(GIVEN[kind])
    assert found.column_names in (["text"], None)
    texts = [row["text"] for row in found]
    assert texts == SENTENCES and {type(text) for text in texts} <= {str, np.str_}


def test_a_list_has_the_same_fingerprint_however_it_is_given():
    """Otherwise the cache of tokens would be missed, and a run could not be resumed."""
    prints = {
        as_data(data)[1]._fingerprint for data in (SENTENCES, tuple(SENTENCES), iter(SENTENCES), np.array(SENTENCES))
    }
    assert len(prints) == 1


ROWS = [{"input_ids": [1, 2], "attention_mask": [1, 1]}]


@pytest.mark.parametrize("data", [ROWS, Items(ROWS), datasets.Dataset.from_list(ROWS)])
def test_tokenized_rows_are_unchanged(data):
    assert as_data(data) == (data, None)


@pytest.mark.parametrize("name", ["numpy", "pandas", "arrow", "torch"])
def test_the_format_of_a_data_set_does_not_count(name):
    data, sentences = as_data(datasets.Dataset.from_dict({"text": SENTENCES}).with_format(name))
    assert sentences["text"][:] == SENTENCES and data.format["type"] is None


def test_a_transform_is_refused():
    data = datasets.Dataset.from_dict({"text": SENTENCES}).with_transform(lambda rows: rows)
    with raises_usage(option="train_dataset", found="is a data set with a transform", fix="`map`"):
        as_data(data)


def test_iterator_of_tokenized_rows_becomes_a_list():
    assert as_data(iter(ROWS)) == (ROWS, None)


@pytest.mark.parametrize(
    "data, found",
    [
        ("a dog", "is a str"),
        (b"a dog", "is a bytes"),
        (None, "is a NoneType"),
        (5, "is a int"),
        ({"text": SENTENCES}, "is a dict"),
        (set(SENTENCES), "is a set"),  # in another order in each run
        ([1, 2], "contains 1"),
        ([b"a"], "contains b'a'"),
        ([*SENTENCES, None], "contains None"),
        ([*SENTENCES, {"text": "a"}], "contains {'text': 'a'}"),
        ([{"text": 5}], "contains 5"),
        (pd.Series([*SENTENCES, float("nan")]), "contains nan"),
        (np.array("a dog"), "contains array('a dog'"),
        (np.array([SENTENCES]), "contains array(["),
        (np.arange(3), "contains "),
        (TABLE["n"], "contains 0 in the column text"),
        (TABLE["list"], "contains ['"),
        (TABLE.select_columns("n").rename_column("n", "text"), "contains 0 in the column text"),
        (datasets.IterableDataset.from_generator(lambda: ({"text": i} for i in range(3))), "contains 0 in the column"),
        ([{"n": 1}], "has the columns n"),
        (pd.DataFrame({"n": SENTENCES, "m": SENTENCES}), "has the columns n, m"),
        ([], "contains no sentences"),
        (iter([]), "contains no sentences"),
        (["", "\n"], "contains no sentences, only 2 blank texts"),
    ],
)
def test_other_data_are_rejected(data, found):
    with raises_usage(option="train_dataset", found=found) as error:
        as_data(data)
    assert "sentences" in (error.value.needed or "") or "text" in (error.value.needed or "")


@pytest.mark.parametrize(
    "data", [["\ud800"], [{"text": "a\udfff"}], iter(["\ud800"]), pd.Series(["\ud800"], dtype=object)]
)
def test_half_of_a_surrogate_pair_is_rejected(data):
    with raises_usage(found="is not valid Unicode", fix="Remove or replace"):
        as_data(data)


@pytest.mark.parametrize("typed", [True, False])
def test_blank_rows_of_a_stream_are_left_out(typed):
    rows = [{"text": text} for text in ("one", "", " \t", None, "two")]
    whole = datasets.Dataset.from_list(rows).to_iterable_dataset()
    stream = whole if typed else datasets.IterableDataset.from_generator(lambda: iter(rows))
    _, sentences = as_data(stream)
    assert [row["text"] for row in sentences] == ["one", "two"] and sentences.features == stream.features
