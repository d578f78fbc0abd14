"""Records, results and parsing for the tests of the model card."""

import re
from pathlib import Path

import numpy as np
import torch
from huggingface_hub import ModelCard

from informin.evaluation.results import add_task, environment, new_results, save_results
from informin.evaluation.senteval import TASKS
from informin.models.checkpoint import Checkpoint
from informin.models.native_loading import load_trainable
from informin.models.open_model import in_memory
from informin.publishing.export import export_folder
from informin.publishing.record import save_record
from tests.conftest import tokenizer_of

TAGS = ["sentence-transformers", "sentence-similarity", "feature-extraction", "transformers", "unsupervised"]
PLAIN = {
    "library_name": "sentence-transformers",
    "pipeline_tag": "sentence-similarity",
    "tags": [*TAGS, "informin-cl"],
}
SETTINGS = dict(pooling="cls", projection_head="mlp", lm_head=False, max_seq_length=32, objective="informin")


def term(title: str, paper: str | None = None, own: bool = True) -> dict:
    return {"name": title.replace(" ", "_"), "title": title, "paper": paper, "own": own}


def objective(name: str, title: str, *terms: dict) -> dict:
    """The entry `objective` of training.json."""
    return {"name": name, "title": title, "terms": list(terms)}


CONTRAST, RECONSTRUCTION = term("contrast", "simcse"), term("reconstruction", "informin")
ATTENTION_MI, QUEUE = (
    term("mutual information of attention maps", "micse"),
    term("negatives of earlier batches", "micse"),
)
INFORMIN = objective("informin", "InforMin-CL", CONTRAST, RECONSTRUCTION)
SIMCSE = objective("simcse", "unsupervised SimCSE", CONTRAST)
RECORD = {
    "schema": 2,
    "informin": "0.1.0",
    "base_model": {"name": "org/tiny", "hub_id": "org/tiny", "revision": None, "weights_sha256": "1" * 64},
    "data": {"sources": ["a.txt", "b.csv"], "hub_id": None, "description": None, "sentences": 12345},
    "language": "en",
    "license": "apache-2.0",
    "seed": 42,
    "options": {"objective": "informin", "temperature": 0.05, "learning_rate": 3e-05},
    "objective": INFORMIN,
    "development": "pairs.tsv",
    "history": [
        {"step": 0, "spearman": 61.234, "alignment": 0.25, "uniformity": -2.5},
        {"step": 125, "spearman": 63.456, "alignment": 0.1234, "uniformity": None},
        {"step": 250, "spearman": 62.0, "alignment": 0.2, "uniformity": -2.0},
    ],
    "steps": 250,
    "kept_step": 125,
    "chosen": True,
    "sentences_per_second": 97.3,
    "environment": environment(torch.device("cpu")),
}


def export_of(encoder: Path, folder: Path, record: dict | None = RECORD, **settings) -> Path:
    """Return the exported folder of an untrained encoder."""
    model = load_trainable(Checkpoint(encoder), SETTINGS | settings)
    export_folder(in_memory(model, tokenizer_of(encoder)), folder, record)
    return folder


def with_record(folder: Path, **changes) -> Path:
    save_record(folder, RECORD | changes)
    return folder


def put_results(folder: Path, name: str, scores: dict[str, float | None]) -> dict:
    """Write results of these tasks where `informin.publishing.export.add_results` puts them."""
    identity = dict(weights_sha256="2" * 64, pooler="cls", normalized=False, prompt=None, whitening=None, max_length=66)
    results = new_results("this model", identity | dict(precision="fp32", split="test"), {})
    for task, score in scores.items():
        entry = dict(score=score, n=3, seconds=dict(encode=0.1, score=0.1), truncated=0, data={})
        add_task(results, task, entry | ({"error": "no reason"} if score is None else {}))
    save_results(folder / "results" / name, results)
    return results


def random_scores(seed: int, tasks=TASKS) -> dict[str, float]:
    return dict(zip(tasks, np.random.default_rng(seed).uniform(20, 90, len(tasks)).tolist()))


def body(card: str) -> str:
    return ModelCard(card).text


def tables(card: str) -> dict[str, dict[str, list[str]]]:
    """Return the rows of each table by their first cell. A table is named by its title, or by its first cell."""
    by_title, lines = {}, body(card).splitlines()
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
