"""Scores of sentence embeddings. Takes an encode() callable; imports no model."""

from informin.evaluation.pairs import GradedPairs, load_pairs, score_pairs
from informin.evaluation.senteval import load_stsb_dev, load_task

__all__ = ["GradedPairs", "load_pairs", "load_stsb_dev", "load_task", "score_pairs"]
