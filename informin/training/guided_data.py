"""Add a guide's embeddings and general sentences to the training data."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
from informin.models.opening import Source, limit_length, load_finished
from informin.models.speed import PackedInference
from informin.objectives import Replay
from informin.objectives.terms import Term, needed
from informin.training.model import TrainedModel
from informin.training.options import InforMinTrainingArguments
from informin.training.sentences import Sentences
from informin.training.tokens import TRUNCATED, tokenize

FOLDER = "guide"  # in the output folder, unless `guide_cache` names another one


@dataclass(frozen=True)
class GuidedData:
    """Training data, and the general sentences that are replayed.

    Attributes:
        rows: The training rows, with their index as the column `row` if the guide embedded them.
        general: Appends general sentences to each batch, or None.
    """

    rows: Any
    general: GeneralSentences | None


def add_guide(
    model: TrainedModel,
    args: InforMinTrainingArguments,
    terms: Sequence[Term],
    rows: Any,
    sentences: Sentences | None,
    length: int,
    prompt: str,
) -> GuidedData:
    """Add what the terms need from a guide, and prepare the terms.

    Args:
        model: The model in training, which is its own guide unless `args.guide_model` names another one.
        args: Arguments of the run.
        terms: Terms of the objective.
        rows: `input_ids` and `attention_mask` of the training sentences.
        sentences: Column `text`; None if the trainer was given tokens.
        length: Maximum number of tokens in a row.
        prompt: Prompt prepended to each sentence.

    Raises:
        UsageError: An option has no effect, the dimension of the guide does not fit, or there are no sentences to
            embed, or too few for the number of neighbors. Also as `load_model`.
    """
    replay = next((term for term in terms if isinstance(term, Replay)), None)
    if args.replay_file and not replay:
        raise UsageError("has no effect without `replay_weight`", option="replay_file")
    guided = [term for term in terms if term.guide_needs]
    if args.guide_model and not guided:
        raise UsageError("has no effect: no term uses a guide", option="guide_model", fix="Set `guided_weight`.")
    texts = load_general_sentences(args.replay_file) if replay else None
    guides = _load_guides(model, args, guided, sentences, texts, length) if guided else {}
    if guided:
        with first_of_machine_first(args):  # neighborhood means are cached, too
            for term in guided:
                term.prepare(guides[needed(term.guide_needs).sentences])
    if "training" in guides:
        rows = rows.add_column("row", range(len(rows)))
    general = None
    if replay:
        tokens = tokenize(texts, model.tokenizer, length, prompt).remove_columns(TRUNCATED)
        general = GeneralSentences(tokens, replay.size, model.tokenizer)
    return GuidedData(rows=rows, general=general)


def _load_guides(
    model: TrainedModel,
    args: InforMinTrainingArguments,
    terms: Sequence[Term],
    sentences: Sentences | None,
    general: datasets.Dataset | None,
    length: int,
) -> dict[str, CachedGuide]:
    """Return the guides of the `training` and of the `general` sentences that the terms need."""
    needs = [needed(term.guide_needs) for term in terms]
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
    with _guide(model, args, length) as guide:
        width = guide.get_embedding_dimension()
        wanted = model.config.hidden_size
        for term, need in zip(terms, needs):
            if need.same_dimension and width != wanted:
                raise UsageError(
                    f"compares embeddings of {wanted} dimensions with the guide's {width}",
                    option=term.option_name("weight"),
                    fix=f"Use a `guide_model` with {wanted} dimensions.",
                )
        with first_of_machine_first(args):
            return {kind: load_guide(folder, guide, texts[kind]) for kind in kinds}


@contextmanager
def _guide(model: TrainedModel, args: InforMinTrainingArguments, length: int) -> Iterator[SentenceTransformer]:
    """Yield the guide on the device and in the precision of the training.

    The model before training can be its own guide, with at most `length` tokens of a text.
    """
    bf16 = args.mixed_precision == "bf16"
    if args.guide_model is not None:
        trusts = args.trust_remote_code
        how = {"trust_remote_code": trusts, "device": str(args.device), "bf16": bf16}
        yield load_finished(args.guide_model, "guide_model", "a SentenceTransformer", **how)
        return
    guide = copy.copy(model.st.to(args.device))
    guide.informin_source = Source(model.name, bf16=bf16)
    guide._inference = PackedInference(guide, bf16)
    before = guide.max_seq_length
    limit_length(guide, min(before or length, length))
    try:
        yield guide
    finally:
        limit_length(guide, before)
