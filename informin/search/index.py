"""A search index: vectors of a model, words, and what a similarity means.

index = Index.build("sentence-transformers/all-MiniLM-L6-v2", texts)
index.save("index")
for hit in Index.load("index").search(["how are journals cited?"])[0]:
    print(hit.row, hit.score, hit.text)

The score of a text is its cosine to the query plus `word_weight` times its BM25 score, both as z-scores among all
texts. Files of an index:

index.json    the record, with the name of the folder of the data; replaced last, so that an index is old or new
index-data-*/ texts, row numbers, vectors, and words
"""

import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import csr_array, diags_array

from informin.errors import UsageError
from informin.evaluation.words import WORD_WEIGHT, Words, spread, z_scores
from informin.files import read_json, write_json
from informin.outputs import PREFIX, only_writer
from informin.rows import top, unit_rows
from informin.search.table import QueryTable
from informin.search.vectors import Vectors
from informin.texts import as_texts

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# Functions that need the model import torch, so that an index with a table for queries starts without it.

RECORD, DATA = "index.json", "index-data-"
QUERIES = 32  # scored at a time
KEPT = ("pooler", "max_length", "revision", "bf16")  # options of loading that the index keeps


@dataclass(frozen=True)
class Hit:
    """A text that was found.

    Attributes:
        row: Number of the text, from 0 in the order in which texts were added.
        text: The text.
        score: The sum that hits are sorted by, in standard deviations.
        vector_score: Cosine of the vectors; their dot product for a model that is compared by it.
        word_score: BM25 score of the words.
        relevant: Whether the cosine is above the threshold, which at most about one unrelated text per query exceeds.
            None if the index has fewer than 100 texts or its texts form no topics.
    """

    row: int
    text: str
    score: float
    vector_score: float
    word_score: float
    relevant: bool | None


@dataclass(frozen=True)
class IndexRecord:
    """What index.json holds.

    Attributes:
        model: Name or folder of the model.
        model_sha256: Checksum of the model.
        loading: Options of `load_model`.
        language, smooth, word_weight, prompt, query_prompt, queries: See `Index.build`.
        next_row: Number of the next text that is added.
        scores: `UnrelatedScores` of the texts; None for fewer than 100 texts, or if they form no topics.
        threshold: Cosine that at most about one unrelated text per query exceeds; None without `scores`.
        data: Name of the folder of the data.
    """

    model: str
    model_sha256: str
    loading: dict[str, Any] = field(default_factory=dict)
    language: str = "english"
    smooth: bool = False
    word_weight: float = WORD_WEIGHT
    prompt: str | None = None
    query_prompt: str | None = None
    queries: str = "model"
    next_row: int = 0
    scores: dict[str, Any] | None = None
    threshold: float | None = None
    data: str = ""


