"""Exported folders, records and results for the tests of publishing."""

import json
import re
from pathlib import Path

import numpy as np
import torch
from huggingface_hub import ModelCard
from sentence_transformers import SentenceTransformer

from informin.evaluation.results import Results
from informin.evaluation.senteval import TASKS
from informin.fast.precision import weights_sha256
from informin.frozen.adapter import LinearAdapter
from informin.frozen.fit import FitResult
from informin.model.open import load_model
from informin.model.records import RunRecord
from informin.publishing.export import export_checkpoint
from tests.conftest import make_sentences, save_sentence_transformer

TEXTS = make_sentences(20, seed=5)
PUBLISHED = {
    *("1_Pooling/config.json", "README.md", "config.json", "config_sentence_transformers.json", "model.safetensors"),
    *("modeling_informin.py", "modules.json", "sentence_bert_config.json", "tokenizer.json", "tokenizer_config.json"),
    "training.json",
}
OBJECTIVE = {
    "name": "informin",
    "title": "InforMin-CL",
    "terms": [
        {"name": "contrast", "title": "contrast", "paper": "simcse", "own": True},
        {"name": "mlm", "title": "masked language modeling", "paper": None, "own": False},
    ],
}


def record_of(**changes) -> RunRecord:
    """Return the record of a run of 250 steps, whose best checkpoint is that of step 125."""
    values = dict(
        seed=1,
        options={"objective": "informin", "temperature": 0.05, "max_seq_length": 32, "sentences_per_step": 64},
        objective=OBJECTIVE,
        steps=250,
        kept_step=125,
        chosen=True,
        environment={"python": "3.11", "torch": "2.13", "device": "cpu x86_64", "threads": 1},
        base_model={
            **{"name": "bert-base-uncased", "hub_id": "google-bert/bert-base-uncased", "revision": "0" * 40},
            **{"weights_sha256": "1" * 64, "settings_sha256": "2" * 64},
        },
        data={"sources": ["wiki.txt"], "hub_id": None, "sentences": 16_000, "sha256": "3" * 64},
        language="en",
        license="apache-2.0",
        development="STS-B dev",
        development_sets=[{"kind": "pairs", "name": "STS-B dev"}],
        history=[
            {"step": 0, "spearman": 60.0, "alignment": 0.2, "uniformity": -2.0},
            {"step": 125, "spearman": 63.456, "alignment": 0.1234, "uniformity": None},
            {"step": 250, "spearman": 62.0, "alignment": 0.2, "uniformity": -2.0},
        ],
        sentences_per_second=97.3,
        informin="0.4.0",
    )
    return RunRecord(**(values | changes))


def export_of(encoder: Path, folder: Path, record: RunRecord | None = None, modules=(), **how) -> Path:
    """Return the export of an untrained encoder, with a pooling, normalization and prompts as given."""
    source = save_sentence_transformer(folder.with_name(f"{folder.name}-source"), encoder, *modules, **how)
    (record or record_of()).save(source)
    export_checkpoint(source, folder)
    return folder


def save_adapted(model: SentenceTransformer, adapter: LinearAdapter, folder: Path, task="search", drift=None) -> None:
    """Write a model with an adapter that was fitted on 60 texts, as `fit` does."""
    vectors = np.zeros((60, adapter.n_features_in_))
    FitResult(adapter, task, vectors, 0.0, drift, model).save(folder)


def read_json(path: Path):
    return json.loads(path.read_text(encoding="utf-8"))


def change_json(path: Path, **values) -> None:
    path.write_text(json.dumps(read_json(path) | values), encoding="utf-8")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def results_of(folder: Path, path: Path, score: float = 70.0, tasks=TASKS, **changes) -> Path:
    """Write the results that `informin eval` would write for a folder, with one score for all tasks."""
    model = load_model(folder, device="cpu")
    values = dict(model=str(folder), weights_sha256=weights_sha256(model), pooler="mean", normalized=True)
    values |= dict(max_seq_length=model.max_seq_length, precision="fp32", split="test")
    results = Results(**(values | changes))
    for task in tasks:
        results.add(task, {"score": score, "n": 3, "data": {}, "seconds": {"encode": 0.1, "score": 0.1}})
    results.save(path)
    return path


def metadata(card: str) -> dict:
    return ModelCard(card).data.to_dict()


def tables(card: str) -> dict[str, dict[str, list[str]]]:
    """Return the rows of each table by their first cell. A table is named by its title, or by its first cell."""
    by_title, lines = {}, ModelCard(card).text.splitlines()
    for i, line in enumerate(lines):
        if line.startswith("| ") and not lines[i - 1].startswith("|"):
            rows = []
            while lines[i].startswith("|"):
                rows.append([cell.strip() for cell in re.split(r"(?<!\\)\|", lines[i])[1:-1]])
                i += 1
            assert {len(row) for row in rows} == {len(rows[0])}, rows
            title = rows[0][0] or lines[i - len(rows) - 2].strip("*")
            by_title[title] = {row[0]: row[1:] for row in [rows[0], *rows[2:]]}
    return by_title


def code_blocks(card: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", card, re.DOTALL | re.MULTILINE)


def largest_difference(one, other) -> float:
    return float((torch.as_tensor(one) - torch.as_tensor(other)).abs().max())
