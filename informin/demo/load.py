"""Embed the sentences of a search page, or take the vectors that `informin embed` wrote."""

from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import constants

from informin.demo.search import Search, SearchModel
from informin.errors import UsageError, counted, error_line
from informin.labeled_sentences import Sentences
from informin.models.checkpoint import Checkpoint
from informin.models.embed_file import embed_cached, embed_file
from informin.models.model import Model

MOST_MODELS = 2
REPORT = "report.html"  # in a model's folder or repository
LARGEST = 10 * 2**20  # bytes of it; ours have up to 3 MB


def load_search(
    encoders: Sequence[Model], sentences: Sentences, embeddings: Sequence[str | Path] | None = None
) -> Search:
    """Embed the sentences with each encoder, with a progress bar, or load their vectors.

    Args:
        encoders: One or two encoders. Each must have exactly one pooling.
        sentences: The sentences.
        embeddings: A `.npy` file per encoder, as in `embed_file`; None for a cache in HF_HOME.

    Raises:
        UsageError: There are more than two encoders, or a file is missing for one of them; or as `embed_file`.
    """
    if not 1 <= len(encoders) <= MOST_MODELS:
        raise UsageError(f"found {counted(len(encoders), 'model')}", needed="one or two")
    if embeddings is not None and len(embeddings) != len(encoders):
        found = f"names {counted(len(embeddings), 'file')} for {counted(len(encoders), 'model')}"
        raise UsageError(found, option="embeddings", needed="one file per model")
    folder = Path(constants.HF_HOME) / "informin-cl" / "embeddings"
    # In a model with a Router, sentences are documents unless they have a route already.
    encoders = [one.for_side("document", one.prompt) if one.routed and not one.task else one for one in encoders]
    vectors = [
        embed_file(encoder, sentences.texts, embeddings[i])
        if embeddings
        else embed_cached(encoder, sentences.texts, folder)
        for i, encoder in enumerate(encoders)
    ]
    names = short_names([encoder.name for encoder in encoders])
    asked = [one.for_queries() for one in encoders]
    measures = [one.similarity for one in encoders]
    return Search(sentences, [SearchModel(*found) for found in zip(names, asked, vectors, measures)])


def short_names(names: Sequence[str]) -> list[str]:
    """Return the last parts of names and paths, or all of them if their last parts are equal."""
    short = [name.rstrip("/").rpartition("/")[2] or name for name in names]
    return short if len(set(short)) == len(short) else list(names)


def find_report(model_name: str) -> str | None:
    """Return the text of a model's report.html, from its folder or the Hub; None if it has none.

    Raises:
        UsageError: The file is outside of the folder, larger than any report, or cannot be read.
    """
    path = Checkpoint(model_name).path(REPORT)
    if path is None:
        return None
    fix = "Delete the file, or write it again with informin report."
    try:
        if (size := Path(path).stat().st_size) > LARGEST:  # it is part of the page
            raise UsageError(f"{path} has {size:,} bytes", needed=f"up to {LARGEST:,}", fix=fix)
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error_line(error)}", fix=fix) from None
