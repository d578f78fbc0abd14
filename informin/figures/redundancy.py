"""What embeddings remember of a sentence's style: a probe of the claim that InforMin-CL forgets it.

Chen et al. (COLING 2022) call redundant what changes the surface of a sentence but not its meaning (their table 1).
Here such variants are made of real sentences by rules, and each kind of variant is measured in two ways: how near it
stays to its original, and whether a linear classifier can tell variant from original. A change of content is measured
beside them as the control: an encoder that puts every sentence in one place would forget style and meaning alike.

Takes a function from sentences to embeddings, knows no model. The rules are for English.
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
from informin.evaluation.embedding_cache import Encode
from informin.evaluation.geometry import unit

# The closed classes of English words, as far as they are needed here.
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
CONJUNCTIONS = frozenset("although though because when whenever whereas while".split())  # a clause follows
TIME_CONJUNCTIONS = frozenset("as since once".split())  # a clause or a noun follows
COORDINATORS = frozenset("and but or so yet then also".split())
STOP_WORDS = frozenset().union(
    *(PRONOUNS, DETERMINERS, RELATIVES, AUXILIARIES, NON_FINITE_AUXILIARIES),
    *(PREPOSITIONS, CONJUNCTIONS, TIME_CONJUNCTIONS, COORDINATORS),
)
# Function words too, but not among the stop words: a sentence has another meaning without them. The same is true of
# the words with n't, as in don't.
NEGATIONS = frozenset("not no never nor neither none cannot without".split())
CONDITIONS = frozenset("if unless".split())
OPPOSITES = frozenset("after before until above below inside outside over under up down against between".split())
QUANTITIES = frozenset("all both each every few many more most much several only other another one two three".split())
FUNCTION_WORDS = STOP_WORDS.union(NEGATIONS, CONDITIONS, OPPOSITES, QUANTITIES, ["even"])

CLAUSE_OPENERS = CONJUNCTIONS | CONDITIONS
ADJUNCT_OPENERS = CLAUSE_OPENERS.union(TIME_CONJUNCTIONS, PREPOSITIONS, OPPOSITES) - {"of", "to", "than", "per"}
# After a comma "when" mostly describes a date, and "as" and "once" open no clause.
OPENERS_AFTER_COMMA = CLAUSE_OPENERS - {"when"} | {"since", "after", "before", "until"}
OPENERS_WITHOUT_COMMA = frozenset("because if unless when whenever until after before".split())
OPENER_INSIDE = re.compile(r"\s(?=(?:even though|although|because|unless|whereas|while|after|before)\s)")
OPENER_MODIFIERS = frozenset(  # "only because", "the year before": the opener is not the first word of its adjunct
    "even just only soon long and or but as a era time year years month months week weeks day days hours "
    "minutes".split()
)
SHORT_ADJUNCT = 4  # words: too few for a preposition and a clause, so that the clause is what follows
CLAUSE_COMMA = re.compile(r",\s+(?!\d{4}\b)")  # not that of 1,000, nor that of May 1, 2015
BREAK = re.compile(r"""[.!?…:]["”\u2019')]*(?:\s+\W*[A-Z]|$)|;|,["”]""")  # more than one sentence, or a quotation's end
FINAL_PUNCTUATION = re.compile(r"\s*[.!?…]*\s*$")
WORD = re.compile(r"\w+(?:['\u2019.-]\w+)*")
CONTRACTION = re.compile(r"(.+)['\u2019](?:s|m|re|ve|ll|d)", re.IGNORECASE)  # it's, they've; not don't
NEGATED = re.compile(r"n['\u2019]t\b")
CONTENT_WORD = re.compile(r"(?<![\w'\u2019-])[^\W\d_]{4,}(?![\w'\u2019-])")

FOLDS = 5
FEWEST = 20  # sentences: 4 in each test fold
CONTENT_CHANGED = "content changed"


def stop_words_removed(sentence: str) -> str | None:
    """The sentence without its function words. None if it has none, or if fewer than 2 words are left.

    Words with a capital are names and stay (The Who, US), but for the first word of the sentence and I.
    """
    kept, opening = [], ""
    tokens = sentence.split()
    for i, token in enumerate(tokens):
        before, word, after = re.fullmatch(r"(\W*)(.*?)(\W*)", token).groups()
        contracted = CONTRACTION.fullmatch(word)
        stem = contracted[1] if contracted else word
        name = not stem.islower() and stem != "I" and not (i == 0 and stem == stem.capitalize())
        if name or stem.lower() not in STOP_WORDS:
            kept.append(opening + token)
            opening = ""
        else:  # its punctuation goes to its neighbors
            opening += before
            if kept and kept[-1][-1].isalnum():
                kept[-1] += after
    if len(kept) == len(tokens) or sum(WORD.search(token) is not None for token in kept) < 2:
        return None
    return " ".join(kept)


def clause_order_restated(sentence: str) -> str | None:
    """A clause and its adjunct in the other order, punctuation at the end. None unless a statement clearly has two.

    "A because B." and "Because B, A." turn into each other, and so do "A, although B." and "Although B, A."; "In B, A."
    turns into "A, in B." Each has at least 3 words. Clauses joined by "and", "but" or a semicolon stay: their order
    tells what came first and what matters most. So do lists, and sentences with more than one comma between words.
    The old first word loses its capital if it is a function word other than I; any other may be a name and keeps it.
    """
    end = FINAL_PUNCTUATION.search(sentence)
    body = sentence[: end.start()].strip()
    clauses = CLAUSE_COMMA.split(body)
    if "?" in end[0] or len(clauses) > 2 or BREAK.search(body) or not all(map(_is_whole, clauses)):
        return None
    turned = _opener_inside(body) if len(clauses) == 1 else _adjunct_first(*clauses) or _adjunct_after_comma(*clauses)
    if turned is None:
        return None
    first, joint, second = turned
    return first[0].upper() + first[1:] + joint + _without_capital(second) + end[0]


def capitalized(sentence: str) -> str | None:
    """Every Word Of It Capitalized. None if that changes nothing.

    To an uncased tokenizer the variant has the same tokens as the sentence, so that its embedding is the same.
    """
    variant = re.sub(r"((?:^|\s)\W*)(\w)", lambda match: match[1] + match[2].title(), sentence)
    return None if variant == sentence else variant


def hyphen_joined(sentence: str) -> str | None:
    """The-words-joined-by-hyphens, punctuation at the end as it was. None for fewer than 2 words."""
    end = FINAL_PUNCTUATION.search(sentence)
    words = sentence[: end.start()].split()
    return None if len(words) < 2 else "-".join(words) + end[0]


def content_replaced(sentence: str, words: Sequence[str], rng: np.random.Generator) -> str | None:
    """One content word, drawn at random, replaced by one of `words` that is none of its content words, cased like it.

    A content word has 4 letters or more and is no function word. None without one, or if the sentence has all `words`.
    """
    places = _content_words(sentence)
    if not places or not words:
        return None
    place = places[rng.integers(len(places))]
    present = {match[0].lower() for match in places}
    start = rng.integers(len(words))
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
    """How a kind of variant looks to an encoder.

    Attributes:
        kind: a name of `VARIANTS`, or `CONTENT_CHANGED`.
        n: sentences that have such a variant. Below `FEWEST` nothing is measured and every score is NaN.
        cosine, cosine_sd: of original and variant, mean and standard deviation over the n sentences.
        style_accuracy, style_accuracy_sd: x 100, of a linear classifier that reads from one embedding whether it is of
            an original or of a variant, mean and standard deviation over the folds of a cross-validation. 50 is chance.
    """

    kind: str
    n: int
    cosine: float = nan
    cosine_sd: float = nan
    style_accuracy: float = nan
    style_accuracy_sd: float = nan


def probe(encode: Encode, sentences: Iterable[str], seed: int = 0) -> list[VariantScore]:
    """Measures every kind of variant, and the change of content as the control.

    Args:
        encode: from N sentences to (N, d). It is called once, with every original and variant once.
        sentences: a sentence that comes twice counts once. Of Wikipedia's, one in 20 has a clause order to restate.
        seed: of the words exchanged in the control and of the folds.

    Returns:
        A score for every kind, the control last.

    Raises:
        UsageError: no kind has the 20 sentences it needs, or an embedding is zero, NaN or infinite.
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
    _check(embeddings, strings)
    row = {string: i for i, string in enumerate(strings)}
    scores = {}
    for kind, made in measured.items():
        originals, variants = (embeddings[[row[string] for string in side]] for side in zip(*made))  # (n, d) each
        # Of unit vectors by their distance: the cosine of equal vectors is 1 to the last bit.
        cosines = 1 - ((unit(originals) - unit(variants)) ** 2).sum(-1) / 2  # (n,)
        accuracies = _style_accuracies(originals, variants, seed)
        scores[kind] = [float(value) for x in (cosines, accuracies) for value in (x.mean(), x.std(ddof=1))]
    return [VariantScore(kind, len(made), *scores.get(kind, ())) for kind, made in pairs.items()]


