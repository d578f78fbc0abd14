"""Runs, copies and results for the tests of exported folders."""

import json
import logging
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import run_unsup
from informin.evaluation.results import add_task, environment, new_results, save_results
from informin.evaluation.senteval import TASKS
from informin.models.open_model import load_model
from informin.publishing.published import published_files
from trainer_informin import InforMinTrainer

EXPORTED = [
    *("1_Pooling/config.json", "README.md", "config.json", "config_sentence_transformers.json", "model.safetensors"),
    *("modeling_informin.py", "modules.json", "projection_head/model.safetensors", "sentence_bert_config.json"),
    *("tokenizer.json", "tokenizer_config.json", "training.json"),
]
MACHINE = {
    **{"USER": "login-of-somebody", "LOGNAME": "login-of-somebody", "HOME": "/home-of/somebody"},
    **{"HOSTNAME": "desk-of-somebody", "HF_TOKEN": "hf_secretTokenOfSomebody"},
}


class Run:
    """A run of run_unsup.main, its trainer, and what transformers logged."""

    def __init__(self, folder: Path, **options):
        self.folder, self.messages = folder, []
        handler = logging.Handler()
        handler.emit = lambda record: self.messages.append(record.getMessage())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("datasets.config.HF_DATASETS_CACHE", folder.parent / "datasets-cache")
            patch.setattr("informin.cli.train.InforMinTrainer", self.trainer_of)
            patch.setattr("socket.gethostname", lambda: MACHINE["HOSTNAME"])
            for name, value in MACHINE.items():
                patch.setenv(name, value)
            arguments = dict(
                **dict(output_dir=folder, per_device_train_batch_size=16, learning_rate=1e-3, max_steps=4),
                **dict(eval_steps=2, logging_steps=2, bf16="false", use_cpu="true", disable_tqdm="true"),
            )
            logging.getLogger("transformers").addHandler(handler)
            options = {name: value for name, value in (arguments | options).items() if value is not None}
            self.code = run_unsup.main([f"--{name}={value}" for name, value in options.items()])
            logging.getLogger("transformers").removeHandler(handler)

    def trainer_of(self, *args, **kwargs) -> InforMinTrainer:
        self.trainer = InforMinTrainer(*args, **kwargs)
        return self.trainer

    @property
    def record(self) -> dict:
        return read_json(self.folder / "training.json")

    @property
    def kept(self) -> Path:
        return self.folder / f"checkpoint-{self.record['kept_step']}"

    @property
    def other(self) -> Path:
        """The checkpoint that was not kept."""
        return self.folder / f"checkpoint-{6 - self.record['kept_step']}"


def read_json(path: Path):
    """Read a JSON file, and reject NaN."""
    return json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda name: pytest.fail(f"{path}: {name}"))


def published(folder: Path) -> list[str]:
    return [path.as_posix() for path in published_files(folder)]


def snapshot(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def copy(folder: Path, to: Path) -> Path:
    return Path(shutil.copytree(folder, to))


def change_weights(folder: Path, **values: torch.Tensor | None) -> None:
    """Replace tensors by name, with __ for dots. None removes one."""
    weights = load_file(folder / "model.safetensors")
    weights |= {name.replace("__", "."): value for name, value in values.items()}
    weights = {name: value for name, value in weights.items() if value is not None}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def weights_sha256(folder: Path) -> str:
    return load_model(str(folder), ("cls",), device="cpu").weights_sha256()


COMMON = dict(
    **dict(temperature=0.05, projection_head="mlp", max_seq_length=32, sentences_per_step=16, learning_rate=1e-3),
    **dict(lr_scheduler_type="linear", warmup_steps=0, weight_decay=0.0, max_grad_norm=1.0, optim="adamw_torch_fused"),
    **dict(adam_beta1=0.9, adam_beta2=0.999, adam_epsilon=1e-8),
    **dict(gradient_accumulation_steps=1, padding_free=True, precision="fp32", processes=1),
)


def results_of(folder: Path, score: float = 70.0, **how) -> dict:
    """Return the results that `informin eval` would write for a folder."""
    read = dict(pooler="cls", normalized=False, prompt=None, whitening=None, max_length=66)
    read |= dict(precision="fp32", split="test")
    identity = {"weights_sha256": weights_sha256(folder), **read, **how}
    results = new_results(str(folder), identity, environment(torch.device("cpu")))
    for name in TASKS:
        add_task(results, name, dict(score=score, n=3, seconds=dict(encode=0.1, score=0.1), truncated=0, data={}))
    return results


def save(results: dict, folder: Path) -> str:
    path = folder / f"{results['weights_sha256'][:8]}-{results['pooler']}.json"
    save_results(path, results)
    return str(path)
