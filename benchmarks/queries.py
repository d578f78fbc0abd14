"""Parts of texts that benchmarks use as queries for the rest of the text.

* halves: the second half of a text, for its first half
* crop: the rest of a text, for 3 to 20 consecutive words cut from it
* keywords: a text, for its five words with the highest TF-IDF
* beginning: the rest of a text, for its first sentence, or its first third if there is one sentence
"""

import random
import re

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer

from benchmarks.prediction import Data, Encode
from informin.adapters.prediction import HalvesTest, halves, hold_out


def crop(text: str, source: random.Random) -> tuple[str, str]:
    """Cut 3 to 20 consecutive words, at most half, from a text."""
    words = text.split()
    length = min(source.randint(3, 20), max(1, len(words) // 2))
    start = source.randint(0, len(words) - length)
    return " ".join(words[start : start + length]), " ".join(words[:start] + words[start + length :])


def beginning(text: str) -> tuple[str, str]:
    """Cut the first sentence from a text, or its first third."""
    sentences = re.split(r"(?<=[.!?])\s+", text.strip(), maxsplit=1)
    words = text.split()
    third = max(1, len(words) // 3)
    return (sentences[0], sentences[1]) if len(sentences) > 1 else (" ".join(words[:third]), " ".join(words[third:]))


def keywords(texts: list[str], held_out: np.ndarray) -> list[str]:
    """Return the five words of each held-out text with the highest TF-IDF."""
    vectorizer = TfidfVectorizer(stop_words="english", sublinear_tf=True)
    weights = vectorizer.fit_transform(texts)[held_out]
    names = vectorizer.get_feature_names_out()
    found = []
    for text, row in zip(held_out, weights):
        best = row.indices[np.argsort(-row.data, kind="stable")][:5]
        found.append(" ".join(names[best]) or texts[text])
    return found


def tests_of(data: Data, encode: Encode, vectors: np.ndarray) -> dict[str, HalvesTest]:
    """Return the retrieval criteria of a data set."""
    held_out = hold_out(data.texts)
    fit_on = np.delete(vectors, held_out, axis=0)
    texts, source = [data.texts[i] for i in held_out], random.Random(0)
    words = keywords(data.texts, held_out)
    pairs = {
        "halves": [halves(text) for text in texts],
        "crop": [crop(text, source) for text in texts],
        "keywords": list(zip(words, texts)),
        "beginning": [beginning(text) for text in texts],
    }
    return {name: HalvesTest(fit_on, *(encode(list(side)) for side in zip(*both))) for name, both in pairs.items()}
