"""Going on with a run: whether it is still the run that it was, and saving so that it can be gone on with."""

import copy
import errno
import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import datasets
import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, has_length, rotate_checkpoints

from informin.distributed import any_process
from informin.errors import SaveError, UsageError, counted, error_line
from informin.files import damage, manifest_files, write_manifest
from informin.objectives import Term
from informin.publishing.record import load_record
from informin.training.callbacks import EpochStart
from informin.training.checkpoints import (
    LAST,
    checkpoint_to_resume,
    complete_checkpoints,
    epoch_start,
    owes_score,
    set_aside_damaged,
    steps_taken,
)
from informin.training.fingerprints import changed_inputs
from informin.training.finite import FiniteLosses
from informin.training.heartbeat import Heartbeat
from informin.training.history import logged_scores
from informin.training.options import InforMinTrainingArguments
from informin.training.record import training_record, weights_settings
from informin.training.signals import EvaluationLeft
from informin.training.streams import stream_loader
from informin.training.throughput import Throughput
from informin.transformers_private import TrainerHooks

logger = logging.getLogger(__name__)

PART = "objective seed options data inputs development history environment".split()  # kept of an earlier part's record
FULL = (errno.ENOSPC, errno.EDQUOT)
NOT_WRITTEN = ("No space left", "unexpected pos", "file write failed")  # safetensors' and torch's words
NOT_LAMBDAS = ("reduce_lr_on_plateau", "greedy")  # schedulers with a state of another kind


def continued(checkpoint: str | Path, known: dict, settings: dict, allowed: bool) -> dict:
    """What is known of a run that goes on from a checkpoint, `known` with the parts that it had before.

    A run has parts where it was gone on with although something that shapes the weights was changed.

    Args:
        known: from `informin.training.record.provenance`, as the command has it.
        settings: from `informin.training.record.weights_settings`, likewise.
        allowed: changes were asked for.

    Raises:
        UsageError: it began with another encoder, something else differs and that was not asked for, or the run is past
            its last step already.
    """
    began, reached = load_record(checkpoint), steps_taken(checkpoint)
    refuse_nothing_left(reached, settings["options"].get("max_steps", reached), checkpoint)
    ours, theirs = known.get("base_model"), began["base_model"]
    if ours and theirs and ours["weights_sha256"] != theirs["weights_sha256"]:
        raise UsageError(
            f"`resume_from_checkpoint`: {checkpoint} began with the encoder {theirs['name']}, and {ours['name']} has "
            "other weights, which would never be read. Name the one that it began with, or choose another `output_dir`."
        )
    refuse_other_state(checkpoint, began["options"], settings["options"])
    if "inputs" not in began:
        logger.info(
            f"{checkpoint} is from a version that recorded no fingerprints: changes of the files of a stream, the "
            "guide or `replay_file` are not noticed."
        )
    changed = differences(began, known | settings)
    if changed and not allowed:
        raise UsageError(
            f"`resume_from_checkpoint`: {checkpoint} belongs to another run: {'; '.join(changed)}. Resume with what it "
            "began with, choose another `output_dir` for a new run, or change it on purpose: `resume_with_changes`."
        )
    earlier = began["earlier"]
    if changed:
        logger.info(f"Changed after {counted(reached, 'step')}: {'; '.join(changed)}.")
        earlier = [*earlier, {"until_step": reached, **{name: began[name] for name in PART if name in began}}]
    return known | {"earlier": earlier}


def refuse_other_state(checkpoint: str | Path, began: dict, now: dict) -> None:
    """Raises UsageError where the state of optimizer or scheduler could not be read by the one that is asked for."""
    for name in ("optim", "lr_scheduler_type"):
        pair = (began.get(name), now.get(name))
        if pair[0] != pair[1] and (name == "optim" or set(NOT_LAMBDAS) & set(pair)):
            raise UsageError(
                f"`resume_from_checkpoint`: {checkpoint} has the state of `{name}` {pair[0]}, which "
                f"{pair[1]} cannot use. Give `{name}` {pair[0]}, or start a new run from the exported model."
            )


