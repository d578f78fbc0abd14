"""What a run shows while it trains: one progress bar, and a short line an evaluation."""

import sys
from collections.abc import Callable, Mapping

from tqdm.auto import tqdm
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback, TrainerControl, TrainerState
from transformers.trainer import DEFAULT_PROGRESS_CALLBACK

from informin.bars import hidden
from informin.evaluation.development import Development
from informin.training.history import logged_scores, logged_terms
from informin.training.options import InforMinTrainingArguments


class Screen(TrainerCallback):
    """A line an evaluation; where nothing is evaluated, or everything is asked for, a line of each log.

    Args:
        development: what is scored; None without evaluation.
        headline: what is said first, when training begins.
    """

    def __init__(self, development: Development | None, headline: Callable[[], str]):
        self.development, self.headline = development, headline
        self._bar = None
        self._loss: float | None = None

    def on_train_begin(self, args: InforMinTrainingArguments, state: TrainerState, control: TrainerControl, **kwargs):
        if state.is_world_process_zero:
            self._write(self.headline())
            steps = {"total": state.max_steps, "initial": state.global_step, "unit": " steps"}
            off = args.disable_tqdm or hidden()
            self._bar = tqdm(**steps, desc="training", dynamic_ncols=True, leave=False, disable=off)

    def on_step_end(self, args, state, control, **kwargs):
        if self._bar is not None:
            self._bar.update(state.global_step - self._bar.n)

    def on_log(self, args, state, control, logs=None, **kwargs):
        if not state.is_world_process_zero or logs is None:
            return
        self._loss = logs.get("loss", self._loss)
        scored = logged_scores(logs)
        if scored and self.development:
            self._write(f"step {state.global_step}{self._of_loss()}  {scores(scored, self.development)}")
        elif "loss" in logs and (args.verbose or self.development is None):
            terms = (
                "".join(f"  {name} {value:.4f}" for name, value in logged_terms(logs).items()) if args.verbose else ""
            )
            self._write(f"step {state.global_step}{self._of_loss()}{terms}")

    def on_train_end(self, args, state, control, **kwargs):
        if self._bar is not None:
            self._bar.close()

    def _of_loss(self) -> str:
        return "" if self._loss is None else f"  loss {self._loss:.4f}"

    def _write(self, line: str) -> None:
        tqdm.write(line, file=sys.stdout)
        sys.stdout.flush()


def show(trainer: Trainer, screen: Screen) -> None:
    """Puts it in the place of Trainer's own callbacks, of which a notebook has another one."""
    own = [trainer.pop_callback(kind) for kind in (PrinterCallback, ProgressCallback, DEFAULT_PROGRESS_CALLBACK)]
    if any(own):
        trainer.add_callback(screen)


def scores(found: Mapping[str, float], development: Development) -> str:
    """STS-B dev 83.47  alignment 0.150  uniformity -2.400  titles.tsv V-measure 70.25  1-NN 77.56  ..."""
    shown = []
    for one in development.sets:
        known = {name: measure for name, measure in one.measures.items() if name in found}
        for name, measure in known.items():
            title = "" if name == "spearman" else f"{measure.title} "  # what pairs have always been summed up by
            shown.append(f"{f'{one.name} ' if name == next(iter(known)) else ''}{title}{measure.shown(found[name])}")
    return "  ".join(shown)
