"""A Trainer that writes verifiable checkpoints and resumes from them exactly."""

import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, has_length, rotate_checkpoints

from informin.distributed import any_process
from informin.errors import UsageError
from informin.files import damage, write_manifest
from informin.models.model import Model
from informin.objectives import Term
from informin.training.callbacks import EpochStart
from informin.training.checkpoints import (
    LAST,
    checkpoint_to_resume,
    epoch_start,
    lacks_score,
    refuse_complete_checkpoints,
    set_aside_damaged,
)
from informin.training.heartbeat import Heartbeat
from informin.training.history import all_scores
from informin.training.nan_check import NaNCheck
from informin.training.options import InforMinTrainingArguments
from informin.training.record import training_record, weights_settings
from informin.training.resume_checks import (
    loaded_record,
    refuse_finished_run,
    refuse_unknown_order,
    resumed_provenance,
)
from informin.training.save_errors import save_error
from informin.training.signals import EvaluationLeft, StopOnSignal
from informin.training.streams import stream_loader
from informin.training.throughput import Throughput
from informin.transformers_private import TrainerHooks

logger = logging.getLogger(__name__)


class ResumableTrainer(TrainerHooks):
    """A Trainer whose checkpoints can be verified, and whose resumed runs give the same weights as uninterrupted ones.

    Attributes:
        known: Entries of the record that the trainer cannot derive itself; see `training_record`.
        terms: Terms of the objective.
        throughput: Measures the training speed.
        losses: Checks the losses for NaN and infinity.
    """

    args: InforMinTrainingArguments
    model: Any
    eval_dataset: Any
    optimizer: Any
    lr_scheduler: Any
    known: dict
    trained: Model
    terms: tuple[Term, ...]
    throughput: Throughput
    losses: NaNCheck

    def record(self) -> dict:
        """Return the record of the run so far, for training.json; see `informin.publishing.record`."""
        return training_record(self)

    def train(self, resume_from_checkpoint: str | bool | None = None, *args, **kwargs):
        """Train, after checking that a resumed run is still the same run.

        Args:
            resume_from_checkpoint: Checkpoint folder; True or "last" for the latest complete one in the output folder.
                Default: that of the arguments.
            args, kwargs: See `Trainer.train`.

        Raises:
            UsageError: See `checkpoint_to_resume` and `resumed_provenance`; or options of the objective changed after
                the trainer was created.
            LostProcessError: Another process of the run died.
        """
        if self.args.terms != self.terms:
            raise UsageError(
                "Options of the objective changed after the trainer was created", fix="Create a new trainer."
            )
        if resume_from_checkpoint is None:
            resume_from_checkpoint = self.args.resume_from_checkpoint
        if not resume_from_checkpoint:
            refuse_complete_checkpoints(self.args.run_dir)
            return self._train_together(None, *args, **kwargs)
        wanted = LAST if resume_from_checkpoint is True else resume_from_checkpoint
        checkpoint = checkpoint_to_resume(self.args.run_dir, wanted, self.args.model_settings)
        now = weights_settings(self.args, self.eval_dataset)
        self.known = resumed_provenance(checkpoint, self.known, now, self.args.resume_with_changes)
        if self.args.should_save:
            set_aside_damaged(self.args.run_dir, checkpoint)
        # The checkpoint's history has the score before the first step. The score at its own step may be missing.
        self.args.eval_on_start = lacks_score(checkpoint)
        # Trainer warns if the best checkpoint is not at its old path, but the folder may have been renamed.
        logging.getLogger("transformers.trainer").addFilter(_is_not_about_the_best_path)
        return self._train_together(str(checkpoint), *args, **kwargs)

    def _train_together(self, checkpoint: str | None, *args, **kwargs):
        """Train with a heartbeat. Raise LostProcessError if another process died."""
        with Heartbeat(self.args.run_dir, self.args.device):
            result = super().train(checkpoint, *args, **kwargs)
            self.losses.check()
            self._refuse_no_step()
            return result

    def _refuse_no_step(self) -> None:
        """Raise UsageError if a stream ended before the first step. Its length is not known before."""
        stopped = any(isinstance(one, StopOnSignal) and one.received for one in self.callback_handler.callbacks)
        if self.state.global_step == 0 and not has_length(self.train_dataset) and not stopped:
            raise UsageError(
                "The stream has too few sentences for one step",
                fix="Add sentences, or lower `per_device_train_batch_size` or `gradient_accumulation_steps`.",
            )

    def get_train_dataloader(self) -> DataLoader:
        """Return the data loader. Persistent workers get a random generator of their own.

        They start only once, which in a resumed run is at another step. If they drew their seed from the global random
        state, dropout would then differ.
        """
        streams = isinstance(self.train_dataset, datasets.IterableDataset)
        loader: Any = stream_loader(self) if streams else super().get_train_dataloader()
        if self.args.dataloader_persistent_workers:
            loader.base_dataloader.generator = torch.Generator()
        return loader

    def get_batch_samples(self, epoch_iterator: Iterator, num_batches: int, device: torch.device):
        """Return the batches of an optimizer step, without an incomplete last step of a stream.

        Trainer would add its gradients to the first step of the next epoch, but checkpoints hold no gradients.
        """
        batches, number = super().get_batch_samples(epoch_iterator, num_batches, device)
        complete = len(batches) == num_batches or has_length(self.train_dataset)
        return (batches if complete else []), number

    def init_training_state(self, max_steps, steps_per_epoch, epochs, checkpoint, trial) -> tuple[int, int]:
        """Return the number of finished epochs, and of batches to skip in the current one.

        Trainer treats a stream as one epoch of `max_steps`; here an epoch is one pass over the stream.

        Raises:
            UsageError: See `refuse_unknown_order` and `epoch_start`.
        """
        done, batches = super().init_training_state(max_steps, steps_per_epoch, epochs, checkpoint, trial)
        if checkpoint is None:
            return done, batches
        callbacks: Any = self.state.stateful_callbacks
        for callback in (
            *self.callback_handler.callbacks,
            self.control,
        ):  # Trainer cannot save one that the checkpoint lacks
            if isinstance(callback, ExportableState):
                callbacks.setdefault(type(callback).__name__, callback.state())
        has_size = has_length(self.train_dataset)
        if not self.args.resume_with_changes:
            refuse_unknown_order(checkpoint, self.args, later=has_size and bool(done and batches))
        if has_size:
            return done, batches
        start = epoch_start(checkpoint)
        self.remove_callback(EpochStart)
        self.add_callback(EpochStart(**start))
        if self.args.ignore_data_skip:
            return start["epoch"], 0
        return start["epoch"], (self.state.global_step - start["step"]) * self.args.gradient_accumulation_steps

    def run_epoch(self, *args, **kwargs) -> None:
        """Train for one epoch, unless the run resumed at its last step; Trainer would take one more."""
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
        else:
            super().run_epoch(*args, **kwargs)

    @contextmanager
    def _leaving_on_signal(self) -> Iterator[Callable[[int], object]]:
        """Yield a function that an evaluation calls after each batch, through which a signal can end the evaluation.

        EvaluationLeft is raised at the end, in every process if it was raised in one.
        """
        # Before the first step there is nothing new to save, and an evaluation that the user calls must not be ended.
        can_leave = self.is_in_train and self.control.should_evaluate
        left = False
        self.losses.check()
        try:
            yield lambda _: can_leave and self.callback_handler.on_prediction_step(self.args, self.state, self.control)
        except EvaluationLeft:
            left = True
        if can_leave and any_process(left):
            raise EvaluationLeft

    def log_save_evaluate(self, tr_loss: Tensor, grad_norm, model: nn.Module, trial, *args, **kwargs) -> None:
        """Log, evaluate and save. If a signal ends the evaluation, save a checkpoint and stop training."""
        try:
            super().log_save_evaluate(tr_loss, grad_norm, model, trial, *args, **kwargs)
        except EvaluationLeft:
            self.control.should_training_stop = True
            self.save_checkpoint(model, trial)  # with should_evaluate set, so that the resumed run evaluates first
            self.control = self.callback_handler.on_save(self.args, self.state, self.control)
            self.control.should_evaluate = False

    def evaluate_in_training(self, trial, ignore_keys_for_eval, skip_scheduler: bool = False) -> dict[str, float]:
        """Evaluate. Before the first step of a resumed run, the score belongs to the checkpoint."""
        late_score = skip_scheduler and self.state.global_step > 0
        metrics = super().evaluate_in_training(trial, ignore_keys_for_eval, skip_scheduler and not late_score)
        if late_score and self.is_best(metrics, trial):
            best = self.checkpoint_folder(trial)
            self.state.best_model_checkpoint = str(best) if best.is_dir() else None
        return metrics

    def save_checkpoint(self, model: nn.Module, trial) -> None:
        """Save a checkpoint, then its manifest; then push it and delete old checkpoints.

        Raises:
            SaveError: It could not be written; its incomplete files are deleted.
            NonFiniteLossError: A loss since the last check was NaN or infinite.
        """
        self.losses.check()
        self.accelerator.wait_for_everyone()  # no process writes if another one found such a loss
        args, folder = self.args, self.checkpoint_folder(trial)
        self.args = copy.copy(args)
        self.args.push_to_hub, self.args.save_total_limit = False, None
        try:
            super().save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()  # each process writes its random state
            if args.should_save:
                write_manifest(folder)
        except (OSError, RuntimeError, SafetensorError) as error:
            raise save_error(folder, error, self.model, self.optimizer) from error
        finally:
            self.args = args
        if args.push_to_hub:
            self.push_checkpoint(str(folder))
        if args.should_save:
            best = self.state.best_model_checkpoint
            rotate_checkpoints(
                output_dir=str(folder.parent), save_total_limit=args.save_total_limit, best_model_checkpoint=best
            )

    def load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Load the optimizer and the scheduler; with `resume_with_changes`, keep this run's learning rates.

        Steps between log lines, evaluations and checkpoints are always those of this run.

        Raises:
            UsageError: The run is already past its last step.
        """
        if checkpoint is None:
            return super().load_optimizer_and_scheduler(checkpoint)
        refuse_finished_run(self.state.global_step, self.state.max_steps, checkpoint)
        self.state.compute_steps(self.args, self.state.max_steps)  # Trainer takes them from the checkpoint
        best = Path(checkpoint).with_name(f"{PREFIX_CHECKPOINT_DIR}-{self.state.best_global_step}")
        if self.state.best_global_step and not best.is_dir():
            logger.warning(
                f"{best}, the best checkpoint so far, no longer exists. Unless a later one scores higher, the model "
                "after the last step is kept."
            )
        self.state.best_model_checkpoint = str(best) if best.is_dir() else None
        if not self.args.resume_with_changes:
            return super().load_optimizer_and_scheduler(checkpoint)
        fresh = [{k: v for k, v in group.items() if k != "params"} for group in self.optimizer.param_groups]
        rates = getattr(self.lr_scheduler, "base_lrs", None)
        super().load_optimizer_and_scheduler(checkpoint)
        began = loaded_record(checkpoint)
        same_rate = began["options"]["learning_rate"] == self.args.learning_rate
        for group, own in zip(self.optimizer.param_groups, fresh):
            group.update({name: value for name, value in own.items() if name != "lr" or not same_rate})
        if hasattr(self.lr_scheduler, "lr_lambdas"):
            self._set_learning_rates(rates or [])
        self._forget_other_scores(began)

    def _set_learning_rates(self, rates: list[float]) -> None:
        """Make a LambdaLR scheduler continue at its step with these peak learning rates."""
        self.lr_scheduler.base_lrs = rates
        step = self.lr_scheduler.last_epoch
        for group, rate, factor in zip(self.optimizer.param_groups, rates, self.lr_scheduler.lr_lambdas):
            group["lr"] = rate * factor(step)
        self.lr_scheduler._last_lr = [group["lr"] for group in self.optimizer.param_groups]  # the logged value

    def _forget_other_scores(self, began: dict) -> None:
        """Drop scores on other evaluation data, which are not comparable; training.json keeps them."""
        if began["development_sha256"] == (self.eval_dataset and self.eval_dataset.sha256):
            return
        self.state.log_history = [entry for entry in self.state.log_history if not all_scores(entry)]
        self.state.best_metric = self.state.best_global_step = self.state.best_model_checkpoint = None

    def load_rng_state(self, checkpoint: str | None) -> None:
        """Load the random state, unless the seed changed."""
        if checkpoint is None or loaded_record(checkpoint)["seed"] == self.args.seed:
            super().load_rng_state(checkpoint)

    def load_checkpoint(self, checkpoint: str, model: nn.Module | None = None) -> None:
        """Load the weights of a checkpoint, for a SentenceTransformer from its own format."""
        if self.is_fsdp_enabled:
            return super().load_checkpoint(checkpoint, model)
        usual = partial(super().load_checkpoint, checkpoint, model)
        self.trained.load_weights(checkpoint, self.accelerator.unwrap_model(model or self.model), usual)

    def load_best_model(self) -> None:
        """Load the best checkpoint if it is intact; otherwise keep the model after the last step."""
        best = self.state.best_model_checkpoint
        problem = damage(best) if best else "its folder is unknown"
        if best and problem is None and not self.is_fsdp_enabled:
            module = self.accelerator.unwrap_model(self.model)
            return self.trained.load_weights(best, module, super().load_best_model)
        if problem is None:
            return super().load_best_model()
        logger.warning(
            f"The best checkpoint, {best}, is damaged ({problem}). The model after the last step is kept instead."
        )
        self.state.best_model_checkpoint = None


def _is_not_about_the_best_path(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("The best checkpoint")
