"""A Trainer that writes verifiable checkpoints and resumes from them exactly."""

import copy
import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import torch
from safetensors import SafetensorError
from torch import nn
from torch.utils.data import DataLoader
from transformers import Trainer
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, has_length, rotate_checkpoints

from informin.distributed import any_process
from informin.errors import SaveError, UsageError, error_line
from informin.files import damage, write_manifest
from informin.models.trained import TrainedModel
from informin.objectives import Term
from informin.records import RunRecord
from informin.training.callbacks import EpochStart, Throughput
from informin.training.checkpoints import (
    LAST,
    callback_state,
    check_order,
    check_same_run,
    checkpoint_to_resume,
    raise_if_used,
)
from informin.training.losses import Losses
from informin.training.option_checks import FIRST
from informin.training.options import InforMinTrainingArguments
from informin.training.record import training_record
from informin.training.signals import EvaluationLeft, StopOnSignal
from informin.training.tokens import stream_loader

logger = logging.getLogger(__name__)


class ResumableTrainer(Trainer):
    """A Trainer whose checkpoints can be verified, and whose resumed runs give the same weights as uninterrupted ones.

    It overrides private methods of transformers' Trainer, so its version is pinned.

    Attributes:
        trained: The model in training.
        facts: Entries of the record that the trainer cannot derive itself; see `training_record`.
        terms: Terms of the objective.
        throughput: Measures the training speed.
        losses: Collects the losses, and checks them for NaN and infinity.
    """

    args: InforMinTrainingArguments
    model: Any
    eval_dataset: Any
    optimizer: Any
    trained: TrainedModel
    facts: dict[str, Any]
    terms: tuple[Term, ...]
    throughput: Throughput
    losses: Losses

    def record(self) -> RunRecord:
        """Return the record of the run so far, for training.json."""
        return training_record(self)

    def train(self, resume_from_checkpoint: str | bool | None = None, *args, **kwargs):
        """Train, after checking that a resumed run is still the same run.

        Args:
            resume_from_checkpoint: Checkpoint folder; True or "last" for the latest complete one in the output folder.
                Default: that of the arguments.
            args, kwargs: See `Trainer.train`.

        Raises:
            UsageError: See `checkpoint_to_resume` and `check_same_run`.
            NonFiniteLossError: A loss was NaN or infinite.
        """
        wanted = resume_from_checkpoint
        wanted = self.args.resume_from_checkpoint if wanted is None else wanted
        if wanted is None or wanted is False:
            raise_if_used(str(self.args.output_dir), restarted=True)
            return self._train_from(None, *args, **kwargs)
        checkpoint = checkpoint_to_resume(str(self.args.output_dir), wanted)
        began = RunRecord.load(checkpoint)
        if began and self.args.metric_for_best_model == FIRST:
            self.args.metric_for_best_model = began.options.get("metric_for_best_model", "eval_spearman")
        check_same_run(checkpoint, self.record())
        # The checkpoint's history has the score before the first step. The score at its own step may be missing, if a
        # signal ended the evaluation.
        self.args.eval_on_start = bool(callback_state(checkpoint, "TrainerControl").get("should_evaluate"))
        return self._train_from(str(checkpoint), *args, **kwargs)

    def _train_from(self, checkpoint: str | None, *args, **kwargs):
        result = super().train(checkpoint, *args, **kwargs)
        self.losses.check()
        stopped = any(isinstance(one, StopOnSignal) and one.received for one in self.callback_handler.callbacks)
        if self.state.global_step == 0 and not has_length(self.train_dataset) and not stopped:
            raise UsageError(
                "The stream has too few sentences for one step",
                fix="Add sentences, or lower `per_device_train_batch_size` or `gradient_accumulation_steps`.",
            )
        return result

    def get_train_dataloader(self) -> DataLoader:
        """Return the data loader. Persistent workers get a random generator of their own.

        They start only once, which in a resumed run is at another step. If they drew their seed from the global random
        state, dropout would then differ.
        """
        is_stream = isinstance(self.train_dataset, datasets.IterableDataset)
        loader: Any = stream_loader(self) if is_stream else super().get_train_dataloader()
        if self.args.dataloader_persistent_workers:
            loader.base_dataloader.generator = torch.Generator()
        return loader

    def get_batch_samples(self, epoch_iterator: Iterator, num_batches: int, device: torch.device):
        """Return the batches of an optimizer step, without an incomplete last step of a stream.

        Trainer would add its gradients to the first step of the next epoch, but checkpoints hold no gradients.
        """
        batches, number = super().get_batch_samples(epoch_iterator, num_batches, device)
        is_complete = len(batches) == num_batches or has_length(self.train_dataset)
        return (batches if is_complete else []), number

    def create_optimizer(self, model=None) -> torch.optim.Optimizer:
        """Create the optimizer, or check the given one. Raise UsageError if it does not train the model."""
        optimizer = super().create_optimizer(model)
        trained = {id(weight) for weight in (model or self.model).parameters() if weight.requires_grad}
        given = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
        if not trained:
            raise UsageError("All parameters of the model are frozen", fix="Set `requires_grad` of some to True.")
        if not trained & given and not self.is_fsdp_enabled:
            raise UsageError(
                "trains no parameter of this model",
                option="optimizers",
                fix="Set `optim` and `learning_rate`, or build it on the parameters of `trainer.model`.",
            )
        return optimizer

    def _init_training_state(
        self, max_steps, num_update_steps_per_epoch, num_train_epochs, resume_from_checkpoint, trial
    ):
        """Return the number of finished epochs, and of batches to skip in the current one.

        Trainer treats a stream as one epoch of `max_steps`; here an epoch is one pass over the stream.
        """
        done, batches = super()._init_training_state(
            max_steps, num_update_steps_per_epoch, num_train_epochs, resume_from_checkpoint, trial
        )
        if resume_from_checkpoint is None:
            return done, batches
        stored: Any = self.state.stateful_callbacks
        for callback in (*self.callback_handler.callbacks, self.control):
            if isinstance(callback, ExportableState):  # Trainer cannot save one that the checkpoint lacks
                stored.setdefault(type(callback).__name__, callback.state())
        has_size = has_length(self.train_dataset)
        check_order(resume_from_checkpoint, self.args, later=has_size and bool(done and batches))
        if has_size:
            return done, batches
        start = callback_state(resume_from_checkpoint, "EpochStart")
        self.remove_callback(EpochStart)
        self.add_callback(EpochStart(**start))
        if self.args.ignore_data_skip:
            return start["epoch"], 0
        return start["epoch"], (self.state.global_step - start["step"]) * self.args.gradient_accumulation_steps

    def _run_epoch(self, *args, **kwargs) -> None:
        """Train for one epoch, unless the run resumed at its last step; Trainer would take one more."""
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
        else:
            super()._run_epoch(*args, **kwargs)

    @contextmanager
    def _leaving_on_signal(self) -> Iterator[Callable[[int], object]]:
        """Yield a function that an evaluation calls after each batch, through which a signal can end the evaluation.

        EvaluationLeft is raised at the end, in every process if it was raised in one.
        """
        # Before the first step there is nothing new to save, and an evaluation that the user calls must not be ended.
        can_leave = self.is_in_train and self.control.should_evaluate
        has_left = False
        self.losses.check()
        try:
            yield lambda _: can_leave and self.callback_handler.on_prediction_step(self.args, self.state, self.control)
        except EvaluationLeft:
            has_left = True
        if can_leave and any_process(has_left):
            raise EvaluationLeft

    def _maybe_log_save_evaluate(self, tr_loss, grad_norm, model, trial, *args, **kwargs) -> None:
        """Log, evaluate and save. If a signal ends the evaluation, save a checkpoint and stop training."""
        try:
            super()._maybe_log_save_evaluate(tr_loss, grad_norm, model, trial, *args, **kwargs)
        except EvaluationLeft:
            self.control.should_training_stop = True
            self._save_checkpoint(model, trial)  # with should_evaluate set, so that the resumed run evaluates first
            self.control = self.callback_handler.on_save(self.args, self.state, self.control)
            self.control.should_evaluate = False

    def _evaluate(self, trial, ignore_keys_for_eval, skip_scheduler: bool = False) -> dict[str, float]:
        """Evaluate. Before the first step of a resumed run, the score belongs to the checkpoint."""
        is_late = skip_scheduler and self.state.global_step > 0
        metrics = super()._evaluate(trial, ignore_keys_for_eval, skip_scheduler and not is_late)
        if is_late and self._determine_best_metric(metrics=metrics, trial=trial):
            self._find_best(Path(self._get_output_dir(trial)))
        return metrics

    def _find_best(self, folder: Path) -> None:
        """Set the best checkpoint to the one in this folder, which may have been renamed, if it is still there."""
        best = folder / f"{PREFIX_CHECKPOINT_DIR}-{self.state.best_global_step}"
        self.state.best_model_checkpoint = str(best) if best.is_dir() else None

    def _save_checkpoint(self, model: nn.Module, trial) -> None:
        """Save a checkpoint, then its manifest; then push it and delete old checkpoints.

        Raises:
            SaveError: It could not be written; its incomplete files are deleted.
            NonFiniteLossError: A loss since the last check was NaN or infinite.
        """
        self.losses.check()
        folder = Path(self._get_output_dir(trial), f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}")
        args, self.args = self.args, copy.copy(self.args)
        self.args.push_to_hub, self.args.save_total_limit = False, None
        if args.should_save:
            shutil.rmtree(folder, ignore_errors=True)  # a damaged one that the run did not resume from
        self.accelerator.wait_for_everyone()  # no process writes if another one found such a loss
        try:
            super()._save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()  # each process writes its random state
            if args.should_save:
                write_manifest(folder)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise SaveError(
                f"{folder.name} could not be saved: {error_line(error)}. Its incomplete files were deleted. Free some "
                f"space, then resume from the checkpoint before it (`resume_from_checkpoint` {LAST})."
            ) from error
        finally:
            self.args = args
        if not args.load_best_model_at_end:
            self.state.best_model_checkpoint = None  # Trainer would keep it instead of the latest one
        if args.push_to_hub:
            self._push_from_checkpoint(str(folder))
        if args.should_save:
            best = self.state.best_model_checkpoint
            rotate_checkpoints(str(folder.parent), args.save_total_limit, best_model_checkpoint=best)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Load the optimizer and the scheduler. Steps between log lines, evaluations and checkpoints are this run's."""
        if checkpoint is not None:
            self.state.compute_steps(self.args, self.state.max_steps)  # Trainer takes them from the checkpoint
            if self.args.load_best_model_at_end and self.state.best_global_step:
                self._find_best(Path(checkpoint).parent)
        super()._load_optimizer_and_scheduler(checkpoint)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        """Load the weights of a checkpoint, for a SentenceTransformer from its own format."""
        usual = partial(super()._load_from_checkpoint, resume_from_checkpoint, model)
        if self.is_fsdp_enabled:
            usual()
        else:
            self.trained.load(resume_from_checkpoint, usual)

    def _load_best_model(self) -> None:
        """Load the best checkpoint if it is intact; otherwise keep the model after the last step."""
        best = self.state.best_model_checkpoint
        problem = damage(best) if best else "its folder is unknown"
        if problem:
            logger.warning(f"The best checkpoint, {best}, is damaged ({problem}). The last weights are kept instead.")
            self.state.best_model_checkpoint = None
        elif self.is_fsdp_enabled:
            super()._load_best_model()
        else:
            self.trained.load(str(best), super()._load_best_model)
