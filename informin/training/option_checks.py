"""Checks of the training arguments: ranges, combinations of options, and what the encoder supports."""

import math
from dataclasses import fields
from difflib import get_close_matches
from typing import TYPE_CHECKING

from transformers.integrations import INTEGRATION_TO_CALLBACK, get_available_reporting_integrations

from informin.errors import UsageError, counted
from informin.evaluation.measures import ALL
from informin.models.embedding_config import POOLINGS
from informin.models.lora import AUTO
from informin.models.st_loading import POOLER
from informin.objectives import OBJECTIVES
from informin.objectives.terms import require
from informin.training.defaults import save_strategy

if TYPE_CHECKING:
    from informin.training.options import InforMinTrainingArguments

LARGEST = math.nextafter(math.inf, 0)
NUMBERS = {  # smallest and largest value, both in words, and the options
    (1, LARGEST, "1 or more"): "per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps "
    "max_steps save_total_limit",
    (math.ulp(0), LARGEST, "a number above 0"): "learning_rate num_train_epochs logging_steps eval_steps save_steps "
    "adam_epsilon",
    (0, LARGEST, "0 or more"): "weight_decay max_grad_norm warmup_steps dataloader_num_workers eval_delay",
    (0, math.nextafter(1, 0), "0 or more, and below 1"): "adam_beta1 adam_beta2",
    (0, 2**32 - 1, "an integer from 0 to 4294967295"): "seed data_seed",  # NumPy's limits
}

# Options of TrainingArguments that have no effect in this trainer, with the reason.
NO_LABELS, NO_LOOP = "there are no labels", "evaluation encodes sentences, without labels and without a loss"
NO_EFFECT = {
    "label_smoothing_factor": NO_LABELS,
    "label_names": NO_LABELS,
    "average_tokens_across_devices": "the losses are means over sentences, not over tokens",
    "use_cache": "an encoder generates no text",
    "use_liger_kernel": "Liger has no kernels for these encoders and losses",
    "liger_kernel_config": "Liger has no kernels for these encoders and losses",
    "do_predict": "an encoder makes no predictions",
    **dict.fromkeys(
        "prediction_loss_only eval_do_concat_batches eval_use_gather_object eval_accumulation_steps "
        "include_for_metrics batch_eval_metrics bf16_full_eval fp16_full_eval".split(),
        NO_LOOP,
    ),
}


def refuse_without_effect(args: "InforMinTrainingArguments") -> None:
    """Raise UsageError for an option of TrainingArguments that this trainer does not use."""
    for field in fields(args):
        default = field.default_factory() if callable(field.default_factory) else field.default
        value = getattr(args, field.name)
        if field.name in NO_EFFECT and value not in (None, default):
            raise UsageError(
                f"is {value}, which has no effect: {NO_EFFECT[field.name]}", option=field.name, fix="Leave it out."
            )
    known = type(args).__dataclass_fields__
    for name, (useful, needed) in _conditions(args).items():
        if name not in known:  # of a newer transformers
            continue
        value, default = getattr(args, name), known[name].default
        if value not in (None, {}, default) and not useful:
            raise UsageError(f"is {value}, which has no effect without {needed}", option=name, fix="Leave it out.")
    if args.auto_find_batch_size:
        raise UsageError(
            "would change the batch size, and with it the number of negatives, during the run",
            option="auto_find_batch_size",
            fix="Set `gradient_cache_chunk_size`, with which any batch fits.",
        )


def _conditions(args: "InforMinTrainingArguments") -> dict[str, tuple[bool, str]]:
    """Return, for options that depend on another one, whether it is set, and its name."""
    recomputed = bool(getattr(args, "activation_checkpointing", False) or args.gradient_checkpointing)
    lora = (args.lora_r is not None, "`lora_r`, such as 16")
    return {
        **dict.fromkeys(("lora_alpha", "lora_dropout", "lora_merge"), lora),
        "lora_target_modules": (lora[0] or args.lora_target_modules == AUTO, lora[1]),
        "metric_for_best_model": (args.eval_strategy != "no", "`eval_strategy` steps or epoch"),
        "activation_checkpointing_kwargs": (recomputed, "`activation_checkpointing`"),
        "gradient_checkpointing_kwargs": (recomputed, "`gradient_checkpointing`"),
        "length_column_name": (
            args.train_sampling_strategy == "group_by_length",
            "`train_sampling_strategy` group_by_length",
        ),
        "logging_steps": (args.logging_strategy == "steps", "`logging_strategy` steps"),
        "eval_steps": (args.eval_strategy != "epoch", "`eval_strategy` steps"),
        "dataloader_persistent_workers": (args.dataloader_num_workers > 0, "`dataloader_num_workers`"),
        "dataloader_prefetch_factor": (args.dataloader_num_workers > 0, "`dataloader_num_workers`"),
    }


