"""Trainer callbacks for steps, random seeds, epochs, the log of short runs, progress and the training speed."""

import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from tqdm.auto import tqdm
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback, TrainerControl, TrainerState
from transformers.trainer import DEFAULT_PROGRESS_CALLBACK
from transformers.trainer_callback import ExportableState

from informin.distributed import rank, world_size
from informin.program import hidden
from informin.training.log_entries import LOGGING_STEPS, logged_scores, loss_text
from informin.views.stacking import step_seed

if TYPE_CHECKING:  # it imports scikit-learn and datasets, and a wrong option is answered without them
    from informin.evaluation.development import Development

BAR = "{desc} |{bar}| {remaining} left{postfix}, {rate_fmt}"  # a narrow terminal cuts the end
OF_DROPOUT = 1  # last part of a seed that no step has: zeros at the end of the parts change nothing


class AfterStep(TrainerCallback):
    """Calls `Head.after_step` after each optimizer step."""

    def on_optimizer_step(self, args, state, control, model=None, **kwargs):
        for head in model.heads.values():
            head.after_step(model)


class LogShortRuns(TrainerCallback):
    """Logs the loss four times in a run that is too short for the default of `logging_steps`."""

    times = 4

    def on_step_end(self, args, state, control, **kwargs):
        by_default = args.logging_strategy == "steps" and args.logging_steps == LOGGING_STEPS
        if by_default and state.max_steps < LOGGING_STEPS * self.times:
            is_first = state.global_step == 1 and args.logging_first_step
            every = max(1, state.max_steps // self.times)
            control.should_log = is_first or state.global_step % every == 0


class SeedProcesses(TrainerCallback):
    """Gives each process its own seed for dropout.

    Trainer uses the same seed in all processes, so they would use the same dropout masks for different sentences. The
    order of the sentences is already set at this point. Checkpoints hold the random state of every process.
    """

    def on_train_begin(self, args, state, control, **kwargs):
        if world_size() > 1:
            torch.manual_seed(step_seed(args.seed, rank(), 0, 0, OF_DROPOUT))


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


class Throughput(TrainerCallback):
    """Measures the time of the training steps, without evaluation and saving.

    Attributes:
        sentences_per_second: Sentences per second over all processes, for the last call of `train`. None before its
            end, and if it took no step, unless it resumed a finished run whose speed was recorded.
        first_step: Step at which that call began: above 0 for a resumed run.
    """

    sentences_per_second: float | None = None
    first_step = 0
    _mark = 0.0  # an evaluation may come before any training
    _aside = 0.0

    def on_train_begin(self, args, state, control, **kwargs):
        self.sentences_per_second = None
        self.first_step = state.global_step
        self._batches = 0
        self._start = self._mark = time.perf_counter()
        self._aside = 0.0

    def on_substep_end(self, args, state, control, **kwargs):
        self._batches += 1

    def on_step_end(self, args, state, control, **kwargs):
        self._batches += 1
        if args.device.type == "cuda" and (
            control.should_evaluate or control.should_save or control.should_training_stop
        ):
            torch.cuda.synchronize(args.device)  # a GPU is behind the Python code by a step or more
        self._mark = time.perf_counter()

    def on_evaluate(self, args, state, control, **kwargs):
        now = time.perf_counter()
        self._aside += now - self._mark
        self._mark = now

    on_save = on_evaluate

    def on_train_end(self, args, state, control, **kwargs):
        if self._batches:
            seconds = self._mark - self._start - self._aside
            sentences = self._batches * args.per_device_train_batch_size * args.world_size
            self.sentences_per_second = sentences / seconds


class Progress(TrainerCallback):
    """Shows a bar in a terminal, and prints a line for each evaluation; elsewhere also a line for each logged loss.

    Args:
        development: Evaluation data; None without evaluation.
        headline: Returns the line to print when training begins.
        first_step: Returns the line to print after the first step, or an empty one.
    """

    def __init__(self, development: "Development | None", headline: Callable[[], str], first_step: Callable[[], str]):
        self.development = development
        self.headline = headline
        self.first_step = first_step
        self._bar: tqdm | None = None
        self._loss: float | None = None
        self._score = ""
        self._is_first = True

    def on_train_begin(self, args, state: TrainerState, control: TrainerControl, **kwargs):
        if state.is_world_process_zero:
            self._write(self.headline())
            self._is_first = True
            self._begin = time.perf_counter()
            self._first = state.global_step
            self._sentences = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
            self._bar = tqdm(
                desc=f"step {state.global_step:,}/{state.max_steps:,}",
                bar_format=BAR,
                leave=False,
                disable=args.disable_tqdm or hidden(),
                total=state.max_steps,
                initial=state.global_step,
                unit=" sentences",
                unit_scale=self._sentences,
                dynamic_ncols=True,
            )

    def on_step_end(self, args, state, control, **kwargs):
        if self._bar is not None:
            self._bar.set_description_str(f"step {state.global_step:,}/{state.max_steps:,}", refresh=False)
            self._bar.update(state.global_step - self._bar.n)
            line = self.first_step() if self._is_first else ""
            if line:
                self._write(f"step {state.global_step}  {line}")
            self._is_first = False

    def on_log(self, args, state, control, logs=None, **kwargs):
        if not state.is_world_process_zero or logs is None:
            return
        self._loss = logs.get("loss", self._loss)
        loss = "" if self._loss is None else f"  loss {loss_text(self._loss)}"
        scores = logged_scores(logs)
        if scores and self.development:
            line = scores_line(scores, self.development)
            self._score = line.partition("  ")[0]
            self._write(f"step {state.global_step}{loss}  {line}")
        elif "loss" in logs and self._is_line_wanted(control):
            self._write(f"step {state.global_step}{loss}{self._speed(state)}")
        if self._bar is not None:
            self._bar.set_postfix_str(", ".join(filter(None, [loss.strip(), self._score])))

    def on_train_end(self, args, state, control, **kwargs):
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _is_line_wanted(self, control: TrainerControl) -> bool:
        """Whether a logged loss gets a line: not beside a bar, and not just before the line of an evaluation."""
        return self._bar is not None and bool(self._bar.disable) and not control.should_evaluate

    def _speed(self, state: TrainerState) -> str:
        """Return the speed since the first step and the time left, of this call of `train`, with evaluations."""
        steps = state.global_step - self._first
        if not steps:
            return ""
        seconds = time.perf_counter() - self._begin
        left = seconds / steps * (state.max_steps - state.global_step)
        return f"  {steps * self._sentences / seconds:.0f} sentences/s  {tqdm.format_interval(left)} left"

    def _write(self, line: str) -> None:
        if sys.stdout is not None:  # None in pythonw, or if the caller has closed it
            tqdm.write(line, file=sys.stdout)
            sys.stdout.flush()


def replace_progress(trainer: Trainer, progress: Progress) -> None:
    """Use `progress` instead of Trainer's own progress callbacks, unless the user removed these."""
    removed = [trainer.pop_callback(kind) for kind in (PrinterCallback, ProgressCallback, DEFAULT_PROGRESS_CALLBACK)]
    if any(removed):
        trainer.add_callback(progress)


def scores_line(scores: Mapping[str, float], development: "Development") -> str:
    """Return scores as one line, such as "STS-B dev 83.47  alignment 0.150  titles.tsv V-measure 70.25"."""
    shown = []
    for one in development.sets:
        values = []
        for name, measure in one.measures.items():
            title = "" if name.endswith("spearman") else f"{measure.title} "  # the usual score of pairs needs no name
            values.append(f"{title}{measure.shown(scores[name])}")
        shown.append(f"{one.name} {'  '.join(values)}")
    for name, value in scores.items():
        if name not in development.measures:
            shown.append(f"{name} {value:.4g}")
    return "  ".join(shown)
