"""BM25 of words: the formula, and what the words of a text are, in all languages and scripts."""

import math
import unicodedata

import numpy as np
import pytest

from informin.frozen.bm25 import (
    BM25,
    CODES,
    FOUND,
    LANGUAGES,
    OTHER,
    RARE,
    _words_in,
    language_name,
    spread,
    z_scores,
)
from tests.conftest import raises_usage

TEXTS = ["cats see dogs", "a dog sees the dog and a bird", "birds", "the", ""]


def bm25(counts: list[dict[str, int]], query: list[str], k1: float = 1.5, b: float = 0.75) -> list[float]:
    """Robertson & Zaragoza (2009), with the idf of Lucene, in loops."""
    mean = sum(sum(count.values()) for count in counts) / len(counts)
    scores = []
    for count in counts:
        score = 0.0
        for word in query:
            containing = sum(word in other for other in counts)
            if not containing:
                continue
            idf = math.log(1 + (len(counts) - containing + 0.5) / (containing + 0.5))
            frequency = count.get(word, 0)
            score += idf * frequency / (frequency + k1 * (1 - b + b * sum(count.values()) / mean))
        scores.append(score)
    return scores


def test_scores_are_bm25_of_stems_without_stop_words():
    words = BM25.build(TEXTS, "english")
    counts = [{"cat": 1, "see": 1, "dog": 1}, {"dog": 2, "see": 1, "bird": 1}, {"bird": 1}, {}, {}]
    scores = words.scores(["the dogs and the cat", "birds birds", "zebra", ""])
    expected = [bm25(counts, query) for query in (["dog", "cat"], ["bird", "bird"], ["zebra"], [])]
    np.testing.assert_allclose(scores, expected, atol=1e-5)


def test_weights_times_counts_are_the_scores():
    words = BM25.build(TEXTS, "english")
    queries = ["dog dog bird", "nothing known", "cats"]
    product = (words.counts(queries) @ words.weights().T).toarray()
    np.testing.assert_allclose(product, words.scores(queries), atol=1e-5)


def test_german():
    words = BM25.build(["Die Häuser am Fluss", "Der Hund und die Katze"], "german")
    assert (words.scores(["das Haus"]) > 0).tolist() == [[True, False]]
    assert not words.scores(["der und die"]).any()
    assert not BM25.build(["Die Häuser am Fluss"], OTHER).scores(["Haus"]).any()


@pytest.mark.parametrize("language", [*LANGUAGES, OTHER])
def test_each_language_has_stems_and_stop_words(language):
    assert BM25.build(["one two", "three"], language).scores(["three"])[0].argmax() == 1


def test_unknown_language():
    with raises_usage("language"):
        BM25.build(TEXTS, "klingon")


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_texts_without_words():
    words = BM25.build(["the", ""], "english")
    assert words.scores(["the dog"]).tolist() == [[0, 0]]
    assert words.weights().shape == (2, 0)


def test_saved(tmp_path):
    words = BM25.build(TEXTS, "english")
    words.save(tmp_path)
    np.testing.assert_array_equal(BM25.load(tmp_path, "english").scores(["dog bird"]), words.scores(["dog bird"]))


def found(query: str, text: str, language: str = "english") -> bool:
    """Return whether a query finds a text among others, and does not find the others."""
    scores = BM25.build([text, "zyxw", "vuts"], language).scores([query])[0]
    assert not scores[1:].any()
    return bool(scores[0] > 0)


@pytest.mark.parametrize("name", [*CODES, *LANGUAGES, "English", "EN", OTHER])
def test_languages_by_name_and_code(name):
    assert language_name(name) in (*LANGUAGES, OTHER)
    assert BM25.build(TEXTS, name).language == language_name(name)


@pytest.mark.parametrize("name", ["klingon", "zh", "", "engl", None, 5])
def test_unknown_names_of_languages(name):
    with raises_usage("language"):
        language_name(name)


