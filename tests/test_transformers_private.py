"""Contract with transformers: the private Trainer methods that informin/transformers_private.py relies on."""

import ast
import inspect
import re
from functools import cache

import pytest
import transformers
from transformers import Trainer

from informin.transformers_private import TrainerHooks
from tests.conftest import ROOT

PARAMETERS = {
    "_init_training_state": "max_steps num_update_steps_per_epoch num_train_epochs resume_from_checkpoint trial",
    "_run_epoch": "model epoch train_dataloader steps_in_epoch num_update_steps_per_epoch trial ignore_keys_for_eval "
    "start_time resume_from_checkpoint epochs_trained steps_trained_in_current_epoch",
    "_maybe_log_save_evaluate": "tr_loss grad_norm model trial epoch ignore_keys_for_eval start_time learning_rate",
    "_evaluate": "trial ignore_keys_for_eval skip_scheduler",
    "_save_checkpoint": "model trial",
    "_load_optimizer_and_scheduler": "checkpoint",
    "_load_rng_state": "checkpoint",
    "_load_from_checkpoint": "resume_from_checkpoint model",
    "_load_best_model": "",
    "_save": "output_dir state_dict",
    "_push_from_checkpoint": "checkpoint_folder",
    "_finish_current_push": "",
    "_determine_best_metric": "metrics trial",
    "_get_output_dir": "trial",
    "_get_collator_with_removed_columns": "data_collator description",
}
SOURCES = [ROOT / "trainer_informin.py", *sorted((ROOT / "informin").rglob("*.py"))]
PRIVATE = ROOT / "informin" / "transformers_private.py"
HOOKS = [name for name in vars(TrainerHooks) if not name.startswith("_")]


@pytest.mark.parametrize("name", PARAMETERS)
def test_private_methods_have_the_expected_parameters(name):
    method = getattr(Trainer, name, None)
    found = " ".join(list(inspect.signature(method).parameters)[1:]) if method else "no such method"
    assert found == PARAMETERS[name], (
        f"transformers {transformers.__version__}: Trainer.{name} takes {found!r}, expected {PARAMETERS[name]!r}. "
        "Adapt informin/transformers_private.py and this table."
    )


def test_the_table_lists_every_private_method_used():
    used = set(re.findall(r"(?:super\(\)|self)\.(_[a-z]\w+)", PRIVATE.read_text(encoding="utf-8")))
    assert used == set(PARAMETERS)


@pytest.mark.parametrize("name", HOOKS)
def test_hooks_do_not_shadow_methods_of_trainer(name):
    assert not hasattr(Trainer, name), f"transformers {transformers.__version__} has its own Trainer.{name}"


@cache
def private_names_of_trainer() -> set[str]:
    """Return the private methods of Trainer and the private attributes that it sets on itself."""
    attributes = re.findall(r"self\.(_[a-z]\w*)", inspect.getsource(Trainer))
    return {name for name in (*dir(Trainer), *attributes) if re.match(r"_[a-z]", name)}


@pytest.mark.parametrize("path", [path for path in SOURCES if path != PRIVATE], ids=lambda path: path.stem)
def test_no_other_module_uses_private_names_of_trainer(path):
    names, found = private_names_of_trainer(), []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self", "super()", "trainer"):
            found += [node.attr] * (node.attr in names)
        if isinstance(node, ast.ClassDef):
            found += [part.name for part in node.body if isinstance(part, ast.FunctionDef) and part.name in names]
    assert found == []
