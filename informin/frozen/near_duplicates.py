"""Near-duplicates: texts with the same words, apart from typing errors, case, order and missing common words."""

import csv
import os
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import regex
from numpy.typing import ArrayLike
from sentence_transformers import SentenceTransformer
from typing_extensions import Unpack

from informin.errors import UsageError, counted
from informin.evaluation.rows import unit_rows
from informin.files import new_file, only_writer
from informin.frozen.unrelated import unrelated_scores
from informin.frozen.vectors import (
    given_vectors,
    load_vectors,
    open_with_prompt,
    refuse_without_model,
    vectors_of,
)
from informin.model.open import Loading, loading_to_embed
from informin.options import check_value, with_home
from informin.texts import as_texts, is_blank

ROWS_AT_ONCE = 1_024  # rows that are compared with earlier ones at once
COLUMNS_AT_ONCE = 16_384  # of those
MOST_CANDIDATES = 100  # of a text whose words are compared
COMMON_SHARE = 0.05  # of the texts: a word in as many is common. Selected in experiments/duplicates.py.
FEWEST_COMMON = 5  # texts
SHORTEST_MISTYPED = 4  # letters
ROUNDING = 1e-5  # of a cosine in float32
NEGATIONS = ("no", "not", "never", "without", "cannot")  # and words ending in n't: never common
# Words with C# and C++; characters of Thai, Lao, Japanese and Chinese, which are written without spaces. In the package
# regex, \w has the vowel signs of Hindi and other scripts, too, but a mark without a letter is not a word.
WORD = regex.compile(r"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff]|(?!\p{M})\w+(?:'\w+)*[#+]*")
LETTERS = regex.compile(r"[\p{L}\p{M}]+")  # with marks, such as the vowel signs of Hindi
COLUMNS = ("row", "id", "duplicate_of", "cosine", "text")


class Pair(NamedTuple):
    """A text that repeats an earlier one: their rows, counted from 0, and their cosine."""

    row: int
    duplicate_of: int
    cosine: float


@dataclass(frozen=True)
class DuplicatesResult:
    """Which texts repeat earlier ones.

    Attributes:
        texts: N texts.
        pairs: For each text that repeats an earlier one, both rows and their cosine, in the order of the texts.
        threshold: Minimum cosine of pairs. None if there is none: only words count. See `duplicates`.
    """

    texts: list[str] = field(repr=False)
    pairs: list[Pair] = field(repr=False)
    threshold: float | None

    @property
    def kept(self) -> list[int]:
        """Rows of the texts that repeat no earlier one, blank texts included."""
        repeated = {pair.row for pair in self.pairs}
        return [row for row in range(len(self.texts)) if row not in repeated]

    @property
    def groups(self) -> list[list[int]]:
        """Rows of each text that is repeated, followed by those that repeat it. The largest group is first."""
        groups: dict[int, list[int]] = {}
        for pair in self.pairs:
            groups.setdefault(pair.duplicate_of, [pair.duplicate_of]).append(pair.row)
        return sorted(groups.values(), key=lambda rows: (-len(rows), rows[0]))

    def save(self, output: str | Path, *, ids: Sequence[object] | None = None, overwrite: bool = False) -> None:
        """Write a table with one row per text: `row`, `id`, `duplicate_of`, `cosine` and `text`.

        Args:
            output: A .csv file. `duplicate_of` is empty for texts that are kept.
            ids: N ids of the texts.
            overwrite: Whether to replace a table that this method wrote.

        Raises:
            UsageError: The file is in use or cannot be written, or there are fewer or more ids than texts.
        """
        output = Path(with_home(output))
        check_output(output, overwrite)
        names = [""] * len(self.texts) if ids is None else list(ids)  # a Series may have labels of its own
        if len(names) != len(self.texts):
            raise UsageError(f"has {counted(len(names), 'item')} for {counted(len(self.texts), 'text')}", option="ids")
        by_row = {pair.row: pair for pair in self.pairs}
        with only_writer(output, "output"), new_file(output) as partial:
            with open(partial, "w", encoding="utf-8", newline="") as file:
                # With line feeds alone as its line ends, the module would not quote a carriage return in a text.
                writer = csv.writer(SimpleNamespace(write=lambda line: file.write(line.removesuffix("\r\n") + "\n")))
                writer.writerow(COLUMNS)
                for row, text in enumerate(self.texts):
                    pair = by_row.get(row)
                    found = (pair.duplicate_of, f"{pair.cosine:.4f}") if pair else ("", "")
                    writer.writerow((row, names[row], *found, text))


