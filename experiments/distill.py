"""Static models of a collection's own texts: `informin distill` beside its model, its map and other static models.

    python -m experiments.distill --model_name MODEL --labels NAME=FILE[,FILE] ... --retrieval FOLDER ... --output TABLE
        [--peers NAME=FOLDER ...] [--adapt] [--texts 8000] [--cache FOLDER]

Titles: accuracy of the nearest neighbor x 100. Five eighths of a random sample of the titles are fitted, and the others
are scored, in three splits. "own label": the titles that contain the word of their label, and the others. Search:
nDCG@10, with the words of `informin.Index` added as z-scores. Peers are folders of static models for
sentence-transformers, such as model2vec's distillation of the same model. A model that needs prompts has them in its
config_sentence_transformers.json. --adapt also trains the model with the adapt recipe on the fitted titles of each
split, with its own seed. --cache keeps embeddings for the next call with the same model.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array
from sentence_transformers import SentenceTransformer
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer

from experiments.search_system import load_separate, ndcg, z_scores
from experiments.tables import markdown
from informin.cli.train import main as train
from informin.evaluation.encode import unit
from informin.evaluation.labels import load_labels, neighbor_accuracy
from informin.files import last_name
from informin.frozen.adapter import TASKS, LinearAdapter, smooth_rows
from informin.frozen.bm25 import BM25, WORD_WEIGHT
from informin.frozen.static import VOCABULARY, add_words, count_tokens, distill_vectors, embed_tokens, tokenizer_of
from informin.model.embedding import encode_in_shares, side_prompt
from informin.model.open import load_model

SPLITS = 3
MODEL, MAP, TABLE = "the model", "its clustering map", "distill"


class Source:
    """A model with its tokenizer, and a cache of its embeddings."""

    def __init__(self, name: str, cache: str | None):
        self.model, self.cache, self.folder = load_model(name), cache and Path(cache), name
        self.tokenizer, self.name = tokenizer_of(self.model), last_name(name)

    def cached(self, name: str, compute: Callable[[], np.ndarray]) -> np.ndarray:
        path = self.cache and self.cache / f"{self.name}-{name}.npy"
        if path and path.is_file():
            return np.load(path)
        values = compute()
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, values)
        return values

    def embed(self, name: str, texts: list[str], side: str | None = None) -> np.ndarray:
        return self.cached(f"{name}-{side}", lambda: encode_in_shares(self.model, texts, side=side))

    def tokens(self, name: str, texts: list[str], side: str | None = None) -> tuple:
        """Return the counts of the texts and the embeddings of single tokens, for search with words as tokens."""
        tokenizer = add_words(self.tokenizer, texts) if side else self.tokenizer
        counts, encode = count_tokens(tokenizer, texts), partial(encode_in_shares, self.model, side=side)
        alone = self.cached(f"{name}-tokens-{side}", lambda: embed_tokens(encode, tokenizer, counts))
        return tokenizer, counts, alone


def tf_idf(fitted: list[str], scored: list[str], width: int) -> np.ndarray:
    """Return TF-IDF of texts, reduced to `width` numbers by a decomposition of other texts."""
    words = TfidfVectorizer(sublinear_tf=True)
    svd = TruncatedSVD(width, random_state=0).fit(words.fit_transform(fitted))
    return svd.transform(words.transform(scored))


def adapted(model: str, fitted: list[str], scored: list[str]) -> np.ndarray:
    """Return embeddings of texts by a model that the adapt recipe trained on other texts."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "texts.txt").write_text("\n".join(fitted), encoding="utf-8")
        options = ["--recipe", "adapt", "--model_name", model, "--train_file", f"{folder}/texts.txt"]
        if train([*options, "--output_dir", f"{folder}/adapted"]):
            raise RuntimeError("The training failed")
        return encode_in_shares(load_model(f"{folder}/adapted"), scored)


