"""Modified models and parsed output for tests of `informin eval`."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def changed(source: Path, folder: Path, change) -> Path:
    """Copy a model folder and change its weights in place with a function."""
    shutil.copytree(source, folder)
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def another(source: Path, folder: Path, by: float = 0.1) -> Path:
    """Copy a model folder and add noise to its weights."""

    def noise(weights):
        generator = torch.Generator().manual_seed(0)
        for x in weights.values():
            x += by * torch.randn(x.shape, generator=generator)

    return changed(source, folder, noise)


def read(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def scores(path: Path) -> dict[str, float]:
    return {name: task["score"] for name, task in read(path)["tasks"].items()}


def line(text: str, start: str) -> list[str]:
    """Return the cells of the first line that begins with a label, in a text table."""
    return next(x for x in text.splitlines() if x.startswith(start)).removeprefix(start).split()
