"""InforMinTrainer: a Hugging Face Trainer that trains sentence embeddings on two views of each sentence."""

import logging
import time
from collections.abc import Iterable, Iterator
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor
from transformers import DataCollatorWithPadding, PreTrainedTokenizerBase, TrainerCallback

from informin.distributed import first_of_machine_first, gather_with_gradient, join, own_share
from informin.errors import UsageError, counted
from informin.evaluation.development import as_development
from informin.models.embedding import count_truncated, encode, note_truncated
from informin.models.trained import TrainedModel, open_to_train
from informin.objectives.terms import fill_heads
from informin.publishing.card import write_card
from informin.publishing.origin import license_of
from informin.publishing.trainer import PublishingTrainer
from informin.report.page import write_training_report
from informin.texts import as_texts
from informin.training.callbacks import (
    AfterStep,
    EpochStart,
    LogShortRuns,
    Progress,
    SeedProcesses,
    Throughput,
    replace_progress,
)
from informin.training.guided_data import GuidedData, add_guide
from informin.training.losses import CONTRAST, TERM, Losses, shares, shares_line
from informin.training.option_checks import FIRST, check_evaluation, check_sentences
from informin.training.options import InforMinTrainingArguments
from informin.training.record import describe_sentences
from informin.training.resuming import ResumableTrainer
from informin.training.summary import drift_of_run, headline, summary
from informin.training.tokens import training_rows
from informin.views.stacking import StackedViews, step_seed, two_views
from informin.views.view import SentenceTokens

__all__ = ["InforMinTrainer", "InforMinTrainingArguments"]

logger = logging.getLogger(__name__)


