"""Helpers of the tests that resume runs."""

import shutil
from pathlib import Path

from informin.files import write_manifest
from informin.training.data_options import DataArguments
from informin.training.sentences import load_sentences


def assert_same_weights_of_export(folder: Path, checkpoint: Path) -> None:
    from tests.cli.test_run import embedding_weights

    assert embedding_weights(folder) == embedding_weights(checkpoint)


def interrupted_copy(finished: Path, folder: Path) -> Path:
    """Make a folder look like the run in `finished`, interrupted after step 2."""
    shutil.copytree(finished / "checkpoint-2", folder / "checkpoint-2")
    state = folder / "checkpoint-2" / "trainer_state.json"
    state.write_text(state.read_text().replace(str(finished), str(folder)))
    write_manifest(folder / "checkpoint-2")
    return folder


def stream_of(folder: Path, sentences: list[str]):
    (folder / "stream.txt").write_text("\n".join(sentences) + "\n")
    return load_sentences(DataArguments(train_file=[str(folder / "stream.txt")], streaming=True), seed=1)
