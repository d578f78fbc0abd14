"""The training arguments, and the options for data and for the model card."""

import copy
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, Optional

import torch
import yaml
from transformers import TrainingArguments

from informin.errors import UsageError
from informin.models.trained import Needs
from informin.objectives import OBJECTIVES, Term
from informin.objectives.terms import option
from informin.training import option_checks as checks
from informin.training.callbacks import LogShortRuns
from informin.training.defaults import TermOptions, default_output_dir, default_text, filled_in, paper_row, published
from informin.views import VIEWS, View

RECIPES = Path(__file__).parents[1] / "recipes"
# Values for the checks of TrainingArguments, which would choose defaults of its own.
STAND_INS = {"output_dir": "trainer_output", "metric_for_best_model": "eval_spearman"}


@dataclass
class DataArguments:
    """Training sentences and evaluation data.

    Raises:
        UsageError: Both `train_file` and `dataset_name` are given.
    """

    train_file: Optional[list[str]] = option(
        None,
        "Training sentences: files or folders of .txt (one sentence per line), .csv, .tsv, .jsonl (each may be .gz), "
        ".parquet or .arrow. Default: wiki1m_for_simcse.txt from the Hub.",
    )
    text_column: Optional[str] = option(
        None,
        "Column with the sentences, or several to join, such as subject,body. Default: `text`, or the only column.",
    )
    dataset_name: Optional[str] = option(None, "Dataset on the Hub, instead of train_file.")
    dataset_config: Optional[str] = option(None, "Configuration of the dataset.")
    dataset_split: str = option("train", "Split of the dataset.")
    streaming: bool = option(
        False, "Read the sentences during training instead of downloading them first. Requires max_steps."
    )
    senteval_dir: Optional[str] = option(
        None, "SentEval's data/downstream folder, for STS-B dev. Default: $SENTEVAL_DATA, else senteval.tar on the Hub."
    )
    eval_pairs: Optional[str] = option(
        None, "Scored sentence pairs, instead of STS-B dev: TSV, CSV or JSONL with sentence1, sentence2, score."
    )
    eval_labels: Optional[str] = option(
        None,
        "Labeled sentences, scored by clustering, nearest neighbors and few-shot classification: TSV, CSV or JSONL "
        "with text, label. STS-B dev is then scored only if it is available locally.",
    )
    eval_retrieval: Optional[str] = option(
        None, "Retrieval pairs: TSV, CSV or JSONL with query, document and, optionally, negative."
    )

    def __post_init__(self):
        if self.train_file and self.dataset_name:
            raise UsageError("is given together with `dataset_name`", option="train_file", fix="Use one of them.")


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