def refuse_nothing_left(reached: int, planned: int, checkpoint: str | Path) -> None:
    """Raises UsageError where a run is past its last step."""
    if planned < reached:
        raise UsageError(
            f"Nothing is left to do: {checkpoint} has {counted(reached, 'step')} behind it, and the run is to have "
            f"{planned}. Give more `max_steps` or `num_train_epochs`, or export it: python run_export.py {checkpoint} "
            "NEW_FOLDER"
        )


def refuse_unknown_order(checkpoint: str | Path, args: InforMinTrainingArguments, later: bool) -> None:
    """Raises UsageError where the order of the sentences after a checkpoint cannot be drawn again.

    Args:
        later: the checkpoint is within an epoch after the first, of data whose length is known.
    """
    loader, strategy = args.accelerator_config, args.train_sampling_strategy
    drawn = later and strategy == "random"  # from the random state of the run, not by seed and epoch
    unknown = {
        "`dataloader_in_order` false": not args.dataloader_in_order and args.dataloader_num_workers > 1,
        "`train_sampling_strategy` group_by_length": later and strategy == "group_by_length",
        "`accelerator_config` with `use_seedable_sampler` false": drawn and not loader.use_seedable_sampler,
        "`accelerator_config` with `dispatch_batches` true": drawn and loader.dispatch_batches,
    }
    options = [option for option, found in unknown.items() if found]
    if options:
        raise UsageError(
            f"`resume_from_checkpoint`: with {options[0]}, the order of the sentences after {checkpoint} cannot be "
            "drawn again. Resume with another order: `resume_with_changes`"
            + (", or from a checkpoint of the first epoch or at the end of an epoch." if later else ".")
        )


def differences(began: dict, now: dict) -> list[str]:
    """What shapes the weights, or says which of them are kept, and is not what it was, in words."""
    changed = []

    def compare(name: str, old: object, new: object) -> None:
        if old != new:
            changed.append(f"{name} {_words(old)}, now {_words(new)}")

    compare("seed", began["seed"], now["seed"])
    for name in dict.fromkeys([*began["options"], *now["options"]]):
        compare(name, began["options"].get(name), now["options"].get(name))
    ours, theirs = now.get("data"), began["data"]
    if ours and theirs:
        if ours["sha256"] and theirs["sha256"]:
            if ours["sha256"] != theirs["sha256"]:
                changed.append(f"sentences {_sentences(theirs)}, now {_sentences(ours)}")
        else:  # a stream is not read before it is trained on
            compare("sentences", theirs["sources"], ours["sources"])
    ours, theirs = now.get("base_model"), began["base_model"]
    if ours and theirs and ours["settings_sha256"] != theirs["settings_sha256"]:
        changed.append(f"configuration or tokenizer of {theirs['name']} (SHA-256 {theirs['settings_sha256'][:8]})")
    if "inputs" in began and "inputs" in now:
        changed += changed_inputs(began["inputs"], now["inputs"])
    if began["development_sha256"] != now["development_sha256"]:
        changed.append(f"development pairs {_words(began['development'])}, now {_words(now['development'])}")
    return changed


