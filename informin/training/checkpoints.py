"""The checkpoints of a run: how they are found and saved, what a signal does, and how a run resumes.

* **Find.** A checkpoint is complete if it has a manifest and the files in it.
* **Save.** Trainer writes a checkpoint, and a background thread finishes it while training continues. What a full disk
  leaves incomplete is deleted.
* **Stop on a signal.** On Ctrl-C and the other `SIGNALS`, `informin train` saves a checkpoint after the current step,
  or within an evaluation, which it ends after at most 16 more batches, and stops.
* **Resume.** A run resumes from a complete checkpoint if its settings are the same, and gives the same weights as a run
  that was not interrupted.
"""

import copy
import logging
import math
import os
import re
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any, cast

import torch
from transformers import Trainer, TrainerCallback, TrainerState
from transformers.integrations.integration_utils import MLflowCallback, TrackioCallback, WandbCallback, WandbLogModel
from transformers.trainer import OPTIMIZER_NAME, TRAINER_STATE_NAME
from transformers.trainer_callback import ExportableState
from transformers.trainer_pt_utils import AcceleratorConfig
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, TrainOutput

from informin.distributed import any_process
from informin.errors import SaveError, UsageError, error_line
from informin.files import damage, is_write_error, manifest_files, read_json, write_manifest
from informin.model.records import TRAINING, RunRecord
from informin.options import with_home
from informin.training.arguments import InforMinTrainingArguments
from informin.training.callbacks import Throughput, evaluations
from informin.training.launcher import SIGNALS
from informin.training.record import DEFAULTS, ONLY_IF_CHANGED

logger = logging.getLogger(__name__)

LAST = "last"  # value of `resume_from_checkpoint` for the latest complete checkpoint
RESUME = "resume_from_checkpoint"
LAUNCHED = ("TORCHELASTIC_RUN_ID", "ACCELERATE_MIXED_PRECISION")  # set by torchrun and accelerate launch


# Find


def step_of(checkpoint: Path) -> int:
    """Return the step in a checkpoint folder's name, such as checkpoint-125."""
    return int(checkpoint.name.removeprefix(f"{PREFIX_CHECKPOINT_DIR}-"))


def all_checkpoints(folder: str | Path) -> list[Path]:
    """Return the checkpoint folders, complete or not, sorted by step."""
    named = [path for path in Path(folder).glob("*") if re.fullmatch(rf"{PREFIX_CHECKPOINT_DIR}-\d+", path.name)]
    return sorted((path for path in named if path.is_dir()), key=step_of)


def complete_checkpoints(output_dir: str | Path) -> list[Path]:
    """Return the complete checkpoints of a run, sorted by step. Compares file sizes, not checksums."""
    return [path for path in all_checkpoints(output_dir) if damage(path, contents=False) is None]


def is_of_killed_run(checkpoint: Path) -> bool:
    """Return whether a checkpoint is incomplete, and not that of another program, which has no manifest, either.

    Trainer writes its state last, after the record.
    """
    is_other = Path(checkpoint, TRAINER_STATE_NAME).exists() and not Path(checkpoint, TRAINING).exists()
    return damage(checkpoint, contents=False) is not None and not is_other


def can_resume(checkpoint: Path) -> bool:
    """Return whether a checkpoint has what a resumed run needs. With `save_only_model`, it does not."""
    return {"scheduler.pt", TRAINING} <= (manifest_files(checkpoint) or {}).keys()


