"""No file of an output names a folder of this machine: records, cards, reports and settings."""

from pathlib import Path

import pytest

import informin
from informin.cli import train
from tests.conftest import make_sentences


@pytest.fixture
def naming(tmp_path_factory):
    """Return a function that returns the files in a folder that name the folder of all models and data."""
    base = str(tmp_path_factory.getbasetemp()).encode()

    def files(folder: Path) -> list[str]:
        found = [path for path in folder.rglob("*") if path.is_file() and "checkpoint-" not in str(path)]
        assert found
        return [str(path.relative_to(folder)) for path in found if base in path.read_bytes()]

    return files


def test_a_training(command, st_mean, sentences_file, tmp_path, naming):
    guided = dict(objective="guided", guided_weight=1.0, replay_weight=1.0, replay_size=4)
    files = dict(guide_model=st_mean, replay_file=sentences_file)
    assert train.main(command(model_name=st_mean, max_seq_length=16, **guided, **files)) == 0
    assert (tmp_path / "run" / "report.html").is_file() and (tmp_path / "run" / "README.md").is_file()
    assert naming(tmp_path / "run") == []


@pytest.mark.parametrize("name", ["fit", "distill"])
def test_an_adapted_model(st_mean, tmp_path, naming, name):
    result = getattr(informin, name)(st_mean, make_sentences(320), task="search", device="cpu")
    result.save(tmp_path / "out")
    assert naming(tmp_path / "out") == []
