"""Imports of the server in tests/support/forked.py: everything that programs import, including imports at run time."""

import gc
from importlib import import_module

from tests.conftest import set_up_torch

try:
    for name in (
        *("informin.cli.train_options", "informin.cli.train", "informin.cli.commands", "trainer_informin"),
        *("informin.evaluation.evaluate", "informin.frozen.fit", "informin.frozen.index"),
        *("transformers.models.bert.modeling_bert", "transformers.models.bert.tokenization_bert"),
        *("sklearn.cluster", "sklearn.linear_model", "scipy.io", "datasets.io.generator"),
    ):
        import_module(name)
except ImportError as error:  # which the server would ignore: each program would import everything again
    raise RuntimeError(f"tests/support/preloaded.py: {error}") from error
set_up_torch()
gc.freeze()
gc.enable()
