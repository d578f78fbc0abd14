"""Embed texts, in memory or into a file that is resumed after an interruption."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from typing_extensions import Unpack

from informin.distributed import on_first
from informin.errors import UsageError
from informin.jobs.models import ModelKeywords, ModelOptions, embed_in_memory, text_encoder
from informin.models.embed_file import embed_file
from informin.models.model import Model
from informin.models.texts import as_texts
from informin.outputs import refuse_unwritable


def embed(
    model: str | Path | Model,
    texts: Iterable[str],
    *,
    output: str | Path | None = None,
    **options: Unpack[ModelKeywords],
) -> np.ndarray:
    """Embed texts.

    With several processes, all of them call this function, each embeds a share, and each gets all embeddings.

    Args:
        model: Hub id, folder, SentenceTransformer, or a model from `load_model`.
        texts: N texts: a list, or another iterable of strings.
        output: A .npy file to write. It appears once it is complete. After an interruption, the same call resumes.
        options: How the model embeds; see `informin.jobs.models.ModelOptions`.

    Returns:
        (N, d) float32; with `output`, a memory map of the file.

    Raises:
        UsageError: An option, the model or the texts cannot be used, or the file has other embeddings or cannot be
            written.
    """
    how = ModelOptions(**options)
    found = as_texts(texts, "texts")
    if output is None:
        return embed_in_memory(text_encoder(model, how), found)
    refuse_output(output)
    return embed_file(text_encoder(model, how), found, output)


def refuse_output(output: str | Path) -> None:
    """Raise UsageError for a file that cannot be written, or whose name does not end in .npy."""
    if Path(output).suffix != ".npy":
        raise UsageError(f"is {output}", option="output", needed="a name ending in .npy")
    on_first(lambda: refuse_unwritable(output, "output"))
