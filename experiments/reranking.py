"""nDCG@10 of reranking by token vectors, beside other ways to reorder the first hits of the index.

    python -m experiments.reranking --model_name MODEL ... --retrieval FOLDER ... --output second-look.md

The first rows are scores, the others are changes from the index, with the standard error of the mean over queries. The
settings were selected on every second query, from the first, of CISI, NPL and XQuAD; so a second table has the other
queries alone. `--settings` prints tables of settings for both halves, and `--queries table` the scores of an index with
a table for queries. A model that needs prompts has them in its config_sentence_transformers.json, as `prompts` `query`
and `document`. `--cache` keeps all token vectors in float32: about 1 GB for 10,000 abstracts.
"""

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from sentence_transformers.util import maxsim

from experiments.tables import markdown
from informin.evaluation.retrieval import Collection, load_collection
from informin.files import last_name
from informin.frozen.bm25 import BM25, WORD_WEIGHT, z_scores
from informin.frozen.index import Index
from informin.frozen.index_entries import IndexRecord, new_entries
from informin.frozen.index_model import derive
from informin.frozen.late_interaction import (
    CANDIDATES,
    DIRECTIONS,
    TOKEN_WEIGHT,
    Projection,
    Tokens,
    TokenVectors,
    length_corrected_z_scores,
    without_context,
)
from informin.frozen.token_vectors import TEXTS_IN_MEMORY, encode_with_tokens
from informin.model.open import load_model

MOST = 100  # candidates that are scored for `--settings`
FUSION = 60  # the constant of reciprocal rank fusion
WEIGHTS = (0.1, 0.2, 0.3, 0.4, 0.5)
SELECTED, OTHERS = slice(0, None, 2), slice(1, None, 2)  # queries


@dataclass(frozen=True)
class Embedded:
    """Embeddings (N, d) of N texts; ids (T,) and vectors (T, d) of their tokens, and the first of each text."""

    vectors: np.ndarray
    starts: np.ndarray
    ids: np.ndarray
    states: np.ndarray

    def tokens(self, place: int) -> Tokens:
        own = slice(self.starts[place], self.starts[place + 1])
        return self.ids[own], np.array(self.states[own])


@dataclass(frozen=True)
class Look:
    """How token scores reorder candidates.

    Attributes:
        power: Power of the inverse document frequency that weights the query's tokens; 0 for none.
        without_trend: Whether half of the trend with the length is removed. Among candidates, it never is.
        among: The texts of the z-scores: `all` or `candidates`.
        weight: Weight of the z-scores.
        candidates: Number of texts that are reordered.
    """

    power: int = 2
    without_trend: bool = True
    among: str = "all"
    weight: float = TOKEN_WEIGHT
    candidates: int = CANDIDATES


