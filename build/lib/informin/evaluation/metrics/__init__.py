"""The scores as modules of HuggingFace `evaluate`: `evaluate.load("informin/evaluation/metrics/sts_correlation")`.

Each module calls the function that training and `informin eval` use. `evaluate` copies the file of the module into its
cache and reads its imports line by line as text: each stands on one line without a comment. Only the modules import
`evaluate` and `datasets`, so that scoring does not wait for them.
"""
