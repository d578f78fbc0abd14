"""A prompt for each training sentence, in a column of the training files."""

import json

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from informin.cli import train
from informin.textfiles import read_prompted
from informin.training.data_options import DataArguments
from informin.training.sentences import load_sentences
from tests.conftest import make_sentences, raises_usage
from trainer_informin import InforMinTrainer

ROWS = [("the dog sleeps", "the old "), ("a cat", ""), ("", "a "), ("today", "in "), ("a man runs", "")]
JOINED = ["the old the dog sleeps", "a cat", "", "in today", "a man runs"]
KINDS = ["tsv", "csv", "jsonl", "parquet"]
pytestmark = pytest.mark.usefixtures("logging_as_before")


def write(folder, kind: str, rows=ROWS):
    path = folder / f"rows.{kind}"
    if kind == "jsonl":
        path.write_text("".join(json.dumps({"text": text, "task": task or None}) + "\n" for text, task in rows))
    elif kind == "parquet":
        pq.write_table(pa.table({"text": [text for text, _ in rows], "task": [task for _, task in rows]}), path)
    else:
        delimiter = {"tsv": "\t", "csv": ","}[kind]
        path.write_text("".join(f"{text}{delimiter}{task}\n" for text, task in [("text", "task"), *rows]))
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_come_before_their_sentences(tmp_path, kind):
    """Blank sentences stay blank, and are left out in training."""
    path = write(tmp_path, kind)
    assert list(read_prompted(path, None, "task")) == JOINED
    assert list(read_prompted(path, "text", None)) == [text for text, _ in ROWS]
    args = dict(train_file=[str(path)], prompt_column="task")
    assert load_sentences(DataArguments(**args), seed=0)["text"][:] == [text for text in JOINED if text]
    stream = load_sentences(DataArguments(**args, streaming=True), seed=0)
    assert sorted(row["text"] for row in stream) == sorted(text for text in JOINED if text)


@pytest.mark.parametrize("streaming", [False, True])
def test_data_sets_of_the_hub(tmp_path, streaming):
    write(tmp_path, "parquet")
    args = DataArguments(dataset_name=str(tmp_path), prompt_column="task", streaming=streaming)
    assert sorted(row["text"] for row in load_sentences(args, seed=0)) == sorted(text for text in JOINED if text)


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_column_is_named(tmp_path, kind):
    with raises_usage(found="has no column 'prompt'", fix="Choose one with `prompt_column`."):
        list(read_prompted(write(tmp_path, kind), None, "prompt"))


def test_text_files_have_no_prompts(tmp_path):
    (tmp_path / "rows.txt").write_text("the dog\n")
    with raises_usage(option="prompt_column", found="rows.txt has no columns", needed=".csv, .tsv, .jsonl"):
        list(read_prompted(tmp_path / "rows.txt", None, "task"))


def sentences_with_tasks(folder):
    return write(folder, "tsv", [(text, ("", "the old ")[i % 2]) for i, text in enumerate(make_sentences(96))])


def test_a_run_trains_on_prompts_and_sentences(command, tmp_path, monkeypatch):
    """As if the prompts were part of the sentences, without another prompt."""
    seen = {}

    class Trainer(InforMinTrainer):
        def train(self, **kwargs):
            seen["rows"] = [self.processing_class.decode(row, skip_special_tokens=True) for row in self.ids()]
            return super().train(**kwargs)

        def ids(self):
            return datasets.Dataset.to_dict(self.train_dataset)["input_ids"]

    monkeypatch.setattr("informin.cli.train.InforMinTrainer", Trainer)
    path = sentences_with_tasks(tmp_path)
    assert train.main(command(train_file=path, text_column="text", prompt_column="task")) == 0
    expected = [("", "the old ")[i % 2] + text for i, text in enumerate(make_sentences(96))]
    assert seen["rows"] == expected
    record = json.loads((tmp_path / "run" / "training.json").read_text())
    assert not record["options"].get("prompt")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (dict(prompt="a "), "--prompt_column cannot be combined with --prompt."),
        (dict(view="crop"), "--prompt_column cannot be combined with --view crop, which would also change the tokens"),
    ],
)
def test_options_that_contradict_are_refused(command, tmp_path, capsys, options, error):
    path = sentences_with_tasks(tmp_path)
    assert train.main(command(train_file=path, text_column="text", prompt_column="task", **options)) == 2
    assert error in capsys.readouterr().err
