"""What a fit measures for its report, and the folder that it writes."""

from collections.abc import Sequence
from copy import copy
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from informin.adapters.linear import LinearAdapter
from informin.adapters.prediction import Prediction
from informin.adapters.rows import read_rows
from informin.adapters.scores import UnrelatedScores
from informin.evaluation.drift import FEWEST, SAMPLE, SEED, drift_warnings, general_sentences, measure_drift, stsb_dev
from informin.evaluation.results import environment
from informin.evaluation.snapshot import take_snapshot
from informin.files import last_name
from informin.jobs.source_rows import SourceRows
from informin.models.model import Model
from informin.outputs import new_folder
from informin.publishing.adapted import save_adapted
from informin.publishing.report_record import save_report
from informin.report.page import write_page

if TYPE_CHECKING:
    from informin.jobs.fit import FitResult

ADAPTER, DOCUMENTS = "adapter.safetensors", "documents.npy"


def changes_of(
    known: dict[str, np.ndarray],
    sample: Sequence[str],
    adapter: LinearAdapter,
    encoder: Model | None = None,
    senteval_dir: str | Path | None = None,
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
    pairs = stsb_dev(str(senteval_dir) if senteval_dir else None) if encoder else None
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
    found["drift"] = drift | {"warnings": drift_warnings(drift["old"], drift["new"], trained=False)}
    found["general"] = measure_drift(before, after, general).record() if general else None
    found["snapshot"] = take_snapshot(sample, before, after)
    return found


def vectors_of(sample: Sequence[str], vectors: np.ndarray, texts: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the embeddings by text of those texts that are in a sample."""
    wanted = set(sample)
    rows = np.array([row for row, text in enumerate(texts) if text in wanted], dtype=np.int64)
    return dict(zip((texts[row] for row in rows), read_rows(vectors, rows)))


def sample_of_vectors(vectors: np.ndarray, texts: list[str]) -> dict[str, np.ndarray]:
    """Return a sample of embeddings by text or, without texts, by row number."""
    rows = np.random.default_rng(SEED).permutation(len(vectors))[:SAMPLE]
    names = [" ".join(texts[row].split()) for row in rows] if texts else [f"row {row:,}" for row in rows]
    return dict(zip(names, read_rows(vectors, rows)))


def prediction_record(predicted: Prediction | None) -> dict | None:
    """Return `prediction` of report.json."""
    return asdict(predicted) | {"verdict": predicted.verdict} if predicted else None


def write_fit(
    result: "FitResult", folder: str | Path, documents: str | None = None, source: SourceRows | None = None
) -> UnrelatedScores | None:
    """Write a model's folder with the adapter, or the adapter itself, with the report. The folder must be locked.

    Args:
        result: The fit.
        folder: Missing or empty. It appears once it is complete.
        documents: `adapted` or `smoothed`: also write documents.npy, the vectors of the texts. Default: adapted for
            embeddings alone.
        source: The rows of files that the texts come from.

    Returns:
        The scores of unrelated texts that the folder has: for smoothed documents, those of the smoothed vectors.

    Raises:
        UsageError: The folder is in use or cannot be written.
    """
    source = source or SourceRows()
    encoder, adapter, rows = result.encoder, result.adapter, len(result.vectors)
    with new_folder(folder, "output_dir") as new:
        if encoder:
            save_adapted(encoder, adapter, new, texts=rows, drift=result.drift, base=result.name)
        if documents or encoder is None:
            smoothed = documents == "smoothed"
            index = adapter.smooth(result.vectors) if smoothed else adapter.transform(result.vectors)
            np.save(new / DOCUMENTS, index)
            if smoothed:
                adapter = copy(adapter)  # that of the result keeps its own scores
                adapter.measure_scores(result.vectors, index)
            source.save(new / DOCUMENTS)
        if encoder is None:
            adapter.save(new / ADAPTER)
        if adapter.scores_:
            adapter.scores_.save(new)
        save_report(new, "fit", _record(result, documents, source))
        write_page(new)
    return adapter.scores_


def _record(result: "FitResult", documents: str | None, source: SourceRows) -> dict:
    """Return the values of report.json."""
    encoder, (rows, dimensions) = result.encoder, result.vectors.shape
    files = {"train_file": source.files, "embeddings": [result.embeddings] if result.embeddings else []}
    named = {name: ", ".join(map(last_name, paths)) for name, paths in files.items() if paths}
    given = {"text_column": source.column, "documents": documents, **result.options}
    options = {name: value for name, value in given.items() if value not in (None, False, "")}
    return {
        "model": result.name,
        "texts": rows,
        "dimensions": dimensions,
        "options": named | options | result.adapter.get_params(),
        "strength": float(result.adapter.strength_),
        "prediction": prediction_record(result.prediction),
        "curve": [asdict(width) for width in result.curve],
        "environment": environment(encoder.device if encoder else torch.device("cpu")),
        **result.changes,
    }
