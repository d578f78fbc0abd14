"""Helpers of the tests of training."""

import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import TrainerCallback

from informin.training.data import load_sentences
from informin.training.inputs import DataArguments
from trainer_informin import InforMinTrainer


class WeightsAtEvaluation(TrainerCallback):
    """Keeps the weights at each evaluation, by step."""

    def __init__(self):
        self.at = {}

    def on_evaluate(self, args, state, control, model=None, **kwargs):
        self.at[state.global_step] = {name: value.clone() for name, value in model.state_dict().items()}


def trained(*args, **kwargs) -> InforMinTrainer:
    """Build and train, without checkpoints of an earlier run. The trainer sets the seed when it is built."""
    trainer = InforMinTrainer(*args, **kwargs)
    shutil.rmtree(trainer.args.output_dir, ignore_errors=True)
    trainer.train()
    return trainer


def weights_of(trainer: InforMinTrainer) -> dict[str, torch.Tensor]:
    return {name: weight.clone() for name, weight in trainer.model.state_dict().items()}


def assert_same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def assert_same_files(folder: Path, other: Path) -> None:
    """Compare the weights of two folders."""
    assert_same(*(load_file(path / "model.safetensors") for path in (folder, other)))


def stream_of(folder: Path, sentences: list[str]):
    (folder / "stream.txt").write_text("\n".join(sentences) + "\n")
    return load_sentences(DataArguments(train_file=[str(folder / "stream.txt")], streaming=True), seed=1)


def logged(trainer: InforMinTrainer, key: str) -> list:
    return [entry[key] for entry in trainer.state.log_history if key in entry]