class Cell:
    """A collection that a model embedded.

    Attributes:
        scores: Scores (Q, N) of the index.
        first: The best texts (Q, P) by them.
    """

    def __init__(self, model: str, collection: Collection, language: str, cache: Path, candidates: int):
        folder = cache / f"{last_name(model)}-{collection.name}-{collection.sha256[:8]}"
        self.model = model
        self.collection = collection
        self.language = language
        self.documents = embedded(model, collection.documents, "document", folder / "document")
        self.queries = embedded(model, collection.queries, "query", folder / "query")
        similarities = unit(self.queries.vectors) @ unit(self.documents.vectors).T
        self.vectors = self.without_itself(z_scores(similarities))
        self.words = self.without_itself(
            z_scores(BM25.build(collection.documents, language).scores(collection.queries))
        )
        self.scores = self.vectors + WORD_WEIGHT * self.words
        self.first = best(self.scores)[:, :candidates]

    def without_itself(self, scores: np.ndarray) -> np.ndarray:
        """Return scores (Q, N) with -infinity for the document that is the query."""
        for row, place in enumerate(self.collection.same):
            if place >= 0:
                scores[row, place] = -np.inf
        return scores

    def ndcg(self, ranking: np.ndarray) -> np.ndarray:
        """Return nDCG@10 of rankings (Q, 10 or more) for each query (Q,)."""
        return self.collection.scores(ranking[:, :10])["ndcg_10"]

    @cached_property
    def sample(self) -> np.ndarray:
        """Token vectors (n, d) of the texts that the projection of an index is fitted to."""
        texts = np.random.default_rng(0).permutation(len(self.documents.vectors))[:TEXTS_IN_MEMORY]
        return np.concatenate([self.documents.tokens(place)[1] for place in texts])

    def stored(self, number: int = DIRECTIONS) -> TokenVectors:
        """Return the token vectors of an index, projected on a number of directions."""
        projection = Projection.fit(self.sample, number)
        places = range(len(self.documents.vectors))
        parts = [places[start : start + TEXTS_IN_MEMORY] for start in places[::TEXTS_IN_MEMORY]]
        return TokenVectors.join(
            [TokenVectors.of([self.documents.tokens(i) for i in part], projection) for part in parts]
        )

    def exact(self) -> TokenVectors:
        """Return the centered token vectors in all dimensions and in float32."""
        center = Projection.fit(self.sample).center
        projection = Projection(center, np.eye(len(center), dtype=np.float32))
        rows = projection.apply(np.array(self.documents.states))
        return TokenVectors.counted(projection, self.documents.starts, self.documents.ids, rows)

    def asked(self, tokens: TokenVectors) -> list[Tokens]:
        """Return the tokens of the queries, projected."""
        queries = [self.queries.tokens(place) for place in range(len(self.queries.vectors))]
        return [(ids, tokens.projection.apply(states)) for ids, states in queries]


class Cosines:
    """The largest cosine of each token of each query to the candidates and to the background texts."""

    def __init__(self, cell: Cell, tokens: TokenVectors, asked: list[Tokens]):
        self.cell = cell
        places = [np.append(first, tokens.background()) for first in cell.first]
        self.largest = [tokens.largest_cosines(query[1], both) for query, both in zip(asked, places)]
        self.lengths = np.array([tokens.lengths(both) for both in places])
        idf = [np.sqrt(tokens.weights(query[0])) for query in asked]
        self.idf = [weights if weights.any() else np.ones(len(weights)) for weights in idf]

    def token_scores(self, look: Look) -> np.ndarray:
        """Return token scores (Q, P + B) of the candidates and of the background texts."""
        weights = [idf**look.power for idf in self.idf]
        parts = zip(self.largest, weights)
        return np.array([largest @ weight / max(weight.sum(), 1e-9) for largest, weight in parts])

    def ranking(self, look: Look) -> np.ndarray:
        """Return the first candidates (Q, candidates) in their new order."""
        kept, most = slice(look.candidates), self.cell.first.shape[1]
        scores = self.token_scores(look)
        lengths = self.lengths if look.without_trend else np.ones_like(self.lengths)
        if look.among == "all":
            added = np.array([length_corrected_z_scores(*query, most) for query in zip(scores, lengths)])[:, kept]
        else:
            added = z_scores(scores[:, kept])
        first = self.cell.first[:, kept]
        before = np.take_along_axis(self.cell.scores, first, 1)
        return np.take_along_axis(first, best(before + look.weight * added), 1)

    def fused(self) -> np.ndarray:
        """Return the reciprocal rank fusion of vectors, words, and the token scores of the candidates."""
        scores = reciprocal_ranks(self.cell.vectors) + reciprocal_ranks(self.cell.words)
        first = self.cell.first
        tokens = reciprocal_ranks(self.token_scores(Look())[:, :CANDIDATES])
        np.put_along_axis(scores, first, np.take_along_axis(scores, first, 1) + tokens, 1)
        return best(scores)


def embedded(model: str, texts: list[str], side: str, folder: Path) -> Embedded:
    """Return the embeddings and token vectors of texts, memory-mapped from a folder, which is written if needed."""
    if not (folder / "starts.npy").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        write(model, texts, side, folder)
    vectors, starts, ids = (np.load(folder / f"{name}.npy") for name in ("vectors", "starts", "ids"))
    states = np.memmap(folder / "states.f32", np.float32, "r").reshape(len(ids), -1)
    return Embedded(vectors, starts, ids, states)


