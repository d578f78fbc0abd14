"""What a run measures and shows (losses, gradient ratios, speed, progress), and small callbacks of a step."""

import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity
from tqdm.auto import tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState

from informin.distributed import rank, world_size
from informin.errors import NonFiniteLossError
from informin.evaluation.development import Development
from informin.evaluation.measures import ALL
from informin.fast.threads import retained_graphs
from informin.model.embedding import hidden
from informin.training.arguments import LOGGING_STEPS
from informin.training.batch import step_seed

CONTRAST = "contrast"
TERM = "terms/"  # prefix of the objective's terms in the log: terms/NAME, and terms/NAME/ENTRY for further values


def logged_terms(entry: Mapping) -> dict[str, float]:
    """Return the unweighted terms in a log entry by name, in the order of summation."""
    names = {name: name.removeprefix(TERM) for name in entry if name.startswith(TERM)}
    return {short: entry[name] for name, short in names.items() if "/" not in short}


def logged_scores(entry: Mapping) -> dict[str, float]:
    """Return the evaluation scores in a log entry by name: those of this project first, in the order of `ALL`.

    Trainer sorts the entries by name when it saves a checkpoint.
    """
    scores = {name.removeprefix("eval_"): value for name, value in entry.items() if name.startswith("eval_")}
    scores.pop("runtime", None)
    ordered = [name for name in ALL if name in scores]
    return {name: scores[name] for name in dict.fromkeys([*ordered, *scores])}


def evaluations(log_history: list[dict]) -> list[dict]:
    """Return the log entries of a run's evaluations in order."""
    return [entry for entry in log_history if logged_scores(entry) and "outside_training" not in entry]


def loss_text(value: float) -> str:
    """Return a loss with four decimals, or, if it is small, with two digits: not 0.0000 for a contrast near 0."""
    decimals = 1 - math.floor(math.log10(abs(value))) if 0 < abs(value) < 1e-3 else 4
    return f"{value:.{decimals}f}"


class LossWatch:
    """Collects the losses of the steps and their terms.

    Reading a number from a GPU waits for all queued work. So losses are checked at once on a CPU only. On a GPU, the
    first loss that is not finite stays on the device until `check` is called: for each log line, and before anything is
    saved, evaluated or returned.
    """

    def __init__(self, device: torch.device):
        self._checks_each = device.type == "cpu"
        self.reset()

    def reset(self) -> None:
        """Forget all steps, such as those of an earlier run after its last log line."""
        self._sums: dict[str, Tensor] = {}
        self._steps: Counter[str] = Counter()  # in which each term was computed: its further values may not be in all
        self._names: list[str] = []
        self._first: Tensor | None = None  # step, loss and terms: of the first loss that is not finite, else the last

    def add(self, step: int, loss: Tensor, values: Mapping[str, Tensor]) -> None:
        """Add the loss of a step, counted from 1, and its terms by name.

        Raises:
            NonFiniteLossError: See `check`.
        """
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, 0) + value
        self._steps.update(values.keys())
        self._names = [name.removeprefix(TERM) for name in values]
        numbers = [loss.detach(), *values.values()]
        now = torch.stack([torch.full_like(loss, step, dtype=torch.float32), *(value.float() for value in numbers)])
        if self._first is not None and len(self._first) != len(now):
            self.check()  # the terms changed
        if self._first is not None:
            now = torch.where(self._first[1].isfinite(), now, self._first)
        self._first = now
        if self._checks_each:
            self.check()

    def check(self) -> None:
        """Raise NonFiniteLossError for the first loss that is NaN or infinite."""
        first = self._first
        self._first = None
        if first is None or first[1].isfinite():
            return
        step, loss, *values = first.tolist()
        terms = ", ".join(f"{name} {value:.4g}" for name, value in zip(self._names, values))
        raise NonFiniteLossError(
            f"The loss is {loss} at step {step:.0f} ({terms}). Earlier checkpoints are intact. Try a lower "
            "`learning_rate`, warmup (`warmup_steps` 0.1), or fp32 instead of fp16."
        )

    def pop_means(self, accelerator: Accelerator) -> dict[str, float]:
        """Return the means of the terms over steps and processes since the last call. Empty without terms."""
        self.check()
        means = {name: value / self._steps[name] for name, value in self._sums.items()}
        self._sums = {}
        self._steps = Counter()
        if not means:
            return {}
        reduced = accelerator.reduce(torch.stack(list(means.values())), reduction="mean")
        return dict(zip(means, reduced.tolist()))


class GradientRatio(NamedTuple):
    """The strength of a weighted term divided by that of the contrast.

    Attributes:
        value: The ratio.
        is_pull: Whether it is that of the pull on the positive pairs, and not of the gradients by the weights.
    """

    value: float
    is_pull: bool


