"""What `informin fit` writes: a model folder with the adapter, or the adapter and the vectors."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from informin.adapters.linear import LinearAdapter
from informin.encoders.encoder import Encoder
from informin.encoders.st_encoder import StEncoder
from informin.evaluation.drift import FEWEST, draw, drift_table, measure_drift, stsb_dev
from informin.evaluation.table import render
from informin.publishing.adapted import save_adapted, save_adapted_st
from informin.temporary import TemporaryFolder

ADAPTER, DOCUMENTS = "adapter.safetensors", "documents.npy"
NUMPY_LINES = """from safetensors.numpy import load_file; adapter = load_file("{folder}/adapter.safetensors")
adapt = lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True) @ adapter["coef"].T + adapter["intercept"]
vectors = adapt(queries); vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)"""


def save_model(
    args: argparse.Namespace, adapter: LinearAdapter, encoder: Encoder, vectors: np.ndarray, texts: list[str]
) -> None:
    """Report the drift and save the model's folder."""
    record = None
    sample = draw(texts)
    if len(sample) >= FEWEST:
        record = _drift(args.senteval_dir, adapter, encoder, dict(zip(texts, vectors)), sample)
        print(render(drift_table({"adapted": record}, "before"), "text"))
        for warning in record["warnings"]:
            print(f"Warning: the adapter {warning}")
    if isinstance(encoder, StEncoder):
        save_adapted_st(encoder, adapter, args.output_dir, texts=len(texts), drift=record)
    else:
        save_adapted(args.model_name, adapter, args.output_dir, texts=len(texts), drift=record)
    if args.documents:
        np.save(Path(args.output_dir, DOCUMENTS), _documents(args.documents, adapter, vectors))
    trust = ", trust_remote_code=True" if args.trust_remote_code and isinstance(encoder, StEncoder) else ""
    print(f'Load it with:\n  SentenceTransformer("{args.output_dir}"{trust})')


def save_vectors(args: argparse.Namespace, adapter: LinearAdapter, vectors: np.ndarray) -> None:
    """Save the adapter and the adapted vectors, and show how to apply the adapter."""
    folder = Path(args.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryFolder(folder) as partial:
        adapter.save(Path(partial, ADAPTER))
        np.save(Path(partial, DOCUMENTS), _documents(args.documents or "adapted", adapter, vectors))
        for name in (DOCUMENTS, ADAPTER):
            Path(partial, name).rename(folder / name)
    print(f"{folder / ADAPTER}: the adapter\n{folder / DOCUMENTS}: the texts' vectors for your index")
    print(f"Apply it to queries with NumPy:\n\n{NUMPY_LINES.format(folder=folder)}")


def _drift(
    senteval_dir: str | None,
    adapter: LinearAdapter,
    encoder: Encoder,
    known: dict[str, np.ndarray],
    sample: Sequence[str],
) -> dict:
    """Measure the drift on a sample of the texts, and on STS-B dev if it is at hand."""
    (pooler,) = encoder.poolers
    pairs = stsb_dev(senteval_dir)
    others = list(dict.fromkeys(text for text in [*sample, *(pairs.texts() if pairs else [])] if text not in known))
    if others:
        known |= dict(zip(others, encoder(others)[pooler]))

    def before(some: Sequence[str]) -> np.ndarray:
        return np.stack([known[text] for text in some])

    return measure_drift(before, lambda some: adapter.transform(before(some)), sample, pairs).record()


def _documents(kind: str, adapter: LinearAdapter, vectors: np.ndarray) -> np.ndarray:
    return adapter.smooth(vectors) if kind == "smoothed" else adapter.transform(vectors)
