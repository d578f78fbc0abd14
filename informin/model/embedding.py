"""Embed texts with a SentenceTransformer: in chunks, with a progress bar, by all processes together."""

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from informin.distributed import gather_shares, rank, world_size
from informin.errors import UsageError, counted
from informin.fast.call_copy import copy_of_tokenizer
from informin.fast.speed import speed_up
from informin.model.open import name_of
from informin.program import hidden
from informin.texts import as_texts

logger = logging.getLogger(__name__)


TEXTS_PER_CALL = 8_192  # texts in one call of the model's `encode`, which sorts them by length


def encode_in_shares(
    model: SentenceTransformer,
    texts: Sequence[str],
    *,
    side: str | None = None,
    prompt: str | None = None,
    batch_size: int = 64,
    title: str | None = "embed",
    progress: Callable[[int], object] | None = None,
) -> np.ndarray:
    """Return the embeddings (N, d) float32 of N texts.

    With several processes, each embeds a share, and all of them get all embeddings.

    Args:
        model: The model.
        texts: N texts.
        side: `query` or `document`, for prompts and routes of search; None for `encode` of the model.
        prompt: Prompt prepended to each text, instead of the stored prompt; an empty string for none.
        batch_size: Texts per forward pass.
        title: Title of the progress bar; None for no bar.
        progress: Called after each chunk with its number of texts.

    Raises:
        UsageError: An embedding is not finite.
    """
    texts = as_texts(texts)
    note_truncated(model, texts, prompt)
    local = texts[rank() :: world_size()]
    blocks: list[np.ndarray] = []
    with bar_of_texts(model, len(local), title) as model:
        for start in range(0, max(1, len(local)), TEXTS_PER_CALL):
            blocks.append(encode(model, local[start : start + TEXTS_PER_CALL], side, prompt, batch_size))
            if progress:
                progress(len(blocks[-1]))
    return gather_shares(np.concatenate(blocks), len(texts))


@contextmanager
def bar_of_texts(model: SentenceTransformer, total: int, title: str | None = "embed") -> Iterator[SentenceTransformer]:
    """Show a progress bar of the texts that a model embeds in a `with` block, updated after each forward pass.

    Yields a copy of the model, whose forward passes are counted. Other threads may use the model.

    Args:
        model: The model.
        total: Number of texts.
        title: Title of the bar; None for no bar.
    """
    with tqdm(total=total, desc=title, unit=" texts", leave=False, disable=title is None or hidden()) as bar:

        def count(module: Any, inputs: Any, features: dict[str, Any]) -> None:
            rows = len(features["sentence_embedding"])  # some of them may pad the batch
            bar.update(min(rows, total - bar.n))

        yield model if bar.disable else _with_hook(model, count)


def _with_hook(model: SentenceTransformer, hook: Callable[..., None]) -> SentenceTransformer:
    """Return a copy of a model that shares its modules, except for the last one, which has a further hook."""
    own, last = copy.copy(model), copy.copy(model[-1])
    last._forward_hooks = last._forward_hooks.copy()
    last.register_forward_hook(hook)
    own._modules = own._modules | {next(reversed(own._modules)): last}
    return speed_up(own) if "_inference" in vars(model) else own


def encode(
    model: SentenceTransformer,
    texts: list[str],
    side: str | None = None,
    prompt: str | None = None,
    batch_size: int = 64,
) -> np.ndarray:
    """Return the embeddings (N, d) float32 of N texts in this process; see `encode_in_shares`."""
    prompt = side_prompt(model, side) if prompt is None else prompt
    vectors = call_encode(model, texts, side, prompt=prompt, batch_size=batch_size)
    vectors = np.asarray(vectors, np.float32).reshape(len(texts), -1 if texts else width_of(model))
    check_finite(model, vectors)
    return vectors


def call_encode(
    model: SentenceTransformer, texts: list[str], side: str | None, *, batch_size: int, **options: Any
) -> Any:
    """Return what the model's `encode`, `encode_query` or `encode_document` returns, in its precision.

    Raises:
        UsageError: The batch size is not positive.
    """
    if batch_size < 1:
        raise UsageError(f"is {batch_size}", option="batch_size", needed="1 or more")
    method = {"query": model.encode_query, "document": model.encode_document, None: model.encode}[side]
    return method(texts, batch_size=batch_size, show_progress_bar=False, **options)


def check_finite(model: SentenceTransformer, vectors: np.ndarray) -> None:
    """Raise UsageError if an embedding is not finite."""
    if not np.isfinite(vectors).all():
        raise UsageError(f"{name_of(model)} gives embeddings that are not finite", fix="Use another model.")


def side_prompt(model: SentenceTransformer, side: str | None) -> str | None:
    """Return the stored prompt of one side of search; None if there is none.

    sentence-transformers adds empty prompts `query` and `document`, and `encode_document` would prefer the empty one to
    a stored `passage`.
    """
    names = {"query": ("query",), "document": ("document", "passage", "corpus"), None: ()}[side]
    return next((model.prompts[name] for name in names if model.prompts.get(name)), None)


def width_of(model: SentenceTransformer) -> int:
    """Return the number of dimensions of an embedding."""
    return model.get_embedding_dimension() or model.encode_document(["a"], show_progress_bar=False).shape[-1]


def count_truncated(model: SentenceTransformer, texts: Sequence[str], prompt: str | None = None) -> int:
    """Return how many texts a model truncates; 0 for a model without a maximum length."""
    tokenizer, length = getattr(model, "tokenizer", None), model.max_seq_length
    if not isinstance(tokenizer, PreTrainedTokenizerBase) or not length or length > 10**6:
        return 0
    # Only long texts need counting: a token has at least one byte, and two tokens are special.
    long = [text for text in ((prompt or "") + text for text in texts) if len(text.encode()) > length - 2]
    tokens = copy_of_tokenizer(tokenizer)(long, verbose=False, truncation=False)["input_ids"] if long else []
    return sum(len(ids) > length for ids in tokens)


def note_truncated(model: SentenceTransformer, texts: Sequence[str], prompt: str | None = None) -> None:
    """Log how many texts are truncated, if any are."""
    if number := count_truncated(model, texts, prompt):
        logger.info(
            f"{counted(number, 'text')} of {len(texts):,} {'is' if number == 1 else 'are'} truncated to "
            f"{model.max_seq_length} tokens."
        )
