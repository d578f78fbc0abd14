"""The training arguments, and the options for the model card."""

import os
from dataclasses import dataclass, field
from typing import Optional

import torch
from transformers import TrainingArguments
from transformers.utils import is_torch_bf16_gpu_available

from informin.objectives import PRESETS
from informin.option_types import with_home
from informin.options import option
from informin.training import option_checks as checks
from informin.training.inputs import SourceArguments
from informin.training.log_entries import LOGGING_STEPS
from informin.views import VIEWS

# Options that name a file or a folder.
PATHS = (
    "output_dir guide_model guide_cache replay_file resume_from_checkpoint accelerator_config fsdp_config deepspeed"
).split()


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


@dataclass(repr=False)  # that of TrainingArguments hides tokens
class InforMinTrainingArguments(SourceArguments, TrainingArguments):
    """Arguments for `InforMinTrainer`: transformers' TrainingArguments, with other defaults and some more options.

    The options of the terms are not here: pass terms to the trainer (`objective`).

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
        "stores, else cls. st: the same as auto, as some models record it.",
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
        True, "With LoRA: export a complete model with merged weights. False exports the low-rank matrices alone."
    )

    # The objective
    objective: str = option("informin", "Training objective.", choices=PRESETS)
    projection_head: str = option(
        "auto",
        "Head on top of the embedding in training. mlp: as in InforMin-CL's paper. none: as in the authors' code. "
        "auto: mlp; none for scd and guided, and for models that cannot have one.",
        choices=("auto", "mlp", "none"),
    )
    view: str = option(
        "dropout",
        "How to make the second view of a sentence. dropout: the same tokens; repetition: repeat some tokens; crop: "
        "keep a span of the tokens.",
        choices=VIEWS,
    )
    view_dropout: Optional[list[float]] = option(
        None,
        "Dropout rate of hidden states and attention: one for both views, or one for each, such as 0.05 0.15. "
        "Default: 0.05 0.15 for scd, else the encoder's own rates.",
    )
    guide_cache: Optional[str] = option(
        None, "Folder for the guide's embeddings. Runs may share it. Default: the folder guide in output_dir."
    )
    replay_file: Optional[str] = option(
        None, "General sentences for the replay term. Default: 1,762 English sentences that come with the package."
    )
    max_train_samples: Optional[int] = option(
        None,
        "Train on a random sample of this many sentences, drawn by the seed. Of a stream, each epoch has this many.",
    )
    max_seq_length: Optional[int] = option(
        None,
        "Truncate training sentences to this many tokens. Default: 32; for guided, a length that fits 95 percent of "
        "the sentences.",
    )
    padding_free: Optional[bool] = option(
        None,
        "Concatenate the sentences of a batch instead of padding them. Results differ by rounding and dropout masks. "
        "Default: true for encoders that support it, on a CPU, and on a GPU in bf16 and fp16.",
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
        "Steps of linear warmup to the peak learning rate; a value below 1 is a fraction of all steps. Default: 250 "
        "for micse, else 0.",
    )
    num_train_epochs: float = option(1.0, "Number of passes over the training sentences.")
    eval_steps: Optional[float] = option(125, "Steps between evaluations.")
    eval_on_start: bool = option(True, "Evaluate before the first step.")
    save_strategy: Optional[str] = option(  # type: ignore[assignment]
        None,
        "When to save checkpoints: steps, epoch, best or no. To load the best model at the end, best or as "
        "eval_strategy. Default: steps; epoch if eval_strategy is epoch and save_steps is not given.",
    )
    save_steps: Optional[float] = option(  # type: ignore[assignment]
        None, "Steps between checkpoints, a multiple of eval_steps. Default: eval_steps."
    )
    save_total_limit: Optional[int] = option(2, "Number of checkpoints to keep, including the best and the latest.")
    load_best_model_at_end: bool = option(True, "Load the checkpoint with the best score at the end of training.")
    metric_for_best_model: Optional[str] = option(
        None, "Metric that selects the best checkpoint. Default: the first one that is scored, such as eval_spearman."
    )
    logging_steps: float = option(
        LOGGING_STEPS, "Steps between log lines. In runs of fewer than 100 steps, 25 means a quarter of them."
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
        own = {*SourceArguments.__annotations__, *InforMinTrainingArguments.__annotations__}
        checks.check_types_and_choices(self, own)
        checks.check_output_dir(self)
        checks.check_numbers(self)
        checks.check_unused(self)
        checks.check_packages(self)
        checks.check_dictionaries(self)
        if torch.accelerator.current_accelerator() is None:
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
        if self.accelerator_config is None:
            # Streams: each process reads its own sentences. Dispatched batches of different lengths cannot be joined.
            self.accelerator_config = {"dispatch_batches": False}
        if self.eval_strategy == "no":
            self.eval_on_start = False
            self.load_best_model_at_end = False
            self.metric_for_best_model = None
        self.eval_delay = self.eval_delay or 0  # `set_evaluate` sets None
        checks.check_metric(self)
        checks.check_checkpoints(self)
        checks.check_launch(self)
        self._check_with_transformers()
        checks.check_processes(self)
        checks.check_compiler(self)
        checks.check_precision(self)

    def _check_with_transformers(self) -> None:
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
    if args.use_cpu:
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return is_torch_bf16_gpu_available()
