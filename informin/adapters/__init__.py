"""Linear adapters: affine maps of frozen embeddings, fitted in closed form on unlabeled text."""
