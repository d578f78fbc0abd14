"""The comparison of runtimes."""

import numpy as np
import torch

from experiments.benchmarks.embedding import PLAIN, by_graph, cells, fastest_size, measure
from informin.evaluation.retrieval import Collection

DOCUMENTS, QUERIES = ["a", "b b", "c c c c"], ["a a", "b", "c c"]
TEXTS = DOCUMENTS + QUERIES


def counts(texts, size=None):
    """Embed texts by how often they have each of three letters."""
    return np.array([[text.count(letter) for letter in "abc"] for text in texts], np.float32)


def almost_equal(texts, size):
    """Embed texts in nearly one direction, which c leaves unchanged."""
    return counts(texts) * np.float32([1, 0.1, 0]) + np.float32([1, 0, 0])


class Model:
    def preprocess(self, texts):
        return {"counts": torch.from_numpy(counts(texts))}


def test_embeddings_of_a_graph_are_in_the_order_of_the_texts():
    encode = by_graph(Model(), lambda tokens: tokens["counts"])
    assert (encode(TEXTS, 4) == counts(TEXTS)).all()


def test_a_worse_side_has_lower_cosines_and_a_lower_ndcg():
    collection = Collection.of_pairs("letters", QUERIES, DOCUMENTS)
    sides = {PLAIN: counts, "same": lambda *args: 2 * counts(*args), "worse": almost_equal}
    found = measure(sides, TEXTS, 3, "cpu")
    same, worse = (cells(found, side, collection)[0] for side in ("same", "worse"))
    assert [float(cell) for cell in same[3:]] == [1, 1, 100, 0]
    assert float(worse[3]) < float(worse[4]) < 1 and float(worse[6]) < 0


def test_the_fastest_batch_size_is_chosen():
    now = [0.0]

    def encode(texts, size):
        now[0] += abs(size - 32)
        return counts(texts)

    assert fastest_size(encode, TEXTS, (8, 32, 64), lambda: now[0]) == 32
