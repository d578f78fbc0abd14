"""The options: model, data, objective and training, each checked when it is built."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal, Optional

import torch
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from transformers import TrainingArguments

from informin.errors import UsageError


@dataclass
class ModelArguments:
    """Which encoder is trained, and with which head."""

    model_name: Optional[str] = field(
        default=None, metadata={"help": "A BERT or RoBERTa checkpoint: Hub id or folder. Required."}
    )
    model_revision: Optional[str] = field(default=None, metadata={"help": "Branch, tag or commit on the Hub."})
    projection_head: Literal["mlp", "none"] = field(
        default="mlp",
        metadata={"help": "What sits on [CLS] in training: mlp as in the paper, none as in the authors' release."},
    )


@dataclass
class DataArguments:
    """Sentences to train on, and graded pairs to choose the checkpoint by."""

    train_file: Optional[list[str]] = field(
        default=None,
        metadata={
            "help": "Files of sentences, or folders of them: text (one a line), CSV, TSV, JSONL or Parquet; text, CSV, "
            "TSV and JSONL also as .gz, .xz, .zst. Default: wiki1m_for_simcse.txt from the Hub."
        },
    )
    text_column: Optional[str] = field(
        default=None, metadata={"help": "The column with the sentences. Default: `text`, or the only one there is."}
    )
    dataset_name: Optional[str] = field(default=None, metadata={"help": "A Hub data set, in train_file's place."})
    dataset_config: Optional[str] = field(default=None, metadata={"help": "Its configuration."})
    dataset_split: str = field(default="train", metadata={"help": "Its split."})
    streaming: bool = field(default=False, metadata={"help": "Read it while training; needs --max_steps."})
    max_train_samples: Optional[int] = field(
        default=None, metadata={"help": "Train on a random sample of this many sentences; --seed decides which."}
    )
    max_seq_length: int = field(default=32, metadata={"help": "Training sentences are cut to this many tokens."})
    eval_data_dir: Optional[str] = field(
        default=None,
        metadata={
            "help": "SentEval's data/downstream, for STS-B dev. Default: $SENTEVAL_DATA, else senteval.tar on the Hub."
        },
    )
    eval_pairs: Optional[str] = field(
        default=None,
        metadata={"help": "Your own pairs in STS-B dev's place: TSV, CSV or JSONL with sentence1, sentence2, score."},
    )

    def __post_init__(self):
        if self.train_file and self.dataset_name:
            raise UsageError("--train_file and --dataset_name both say what to train on. Give one.")
        if self.streaming and not self.dataset_name:
            raise UsageError("--streaming reads a Hub data set: it needs --dataset_name.")
        if self.max_train_samples is not None and self.max_train_samples < 1:
            raise UsageError(f"--max_train_samples is {self.max_train_samples}; needed 1 or more.")
        if self.max_seq_length < 3:
            raise UsageError(f"--max_seq_length is {self.max_seq_length}; needed 3 or more ([CLS], a word, [SEP]).")


@dataclass
class CardArguments:
    """What the model card says that a run cannot know."""

    base_model: Optional[str] = field(
        default=None, metadata={"help": "Hub id of the encoder, where --model_name is a folder."}
    )
    license: Optional[str] = field(
        default=None, metadata={"help": "Licence id, apache-2.0 for instance. Default: that of the encoder's own card."}
    )
    language: Optional[str] = field(
        default=None, metadata={"help": "ISO 639 code of the sentences. Default: en for the default sentences."}
    )
    data_description: Optional[str] = field(
        default=None, metadata={"help": "What the sentences are, in a few words. Default: the names of the files."}
    )

    def __post_init__(self):
        if self.base_model is None:
            return
        try:
            validate_repo_id(self.base_model)
        except HFValidationError:
            raise UsageError(
                f"--base_model {self.base_model} is no id of the Hub. Give the one that the encoder is published "
                "under, or leave it out."
            ) from None


@dataclass
class InforMinTrainingArguments(TrainingArguments):
    """transformers' TrainingArguments, with the objective's options and this method's defaults.

    The defaults are InforMin-CL's bert-base row (Chen et al., 2022, table 3): one epoch of batches of 128 at 3e-5,
    STS-B dev before the first step and every 125 steps, the best checkpoint kept and loaded at the end.
    """

    objective: Literal["informin", "simcse"] = field(
        default="informin", metadata={"help": "informin: contrast and reconstruction. simcse: contrast alone."}
    )
    temperature: float = field(default=0.05, metadata={"help": "Scale of the cosines in the contrast."})
    reconstruction_weight: float = field(
        default=0.4,
        metadata={
            "help": "lambda, the weight of the reconstruction; nothing without its form. Default: the paper's row."
        },
    )
    reconstruction_form: Literal["squared_l2", "unit_squared_l2", "reference"] = field(
        default="unit_squared_l2",
        metadata={
            "help": "squared_l2: eq. 8 on the projections as they are. unit_squared_l2: on unit vectors. reference: as "
            "the authors' code, hidden size / 2 times weaker than unit_squared_l2."
        },
    )
    mlm_weight: float = field(default=0.0, metadata={"help": "beta, the weight of masked language modelling; 0: off."})
    mlm_probability: float = field(default=0.15, metadata={"help": "Share of the tokens that is masked."})
    masked_views: bool = field(
        default=False,
        metadata={"help": "With MLM, contrast the masked sentences, as the authors' release does by accident."},
    )

    hub_overwrite: bool = field(
        default=False, metadata={"help": "Push over files in the repository that this project did not put there."}
    )

    # Defaults, or their descriptions, that differ from transformers'.
    output_dir: Optional[str] = field(
        default=None, metadata={"help": "Where checkpoints and the model go. Default: outputs/MODEL-OBJECTIVE-seedN."}
    )
    bf16: bool = field(
        default=False,
        metadata={"help": "bfloat16 mixed precision. Default of run_unsup.py: on where there is hardware."},
    )
    per_device_train_batch_size: int = field(
        default=128,
        metadata={
            "help": "Sentences a step and process. Default: the paper's row, divided among the processes. Negatives "
            "come from all processes; gradient_accumulation_steps adds none."
        },
    )
    per_device_eval_batch_size: int = field(default=64, metadata={"help": "Sentences a forward pass in evaluation."})
    learning_rate: float = field(default=3e-5, metadata={"help": "Peak learning rate. Default: the paper's row."})
    num_train_epochs: float = field(default=1.0, metadata={"help": "Passes over the sentences."})
    eval_strategy: str = field(
        default="steps", metadata={"help": "steps, epoch or no. With no, nothing is scored and the last step is kept."}
    )
    eval_steps: Optional[float] = field(default=125, metadata={"help": "Steps between evaluations."})
    eval_on_start: bool = field(default=True, metadata={"help": "Evaluate before the first step."})
    save_steps: Optional[float] = field(
        default=None, metadata={"help": "Steps between checkpoints, a multiple of eval_steps. Default: eval_steps."}
    )
    save_total_limit: Optional[int] = field(
        default=2, metadata={"help": "Checkpoints kept on disk, the best and the newest among them; at least 2."}
    )
    load_best_model_at_end: bool = field(
        default=True, metadata={"help": "End with the checkpoint of the best Spearman instead of the last."}
    )
    metric_for_best_model: Optional[str] = field(
        default="eval_spearman", metadata={"help": "What the best checkpoint is chosen by."}
    )
    logging_steps: float = field(default=25, metadata={"help": "Steps between log lines."})
    dataloader_drop_last: bool = field(
        default=True, metadata={"help": "Leave out the last, smaller batch of an epoch. Several processes need it."}
    )
    ddp_find_unused_parameters: Optional[bool] = field(
        default=False, metadata={"help": "Not needed: only heads that the objective reads are built."}
    )
    resume_from_checkpoint: Optional[str] = field(
        default=None,
        metadata={
            "help": "Go on with a run: a checkpoint folder, or without a value the newest complete one in output_dir.",
            "nargs": "?",
            "const": "last",
        },
    )
    # The trainer looks at the raw loss itself and stops; the filter would hide a NaN from the log.
    logging_nan_inf_filter: bool = field(default=False, metadata={"help": "Hide NaN and infinity from the log."})

    # HfArgumentParser groups by this in --help.
    _argument_group_name: ClassVar[str] = "training"

    def __post_init__(self):
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
        super().__post_init__()
        self._check_objective()
        self._check_batches()

    def _check_objective(self) -> None:
        if self.objective == "simcse":
            self.reconstruction_weight = 0.0
        for name in ("reconstruction_weight", "mlm_weight"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise UsageError(f"--{name} is {getattr(self, name)}; needed 0 or more (0 turns the term off).")
        if not 0 < self.temperature < float("inf"):
            raise UsageError(f"--temperature is {self.temperature}; needed a number above 0 (the papers use 0.05).")
        if not 0 < self.mlm_probability < 1:
            raise UsageError(f"--mlm_probability is {self.mlm_probability}; needed a share between 0 and 1.")
        if self.masked_views and not self.mlm_weight:
            raise UsageError("--masked_views needs MLM: give --mlm_weight, 0.1 for instance.")

    def _check_batches(self) -> None:
        if self.n_gpu > 1:
            raise UsageError(
                f"{self.n_gpu} GPUs in one process would mean nn.DataParallel, where every GPU sees only its own "
                f"negatives. Start one process a GPU: accelerate launch --num_processes {self.n_gpu} run_unsup.py ... "
                "(or show one GPU alone with CUDA_VISIBLE_DEVICES=0)."
            )
        if self.per_device_train_batch_size * self.world_size < 2:
            raise UsageError(
                "A batch of 1 sentence has no negatives to contrast with. Give --per_device_train_batch_size of 2 or "
                "more; the papers use 64 to 512."
            )
        if self.world_size > 1 and not self.dataloader_drop_last:
            raise UsageError(
                "Several processes need batches of one size to gather their negatives: leave --dataloader_drop_last on."
            )
        keeps_one = self.save_total_limit is not None and self.save_total_limit < 2
        if self.load_best_model_at_end and keeps_one:
            raise UsageError(
                f"--save_total_limit {self.save_total_limit} cannot keep both the best and the newest checkpoint; "
                "needed 2 or more."
            )

    @property
    def term_weights(self) -> dict[str, float]:
        """The terms of the loss that are on, with their weights."""
        weights = {"contrast": 1.0, "reconstruction": self.reconstruction_weight, "mlm": self.mlm_weight}
        return {name: weight for name, weight in weights.items() if weight > 0}
