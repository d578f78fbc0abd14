"""Sentences from files and data sets, tokenized once; where the evaluation pairs come from."""

import gzip
import logging
import os

import pytest
from huggingface_hub import constants

import run_unsup
from informin.errors import UsageError
from informin.evaluation.senteval import STSB_DEV
from informin.training import sentences as data
from informin.training import streams
from informin.training.data_options import DataArguments
from informin.training.sentences import draw_sample, load_development, load_sentences, tokenize
from tests.conftest import make_sentences, tokenizer_of
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
    """An empty Hub cache (the tests are offline), and no SentEval folder in the environment."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SENTEVAL_DATA", raising=False)


def test_files_and_folders_are_read_in_a_fixed_order(tmp_path):
    extra = write(tmp_path / "extra.text", "last\nof all\n")  # named: read whatever its suffix
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
def test_max_train_samples_is_a_random_sample_that_the_seed_decides(tmp_path, how):
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
    assert len(set(sample) & set(lines[:50])) < 25, "the head of the file is no random sample"
    assert sorted(load(max_train_samples=301, **where)) == sorted(lines)


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.txt", "", r"No sentences in .*a\.txt"),
        ("a.csv", "text\n", r"No sentences in .*a\.csv"),
        ("a.txt", "\n \n", r"No sentences in .*a\.txt: 2 blank lines and nothing else"),
        ("missing.txt", None, r"`train_file`: .*missing\.txt does not exist"),
        ("folder/a.md", "one\n", r"`train_file`: the folder .*folder holds no file ending in \.txt, .*\.txt\.zst"),
        ("a.txt", b"one\n\xff\n", r"a\.txt, line 2: not UTF-8"),
        ("a.csv", "x,y\n1,2\n", r"a\.csv: no column 'text'; found x, y"),
        ("a.txt", "\n", r"No sentences in .*a\.txt: 1 blank line and nothing else"),
        ("a.txt", "the dog\n\n the dog \n", r"a\.txt: all 2 sentences are 'the dog'; contrast needs different ones"),
        ("a.csv", "label\npos\npos\n", r"a\.csv, column 'label': all 2 sentences are 'pos'; .* `text_column`\?"),
        ("a.csv", 'text\none\n"two\n', r"a\.csv, line 3: the row that begins here cannot be read"),
    ],
)
def test_files_without_sentences(tmp_path, name, content, message):
    if content is not None:
        write(tmp_path / name, content)
    with pytest.raises(UsageError, match=message):
        load(train_file=[str(tmp_path / name.partition("/")[0])])


def test_a_sample_of_copies_is_refused_and_one_sentence_is_not(tmp_path):
    file = write(tmp_path / "a.txt", "the dog\n" * 50 + "the cat\n")
    assert len(load(train_file=[file])) == 51
    assert load(train_file=[file], max_train_samples=1) == ["the dog"]  # the trainer says how many it needs
    with pytest.raises(UsageError, match="all 2 sentences are 'the dog'"):
        load(train_file=[file], max_train_samples=2)


@pytest.mark.parametrize(
    "contents, said",
    [
        (["text,n\none,1\n"], None),  # only with --verbose
        (["text,n\none,1\n ,2\n"], "1 sentence from {0} (1 blank line skipped)"),
        (["sentence\none\n\ntwo\n"], "2 sentences from {0}, column 'sentence' (1 blank line skipped)"),
        (["b\none\n", "text\ntwo\n", "a\nsix\n"], "3 sentences from {0}, {1}, {2}, column 'a', 'b' (0 blank"),
        (["s\none\n", "s\ntwo\n", "s\nsix\n", "s\nten\n"], "4 sentences from 4 files, column 's' (0 blank"),
    ],
)
def test_the_column_of_a_table_is_said(tmp_path, caplog, contents, said):
    caplog.set_level(logging.INFO)
    files = [write(tmp_path / f"{i}.csv", content) for i, content in enumerate(contents)]
    load(train_file=files)
    assert [message.startswith(said.format(*files)) for message in caplog.messages] == ([True] if said else [])


def test_what_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match=r"`train_file`: .*pipe is a pipe or a device, which is read only once\."):
        load(train_file=[str(tmp_path / "pipe")])
    with pytest.raises(UsageError, match=r"`train_file`: a{300} does not exist\."):
        load(train_file=["a" * 300])
    write(tmp_path / "folder/a.txt", "one\ntwo\n")
    (tmp_path / "folder/b.txt").symlink_to(tmp_path / "gone.txt")
    with pytest.raises(UsageError, match=r"`train_file`: .*folder/b\.txt does not exist\."):
        load(train_file=[str(tmp_path / "folder")])


def test_a_folder_that_may_not_be_read_is_no_empty_one(tmp_path, monkeypatch):
    def forbid(path):
        if os.path.basename(path) == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    write(tmp_path / "folder/a.txt", "one\ntwo\n")
    (tmp_path / "folder/closed").mkdir()
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", forbid)  # the super-user may read everything
    with pytest.raises(UsageError, match=r"the folder .*folder/closed cannot be read \(Permission denied\)\."):
        load(train_file=[str(tmp_path / "folder")])


def test_a_changed_file_is_read_again_and_an_unchanged_one_is_not(tmp_path, monkeypatch):
    def counted(*args):
        for sentence in original(*args):
            read.append(sentence)
            yield sentence

    original, read = streams.read_sentences, []
    monkeypatch.setattr(streams, "read_sentences", counted)
    file = write(tmp_path / "a.txt", "one\ntwo\nsix\n")
    assert load(train_file=[file]) == ["one", "two", "six"] and "six" in read
    read.clear()
    assert load(train_file=[file]) == ["one", "two", "six"]
    assert len(read) <= 1, "at most a look at whether there is anything in it"
    write(tmp_path / "a.txt", "one\ntwo\nten\n")
    os.utime(file, ns=(1, 1))  # the size is the same
    assert load(train_file=[file]) == ["one", "two", "ten"]
    read.clear()
    monkeypatch.setattr(data.inspect, "getsource", lambda module: "another reader")
    assert load(train_file=[file]) == ["one", "two", "ten"] and "ten" in read


@pytest.fixture
def tokenizer(bert, monkeypatch):
    """A tokenizer that counts its calls."""
    tokenizer = tokenizer_of(bert)
    original = type(tokenizer).__call__
    tokenizer.calls = 0

    def counted(self, *args, **kwargs):
        self.calls += 1
        return original(self, *args, **kwargs)

    monkeypatch.setattr(type(tokenizer), "__call__", counted)
    return tokenizer


def test_an_unchanged_file_is_tokenized_once(tmp_path, tokenizer):
    def calls(max_seq_length=8, seed=0, max_train_samples=None) -> int:
        before = tokenizer.calls
        sentences = load_sentences(DataArguments(train_file=[file]), seed)
        sentences = draw_sample(sentences, max_train_samples, seed)
        assert len(tokenize(sentences, tokenizer, max_seq_length)) == len(sentences)
        return tokenizer.calls - before

    file = write(tmp_path / "a.txt", "\n".join(make_sentences(20)))
    assert calls() == 1
    assert calls() == 0
    tokenizer(["the dog"], truncation=True, max_length=4, padding="max_length")  # its state is no part of the key
    assert calls() == 0
    assert [calls(max_seq_length=9), calls(max_seq_length=9)] == [1, 0]
    assert [calls(max_train_samples=5), calls(max_train_samples=5), calls(seed=1, max_train_samples=5)] == [1, 0, 1]
    write(tmp_path / "a.txt", "\n".join(make_sentences(21)))
    assert calls() == 1


@pytest.mark.parametrize("streaming", [False, True])
def test_tokens_are_cut_at_max_seq_length(tmp_path, tokenizer, streaming):
    write(tmp_path / "set/a.jsonl", '{"text": "the dog"}\n{"text": "the dog sees the old red house today"}')
    where = {"dataset_name": str(tmp_path / "set"), "streaming": streaming}
    rows = list(tokenize(load_sentences(DataArguments(**where), 0), tokenizer, 6))
    full = [tokenizer(text)["input_ids"] for text in load(**where)]
    assert sorted(map(len, full)) == [4, 10]
    expected = [ids if len(ids) <= 6 else [*ids[:5], tokenizer.sep_token_id] for ids in full]
    assert rows == [{"input_ids": ids, "attention_mask": [1] * len(ids)} for ids in expected]


def test_max_seq_length_beyond_the_model_is_refused(sentences_file, tokenizer):
    sentences = load_sentences(DataArguments(train_file=[str(sentences_file)]), 0)
    assert len(tokenize(sentences, tokenizer, 66)) == 96
    with pytest.raises(UsageError, match="`max_seq_length` 67: this model reads at most 66 tokens"):
        tokenize(sentences, tokenizer, 67)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    "name, content",
    [
        ("train.jsonl", '{"s": "one", "n": 1}\n{"s": " ", "n": 2}\n{"s": null, "n": 3}\n{"s": "two", "n": 4}'),
        ("train.csv", 's,n\none,1\n" ",2\n,3\n"two",4\n'),
    ],
)
def test_a_data_set_in_a_folder(tmp_path, name, content, streaming):
    write(tmp_path / name, content)
    arguments = DataArguments(dataset_name=str(tmp_path), text_column="s", streaming=streaming)
    sentences = load_sentences(arguments, 0)
    assert sorted(row["text"] for row in sentences) == ["one", "two"]
    assert set(next(iter(sentences))) == {"text"}


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    "options, message",
    [
        ({}, "set: no column 'text'; found s, n. Name one with `text_column`"),
        ({"text_column": "n"}, "set: the text column holds 1; needed text"),
        ({"text_column": "s", "dataset_split": "dev"}, 'cannot be loaded: .*"?dev"?'),
        ({"dataset_name": "nobody/nothing"}, "`dataset_name` nobody/nothing cannot be loaded: "),
    ],
)
def test_data_sets_that_cannot_be_used(tmp_path, options, message, streaming):
    write(tmp_path / "set/train.jsonl", '{"s": "one", "n": 1}')
    with pytest.raises(UsageError, match=message):
        load(**({"dataset_name": str(tmp_path / "set"), "streaming": streaming} | options))


def test_where_the_evaluation_pairs_come_from(tmp_path, monkeypatch):
    """The user's own pairs, the folder named, $SENTEVAL_DATA: the first there is. (No Hub: see below.)"""

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


