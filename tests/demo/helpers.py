"""Encoders of the search page's tests, made of a lookup table."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from informin.demo.search import Search, SearchModel
from informin.labeled_sentences import Sentences
from informin.models.model import Model

LETTERS = Sentences(["a", "b", "c", "b"], ["1", "2", "3", "4"])
BEFORE = {"a": [1.0, 0.0], "b": [3.0, 3.0], "c": [0.0, -2.0], "": [1.0, 0.1]}
AFTER = {"a": [0.0, 1.0], "b": [5.0, 0.0], "c": [1.0, 1.0], "": [1.0, 0.0]}


class TableEncoder:
    """Has the interface of `Encoder`. Its vectors come from a table; unknown texts get the vector of ""."""

    poolers, prompt, similarity, routed, task = ("mean",), "", "cosine", False, None
    side_prompts = ("", "")

    def __init__(self, name: str, table: dict[str, list[float]], length: int = 60):
        self.name, self.table, self.length = name, table, length
        self.truncated: set[str] = set()
        self.embedded: list[str] = []

    @property
    def dimensions(self) -> int:
        return len(next(iter(self.table.values())))

    def __call__(self, sentences: Sequence[str], progress=None) -> dict[str, np.ndarray]:
        self.embedded += sentences
        self.truncated |= {sentence for sentence in sentences if len(sentence) > self.length}
        rows = [self.table.get(sentence, self.table.get("", [1.0, 0.0])) for sentence in sentences]
        return {"mean": np.array(rows, np.float32)}

    for_queries = Model.for_queries

    def sha256(self) -> str:
        return self.name


def save(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def search_of(*tables: dict, sentences: Sentences = LETTERS, **options) -> Search:
    encoders = [TableEncoder(f"model-{i}", table) for i, table in enumerate(tables)]
    return Search(sentences, [SearchModel(e.name, e, e(sentences.texts)["mean"]) for e in encoders], **options)