def is_restarted() -> bool:
    """Return whether torchrun restarted the processes after one of them died (`--max_restarts`)."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def raise_if_output_used(output_dir: str | Path, allow_incomplete: bool = False) -> None:
    """Raise UsageError if the output folder of a new run already has a model or a checkpoint, or is a file.

    Args:
        output_dir: Output folder of the run.
        allow_incomplete: Allow incomplete checkpoints, as a run that was interrupted leaves.
    """
    folder = Path(output_dir)
    if any(path.is_file() for path in (folder, *folder.parents)):
        raise UsageError(f"is {folder}, which is a file or within one", option="output_dir", needed="a folder")
    existing = [path for path in (folder / "model.safetensors", folder / "modules.json") if path.exists()]
    existing += [path for path in all_checkpoints(folder) if not (allow_incomplete and is_of_killed_run(path))]
    if existing:
        raise UsageError(
            f"{folder} already contains {existing[0].name}",
            option="output_dir",
            fix=f"Resume that run (`{RESUME}`), or choose another folder.",
        )


# Save


class Background:
    """Does work in a background thread, one piece at a time. Python does not exit before its end."""

    def __init__(self) -> None:
        self._thread: Thread | None = None
        self._error: Exception | None = None

    def start(self, work: Callable[[], object]) -> None:
        """Start the work. First wait for the end of the work before it."""
        self.wait()
        self._thread = Thread(target=self._run, args=(work,), name="checkpoint", daemon=False)
        self._thread.start()

    def wait(self) -> None:
        """Wait for the end of the work, and raise the error that ended it."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error = self._error
        self._error = None
        if error:
            raise error

    def _run(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:
            self._error = error


@contextmanager
def unfinished_checkpoint(trainer: Trainer, folder: Path) -> Iterator[None]:
    """Return a context in which Trainer writes a checkpoint, which `finish_checkpoint` then completes.

    Trainer's own push and its deletion of older checkpoints are off within: both must wait for the manifest.

    Raises:
        SaveError: The checkpoint could not be written; its incomplete files are deleted.
    """
    args = trainer.args
    trainer.args = copy.copy(args)
    trainer.args.push_to_hub = False
    trainer.args.save_total_limit = None
    if args.should_save:
        shutil.rmtree(folder, ignore_errors=True)  # a damaged one that the run did not resume from
    trainer.accelerator.wait_for_everyone()
    try:
        with deleted_on_error(folder):
            yield
        trainer.accelerator.wait_for_everyone()  # each process writes its random state
    finally:
        trainer.args = args


def finish_checkpoint(folder: Path, optimizer: dict[str, Any] | None, limit: int | None, best: str | None) -> None:
    """Write the optimizer state and the manifest of a checkpoint, and then delete older checkpoints.

    Args:
        folder: Folder of the checkpoint.
        optimizer: State of the optimizer; None if Trainer has written it, or if it is not saved.
        limit: See `delete_old_checkpoints`.
        best: See `delete_old_checkpoints`.

    Raises:
        SaveError: The checkpoint could not be written; its incomplete files are deleted, and older ones are kept.
    """
    with deleted_on_error(folder):
        if optimizer is not None:
            torch.save(optimizer, folder / OPTIMIZER_NAME)
        write_manifest(folder)
    delete_old_checkpoints(folder, limit, best)


@contextmanager
def deleted_on_error(folder: Path) -> Iterator[None]:
    """Delete an incomplete checkpoint if a file of it cannot be written, and raise SaveError."""
    try:
        yield
    except Exception as error:
        if not is_write_error(error) and not raised_by_torch_save(error):
            raise
        shutil.rmtree(folder, ignore_errors=True)
        raise SaveError(
            f"{folder.name} could not be saved: {error_line(error)}. Its incomplete files were deleted. Free some "
            f"space, then resume from the checkpoint before it (`resume_from_checkpoint` {LAST})."
        ) from error


def raised_by_torch_save(error: Exception) -> bool:
    """Return whether torch.save raised an error, as it does if the disk is full. Its messages vary."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_globals["__name__"] == torch.serialization.__name__


def delete_old_checkpoints(latest: Path, limit: int | None, best: str | None) -> None:
    """Delete the oldest checkpoints above a limit. The best and the latest one are kept, even if the limit is 1.

    Incomplete ones stay. A killed run may have left one of a later step than the latest, and others are those of
    another program.

    Args:
        latest: The checkpoint that was just saved, beside which the others are.
        limit: Number of checkpoints; None or 0 keeps all.
        best: The best checkpoint; None without a complete one.
    """
    if not limit or limit < 0:
        return
    found = complete_checkpoints(latest.parent)
    kept = {latest.resolve()}
    if best:
        kept.add(Path(best).resolve())
    others = [path for path in found if path.resolve() not in kept]
    surplus = len(found) - max(limit, len(kept))
    for path in others[: max(0, surplus)]:
        logger.debug(f"Deleting {path.name}, because of `save_total_limit`")
        shutil.rmtree(path, ignore_errors=True)


def reads_checkpoint(callback: TrainerCallback) -> bool:
    """Return whether a callback may read a new checkpoint in `on_save`, which must then be finished before.

    Those of W&B and MLflow do if WANDB_LOG_MODEL=checkpoint and HF_MLFLOW_LOG_ARTIFACTS=1 ask for it, and so does any
    `on_save` that is not known here.
    """
    given: Any = callback
    on_save = type(callback).on_save
    if on_save is WandbCallback.on_save:
        return given._log_model == WandbLogModel.CHECKPOINT
    if on_save is MLflowCallback.on_save:
        return given._log_artifacts
    return on_save not in [kind.on_save for kind in (TrainerCallback, Throughput, StopOnSignal, TrackioCallback)]


# Stop on a signal. From top to bottom: the handler notes the signal; the end of the step, or of some batches of an
# evaluation, sees the note; the run saves a checkpoint and stops.


class StopOnSignal(TrainerCallback):
    """Stops training with a checkpoint after the current step if a signal arrives within its `with` block.

    An evaluation ends after at most 16 more batches; the resumed run evaluates first. A second signal has its usual
    effect. Under a launcher, only the third has it: torchrun forwards the signal that the terminal has already sent to
    every process, sometimes seconds later. All processes stop at the same step, whichever received the signal. Signals
    that the process was started to ignore, as by nohup, stay ignored.

    Attributes:
        received: Number of the signal, or None.
    """

    def __init__(self):
        self.received: int | None = None
        self._may_be_forwarded = any(name in os.environ for name in LAUNCHED)  # the next signal, if one was received

    def __enter__(self):
        handled = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        self._previous = {number: signal.signal(number, self._handle) for number in handled}
        return self

    def _handle(self, number, _frame):
        if self.received and not self._may_be_forwarded:
            self._restore()
            signal.raise_signal(number)
        elif self.received:
            self._may_be_forwarded = False
        else:
            self.received = number
            if number == getattr(signal, "SIGHUP", None):
                _silence_terminals()

    def on_step_end(self, args, state, control, **kwargs):
        """Ask Trainer to save a checkpoint and to stop, now that a step has ended."""
        if self._agree():
            control.should_save = control.should_training_stop = True

    on_evaluate = on_step_end  # the signal came in the last batch of an evaluation

    def on_save(self, args, state, control, **kwargs):
        """Ask Trainer to stop, now that a checkpoint is saved."""
        control.should_training_stop |= self._agree()

    def on_prediction_step(self, args, state, control, **kwargs):
        """End the evaluation, now that some of its batches have ended; see `leaving_on_signal`."""
        if self.received:
            raise EvaluationLeft

    def _agree(self) -> bool:
        """Return whether any process received a signal."""
        if any_process(bool(self.received)):
            self.received = self.received or signal.SIGTERM
        return bool(self.received)

    def __exit__(self, *_):
        self._restore()

    def _restore(self):
        for number, handler in self._previous.items():
            signal.signal(number, handler)


def _silence_terminals() -> None:
    """Redirect stdout and stderr to /dev/null if they are terminals: writing to a closed one raises an error."""
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is not None and not stream.closed and stream.isatty():
            with open(os.devnull, "w") as null:
                os.dup2(null.fileno(), stream.fileno())


class EvaluationLeft(Exception):
    """Ends the current evaluation, so that the run can save a checkpoint and stop."""


@contextmanager
def leaving_on_signal(trainer: Trainer) -> Iterator[Callable[[], object]]:
    """Yield a function that an evaluation calls after every 16 batches, through which a signal can end the evaluation.

    EvaluationLeft is raised at the end, in every process if it was raised in one; `save_and_stop` follows.
    """
    # Before the first step there is nothing new to save, and an evaluation that the user calls must not be ended.
    can_leave = trainer.is_in_train and trainer.control.should_evaluate
    handler = trainer.callback_handler
    has_left = False
    try:
        yield lambda: can_leave and handler.on_prediction_step(trainer.args, trainer.state, trainer.control)
    except EvaluationLeft:
        has_left = True
    if can_leave and any_process(has_left):
        raise EvaluationLeft


def save_and_stop(trainer: Trainer) -> TrainOutput:
    """Save a checkpoint after a signal ended an evaluation, and stop. The resumed run evaluates first."""
    args, state, handler = trainer.args, trainer.state, trainer.callback_handler
    trainer.control.should_training_stop = True
    trainer._save_checkpoint(trainer.model_wrapped, None)  # with should_evaluate set
    trainer.control = handler.on_save(args, state, trainer.control)
    trainer.control.should_evaluate = False
    trainer.control = handler.on_train_end(args, state, trainer.control)
    return TrainOutput(state.global_step, float("nan"), {})


# Resume


def checkpoint_to_resume(output_dir: str | Path, wanted: object) -> Path:
    """Return the checkpoint folder to resume from. Logs which later checkpoints are damaged.

    Args:
        output_dir: Output folder of the run.
        wanted: Checkpoint folder; True or "last" for the latest complete one in `output_dir`.

    Raises:
        UsageError: There is no complete checkpoint; the given one is damaged, is older than another one in
            `output_dir`, or lacks the optimizer state.
    """
    if wanted is True or wanted == LAST:
        checkpoint = _latest_complete(output_dir)
    elif isinstance(wanted, str | Path) and str(wanted):
        checkpoint = _named_checkpoint(Path(with_home(wanted)), Path(output_dir))
    else:
        raise UsageError(f"is {wanted!r}", option=RESUME, needed=f"a checkpoint folder, or `{LAST}`")
    if not can_resume(checkpoint):
        raise UsageError(
            f"{checkpoint} lacks training.json or the optimizer state (see `save_only_model`)",
            option=RESUME,
            fix="Start a new run from its weights: `model_name` FOLDER `output_dir` ANOTHER.",
        )
    return checkpoint


def _latest_complete(output_dir: str | Path) -> Path:
    damaged: list[str] = []
    for checkpoint in reversed(all_checkpoints(output_dir)):
        problem = damage(checkpoint)
        if problem is None:
            for text in damaged:
                logger.warning(f"{text}. Resuming from {checkpoint.name} instead.")
            return checkpoint
        damaged.append(f"{checkpoint} is damaged ({problem})")
    elsewhere = " in another folder (`output_dir`)" if damaged else ""  # a new run is refused beside checkpoints
    raise UsageError(
        f"{output_dir} has no complete checkpoint{''.join(f'; {text}' for text in damaged)}",
        option=RESUME,
        fix=f"Start a new run without `{RESUME}`{elsewhere}, or give the folder of a complete checkpoint.",
    )


def _named_checkpoint(checkpoint: Path, output_dir: Path) -> Path:
    problem = damage(checkpoint)
    if problem:
        raise UsageError(
            f"{checkpoint} is not a complete checkpoint: {problem}",
            option=RESUME,
            needed=f"a folder such as outputs/RUN/{PREFIX_CHECKPOINT_DIR}-125, or `{LAST}` for the latest complete one",
        )
    if checkpoint.resolve().parent != output_dir.resolve():
        raise_if_output_used(output_dir)
        return checkpoint
    others = [path for path in all_checkpoints(output_dir) if step_of(path) > step_of(checkpoint)]
    later = [path.name for path in others if damage(path) is None]
    if later:
        raise UsageError(
            f"{checkpoint} is older than {', '.join(later)} in the same folder, and two runs would get mixed up",
            option=RESUME,
            fix="Choose another `output_dir`, or delete the later checkpoints.",
        )
    return checkpoint


def check_same_run(checkpoint: str | Path, now: RunRecord, evaluates: bool = True) -> None:
    """Raise UsageError if a run that resumes differs from the one that saved the checkpoint.

    Compares the encoder, the sentences, those of a guide with its model, the evaluation data, which select the best
    checkpoint, the seed, the number of processes and the options that affect the weights.

    Args:
        checkpoint: Folder of the checkpoint.
        now: Record of the resumed run before its first step.
        evaluates: Whether the resumed run evaluates. If not, it would delete the best checkpoint of a run that does.
    """
    began = RunRecord.load(checkpoint)
    assert began is not None  # see `checkpoint_to_resume`
    changed = []
    for name in ("weights_sha256", "settings_sha256"):
        before = (began.base_model or {}).get(name)
        after = (now.base_model or {}).get(name)
        if before and after and before != after:
            changed.append(f"the encoder (`model_name`), by its {name}")
    old = began.data or {}
    new = now.data or {}
    checked = "sha256" if old.get("sha256") and new.get("sha256") else "sources"  # a stream is not read before
    if old.get(checked) != new.get(checked):  # tokenized rows have neither
        before = f"{old.get('sentences')} from {old.get('sources')}" if old else "which were tokenized rows"
        changed.append(f"the sentences, {before}")
    for name in began.inputs.keys() & now.inputs.keys():
        changed += [f"the {name}, by their checksum"] if began.inputs[name] != now.inputs[name] else []
    scored = began.development_sha256, now.development_sha256
    if all(scored) and scored[0] != scored[1]:
        changed.append(f"the evaluation data, {began.development}")
    elif began.history and not evaluates:
        changed.append(f"the evaluation data, {began.development}, now none or `eval_strategy` no")
    if began.seed != now.seed:
        changed.append(f"seed {began.seed}, now {now.seed}")
    for name in dict.fromkeys([*began.options, *now.options]):
        before, after = began.options.get(name), now.options.get(name)
        if before == after:
            continue
        if name == "cpu_parts":
            changed.append(f"{before or 1} parts of a batch at a time (`OMP_NUM_THREADS`), now {after or 1}")
        else:
            usual = DEFAULTS[name] if name in ONLY_IF_CHANGED else "not set"
            changed.append(f"{name} {began.options.get(name, usual)}, now {now.options.get(name, usual)}")
    if changed:
        raise UsageError(
            f"{checkpoint} belongs to another run: {'; '.join(changed)}",
            option=RESUME,
            fix="Restore the original values, or choose another `output_dir` for a new run.",
        )


def check_same_order(checkpoint: str | Path, args: InforMinTrainingArguments, has_size: bool) -> None:
    """Raise UsageError if a resumed run would read the sentences in a different order from an uninterrupted one.

    Args:
        checkpoint: Folder of the checkpoint.
        args: Arguments of the resumed run.
        has_size: Whether the length of the data is known.
    """
    # Several workers that need not keep the order never have the same one.
    is_by_chance = not args.dataloader_in_order and args.dataloader_num_workers > 1
    # A run that resumes within the second epoch or a later one draws the order of this epoch again. These draw it from
    # the global random state, which now differs, instead of the seed and the epoch.
    epoch = read_json(Path(checkpoint, TRAINER_STATE_NAME))["epoch"] or 0
    draws_again = has_size and not args.ignore_data_skip and epoch > 1 and epoch % 1 > 0
    loader = cast(AcceleratorConfig, args.accelerator_config)
    is_unseeded = not loader.use_seedable_sampler or loader.dispatch_batches
    from_global_state = args.train_sampling_strategy == "random" and is_unseeded
    if is_by_chance or (draws_again and from_global_state):
        raise UsageError(
            f"{checkpoint} cannot be resumed with the same order of sentences, because of `dataloader_in_order` "
            "or `accelerator_config`",
            option=RESUME,
        )


def callback_state(checkpoint: str | Path, name: str) -> dict[str, Any]:
    """Return the arguments of a callback that a checkpoint saved; empty if it saved none."""
    state = read_json(Path(checkpoint, TRAINER_STATE_NAME))
    return (state.get("stateful_callbacks") or {}).get(name, {}).get("args", {})


class ResumedRun(TrainerCallback):
    """Restores, when a resumed run begins, what Trainer does not restore from the checkpoint.

    Args:
        trainer: The trainer of the run.
        checkpoint: Folder of the checkpoint.
    """

    def __init__(self, trainer: Trainer, checkpoint: Path):
        self.trainer = trainer
        self.checkpoint = checkpoint
        # A signal may have ended the evaluation at the checkpoint's step. The resumed run then evaluates first.
        self.evaluates_first = bool(callback_state(checkpoint, "TrainerControl").get("should_evaluate"))

    def on_train_begin(self, args, state, control, **kwargs):
        trainer = self.trainer
        state.compute_steps(args, state.max_steps)  # between log lines, evaluations and checkpoints, as in `args`
        finished = RunRecord.load(self.checkpoint.parent)
        for callback in trainer.callback_handler.callbacks + [trainer.control]:
            if isinstance(callback, ExportableState):  # Trainer cannot save one that the checkpoint lacks
                state.stateful_callbacks.setdefault(type(callback).__name__, callback.state())
            if isinstance(callback, EpochStart):
                vars(callback).update(callback_state(self.checkpoint, "EpochStart"))
            if isinstance(callback, Throughput) and finished and finished.steps == state.global_step:
                callback.sentences_per_second = finished.sentences_per_second  # no further step will be measured
        saved = complete_checkpoints(self.checkpoint.parent)  # which may have been renamed
        set_best(state, args, saved)
        if self.evaluates_first and args.eval_strategy != "no":
            metrics = trainer._evaluate(None, None)
            trainer._determine_best_metric(metrics=metrics, trial=None)
            set_best(state, args, saved)


def set_best(state: TrainerState, args: InforMinTrainingArguments, saved: list[Path]) -> None:
    """Set the best checkpoint: the first one with the best score, of those that an uninterrupted run has, too.

    None without `load_best_model_at_end`, so that the latest checkpoint is kept.

    Args:
        state: State of the run, whose log has the scores.
        args: Arguments of the run.
        saved: Checkpoints, sorted by step.
    """
    metric = f"eval_{str(args.metric_for_best_model).removeprefix('eval_')}"
    scores = {step_of(path): math.nan for path in saved}
    scores |= {entry["step"]: entry[metric] for entry in evaluations(state.log_history) if metric in entry}
    sign = 1 if args.greater_is_better else -1
    candidates = [path for path in saved if args.load_best_model_at_end and math.isfinite(scores[step_of(path)])]
    candidates = [path for path in candidates if not is_extra(path, state, args)]
    best = max(candidates, key=lambda path: sign * scores[step_of(path)], default=None)
    state.best_model_checkpoint = None if best is None else str(best)


def is_extra(checkpoint: Path, state: TrainerState, args: InforMinTrainingArguments) -> bool:
    """Return whether a checkpoint exists only because a signal stopped the run between two others."""
    step = step_of(checkpoint)
    is_between = args.save_strategy == "steps" and step % (state.save_steps or math.inf) != 0 and step < state.max_steps
    return is_between and bool(callback_state(checkpoint, "TrainerControl").get("should_training_stop"))


class EpochStart(TrainerCallback, ExportableState):
    """Saves in checkpoints where the current epoch began, because the length of a stream is unknown.

    Attributes:
        epoch: Index of the epoch.
        step: Number of optimizer steps before it.
    """

    def __init__(self, epoch: int = 0, step: int = 0):
        self.epoch = epoch
        self.step = step

    def on_train_begin(self, args, state, control, **kwargs):
        if state.global_step == 0:  # `train` may be called twice
            self.epoch = 0
            self.step = 0

    def on_epoch_end(self, args, state, control, **kwargs):
        if not control.should_training_stop:  # otherwise a resumed run may continue this epoch
            self.epoch += 1
            self.step = state.global_step

    def state(self) -> dict:
        return {"args": {"epoch": self.epoch, "step": self.step}, "attributes": {}}


def position_in_stream(checkpoint: Path, args: InforMinTrainingArguments) -> tuple[int, int]:
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
