"""What a run prints during training: a progress bar, and one line per evaluation."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

from tqdm.auto import tqdm
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback, TrainerControl, TrainerState
from transformers.trainer import DEFAULT_PROGRESS_CALLBACK

from informin.evaluation.development import Development
from informin.program import hidden
from informin.training.losses import logged_scores, loss_text


class Progress(TrainerCallback):
    """Prints one line per evaluation; without evaluation, one per log entry.

    Args:
        development: Evaluation data; None without evaluation.
        headline: Returns the line to print when training begins.
        first_step: Returns the line to print after the first step, or an empty one.
    """

    def __init__(self, development: Development | None, headline: Callable[[], str], first_step: Callable[[], str]):
        self.development, self.headline, self.first_step = development, headline, first_step
        self._bar: tqdm | None = None
        self._loss: float | None = None
        self._is_first = True

    def on_train_begin(self, args, state: TrainerState, control: TrainerControl, **kwargs):
        if state.is_world_process_zero:
            self._write(self.headline())
            self._is_first = True
            is_off = args.disable_tqdm or hidden()
            shape: Any = dict(total=state.max_steps, initial=state.global_step, unit=" steps", dynamic_ncols=True)
            self._bar = tqdm(desc="training", leave=False, disable=is_off, **shape)

    def on_step_end(self, args, state, control, **kwargs):
        if self._bar is not None:
            self._bar.update(state.global_step - self._bar.n)
            if self._is_first and (line := self.first_step()):
                self._write(f"step {state.global_step}  {line}")
            self._is_first = False

    def on_log(self, args, state, control, logs=None, **kwargs):
        if not state.is_world_process_zero or logs is None:
            return
        self._loss = logs.get("loss", self._loss)
        loss = "" if self._loss is None else f"  loss {loss_text(self._loss)}"
        if (scores := logged_scores(logs)) and self.development:
            self._write(f"step {state.global_step}{loss}  {scores_line(scores, self.development)}")
        elif "loss" in logs and self.development is None:
            self._write(f"step {state.global_step}{loss}")

    def on_train_end(self, args, state, control, **kwargs):
        if self._bar is not None:
            self._bar.close()

    def _write(self, line: str) -> None:
        tqdm.write(line, file=sys.stdout)
        sys.stdout.flush()


def replace_progress(trainer: Trainer, progress: Progress) -> None:
    """Use `progress` instead of Trainer's own progress callbacks, unless the user removed these."""
    removed = [trainer.pop_callback(kind) for kind in (PrinterCallback, ProgressCallback, DEFAULT_PROGRESS_CALLBACK)]
    if any(removed):
        trainer.add_callback(progress)


def scores_line(scores: Mapping[str, float], development: Development) -> str:
    """Return scores as one line, such as "STS-B dev 83.47  alignment 0.150  titles.tsv V-measure 70.25"."""
    shown, measures = [], development.measures
    for one in development.sets:
        for number, (name, measure) in enumerate(one.measures.items()):
            title = "" if name.endswith("spearman") else f"{measure.title} "  # the usual score of pairs needs no name
            shown.append(f"{f'{one.name} ' if number == 0 else ''}{title}{measure.shown(scores[name])}")
    return "  ".join([*shown, *(f"{name} {value:.4g}" for name, value in scores.items() if name not in measures)])
