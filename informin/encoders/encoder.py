"""Any checkpoint, ready to embed sentences: ours, of plain transformers, or of sentence-transformers."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from informin.encoders.architectures import InforMinModel
from informin.encoders.dense import Dense, load_dense
from informin.encoders.encode import POOLERS, encode, max_length
from informin.encoders.loading import (
    BERT_POOLER,
    forget_truncation,
    load_config,
    load_saved,
    load_tokenizer,
    saved_settings,
)
from informin.encoders.usage import Usage, lower_case, reading_length, refuse_long_prompt, usage_of
from informin.errors import UsageError, error_line

# Of a configuration: what no embedding depends on.
SILENT_SETTINGS = ("_name_or_path", "transformers_version", "dtype", "architectures", "auto_map", "informin")


@dataclass
class Encoder:
    """Embeds sentences by one or more poolers, and knows what it was made from.

    Attributes:
        name: the Hub id or folder it was loaded from.
        poolers: of `encode.POOLERS`, resolved: never `auto`.
        length: sentences are cut at this many tokens.
        normalized: embeddings are scaled to length 1, as the checkpoint says of itself.
        prompt: is put before every sentence.
        bf16: computes under bfloat16 autocast.
        truncated: the sentences met so far that were cut.
        dense: Linear adapter, applied to embeddings of unit length; None for none.
    """

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    poolers: tuple[str, ...]
    length: int
    normalized: bool = False
    batch_size: int = 64
    bf16: bool = False
    prompt: str = ""
    truncated: set[str] = field(default_factory=set)
    dense: Dense | None = None

    @property
    def dimensions(self) -> int:
        return self.model.config.hidden_size

    @property
    def device(self) -> torch.device:
        return self.model.device

    def __call__(self, sentences: Sequence[str], progress: Callable[[int], object] | None = None):
        """(N, d) float32 of N sentences for each pooler, by name."""
        # A token is a byte at least (not so where a tokenizer expands ligatures) and two are special, so that short
        # sentences need no counting.
        long = [s for s in sentences if len((self.prompt + s).encode()) > self.length - 2]
        tokens = self.tokenizer([self.prompt + s for s in long], verbose=False)["input_ids"] if long else []
        self.truncated.update(s for s, ids in zip(long, tokens) if len(ids) > self.length)
        with torch.autocast(self.device.type, dtype=torch.bfloat16) if self.bf16 else nullcontext():
            unit = self.normalized or self.dense is not None
            how = (self.batch_size, self.poolers, self.length, progress, self.prompt, unit)
            embeddings = encode(self.model, self.tokenizer, sentences, *how)
        if self.dense is not None:
            embeddings = {pooler: self.dense(x, self.normalized) for pooler, x in embeddings.items()}
        return embeddings

    def weights_sha256(self) -> str:
        """Tells checkpoints apart, whatever their folder; see `weights_sha256`."""
        digest = weights_sha256(self.model.state_dict())
        return digest if self.dense is None else hashlib.sha256((digest + self.dense.sha256()).encode()).hexdigest()

    def sha256(self) -> str:
        """SHA-256 of everything that determines an embedding: architecture, weights, configuration, tokenizer, options.

        Left out are the batch size and the device, which change the rounding alone.
        """
        forget_truncation(self.tokenizer)  # that of the last call is no setting
        tokenizer = [getattr(self.tokenizer, name) for name in ("padding_side", "truncation_side", "pad_token_id")]
        tokenizer += [type(self.tokenizer).__name__, self.tokenizer.split_special_tokens]
        options = [self.poolers, self.prompt, self.length, self.normalized, self.bf16]
        parts = [type(self.model).__name__, self.weights_sha256(), *tokenizer, *options]
        parts.append(settings_sha256(self.model.config, self.tokenizer))
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def weights_sha256(weights: Mapping[str, Tensor]) -> str:
    """SHA-256 over the names and float32 values of the weights.

    BERT's own pooler is left out: no embedding reads it, and where a checkpoint has none it is random.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        if not name.startswith(BERT_POOLER):
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(tensor.detach().cpu().float().numpy()).data)
    return digest.hexdigest()


