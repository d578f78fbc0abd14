"""The options: model, data, objective and training, each checked when it is built."""

import logging
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import ClassVar, Literal, Optional

import torch
from accelerate.utils import str_to_bool
from transformers import PreTrainedConfig, TrainingArguments
from transformers.integrations import INTEGRATION_TO_CALLBACK, get_available_reporting_integrations

from informin.encoders.architectures import ARCHITECTURES, architecture_of
from informin.encoders.usage import POOLINGS, usage_of, usage_of_settings
from informin.errors import UsageError, counted
from informin.evaluation.measures import ALL, Measure
from informin.objectives import OBJECTIVES, Term
from informin.objectives.terms import option, require
from informin.publishing.metadata import LICENSES, LICENSES_PAGE, NO_LANGUAGE, known_id, known_language, known_license
from informin.training.checkpoints import LAST
from informin.training.defaults import FILLED, NOT_PUBLISHED, default_output_dir, filled_in, term_options, uneven_batch
from informin.training.recipes import recipe_options
from informin.views import VIEWS, View

logger = logging.getLogger(__name__)


@dataclass
class DataArguments:
    """Sentences to train on, and what to choose the checkpoint by."""

    train_file: Optional[list[str]] = option(
        None,
        "Files of sentences, or folders of them: text (one a line), CSV, TSV, JSONL or Parquet; text, CSV, TSV "
        "and JSONL also as .gz, .xz, .zst. Default: wiki1m_for_simcse.txt from the Hub.",
    )
    text_column: Optional[str] = option(
        None, "The column with the sentences. Default: `text`, or the only one there is."
    )
    dataset_name: Optional[str] = option(None, "A Hub data set, in train_file's place.")
    dataset_config: Optional[str] = option(None, "Its configuration.")
    dataset_split: str = option("train", "Its split.")
    streaming: bool = option(
        False, "Read the sentences, of files or the Hub, while training, for more than the disk holds; needs max_steps."
    )
    senteval_dir: Optional[str] = option(
        None, "SentEval's data/downstream, for STS-B dev. Default: $SENTEVAL_DATA, else senteval.tar on the Hub."
    )
    eval_pairs: Optional[str] = option(
        None, "Your own pairs in STS-B dev's place: TSV, CSV or JSONL with sentence1, sentence2, score."
    )
    eval_labels: Optional[str] = option(
        None,
        "A labeled sample to score too, by clustering, neighbors and few shots: TSV, CSV or JSONL with text, label. "
        "STS-B dev is then scored only if it is here.",
    )
    eval_retrieval: Optional[str] = option(
        None, "A search to score too: TSV, CSV or JSONL with query, document and, if you like, negative."
    )

    def __post_init__(self):
        if self.train_file and self.dataset_name:
            raise UsageError("`train_file` and `dataset_name` both say what to train on. Give one.")


@dataclass
class CardArguments:
    """What the model card says that a run cannot know."""

    base_model: Optional[str] = option(None, "Hub id of the encoder, where model_name is a folder.")
    license: Optional[str] = option(
        None, "License id, apache-2.0 for instance. Default: that of the encoder's own card."
    )
    language: Optional[str] = option(None, "ISO 639 code of the sentences. Default: en for the default sentences.")
    data_description: Optional[str] = option(
        None, "What the sentences are, in a few words. Default: the names of the files."
    )

    def __post_init__(self):
        if self.base_model is not None and known_id(self.base_model) is None:
            raise UsageError(
                f"`base_model` {self.base_model!r} is no id of the Hub. Give the one that the encoder is published "
                "under, or leave it out."
            )
        if self.license is not None and known_license(self.license) is None:
            near = ", ".join(get_close_matches(str(self.license).lower(), LICENSES, cutoff=0.3))
            raise UsageError(
                f"`license` {self.license!r} is not in the Hub's list of licenses.{near and f' Near it: {near}.'} Give "
                f"an id of {LICENSES_PAGE}, or other for a license that is not there."
            )
        if self.language is not None and known_language(self.language) is None:
            raise UsageError(
                f"`language` {self.language!r} is no code of ISO 639. Needed two or three small letters, as en or deu, "
                f"or {' or '.join(NO_LANGUAGE)}."
            )


