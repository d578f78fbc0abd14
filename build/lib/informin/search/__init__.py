"""A search index of texts: the vectors of a model and words weighted by BM25, added as z-scores."""

from informin.search.index import Index
from informin.search.record import Hit

__all__ = ["Hit", "Index"]
