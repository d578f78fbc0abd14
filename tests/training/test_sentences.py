"""Loading and tokenizing training sentences, and loading the evaluation data."""

import gzip
import logging
import os

import pytest
from huggingface_hub import constants
from transformers import AutoTokenizer

import run_unsup
from informin.errors import UsageError
from informin.evaluation.senteval import STSB_DEV
from informin.training import sentences as data
from informin.training import streams
from informin.training.data_options import DataArguments
from informin.training.sentences import draw_sample, load_development, load_sentences, tokenize
from tests.conftest import make_sentences, raises_usage, tokenizer_of
from tests.senteval_data import stsb_dev


def load(seed=0, max_train_samples=None, **options) -> list[str]:
    sentences = load_sentences(DataArguments(**options), seed)
    return [row["text"] for row in draw_sample(sentences, max_train_samples, seed)]


def write(path, content) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


@pytest.fixture
def no_hub(tmp_path, monkeypatch):
    """Use an empty Hub cache (tests are offline), and no SentEval folder in the environment."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SENTEVAL_DATA", raising=False)


def test_files_and_folders_are_read_in_a_fixed_order(tmp_path):
    extra = write(tmp_path / "extra.text", "last\nof all\n")  # given directly: read regardless of the suffix
    write(tmp_path / "folder/b.txt", "three\n")
    write(tmp_path / "folder/a.csv", "text,n\none,1\ntwo,2\n")
    write(tmp_path / "folder/deeper/c.jsonl.gz", gzip.compress(b'{"text": "four", "n": 4}'))
    write(tmp_path / "folder/notes.md", "not a sentence\n")
    found = load(train_file=[str(tmp_path / "folder"), extra])
    assert found == ["one", "two", "three", "four", "last", "of all"]


def test_blank_lines_are_skipped_and_counted(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    file = write(tmp_path / "a.txt", "\none\n  \t\n two \n\u3000\n")
    assert load(train_file=[file]) == ["one", " two "]
    assert f"2 sentences from {file} (3 blank lines skipped)" in caplog.messages


@pytest.mark.parametrize("how", ["file", "streaming"])
def test_max_train_samples_draws_a_random_sample_by_seed(tmp_path, how):
    lines = make_sentences(300)
    write(tmp_path / "set/train.txt", "\n\n".join(lines))
    where = {
        "file": {"train_file": [str(tmp_path / "set/train.txt")]},
        "streaming": {"dataset_name": str(tmp_path / "set"), "streaming": True},
    }[how]
    sample = load(seed=1, max_train_samples=50, **where)
    assert len(sample) == len(set(sample)) == 50 and set(sample) < set(lines)
    assert load(seed=1, max_train_samples=50, **where) == sample
    assert set(load(seed=2, max_train_samples=50, **where)) != set(sample)
    assert len(set(sample) & set(lines[:50])) < 25, "the first sentences are not a random sample"
    assert sorted(load(max_train_samples=301, **where)) == sorted(lines)


@pytest.mark.parametrize(
    "name, content, option, found",
    [
        ("a.txt", "", None, "No sentences in PATH/a.txt"),
        ("a.csv", "text\n", None, "No sentences in PATH/a.csv"),
        ("a.txt", "\n \n", None, "No sentences in PATH/a.txt, only 2 blank lines"),
        ("folder/a.md", "one\n", "train_file", "is the folder PATH/folder, which has no training file"),
        ("a.txt", "\n", None, "No sentences in PATH/a.txt, only 1 blank line"),
        ("a.txt", "the dog\n\n the dog \n", None, "All 2 sentences of PATH/a.txt are 'the dog'"),
        ("a.csv", "label\npos\npos\n", None, "All 2 sentences of PATH/a.csv, column 'label' are 'pos'"),
    ],
)
def test_files_without_sentences_are_rejected(tmp_path, name, content, option, found):
    write(tmp_path / name, content)
    with raises_usage(option=option, found=found.replace("PATH", str(tmp_path))):
        load(train_file=[str(tmp_path / name.partition("/")[0])])


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("missing.txt", None, "missing.txt does not exist"),
        ("a.txt", b"one\n\xff\n", "a.txt, line 2: "),
        ("a.csv", "x,y\n1,2\n", "x, y"),
        ("a.csv", 'text\none\n"two\n', "a.csv, line 3: "),
    ],
)
def test_errors_of_the_file_reader_are_passed_on(tmp_path, name, content, message):
    if content is not None:
        write(tmp_path / name, content)
    with pytest.raises(UsageError) as error:
        load(train_file=[str(tmp_path / name)])
    assert message in str(error.value)


def test_sample_of_equal_sentences_is_rejected(tmp_path):
    file = write(tmp_path / "a.txt", "the dog\n" * 50 + "the cat\n")
    assert len(load(train_file=[file])) == 51
    assert load(train_file=[file], max_train_samples=1) == ["the dog"]  # the trainer checks the number
    with raises_usage(found="All 2 sentences of the sample are 'the dog'", needed="different sentences"):
        load(train_file=[file], max_train_samples=2)


@pytest.mark.parametrize(
    "contents, message",
    [
        (["text,n\none,1\n"], None),  # logged only with --verbose
        (["text,n\none,1\n ,2\n"], "1 sentence from {0} (1 blank line skipped)"),
        (["sentence\none\n\ntwo\n"], "2 sentences from {0}, column 'sentence' (1 blank line skipped)"),
        (["b\none\n", "text\ntwo\n", "a\nsix\n"], "3 sentences from {0}, {1}, {2}, column 'a', 'b' (0 blank"),
        (["s\none\n", "s\ntwo\n", "s\nsix\n", "s\nten\n"], "4 sentences from 4 files, column 's' (0 blank"),
    ],
)
def test_columns_and_blank_lines_are_logged(tmp_path, caplog, contents, message):
    caplog.set_level(logging.INFO)
    files = [write(tmp_path / f"{i}.csv", content) for i, content in enumerate(contents)]
    load(train_file=files)
    assert [one.startswith((message or "").format(*files)) for one in caplog.messages] == [True] * bool(message)


def test_paths_that_are_not_files_are_rejected(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError) as error:
        load(train_file=[str(tmp_path / "pipe")])
    assert "pipe is a pipe or a device" in str(error.value)
    with pytest.raises(UsageError) as error:
        load(train_file=["a" * 300])
    assert "a" * 300 + " does not exist" in str(error.value)
    write(tmp_path / "folder/a.txt", "one\ntwo\n")
    (tmp_path / "folder/b.txt").symlink_to(tmp_path / "gone.txt")
    with pytest.raises(UsageError) as error:
        load(train_file=[str(tmp_path / "folder")])
    assert "folder/b.txt does not exist" in str(error.value)


def test_unreadable_folder_is_an_error(tmp_path, monkeypatch):
    def forbid(path):
        if os.path.basename(path) == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    write(tmp_path / "folder/a.txt", "one\ntwo\n")
    (tmp_path / "folder/closed").mkdir()
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", forbid)  # root can read everything
    with raises_usage(option="train_file", found="folder/closed cannot be read (Permission denied)"):
        load(train_file=[str(tmp_path / "folder")])


def test_only_changed_files_are_read_again(tmp_path, monkeypatch):
    def counted(*args):
        for sentence in original(*args):
            read.append(sentence)
            yield sentence

    original, read = streams.read_prompted, []
    monkeypatch.setattr(streams, "read_prompted", counted)
    file = write(tmp_path / "a.txt", "one\ntwo\nsix\n")
    assert load(train_file=[file]) == ["one", "two", "six"] and "six" in read
    read.clear()
    assert load(train_file=[file]) == ["one", "two", "six"]
    assert len(read) <= 1, "reads at most the first sentence"
    write(tmp_path / "a.txt", "one\ntwo\nten\n")
    os.utime(file, ns=(1, 1))  # the size is the same
    assert load(train_file=[file]) == ["one", "two", "ten"]
    read.clear()
    monkeypatch.setattr(data.inspect, "getsource", lambda module: "another reader")
    assert load(train_file=[file]) == ["one", "two", "ten"] and "ten" in read


@pytest.fixture
def tokenizer(bert, monkeypatch):
    """Return a tokenizer that counts its calls."""
    tokenizer = tokenizer_of(bert)
    original = type(tokenizer).__call__
    tokenizer.calls = 0

    def counted(self, *args, **kwargs):
        self.calls += 1
        return original(self, *args, **kwargs)

    monkeypatch.setattr(type(tokenizer), "__call__", counted)
    return tokenizer


def test_unchanged_file_is_tokenized_once(tmp_path, tokenizer):
    def calls(max_seq_length=8, seed=0, max_train_samples=None) -> int:
        before = tokenizer.calls
        sentences = load_sentences(DataArguments(train_file=[file]), seed)
        sentences = draw_sample(sentences, max_train_samples, seed)
        assert len(tokenize(sentences, tokenizer, max_seq_length)) == len(sentences)
        return tokenizer.calls - before

    file = write(tmp_path / "a.txt", "\n".join(make_sentences(20)))
    assert calls() == 1
    assert calls() == 0
    tokenizer(["the dog"], truncation=True, max_length=4, padding="max_length")  # its state is not part of the key
    assert calls() == 0
    assert [calls(max_seq_length=9), calls(max_seq_length=9)] == [1, 0]
    assert [calls(max_train_samples=5), calls(max_train_samples=5), calls(seed=1, max_train_samples=5)] == [1, 0, 1]
    write(tmp_path / "a.txt", "\n".join(make_sentences(21)))
    assert calls() == 1


@pytest.mark.parametrize("streaming", [False, True])
def test_tokens_are_truncated_at_max_seq_length(tmp_path, tokenizer, streaming):
    write(tmp_path / "set/a.jsonl", '{"text": "the dog"}\n{"text": "the dog sees the old red house today"}')
    where = {"dataset_name": str(tmp_path / "set"), "streaming": streaming}
    rows = list(tokenize(load_sentences(DataArguments(**where), 0), tokenizer, 6))
    full = [tokenizer(text)["input_ids"] for text in load(**where)]
    assert sorted(map(len, full)) == [4, 10]
    expected = [ids if len(ids) <= 6 else [*ids[:5], tokenizer.sep_token_id] for ids in full]
    assert rows == [{"input_ids": ids, "attention_mask": [1] * len(ids)} for ids in expected]


def test_another_truncation_is_another_cache(sentences_file, bert):
    sentences = load_sentences(DataArguments(train_file=[str(sentences_file)]), 0)
    right, left = (
        tokenize(sentences, AutoTokenizer.from_pretrained(bert, truncation_side=side), 6)[0]
        for side in ("right", "left")
    )
    assert right["input_ids"] != left["input_ids"]


def test_max_seq_length_beyond_the_encoder_is_rejected(sentences_file, tokenizer):
    sentences = load_sentences(DataArguments(train_file=[str(sentences_file)]), 0)
    assert len(tokenize(sentences, tokenizer, 66)) == 96
    with raises_usage(option="max_seq_length", found="is 67", needed="at most 66"):
        tokenize(sentences, tokenizer, 67)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    "name, content",
    [
        ("train.jsonl", '{"s": "one", "n": 1}\n{"s": " ", "n": 2}\n{"s": null, "n": 3}\n{"s": "two", "n": 4}'),
        ("train.csv", 's,n\none,1\n" ",2\n,3\n"two",4\n'),
    ],
)
def test_dataset_name_may_be_a_folder(tmp_path, name, content, streaming):
    write(tmp_path / name, content)
    arguments = DataArguments(dataset_name=str(tmp_path), text_column="s", streaming=streaming)
    sentences = load_sentences(arguments, 0)
    assert sorted(row["text"] for row in sentences) == ["one", "two"]
    assert set(next(iter(sentences))) == {"text"}


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    "options, option, found",
    [
        ({"text_column": "n"}, None, "has the value 1"),
        ({"text_column": "s", "dataset_split": "dev"}, "dataset_name", "set cannot be loaded: "),
        ({"dataset_name": "nobody/nothing"}, "dataset_name", "nobody/nothing cannot be loaded: "),
    ],
)
def test_unusable_data_sets_are_rejected(tmp_path, options, option, found, streaming):
    write(tmp_path / "set/train.jsonl", '{"s": "one", "n": 1}')
    with raises_usage(option=option, found=found):
        load(**({"dataset_name": str(tmp_path / "set"), "streaming": streaming} | options))


@pytest.mark.parametrize("streaming", [False, True])
def test_data_set_without_a_text_column_is_rejected(tmp_path, streaming):
    write(tmp_path / "set/train.jsonl", '{"s": "one", "n": 1}')
    with pytest.raises(UsageError) as error:
        load(dataset_name=str(tmp_path / "set"), streaming=streaming)
    assert "s, n" in str(error.value) and "`text_column`" in str(error.value)


def test_precedence_of_evaluation_pairs(tmp_path, monkeypatch):
    """The user's own pairs, then `senteval_dir`, then $SENTEVAL_DATA."""

    def source(**options) -> str:
        return load_development(DataArguments(**options)).sets[0].sentences1[0]

    pairs = write(tmp_path / "pairs.tsv", "sentence1\tsentence2\tscore\nown\tb\t1\na\tb\t2\n")
    for name in ("folder", "environment"):
        write(tmp_path / name / STSB_DEV, stsb_dev(name))
    folder = str(tmp_path / "folder")
    monkeypatch.setenv("SENTEVAL_DATA", str(tmp_path / "environment"))
    assert source() == "environment"
    assert source(senteval_dir=folder) == "folder"
    assert source(senteval_dir=folder, eval_pairs=pairs) == "own"