@dataclass
class TrainingDefaults(TrainingArguments):
    """transformers' TrainingArguments with this method's own and its defaults; an objective's options come on top.

    STS-B dev is scored before the first step and every 125 steps, the best checkpoint kept and loaded at the end.
    """

    objective: str = option("informin", "What is minimized.", choices=OBJECTIVES)
    recipe: Optional[str] = option(
        None, "One of informin/recipes by its name, as adapt; options that are given win over it."
    )
    model_revision: Optional[str] = option(None, "Branch, tag or commit on the Hub.")
    pooler: Literal["auto", "cls", "mean", "last"] = option(
        "auto",
        "How the embedding of a sentence is read, in training and afterwards. auto: what the checkpoint says of "
        "itself, or its sentence-transformers files, else cls.",
    )
    prompt: Optional[str] = option(
        None,
        "Text before every sentence in training; an empty text for none. The exported folder keeps the prompts that "
        "the encoder came with, see export_prompt. Default: the encoder's own default prompt.",
    )
    export_prompt: bool = option(
        False, "Make the prompt the default prompt of the exported folder. Do not write it yourself then."
    )
    projection_head: Literal["mlp", "none"] = option(
        "mlp",
        "What sits on the embedding in training: mlp as in InforMin-CL's paper, none as in its authors' release. "
        "Default: the objective's.",
    )
    view_dropout: Optional[list[float]] = option(
        None, "Two dropout rates, hidden and attention, of view 1 and view 2; without, the model's own for both."
    )
    view_dropout_rate: Optional[float] = option(
        None, "One dropout rate, hidden and attention, for both views, where the model's own is 0 or not wanted."
    )
    guide_model: Optional[str] = option(
        None, "A frozen encoder whose embeddings of the sentences guide the training. Default: the encoder as it was."
    )
    guide_cache: Optional[str] = option(
        None, "A folder for the guide's embeddings, which several runs may share. Default: guide in output_dir."
    )
    replay_file: Optional[str] = option(
        None, "General sentences for the replay. Default: 1,762 of English that come with this package."
    )
    view: str = option(
        "dropout",
        "How the second view of a sentence is made. dropout: the same tokens; neighbor: a neighbor by the guide; "
        "repetition: some tokens repeated; crop: a span of the tokens.",
        choices=VIEWS,
    )
    max_train_samples: Optional[int] = option(
        None, "Train on a random sample of this many sentences; seed decides which."
    )
    max_seq_length: Optional[int] = option(
        32,
        "Training sentences are cut to this many tokens, also for a guide that is the encoder itself. Default: 32; for "
        "guided what 95% of the sentences fit in.",
    )
    padding_free: Optional[bool] = option(
        None,
        "Read training batches as rows of tokens without padding, and of the last layer what is used; the same but for "
        "rounding. Default: on a CPU, with encoders of BERT's form.",
    )
    gradient_cache_chunk_size: Optional[int] = option(
        None,
        "Read a batch so many rows (views) at a time, and once more in the backward pass: any batch fits in the memory "
        "of so many rows, for about a third more time. The gradient is the same.",
    )
    hub_overwrite: bool = option(False, "Push over files in the repository that this project did not put there.")
    resume_with_changes: bool = option(
        False,
        "Go on with a run although options, seed, sentences or processes are not those that it began with; "
        "training.json and the card then tell its parts.",
    )
    measure_drift: bool = option(
        True, "Say at the end, without labels, how far the encoder moved; costs some thousand sentences to encode."
    )
    verbose: bool = option(False, "Print the paper's values that are filled in, and every line of the log.")
    paper_row: ClassVar[str | None] = None  # the paper's row that filled in what was not given

    # Defaults, or their descriptions, that differ from transformers'.
    output_dir: Optional[str] = option(
        None, "Where checkpoints and the model go. Default: outputs/MODEL-OBJECTIVE-batchN-lrX-seedN."
    )
    bf16: bool = option(False, "bfloat16 mixed precision. Default: on where there is hardware.")
    per_device_train_batch_size: int = option(
        128,
        "Sentences a step and process. Default: the paper's row, divided among the processes. Negatives come from"
        " all processes; gradient_accumulation_steps adds none.",
    )
    per_device_eval_batch_size: int = option(64, "Sentences a forward pass in evaluation.")
    learning_rate: float = option(3e-5, "Peak learning rate. Default: the paper's row.")
    num_train_epochs: float = option(1.0, "Passes over the sentences.")
    eval_strategy: str = option("steps", "steps, epoch or no. With no, nothing is scored and the last step is kept.")
    eval_steps: Optional[float] = option(125, "Steps between evaluations.")
    eval_on_start: bool = option(True, "Evaluate before the first step.")
    save_steps: Optional[float] = option(
        None, "Steps between checkpoints, a multiple of eval_steps. Default: eval_steps."
    )
    save_total_limit: Optional[int] = option(
        2, "Checkpoints kept on disk, the best and the newest among them; at least 2."
    )
    load_best_model_at_end: bool = option(True, "End with the checkpoint of the best score instead of the last.")
    metric_for_best_model: Optional[str] = option(
        "eval_spearman",
        "What the best checkpoint is chosen by: a measure that is scored. Default: eval_spearman; without pairs "
        "eval_v_measure, or eval_mrr_10.",
    )
    logging_steps: float = option(25, "Steps between log lines.")
    dataloader_drop_last: bool = option(
        True, "Leave out the last, smaller batch of an epoch. Several processes need it."
    )
    ddp_find_unused_parameters: Optional[bool] = option(
        False, "Not needed: only heads that the objective reads are built."
    )
    resume_from_checkpoint: Optional[str] = field(
        default=None,
        metadata={
            "help": "Go on with a run: a checkpoint folder, or without a value the newest whole one in output_dir.",
            "nargs": "?",
            "const": "last",
        },
    )
    # The trainer looks at the raw loss itself and stops; the filter would hide a NaN from the log.
    logging_nan_inf_filter: bool = option(False, "Hide NaN and infinity from the log.")

    # HfArgumentParser groups by this.
    _argument_group_name: ClassVar[str] = "training"

    def __post_init__(self):
        _check_numbers(self)
        self.resume_from_checkpoint = _checkpoint_wanted(self.resume_from_checkpoint)
        if torch.accelerator.current_accelerator() is None:
            self.use_cpu = True  # or bf16 is refused, and pinned memory warns
        if self.accelerator_config is None:
            # Streams: each process reads its own share. Dispatched from one, batches of unlike lengths would not join.
            self.accelerator_config = {"dispatch_batches": False}
        if self.save_steps is None:
            self.save_steps = self.eval_steps or 125
        if self.eval_strategy == "epoch":
            self.save_strategy = "epoch"  # the best checkpoint has to be on disk
        if self.eval_strategy == "no":
            self.eval_on_start = self.load_best_model_at_end = False
            self.metric_for_best_model = None
        self._check_metric()
        super().__post_init__()
        refuse_absent_reporters(self.report_to)
        self._check_views()
        self._check_batches()

    def _check_views(self) -> None:
        length, head, rates = self.max_seq_length, self.projection_head, self.view_dropout
        samples = self.max_train_samples
        require(samples is None or samples >= 1, "max_train_samples", samples, "1 or more")
        require(length is None or length >= 3, "max_seq_length", length, "3 or more ([CLS], a word, [SEP])")
        chunk = self.gradient_cache_chunk_size
        require(chunk is None or chunk >= 1, "gradient_cache_chunk_size", chunk, "1 or more")
        require(head in ("mlp", "none"), "projection_head", head, "mlp or none")
        fits = rates is None or (len(rates) == 2 and 0 <= rates[0] < rates[1] < 1)
        needed = "two rates of which the second is higher, at least 0 and below 1: 0.05 0.15, for instance"
        require(fits, "view_dropout", rates, needed)
        rate, poolers = self.view_dropout_rate, ("auto", *POOLINGS)
        require(rate is None or 0 < rate < 1, "view_dropout_rate", rate, "a rate above 0 and below 1")
        if self.export_prompt and self.prompt is None:
            raise UsageError(
                "`export_prompt` has no effect without `prompt`: the folder keeps the encoder's own prompts anyway."
            )
        if rates is not None and rate is not None:
            raise UsageError("`view_dropout` and `view_dropout_rate` both say what is dropped. Give one.")
        require(self.pooler in poolers, "pooler", self.pooler, f"one of: {', '.join(poolers)}")

    def _check_metric(self) -> None:
        """Of alignment and uniformity the lower is the better; Trainer would take the higher."""
        if self.metric_for_best_model is None:
            return
        metric = self.metric_for_best_model.removeprefix("eval_")
        if metric not in ALL:
            raise UsageError(
                f"`metric_for_best_model` {self.metric_for_best_model} is unknown; needed one of: {', '.join(ALL)}."
            )
        if self.greater_is_better is ALL[metric].lower_is_better:
            raise UsageError(
                f"`greater_is_better` {self.greater_is_better} with {metric} would keep the worst one. Leave it out."
            )
        self.greater_is_better = not ALL[metric].lower_is_better

    def _check_batches(self) -> None:
        if self.n_gpu > 1:
            raise UsageError(
                f"{self.n_gpu} GPUs in one process would mean nn.DataParallel, where every GPU sees only its own "
                f"negatives. Start {self.n_gpu} processes with accelerate launch, one a GPU (or show one GPU with "
                "CUDA_VISIBLE_DEVICES=0)."
            )
        batch = self.per_device_train_batch_size * self.world_size
        for term in self.terms:
            if batch < term.smallest_batch:
                raise UsageError(
                    f"A batch of {counted(batch, 'sentence')} is too small for {term.title}, which needs "
                    f"{term.smallest_batch} or more. Give a larger `per_device_train_batch_size`; the papers use 50 to "
                    "512."
                )
        if self.world_size > 1 and not self.dataloader_drop_last:
            raise UsageError(
                "Several processes need batches of one size to gather their negatives: leave `dataloader_drop_last` on."
            )
        keeps_one = self.save_total_limit is not None and self.save_total_limit < 2
        if self.load_best_model_at_end and keeps_one:
            raise UsageError(
                f"`save_total_limit` {self.save_total_limit} cannot keep both the best and the newest checkpoint; "
                "needed 2 or more."
            )


