"""The options of a training run: their defaults, the papers' values, and the checks before a run starts."""

import copy
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Optional

import torch
from accelerate.utils import DynamoBackend, get_int_from_env
from transformers import SchedulerType, TrainingArguments
from transformers.trainer_utils import IntervalStrategy
from transformers.utils import is_torch_bf16_gpu_available

from informin.errors import UsageError, counted, raise_if_missing
from informin.evaluation.measures import ALL, Measure
from informin.fast.precision import processor_has_bf16
from informin.files import last_name
from informin.objectives import PRESETS, TERMS
from informin.objectives.presets import BERT_BASE, Encoder, Preset
from informin.objectives.term import Term
from informin.options import check_fields, check_value, default_text, option, with_home
from informin.training.inputs import OLD_NAMES, SourceArguments, explains_keywords, name_here
from informin.training.launcher import check_launcher
from informin.views import VIEWS, View

if TYPE_CHECKING:
    from informin.evaluation.development import Development  # imports scikit-learn

LOGGING_STEPS = 25  # steps between log lines by default
FIRST = "eval_first_score"  # `metric_for_best_model` until the first score is known
PATHS = (  # options that name a file or a folder
    "output_dir guide_model guide_cache replay_file resume_from_checkpoint accelerator_config fsdp_config deepspeed"
).split()


def by_objective(value: Callable[[Preset], Any], general: str) -> str:
    """Return the sentence of a help text about a default that depends on the objective, with the values for BERT-base.

    Args:
        value: Returns the value of an objective; None for the general one.
        general: The value of all others.
    """
    found = {name: value(preset) for name, preset in PRESETS.items()}
    return default_text({name: str(one) for name, one in found.items() if one is not None}, general)


def published_rates(preset: Preset) -> str | None:
    """Return the dropout rates of the views in a paper, as on the command line."""
    rates = preset.paper(BERT_BASE).view_dropout
    return None if rates is None else " ".join(f"{rate:g}" for rate in rates)


@dataclass
class CardArguments:
    """Facts for the model card that cannot be inferred from the run."""

    base_model: Optional[str] = option(None, "Hub id of the encoder, if model_name is a local folder.")
    license: Optional[str] = option(
        None, "License id, such as apache-2.0. Default: the license in the encoder's model card."
    )
    language: Optional[str] = option(
        None, "ISO 639 code of the training sentences' language. Default: en for the default training sentences."
    )


def argument_here(name: str, known: Sequence[str]) -> str:
    """Return what to write for a name that is not a training argument, such as the field of a term."""
    here = OLD_NAMES.get(name, name)
    kinds: list[type[Term] | type[View]] = [*TERMS, *VIEWS.values()]
    for kind in kinds:
        for declared in fields(kind):
            if kind.option_name(declared.name) == here:
                argument = "objective" if issubclass(kind, Term) else "view"
                return f"{name} is {declared.name} of {kind.__name__}: pass `{argument}` to InforMinTrainer."
    return name_here(name, known)


