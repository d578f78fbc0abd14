"""Add a guide's embeddings and general sentences to the training data."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets

from informin.distributed import first_of_machine_first
from informin.errors import UsageError
from informin.guide.cache import CachedGuide, load_guide
from informin.guide.neighbors import require_neighbors
from informin.guide.protocol import GuideNeeds
from informin.guide.replay import GeneralSentences, load_general_sentences
from informin.models.model import Model
from informin.models.native import UnknownPoolingError
from informin.models.open_model import load_model
from informin.objectives import Term
from informin.training.heartbeat import Heartbeat
from informin.training.options import InforMinTrainingArguments
from informin.training.sentences import tokenize
from informin.training.term_fields import terms
from informin.views import VIEWS, View

FOLDER = "guide"  # in the output folder, unless `guide_cache` names another one


@dataclass(frozen=True)
class GuidedData:
    """Training data, its guides, and the general sentences that are replayed.

    Attributes:
        rows: The training rows, with their index as the column `row` if the guide embedded them.
        guides: The guides of the `training` and of the `general` sentences, if the run uses them.
        general: Appends general sentences to each batch, or None.
    """

    rows: Any
    guides: dict[str, CachedGuide]
    general: GeneralSentences | None


def add_guide(
    model: Model,
    args: InforMinTrainingArguments,
    rows: Any,
    sentences: datasets.Dataset | datasets.IterableDataset | None,
) -> GuidedData:
    """Add what the terms and the view need from a guide.

    Args:
        model, sentences: See `load_guides`.
        rows: `input_ids` and `attention_mask` of the training sentences.
    """
    if args.replay_file and not args.replay_weight:
        raise UsageError(
            f"{args.replay_file} has no effect without `replay_weight`",
            option="replay_file",
            fix="Set `replay_weight`, or leave `replay_file` out.",
        )
    texts = load_general_sentences(args.replay_file) if args.replay_weight else None
    guides = load_guides(model, args, sentences, texts)
    if "training" in guides:
        rows = rows.add_column("row", range(len(rows)))
    general = None
    if texts is not None:
        assert args.max_seq_length and args.replay_size  # filled in by `resolve` and `training_rows`
        tokens = tokenize(texts, model.tokenizer, args.max_seq_length, args.prompt or "")
        general = GeneralSentences(tokens, args.replay_size, model.tokenizer)
    return GuidedData(rows, guides, general)


def load_guides(
    model: Model,
    args: InforMinTrainingArguments,
    sentences: datasets.Dataset | datasets.IterableDataset | None,
    general: datasets.Dataset | None,
) -> dict[str, CachedGuide]:
    """Load the guides of the `training` and of the `general` sentences that the run needs.

    Args:
        model: The model in training, which is its own guide unless `args.guide_model` names another one.
        sentences: Column `text`; None if the trainer was given tokens.
        general: See `load_general_sentences`.

    Raises:
        UsageError: No term or view uses `guide_model`, or its dimension does not fit. There are no sentences to embed,
            or too few for the number of neighbors. Also as `load_model`.
    """
    needs = guide_needs(args)
    if not needs:
        if args.guide_model:
            options = [f"`{kind.weight}`" for kind in terms() if kind().guide_needs]
            options += [f"`view` {name}" for name, kind in VIEWS.items() if kind().guide_needs]
            raise UsageError(
                f"{args.guide_model} has no effect: no term or view uses a guide",
                option="guide_model",
                fix=f"Set one of {', '.join(options)}, or leave `guide_model` out.",
            )
        return {}
    embedded = {need.sentences: title for title, need in needs.items()}
    if "training" in embedded:
        _require_sentences(sentences, needs, embedded["training"])
    with _guide(model, args) as guide:
        return _embedded_by(guide, model.dimensions, args, embedded, {"training": sentences, "general": general})


def _embedded_by(
    guide: Model, dimension: int, args: InforMinTrainingArguments, embedded: Iterable[str], texts: dict[str, Any]
) -> dict[str, CachedGuide]:
    """Return a guide's embeddings of the `embedded` kinds of `texts`, which are compared with `dimension` numbers."""
    for term in args.terms:
        if term.guide_needs and term.guide_needs.same_dimension and guide.dimensions != dimension:
            raise UsageError(
                f"compares embeddings with the guide's, which have {guide.dimensions} dimensions; those of the "
                f"encoder have {dimension}",
                option=term.weight,
                fix=f"Use a `guide_model` with {dimension} dimensions, or leave `{term.weight}` out.",
            )
    folder = Path(args.guide_cache or Path(args.run_dir, FOLDER))
    with Heartbeat(args.run_dir, args.device), first_of_machine_first(args):
        return {name: load_guide(folder, guide, texts[name]["text"]) for name in embedded}


def guide_needs(args: InforMinTrainingArguments) -> dict[str, GuideNeeds]:
    """Return what the terms and the view need from a guide, by title."""
    users: list[Term | View] = [*args.terms, args.second_view]
    return {user.title: user.guide_needs for user in users if user.guide_needs}


def _require_sentences(sentences: object, needs: dict[str, GuideNeeds], title: str) -> None:
    if not isinstance(sentences, datasets.Dataset):
        given = "tokens without their text" if sentences is None else "a stream"
        raise UsageError(
            f"The guide embeds every training sentence before the first step (for {title}), but the training data is "
            f"{given}",
            needed="a list or a data set of sentences",
            fix="Write a sample of a stream to a file.",
        )
    for need in needs.values():
        distinct: set[str] = set()
        for text in sentences["text"]:
            distinct.add(text)
            if len(distinct) > need.neighbors:
                break
        require_neighbors(need.neighbors, len(distinct), need.neighbors_option)


def _guide(model: Model, args: InforMinTrainingArguments) -> AbstractContextManager[Model]:
    """Return the guide on the device and in the precision of the training."""
    name = args.guide_model
    if name is None:
        return model.guide(args)
    how: dict[str, Any] = {"device": str(args.device), "bf16": args.mixed_precision == "bf16"}
    try:
        return nullcontext(load_model(name, trust_remote_code=args.trust_remote_code, **how))
    except UnknownPoolingError:
        raise UsageError(
            f"{name} does not specify the pooling of its sentence embeddings",
            option="guide_model",
            needed="an embedding model saved by sentence-transformers or by this project",
        ) from None
