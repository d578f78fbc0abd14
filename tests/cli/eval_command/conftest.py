"""Fixtures for tests of `informin eval`: synthetic SentEval data, and a function that runs the command."""

from pathlib import Path

import pytest

from informin.cli import eval as eval_command
from informin.evaluation import scoring
from informin.models.native import NativeModel
from tests.senteval_data import small_counts, write_senteval

FRACTION = 0.01  # of the examples of each task; the smallest has 16


@pytest.fixture(scope="session")
def data(tmp_path_factory) -> Path:
    return write_senteval(tmp_path_factory.mktemp("senteval"), FRACTION)


@pytest.fixture(autouse=True)
def small_data(monkeypatch, logging_as_before):
    small_counts(monkeypatch, FRACTION)
    monkeypatch.delenv("SENTEVAL_DATA", raising=False)


@pytest.fixture
def run(bert, data, capsys):
    """Return a function that runs the command and returns exit code, stdout and stderr. Keywords set options."""

    def run(*flags: str, **changes) -> tuple[int, str, str]:
        options = dict(model_name=bert, pooler="cls", senteval_dir=data, device="cpu") | changes
        argv = list(flags)
        for name, value in options.items():
            values = value if isinstance(value, (list, tuple)) else [value]
            argv += [] if value is None else [f"--{name}", *map(str, values)]
        capsys.readouterr()
        code = eval_command.main(argv)
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def encoded(monkeypatch) -> list[str]:
    """Record the encoded sentences in order."""
    seen, original = [], NativeModel.__call__

    def spy(self, sentences, progress=None):
        seen.extend(sentences)
        return original(self, sentences, progress)

    monkeypatch.setattr(NativeModel, "__call__", spy)
    return seen


@pytest.fixture
def scored(monkeypatch) -> list[str]:
    """Record the scored tasks in order."""
    seen = []

    def spied(original):
        return lambda encode, task, *how: seen.append(task.name) or original(encode, task, *how)

    for name in ("score_sts", "score_transfer"):
        monkeypatch.setattr(scoring, name, spied(getattr(scoring, name)))
    return seen
