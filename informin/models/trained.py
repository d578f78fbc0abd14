"""A model in training: a module whose forward returns `InforMinOutput`, beside the finished model it will be."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Normalize, Pooling, Transformer
from torch import nn
from transformers import PreTrainedTokenizerBase, set_seed

from informin.errors import UsageError
from informin.models.checksums import settings_sha256, weights_sha256
from informin.models.embedding import embed
from informin.models.opening import Source, file_of, load_model, name_of, source_of, with_pooling
from informin.models.pooling import MODES
from modeling_informin import with_default_prompt

Encode = Callable[[Sequence[str]], np.ndarray]
NATIVE = ("bert", "roberta", "xlm-roberta", "camembert")  # values of `model_type`
BACKENDS = ("auto", "native", "st")


@dataclass(frozen=True)
class Needs:
    """What a run needs from the model in training.

    Attributes:
        projection_head: The papers' head on top of the embedding.
        lm_head: A pretrained language-model head.
        map_layers: Layers whose attention maps the terms read, counted from 0.
        momentum: A term keeps a moving average of the encoder.
        dropout: One rate for hidden states and attention, instead of the encoder's own; None for its own.
        view_rates: Dropout rates of view 1 and view 2; None if both have the same rate.
        copies: Rows per sentence in one forward pass: its views, and a masked copy.
        views_differ_by_dropout: A term compares two views of the same tokens, so that some dropout must be above 0.
        settings: What `config.informin` records beside the pooling and the heads.
        asked_by: Option that an error names, by the name of the need, such as `queue_size` for `momentum`.
    """

    projection_head: bool
    lm_head: bool = False
    map_layers: tuple[int, ...] = ()
    momentum: bool = False
    dropout: float | None = None
    view_rates: tuple[float, float] | None = None
    copies: int = 2
    views_differ_by_dropout: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    asked_by: dict[str, str] = field(default_factory=dict)

    def option(self, need: str) -> str:
        """Return the option that an error about a need names."""
        return self.asked_by.get(need, need)


class TrainedModel(ABC):
    """A model in training, and what a trainer needs to know about it. `open_to_train` creates it.

    Attributes:
        backend: `native` or `st`.
        name: Name or folder, as it was given.
        source: Where the model comes from.
        st: The finished model, which shares its weights with `module`.
        module: The module in training, after `build`. Its `config.informin` has the settings of the run, and its
            `heads` those of the terms.
        tokenizer: Tokenizer of the training sentences.
        before: Copy of a model in memory before training, for the drift report.
    """

    backend: ClassVar[str]

    def __init__(self, st: SentenceTransformer, source: Source, tokenizer: PreTrainedTokenizerBase | None = None):
        self.st, self.source, self.name = st, source, source.name
        self.tokenizer: Any = tokenizer or getattr(st, "tokenizer", None)
        self.module: Any = None
        self.before: SentenceTransformer | None = None
        self.default_prompt = st.prompts.get(st.default_prompt_name or "") or ""
        self._entry = {
            "weights_sha256": weights_sha256(st),
            "settings_sha256": settings_sha256(st),
        }

    @property
    @abstractmethod
    def config(self) -> Any:
        """Configuration with `model_type` and `hidden_size`."""

    @property
    @abstractmethod
    def pooling(self) -> str:
        """Name of the pooling."""

    @property
    @abstractmethod
    def length(self) -> int:
        """Maximum number of tokens of a text."""

    @property
    @abstractmethod
    def takes_head(self) -> bool:
        """Whether the model is trained with the projection head of the papers by default."""

    @abstractmethod
    def build(self, args: Any, needs: Needs) -> None:
        """Create `module` with newly initialized heads, in float32, ready to train.

        Args:
            args: Training arguments, with all values filled in.
            needs: What the run needs.

        Raises:
            UsageError: The model cannot do what the run needs, an option excludes it, or the views of a sentence would
                be identical.
        """

    @property
    @abstractmethod
    def packing(self) -> dict[str, Any]:
        """Options of the record about packing, which the dropout masks depend on, after `build`."""

    def collate(self, rows: dict[str, Any]) -> dict[str, Any]:
        """Return the rows of a forward pass as `module` reads them, on the device of the training.

        Args:
            rows: `input_ids`, `attention_mask` (N, L), and further values, which stay as they are. The entry `packed`
                that may be added is for the argument `packed` of the forward pass.
        """
        return rows

    @abstractmethod
    def save(self, folder: str | Path, usual: Callable[[], None], module: nn.Module | None = None) -> None:
        """Write a checkpoint: `usual` does what Trainer does; `module` has whole weights, if they are sharded."""

    @abstractmethod
    def load(self, folder: str | Path, usual: Callable[[], None]) -> None:
        """Load the weights of a checkpoint; `usual` does what Trainer does."""

    @abstractmethod
    def reading(self, module: nn.Module | None) -> Any:
        """Return a context in which `st` has the weights of another module, for sharded weights; None: its own."""

    def encode(
        self,
        texts: Sequence[str],
        batch_size: int,
        module: nn.Module | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> np.ndarray:
        """Return the embeddings (N, d) float32 of N texts, with the training prompt. Dropout is off.

        Args:
            texts: N texts.
            batch_size: Texts per forward pass.
            module: Module with whole weights, if they are sharded.
            progress: Called after each chunk with its number of texts.
        """
        training = self.module.training
        try:
            with self.reading(module):
                return embed(self.st, texts, prompt=self.prompt, batch_size=batch_size, title=None, progress=progress)
        finally:  # progress may raise
            self.module.train(training)

    @property
    def prompt(self) -> str:
        """The prompt of training."""
        settings = self.module.config.informin
        return settings.get("training_prompt", settings.get("prompt", ""))

    def original(self, args: Any) -> Encode:
        """Return an encode function of the model before training, with the pooling and prompt of training."""
        before = self.before or _opened(self.name, args)[0]
        before.to(args.device)
        size = args.per_device_eval_batch_size
        return lambda texts: embed(before, texts, prompt=self.prompt, batch_size=size, title=None)

    @contextmanager
    def guide(self, args: Any) -> Iterator[SentenceTransformer]:
        """Yield the model before training as its own guide, on the device of training and with its length."""
        before, source = self.st.max_seq_length, getattr(self.st, "informin_source", None)
        self.st.to(args.device)
        self.st.max_seq_length = min(before or args.max_seq_length, args.max_seq_length)
        self.st.informin_source = Source(self.name, bf16=args.mixed_precision == "bf16")
        try:
            yield self.st
        finally:
            self.st.max_seq_length, self.st.informin_source = before, source

    @contextmanager
    def finished(self, module: nn.Module | None = None) -> Iterator[SentenceTransformer]:
        """Yield the model as it is exported, with the default prompt that `export_prompt` asks for."""
        before = self.st.prompts, self.st.default_prompt_name
        prompt = self.module.config.informin.get("prompt", "")
        self.st.prompts, self.st.default_prompt_name = with_default_prompt(*before, prompt)
        try:
            with self.reading(module):
                yield self.st
        finally:
            self.st.prompts, self.st.default_prompt_name = before

    def prompt_settings(self, args: Any) -> dict[str, str]:
        """Return the prompts of `config.informin`: that of the exported model, and that of training if it differs."""
        training = self.default_prompt if args.prompt is None else args.prompt
        exported = training if args.export_prompt else self.default_prompt
        settings = {"prompt": exported} if exported else {}
        return settings if training == exported else settings | {"training_prompt": training}

    def record_entry(self) -> dict[str, Any]:
        """Return where the model comes from, for the record of a run."""
        folder = self.source.folder
        name = folder.resolve().name if folder else self.name
        return {"name": name, "hub_id": None if folder else name, "revision": self.source.revision} | self._entry

    @property
    def record_entries(self) -> dict[str, Any]:
        """The entries of a run's record that only this backend has."""
        return {}


