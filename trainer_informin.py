"""InforMinTrainer: the HuggingFace Trainer with two views of each sentence and losses on what they share."""

import logging
import time
from collections.abc import Iterator, Sequence
from functools import partial
from os import PathLike

import numpy as np
import torch
from torch import Tensor
from transformers import DataCollatorWithPadding, PreTrainedTokenizerBase

from informin.distributed import gather_with_gradient
from informin.encoders.architectures import InforMinModel, architecture_of
from informin.encoders.encode import embed, join_shares, longest_read
from informin.encoders.loading import refuse_other_heads, refuse_without_dropout
from informin.encoders.packing import read_packed
from informin.encoders.usage import usage_of_settings
from informin.errors import UsageError, counted
from informin.evaluation.development import as_development
from informin.objectives.terms import fill_heads
from informin.training.callbacks import AfterStep, EpochStart, SeedProcesses
from informin.training.guided_data import GuidedData, add_guide
from informin.training.history import TERM
from informin.training.inputs import load_for_training, refuse_arguments, settings_in_training, training_rows
from informin.training.nan_check import NaNCheck
from informin.training.options import InforMinTrainingArguments
from informin.training.progress import Progress, replace_progress
from informin.training.record import describe_inputs, describe_sentences
from informin.training.report import headline
from informin.training.reporting import ReportingTrainer, show_messages
from informin.training.resuming import ResumableTrainer
from informin.training.sentences import refuse_few_sentences
from informin.training.throughput import Throughput
from informin.views.attention import prepare_encoder
from informin.views.stacking import StackedViews, step_seed, two_views
from informin.views.view import SentenceTokens

__all__ = ["InforMinTrainer", "InforMinTrainingArguments"]

logger = logging.getLogger(__name__)


