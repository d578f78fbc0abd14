"""Embed texts, in memory or into a file that is resumed after an interruption."""

import logging
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from typing_extensions import Unpack

from informin.distributed import on_first, rank
from informin.errors import UsageError
from informin.jobs.models import ModelKeywords, ModelOptions, embed_in_memory, text_encoder
from informin.models.embed_file import embed_file
from informin.models.model import Model
from informin.models.texts import as_texts
from informin.models.windows import Windows, told_truncated
from informin.outputs import refuse_unwritable

logger = logging.getLogger(__name__)


def embed(
    model: str | Path | Model,
    texts: Iterable[str],
    *,
    output: str | Path | None = None,
    windows: bool = False,
    **options: Unpack[ModelKeywords],
) -> np.ndarray:
    """Embed texts.

    With several processes, all of them call this function, each embeds a share, and each gets all embeddings.

    Args:
        model: Hub id, folder, SentenceTransformer, or a model from `load_model`.
        texts: N texts: a list, or another iterable of strings.
        output: A .npy file to write. It appears once it is complete. After an interruption, the same call resumes.
        windows: Read texts that are too long for the model in windows of its maximum length, and average these
            embeddings. By default, such texts are truncated, and a warning counts them.
        options: How the model embeds; see `informin.jobs.models.ModelOptions`.

    Returns:
        (N, d) float32; with `output`, a memory map of the file.

    Raises:
        UsageError: An option, the model or the texts cannot be used, or the file has other embeddings or cannot be
            written.
    """
    how = ModelOptions(**options)
    found = as_texts(texts, "texts")
    if output is not None:
        refuse_output(output)
    encoder = text_encoder(model, how)
    reader = Windows(encoder) if windows else encoder
    known = set(encoder.truncated)
    vectors = embed_in_memory(reader, found) if output is None else embed_file(reader, found, output)
    if (message := told_truncated(encoder.truncated - known, encoder.length)) and rank() == 0:
        logger.warning(message)
    return vectors


def refuse_output(output: str | Path) -> None:
    """Raise UsageError for a file that cannot be written, or whose name does not end in .npy."""
    if Path(output).suffix != ".npy":
        raise UsageError(f"is {output}", option="output", needed="a name ending in .npy")
    on_first(lambda: refuse_unwritable(output, "output"))
