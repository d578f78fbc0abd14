"""The length of training sentences in tokens: the default of `max_seq_length`, and how many are truncated."""

import logging
import math
from collections.abc import Callable

import datasets
import numpy as np
from transformers import PreTrainedTokenizerBase

from informin.textfiles import refuse_long

logger = logging.getLogger(__name__)

SAMPLE, STREAM_SAMPLE = 10_000, 1_000  # number of sentences to measure: a random sample, or the first of a stream
QUANTILE = 0.95  # fraction of the sentences that fit
STEP, LEAST = 8, 32  # lengths are multiples of STEP; LEAST is the papers' length
MOST_TRUNCATED = 1 - QUANTILE


def token_counts(
    sentences: datasets.Dataset | datasets.IterableDataset, tokenizer: PreTrainedTokenizerBase, prompt: str
) -> np.ndarray:
    """Return the number of tokens (n,) of a sample of the sentences, including the prompt and special tokens.

    The sample does not depend on the process or the run's seed, so a resumed run gets the same counts.
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
    """Return the `QUANTILE` of the token counts, rounded up to a multiple of `STEP`, between `LEAST` and `longest`.

    Args:
        counts: From `token_counts`; may be empty.
        longest: Maximum number of tokens that the encoder accepts.
    """
    quantile = np.quantile(counts, QUANTILE, method="inverted_cdf") if len(counts) else LEAST
    return min(longest, max(LEAST, STEP * math.ceil(quantile / STEP)))


def warn_of_truncation(
    truncated: int | None, total: int | None, counts: Callable[[], np.ndarray], length: int, longest: int
) -> None:
    """Log how many sentences are truncated, if the fraction is above `MOST_TRUNCATED`.

    Args:
        truncated: Number of truncated sentences; None for a stream, whose first sentences are measured instead.
        total: Number of sentences; None for a stream.
        counts: Returns the result of `token_counts`.
        length: Maximum number of tokens in training.
        longest: Maximum number of tokens that the encoder accepts.
    """
    what = "training sentences"
    if truncated is None or total is None:
        found = counts()
        truncated, total, what = int((found > length).sum()), len(found), "sentences at the beginning of the stream"
    if truncated <= MOST_TRUNCATED * total:
        return
    found = counts()
    fitting = fitting_length(found, longest)
    advice = f"`max_seq_length` {fitting} would fit {np.mean(found <= fitting):.0%} of them."
    if length >= fitting:
        advice = f"The encoder accepts at most {longest} tokens, so longer sentences must be split."
    logger.warning(
        f"{truncated:,} of {total:,} {what} ({truncated / total:.1%}) are truncated at "
        f"`max_seq_length` {length} tokens. {advice}"
    )
