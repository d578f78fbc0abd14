"""Score models on test collections, for `evaluate`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from informin.errors import UsageError
from informin.evaluation.collections import DEPTH, load_collection
from informin.evaluation.mteb_tasks import load_mteb_task
from informin.evaluation.retrieval_table import FUSION_DEPTH, bm25_search, fused_ranking, search_table
from informin.evaluation.scoring import Sides, encode_with_bar
from informin.evaluation.similarity import COSINE
from informin.evaluation.table import Table, new_label, prompts_note, similarity_note
from informin.models.model import Model


def is_collection(path: str) -> bool:
    """Return whether a name of `retrieval` is a folder or may be the name of an mteb task."""
    return Path(path).is_dir() or (not Path(path).exists() and re.fullmatch(r"[\w-]+(\.v\d+)?", path) is not None)


@dataclass(frozen=True)
class CollectionScores:
    """Scores on one test collection.

    Attributes:
        name: Name of the collection.
        baseline: Row that the others are tested against.
        scores: For each row, (Q,) scores of the queries by the name of their measure.
        table: The means, with p-values.
    """

    name: str
    baseline: str
    scores: dict[str, dict[str, np.ndarray]]
    table: Table

    @property
    def note(self) -> str | None:
        """What the p-values are; None for one row."""
        if len(self.scores) == 1:
            return None
        return f"p: paired randomization test against {self.baseline}, two-sided, 10,000 sign flips over queries"


class CollectionSearch:
    """The rankings of several models on test collections.

    Args:
        names: Folders, or names of mteb tasks.
        bm25: Add BM25 and its rank fusion with the first model.
    """

    def __init__(self, names: Sequence[str], bm25: bool = False):
        self.collections = [load_collection(name) if Path(name).is_dir() else load_mteb_task(name) for name in names]
        titles = [collection.name for collection in self.collections]
        if repeated := [name for name, title in zip(names, titles) if titles.count(title) > 1]:
            found = f"{' and '.join(repeated)} have the same name"
            raise UsageError(found, option="retrieval", fix="Rename a folder, or score them one after the other.")
        self.bm25, self.depth = bm25, FUSION_DEPTH if bm25 else DEPTH
        self.notes: list[str] = []
        self._rankings: list[dict[str, np.ndarray]] = [{} for _ in self.collections]

    def add(self, encoder: Model, sides: Sides | None) -> None:
        """Search the collections with a model.

        Args:
            encoder: The model.
            sides: The model for queries and for documents; None for `encoder`.
        """
        queries, documents = sides or (encoder, encoder)
        for pooler in encoder.poolers:
            names = Path(encoder.name).resolve().name, encoder.name
            label = new_label(self._rankings[0], *(f"{name}, {pooler}" for name in names))
            if encoder.similarity != COSINE:
                self.notes.append(similarity_note(encoder.similarity, label))
            if encoder.routed:
                self.notes.append(f"Routes: the Router of {label} has one for queries and one for documents.")
            if queries.prompt or documents.prompt:
                self.notes.append(f"{label}: {prompts_note(queries.prompt or '', documents.prompt or '')}")
            for found, collection in zip(self._rankings, self.collections):
                of_documents, of_queries = (partial(_encode, side, pooler) for side in (documents, queries))
                found[label] = collection.search(of_documents, self.depth, of_queries, encoder.similarity)

    def scores(self) -> list[CollectionScores]:
        """Return the scores on each collection."""
        results = []
        for found, collection in zip(self._rankings, self.collections):
            baseline = next(iter(found))
            if self.bm25:
                words, ranks = bm25_search(collection, self.depth)
                fused = fused_ranking(found[baseline], words, len(collection.documents), ranks)
                found |= {"BM25": words, f"BM25 + {baseline}": fused}
            scores = {name: collection.scores(ranking[:, :DEPTH]) for name, ranking in found.items()}
            table = search_table(collection, scores, baseline if len(scores) > 1 else None)
            results.append(CollectionScores(collection.name, baseline, scores, table))
        return results


def _encode(encoder: Model, pooler: str, texts: Sequence[str]) -> np.ndarray:
    return encode_with_bar(encoder, texts)[pooler]
