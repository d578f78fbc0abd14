"""The words of texts, as stems without stop words, and their BM25 scores."""

import logging
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import regex
import Stemmer
from scipy.sparse import csc_array, csr_array

from informin.errors import UsageError

# With stop words in bm25s and stems in PyStemmer, by their codes in ISO 639-1.
CODES = {
    "da": "danish",
    "nl": "dutch",
    "en": "english",
    "fr": "french",
    "de": "german",
    "it": "italian",
    "no": "norwegian",
    "pt": "portuguese",
    "ru": "russian",
    "es": "spanish",
    "sv": "swedish",
    "tr": "turkish",
}
LANGUAGES = tuple(CODES.values())
OTHER = "other"  # a language without stop words and stems
WORD_WEIGHT = 0.25  # of words relative to vectors; selected in experiments/search_system.py
RULES = 3  # number of the rules below; another number makes an index build its words again
NEARLY_EQUAL = 1e-5  # of the largest score: a smaller standard deviation is rounding

# Scripts that write no spaces between words, and Korean, which attaches particles to words.
UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}ー\p{Hangul}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
UNSPACED_START = regex.compile(f"[{UNSPACED}]")
RUN = regex.compile(f"[{UNSPACED}]+|[^{UNSPACED}]+")
ELIDED = r"\w['\u2019](?=\w)|(?<=\w)['\u2019]\w\b"  # one letter next to an apostrophe, as in l'école and don't
ITEM = r"\(\d\)|(?:^|(?<=[.:;,] ?))\d[.)](?!\d)"  # the number of an item in a list
INITIALS = r"\p{L}(?:\.\p{L}\b)+\.?"  # u.s.a. is the word usa
PLAIN_WORD = (
    r"\w+(?:(?=[#+])(?<=(?<![\p{Latin}\d_])[a-z])(?:#|\+\+)(?![\p{Latin}\d_]))?"  # also c# and c++; \w has marks
)
FOUND = regex.compile("|".join((ELIDED, ITEM, INITIALS, PLAIN_WORD)))
NOT_A_WORD = regex.compile(r"['\u2019()]|\d\.$")  # an elided letter or the number of an item
RARE = re.compile(r"['#+]|\b\d[.)]|\.[a-z]\b")  # without it, an ASCII text has plain words only; re is faster here
SPACED = "".join(sign if sign.isalnum() or sign == "_" else " " for sign in map(chr, range(128)))  # for str.translate
CHARACTER = regex.compile(r"\P{M}\p{M}*|\p{M}+")  # with its combining marks
INVISIBLE = regex.compile(r"[\p{Cf}\p{Variation_Selector}\u0640]")  # soft hyphens, joiners, Arabic stretching
DOTLESS_I = "\N{LATIN SMALL LETTER DOTLESS I}"
WORD_BREAK = "\u200b"  # zero-width space
MORE_STOP_WORDS = {"english": ("i", "eg", "ie")}  # one letter, and initials, which bm25s leaves out
CONSONANTS = frozenset("bcdfghjklmnpqrstvwxz")


def quiet_bm25s():
    """Import bm25s, whose logger prints debug messages from then on, and quiet it.

    It is not imported at the top: where jax is installed, it takes most of a GPU's memory.
    """
    import bm25s

    logging.getLogger("bm25s").setLevel(logging.WARNING)
    return bm25s


def language_name(language: str) -> str:
    """Return the name of a language: `english` for `en`, `English` and `english`, and `other` for itself.

    Raises:
        UsageError: There are neither stop words nor stems for the language.
    """
    name = str(language).lower()
    name = CODES.get(name, name)
    if name not in (*LANGUAGES, OTHER):
        names = (f"{name} ({code})" for code, name in CODES.items())
        raise UsageError(f"is {language!r}", option="language", needed=f"{', '.join(names)} or {OTHER}")
    return name


def versions() -> dict[str, Any]:
    """Return the versions of all that decides what the words of a text are."""
    packages = {name: version(name) for name in ("bm25s", "PyStemmer", "regex")}
    return packages | {"unicode": unicodedata.unidata_version, "rules": RULES}


