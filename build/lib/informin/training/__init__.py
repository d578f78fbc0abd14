"""Options, sentences, checkpoints and signals of a run."""
