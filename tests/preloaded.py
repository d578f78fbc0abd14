"""Imports of the server in tests/forked.py: everything that programs import, including imports at run time."""

import gc
from importlib import import_module

import torch

for name in (
    *("informin.cli.train", "informin.cli.eval", "trainer_informin", "tests.conftest"),
    *("transformers.models.bert.modeling_bert", "transformers.models.bert.tokenization_bert"),
    *("sklearn.cluster", "sklearn.linear_model"),
):
    import_module(name)
torch.set_num_threads(1)
gc.collect()
gc.freeze()  # Trainer collects garbage several times per training
