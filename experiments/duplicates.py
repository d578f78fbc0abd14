"""Precision and recall of near-duplicates in collections with made duplicates and near misses, and the time they take.

    python -m experiments.duplicates --model_name MODEL --train_file FILE FILE --texts 1000 --seed 0 --vectors_dir DIR
    python -m experiments.duplicates --train_file TEXTS.txt.gz --seconds 100000

A fifth of the texts get a duplicate: typing errors, another case, another order, or fewer function words. Another fifth
get a near miss: one content word or number is replaced by another one of the texts, or left out. All other pairs count
as false, also those that are alike in the file. MinHash needs `datasketch`, and SemHash, which gets the same vectors,
`semhash`. The second command prints the CPU seconds for so many texts, with random vectors around 100 centers.
"""

import argparse
import random
import re
import string
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import numpy as np

import informin
from experiments.tables import markdown
from informin.evaluation.rows import unit_rows
from informin.frozen.near_duplicates import Words, repeated_rows
from informin.frozen.unrelated import unrelated_scores
from informin.model.embedding import embed
from informin.texts import read_texts

Pairs = set[tuple[int, int]]

WORD = re.compile(r"\w[\w#+.'-]*\w[#+]*|\w[#+]*")
FUNCTION_WORDS = frozenset(
    "a an the is are was were be been do does did to of in on for with at by from and or as that this it its there my "
    "your i me you we how what which when where can could would should will".split()
)
FEWEST_WORDS = 5  # of a text that is changed
KEYS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")


@dataclass(frozen=True)
class Collection:
    """Texts, and what was made from which.

    Attributes:
        texts: N texts: those of the file, then the made ones, all in random order.
        duplicates: Kind of change by pair of rows (smaller, larger).
        misses: Pairs of rows that differ in one content word or number.
    """

    texts: list[str]
    duplicates: dict[tuple[int, int], str]
    misses: set[tuple[int, int]]


def typing_errors(words: list[str], draw: random.Random) -> list[str]:
    """Return words with a typing error in one of six: two letters swapped, or one lost, doubled or hit beside."""
    places = [place for place, word in enumerate(words) if len(word) >= 4 and word.isalpha()]
    changed = list(words)
    for place in draw.sample(places, min(len(places), max(1, round(len(words) / 6)))):
        word, at = words[place], draw.randrange(1, len(words[place]) - 1)
        kind = draw.choice(("swap", "lose", "double", "beside"))
        if kind == "swap":
            word = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
        elif kind == "lose":
            word = word[:at] + word[at + 1 :]
        elif kind == "double":
            word = word[:at] + word[at] + word[at:]
        else:
            word = word[:at] + beside(word[at], draw) + word[at + 1 :]
        changed[place] = word
    return changed


def beside(letter: str, draw: random.Random) -> str:
    """Return a letter beside another one on the keyboard."""
    for row in KEYS:
        if letter.lower() in row:
            at = row.index(letter.lower())
            return draw.choice([row[place] for place in (at - 1, at + 1) if 0 <= place < len(row)])
    return draw.choice(string.ascii_lowercase)


def other_case(words: list[str], draw: random.Random) -> list[str]:
    """Return words in capital letters, in small letters, or each with a capital letter, without marks at the end."""
    words = [*words[:-1], words[-1].rstrip("?.! ") or words[-1]]
    change = draw.choice((str.upper, str.lower, str.capitalize))
    return [change(word) for word in words]


def other_order(words: list[str], draw: random.Random) -> list[str]:
    """Return words of which the last ones, 2 or more, come first."""
    at = draw.randrange(2, len(words) - 1)
    return words[at:] + words[:at]