class Words:
    """BM25 weights of the words of N texts.

    Words are compared in the compatible form of Unicode without case (NFKC), so that accents, full-width letters and
    soft hyphens do not matter. In scripts without spaces, characters and pairs of characters are words.

    Args:
        bm25: The weights, by word and text.
        language: See `Words.build`.
    """

    def __init__(self, bm25: Any, language: str):
        self.bm25 = bm25
        self.language = language

    @classmethod
    def build(cls, texts: Sequence[str], language: str) -> "Words":
        """Weight the words of texts.

        Args:
            texts: N texts.
            language: Language of stop words and stems: a name or code in `CODES`, or `other` for none.

        Raises:
            UsageError: There are no texts, or the language is unknown.
        """
        if not texts:
            raise UsageError("An index needs at least one text")
        words = cls(quiet_bm25s().BM25(), language_name(language))
        number_of: defaultdict[str, int] = defaultdict()
        number_of.default_factory = number_of.__len__  # a new word gets the next number
        numbers = [list(map(number_of.__getitem__, found)) for found in words.split(texts)]
        words.bm25.index((numbers, dict(number_of)), create_empty_token=False, show_progress=False)
        return words

    @classmethod
    def load(cls, folder: str | Path, language: str) -> "Words":
        """Open the weights that `save` wrote, memory-mapped."""
        return cls(quiet_bm25s().BM25.load(folder, mmap=True), language)

    def save(self, folder: str | Path) -> None:
        """Write the weights to a folder."""
        self.bm25.save(folder, show_progress=False)

    def split(self, texts: Sequence[str]) -> list[list[str]]:
        """Return the words of each text that are compared."""
        stem_of = _Stems(self.language).__getitem__
        turkish = self.language == "turkish"
        found = (_words_in(_folded(text, turkish)) for text in texts)
        return [list(filter(None, map(stem_of, words))) for words in found]

    def scores(self, queries: Sequence[str]) -> np.ndarray:
        """Return the BM25 scores (Q, N) float32 of queries and texts."""
        scores = np.zeros((len(queries), self.bm25.scores["num_docs"]), np.float32)
        for row, words in zip(scores, self.split(queries)):
            if columns := self.bm25.get_tokens_ids(words):
                row[:] = self.bm25.get_scores_from_ids(columns)
        return scores

    def weights(self) -> csr_array:
        """Return the BM25 weights (N, V) of the V different words in each text."""
        parts = self.bm25.scores
        shape = (parts["num_docs"], len(parts["indptr"]) - 1)
        return csc_array((parts["data"], parts["indices"], parts["indptr"]), shape=shape).tocsr()

    def counts(self, queries: Sequence[str]) -> csr_array:
        """Return how often each word of the texts is in each query (Q, V). Times `weights`, they are the scores."""
        counted = [Counter(self.bm25.get_tokens_ids(words)) for words in self.split(queries)]
        ends = np.cumsum([0, *map(len, counted)])
        columns = [column for count in counted for column in count]
        values = np.array([number for count in counted for number in count.values()], np.float32)
        return csr_array((values, columns, ends), shape=(len(queries), len(self.bm25.scores["indptr"]) - 1))


class _Stems(dict[str, str | None]):
    """The stem of each match of `FOUND` that was asked for; None for a stop word and what is not a word."""

    def __init__(self, language: str):
        self.stop = _stop_words(language)
        # Not shared, because a stemmer must not be used by two threads at once. Its cache (0) is slower than no cache.
        self.stemmer = None if language == OTHER else Stemmer.Stemmer(language, 0)

    def __missing__(self, found: str) -> str | None:
        self[found] = None if NOT_A_WORD.search(found) else self._stem(found.replace(".", ""))
        return self[found]

    def _stem(self, word: str) -> str | None:
        if word in self.stop:
            return None
        return self.stemmer.stemWord(word) if self.stemmer else word


@cache
def _stop_words(language: str) -> frozenset[str]:
    """Return the stop words of a language.

    The list has single consonants, such as the French c and d, which stop only next to an apostrophe. They are words.
    """
    if language == OTHER:
        return frozenset()
    from bm25s.tokenization import _infer_stopwords

    listed = list(_infer_stopwords(language)) + list(MORE_STOP_WORDS.get(language, ()))
    return frozenset(_folded(word, language == "turkish") for word in listed) - CONSONANTS


def _folded(text: str, turkish: bool) -> str:
    """Return a text in the form in which words are compared."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", INVISIBLE.sub("", text.replace(WORD_BREAK, " ")))
        text = text.replace("İ", "i")
    if turkish:
        text = text.replace("I", DOTLESS_I)
    return text.lower() if text.isascii() else unicodedata.normalize("NFKC", text.casefold())


def _words_in(text: str) -> list[str]:
    """Return the words of a folded text, with characters and pairs of characters of scripts without spaces."""
    if text.isascii() and not RARE.search(text):
        return text.translate(SPACED).split()  # the same words in a tenth of the time
    words = FOUND.findall(text)
    if text.isascii():
        return words
    return [part for word in words for part in _parts(word)]


def _parts(word: str) -> list[str]:
    """Return the word, or its runs in other scripts, with each run of a script without spaces as its characters."""
    if word.isascii():
        return [word]
    return [part for run in RUN.findall(word) for part in _characters(run)]


def _characters(run: str) -> list[str]:
    """Return the characters and pairs of characters of a run of a script without spaces, or another run as it is."""
    if not UNSPACED_START.match(run):
        return [run]
    characters = CHARACTER.findall(run)
    pairs = [first + second for first, second in pairwise(characters)]
    return characters + pairs


def z_scores(scores: np.ndarray) -> np.ndarray:
    """Return scores (Q, N) minus their mean over the N texts, in standard deviations."""
    return (scores - scores.mean(1, keepdims=True)) / spread(scores)


def spread(scores: np.ndarray) -> np.ndarray:
    """Return the standard deviation (Q, 1) of scores (Q, N), or 1 where they are equal up to rounding."""
    deviation = scores.std(1, keepdims=True)
    largest = np.abs(scores).max(1, keepdims=True)
    return np.where(deviation > NEARLY_EQUAL * largest, deviation, 1)
