"""Scores of sentence embeddings, from an encode() function. Does not import models."""
