"""The scores as modules of HuggingFace `evaluate`: `evaluate.load("informin/evaluation/metrics/sts_correlation")`.

`evaluate` copies a module into its cache and reads its imports line by line as text, so each import stands on one line,
absolute and without a comment. What they compute is in `pairs` and `geometry` of this package, as everywhere else.
"""