class InforMinTrainingArguments(TrainingDefaults):
    """The options of a training: transformers' TrainingArguments, this method's, and those of the objective's terms.

    What was not given is the paper's for the objective: batch, learning rate and the objective's own options of
    BERT-base's row, and of the encoder's own once that is known (`for_model`).

    Args:
        options: by name; those of terms are the fields of their classes, see `informin.objectives`.

    Attributes:
        given: what somebody chose, by name.
        paper_row: the name of the paper's row that filled in what was not given; None where nothing did.

    Raises:
        UsageError: an option cannot be, has no effect with this objective, or turns everything off.
    """

    def __init__(self, output_dir: str | None = None, **options):
        if options.get("recipe") is not None:
            known = {field.name for field in fields(TrainingDefaults)} | term_options().keys()
            options = recipe_options(options["recipe"], known) | options
        self.given = {name: value for name, value in options.items() if value is not None or name not in FILLED}
        if options.get("pooler") == "auto":
            del self.given["pooler"]
        if output_dir is not None:
            self.given["output_dir"] = output_dir
        if {*options, "output_dir"} >= {field.name for field in fields(TrainingDefaults) if field.init}:
            raise UsageError("Every option is given, as by dataclasses.replace: give those alone that you chose.")
        self._filled, self.paper_row = filled_in(self.given)
        values = self._filled | self.given
        for name, default in term_options().items():
            setattr(self, name, values.pop(name, default))
        super().__init__(**values)
        self._filled["output_dir"] = self.output_dir
        if not any(term.summand for term in self.terms):
            raise UsageError(f"Every term of `objective` {self.objective} has the weight 0: there is nothing to learn.")
        self._check_rows()
        reentrant = (self.gradient_checkpointing_kwargs or {}).get("use_reentrant", False)
        if self.gradient_checkpointing and reentrant and any(term.reads_maps for term in self.terms):
            raise UsageError(
                "Attention maps have no gradient under `gradient_checkpointing` with use_reentrant. Leave that off, "
                "which is the default."
            )

    def _check_rows(self) -> None:
        """What a step reads has to fit together."""
        if self.view_dropout and self.replay_weight:
            raise UsageError(
                "`view_dropout` gives each view a rate, and the general sentences of `replay_weight` are no view. "
                "Leave one out."
            )
        view = self.second_view
        for term in self.terms:
            if term.reads_maps and not view.same_tokens:
                raise UsageError(
                    f"compares attention maps token by token, and the two views of `view` {self.view} have different "
                    "tokens",
                    option=term.weight,
                    fix="Use one of the two.",
                )

    def for_model(self, model_name: str, config: PreTrainedConfig) -> None:
        """Fills in, for this encoder, what was neither given nor set since.

        Raises UsageError: the encoder cannot do what the options ask for, or nothing says how it is pooled.
        """
        self.given |= {name: getattr(self, name) for name, v in self._filled.items() if getattr(self, name) != v}
        self.given["objective"] = self.objective
        usual = {field.name: field.default for field in fields(TrainingDefaults)} | term_options()
        stale = {name: usual[name] for name in self._filled.keys() - self.given.keys() - {"output_dir"}}
        self._filled, self.paper_row = filled_in(self.given, config)
        self._filled |= self._as_used(model_name, config)
        for name, value in (stale | self._filled).items():  # stale: of another objective
            setattr(self, name, value)
        if self.given.get("padding_free") is None:  # the terms decide, which are known now
            self.padding_free = self.device.type == "cpu" and self._unpackable(config) is None
            self._filled["padding_free"] = self.padding_free
        self._check_batches()
        self._check_encoder(config)
        if "output_dir" not in self.given:
            self._filled["output_dir"] = self.output_dir = default_output_dir(model_name, self)
        if self.process_index == 0 and (uneven := uneven_batch(self.given, config)):
            logger.warning(uneven)
        if self.verbose and self.paper_row:
            shown = ", ".join(f"{name} {value}" for name, value in self._filled.items() if name not in NOT_PUBLISHED)
            exact = (config.model_type, config.hidden_size) in OBJECTIVES[self.objective].rows
            other = f"; it has no row for {config.model_type} of width {config.hidden_size}, so this one"
            logger.info(f"From the paper ({self.paper_row}{'' if exact else other}): {shown}")

    def fill_in_length(self, length: int) -> None:
        """Sets `max_seq_length`, which the objective leaves to the data."""
        self.max_seq_length = self._filled["max_seq_length"] = length

    def choose_by(self, measures: Mapping[str, Measure] | None) -> None:
        """Chooses checkpoints by the first of the measures that a run scores, where nothing else was asked for.

        Raises UsageError: what was asked for is not scored.
        """
        if self.metric_for_best_model is None or measures is None:
            return
        metric, asked = self.metric_for_best_model.removeprefix("eval_"), "metric_for_best_model" in self.given
        if metric in measures:
            return
        if asked or metric != "spearman":
            raise UsageError(
                f"`metric_for_best_model` {metric} is not scored in this run; it scores {', '.join(measures)}. Name "
                "one of these, or give `eval_pairs`, `eval_labels` or `eval_retrieval` for it."
            )
        self.metric_for_best_model, self.greater_is_better = f"eval_{next(iter(measures))}", None
        self._check_metric()

    def _as_used(self, model_name: str, config: PreTrainedConfig) -> dict:
        """Pooling and prompt, where they were not given."""
        own = usage_of_settings(getattr(config, "informin", None) or {})
        usage = own or usage_of(model_name, config, self.model_revision)
        usage = usage.trained(self.given.get("pooler", "auto"), self.given.get("prompt"))
        values = {"pooler": usage.pooling, "prompt": usage.in_training.prompt}
        return {name: value for name, value in values.items() if self.given.get(name) is None}

    def _check_encoder(self, config: PreTrainedConfig) -> None:
        """What the architecture cannot do is said before anything is read."""
        row = architecture_of(config)
        maps = [name for name, other in ARCHITECTURES.items() if other.attention]
        heads = [name for name, other in ARCHITECTURES.items() if other.lm_head]
        for term in self.terms:
            instead = f"Give `{term.weight}` 0"
            if term.reads_maps and row.attention is None:
                _refuse_for(config, term.weight, "attention maps", instead, maps)
            if term.lm_head and row.lm_head is None:
                _refuse_for(config, term.weight, "a language-model head", instead, heads)
        if self.view_dropout and row.attention is None:
            instead = "Give `view_dropout_rate`, one rate for both views"
            _refuse_for(config, "view_dropout", "attention whose dropout can be set for each view", instead, maps)
        for term in self.terms:
            if self.gradient_cache_chunk_size and term.reads_maps:
                raise UsageError(
                    "`gradient_cache_chunk_size` lets go of what a batch computed until it is read again, and "
                    f"`{term.weight}` needs the attention maps of all rows together. Leave one out."
                )
            if self._parted and term.follows_weights:
                raise UsageError(
                    f"`{term.weight}` needs whole weights, which its own encoder follows, and {self._parted[0]} parts "
                    f"them among the processes. Give `{term.weight}` 0, or another file of configs/accelerate."
                )
        if self.given.get("padding_free") and (reason := self._unpackable(config)):
            raise UsageError(f"`padding_free` does not go with {reason}. Leave one out.")
        if self.gradient_checkpointing and not row.model.supports_gradient_checkpointing:
            able = [name for name, other in ARCHITECTURES.items() if other.model.supports_gradient_checkpointing]
            _refuse_for(config, "gradient_checkpointing", "layers that can be computed again", "Leave it out", able)

    @property
    def _parted(self) -> list[str]:
        """What parts weights, or what belongs to them, among the processes."""
        plugins = {"FSDP": self.fsdp, "DeepSpeed": self.deepspeed}
        return [name for name, given in plugins.items() if given or _launched_with(name.upper())]

    def _unpackable(self, config: PreTrainedConfig) -> str | None:
        """Why batches cannot be read without padding: what the whole layers, or whole batches, are needed for."""
        row = architecture_of(config)
        reasons = {
            f"the architecture {config.model_type!r}": not row.packs,
            "`view_dropout`": self.view_dropout is not None,
            "attention maps": any(term.reads_maps for term in self.terms),
            "`gradient_checkpointing`": self.gradient_checkpointing,
            "`torch_compile`": self.torch_compile,
            **dict.fromkeys(self._parted, True),
        }
        return next((reason for reason, holds in reasons.items() if holds), None)

    @property
    def terms(self) -> tuple[Term, ...]:
        """The terms of the objective that are on, with their options."""
        kinds = OBJECTIVES[self.objective].terms
        built = [kind(**{field.name: getattr(self, field.name) for field in fields(kind)}) for kind in kinds]
        return tuple(term for term in built if term.strength > 0)

    @property
    def second_view(self) -> View:
        """How the second view of a sentence is made, with its options."""
        kind = VIEWS[self.view]
        return kind(**{field.name: getattr(self, field.name) for field in fields(kind)})

    @property
    def objective_options(self) -> dict:
        """The options of the objective that have an effect, those without a value left out."""
        own = [field.name for term in self.terms for field in fields(term)]
        view = [] if self.view == "dropout" else ["view", *(field.name for field in fields(self.second_view))]
        names = ("objective", "view_dropout", "view_dropout_rate", *view, *own)
        return {name: v for name in names if (v := getattr(self, name)) is not None}

    @property
    def model_settings(self) -> dict:
        """What a configuration says of how the model was made and is to be read (`config.informin`).

        A pooling of auto, and a prompt of None, are the checkpoint's: see `informin.encoders.loading.load_model`.
        """
        return {
            "pooling": self.pooler,
            "prompt": self.prompt,
            "projection_head": self.projection_head,
            "lm_head": any(term.lm_head for term in self.terms),
            "max_seq_length": self.max_seq_length,
            **self.objective_options,
        }

    def to_dict(self) -> dict:
        """TrainingArguments', with the options of the terms."""
        return super().to_dict() | {name: getattr(self, name) for name in term_options()}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InforMinTrainingArguments) and self.to_dict() == other.to_dict()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.to_dict().items())})"

    __str__ = __repr__


