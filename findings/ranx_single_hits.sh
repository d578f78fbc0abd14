#!/usr/bin/env bash
# The only hit of a retriever counts nothing in ranx: its score after min-max normalization is 0.
#
# Versions: ranx 0.3.21, NumPy 2.4.6, Python 3.11.
# Behavior: fuse() normalizes by "min-max" unless it is told otherwise. It then gives 0 to the worst hit of a query, as
#   to a text that was not found. If a query has one hit, or hits with equal scores, they are both the best and the
#   worst, and all of them get 0. Search by words often has one hit. norm="max" keeps such hits, and so does
#   method="rrf", which reads ranks and needs norm=None.
# Output seen (words find "a" alone; vectors find "b" with 0.9, "c" with 0.8 and "a" with 0.7):
#   one hit: {'a': 0.0, 'b': 1.0, 'c': 0.5}
#   one hit, norm="max": {'a': 1.78, 'b': 1.0, 'c': 0.89}
#   one hit, method="rrf": {'a': 0.03, 'b': 0.02, 'c': 0.02}
#   hits "a", "x" and "y" with equal scores: {'a': 0.0, 'b': 1.0, 'c': 0.5, 'x': 0.0, 'y': 0.0}
# Exit code: 0 if the behavior is as stated, 1 if it changed, 2 if the installation failed.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder" &&
    "$folder/bin/pip" install --quiet --no-compile ranx==0.3.21 numpy==2.4.6 || exit 2
# Without numba's compiler, four small calls take seconds instead of a minute, and have the same results.
NUMBA_DISABLE_JIT=1 "$folder/bin/python" -W ignore - <<'EOF'
import sys

from ranx import Run, fuse

VECTORS = {"b": 0.9, "c": 0.8, "a": 0.7}


def fused(words, **options):
    """Return the fused scores of the hits by words and by vectors."""
    run = fuse([Run({"query": words}), Run({"query": VECTORS})], **options)
    return {text: round(float(score), 2) for text, score in sorted(run.run["query"].items())}


results = {
    "one hit": fused({"a": 12.5}, method="sum"),
    'one hit, norm="max"': fused({"a": 12.5}, method="sum", norm="max"),
    'one hit, method="rrf"': fused({"a": 12.5}, method="rrf", norm=None),
    'hits "a", "x" and "y" with equal scores': fused({"a": 12.5, "x": 12.5, "y": 12.5}, method="sum"),
}
for name, scores in results.items():
    print(f"{name}: {scores}")
single, by_maximum, by_ranks, equal = results.values()
lost = {"a": 0, "b": 1, "c": 0.5}
kept = max(by_maximum, key=by_maximum.get) == max(by_ranks, key=by_ranks.get) == "a"
sys.exit(not (single == lost and equal == lost | {"x": 0, "y": 0} and kept))
EOF
