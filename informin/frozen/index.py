"""A search index: vectors of a model, BM25, and what a similarity means.

index = Index.build("sentence-transformers/all-MiniLM-L6-v2", texts)
index.save("index")
for hit in Index.load("index").search("how are journals cited?"):
    print(hit.row, hit.score, hit.text)

The score of a text is its cosine to the query plus `word_weight` times its BM25 score, both as z-scores over all texts.
"""

import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from scipy.sparse import csr_array
from tokenizers import Tokenizer

from informin.errors import UsageError, counted
from informin.files import last_name
from informin.frozen.bm25 import BM25, WORD_WEIGHT, language_name
from informin.frozen.index_entries import Entries, IndexRecord, new_entries
from informin.frozen.index_files import read_state, write_state
from informin.frozen.index_search import Hit, Queries, State
from informin.frozen.late_interaction import Tokens, TokenVectors
from informin.frozen.static_queries import StaticQueries
from informin.options import check_value, with_home
from informin.texts import as_texts, is_blank

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from typing_extensions import Unpack

    from informin.fast.precision import Precision
    from informin.model.open import Loading

# Functions that need the model import `index_model`, and torch with it: an index with static embeddings of queries
# starts without them.

QUERIES = 32  # scored at a time
KEPT_LOADING = ("max_seq_length", "revision")  # options of loading that the index keeps
NEEDED_ROWS = "row numbers, or a mask with one boolean for each text"
Span = tuple[int, int]