class InforMinTrainer(ResumableTrainer, ReportingTrainer):
    """Trains an encoder by what two views of a sentence share: InforMin-CL, SimCSE, SCD, miCSE and their parts.

    Each sentence is read twice in one forward pass, where a term compares two views; dropout makes them differ. The
    loss is the weighted sum of the terms of `args.objective` (see `informin.objectives`), for InforMin-CL Chen et al.
    (2022), eq. 9. Every term is logged by name, as terms/NAME and unweighted, beside the total. Evaluation scores
    graded pairs, labeled sentences and searches in the precision of training, as eval_MEASURE (see
    `informin.evaluation.measures`).

    Args:
        model: the name of an encoder, a Hub id or a folder, for which model and tokenizer are built; or a model of
            `informin.encoders.loading.load_model`. Its heads are made fresh. Where views have their own dropout, or
            attention maps are read, its attention is exchanged.
        args: the options, objective included. What they leave open is filled in for this encoder.
        train_dataset: a list of sentences, a data set with a column `text`, or rows of `input_ids` and
            `attention_mask`, one sentence each.
        eval_dataset: graded pairs, or the path of a file of them; `LabeledSentences`; `RetrievalPairs`; or a list with
            one of each kind at most. None with `eval_strategy="no"`.
        processing_class: the tokenizer; with the name of an encoder None for its own.
        data_collator: from such rows to a batch of tensors; None for padding to the longest.
        provenance: what cannot be seen of the run, for training.json: see `informin.training.record.provenance`.
        kwargs: callbacks, optimizers, optimizer_cls_and_kwargs: as Trainer takes them.

    Raises:
        UsageError: an argument of Trainer that has no use here, with the reason; no dropout; other heads than the
            objective's; an attention implementation without maps; layers that the model has not; fewer sentences than
            one batch or than a term needs; a last batch that is too small for a term.
    """

    # Our losses are means over a batch: Trainer is to divide them by the number of accumulation steps.
    loss_is_scaled_for_ga = False

    def __init__(
        self,
        model: str | PathLike | InforMinModel,
        args: InforMinTrainingArguments | None = None,
        train_dataset=None,
        eval_dataset=None,
        processing_class: PreTrainedTokenizerBase | None = None,
        data_collator=None,
        provenance: dict | None = None,
        **kwargs,
    ):
        args = InforMinTrainingArguments() if args is None else args
        refuse_arguments(model, args, processing_class, kwargs)
        show_messages(args)
        development = as_development(eval_dataset)
        args = args.choose_metric(development and development.measures)
        self.known = dict(provenance or {})
        hub_id = self.known.pop("hub_id", None)
        if named := str(model) if isinstance(model, str | PathLike) else None:
            built = load_for_training(named, args, processing_class, hub_id)
            args, model, processing_class, self.known["base_model"] = built
        else:
            args = args.resolve(model.config.name_or_path or model.config.model_type, model.config)
        refuse_other_heads(model, {name: args.model_settings[name] for name in ("projection_head", "lm_head")})
        with args.main_process_first(desc="data"):
            tokens = longest_read(model, processing_class)
            rows, sentences = training_rows(train_dataset, processing_class, args, tokens)
        if sentences is not None:
            self.known["data"] = describe_sentences(sentences) | (self.known.get("data") or {})
        refuse_few_sentences(rows, args)
        collator = data_collator or DataCollatorWithPadding(processing_class)
        data = add_guide(named, model.config.hidden_size, args, rows, sentences, processing_class)
        self._prepare(model, args, SentenceTokens(processing_class, args.prompt or "", tokens), data)
        self.began_with, self.sentences = named, sentences
        self.known["inputs"] = describe_inputs(args, model, rows, sentences, data.guides)
        self.throughput, self.losses = Throughput(), NaNCheck(args)
        super().__init__(
            model,
            args,
            train_dataset=data.rows,
            eval_dataset=development,
            processing_class=processing_class,
            data_collator=collator,
            **kwargs,
        )
        self.label_names = ["row"]  # the model does not take it, and losses read it: Trainer is to leave it in
        replace_progress(self, Progress(development, partial(headline, self)))
        for callback in (AfterStep(), SeedProcesses(), EpochStart(), self.throughput):
            self.add_callback(callback)

    def _prepare(
        self, model: InforMinModel, args: InforMinTrainingArguments, tokens: SentenceTokens, data: GuidedData
    ) -> None:
        """The terms, the heads that they need, and an encoder and data that give what they read."""
        self._add_general = data.general
        self._step_values: dict[str, Tensor] = {}  # of the newest forward pass
        self._summed_values: dict[str, Tensor] = {}  # since the last log line
        self._summed_steps = 0
        model.config.informin = settings_in_training(model, args)
        self.terms = args.terms
        self._map_layers = sorted({layer for term in self.terms for layer in term.map_layers(model.config)})
        masking = next((term.masking for term in self.terms if term.masking), None)
        compared = any(term.views_differ for term in self.terms)
        view = args.second_view
        single = view.same_tokens and not (compared or args.view_dropout)
        self._stack_views = StackedViews(tokens.tokenizer, masking, view, single, tokens)
        fill_heads(model, self.terms)
        model.reader = read_packed if args.padding_free else None
        model.chunk_size = args.gradient_cache_chunk_size
        # A masked copy has the encoder's own dropout.
        rates = args.view_dropout and [*args.view_dropout, None][: self._stack_views.copies]
        attentions = architecture_of(model.config).attentions(model.base_model)
        prepare_encoder(model.base_model, attentions, rates, self._map_layers)
        if compared and view.same_tokens:
            refuse_without_dropout(model.base_model)  # heads have their own
        for term in self.terms:
            if term.guide_needs:
                term.prepare(data.guides[term.guide_needs.sentences])
        view.prepare(data.rows, data.guides[view.guide_needs.sentences] if view.guide_needs else None)

    def get_batch_samples(self, epoch_iterator: Iterator, num_batches: int, device: torch.device):
        """The batches of one optimizer step, each stacked into two views and, where one is asked for, a masked copy."""
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        args, step = self.args, self.state.global_step
        seeds = [step_seed(args.seed, step, micro_step, args.process_index) for micro_step in range(len(batches))]
        stacked = [self._stack_views(batch, seed) for batch, seed in zip(batches, seeds)]
        add = self._add_general
        return [add(rows, seed) for rows, seed in zip(stacked, seeds)] if add else stacked, None

    def compute_loss(self, model, inputs: dict[str, Tensor], return_outputs=False, num_items_in_batch=None):
        """The weighted sum of the terms, from one forward pass over rows that `StackedViews` made."""
        outputs = model(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            lm_labels=inputs.get("lm_labels"),
            output_attentions=bool(self._map_layers),
            views={"sentence_ids": inputs["sentence_ids"], "gather": gather_with_gradient},
        )
        views = two_views(outputs, inputs, self._stack_views.views)
        for term in self.terms:
            term.add_to(views)
        values = {name: value for term in self.terms for name, value in term.loss(views).items()}
        loss = sum(term.strength * values[term.name] for term in self.terms if term.summand)
        self._step_values = {name: value.detach() for name, value in values.items()}
        return (loss, outputs) if return_outputs else loss

    def create_scheduler(self, num_training_steps: int, optimizer=None):
        """Trainer's, and a word where the learning rate never gets to its peak: papers' warm-ups are for long runs."""
        warmup = self.args.get_warmup_steps(num_training_steps)
        if warmup >= num_training_steps:
            logger.warning(
                f"The learning rate rises over {counted(warmup, 'step')} and the run has {num_training_steps}: it "
                f"never reaches {self.args.learning_rate}. Give fewer warmup_steps."
            )
        return super().create_scheduler(num_training_steps, optimizer)

    def training_step(self, model, inputs, num_items_in_batch=None) -> Tensor:
        """Trainer's; NonFiniteLossError where the loss is NaN or infinite, before a weight is saved or used."""
        loss = super().training_step(model, inputs, num_items_in_batch)
        self.losses.add(self.state.global_step + 1, loss, self._step_values)
        for name, term in self._step_values.items():
            self._summed_values[name] = self._summed_values.get(name, 0) + term
        self._summed_steps += 1
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Trainer's, with the mean of every term since the last line beside the loss."""
        if "loss" in logs and self._summed_steps:
            means = torch.stack(list(self._summed_values.values())) / self._summed_steps
            means = self.accelerator.reduce(means, reduction="mean")  # over processes
            terms = [term.name for term in self.terms]
            names = [f"{TERM}{name}" if name in terms else name for name in self._summed_values]
            logs.update(zip(names, means.tolist()))
            self._summed_values, self._summed_steps = {}, 0
        super().log(logs, start_time)

    def encode(self, sentences: Sequence[str]) -> np.ndarray:
        """The embeddings (N, d) of N sentences after the training prompt; every process encodes a share, gets all."""
        own = list(sentences)[self.args.process_index :: self.args.world_size]
        usage, size = usage_of_settings(self.model.config.informin), self.args.per_device_eval_batch_size
        with self._leaving_on_signal() as progress, self.accelerator.autocast():
            embeddings = embed(self.model, self.processing_class, own, size, usage.in_training, progress)
        return join_shares(embeddings, self.accelerator)[: len(sentences)]

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix: str = "eval") -> dict[str, float]:
        """The scores of graded pairs, a labeled sample, a search, or several of these; NaN, and said, where undefined.

        `eval_dataset` is as the trainer takes it; None for what that was given.
        """
        start, development = time.perf_counter(), as_development(eval_dataset) or self.eval_dataset
        if development is None:
            raise UsageError("There is nothing to score: give `eval_dataset`.")
        scores, problems = development.score(self.encode)
        for name, problem in problems.items():
            logger.warning(f"No score of {name} at step {self.state.global_step}: {problem}.")
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in scores.items()}
        metrics[f"{metric_key_prefix}_runtime"] = time.perf_counter() - start
        self.log(metrics)
        if not self.is_in_train:
            self.state.log_history[-1]["aside"] = True  # no part of the run, and maybe of other pairs
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def predict(self, test_dataset, ignore_keys=None, metric_key_prefix: str = "test"):
        """Raises UsageError: an encoder has no predictions."""
        raise UsageError("`predict` has nothing to predict here. `encode` embeds sentences; `evaluate` scores pairs.")
