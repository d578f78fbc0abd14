"""Labeled sets and search collections of shared/data, and their embeddings, computed once."""

from pathlib import Path

import numpy as np

from informin.evaluation.encode import unit
from informin.evaluation.labels import load_labels
from informin.evaluation.retrieval import load_collection
from informin.model.embedding import embed
from informin.model.open import limit_length, load_model

DOCUMENTS, QUERIES = 5_000, 2_500  # sentences of a labeled set
LABELED = {  # files of the documents and of the queries; the second half of one file if there is only one
    "stackoverflow": ("stackoverflow.tsv", None),
    "clinc-train": ("clinc150_train.tsv", None),
    "banking-test": ("banking77_train.tsv", "banking77_test.tsv"),
    "clinc-test": ("clinc150_train.tsv", "clinc150_test.tsv"),
}


def labeled(data: Path, name: str) -> tuple[list[str], list[str], np.ndarray]:
    """Return documents, queries and whether each query (m) and document (n) share a label (m, n)."""
    first, second = LABELED[name]
    known = load_labels(data / "domain" / first).distinct()
    asked = load_labels(data / "domain" / second).distinct() if second else known
    order = np.random.default_rng(0).permutation(len(known.sentences))
    fit = order[:DOCUMENTS]
    rest = (
        np.random.default_rng(0).permutation(len(asked.sentences))[:QUERIES] if second else order[DOCUMENTS:][-QUERIES:]
    )
    related = np.array([asked.labels[i] for i in rest])[:, None] == np.array([known.labels[i] for i in fit])
    return [known.sentences[i] for i in fit], [asked.sentences[i] for i in rest], related


def search(data: Path, name: str) -> tuple[list[str], list[str], np.ndarray]:
    """Return documents, queries and whether a document (n) is relevant for a query (m), (m, n)."""
    collection = load_collection(data / "retrieval" / name)
    relevant = np.zeros((len(collection.queries), len(collection.documents)), bool)
    for row, grades in enumerate(collection.grades):
        relevant[row, list(grades)] = True
    return collection.documents, collection.queries, relevant


def embedded(model: str, cache: Path, data: str, side: str, texts: list[str]) -> np.ndarray:
    """Return unit vectors (n, d) of texts by a model, NAME=FOLDER, from the cache if they are there.

    Texts of a search collection get the prompts of their side. Texts of a labeled set are all queries.

    Raises:
        UsageError: The cache has vectors of other texts or another model of this name.
    """
    name, folder = model.split("=", 1)
    path = cache / f"{name}-{data}-{side}.npy"
    side = "query" if data in LABELED else side
    encoder = load_model(folder, precision="fp32")
    limit_length(encoder, min(256, encoder.max_seq_length or 256))
    return unit(embed(encoder, texts, path, side=side))
