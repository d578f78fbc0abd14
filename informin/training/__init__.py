"""A run: the model in training, its options, sentences, checkpoints and signals."""
