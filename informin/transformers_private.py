"""The private methods of transformers' Trainer that this project relies on, under public names.

No other module uses them. `tests/test_transformers_private.py` checks that they exist with these signatures; if a new
transformers version changes one, adapt this module only.
"""

from collections.abc import Callable
from pathlib import Path

from torch import Tensor, nn
from transformers import Trainer
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR


class TrainerHooks(Trainer):
    """A Trainer whose private methods call public hooks. Subclasses override the hooks and call `super().HOOK(...)`."""

    # Hooks that Trainer calls

    def init_training_state(self, max_steps: int, steps_per_epoch: int, epochs: int, checkpoint, trial):
        """Return the epochs that are finished and the batches to skip in the next one."""
        return super()._init_training_state(max_steps, steps_per_epoch, epochs, checkpoint, trial)

    def run_epoch(self, *args, **kwargs) -> None:
        """Train for one epoch."""
        super()._run_epoch(*args, **kwargs)

    def log_save_evaluate(self, tr_loss: Tensor, grad_norm, model: nn.Module, trial, *args, **kwargs) -> None:
        """Log, evaluate and save if one of them is due after an optimizer step."""
        super()._maybe_log_save_evaluate(tr_loss, grad_norm, model, trial, *args, **kwargs)

    def evaluate_in_training(self, trial, ignore_keys, skip_scheduler: bool = False) -> dict[str, float]:
        """Evaluate; also before the first step, then with `skip_scheduler`."""
        return super()._evaluate(trial, ignore_keys, skip_scheduler)

    def save_checkpoint(self, model: nn.Module, trial) -> None:
        """Save a checkpoint folder: model, optimizer, scheduler, random state and trainer state."""
        super()._save_checkpoint(model, trial)

    def load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Load the optimizer's and the scheduler's state."""
        super()._load_optimizer_and_scheduler(checkpoint)

    def load_rng_state(self, checkpoint: str | None) -> None:
        """Load the random state."""
        super()._load_rng_state(checkpoint)

    def load_checkpoint(self, checkpoint: str, model: nn.Module | None = None) -> None:
        """Load the weights of a checkpoint."""
        super()._load_from_checkpoint(checkpoint, model)

    def load_best_model(self) -> None:
        """Load the weights of the best checkpoint at the end of training."""
        super()._load_best_model()

    def write_model(self, folder: str | None = None, state_dict: dict | None = None) -> None:
        """Write the model and the tokenizer to a folder."""
        super()._save(folder, state_dict)

    def push_checkpoint(self, folder: str) -> None:
        """Push a checkpoint in the background."""
        super()._push_from_checkpoint(folder)

    # Private methods that we call

    def finish_push(self) -> None:
        """Wait for the push that is in progress."""
        self._finish_current_push()

    def is_best(self, metrics: dict[str, float], trial) -> bool:
        """Return whether these metrics are the best so far, and record them in the state if so."""
        return self._determine_best_metric(metrics=metrics, trial=trial)

    def checkpoint_folder(self, trial) -> Path:
        """Return the folder of the checkpoint of the current step."""
        return Path(self._get_output_dir(trial), f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}")

    def collator_of_columns(self) -> Callable:
        """Return the data collator, wrapped so that it ignores columns that the model does not take."""
        return self._get_collator_with_removed_columns(self.data_collator)

    # What Trainer calls

    def _init_training_state(
        self, max_steps, num_update_steps_per_epoch, num_train_epochs, resume_from_checkpoint, trial
    ):
        counts = (max_steps, num_update_steps_per_epoch, num_train_epochs)
        return self.init_training_state(*counts, resume_from_checkpoint, trial)

    def _run_epoch(self, *args, **kwargs):
        self.run_epoch(*args, **kwargs)

    def _maybe_log_save_evaluate(self, tr_loss, grad_norm, model, trial, *args, **kwargs):
        self.log_save_evaluate(tr_loss, grad_norm, model, trial, *args, **kwargs)

    def _evaluate(self, trial, ignore_keys_for_eval, skip_scheduler=False):
        return self.evaluate_in_training(trial, ignore_keys_for_eval, skip_scheduler)

    def _save_checkpoint(self, model, trial):
        self.save_checkpoint(model, trial)

    def _load_optimizer_and_scheduler(self, checkpoint):
        self.load_optimizer_and_scheduler(checkpoint)

    def _load_rng_state(self, checkpoint):
        self.load_rng_state(checkpoint)

    def _load_from_checkpoint(self, resume_from_checkpoint, model=None):
        self.load_checkpoint(resume_from_checkpoint, model)

    def _load_best_model(self):
        self.load_best_model()

    def _save(self, output_dir=None, state_dict=None):
        self.write_model(output_dir, state_dict)

    def _push_from_checkpoint(self, checkpoint_folder):
        self.push_checkpoint(checkpoint_folder)
