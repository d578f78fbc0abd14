"""BM25: the words of texts, as stems without stop words, and their scores. Needs the extra `search`."""

import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csc_array, csr_array

from informin.errors import UsageError, raise_if_missing

raise_if_missing("search", what="Search with BM25")

import regex
import Stemmer

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
RULES = 4  # number of the rules below; another number makes an index build its words again
NEARLY_EQUAL = 1e-5  # of the largest score: a smaller standard deviation is rounding

CHARACTER = regex.compile(r"\P{M}\p{M}*|\p{M}+")  # with its combining marks
# Accents of Latin and Greek letters, and the vowel signs of Arabic and Hebrew. In other scripts, such as Devanagari,
# Thai or Japanese, and in the Cyrillic letter short i, a mark makes another letter.
MARKS = regex.compile(
    r"(?<=[\p{Latin}\p{Greek}])\p{Mn}+|[\u064b-\u0652\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7]"
)
# Letters that Unicode does not decompose, and the Russian yo, which is usually printed as ye.
PLAIN = str.maketrans(
    {"œ": "oe", "æ": "ae", "ø": "o", "ł": "l", "đ": "d", "ð": "d", "ħ": "h", "þ": "th", "\u0131": "i", "ё": "\u0435"}
)
# Letters of an alphabet of its own, without which a word is another word: the Spanish año is a year, ano is not.
OWN_LETTERS = {
    "danish": frozenset("åæø"),
    "norwegian": frozenset("åæø"),
    "spanish": frozenset("ñ"),
    "swedish": frozenset("åäö"),
    "turkish": frozenset("çğıöşü"),
}

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
INVISIBLE = regex.compile(r"[\p{Cf}\p{Variation_Selector}\u0640]")  # soft hyphens, joiners, Arabic stretching
DOTLESS_I = "\N{LATIN SMALL LETTER DOTLESS I}"
WORD_BREAK = "\u200b"  # zero-width space
MORE_STOP_WORDS = {"english": ("i", "eg", "ie")}  # one letter, and initials, which bm25s leaves out
CONSONANTS = frozenset("bcdfghjklmnpqrstvwxz")