def duplicates(
    model: str | Path | SentenceTransformer | None,
    texts: Iterable[str],
    threshold: float | None = None,
    *,
    embeddings: str | Path | ArrayLike | None = None,
    prompt: str | None = None,
    batch_size: int = 64,
    pooler: str = "auto",
    **loading: Unpack[Loading],
) -> DuplicatesResult:
    """Find texts that repeat earlier ones.

    By default, two texts are duplicates if both conditions hold:

    * They have the same words, in any order and case, apart from typing errors and from common words that one of them
      lacks. At most half of the words may differ, and in a text of one word that word. A typing error is one missing,
      extra or wrong letter, or two swapped neighbors, in a word of at least four letters. The first letter must be the
      same (Damerau, 1964: 80% of all misspellings are one such error). A word is common if it occurs in 5% of the
      texts, and in at least five. English negations are never common.
    * Their cosine is above a threshold that about one unrelated text per query exceeds (see
      `informin.frozen.unrelated.unrelated_scores`). Collections of fewer than 100 different texts, or of texts that
      form no topics, have no threshold.

    With `threshold`, only the cosine counts. This also finds paraphrases, and texts that differ in one fact, whose
    cosine is often higher than that of a typing error.

    The first of several duplicates is kept. Other texts are compared only with kept ones, so each removed text is
    similar to a kept one, and chains of pairs do not join texts that differ. All cosines are computed, in blocks. The
    words are compared with those of the 100 most similar texts above the cosine.

    Args:
        model: Hub id, folder, or SentenceTransformer. None with `embeddings` from any source.
        texts: N texts. Blank texts are kept.
        threshold: Minimum cosine of duplicates, regardless of their words.
        embeddings: (N, d) embeddings of the texts, or of those that are not blank, or a file of them (.npy, .parquet or
            .safetensors). With a model, they must be this model's, and are used instead of embedding the texts.
        prompt: Prompt prepended to each text, instead of the stored prompt.
        batch_size: Texts per forward pass.
        pooler, loading: Options of `informin.load_model`. `precision` is auto by default for a name or folder.

    Returns:
        Pairs, groups and the rows to keep.

    Raises:
        UsageError: An option, the model, the texts or the embeddings cannot be used.

    Example:
        >>> import informin, numpy as np
        >>> titles = ["Sort a list in Java", "sort a lsit in java", "Sort a list in Perl"]
        >>> informin.duplicates(None, titles, embeddings=np.eye(3) + 1).pairs
        [Pair(row=1, duplicate_of=0, cosine=0.8333...)]
    """
    if threshold is not None:
        check_value(-1 <= threshold <= 1, "threshold", threshold, "from -1 to 1")
    texts = as_texts(texts)
    filled = [row for row, text in enumerate(texts) if not is_blank(text)]
    if not filled:
        raise UsageError("contains no text that is not blank", option="train_file")
    firsts: dict[str, int] = {}  # row of the first of equal texts
    for row in filled:
        firsts.setdefault(texts[row], row)
    rows = list(firsts.values())
    given = None if embeddings is None else _given(embeddings, texts, filled, rows)
    if model is not None:
        opened = open_with_prompt(model, prompt, pooler, loading_to_embed(model, loading))
        vectors = vectors_of(opened, list(firsts), given, None, batch_size)
    elif given is None:
        raise UsageError("is missing", option="model_name", fix="Give a model or `embeddings`.")
    else:
        refuse_without_model(prompt, pooler, loading)
        vectors = given
    words = Words(firsts) if threshold is None else None
    scores = unrelated_scores(vectors) if threshold is None else None
    lowest = scores.threshold() if scores else threshold
    repeated = {rows[i]: (rows[j], cosine) for i, j, cosine in repeated_rows(vectors, lowest, words)}
    pairs = []
    for row in filled:
        first = firsts[texts[row]]
        if first in repeated:
            pairs.append(Pair(row, *repeated[first]))
        elif first != row:
            pairs.append(Pair(row, first, 1.0))
    return DuplicatesResult(texts, pairs, lowest)


def _given(embeddings: str | Path | ArrayLike, texts: list[str], filled: list[int], rows: list[int]) -> np.ndarray:
    """Return the given embeddings of some rows, of all texts or of those in the filled rows, which are not blank."""
    if len(filled) < len(texts) and len(load_vectors(embeddings)) == len(texts):
        return given_vectors(embeddings, texts)[rows]
    return given_vectors(embeddings, [texts[row] for row in filled])[np.searchsorted(filled, rows)]


