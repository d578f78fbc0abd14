"""The length of training sentences in tokens: where they are truncated by default, and how many are."""

import logging
import math
from collections.abc import Callable

import datasets
import numpy as np
from transformers import PreTrainedTokenizerBase

from informin.textfiles import refuse_long

logger = logging.getLogger(__name__)

SAMPLE, STREAM_SAMPLE = 10_000, 1_000  # sentences that are counted: drawn from a data set, the first of a stream
QUANTILE = 0.95  # of the sentences are read whole
STEP, LEAST = 8, 32  # lengths are multiples of STEP; LEAST is the papers' length
MOST_TRUNCATED = 1 - QUANTILE

Sentences = datasets.Dataset | datasets.IterableDataset


def token_counts(sentences: Sentences, tokenizer: PreTrainedTokenizerBase, prompt: str) -> np.ndarray:
    """How many tokens (n,) a sample of the sentences has, prompt and special tokens included.

    Every process draws the same sample, whatever the seed, so that a run that goes on finds the same counts.
    """
    if isinstance(sentences, datasets.IterableDataset):
        texts = [row["text"] for row in sentences.take(STREAM_SAMPLE)]
    elif len(sentences) > SAMPLE:
        drawn = np.random.default_rng(0).choice(len(sentences), SAMPLE, replace=False)
        texts = sentences.select(np.sort(drawn))["text"]
    else:
        texts = sentences["text"]
    texts = [prompt + refuse_long(text, "a training sentence") for text in texts]
    tokens = tokenizer(texts, return_attention_mask=False, verbose=False)["input_ids"]
    return np.array([len(ids) for ids in tokens])


def fitting_length(counts: np.ndarray | list[int], longest: int) -> int:
    """The length that `QUANTILE` of the sentences do not exceed: a multiple of `STEP` from `LEAST` to `longest`.

    Args:
        counts: of `token_counts`; may be empty.
        longest: what the encoder reads.
    """
    quantile = np.quantile(counts, QUANTILE, method="inverted_cdf") if len(counts) else LEAST
    return min(longest, max(LEAST, STEP * math.ceil(quantile / STEP)))


def warn_of_truncation(
    truncated: int | None, total: int | None, counts: Callable[[], np.ndarray], length: int, longest: int
) -> None:
    """Logs how many of `total` sentences are truncated at `length` tokens, where they are more than a few.

    Args:
        truncated, total: None of a stream: then of those at its beginning.
        counts: gives those of `token_counts`.
        longest: what the encoder reads.
    """
    what = "training sentences"
    if truncated is None:
        found = counts()
        truncated, total, what = int((found > length).sum()), len(found), "sentences at the beginning of the stream"
    if truncated <= MOST_TRUNCATED * total:
        return
    found = counts()
    fitting = fitting_length(found, longest)
    advice = f"`max_seq_length` {fitting} would read {np.mean(found <= fitting):.0%} of them whole."
    if length >= fitting:
        advice = f"The encoder reads {longest} tokens: split what is longer."
    logger.warning(
        f"{truncated:,} of {total:,} {what} ({truncated / total:.1%}) are truncated at "
        f"`max_seq_length` {length} tokens. {advice}"
    )
