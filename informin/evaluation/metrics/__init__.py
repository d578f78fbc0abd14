"""The scores as modules of HuggingFace `evaluate`: `evaluate.load("informin/evaluation/metrics/sts_correlation")`.

Each folder has the formula in formula.py, which the rest of the library calls too, and the module in the file of the
folder's name. `evaluate` copies these two files into its cache and reads the imports of the module line by line as
text: each stands on one line without a comment, and none needs informin. Only the modules import `evaluate` and
`datasets`, so that scoring does not wait for them.
"""
