"""Add a guide's embeddings and general sentences to the training data."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
from sentence_transformers import SentenceTransformer

from informin.distributed import first_of_machine_first
from informin.errors import UsageError
from informin.guide.cache import CachedGuide, load_guide
from informin.guide.neighbors import check_neighbors
from informin.guide.replay import GeneralSentences, load_general_sentences
from informin.models.opening import load_model
from informin.models.trained import TrainedModel
from informin.objectives.terms import GuideNeeds
from informin.training.options import InforMinTrainingArguments
from informin.training.sentences import Sentences
from informin.training.tokens import TRUNCATED, tokenize

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
    model: TrainedModel, args: InforMinTrainingArguments, rows: Any, sentences: Sentences | None
) -> GuidedData:
    """Add what the terms need from a guide.

    Args:
        model: The model in training, which is its own guide unless `args.guide_model` names another one.
        args: Arguments of the run.
        rows: `input_ids` and `attention_mask` of the training sentences.
        sentences: Column `text`; None if the trainer was given tokens.

    Raises:
        UsageError: An option has no effect, the dimension of the guide does not fit, or there are no sentences to
            embed, or too few for the number of neighbors. Also as `load_model`.
    """
    if args.replay_file and not args.replay_weight:
        raise UsageError("has no effect without `replay_weight`", option="replay_file")
    needs = [term.guide_needs for term in args.terms if term.guide_needs]
    if args.guide_model and not needs:
        raise UsageError("has no effect: no term uses a guide", option="guide_model", fix="Set `guided_weight`.")
    texts = load_general_sentences(args.replay_file) if args.replay_weight else None
    guides = _load_guides(model, args, needs, sentences, texts) if needs else {}
    if "training" in guides:
        rows = rows.add_column("row", range(len(rows)))
    general = None
    if texts is not None:
        length, size = int(args.max_seq_length or 0), args.replay_size
        tokens = tokenize(texts, model.tokenizer, length, args.prompt or "").remove_columns(TRUNCATED)
        general = GeneralSentences(tokens, size, model.tokenizer)
    return GuidedData(rows, guides, general)


def _load_guides(
    model: TrainedModel,
    args: InforMinTrainingArguments,
    needs: list[GuideNeeds],
    sentences: Sentences | None,
    general: datasets.Dataset | None,
) -> dict[str, CachedGuide]:
    """Return the guides of the `training` and of the `general` sentences that the terms need."""
    kinds = dict.fromkeys(need.sentences for need in needs)
    texts = {"general": list(general["text"]) if general is not None else []}
    if "training" in kinds:
        if not isinstance(sentences, datasets.Dataset):
            raise UsageError(
                "is tokenized or a stream, and the guide embeds every sentence before the first step",
                option="train_dataset",
                needed="a list or a data set of sentences",
            )
        texts["training"] = list(sentences["text"])
        for need in needs:
            check_neighbors(need.neighbors, len(set(texts["training"])), need.neighbors_option)
    folder = Path(args.guide_cache or Path(str(args.output_dir), FOLDER))
    with _guide(model, args) as guide:
        width, wanted = guide.get_embedding_dimension(), model.config.hidden_size
        for term in args.terms:
            if term.guide_needs and term.guide_needs.same_dimension and width != wanted:
                found = f"compares embeddings of {wanted} dimensions with the guide's {width}"
                raise UsageError(found, option=term.weight, fix=f"Use a `guide_model` with {wanted} dimensions.")
        with first_of_machine_first(args):
            return {kind: load_guide(folder, guide, texts[kind]) for kind in kinds}


def _guide(model: TrainedModel, args: InforMinTrainingArguments) -> AbstractContextManager[SentenceTransformer]:
    """Return the guide on the device and in the precision of the training."""
    if args.guide_model is None:
        return model.guide(args)
    where: dict[str, Any] = {"device": str(args.device), "bf16": args.mixed_precision == "bf16"}
    return nullcontext(load_model(args.guide_model, trust_remote_code=args.trust_remote_code, **where))