def open_to_train(
    model: str | Path | SentenceTransformer, args: Any, tokenizer: PreTrainedTokenizerBase | None = None
) -> TrainedModel:
    """Open a model to train, and choose its backend: the only place that does.

    BERT and RoBERTa with [CLS], mean or last-token pooling are native. Every other SentenceTransformer, a model in
    memory, and every model with LoRA or `backend` st, is trained by its own modules.

    Args:
        model: Hub id, folder, or a SentenceTransformer.
        args: `InforMinTrainingArguments`.
        tokenizer: Tokenizer of a native model; None for its own.

    Raises:
        UsageError: The model cannot be loaded, or `backend` is native and it is not.
    """
    from informin.models.native import NativeModel  # these modules import this one
    from informin.models.wrapper import WrappedModel

    set_seed(args.seed)  # of weights that are newly initialized
    if isinstance(model, SentenceTransformer):
        return WrappedModel(load_model(model), source_of(model))
    st, pooling_chosen = _opened(name_of(model), args)
    native = is_native(st)
    if args.backend == "native" and not native:
        raise UsageError(
            f"is native, but {model} is not a BERT or RoBERTa with cls, mean or last pooling", option="backend"
        )
    wrapped = args.backend == "st" or args.lora_r is not None or not native
    if wrapped and pooling_chosen and file_of(name_of(model), "modules.json", args.revision):
        raise UsageError(
            f"is {args.pooler}, but a SentenceTransformer has its own pooling", option="pooler", needed="auto"
        )
    kind = WrappedModel if wrapped else NativeModel
    return kind(st, source_of(st), None if wrapped else tokenizer)


def is_native(st: SentenceTransformer) -> bool:
    """Return whether a model consists of a BERT or RoBERTa, a pooling that this project has, and normalization."""
    modules = list(st)
    return (
        [type(module) for module in modules[:2]] == [Transformer, Pooling]
        and all(type(module) is Normalize for module in modules[2:])
        and len(modules) <= 3
        and modules[0].config.model_type in NATIVE
        and not getattr(modules[0].auto_model, "peft_config", None)
        and not modules[0].config.is_decoder
        and modules[1].pooling_mode in MODES.values()
        and modules[1].include_prompt
        and st.truncate_dim is None
    )


def _opened(name: str, args: Any) -> tuple[SentenceTransformer, bool]:
    """Return a model with the pooling of training, and whether that is not its own.

    A model that stores no pooling gets [CLS]. A pooling other than the model's own drops its normalization.
    """
    how = {"revision": args.revision, "trust_remote_code": args.trust_remote_code, "device": "cpu"}
    stores = file_of(name, "modules.json", args.revision) is not None
    if not stores:
        chosen = "cls" if args.pooler in ("auto", "st") else args.pooler
        return load_model(name, pooler=chosen, **how), args.pooler not in ("auto", "st")
    st = load_model(name, **how)
    own = st[1].pooling_mode if len(st) > 1 and isinstance(st[1], Pooling) else None
    if args.pooler in ("auto", "st") or MODES[args.pooler] == own:
        return st, False
    changed = with_pooling(st, args.pooler)
    changed.informin_source = source_of(st)
    return load_model(changed), True


def copied(st: SentenceTransformer) -> SentenceTransformer:
    """Return a copy of a model in memory."""
    return load_model(copy.deepcopy(st)).eval().requires_grad_(False).to(torch.float32)
