"""nDCG@10 of the search index on test collections: vectors, words, and their sum, beside rank fusion and BM25.

    python -m experiments.search_system --model_name MODEL ... --retrieval FOLDER ... --output search-table.md

The row `informin.Index` is the index as users get it. The other sums are z-scores per query with another weight of the
words, or scores between 0 and 1. Rank fusion is that of `informin eval`. Columns are the changes
from the vectors alone, with the standard error of the mean over queries. A model that needs prompts has them in its
config_sentence_transformers.json, as `prompts` `query` and `document`.
"""

import argparse
from pathlib import Path

import numpy as np

from experiments.tables import markdown
from informin.errors import UsageError
from informin.evaluation.retrieval import Collection, load_collection
from informin.files import last_name
from informin.frozen.adapter import smooth_rows
from informin.frozen.bm25 import WORD_WEIGHT, z_scores
from informin.frozen.index import Index
from informin.frozen.rankings import FUSION_DEPTH, bm25_search, fused_ranking

WEIGHTS = (0.1, 0.5, 1.0)


def between_0_and_1(scores: np.ndarray) -> np.ndarray:
    """Return scores (Q, N) shifted and scaled such that each query's are between 0 and 1."""
    least, most = scores.min(1, keepdims=True), scores.max(1, keepdims=True)
    return (scores - least) / np.where(most > least, most - least, 1)


def ndcg(collection: Collection, scores: np.ndarray) -> np.ndarray:
    """Return nDCG@10 (Q,) of the ranking by scores (Q, N)."""
    return collection.scores(np.argsort(-scores, axis=1, kind="stable")[:, :10])["ndcg_10"]


def load_separate(folder: str | Path) -> Collection:
    """Load a collection whose queries are not among its documents: such a query would find itself first."""
    collection = load_collection(folder)
    if (collection.same >= 0).any():
        found = f"is {folder}, which has queries that are documents"
        raise UsageError(found, option="retrieval", fix="Use `informin eval --retrieval`, which leaves them out.")
    return collection


def rows_of(model: str, collection: Collection, language: str) -> dict[str, np.ndarray]:
    """Return nDCG@10 (Q,) of each way to search."""
    index = Index.build(model, collection.documents, language=language)
    queries = index.embed_queries(collection.queries)
    vectors = queries @ index.documents.astype(np.float32).T
    smoothed = queries @ smooth_rows(index.documents.astype(np.float32)).T
    words = index.bm25.scores(collection.queries)
    hits = np.array([[hit.row for hit in found] for found in index.search(collection.queries, 10)])
    ranked = np.argsort(-vectors, axis=1, kind="stable")[:, :FUSION_DEPTH]
    plain, ranks = bm25_search(collection, index.bm25, FUSION_DEPTH)
    fused = fused_ranking(ranked, plain, len(collection.documents), ranks)
    rows = {"vectors": ndcg(collection, vectors), "informin.Index": collection.scores(hits)["ndcg_10"]}
    for weight in WEIGHTS:
        rows[f"+ {weight:g} x words"] = ndcg(collection, z_scores(vectors) + weight * z_scores(words))
    rows["+ 0.5 x words, 0 to 1"] = ndcg(collection, between_0_and_1(vectors) + 0.5 * between_0_and_1(words))
    rows["smoothed"] = ndcg(collection, smoothed)
    rows[f"smoothed + {WORD_WEIGHT} x words"] = ndcg(collection, z_scores(smoothed) + WORD_WEIGHT * z_scores(words))
    rows["rank fusion with BM25"] = collection.scores(fused[:, :10])["ndcg_10"]
    rows["words alone"] = ndcg(collection, words)
    return rows


def read_options(about: str | None, argv: list[str] | None) -> argparse.Namespace:
    """Return the models, the collections, their language and the file of the table."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name", nargs="+", required=True, help="Models.")
    parser.add_argument("--retrieval", nargs="+", required=True, help="Folders of test collections.")
    parser.add_argument("--language", default="english", help="Language of the collections.")
    parser.add_argument("--output", required=True, help="Markdown file of the table.")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = read_options(__doc__, argv)
    collections = [load_separate(folder) for folder in args.retrieval]
    cells = {
        f"{collection.name}, {last_name(model)}": rows_of(model, collection, args.language)
        for collection in collections
        for model in args.model_name
    }
    table = [["vectors", *(f"{rows['vectors'].mean():.2f}" for rows in cells.values()), None, None]]
    for name in [name for name in next(iter(cells.values())) if name != "vectors"]:
        changes = [rows[name] - rows["vectors"] for rows in cells.values()]
        means = [change.mean() for change in changes]
        errors = [change.std(ddof=1) / len(change) ** 0.5 for change in changes]
        shown = [f"{mean:+.2f} ± {error:.2f}" for mean, error in zip(means, errors)]
        table.append([name, *shown, f"{np.mean(means):+.2f}", f"{min(means):+.2f}"])
    text = markdown("nDCG@10", ["", *cells, "mean", "least"], table)
    Path(args.output).write_text(f"{text}\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
