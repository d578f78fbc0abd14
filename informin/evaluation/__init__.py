"""Scores of sentence embeddings. Takes an encode() callable; imports no model."""

from informin.evaluation.pairs import GradedPairs, load_pairs, load_stsb_dev, score_pairs

__all__ = ["GradedPairs", "load_pairs", "load_stsb_dev", "score_pairs"]
