"""A Trainer that says what a run did: drift, scores and how to load the model, from scripts, Python and notebooks."""

import logging

from datasets import Dataset, IterableDataset

from informin.encoders.usage import usage_of_settings
from informin.publishing.trainer import PublishingTrainer
from informin.training.drift import tell_drift
from informin.training.options import InforMinTrainingArguments
from informin.training.report import load_lines, summary
from informin.training.throughput import Throughput


class ReportingTrainer(PublishingTrainer):
    """The Trainer whose export ends with a report on the screen."""

    args: InforMinTrainingArguments
    began_with: str | None  # the name of the encoder; None of a model that was built already
    sentences: Dataset | IterableDataset | None  # None where rows of tokens were given
    throughput: Throughput
    _reported_step = 0

    def export(self, folder: str | None = None, report: bool = True) -> None:
        """Writes the folder that people load, by default to the output folder, then reports what the run did.

        Every process calls it. With `report` False, or in the first process alone, call `report` yourself, or not.

        SaveError: it could not be written; what was there before is as it was.
        """
        super().export(folder)
        if report:
            self.report(folder)

    def report(self, folder: str | None = None, senteval_dir: str | None = None) -> None:
        """Measures the drift and prints it with scores, speed and the lines that load the exported model.

        Every process calls it, after `export`; the first one prints, once for each step that training ended at.

        Args:
            folder: the exported one; None for the output folder.
            senteval_dir: of STS-B dev; None for the environment's.
        """
        args, step, folder = self.args, self.state.global_step, folder or self.args.output_dir
        if step == self._reported_step:
            return
        self._reported_step = step
        drift = tell_drift(self, self.began_with, self.sentences, senteval_dir, folder) if args.measure_drift else None
        if not self.is_world_process_zero():
            return
        usage, rate = usage_of_settings(self.model.config.informin), self.throughput.sentences_per_second
        print("\n" + summary(self.state, args, self.eval_dataset, rate, folder, drift, usage))
        print(load_lines(folder), flush=True)


class LogOfLastResort(logging.StreamHandler):
    """Shows messages where nobody has said how logs are shown, as in a notebook."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            super().emit(record)


def show_messages(args: InforMinTrainingArguments) -> None:
    """Shows what the command line shows of the log, unless logging was set up by someone: on the first process."""
    log = logging.getLogger("informin")
    if logging.getLogger().handlers or log.handlers or args.process_index > 0:
        return
    log.addHandler(LogOfLastResort())
    log.setLevel(logging.DEBUG if args.verbose else logging.INFO)