def test_stsb_dev_is_added_to_other_data_only_if_it_is_local(tmp_path, monkeypatch, no_hub):
    def names(**options) -> str:
        return load_development(DataArguments(**options)).name

    pairs = write(tmp_path / "pairs.tsv", "sentence1\tsentence2\tscore\nown\tb\t1\na\tb\t2\n")
    labels = write(tmp_path / "titles.tsv", "text\tlabel\na\tx\nb\tx\nc\ty\n")
    retrieval = write(tmp_path / "faq.tsv", "query\tdocument\na\tb\nc\td\n")
    write(tmp_path / "folder" / STSB_DEV, stsb_dev("folder"))
    folder = str(tmp_path / "folder")
    monkeypatch.delenv("SENTEVAL_DATA", raising=False)
    assert names(eval_labels=labels) == "titles.tsv"
    assert names(eval_retrieval=retrieval, eval_labels=labels) == "titles.tsv, faq.tsv"
    assert names(eval_labels=labels, eval_pairs=pairs, senteval_dir=folder) == "pairs.tsv, titles.tsv"
    assert names(eval_labels=labels, senteval_dir=folder) == "STS-B dev, titles.tsv"
    monkeypatch.setenv("SENTEVAL_DATA", folder)
    assert names(eval_retrieval=retrieval) == "STS-B dev, faq.tsv"
    monkeypatch.setenv("SENTEVAL_DATA", str(tmp_path / "nothing"))
    assert names(eval_retrieval=retrieval) == "faq.tsv"
    with pytest.raises(UsageError) as error:
        names(eval_retrieval=retrieval, senteval_dir=str(tmp_path / "nothing"))
    assert "sts-dev.csv does not exist" in str(error.value)
    with pytest.raises(UsageError) as error:
        names(eval_labels=str(tmp_path / "no.tsv"))
    assert "no.tsv does not exist" in str(error.value)


