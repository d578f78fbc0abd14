"""Checks of training arguments whose violation would give a wrong result instead of an error."""

import math
from dataclasses import fields
from typing import Any

from informin.errors import UsageError, counted
from informin.evaluation.development import Development
from informin.evaluation.measures import ALL
from informin.objectives import OBJECTIVES
from informin.objectives.terms import check_value
from informin.training.defaults import option_defaults, used_options
from informin.views import VIEWS

FIRST = "eval_first_score"  # `metric_for_best_model` until the first score is known


def check_objective(args: Any) -> None:
    """Raise UsageError for an unknown objective or view."""
    check_value(args.objective in OBJECTIVES, "objective", args.objective, f"one of: {', '.join(OBJECTIVES)}")
    check_value(args.view in VIEWS, "view", args.view, f"one of: {', '.join(VIEWS)}")


def check_unused(args: Any) -> None:
    """Raise UsageError if an option belongs to a view or a term that is not used. Zero and its own default pass."""
    values = {name: getattr(args, name) for name in option_defaults() if getattr(args, name) is not None}
    used = used_options(args.objective, values)
    used |= {field.name for field in fields(VIEWS[args.view])}
    for name, default in option_defaults().items():
        value = values.get(name, default)
        if name not in used and value and value != default:
            raise UsageError(
                f"is {value}, which has no effect with `objective` {args.objective} and `view` {args.view}",
                option=name,
                fix="Leave it out, or set the weight of its term above 0.",
            )


def check_metric(args: Any) -> None:
    """Raise UsageError if the worst checkpoint would be kept, and set the direction of the metrics of this project."""
    measure = ALL.get((args.metric_for_best_model or "").removeprefix("eval_"))
    if measure is None:
        return
    if args.greater_is_better is measure.lower_is_better:
        raise UsageError(
            f"is {args.greater_is_better}, which would keep the checkpoint with the worst {measure.title}",
            option="greater_is_better",
            fix="Leave it out.",
        )
    args.greater_is_better = not measure.lower_is_better


def check_checkpoints(args: Any) -> None:
    """Raise UsageError if the best evaluation may have no checkpoint."""
    evaluated, saved = (getattr(name, "value", name) for name in (args.eval_strategy, args.save_strategy))
    if args.load_best_model_at_end and saved not in (evaluated, "best"):
        raise UsageError(
            f"is {saved} and `eval_strategy` is {evaluated}, so the best model may have no checkpoint",
            option="save_strategy",
            needed=f"{evaluated} or best, or `load_best_model_at_end` false",
        )


def check_batches(args: Any) -> None:
    """Raise UsageError for batches that a term or the gathering of negatives across processes cannot use."""
    if args.n_gpu > 1:
        raise UsageError(
            f"{args.n_gpu} GPUs are visible to one process. nn.DataParallel would give each GPU only its own negatives",
            fix=f"Start {args.n_gpu} processes with accelerate launch, one per GPU, or set CUDA_VISIBLE_DEVICES=0.",
        )
    if args.auto_find_batch_size:
        raise UsageError(
            "would change the batch size, and with it the number of negatives, during the run",
            option="auto_find_batch_size",
            fix="Set `gradient_cache_chunk_size`, with which any batch fits.",
        )
    if args.world_size > 1 and not args.dataloader_drop_last:
        raise UsageError(
            "is off, and several processes need batches of equal size to gather negatives",
            option="dataloader_drop_last",
        )
    batch = args.per_device_train_batch_size * args.world_size
    for term in args.terms:
        needed = f"a batch of {term.smallest_batch} or more for {term.title}"
        check_value(batch >= term.smallest_batch, "per_device_train_batch_size", batch, needed)


def check_terms(args: Any) -> None:
    """Raise UsageError for terms that learn nothing or that exclude other options."""
    if not any(term.summand for term in args.terms):
        raise UsageError(f"{args.objective} has no term with a weight above 0", option="objective")
    rates = args.view_dropout or [0.1]
    rates_fit = len(rates) in (1, 2) and rates == sorted({*rates}) and 0 <= rates[0] and 0 < rates[-1] < 1
    check_value(rates_fit, "view_dropout", rates, "one rate, or two increasing ones, below 1, such as 0.05 0.15")
    if args.view_rates and args.replay_weight:
        raise UsageError("sets rates for two views, and replayed sentences are not a view", option="view_dropout")
    view, settings = args.second_view, args.gradient_checkpointing_kwargs or {}
    for term in args.terms:
        if term.reads_maps and not (view.same_tokens or view.keeps_tokens):
            raise UsageError(f"compares tokens, and `view` {args.view} makes other ones", option=term.weight)
        if term.reads_maps and args.gradient_checkpointing and settings.get("use_reentrant"):
            raise UsageError("with use_reentrant gives attention maps no gradient", option="gradient_checkpointing")


def check_evaluation(args: Any, development: Development | None) -> Any:
    """Return the arguments with the metric that selects the best checkpoint: by default the first that is scored.

    It is `FIRST` until the first evaluation if the scores are not known before, as those of a function.

    Raises:
        UsageError: `metric_for_best_model` is not scored.
    """
    if args.eval_strategy == "no" or development is None:
        return args
    measures = development.measures
    is_open = any(not evaluation.measures for evaluation in development.own)
    metric = (args.metric_for_best_model or next(iter(measures), "")).removeprefix("eval_")
    if metric in measures:
        return args.select_by(metric, measures[metric].lower_is_better)
    if not metric:
        return args.select_by(FIRST, lower_is_better=args.greater_is_better is False)
    if not is_open:
        needed = f"one of: {', '.join(measures)}"
        raise UsageError(f"is {metric}, which is not scored", option="metric_for_best_model", needed=needed)
    return args


def check_sentences(rows: Any, args: Any) -> None:
    """Raise UsageError if there are too few sentences for a batch or a term, or the last batch would be too small."""
    batch = args.per_device_train_batch_size * args.world_size
    steps = args.max_steps if args.max_steps > 0 else math.inf
    number = len(rows) if hasattr(rows, "__len__") else math.inf
    if number < (batch if args.dataloader_drop_last else 1):
        raise UsageError(
            f"There are {counted(int(number), 'sentence')}, fewer than one batch of {batch}",
            fix="Add sentences, or lower `per_device_train_batch_size`.",
        )
    last = 0 if args.dataloader_drop_last or number == math.inf else int(number) % batch
    for term in args.terms:
        if 0 < last < term.smallest_batch:
            raise UsageError(
                f"leaves a last batch of {counted(last, 'sentence')}, too few for {term.title}",
                option="dataloader_drop_last",
            )
        term.check_sentences(min(number, steps * batch * args.gradient_accumulation_steps))
