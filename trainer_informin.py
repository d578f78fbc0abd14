"""InforMinTrainer: the HuggingFace Trainer with two views of each sentence and losses on what they share."""

import logging
import time
from collections.abc import Iterator, Sequence
from functools import partial
from os import PathLike

import numpy as np
import torch
from torch import Tensor
from transformers import (
    DataCollatorWithPadding,
    PreTrainedTokenizerBase,
    PrinterCallback,
    ProgressCallback,
    TrainerCallback,
)

from informin.distributed import gather_with_gradient
from informin.encoders.architectures import ARCHITECTURES, InforMinModel
from informin.encoders.encode import encode
from informin.encoders.loading import refuse_other_heads, refuse_without_dropout
from informin.errors import NonFiniteLossError, UndefinedScoreError, UsageError, counted
from informin.evaluation.pairs import SCORES, GradedPairs, score_pairs
from informin.objectives.terms import fill_heads
from informin.publishing.trainer import PublishingTrainer
from informin.training.checkpoints import complete_checkpoints
from informin.training.history import TERM
from informin.training.inputs import as_pairs, load_for_training, refuse_arguments, training_rows
from informin.training.options import InforMinTrainingArguments
from informin.training.report import headline
from informin.training.resuming import ResumableTrainer
from informin.training.screen import Screen
from informin.training.sentences import refuse_few_sentences
from informin.training.throughput import Throughput
from informin.views.attention import prepare_encoder
from informin.views.stacking import IGNORED, StackedViews, mask_seed, two_views

__all__ = ["InforMinTrainer", "InforMinTrainingArguments"]

logger = logging.getLogger(__name__)


class AfterStep(TrainerCallback):
    """Heads with a state of their own follow each optimizer step."""

    def on_optimizer_step(self, args, state, control, model=None, **kwargs):
        for head in model.heads.values():
            head.after_step(model)


