"""Embed long texts as the mean of windows, each of them as long as the model reads."""

from collections.abc import Callable, Collection, Sequence

import numpy as np
from transformers import PreTrainedTokenizerBase

from informin.errors import UsageError, counted
from informin.models.model import Model
from informin.models.st_loading import UNLIMITED
from informin.models.texts import as_texts


class Windows:
    """A model that reads all of a text.

    A text that is too long for the model is cut between words into as few windows as possible, of nearly equal numbers
    of tokens. Its embedding is the mean of the windows' embeddings at unit length, scaled to their mean length. Other
    texts have the model's own embeddings.

    Args:
        model: A model with one pooling.

    Attributes:
        truncated: Always empty; see `Model`.

    Raises:
        UsageError: The model does not truncate texts, or its tokenizer cannot say where tokens are in a text.
    """

    def __init__(self, model: Model):
        if model.length >= UNLIMITED:
            raise UsageError(f"has no use: {model.name} does not truncate texts", option="windows", fix="Leave it out.")
        if not isinstance(model.tokenizer, PreTrainedTokenizerBase) or not model.tokenizer.is_fast:
            raise UsageError(
                f"is not supported by {model.name}",
                option="windows",
                needed="a fast tokenizer of transformers, which says where tokens are in a text",
            )
        self.model = model
        self.name, self.poolers, self.dimensions = model.name, model.poolers, model.dimensions
        self.truncated: set[str] = set()
        # What is left of the length for tokens of the text, next to the prompt and special tokens.
        self.room = model.length - len(model.tokenizer(model.prompt, verbose=False)["input_ids"])
        if self.room < 1:
            raise UsageError(f"the prompt leaves no room in {model.length} tokens", option="windows")

    def __call__(
        self, sentences: Sequence[str], progress: Callable[[int], object] | None = None
    ) -> dict[str, np.ndarray]:
        """Return the embeddings (N, d) float32 of N texts; see `Model.__call__`."""
        texts = as_texts(sentences)
        cut = self._windows(texts)
        parts = [cut.get(text, [text]) for text in texts]
        (found,) = self.model([part for some in parts for part in some]).values()
        ends = np.cumsum([len(some) for some in parts])
        rows = [found[end - len(some) : end] for some, end in zip(parts, ends)]
        vectors = np.array([some[0] if len(some) == 1 else _mean(some) for some in rows], np.float32)
        if progress:
            progress(len(texts))
        (pooler,) = self.poolers
        return {pooler: vectors.reshape(len(texts), self.dimensions)}

    def sha256(self) -> str:
        """Return a checksum of what determines an embedding."""
        return f"{self.model.sha256()}-windows"

    def _windows(self, texts: Sequence[str]) -> dict[str, list[str]]:
        """Return the windows of each text that is too long."""
        tokenizer = self.model.tokenizer
        # A token has at least one byte; see `Model.note_truncated`.
        long = list(dict.fromkeys(text for text in texts if len(text.encode()) > self.room))
        if not long:
            return {}
        found = tokenizer(long, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        cut = {}
        for row, (text, places) in enumerate(zip(long, found["offset_mapping"])):
            if len(places) > self.room:
                cut[text] = _cut(text, places, found.word_ids(row), self.room)
        return cut


def _cut(text: str, places: Sequence[tuple[int, int]], words: Sequence[int | None], room: int) -> list[str]:
    """Cut a text into windows of at most `room` tokens, before words where possible.

    Args:
        places: Beginning and end of each token in the text.
        words: Number of the word of each token.
    """
    windows, start = [], 0
    while start < len(places):
        left = -(-(len(places) - start) // room)  # number of windows
        end = start + -(-(len(places) - start) // left)
        last = end
        while start < last < len(places) and words[last] is not None and words[last] == words[last - 1]:
            last -= 1
        end = last if last > start else end  # one word may fill a window
        windows.append(text[places[start][0] : places[end - 1][1]])
        start = end
    return windows


def _mean(vectors: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    mean = (vectors / np.maximum(lengths, 1e-30)).mean(0)
    return mean * lengths.mean() / max(float(np.linalg.norm(mean)), 1e-30)


def told_truncated(truncated: Collection[str], length: int) -> str | None:
    """Return in words how many texts were truncated to a number of tokens; None for none."""
    if not truncated:
        return None
    verb = "is" if len(truncated) == 1 else "are"
    return f"{counted(len(truncated), 'text')} {verb} longer than {length} tokens, and truncated."