@explains_keywords(argument_here)
@dataclass(repr=False)  # that of TrainingArguments hides tokens
class InforMinTrainingArguments(SourceArguments, TrainingArguments):
    """Arguments for `InforMinTrainer`: transformers' TrainingArguments with more options and different defaults.

    Options of terms are not arguments: pass terms to the trainer as `objective`.

    `per_device_train_batch_size`, `learning_rate` and `warmup_steps` may be None. The trainer then uses the paper's
    values for the objective and the encoder, which `trainer.args` shows. `output_dir` and `metric_for_best_model` may
    be None, too.

    Raises:
        UsageError: An option is out of range, or conflicts with another one.

    Example:
        >>> args = InforMinTrainingArguments("outputs/simcse", objective="simcse", max_seq_length=64)
        >>> args.objective, args.num_train_epochs, args.learning_rate
        ('simcse', 1.0, None)
    """

    # The encoder
    trust_remote_code: bool = option(False, "Run code from the model's repository, if it needs any.")
    pooler: str = option(
        "auto",
        "Pooling of the sentence embedding, in training and in the exported model. auto: the pooling that the model "
        "stores, else cls. st: another name for auto, which some models record.",
        choices=("auto", "cls", "mean", "last", "st"),
    )
    prompt: Optional[str] = option(
        None,
        "Text prepended to every sentence in training; an empty string for none. The exported model keeps the "
        "encoder's own prompts unless export_prompt is set. Default: the encoder's default prompt.",
    )
    export_prompt: bool = option(False, "Make the prompt the default prompt of the exported model.")
    lora_r: Optional[int] = option(
        None,
        "Train low-rank matrices of this rank (LoRA), such as 16, in all linear layers, instead of the encoder's "
        "weights. Needs the extra lora.",
    )
    lora_dropout: float = option(0.05, "With LoRA: dropout rate of the inputs of the adapted layers.")
    lora_merge: bool = option(
        True, "With LoRA: export a complete model with merged weights. False exports only the low-rank matrices."
    )

    # The objective
    objective: str = option("informin", "Training objective.", choices=PRESETS)
    projection_head: str = option(
        "auto",
        "Head on top of the embedding in training. mlp: as in InforMin-CL's paper. none: as in the authors' code. "
        "auto: the default of the objective, and none for models that cannot have one. "
        + by_objective(lambda preset: preset.projection_head, "mlp"),
        choices=("auto", "mlp", "none"),
    )
    view: Optional[str] = option(
        None,
        "How to make the two views of a sentence. dropout: the same tokens; repetition: repeat some tokens; crop: keep "
        "a span of the tokens, in one view or both; deletion: delete some tokens; span_mask: mask some tokens; "
        "augment: shuffle, cutoff, deletion or reordering in either view; pair: two columns, see text_column. "
        + by_objective(lambda preset: preset.view, "dropout"),
        choices=VIEWS,
    )
    view_dropout: Optional[list[float]] = option(
        None,
        "Dropout rate of hidden states and attention: one for both views, or one for each, such as 0.05 0.15. "
        + by_objective(published_rates, "the encoder's own rates"),
    )
    guide_cache: Optional[str] = option(
        None, "Folder for the guide's embeddings. Runs may share it. Default: the folder guide in output_dir."
    )
    replay_file: Optional[str] = option(
        None, "General sentences for the replay term. Default: 1,762 English sentences that come with the package."
    )
    max_train_samples: Optional[int] = option(
        None,
        "Train on a random sample of this many sentences, drawn with the seed. For a stream, this many in each epoch.",
    )
    max_seq_length: Optional[int] = option(
        None,
        "Truncate training sentences to this many tokens. "
        + by_objective(lambda preset: preset.max_seq_length or "a length that fits 95 percent of the sentences", "32"),
    )
    fast: bool = option(
        True,
        "Compute training steps without padding, in threads on a CPU, and as CUDA graphs on a GPU, where the model and "
        "the options allow it. false: padded batches and the model's own forward pass. Results differ by rounding and "
        "dropout masks.",
    )
    padding_free: Optional[bool] = option(
        None,
        "Concatenate the sentences of a batch instead of padding them. Results differ by rounding and dropout masks. "
        "Default: true for encoders that support it, on a CPU, and in bf16 and fp16 on a GPU with FlashAttention. On a "
        "CPU, other encoders compute a batch in parts of nearly equal length, unless this is false.",
    )
    cuda_graphs: Optional[bool] = option(
        None,
        "On one GPU, replay the kernels of an encoder that can be packed as CUDA graphs. Results are the same. "
        "Default: true where it is possible.",
    )
    gradient_cache_chunk_size: Optional[int] = option(
        None,
        "Encode a batch in chunks of this many rows (two per sentence) and recompute them in the backward pass "
        "(gradient caching). Memory depends on the chunk size only; training takes about a third longer.",
    )
    measure_drift: Optional[bool] = option(
        None,
        "Measure after training how much the embeddings changed. Encodes several thousand sentences. Default: true for "
        "guided, such as the recipe adapt.",
    )

    # Options of TrainingArguments with another default or description.
    output_dir: Optional[str] = option(
        None, "Output folder for checkpoints and the model. Default: outputs/MODEL-OBJECTIVE-batchN-lrX-seedN."
    )
    bf16: Optional[bool] = field(  # type: ignore[assignment]  # a bool after `__post_init__`
        default=None,
        metadata={
            "help": "Use bfloat16 mixed precision. Default: true if the hardware supports it.",
            "nargs": "?",
            "const": True,
        },
    )
    per_device_train_batch_size: Optional[int] = option(  # type: ignore[assignment]
        None,
        "Sentences per step and process. Default: the paper's batch size divided by the number of processes, else 128. "
        "Negatives are gathered from all processes; gradient_accumulation_steps adds none.",
    )
    per_device_eval_batch_size: int = option(64, "Sentences per forward pass in evaluation.")
    learning_rate: Optional[float] = option(  # type: ignore[assignment]
        None, "Peak learning rate. Default: the paper's, else 3e-5."
    )
    warmup_steps: Optional[float] = option(  # type: ignore[assignment]
        None,
        "Steps of linear warmup to the peak learning rate; a value below 1 is a fraction of all steps. "
        + by_objective(lambda preset: preset.paper(BERT_BASE).warmup_steps, "0"),
    )
    num_train_epochs: float = option(1.0, "Number of passes over the training sentences.")
    eval_steps: Optional[float] = option(125, "Steps between evaluations.")
    eval_on_start: bool = option(True, "Evaluate before the first step.")
    save_strategy: Optional[str] = option(  # type: ignore[assignment]
        None,
        "When to save checkpoints. To load the best model at the end, best or as eval_strategy. Default: steps; epoch "
        "if eval_strategy is epoch and save_steps is not given.",
        choices=("steps", "epoch", "best", "no"),
    )
    save_steps: Optional[float] = option(  # type: ignore[assignment]
        None, "Steps between checkpoints, a multiple of eval_steps. Default: eval_steps."
    )
    save_total_limit: Optional[int] = option(
        2,
        "Number of checkpoints to keep: the best one and the latest ones. With 1, the best one is left after training.",
    )
    load_best_model_at_end: Optional[bool] = option(  # type: ignore[assignment]
        None,
        "Load the checkpoint with the best score at the end of training. Default: true, and false without checkpoints.",
    )
    metric_for_best_model: Optional[str] = option(
        None, "Metric that selects the best checkpoint. Default: the first one that is scored, such as eval_spearman."
    )
    logging_steps: float = option(
        LOGGING_STEPS,
        "Number of steps between log lines. By default, a run of fewer than 100 steps is logged four times.",
    )
    dataloader_drop_last: bool = option(
        True, "Drop the last, incomplete batch of an epoch. Required for several processes."
    )
    resume_from_checkpoint: Optional[str] = field(
        default=None,
        metadata={
            "help": "Checkpoint folder to resume from; without a value, the latest complete one in output_dir.",
            "nargs": "?",
            "const": "last",
        },
    )
    # The trainer checks the raw loss itself; the filter would hide NaN from the log.
    logging_nan_inf_filter: bool = option(False, "Hide NaN and infinite losses from the log.")

    def __post_init__(self):
        for name in PATHS:
            setattr(self, name, with_home(getattr(self, name)))
        check_launcher()
        check_values(self)
        if torch.accelerator.current_accelerator(check_available=True) is None:
            self.use_cpu = True  # otherwise bf16 is refused and pinned memory warns
        if self.bf16 is None:
            self.bf16 = prefers_bf16(self)
        launched = os.environ.get("ACCELERATE_DYNAMO_BACKEND", "no").lower()
        if launched != "no" and self.torch_compile_backend is None:
            self.torch_compile_backend = launched  # accelerate compiles, and the record says so
        if self.save_strategy is None:
            self.save_strategy = "epoch" if self.eval_strategy == "epoch" and self.save_steps is None else "steps"
        if self.save_steps is None:
            self.save_steps = self.eval_steps or 125
        if self.load_best_model_at_end is None:
            self.load_best_model_at_end = self.save_strategy != "no"
        if self.accelerator_config is None:
            # Streams: each process reads its own sentences. Dispatched batches of different lengths cannot be joined.
            self.accelerator_config = {"dispatch_batches": False}
        if self.eval_strategy == "no":
            self.eval_on_start = False
            self.load_best_model_at_end = False
            self.metric_for_best_model = None
        check_metric(self)
        self._fill_in_as_transformers()
        check_negatives(self)
        check_hardware(self)

    def _fill_in_as_transformers(self) -> None:
        """Run `__post_init__` of TrainingArguments, which replaces or refuses some values that are None here."""
        own = {name: getattr(self, name) for name in ("output_dir", "warmup_steps")}
        if self.metric_for_best_model is None:
            own |= {name: getattr(self, name) for name in ("metric_for_best_model", "greater_is_better")}
        self.warmup_steps = self.warmup_steps or 0
        super().__post_init__()
        for name, value in own.items():
            if value is None or name == "warmup_steps":
                setattr(self, name, value)

    def set_evaluate(self, *args, **kwargs) -> "InforMinTrainingArguments":
        """Set the options of evaluation; see TrainingArguments."""
        super().set_evaluate(*args, **kwargs)
        self.eval_delay = self.eval_delay or 0  # its None would end the run
        return self