def titles(
    source: Source, name: str, files: list[str], peers: dict[str, SentenceTransformer], limit: int, adapt: bool
) -> dict:
    """Return for each method the scores by split: all titles, those with their label, the others, and seconds."""
    sets = [load_labels(file) for file in files]
    texts = [text for one in sets for text in one.sentences]
    labels = [label for one in sets for label in one.labels]
    drawn = np.random.default_rng(0).permutation(len(texts))[:limit]
    texts, y = [texts[row] for row in drawn], np.unique([labels[row] for row in drawn], return_inverse=True)[1]
    has_label = np.array([labels[row].lower() in text.lower() for row, text in zip(drawn, texts)])
    x = source.embed(name, texts)
    _, counts, alone = source.tokens(name, texts)
    results: dict[str, list] = {}
    for split in range(SPLITS):
        order = np.random.default_rng(split + 1).permutation(len(texts))
        fitted, scored = np.split(order, [len(order) * 5 // 8])
        trained = source.folder if adapt else None
        for method, vectors in methods(x, counts, alone, texts, fitted, scored, peers, trained).items():
            start = time.process_time()
            z = unit(vectors())
            spent = time.process_time() - start
            nearest = np.array([neighbor_accuracy(z, y[scored])[0], *own_label(z, y[scored], has_label[scored]), spent])
            results.setdefault(method, []).append(nearest)
        print(name, split, {method: np.round(rows[-1], 2).tolist() for method, rows in results.items()}, flush=True)
    return results


def methods(
    x: np.ndarray,
    counts: csr_array,
    alone: np.ndarray,
    texts: list[str],
    fitted: np.ndarray,
    scored: np.ndarray,
    peers: dict[str, SentenceTransformer],
    trained: str | None,
) -> dict[str, Callable[[], np.ndarray]]:
    """Return functions that fit each method on some texts, and return the vectors of the scored ones."""
    known, unknown = [texts[row] for row in fitted], [texts[row] for row in scored]
    if len(alone) > VOCABULARY:  # as if only the fitted texts were there
        alone = alone * (counts[fitted].sum(0) > 0)[:, None]
    return {
        MODEL: lambda: x[scored],
        MAP: lambda: LinearAdapter(**TASKS["clustering"]).fit(x[fitted]).transform(x[scored]),
        TABLE: lambda: counts[scored] @ distill_vectors(x[fitted], counts[fitted], alone, "clustering")[1],
        **{name: partial(peer.encode, unknown) for name, peer in peers.items()},
        "TF-IDF and SVD": lambda: tf_idf(known, unknown, x.shape[1]),
        **({"the adapt recipe": partial(adapted, trained, known, unknown)} if trained else {}),
    }


def own_label(z: np.ndarray, y: np.ndarray, has_label: np.ndarray) -> list[float]:
    """Return the accuracy of titles that contain their label, and of the others."""
    similarity = z @ z.T
    np.fill_diagonal(similarity, -np.inf)
    right = y[similarity.argmax(1)] == y
    return [100 * float(right[rows].mean()) if rows.any() else np.nan for rows in (has_label, ~has_label)]


def search(source: Source, folder: str, peers: dict[str, SentenceTransformer]) -> dict[str, float]:
    """Return nDCG@10 of each way to search a collection."""
    collection = load_separate(folder)
    documents, queries = collection.documents, collection.queries
    x = source.embed(collection.name, documents, "document")
    q = source.embed(f"{collection.name}-queries", queries, "query")
    tokenizer, counts, alone = source.tokens(collection.name, documents, "document")
    adapter, table = distill_vectors(x, counts, alone, "search")
    of_queries = table
    if side_prompt(source.model, "query") != side_prompt(source.model, "document"):
        name = f"{collection.name}-asquery"
        as_queries = source.embed(name, documents, "query")
        alone = source.tokens(name, documents, "query")[-1]
        _, of_queries = distill_vectors(x, counts, alone, "search", as_queries)
    index = BM25.build(documents, "english")
    words = WORD_WEIGHT * z_scores(index.scores(queries))
    smoothed, q_counts = adapter.transform(x, smooth=True), count_tokens(tokenizer, queries)
    asked, both, held = (unit(a @ b) for a, b in ((q_counts, of_queries), (q_counts, table), (counts, table)))
    similarities = {
        MODEL: unit(q) @ unit(x).T,
        "its map, smoothed": adapter.transform(q) @ smoothed.T,
        "queries by table, documents by map, smoothed": asked @ smoothed.T,
        "table for both sides": both @ held.T,
        "table for both sides, smoothed": both @ smooth_rows(held).T,
        **{peer: unit(one.encode(queries)) @ unit(one.encode(documents)).T for peer, one in peers.items()},
    }
    results = {"words alone": float(ndcg(collection, words).mean())}
    for method, scores in similarities.items():
        results[f"{method}, without words"] = float(ndcg(collection, scores).mean())
        results[method] = float(ndcg(collection, z_scores(scores) + words).mean())
    print(collection.name, {method: round(score, 2) for method, score in results.items()}, flush=True)
    return results


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model_name", required=True, help="Model to distill.")
    add("--labels", nargs="+", default=[], metavar="NAME=FILE[,FILE]", help="Labeled titles.")
    add("--retrieval", nargs="+", default=[], metavar="FOLDER", help="Folders of test collections.")
    add("--peers", nargs="+", default=[], metavar="NAME=FOLDER", help="Static models to compare with.")
    add("--adapt", action="store_true", help="Also train with the adapt recipe.")
    add("--texts", type=int, default=8_000, help="Titles that are fitted and scored. Default: %(default)s.")
    add("--cache", metavar="FOLDER", help="Keep embeddings.")
    add("--output", required=True, help="Markdown file of the tables.")
    args = parser.parse_args(argv)
    source = Source(args.model_name, args.cache)
    peers = {name: SentenceTransformer(folder, device="cpu") for name, folder in map(pair, args.peers)}
    parts = []
    for name, files in map(pair, args.labels):
        results = titles(source, name, files.split(","), peers, args.texts, args.adapt)
        rows = [[method, *cells(np.array(scores))] for method, scores in results.items()]
        columns = ["", "mean", *(f"split {split + 1}" for split in range(SPLITS)), "own label", "other", "seconds"]
        parts.append(markdown(f"{name}, {source.name}: nearest neighbor x 100", columns, rows))
    if args.retrieval:
        scores = [search(source, folder, peers) for folder in args.retrieval]
        rows = [[method, *(f"{one[method]:.2f}" for one in scores)] for method in scores[0]]
        parts.append(markdown(f"nDCG@10, {source.name}", ["", *map(last_name, args.retrieval)], rows))
    Path(args.output).write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def cells(scores: np.ndarray) -> list[str | None]:
    """Return the mean, the splits, and the means over splits of the other columns."""
    means = scores.mean(0)
    values = [means[0], *scores[:, 0], *means[1:]]
    return [None if np.isnan(value) else f"{value:.2f}" for value in values]


def pair(value: str) -> tuple[str, str]:
    """Return the name and the value of NAME=VALUE."""
    name, _, value = value.partition("=")
    return name, value


if __name__ == "__main__":
    main()