def repeated_rows(vectors: np.ndarray, lowest: float | None, words: "Words | None") -> Iterator[tuple[int, int, float]]:
    """Yield each row that repeats an earlier one that is kept, the nearest such row, and their cosine.

    Args:
        vectors: (n, d) embeddings.
        lowest: Minimum cosine of duplicates; None for no minimum.
        words: Words of the n texts, which must agree, too.
    """
    x = unit_rows(np.asarray(vectors, dtype=np.float32))
    least = -np.inf if lowest is None else lowest - ROUNDING  # a cosine of 1 may be 0.9999999
    kept = np.empty_like(x)
    rows = np.empty(len(x), dtype=np.int64)  # of those kept
    count = 0
    for start in range(0, len(x), ROWS_AT_ONCE):
        block = x[start : start + ROWS_AT_ONCE]
        earlier = _most_similar(block, kept[:count], least)
        own = block @ block.T
        is_kept = np.zeros(len(block), dtype=bool)
        for i, (places, cosines) in enumerate(earlier):
            candidates = np.concatenate([rows[places], start + np.flatnonzero(is_kept)])
            cosines = np.concatenate([cosines, own[i, is_kept]])
            order = np.argsort(-cosines, kind="stable")[:MOST_CANDIDATES]
            order = order[cosines[order] >= least]
            agree = (k for k in order if words is None or words.agree(candidates[k], start + i))
            nearest = next(agree, None)
            if nearest is None:
                is_kept[i] = True
            else:
                yield start + i, int(candidates[nearest]), min(1.0, float(cosines[nearest]))
        added = count + int(is_kept.sum())
        kept[count:added] = block[is_kept]
        rows[count:added] = start + np.flatnonzero(is_kept)
        count = added


def _most_similar(block: np.ndarray, others: np.ndarray, least: float) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return for each row of a block the places and cosines of others with a cosine of at least `least`.

    Of each 16,384 others, only the 100 most similar ones are returned.
    """
    found: list[tuple[np.ndarray, ...]] = [(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32))]
    for start in range(0, len(others), COLUMNS_AT_ONCE):
        cosines = block @ others[start : start + COLUMNS_AT_ONCE].T
        above = cosines >= least
        for row in np.flatnonzero(above.sum(1) > MOST_CANDIDATES):
            above[row] &= cosines[row] >= np.partition(cosines[row], -MOST_CANDIDATES)[-MOST_CANDIDATES]
        i, j = np.nonzero(above)
        found.append((i, start + j, cosines[i, j]))
    of, places, values = (np.concatenate(parts) for parts in zip(*found))
    order = np.argsort(of, kind="stable")
    ends = np.searchsorted(of[order], np.arange(1, len(block)))
    return list(zip(np.split(places[order], ends), np.split(values[order], ends)))


class Words:
    """The words of texts, and which of them are common."""

    def __init__(self, texts: Iterable[str]):
        self.sets = [words_of(text) for text in texts]
        counts = Counter(chain.from_iterable(self.sets))
        fewest = max(COMMON_SHARE * len(self.sets), FEWEST_COMMON)
        self.common = {word for word, count in counts.items() if count >= fewest and not is_negation(word)}

    def agree(self, i: int, j: int) -> bool:
        """Return whether one text has all words of the other, up to typing errors, and apart from them common ones."""
        left, right = self.sets[i] - self.sets[j], self.sets[j] - self.sets[i]
        longer = max(len(self.sets[i]), len(self.sets[j]))
        if not self.sets[i] or not self.sets[j] or max(len(left), len(right)) > max(1, longer / 2):
            return False
        alone: list[str] = []
        for word in sorted(left):
            mistyped = next((other for other in sorted(right) if is_typing_error(word, other)), None)
            if mistyped is None:
                alone.append(word)
            else:
                right -= {mistyped}
        return not (alone and right) and self.common.issuperset(alone) and self.common.issuperset(right)


def words_of(text: str) -> frozenset[str]:
    """Return the different words of a text without case, in the compatible form of Unicode."""
    folded = unicodedata.normalize("NFKC", text).casefold().replace("\u2019", "'")
    return frozenset(map(sys.intern, WORD.findall(folded)))


def is_negation(word: str) -> bool:
    return word in NEGATIONS or word.endswith("n't")


def is_typing_error(word: str, other: str) -> bool:
    """Return whether two words differ in one letter, or in the order of two letters, after the same first letter."""
    if word[0] != other[0] or max(len(word), len(other)) < SHORTEST_MISTYPED or not LETTERS.fullmatch(word + other):
        return False
    same = next((i for i, (a, b) in enumerate(zip(word, other)) if a != b), min(len(word), len(other)))
    a, b = word[same:], other[same:]
    return a[1:] == b[1:] or a[1:] == b or a == b[1:] or (a[:2] == b[1::-1] and a[2:] == b[2:])


def check_output(output: str | Path, overwrite: bool) -> None:
    """Raise UsageError if a table cannot be written to a file, because of its name or because of what is there."""
    path = Path(output)
    check_value(path.suffix == ".csv", "output", path, "a name ending in .csv")
    if not os.path.lexists(path):
        return
    if not overwrite:
        fix = "Use another file, or replace a table of duplicates with `overwrite`."
        raise UsageError(f"{path} is in use", option="output", fix=fix)
    header = ",".join(COLUMNS)
    if not path.is_file() or not path.read_bytes().startswith(header.encode()):
        raise UsageError(f"{path} is not a table of duplicates", option="output", fix="Use another file.")