def prefers_bf16(args: TrainingArguments) -> bool:
    """Return whether to use bfloat16: if the hardware supports it, unless the user or the launcher chose."""
    launched = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if args.fp16 or launched != "no":
        return False
    return has_bf16(args.use_cpu)


def has_bf16(on_cpu: bool) -> bool:
    """Return whether the processor or the GPU computes in bfloat16. A Mac's GPU (MPS) may only emulate it."""
    if on_cpu:
        return processor_has_bf16()
    return not torch.backends.mps.is_available() and is_torch_bf16_gpu_available()


# What the trainer fills in when it knows the objective, the encoder and the evaluation data


def with_paper_values(
    args: InforMinTrainingArguments, preset: Preset, encoder: Encoder, model_name: str
) -> InforMinTrainingArguments:
    """Return the arguments with values for those that are None: a copy, or `args` itself if none is.

    The default output folder is outputs/MODEL-OBJECTIVE-batchN-lrX-seedN, with the batch size over all processes.

    Args:
        args: Arguments of the run.
        preset: Its objective.
        encoder: The encoder to train.
        model_name: Its name or folder.
    """
    paper = preset.paper(encoder)
    processes = int(os.environ.get("WORLD_SIZE", 1))
    values: dict[str, Any] = {
        "per_device_train_batch_size": max(1, paper.batch_size // processes),
        "learning_rate": paper.learning_rate,
        "warmup_steps": paper.warmup_steps,
    }
    if preset.name == "guided":
        values["measure_drift"] = True  # of a finished model
    filled = with_values(args, {name: value for name, value in values.items() if getattr(args, name) is None})
    if filled.output_dir is not None:
        return filled
    batch = (filled.per_device_train_batch_size or 1) * processes
    rate = f"{filled.learning_rate:g}".replace("e-0", "e-")
    folder = f"outputs/{last_name(model_name)}-{preset.name}-batch{batch}-lr{rate}-seed{filled.seed}"
    return with_values(filled, {"output_dir": folder})


BY_METRIC = (SchedulerType.REDUCE_ON_PLATEAU, SchedulerType.GREEDY)  # schedulers that follow the scores


def with_metric(args: InforMinTrainingArguments, development: "Development | None") -> InforMinTrainingArguments:
    """Return the arguments with the metric that selects the best checkpoint: by default the first that is scored.

    It is `FIRST` until the first evaluation if the scores are not known before, as those of a function. A scheduler
    that follows the metric follows it in its direction. The arguments are copied only if they change.

    Args:
        args: Arguments of the run.
        development: Its evaluation data; None without.

    Raises:
        UsageError: `metric_for_best_model` is not scored, or what needs an evaluation is set without one.
    """
    if development is None or args.eval_strategy == "no":
        return _without_evaluation(args)
    measures = development.measures
    has_unknown = any(not own.measures for own in development.own)
    metric = (args.metric_for_best_model or next(iter(measures), "")).removeprefix("eval_")
    if metric not in measures and metric and not has_unknown:
        needed = f"one of: {', '.join(measures)}"
        raise UsageError(f"is {metric}, which is not scored", option="metric_for_best_model", needed=needed)
    values: dict[str, Any] = {}
    if metric in measures:
        if not args.metric_for_best_model:  # of a given metric, `check_metric` has seen the direction
            raise_if_worst(args, measures[metric])
        values = {"metric_for_best_model": f"eval_{metric}", "greater_is_better": not measures[metric].lower_is_better}
    elif not metric:
        values = {"metric_for_best_model": FIRST, "greater_is_better": args.greater_is_better is not False}
    if args.lr_scheduler_type in BY_METRIC:
        # The default of `mode` is min. That of `min_lr` for the greedy scheduler, 0.001, is above the learning rates of
        # encoders, which it would never lower.
        mode = "max" if values.get("greater_is_better", args.greater_is_better) else "min"
        given: Any = args.lr_scheduler_kwargs or {}
        values["lr_scheduler_kwargs"] = {"mode": mode, "min_lr": 0.0, **given}
    return with_values(args, values)


def _without_evaluation(args: InforMinTrainingArguments) -> InforMinTrainingArguments:
    """Return the arguments of a run that evaluates nothing, and keeps the last checkpoint."""
    is_off = args.eval_strategy == "no"  # maybe since the arguments were built, which clears the metric
    asks = {
        "metric_for_best_model": args.metric_for_best_model is not None and not is_off,
        "save_strategy": args.save_strategy == "best",
        "lr_scheduler_type": args.lr_scheduler_type in BY_METRIC,
    }
    for name, is_asked in asks.items():
        if is_asked:
            value = getattr(args, name)
            why = "`eval_strategy` is no" if is_off else "there is nothing to evaluate"
            fix = "Set `eval_strategy` to steps or epoch." if is_off else "Pass `eval_dataset`."
            raise UsageError(f"is {getattr(value, 'value', value)}, but {why}", option=name, fix=fix)
    values: dict[str, Any] = dict.fromkeys(("do_eval", "eval_on_start", "load_best_model_at_end"), False)
    values |= {"eval_strategy": IntervalStrategy.NO, "metric_for_best_model": None}
    return with_values(args, values)


def with_values(args: InforMinTrainingArguments, values: dict[str, Any]) -> InforMinTrainingArguments:
    """Return a copy of the arguments with other values, or `args` itself if it has them."""
    changed = {name: value for name, value in values.items() if getattr(args, name) != value}
    chosen = copy.copy(args) if changed else args
    for name, value in changed.items():
        setattr(chosen, name, value)
    return chosen


# What is refused: values with which a run would train something else than they say

RANGES: dict[str, tuple[float, float]] = {  # the least value, and the first that is too high
    "per_device_train_batch_size": (1, math.inf),
    "per_device_eval_batch_size": (1, math.inf),
    "gradient_accumulation_steps": (1, math.inf),
    "learning_rate": (0, math.inf),
    "weight_decay": (0, math.inf),
    "max_grad_norm": (0, math.inf),
    "neftune_noise_alpha": (0, math.inf),
    "seed": (0, 2**32),  # as NumPy takes
    "lora_r": (1, math.inf),
    "lora_dropout": (0, 1),
    "max_train_samples": (1, math.inf),
    "max_seq_length": (3, math.inf),
    "gradient_cache_chunk_size": (1, math.inf),
}
WITHOUT_EFFECT = {  # options of TrainingArguments that this trainer does not read, with the reason
    "label_smoothing_factor": "There are no labels.",
    "label_names": "There are no labels.",
    "use_liger_kernel": "Liger has no kernels for these models.",
    "liger_kernel_config": "Liger has no kernels for these models.",
    "bf16_full_eval": "Evaluation computes in the precision of training (`bf16`).",
    "fp16_full_eval": "Evaluation computes in the precision of training (`fp16`).",
    "eval_accumulation_steps": "Evaluation keeps embeddings on the CPU.",
    "prediction_loss_only": "Evaluation scores embeddings and computes no loss.",
    "include_for_metrics": "Pass a function from `encode` to scores as `eval_dataset`.",
    "batch_eval_metrics": "Pass a function from `encode` to scores as `eval_dataset`.",
}


def check_values(args: InforMinTrainingArguments) -> None:
    """Raise UsageError for a value of another type or out of range, without effect, or that cannot be used here."""
    own = {*SourceArguments.__annotations__, *InforMinTrainingArguments.__annotations__}
    # Of the options of TrainingArguments: Trainer takes an unknown sampling strategy for random.
    check_fields(args, names={*own, *RANGES, "max_steps", "train_sampling_strategy"})
    for name, (least, end) in RANGES.items():
        value = getattr(args, name)
        needed = f"{least} or more" if end == math.inf else f"{least} or more, and below {end}"
        check_value(value is None or least <= value < end, name, value, needed)
    check_value(args.max_steps != 0, "max_steps", args.max_steps, "1 or more, or -1 for `num_train_epochs`")
    fits = args.max_steps > 0 or 0 < args.num_train_epochs < math.inf
    check_value(fits, "num_train_epochs", args.num_train_epochs, "a number above 0, or `max_steps` above 0")
    if args.view_dropout is not None:
        check_view_dropout(args.view_dropout)
    if args.lora_r is not None:
        raise_if_missing("lora", option="lora_r")
    for name in ("lora_dropout", "lora_merge"):
        if getattr(args, name) != getattr(type(args), name) and args.lora_r is None:
            raise UsageError("has no effect without `lora_r`", option=name)
    if args.revision is not None and not args.lora_merge:
        raise UsageError(
            "is false, with `revision`: libraries load low-rank matrices onto the default branch of the source model",
            option="lora_merge",
            fix="Merge the matrices, or leave `revision` out.",
        )
    for name, reason in WITHOUT_EFFECT.items():
        if getattr(args, name):
            raise UsageError("has no effect on this trainer", option=name, fix=f"{reason} Leave it out.")
    optim = getattr(args.optim, "value", args.optim)
    if args.optim_args and optim in ("adamw_torch", "adamw_torch_fused", "adafactor"):  # which transformers gives none
        fix = "Pass `optimizer_cls_and_kwargs` to the trainer."
        raise UsageError(f"has no effect with `optim` {optim}", option="optim_args", fix=fix)
    for name in ("padding_free", "cuda_graphs", "gradient_cache_chunk_size"):
        if not args.fast and getattr(args, name):
            raise UsageError("cannot be combined with `fast` false", option=name, fix="Leave one out.")
    sizes = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "WORLD_SIZE")  # as accelerate reads them
    is_launched = int(os.environ.get("LOCAL_RANK", -1)) != -1 or get_int_from_env(sizes, 1) > 1
    if args.ddp_backend is not None and not is_launched:
        raise UsageError(
            "connects several processes, and there is only one",
            option="ddp_backend",
            fix="Start several processes with accelerate launch or torchrun, or leave it out.",
        )
    try:
        str(args.output_dir).encode()
    except UnicodeEncodeError:
        needed = "a name in UTF-8, which safetensors and tokenizers can write"
        raise UsageError(f"is {args.output_dir}", option="output_dir", needed=needed) from None