class InforMinTrainer(ResumableTrainer, PublishingTrainer):
    """Trains BERT or RoBERTa by what two views of a sentence share: InforMin-CL, SimCSE, SCD, miCSE and their parts.

    Each sentence is read twice in one forward pass; dropout makes the two views differ. The loss is the weighted sum of
    the terms of `args.objective` (see `informin.objectives`), for InforMin-CL Chen et al. (2022), eq. 9. Every term is
    logged by name, as terms/NAME and unweighted, beside the total. Evaluation scores graded pairs by the [CLS] vector,
    in the precision of training: `eval_spearman`, `eval_alignment`, `eval_uniformity`.

    Args:
        model: the name of an encoder, a Hub id or a folder, for which model and tokenizer are built; or a model of
            `informin.encoders.loading.load_model`. Its heads are made fresh. Where views have their own dropout, or
            attention maps are read, its attention is exchanged.
        args: the options, objective included. What they leave open is filled in for this encoder.
        train_dataset: a list of sentences, a data set with a column `text`, or rows of `input_ids` and
            `attention_mask`, one sentence each.
        eval_dataset: graded pairs, or the path of a file of them; None with `eval_strategy="no"`.
        processing_class: the tokenizer; with the name of an encoder None for its own.
        data_collator: from such rows to a batch of tensors; None for padding to the longest.
        provenance: what cannot be seen of the run, for training.json: see `informin.training.record.provenance`.
        kwargs: callbacks, optimizers, optimizer_cls_and_kwargs: as Trainer takes them.

    Raises:
        UsageError: an argument of Trainer that has no use here, with the reason; no dropout; other heads than the
            objective's; an attention implementation without maps; layers that the model has not; fewer sentences than
            one batch or than a term needs; a last batch of 1.
    """

    # Our losses are means over a batch: Trainer is to divide them by the number of accumulation steps.
    loss_is_scaled_for_ga = False

    def __init__(
        self,
        model: str | PathLike | InforMinModel,
        args: InforMinTrainingArguments | None = None,
        train_dataset=None,
        eval_dataset: GradedPairs | str | PathLike | None = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        data_collator=None,
        provenance: dict | None = None,
        **kwargs,
    ):
        args = InforMinTrainingArguments() if args is None else args
        refuse_arguments(model, args, processing_class, kwargs)
        self.known = dict(provenance or {})
        hub_id = self.known.pop("hub_id", None)
        if isinstance(model, str | PathLike):
            built = load_for_training(str(model), args, processing_class, hub_id)
            model, processing_class, self.known["base_model"] = built
        else:
            args.for_model(model.config.name_or_path or model.config.model_type, model.config)
        refuse_other_heads(model, {name: args.model_settings[name] for name in ("projection_head", "lm_head")})
        with args.main_process_first(desc="data"):
            rows, described = training_rows(train_dataset, processing_class, args.max_seq_length)
        if described:
            self.known["data"] = described | (self.known.get("data") or {})
        refuse_few_sentences(rows, args)
        pairs = as_pairs(eval_dataset)
        self._prepare(model, args, processing_class)
        self._step_values: dict[str, Tensor] = {}  # of the newest forward pass
        self._summed_values: dict[str, Tensor] = {}  # since the last log line
        self._summed_steps = 0
        self.throughput = Throughput()
        super().__init__(
            model=model,
            args=args,
            train_dataset=rows,
            eval_dataset=pairs,
            processing_class=processing_class,
            data_collator=data_collator or DataCollatorWithPadding(processing_class),
            **kwargs,
        )
        for callback in (PrinterCallback, ProgressCallback):
            if self.pop_callback(callback):
                self.add_callback(Screen(pairs and pairs.name, partial(headline, self)))
        self.add_callback(AfterStep())
        self.add_callback(self.throughput)

    def _prepare(self, model: InforMinModel, args: InforMinTrainingArguments, tokenizer) -> None:
        """The terms, the heads that they need, and an encoder that gives what they read."""
        model.config.informin = args.model_settings
        self.terms = args.terms
        self._map_layers = sorted({layer for term in self.terms for layer in term.map_layers(model.config)})
        self._stack_views = StackedViews(tokenizer, next((term.masking for term in self.terms if term.masking), None))
        fill_heads(model, self.terms)
        # A masked copy has the encoder's own dropout.
        rates = args.view_dropout and [*args.view_dropout, None][: self._stack_views.copies]
        attentions = ARCHITECTURES[model.config.model_type].attentions(model.base_model)
        prepare_encoder(model.base_model, attentions, rates, self._map_layers)
        refuse_without_dropout(model.base_model)  # heads have their own

    def get_batch_samples(self, epoch_iterator: Iterator, num_batches: int, device: torch.device):
        """The batches of one optimizer step, each stacked into two views and, where one is asked for, a masked copy."""
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        args, step = self.args, self.state.global_step
        seeds = [mask_seed(args.seed, step, micro_step, args.process_index) for micro_step in range(len(batches))]
        return [self._stack_views(batch, seed) for batch, seed in zip(batches, seeds)], None

    def compute_loss(self, model, inputs: dict[str, Tensor], return_outputs=False, num_items_in_batch=None):
        """The weighted sum of the terms, from one forward pass over rows that `StackedViews` made."""
        labels = inputs.get("lm_labels")
        outputs = model(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            lm_mask=None if labels is None else labels != IGNORED,
            output_attentions=bool(self._map_layers),
            views={"sentence_ids": inputs["sentence_ids"], "gather": gather_with_gradient},
        )
        views = two_views(outputs, inputs)
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
        """Trainer's, then a look at the loss before any weight changes.

        NonFiniteLossError: the loss is NaN or infinite.
        """
        loss = super().training_step(model, inputs, num_items_in_batch)
        if not torch.isfinite(loss):
            terms = ", ".join(f"{name} {term.item():.4g}" for name, term in self._step_values.items())
            saved = complete_checkpoints(self.args.output_dir)
            good = f"The last good checkpoint is {saved[-1]}." if saved else "No checkpoint was saved before it."
            raise NonFiniteLossError(
                f"The loss is {loss.item()} at step {self.state.global_step + 1} ({terms}). {good} A lower "
                "`learning_rate`, warm-up (`warmup_steps` 0.1), or fp32 instead of fp16 usually helps."
            )
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
        """[CLS] embeddings (N, d) of N sentences; every process encodes its share and gets all."""
        own = list(sentences)[self.args.process_index :: self.args.world_size]
        with self.accelerator.autocast():
            embeddings = encode(self.model, self.processing_class, own, self.args.per_device_eval_batch_size)["cls"]
        if self.args.world_size == 1:
            return embeddings
        padded = self.accelerator.pad_across_processes(torch.from_numpy(embeddings).to(self.args.device))
        gathered = self.accelerator.gather(padded).cpu().numpy()  # process after process
        shares = gathered.reshape(self.args.world_size, -1, gathered.shape[-1]).swapaxes(0, 1)
        return shares.reshape(-1, gathered.shape[-1])[: len(sentences)]

    def evaluate(
        self,
        eval_dataset: GradedPairs | str | PathLike | None = None,
        ignore_keys=None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Spearman, alignment and uniformity of graded pairs, or of a file of them, as `score_pairs` has them.

        NaN, and said, where undefined.
        """
        start = time.perf_counter()
        pairs = as_pairs(eval_dataset) or self.eval_dataset
        if pairs is None:
            raise UsageError("There are no graded pairs to score: give `eval_dataset`.")
        try:
            scores = score_pairs(self.encode, pairs)
        except UndefinedScoreError as error:
            logger.warning(f"No score of {pairs.name} at step {self.state.global_step}: {error}.")
            scores = dict.fromkeys(SCORES, float("nan"))
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