def settings_sha256(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> str:
    """SHA-256 over what a configuration and a tokenizer say, without what no embedding depends on."""
    settings = config.to_dict() | (getattr(config, "informin", None) or {}).get("dropouts", {})
    settings = {name: value for name, value in settings.items() if name not in SILENT_SETTINGS}
    text = json.dumps(settings, sort_keys=True, default=str) + tokenizer.backend_tokenizer.to_str()
    return hashlib.sha256(text.encode()).hexdigest()


def starting_sha256(model: InforMinModel, model_name: str, revision: str | None = None) -> str:
    """What `load_encoder(model_name).weights_sha256()` gives, from what `load_model` gave, before its first step.

    The names are those of the class that `load_encoder` takes, and a projection head counts where the checkpoint has
    one: a checkpoint is loaded again only if training leaves its head out.
    """
    config = load_config(model_name, revision)
    settings = saved_settings(config, model_name, revision)
    if not settings:
        return weights_sha256(model.base_model.state_dict())
    has_head = settings["projection_head"] == "mlp"
    if has_head and model.config.informin["projection_head"] != "mlp":
        model = load_saved(config, model_name, revision)
    prefixes = (f"{model.base_model_prefix}.", *(["mlp."] if has_head else []))
    return weights_sha256({name: x for name, x in model.state_dict().items() if name.startswith(prefixes)})


def load_encoder(
    model_name: str,
    poolers: Sequence[str] = ("auto",),
    length: int | None = None,
    batch_size: int = 64,
    device: str | None = None,
    bf16: bool = False,
    revision: str | None = None,
    prompt: str | None = None,
) -> Encoder:
    """Loads any BERT-like checkpoint in float32, from a folder or the Hub.

    Args:
        poolers: names of `encode.POOLERS`, or `auto` alone for what the checkpoint says of itself.
        length: cut sentences at this many tokens; None for the checkpoint's own maximum.
        device: None for a GPU where there is one.
        prompt: what is put before every sentence; None for what the checkpoint says of itself, which may be nothing.

    Raises:
        UsageError: no such model, no tokenizer, a pooler that the model cannot do, `auto` where it says nothing, or a
            prompt that leaves no room for a sentence.
    """
    if batch_size < 1:
        raise UsageError(f"`batch_size` {batch_size}: needed 1 or more.")
    if "auto" in poolers and len(poolers) > 1:
        raise UsageError(f"`pooler` {' '.join(poolers)}: auto is one of the others already. Give auto, or names.")
    config = load_config(model_name, revision, any_encoder=True)
    usage = usage_of(model_name, config, revision)
    model = load_saved(config, model_name, revision)
    tokenizer = load_tokenizer(model_name, config, revision)
    lower_case(tokenizer, usage)
    resolved = tuple(dict.fromkeys(_resolve(pooler, model_name, model, usage) for pooler in poolers))
    most = max_length(config, tokenizer)
    length = reading_length(most, usage) if length is None else length
    if not 3 <= length <= most:
        raise UsageError(f"`max_length` {length}: {model_name} reads at least 3 and at most {most} tokens.")
    prompt = usage.prompt if prompt is None else prompt
    refuse_long_prompt(prompt, tokenizer, "max_length", length)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        model.eval().to(device)
    except (RuntimeError, AssertionError) as error:  # a torch without CUDA asserts
        raise UsageError(f"`device` {device} cannot be used: {error_line(error)}") from None
    normalized = "auto" in poolers and usage.normalize
    dense = None
    if "auto" in poolers and usage.adapter:
        dense = load_dense(model_name, usage.adapter, config.hidden_size, revision)
    return Encoder(model_name, model, tokenizer, resolved, length, normalized, batch_size, bf16, prompt, dense=dense)


def _resolve(pooler: str, model_name: str, model: PreTrainedModel, usage: Usage) -> str:
    if pooler == "auto":
        if usage.pooling is None:
            raise UsageError(
                f"`pooler` auto: {model_name} does not say how its sentence embedding is read "
                f"({usage.problem or 'no sentence-transformers files'}). Give one of: `pooler` {', '.join(POOLERS)}."
            )
        return usage.pooling
    if pooler not in POOLERS:
        raise UsageError(f"`pooler` {pooler}: needed one of: auto, {', '.join(POOLERS)}.")
    has_head = isinstance(model, InforMinModel) and model.config.informin["projection_head"] == "mlp"
    if pooler == "mlp" and not has_head:
        raise UsageError(
            f"`pooler` mlp: {model_name} has no projection head; it is in checkpoints that this project trained with "
            "`projection_head` mlp."
        )
    return pooler
