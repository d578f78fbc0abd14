"""How an encoder turns a sentence into an embedding: pooling, prompt, maximum length, normalization, linear adapter.

`informin.models.sentence_transformers_files.load_embedding_config` loads the configuration of a checkpoint. Training
resolves it once, in `InforMinTrainingArguments.resolve`, and stores it in `config.informin`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tokenizers.normalizers import Lowercase, Sequence
from transformers import PreTrainedTokenizerBase

from informin.errors import UsageError, counted
from modeling_informin import POOLINGS

# Settings of sentence-transformers that do not depend on the pooling.
TEXT_SETTINGS = ("prompts", "default_prompt_name", "similarity_fn_name", "do_lower_case")


@dataclass(frozen=True)
class EmbeddingConfig:
    """How the embedding of a sentence is computed from the encoder's output.

    Attributes:
        pooling: One of `POOLINGS`; None if it is unknown.
        normalize: Scale embeddings to unit length.
        prompt: Text before every sentence.
        files: Other settings from the files of sentence-transformers, written again on export: `max_seq_length`,
            `do_lower_case`, `prompts`, `default_prompt_name`, `similarity_fn_name`.
        problem: Why the pooling is unknown; None if no file describes it.
        training_prompt: Prompt used in training only; None if training uses `prompt`.
        adapter: Folder of the Dense module that maps the unit-length embedding; None for none.
    """

    pooling: str | None = None
    normalize: bool = False
    prompt: str = ""
    files: dict = field(default_factory=dict)
    problem: str | None = None
    training_prompt: str | None = None
    adapter: str | None = None

    @classmethod
    def from_settings(cls, settings: Mapping | None) -> "EmbeddingConfig | None":
        """Return the configuration stored in `config.informin`, the inverse of `settings`; None if it has none."""
        if not settings or not settings.get("pooling"):
            return None
        names = ("pooling", "normalize", "prompt", "training_prompt")
        own = {name: settings[name] for name in names if name in settings}
        return cls(**own, files=settings.get("sentence_transformers", {}))

    @property
    def settings(self) -> dict[str, Any]:
        """The configuration as it is stored in `config.informin`, without default values."""
        values = {"normalize": self.normalize, "prompt": self.prompt, "sentence_transformers": self.files}
        stored = {"pooling": self.pooling} | {name: value for name, value in values.items() if value}
        return stored if self.training_prompt is None else stored | {"training_prompt": self.training_prompt}

    @property
    def in_training(self) -> "EmbeddingConfig":
        """The configuration that training uses: the training prompt is the prompt."""
        if self.training_prompt is None:
            return self
        return replace(self, prompt=self.training_prompt, training_prompt=None)

    def max_length(self, longest: int) -> int:
        """Return the maximum number of tokens per sentence, for a model that accepts up to `longest` tokens."""
        return min(longest, self.files.get("max_seq_length") or longest)

    def for_training(self, pooler: str, prompt: str | None, export_prompt: bool = False) -> "EmbeddingConfig":
        """Resolve the options `pooler`, `prompt` and `export_prompt`.

        A pooling other than the encoder's own drops its normalization and maximum length. Prompts and the other
        settings of the text are kept.

        Args:
            pooler: One of `POOLINGS`, or auto for the encoder's own pooling; [CLS] if no file describes it.
            prompt: Prompt in training; None for the encoder's own.
            export_prompt: Make `prompt` the encoder's own prompt.

        Raises:
            UsageError: `pooler` is auto and the encoder's pooling is not supported, or the encoder has an adapter.
        """
        if self.adapter:
            raise UsageError(
                "has a linear adapter, which training would leave out",
                option="model_name",
                fix="Train the model that the adapter was fitted on, then fit the adapter again.",
            )
        if pooler not in ("auto", self.pooling, *POOLINGS):
            raise UsageError(f"is {pooler}", option="pooler", needed=f"one of: auto, {', '.join(POOLINGS)}")
        prompt = self.in_training.prompt if prompt is None else prompt
        own = prompt if export_prompt else self.prompt
        prompts: dict[str, Any] = {"prompt": own, "training_prompt": None if prompt == own else prompt}
        if pooler == "auto" and self.pooling is None and self.problem:
            raise UsageError(
                f"is auto, but the pooling of the encoder is unknown: {self.problem}",
                option="pooler",
                needed=f"one of: {', '.join(POOLINGS)}",
            )
        pooling = (self.pooling or "cls") if pooler == "auto" else pooler
        if pooling == self.pooling:
            return replace(self, **prompts)
        kept = {name: self.files[name] for name in TEXT_SETTINGS if name in self.files}
        return EmbeddingConfig(pooling, **prompts, files=kept)


def embedding_of(model: Any) -> EmbeddingConfig:
    """Return how a model in training computes embeddings."""
    embedding = EmbeddingConfig.from_settings(model.config.informin)
    assert embedding is not None  # `load_trainable` sets the pooling
    return embedding


def lower_case(tokenizer: PreTrainedTokenizerBase, embedding: EmbeddingConfig) -> None:
    """Make the tokenizer lowercase its input if the files of sentence-transformers ask for it."""
    backend = tokenizer.backend_tokenizer
    normalizer = json.dumps(json.loads(backend.to_str())["normalizer"])
    lowers = '"Lowercase"' in normalizer or '"lowercase": true' in normalizer
    if embedding.files.get("do_lower_case") and not lowers:
        own = [backend.normalizer] if backend.normalizer else []
        backend.normalizer = Sequence([Lowercase(), *own])


def refuse_long_prompt(prompt: str, tokenizer: PreTrainedTokenizerBase, option: str, length: int) -> None:
    """Raise UsageError if a prompt and the two special tokens leave no room for a word.

    Args:
        prompt: Text before every sentence.
        tokenizer: Tokenizer of the encoder.
        option: Name of the option that limits the length.
        length: Maximum number of tokens per sentence.
    """
    tokens = len(tokenizer(prompt, add_special_tokens=False, verbose=False)["input_ids"]) if prompt else 0
    if tokens and tokens + 3 > length:
        raise UsageError(
            f"has {counted(tokens, 'token')}, which leaves no room for a word: `{option}` is {length}",
            option="prompt",
            fix=f"Shorten the prompt, or set `{option}` to {tokens + 3} or more.",
        )