def check_view_dropout(rates: Sequence[float]) -> None:
    """Raise UsageError unless there is one dropout rate, or two increasing ones."""
    is_increasing = len(rates) == 1 or (len(rates) == 2 and rates[0] < rates[1])
    fits = is_increasing and 0 <= rates[0] and rates[-1] < 1
    check_value(fits, "view_dropout", list(rates), "one rate, or two increasing ones, below 1, such as 0.05 0.15")


def check_metric(args: InforMinTrainingArguments) -> None:
    """Raise UsageError if the worst checkpoint would be kept, and set the direction of the metrics of this project."""
    measure = ALL.get((args.metric_for_best_model or "").removeprefix("eval_"))
    if measure is None:
        return
    raise_if_worst(args, measure)
    args.greater_is_better = not measure.lower_is_better


def raise_if_worst(args: InforMinTrainingArguments, measure: Measure) -> None:
    """Raise UsageError if `greater_is_better` was given, and the checkpoint with the worst score would be kept."""
    if args.greater_is_better is measure.lower_is_better:
        raise UsageError(
            f"is {args.greater_is_better}, which would keep the checkpoint with the worst {measure.title}",
            option="greater_is_better",
            fix="Leave it out.",
        )


def check_negatives(args: InforMinTrainingArguments) -> None:
    """Raise UsageError for what would change the negatives of a batch."""
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
    if args.train_sampling_strategy == "batch_rebalance":
        raise UsageError(
            "is batch_rebalance, which would change the batch size, and with it the number of negatives, in each step",
            option="train_sampling_strategy",
            needed="random, sequential or group_by_length",
        )
    accelerator: Any = args.accelerator_config
    if args.world_size > 1 and accelerator.split_batches:
        raise UsageError(
            "has split_batches, with which each process would get a part of `per_device_train_batch_size`",
            option="accelerator_config",
            fix="Leave split_batches out, and set `per_device_train_batch_size` to the sentences of one process.",
        )
    if args.world_size > 1 and not args.dataloader_drop_last:
        raise UsageError(
            "is off, and several processes need batches of equal size to gather negatives",
            option="dataloader_drop_last",
        )


