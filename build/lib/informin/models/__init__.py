"""Encoders: architectures, loading, sentences to embeddings."""
