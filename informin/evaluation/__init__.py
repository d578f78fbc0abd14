"""Scores of sentence embeddings, from an encode() function. Does not import models."""

from informin.evaluation.pairs import GradedPairs, load_pairs, score_pairs
from informin.evaluation.senteval import load_stsb_dev, load_task

__all__ = ["GradedPairs", "load_pairs", "load_stsb_dev", "load_task", "score_pairs"]