def gradient_ratios(
    losses: Mapping[str, Tensor], projection: Tensor, size: int, weights: Sequence[Tensor]
) -> dict[str, GradientRatio]:
    """Return the ratio of each weighted term to the contrast by name. Changes no gradient and no weight.

    Of a term that reads the projections, such as reconstruction, it is the pull on the positive pairs: the derivative
    of the term along the gradient of the pairs' cosines. If the negatives are at right angles to the pairs, the
    contrast has (1 - p) / temperature, with p the softmax probability of the pair, and reconstruction in the form
    `code` has 4 lambda / d. It is negative for a term that pushes the two views apart. Of another term, such as masked
    language modeling and attention mutual information, it is the norm of the gradient by the weights that both terms
    train.

    Args:
        losses: Weighted terms by name, including the contrast.
        projection: Projections from which the terms were computed, (N, d): view 1, view 2, and maybe further rows.
        size: Number of sentences B, at most N / 2.
        weights: Weights to train. Empty leaves out the terms that do not read the projections.
    """
    cosines = cosine_similarity(projection[:size].float(), projection[size : 2 * size].float())
    toward = torch.autograd.grad(cosines.sum(), projection)[0]
    pulls: dict[str, float] = {}
    for name, loss in losses.items():
        gradient = _gradients(loss, [projection])[0]
        if gradient is not None:
            pulls[name] = -(gradient.float() * toward.float()).sum().item()
    found: dict[str, GradientRatio] = {}
    if pulls.get(CONTRAST, 0) > 0:
        found = {name: GradientRatio(pull / pulls[CONTRAST], True) for name, pull in pulls.items() if name != CONTRAST}
    others = [name for name in losses if name not in pulls]
    if not weights or not others:
        return found
    base = _gradients(losses[CONTRAST], weights)
    for name in others:
        both = [(x, y) for x, y in zip(_gradients(losses[name], weights), base) if x is not None and y is not None]
        if both:
            term, contrast = (torch.stack([x.float().norm() for x in some]).norm() for some in zip(*both))
            found[name] = GradientRatio((term / contrast).item(), False)
    return found


