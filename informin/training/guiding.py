"""What a guide brings to a training: its embeddings, neighbors as the other view, general sentences."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import datasets
import torch
from transformers import PreTrainedTokenizerBase

from informin.encoders.encoder import load_encoder
from informin.encoders.guide import Guide, load_guide, refuse_few
from informin.encoders.loading import load_config
from informin.encoders.usage import usage_of
from informin.errors import UsageError
from informin.textfiles import read_sentences, require_file
from informin.training.heartbeat import Heartbeat
from informin.training.options import InforMinTrainingArguments
from informin.training.sentences import tokenize
from informin.views.neighbors import WithPartners, all_mutual, mutual_neighbors, row_ids
from informin.views.replay import GeneralSentences

Collator = Callable[[list[dict]], dict[str, torch.Tensor]]
OWN = "guide"  # the folder of its files in the output folder
GENERAL = Path(__file__).parents[1] / "general_sentences.txt"


@dataclass(frozen=True)
class GuidedData:
    """Training data with what a guide adds.

    Attributes:
        rows: with their place as the column `row`, where the guide embedded them.
        collator: adds the other view of each sentence where it is a neighbor.
        guides: the guide's embeddings of the `training` and of the `general` sentences, those that something reads.
        general: what puts general sentences beside each batch; None where there are none.
    """

    rows: object
    collator: Collator
    guides: dict[str, Guide]
    general: GeneralSentences | None


def with_guide(
    model_name: str | None,
    width: int,
    args: InforMinTrainingArguments,
    rows: object,
    sentences: datasets.Dataset | datasets.IterableDataset | None,
    tokenizer: PreTrainedTokenizerBase,
    collator: Collator,
) -> GuidedData:
    """Training data with a guide, where something reads one.

    Args:
        model_name, width, sentences: see `guides_for`.
        rows: of `input_ids` and `attention_mask`.
    """
    texts = general_sentences(args)
    guides = guides_for(model_name, width, args, sentences, texts)
    if "training" in guides:
        rows = rows.add_column("row", range(len(rows)))
    if args.neighbor_views:
        places, _ = guides["training"].nearest(args.neighbor_views)
        related = row_ids(rows)[all_mutual(places)]
        collator = WithPartners(collator, rows, mutual_neighbors(places), related)
    general = None
    if texts is not None:
        tokens = tokenize(texts, tokenizer, args.max_seq_length, args.prompt)
        general = GeneralSentences(tokens, args.replay_size, tokenizer)
    return GuidedData(rows, collator, guides, general)


def guides_for(
    model_name: str | None,
    width: int,
    args: InforMinTrainingArguments,
    sentences: datasets.Dataset | datasets.IterableDataset | None,
    general: datasets.Dataset | None,
) -> dict[str, Guide]:
    """The guide's embeddings of the `training` and of the `general` sentences, those that something reads.

    Args:
        model_name: of the encoder that is trained, its own guide unless `args.guide_model` names another; None where a
            trainer was given a model that is built already.
        width: of its embeddings.
        sentences: with a column `text`; None where a trainer was given tokens.
        general: see `general_sentences`.

    Raises:
        UsageError: a `guide_model` that nothing reads, or of another width where that matters; no sentences to embed,
            or fewer than there are to be neighbors; nothing to load a guide from; see `load_encoder`.
    """
    readers = {term.reads_guide: term.title for term in args.terms if term.reads_guide}
    readers |= {"training": "neighbors as views"} if args.neighbor_views else {}
    if not readers:
        if args.guide_model:
            raise UsageError(
                f"`guide_model` {args.guide_model} has no effect: nothing reads a guide. Give one of: "
                "`neighbor_weight`, `guided_weight`, `false_negative_fraction`, `distillation_weight`, "
                "`replay_weight`, `neighbor_views`."
            )
        return {}
    if "training" in readers and not isinstance(sentences, datasets.Dataset):
        given = "tokens without their text" if sentences is None else "a stream"
        raise UsageError(
            f"The guide embeds every training sentence before the first step (for {readers['training']}), and what was "
            f"given is {given}. Needed a list or a data set of sentences; of a stream write a part to a file."
        )
    if "training" in readers:
        refuse_few(max(args.neighbor_views, *(term.neighbors for term in args.terms)), len(sentences))
    texts = {"training": sentences, "general": general}
    encoder = _load(model_name, args)
    for term in args.terms:
        if term.same_width and encoder.dimensions != width:
            raise UsageError(
                f"`{term.weight}` compares embeddings with the guide's, which have {encoder.dimensions} dimensions; "
                f"those of the encoder have {width}. Needed a `guide_model` of the same width, or leave "
                f"`{term.weight}` out."
            )
    folder = Path(args.guide_cache or Path(args.output_dir, OWN))
    with Heartbeat(args.output_dir, args.device), args.main_process_first(desc="guide"):
        return {name: load_guide(folder, encoder, texts[name]["text"]) for name in readers}


def _load(model_name: str | None, args: InforMinTrainingArguments):
    """The guide's encoder, on the device and in the precision of the training."""
    name, how = args.guide_model, {"poolers": ("auto",)}
    if name is not None:
        if usage_of(name, load_config(name, any_encoder=True)).pooling is None:
            raise UsageError(
                f"`guide_model` {name} does not say how its sentence embedding is read. Needed a finished embedding "
                "model, with the files of sentence-transformers or of this project."
            )
    else:  # as it is trained
        name = model_name
        how = {"poolers": (args.pooler,), "prompt": args.prompt, "revision": args.model_revision}
        how["length"] = args.max_seq_length
    if name is None:
        raise UsageError(
            "The guide is the encoder before training, and of a model that is built already nothing can be loaded. "
            "Give the trainer the name of the encoder, or `guide_model`."
        )
    device = None if args.device.type == "cpu" else str(args.device)
    return load_encoder(name, device=device, bf16=args.mixed_precision == "bf16", **how)


def general_sentences(args: InforMinTrainingArguments) -> datasets.Dataset | None:
    """The sentences of `args.replay_file`, or English ones that come with this package; None where none are read.

    Raises:
        UsageError: a file that nothing reads, that cannot be read, or that holds no sentence.
    """
    if not args.replay_weight:
        if args.replay_file:
            raise UsageError(f"`replay_file` {args.replay_file} has no effect without `replay_weight`.")
        return None
    path = replay_path(args)
    require_file("`replay_file`", path)
    sentences = [sentence for sentence in read_sentences(path, None) if sentence.strip()]
    if not sentences:
        raise UsageError(f"`replay_file` {path} holds no sentence.")
    return datasets.Dataset.from_dict({"text": sentences})


def replay_path(args: InforMinTrainingArguments) -> Path:
    """The file of general sentences: the user's, or the one that comes with this package."""
    return Path(args.replay_file or GENERAL)