def _variant_pairs(sentences: list[str], seed: int) -> dict[str, list[tuple[str, str]]]:
    """For every kind, (original, variant) of the sentences that have one."""
    rng = np.random.default_rng(seed)
    # With repetitions, so that new words are no rarer than old ones; without names, which stand out in lower case.
    words = [match[0] for sentence in sentences for match in _content_words(sentence) if match[0].islower()]
    makers = VARIANTS | {CONTENT_CHANGED: lambda sentence: content_replaced(sentence, words, rng)}
    made = {kind: [(sentence, make(sentence)) for sentence in sentences] for kind, make in makers.items()}
    return {kind: [pair for pair in pairs if pair[1] is not None] for kind, pairs in made.items()}


def _check(embeddings: np.ndarray, strings: list[str]) -> None:
    if embeddings.ndim != 2 or len(embeddings) != len(strings):
        raise UsageError(
            f"The encoder returned an array of shape {embeddings.shape} for {len(strings)} sentences",
            needed="one row per sentence",
        )
    lengths = np.linalg.norm(embeddings, axis=1)
    bad = np.flatnonzero(~np.isfinite(lengths) | (lengths == 0))
    if len(bad):
        raise UsageError(
            f"{len(bad)} of {len(strings)} embeddings are zero, NaN or infinite, the first for {strings[bad[0]]!r}",
            fix="Check the encoder and its precision.",
        )


