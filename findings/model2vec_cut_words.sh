#!/usr/bin/env bash
# model2vec cuts a text by characters before it counts tokens: words are lost, and the last one can become another word.
#
# Versions: model2vec 0.10.0, tokenizers 0.23.3, NumPy 2.4.6, Python 3.11.
# Behavior: encode(max_length=n) keeps the first n times m characters, where m is the median length of the tokens in the
#   vocabulary, and only then truncates to n tokens. A text of longer words loses tokens although it has at most n of
#   them, and the cut goes through a word: "carpet" becomes "car". The default of 512 does the same to long texts. With
#   max_length=None nothing is cut.
# Output seen (the median length is 3; the share of each word in the embedding):
#   "library carpet", max_length=3: {'library': 1.0}
#   "library carpet", max_length=None: {'library': 0.5, 'carpet': 0.5}
#   "carpet", max_length=1: {'car': 1.0}
#   400 times "library" and 100 times "carpet", max_length=512: {'library': 1.0}
#   400 times "library" and 100 times "carpet", max_length=None: {'library': 0.8, 'carpet': 0.2}
# Exit code: 0 if the behavior is as stated, 1 if it changed, 2 if the installation failed.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder" &&
    "$folder/bin/pip" install --quiet --no-compile model2vec==0.10.0 tokenizers==0.23.3 numpy==2.4.6 || exit 2
"$folder/bin/python" -W ignore - <<'EOF'
import sys

import numpy as np
from model2vec import StaticModel
from tokenizers import Tokenizer, models, pre_tokenizers

WORDS = ["[UNK]", "car", "red", "map", "sea", "ice", "library", "carpet"]
tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, "[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
model = StaticModel(np.eye(len(WORDS), dtype=np.float32), tokenizer)


def shares(text, max_length):
    """Return the share of each word in the mean of the embeddings."""
    embedding = model.encode(text, max_length=max_length)
    return {word: round(float(share), 3) for word, share in zip(WORDS, embedding) if share}


many = " ".join(["library"] * 400 + ["carpet"] * 100)
asked = [("library carpet", 3), ("library carpet", None), ("carpet", 1), (many, 512), (many, None)]
results = []
for text, max_length in asked:
    results.append(shares(text, max_length))
    name = '400 times "library" and 100 times "carpet"' if text == many else f'"{text}"'
    print(f"{name}, max_length={max_length}: {results[-1]}")
as_stated = results == [
    {"library": 1},
    {"library": 0.5, "carpet": 0.5},
    {"car": 1},
    {"library": 1},
    {"library": 0.8, "carpet": 0.2},
]
sys.exit(not as_stated)
EOF
