"""What `informin fit` measures for its report, and the report itself."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from informin.adapters.linear import LinearAdapter
from informin.adapters.prediction import Prediction
from informin.adapters.rows import read_rows
from informin.evaluation.drift import FEWEST, SAMPLE, SEED, general_sentences, measure_drift, stsb_dev, warnings
from informin.evaluation.results import environment
from informin.evaluation.snapshot import take_snapshot
from informin.files import last_name
from informin.models.model import Model
from informin.publishing.report_record import save_report
from informin.report.page import write_page

PATHS = ("train_file", "embeddings")
LEFT_OUT = ("model_name", "output_dir", "senteval_dir", "seed", "n_neighbors", "whitening", "self_weight", "device")


def changes_of(
    known: dict[str, np.ndarray],
    sample: Sequence[str],
    adapter: LinearAdapter,
    encoder: Model | None = None,
    senteval_dir: str | None = None,
) -> dict:
    """Measure how an adapter changes the embeddings of texts and, with an encoder, of general sentences.

    Args:
        known: Embeddings (d,) by text.
        sample: Some of these texts.

    Returns:
        `drift`, `general` and `snapshot` of report.json; all None with fewer than 30 texts in the sample.
    """
    found: dict = dict.fromkeys(("drift", "general", "snapshot"))
    if len(sample) < FEWEST:
        return found
    pairs = stsb_dev(senteval_dir) if encoder else None
    general = general_sentences() if encoder else []
    wanted = [*sample, *(pairs.texts() if pairs else []), *general]
    others = list(dict.fromkeys(text for text in wanted if text not in known))
    if encoder and others:
        (pooler,) = encoder.poolers
        known = known | dict(zip(others, encoder(others)[pooler]))

    def before(some: Sequence[str]) -> np.ndarray:
        return np.stack([known[text] for text in some])

    def after(some: Sequence[str]) -> np.ndarray:
        return adapter.transform(before(some))

    drift = measure_drift(before, after, sample, pairs).record()
    found["drift"] = drift | {"warnings": warnings(drift["old"], drift["new"], trained=False)}
    found["general"] = measure_drift(before, after, general).record() if general else None
    found["snapshot"] = take_snapshot(sample, before, after)
    return found


def vectors_of(sample: Sequence[str], vectors: np.ndarray, texts: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the embeddings by text of those texts that are in a sample."""
    wanted = set(sample)
    rows = np.array([row for row, text in enumerate(texts) if text in wanted], dtype=np.int64)
    return dict(zip((texts[row] for row in rows), read_rows(vectors, rows)))


def sample_of_vectors(vectors: np.ndarray, texts: list[str]) -> dict[str, np.ndarray]:
    """Return a sample of embeddings by text, or by number of the row without texts."""
    rows = np.random.default_rng(SEED).permutation(len(vectors))[:SAMPLE]
    names = [" ".join(texts[row].split()) for row in rows] if texts else [f"row {row:,}" for row in rows]
    return dict(zip(names, read_rows(vectors, rows)))


def save_fit(
    args: argparse.Namespace,
    folder: Path,
    adapter: LinearAdapter,
    encoder: Model | None,
    shape: tuple[int, ...],
    predicted: Prediction | None,
    changes: dict,
) -> None:
    """Write report.json and report.html into a folder."""
    options = {name: value for name, value in vars(args).items() if value not in (None, False, "")}
    options = {name: value for name, value in options.items() if name not in (*PATHS, *LEFT_OUT)}
    named = {name: getattr(args, name) for name in PATHS if getattr(args, name)}
    files = {
        name: [last_name(one) for one in ([value] if isinstance(value, str) else value)]
        for name, value in named.items()
    }
    prediction = asdict(predicted) | {"verdict": predicted.verdict} if predicted else None
    values = {
        "model": last_name(args.model_name) if args.model_name else None,
        "texts": shape[0],
        "dimensions": shape[1],
        "options": {name: ", ".join(value) for name, value in files.items()} | options | adapter.get_params(),
        "strength": float(adapter.strength_),
        "prediction": prediction,
        "environment": environment(encoder.device if encoder else torch.device("cpu")),
        **changes,
    }
    save_report(folder, "fit", values)
    write_page(folder)
