"""Words without accents and ligatures, as people type them."""

import unicodedata

import regex

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


def without_accents(word: str, kept: frozenset[str] = frozenset()) -> str:
    """Return a word in small letters (NFKC) without accents and ligatures, except for some letters."""
    if word.isascii():
        return word
    return "".join(letter if letter in kept else _plain(letter) for letter in CHARACTER.findall(word))


def _plain(letter: str) -> str:
    letter = MARKS.sub("", unicodedata.normalize("NFD", letter))
    return unicodedata.normalize("NFC", letter).translate(PLAIN)