def check_saving(args: "InforMinTrainingArguments") -> None:
    """Raise UsageError for options of checkpoints without effect, or that leave evaluations without a checkpoint."""
    evaluated = getattr(args.eval_strategy, "value", args.eval_strategy)
    saved = getattr(args.save_strategy, "value", args.save_strategy) or save_strategy(args)
    if args.save_steps is not None and saved != "steps":
        raise UsageError(
            f"is {args.save_steps}, which has no effect with `save_strategy` {saved}",
            option="save_steps",
            fix="Set `save_strategy` to steps, or leave `save_steps` out.",
        )
    if evaluated == "no" and saved == "best":
        raise UsageError("is best, but nothing is evaluated", option="save_strategy", needed="steps, epoch or no")
    if args.load_best_model_at_end and evaluated != "no" and saved not in (evaluated, "best"):
        raise UsageError(
            f"is {(args.save_strategy and saved) or args.save_steps} and `eval_strategy` is {evaluated}, so the best "
            "model may have no checkpoint",
            option="save_strategy" if args.save_strategy else "save_steps",
            needed=f"checkpoints at the evaluations (`save_strategy` {evaluated} or best)",
            fix="Or set `load_best_model_at_end` to false.",
        )


def check_objective(args: "InforMinTrainingArguments") -> None:
    """Raise UsageError for an unknown objective, or one whose options are not fields of these arguments."""
    name = args.objective
    require(name in OBJECTIVES, "objective", name, f"one of: {', '.join(OBJECTIVES)}")
    known = {field.name for field in fields(args)}
    missing = [own.name for term in OBJECTIVES[name].terms for own in fields(term) if own.name not in known]
    if missing:
        raise UsageError(
            f"{name} has options that this class lacks: {', '.join(missing)}",
            option="objective",
            fix="Import the file with the objective before you define a class of arguments.",
        )


def check_numbers(args: "InforMinTrainingArguments") -> None:
    """Raise UsageError for a number out of range. None and a default of -1 pass."""
    defaults = {field.name: field.default for field in fields(args)}
    for (least, most, words), names in NUMBERS.items():
        for name in names.split():
            value = getattr(args, name)
            whole = "integer" not in words or value is None or float(value).is_integer()
            require(value in (None, defaults[name]) or (least <= float(value) <= most and whole), name, value, words)


def check_views(args: "InforMinTrainingArguments") -> None:
    """Raise UsageError for options of views, pooling or prompt that cannot be used."""
    length, head, rates = args.max_seq_length, args.projection_head, args.view_dropout
    samples, chunk = args.max_train_samples, args.gradient_cache_chunk_size
    require(samples is None or samples >= 1, "max_train_samples", samples, "1 or more")
    require(length is None or length >= 3, "max_seq_length", length, "3 or more ([CLS], one token, [SEP])")
    require(chunk is None or chunk >= 1, "gradient_cache_chunk_size", chunk, "1 or more")
    require(head in ("mlp", "none"), "projection_head", head, "mlp or none")
    fits = rates is None or (len(rates) == 2 and 0 <= rates[0] < rates[1] < 1)
    needed = "two increasing rates, at least 0 and below 1, such as 0.05 0.15"
    require(fits, "view_dropout", rates, needed)
    rate, poolers = args.view_dropout_rate, ("auto", *POOLINGS, POOLER)
    require(rate is None or 0 < rate < 1, "view_dropout_rate", rate, "a rate above 0 and below 1")
    if args.export_prompt and args.prompt is None:
        raise UsageError(
            "has no effect without `prompt`",
            option="export_prompt",
            fix="The exported model keeps the encoder's own prompts by default.",
        )
    if rates is not None and rate is not None:
        raise UsageError(
            "is given together with `view_dropout_rate`",
            option="view_dropout",
            fix="Both set the dropout of the views: use one.",
        )
    require(args.pooler in poolers, "pooler", args.pooler, f"one of: {', '.join(poolers)}")


def check_metric(args: "InforMinTrainingArguments") -> None:
    """Raise UsageError for a wrong direction of a metric, and set `greater_is_better`, true for unknown ones.

    Alignment and uniformity are better when lower; Trainer would keep the highest.
    """
    if args.metric_for_best_model is None:
        return
    metric = args.metric_for_best_model.removeprefix("eval_")
    if metric not in ALL:  # a score of the user's own; `require_known_metric` is for runs without
        args.greater_is_better = args.greater_is_better is not False
        return
    if args.greater_is_better is ALL[metric].lower_is_better:
        raise UsageError(
            f"is {args.greater_is_better}, which would keep the checkpoint with the worst {metric}",
            option="greater_is_better",
            fix="Leave it out.",
        )
    args.greater_is_better = not ALL[metric].lower_is_better