class BM25:
    """BM25 weights of the words of N texts.

    Words are compared in the compatible form of Unicode without case (NFKC), so that full-width letters and soft
    hyphens do not matter, and without accents and ligatures: cœur is coeur. In scripts without spaces, characters and
    pairs of characters are words.

    Args:
        stored: The weights by word and text, a `bm25s.BM25`. Its vocabulary has the number of each stem, also of those
            that a word has when it is typed without accents.
        language: See `BM25.build`.
    """

    def __init__(self, stored: Any, language: str):
        self.stored = stored
        self.language = language

    def __len__(self) -> int:
        return self.stored.scores["num_docs"]

    @classmethod
    def build(cls, texts: Sequence[str], language: str) -> "BM25":
        """Weight the words of texts.

        Args:
            texts: N texts.
            language: Language of stop words and stems: a name or code in `CODES`, or `other` for none.

        Raises:
            UsageError: There are no texts, or the language is unknown.
        """
        if not texts:
            raise UsageError("An index needs at least one text")
        bm25 = cls(quiet_bm25s().BM25(), language_name(language))
        stems = _Stems(bm25.language)
        found = [stems.of(text) for text in texts]
        vocabulary = _vocabulary(stems, Counter(chain.from_iterable(found)))
        numbers = [list(map(vocabulary.__getitem__, each)) for each in found]
        different = {number: number for number in vocabulary.values()}
        with np.errstate(invalid="ignore"):  # texts without any word have a mean length of 0
            bm25.stored.index((numbers, different), create_empty_token=False, show_progress=False)
        bm25.stored.vocab_dict = vocabulary
        return bm25

    @classmethod
    def load(cls, folder: str | Path, language: str) -> "BM25":
        """Open the weights that `save` wrote, memory-mapped."""
        return cls(quiet_bm25s().BM25.load(folder, mmap=True), language)

    def save(self, folder: str | Path) -> None:
        """Write the weights to a folder."""
        self.stored.save(folder, show_progress=False)

    def split(self, texts: Sequence[str]) -> list[list[str]]:
        """Return the stems of the words of each text, without stop words and accents."""
        stems = _Stems(self.language)
        return [stems.of(text) for text in texts]

    def numbers(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the numbers of those words of each text that are also in the texts that `build` was given."""
        stems = _Stems(self.language)
        vocabulary = self.stored.vocab_dict
        return [[number for word in stems.words(text) for number in stems.numbers(word, vocabulary)] for text in texts]

    def scores(self, queries: Sequence[str]) -> np.ndarray:
        """Return the BM25 scores (Q, N) float32 of queries and texts."""
        scores = np.zeros((len(queries), len(self)), np.float32)
        for row, columns in zip(scores, self.numbers(queries)):
            if columns:
                row[:] = self.stored.get_scores_from_ids(columns)
        return scores

    def weights(self) -> csr_array:
        """Return the BM25 weights (N, V) of the V different words in each text."""
        parts = self.stored.scores
        shape = (len(self), len(parts["indptr"]) - 1)
        return csc_array((parts["data"], parts["indices"], parts["indptr"]), shape=shape).tocsr()

    def counts(self, queries: Sequence[str]) -> csr_array:
        """Return how often each word of the texts is in each query (Q, V). Times `weights`, they are the scores."""
        counted = list(map(Counter, self.numbers(queries)))
        ends = np.cumsum([0, *map(len, counted)])
        columns = [column for count in counted for column in count]
        values = np.array([number for count in counted for number in count.values()], np.float32)
        return csr_array((values, columns, ends), shape=(len(queries), len(self.stored.scores["indptr"]) - 1))


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


def z_scores(scores: np.ndarray) -> np.ndarray:
    """Return scores (Q, N) minus their mean over the N texts, in standard deviations."""
    return (scores - scores.mean(1, keepdims=True)) / spread(scores)


def spread(scores: np.ndarray) -> np.ndarray:
    """Return the standard deviation (Q, 1) of scores (Q, N), or 1 where they are equal up to rounding."""
    deviation = scores.std(1, keepdims=True)
    largest = np.abs(scores).max(1, keepdims=True)
    return np.where(deviation > NEARLY_EQUAL * largest, deviation, 1)


def quiet_bm25s():
    """Import bm25s, whose logger prints debug messages from then on, and quiet it.

    It is not imported at the top: where jax is installed, it takes most of a GPU's memory.
    """
    import bm25s

    logging.getLogger("bm25s").setLevel(logging.WARNING)
    return bm25s


class _Stems(dict[str, str | None]):
    """The stem of each match of `FOUND` that was asked for, without accents; None for what is not compared.

    A stemmer knows the suffixes of its language with their accents: of fermée it leaves ferm, and of fermee, ferme. So
    a word has two stems: as it is, and as it is typed without accents.
    """

    def __init__(self, language: str):
        self.turkish = language == "turkish"
        self.stop = _stop_words(language)
        self.kept = OWN_LETTERS.get(language, frozenset())
        # Not shared, because a stemmer must not be used by two threads at once. Its cache (0) is slower than no cache.
        self.stemmer = None if language == OTHER else Stemmer.Stemmer(language, 0)

    def words(self, text: str) -> list[str]:
        """Return the matches of `FOUND` in a text."""
        return _words_in(_folded(text, self.turkish))

    def of(self, text: str) -> list[str]:
        """Return the stems of a text."""
        return list(filter(None, map(self.__getitem__, self.words(text))))

    def typed(self, found: str) -> str | None:
        """Return the stem of a match that is typed without accents, but with the letters of its language."""
        return self[without_accents(found, self.kept)]

    def typed_abroad(self, found: str) -> str | None:
        """Return the stem of a match that is typed without these letters, too, except for the dotless i."""
        return self[without_accents(found, self.kept & {DOTLESS_I})]

    def numbers(self, found: str, vocabulary: dict[str, int]) -> set[int]:
        """Return the numbers of a match in a vocabulary: none, one, or two if its stems are different words there."""
        stem = self[found]
        if stem is None:
            return set()
        known = {stem, self.typed(found) or stem} & vocabulary.keys()
        known = known or {self.typed_abroad(found) or stem} & vocabulary.keys()
        return {vocabulary[each] for each in known}

    def __missing__(self, found: str) -> str | None:
        word = found.replace(".", "")
        if NOT_A_WORD.search(found) or word in self.stop:
            self[found] = None
        else:
            self[found] = without_accents(self.stemmer.stemWord(word) if self.stemmer else word, self.kept)
        return self[found]


def _vocabulary(stems: _Stems, counts: Counter[str]) -> dict[str, int]:
    """Return the number of each stem of texts, from 0, and of each that one of their words has without accents.

    The two stems of a word have one number. In languages with letters of their own, a word without such letters stands
    for the most frequent word with them if no text contains it as it is.

    Args:
        stems: The stems of the words of the texts.
        counts: How often each is in the texts.
    """
    accented = {word: stem for word, stem in stems.items() if stem and without_accents(word) != word}
    joined: dict[str, str] = {}

    def group(stem: str) -> str:
        while stem in joined:
            stem = joined[stem]
        return stem

    for word, stem in accented.items():
        one, other = group(stem), group(stems.typed(word) or stem)
        if one != other:
            joined[other] = one
    number_of = {one: number for number, one in enumerate(dict.fromkeys(map(group, counts)))}
    vocabulary = {stem: number_of[group(stem)] for stem in chain(counts, joined)}
    for word, stem in sorted(accented.items(), key=lambda item: -counts[item[1]]):
        vocabulary.setdefault(stems.typed_abroad(word) or stem, vocabulary[stem])
    return vocabulary


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
    found: list[str] = []
    for word in words:
        for run in [word] if word.isascii() else RUN.findall(word):
            found += _characters(run) if UNSPACED_START.match(run) else [run]
    return found


def _characters(run: str) -> list[str]:
    """Return the characters and pairs of characters of a run of a script without spaces."""
    characters = CHARACTER.findall(run)
    return characters + [first + second for first, second in pairwise(characters)]


def without_accents(word: str, kept: frozenset[str] = frozenset()) -> str:
    """Return a word in small letters (NFKC) without accents and ligatures, except for some letters."""
    if word.isascii():
        return word
    letters = []
    for letter in CHARACTER.findall(word):
        if letter not in kept:
            letter = MARKS.sub("", unicodedata.normalize("NFD", letter))
            letter = unicodedata.normalize("NFC", letter).translate(PLAIN)
        letters.append(letter)
    return "".join(letters)
