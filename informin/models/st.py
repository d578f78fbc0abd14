"""Models of any other architecture: a SentenceTransformer, whose own modules compute the embedding."""

import copy
import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, set_seed

from informin.errors import UsageError, error_line
from informin.files import set_usual_modes
from informin.models.checkpoint import Checkpoint
from informin.models.dense import Dense
from informin.models.embedding_config import embedding_of, refuse_long_prompt
from informin.models.files import cannot_load
from informin.models.lora import without_lora
from informin.models.model import Encode, LoadOptions, Model, needs_native
from informin.models.modules import copy_module_code
from informin.models.native_loading import to_device
from informin.models.padding import fit_to_positions, require_independent
from informin.models.remote_code import remote_code
from informin.models.sentence_transformers_files import stored_prompts
from informin.models.settings import COSINE, similarity_of
from informin.models.st_loading import POOLER, UNLIMITED, files_sha256, load_sentence_transformer, quiet
from informin.models.st_module import StModule, refuse_identical_views, trainable_module
from informin.models.texts import as_texts
from informin.models.tokenizer import forget_truncation
from informin.models.weights import refuse_non_finite, tokenizer_settings, weights_sha256
from informin.objectives import OBJECTIVES
from informin.objectives.terms import Term


@dataclass
class StModel(Model):
    """A SentenceTransformer; see `Model`. Its only pooling is called `st`.

    Attributes:
        module: The SentenceTransformer; in training, an `StModule` around it.
        length: Maximum number of tokens per text; `UNLIMITED` if the model does not truncate.
        own_length: The model's own maximum, which `length` replaces in memory.
        width: Number of dimensions of an embedding.
        files_sha256: SHA-256 of its weights, configuration and code when it was loaded.
        has_default: Whether a Router has a default route.
        code_revision: Branch, tag or commit of that code on the Hub; None for that of the model.
        reason: Why the model is not native, for the message if sentence-transformers is missing.
    """

    own_length: int = UNLIMITED
    width: int = 0
    files_sha256: str = ""
    has_default: bool = True
    code_revision: str | None = None
    reason: UsageError | None = None
    backend: ClassVar[str] = "st"

    def load(self, how: LoadOptions, dtype: torch.dtype = torch.float32) -> "StModel":
        if list(how.poolers) != ["auto"]:
            why = f"but {self.reason.found}: sentence-transformers" if self.reason else "but sentence-transformers"
            found = f"is {' '.join(how.poolers)}, {why} loads it with its own pooling"
            raise UsageError(found, option="pooler", needed="auto")
        if self.checkpoint is None:
            sha256 = weights_sha256(self.module.state_dict())
            prompts = {name: text for name, text in self.module.prompts.items() if text}
            own = replace(self, files_sha256=sha256, prompts=prompts)
            return own._with(self.module, how)
        module = load_sentence_transformer(self.checkpoint, self.trusted, self.code_revision, self.reason, dtype)
        loaded = replace(self, files_sha256=files_sha256(self.checkpoint, self.code_revision))
        with quiet():
            loaded = loaded._with(module, how)
        # module.prompts also has empty prompts that sentence-transformers adds.
        loaded.prompts = stored_prompts(self.checkpoint)[1].get("prompts") or {}
        return loaded

    def _with(self, module: Any, how: LoadOptions) -> "StModel":
        """Return the model with a loaded SentenceTransformer, which is moved to the device and put in evaluation mode.

        Raises:
            UsageError: The length or the prompt does not fit, or the model cannot embed a text.
        """
        name = self.name
        most = _own_length(module, name)
        _set_length(module, name, how.length, most)
        to_device(module, how.device)
        default = module.prompts.get(module.default_prompt_name) if module.default_prompt_name else None
        prompt = (default or "") if how.prompt is None else how.prompt
        tokenizer = getattr(module, "tokenizer", None)  # the first module of a damaged list may have none
        if isinstance(tokenizer, PreTrainedTokenizerBase):
            refuse_long_prompt(prompt, tokenizer, "max_length", how.length or most)
        normalized = type(list(module)[-1]).__name__ == "Normalize" and module.truncate_dim is None
        loaded = replace(
            self,
            module=module,
            tokenizer=tokenizer,
            poolers=(POOLER,),
            length=how.length or most,
            normalized=normalized,
            batch_size=how.batch_size,
            bf16=how.bf16,
            prompt=prompt,
            prompt_given=how.prompt is not None,
            truncated=set(),
            similarity=similarity_of(module.similarity_fn_name, normalized),
            own_length=most,
        )
        try:
            loaded.width, loaded.has_default = loaded._width()
            some = loaded if loaded.has_default else replace(loaded, task="document")
            require_independent(module, name, lambda texts: some._encode(list(texts)))
        except UsageError:
            raise
        except Exception as error:  # the type depends on the model's code
            raise cannot_load(name, error) from None
        return loaded

    def _width(self) -> tuple[int, bool]:
        """Return the dimensions, and whether texts that are neither queries nor documents can be embedded."""
        texts = ["a", "a a a"]  # of two lengths: the padding token of a damaged tokenizer may have no embedding
        try:
            return self._encode(texts).shape[-1], True
        except ValueError:
            if not self.routed:
                raise
            return replace(self, task="document")._encode(texts).shape[-1], False

    @property
    def routed(self) -> bool:
        router = import_module("sentence_transformers.models").Router
        return any(isinstance(module, router) for module in self.module.modules())

    @property
    def dimensions(self) -> int:
        return self.width

    @property
    def device(self) -> torch.device:
        return self.module.device

    def __call__(
        self, sentences: Sequence[str], progress: Callable[[int], object] | None = None
    ) -> dict[str, np.ndarray]:
        if self.task is None and not self.has_default:
            raise UsageError(
                f"{self.name} has a Router without a default route, so texts must be queries or documents",
                option="model_name",
                fix="Set `prompt_name` to query or document, or score it with `retrieval` in `informin eval`.",
            )
        sentences = as_texts(sentences)
        self.note_truncated(sentences)
        embeddings = np.empty((len(sentences), self.width), np.float32)
        order = sorted(range(len(sentences)), key=lambda i: -len(sentences[i]))
        for start in range(0, len(order), self.batch_size):
            rows = order[start : start + self.batch_size]
            embeddings[rows] = self._encode([sentences[i] for i in rows])
            if progress:
                progress(len(rows))
        return {POOLER: embeddings}

    def _encode(self, sentences: list[str]) -> np.ndarray:
        # An empty prompt turns off the model's default prompt.
        prompt = self.prompt if self.prompt or self.module.default_prompt_name else None
        # Only a Router reads these names. Other modules may have tasks of their own, as jina-embeddings-v3 does.
        route = {"task": self.task} if self.task else {}
        how = dict(prompt=prompt, batch_size=len(sentences), show_progress_bar=False)
        with torch.autocast(self.device.type, dtype=torch.bfloat16) if self.bf16 else nullcontext():
            return self.module.encode(sentences, **how, **route)

    def for_side(self, side: str, prompt: str) -> "StModel":
        encoder = self.with_prompt(prompt)
        if not self.routed:
            return encoder
        encoder = replace(encoder, task=side)
        try:
            width = encoder._encode(["a"]).shape[-1]
        except ValueError as error:
            raise UsageError(
                f"{self.name} has a Router without a route for a {side}: {error_line(error)}",
                option="model_name",
                needed="the routes query and document",
            ) from None
        if width != self.width:
            found = (
                f"{self.name} embeds a {side} in {width} dimensions by one route, and texts in {self.width} by another"
            )
            raise UsageError(found, option="model_name", needed="routes with equal dimensions")
        return encoder

    def save_with(self, dense: Dense, folder: Path) -> str:
        """Save the SentenceTransformer with an affine map of its unit-length embedding.

        Appends a Dense module, after a Normalize module if the model has none. A model that normalized its embeddings
        still does: another Normalize module follows. A `truncate_dim` is saved as a Dense module before the map.
        """
        models: Any = import_module("sentence_transformers.models")
        library: Any = import_module("sentence_transformers")

        def linear(weight: np.ndarray, bias: np.ndarray | None = None) -> Any:
            wide, narrow = weight.shape[1], weight.shape[0]
            module = models.Dense(wide, narrow, bias=bias is not None, activation_function=nn.Identity())
            module.linear.weight.data = torch.from_numpy(weight)
            if bias is not None:
                module.linear.bias.data = torch.from_numpy(bias)
            return module

        more = [] if self.normalized else [models.Normalize()]
        if self.module.truncate_dim is not None:
            with self.module.truncate_embeddings(None):
                whole = self.module.get_embedding_dimension()
            more = [linear(np.eye(self.width, whole, dtype=np.float32)), *more]
        more += [linear(dense.weight, dense.bias), *([models.Normalize()] if self.normalized else [])]
        named = dict(self.module.named_children())
        new = {str(i): module for i, module in enumerate(more, start=len(named))}
        how = {name: getattr(self.module, name) for name in ("prompts", "default_prompt_name")}
        how["similarity_fn_name"] = COSINE  # the map gives vectors for the cosine
        both = library.SentenceTransformer(modules=OrderedDict(named | new), device=str(self.device), **how)
        both.module_kwargs = self.module.module_kwargs
        try:
            if self.length != self.own_length < UNLIMITED:
                self.module.max_seq_length = self.own_length
            both.save_pretrained(str(folder), create_model_card=False)
            copy_module_code(folder)
        finally:
            if self.length != self.own_length < UNLIMITED:
                self.module.max_seq_length = self.length
        return "remote" if remote_code(Checkpoint(folder)) else "none"

    def note_truncated(self, sentences: Sequence[str]) -> None:
        if self.length < UNLIMITED and isinstance(self.tokenizer, PreTrainedTokenizerBase):
            super().note_truncated(sentences)

    def limit(self, length: int) -> None:
        """Truncate texts to this many tokens, if the model truncates."""
        self.length = length
        if self.own_length < UNLIMITED:
            self.module.max_seq_length = length

    def weights_sha256(self) -> str:
        """Return the SHA-256 of the files with weights, configuration and code; in memory, that of the weights."""
        return self.files_sha256

    def sha256(self) -> str:
        parts = ["sentence-transformers", self.files_sha256, self.prompt, self.length, self.bf16]
        parts += [self.task] if self.task else []
        parts += [] if self.checkpoint else [_settings(self.module)]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    # Training

    def supports(self, term: Term) -> str | None:
        needs = {
            "attention maps": term.reads_maps,
            "a language-model head": term.lm_head,
            "masked tokens": term.masking is not None,
            "a momentum copy of the encoder": term.follows_weights,
        }
        return next((what for what, holds in needs.items() if holds), None)

    def defaults(self, args: Any) -> dict[str, Any]:
        return {"projection_head": args.projection_head or "none"}

    def packs(self, args: Any) -> bool:
        return False

    def check(self, args: Any) -> None:
        for term in args.terms:
            if what := self.supports(term):
                without = f"Set `{term.weight}` to 0" if term.weight else "Use another one"
                raise needs_native(term.weight or "objective", what, without)
        given = {
            "projection_head": args.projection_head != "none",
            "view_dropout": args.view_dropout is not None,
            "view_dropout_rate": args.view_dropout_rate is not None,
            "padding_free": args.padding_free,
            "neftune_noise_alpha": args.neftune_noise_alpha is not None,
            "debug": args.debug,
        }
        for name in (name for name, value in given.items() if value):
            objective = OBJECTIVES[args.objective]
            instead = "Use another `objective`" if name in objective.defaults else None
            raise needs_native(name, "the encoder's own modules", instead)

    def trainable(self, args: Any, tokenizer: PreTrainedTokenizerBase | None = None) -> "StModel":
        set_seed(args.seed)  # for newly initialized low-rank matrices
        prompt, half = args.embedding.in_training.prompt, args.bf16 and args.lora
        dtype = torch.bfloat16 if half else torch.float32
        before = copy.deepcopy(self) if self.checkpoint is None and args.measure_drift and not args.lora else None
        encoder = self.load(LoadOptions(device="cpu", prompt=prompt), dtype)
        module = trainable_module(encoder, args)
        if before:
            before = before.load(LoadOptions(device="cpu", prompt=prompt))
        return replace(encoder, module=module, config=module.config, tokenizer=module.tokenizer, before=before)

    def prepare(self, args: Any, map_layers: Sequence[int], copies: int, dropout_only: bool) -> None:
        self.module.chunk_size = args.gradient_cache_chunk_size
        if dropout_only:
            refuse_identical_views(self.module)

    def embed(
        self,
        module: nn.Module,
        sentences: Sequence[str],
        batch_size: int,
        progress: Callable[[int], object] | None = None,
    ) -> np.ndarray:
        trained = cast(StModule, module)
        return trained.encode(sentences, batch_size, embedding_of(trained).in_training.prompt, progress)

    @contextmanager
    def guide(self, args: Any) -> Iterator["StModel"]:
        """Yield the encoder in training, with the length of training."""
        assert args.max_seq_length  # see `training_rows`
        encoder: StModel = self.module.encoder
        before = encoder.length, encoder.bf16
        encoder.module.to(args.device)
        encoder.bf16 = args.mixed_precision == "bf16"
        encoder.limit(min(encoder.length, args.max_seq_length))
        try:
            yield encoder
        finally:
            encoder.bf16 = before[1]
            encoder.limit(before[0])

    def original(self, args: Any) -> Encode:
        size, prompt = args.per_device_eval_batch_size, embedding_of(self.module).in_training.prompt
        if self.module.lora is not None:

            def encode(texts: Sequence[str]) -> np.ndarray:
                with without_lora(self.module.st):
                    return self.module.encode(texts, size, prompt)

            return encode
        before = self.before
        if before is None:
            how = LoadOptions(batch_size=size, device=str(args.device), prompt=prompt)
            before = replace(self, module=None).load(how)
        before.batch_size = size
        to_device(before.module, str(args.device))
        return before.encode

    def record_entry(self, hub_id: str | None) -> dict:
        sha256 = self.weights_sha256()
        return self.source(hub_id) | {"weights_sha256": sha256, "settings_sha256": sha256}

    @property
    def record_entries(self) -> dict:
        return {"dimensions": self.module.config.hidden_size, "remote_code": self.module.runs_code}

    def save(self, folder: Path, usual: Callable[[], None], whole: Callable[[], nn.Module] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        if whole is None:  # a trial
            self.tokenizer.save_pretrained(folder)
            return
        trained = cast(StModule, whole())
        trained.save(folder)
        trained.save_state(folder)

    def load_weights(self, folder: str, module: nn.Module, usual: Callable[[], None]) -> None:
        cast(StModule, module).load(folder)

    def write(self, folder: Path, dtype: torch.dtype, weights: bool = True, merge: bool = True) -> None:
        """Write the files in the model's own format, or only its tokenizer if `weights` is False."""
        if not weights:
            self.tokenizer.save_pretrained(folder)
            return
        refuse_non_finite(self.module.state_dict())
        self.module.save(folder, merge=merge and self.module.lora is not None)
        set_usual_modes(folder)


def _own_length(module: Any, name: str) -> int:
    """Return a SentenceTransformer's own maximum number of tokens; `UNLIMITED` if it does not truncate."""
    try:
        fit_to_positions(module)
        own = module.get_max_seq_length()
    except UsageError:
        raise
    except Exception as error:  # a Router may have a route without modules
        raise cannot_load(name, error) from None
    if isinstance(own, int | float) and not own >= 3:
        found = f"{name} has the maximum length {own}"
        raise UsageError(found, option="model_name", needed="room for 3 tokens")
    return int(own) if isinstance(own, int | float) and own < UNLIMITED else UNLIMITED


def _set_length(model: Any, model_name: str, length: int | None, most: int) -> None:
    """Truncate texts to `length` tokens; None for the model's own maximum."""
    if length is None:
        return
    if most == UNLIMITED and not isinstance(model.tokenizer, PreTrainedTokenizerBase):
        raise UsageError(
            f"is {length}, but {model_name} does not truncate texts", option="max_length", fix="Leave it out."
        )
    if not 3 <= length <= most:
        raise UsageError(f"is {length}", option="max_length", needed=f"3 to {most} tokens for {model_name}")
    model.max_seq_length = length


def _settings(module: Any) -> str:
    """Return what the embeddings of a SentenceTransformer in memory depend on besides its weights."""
    parts: list = [module.truncate_dim]
    for one in module.modules():
        parts += [type(one).__name__, one.get_config_dict()] if hasattr(one, "get_config_dict") else []
        parts += [one.config.to_dict()] if isinstance(one, PreTrainedModel) else []
    tokenizer = getattr(module, "tokenizer", None)
    if isinstance(tokenizer, PreTrainedTokenizerBase) and hasattr(tokenizer, "backend_tokenizer"):
        forget_truncation(tokenizer)  # not a setting
        parts += [tokenizer_settings(tokenizer), tokenizer.padding_side, tokenizer.pad_token_id]
    return json.dumps(parts, default=lambda value: type(value).__name__)
