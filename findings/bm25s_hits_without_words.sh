#!/usr/bin/env bash
# bm25s fills a result up to k with texts that share no word with the query, and a query without known words has k hits.
#
# Versions: bm25s 0.3.16, NumPy 2.4.6, Python 3.11.
# Behavior: retrieve(k) always returns k texts. Texts with a score of 0 are among them, in an order that has no meaning:
#   for a query whose words occur nowhere, the last texts of the collection, the last one first. Reciprocal rank fusion
#   of such a list gives them the credit of good hits: below, the fused winner is a text that no retriever preferred.
# Output seen:
#   known word: texts [2, 5, 4], scores [0.64, 0.0, 0.0]
#   unknown word: texts [5, 4, 3], scores [0.0, 0.0, 0.0]
#   fused with vectors that rank [0, 5, 1]: winner 5; without hits of score 0: winner 0
# Exit code: 0 if the behavior is as stated, 1 if it changed, 2 if the installation failed.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder" && "$folder/bin/pip" install --quiet --no-compile bm25s==0.3.16 numpy==2.4.6 || exit 2
"$folder/bin/python" -W ignore - <<'EOF'
import sys
from collections import defaultdict

import bm25s

texts = ["a ferry to the island", "grilled fish", "tickets for the museum", "rain in april", "two old maps", "a red door"]
silent = {"show_progress": False}
index = bm25s.BM25()
index.index(bm25s.tokenize(texts, **silent), **silent)


def hits(query):
    found = index.retrieve(bm25s.tokenize([query], **silent), k=3, **silent)
    return found.documents[0].tolist(), [round(float(score), 2) for score in found.scores[0]]


def winner(*lists):
    credit = defaultdict(float)
    for ranking in lists:
        for rank, text in enumerate(ranking, 1):
            credit[text] += 1 / (60 + rank)
    return max(credit, key=credit.get)


known, known_scores = hits("museum")
unknown, unknown_scores = hits("zeppelin")
by_vectors = [0, 5, 1]
fused = winner(unknown, by_vectors)
kept = [text for text, score in zip(unknown, unknown_scores) if score > 0]
clean = winner(kept, by_vectors)
print(f"known word: texts {known}, scores {known_scores}")
print(f"unknown word: texts {unknown}, scores {unknown_scores}")
print(f"fused with vectors that rank {by_vectors}: winner {fused}; without hits of score 0: winner {clean}")
as_stated = (
    known[0] == 2
    and known_scores[1:] == [0, 0]
    and unknown == [5, 4, 3]
    and unknown_scores == [0, 0, 0]
    and (fused, clean) == (5, 0)
)
sys.exit(not as_stated)
EOF