def check_hardware(args: InforMinTrainingArguments) -> None:
    """Raise UsageError if the compiler or the precision of a run would differ from its record."""
    if args.torch_compile_backend is not None:
        known = [backend.lower() for backend in DynamoBackend.__members__]
        fits = args.torch_compile_backend.lower() in known
        check_value(fits, "torch_compile_backend", args.torch_compile_backend, f"one of: {', '.join(known)}")
    if args.mixed_precision == "fp16" and args.device.type == "cpu":
        found = "is true" if args.fp16 else "The launcher set mixed_precision to fp16"
        raise UsageError(
            f"{found}, and accelerate would compute in fp32: its fp16 needs a GPU",
            option="fp16" if args.fp16 else None,
            fix="Use bf16, or no mixed precision.",
        )


def check_terms(terms: Sequence[Term], view: View, args: InforMinTrainingArguments) -> None:
    """Raise UsageError for terms that the batch size, the view or another option excludes."""
    batch = args.per_device_train_batch_size * args.world_size
    checkpointing: Any = args.gradient_checkpointing_kwargs or {}
    reentrant = args.gradient_checkpointing and checkpointing.get("use_reentrant")
    guides = [term.guide_needs.sentences for term in terms if term.guide_needs]
    if view.columns and "training" not in guides and not any(term.compares_views for term in terms):
        raise UsageError(f"is {view.name}, and no term compares the two texts", option="view", fix="Add a contrast.")
    for term in terms:
        needed = f"a batch of {term.smallest_batch} or more for {term.title}"
        check_value(batch >= term.smallest_batch, "per_device_train_batch_size", batch, needed)
        if term.reads_maps and not (view.same_tokens or view.keeps_tokens):
            raise UsageError(
                f"compares tokens, and the view {view.name} makes other ones", option=term.option_name("weight")
            )
        if term.second_encoder and view.columns:
            raise UsageError(
                f"encodes the first texts alone with a second encoder, and the view {view.name} has second texts",
                option=term.second_encoder,
                needed="0 with this view",
            )
        if term.reads_maps and reentrant:
            raise UsageError("with use_reentrant gives attention maps no gradient", option="gradient_checkpointing")


