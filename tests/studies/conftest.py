"""Fixtures for tests of studies."""

import sys
from pathlib import Path

import pytest
import yaml

from informin.studies import runner as study_runner
from tests.senteval_data import small_counts, write_senteval
from tests.studies.helpers import FRACTION, STUB


@pytest.fixture
def write(tmp_path, bert, sentences_file, pairs_file):
    """Return a function that writes a study of two recipes and two seeds. Keywords change keys; None removes one."""

    def write(name: str = "tiny", **changes) -> Path:
        base = dict(model_name=bert, train_file=sentences_file, eval_pairs=pairs_file)
        given = dict(
            base={key: str(value) for key, value in base.items()} | {"bf16": False, "use_cpu": True},
            recipes={"cold": {"temperature": 0.05}, "warm": {"temperature": 0.1}},
            seeds=[1, 2],
            baseline="cold",
        )
        given = {key: value for key, value in (given | changes).items() if value is not None}
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(given, sort_keys=False))
        return path

    return write


@pytest.fixture(scope="module")
def senteval(tmp_path_factory):
    return write_senteval(tmp_path_factory.mktemp("senteval"), FRACTION)


@pytest.fixture
def stub(tmp_path, monkeypatch, senteval):
    """Replace `informin train` and `informin eval` by a stub. Return its folder, for `behavior` and `calls`."""
    small_counts(monkeypatch, FRACTION)
    monkeypatch.setenv("SENTEVAL_DATA", str(senteval))
    folder = tmp_path / "scripts"
    folder.mkdir()
    (folder / "stub.py").write_text(STUB)
    (folder / "behavior.json").write_text("{}")
    monkeypatch.setattr(study_runner, "INFORMIN", [sys.executable, str(folder / "stub.py")])
    monkeypatch.setattr("informin.cli.study.visible_gpus", lambda: [])
    return folder
