"""A frozen encoder that guides training: its cached embeddings, nearest neighbors, neighborhood means and replay."""