def check_sentences(rows: Any, args: InforMinTrainingArguments, terms: Sequence[Term]) -> None:
    """Raise UsageError if there are too few sentences for a batch or a term, the last batch would be too small, or a
    stream has no end."""
    batch = args.per_device_train_batch_size * args.world_size
    steps = args.max_steps if args.max_steps > 0 else math.inf
    number = len(rows) if hasattr(rows, "__len__") else math.inf
    if number == steps == math.inf:
        raise UsageError("is not set, and the length of a stream is unknown", option="max_steps", needed="1 or more")
    if number == math.inf and args.train_sampling_strategy == "group_by_length":
        found = "is group_by_length, and a stream is read in its own order"
        raise UsageError(found, option="train_sampling_strategy", fix="Leave it out.")
    if number < (batch if args.dataloader_drop_last else 1):
        raise UsageError(
            f"Found {counted(int(number), 'sentence')}, fewer than one batch of {batch}",
            fix="Add sentences, or lower `per_device_train_batch_size`.",
        )
    last = 0 if args.dataloader_drop_last or number == math.inf else int(number) % batch
    for term in terms:
        if 0 < last < term.smallest_batch:
            raise UsageError(
                f"leaves a last batch of {counted(last, 'sentence')}, too few for {term.title}",
                option="dataloader_drop_last",
            )
        term.check_sentences(min(number, steps * batch * args.gradient_accumulation_steps))