class Index:
    """Texts to search, with the vectors of a model and BM25 weights; see `build` and `load`.

    Threads may search while another one adds or removes texts: a search sees all of a change or nothing of it.

    Attributes:
        record: Settings.
        texts, rows: The N texts and their numbers (N,).
        ids, fields: Their ids, None for texts without one, and more values by name.
        vectors: (N, d) float16: unit vectors, or unnormalized vectors if the model is compared by dot product.
        documents: (N, d) float16, the vectors that are searched: `vectors`, adapted or smoothed if the index is.
        bm25: BM25 weights of the words.
        threshold: Cosine that at most about one unrelated text per query exceeds; None without `record.scores`.
        static_queries: Static embeddings of queries; None if the model embeds them.
    """

    def __init__(
        self,
        model: "SentenceTransformer | None",
        state: State,
        trust_remote_code: bool = False,
        precision: "Precision | None" = None,
    ):
        self._model = model
        self._state = state
        self._trust_remote_code, self._precision = trust_remote_code, precision
        self._changes = threading.RLock()  # one change after the other
        self._data: dict[str, str] = {}  # by folder, what this index was loaded from or saved as

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled or copied: the model and the content, but not the lock."""
        return {name: value for name, value in vars(self).items() if name not in ("_changes", "_tokenizer")}

    def __setstate__(self, values: dict[str, Any]) -> None:
        vars(self).update(values, _changes=threading.RLock(), _data=values["_data"].copy())

    def __len__(self) -> int:
        return len(self._state.entries)

    def __repr__(self) -> str:
        record = self.record
        return f"Index({counted(len(self), 'text')}, {last_name(record.model)}, {record.language})"

    @property
    def record(self) -> IndexRecord:
        return self._state.record

    @property
    def texts(self) -> list[str]:
        return self._state.entries.texts

    @property
    def rows(self) -> np.ndarray:
        return self._state.entries.rows

    @property
    def ids(self) -> list[Any]:
        return self._state.entries.ids

    @property
    def fields(self) -> list[dict[str, Any]]:
        return self._state.entries.fields

    @property
    def vectors(self) -> np.ndarray:
        return self._state.vectors

    @property
    def documents(self) -> np.ndarray:
        return self._state.documents

    @property
    def bm25(self) -> BM25:
        return self._state.bm25

    @property
    def threshold(self) -> float | None:
        return self._state.record.threshold

    @property
    def static_queries(self) -> StaticQueries | None:
        return self._state.static_queries

    @property
    def model(self) -> "SentenceTransformer":
        """The model. With static embeddings of queries, it is opened when texts are added."""
        if self._model is None:
            from informin.frozen.index_model import open_model

            self._model = open_model(self.record, None, self._trust_remote_code, self._precision)
        return self._model

    @cached_property
    def _tokenizer(self) -> "Tokenizer | None":
        """The tokenizer of the model, without truncation and padding; None if it is in Python."""
        from informin.frozen.static import fast_tokenizer, tokenizer_of

        return tokenizer_of(self.model) if fast_tokenizer(self.model) else None

    @classmethod
    def build(
        cls,
        model: "str | Path | SentenceTransformer",
        texts: Iterable[str],
        *,
        ids: Sequence[Any] | None = None,
        fields: Sequence[Mapping[str, Any]] | None = None,
        language: str = "english",
        smooth: bool = False,
        word_weight: float = WORD_WEIGHT,
        document_prompt: str | None = None,
        query_prompt: str | None = None,
        queries: str = "model",
        rerank: bool = False,
        batch_size: int = 64,
        pooler: str = "auto",
        **loading: "Unpack[Loading]",
    ) -> "Index":
        """Embed texts and weight their words.

        Args:
            model: Hub id, folder or SentenceTransformer. If you train the object afterwards, build the index again.
            texts: N texts. Blank ones are left out, and the others keep their row numbers.
            ids: N ids, such as keys in a database: texts, numbers, or dates, which become text.
            fields: N mappings of more values that hits show, such as the title and the address.
            language: Language of stop words and stems, such as german or de; `other` for none.
            smooth: Average each document vector with its nearest neighbors.
            word_weight: Weight of BM25. 0 searches by vectors alone.
            document_prompt, query_prompt: Prompt prepended to each document and query, instead of the model's prompts.
            queries: `model`, or `static`: queries are embedded by token vectors, without the model and torch, and
                documents are adapted by the map of `fit --task search` and smoothed. See `informin.distill`. A model
                with a prompt for queries embeds every text twice, the second time as a query, to fit the token vectors.
            rerank: Keep token vectors, 68 bytes per token, to rerank the first 50 hits of a search by late interaction.
                With static embeddings of queries, the vector of a query token is the mean of its vectors in the texts.
            batch_size: Texts per forward pass.
            pooler, loading: Options of `informin.load_model`. `precision` is auto by default for a name or folder.

        Raises:
            UsageError: The model cannot be loaded, all texts are blank, there are fewer or more ids or fields than
                texts, the language is unknown, `word_weight` is not finite, the numbers of the vectors are too large or
                too small for float16, `smooth` or `queries` is set for a model that is compared by dot product,
                `queries` is static with fewer than two different texts, or `rerank` is set for a model without token
                vectors.
        """
        from informin.fast.precision import precision_of
        from informin.frozen.index_model import check_model, derive, embed_entries, projected_texts, similarity_of
        from informin.model.checksums import model_sha256
        from informin.model.open import load_model, loading_to_embed, source_of

        queries = "static" if queries == "table" else queries  # an older name
        check_options(queries, word_weight, smooth, rerank)
        language = language_name(language)
        texts = as_texts(texts)
        entries = new_entries(texts, ids, fields)
        if not len(entries):
            raise UsageError("contains no text that is not blank", option="texts")
        st = load_model(model, pooler=pooler, **loading_to_embed(model, loading))
        is_static = queries == "static"
        check_model(st, smooth, is_static, rerank)
        source = source_of(st)
        folder = source.folder or Path(source.name)  # the name may be relative to an earlier working directory
        record = IndexRecord(
            model=str(folder.resolve()) if folder.is_dir() else source.name,
            model_sha256=model_sha256(st),
            loading={"pooler": pooler} | {name: value for name, value in loading.items() if name in KEPT_LOADING},
            precision=precision_of(st),
            similarity=similarity_of(st),
            language=language,
            smooth=smooth or is_static,
            word_weight=float(word_weight),
            document_prompt=document_prompt,
            query_prompt=query_prompt,
            queries=queries,
            rerank=rerank,
            projected=projected_texts(rerank, len(entries)),
            next_row=len(texts),
        )
        bm25 = BM25.build(entries.texts, language)
        vectors, tokens = embed_entries(st, record, entries, batch_size)
        return cls(st, derive(record, entries, vectors, bm25, lambda: st, tokens=tokens))

    @classmethod
    def load(
        cls,
        folder: str | Path,
        model: "str | Path | SentenceTransformer | None" = None,
        *,
        trust_remote_code: bool = False,
        precision: "Precision | None" = None,
    ) -> "Index":
        """Open an index, with its vectors and BM25 weights memory-mapped.

        With static embeddings of queries, the model stays closed.

        Args:
            folder: What `save` wrote.
            model: The model, if it has moved or was passed as an object. A name or folder is opened with the options of
                the index.
            trust_remote_code: Allow code from the model's repository to run.
            precision: Precision of the model, as in `informin.load_model`. Default: auto for a name or folder, whatever
                the vectors were embedded in.

        Raises:
            UsageError: The folder holds no index, the index is damaged, or the model is another one.
        """
        folder = with_home(folder)
        state = read_state(folder)
        opened = None
        if model is not None or not state.static_queries:
            from informin.frozen.index_model import open_model

            opened = open_model(state.record, model, trust_remote_code, precision)
        index = cls(opened, state, trust_remote_code, precision)
        index._data[os.path.realpath(folder)] = state.record.data
        return index

    def save(self, folder: str | Path) -> None:
        """Write the index to a folder, or replace the index in it. After a crash, it has the old one or the new one.

        Nothing of texts that were removed remains in the folder.

        Raises:
            UsageError: The folder holds something else, another process writes it, or it has changed since this index
                was loaded from it.
        """
        with self._changes:
            write_state(self._state, with_home(folder), self._data)

    def add(
        self,
        texts: Iterable[str],
        ids: Sequence[Any] | None = None,
        fields: Sequence[Mapping[str, Any]] | None = None,
        batch_size: int = 64,
    ) -> np.ndarray:
        """Add texts, and return their row numbers. What depends on other texts is computed again.

        The threshold and the projection of token vectors are computed again only when the number of texts has doubled.

        Args:
            texts, ids, fields: See `build`. Blank texts are left out, but counted.
            batch_size: Texts per forward pass.

        Raises:
            UsageError: There are fewer or more ids or fields than texts.
        """
        from informin.frozen.index_model import embed_entries, fits_projection_again, projected_texts

        with self._changes:
            state = self._state
            record = state.record
            texts = as_texts(texts)
            added = new_entries(texts, ids, fields, record.next_row)
            grown = state.with_record(next_row=record.next_row + len(texts))
            if not len(added):
                self._state = grown
                return added.rows
            entries = state.entries + added
            if fits_projection_again(record, len(entries)):
                vectors, tokens = embed_entries(self.model, record, entries, batch_size)
                grown = grown.with_record(projected=projected_texts(record.rerank, len(entries)))
            else:
                new, tokens = embed_entries(self.model, record, added, batch_size, state.tokens)
                vectors = np.concatenate([state.vectors, new])
            self._replace(grown, entries, vectors, tokens)
            return added.rows

    def remove(self, rows: int | Iterable[int]) -> None:
        """Remove texts. The other texts keep their row numbers.

        The threshold is measured again only when more than half of the texts it was measured on are gone.

        Args:
            rows: Row numbers, or a mask with one boolean for each text.

        Raises:
            UsageError: There is no such row, or no text would remain.
        """
        with self._changes:
            state = self._state
            removed = rows_to_remove(rows, state.entries.rows)
            if removed.any():
                kept = np.flatnonzero(~removed)
                tokens = state.tokens.take(kept) if state.tokens else None
                self._replace(state, state.entries.selected(kept), state.vectors[kept], tokens)

    @overload
    def search(  # type: ignore[overload-overlap]
        self, queries: str, k: int = 10, *, where: Mapping[str, Any] | None = None
    ) -> list[Hit]: ...
    @overload
    def search(
        self, queries: Iterable[str], k: int = 10, *, where: Mapping[str, Any] | None = None
    ) -> list[list[Hit]]: ...
    def search(self, queries: str | Iterable[str], k: int = 10, *, where: Mapping[str, Any] | None = None) -> Any:
        """Return the k best texts for a query, or for each of several queries, best first.

        Args:
            queries: A query, or a list of queries. A blank one has no hits.
            k: Number of hits, or of all texts if there are fewer.
            where: Values of fields that hits have, such as `{"product": "svn"}`. A list stands for any of its values.
                Scores are those of a search without it.

        Raises:
            UsageError: `k` is not a whole number from 1, or no text has a field of `where`.
        """
        check_value(isinstance(k, int | np.integer) and k is not True and k >= 1, "k", k, "a whole number from 1")
        if isinstance(queries, str):
            return self.search([queries], k, where=where)[0]
        state = self._state
        queries = as_texts(queries, "queries")
        asked = [query for query in queries if not is_blank(query)]
        embedded = self._embedded(state, asked)
        parts = [slice(start, start + QUERIES) for start in range(0, len(asked), QUERIES)]
        found = (hits for part in parts for hits in state.find(asked[part], embedded[part], k, where))
        return [[] if is_blank(query) else next(found) for query in queries]

    def embed_queries(self, queries: Iterable[str]) -> np.ndarray:
        """Return the vectors (Q, d) float32 of queries, to compare with `documents` by dot product."""
        return self._embedded(self._state, as_texts(queries, "queries")).vectors

    def sparse_vectors(self) -> csr_array:
        """Return the BM25 weights (N, V) of the words in each text, for a store with sparse vectors."""
        return self.bm25.weights()

    def sparse_queries(self, queries: Iterable[str]) -> csr_array:
        """Return sparse vectors (Q, V) of queries, for a store with sparse vectors.

        The dot product with `sparse_vectors`, plus that of `embed_queries` with `documents`, ranks as `search` does.
        """
        state = self._state
        queries = as_texts(queries, "queries")
        return state.sparse_queries(queries, self._embedded(state, queries).vectors)

    def rerank(self, query: str, rows: Sequence[int]) -> np.ndarray:
        """Return what late interaction adds (P,) to the scores of texts that a store with sparse vectors found.

        A score is the sum of the two dot products of `sparse_queries`.

        Args:
            query: The query.
            rows: P row numbers: the first 50 that the store found.

        Raises:
            UsageError: The index has no token vectors, or a row does not exist.
        """
        state = self._state
        tokens = tokens_of(state)
        embedded = self._embedded(state, as_texts([query], "queries"))
        _, deviation = state.compared.moments(embedded.vectors)
        _, added = tokens.rerank(embedded.tokens[0], indices_of(rows, state.entries.rows))
        return deviation[0] * added

    def matched_spans(self, query: str, rows: Sequence[int]) -> list[list[Span]]:
        """Return for each of P texts the spans (start, end) of tokens that make up most of its token score.

        They are empty if the model has a Python tokenizer, which does not return the positions of its tokens.

        Args:
            query: The query.
            rows: P row numbers.

        Raises:
            UsageError: The index has no token vectors, or a row does not exist.
        """
        state = self._state
        tokens = tokens_of(state)
        asked = self._embedded(state, as_texts([query], "queries")).tokens[0]
        tokenizer = state.static_queries.model_tokenizer if state.static_queries else self._tokenizer
        indices = indices_of(rows, state.entries.rows)
        if tokenizer is None:
            return [[] for _ in indices]
        return [matched_spans(tokens, asked, index, state.entries.texts[index], tokenizer) for index in indices]

    def _embedded(self, state: State, queries: list[str]) -> Queries:
        if not queries:
            return Queries(np.empty((0, state.documents.shape[1]), np.float32))
        if state.static_queries:
            return Queries(state.static_queries.encode(queries), state.static_queries.tokens(queries))
        from informin.frozen.index_model import embed_asked

        return embed_asked(self.model, state.record, queries, state.tokens)

    def _replace(self, state: State, entries: Entries, vectors: np.ndarray, tokens: TokenVectors | None) -> None:
        """Replace the texts, and all that is computed from them, at once."""
        from informin.frozen.index_model import derive

        bm25 = BM25.build(entries.texts, state.record.language)
        self._state = derive(state.record, entries, vectors, bm25, lambda: self.model, state, tokens)


def check_options(queries: str, word_weight: float, smooth: bool, rerank: bool) -> None:
    """Raise UsageError if an option of `Index.build` is invalid for every model."""
    check_value(queries in ("model", "static"), "queries", queries, "model or static")
    is_number = isinstance(word_weight, int | float | np.number) and bool(np.isfinite(word_weight))
    check_value(is_number, "word_weight", word_weight, "a finite number")
    for option, value in (("smooth", smooth), ("rerank", rerank)):
        check_value(isinstance(value, bool | np.bool_), option, value, "True or False")  # any text would count as True


def tokens_of(state: State) -> TokenVectors:
    """Return the token vectors of an index.

    Raises:
        UsageError: It has none.
    """
    if not state.tokens:
        raise UsageError("is not set in this index", option="rerank", fix="Build the index again with it.")
    return state.tokens


def rows_to_remove(chosen: int | Iterable[int], rows: np.ndarray) -> np.ndarray:
    """Return whether each text is removed (N,).

    Args:
        chosen: A row number, any iterable of row numbers, or a mask of N booleans.
        rows: (N,) row numbers of the texts.

    Raises:
        UsageError: It is neither, or a row does not exist.
    """
    is_array_of_one = getattr(chosen, "shape", None) == ()  # of NumPy or torch; it looks iterable
    items: list[Any] = list(chosen) if isinstance(chosen, Iterable) and not is_array_of_one else [chosen]
    are_booleans = [np.asarray(item).dtype == bool for item in items]
    if items and all(are_booleans):
        if len(items) != len(rows):
            raise UsageError(f"has {counted(len(items), 'boolean')} for {counted(len(rows), 'text')}", option="rows")
        return np.array(items, bool)
    for item, is_boolean in zip(items, are_booleans):
        if is_boolean or np.ndim(item) or not np.issubdtype(np.asarray(item).dtype, np.integer):
            raise UsageError(f"contains {item!r:.60}", option="rows", needed=NEEDED_ROWS)
    numbers = [int(item) for item in items]
    removed = np.zeros(len(rows), bool)
    removed[indices_of(numbers, rows)] = True
    return removed


def indices_of(numbers: Sequence[int], rows: np.ndarray) -> np.ndarray:
    """Return the indices (n,) of row numbers among the rows of an index (N,), which ascend.

    Raises:
        UsageError: They are not whole numbers, or a row does not exist.
    """
    wanted = np.asarray(numbers)
    if wanted.ndim != 1 or (wanted.size and not np.issubdtype(wanted.dtype, np.integer)):
        raise UsageError(f"is {numbers!r:.60}", option="rows", needed="row numbers")
    missing = np.setdiff1d(wanted, rows)
    if len(missing):
        raise UsageError(f"contains {missing[0]}, which is not in the index", option="rows")
    return np.searchsorted(rows, wanted)


def matched_spans(stored: TokenVectors, query: Tokens, index: int, text: str, tokenizer: Tokenizer) -> list[Span]:
    """Return the spans (start, end) of tokens of a text that make up most of its token score.

    They are the nearest tokens of those of the query that add at least their average to the score, without punctuation.
    Empty if the tokens of the text alone differ from those behind the prompt for documents.

    Args:
        stored: Token vectors of the index.
        query: Ids and projected vectors of the tokens of the query.
        index: Index of the text.
        text: The text.
        tokenizer: Tokenizer of the model.
    """
    ids = stored.ids[stored.starts[index] : stored.starts[index + 1]]
    encoding = tokenizer.encode(text, add_special_tokens=False)
    own = np.flatnonzero(np.isin(encoding.ids, ids))[: len(ids)]  # special tokens are not stored, nor is a cut end
    is_same = np.array_equal(np.array(encoding.ids, int)[own], ids)
    if not is_same or not len(ids) or not len(query[0]):
        return []
    nearest, cosines = stored.matches(query, index)
    added = stored.weights(query[0]) * cosines
    found = np.unique(nearest[(added > 0) & (added >= added.mean())])
    spans = (_without_spaces(text, *encoding.offsets[token]) for token in own[found])
    return [(start, end) for start, end in spans if any(map(str.isalnum, text[start:end]))]


def _without_spaces(text: str, start: int, end: int) -> Span:
    """Return the span without the space before a word, which is part of its first token in some vocabularies."""
    word = text[start:end]
    return end - len(word.lstrip()), end
