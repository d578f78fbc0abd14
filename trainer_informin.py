"""InforMinTrainer: a Hugging Face Trainer that trains sentence embeddings on two views of each sentence."""

import logging
import time
from collections.abc import Iterable, Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor
from transformers import DataCollatorWithPadding, PreTrainedTokenizerBase

from informin.distributed import first_of_machine_first, gather_with_gradient
from informin.errors import UsageError, counted
from informin.evaluation.development import as_development
from informin.models.model import Model
from informin.models.open_model import open_model
from informin.models.texts import as_texts
from informin.objectives.terms import fill_heads
from informin.publishing.sharded import join, own_share
from informin.training import inputs
from informin.training.callbacks import AfterStep, EpochStart, LogShortRuns, SeedProcesses
from informin.training.guided_data import GuidedData, add_guide
from informin.training.history import TERM
from informin.training.information import Information
from informin.training.nan_check import NaNCheck
from informin.training.options import InforMinTrainingArguments
from informin.training.progress import Progress, replace_progress
from informin.training.record import describe_inputs, describe_sentences, with_source_model
from informin.training.reporting import ReportingTrainer, show_messages
from informin.training.resuming import ResumableTrainer
from informin.training.run_summary import headline
from informin.training.sentences import refuse_few_sentences
from informin.training.term_means import TermMeans
from informin.training.throughput import Throughput
from informin.views.stacking import StackedViews, step_seed, two_views
from informin.views.view import SentenceTokens

__all__ = ["InforMinTrainer", "InforMinTrainingArguments"]

logger = logging.getLogger(__name__)


