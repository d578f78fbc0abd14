"""BERT-like encoders, loaded as classes of transformers and trained as classes of this project."""

import copy
import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, set_seed

from informin.errors import UsageError
from informin.models.architectures import InforMinModel, architecture_of
from informin.models.checkpoint import Checkpoint
from informin.models.cpu_parts import packed_forward_in_parts, parts_in_training
from informin.models.dense import Dense, load_dense
from informin.models.embedding_config import embedding_of, lower_case, refuse_long_prompt
from informin.models.encode import POOLERS, embed, encode, longest_read, max_length
from informin.models.files import NotNativeError
from informin.models.model import Encode, LoadOptions, Model
from informin.models.model_config import load_config
from informin.models.native_checks import (
    HEAD,
    MAPS,
    check_architecture,
    refuse_other_heads,
    refuse_without_dropout,
    unpackable,
)
from informin.models.native_files import add_dense, write_native
from informin.models.native_loading import (
    load_saved,
    load_tokenizer,
    load_trainable,
    saved_settings,
    to_device,
    without_warnings,
)
from informin.models.packing import packed_forward
from informin.models.settings import COSINE, similarity_of
from informin.models.texts import as_texts
from informin.models.tokenizer import forget_truncation, pad_right
from informin.models.weights import settings_sha256, weights_sha256
from informin.objectives.terms import Term
from informin.views.attention import prepare_encoder

logger = logging.getLogger(__name__)

FOR_ADAPTER = {"pooling": "auto", "prompt": None, "projection_head": "none", "lm_head": False}


class UnknownPoolingError(NotNativeError):
    """The model's files describe a pooling that is not supported."""