def write(model: str, texts: list[str], side: str, folder: Path) -> None:
    st = load_model(model)
    vectors, ids = [], []
    with open(folder / "states.f32", "wb") as file:
        for start in range(0, len(texts), TEXTS_IN_MEMORY):
            found, tokens = encode_with_tokens(st, texts[start : start + TEXTS_IN_MEMORY], side)
            vectors.append(found)
            for own, states in tokens:
                ids.append(own)
                file.write(np.ascontiguousarray(states).tobytes())
    np.save(folder / "vectors.npy", np.concatenate(vectors))
    np.save(folder / "ids.npy", np.concatenate(ids))
    np.save(folder / "starts.npy", np.cumsum([0, *map(len, ids)]))


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)


def best(scores: np.ndarray) -> np.ndarray:
    """Return the columns of scores (Q, N), the highest first."""
    return np.argsort(-scores, axis=1, kind="stable")


def reciprocal_ranks(scores: np.ndarray) -> np.ndarray:
    """Return 1 / (60 + rank) (Q, N)."""
    return 1 / (FUSION + 1 + np.argsort(best(scores), axis=1))


def by_maxsim(cell: Cell, tokens: TokenVectors, asked: list[Tokens]) -> np.ndarray:
    """Return the candidates (Q, CANDIDATES) ordered by `maxsim` of sentence-transformers alone."""
    rankings = []
    for (_, vectors), first in zip(asked, cell.first):
        spans = zip(tokens.starts[first], tokens.starts[first + 1])
        texts = [torch.from_numpy(unit(tokens.rows[start:end].astype(np.float32))) for start, end in spans]
        scores = maxsim([torch.from_numpy(vectors)], texts).numpy()
        rankings.append(first[best(scores)[0]])
    return np.array(rankings)


def rows_of(cell: Cell) -> dict[str, np.ndarray]:
    """Return nDCG@10 of each way to search."""
    tokens = cell.stored()
    asked = cell.asked(tokens)
    cosines = Cosines(cell, tokens, asked)
    means = tokens.means()
    table = Cosines(cell, tokens, [without_context(ids, means) for ids, _ in asked])
    rows: dict[str, np.ndarray] = {
        "vectors": best(cell.vectors),
        "the index": cell.first,
        "+ reranking": cosines.ranking(Look()),
        "IDF, not squared": cosines.ranking(Look(power=1)),
        "no IDF": cosines.ranking(Look(power=0)),
        "the trend with the length kept": cosines.ranking(Look(without_trend=False)),
        "plain sums, z-scores among 50, weight 0.5": cosines.ranking(Look(0, False, "candidates", 0.5)),
        "IDF, z-scores among 50, weight 0.5": cosines.ranking(Look(1, False, "candidates", 0.5)),
        "order by maxsim alone": by_maxsim(cell, tokens, asked),
        "float32, all dimensions": exact_ranking(cell),
        "the query's tokens without context": table.ranking(Look()),
        "0.5 x words, no reranking": best(cell.vectors + 0.5 * cell.words),
        "rank fusion of vectors, words and tokens": cosines.fused(),
        "words alone": best(cell.words),
    }
    return {name: cell.ndcg(ranking) for name, ranking in rows.items()}


def exact_ranking(cell: Cell) -> np.ndarray:
    tokens = cell.exact()
    return Cosines(cell, tokens, cell.asked(tokens)).ranking(Look())


