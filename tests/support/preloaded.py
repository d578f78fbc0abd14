"""Imports of the server in tests/support/forked.py: everything that programs import, including imports at run time."""

import gc
from importlib import import_module

from tests.conftest import set_up_torch

for name in (
    *("informin.cli.train_options", "informin.cli.train", "informin.cli.eval", "trainer_informin"),
    *("transformers.models.bert.modeling_bert", "transformers.models.bert.tokenization_bert"),
    *("sklearn.cluster", "sklearn.linear_model", "scipy.io", "datasets.io.generator"),
):
    import_module(name)
set_up_torch()
gc.freeze()
gc.enable()
