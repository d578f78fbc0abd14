"""What an index computes from its texts: vectors, smoothed vectors, the table for queries, and the threshold."""

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from datetime import date, time
from decimal import Decimal
from functools import cached_property, partial
from typing import Any
from uuid import UUID

import numpy as np
from scipy.sparse import csr_array, diags_array
from sentence_transformers import SentenceTransformer

from informin.errors import UsageError, counted, is_installed
from informin.evaluation.rows import top, unit_rows
from informin.frozen.adapter import smooth_rows
from informin.frozen.bm25 import BM25, NEARLY_EQUAL, WORD_WEIGHT, spread, versions
from informin.frozen.late_interaction import BYTES, CANDIDATES, Projection, Tokens, TokenVectors
from informin.frozen.static_queries import QueryTable, embed_as_queries, fit_query_table
from informin.frozen.token_vectors import embed_documents, embed_queries, has_token_vectors
from informin.frozen.unrelated import UnrelatedScores, unrelated_scores
from informin.model.embedding import encode_in_shares
from informin.options import described, fits
from informin.texts import as_texts, is_blank, raise_if_set

RECORD = "index.json"


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
        token_score: In an index with a second look, the mean over the query's tokens of their largest cosine to a token
            of the text, weighted by inverse document frequency. None in another index.
        id: Your own id of the text; None if it was added without one.
        fields: Further values that were added with the text, such as its title, by name.
    """

    row: int
    text: str
    score: float
    vector_score: float
    word_score: float
    relevant: bool | None
    token_score: float | None = None
    id: Any = None
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def shown_fields(self) -> dict[str, Any]:
        """The fields that are not empty."""
        return {name: value for name, value in self.fields.items() if value is not None}


@dataclass(frozen=True)
class IndexRecord:
    """What index.json holds.

    Attributes:
        model: Name or folder of the model.
        model_sha256: Checksum of the model.
        loading: Options of `load_model`.
        similarity: `dot` for a model that is compared by dot product, and `cosine` for others; empty until version 0.3.
        language, smooth, word_weight, prompt, query_prompt, queries, second_look: See `Index.build`.
        projected: Number of texts that the projection of the token vectors was fitted to; 0 without a second look.
        next_row: Number of the next text that is added.
        scores: `UnrelatedScores` of the texts; None for fewer than 100 texts, or if they form no topics.
        threshold: Cosine that at most about one unrelated text per query exceeds; None without `scores`.
        words: Versions of all that decides what the words of a text are. With other versions, words are built again.
        data: Name of the folder of the data.
        sizes: Bytes of each file in it.
        samples: Checksum of a part of each file; see `informin.frozen.index_files.sample_checksum`.
        texts_sha256: Checksum of the texts, whose order is that of the vectors.
    """

    model: str
    model_sha256: str
    loading: dict[str, Any] = field(default_factory=dict)
    similarity: str = ""
    language: str = "english"
    smooth: bool = False
    word_weight: float = WORD_WEIGHT
    prompt: str | None = None
    query_prompt: str | None = None
    queries: str = "model"
    second_look: bool = False
    projected: int = 0
    next_row: int = 0
    scores: dict[str, Any] | None = None
    threshold: float | None = None
    words: dict[str, Any] = field(default_factory=dict)
    data: str = ""
    sizes: dict[str, int] = field(default_factory=dict)
    samples: dict[str, str] = field(default_factory=dict)
    texts_sha256: str = ""

    @property
    def by_table(self) -> bool:
        """Whether queries are embedded by a table."""
        return self.queries == "table"

    @property
    def has_current_words(self) -> bool:
        """Whether this environment would split texts into the same words."""
        return self.words == versions()


def parse_record(values: dict[str, Any], name: str) -> IndexRecord:
    """Return the record in the values of an index.json.

    Args:
        name: Name of the file, for errors.

    Raises:
        UsageError: A value is missing, unknown to this version, or of another type.
    """
    known = fields(IndexRecord)
    required = {each.name for each in known if each.default is MISSING and each.default_factory is MISSING}
    missing = required - set(values)
    unknown = set(values) - {each.name for each in known}
    if missing or unknown:
        found = f"{name} has the unknown entry {min(unknown)!r}" if unknown else f"{name} lacks {min(missing)!r}"
        raise UsageError(found, fix="Build the index again, or use the version of informin that wrote it.")
    for each in known:
        if each.name in values and not fits(values[each.name], each.type):
            found = f"{name} has {values[each.name]!r:.60} as {each.name!r}"
            raise UsageError(found, needed=described(each.type), fix="Correct it, or build the index again.")
    return IndexRecord(**values)


@dataclass(frozen=True)
class Entries:
    """N texts of an index.

    Attributes:
        rows: (N,) numbers of the texts, ascending.
        texts: The texts.
        ids: The user's ids; None for texts without one.
        fields: Further values by name.
    """

    rows: np.ndarray
    texts: list[str]
    ids: list[Any]
    fields: list[dict[str, Any]]

    def __len__(self) -> int:
        return len(self.texts)

    def __add__(self, other: "Entries") -> "Entries":
        rows = np.append(self.rows, other.rows)
        return Entries(rows, self.texts + other.texts, self.ids + other.ids, self.fields + other.fields)

    def selected(self, places: Iterable[int]) -> "Entries":
        """Return the entries at some places, from 0 to N - 1."""
        places = np.asarray(list(places), int)
        texts = [self.texts[place] for place in places]
        ids = [self.ids[place] for place in places]
        return Entries(self.rows[places], texts, ids, [self.fields[place] for place in places])

    def lines(self) -> str:
        """Return one line of JSON for each entry: the text, or an object with its id and fields."""
        parts = zip(self.texts, self.ids, self.fields)
        return "".join(f"{json.dumps(_value(text, name, values))}\n" for text, name, values in parts)


def new_entries(
    texts: Iterable[str],
    ids: Sequence[Any] | None = None,
    fields: Sequence[Mapping[str, Any]] | None = None,
    first_row: int = 0,
) -> Entries:
    """Return the texts that are not blank, numbered by their places in the list.

    Args:
        texts: N texts.
        ids: N ids; see `as_json`.
        fields: N mappings of further values; see `as_json`.
        first_row: Row number of the first text.

    Raises:
        UsageError: There are fewer or more ids or fields than texts, or one of them cannot be written as JSON.
    """
    texts = as_texts(texts)
    raise_if_set(ids, "ids")
    ids = [None] * len(texts) if ids is None else [as_json(each, "ids") for each in ids]
    values = [{} for _ in texts] if fields is None else [_as_fields(each) for each in fields]
    for option, given in (("ids", ids), ("fields", values)):
        if len(given) != len(texts):
            raise UsageError(f"has {counted(len(given), 'item')} for {counted(len(texts), 'text')}", option=option)
    every = Entries(np.arange(first_row, first_row + len(texts)), texts, ids, values)
    return every.selected(place for place, text in enumerate(texts) if not is_blank(text))


def parse_entries(lines: str, rows: np.ndarray) -> Entries:
    """Return what `Entries.lines` wrote.

    Raises:
        ValueError: A line is not JSON, or there are more or fewer lines than rows.
    """
    values = [json.loads(line) for line in lines.splitlines()]
    if len(values) != len(rows):
        raise ValueError(f"{counted(len(values), 'text')} for {counted(len(rows), 'row')}")
    whole: list[dict[str, Any]] = [{"text": value} if isinstance(value, str) else value for value in values]
    ids = [value.get("id") for value in whole]
    return Entries(rows, [value["text"] for value in whole], ids, [value.get("fields", {}) for value in whole])


def as_json(value: Any, option: str) -> Any:
    """Return a value as JSON holds it, so that a saved index has the same values as one in memory.

    Numbers of NumPy become those of Python; dates, times, decimals and UUIDs become text, dates and times in ISO 8601.
    Missing values become None: NaN and NaT of Python, NumPy and pandas, pandas.NA, and masked values of NumPy.

    Args:
        value: The value.
        option: Name of the option that has it, for errors.

    Raises:
        UsageError: JSON cannot hold it.
    """
    if is_missing(value):
        return None
    if isinstance(value, np.generic):
        value = str(value) if isinstance(value, np.datetime64) else value.item()
    if isinstance(value, str | int):
        return value
    if isinstance(value, float) and not math.isinf(value):
        return value
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): as_json(each, option) for name, each in value.items()}
    if isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim):
        return [as_json(each, option) for each in value]
    raise UsageError(
        f"contains {value!r:.60}",
        option=option,
        needed="texts, numbers, dates, or lists of them",
        fix="Convert it to text, or leave it out.",
    )


def is_missing(value: Any) -> bool:
    """Return whether a value is None, or marks a missing one in Python, NumPy or pandas."""
    pandas = sys.modules.get("pandas")
    if value is None or value is np.ma.masked or (pandas is not None and value is pandas.NA):
        return True
    return isinstance(value, float | Decimal | date | np.generic) and bool(value != value)  # NaN and NaT


def _value(text: str, name: Any, values: dict[str, Any]) -> Any:
    if name is None and not values:
        return text
    return {"text": text, "id": name, "fields": values}


def _as_fields(values: Any) -> dict[str, Any]:
    """Return the fields of one text."""
    if not isinstance(values, Mapping):
        raise UsageError(f"contains {values!r:.60}", option="fields", needed="a dictionary for each text")
    return as_json(values, "fields")


class Copies:
    """Which of N texts are equal.

    Attributes:
        first: (M,) places of the first copy of each of M different texts, ascending.
    """

    def __init__(self, texts: Sequence[str]):
        first_of: dict[str, int] = {}
        firsts = np.array([first_of.setdefault(text, place) for place, text in enumerate(texts)], int)
        self.first = np.array(list(first_of.values()), int)
        self._numbers = np.bincount(firsts, minlength=len(firsts))  # of copies, at the place of the first one
        self._ends = np.cumsum(self._numbers)
        self._places = np.argsort(firsts, kind="stable")  # those of the copies of a text follow each other

    def of(self, first: int) -> np.ndarray:
        """Return the places of all copies of a text, ascending."""
        end = self._ends[first]
        return self._places[end - self._numbers[first] : end]


COMPARED = 2**24  # numbers, of 43,690 vectors of 384: of fewer, all are compared
IN_MEMORY = 2**28  # numbers: of more, FAISS chooses the candidates, if it is installed
BLOCK = 16_384  # rows converted to float32 at a time
# With these, 99.98% of the first ten hits are found, and 99.9% or more of the first 50 (docs/search.md).
LEADING_DIRECTIONS = 128
MOST_CANDIDATES = 1_000  # at first
MARGIN = 6  # in standard deviations of what the leading directions leave of the similarities to a query
SAMPLED_ROWS = 4_096  # rows that the spread of similarities and the leading directions are computed from

Candidates = tuple[np.ndarray, np.ndarray]  # places, ascending, and their similarities


class Vectors:
    """Document vectors to compare with queries by dot product.

    Args:
        documents: (N, d) float16, usually memory-mapped.
        places: (M,) places of the documents that are compared, ascending.
    """

    def __init__(self, documents: np.ndarray, places: np.ndarray):
        self.documents = np.asarray(documents)  # without the class of memory maps, whose rows take longer to read
        self.places = places
        sampled = np.unique(np.linspace(0, len(documents) - 1, SAMPLED_ROWS).astype(int))
        sample = self.documents[sampled].astype(np.float32)
        self.center = sample.mean(0)  # (d,)
        self.deviations = np.linalg.qr(sample - self.center, mode="r") / len(sample) ** 0.5  # (at most d, d)
        numbers = len(places) * documents.shape[1]
        self.copy = self._converted() if numbers <= COMPARED else None
        self.faiss: Any = self._faiss_index() if numbers > IN_MEMORY and is_installed("faiss") else None
        has_leading = self.copy is None and self.faiss is None
        if has_leading:
            self.directions = leading_directions(sample)  # (d, k)
            self.leading = self._converted(self.directions)  # (M, k)
            self.rest = np.eye(len(self.center), dtype=np.float32) - self.directions @ self.directions.T  # (d, d)
            self.rest_deviations = self.deviations @ self.rest  # (at most d, d)

    def moments(self, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation (Q, 1) of the similarities of queries (Q, d) to the documents.

        The deviation is 1 where the similarities are equal up to rounding.
        """
        mean = (queries @ self.center)[:, None]
        # The length of R q is the length of S q for a sample S = Q R, and R has few rows.
        deviation = np.linalg.norm(queries @ self.deviations.T, axis=1, keepdims=True)
        return mean, np.where(deviation > NEARLY_EQUAL * np.abs(mean), deviation, 1)

    def candidates(self, queries: np.ndarray, added: np.ndarray, k: int) -> Iterator[Candidates]:
        """Yield for each query the places of documents that may be hits, ascending, and their similarities.

        Args:
            queries: (Q, d) float32.
            added: (Q, N) what the words add to the similarities.
            k: Number of hits.
        """
        if self.copy is not None:
            yield from ((self.places, similarities) for similarities in queries @ self.copy.T)
            return
        if len(self.places) < len(self.documents):
            added = added[:, self.places]
        depth = min(max(MOST_CANDIDATES, 10 * k), len(self.places))
        if self.faiss is not None:
            found = self.faiss.search(queries, depth)[1]
            for query, indices, more in zip(queries, found, added):
                nearest = np.union1d(indices, top(more, depth))
                yield self.places[nearest], self._compared(query, nearest)
            return
        margins = self._margins(queries)
        leading = queries @ self.directions @ self.leading.T
        leading += added
        for query, scores, more, margin in zip(queries, leading, added, margins):
            yield self._by_leading(query, scores, more, margin, k, depth)

    def _margins(self, queries: np.ndarray) -> np.ndarray:
        """Return how much higher a similarity (Q,) may be than what the leading directions make of it.

        For a query q and the projection P on the other directions, q P d has a mean and a standard deviation over the
        documents d.
        """
        deviation = np.linalg.norm(queries @ self.rest_deviations.T, axis=1)
        return queries @ (self.rest @ self.center) + MARGIN * deviation

    def _by_leading(
        self, query: np.ndarray, leading: np.ndarray, added: np.ndarray, margin: float, k: int, depth: int
    ) -> Candidates:
        """Return the places of documents that may be hits of a query, ascending, and their similarities.

        The k-th best score of the first candidates is a bound. Every document that may exceed it is a candidate, too:
        hundreds if many are nearly equal, and most if the leading directions say little about the others.

        Args:
            query: (d,) float32.
            leading: (M,) scores by the leading directions.
            added: (M,) what the words add to the similarities.
            margin: How much higher the score of a document may be than that by the leading directions.
            k: Number of hits.
            depth: Number of candidates at first.
        """
        nearest = np.sort(top(leading, depth))
        similarities = self._compared(query, nearest)
        if depth < len(leading):
            scores = similarities + added[nearest]
            least = np.partition(scores, -k)[-k]
            possible = np.flatnonzero(leading >= least - margin)
            if len(possible) > depth:
                nearest = possible
                similarities = self._compared(query, nearest)
        return self.places[nearest], similarities

    def _compared(self, query: np.ndarray, indices: np.ndarray) -> np.ndarray:
        """Return the similarities of a query (d,) to documents, given by indices in `places`."""
        return as_float32(self.documents[self.places[indices]]) @ query

    def _blocks(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield slices of `places` and the documents there in float32."""
        for start in range(0, len(self.places), BLOCK):
            part = slice(start, start + BLOCK)
            yield part, as_float32(self.documents[self.places[part]])

    def _converted(self, directions: np.ndarray | None = None) -> np.ndarray:
        """Return the documents in float32 (M, d), or their coordinates (M, k) in some directions (d, k).

        Columns are contiguous, which halves the time of a product with one query.
        """
        width = self.documents.shape[1] if directions is None else directions.shape[1]
        converted = np.empty((len(self.places), width), np.float32, order="F")
        for part, block in self._blocks():
            converted[part] = block if directions is None else block @ directions
        return converted

    def _faiss_index(self) -> Any:
        """Return an exact FAISS index that holds the vectors as float16."""
        import faiss

        kind = faiss.ScalarQuantizer.QT_fp16
        index = faiss.IndexScalarQuantizer(self.documents.shape[1], kind, faiss.METRIC_INNER_PRODUCT)
        index.is_trained = True
        for _, block in self._blocks():
            index.add(block)
        return index


def as_float32(halves: np.ndarray) -> np.ndarray:
    """Return finite float16 numbers as float32, in a quarter of the time of `astype`."""
    bits = halves.view(np.int16).astype(np.int32)  # repeats the sign in the upper half
    bits <<= 13  # exponent and fraction are where float32 has them
    bits &= ~0x70000000  # keeps one of the repeated signs
    numbers = bits.view(np.float32)
    numbers *= 2.0 ** (127 - 15)  # the difference between the biases of the two exponents
    return numbers


def leading_directions(sample: np.ndarray) -> np.ndarray:
    """Return the directions (d, k) in which vectors (n, d) are largest."""
    _, directions = np.linalg.eigh(sample.T @ sample)  # ascending
    return directions[:, ::-1][:, :LEADING_DIRECTIONS].copy()


@dataclass(frozen=True)
class State:
    """The content of an index, which never changes.

    `Index` replaces it as a whole, so that other threads see the old or the new.

    Attributes:
        record: Settings.
        entries: The N texts.
        vectors: (N, d) float16: unit vectors, or those of the model as they are if it is compared by dot product.
        documents: (N, d) float16, the vectors that are searched: `vectors`, adapted or smoothed if the index is.
        words: BM25 weights.
        table: Table that embeds queries; None if the model does.
        tokens: Token vectors of the texts, for a second look; None for an index without one.
    """

    record: IndexRecord
    entries: Entries
    vectors: np.ndarray
    documents: np.ndarray
    words: BM25
    table: QueryTable | None = None
    tokens: TokenVectors | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled or copied, without what is computed from it."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @cached_property
    def compared(self) -> Vectors:
        """The documents, prepared for the comparison with queries."""
        return Vectors(self.documents, self.copies.first)

    @cached_property
    def copies(self) -> Copies:
        """Which texts are equal."""
        return Copies(self.entries.texts)

    def with_record(self, **changes) -> "State":
        """Return the same content with changes of the record."""
        return replace(self, record=replace(self.record, **changes))

    def find(self, queries: list[str], embedded: "Queries", k: int) -> list[list[Hit]]:
        """Return the k best texts for each of Q queries, best first.

        Args:
            queries: Q queries.
            embedded: Their vectors, and their tokens for a second look.
            k: Number of texts, or all if there are fewer.
        """
        vectors = embedded.vectors
        words = self.words.scores(queries)
        mean, deviation = self.compared.moments(vectors)
        scale = self.record.word_weight / spread(words)
        typical = words.mean(1)
        added = deviation * scale * words
        k = min(k, len(self.entries))
        depth = min(max(k, CANDIDATES) if self.tokens else k, len(self.copies.first))
        hits = []
        for query, (places, similarities) in enumerate(self.compared.candidates(vectors, added, depth)):
            matched = words[query, places]
            scores = (similarities - mean[query]) / deviation[query] + scale[query] * (matched - typical[query])
            found = _Found(places, scores, similarities, matched).selected(top(scores, depth))
            if self.tokens:
                found = found.reordered(self.tokens, embedded.tokens[query])
            found = found.with_copies(self.copies)
            hits.append([self._hit(found, rank) for rank in range(k)])
        return hits

    def sparse_queries(self, queries: list[str], vectors: np.ndarray) -> csr_array:
        """Return the words of queries, weighted such that `words.weights()` and `documents` rank as `find` does."""
        counts = self.words.counts(queries)
        words = self.words.scores(queries)
        _, deviation = self.compared.moments(vectors)
        return diags_array((self.record.word_weight * deviation / spread(words))[:, 0]) @ counts

    def _hit(self, found: "_Found", rank: int) -> Hit:
        place = found.places[rank]
        similarity = float(found.similarities[rank])
        threshold = self.record.threshold
        return Hit(
            row=int(self.entries.rows[place]),
            text=self.entries.texts[place],
            score=float(found.scores[rank]),
            vector_score=similarity,
            word_score=float(found.words[rank]),
            relevant=None if threshold is None else similarity > threshold,
            token_score=None if found.tokens is None else float(found.tokens[rank]),
            id=self.entries.ids[place],
            fields=self.entries.fields[place],
        )


@dataclass(frozen=True)
class Queries:
    """Q queries as the model sees them.

    Attributes:
        vectors: (Q, d) float32.
        tokens: For each query, ids and projected vectors of its tokens; empty for an index without a second look.
    """

    vectors: np.ndarray
    tokens: Sequence[Tokens] = ()

    def __getitem__(self, part: slice) -> "Queries":
        return Queries(self.vectors[part], self.tokens[part])


@dataclass(frozen=True)
class _Found:
    """The places of P texts that were found for a query, and their scores (P,)."""

    places: np.ndarray
    scores: np.ndarray
    similarities: np.ndarray
    words: np.ndarray
    tokens: np.ndarray | None = None

    def selected(self, order: np.ndarray) -> "_Found":
        """Return some of the texts, in the order of their indices."""
        tokens = None if self.tokens is None else self.tokens[order]
        return _Found(self.places[order], self.scores[order], self.similarities[order], self.words[order], tokens)

    def reordered(self, stored: TokenVectors, query: Tokens) -> "_Found":
        """Return the texts with the scores of a second look, in their order."""
        tokens, added = stored.rerank(query, self.places)
        found = replace(self, scores=self.scores + added, tokens=tokens)
        return found.selected(np.argsort(-found.scores, kind="stable"))

    def with_copies(self, copies: Copies) -> "_Found":
        """Return each text with its copies after it, which have its scores."""
        places = [copies.of(first) for first in self.places]
        same = np.repeat(np.arange(len(places)), [len(one) for one in places])
        return replace(self.selected(same), places=np.concatenate(places))


COUNTED_TEXTS = 1_000  # texts whose tokens are counted


def embed_unit(
    model: SentenceTransformer, texts: Sequence[str], side: str, prompt: str | None, **options: Any
) -> np.ndarray:
    """Return the embeddings (N, d) float32 of texts, of unit length unless the model is compared by dot product.

    Args:
        model: The model.
        texts: N texts.
        side: `query` or `document`.
        prompt: Prompt prepended to each text; None for the model's.
        options: Further options of `encode_in_shares`.
    """
    vectors = encode_in_shares(model, texts, side=side, prompt=prompt, **options)
    return scaled(model, vectors)


def embed_with_tokens(
    model: SentenceTransformer, texts: list[str], prompt: str | None, batch_size: int, projection: Projection | None
) -> tuple[np.ndarray, TokenVectors]:
    """Return the embeddings of documents as `embed_unit`, and their token vectors, from one forward pass."""
    vectors, tokens = embed_documents(model, texts, prompt, batch_size, projection)
    return scaled(model, vectors), tokens


def embed_queries_with_tokens(
    model: SentenceTransformer, queries: list[str], prompt: str | None, tokens: TokenVectors
) -> Queries:
    """Return the embeddings of queries as `embed_unit`, and their tokens, from one forward pass."""
    vectors, asked = embed_queries(model, queries, tokens.projection, prompt)
    return Queries(scaled(model, vectors), asked)


def scaled(model: SentenceTransformer, vectors: np.ndarray) -> np.ndarray:
    """Return vectors (N, d) with unit length, or as they are for a model that is compared by dot product."""
    return vectors if model.similarity_fn_name == "dot" else unit_rows(vectors)


def second_look_bytes(model: SentenceTransformer, texts: list[str]) -> int | None:
    """Return about how many bytes the token vectors of texts take, from a sample of them; None if there are none."""
    if not has_token_vectors(model):
        return None
    sample = texts[:: -(-len(texts) // COUNTED_TEXTS)]
    features = model.preprocess(sample)
    tokens = features["attention_mask"].sum() if "attention_mask" in features else features["input_ids"].numel()
    return int(tokens) * len(texts) // len(sample) * BYTES


def derive(
    record: IndexRecord,
    entries: Entries,
    vectors: np.ndarray,
    words: BM25,
    model: Callable[[], SentenceTransformer],
    old: State | None = None,
    tokens: TokenVectors | None = None,
) -> State:
    """Return the state of an index of some texts.

    Args:
        record: Settings.
        entries: The N texts.
        vectors: (N, d) float16, their embeddings.
        words: Their words.
        model: Function that opens the model, which removing texts does not need.
        old: The state before texts were added or removed.
        tokens: Their token vectors, for a second look.
    """
    documents = vectors
    table = None
    if record.by_table:
        table, documents = _fit(record, entries, vectors, model, old)
        if tokens:
            table = replace(table, means=tokens.means())
    elif record.smooth:
        documents = smooth_rows(vectors.astype(np.float32)).astype(np.float16)
    scores = record.scores
    has_grown = scores is None or len(entries) > 2 * scores["texts"]  # they are measured in seconds
    if has_grown and (table or model().similarity_fn_name != "dot"):
        measured = unrelated_scores(vectors, table.encode(entries.texts) if table else None, documents)
        scores = asdict(measured) if measured else None
    threshold = UnrelatedScores(**scores).threshold(texts=len(entries)) if scores else None
    record = replace(record, scores=scores, threshold=threshold, words=versions())
    return State(record, entries, vectors, documents, words, table, tokens)


def _fit(
    record: IndexRecord,
    entries: Entries,
    vectors: np.ndarray,
    model: Callable[[], SentenceTransformer],
    old: State | None,
) -> tuple[QueryTable, np.ndarray]:
    """Return the table, and the vectors (N, d) float16 of the documents."""

    def encode(texts: list[str]) -> np.ndarray:
        return embed_unit(model(), texts, "query", record.query_prompt, title="as queries").astype(np.float16)

    texts = entries.texts
    if old is None or old.table is None:
        as_queries = None if _embeds_alike(record, texts[:1], model()) else encode(texts)
        return fit_query_table(model, texts, vectors, encode, as_queries, None)
    before = old.table.as_queries
    known = {} if before is None else dict(zip(old.entries.texts, before))
    as_queries = None if before is None else embed_as_queries(texts, encode, known)
    return fit_query_table(model, texts, vectors, encode, as_queries, old.table)


def _embeds_alike(record: IndexRecord, texts: list[str], model: SentenceTransformer) -> bool:
    """Return whether the model embeds some texts alike as queries and as documents."""
    embed_some = partial(embed_unit, model, texts, title=None)
    return np.array_equal(embed_some("query", record.query_prompt), embed_some("document", record.prompt))
