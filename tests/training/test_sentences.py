"""The training sentences: files, datasets and Python objects, and their tokens."""

from pathlib import Path

import datasets
import numpy as np
import pandas
import pandas as pd
import pytest

from informin import texts
from informin.training import data as tokens
from informin.training.data import TRUNCATED, as_data, draw_sample, load_development, load_sentences, tokenize
from informin.training.inputs import DataArguments
from tests.conftest import make_sentences, raises_usage, tokenizer_of
from tests.training.helpers import assert_same, stream_of, trained, weights_of
from trainer_informin import InforMinTrainer

SENTENCES = make_sentences(64)


def write(path, texts):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return str(path)


def load(*files, **options):
    return load_sentences(DataArguments(train_file=list(map(str, files)), **options), seed=1)


def test_files_and_folders_are_read_in_a_fixed_order_without_blank_lines(tmp_path):
    write(tmp_path / "d" / "b.txt", ["three", "", " \t"])
    write(tmp_path / "d" / "a.csv", ["text,label", "one,x", "two,y"])
    other = write(tmp_path / "c.jsonl", ['{"text": "zero"}'])
    assert load(other, tmp_path / "d")["text"][:] == ["zero", "one", "two", "three"]
    stream = load(other, tmp_path / "d", streaming=True)
    assert sorted(row["text"] for row in stream) == ["one", "three", "two", "zero"]


def test_only_changed_files_are_read_again(tmp_path, monkeypatch):
    path = write(tmp_path / "a.txt", ["one", "two"])
    assert load(path)["text"][:] == ["one", "two"]
    write(tmp_path / "a.txt", ["one", "two", "three"])
    assert len(load(path)) == 3
    monkeypatch.setattr("informin.training.data.read_texts", lambda *_: pytest.fail("read again"))
    assert len(load(path)) == 3


def test_files_are_read_again_by_another_version(tmp_path, monkeypatch):
    path = write(tmp_path / "a.txt", ["one", "two"])
    assert len(load(path)) == 2
    code = write(tmp_path / "texts.py", [Path(texts.__file__).read_text(), "# changed"])
    monkeypatch.setattr(texts, "__file__", code)
    monkeypatch.setattr("informin.training.data.read_texts", lambda *_: iter(["as read now"]))
    assert load(path)["text"][:] == ["as read now"]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("name, rows", [("a.txt", []), ("a.txt", ["", " "]), ("a.csv", ["text"]), ("a.jsonl", [])])
def test_files_without_a_sentence_are_rejected(tmp_path, name, rows, streaming):
    empty = write(tmp_path / name, rows)
    with raises_usage(option="train_file"):
        load(empty, streaming=streaming)
    found = load(empty, write(tmp_path / "b.txt", ["one"]), streaming=streaming)
    assert [row["text"] for row in found] == ["one"]


def test_parquet_without_rows_is_rejected(tmp_path):
    pd.DataFrame({"text": pd.Series([], dtype="str")}).to_parquet(tmp_path / "a.parquet")
    with raises_usage(option="train_file"):
        load(tmp_path / "a.parquet")


def test_a_stream_without_a_sentence_is_rejected(bert, unscored):
    stream = datasets.Dataset.from_dict({"text": ["", " "]})
    with raises_usage(option="train_dataset"):
        InforMinTrainer(bert, unscored(max_steps=1), train_dataset=stream.to_iterable_dataset())


@pytest.mark.parametrize("streaming", [False, True])
def test_a_cache_that_cannot_be_written_is_an_error_with_the_way_out(tmp_path, monkeypatch, streaming):
    """As in a container without a home folder."""
    (tmp_path / "file").touch()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "file" / "datasets")
    with raises_usage(found=str(tmp_path / "file"), fix="HF_HOME"):
        load(write(tmp_path / "a.txt", ["one"]), streaming=streaming)


def test_missing_files_are_rejected(tmp_path):
    with raises_usage(option="train_file"):
        load(tmp_path / "absent.txt")


def test_errors_of_the_file_reader_are_passed_on(tmp_path):
    path = write(tmp_path / "a.csv", ["text,label", "one,x,y"])
    with raises_usage(found="a.csv"):
        load(path)
    with raises_usage(option="text_column"):
        load(write(tmp_path / "b.csv", ["text,label", "one,x"]), text_column="title")


