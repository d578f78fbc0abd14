#!/usr/bin/env bash
# beir removes each hit that has the id of its query, also if queries and documents are numbered independently.
#
# Versions: beir 2.2.0, pytrec-eval-terrier 0.5.11, NumPy 2.4.6, Python 3.11.
# Behavior: EvaluateRetrieval.evaluate has ignore_identical_ids=True. It deletes such hits from the run that it was
#   given, so the caller's run stays changed, and measures the rest. This is meant for data sets whose queries are
#   documents. In a data set with queries 0 to n and documents 0 to n, correct hits are lost by chance. pytrec_eval,
#   with which beir measures, counts them, and so does ignore_identical_ids=False.
# Output seen (two queries, the relevant document is first for both and has the id of the query):
#   beir: NDCG@10 0.0, the run is now {'1': {'2': 0.5}, '2': {'1': 0.4}}
#   beir, ignore_identical_ids=False: NDCG@10 1.0
#   pytrec_eval: NDCG@10 1.0
# Exit code: 0 if the behavior is as stated, 1 if it changed, 2 if the installation failed.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# Only its evaluation runs here, so beir is installed without the packages that load and train models.
"${PYTHON:-python3}" -m venv "$folder" &&
    "$folder/bin/pip" install --quiet --no-compile pytrec-eval-terrier==0.5.11 numpy==2.4.6 tqdm==4.70.1 &&
    "$folder/bin/pip" install --quiet --no-compile --no-deps beir==2.2.0 || exit 2
"$folder/bin/python" - <<'EOF'
import sys

import pytrec_eval
from beir.retrieval.evaluation import EvaluateRetrieval

relevant = {"1": {"1": 1}, "2": {"2": 1}}


def run():
    return {"1": {"1": 0.9, "2": 0.5}, "2": {"2": 0.9, "1": 0.4}}


def by_beir(hits, **options):
    return EvaluateRetrieval.evaluate(relevant, hits, [10], **options)[0]["NDCG@10"]


hits = run()
default = by_beir(hits)
every_hit = by_beir(run(), ignore_identical_ids=False)
measured = pytrec_eval.RelevanceEvaluator(relevant, {"ndcg_cut.10"}).evaluate(run())
plain = sum(query["ndcg_cut_10"] for query in measured.values()) / len(measured)
print(f"beir: NDCG@10 {default}, the run is now {hits}")
print(f"beir, ignore_identical_ids=False: NDCG@10 {every_hit}")
print(f"pytrec_eval: NDCG@10 {plain}")
sys.exit((default, hits, every_hit, plain) != (0, {"1": {"2": 0.5}, "2": {"1": 0.4}}, 1, 1))
EOF
