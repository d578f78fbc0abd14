"""Measure at the end of a run how much training changed the embeddings; see `informin.evaluation.drift`."""

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from datasets import Dataset, IterableDataset
from transformers.utils import logging as logs

from informin.errors import InforMinError, error_line
from informin.evaluation.drift import FEWEST, draw, general_sentences, measure_drift, stsb_dev
from informin.evaluation.embedding_cache import embed_once
from informin.evaluation.paired import paired_scores
from informin.evaluation.pairs import GradedPairs
from informin.evaluation.snapshot import take_snapshot
from informin.models.checkpoint import Checkpoint
from informin.models.embedding_config import embedding_of
from informin.models.encode import embed
from informin.models.encoder import load_encoder
from informin.models.st_encoder import POOLER, load_st_encoder
from informin.models.st_model import StModel
from informin.publishing.card import write_card
from informin.publishing.record import save_record
from informin.training.options import InforMinTrainingArguments

logger = logging.getLogger(__name__)


class EncodingTrainer(Protocol):
    """What this module needs from a trainer after training and export.

    Attributes:
        began_with: Files of the encoder before training, loaded again for the old embeddings; None if unknown.
        sentences: Column `text`; None for tokenized rows.
        eval_dataset: Development data; None without evaluation.
        known: Entries of the record that the trainer cannot derive itself.
    """

    args: InforMinTrainingArguments
    model: Any
    processing_class: Any
    accelerator: Any
    began_with: Checkpoint | None
    sentences: Dataset | IterableDataset | None
    eval_dataset: Any
    known: dict

    def encode(self, sentences: Sequence[str]) -> np.ndarray:
        """Return the new embeddings (N, d) of N sentences."""

    def record(self) -> dict:
        """Return the record of the run."""

    def is_world_process_zero(self) -> bool:
        """Return whether this is the first process."""


def report_drift(trainer: EncodingTrainer, senteval_dir: str | None, folder: str) -> dict | None:
    """Measure the changes by training, and write the drift to training.json and the model card of the exported folder.

    Call it in every process. Both encoders compute in the precision of training. The sample of sentences does not
    depend on the run's seed, so that runs can be compared.

    Args:
        trainer: Trainer after training and export.
        senteval_dir: Folder with STS-B dev; see `stsb_dev`.
        folder: Exported folder.

    Returns:
        In the first process `drift` of training.json, and `general`, `snapshot` and `scores` of report.json; None in
        the others, and if the changes were not measured.
    """
    sentences = trainer.sentences
    if trainer.began_with is None or sentences is None:
        logger.info("Drift was not measured: it requires the name of the original encoder, and sentences.")
        return None
    if isinstance(sentences, IterableDataset):
        logger.info("Drift was not measured: the sentences are a stream, which is only read in training.")
        return None
    texts = draw(sentences["text"])
    if len(texts) < FEWEST:
        logger.info(f"Drift was not measured: it requires {FEWEST} distinct sentences, and there are {len(texts)}.")
        return None
    pairs, general = _pairs(senteval_dir), general_sentences()
    sets = trainer.eval_dataset.sets if trainer.eval_dataset else ()
    wanted = [*texts, *general, *(pairs.texts() if pairs else []), *(text for one in sets for text in one.texts())]
    try:
        new = embed_once(trainer.encode, wanted)  # in all processes
        if not trainer.is_world_process_zero():
            return None
        old = embed_once(starting_encoder(trainer, trainer.began_with), wanted)
        drift = measure_drift(old, new, texts, pairs).record()
        trainer.known["drift"] = drift
        save_record(folder, trainer.record())
        write_card(folder)
        return {
            "drift": drift,
            "general": measure_drift(old, new, general).record(),
            "snapshot": take_snapshot(texts, old, new),
            "scores": paired_scores(sets, old, new),
        }
    except (InforMinError, OSError, torch.OutOfMemoryError) as error:  # must not make a finished run fail
        logger.warning(f"Drift could not be measured or written: {error_line(error)}")
        return None


def starting_encoder(trainer: EncodingTrainer, checkpoint: Checkpoint) -> Callable[[Sequence[str]], np.ndarray]:
    """Return an encode function of the original encoder, with the pooling and prompt of `trainer.encode`."""
    args, embedding = trainer.args, embedding_of(trainer.model).in_training
    if isinstance(trainer.model, StModel):
        return _starting_general(trainer, trainer.model, checkpoint, embedding.prompt)
    if commit := trainer.known["base_model"]["revision"]:  # the branch may have moved
        checkpoint = Checkpoint(checkpoint.name, commit)
    verbosity = logs.get_verbosity()
    logs.set_verbosity_error()  # warnings about the checkpoint were printed before training
    try:
        encoder = load_encoder(checkpoint, [embedding.pooling or "cls"], device=str(args.device), prompt="")
    finally:
        logs.set_verbosity(verbosity)

    def encode(sentences: Sequence[str]) -> np.ndarray:
        with trainer.accelerator.autocast():
            return embed(encoder.model, trainer.processing_class, sentences, args.per_device_eval_batch_size, embedding)

    return encode


def _starting_general(
    trainer: EncodingTrainer, model: StModel, checkpoint: Checkpoint, prompt: str
) -> Callable[[Sequence[str]], np.ndarray]:
    """Return `starting_encoder` for a SentenceTransformer; with LoRA, the model in training without its matrices."""
    args, size = trainer.args, trainer.args.per_device_eval_batch_size
    original = None
    if model.lora is None:
        original = load_st_encoder(
            checkpoint,
            batch_size=size,
            device=str(args.device),
            prompt=prompt,
            trust_remote_code=args.trust_remote_code,
            code_revision=args.code_revision,
        )

    def encode(sentences: Sequence[str]) -> np.ndarray:
        with trainer.accelerator.autocast():
            if original is not None:
                return original(sentences)[POOLER]
            with model.before_training():
                return model.encode(sentences, size, prompt)

    return encode


def _pairs(senteval_dir: str | None) -> GradedPairs | None:
    try:
        return stsb_dev(senteval_dir)
    except InforMinError as error:
        logger.warning(f"STS-B dev was not evaluated: {error_line(error)}")
        return None