@dataclass
class NativeModel(Model):
    """A BERT-like encoder; see `Model`.

    Attributes:
        dense: Linear adapter, applied to embeddings of unit length; None for none.
    """

    dense: Dense | None = None
    backend: ClassVar[str] = "native"

    def load(self, how: LoadOptions) -> "NativeModel":
        assert self.checkpoint is not None
        embedding, own = self.embedding, "auto" in how.poolers
        if own and embedding.pooling is None:
            problem = embedding.problem or "it has no sentence-transformers files"
            raise UnknownPoolingError(
                f"is auto, but the pooling of {self.name} is unknown: {problem}",
                option="pooler",
                needed=f"one of: {', '.join(POOLERS)}",
            )
        module = load_saved(self.checkpoint)
        tokenizer = load_tokenizer(self.checkpoint)
        lower_case(tokenizer, embedding)
        resolved = tuple(dict.fromkeys(self._resolve(pooler, module) for pooler in how.poolers))
        most = max_length(self.config, tokenizer)
        length = embedding.max_length(most) if how.length is None else how.length
        if not 3 <= length <= most:
            raise UsageError(f"is {length}", option="max_length", needed=f"3 to {most} tokens for {self.name}")
        prompt = embedding.prompt if how.prompt is None else how.prompt
        refuse_long_prompt(prompt, tokenizer, "max_length", length)
        to_device(module, how.device)
        width = self.config.hidden_size
        dense = load_dense(self.checkpoint, embedding.adapter, width) if own and embedding.adapter else None
        return replace(
            self,
            module=module,
            tokenizer=tokenizer,
            poolers=resolved,
            length=length,
            normalized=own and embedding.normalize,
            batch_size=how.batch_size,
            bf16=how.bf16,
            prompt=prompt,
            prompt_given=how.prompt is not None,
            truncated=set(),
            prompts=embedding.files.get("prompts") or {},
            similarity=self._similarity(own),
            dense=dense,
        )

    def _resolve(self, pooler: str, module: PreTrainedModel) -> str:
        """Return the pooling that a name means."""
        if pooler == "auto":
            assert self.embedding.pooling is not None  # see `load`
            return self.embedding.pooling
        if pooler not in POOLERS:
            raise UsageError(f"is {pooler}", option="pooler", needed=f"one of: auto, {', '.join(POOLERS)}")
        has_head = isinstance(module, InforMinModel) and module.config.informin["projection_head"] == "mlp"
        if pooler == "mlp" and not has_head:
            raise UsageError(
                f"is mlp, but {self.name} has no projection head",
                option="pooler",
                needed="a checkpoint that this project trained with `projection_head` mlp",
            )
        return pooler

    def _similarity(self, own: bool) -> str:
        """Return the similarity that the model declares for its `own` pooling."""
        similarity = self.embedding.files.get("similarity_fn_name") or COSINE
        if not own and similarity != COSINE:
            logger.info(f"{self.name} declares the similarity {similarity} for its own pooling. Others use the cosine.")
            similarity = COSINE
        return similarity_of(similarity, own and self.embedding.normalize)

    @property
    def dimensions(self) -> int:
        return self.config.hidden_size if self.dense is None else len(self.dense.bias)

    @property
    def embeds_as_stored(self) -> bool:
        stored = self.embedding
        return (self.poolers, self.normalized) == ((stored.pooling,), stored.normalize)

    @property
    def device(self) -> torch.device:
        return self.module.device

    def __call__(
        self, sentences: Sequence[str], progress: Callable[[int], object] | None = None
    ) -> dict[str, np.ndarray]:
        sentences = as_texts(sentences)
        self.note_truncated(sentences)
        with torch.autocast(self.device.type, dtype=torch.bfloat16) if self.bf16 else nullcontext():
            unit = self.normalized or self.dense is not None
            options = (self.batch_size, self.poolers, self.length, progress, self.prompt, unit)
            embeddings = encode(self.module, self.tokenizer, sentences, *options)
        if self.dense is not None:
            embeddings = {pooler: self.dense(x, self.normalized) for pooler, x in embeddings.items()}
        return embeddings

    def weights_sha256(self) -> str:
        digest = weights_sha256(self.module.state_dict())
        return digest if self.dense is None else hashlib.sha256((digest + self.dense.sha256()).encode()).hexdigest()

    def sha256(self) -> str:
        forget_truncation(self.tokenizer)  # not a setting
        tokenizer = [getattr(self.tokenizer, name) for name in ("padding_side", "truncation_side", "pad_token_id")]
        tokenizer += [type(self.tokenizer).__name__, self.tokenizer.split_special_tokens]
        options = [self.poolers, self.prompt, self.length, self.normalized, self.bf16]
        parts = [type(self.module).__name__, self.weights_sha256(), *tokenizer, *options]
        parts.append(settings_sha256(self.module.config, self.tokenizer))
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def save_with(self, dense: Dense, folder: Path) -> str:
        """Save the encoder and a Dense module, with a Normalize module after it if the model normalizes."""
        assert self.checkpoint is not None
        module, tokenizer = load_trainable(self.checkpoint, dict(FOR_ADAPTER)), load_tokenizer(self.checkpoint)
        write_native(module, tokenizer, folder)
        add_dense(folder, dense, self.embedding.normalize)
        return "ours" if architecture_of(self.config).model._auto_class else "plain"

    # Training

    def supports(self, term: Term) -> str | None:
        row = architecture_of(self.config)
        if term.reads_maps and row.attention is None:
            return MAPS
        return HEAD if term.lm_head and row.lm_head is None else None

    def defaults(self, args: Any) -> dict[str, Any]:
        return {}

    def check(self, args: Any) -> None:
        check_architecture(self.config, args, self.supports)

    def trainable(self, args: Any, tokenizer: PreTrainedTokenizerBase | None = None) -> "NativeModel":
        module, checkpoint, before = self.module, self.checkpoint, None
        if checkpoint is None:
            tokenizer, before = (
                pad_right(tokenizer or self.tokenizer),
                copy.deepcopy(module) if args.measure_drift else None,
            )
        else:
            tokenizer = pad_right(tokenizer) if tokenizer else load_tokenizer(checkpoint)
            set_seed(args.seed)  # for newly initialized heads
            module = load_trainable(checkpoint, args.model_settings, args.embedding)
            lower_case(tokenizer, embedding_of(module))
        refuse_other_heads(module, {name: args.model_settings[name] for name in ("projection_head", "lm_head")})
        length = longest_read(module, tokenizer, args.embedding)
        return replace(self, module=module, config=module.config, tokenizer=tokenizer, length=length, before=before)

    def prepare(self, args: Any, map_layers: Sequence[int], copies: int, dropout_only: bool) -> None:
        module = self.module
        module.chunk_size = args.gradient_cache_chunk_size
        forward = packed_forward if parts_in_training(args) == 1 else packed_forward_in_parts
        module.packed_forward = forward if args.padding_free else None
        # None: a masked copy has the encoder's own dropout.
        rates = args.view_dropout and [*args.view_dropout, None][:copies]
        encoder = cast(PreTrainedModel, module.base_model)
        prepare_encoder(encoder, architecture_of(module.config).attentions(encoder), rates, map_layers)
        if dropout_only:
            refuse_without_dropout(encoder)

    def packs(self, args: Any) -> bool:
        return args.device.type == "cpu" and unpackable(args, self.config) is None

    def embed(
        self,
        module: nn.Module,
        sentences: Sequence[str],
        batch_size: int,
        progress: Callable[[int], object] | None = None,
    ) -> np.ndarray:
        embedding = embedding_of(module).in_training
        return embed(module, self.tokenizer, sentences, batch_size, embedding, progress)

    def guide(self, args: Any) -> AbstractContextManager["NativeModel"]:
        bf16 = args.mixed_precision == "bf16"
        if self.checkpoint is None:
            own = replace(self, poolers=(args.pooler,), length=args.max_seq_length, prompt=args.prompt, bf16=bf16)
            own.module.to(args.device)
            return nullcontext(own)
        how = LoadOptions((args.pooler,), args.max_seq_length, device=str(args.device), bf16=bf16, prompt=args.prompt)
        return nullcontext(self.load(how))

    def original(self, args: Any) -> Encode:
        embedding, before = embedding_of(self.module).in_training, self.before
        if self.checkpoint is not None:
            # The commit, if it is known: a branch may have moved.
            checkpoint = Checkpoint(self.name, self.checkpoint.commit or self.checkpoint.revision)
            with without_warnings():  # they were printed before training
                before = load_saved(checkpoint)
        to_device(before, str(args.device))
        return lambda texts: embed(before, self.tokenizer, texts, args.per_device_eval_batch_size, embedding)

    def record_entry(self, hub_id: str | None) -> dict:
        return self.source(hub_id) | {
            "weights_sha256": self.starting_sha256(),
            "settings_sha256": settings_sha256(self.module.config, self.tokenizer),
        }

    def starting_sha256(self) -> str:
        """Return `weights_sha256` of the model that `load` returns, computed from the module before the first step.

        Weight names are those of the class that `load` uses. A projection head counts if the checkpoint has one. The
        checkpoint is loaded again only if training leaves out its head.
        """
        assert self.checkpoint is not None  # a model in memory has no entry
        module, settings = self.module, saved_settings(load_config(self.checkpoint), self.checkpoint)
        if not settings:
            return weights_sha256(module.base_model.state_dict())
        has_head = settings["projection_head"] == "mlp"
        reload = has_head and module.config.informin["projection_head"] != "mlp"
        weights = (load_saved(self.checkpoint) if reload else module).state_dict()
        prefixes = (f"{module.base_model_prefix}.", *(["mlp."] if has_head else []))
        return weights_sha256({name: x for name, x in weights.items() if name.startswith(prefixes)})

    def save(self, folder: Path, usual: Callable[[], None], whole: Callable[[], nn.Module] | None = None) -> None:
        usual()

    def load_weights(self, folder: str, module: nn.Module, usual: Callable[[], None]) -> None:
        usual()

    def write(self, folder: Path, dtype: torch.dtype, weights: bool = True, merge: bool = True) -> None:
        write_native(self.module, self.tokenizer, folder, dtype, weights)