LARGEST = math.nextafter(math.inf, 0)
NUMBERS = {  # what a number must be: least, most, and both in words
    (1, LARGEST, "1 or more"): "per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps "
    "max_steps save_total_limit",
    (math.ulp(0), LARGEST, "a number above 0"): "learning_rate num_train_epochs logging_steps eval_steps save_steps "
    "adam_epsilon",
    (0, LARGEST, "0 or more"): "weight_decay max_grad_norm warmup_steps dataloader_num_workers eval_delay",
    (0, math.nextafter(1, 0), "0 or more, and below 1"): "adam_beta1 adam_beta2",
    (0, 2**32 - 1, "a whole number from 0 to 4294967295"): "seed data_seed",  # numpy's
}


def _refuse_for(config: PreTrainedConfig, name: str, needed: str, instead: str, able: list[str]) -> None:
    raise UsageError(
        f"`{name}` needs {needed}, which the architecture {config.model_type!r} does not have here. {instead}, or take "
        f"an encoder of: {', '.join(able)}."
    )


def _launched_with(plugin: str) -> bool:
    """Whether accelerate launch was told to use FSDP, or DEEPSPEED."""
    return str_to_bool(os.environ.get(f"ACCELERATE_USE_{plugin}", "false")) == 1


def _check_numbers(args: TrainingArguments) -> None:
    """Raises UsageError for a number that is out of range; -1 and None, where they are the default, pass."""
    defaults = {field.name: field.default for field in fields(args)}
    for (least, most, words), names in NUMBERS.items():
        for name in names.split():
            value = getattr(args, name)
            require(value in (None, defaults[name]) or least <= float(value) <= most, name, value, words)


def _checkpoint_wanted(value: str | bool | None) -> str | None:
    """`true` is what people type for the newest one."""
    word = str(value).lower()
    if word in ("true", "yes", "1"):
        return LAST
    if not word:
        raise UsageError(
            f"`resume_from_checkpoint` is empty. Name a checkpoint, or `{LAST}` for the newest, or leave it out."
        )
    return None if word in ("none", "false", "no", "0") else value


def refuse_absent_reporters(names: list[str]) -> None:
    """Raises UsageError for a logger that is unknown, or not installed."""
    available = get_available_reporting_integrations()
    for name in names:
        if name not in INTEGRATION_TO_CALLBACK:
            near = get_close_matches(name, INTEGRATION_TO_CALLBACK, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise UsageError(
                f"`report_to` {name} is unknown.{hint} Needed of: {', '.join(INTEGRATION_TO_CALLBACK)}, all, none."
            )
        if name not in available and name != "flyte":  # which says nothing of itself
            package = {"azure_ml": "azureml-core"}.get(name, name)
            raise UsageError(f"`report_to` {name}: {name} is not installed. Install it: pip install {package}")
