"""Helpers of the tests that resume runs."""

from pathlib import Path

from informin.training.data_options import DataArguments
from informin.training.sentences import load_sentences


def assert_same_weights_of_export(folder: Path, checkpoint: Path) -> None:
    from tests.cli.test_run import embedding_weights

    assert embedding_weights(folder) == embedding_weights(checkpoint)


def stream_of(folder: Path, sentences: list[str]):
    (folder / "stream.txt").write_text("\n".join(sentences) + "\n")
    return load_sentences(DataArguments(train_file=[str(folder / "stream.txt")], streaming=True), seed=1)