def test_errors_without_the_hub_list_alternatives(no_hub):
    with pytest.raises(UsageError) as error:
        load_development(DataArguments())
    for part in ("senteval.tar", "`senteval_dir`", "SENTEVAL_DATA", "`eval_pairs`", "`eval_strategy` no"):
        assert part in str(error.value)
    with pytest.raises(UsageError) as error:
        load()
    assert "wiki1m_for_simcse.txt" in str(error.value) and "`train_file` FILE" in str(error.value)


@pytest.mark.parametrize("streaming", [False, True])
def test_data_set_may_begin_with_a_blank_row(tmp_path, streaming):
    write(tmp_path / "set/train.jsonl", '{"text": ""}\n{"text": "the dog"}\n')
    assert load(dataset_name=str(tmp_path / "set"), streaming=streaming) == ["the dog"]


def test_cache_that_cannot_be_written(command, tmp_path, monkeypatch, capsys):
    """The parent of the cache is a file, since root can write to any folder."""
    (tmp_path / "file").touch()
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "file" / "datasets")
    assert run_unsup.main(command()) == 2
    message = f"error: Data sets cannot be cached in {tmp_path}/file/datasets: [Errno 20] Not a directory: "
    err = capsys.readouterr().err
    assert message in err and err.endswith("Set HF_HOME to a writable folder.\n")
