"""A sentence embedding model: the only model class that the rest of the library uses. `open_model` opens one."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from informin.errors import UsageError
from informin.files import last_name
from informin.models.checkpoint import Checkpoint
from informin.models.dense import Dense
from informin.models.embedding_config import EmbeddingConfig, refuse_long_prompt
from informin.models.prompts import side_prompts
from informin.models.settings import COSINE
from informin.objectives.terms import Term

Encode = Callable[[Sequence[str]], np.ndarray]
Own = TypeVar("Own", bound="Model")


@dataclass(frozen=True)
class LoadOptions:
    """How a model embeds texts: the arguments of `informin.models.open_model.load_model` with these names."""

    poolers: Sequence[str] = ("auto",)
    length: int | None = None
    batch_size: int = 64
    device: str | None = None
    bf16: bool = False
    prompt: str | None = None


@dataclass
class Model(ABC):
    """A model of sentence embeddings: its files, then its weights, for embedding texts or in training.

    It has two implementations: `NativeModel` for BERT-like encoders, and `StModel` for any other model, as a
    SentenceTransformer. `open_model` decides which, and returns a model without weights. `load` returns it with weights
    to embed texts, `trainable` returns it with weights for a trainer.

    Attributes:
        name: Hub id or folder.
        checkpoint: Its files; None for a model that was created in memory.
        config: Configuration of the encoder; that of a SentenceTransformer has the `hidden_size` of its embeddings.
        embedding: How it computes embeddings, by its files.
        module: The PyTorch module; None without weights.
        tokenizer: Its tokenizer; not a tokenizer of transformers for static embeddings.
        poolers: Names of the poolings, from `encode.POOLERS`, never `auto`.
        length: Maximum number of tokens per text.
        normalized: Scale embeddings to unit length, if the model's settings say so.
        batch_size: Texts per forward pass.
        bf16: Use bfloat16 autocast.
        prompt: Text before every text.
        prompt_given: Whether it was given at loading. It then also replaces stored prompts for queries and documents.
        truncated: Texts that were truncated so far.
        prompts: The model's prompts by name.
        similarity: Function of sentence-transformers that compares its embeddings; cosine for another pooling than
            the model's own.
        task: With a Router, the route of the texts: `query` or `document`; None for its default route.
        trusted: Whether code in the model's repository may run; never for a native encoder.
        before: In training, a copy from before it of a model in memory, for the drift report.
    """

    name: str
    checkpoint: Checkpoint | None
    config: PreTrainedConfig
    embedding: EmbeddingConfig
    module: Any = None
    tokenizer: Any = None
    poolers: tuple[str, ...] = ()
    length: int = 0
    normalized: bool = False
    batch_size: int = 64
    bf16: bool = False
    prompt: str = ""
    prompt_given: bool = False
    truncated: set[str] = field(default_factory=set)
    prompts: Mapping[str, str] = field(default_factory=dict)
    similarity: str = COSINE
    task: str | None = None
    before: Any = None
    trusted: bool = False

    backend: ClassVar[str]  # value of the option `backend`

    # Embedding texts

    @abstractmethod
    def load(self: Own, how: LoadOptions) -> Own:
        """Return the model with float32 weights, to embed texts."""

    @abstractmethod
    def __call__(
        self, sentences: Sequence[str], progress: Callable[[int], object] | None = None
    ) -> dict[str, np.ndarray]:
        """Return the embeddings (N, d) float32 of N texts for each pooling.

        Args:
            sentences: N texts.
            progress: Called after each batch with its number of texts.
        """

    def encode(self, texts: Sequence[str], progress: Callable[[int], object] | None = None) -> np.ndarray:
        """Return the embeddings (N, d) float32 of N texts, of a model with one pooling; see `__call__`."""
        (pooler,) = self.poolers
        return self(texts, progress)[pooler]

    @property
    @abstractmethod
    def dimensions(self) -> int:
        """Dimensions of an embedding."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Device of the weights."""

    @property
    def embeds_as_stored(self) -> bool:
        """Whether it embeds with the pooling and normalization of its files."""
        return True

    @property
    def routed(self) -> bool:
        """Whether queries and documents go through different modules."""
        return False

    @property
    def side_prompts(self) -> tuple[str, str]:
        """The prompts for queries and for documents: those the model stores, or `prompt` for both if it was given."""
        return side_prompts({} if self.prompt_given else self.prompts, self.prompt)

    def with_prompt(self: Own, prompt: str) -> Own:
        """Return the same model with another prompt.

        Raises:
            UsageError: The prompt leaves no room for a text.
        """
        if isinstance(self.tokenizer, PreTrainedTokenizerBase):
            refuse_long_prompt(prompt, self.tokenizer, "max_length", self.length)
        return replace(self, prompt=prompt)

    def for_side(self: Own, side: str, prompt: str) -> Own:
        """Return the same model for one side of a search, with its prompt.

        Args:
            side: `query` or `document`.
            prompt: Text before every text.

        Raises:
            UsageError: The prompt leaves no room for a text, or a model with routes has none for the side.
        """
        return self.with_prompt(prompt)

    def for_queries(self: Own) -> Own:
        """Return the model as it embeds queries: with the query prompt, if texts have the prompt for documents."""
        query, document = self.side_prompts
        prompt = query if self.prompt == document else self.prompt
        return self.for_side("query", prompt) if self.routed or prompt != self.prompt else self

    def note_truncated(self, sentences: Sequence[str]) -> None:
        """Add the texts that are too long to `truncated`."""
        # Only long texts need counting: a token has at least one byte (unless a tokenizer expands ligatures), and two
        # tokens are special.
        long = [s for s in sentences if len((self.prompt + s).encode()) > self.length - 2]
        tokens = self.tokenizer([self.prompt + s for s in long], verbose=False)["input_ids"] if long else []
        self.truncated.update(s for s, ids in zip(long, tokens) if len(ids) > self.length)

    @abstractmethod
    def weights_sha256(self) -> str:
        """Return the SHA-256 of the weights."""

    @abstractmethod
    def sha256(self) -> str:
        """Return the SHA-256 of what determines an embedding: architecture, weights, settings, tokenizer, options.

        The batch size and the device are left out, since they only affect rounding.
        """

    @abstractmethod
    def save_with(self, dense: Dense, folder: Path) -> str:
        """Save the model with an affine map of its unit-length embedding into an existing folder.

        Returns:
            What AutoModel loads: `ours` or `plain` (a native encoder), `remote` (code in the folder), or `none`.
        """

    # Training. `args` are `InforMinTrainingArguments`.

    @abstractmethod
    def supports(self, term: Term) -> str | None:
        """Return why a model of this backend cannot be trained with a term; None if it can."""

    @abstractmethod
    def defaults(self, args: Any) -> dict[str, Any]:
        """Return values of options that are None, where they depend on the backend."""

    @abstractmethod
    def packs(self, args: Any) -> bool:
        """Return whether batches are packed without padding by default."""

    @abstractmethod
    def check(self, args: Any) -> None:
        """Raise UsageError for options that the model does not support."""

    @abstractmethod
    def trainable(self: Own, args: Any, tokenizer: PreTrainedTokenizerBase | None = None) -> Own:
        """Return the model with float32 weights for a trainer. Its heads are newly initialized.

        Args:
            args: The arguments after `resolve`.
            tokenizer: Tokenizer; None for the model's own.

        Raises:
            UsageError: It cannot be loaded or trained.
        """

    @abstractmethod
    def prepare(self, args: Any, map_layers: Sequence[int], copies: int, dropout_only: bool) -> None:
        """Prepare the module for the views and terms: its forward pass, its dropout rates, its attention maps.

        Args:
            args: Arguments of the run.
            map_layers: Layers whose attention maps the terms need.
            copies: Copies of each sentence in a batch.
            dropout_only: Whether the compared views of a sentence differ only by dropout.

        Raises:
            UsageError: The views of a sentence would be identical, or the encoder's attention cannot be replaced.
        """

    @abstractmethod
    def embed(
        self,
        module: nn.Module,
        sentences: Sequence[str],
        batch_size: int,
        progress: Callable[[int], object] | None = None,
    ) -> np.ndarray:
        """Return the embeddings (N, d) float32 of N sentences in training, with the training prompt.

        Args:
            module: The module with whole weights, which is a copy if FSDP shards them.
            sentences: N sentences.
            batch_size: Sentences per forward pass.
            progress: Called after each batch with its number of sentences.
        """

    @abstractmethod
    def guide(self: Own, args: Any) -> AbstractContextManager[Own]:
        """Return the model before training as its own guide, on the device and in the precision of training."""

    @abstractmethod
    def original(self, args: Any) -> Encode:
        """Return an encode function of the model before training, with the pooling and prompt of `embed`.

        A model in memory keeps a copy of itself before training if `args.measure_drift` is set.
        """

    @abstractmethod
    def record_entry(self, hub_id: str | None) -> dict:
        """Return `base_model` of training.json, before the first step; `hub_id` is that of a folder."""

    @property
    def record_entries(self) -> dict:
        """The entries of training.json that only this backend has."""
        return {}

    @abstractmethod
    def save(self, folder: Path, usual: Callable[[], None], whole: Callable[[], nn.Module] | None = None) -> None:
        """Write a checkpoint of a run.

        Args:
            folder: Folder to write.
            usual: Saves it as Trainer does.
            whole: Returns the module with whole weights; None as a trial, without weights.
        """

    @abstractmethod
    def load_weights(self, folder: str, module: nn.Module, usual: Callable[[], None]) -> None:
        """Load the weights of a checkpoint into the module in training; `usual` loads them as Trainer does."""

    @abstractmethod
    def write(self, folder: Path, dtype: torch.dtype, weights: bool = True, merge: bool = True) -> None:
        """Write the files that people load into an empty folder; see `informin.publishing.export.export_folder`."""

    def source(self, hub_id: str | None) -> dict:
        """Return where the model comes from, for `record_entry`."""
        assert self.checkpoint is not None  # a model in memory has no entry
        folder = self.checkpoint.is_folder
        return {
            "name": last_name(self.name) if folder else self.name,
            "hub_id": hub_id or (None if folder else self.name),
            "revision": self.checkpoint.commit,
        }


def needs_native(name: str, what: str, without: str | None = None) -> UsageError:
    """Return the error for an option that a SentenceTransformer does not support, and how to train without it."""
    return UsageError(
        f"requires a native encoder, because it uses {what}; this model is trained as a SentenceTransformer",
        option=name,
        fix=f"{without or f'Leave `{name}` out'}, or use a BERT-like encoder.",
    )