class InforMinTrainer(ResumableTrainer, ReportingTrainer):
    """Train sentence embeddings on unlabeled text with InforMin-CL, SimCSE, SCD, miCSE or a combination of their terms.

    Each sentence is encoded twice in one forward pass. The two views differ by dropout, or as `args.view` defines. The
    loss is the weighted sum of the terms of `args.objective` (see `informin.objectives`); for InforMin-CL, eq. 9 of
    Chen et al. (2022). The log has the total, and each unweighted term as terms/NAME. Evaluation scores sentence pairs,
    labeled sentences and retrieval pairs, logged as eval_MEASURE (see `informin.evaluation.measures`).

    Args:
        model: Encoder to train: a Hub id, a folder, a SentenceTransformer, or a model from
            `informin.models.native_loading.load_trainable`. Its heads are newly initialized.
        args: Training arguments. Options that are None are filled in for this encoder.
        train_dataset: Sentences (a list, an array, a column of a data set, an iterator, a data set or rows with a
            column of sentences, a `DatasetDict`), or tokenized rows with `input_ids` and `attention_mask`.
        eval_dataset: `GradedPairs` or the path of a file with them, `LabeledSentences`, `Collection`, a function
            from `encode` to scores, an evaluator of sentence-transformers, or a list or a dictionary of these; see
            `informin.evaluation.development.as_development`. None with `eval_strategy="no"`.
        processing_class: Tokenizer. None loads the encoder's own, which requires a Hub id or a folder.
        data_collator: Turns a list of rows into a batch. None pads to the longest row.
        provenance: Facts for training.json that the trainer cannot derive; see `informin.training.record.provenance`.
        text_column: Column of the sentences in `train_dataset`. Default: `text`, `sentence`, or the only column.
        kwargs: `callbacks`, `optimizers` and `optimizer_cls_and_kwargs` of Trainer.

    Raises:
        UsageError: An argument of Trainer that is not supported; no dropout; a model whose heads do not fit the
            objective; attention maps or layers that the encoder lacks; too few sentences for a batch or a term.
    """

    # The losses are means over a batch, so Trainer must divide them by the number of accumulation steps.
    loss_is_scaled_for_ga = False

    def __init__(
        self,
        model,  # a name, a model of this project, or a SentenceTransformer, which is an optional package
        args: InforMinTrainingArguments | None = None,
        train_dataset=None,
        eval_dataset=None,
        processing_class: PreTrainedTokenizerBase | None = None,
        data_collator=None,
        provenance: dict | None = None,
        text_column: str | None = None,
        **kwargs,
    ):
        args = InforMinTrainingArguments() if args is None else args
        given = inputs.checked_model(model, args, processing_class, kwargs)
        show_messages(args)
        development = as_development(eval_dataset)
        args = args.choose_metric(*((development.measures, development.own_measures) if development else (None,)))
        self.known = dict(provenance or {})
        hub_id = self.known.pop("hub_id", None)
        opened = open_model(given, args, processing_class)
        args = args.resolve(opened)
        trained = opened.trainable(args, processing_class)
        self.known = with_source_model(self.known, trained, hub_id)
        tokenizer = trained.tokenizer
        with first_of_machine_first(args):
            rows, sentences = inputs.training_rows(train_dataset, tokenizer, args, trained.length, text_column)
        if sentences is not None:
            self.known["data"] = describe_sentences(sentences) | (self.known.get("data") or {})
        refuse_few_sentences(rows, args)
        collator = data_collator or DataCollatorWithPadding(tokenizer)
        data = add_guide(trained, args, rows, sentences)
        self._prepare(trained, args, data)
        self.trained, self.sentences = trained, sentences
        self.known["inputs"] = describe_inputs(args, trained.module, rows, sentences, data.guides)
        self.throughput, self.losses = Throughput(), NaNCheck(args)
        super().__init__(
            trained.module,
            args,
            train_dataset=data.rows,
            eval_dataset=development,
            processing_class=tokenizer,
            data_collator=collator,
            **kwargs,
        )
        self.label_names = ["row"]  # losses read this column, so Trainer must not remove it
        replace_progress(self, Progress(development, partial(headline, self)))
        for callback in (AfterStep(), LogShortRuns(), SeedProcesses(), EpochStart(), self.throughput):
            self.add_callback(callback)

    def _prepare(self, trained: Model, args: InforMinTrainingArguments, data: GuidedData) -> None:
        """Create the terms and their heads, and prepare the encoder and the views for them."""
        model, tokens = trained.module, SentenceTokens(trained.tokenizer, args.prompt or "", trained.length)
        self._add_general = data.general
        self._step_values: dict[str, Tensor] = {}  # of the last forward pass
        self._means = TermMeans()  # since the last log entry
        self._information = Information(args.temperature or 0.05) if args.measure_information else None
        model.config.informin = inputs.settings_in_training(model, args)
        self.terms = args.terms
        self._map_layers = sorted({layer for term in self.terms for layer in term.map_layers(model.config)})
        masking = next((term.masking for term in self.terms if term.masking), None)
        compared = any(term.views_differ for term in self.terms)
        view = args.second_view
        single = view.same_tokens and not (compared or args.view_dropout)
        self._stack_views = StackedViews(tokens.tokenizer, masking, view, single, tokens)
        fill_heads(model, self.terms)
        trained.prepare(args, self._map_layers, self._stack_views.copies, compared and view.same_tokens)
        for term in self.terms:
            if term.guide_needs:
                term.prepare(data.guides[term.guide_needs.sentences])
        view.prepare(data.rows, data.guides[view.guide_needs.sentences] if view.guide_needs else None)

    def get_batch_samples(self, epoch_iterator: Iterator, num_batches: int, device: torch.device):
        """Return the batches of one optimizer step, each stacked into two views and, for MLM, a masked copy."""
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        args, step = self.args, self.state.global_step
        seeds = [step_seed(args.seed, step, micro_step, args.process_index) for micro_step in range(len(batches))]
        stacked = [self._stack_views(batch, seed) for batch, seed in zip(batches, seeds)]
        add = self._add_general
        return [add(rows, seed) for rows, seed in zip(stacked, seeds)] if add else stacked, None

    def compute_loss(self, model, inputs: dict[str, Tensor], return_outputs=False, num_items_in_batch=None):
        """Return the weighted sum of the terms, computed in one forward pass over the stacked views."""
        outputs = model(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            lm_labels=inputs.get("lm_labels"),
            output_attentions=bool(self._map_layers),
            views={"sentence_ids": inputs["sentence_ids"], "gather": gather_with_gradient},
        )
        views = two_views(outputs, inputs, self._stack_views.views)
        if self._information:
            self._information.add(views.z1, views.z2)
        for term in self.terms:
            term.add_to(views)
        values = {name: value for term in self.terms for name, value in term.loss(views).items()}
        loss = sum(term.strength * values[term.name] for term in self.terms if term.summand)
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
        self._means.add(self._step_values)
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log, and add the mean of every term since the last entry."""
        if "loss" in logs:
            terms = [term.name for term in self.terms]
            means = self._means.pop(self.accelerator)
            logs.update({f"{TERM}{name}" if name in terms else name: value for name, value in means.items()})
            logs.update(self._information.pop(self.accelerator) if self._information else {})
        super().log(logs, start_time)

    def encode(self, sentences: str | Iterable[str]) -> np.ndarray:
        """Return the embeddings (N, d) of N sentences, or (d,) of one string, with the training prompt.

        With several processes, each encodes a part, and all processes get the complete result.
        """
        if isinstance(sentences, str):
            return self.encode([sentences])[0]
        sentences = as_texts(sentences)
        model, whole, size = self.whole_model, not self.is_fsdp_enabled, self.args.per_device_eval_batch_size
        own = own_share(whole, sentences)
        with self._leaving_on_signal() as progress, self.accelerator.autocast():
            embeddings = self.trained.embed(model, own, size, progress)
        return join(whole, embeddings, len(sentences))  # not above: a signal can end one process

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix: str = "eval") -> dict[str, float]:
        """Return the scores on the evaluation data. An undefined score is NaN, and a warning is logged.

        Args:
            eval_dataset: As in the constructor; None uses the trainer's own.
            ignore_keys: Ignored.
            metric_key_prefix: Prefix of the scores' names.
        """
        start, development = time.perf_counter(), as_development(eval_dataset) or self.eval_dataset
        if development is None:
            raise UsageError("is missing", option="eval_dataset", fix="Pass it to `evaluate` or to the trainer.")
        scores, problems = development.score(self.encode)
        for name, problem in problems.items():
            logger.warning(f"No score of {name} at step {self.state.global_step}: {problem}.")
        scores |= development.own_scores(self.encode)
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in scores.items()}
        self._require_best_metric(metrics, metric_key_prefix)
        metrics[f"{metric_key_prefix}_runtime"] = time.perf_counter() - start
        self.log(metrics)
        if not self.is_in_train:
            self.state.log_history[-1]["aside"] = True  # not part of the run, and maybe on other data
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _require_best_metric(self, metrics: dict[str, float], prefix: str) -> None:
        """Raise UsageError if an evaluation in training did not give the metric that selects the best checkpoint."""
        wanted = (self.args.metric_for_best_model or "").removeprefix("eval_")
        if self.is_in_train and wanted and self.args.load_best_model_at_end and f"{prefix}_{wanted}" not in metrics:
            raise UsageError(
                f"is {wanted}, which the evaluation did not give",
                option="metric_for_best_model",
                needed=f"one of: {', '.join(name.removeprefix(f'{prefix}_') for name in metrics)}",
            )

    def hyperparameter_search(self, *args, **kwargs):
        """Raise UsageError: `informin study` compares settings, over several seeds."""
        raise UsageError(
            "is not supported: one seed per setting selects by chance",
            option="hyperparameter_search",
            fix="Use `informin study`, which trains each setting with several seeds.",
        )

    def predict(self, test_dataset, ignore_keys=None, metric_key_prefix: str = "test"):
        """Raise UsageError: an encoder makes no predictions."""
        raise UsageError(
            "is not supported: an encoder makes no predictions",
            option="predict",
            fix="Use `encode` to embed sentences, or `evaluate` to score them.",
        )
