"""Resume a run exactly: its checkpoint, its position in a stream, and the state of its callbacks."""

from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, has_length

from informin.records import RunRecord
from informin.training.callbacks import EpochStart
from informin.training.checkpoints import (
    callback_state,
    check_order,
    check_same_run,
    checkpoint_to_resume,
    step_of,
)
from informin.training.option_checks import FIRST
from informin.training.record import training_record


def find_checkpoint(trainer: Any, wanted: str | bool) -> Path:
    """Return the checkpoint from which a trainer resumes, after checking that the run is still the same.

    Args:
        trainer: The trainer of the resumed run, before its first step.
        wanted: See `checkpoint_to_resume`.

    Raises:
        UsageError: See `checkpoint_to_resume`, `check_same_run` and `check_order`.
    """
    checkpoint = checkpoint_to_resume(str(trainer.args.output_dir), wanted)
    began = RunRecord.load(checkpoint)
    if began and trainer.args.metric_for_best_model == FIRST:
        trainer.args.metric_for_best_model = began.options.get("metric_for_best_model", "eval_spearman")
    check_same_run(checkpoint, training_record(trainer))
    check_order(checkpoint, trainer.args, has_size=has_length(trainer.train_dataset))
    return checkpoint


class ResumedRun(TrainerCallback):
    """Restores, when a resumed run begins, what Trainer does not restore from the checkpoint.

    Args:
        trainer: The trainer of the run.
        checkpoint: Folder of the checkpoint.
    """

    def __init__(self, trainer: Any, checkpoint: Path):
        self.trainer = trainer
        self.checkpoint = checkpoint
        # A signal may have ended the evaluation at the checkpoint's step. The resumed run then evaluates first.
        self.evaluates_first = bool(callback_state(checkpoint, "TrainerControl").get("should_evaluate"))

    def on_train_begin(self, args, state, control, **kwargs):
        trainer = self.trainer
        state.compute_steps(args, state.max_steps)  # between log lines, evaluations and checkpoints, as in `args`
        for callback in trainer.callback_handler.callbacks + [trainer.control]:
            if isinstance(callback, ExportableState):  # Trainer cannot save one that the checkpoint lacks
                state.stateful_callbacks.setdefault(type(callback).__name__, callback.state())
            if isinstance(callback, EpochStart):
                vars(callback).update(callback_state(self.checkpoint, "EpochStart"))
        finished = RunRecord.load(self.checkpoint.parent)
        if finished and finished.steps == state.global_step:  # no further step will be measured
            trainer.throughput.sentences_per_second = finished.sentences_per_second
        if args.load_best_model_at_end and state.best_global_step:
            find_best(state, self.checkpoint.parent)
        if self.evaluates_first and args.eval_strategy != "no":
            metrics = trainer._evaluate(None, None)
            if trainer._determine_best_metric(metrics=metrics, trial=None):
                find_best(state, Path(args.output_dir))


def find_best(state: Any, folder: Path) -> None:
    """Set the best checkpoint to the one in a folder, which may have been renamed, if it is still there."""
    best = folder / f"{PREFIX_CHECKPOINT_DIR}-{state.best_global_step}"
    state.best_model_checkpoint = str(best) if best.is_dir() else None


def position_in_stream(checkpoint: Path, args: Any) -> tuple[int, int]:
    """Return the number of finished passes over a stream, and of batches to skip in the current one.

    Passes may differ in their numbers of batches, because the order of the files decides which worker reads which.

    Args:
        checkpoint: Folder of the checkpoint from which the run resumes.
        args: Arguments of the run.
    """
    start = EpochStart(**callback_state(checkpoint, "EpochStart"))
    if args.ignore_data_skip:
        return start.epoch, 0
    return start.epoch, (step_of(checkpoint) - start.step) * args.gradient_accumulation_steps
