"""Seconds, bytes and memory of reranking by token vectors. Embedding is not included.

    python -m experiments.reranking_cost --texts 100000 --tokens 25 --dimensions 384

Token ids and vectors are random. Times are those of the processor (one thread), so that other programs matter less.
"""

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np

from experiments.tables import markdown
from informin.frozen.late_interaction import CANDIDATES, Projection, TokenVectors
from informin.frozen.token_vectors import TEXTS_IN_MEMORY

QUERIES, WORDS = 200, 10  # tokens of a query
VOCABULARY = 30_000


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the processor time of a call, and its result."""
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def build(texts: int, tokens: int, dimensions: int) -> tuple[float, TokenVectors]:
    """Return the processor time of storing random token vectors, without drawing them, and the result."""
    draws = np.random.default_rng(0)
    projection = Projection.fit(draws.standard_normal((TEXTS_IN_MEMORY * tokens, dimensions), dtype=np.float32))
    spent, parts = 0.0, []
    for start in range(0, texts, TEXTS_IN_MEMORY):
        number = min(TEXTS_IN_MEMORY, texts - start)
        ids = draws.integers(VOCABULARY, size=(number, tokens))
        states = draws.standard_normal((number, tokens, dimensions), dtype=np.float32)
        own = list(zip(ids, states))
        time_of_chunk, part = seconds(lambda own=own: TokenVectors.of(own, projection))
        spent += time_of_chunk
        parts.append(part)
    time_of_end, stored = seconds(lambda: TokenVectors.join(parts, draws.permutation(texts)))
    return spent + time_of_end, stored


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=100_000, help="Number of texts.")
    parser.add_argument("--tokens", type=int, default=25, help="Tokens of a text.")
    parser.add_argument("--dimensions", type=int, default=384, help="Dimensions of the token vectors.")
    args = parser.parse_args(argv)
    draws = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "tokens")
        built, stored = build(args.texts, args.tokens, args.dimensions)
        saved, _ = seconds(lambda: stored.save(folder))
        size = sum(path.stat().st_size for path in folder.iterdir())
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        loading, loaded = seconds(lambda: TokenVectors.load(folder))
        times = []
        for _ in range(QUERIES):
            vectors = loaded.projection.apply(draws.standard_normal((WORDS, args.dimensions), dtype=np.float32))
            query = draws.integers(VOCABULARY, size=WORDS), vectors
            places = draws.integers(args.texts, size=CANDIDATES)
            times.append(seconds(lambda query=query, places=places: loaded.rerank(query, places))[0])
    row = [f"{args.texts:,} texts of {args.tokens} tokens", f"{built + saved:.1f}", f"{1000 * loading:.0f}"]
    row += [f"{1000 * np.median(times):.2f}", f"{size / 2**20:,.0f}", f"{memory:,.0f}"]
    columns = ["", "build and save, s", "load, ms", "query, ms", "files, MB", "peak memory, MB"]
    print(markdown(f"{args.dimensions} dimensions, a query of {WORDS} tokens", columns, [row]))


if __name__ == "__main__":
    main()
