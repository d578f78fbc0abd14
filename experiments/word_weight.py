"""nDCG@10 of the search index by the weight of its words, on test collections.

    python -m experiments.word_weight --model_name MODEL ... --retrieval FOLDER ... --output words-table.md

Each model and collection has four rows: the index as it is, with the adapter of `informin fit --task search` on the
documents, with reranking, and with static embeddings of queries. Columns are changes from the default weight, with the
standard error of the mean over queries. The last rows are the mean and the least change of all rows.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
from sentence_transformers import SentenceTransformer

from experiments.search_system import load_separate, read_options
from experiments.tables import markdown
from informin import load_model
from informin.evaluation.retrieval import Collection
from informin.files import last_name
from informin.frozen.adapter import LinearAdapter
from informin.frozen.bm25 import WORD_WEIGHT
from informin.frozen.index import Index
from informin.frozen.index_model import derive, embed_asked
from informin.frozen.index_search import Queries, State

WEIGHTS = (0.0, 0.2, 0.25, 0.3, 0.35, 0.5, 1.0)


def variants(model: SentenceTransformer, collection: Collection, language: str) -> dict[str, tuple[State, Queries]]:
    """Return four indexes of a collection, each with its queries, from one embedding of the documents."""
    built = Index.build(model, collection.documents, language=language, rerank=True)
    reranked, record = built._state, replace(built.record, rerank=False, projected=0)
    asked = embed_asked(model, reranked.record, collection.queries, reranked.tokens)
    plain = replace(reranked, record=record, tokens=None)
    adapter = LinearAdapter().fit(plain.vectors.astype(np.float32))
    documents = adapter.transform(plain.documents.astype(np.float32)).astype(np.float16)
    static = derive(
        replace(record, queries="static", smooth=True, scores=None),
        plain.entries,
        plain.vectors,
        plain.bm25,
        lambda: model,
    )
    assert static.static_queries is not None
    return {
        "the index": (plain, Queries(asked.vectors)),
        "adapter": (replace(plain, documents=documents), Queries(adapter.transform(asked.vectors))),
        "reranking": (reranked, asked),
        "static queries": (static, Queries(static.static_queries.encode(collection.queries))),
    }


def ndcg(collection: Collection, state: State, asked: Queries, weight: float) -> np.ndarray:
    """Return nDCG@10 (Q,) of an index whose words have a weight."""
    found = state.with_record(word_weight=weight).find(collection.queries, asked, 10)
    return collection.scores(np.array([[hit.row for hit in hits] for hits in found]))["ndcg_10"]


def main(argv: list[str] | None = None) -> None:
    args = read_options(__doc__, argv)
    table, changes = [], []
    for name in args.model_name:
        model = load_model(name)
        for collection in map(load_separate, args.retrieval):
            for variant, (state, asked) in variants(model, collection, args.language).items():
                scores = {weight: ndcg(collection, state, asked, weight) for weight in WEIGHTS}
                before = scores.pop(WORD_WEIGHT)
                differences = [score - before for score in scores.values()]
                changes.append([difference.mean() for difference in differences])
                shown = [f"{each.mean():+.2f} ± {each.std(ddof=1) / len(each) ** 0.5:.2f}" for each in differences]
                table.append([f"{collection.name}, {last_name(name)}, {variant}", f"{before.mean():.2f}", *shown])
                print(*table[-1], sep=" | ", flush=True)
    for title, summary in {"mean": np.mean(changes, axis=0), "least": np.min(changes, axis=0)}.items():
        table.append([title, None, *(f"{change:+.2f}" for change in summary)])
    columns = [f"{weight:g}" for weight in WEIGHTS if weight != WORD_WEIGHT]
    text = markdown("nDCG@10", ["", f"weight {WORD_WEIGHT:g}", *columns], table)
    Path(args.output).write_text(f"{text}\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
