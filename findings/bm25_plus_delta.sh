#!/usr/bin/env bash
# The delta of BM25+ changes no ranking in rank-bm25 and bm25s: texts without the word get it, too.
#
# Versions: rank-bm25 0.2.2, bm25s 0.3.16, NumPy 2.4.6, Python 3.11.
# Behavior: BM25+ (Lv and Zhai, 2011) adds delta for each word that the query and the text share, so that a long text
#   with a word stays above a text without it. Both libraries add delta for every word of the query to all texts. All
#   scores of a query rise by the same number, so the ranking is that of delta 0, and a text that shares no word with
#   the query has a positive score.
# Output seen (query "a b"; text 0 has both words and 60 others, text 1 has one of them three times, text 2 none):
#   rank-bm25, delta 0: scores [1.18, 1.89, 0.0], best text 1
#   rank-bm25, delta 1: scores [3.7, 4.42, 2.53], best text 1
#   bm25s, delta 0: scores [1.18, 1.89, 0.0], best text 1
#   bm25s, delta 1: scores [3.7, 4.42, 2.53], best text 1
#   paper, delta 0: scores [1.18, 1.89, 0.0], best text 1
#   paper, delta 1: scores [3.7, 2.81, 0.0], best text 0
# Exit code: 0 if the behavior is as stated, 1 if it changed, 2 if the installation failed.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder" &&
    "$folder/bin/pip" install --quiet --no-compile rank-bm25==0.2.2 bm25s==0.3.16 numpy==2.4.6 || exit 2
"$folder/bin/python" -W ignore - <<'EOF'
import math
import sys

import bm25s
import numpy as np
from rank_bm25 import BM25Plus

K1 = 1.5
B = 0.75
texts = [["a", "b"] + ["x"] * 60, ["b", "b", "b", "z"], ["c", "d"], ["e", "f"]]
query = ["a", "b"]


def by_rank_bm25(delta):
    return BM25Plus(texts, k1=K1, b=B, delta=delta).get_scores(query)


def by_bm25s(delta):
    index = bm25s.BM25(method="bm25+", k1=K1, b=B, delta=delta)
    index.index(texts, show_progress=False)
    return index.get_scores(query)


def by_paper(delta):
    """Return the sums over the words that query and text share."""
    mean = sum(len(text) for text in texts) / len(texts)
    scores = []
    for text in texts:
        score = 0
        for word in query:
            count = text.count(word)
            if count:
                part = (K1 + 1) * count / (K1 * (1 - B + B * len(text) / mean) + count)
                score += math.log((len(texts) + 1) / sum(word in other for other in texts)) * (part + delta)
        scores.append(score)
    return scores


results = {}
for name, score in (("rank-bm25", by_rank_bm25), ("bm25s", by_bm25s), ("paper", by_paper)):
    for delta in (0, 1):
        scores = [round(float(value), 2) for value in score(delta)]
        results[name, delta] = scores
        print(f"{name}, delta {delta}: scores {scores[:3]}, best text {int(np.argmax(scores))}")
plain = results["paper", 0]
correct = results["paper", 1]
shifted = results["bm25s", 1]
equal = plain == results["bm25s", 0] == results["rank-bm25", 0] and shifted == results["rank-bm25", 1]
sys.exit(not (equal and np.ptp(np.subtract(shifted, plain)) < 0.03 and shifted[2] > 0 and correct[0] > correct[1]))
EOF
