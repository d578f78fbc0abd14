"""CPU seconds and memory of the search index, beside bm25s alone and a flat FAISS index. Embedding is not included.

    python -m experiments.search_cost --train_file TEXTS.txt.gz --texts 100000 --dimensions 384
    python -m experiments.search_cost --train_file TEXTS.txt.gz --texts 100000 --model_name STATIC_MODEL

The vectors are random, and the queries are the first words of texts. Each step runs in its own process, so that its
peak of memory is its own. The second command measures an index of a model without and with reranking. Its build
embeds the texts, in both rows, so that it should be a fast model, such as a static one.
"""

import argparse
import multiprocessing
import resource
import tempfile
import time
from functools import cache
from itertools import islice
from pathlib import Path

import numpy as np
from sentence_transformers import SentenceTransformer
from torch import nn

from experiments.tables import markdown
from informin.frozen import index_model as derived
from informin.frozen.index import Index
from informin.model.open import load_model
from informin.texts import read_texts

QUERIES, WORDS = 50, 8
DIMENSIONS = 384  # of the drawn vectors


def draw(model, texts, **_) -> np.ndarray:
    """Return random vectors (N, d) in place of embeddings."""
    return drawn(len(texts))


@cache
def drawn(number: int) -> np.ndarray:
    """Return random vectors around 100 centers, as topics. They are drawn before anything is timed."""
    draws = np.random.default_rng(number)
    centers = np.random.default_rng(0).standard_normal((100, DIMENSIONS), dtype=np.float32)
    return centers[draws.integers(100, size=number)] + draws.standard_normal((number, DIMENSIONS), "f4")


def seconds(work) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def build(texts: list[str], folder: Path) -> dict[str, float]:
    derived.encode_in_shares = draw
    drawn(len(texts))
    return {"build": seconds(lambda: Index.build(SentenceTransformer(modules=[nn.Identity()]), texts).save(folder))}


def search(texts: list[str], folder: Path) -> dict[str, float]:
    derived.encode_in_shares = draw
    times = {"load": seconds(lambda: Index.load(folder, SentenceTransformer(modules=[nn.Identity()])))}
    index = Index.load(folder, SentenceTransformer(modules=[nn.Identity()]))
    queries = queries_of(texts)
    index.search(queries[:1])
    times["query"] = float(np.median([seconds(lambda query=query: index.search([query])) for query in queries]))
    times["query of a batch"] = seconds(lambda: index.search(queries)) / len(queries)
    return times


def plain(texts: list[str], folder: Path, model: str) -> dict[str, float]:
    return of_model(texts, folder, model, rerank=False)


def looking(texts: list[str], folder: Path, model: str) -> dict[str, float]:
    return of_model(texts, folder, model, rerank=True)


def of_model(texts: list[str], folder: Path, model: str, rerank: bool) -> dict[str, float]:
    """Return times of an index of a model, and the bytes of its files."""
    st = load_model(model)
    times = {"build": seconds(lambda: Index.build(st, texts, rerank=rerank).save(folder / str(rerank)))}
    times["load"] = seconds(lambda: Index.load(folder / str(rerank), st))
    index = Index.load(folder / str(rerank), st)
    queries = queries_of(texts)
    index.search(queries[0])
    times["query"] = float(np.median([seconds(lambda query=query: index.search(query)) for query in queries]))
    times["query of a batch"] = seconds(lambda: index.search(queries)) / len(queries)
    files = (path for path in (folder / str(rerank)).rglob("*") if path.is_file())
    return times | {"files": sum(path.stat().st_size for path in files) / 1e6}


def bm25(texts: list[str], folder: Path) -> dict[str, float]:
    import bm25s

    index = bm25s.BM25()
    built = seconds(lambda: index.index(bm25s.tokenize(texts, show_progress=False), show_progress=False))

    def ask(query: str):
        index.retrieve(bm25s.tokenize([query], show_progress=False), k=10, show_progress=False)

    asked = [seconds(lambda query=query: ask(query)) for query in queries_of(texts)]
    return {"build": built, "query": float(np.median(asked))}


def faiss_flat(texts: list[str], folder: Path) -> dict[str, float]:
    import faiss

    vectors = draw(None, texts)
    index = faiss.IndexFlatIP(DIMENSIONS)
    built = seconds(lambda: index.add(vectors))
    queries = draw(None, texts[:QUERIES])
    asked = [seconds(lambda i=i: index.search(queries[i : i + 1], 10)) for i in range(QUERIES)]
    batch = seconds(lambda: index.search(queries, 10)) / QUERIES
    return {"build": built, "query": float(np.median(asked)), "query of a batch": batch}


def queries_of(texts: list[str]) -> list[str]:
    return [" ".join(text.split()[:WORDS]) for text in texts[:: max(1, len(texts) // QUERIES)][:QUERIES]]


def measure(work, texts, folder, args, results) -> None:
    global DIMENSIONS
    DIMENSIONS = args.dimensions
    times = work(texts, folder, args.model_name) if args.model_name else work(texts, folder)
    results.put(times | {"memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024})


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train_file", required=True, help="Texts.")
    parser.add_argument("--texts", type=int, default=100_000, help="Number of texts.")
    parser.add_argument("--dimensions", type=int, default=384, help="Dimensions of the vectors.")
    parser.add_argument("--model_name", help="Measure an index of this model without and with reranking.")
    args = parser.parse_args(argv)
    texts = list(islice(read_texts(args.train_file), args.texts))
    spawn = multiprocessing.get_context("spawn")
    rows = []
    steps = {"informin index": build, "informin search": search, "bm25s alone": bm25, "FAISS flat": faiss_flat}
    if args.model_name:
        steps = {"without reranking": plain, "with reranking": looking}
    with tempfile.TemporaryDirectory() as folder:
        for name, work in steps.items():
            results = spawn.Queue()
            process = spawn.Process(target=measure, args=(work, texts, Path(folder), args, results))
            process.start()
            times = results.get()
            process.join()
            cells = [f"{times[key]:.2f}" if key in times else None for key in ("build", "load")]
            cells += [f"{1000 * times[key]:.1f}" if key in times else None for key in ("query", "query of a batch")]
            files = f"{times['files']:,.0f}" if "files" in times else None
            rows.append([name, *cells, f"{times['memory']:,.0f}", files])
    size = f"{len(texts):,} texts, " + (args.model_name or f"{args.dimensions} dimensions")
    columns = ["", "build, s", "load, s", "query, ms", "query of 50, ms", "peak memory, MB", "files, MB"]
    print(markdown(size, columns, rows))


if __name__ == "__main__":
    main()