def test_dataset_name_may_be_a_folder(tmp_path):
    write(tmp_path / "data" / "train.csv", ["title,body", "one,two", "three,four"])
    how = DataArguments(dataset_name=str(tmp_path / "data"), text_column="title,body")
    assert load_sentences(how, 1)["text"][:] == ["one two", "three four"]
    with raises_usage(option="train_dataset"):
        load_sentences(DataArguments(dataset_name=str(tmp_path / "data")), 1)


def test_max_train_samples_draws_a_random_sample_by_seed():
    data = datasets.Dataset.from_dict({"text": SENTENCES})
    first, again, other = (draw_sample(data, 20, seed)["text"][:] for seed in (1, 1, 2))
    assert first == again != other and len(set(first)) == 20
    assert first == [text for text in SENTENCES if text in first]  # in the order of the data
    assert draw_sample(data, None, 1) is draw_sample(data, 64, 1) is data


@pytest.mark.parametrize(
    "given",
    [
        tuple(SENTENCES),
        iter(SENTENCES),
        np.array(SENTENCES),
        pandas.Series(SENTENCES),
        datasets.Dataset.from_dict({"text": SENTENCES})["text"],
        datasets.Dataset.from_dict({"n": range(64), "sentence": SENTENCES}),
        datasets.Dataset.from_dict({"phrase": SENTENCES}).with_format("numpy"),
        datasets.DatasetDict({"train": datasets.Dataset.from_dict({"text": SENTENCES})}),
        [{"text": text, "n": 1} for text in SENTENCES],
        [*SENTENCES[:9], "", " \n", *SENTENCES[9:]],
        datasets.Dataset.from_dict({"text": [*SENTENCES, None, ""]}),
    ],
    ids=lambda given: type(given).__name__,
)
def test_sentences_of_every_kind_are_equal(given):
    rows, sentences = as_data(given)
    assert rows["text"][:] == sentences["text"][:] == SENTENCES


def test_a_set_has_the_same_order_in_each_process():
    assert as_data(set(SENTENCES))[0]["text"][:] == sorted(SENTENCES)


def test_the_column_can_be_named():
    table = datasets.Dataset.from_dict({"a": SENTENCES, "b": ["x"] * 64, "input_ids": [[1]] * 64})
    assert as_data(table, "a")[1]["text"][:] == SENTENCES and as_data(table, "a,b")[1]["text"][0] == f"{SENTENCES[0]} x"
    assert as_data(table)[1] is None
    stream = table.remove_columns("input_ids").to_iterable_dataset()
    assert [row["text"] for row in as_data(stream, "a")[1]] == SENTENCES


@pytest.mark.parametrize(
    "given",
    [
        "sentences.txt",
        None,
        {"text": SENTENCES},
        pd.DataFrame({"text": SENTENCES}),  # whose items are the names of columns
        [*SENTENCES, None],
        [1, 2],
        datasets.Dataset.from_dict({"phrase": SENTENCES, "n": range(64)}),
        datasets.Dataset.from_dict({"n": range(64)}),
        datasets.Dataset.from_dict({"text": ["", None]}),
    ],
    ids=str,
)
def test_other_data_are_rejected(given):
    with raises_usage(option="train_dataset"):
        as_data(given)


@pytest.mark.parametrize("kind", ["dataset", "rows", "list of rows"])
def test_sentences_and_tokenized_rows_give_equal_weights(bert, unscored, kind):
    table = datasets.Dataset.from_dict({"n": range(64), "text": SENTENCES})
    rows = tokenize(table.select_columns("text"), tokenizer_of(bert), 32).remove_columns(TRUNCATED)
    given = {"dataset": table, "rows": rows, "list of rows": list(rows)}[kind]
    ours, theirs = (trained(str(bert), unscored(), train_dataset=data) for data in (given, SENTENCES))
    assert_same(weights_of(ours), weights_of(theirs))
    described = theirs.record().data
    assert described["sentences"] == 64 and described["sources"] == ["sentences"]
    assert ours.record().data == (None if "rows" in kind else described)


def test_streams_train_and_have_no_checksum(bert, unscored, tmp_path):
    trainer = trained(str(bert), unscored(), train_dataset=stream_of(tmp_path, SENTENCES))
    assert trainer.state.global_step == 2 and trainer.record().data["sha256"] is None
    with raises_usage(option="max_train_samples"):
        options = unscored(max_train_samples=20, dataloader_num_workers=2)
        InforMinTrainer(str(bert), options, train_dataset=stream_of(tmp_path, SENTENCES))


