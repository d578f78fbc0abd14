"""What `informin fit` writes: a model folder with the adapter, or the adapter and the vectors."""

import argparse
from pathlib import Path

import numpy as np

from informin.adapters.linear import LinearAdapter
from informin.adapters.prediction import Prediction
from informin.cli.fit_report import changes_of, sample_of_vectors, save_fit, vectors_of
from informin.cli.source_rows import SourceRows
from informin.evaluation.drift import draw, drift_table
from informin.evaluation.similarity import COSINE
from informin.evaluation.table import render
from informin.models.model import Model
from informin.outputs import new_folder
from informin.publishing.adapted import save_adapted
from informin.report.page import PAGE

ADAPTER, DOCUMENTS = "adapter.safetensors", "documents.npy"
NUMPY_LINES = """from safetensors.numpy import load_file
vectors = queries @ load_file("{folder}/adapter.safetensors")["coef"].T
vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)"""


def save_model(
    args: argparse.Namespace,
    adapter: LinearAdapter,
    encoder: Model,
    vectors: np.ndarray,
    texts: list[str],
    source: SourceRows,
    predicted: Prediction | None,
) -> None:
    """Print the drift, and save the model's folder with its report."""
    sample = draw(texts)
    changes = changes_of(vectors_of(sample, vectors, texts), sample, adapter, encoder, args.senteval_dir)
    drift = changes["drift"]
    if drift:
        print(render(drift_table({"adapted": drift}, "before"), "text"))
        for warning in drift["warnings"]:
            print(f"Warning: the adapter {warning}")
    with new_folder(args.output_dir, "output_dir") as new:
        save_adapted(encoder, adapter, new, texts=len(texts), drift=drift)
        if args.documents:
            np.save(new / DOCUMENTS, _documents(args.documents, adapter, vectors))
            source.save(new / DOCUMENTS)
        save_fit(args, new, adapter, encoder, vectors.shape, predicted, changes)
    if encoder.similarity != COSINE:
        print(f"The model compares embeddings by {encoder.similarity}, the adapted one by cosine, as it was fitted.")
    if args.documents:
        print(source.told(Path(args.output_dir, DOCUMENTS)), end="")
    trust = ", trust_remote_code=True" if encoder.trusted else ""
    print(f'Load it with:\n  SentenceTransformer("{args.output_dir}"{trust})')
    if encoder.routed:
        print("Embed queries with its encode_query, and documents with its encode_document.")
    print(f"Report: {Path(args.output_dir, PAGE)}")


def save_vectors(
    args: argparse.Namespace, adapter: LinearAdapter, vectors: np.ndarray, texts: list[str], source: SourceRows
) -> None:
    """Save the adapter, the adapted vectors and the report, and show how to apply the adapter."""
    folder = Path(args.output_dir)
    known = sample_of_vectors(vectors, texts)
    changes = changes_of(known, list(known), adapter)
    with new_folder(folder, "output_dir") as new:
        adapter.save(new / ADAPTER)
        np.save(new / DOCUMENTS, _documents(args.documents or "adapted", adapter, vectors))
        source.save(new / DOCUMENTS)
        save_fit(args, new, adapter, None, vectors.shape, None, changes)
    print(f"{folder / ADAPTER}: the adapter\n{folder / DOCUMENTS}: the texts' vectors for your index")
    print(source.told(folder / DOCUMENTS), end="")
    print(f"Report: {folder / PAGE}")
    print(f"Apply it to queries with NumPy:\n\n{NUMPY_LINES.format(folder=folder)}")


def _documents(kind: str, adapter: LinearAdapter, vectors: np.ndarray) -> np.ndarray:
    return adapter.smooth(vectors) if kind == "smoothed" else adapter.transform(vectors)
