"""Prepares the server in tests/support/forked.py, so that programs that fork from it start fast.

It imports all that they import, also at run time, and trains and exports a model once. Then templates and patterns of
weight names are compiled.
"""

import gc
import tempfile
from importlib import import_module
from pathlib import Path

from tests.conftest import FOUR_STEPS, how_to_train, make_sentences, save_bert, set_up_torch


def train_once() -> None:
    """Train a step, export, and forget the state that accelerate keeps for a process."""
    from accelerate.state import AcceleratorState

    from trainer_informin import InforMinTrainer

    with tempfile.TemporaryDirectory() as folder:
        bert = save_bert(Path(folder) / "bert", num_hidden_layers=1)
        options = FOUR_STEPS | dict(max_steps=1, eval_strategy="no", save_strategy="no", report_to=[])
        trainer = InforMinTrainer(str(bert), train_dataset=make_sentences(32), **how_to_train(folder, **options))
        trainer.train()
        trainer.export(f"{folder}/exported")
    AcceleratorState._reset_state(reset_partial_state=True)


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
train_once()
gc.freeze()
gc.enable()
