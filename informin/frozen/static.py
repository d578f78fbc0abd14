"""A table of token vectors that replaces a model for texts of one kind, fitted in closed form."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

import numpy as np
import regex
from scipy.sparse import csr_array, diags_array
from sentence_transformers import SentenceTransformer
from tokenizers import AddedToken, Tokenizer

from informin.errors import UsageError
from informin.evaluation.rows import rows_of, unit_rows
from informin.frozen.adapter import TASKS, LinearAdapter
from informin.model.open import name_of

SHRINKAGE = {"clustering": 32, "search": 8}  # k by task
RESIDUAL = 1e-3  # of the conjugate gradients: the residual, relative to the right side
STEPS = 200  # of the conjugate gradients at most
SMOOTHED_AT_ONCE = 20_000  # smoothed among each other: the time is proportional to this number
TOKENIZED_ROWS = 16_384  # texts tokenized or multiplied at once
WORDS = 20_000  # added to a vocabulary at most
VOCABULARY = 2**16  # tokens: of a larger vocabulary, only those in the texts get vectors


def tokenizer_of(model: SentenceTransformer) -> Tokenizer:
    """Return a copy of a model's tokenizer without truncation and padding.

    Raises:
        UsageError: It is not one of the package tokenizers.
    """
    backend = fast_tokenizer(model)
    if backend is None:
        found = f"is {name_of(model)}, whose {type(model.tokenizer).__name__} is not of the package tokenizers"
        raise UsageError(found, option="model_name", needed="a model with a fast tokenizer, for a table of its tokens")
    tokenizer = Tokenizer.from_str(backend.to_str())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def fast_tokenizer(model: SentenceTransformer) -> Tokenizer | None:
    """Return the tokenizer of the package tokenizers that a model uses; None if its tokenizer is in Python."""
    backend = getattr(model.tokenizer, "backend_tokenizer", model.tokenizer)
    return backend if isinstance(backend, Tokenizer) else None


def size_of(tokenizer: Tokenizer) -> int:
    """Return the number of rows of a table for a tokenizer: its largest token number, plus 1.

    `get_vocab_size` counts tokens. Some vocabularies skip numbers, for example if vocab.txt had a duplicate line.
    """
    return 1 + max(tokenizer.get_vocab().values())


def unknown_token(tokenizer: Tokenizer) -> int | None:
    """Return the number of the token for signs that a vocabulary lacks; None if it needs none."""
    model = json.loads(tokenizer.to_str())["model"]
    if model.get("unk_token"):
        return tokenizer.token_to_id(model["unk_token"])
    return model.get("unk_id")


def add_words(tokenizer: Tokenizer, texts: Sequence[str]) -> Tokenizer:
    """Return a copy of a tokenizer in which words that are in two different texts or more are one token each.

    A table for search needs them: a technical term differs from the mean of its pieces. Whoever has the tokenizer can
    read them, so words with digits, such as customer numbers, are left out. A vocabulary whose numbers have gaps gets
    no words, because tokenizers would give them numbers of other tokens.
    """
    tokenizer = Tokenizer.from_str(tokenizer.to_str())
    if size_of(tokenizer) > tokenizer.get_vocab_size():
        return tokenizer
    texts_of = Counter[str]()
    normalize = tokenizer.normalizer.normalize_str if tokenizer.normalizer else str
    for text in dict.fromkeys(texts):
        texts_of.update(set(regex.findall(r"\b(?!\p{M})[^\W\d_]+\b", normalize(text))))
    common = (word for word, number in texts_of.most_common() if number > 1)
    split = (word for word in common if len(tokenizer.encode(word, add_special_tokens=False).ids) > 1)
    lowers = normalize("A") == "a"
    # lstrip, because a normalizer may replace spaces
    words = [
        AddedToken(word, single_word=True, lstrip=True, normalized=lowers) for word in sorted(islice(split, WORDS))
    ]
    tokenizer.add_tokens(words)
    return tokenizer


def count_tokens(tokenizer: Tokenizer, texts: Sequence[str]) -> csr_array:
    """Return how often each of V tokens is in each of N texts, (N, V) float32.

    Special tokens do not count, nor does the unknown token, which says nothing about a text. model2vec leaves it out of
    the mean; with a row of zeros, sentence-transformers computes the same direction.
    """
    lengths = [0]
    columns: list[np.ndarray] = []
    for start in range(0, len(texts), TOKENIZED_ROWS):
        encodings = tokenizer.encode_batch_fast(list(texts[start : start + TOKENIZED_ROWS]), add_special_tokens=False)
        lengths += [len(encoding.ids) for encoding in encodings]
        columns.append(np.concatenate([np.asarray(encoding.ids, np.int32) for encoding in encodings]))
    ids = np.concatenate(columns)
    known = (ids != unknown_token(tokenizer)).astype(np.float32)
    counts = csr_array((known, ids, np.cumsum(lengths)), shape=(len(texts), size_of(tokenizer)))
    counts.sum_duplicates()
    counts.eliminate_zeros()
    return counts


def embed_tokens(
    encode: Callable[[list[str]], np.ndarray], tokenizer: Tokenizer, counts: csr_array, known: np.ndarray | None = None
) -> np.ndarray:
    """Return the model's embedding of each token alone, (V, d).

    Tokens that are not in the texts get one, too, so that the table knows the other words of new texts. In vocabularies
    of more than 65,536 tokens, which would take minutes, they get zeros and so do not count. The unknown token gets
    zeros: see `count_tokens`.

    Args:
        encode: Function from texts to embeddings.
        tokenizer: From `tokenizer_of`.
        counts: (N, V) from `count_tokens`.
        known: (V, d) embeddings of tokens alone that were computed for other texts.
    """
    size = counts.shape[1]
    used = np.arange(size) if size <= VOCABULARY else np.unique(counts.indices)
    used = used[used != unknown_token(tokenizer)]
    if known is not None:
        known = np.pad(known, ((0, size - len(known)), (0, 0)))
        used = used[~known[used].any(1)]
        if not len(used):
            return known
    texts = [tokenizer.decode([token], skip_special_tokens=False).removeprefix("##") for token in used]
    vectors = encode(texts)
    alone = np.zeros((size, vectors.shape[1]), vectors.dtype) if known is None else known
    alone[used] = vectors
    return alone


def distill_vectors(
    vectors: np.ndarray, counts: csr_array, alone: np.ndarray, task: str, as_queries: np.ndarray | None = None
) -> tuple[LinearAdapter, np.ndarray]:
    """Return the fitted adapter of a task, and the table (V, d) of the adapted embeddings, for clustering smoothed.

    Args:
        vectors: (N, d) embeddings of N texts, such as a memory map.
        counts: (N, V) from `count_tokens`.
        alone: (V, d) from `embed_tokens`.
        task: clustering or search.
        as_queries: (N, d) the texts embedded as queries, for a table that only embeds queries.
    """
    adapter = LinearAdapter(**TASKS[task]).set_output(transform="default")  # also if scikit-learn returns tables
    adapter.fit(vectors)
    embedded = alone.any(1)
    mapped = np.zeros((len(alone), len(adapter.coef_)), np.float32)
    mapped[embedded] = unit_rows(alone[embedded] @ adapter.coef_.T.astype(np.float32))
    targets = adapted_parts(adapter, vectors if as_queries is None else as_queries, smooth=task == "clustering")
    return adapter, fit_table(counts, targets, mapped, task)


def adapted_parts(adapter: LinearAdapter, vectors: np.ndarray, smooth: bool) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield row numbers (n,) and the adapted vectors (n, d) of these texts, if asked smoothed over their neighbors.

    Neighbors of more than 20,000 texts are searched within random parts of about that size.
    """
    order = np.random.default_rng(0).permutation(len(vectors))
    for part in np.array_split(order, -(-len(order) // SMOOTHED_AT_ONCE)):
        rows = np.sort(part)
        yield rows, adapter.transform(rows_of(vectors, rows), smooth=smooth)


def fit_table(
    counts: csr_array, targets: Iterable[tuple[np.ndarray, np.ndarray]], alone: np.ndarray, task: str
) -> np.ndarray:
    r"""Return token vectors whose sum over the tokens of a text has the direction of its embedding.

    Let :math:`A` be the token counts of the texts, weighted by inverse document frequency
    :math:`w_t = \log(1 + N / N_t)` and scaled to rows of unit length, :math:`s_i` the sums of its rows, whose squares
    are the effective lengths of the texts, :math:`E` their embeddings, and :math:`T_0` the embeddings of single tokens:

    .. math:: T = \arg\min_T \|A T - D E\|^2 + \lambda \|T - c T_0\|^2, \quad
              c = \arg\min_c \|A c T_0 - D E\|^2, \quad \lambda = k / \bar s^2

    For clustering, :math:`D = I`: the length of a sum of unrelated vectors grows like the square root of their number.
    For search, :math:`D = \operatorname{diag}(s)`: the embedding is the weighted mean of the token vectors, and a text
    counts by its effective length, because a mean of more tokens is less noisy.
    Solved by conjugate gradients on the normal equations. The table is :math:`w_t T_t`.

    Args:
        counts: (N, V) from `count_tokens`.
        targets: Row numbers and unit vectors (n, d) of all N texts, in parts.
        alone: (V, d) from `embed_tokens`, after the map of the targets.
        task: clustering or search.

    Returns:
        (V, d) float32.
    """
    frequency = np.bincount(counts.indices, minlength=counts.shape[1])
    weights = np.log1p(counts.shape[0] / np.maximum(frequency, 1)).astype(np.float32)
    seen = np.flatnonzero(frequency)
    if not len(seen):
        found = "The model's tokenizer knows no token of the texts"
        raise UsageError(found, fix="Use a model for the language of the texts.")
    a = counts[:, seen] @ diags_array(weights[seen])
    norms = np.sqrt((a * a).sum(1))
    a = (diags_array(1 / np.where(norms > 0, norms, 1)) @ a).tocsr()
    sums = a.sum(1)
    penalty = np.float32(SHRINKAGE[task] / sums.mean() ** 2)
    prior = alone[seen]
    right = np.zeros((len(seen), alone.shape[1]), np.float32)
    for rows, vectors in targets:
        scale = sums[rows, None] if task == "search" else 1
        right += a[rows].T @ (vectors * scale).astype(np.float32, copy=False)

    def gram(x: np.ndarray) -> np.ndarray:
        return sum(  # pyrefly: ignore[bad-return]  # 0 only without texts
            a[start : start + TOKENIZED_ROWS].T @ (a[start : start + TOKENIZED_ROWS] @ x)
            for start in range(0, a.shape[0], TOKENIZED_ROWS)
        )

    product = gram(prior)
    scale = np.float32((prior * right).sum() / (prior * product).sum())
    table = scale * alone
    table[seen] += conjugate_gradients(lambda x: gram(x) + penalty * x, right - scale * product)
    return table * weights[:, None]


def conjugate_gradients(product: Callable[[np.ndarray], np.ndarray], right: np.ndarray) -> np.ndarray:
    """Return the solution (m, d) of d systems of equations with one symmetric positive definite matrix.

    The tolerance holds for the sum over the systems, because a system with a nearly zero right side never converges.

    Args:
        product: Function from (m, d) to the product with the matrix.
        right: Right sides (m, d).
    """
    solution = np.zeros_like(right)
    residual = right.copy()
    direction = right.copy()
    squared = (residual**2).sum(0)
    goal = RESIDUAL**2 * squared.sum()
    for _ in range(STEPS):
        if squared.sum() <= goal:
            break
        image = product(direction)
        step = squared / np.maximum((direction * image).sum(0), np.finfo(right.dtype).tiny)
        solution += step * direction
        residual -= step * image
        previous = squared
        squared = (residual**2).sum(0)
        direction = residual + squared / np.maximum(previous, np.finfo(right.dtype).tiny) * direction
    return solution