WRITTEN = [
    ("english", "a naïve café", "café"),
    ("german", "Die Brücke", "Brücke"),
    ("french", "école fermée", "école"),
    ("spanish", "mañana", "mañana"),
    ("russian", "йогурт", "йогурт"),
    ("other", "βιβλίο και ντουλάπα", "ντουλάπα"),
    ("other", "Việt Nam", "Việt"),
    ("other", "한국어", "한국어"),
    ("other", "ガラス", "ガラス"),
    ("other", "हिन्दी क़लम", "क़लम"),
]


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
@pytest.mark.parametrize(("language", "text", "query"), WRITTEN)
def test_words_are_found_in_each_normal_form(language, text, query, form):
    written = unicodedata.normalize(form, text)
    assert found(query, written, language) and found(unicodedata.normalize(form, query), text, language)


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("\uff26\uff35\uff2c\uff2c width", "full"),  # full-width letters
        ("vitamin \uff23", "C"),
        ("in\u00adfor\u00adma\u00adtion", "information"),  # soft hyphens
        ("\ufb01re", "fire"),  # a ligature
        ("zero\u200bspace", "space"),
        ("joi\u2060ned \ufeffmark", "joined"),
        ("joi\u2060ned \ufeffmark", "mark"),
        ("x\u00b2", "x2"),
        ("STRASSE", "straße"),
        ("Straße", "STRASSE"),
        ("ΣΊΣΥΦΟΣ", "σίσυφος"),
        ("İstanbul", "istanbul"),
        ("\u0643\u0640\u0640\u062a\u0627\u0628", "\u0643\u062a\u0627\u0628"),  # stretched Arabic letters
        ("U.S.A. and others", "USA"),
        ("it\u2019s Smith\u2019s", "smith"),
    ],
)
def test_the_same_word_in_other_characters(text, query):
    assert found(query, text) and found(text, query)


@pytest.mark.parametrize(
    ("language", "text", "query"),
    [
        ("french", "deux cœurs", "coeur"),
        ("french", "une école fermée", "ecole"),
        ("french", "une école fermée", "fermee"),
        ("english", "his résumé", "resume"),
        ("english", "Æsop", "aesop"),
        ("german", "Die Brücke", "brucke"),
        ("german", "Die Häuser", "haeuser"),
        ("spanish", "canciones de España", "espana"),
        ("portuguese", "a informação", "informacao"),
        ("italian", "la città", "citta"),
        ("swedish", "Malmö", "malmo"),
        ("swedish", "en idé", "ide"),
        ("danish", "Ålborg", "alborg"),
        ("russian", "ёлка", "елка"),
        ("turkish", "güzel", "guzel"),
        ("other", "Łódź", "lodz"),
        ("other", "Ελλάδα", "ελλαδα"),
        ("other", "كِتَاب", "كتاب"),
    ],
)
def test_accents_make_no_difference(language, text, query, tmp_path):
    assert found(query, text, language) and found(text, query, language)
    assert found(unicodedata.normalize("NFD", text), query, language)
    words = BM25.build([text, "zyxw"], language)
    words.save(tmp_path)
    assert BM25.load(tmp_path, words.language).scores([query])[0, 0] == words.scores([query])[0, 0] > 0


def test_a_word_with_accents_is_one_word_with_its_other_spellings():
    """Of fermee, the stemmer leaves ferme, and of the others, ferm."""
    words = BM25.build(["fermée", "fermee", "fermer", "école"], "french")
    expected = words.scores(["fermer"])
    assert (expected[0] > 0).tolist() == [True, True, True, False]
    for query in ("fermée", "fermee", "FERMÉE"):
        np.testing.assert_allclose(words.scores([query]), expected, rtol=1e-5)
    np.testing.assert_allclose((words.counts(["fermee"]) @ words.weights().T).toarray(), expected, rtol=1e-5)


def test_stems_of_words_with_accents():
    assert found("informações", "informação", "portuguese")
    assert found("fermé", "fermer", "french")


@pytest.mark.parametrize(("language", "word", "other"), [("es", "año", "ano"), ("sv", "får", "far"), ("da", "ø", "o")])
def test_letters_of_their_own_make_another_word(language, word, other):
    words = BM25.build([word, other, "zyxw"], language)
    assert (words.scores([word, other]) > 0).tolist() == [[True, False, False], [False, True, False]]


def test_a_word_without_its_letters_is_the_most_frequent_one():
    words = BM25.build(["kår", "kär", "kär"], "swedish")
    assert (words.scores(["kar"])[0] > 0).tolist() == [False, True, True]


@pytest.mark.parametrize(("text", "query"), [("か", "が"), ("क", "क़"), ("мои", "мой")])
def test_marks_of_other_scripts_make_another_letter(text, query):
    assert not found(query, text, OTHER)


