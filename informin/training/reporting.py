"""A Trainer that reports drift, scores and how to load the model, in scripts, Python and notebooks."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from datasets import Dataset, IterableDataset

from informin.models.embedding_config import embedding_of
from informin.publishing.trainer import PublishingTrainer
from informin.training.drift import report_drift
from informin.training.options import InforMinTrainingArguments
from informin.training.run_summary import load_lines, save_training_report, summary
from informin.training.throughput import Throughput


class ReportingTrainer(PublishingTrainer, ABC):
    """A Trainer whose export prints a report.

    Attributes:
        sentences: Training sentences; None for tokenized rows.
        throughput: Measures the training speed.
    """

    args: InforMinTrainingArguments
    model: Any
    eval_dataset: Any
    train_dataset: Any
    known: dict
    sentences: Dataset | IterableDataset | None
    throughput: Throughput
    _reported_step = 0

    @abstractmethod
    def encode(self, sentences: Sequence[str]) -> np.ndarray:
        """Return the embeddings (N, d) of N sentences with the training prompt."""

    def export(self, folder: str | None = None, report: bool = True) -> None:
        """Write the folder for users of the model, and print a report. Call it in every process.

        Args:
            folder: Folder to write; None for the output folder.
            report: Whether to print the report. False allows a call in the first process only.

        Raises:
            SaveError: It could not be written; existing files are unchanged.
        """
        super().export(folder)
        if report:
            self.report(folder)

    def report(self, folder: str | None = None, senteval_dir: str | None = None) -> None:
        """Measure the drift, and print it with the scores, the speed and the lines that load the exported model.

        Call it in every process, after `export`. The first process prints and writes report.json, once per step at
        which training ended.

        Args:
            folder: Exported folder; None for the output folder.
            senteval_dir: SentEval's data/downstream folder, for STS-B dev; None uses $SENTEVAL_DATA.
        """
        args, step, folder = self.args, self.state.global_step, folder or self.args.run_dir
        if step == self._reported_step:
            return
        self._reported_step = step
        changes = report_drift(self, senteval_dir, folder) if args.measure_drift else None
        if not self.is_world_process_zero():
            return
        drift = changes["drift"] if changes else None
        save_training_report(folder, self.state.log_history, changes)
        embedding, rate = embedding_of(self.model), self.throughput.sentences_per_second
        print("\n" + summary(self.state, args, self.eval_dataset, rate, folder, drift, embedding))
        print(load_lines(folder), flush=True)


class LogOfLastResort(logging.StreamHandler):
    """Prints log messages while logging is not configured, as in a notebook."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            super().emit(record)


def show_messages(args: InforMinTrainingArguments) -> None:
    """Print the log as on the command line in the first process, unless logging is already configured."""
    log = logging.getLogger("informin")
    if logging.getLogger().handlers or log.handlers or args.process_index > 0:
        return
    log.addHandler(LogOfLastResort())
    log.setLevel(logging.DEBUG if args.verbose else logging.INFO)