def _words(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {item}" for name, item in value.items())
    return "none" if value is None else " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _sentences(data: dict) -> str:
    return f"{data['sentences'] or 0:,} of {', '.join(data['sources'])} (SHA-256 {data['sha256'][:8]})"


class ResumableTrainer(TrainerHooks):
    """The Trainer with checkpoints that say whether they are whole, and a run that goes on as its options say."""

    known: dict  # of the run, beside what the trainer sees: see `informin.training.record.training_record`
    terms: tuple[Term, ...]
    throughput: Throughput
    losses: FiniteLosses

    def record(self) -> dict:
        """What the run was so far, for training.json; see `informin.publishing.record`."""
        return training_record(self)

    def train(self, resume_from_checkpoint: str | bool | None = None, *args, **kwargs):
        """Trainer's, after a look whether the run is still the one that it was.

        Args:
            resume_from_checkpoint: a checkpoint folder; True or "last" for the newest whole one in the output folder.

        Raises:
            UsageError: see `checkpoint_to_resume` and `continued`; or options of the objective were changed since the
                trainer was made.
            LostProcessError: another process of the run is gone.
        """
        if self.args.terms != self.terms:
            raise UsageError("Options of the objective were changed after the trainer was made. Make a new trainer.")
        if not resume_from_checkpoint:
            return self._train_together(None, *args, **kwargs)
        wanted = LAST if resume_from_checkpoint is True else resume_from_checkpoint
        checkpoint = checkpoint_to_resume(self.args.output_dir, wanted, self.args.model_settings)
        now = weights_settings(self.args, self.eval_dataset)
        self.known = continued(checkpoint, self.known, now, self.args.resume_with_changes)
        if self.args.should_save:
            set_aside_damaged(self.args.output_dir, checkpoint)
        # The score before the first step is in the checkpoint's history; that of its last one may be owed.
        self.args.eval_on_start = owes_score(checkpoint)
        # Trainer looks for the best one where it was when this one was saved: the folder may have been renamed since.
        logging.getLogger("transformers.trainer").addFilter(_says_more_than_where_the_best_was)
        return self._train_together(str(checkpoint), *args, **kwargs)

    def _train_together(self, checkpoint: str | None, *args, **kwargs):
        """Trainer's `train`; LostProcessError where another process is gone."""
        with Heartbeat(self.args.output_dir, self.args.device):
            result = super().train(checkpoint, *args, **kwargs)
            self.losses.look()
            return result

    def get_train_dataloader(self) -> DataLoader:
        """Trainer's; persistent workers draw nothing from the random state of the run.

        They start once, in a run that resumes at another step than in one that did not stop: dropout would differ.
        """
        streams = isinstance(self.train_dataset, datasets.IterableDataset)
        loader = stream_loader(self) if streams else super().get_train_dataloader()
        if self.args.dataloader_persistent_workers:
            loader.base_dataloader.generator = torch.Generator()
        return loader

    def get_batch_samples(self, epoch_iterator: Iterator, num_batches: int, device: torch.device):
        """Trainer's; batches at the end of a stream that do not fill an optimizer step are left out.

        Trainer would add their gradients to the first step of the next epoch, and checkpoints do not have gradients.
        """
        batches, number = super().get_batch_samples(epoch_iterator, num_batches, device)
        whole = len(batches) == num_batches or has_length(self.train_dataset)
        return (batches if whole else []), number

    def init_training_state(self, max_steps, steps_per_epoch, epochs, checkpoint, trial) -> tuple[int, int]:
        """Trainer's: the epochs behind a run, and the batches of the next one.

        Trainer takes a stream for one epoch of `max_steps`; here its epochs are those that were read.

        Raises:
            UsageError: see `refuse_unknown_order` and `epoch_start`.
        """
        done, batches = super().init_training_state(max_steps, steps_per_epoch, epochs, checkpoint, trial)
        if checkpoint is None:
            return done, batches
        for callback in self.callback_handler.callbacks:  # Trainer cannot save the state of one that is new
            if isinstance(callback, ExportableState):
                self.state.stateful_callbacks.setdefault(type(callback).__name__, callback.state())
        sized = has_length(self.train_dataset)
        if not self.args.resume_with_changes:
            refuse_unknown_order(checkpoint, self.args, later=sized and bool(done and batches))
        if sized:
            return done, batches
        start = epoch_start(checkpoint)
        self.remove_callback(EpochStart)
        self.add_callback(EpochStart(**start))
        if self.args.ignore_data_skip:
            return start["epoch"], 0
        return start["epoch"], (self.state.global_step - start["step"]) * self.args.gradient_accumulation_steps

    def run_epoch(self, *args, **kwargs) -> None:
        """Trainer's, unless the run was at its last step when it was gone on with: Trainer would take one more."""
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
        else:
            super().run_epoch(*args, **kwargs)

    @contextmanager
    def _leaving_on_signal(self) -> Iterator[Callable[[int], object]]:
        """Gives what an evaluation calls after each batch, by which a callback can have it left.

        EvaluationLeft is raised at the end, in every process where it was in one.
        """
        # An evaluation before a run's first step has nothing new to save, and one by hand is not ours to leave.
        can_leave = self.is_in_train and self.control.should_evaluate
        left = False
        self.losses.look()
        try:
            yield lambda _: can_leave and self.callback_handler.on_prediction_step(self.args, self.state, self.control)
        except EvaluationLeft:
            left = True
        if can_leave and any_process(left):
            raise EvaluationLeft

    def log_save_evaluate(self, tr_loss: Tensor, grad_norm, model: nn.Module, trial, *args, **kwargs) -> None:
        """Trainer's; where the evaluation is left, a checkpoint that owes its score, and the end of training."""
        try:
            super().log_save_evaluate(tr_loss, grad_norm, model, trial, *args, **kwargs)
        except EvaluationLeft:
            self.control.should_training_stop = True
            self.save_checkpoint(model, trial)  # which keeps that there should be a score
            self.control = self.callback_handler.on_save(self.args, self.state, self.control)
            self.control.should_evaluate = False

    def evaluate_in_training(self, trial, ignore_keys_for_eval, skip_scheduler: bool = False) -> dict[str, float]:
        """Trainer's; before the first step of a run that goes on, it is the score that the checkpoint owes."""
        owed = skip_scheduler and self.state.global_step > 0
        metrics = super().evaluate_in_training(trial, ignore_keys_for_eval, skip_scheduler and not owed)
        if owed and self.is_best(metrics, trial):
            best = self.checkpoint_folder(trial)
            self.state.best_model_checkpoint = str(best) if best.is_dir() else None
        return metrics

    def save_checkpoint(self, model: nn.Module, trial) -> None:
        """Trainer's, then the manifest; only then is it pushed, and are older checkpoints deleted.

        SaveError: it could not be written. Nothing of it is left. NonFiniteLossError: its weights are no numbers.
        """
        self.losses.look()
        self.accelerator.wait_for_everyone()  # none writes where another found such a loss
        args, folder = self.args, self.checkpoint_folder(trial)
        self.args = copy.copy(args)
        self.args.push_to_hub, self.args.save_total_limit = False, None
        try:
            super().save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()  # each process writes its random state
            if args.should_save:
                write_manifest(folder)
        except (OSError, RuntimeError, SafetensorError) as error:
            raise self._unsaved(folder, error) from error
        finally:
            self.args = args
        if args.push_to_hub:
            self.push_checkpoint(str(folder))
        if args.should_save:
            best = self.state.best_model_checkpoint
            rotate_checkpoints(
                output_dir=str(folder.parent), save_total_limit=args.save_total_limit, best_model_checkpoint=best
            )

    def _unsaved(self, folder: Path, error: Exception) -> Exception:
        """The error to raise where a checkpoint could not be written."""
        whole = complete_checkpoints(folder.parent)
        files = manifest_files(whole[-1]).values() if whole else ()
        needed = sum(entry["size"] for entry in files) or state_bytes(self.model, self.optimizer)
        free = shutil.disk_usage(folder.parent).free
        full = getattr(error, "errno", None) in FULL or NOT_WRITTEN[0] in str(error) or free < needed
        if not full and not isinstance(error, OSError) and not any(words in str(error) for words in NOT_WRITTEN):
            return error  # of the computation, not of the disk
        shutil.rmtree(folder, ignore_errors=True)
        free = shutil.disk_usage(folder.parent).free
        why = error_line(error)
        if full:
            why = f"the disk is full: it needs {mebibytes(needed)}, and {folder.parent} has {mebibytes(free)}"
        rest = "There is no earlier one."
        if whole:
            rest = f"{whole[-1]} is whole: make room, then run the same command with `resume_from_checkpoint` {LAST}"
        return SaveError(f"{folder.name} could not be saved, and what was written of it is deleted; {why}. {rest}")

    def load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Trainer's, and logs and checkpoints at the options' steps; with `resume_with_changes`, rates are theirs too.

        Raises UsageError: the run is past its last step already.
        """
        if checkpoint is None:
            return super().load_optimizer_and_scheduler(checkpoint)
        refuse_nothing_left(self.state.global_step, self.state.max_steps, checkpoint)
        self.state.compute_steps(self.args, self.state.max_steps)  # Trainer has them from the checkpoint
        best = Path(checkpoint).with_name(f"{PREFIX_CHECKPOINT_DIR}-{self.state.best_global_step}")
        if self.state.best_global_step and not best.is_dir():
            logger.warning(f"{best}, the best so far, is gone: without a better one the last step's model is kept.")
        self.state.best_model_checkpoint = str(best) if best.is_dir() else None
        if not self.args.resume_with_changes:
            return super().load_optimizer_and_scheduler(checkpoint)
        fresh = [{k: v for k, v in group.items() if k != "params"} for group in self.optimizer.param_groups]
        rates = getattr(self.lr_scheduler, "base_lrs", None)
        super().load_optimizer_and_scheduler(checkpoint)
        began = load_record(checkpoint)
        same_rate = began["options"]["learning_rate"] == self.args.learning_rate
        for group, own in zip(self.optimizer.param_groups, fresh):
            group.update({name: value for name, value in own.items() if name != "lr" or not same_rate})
        if hasattr(self.lr_scheduler, "lr_lambdas"):
            self.lr_scheduler.base_lrs = rates
            at = self.lr_scheduler.last_epoch
            for group, rate, factor in zip(self.optimizer.param_groups, rates, self.lr_scheduler.lr_lambdas):
                group["lr"] = rate * factor(at)
            self.lr_scheduler._last_lr = [group["lr"] for group in self.optimizer.param_groups]  # which is logged
        self._forget_other_scores(began)

    def _forget_other_scores(self, began: dict) -> None:
        """Scores on other development pairs are not compared with these; training.json keeps them with their part."""
        if began["development_sha256"] == (self.eval_dataset and self.eval_dataset.sha256):
            return
        self.state.log_history = [entry for entry in self.state.log_history if not logged_scores(entry)]
        self.state.best_metric = self.state.best_global_step = self.state.best_model_checkpoint = None

    def load_rng_state(self, checkpoint: str | None) -> None:
        """Trainer's, unless the seed was changed: then the random state is the new seed's."""
        if checkpoint is None or load_record(checkpoint)["seed"] == self.args.seed:
            super().load_rng_state(checkpoint)

    def load_best_model(self) -> None:
        """Trainer's, after a look whether the best checkpoint is still whole."""
        problem = damage(self.state.best_model_checkpoint)
        if problem is None:
            return super().load_best_model()
        logger.warning(
            f"The best checkpoint, {self.state.best_model_checkpoint}, is damaged ({problem}): the model is the one "
            "after the last step."
        )
        self.state.best_model_checkpoint = None


def _says_more_than_where_the_best_was(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("The best checkpoint")


def mebibytes(size: int) -> str:
    return f"{size / 2**20:,.2f} MiB"


def state_bytes(model: nn.Module, optimizer: Optimizer) -> int:
    """What the weights and the optimizer's state take on disk, about."""
    tensors = [*model.state_dict().values()]
    tensors += [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