def settings_of(cell: Cell) -> dict[str, np.ndarray]:
    """Return nDCG@10 for several settings of reranking."""
    rows = {"vectors": cell.ndcg(best(cell.vectors)), "the index": cell.ndcg(cell.first)}
    cosines = {}
    for number in (DIRECTIONS // 2, DIRECTIONS, 2 * DIRECTIONS):
        tokens = cell.stored(number)
        cosines[number] = Cosines(cell, tokens, cell.asked(tokens))
        rows[f"{number} directions"] = cell.ndcg(cosines[number].ranking(Look()))
    ranking: Callable[[Look], np.ndarray] = cosines[DIRECTIONS].ranking
    for candidates in (20, 50, 100):
        rows[f"{candidates} candidates"] = cell.ndcg(ranking(Look(candidates=candidates)))
    for power in (0, 1, 2):
        looks = {
            "all, half of the trend": Look(power),
            "all, trend": Look(power, without_trend=False),
            "candidates": Look(power, without_trend=False, among="candidates"),
        }
        for name, look in looks.items():
            for weight in WEIGHTS:
                rows[f"IDF^{power}, {name}, {weight}"] = cell.ndcg(ranking(replace(look, weight=weight)))
    return rows


def by_table_of(cell: Cell) -> dict[str, np.ndarray]:
    """Return nDCG@10 of an index with a table for queries."""
    record = IndexRecord(cell.model, "", language=cell.language, smooth=True, queries="static", rerank=True)
    entries = new_entries(cell.collection.documents)
    vectors = unit(cell.documents.vectors[entries.rows]).astype(np.float16)
    words = BM25.build(entries.texts, cell.language)
    tokens = cell.stored().take(entries.rows)
    state = derive(record, entries, vectors, words, lambda: load_model(cell.model), tokens=tokens)
    plain = replace(state, tokens=None)
    states = {"vectors": plain.with_record(word_weight=0.0), "the index": plain, "+ reranking": state}
    return {name: cell.ndcg(found_by(Index(None, each), cell.collection)) for name, each in states.items()}


def found_by(index: Index, collection: Collection) -> np.ndarray:
    """Return the first ten documents (Q, 10) of each query, without the document that is the query."""
    hits = index.search(collection.queries, 11)
    rows = [[hit.row for hit in own if hit.row != same] for own, same in zip(hits, collection.same)]
    return np.array([own[:10] for own in rows])


def table_of(title: str, scores: dict[str, dict[str, np.ndarray]], part: slice) -> str:
    """Return the Markdown table of nDCG@10 by cell and row, over some of the queries."""
    cells = {cell: {name: values[part] for name, values in rows.items()} for cell, rows in scores.items()}
    first = next(iter(cells.values()))
    table: list[list[str | None]] = []
    for name in ("vectors", "the index"):
        means = [f"{rows[name].mean():.2f}" for rows in cells.values()]
        table.append([name, *means, None, None])
    for name in [name for name in first if name not in ("vectors", "the index")]:
        changes = [rows[name] - rows["the index"] for rows in cells.values()]
        means = [change.mean() for change in changes]
        errors = [change.std(ddof=1) / len(change) ** 0.5 for change in changes]
        shown = [f"{mean:+.2f} ± {error:.2f}" for mean, error in zip(means, errors)]
        table.append([name, *shown, f"{np.mean(means):+.2f}", f"{min(means):+.2f}"])
    return markdown(f"nDCG@10, {title}", ["", *cells, "mean", "least"], table)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name", nargs="+", required=True, help="Models.")
    parser.add_argument("--retrieval", nargs="+", required=True, help="Folders of test collections.")
    parser.add_argument("--language", default="english", help="Language of the collections.")
    parser.add_argument("--settings", action="store_true", help="Print a table of settings.")
    parser.add_argument("--queries", choices=["model", "static"], default="model", help="What embeds queries.")
    parser.add_argument("--cache", help="Folder that keeps embeddings and token vectors.")
    parser.add_argument("--output", required=True, help="Markdown file of the table.")
    args = parser.parse_args(argv)
    ways = by_table_of if args.queries == "table" else rows_of
    measure = settings_of if args.settings else ways
    cells = {}
    with tempfile.TemporaryDirectory() as temporary:
        for folder in args.retrieval:
            collection = load_collection(folder)
            for model in args.model_name:
                candidates = MOST if args.settings else CANDIDATES
                cell = Cell(model, collection, args.language, Path(args.cache or temporary), candidates)
                cells[f"{collection.name}, {last_name(model)}"] = measure(cell)
    parts = {"queries 2, 4, 6, ...": OTHERS}
    parts |= {"queries 1, 3, 5, ...": SELECTED} if args.settings else {"all queries": slice(None)}
    text = "\n\n".join(table_of(title, cells, part) for title, part in parts.items())
    Path(args.output).write_text(f"{text}\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