class InforMinTrainer(ResumableTrainer, PublishingTrainer):
    """Train sentence embeddings on unlabeled text with InforMin-CL, SimCSE, SCD, miCSE or a combination of their terms.

    Each sentence is encoded twice in one forward pass. The two views differ by dropout, or as `args.view` defines. The
    loss is the weighted sum of the terms of `args.objective` (see `informin.objectives`); for InforMin-CL, eq. 9 of
    Chen et al. (2022). The log has the total, and each unweighted term as terms/NAME. Evaluation scores sentence pairs,
    labeled sentences and retrieval pairs, logged as eval_MEASURE (see `informin.evaluation.measures`).

    Args:
        model: Encoder to train: a Hub id, a folder, or a SentenceTransformer. Its heads are newly initialized.
        args: Training arguments. Options that are None are filled in for this encoder.
        train_dataset: Sentences (a list or another iterable, a data set with a column of sentences, a `DatasetDict`, a
            stream), or tokenized rows with `input_ids` and `attention_mask`.
        eval_dataset: `GradedPairs`, `LabeledSentences`, `Collection`, a data set with their columns, the path of a file
            of pairs, a function from `encode` to scores, an evaluator of sentence-transformers, or a list or a
            dictionary of these; see `informin.evaluation.development.as_development`. None with `eval_strategy="no"`.
        processing_class: Tokenizer. None uses the encoder's own.
        data_collator: Turns a list of rows into a batch. None pads to the longest row.
        provenance: Facts for training.json that the trainer cannot derive; see `informin.training.record.provenance`.
        text_column: Column of the sentences in `train_dataset`. Default: `text`, `sentence`, or the only column.
        callbacks, optimizers, optimizer_cls_and_kwargs: As in Trainer.

    Raises:
        UsageError: No dropout, attention maps or layers that the encoder lacks, too few sentences for a batch or a
            term, or an argument of another type.
    """

    # The losses are means over a batch, so Trainer must divide them by the number of accumulation steps.
    loss_is_scaled_for_ga = False

    def __init__(
        self,
        model: str | Path | SentenceTransformer,
        args: InforMinTrainingArguments | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        data_collator: Any = None,
        provenance: dict[str, Any] | None = None,
        text_column: str | None = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        optimizer_cls_and_kwargs: tuple[Any, dict[str, Any]] | None = None,
    ):
        args = InforMinTrainingArguments() if args is None else args
        if not isinstance(model, str | PathLike | SentenceTransformer):
            needed = "a name, a folder or a SentenceTransformer"
            raise UsageError(f"is a {type(model).__name__}", option="model", needed=needed)
        development = as_development(eval_dataset)
        trained = open_to_train(model, args, processing_class)
        args = check_evaluation(args.resolve(trained), development)
        tokens = SentenceTokens(trained.tokenizer, args.prompt or "", trained.length)
        self._stack_views = self._stacking(args, tokens)
        trained.build(args, args.needs(trained.config, self._stack_views.copies))
        with first_of_machine_first(args):
            rows, sentences = training_rows(train_dataset, trained.tokenizer, args, trained.length, text_column)
        trained.module.config.informin["max_seq_length"] = args.max_seq_length  # may depend on the sentences
        check_sentences(rows, args)
        data = add_guide(trained, args, rows, sentences)
        self._prepare(trained, args, data)
        self.trained, self.sentences = trained, sentences
        self.facts = self._facts(dict(provenance or {}))
        self.throughput, self.losses = Throughput(), Losses(args.device)
        self._noted_truncation = False
        self._shares: dict[str, tuple[float, bool]] = {}  # see `shares`
        super().__init__(
            trained.module,
            args,
            train_dataset=data.rows,
            eval_dataset=development,
            processing_class=trained.tokenizer,
            data_collator=data_collator or DataCollatorWithPadding(trained.tokenizer),
            callbacks=callbacks,
            optimizers=optimizers,
            optimizer_cls_and_kwargs=optimizer_cls_and_kwargs,
        )
        self.measures_shares = not (self.is_fsdp_enabled or self.is_deepspeed_enabled)  # gradients of whole weights
        self.label_names = ["row"]  # losses read this column, so Trainer must not remove it
        replace_progress(self, Progress(development, partial(headline, self), lambda: shares_line(self._shares)))
        for callback in (AfterStep(), LogShortRuns(), SeedProcesses(), EpochStart(), self.throughput):
            self.add_callback(callback)

    def _facts(self, facts: dict[str, Any]) -> dict[str, Any]:
        """Return the facts about a run with those of its source model and its sentences."""
        hub_id = facts.pop("hub_id", None)
        base = self.trained.record_entry()
        facts["base_model"] = base | {"hub_id": hub_id or base["hub_id"]} if base else None
        if self.sentences is not None:
            facts["data"] = describe_sentences(self.sentences) | (facts.get("data") or {})
        return facts if "license" in facts else facts | license_of(self.trained.source)

    @staticmethod
    def _stacking(args: InforMinTrainingArguments, tokens: SentenceTokens) -> StackedViews:
        """Return what turns a batch into the rows of one forward pass."""
        masking = next((term.masking for term in args.terms if term.masking), None)
        compared = any(term.views_differ for term in args.terms)
        view = args.second_view
        single = view.same_tokens and not (compared or args.view_rates)
        return StackedViews(tokens.tokenizer, masking, view, single, tokens)

    def _prepare(self, trained: TrainedModel, args: InforMinTrainingArguments, data: GuidedData) -> None:
        """Create the terms and their heads."""
        self._add_general = data.general
        self._step_values: dict[str, Tensor] = {}  # of the last forward pass
        self.terms = args.terms
        self._reads_maps = any(term.reads_maps for term in self.terms)
        fill_heads(trained.module, self.terms)
        for term in self.terms:
            if term.guide_needs:
                term.prepare(data.guides[term.guide_needs.sentences])

    def get_batch_samples(self, epoch_iterator: Iterator, num_batches: int, device: torch.device):
        """Return the batches of one optimizer step, each stacked into two views and, for MLM, a masked copy."""
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        args, step = self.args, self.state.global_step
        seeds = [step_seed(args.seed, step, micro_step, args.process_index) for micro_step in range(len(batches))]
        stacked = [self._stack_views(batch, seed) for batch, seed in zip(batches, seeds)]
        add = self._add_general
        if add:
            stacked = [add(rows, seed) for rows, seed in zip(stacked, seeds)]
        return [self.trained.collate(rows) for rows in stacked], None

    def compute_loss(self, model, inputs: dict[str, Tensor], return_outputs=False, num_items_in_batch=None):
        """Return the weighted sum of the terms, computed in one forward pass over the stacked views."""
        outputs = model(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            lm_labels=inputs.get("lm_labels"),
            output_attentions=self._reads_maps,
            views={"sentence_ids": inputs["sentence_ids"], "gather": gather_with_gradient},
            packed=inputs.get("packed"),
        )
        views = two_views(outputs, inputs, self._stack_views.views)
        for term in self.terms:
            term.add_to(views)
        values = {name: value for term in self.terms for name, value in term.loss(views).items()}
        weighted = {term.name: term.strength * values[term.name] for term in self.terms if term.summand}
        if self.measures_shares and CONTRAST in weighted and len(weighted) > 1:
            weights = [] if self.args.gradient_checkpointing else [x for x in model.parameters() if x.requires_grad]
            self._shares = shares(weighted, outputs.projection, len(views.z1), weights)
        self.measures_shares = False
        loss = sum(weighted.values())
        self._step_values = {name: value.detach() for name, value in values.items()}
        return (loss, outputs) if return_outputs else loss

    def create_scheduler(self, num_training_steps: int, optimizer=None):
        """Create the scheduler. Warn if the warmup is longer than the run, as the papers' warmup often is."""
        warmup = self.args.get_warmup_steps(num_training_steps)
        if warmup >= num_training_steps:
            logger.warning(
                f"The warmup takes {counted(warmup, 'step')}, but the run has only {num_training_steps}. The learning "
                f"rate never reaches {self.args.learning_rate}. Set fewer `warmup_steps`."
            )
        return super().create_scheduler(num_training_steps, optimizer)

    def training_step(self, model, inputs, num_items_in_batch=None) -> Tensor:
        """Compute the gradient of a batch, and collect its loss and terms.

        Raises:
            NonFiniteLossError: The loss is NaN or infinite. On a GPU it is checked every few steps, and before
                anything is saved or evaluated.
        """
        loss = super().training_step(model, inputs, num_items_in_batch)
        self.losses.add(self.state.global_step + 1, loss, self._step_values)
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log, and add the mean of every term since the last entry."""
        if "loss" in logs:
            terms = [term.name for term in self.terms]
            means = self.losses.pop_means(self.accelerator)
            logs.update({f"{TERM}{name}" if name in terms else name: value for name, value in means.items()})
        super().log(logs, start_time)

    def encode(self, sentences: str | Iterable[str]) -> np.ndarray:
        """Return the embeddings (N, d) of N sentences, or (d,) of one string, with the training prompt.

        With several processes, each encodes a part, and all processes get the complete result.
        """
        if isinstance(sentences, str):
            return self.encode([sentences])[0]
        sentences = as_texts(sentences)
        if not self._noted_truncation and count_truncated(self.trained.st, sentences, self.args.prompt):
            note_truncated(self.trained.st, sentences, self.args.prompt)
            self._noted_truncation = True
        is_whole, size = not self.is_fsdp_enabled, self.args.per_device_eval_batch_size
        module = None if is_whole else self.whole_model
        share, blocks = own_share(is_whole, sentences), []
        with self._leaving_on_signal() as progress, self.accelerator.autocast(), self.trained.reading(module):
            for start in range(0, max(1, len(share)), 16 * size):
                texts = share[start : start + 16 * size]
                blocks.append(encode(self.trained.st, texts, prompt=self.trained.prompt, batch_size=size))
                progress(len(texts))
        return join(is_whole, np.concatenate(blocks), len(sentences))  # not above: a signal can end one process

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix: str = "eval") -> dict[str, float]:
        """Return the scores on the evaluation data. An undefined score is NaN, and a warning is logged.

        Args:
            eval_dataset: As in the constructor; None uses the trainer's own.
            ignore_keys: Ignored.
            metric_key_prefix: Prefix of the scores' names.

        Raises:
            UsageError: There is no evaluation data, or `metric_for_best_model` is not among the scores.
        """
        start, development = time.perf_counter(), as_development(eval_dataset) or self.eval_dataset
        if development is None:
            raise UsageError("is missing", option="eval_dataset", fix="Pass it to `evaluate` or to the trainer.")
        scores, problems = development.score(self.encode)
        for name, problem in problems.items():
            logger.warning(f"No score of {name} at step {self.state.global_step}: {problem}.")
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in scores.items()}
        if self.is_in_train:
            if self.args.metric_for_best_model == FIRST:
                self.args.metric_for_best_model = next(iter(metrics))
            wanted = f"eval_{str(self.args.metric_for_best_model).removeprefix('eval_')}"
            if wanted not in metrics and self.args.metric_for_best_model:
                raise UsageError(f"is {wanted}", option="metric_for_best_model", needed=f"one of {', '.join(metrics)}")
        metrics[f"{metric_key_prefix}_runtime"] = time.perf_counter() - start
        self.log(metrics)
        if not self.is_in_train:
            self.state.log_history[-1]["aside"] = True  # not part of the run, and maybe on other data
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def export(self, folder: str | Path | None = None, report: bool = True) -> None:
        """Write the folder for users of the model, and print a report. Call it in every process.

        Args:
            folder: Folder to write; None for the output folder.
            report: Whether to write and print the report.

        Raises:
            SaveError: It could not be written; existing files are unchanged.
        """
        super().export(folder)
        if report:
            self.report(folder)

    def report(self, folder: str | Path | None = None, senteval_dir: str | None = None) -> None:
        """Measure the drift if `measure_drift` is set, write report.html, and print the scores and the speed.

        Call it in every process, after `export`.

        Args:
            folder: Exported folder; None for the output folder.
            senteval_dir: SentEval's data/downstream folder, for STS-B dev; None uses $SENTEVAL_DATA.
        """
        target = str(folder or self.args.output_dir)
        changes = drift_of_run(self, senteval_dir) if self.args.measure_drift else None
        if not self.is_world_process_zero():
            return
        drift, examples = changes or (None, None)
        if drift:
            self.facts["drift"] = drift
            self.record().save(target)
            write_card(target)
        write_training_report(target, self.state.log_history, drift, examples, title=headline(self))
        print("\n" + summary(self, target), flush=True)
