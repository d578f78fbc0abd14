"""Time of a query on the search page: the embedding of the query, and the matrix product with ranks, or FAISS.

python benchmarks/search_page.py --model_name all-MiniLM-L6-v2 --sentences 100000 1000000 1100000
"""

import argparse
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import numpy as np

from informin.demo.index import make_index
from informin.models.open_model import load_model

QUERIES, CLUSTERS = 30, 1_000


def clustered(number: int, dimensions: int) -> np.ndarray:
    """Return random unit vectors (N, d) float32 in clusters, as embeddings of sentences are."""
    draw = np.random.default_rng(0)
    centers = draw.standard_normal((CLUSTERS, dimensions), np.float32)
    vectors = draw.standard_normal((number, dimensions), np.float32)
    vectors += centers[draw.integers(0, CLUSTERS, number)]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def milliseconds(seconds: list[float]) -> str:
    """Return median and 90th percentile."""
    middle, high = 1000 * np.percentile(seconds, [50, 90])
    return f"{middle:.1f} ms (90%: {high:.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name", required=True)
    parser.add_argument("--sentences", type=int, nargs="+", required=True, help="Numbers of vectors.")
    args = parser.parse_args()
    encoder = load_model(args.model_name)
    seconds = []
    for query in range(QUERIES + 1):
        start = time.perf_counter()
        encoder([f"how do I sort a list of {query} names?"])
        seconds.append(time.perf_counter() - start)
    print(f"embedding a query: {milliseconds(seconds[1:])}")
    for number in args.sentences:
        vectors = clustered(number, encoder.dimensions)
        start = time.perf_counter()
        index = make_index(vectors)
        built, seconds = time.perf_counter() - start, []
        for query in vectors[:QUERIES]:
            start = time.perf_counter()
            ranking = index.rank(query)
            for row in ranking.nearest(10)[0].tolist():
                ranking.rank_of(row)
            seconds.append(time.perf_counter() - start)
        print(f"{number:,} sentences, {type(index).__name__}: {milliseconds(seconds)}, built in {built:.0f} s")


if __name__ == "__main__":
    main()
