"""Exported folders to push."""

import shutil
from pathlib import Path

import pytest

from tests.publishing.push.push_helpers import export


@pytest.fixture(scope="session")
def exported(bert, tmp_path_factory) -> Path:
    return export(bert, tmp_path_factory.mktemp("push") / "export")


@pytest.fixture
def folder(exported, tmp_path) -> Path:
    """An export with checkpoints, logs and other files next to it, and a space in its path."""
    folder = Path(shutil.copytree(exported, tmp_path / "my models" / "m"))
    for name in (
        *("checkpoint-4/config.json", "checkpoint-4/model.safetensors", "checkpoint-4/optimizer.pt", "runs/events.out"),
        *("training_args.bin", "trainer_state.json", "optimizer.pt", "notes.txt", ".env", "results/notes.txt"),
        *("1_Pooling/config.json.bak", "onnx/model.onnx.tmp", "results/other_seeds/seed2.log"),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"not to be uploaded")
    return folder