@dataclass(repr=False)
class InforMinTrainingArguments(TermOptions, TrainingArguments):
    """Arguments for `InforMinTrainer`: transformers' TrainingArguments plus the options of objectives and views.

    An option that is None is filled in by `resolve`: with the paper's value for the objective and the encoder, else
    with the default that its help text names. The trainer calls `resolve` itself.

    Attributes:
        paper_row: Name of the row of published values that `resolve` used; None if it used none.
        resolved_for: Name of the model that `resolve` filled the options in for; None before.

    Raises:
        UsageError: An option is out of range, has no effect with this objective, or conflicts with another one.

    Example:
        >>> from dataclasses import replace
        >>> args = InforMinTrainingArguments("outputs/simcse", objective="simcse", temperature=0.1)
        >>> replace(args, seed=2).temperature
        0.1
    """

    # The encoder
    model_revision: Optional[str] = option(None, "Branch, tag or commit of the encoder on the Hub.")
    backend: str = option(
        "auto",
        "native: BERT-like encoders, with all objectives. st: any SentenceTransformer, whose own modules compute the "
        "embedding. auto: native if possible and without LoRA, else st.",
        choices=("auto", "native", "st"),
    )
    trust_remote_code: bool = option(False, "Run code from the model's repository, if it needs any.")
    pooler: Literal["auto", "cls", "mean", "last", "st"] = option(
        "auto",
        "Pooling of the sentence embedding, in training and in the exported model. auto: the pooling that the model "
        "stores, else cls.",
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
        "weights. Needs peft.",
    )
    lora_dropout: float = option(0.05, "With LoRA: dropout rate of the inputs of the adapted layers.")
    lora_merge: bool = option(
        True, "With LoRA: export a complete model with merged weights. False exports the low-rank matrices alone."
    )

    # The objective
    objective: str = option("informin", "Training objective.", choices=OBJECTIVES)
    recipe: Optional[str] = option(
        None,
        "YAML file of options, or the name of one in informin/recipes, such as adapt. Options that you set override "
        "it. In Python, an option set to its default counts as not set.",
    )
    projection_head: Optional[Literal["mlp", "none"]] = option(
        None,
        "Head on top of the embedding in training. mlp: as in InforMin-CL's paper. none: as in the authors' code. "
        "Default: mlp; none for scd and guided.",
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
    guide_model: Optional[str] = option(
        None, "Frozen encoder that guides the training. Default: the encoder before training."
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
        "Concatenate the sentences of a batch instead of padding them. Results differ only by rounding. Default: true "
        "on a CPU with architectures that support it.",
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
    paper_row: Optional[str] = field(init=False, default=None, compare=False)
    resolved_for: Optional[str] = field(init=False, default=None, compare=False)

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
        LogShortRuns.default, "Steps between log lines. In runs of fewer than 100 steps, 25 means a quarter of them."
    )
    dataloader_drop_last: bool = option(
        True, "Drop the last, incomplete batch of an epoch. Required for several processes."
    )
    resume_from_checkpoint: Optional[str] = field(
        default=None,
        metadata={
            "help": "Checkpoint folder to resume from; without a value, the latest complete one in output_dir.",
            **{"nargs": "?", "const": "last"},
        },
    )
    # The trainer checks the raw loss itself; the filter would hide NaN from the log.
    logging_nan_inf_filter: bool = option(False, "Hide NaN and infinite losses from the log.")

    def __post_init__(self):
        if self.recipe is not None:
            self._apply_recipe(recipe_options(self.recipe))
        checks.check_objective(self)
        checks.check_unused(self)
        if torch.accelerator.current_accelerator() is None:
            self.use_cpu = True  # otherwise bf16 is refused and pinned memory warns
        if self.accelerator_config is None:
            # Streams: each process reads its own sentences. Dispatched batches of different lengths cannot be joined.
            self.accelerator_config = {"dispatch_batches": False}
        if self.eval_strategy == "no":
            self.eval_on_start = self.load_best_model_at_end = False
            self.metric_for_best_model = None
        self.eval_delay = self.eval_delay or 0  # `set_evaluate` sets None
        checks.check_metric(self)
        # The checks need values for options that are None; `resolve` fills in those for the encoder.
        values = filled_in(self) | {name: v for name, v in STAND_INS.items() if getattr(self, name) is None}
        direction = self.greater_is_better
        self.__dict__.update(values)
        checks.check_checkpoints(self)
        super().__post_init__()
        checks.check_batches(self)
        checks.check_terms(self)
        self.__dict__.update(dict.fromkeys(values))
        if self.metric_for_best_model is None:
            self.greater_is_better = direction

    def _apply_recipe(self, values: dict[str, Any]) -> None:
        """Apply a recipe to the options that have their default value, once. Others are those of the command line."""
        defaults = {field.name: field.default for field in fields(self) if field.init}
        for name, value in values.items():
            if name in defaults and getattr(self, name) in (None, defaults[name]):
                setattr(self, name, value)
        self.recipe = None

    def set_evaluate(self, *args, **kwargs) -> "InforMinTrainingArguments":
        """Set the options of evaluation; see TrainingArguments."""
        super().set_evaluate(*args, **kwargs)
        self.eval_delay = self.eval_delay or 0  # its None would end the run
        return self

    def resolve(self, model: Any) -> "InforMinTrainingArguments":
        """Return a copy in which the options that are None are filled in for a model.

        An object that was resolved for this model is returned as it is. `max_seq_length` stays None if the objective
        derives it from the sentences, and `metric_for_best_model` until the evaluation data is known.

        Args:
            model: From `informin.models.trained.open_to_train`.

        Raises:
            UsageError: The encoder does not support the options.
        """
        if self.resolved_for == model.name:
            return self
        row, from_paper = paper_row(self.objective, model.config), published(self, model.config)
        values = filled_in(self, model.config) | {"pooler": model.pooling, "backend": model.backend}
        values |= {"prompt": model.default_prompt if self.prompt is None else self.prompt}
        resolved = replace(self, **values)
        resolved.resolved_for = model.name
        resolved.paper_row = row.name if row and from_paper else self.paper_row
        if self.projection_head is None and not model.takes_head:
            resolved.projection_head = "none"
        if resolved.ddp_find_unused_parameters is None:
            # Their terms may use neither the projection head nor, for attention maps, all of the last layer.
            has_head = resolved.objective == "guided" and resolved.projection_head == "mlp"
            resolved.ddp_find_unused_parameters = has_head or resolved.objective == "noncontrastive"
        if resolved.output_dir is None:
            resolved.output_dir = default_output_dir(model.name, resolved)
        return resolved

    def select_by(self, metric: str, lower_is_better: bool = False) -> "InforMinTrainingArguments":
        """Return a copy whose best checkpoint is selected by a metric, without the prefix `eval_`."""
        chosen = copy.copy(self)
        chosen.metric_for_best_model = f"eval_{metric.removeprefix('eval_')}"
        chosen.greater_is_better = not lower_is_better
        return chosen

    @property
    def _values(self) -> dict[str, Any]:
        """All options, with values for BERT-base instead of None until `resolve`."""
        return dict(vars(self)) if self.resolved_for else dict(vars(self)) | filled_in(self)

    @property
    def terms(self) -> tuple[Term, ...]:
        """The terms of the objective with a weight above 0. Values for BERT-base are used until `resolve`."""
        values = self._values
        kinds = OBJECTIVES[self.objective].terms
        built = [kind(**{field.name: values[field.name] for field in fields(kind)}) for kind in kinds]
        return tuple(term for term in built if term.strength > 0)

    @property
    def view_rates(self) -> list[float] | None:
        """The dropout rates of view 1 and view 2; None if both views have the same rate."""
        return self.view_dropout if len(self.view_dropout or []) > 1 else None

    @property
    def second_view(self) -> View:
        """How the second view of a sentence is made, with its options."""
        values, kind = self._values, VIEWS[self.view]
        return kind(**{field.name: values[field.name] for field in fields(kind)})

    @property
    def objective_options(self) -> dict[str, Any]:
        """The options of the objective that have an effect and a value."""
        values = self._values
        of_terms = [field.name for term in self.terms for field in fields(term)]
        of_view = [] if self.view == "dropout" else ["view", *(field.name for field in fields(self.second_view))]
        names = ("objective", "view_dropout", *of_view, *of_terms)
        return {name: values[name] for name in names if values[name] is not None}

    def needs(self, config: Any, copies: int) -> Needs:
        """Return what the run needs from a model with this configuration.

        Args:
            config: Configuration of the encoder.
            copies: Rows per sentence in one forward pass.
        """
        terms, rates = self.terms, self.view_dropout or []
        compared = any(term.views_differ for term in terms)
        asked_by = {"dropout": "view_dropout", "view_rates": "view_dropout"}
        for term in terms:
            wanted = {"lm_head": term.lm_head, "map_layers": term.reads_maps, "momentum": term.follows_weights}
            asked_by |= {need: term.weight or "objective" for need, holds in wanted.items() if holds}
        return Needs(
            projection_head=self._values["projection_head"] == "mlp",
            lm_head=any(term.lm_head for term in terms),
            map_layers=tuple(sorted({layer for term in terms for layer in term.map_layers(config)})),
            momentum=any(term.follows_weights for term in terms),
            dropout=rates[0] if len(rates) == 1 else None,
            view_rates=(rates[0], rates[1]) if len(rates) == 2 else None,
            copies=copies,
            views_differ_by_dropout=compared and self.second_view.same_tokens,
            settings={"max_seq_length": self._values.get("max_seq_length")} | self.objective_options,
            asked_by=asked_by,
        )


def recipe_options(name: str) -> dict[str, Any]:
    """Return the options of a recipe: a YAML file, or the name of one in informin/recipes.

    Raises:
        UsageError: There is no such recipe, or the file has no options.
    """
    paths = {path.stem: path for path in sorted(RECIPES.glob("*.yaml"))}
    path = paths.get(name, Path(name))
    if path.suffix not in (".yaml", ".yml"):
        raise UsageError(f"is {name}", option="recipe", needed=f"a .yaml file, or one of: {', '.join(paths)}")
    with path.open(encoding="utf-8") as file:
        values = yaml.safe_load(file)
    if not isinstance(values, dict):
        raise UsageError(f"is {path}", option="recipe", needed="a file with lines of `option: value`")
    return values
