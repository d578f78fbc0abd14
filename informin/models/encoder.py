"""Load any checkpoint as an encoder of sentences: this project's, plain transformers, or sentence-transformers."""

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from informin.errors import UsageError, error_line
from informin.models.architectures import InforMinModel
from informin.models.checkpoint import Checkpoint
from informin.models.dense import Dense, load_dense
from informin.models.embedding_config import EmbeddingConfig, lower_case, refuse_long_prompt
from informin.models.encode import POOLERS, encode, max_length
from informin.models.files import NotNativeError
from informin.models.loading import BERT_POOLER, load_config, load_saved, load_tokenizer, saved_settings
from informin.models.model_config import ENCODER
from informin.models.prompts import side_prompts
from informin.models.sentence_transformers_files import load_embedding_config
from informin.models.settings import COSINE
from informin.models.texts import as_texts
from informin.models.tokenizer import forget_truncation

logger = logging.getLogger(__name__)

BACKENDS = ("auto", "native", "st")
# Settings of a configuration that do not affect embeddings.
SILENT_SETTINGS = ("_name_or_path", "transformers_version", "dtype", "architectures", "auto_map", "informin")


class UnknownPoolingError(NotNativeError):
    """The files of a model describe no pooling that is supported."""


@dataclass
class Encoder:
    """Computes embeddings of sentences with one or more poolings.

    `informin.models.st_encoder.StEncoder` has the same interface for models that are no native architecture.

    Attributes:
        name: Hub id or folder that it was loaded from.
        model: The encoder.
        tokenizer: Its tokenizer.
        poolers: Names from `encode.POOLERS`, never `auto`.
        length: Maximum number of tokens per sentence.
        normalized: Scale embeddings to unit length, if the checkpoint's settings say so.
        batch_size: Sentences per forward pass.
        bf16: Use bfloat16 autocast.
        prompt: Text before every sentence.
        truncated: Sentences that were truncated so far.
        dense: Linear adapter, applied to embeddings of unit length; None for none.
        prompts: The checkpoint's prompts by name.
        similarity: Function of sentence-transformers that compares its embeddings; cosine for another pooling than
            the checkpoint's own.
        task: With a Router, the route of the texts: `query` or `document`; None for its default route.
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
    prompts: Mapping[str, str] = field(default_factory=dict)
    similarity: str = COSINE
    task: str | None = None

    @property
    def routed(self) -> bool:
        """Whether queries and documents go through different modules."""
        return False

    @property
    def dimensions(self) -> int:
        return self.model.config.hidden_size

    @property
    def device(self) -> torch.device:
        return self.model.device

    def __call__(
        self, sentences: Sequence[str], progress: Callable[[int], object] | None = None
    ) -> dict[str, np.ndarray]:
        """Return the embeddings (N, d) float32 of N sentences for each pooling.

        Args:
            sentences: N sentences.
            progress: Called after each batch with its number of sentences.
        """
        sentences = as_texts(sentences)
        self.note_truncated(sentences)
        with torch.autocast(self.device.type, dtype=torch.bfloat16) if self.bf16 else nullcontext():
            unit = self.normalized or self.dense is not None
            options = (self.batch_size, self.poolers, self.length, progress, self.prompt, unit)
            embeddings = encode(self.model, self.tokenizer, sentences, *options)
        if self.dense is not None:
            embeddings = {pooler: self.dense(x, self.normalized) for pooler, x in embeddings.items()}
        return embeddings

    @property
    def side_prompts(self) -> tuple[str, str]:
        """The prompts for queries and for documents: those the checkpoint stores, or else `prompt` for both."""
        return side_prompts(self.prompts, self.prompt)

    def with_prompt(self, prompt: str) -> "Encoder":
        """Return the same model with another prompt.

        Raises:
            UsageError: The prompt leaves no room for a sentence.
        """
        if isinstance(self.tokenizer, PreTrainedTokenizerBase):
            refuse_long_prompt(prompt, self.tokenizer, "max_length", self.length)
        return replace(self, prompt=prompt)

    def for_side(self, side: str, prompt: str) -> "Encoder":
        """Return the same model for one side of a search, with its prompt.

        Args:
            side: `query` or `document`.
            prompt: Text before every text.

        Raises:
            UsageError: The prompt leaves no room for a text, or a model with routes has none for the side.
        """
        return self.with_prompt(prompt)

    def note_truncated(self, sentences: Sequence[str]) -> None:
        """Add the sentences that are too long to `truncated`."""
        # Only long sentences need counting: a token has at least one byte (unless a tokenizer expands ligatures), and
        # two tokens are special.
        long = [s for s in sentences if len((self.prompt + s).encode()) > self.length - 2]
        tokens = self.tokenizer([self.prompt + s for s in long], verbose=False)["input_ids"] if long else []
        self.truncated.update(s for s, ids in zip(long, tokens) if len(ids) > self.length)

    def weights_sha256(self) -> str:
        """Return the SHA-256 of the weights; see the function `weights_sha256`."""
        digest = weights_sha256(self.model.state_dict())
        return digest if self.dense is None else hashlib.sha256((digest + self.dense.sha256()).encode()).hexdigest()

    def sha256(self) -> str:
        """Return the SHA-256 of what determines an embedding: architecture, weights, settings, tokenizer, options.

        The batch size and the device are left out, since they only affect rounding.
        """
        forget_truncation(self.tokenizer)  # not a setting
        tokenizer = [getattr(self.tokenizer, name) for name in ("padding_side", "truncation_side", "pad_token_id")]
        tokenizer += [type(self.tokenizer).__name__, self.tokenizer.split_special_tokens]
        options = [self.poolers, self.prompt, self.length, self.normalized, self.bf16]
        parts = [type(self.model).__name__, self.weights_sha256(), *tokenizer, *options]
        parts.append(settings_sha256(self.model.config, self.tokenizer))
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def weights_sha256(weights: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of the names and float32 values of the weights.

    BERT's own pooler is left out: no embedding depends on it, and it is random if a checkpoint has none.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        if not name.startswith(BERT_POOLER):
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(tensor.detach().cpu().float().numpy()).data)
    return digest.hexdigest()


def settings_sha256(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the SHA-256 of the settings of a configuration and a tokenizer that affect embeddings."""
    settings = config.to_dict() | (getattr(config, "informin", None) or {}).get("dropouts", {})
    settings = {name: value for name, value in settings.items() if name not in SILENT_SETTINGS}
    text = json.dumps(settings, sort_keys=True, default=str) + tokenizer.backend_tokenizer.to_str()
    return hashlib.sha256(text.encode()).hexdigest()