def _gradients(loss: Tensor, inputs: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """Return the gradients by the inputs, None for inputs that the loss does not depend on, and keep the graph."""
    if not loss.requires_grad:
        return tuple(None for _ in inputs)
    with retained_graphs():
        return torch.autograd.grad(loss, inputs, retain_graph=True, allow_unused=True)


class FirstStepRatios:
    """Measures gradient ratios in the first step, to show once how strong the terms are.

    Attributes:
        is_on: Whether the next step is measured.
        reads_weights: Whether terms that do not read the projections are measured, by the gradients of the weights.
        found: The ratios by term, after the step.
    """

    def __init__(self, is_on: bool, reads_weights: bool):
        self.is_on, self.reads_weights = is_on, reads_weights
        self.found: dict[str, GradientRatio] = {}

    def measure(self, weighted: Mapping[str, Tensor], projection: Tensor, size: int, model: nn.Module) -> None:
        """Measure the weighted terms of a step, if it is the first; see `gradient_ratios`."""
        if self.is_on and CONTRAST in weighted and len(weighted) > 1:
            weights = [x for x in model.parameters() if x.requires_grad] if self.reads_weights else []
            self.found = gradient_ratios(weighted, projection, size, weights)
        self.is_on = False

    def line(self) -> str:
        """Return the ratios as text, such as "reconstruction 0.8% of the contrast's pull on the positive pairs"."""
        shown = []
        for name, (value, is_pull) in self.found.items():
            if abs(value) < 1:
                text = f"{100 * value:.2g}% of"
            else:
                text = f"{value:,.0f} times" if abs(value) >= 10 else f"{value:.2g} times"
            shown.append(f"{name} {text} the contrast's {'pull on the positive pairs' if is_pull else 'gradient'}")
        return ", ".join(shown)


BAR = "{desc} |{bar}| {remaining} left{postfix}, {rate_fmt}"  # a narrow terminal cuts the end
OF_DROPOUT = 1  # last part of a seed that no step has: zeros at the end of the parts change nothing


class AfterStep(TrainerCallback):
    """Calls `Head.after_step` after each optimizer step."""

    def on_optimizer_step(self, args, state, control, model: Any = None, **kwargs):
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
    order of the sentences does not depend on this seed. Checkpoints hold the random state of every process.
    """

    def on_train_begin(self, args, state, control, **kwargs):
        if world_size() > 1:
            torch.manual_seed(step_seed(args.seed, rank(), 0, 0, OF_DROPOUT))


class Throughput(TrainerCallback):
    """Measures the time of the training steps, without evaluation and saving.

    Attributes:
        sentences_per_second: Sentences per second over all processes, for the last call of `train`. None before its
            end, and if it took no step, unless it resumed a finished run whose speed was recorded.
        first_step: Step at which that call began: above 0 for a resumed run.
        sentences: Number of sentences that this process has trained on in that call. The trainer updates it.
    """

    sentences_per_second: float | None = None
    first_step = 0
    sentences = 0
    _mark = 0.0  # an evaluation may come before any training
    _paused = 0.0

    def on_train_begin(self, args, state, control, **kwargs):
        self.sentences_per_second = None
        self.first_step = state.global_step
        self.sentences = 0
        self._start = self._mark = time.perf_counter()
        self._paused = 0.0

    def on_step_end(self, args, state, control, **kwargs):
        if args.device.type == "cuda" and (
            control.should_evaluate or control.should_save or control.should_training_stop
        ):
            torch.cuda.synchronize(args.device)  # a GPU is behind the Python code by a step or more
        self._mark = time.perf_counter()

    def on_evaluate(self, args, state, control, **kwargs):
        now = time.perf_counter()
        self._paused += now - self._mark
        self._mark = now

    on_save = on_evaluate

    def on_train_end(self, args, state, control, **kwargs):
        if self.sentences:
            seconds = self._mark - self._start - self._paused
            self.sentences_per_second = self.sentences * args.world_size / seconds


class Progress(TrainerCallback):
    """Shows a bar in a terminal, and prints a line for each evaluation; elsewhere also a line for each logged loss.

    Args:
        development: Evaluation data of the next scores, which the trainer may change; None without evaluation.
        headline: Returns the line to print when training begins.
        first_step: Returns the line to print after the first step, or an empty one.
    """

    def __init__(self, development: Development | None, headline: Callable[[], str], first_step: Callable[[], str]):
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
            self._write_first_step(state)

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

    def _write_first_step(self, state: TrainerState) -> None:
        """Write the line of the first step of this call of `train`, once."""
        line = self.first_step() if self._is_first else ""
        if line:
            self._write(f"step {state.global_step}  {line}")
        self._is_first = False

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


class NotebookProgress(Progress):
    """Shows a bar above a table of losses and scores, as transformers' `NotebookProgressCallback` does."""

    _table: Any = None  # transformers' NotebookTrainingTracker, during training

    def on_train_begin(self, args, state: TrainerState, control: TrainerControl, **kwargs):
        if state.is_world_process_zero:
            from transformers.utils.notebook import NotebookTrainingTracker  # imports IPython

            self._write(self.headline())
            self._is_first = True
            self._rows: dict[int, dict[str, str]] = {}  # what was logged, by step and column
            self._table = NotebookTrainingTracker(state.max_steps)
            self._table.update(state.global_step)

    def on_step_end(self, args, state, control, **kwargs):
        if self._table is not None:
            self._table.update(state.global_step)
            self._write_first_step(state)

    def on_log(self, args, state, control, logs=None, **kwargs):
        if self._table is None:
            super().on_log(args, state, control, logs, **kwargs)
        elif row := self._row(logs or {}):
            self._rows.setdefault(state.global_step, {}).update(row)
            columns = list(dict.fromkeys(name for row in self._rows.values() for name in row))
            lines = [[step, *(row.get(name, "") for name in columns)] for step, row in self._rows.items()]
            self._table.inner_table = [["step", *columns], *lines]
            self._table.display()

    def on_train_end(self, args, state, control, **kwargs):
        if self._table is not None:
            self._table.update(state.global_step, force_update=True)
            self._table = None

    def _row(self, logs: dict) -> dict[str, str]:
        """Return the loss, its terms if there are several, and the scores of a log entry by column."""
        row = {"loss": loss_text(logs["loss"])} if "loss" in logs else {}
        terms = logged_terms(logs)
        row |= {name: loss_text(value) for name, value in terms.items() if len(terms) > 1}
        scores = logged_scores(logs)
        return row | shown_scores(scores, self.development) if scores and self.development else row


def shown_scores(scores: Mapping[str, float], development: Development) -> dict[str, str]:
    """Return the formatted scores by the names of set and measure, such as "STS-B dev Spearman x 100"."""
    shown = {
        f"{one.name} {measure.title}": measure.shown(scores[name])
        for one in development.sets
        for name, measure in one.measures.items()
        if name in scores
    }
    return shown | {name: f"{scores[name]:.4g}" for name in scores if name not in measures_of_sets(development)}


def scores_line(scores: Mapping[str, float], development: Development) -> str:
    """Return scores as one line, such as "STS-B dev 83.47  alignment 0.150  titles.tsv V-measure 70.25"."""
    shown = []
    for one in development.sets:
        values = []
        for name, measure in one.measures.items():
            if name not in scores:  # a callback may log a score alone
                continue
            title = "" if name.endswith("spearman") else f"{measure.title} "  # the usual score of pairs needs no name
            values.append(f"{title}{measure.shown(scores[name])}")
        shown += [f"{one.name} {'  '.join(values)}"] if values else []
    shown += [f"{name} {scores[name]:.4g}" for name in scores if name not in measures_of_sets(development)]
    return "  ".join(shown)


def measures_of_sets(development: Development) -> set[str]:
    """Return the names of the scores of the sets, without those of custom evaluations and of named sets."""
    return {name for one in development.sets for name in one.measures}