TURKISH = [("İstanbul", "istanbul"), ("IŞIK", "\u0131\u015f\u0131k"), ("Isparta", "ISPARTA")]


@pytest.mark.parametrize(("text", "query"), TURKISH)
@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_turkish(text, query, form):
    assert found(query, unicodedata.normalize(form, text), "tr")
    assert found(text, unicodedata.normalize(form, query), "tr")
    assert not found("\u0131l\u0131k", "ilik", "tr")


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("火车晚点了两个小时", ["火车", "小时", "晚点了", "车"]),
        ("図書館は閉まっている", ["図書館", "閉まっている", "図"]),
        ("コンピューターを買う", ["コンピューター", "買う"]),
        ("กำลังเรียนภาษาไทย", ["ภาษา", "เรียน", "ไทย"]),
        ("ພາສາລາວ", ["ລາວ"]),
        ("ភាសាខ្មែរ", ["ខ្មែរ"]),
        ("မြန်မာစာ", ["မြန်မာ"]),
        ("철도는 서울에서 출발합니다", ["철도", "서울"]),
        ("हिन्दी में किताब", ["किताब", "हिन्दी"]),
        ("iPhone手机用C#写代码", ["手机", "iphone", "c#"]),
    ],
)
@pytest.mark.parametrize("language", [OTHER, "english"])
def test_words_of_scripts_without_spaces_are_found(text, inside, language):
    assert all(found(query, text, language) for query in inside)
    assert found(text, text, language)


def test_combining_marks_stay_with_their_characters():
    """Thai writes this vowel above its consonant, as a character of its own."""
    consonants = "\u0e25\u0e31\u0e07"
    assert BM25.build([consonants], OTHER).split([consonants]) == [["\u0e25\u0e31", "\u0e07", consonants]]


def test_a_word_beats_its_characters():
    scores = BM25.build(["火车站", "火在车上", "天气"], OTHER).scores(["火车"])[0]
    assert scores[0] > scores[1] > scores[2] == 0


@pytest.mark.parametrize(
    ("language", "text", "other"),
    [
        ("english", "Vitamin C", "Vitamin D"),
        ("english", "R code", "S code"),
        ("english", "C# code", "C code"),
        ("english", "C++ code", "C code"),
        ("english", "type 2 diabetes", "type 1 diabetes"),
        ("english", "plan B", "plan E"),
        ("french", "la vitamine C", "la vitamine D"),
        ("italian", "vitamina C", "vitamina D"),
        ("german", "Vitamin K", "Vitamin D"),
        ("russian", "витамин \u0415", "витамин Д"),
    ],
)
def test_one_letter_words_count(language, text, other):
    scores = BM25.build([other, text], language).scores([text])[0]
    assert scores[1] > scores[0]


@pytest.mark.parametrize(
    ("language", "text", "words"),
    [
        ("english", "don't, it's we'll", ["don", "we", "ll"]),
        ("english", "e.g. this, i.e. that: I", []),
        ("english", "(1) dogs, 2) cats. 3. birds", ["dog", "cat", "bird"]),
        ("english", "A dog of type 3. It has 4.", ["dog", "type", "3", "has", "4"]),
        ("french", "l'école d\u2019\u00e9t\u00e9 qu'il", ["ecol"]),
        ("other", "item#3 bug# c#", ["item", "3", "bug", "c#"]),
    ],
)
def test_what_is_not_a_word(language, text, words):
    assert set(BM25.build([text], language).split([text])[0]) - {"ete"} == set(words)


@pytest.mark.parametrize("value", [1e-3, 0.3, 1e3])
def test_scores_that_differ_by_rounding_have_z_scores_of_zero(value):
    scores = np.full((1, 5), value, np.float32)
    scores[0, ::2] = np.nextafter(scores[0, 0], np.float32(np.inf))
    assert spread(scores) == 1
    np.testing.assert_allclose(z_scores(scores), 0, atol=1e-6 * value)


def test_plain_texts_are_split_faster_into_the_same_words():
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(list("abcz019 .,:;'()#+_-\n"), size=12)) for _ in range(5_000)]
    plain = [text for text in texts if not RARE.search(text)]
    assert len(plain) > 500
    assert [_words_in(text) for text in plain] == [FOUND.findall(text) for text in plain]
