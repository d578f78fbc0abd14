"""Unsupervised losses of sentence-transformers, trained as its documentation shows; used by adaptation.py."""

import argparse
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer import losses
from torch import nn
from transformers import PrinterCallback, set_seed

from experiments.studies.plan import BEFORE as TITLE_BEFORE

LENGTH = 32  # maximum number of tokens in training
DELETED = 0.6  # fraction of the words that TSDAE deletes: Wang et al. (2021), section 4.1
NEGATIVES = 7  # pairs of different sentences per pair of equal sentences, in contrastive tension
BEFORE = "before"  # name of the row of the encoder before training


def equal_pairs(sentences: list[str], source: random.Random) -> dict[str, list[str]]:
    """Return pairs of each sentence with itself, which differ only by dropout."""
    return {"anchor": sentences, "positive": sentences}


def with_deleted_words(sentences: list[str], source: random.Random) -> dict[str, list[str]]:
    """Return sentences with words deleted, keeping at least one word, and the complete sentences.

    The noise function of the library needs nltk, and the one in its documentation keeps 0.6 of the words.
    """
    noisy = []
    for sentence in sentences:
        words = sentence.split()
        noisy.append(" ".join([word for word in words if source.random() >= DELETED] or [source.choice(words)]))
    return {"noisy": noisy, "text": sentences}


def tension_pairs(sentences: list[str], source: random.Random) -> dict[str, list[str]]:
    """Return pairs of a sentence with itself (one in eight) or with a random sentence; the loss derives the labels."""
    fraction = 1 / (1 + NEGATIVES)
    seconds = [s if source.random() < fraction else source.choice(sentences) for s in sentences]
    return {"text1": sentences, "text2": seconds}


def unpaired(sentences: list[str], source: random.Random) -> dict[str, list[str]]:
    """Return the sentences in one column."""
    return {"sentence": sentences}


@dataclass(frozen=True)
class Peer:
    """A training method as documented by sentence-transformers.

    Attributes:
        title: Name in tables.
        learning_rate: Default learning rate.
        columns: Function that creates the columns of the dataset from sentences.
        loss: Function that creates the loss from the model and the name it was loaded from.
        batch_sampler: `batch_sampler` of its training arguments.
    """

    title: str
    learning_rate: float
    columns: Callable[[list[str], random.Random], dict[str, list[str]]]
    loss: Callable[[SentenceTransformer, str], nn.Module]
    batch_sampler: str = "batch_sampler"


PEERS = {
    "simcse": Peer(  # learning rate of its example train_stsb_simcse.py, and the sampler that the loss recommends
        "MultipleNegativesRankingLoss",
        5e-5,
        equal_pairs,
        lambda model, name: losses.MultipleNegativesRankingLoss(model),
        "no_duplicates",
    ),
    "tsdae": Peer(  # documented learning rate; the decoder's cross-attention and head are newly initialized
        "DenoisingAutoEncoderLoss (TSDAE)",
        3e-5,
        with_deleted_words,
        lambda model, name: losses.DenoisingAutoEncoderLoss(model, tie_encoder_decoder=True),
    ),
    "ct": Peer(  # this and the next: learning rate of the example in the documentation of the loss
        "ContrastiveTensionLoss",
        5e-5,
        tension_pairs,
        lambda model, name: losses.ContrastiveTensionLoss(model),
    ),
    "ct_in_batch": Peer(
        "ContrastiveTensionLossInBatchNegatives",
        5e-5,
        unpaired,
        lambda model, name: losses.ContrastiveTensionLossInBatchNegatives(model),
    ),
    # No learning rate is documented, so this is our own. The positive is the sentence itself, for which the guide's
    # cosine is 1. Without a margin, no false negative would be masked, and the sentence would be its own negative. The
    # margin is that of the documented example.
    "gist": Peer(
        "GISTEmbedLoss",
        3e-5,
        equal_pairs,
        lambda model, name: losses.GISTEmbedLoss(model, guide=SentenceTransformer(name), margin=0.1),
        "no_duplicates",
    ),
}
TITLES = {
    BEFORE: TITLE_BEFORE,
    "whitening": "in-domain whitening",
    **{name: peer.title for name, peer in PEERS.items()},
}


def train(
    peer: Peer,
    args: argparse.Namespace,
    sentences: list[str],
    seed: int,
    folder: Path,
    length: int = LENGTH,
) -> dict:
    """Train a model with the library's own trainer, save it to folder/model, and return its loss and seconds."""
    set_seed(seed)
    model = SentenceTransformer(args.model_name)
    longest, model.max_seq_length = model.max_seq_length, length
    options = SentenceTransformerTrainingArguments(
        output_dir=str(folder / "trainer"),
        max_steps=args.max_steps,
        per_device_train_batch_size=args.batch_size,
        learning_rate=args.learning_rate or peer.learning_rate,
        lr_scheduler_type="linear",
        warmup_steps=0,
        max_grad_norm=1.0,
        bf16=True,
        use_cpu=not torch.cuda.is_available(),
        seed=seed,
        batch_sampler=peer.batch_sampler,
        dataloader_drop_last=True,
        save_strategy="no",
        eval_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = SentenceTransformerTrainer(
        model=model,
        args=options,
        train_dataset=Dataset.from_dict(peer.columns(sentences, random.Random(seed))),
        loss=peer.loss(model, args.model_name),
    )
    trainer.remove_callback(PrinterCallback)
    start = time.perf_counter()
    loss = trainer.train().training_loss
    seconds = round(time.perf_counter() - start, 2)
    model.max_seq_length = longest
    model.save_pretrained(str(folder / "model"), create_model_card=False)
    return {"loss": loss, "training_seconds": seconds}