def fewer_words(words: list[str], draw: random.Random) -> list[str]:
    """Return words without half of the function words, one or more."""
    places = [place for place, word in enumerate(words) if word.lower() in FUNCTION_WORDS]
    dropped = set(draw.sample(places, -(-len(places) // 2)))
    return [word for place, word in enumerate(words) if place not in dropped]


CHANGES: dict[str, Callable[[list[str], random.Random], list[str]]] = {
    "typing errors": typing_errors,
    "case": other_case,
    "order": other_order,
    "function words": fewer_words,
}


class NearMisses:
    """Changes one content word or number of a text, so that it says something else.

    In three of four texts, another word of the texts replaces it, one that also follows the same word if there is one.
    In the others, it is left out.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self.following: dict[str, list[str]] = defaultdict(list)
        self.content: list[str] = []
        for text in texts:
            words = WORD.findall(text)
            for before, word in zip(["", *words], words):
                if is_content(word):
                    self.following[before.lower()].append(word)
                    self.content.append(word)

    def change(self, text: str, draw: random.Random) -> str | None:
        """Return the changed text; None without a content word."""
        matches = list(WORD.finditer(text))
        places = [place for place, match in enumerate(matches) if is_content(match[0])]
        if not places:
            return None
        place = draw.choice(places)
        start, end = matches[place].span()
        if draw.random() < 0.25:
            return " ".join((text[:start] + text[end:]).split())
        before = matches[place - 1][0].lower() if place else ""
        others = [word for word in self.following[before] if not has_same_stem(word, text[start:end])]
        others = others or [word for word in self.content if not has_same_stem(word, text[start:end])]
        return text[:start] + draw.choice(others) + text[end:]


def is_content(word: str) -> bool:
    return word.lower() not in FUNCTION_WORDS and (
        len(word) > 3 or any(sign.isdigit() for sign in word) or word.isupper()
    )


def has_same_stem(a: str, b: str) -> bool:
    return a.lower()[:4] == b.lower()[:4] and not any(sign.isdigit() for sign in a + b)


def make_collection(path: str, number: int, seed: int) -> Collection:
    """Return `number` texts of a file, a fifth of which have a made duplicate, and another fifth a near miss."""
    draw = random.Random(seed)
    every = sorted({" ".join(text.split()) for text in read_texts(path)})
    long = [text for text in every if FEWEST_WORDS <= len(text.split()) <= 40]
    texts = draw.sample(long, min(number, len(long)))
    near = NearMisses(every)
    made: list[tuple[int, str, str]] = []  # row of the original, the text, what was changed
    for row in range(len(texts) // 5):
        kind = list(CHANGES)[row % len(CHANGES)]
        words = texts[row].split()
        if kind == "function words" and not any(word.lower() in FUNCTION_WORDS for word in words):
            continue
        made.append((row, " ".join(CHANGES[kind](words, draw)), kind))
    for row in range(len(texts) // 5, 2 * (len(texts) // 5)):
        if changed := near.change(texts[row], draw):
            made.append((row, changed, "near miss"))
    made = [entry for entry in made if entry[1] != texts[entry[0]]]
    order = list(range(len(texts) + len(made)))
    draw.shuffle(order)  # order[i]: new row of the i-th text
    shuffled = [""] * len(order)
    for row, text in zip(order, [*texts, *(text for _, text, _ in made)]):
        shuffled[row] = text
    pairs = {tuple(sorted((order[row], order[len(texts) + i]))): kind for i, (row, _, kind) in enumerate(made)}
    duplicates = {pair: kind for pair, kind in pairs.items() if kind != "near miss"}
    return Collection(shuffled, duplicates, {pair for pair, kind in pairs.items() if kind == "near miss"})


def ordered(pairs: Iterable[tuple[int, int]]) -> Pairs:
    return {(min(pair), max(pair)) for pair in pairs}


def pairs_above(x: np.ndarray, lowest: float) -> Pairs:
    return set(zip(*(rows.tolist() for rows in np.nonzero(np.triu(x @ x.T, 1) >= lowest))))


def best_cosine(x: np.ndarray, duplicates: Pairs) -> float:
    """Return the cosine with the highest F1, which needs the labels."""
    rows, columns = np.triu_indices(len(x), 1)
    cosines = (x @ x.T)[rows, columns]
    right = np.array([pair in duplicates for pair in zip(rows.tolist(), columns.tolist())])
    order = np.argsort(-cosines)
    f1 = 2 * np.cumsum(right[order]) / (np.arange(1, len(order) + 1) + len(duplicates))
    return float(cosines[order[f1.argmax()]])


def minhash(texts: Sequence[str], lowest: float) -> Pairs:
    """Return pairs with a Jaccard index of their character trigrams, estimated from 256 hashes."""
    from datasketch import MinHash, MinHashLSH

    index = MinHashLSH(threshold=lowest, num_perm=256)
    found = set()
    for row, text in enumerate(texts):
        folded = " ".join(text.casefold().split())
        sketch = MinHash(num_perm=256)
        sketch.update_batch({folded[i : i + 3].encode() for i in range(max(1, len(folded) - 2))})
        found |= {(other, row) for other in index.query(sketch)}
        index.insert(row, sketch)
    return found


def semhash(texts: Sequence[str], x: np.ndarray) -> Pairs:
    """Return the pairs of SemHash with the same vectors and its default cosine of 0.9."""
    from semhash import SemHash

    row_of = {text: row for row, text in enumerate(texts)}
    found = SemHash.from_embeddings(x, list(texts), model=None).self_deduplicate()
    return ordered((row_of[pair.record], row_of[pair.duplicate_of]) for pair in found.filtered)


def found_by_rule(collection: Collection, vectors: np.ndarray) -> dict[str, Pairs]:
    """Return the pairs that each rule finds."""
    texts, x = collection.texts, unit_rows(vectors)
    scores = unrelated_scores(vectors)
    by_words = repeated_rows(x, None, Words(texts))
    rules = {
        "informin.duplicates": ordered(pair[:2] for pair in informin.duplicates(None, texts, embeddings=vectors).pairs),
        "its words alone": ordered(pair[:2] for pair in by_words),
        "its cosine alone": pairs_above(x, scores.threshold() if scores else 0),
        "cosine, 0.001 unrelated per query": pairs_above(x, scores.threshold(0.001) if scores else 0),
        "cosine 0.9": pairs_above(x, 0.9),
        "best cosine in hindsight": pairs_above(x, best_cosine(x, set(collection.duplicates))),
    }
    if find_spec("semhash"):
        rules["SemHash 0.9"] = semhash(texts, x)
    if find_spec("datasketch"):
        rules |= {f"MinHash {lowest}": minhash(texts, lowest) for lowest in (0.5, 0.7, 0.9)}
    return rules


def scored(found: Pairs, collection: Collection) -> str:
    """Return precision, recall and F1 in percent."""
    right = len(found & set(collection.duplicates))
    precision, recall = right / max(1, len(found)), right / len(collection.duplicates)
    f1 = 2 * right / (len(found) + len(collection.duplicates))
    return f"{100 * precision:.1f} / {100 * recall:.1f} / {100 * f1:.1f}"


def seconds(path: str, number: int) -> None:
    """Print the CPU seconds for texts with random vectors around 100 centers."""
    texts = list(islice(read_texts(path), number))
    draws = np.random.default_rng(0)
    centers = draws.standard_normal((100, 384), dtype=np.float32)
    vectors = centers[draws.integers(100, size=len(texts))] + draws.standard_normal((len(texts), 384), "f4")
    for threshold in (None, 0.9):
        start = time.process_time()
        found = informin.duplicates(None, texts, threshold, embeddings=vectors)
        took = time.process_time() - start
        print(f"{len(texts):,} texts, threshold {threshold}: {took:.1f} CPU seconds, {len(found.pairs):,} pairs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name", help="folder or Hub id")
    parser.add_argument("--train_file", nargs="+", required=True, help="files of texts")
    parser.add_argument("--texts", type=int, default=1_000, help="texts of each file, before changed ones are added")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--prompt", help="prompt of the model")
    parser.add_argument("--vectors_dir", help="folder in which embeddings are kept")
    parser.add_argument("--seconds", type=int, help="print the time for so many texts instead")
    options = parser.parse_args()
    if options.seconds:
        seconds(options.train_file[0], options.seconds)
        return
    rows: dict[str, list[str]] = defaultdict(list)
    names = []
    for path in options.train_file:
        collection = make_collection(path, options.texts, options.seed)
        names.append(Path(path).name.partition(".")[0])
        output = options.vectors_dir and Path(options.vectors_dir, f"{names[-1]}.npy")
        vectors = np.array(embed(options.model_name, collection.texts, output, prompt=options.prompt))
        print(f"{names[-1]}: {len(collection.duplicates)} duplicates, {len(collection.misses)} near misses")
        for rule, found in found_by_rule(collection, vectors).items():
            rows[rule].append(scored(found, collection))
    title = f"{Path(options.model_name).name}: precision / recall / F1"
    print(markdown(title, ["rule", *names], [[rule, *cells] for rule, cells in rows.items()]))


if __name__ == "__main__":
    main()
