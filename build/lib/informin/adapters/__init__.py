"""Linear adapters: affine maps of frozen embeddings, fitted in closed form on unlabeled text."""

from informin.adapters.linear import LinearAdapter

__all__ = ["LinearAdapter"]
