"""A model in training: a module whose forward returns `InforMinOutput`, beside the finished model it will be."""

import copy
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Normalize, Pooling, Transformer
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase, set_seed

from informin.errors import UsageError
from informin.models.checksums import settings_sha256, weights_sha256
from informin.models.cpu_parts import parts_in_training
from informin.models.embedding import embed
from informin.models.forward import Forward, How, reads_packed_rows
from informin.models.needs import Needs, check_options, check_static, naming, uncapturable, unpackable
from informin.models.opening import Source, file_of, limit_length, load_model, name_of, source_of, with_pooling
from informin.models.pooling import MODES
from informin.views.attention import prepare_encoder
from modeling_informin import InforMinMixin, with_default_prompt

EncodeTexts = Callable[[Sequence[str]], np.ndarray]
NATIVE = ("bert", "roberta", "xlm-roberta", "camembert")  # values of `model_type`
SAMPLE_TEXTS = ["A dog sleeps.", "The price of the old house by the river fell again last year."]


class TrainedModel(ABC):
    """A model in training, and what a trainer needs to know about it. `open_to_train` creates it.

    Attributes:
        name: Name or folder, as it was given.
        source: Where the model comes from.
        st: The finished model, which shares its weights with `module`.
        module: The module in training, after `build`. Its `config.informin` has the settings of the run, and its
            `heads` those of the terms.
        tokenizer: Tokenizer of the training sentences.
        before: Copy of a model in memory before training, for the drift report.
    """

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
    def takes_head(self) -> bool:
        """Whether the model is trained with the projection head of the papers by default: static models are not."""
        return not self.is_static

    @property
    def is_static(self) -> bool:
        """Whether the model is a table of token vectors, without an encoder."""
        return type(self.st[0]).__name__ == "StaticEmbedding"

    def build(self, args: Any, needs: Needs) -> None:
        """Create `module` with newly initialized heads, in float32, ready to train.

        Args:
            args: Training arguments, with all values filled in.
            needs: What the run needs.

        Raises:
            UsageError: The model cannot do what the run needs, an option excludes it, or the views of a sentence would
                be identical.
        """
        if self.is_static:
            check_static(needs)
        check_options(args, needs)
        self._create(args, needs)
        encoder = None if self.is_static else self.st[0].auto_model
        if encoder is not None:
            rates = None
            if needs.view_rates:
                rates = [*needs.view_rates, None][: needs.copies]  # None: a masked copy has the encoder's own dropout
            with naming(needs.option("map_layers" if needs.map_layers else "view_rates")):
                prepare_encoder(encoder, rates, needs.map_layers)
        packs = self._packs(args, needs)
        how = How(
            packs=packs,
            device=args.device,
            threads=parts_in_training(args) if packs else 1,
            chunk_size=args.gradient_cache_chunk_size,
            momentum=needs.momentum,
            reads_maps=bool(needs.map_layers),
            bf16=args.device.type == "cpu" and args.mixed_precision == "bf16",
            prompt_tokens=self._prompt_tokens(),
            graph_length=self._graph_length(args, needs),
            dtype={"bf16": torch.bfloat16, "fp16": torch.float16}.get(args.mixed_precision),
        )
        self.module.forward_pass = Forward(self.st, how)
        self._finish(args)
        if needs.views_differ_by_dropout and not (
            args.lora_r and args.lora_dropout
        ):  # of an effect from the first step
            self._check_dropout()

    @abstractmethod
    def _create(self, args: Any, needs: Needs) -> None:
        """Create `module`; see `build`."""

    def _finish(self, args: Any) -> None:  # noqa: B027, a native model needs no check
        """Check the module, once it has its forward pass."""

    def _packs(self, args: Any, needs: Needs) -> bool:
        """Return whether batches are packed: by default wherever the model, the options and the device allow it.

        Raises:
            UsageError: `padding_free` is set, and something excludes it.
        """
        reasons = unpackable(args, needs)
        if not reasons and args.padding_free is not False and not reads_packed_rows(self.st):
            reasons = ["a model whose modules need padded batches"]
        if args.padding_free and reasons:
            raise UsageError(f"cannot be combined with {reasons[0]}", option="padding_free", fix="Leave one out.")
        is_fast = args.device.type == "cpu" or args.mixed_precision != "no"  # FlashAttention takes no float32
        return not reasons and (is_fast if args.padding_free is None else args.padding_free)

    def _graph_length(self, args: Any, needs: Needs) -> int | None:
        """Return the most tokens of a sentence, for CUDA graphs; None without them.

        They are for one GPU, and for one forward and backward pass in each step: with several processes, gradients are
        reduced while they are computed.
        """
        allowed = args.device.type == "cuda" and args.world_size == 1 and not args.gradient_cache_chunk_size
        if not (args.cuda_graphs and allowed and reads_packed_rows(self.st)) or uncapturable(args):
            return None
        hooks = any(module._forward_hooks or module._forward_pre_hooks for module in self.st[0].auto_model.modules())
        if hooks:
            return None
        return min(self.length, needs.settings.get("max_seq_length") or self.length)

    @property
    def packing(self) -> dict[str, Any]:
        """Options of the record about packing, which the dropout masks depend on, after `build`."""
        how = self.module.forward_pass.how
        if not how.packs:
            return {}
        return {"padding_free": True} | ({"cpu_parts": how.threads} if how.threads > 1 else {})

    def collate(self, rows: dict[str, Any]) -> dict[str, Any]:
        """Return the rows of a forward pass with `packed` for `module`, on the device of the training.

        Args:
            rows: `input_ids`, `attention_mask` (N, L), `sentence_ids` (B,), and further values, on the CPU.
        """
        return rows | {"packed": self.module.forward_pass.collate(rows)}

    def _prompt_tokens(self) -> int:
        """Return the number of tokens of the prompt, without a special token at its end, if the pooling skips them."""
        if not self.prompt or all(getattr(module, "include_prompt", True) for module in self.st):
            return 0
        ids = self.tokenizer(self.prompt)["input_ids"]
        return len(ids) - (ids[-1] in self.tokenizer.all_special_ids)

    def embeddings_in_training(self, texts: list[str]) -> Tensor:
        """Return the embeddings (N, d) of texts as a step computes them."""
        reading = {"padding": True, "truncation": True, "max_length": self.length, "return_token_type_ids": False}
        batch = self.tokenizer(texts, return_tensors="pt", **reading)
        rows = dict(batch) | {"sentence_ids": torch.arange(len(texts))}
        forward = self.module.forward_pass
        device = next(self.st.parameters()).device
        how = {"device": device, "momentum": False, "reads_maps": False, "graph_length": None}
        forward.how, before = replace(forward.how, **how), forward.how
        try:
            return forward.run(forward.collate(rows))[0]
        finally:
            forward.how = before

    def _check_dropout(self) -> None:
        """Raise UsageError if two forward passes give the same embeddings."""
        training = self.module.training
        self.module.train()
        with torch.no_grad(), torch.random.fork_rng(), self.precision():
            one, other = (self.embeddings_in_training(SAMPLE_TEXTS) for _ in range(2))
        self.module.train(training)
        if not torch.equal(one, other):
            return
        if any(isinstance(part, nn.Dropout) for part in self.st.modules()):
            raise UsageError(
                "Every dropout rate of this model is 0, so the two views of a sentence would be identical",
                fix="Set `view_dropout`, for example to 0.1, or `view` to crop.",
            )
        raise UsageError(
            f"{self.name} has no dropout, so the two views of a sentence would be identical",
            option="view",
            needed="views that differ in their tokens: crop or repetition",
            fix="Set `view` to crop, or use a term with a guide alone (objective guided).",
        )

    def precision(self) -> Any:
        """Return the context in which a model with some weights in half precision computes on a CPU."""
        half = any(weight.dtype != torch.float32 for weight in self.module.parameters())
        return torch.autocast("cpu", torch.bfloat16) if half else nullcontext()

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

    def original(self, args: Any) -> EncodeTexts:
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
        limit_length(self.st, min(before or args.max_seq_length, args.max_seq_length))
        self.st.informin_source = Source(self.name, bf16=args.mixed_precision == "bf16")
        try:
            yield self.st
        finally:
            limit_length(self.st, before)
            self.st.informin_source = source

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
    model: str | Path | SentenceTransformer | InforMinMixin,
    args: Any,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> TrainedModel:
    """Open a model to train.

    BERT and RoBERTa with [CLS], mean or last-token pooling are trained as the classes of `modeling_informin`. Every
    other SentenceTransformer, a SentenceTransformer in memory, and every model with LoRA is trained as it is.

    Args:
        model: Hub id, folder, SentenceTransformer, or an object of a class of `modeling_informin`.
        args: `InforMinTrainingArguments`.
        tokenizer: Tokenizer of a BERT or RoBERTa; None for its own. An object needs one.

    Raises:
        UsageError: The model cannot be loaded, or an option does not fit it.
    """
    from informin.models.native import NativeModel  # these modules import this one
    from informin.models.wrapper import WrappedModel

    set_seed(args.seed)  # of weights that are newly initialized
    if isinstance(model, SentenceTransformer):
        return WrappedModel(load_model(model), source_of(model))
    if isinstance(model, InforMinMixin):
        return NativeModel(*_around(model, tokenizer), tokenizer, given=model)
    st, pooling_chosen = _opened(name_of(model), args)
    wrapped = args.lora_r is not None or not is_native(st)
    if wrapped and pooling_chosen and file_of(name_of(model), "modules.json", args.revision):
        raise UsageError(
            f"is {args.pooler}, but a SentenceTransformer has its own pooling", option="pooler", needed="auto"
        )
    kind = WrappedModel if wrapped else NativeModel
    return kind(st, source_of(st), None if wrapped else tokenizer)


def _around(model: Any, tokenizer: PreTrainedTokenizerBase | None) -> tuple[SentenceTransformer, Source]:
    """Return an object of `modeling_informin` as a SentenceTransformer with other weights, and where it comes from."""
    if tokenizer is None:
        raise UsageError("is missing", option="processing_class", fix="Pass the tokenizer of the model.")
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        st = load_model(folder, device="cpu")
    source = Source(model.config._name_or_path or type(model).__name__)
    st.informin_source = source
    return st, source


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