def test_unchanged_sentences_are_tokenized_once(bert, monkeypatch):
    data = datasets.Dataset.from_dict({"text": SENTENCES})
    data = datasets.Dataset.from_generator(lambda: iter({"text": text} for text in SENTENCES))
    first = tokenize(data, tokenizer_of(bert), 6)
    assert max(map(len, first["input_ids"])) == 6 and sum(first[TRUNCATED]) > 0
    counted = []
    monkeypatch.setattr(tokens, "_tokens", lambda *_, **__: counted.append(1))
    tokenizer = tokenizer_of(bert)
    tokenizer(["the dog"], truncation=True, max_length=4, padding="max_length")  # changes its hash
    assert tokenize(data, tokenizer, 6)["input_ids"][:] == first["input_ids"][:] and not counted


def test_a_transform_of_sentences_is_not_dropped():
    data = datasets.Dataset.from_dict({"text": SENTENCES})
    with raises_usage(option="train_dataset", found="transform", fix="map"):
        as_data(data.with_transform(lambda batch: {"text": [text.upper() for text in batch["text"]]}))
    assert as_data(data.with_format("numpy"))[1][0] == {"text": SENTENCES[0]}


def test_tokens_of_another_truncation_side_are_not_reused(bert):
    data = datasets.Dataset.from_generator(lambda: iter({"text": text} for text in SENTENCES))
    tokenize(data, tokenizer_of(bert), 6)
    tokenizer = tokenizer_of(bert)
    tokenizer.truncation_side = "left"
    expected = tokenizer(SENTENCES, truncation=True, max_length=6)["input_ids"]
    assert tokenize(data, tokenizer, 6)["input_ids"][:] == expected


def test_tokens_of_split_special_tokens_are_not_reused(bert):
    texts = ["the [SEP] dog", "a cat"]
    data = datasets.Dataset.from_generator(lambda: iter({"text": text} for text in texts))
    tokenize(data, tokenizer_of(bert), 9)
    tokenizer = tokenizer_of(bert)
    tokenizer.split_special_tokens = True
    expected = tokenizer(texts)["input_ids"]
    assert tokenize(data, tokenizer, 9)["input_ids"][:] == expected


def test_a_length_beyond_the_encoder_and_a_long_prompt_are_rejected(bert, unscored):
    with raises_usage(option="max_seq_length"):
        InforMinTrainer(str(bert), unscored(max_seq_length=1000), train_dataset=SENTENCES)
    with raises_usage(option="prompt"):
        InforMinTrainer(str(bert), unscored(max_seq_length=5, prompt="the old dog sleeps"), train_dataset=SENTENCES)


def test_the_prompt_comes_before_every_sentence(bert, unscored):
    rows = InforMinTrainer(str(bert), unscored(prompt="the dog "), train_dataset=SENTENCES).train_dataset
    words = tokenizer_of(bert)("the dog", add_special_tokens=False)["input_ids"]
    assert all(ids[1:3] == words for ids in rows["input_ids"])


def test_precedence_of_evaluation_data(tmp_path, pairs_file):
    labels = write(tmp_path / "labels.tsv", ["text\tlabel", "a dog\tx", "a cat\tx", "a bird\ty"])
    both = load_development(DataArguments(eval_pairs=str(pairs_file), eval_labels=labels))
    assert [one.kind for one in both.sets] == ["pairs", "labels"] and "spearman" in both.measures
    assert load_development(DataArguments(eval_labels=labels)).name == "labels.tsv"
    with raises_usage():
        load_development(DataArguments())


@pytest.mark.parametrize("kind", ["dataset", "stream", "list"])
def test_several_columns_of_rows_are_joined(kind):
    rows = [{"title": "one", "body": "two", "year": 1}, {"title": None, "body": "three", "year": 2}]
    data = rows if kind == "list" else datasets.Dataset.from_list(rows)
    data = data.to_iterable_dataset() if kind == "stream" else data
    assert [row["text"] for row in as_data(data, "title, body")[0]] == ["one two", "three"]
    for columns, found in (
        ("title,year", "row 0: the column year"),
        ("title,author", "columns title, body, year"),
    ):
        with raises_usage("train_dataset", found=found):
            list(as_data(data, columns)[0])
