"""The training arguments: transformers' TrainingArguments with the options of objectives and views."""

import copy
import inspect
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, make_dataclass, replace
from functools import cache
from typing import Any, ClassVar, Literal, Optional

import torch
from transformers import TrainingArguments

from informin.errors import UsageError
from informin.evaluation.measures import Measure
from informin.models.embedding_config import EmbeddingConfig
from informin.models.model import Model
from informin.objectives import OBJECTIVES, Term
from informin.objectives.terms import option
from informin.training import option_checks as checks
from informin.training.callbacks import LogShortRuns
from informin.training.checkpoints import LAST
from informin.training.defaults import default_output_dir, filled_in, paper_row, published, refuse_unused, uneven_batch
from informin.training.encoder_options import EncoderOptions
from informin.training.recipes import recipe_options
from informin.training.term_fields import default_text, option_kinds, term_fields
from informin.training.term_options import TermOptions
from informin.views import VIEWS, View

logger = logging.getLogger(__name__)


@dataclass(repr=False)
class InforMinTrainingArguments(EncoderOptions, TermOptions, TrainingArguments):
    """Arguments for `InforMinTrainer`: transformers' TrainingArguments plus the options of objectives and views.

    An option that is None is filled in by `resolve`: with the paper's value for the objective and the encoder, else
    with the default that its help text names. The trainer calls `resolve` itself.

    Attributes:
        paper_row: Name of the row of published values that `resolve` used; None if it used none.
        resolved_for: Name of the model that `resolve` filled the options in for; None before.
        embedding: How the encoder computes embeddings in this run; None before `resolve`.

    Raises:
        UsageError: An option is out of range, has no effect with this objective, or conflicts with another one.

    Example:
        >>> from dataclasses import replace
        >>> args = InforMinTrainingArguments("outputs/simcse", objective="simcse", temperature=0.1)
        >>> replace(args, seed=2).temperature
        0.1
    """

    objective: str = option("informin", "Training objective.", choices=OBJECTIVES)
    recipe: Optional[str] = option(
        None,
        "Name of a recipe in informin/recipes, such as adapt. Options that you set override it. In Python, an option "
        "set to its default counts as not set; the recipe is applied once, and the field is None afterwards.",
    )
    projection_head: Optional[Literal["mlp", "none"]] = option(
        None,
        "Head on top of the embedding in training. mlp: as in InforMin-CL's paper. none: as in the authors' code. "
        "Default: mlp; none for scd and guided.",
    )
    view_dropout: Optional[list[float]] = option(
        None,
        "Two dropout rates, for view 1 and view 2, applied to hidden states and attention. "
        "Default: 0.05 0.15 for scd, else the encoder's own rates.",
    )
    view_dropout_rate: Optional[float] = option(
        None, "One dropout rate for both views, applied to hidden states and attention. Default: the encoder's own."
    )
    guide_model: Optional[str] = option(
        None, "Frozen encoder that guides the training. Default: the encoder before training."
    )
    guide_cache: Optional[str] = option(
        None, "Folder for the guide's embeddings. Runs may share it. Default: the folder guide in output_dir."
    )
    replay_file: Optional[str] = option(
        None, "General sentences for the replay term. Default: 1,762 English sentences that come with the package."
    )
    view: str = option(
        "dropout",
        "How to make the second view of a sentence. dropout: the same tokens; neighbor: a neighbor, according to the "
        "guide; repetition: repeat some tokens; crop: keep a span of the tokens.",
        choices=VIEWS,
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
        "Concatenate the sentences of a batch instead of padding them. Results differ only by rounding. Default: true "
        "on a CPU with architectures that support it.",
    )
    gradient_cache_chunk_size: Optional[int] = option(
        None,
        "Encode a batch in chunks of this many rows (two per sentence) and recompute them in the backward pass "
        "(gradient caching). Memory depends on the chunk size only; training takes about a third longer.",
    )
    hub_overwrite: bool = option(False, "Overwrite files in the Hub repository that this project did not write.")
    resume_with_changes: bool = option(
        False,
        "Resume although options, seed, sentences or the number of processes changed. training.json and the model card "
        "then describe each part of the run.",
    )
    measure_drift: bool = option(
        True, "Measure after training how much the embeddings changed. Encodes several thousand sentences."
    )
    measure_information: bool = option(
        False,
        "Log two estimates with each loss: the InfoNCE bound of the mutual information of the two views, and the "
        "conditional entropy of one view given the other.",
    )
    verbose: bool = option(False, "Log the values filled in from the paper, and every log line.")
    paper_row: Optional[str] = field(
        init=False, default=None, compare=False, metadata={"help": "Row of published values that was used."}
    )
    resolved_for: Optional[str] = field(
        init=False, default=None, compare=False, metadata={"help": "Model that the options were filled in for."}
    )
    embedding: Optional[EmbeddingConfig] = field(
        init=False, default=None, compare=False, metadata={"help": "Resolved pooling, prompt and maximum length."}
    )

    # Options of TrainingArguments with another default or description.
    output_dir: Optional[str] = option(
        None, "Output folder for checkpoints and the model. Default: outputs/MODEL-OBJECTIVE-batchN-lrX-seedN."
    )
    bf16: Optional[bool] = field(  # type: ignore[assignment]  # None until `resolve`
        default=None,
        metadata={
            "help": "Use bfloat16 mixed precision. Default: true if the hardware supports it.",
            **{"nargs": "?", "const": True},
        },
    )
    fp16: Optional[bool] = field(  # type: ignore[assignment]
        default=None,
        metadata={"help": "Use float16 mixed precision. Default: false.", **{"nargs": "?", "const": True}},
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
        "Steps of linear warmup to the peak learning rate; a value below 1 is a fraction of all steps."
        + default_text("warmup_steps", 0),
    )
    num_train_epochs: float = option(1.0, "Number of passes over the training sentences.")
    eval_strategy: str = option(
        "steps", "When to evaluate: steps, epoch or no. With no, nothing is scored and the last checkpoint is kept."
    )
    eval_steps: Optional[float] = option(125, "Steps between evaluations.")
    eval_on_start: bool = option(True, "Evaluate before the first step.")
    save_strategy: Optional[str] = option(  # type: ignore[assignment]  # None until `resolve`
        None,
        "When to save checkpoints: steps, epoch, best or no. To load the best model at the end, best or as "
        "eval_strategy. Default: steps; epoch if eval_strategy is epoch and save_steps is not given.",
    )
    save_steps: Optional[float] = option(  # type: ignore[assignment]
        None, "Steps between checkpoints, a multiple of eval_steps. Default: eval_steps."
    )
    save_total_limit: Optional[int] = option(
        2, "Number of checkpoints to keep, including the best and the latest; at least 2."
    )
    load_best_model_at_end: bool = option(True, "Load the checkpoint with the best score at the end of training.")
    metric_for_best_model: Optional[str] = option(
        None,
        "Metric that selects the best checkpoint. Default: eval_spearman; without pairs eval_v_measure or eval_mrr_10.",
    )
    logging_steps: float = option(
        LogShortRuns.default, "Steps between log lines. In runs of fewer than 100 steps, 25 means a quarter of them."
    )
    dataloader_drop_last: bool = option(
        True, "Drop the last, incomplete batch of an epoch. Required for several processes."
    )
    ddp_find_unused_parameters: Optional[bool] = option(
        None, "With several processes. Default: only for `noncontrastive`, and `guided` with a projection head."
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

    _argument_group_name: ClassVar[str] = "training"  # for HfArgumentParser

    def __new__(cls, *args, **kwargs):
        """Create an object with the options of all objectives and views, also of those that were imported since."""
        return super().__new__(arguments_class() if cls is InforMinTrainingArguments else cls)

    def __post_init__(self):
        if self.recipe is not None:
            self._apply_recipe(self.recipe)
        checks.check_objective(self)
        self.check_encoder_options()
        refuse_unused(self)
        checks.refuse_without_effect(self)
        checks.check_saving(self)
        # Check a copy with BERT-base's values for options that are None; `resolve` fills in those for the encoder.
        values = filled_in(self) | {name: v for name, v in STAND_INS.items() if getattr(self, name) is None}
        whole = copy.copy(self)
        whole.__dict__.update(values, resolved_for="BERT-base")
        whole._check()
        own = {"resolved_for", *values} | ({"greater_is_better"} if self.metric_for_best_model is None else set())
        self.__dict__.update({name: value for name, value in vars(whole).items() if name not in own})

    def _check(self) -> None:
        """Bring options into the form that TrainingArguments expects, and check them. None of them is None."""
        self._normalize()
        super().__post_init__()
        checks.refuse_absent_reporters(self.report_to)
        checks.check_views(self)
        checks.check_batches(self)
        checks.check_terms(self)

    def _apply_recipe(self, recipe: str) -> None:
        """Apply a recipe to the options that have their default value, once."""
        defaults = {field.name: field.default for field in fields(self) if field.init}
        for name, value in recipe_options(recipe, set(defaults)).items():
            if getattr(self, name) in (None, defaults[name]):
                setattr(self, name, value)
        self.recipe = None

    def _normalize(self) -> None:
        """Bring options into the form that TrainingArguments expects, and set those that depend on others."""
        checks.check_numbers(self)
        self.resume_from_checkpoint = _checkpoint_wanted(self.resume_from_checkpoint)
        if torch.accelerator.current_accelerator() is None:
            self.use_cpu = True  # otherwise bf16 is refused and pinned memory warns
        if self.accelerator_config is None:
            # Streams: each process reads its own sentences. Dispatched batches of different lengths cannot be joined.
            self.accelerator_config = {"dispatch_batches": False}
        if self.eval_strategy == "no":
            self.eval_on_start = self.load_best_model_at_end = False
            self.metric_for_best_model = None
        checks.check_metric(self)

    def resolve(self, model: Model) -> "InforMinTrainingArguments":
        """Return a copy in which the options that are None are filled in for a model.

        An object that was resolved for this model is returned as it is. `max_seq_length` stays None if the objective
        derives it from the sentences, and `metric_for_best_model` until the evaluation data is known (`choose_metric`).

        Args:
            model: From `informin.models.open_model.open_model`; it needs no weights.

        Raises:
            UsageError: The encoder does not support the options, or its pooling is unknown.
        """
        if self.resolved_for == model.name:
            return self
        checks.check_objective(self)
        config = model.config
        row, from_paper = paper_row(self.objective, config), published(self, config)
        embedding = model.embedding.for_training(self.pooler, self.prompt, self.export_prompt)
        values: dict[str, Any] = filled_in(self, config)
        values |= {"pooler": embedding.pooling, "prompt": embedding.in_training.prompt}
        values |= {"backend": model.backend} | model.defaults(self)
        resolved = replace(self, **values)
        resolved.embedding, resolved.resolved_for = embedding, model.name
        resolved.paper_row = row.name if row and from_paper else self.paper_row
        if resolved.padding_free is None:
            resolved.padding_free = model.packs(resolved)
        if resolved.ddp_find_unused_parameters is None:
            # Their terms may use neither the projection head nor, for attention maps, all of the last layer.
            head = resolved.objective == "guided" and resolved.projection_head == "mlp"
            resolved.ddp_find_unused_parameters = head or resolved.objective == "noncontrastive"
        model.check(resolved)
        if resolved.output_dir is None:
            resolved.output_dir = default_output_dir(model.name, resolved)
        if self.process_index == 0 and (uneven := uneven_batch(self, config)):
            logger.warning(uneven)
        if self.verbose and row and from_paper:
            shown = ", ".join(f"{name} {value}" for name, value in from_paper.items())
            exact = (config.model_type, config.hidden_size) in OBJECTIVES[self.objective].rows
            other = f"; it has no values for {config.model_type} of width {config.hidden_size}"
            logger.info(f"From the paper ({row.name}{'' if exact else other}): {shown}")
        return resolved

    def choose_metric(
        self, measures: Mapping[str, Measure] | None, own: Mapping[str, Measure | None] | None = None
    ) -> "InforMinTrainingArguments":
        """Return a copy whose best checkpoint is selected by eval_spearman, or by the first metric that is scored.

        Args:
            measures: Measures of the evaluation data; None without evaluation data.
            own: Scores of the user's own evaluations, None if a score is known only once it was computed.

        Raises:
            UsageError: `metric_for_best_model` is set and is not scored.
        """
        if self.eval_strategy == "no":
            return self
        own = own or {}
        if self.metric_for_best_model is None:
            first = next(iter([*(measures or ()), *own]), "spearman")
            metric = "spearman" if measures is None or "spearman" in measures else first
            chosen = copy.copy(self)
            chosen.metric_for_best_model, chosen.greater_is_better = f"eval_{metric}", None
            checks.check_metric(chosen)
            return chosen
        metric = self.metric_for_best_model.removeprefix("eval_")
        if known := own.get(metric):
            chosen = copy.copy(self)
            chosen.greater_is_better = not known.lower_is_better
            return chosen
        if not own:
            checks.require_known_metric(self)
        if measures is not None and metric not in measures and not own:
            raise UsageError(
                f"is {metric}, which is not scored in this run",
                option="metric_for_best_model",
                needed=f"one of: {', '.join(measures)}",
                fix="Or give `eval_pairs`, `eval_labels` or `eval_retrieval` to score it. For your own score, give "
                "`eval_dataset` a function.",
            )
        return self

    @property
    def _values(self) -> dict[str, Any]:
        """All options, with values for BERT-base instead of None until `resolve`."""
        return vars(self) if self.resolved_for else vars(self) | filled_in(self)

    @property
    def run_dir(self) -> str:
        """Return `output_dir`, which `resolve` fills in."""
        assert self.output_dir is not None
        return self.output_dir

    @property
    def terms(self) -> tuple[Term, ...]:
        """The terms of the objective with a weight above 0. Values for BERT-base are used until `resolve`."""
        values = self._values
        kinds = OBJECTIVES[self.objective].terms
        built = [kind(**{own.name: values[own.name] for own in fields(kind)}) for kind in kinds]
        return tuple(term for term in built if term.strength > 0)

    @property
    def second_view(self) -> View:
        """How the second view of a sentence is made, with its options."""
        values, kind = self._values, VIEWS[self.view]
        return kind(**{own.name: values[own.name] for own in fields(kind)})

    @property
    def objective_options(self) -> dict:
        """The options of the objective that have an effect and a value."""
        values = self._values
        own = [field.name for term in self.terms for field in fields(term)]
        view = [] if self.view == "dropout" else ["view", *(field.name for field in fields(self.second_view))]
        names = ("objective", "view_dropout", "view_dropout_rate", *view, *own)
        return {name: values[name] for name in names if values[name] is not None}

    @property
    def model_settings(self) -> dict:
        """The settings for `informin.models.native_loading.load_trainable`, which end up in `config.informin`.

        The pooling auto and the prompt None mean those of the checkpoint.
        """
        values = self._values
        return {
            "pooling": self.pooler,
            "prompt": self.prompt,
            "projection_head": values["projection_head"],
            "lm_head": any(term.lm_head for term in self.terms),
            "max_seq_length": values.get("max_seq_length"),
            **self.objective_options,
        }


def _show_options(kind: type) -> type:
    """Let help() and notebooks show the options, which `__new__` would hide."""
    own = inspect.signature(vars(kind)["__init__"])
    kind.__signature__ = own.replace(parameters=[*own.parameters.values()][1:])  # type: ignore[attr-defined]
    return kind


_show_options(InforMinTrainingArguments)

# Values for the checks of TrainingArguments, which would choose defaults of its own.
STAND_INS = {"output_dir": "trainer_output", "metric_for_best_model": "eval_spearman"}


def arguments_class() -> type[InforMinTrainingArguments]:
    """Return `InforMinTrainingArguments`, extended by the options of objectives and views from outside the package.

    Import the file that adds the objective to `OBJECTIVES`, or the view to `VIEWS`, first.
    """
    known = {field.name for field in fields(InforMinTrainingArguments)}
    return _extended(tuple(kind for kind in option_kinds() if not {own.name for own in fields(kind)} <= known))


@cache
def _extended(kinds: tuple[type[Term] | type[View], ...]) -> type[InforMinTrainingArguments]:
    if not kinds:
        return InforMinTrainingArguments
    base = InforMinTrainingArguments
    # Pickle cannot find a class that is made at run time by its name.
    namespace = {"__module__": __name__, "__doc__": base.__doc__, "__reduce__": lambda args: (_empty, (), vars(args))}
    kind = make_dataclass(base.__name__, term_fields(kinds), bases=(base,), namespace=namespace, repr=False)
    return _show_options(kind)


def _empty() -> InforMinTrainingArguments:
    """Return arguments without values, for pickle to fill in."""
    return object.__new__(arguments_class())


def _checkpoint_wanted(value: str | bool | None) -> str | None:
    """Return the checkpoint's name; `true` means the latest one."""
    word = str(value).lower()
    if word in ("true", "yes", "1"):
        return LAST
    if not word:
        raise UsageError(
            "is empty", option="resume_from_checkpoint", needed=f"a checkpoint folder, or `{LAST}` for the latest one"
        )
    return None if value is None or word in ("none", "false", "no", "0") else str(value)
