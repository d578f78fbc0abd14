"""Measure at the end of a run how much training changed the embeddings; see `informin.evaluation.drift`."""

import logging
from typing import TYPE_CHECKING

import torch
from datasets import IterableDataset

from informin.errors import InforMinError, error_line
from informin.evaluation.drift import FEWEST, distinct, general_sentences, measure_drift, rows_to_read, stsb_dev
from informin.evaluation.embedding_cache import embed_once
from informin.evaluation.paired import paired_scores
from informin.evaluation.snapshot import take_snapshot
from informin.publishing.card import write_card
from informin.publishing.record import save_record

if TYPE_CHECKING:  # it imports this module
    from informin.training.reporting import ReportingTrainer

logger = logging.getLogger(__name__)


def report_drift(trainer: "ReportingTrainer", senteval_dir: str | None, folder: str) -> dict | None:
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
    if sentences is None:
        logger.info("Drift was not measured: it requires sentences.")
        return None
    if isinstance(sentences, IterableDataset):
        logger.info("Drift was not measured: the sentences are a stream, which is only read in training.")
        return None
    texts = distinct(sentences["text"][rows_to_read(len(sentences))])  # together: alone, a row takes 0.2 milliseconds
    if len(texts) < FEWEST:
        logger.info(f"Drift was not measured: it requires {FEWEST} distinct sentences, and there are {len(texts)}.")
        return None
    pairs, general = None, general_sentences()
    try:
        pairs = stsb_dev(senteval_dir)
    except InforMinError as error:
        logger.warning(f"STS-B dev was not evaluated: {error_line(error)}")
    sets = trainer.eval_dataset.sets if trainer.eval_dataset else ()
    wanted = [*texts, *general, *(pairs.texts() if pairs else []), *(text for one in sets for text in one.texts())]
    try:
        new = embed_once(trainer.encode, wanted)  # in all processes
        if not trainer.is_world_process_zero():
            return None
        with trainer.accelerator.autocast():
            old = embed_once(trainer.trained.original(trainer.args), wanted)
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