def starting_sha256(model: InforMinModel, checkpoint: Checkpoint) -> str:
    """Return `load_encoder(checkpoint).weights_sha256()`, computed from a model that `load_model` loaded.

    Weight names are those of the class that `load_encoder` uses. A projection head counts if the checkpoint has one.
    The checkpoint is loaded again only if training leaves out its head.

    Args:
        model: Loaded model before its first training step.
        checkpoint: Files that it was loaded from.
    """
    config = load_config(checkpoint)
    settings = saved_settings(config, checkpoint)
    if not settings:
        return weights_sha256(model.base_model.state_dict())
    has_head = settings["projection_head"] == "mlp"
    reload = has_head and model.config.informin["projection_head"] != "mlp"
    weights = (load_saved(checkpoint) if reload else model).state_dict()
    prefixes = (f"{model.base_model_prefix}.", *(["mlp."] if has_head else []))
    return weights_sha256({name: x for name, x in weights.items() if name.startswith(prefixes)})


def load_encoder(
    model_name: str | Checkpoint,
    poolers: Sequence[str] = ("auto",),
    length: int | None = None,
    batch_size: int = 64,
    device: str | None = None,
    bf16: bool = False,
    revision: str | None = None,
    prompt: str | None = None,
    backend: str = "auto",
    trust_remote_code: bool = False,
    code_revision: str | None = None,
) -> Encoder:
    """Load an embedding model in float32 from a folder or the Hub.

    BERT-like encoders are native. Any other model that sentence-transformers can load becomes an `StEncoder`.

    Args:
        model_name: Hub id or folder, or its files if they were read before.
        poolers: Names from `encode.POOLERS`, or only `auto` for the pooling stored in the checkpoint. An `StEncoder`
            has its own pooling.
        length: Maximum number of tokens per sentence; None for the checkpoint's own maximum.
        batch_size: Sentences per forward pass.
        device: Device to run on; None for a GPU if there is one.
        bf16: Use bfloat16 autocast.
        revision: Branch, tag or commit on the Hub.
        prompt: Text before every sentence; None for the checkpoint's default prompt, if it has one.
        backend: `native`, `st` for an `StEncoder`, or `auto`: native if possible, else an `StEncoder` if the model has
            a modules.json.
        trust_remote_code: Allow an `StEncoder` to run code in the model's repository.
        code_revision: Branch, tag or commit of that code on the Hub; None for `revision`.

    Raises:
        UsageError: The model or its tokenizer cannot be loaded, it does not support the pooling, `auto` is given and
            the checkpoint stores no pooling, the prompt leaves no room for a sentence, or the model needs
            sentence-transformers or its own code.
    """
    if backend not in BACKENDS:
        raise UsageError(f"is {backend}", option="backend", needed=f"one of: {', '.join(BACKENDS)}")
    if batch_size < 1:
        raise UsageError(f"is {batch_size}", option="batch_size", needed="1 or more")
    if "auto" in poolers and len(poolers) > 1:
        raise UsageError(f"is {' '.join(poolers)}", option="pooler", needed="auto alone, or names without auto")
    checkpoint = Checkpoint.of(model_name, revision)
    how = (checkpoint, poolers, length, batch_size, device, bf16, prompt)
    reason = None
    if backend != "st":
        try:
            return _load_native(*how)
        except NotNativeError as error:
            if backend == "native":
                raise
            if not checkpoint.has_modules:
                raise _with_hint(error) from None
            reason = error
    from informin.models.st_encoder import load_st_encoder  # it imports this module

    return load_st_encoder(*how, trust_remote_code, code_revision, reason)


