"""Measure how much of a sentence's style its embedding keeps, to test the claim that InforMin-CL removes it.

Chen et al. (COLING 2022, table 1) call information redundant if it changes the surface of a sentence but not its
meaning. Here, rules rewrite real English sentences in such ways. Each kind of rewrite is scored by the cosine between
original and variant, and by the accuracy of a linear classifier that distinguishes them. A change of content is the
control, since a collapsed encoder would ignore style and meaning alike.

Takes a function from sentences to embeddings, and imports no models.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from math import nan

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from informin.errors import UsageError
from informin.evaluation.encode import Encode, unit

# Closed word classes of English, as far as the rules need them.
SUBJECTS = frozenset("i you he she it we they there".split())
THIRD_PERSON = frozenset("he she it they".split())
PRONOUNS = SUBJECTS | frozenset(
    "me my mine myself your yours yourself yourselves him his himself her hers herself its itself us our ours "
    "ourselves them their theirs themselves here".split()
)
DETERMINERS = frozenset("a an the this that these those such some any".split())
RELATIVES = frozenset("that who whom whose which what where how why whether".split())
AUXILIARIES = frozenset(
    "am is are was were has have had do does did will would shall should can could may might must".split()
)
NON_FINITE_AUXILIARIES = frozenset("be been being having doing".split())
PREPOSITIONS = frozenset(
    "about according along among around at beside besides by despite during for from in into near of on per than "
    "through throughout to toward towards upon via with within".split()
)
CONJUNCTIONS = frozenset("although though because when whenever whereas while".split())  # followed by a clause
TIME_CONJUNCTIONS = frozenset("as since once".split())  # followed by a clause or a noun
COORDINATORS = frozenset("and but or so yet then also".split())
STOP_WORDS = frozenset().union(
    *(PRONOUNS, DETERMINERS, RELATIVES, AUXILIARIES, NON_FINITE_AUXILIARIES),
    *(PREPOSITIONS, CONJUNCTIONS, TIME_CONJUNCTIONS, COORDINATORS),
)
# Function words that are not stop words, because removing them would change the meaning. Words with n't, such as don't,
# are treated in the same way.
NEGATIONS = frozenset("not no never nor neither none cannot without".split())
CONDITIONS = frozenset("if unless".split())
OPPOSITES = frozenset("after before until above below inside outside over under up down against between".split())
QUANTITIES = frozenset("all both each every few many more most much several only other another one two three".split())
FUNCTION_WORDS = STOP_WORDS.union(NEGATIONS, CONDITIONS, OPPOSITES, QUANTITIES, ["even"])

CLAUSE_OPENERS = CONJUNCTIONS | CONDITIONS
ADJUNCT_OPENERS = CLAUSE_OPENERS.union(TIME_CONJUNCTIONS, PREPOSITIONS, OPPOSITES) - {"of", "to", "than", "per"}
# After a comma, "when" mostly describes a date, and "as" and "once" do not open a clause.
OPENERS_AFTER_COMMA = CLAUSE_OPENERS - {"when"} | {"since", "after", "before", "until"}
OPENERS_WITHOUT_COMMA = frozenset("because if unless when whenever until after before".split())
OPENER_INSIDE = re.compile(r"\s(?=(?:even though|although|because|unless|whereas|while|after|before)\s)")
OPENER_MODIFIERS = (
    frozenset(  # as in "only because" or "the year before": the opener is not the first word of its adjunct
        "even just only soon long and or but as a era time year years month months week weeks day days hours "
        "minutes".split()
    )
)
SHORT_ADJUNCT = 4  # words; too short for a preposition and a clause, so the clause follows
CLAUSE_COMMA = re.compile(r",\s+(?!\d{4}\b)")  # not the comma in 1,000 or in May 1, 2015
BREAK = re.compile(r"""[.!?…:]["”\u2019')]*(?:\s+\W*[A-Z]|$)|;|,["”]""")  # several sentences, or the end of a quotation
FINAL_PUNCTUATION = re.compile(r"\s*[.!?…]*\s*$")
WORD = re.compile(r"\w+(?:['\u2019.-]\w+)*")
CONTRACTION = re.compile(r"(.+)['\u2019](?:s|m|re|ve|ll|d)", re.IGNORECASE)  # it's, they've, but not don't
NEGATED = re.compile(r"n['\u2019]t\b")
CONTENT_WORD = re.compile(r"(?<![\w'\u2019-])[^\W\d_]{4,}(?![\w'\u2019-])")

FOLDS = 5
FEWEST = 20  # sentences: 4 in each test fold
CONTENT_CHANGED = "content changed"


def stop_words_removed(sentence: str) -> str | None:
    """Return the sentence without its function words. None if it has none, or if fewer than 2 words remain.

    Capitalized words count as names and stay (The Who, US), except for the first word of the sentence and I.
    """
    kept, opening = [], ""
    tokens = sentence.split()
    for i, token in enumerate(tokens):
        before, word, after = _matched(re.fullmatch(r"(\W*)(.*?)(\W*)", token)).groups()
        contracted = CONTRACTION.fullmatch(word)
        stem = contracted[1] if contracted else word
        name = not stem.islower() and stem != "I" and not (i == 0 and stem == stem.capitalize())
        if name or stem.lower() not in STOP_WORDS:
            kept.append(opening + token)
            opening = ""
        else:  # its punctuation is moved to its neighbors
            opening += before
            if kept and kept[-1][-1].isalnum():
                kept[-1] += after
    if len(kept) == len(tokens) or sum(WORD.search(token) is not None for token in kept) < 2:
        return None
    return " ".join(kept)


def clause_order_restated(sentence: str) -> str | None:
    """Return the sentence with clause and adjunct swapped. None unless it is a statement that clearly has both.

    Swaps "A because B." and "Because B, A.", and "A, although B." and "Although B, A."; turns "In B, A." into "A, in
    B." Both parts must have at least 3 words. Clauses joined by "and", "but" or a semicolon are not swapped, because
    their order has a meaning. Neither are lists and sentences with more than one comma between words. The old first
    word is lowercased if it is a function word other than I, since other words may be names.
    """
    end = _matched(FINAL_PUNCTUATION.search(sentence))
    body = sentence[: end.start()].strip()
    clauses = CLAUSE_COMMA.split(body)
    if "?" in end[0] or len(clauses) > 2 or BREAK.search(body) or not all(map(_is_complete, clauses)):
        return None
    turned = _opener_inside(body) if len(clauses) == 1 else _adjunct_first(*clauses) or _adjunct_after_comma(*clauses)
    if turned is None:
        return None
    first, joint, second = turned
    return first[0].upper() + first[1:] + joint + _without_capital(second) + end[0]


def capitalized(sentence: str) -> str | None:
    """Return the sentence With Every Word Capitalized. None if that changes nothing.

    An uncased tokenizer gives the variant the same tokens, and therefore the same embedding.
    """
    variant = re.sub(r"((?:^|\s)\W*)(\w)", lambda match: match[1] + match[2].title(), sentence)
    return None if variant == sentence else variant


def hyphen_joined(sentence: str) -> str | None:
    """Return the-words-joined-by-hyphens, with final punctuation unchanged. None for fewer than 2 words."""
    end = _matched(FINAL_PUNCTUATION.search(sentence))
    words = sentence[: end.start()].split()
    return None if len(words) < 2 else "-".join(words) + end[0]


def content_replaced(sentence: str, words: Sequence[str], rng: np.random.Generator) -> str | None:
    """Return the sentence with one random content word replaced by a word that it does not contain, in the same case.

    A content word has at least 4 letters and is not a function word. None if the sentence has no content word, or
    contains all `words`.
    """
    found = _content_words(sentence)
    if not found or not words:
        return None
    place = found[rng.integers(len(found))]
    present = {match[0].lower() for match in found}
    start = int(rng.integers(len(words)))
    new = next((word for word in chain(words[start:], words[:start]) if word.lower() not in present), None)
    if new is None:
        return None
    old = place[0]
    new = new.upper() if old.isupper() else new.capitalize() if old[0].isupper() else new.lower()
    return sentence[: place.start()] + new + sentence[place.end() :]


VARIANTS: dict[str, Callable[[str], str | None]] = {
    "stop words removed": stop_words_removed,
    "clause order restated": clause_order_restated,
    "capitalized": capitalized,
    "hyphen-joined": hyphen_joined,
}


@dataclass(frozen=True)
class VariantScore:
    """Scores of an encoder for one kind of variant.

    Attributes:
        kind: A name in `VARIANTS`, or `CONTENT_CHANGED`.
        n: Number of sentences that have such a variant. Below `FEWEST`, all scores are NaN.
        cosine: Mean cosine between original and variant over the n sentences.
        cosine_sd: Standard deviation of the cosine.
        style_accuracy: Accuracy x 100 of a linear classifier that predicts from one embedding whether its sentence is
            an original or a variant; mean over the folds of a cross-validation. 50 is chance.
        style_accuracy_sd: Standard deviation of the accuracy over the folds.
    """

    kind: str
    n: int
    cosine: float = nan
    cosine_sd: float = nan
    style_accuracy: float = nan
    style_accuracy_sd: float = nan


def probe(encode: Encode, sentences: Iterable[str], seed: int = 0) -> list[VariantScore]:
    """Score each kind of variant, and the change of content as control.

    Args:
        encode: Function from N sentences to embeddings (N, d); called once, with all distinct originals and variants.
        sentences: Sentences; duplicates count once. About 1 in 20 sentences of Wikipedia has a clause order to swap.
        seed: Seed of the words replaced in the control and of the folds.

    Returns:
        Scores of all kinds, the control last.

    Raises:
        UsageError: No kind has at least 20 sentences.
    """
    pairs = _variant_pairs(list(dict.fromkeys(sentences)), seed)
    measured = {kind: made for kind, made in pairs.items() if len(made) >= FEWEST}
    if not measured:
        counts = ", ".join(f"{len(made)} {kind}" for kind, made in pairs.items())
        raise UsageError(
            f"Found too few sentences with a variant ({counts})",
            needed=f"{FEWEST} or more of at least one kind",
            fix="Use more or longer sentences.",
        )
    strings = list(dict.fromkeys(string for made in measured.values() for pair in made for string in pair))
    embeddings = np.asarray(encode(strings), dtype=np.float64)  # (distinct strings, d)
    row = {string: i for i, string in enumerate(strings)}
    scores = {}
    for kind, made in measured.items():
        originals, variants = (embeddings[[row[string] for string in side]] for side in zip(*made))  # (n, d) each
        # Computed from the distance of unit vectors, so that the cosine of equal vectors is exactly 1.
        cosines = 1 - ((unit(originals) - unit(variants)) ** 2).sum(-1) / 2  # (n,)
        accuracies = _style_accuracies(originals, variants, seed)
        scores[kind] = [float(value) for x in (cosines, accuracies) for value in (x.mean(), x.std(ddof=1))]
    return [VariantScore(kind, len(made), *scores.get(kind, ())) for kind, made in pairs.items()]


def _variant_pairs(sentences: list[str], seed: int) -> dict[str, list[tuple[str, str]]]:
    """Return for each kind the pairs of original and variant, of sentences that have one."""
    rng = np.random.default_rng(seed)
    # Keep duplicates, so that new words are as frequent as old ones. Leave out names, which look odd in lower case.
    words = [match[0] for sentence in sentences for match in _content_words(sentence) if match[0].islower()]
    makers = VARIANTS | {CONTENT_CHANGED: lambda sentence: content_replaced(sentence, words, rng)}
    made = {kind: [(sentence, make(sentence)) for sentence in sentences] for kind, make in makers.items()}
    return {kind: [(one, other) for one, other in pairs if other is not None] for kind, pairs in made.items()}


def _style_accuracies(originals: np.ndarray, variants: np.ndarray, seed: int) -> np.ndarray:
    """Return the accuracy x 100 (FOLDS,) of classifying embeddings (n, d) as originals or variants.

    A sentence and its variant are in the same fold, so that the classifier is tested on unseen sentences. Each fold has
    equally many originals and variants, so the accuracy is exactly 50 if they do not differ.
    """
    x = np.concatenate([originals, variants])  # (2n, d)
    is_variant = np.repeat([False, True], len(originals))
    sentence = np.tile(np.arange(len(originals)), 2)
    classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    folds = GroupKFold(FOLDS, shuffle=True, random_state=seed)
    return 100 * cross_val_score(classifier, x, is_variant, groups=sentence, cv=folds, error_score="raise")


def _content_words(sentence: str) -> list[re.Match]:
    return [match for match in CONTENT_WORD.finditer(sentence) if match[0].lower() not in FUNCTION_WORDS]


def _matched(match: re.Match[str] | None) -> re.Match[str]:
    """Return the match of a pattern that matches every text."""
    assert match is not None
    return match


def _words(text: str) -> list[str]:
    return [word.lower() for word in WORD.findall(text)]


def _without_capital(text: str) -> str:
    first = _matched(re.match(r"\w*", text))[0]
    lowered = first.lower() in FUNCTION_WORDS and first == first.capitalize() != "I"
    return first.lower() + text[len(first) :] if lowered else text


def _is_complete(text: str) -> bool:
    """Return whether a text has at least 3 words, balanced quotation marks and brackets, and no final abbreviation."""
    balanced = all(text.count(left) == text.count(right) for left, right in ("()", "[]", "“”"))
    return len(_words(text)) >= 3 and balanced and text.count('"') % 2 == 0 and text[-1] != "."


def _opens_like_a_clause(text: str) -> bool:
    first = _words(text)[0]
    others = (RELATIVES - {"that"}).union(COORDINATORS, AUXILIARIES, ADJUNCT_OPENERS)
    return first not in others and not first.endswith("ing")


def _has_subject_and_verb(text: str) -> bool:
    """Return whether a text begins with a pronoun or has an auxiliary before any relative clause."""
    words = _words(text)
    verb = next((word for word in words[1:] if word in AUXILIARIES | RELATIVES), None)
    return words[0] in SUBJECTS or verb in AUXILIARIES


def _adjunct_first(adjunct: str, clause: str) -> tuple[str, str, str] | None:
    """Return A, the separator and the adjunct of "Because B, A" or "In B, A"."""
    words = _words(adjunct)
    opener, follower = words[words[0] == "even" :][:2]
    if opener not in ADJUNCT_OPENERS or not _opens_like_a_clause(clause):
        return None
    if opener not in CLAUSE_OPENERS and len(words) > SHORT_ADJUNCT and not _has_subject_and_verb(clause):
        return None  # "In 1908 Ann founded Acme, the first shop of its kind"
    if opener in PREPOSITIONS and SUBJECTS.intersection(words):
        return None  # "In 1908 she left, later she came back"
    names_subject = opener not in PREPOSITIONS and follower not in SUBJECTS and not follower.endswith("ing")
    if names_subject and _words(clause)[0] in THIRD_PERSON:
        return None  # "After Rome fell, it ...": "it" would refer to something else
    return clause, " " if opener in OPENERS_WITHOUT_COMMA else ", ", adjunct


def _adjunct_after_comma(clause: str, adjunct: str) -> tuple[str, str, str] | None:
    """Return the adjunct, a comma and A of "A, although B"."""
    words = _words(adjunct)
    opener, follower = words[words[0] == "even" :][:2]
    if opener not in OPENERS_AFTER_COMMA or follower in RELATIVES or not _opens_like_a_clause(clause):
        return None
    return adjunct, ", ", clause


def _opener_inside(body: str) -> tuple[str, str, str] | None:
    """Return the adjunct, a comma and A of "A because B"."""
    clauses = OPENER_INSIDE.split(body)
    if len(clauses) != 2 or not all(map(_is_complete, clauses)) or not _opens_like_a_clause(body):
        return None
    clause, adjunct = clauses
    before, (opener, follower, *_) = _words(clause), _words(adjunct)
    if RELATIVES.union(NEGATIONS, CLAUSE_OPENERS, ["but"]).intersection(before) or NEGATED.search(clause):
        return None  # "He said that A because B", "He did not A because B": the adjunct is ambiguous
    if before[-1].endswith("ly") or before[-1] in OPENER_MODIFIERS | AUXILIARIES or before[-1].isdigit():
        return None  # "shortly after", "in 1959 while", "it was because"
    if opener in OPPOSITES and not (follower in SUBJECTS or follower.endswith("ing")):
        return None  # "named after his father"
    return adjunct, ", ", clause