def _style_accuracies(originals: np.ndarray, variants: np.ndarray, seed: int) -> np.ndarray:
    """(FOLDS,): accuracy x 100 of telling (n, d) originals from variants.

    A sentence and its variant are in the same fold, so that the classifier is tested on sentences it has not seen.
    Every fold has as many originals as variants, so that where they do not differ, any answer is right for just half.
    """
    x = np.concatenate([originals, variants])  # (2n, d)
    is_variant = np.repeat([False, True], len(originals))
    sentence = np.tile(np.arange(len(originals)), 2)
    classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    folds = GroupKFold(FOLDS, shuffle=True, random_state=seed)
    return 100 * cross_val_score(classifier, x, is_variant, groups=sentence, cv=folds, error_score="raise")


def _content_words(sentence: str) -> list[re.Match]:
    return [match for match in CONTENT_WORD.finditer(sentence) if match[0].lower() not in FUNCTION_WORDS]


def _words(text: str) -> list[str]:
    return [word.lower() for word in WORD.findall(text)]


def _without_capital(text: str) -> str:
    first = re.match(r"\w*", text)[0]
    lowered = first.lower() in FUNCTION_WORDS and first == first.capitalize() != "I"
    return first.lower() + text[len(first) :] if lowered else text


def _is_whole(text: str) -> bool:
    """At least 3 words, neither quotation marks nor brackets cut in two, no abbreviation last."""
    balanced = all(text.count(left) == text.count(right) for left, right in ("()", "[]", "“”"))
    return len(_words(text)) >= 3 and balanced and text.count('"') % 2 == 0 and text[-1] != "."


def _opens_like_a_clause(text: str) -> bool:
    first = _words(text)[0]
    others = (RELATIVES - {"that"}).union(COORDINATORS, AUXILIARIES, ADJUNCT_OPENERS)
    return first not in others and not first.endswith("ing")


def _has_subject_and_verb(text: str) -> bool:
    """A pronoun in front, or an auxiliary before any relative clause: a mere noun with its attributes has neither."""
    words = _words(text)
    verb = next((word for word in words[1:] if word in AUXILIARIES | RELATIVES), None)
    return words[0] in SUBJECTS or verb in AUXILIARIES


def _adjunct_first(adjunct: str, clause: str) -> tuple[str, str, str] | None:
    """Of "Because B, A" or "In B, A": A, what joins them, the adjunct."""
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
        return None  # "After Rome fell, it ...": in "It ... after Rome fell", it is something else
    return clause, " " if opener in OPENERS_WITHOUT_COMMA else ", ", adjunct


def _adjunct_after_comma(clause: str, adjunct: str) -> tuple[str, str, str] | None:
    """Of "A, although B": the adjunct, a comma, A."""
    words = _words(adjunct)
    opener, follower = words[words[0] == "even" :][:2]
    if opener not in OPENERS_AFTER_COMMA or follower in RELATIVES or not _opens_like_a_clause(clause):
        return None
    return adjunct, ", ", clause


def _opener_inside(body: str) -> tuple[str, str, str] | None:
    """Of "A because B": the adjunct, a comma, A."""
    clauses = OPENER_INSIDE.split(body)
    if len(clauses) != 2 or not all(map(_is_whole, clauses)) or not _opens_like_a_clause(body):
        return None
    clause, adjunct = clauses
    before, (opener, follower, *_) = _words(clause), _words(adjunct)
    if RELATIVES.union(NEGATIONS, CLAUSE_OPENERS, ["but"]).intersection(before) or NEGATED.search(clause):
        return None  # "He said that A because B", "He did not A because B": it is not sure what the adjunct belongs to
    if before[-1].endswith("ly") or before[-1] in OPENER_MODIFIERS | AUXILIARIES or before[-1].isdigit():
        return None  # "shortly after", "in 1959 while", "it was because"
    if opener in OPPOSITES and not (follower in SUBJECTS or follower.endswith("ing")):
        return None  # "named after his father"
    return adjunct, ", ", clause
