"""Embed texts, in memory or into a file that is resumed after an interruption."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from sentence_transformers import SentenceTransformer
from typing_extensions import Unpack

from informin.errors import UsageError
from informin.jobs.embed_file import embed_file
from informin.models.embedding import encode_in_shares
from informin.models.opening import Loading, load_model
from informin.option_types import checks_options
from informin.texts import as_texts

SIDES = ("query", "document", None)


@checks_options
def embed(
    model: str | Path | SentenceTransformer,
    texts: Iterable[str],
    output: str | Path | None = None,
    *,
    side: str | None = None,
    prompt: str | None = None,
    batch_size: int = 64,
    overwrite_output_dir: bool = False,
    pooler: str = "auto",
    **loading: Unpack[Loading],
) -> np.ndarray:
    """Embed texts. Texts that are too long for the model are truncated, which is logged once.

    In a distributed run, all processes call this function. Each embeds a share, and gets all embeddings.

    Args:
        model: Hub id, folder, or SentenceTransformer. The options about loading concern a name or folder.
        texts: N texts: a list, or another iterable of strings.
        output: A .npy file to write. It appears once it is complete. After an interruption, the same call resumes.
        overwrite_output_dir: Whether to replace a file of other embeddings that this function wrote to `output`.
        side: `query` or `document`: embed with the prompt or route that the model has for them. Default: the model's
            `encode`.
        prompt: Prompt prepended to each text, instead of the stored prompt; an empty string for none.
        batch_size: Texts per forward pass.
        pooler, loading: Options of `informin.load_model`.

    Returns:
        (N, d) float32; with `output`, a memory map of the file.

    Raises:
        UsageError: The model, the texts or the name of the file cannot be used, or the file has other embeddings.
    """
    texts = as_texts(texts)
    if side not in SIDES:
        raise UsageError(f"is {side}", option="side", needed="query, document or None")
    if output is not None and Path(output).suffix != ".npy":
        raise UsageError(f"is {output}", option="output", needed="a name ending in .npy")
    st = load_model(model, pooler=pooler, **loading)
    if output is None:
        return encode_in_shares(st, texts, side=side, prompt=prompt, batch_size=batch_size)
    return embed_file(
        st, texts, output, side=side, prompt=prompt, batch_size=batch_size, overwrite=overwrite_output_dir
    )