class Index:
    """Texts to search, with the vectors of a model and words; see `build` and `load`.

    Attributes:
        record: Settings.
        texts, rows: The N texts and their numbers (N,).
        vectors: (N, d) float16: unit vectors, or those of the model as they are if it is compared by dot product.
        documents: (N, d) float16, the vectors that are searched: `vectors`, smoothed if the index is.
        words: BM25 weights.
        threshold: Cosine that at most about one unrelated text per query exceeds; None without `record.scores`.
        table: Table that embeds queries; None if the model does.
    """

    def __init__(self, model: "SentenceTransformer | None", record: IndexRecord, table: QueryTable | None = None):
        self._model, self.record, self.table = model, record, table

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def model(self) -> "SentenceTransformer":
        """The model. With a table for queries, it is opened when texts are added."""
        if self._model is None:
            self._open(None)
        return self._model

    @classmethod
    def build(
        cls,
        model: "str | Path | SentenceTransformer",
        texts: Sequence[str],
        *,
        language: str = "english",
        smooth: bool = False,
        word_weight: float = WORD_WEIGHT,
        prompt: str | None = None,
        query_prompt: str | None = None,
        queries: str = "model",
        batch_size: int = 64,
        loading: dict[str, Any] | None = None,
    ) -> "Index":
        """Embed texts and weight their words.

        Args:
            model: Hub id, folder or SentenceTransformer.
            texts: N texts.
            language: Language of stop words and stems, such as german; `other` for none. See `LANGUAGES`.
            smooth: Average each document vector with its nearest neighbors.
            word_weight: Weight of the words. 0 searches by vectors alone.
            prompt, query_prompt: Text before each document and query, instead of the model's prompts.
            queries: `model`, or `table`: queries are embedded by token vectors, without the model and torch, and
                documents are adapted by the map of `fit --task search` and smoothed. See `informin.distill`. A model
                with a prompt for queries embeds every text twice, the second time as a query, for the table.
            batch_size: Texts per forward pass.
            loading: Options of `load_model`.

        Raises:
            UsageError: The model cannot be loaded, there are no texts, the language is unknown, or `smooth` or
                `queries` is set for a model that is compared by dot product.
        """
        from informin.models.checksums import model_sha256
        from informin.models.opening import load_model, name_of

        if queries not in ("model", "table"):
            raise UsageError(f"is {queries}", option="queries", needed="model or table")
        loading, by_table = loading or {}, queries == "table"
        st = load_model(model, **loading)
        if (smooth or by_table) and st.similarity_fn_name == "dot":
            option = "queries" if by_table else "smooth"
            raise UsageError(f"needs cosines, and {name_of(st)} is compared by dot product", option=option)
        name = str(Path(name_of(st)).resolve()) if Path(name_of(st)).is_dir() else name_of(st)
        kept = {option: loading[option] for option in KEPT if option in loading}
        how = (language, smooth or by_table, word_weight, prompt, query_prompt, queries)
        record = IndexRecord(name, model_sha256(st), kept, *how)
        index = cls(st, record)
        texts = as_texts(texts)
        words = Words.build(texts, language)  # before the long work, because the language may be unknown
        vectors = index._embed(texts, "document", prompt, batch_size=batch_size).astype(np.float16)
        index._derive(texts, np.arange(len(texts)), vectors, words)
        return index

    @classmethod
    def load(cls, folder: str | Path, model: "str | Path | SentenceTransformer | None" = None) -> "Index":
        """Open an index, with its vectors and words memory-mapped. With a table for queries, the model stays closed.

        Args:
            folder: What `save` wrote.
            model: The model, if it is no longer where it was, was in memory, or needs other options of `load_model`.

        Raises:
            UsageError: The folder holds no index, or the model is another one.
        """
        if not Path(folder, RECORD).is_file():
            raise UsageError(f"is {folder}, which has no {RECORD}", option="index", needed="an index")
        record = IndexRecord(**read_json(Path(folder, RECORD)))
        data, by_table = Path(folder, record.data), record.queries == "table"
        index = cls(None, record, QueryTable.load(data) if by_table else None)
        if model is not None or not by_table:
            index._open(model)
        texts = [json.loads(line) for line in (data / "texts.jsonl").read_text(encoding="utf-8").splitlines()]
        vectors = np.load(data / "vectors.npy", mmap_mode="r")
        documents = np.load(data / "smoothed.npy", mmap_mode="r") if record.smooth else vectors
        words = Words.load(data / "words", record.language)
        index._set(texts, np.load(data / "rows.npy"), vectors, documents, words)
        return index

    def save(self, folder: str | Path) -> None:
        """Write the index to a folder, or replace the index in it. After a crash, it has the old one or the new one.

        Raises:
            UsageError: The folder holds something else, or another process writes it.
        """
        folder = Path(folder)
        with only_writer(folder):
            folder.mkdir(parents=True, exist_ok=True)
            others = {path.name for path in folder.iterdir() if not path.name.startswith((PREFIX, DATA))}
            if others and RECORD not in others:
                raise UsageError(f"{folder} is in use", option="output_dir", needed="a new folder, or an index")
            data = Path(tempfile.mkdtemp(prefix=DATA, dir=folder))
            data.chmod(folder.stat().st_mode)
            lines = "".join(f"{json.dumps(text)}\n" for text in self.texts)
            (data / "texts.jsonl").write_text(lines, encoding="utf-8")
            np.save(data / "rows.npy", self.rows)
            np.save(data / "vectors.npy", self.vectors)
            if self.record.smooth:
                np.save(data / "smoothed.npy", self.documents)
            if self.table:
                self.table.save(data)
            self.words.save(data / "words")
            write_json(folder / RECORD, asdict(replace(self.record, data=data.name)))
            for other in folder.glob(f"{DATA}*"):
                if other != data:
                    shutil.rmtree(other, ignore_errors=True)

    def add(self, texts: Sequence[str], batch_size: int = 64) -> np.ndarray:
        """Add texts, and return their row numbers. Words, smoothed vectors and the table are computed again."""
        texts = as_texts(texts)
        added = self._embed(texts, "document", self.record.prompt, batch_size=batch_size).astype(np.float16)
        rows = np.arange(self.record.next_row, self.record.next_row + len(texts))
        self._derive([*self.texts, *texts], np.append(self.rows, rows), np.concatenate([self.vectors, added]))
        return rows

    def remove(self, rows: Sequence[int]) -> None:
        """Remove texts by their row numbers. The other texts keep theirs.

        Raises:
            UsageError: There is no such row, or no text would remain.
        """
        if missing := set(np.asarray(rows).tolist()) - set(self.rows.tolist()):
            raise UsageError(f"contains {min(missing)}, which is not in the index", option="rows")
        kept = np.flatnonzero(~np.isin(self.rows, rows))
        self._derive([self.texts[place] for place in kept], self.rows[kept], self.vectors[kept])

    def search(self, queries: Sequence[str], k: int = 10) -> list[list[Hit]]:
        """Return the k best texts for each query, best first.

        Args:
            queries: Q queries.
            k: Number of hits, or of all texts if there are fewer.
        """
        queries = as_texts(queries, "queries")
        vectors = self.embed_queries(queries)
        parts = [slice(start, start + QUERIES) for start in range(0, len(queries), QUERIES)]
        return [hits for part in parts for hits in self._search(queries[part], vectors[part], k)]

    def embed_queries(self, queries: Sequence[str]) -> np.ndarray:
        """Return the vectors (Q, d) float32 of queries, to compare with `documents` by dot product."""
        if self.table:
            return self.table.encode(queries)
        return self._embed(queries, "query", self.record.query_prompt, title=None)

    def sparse_vectors(self) -> csr_array:
        """Return the BM25 weights (N, V) of the words in each text, for a store with sparse vectors."""
        return self.words.weights()

    def sparse_queries(self, queries: Sequence[str]) -> csr_array:
        """Return sparse vectors (Q, V) of queries, for a store with sparse vectors.

        The dot product with `sparse_vectors`, plus that of `embed_queries` with `documents`, ranks as `search` does.
        """
        counts, words = self.words.counts(queries), self.words.scores(queries)
        _, deviation = self._compared.moments(self.embed_queries(queries))
        return diags_array((self.record.word_weight * deviation / spread(words))[:, 0]) @ counts

    def _search(self, queries: list[str], vectors: np.ndarray, k: int) -> list[list[Hit]]:
        words = self.words.scores(queries)
        mean, deviation = self._compared.moments(vectors)
        weighted = self.record.word_weight * z_scores(words)
        hits = []
        for query, (places, similarities) in enumerate(self._compared.candidates(vectors, words)):
            scores = (similarities - mean[query]) / deviation[query] + weighted[query, places]
            best = top(scores, min(k, len(scores)))
            places = places[best]
            parts = zip(places, scores[best], similarities[best], words[query, places])
            hits.append([self._hit(*part) for part in parts])
        return hits

    def _hit(self, place: int, score: float, similarity: float, word_score: float) -> Hit:
        values = float(score), float(similarity), float(word_score)
        relevant = None if self.threshold is None else bool(similarity > self.threshold)
        return Hit(int(self.rows[place]), self.texts[place], *values, relevant)

    def _open(self, model: "str | Path | SentenceTransformer | None") -> None:
        from informin.models.checksums import model_sha256
        from informin.models.opening import load_model, name_of

        record = self.record
        st = load_model(record.model, **record.loading) if model is None else load_model(model)
        if model_sha256(st) != record.model_sha256:
            found = f"The index was built with {record.model}, and {name_of(st)} is another model"
            raise UsageError(found, fix="Use the model of the index, or build the index again.")
        self._model = st

    def _embed(self, texts: Sequence[str], side: str, prompt: str | None, **options: Any) -> np.ndarray:
        from informin.models.embedding import embed

        vectors = embed(self.model, texts, side=side, prompt=prompt, **options)
        return vectors if self.model.similarity_fn_name == "dot" else unit_rows(vectors)

    def _derive(self, texts: list[str], rows: np.ndarray, vectors: np.ndarray, words: Words | None = None) -> None:
        """Set the texts and what is computed from them."""
        from informin.adapters.scores import UnrelatedScores, unrelated_scores
        from informin.neighbors import smooth_rows

        words = words or Words.build(texts, self.record.language)
        documents = vectors
        if self.record.queries == "table":
            documents = self._fit_table(texts, vectors)
        elif self.record.smooth:
            documents = smooth_rows(vectors.astype(np.float32)).astype(np.float16)
        scores = self.record.scores
        has_grown = scores is None or len(texts) > 2 * scores["texts"]  # they are measured in seconds
        if has_grown and (self.table or self.model.similarity_fn_name != "dot"):
            asked = self.table.encode(texts) if self.table else None
            measured = unrelated_scores(vectors, asked, documents)
            scores = asdict(measured) if measured else None
        threshold = UnrelatedScores(**scores).threshold(texts=len(texts)) if scores else None
        next_row = max(self.record.next_row, int(rows[-1]) + 1)
        self.record = replace(self.record, next_row=next_row, scores=scores, threshold=threshold)
        self._set(texts, rows, vectors, documents, words)

    def _fit_table(self, texts: list[str], vectors: np.ndarray) -> np.ndarray:
        """Fit the table for queries, and return the adapted and smoothed vectors (N, d) float16 of the documents."""
        from informin.adapters.table import add_words, count_tokens, distill_vectors, embed_tokens, tokenizer_of

        old, record = self.table, self.record

        def encode(some: list[str]) -> np.ndarray:
            return self._embed(some, "query", record.query_prompt, title="as queries").astype(np.float16)

        as_queries, previous = None, old.as_queries if old else None
        if not (previous is None if old else self._embeds_alike(texts[:1])):
            known = {} if previous is None else dict(zip(self.texts, previous))
            if new := [text for text in dict.fromkeys(texts) if text not in known]:
                known |= zip(new, encode(new))
            as_queries = np.stack([known[text] for text in texts])
        tokenizer = add_words(old.tokenizer if old else tokenizer_of(self.model), texts)
        counts, x = count_tokens(tokenizer, texts), vectors.astype(np.float32)
        alone = embed_tokens(encode, tokenizer, counts, old.alone if old else None)
        adapter, table = distill_vectors(x, counts, alone, "search", as_queries)
        self.table = QueryTable(tokenizer, table.astype(np.float16), alone, as_queries)
        return adapter.transform(x, smooth=True).astype(np.float16)

    def _embeds_alike(self, texts: list[str]) -> bool:
        """Return whether the model embeds some texts alike as queries and as documents."""
        sides = (("query", self.record.query_prompt), ("document", self.record.prompt))
        first, second = (self._embed(texts, *side, title=None) for side in sides)
        return np.array_equal(first, second)

    def _set(
        self, texts: list[str], rows: np.ndarray, vectors: np.ndarray, documents: np.ndarray, words: Words
    ) -> None:
        self.texts, self.rows, self.vectors, self.documents, self.words = texts, rows, vectors, documents, words
        self._compared, self.threshold = Vectors(documents), self.record.threshold
