"""What a run did to its encoder, measured at its end; see `informin.evaluation.drift`."""

import logging
from collections.abc import Callable, Sequence

import numpy as np
import torch
from datasets import Dataset, IterableDataset
from transformers import Trainer
from transformers.utils import logging as logs

from informin.encoders.encode import embed
from informin.encoders.encoder import load_encoder
from informin.encoders.usage import usage_of_settings
from informin.errors import InforMinError, error_line
from informin.evaluation.drift import FEWEST, draw, measure_drift, stsb_dev
from informin.evaluation.embedding_cache import embed_once
from informin.evaluation.pairs import GradedPairs
from informin.publishing.card import write_card
from informin.publishing.record import save_record

logger = logging.getLogger(__name__)


def tell_drift(
    trainer: Trainer,
    model_name: str | None,
    sentences: Dataset | IterableDataset | None,
    senteval_dir: str | None,
    folder: str,
) -> dict | None:
    """Measures what a run did to its encoder and writes it into training.json and the card of the exported folder.

    Every process has to call it. Both encoders compute in the precision of training.

    Args:
        trainer: after training and export; `trainer.encode` gives the new embeddings.
        model_name: what the run began with, loaded again for the old ones; None where it has no name.
        sentences: with a column `text`; None where there are tokens alone. The sample does not depend on the
            run's seed, so that runs can be compared.
        senteval_dir: of STS-B dev; see `stsb_dev`.
        folder: the exported one.

    Returns:
        `drift` of the record, on the first process; None on the others, and where it was not measured, which is said.
    """
    if model_name is None or sentences is None:
        logger.info("Drift was not measured: it needs the name of the encoder that training began with, and sentences.")
        return None
    if isinstance(sentences, IterableDataset):
        logger.info("Drift was not measured: the sentences are a stream, which is read in training alone.")
        return None
    texts = draw(sentences["text"])
    if len(texts) < FEWEST:
        logger.info(f"Drift was not measured: it needs {FEWEST} distinct sentences, and there are {len(texts)}.")
        return None
    pairs = _pairs(senteval_dir)
    try:
        new = embed_once(trainer.encode, [*texts, *(pairs.texts() if pairs else [])])  # all processes take part
        if not trainer.is_world_process_zero():
            return None
        drift = measure_drift(starting_encoder(trainer, model_name), new, texts, pairs).record()
        trainer.known["drift"] = drift
        save_record(folder, trainer.record())
        write_card(folder)
    except (InforMinError, OSError, torch.OutOfMemoryError) as error:  # a finished run must not fail by this
        logger.warning(f"Drift was not measured, or not written: {error_line(error)}")
        return None
    return drift


def starting_encoder(trainer: Trainer, model_name: str) -> Callable[[Sequence[str]], np.ndarray]:
    """An encode() of what the run began with, read as `trainer.encode` reads the trained model."""
    args, usage = trainer.args, usage_of_settings(trainer.model.config.informin).in_training
    revision = trainer.known["base_model"]["revision"] or args.model_revision  # the commit: the branch may have moved
    verbosity = logs.get_verbosity()
    logs.set_verbosity_error()  # what the checkpoint lacks was said before training, if it matters
    try:
        encoder = load_encoder(model_name, [usage.pooling], device=str(args.device), revision=revision, prompt="")
    finally:
        logs.set_verbosity(verbosity)

    def encode(sentences: Sequence[str]) -> np.ndarray:
        with trainer.accelerator.autocast():
            return embed(encoder.model, trainer.processing_class, sentences, args.per_device_eval_batch_size, usage)

    return encode


def _pairs(senteval_dir: str | None) -> GradedPairs | None:
    try:
        return stsb_dev(senteval_dir)
    except InforMinError as error:
        logger.warning(f"STS-B dev was not scored: {error_line(error)}")
        return None