def require_known_metric(args: "InforMinTrainingArguments") -> None:
    """Raise UsageError for a metric that this project does not have."""
    given = args.metric_for_best_model
    if given is not None and given.removeprefix("eval_") not in ALL:
        raise UsageError(
            f"is {given}",
            option="metric_for_best_model",
            needed=f"one of: {', '.join(ALL)}",
            fix="For your own score, give `eval_dataset` a function (in Python).",
        )


def check_batches(args: "InforMinTrainingArguments") -> None:
    """Raise UsageError for batches that a term or the gathering of negatives across processes cannot use."""
    if args.n_gpu > 1:
        raise UsageError(
            f"{args.n_gpu} GPUs are visible to one process. nn.DataParallel would give each GPU only its own negatives",
            fix=f"Start {args.n_gpu} processes with accelerate launch, one per GPU, or set CUDA_VISIBLE_DEVICES=0.",
        )
    batch = args.per_device_train_batch_size * args.world_size
    for term in args.terms:
        if batch < term.smallest_batch:
            raise UsageError(
                f"gives a batch of {counted(batch, 'sentence')}, which is too small for {term.title}",
                option="per_device_train_batch_size",
                needed=f"a batch of {term.smallest_batch} or more",
                fix="The papers use 50 to 512.",
            )
    if args.world_size > 1 and not args.dataloader_drop_last:
        raise UsageError(
            "is off, and several processes need batches of equal size to gather negatives",
            option="dataloader_drop_last",
            fix="Leave it on.",
        )
    if args.load_best_model_at_end and args.save_total_limit is not None and args.save_total_limit < 2:
        raise UsageError(
            f"is {args.save_total_limit}, which cannot keep both the best and the latest checkpoint",
            option="save_total_limit",
            needed="2 or more",
        )


def check_terms(args: "InforMinTrainingArguments") -> None:
    """Raise UsageError for terms that learn nothing or that exclude other options."""
    if not any(term.summand for term in args.terms):
        raise UsageError(
            f"{args.objective} has no term with a weight above 0",
            option="objective",
            fix="Set at least one weight above 0.",
        )
    if args.view_dropout and args.replay_weight:
        raise UsageError(
            "sets a rate per view, and the general sentences of `replay_weight` are not a view",
            option="view_dropout",
            fix="Use one of the two.",
        )
    view = args.second_view  # checks its own options
    compared = args.view_dropout or not view.same_tokens or any(term.views_differ for term in args.terms)
    if args.measure_information and not compared:
        raise UsageError(
            "compares two views, and these terms use one",
            option="measure_information",
            fix="Leave it out, or use an objective that compares two views.",
        )
    for term in args.terms:
        if term.reads_maps and not (view.same_tokens or view.keeps_tokens):
            raise UsageError(
                f"compares attention maps token by token, and the second view of `view` {args.view} has other tokens",
                option=term.weight,
                fix="Use one of the two.",
            )
    reads_maps = any(term.reads_maps for term in args.terms)
    settings = args.gradient_checkpointing_kwargs
    reentrant = isinstance(settings, dict) and settings.get("use_reentrant", False)
    if args.gradient_checkpointing and reentrant and reads_maps:
        raise UsageError(
            "with use_reentrant gives attention maps no gradient",
            option="gradient_checkpointing",
            fix="Leave use_reentrant off, which is the default.",
        )


def refuse_absent_reporters(report_to: str | list[str] | None) -> None:
    """Raise UsageError for a tracker that is unknown or not installed."""
    available = get_available_reporting_integrations()
    for name in [report_to] if isinstance(report_to, str) else report_to or []:
        if name not in INTEGRATION_TO_CALLBACK:
            similar = get_close_matches(name, INTEGRATION_TO_CALLBACK, n=1)
            raise UsageError(
                f"is {name}",
                option="report_to",
                needed=f"one of: {', '.join(INTEGRATION_TO_CALLBACK)}, all, none",
                fix=f"Did you mean {similar[0]}?" if similar else None,
            )
        if name not in available and name != "flyte":  # whose availability transformers does not report
            package = {"azure_ml": "azureml-core"}.get(name, name)
            raise UsageError(
                f"is {name}, which is not installed", option="report_to", fix=f"Run: pip install {package}"
            )