def _with_hint(error: NotNativeError) -> NotNativeError:
    """Return the error for a model without modules.json, with another way to load an unknown architecture."""
    if error.needed != ENCODER or error.fix:
        return error
    fix = "To load it with the default pooling of sentence-transformers, set `backend` to st."
    return NotNativeError(error.found, option=error.option, needed=ENCODER, fix=fix)


def _load_native(
    checkpoint: Checkpoint,
    poolers: Sequence[str],
    length: int | None,
    batch_size: int,
    device: str | None,
    bf16: bool,
    prompt: str | None,
) -> Encoder:
    """Load a BERT-like encoder; see `load_encoder`.

    Raises:
        NotNativeError: It is another architecture, or has modules or a pooling that are not supported.
    """
    model_name = checkpoint.name
    config = load_config(checkpoint, any_encoder=True)
    embedding = load_embedding_config(checkpoint, config)
    if "auto" in poolers:
        _require_pooling(model_name, embedding)
    model = load_saved(checkpoint)
    tokenizer = load_tokenizer(checkpoint)
    lower_case(tokenizer, embedding)
    resolved = tuple(dict.fromkeys(_resolve(pooler, model_name, model, embedding) for pooler in poolers))
    most = max_length(config, tokenizer)
    length = embedding.max_length(most) if length is None else length
    if not 3 <= length <= most:
        raise UsageError(f"is {length}", option="max_length", needed=f"3 to {most} tokens for {model_name}")
    prompt = embedding.prompt if prompt is None else prompt
    refuse_long_prompt(prompt, tokenizer, "max_length", length)
    to_device(model, device)
    normalized = "auto" in poolers and embedding.normalize
    dense = None
    if "auto" in poolers and embedding.adapter:
        dense = load_dense(checkpoint, embedding.adapter, config.hidden_size)
    options = (resolved, length, normalized, batch_size, bf16, prompt)
    prompts = embedding.files.get("prompts") or {}
    similarity = embedding.files.get("similarity_fn_name") or COSINE
    if "auto" not in poolers and similarity != COSINE:
        logger.info(f"{model_name} declares the similarity {similarity} for its own pooling. Others use the cosine.")
        similarity = COSINE
    similarity = similarity_of(similarity, normalized)
    return Encoder(model_name, model, tokenizer, *options, dense=dense, prompts=prompts, similarity=similarity)


def similarity_of(declared: str, normalized: bool) -> str:
    """Return the similarity function of embeddings: for unit vectors, the dot product is the cosine."""
    return COSINE if normalized and declared == "dot" else declared


def to_device(model: nn.Module, device: str | None) -> None:
    """Move a model to a device for inference; None for a GPU if there is one."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        model.eval().to(device)
    except (RuntimeError, AssertionError) as error:  # PyTorch without CUDA raises AssertionError
        raise UsageError(f"{device} cannot be used: {error_line(error)}", option="device") from None


def _require_pooling(model_name: str, embedding: EmbeddingConfig) -> None:
    if embedding.pooling is None:
        problem = embedding.problem or "it has no sentence-transformers files"
        raise UnknownPoolingError(
            f"is auto, but the pooling of {model_name} is unknown: {problem}",
            option="pooler",
            needed=f"one of: {', '.join(POOLERS)}",
        )


def _resolve(pooler: str, model_name: str, model: PreTrainedModel, embedding: EmbeddingConfig) -> str:
    """Return the pooling that a name means for a model."""
    if pooler == "auto":
        assert embedding.pooling is not None  # `_require_pooling`
        return embedding.pooling
    if pooler not in POOLERS:
        raise UsageError(f"is {pooler}", option="pooler", needed=f"one of: auto, {', '.join(POOLERS)}")
    has_head = isinstance(model, InforMinModel) and model.config.informin["projection_head"] == "mlp"
    if pooler == "mlp" and not has_head:
        raise UsageError(
            f"is mlp, but {model_name} has no projection head",
            option="pooler",
            needed="a checkpoint that this project trained with `projection_head` mlp",
        )
    return pooler
