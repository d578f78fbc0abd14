#!/usr/bin/env bash
# In one call of ir-measures, RR and RR@10 of the same run disagree on which text is first.
#
# Versions: ir-measures 0.4.3, pytrec-eval-terrier 0.5.11, Python 3.11.
# Behavior: ir-measures takes RR, P and nDCG from trec_eval, and RR with a cutoff from a script of MS MARCO. For equal
#   scores, the larger id is first for trec_eval, and the smaller one for RR with a cutoff. So the best hit is relevant
#   for RR@1 and not for P@1, or the reverse. trec_eval also rounds scores to float32: two float64 scores that differ
#   can become equal.
# Output seen (one relevant text and one that is not):
#   equal scores, "a" is relevant: {'P@1': 0.0, 'RR': 0.5, 'RR@1': 1.0, 'RR@10': 1.0}
#   equal scores, "b" is relevant: {'P@1': 1.0, 'RR': 1.0, 'RR@1': 0.0, 'RR@10': 0.5}
#   "a" is relevant and scores 20.0000005 against 20: {'P@1': 0.0, 'RR': 0.5, 'RR@1': 1.0, 'RR@10': 1.0}
#   "a" is relevant and scores 21 against 20: {'P@1': 1.0, 'RR': 1.0, 'RR@1': 1.0, 'RR@10': 1.0}
# Exit code: 0 if the behavior is as stated, 1 if it changed, 2 if the installation failed.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder" &&
    "$folder/bin/pip" install --quiet --no-compile ir-measures==0.4.3 pytrec-eval-terrier==0.5.11 || exit 2
"$folder/bin/python" - <<'EOF'
import sys

import ir_measures
from ir_measures import RR, P

MEASURES = [P @ 1, RR, RR @ 1, RR @ 10]


def measured(relevant, scores):
    relevance = {"query": {text: int(text == relevant) for text in scores}}
    values = ir_measures.calc_aggregate(MEASURES, relevance, {"query": scores})
    return {str(measure): values[measure] for measure in MEASURES}


first = measured("a", {"a": 1.0, "b": 1.0})
second = measured("b", {"a": 1.0, "b": 1.0})
close = measured("a", {"a": 20.0000005, "b": 20.0})
clear = measured("a", {"a": 21.0, "b": 20.0})
print('equal scores, "a" is relevant:', first)
print('equal scores, "b" is relevant:', second)
print('"a" is relevant and scores 20.0000005 against 20:', close)
print('"a" is relevant and scores 21 against 20:', clear)
as_stated = (
    list(first.values()) == [0, 0.5, 1, 1]
    and list(second.values()) == [1, 1, 0, 0.5]
    and close == first
    and list(clear.values()) == [1, 1, 1, 1]
)
sys.exit(not as_stated)
EOF