def test_beside_a_sample_stsb_dev_is_scored_where_it_is(tmp_path, monkeypatch, no_hub):
    """And is left out, without an error, where the Hub would be asked for it."""

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
    with pytest.raises(UsageError, match=r"nothing.*sts-dev\.csv does not exist"):
        names(eval_retrieval=retrieval, senteval_dir=str(tmp_path / "nothing"))
    with pytest.raises(UsageError, match=r"`eval_labels`: .*no\.tsv does not exist"):
        names(eval_labels=str(tmp_path / "no.tsv"))


def test_without_the_hub_the_message_says_how_to_go_on(no_hub):
    with pytest.raises(UsageError, match=r"senteval\.tar cannot be fetched from the Hub") as caught:
        load_development(DataArguments())
    for way in ("`senteval_dir`", "SENTEVAL_DATA", "`eval_pairs`", "`eval_strategy` no"):
        assert way in str(caught.value)
    with pytest.raises(UsageError, match=r"wiki1m_for_simcse\.txt cannot be fetched .* give `train_file` FILE"):
        load()


@pytest.mark.parametrize("streaming", [False, True])
def test_a_data_set_may_begin_with_a_blank_row(tmp_path, streaming):
    write(tmp_path / "set/train.jsonl", '{"text": ""}\n{"text": "the dog"}\n')
    assert load(dataset_name=str(tmp_path / "set"), streaming=streaming) == ["the dog"]


def test_a_home_that_cannot_be_written(command, tmp_path, monkeypatch, capsys):
    """A file in the place of the cache, as root may write to any folder."""
    (tmp_path / "file").touch()
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "file" / "datasets")
    assert run_unsup.main(command()) == 2
    message = f"error: Data sets cannot be cached in {tmp_path}/file/datasets: [Errno 20] Not a directory: "
    err = capsys.readouterr().err
    assert message in err and err.endswith("Set HF_HOME to a folder that can be written.\n")
