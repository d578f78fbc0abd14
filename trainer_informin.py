"""InforMinTrainer: the HuggingFace Trainer with two views of each sentence and losses on what they share."""

import logging
import time
from collections.abc import Iterator, Sequence
from functools import partial
from types import SimpleNamespace

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
from informin.encoders.encode import encode
from informin.encoders.loading import InforMinModel, refuse_other_heads, refuse_without_dropout
from informin.errors import NonFiniteLossError, UndefinedScoreError, counted
from informin.evaluation import GradedPairs, score_pairs
from informin.objectives import attention_layers, check_tiles
from informin.publishing.trainer import PublishingTrainer
from informin.training.checkpoints import complete_checkpoints
from informin.training.options import InforMinTrainingArguments
from informin.training.report import headline
from informin.training.resuming import ResumableTrainer
from informin.training.screen import Screen
from informin.training.sentences import refuse_few_sentences
from informin.views.attention import prepare_encoder
from informin.views.stacking import IGNORED, TokenMasker, mask_seed, stack_views, two_views

__all__ = ["InforMinTrainer", "InforMinTrainingArguments"]

logger = logging.getLogger(__name__)


class UpdateMomentum(TrainerCallback):
    """After each optimizer step the momentum encoder follows the encoder."""

    def on_optimizer_step(self, args, state, control, model=None, **kwargs):
        model.update_momentum()


class InforMinTrainer(ResumableTrainer, PublishingTrainer):
    """Trains BERT or RoBERTa by what two views of a sentence share: InforMin-CL, SimCSE, SCD, miCSE and their parts.

    Each sentence is read twice in one forward pass; dropout makes the two views differ. The loss is the weighted sum of
    the terms of `args.objective` (see `informin.objectives`), for InforMin-CL

        contrast + lambda reconstruction + beta mlm            (Chen et al., 2022, eq. 9; beta 0 by default)

    Every term is logged by name and unweighted beside the total. Evaluation scores graded pairs by the [CLS] vector, in
    the precision of training: `eval_spearman`, `eval_alignment`, `eval_uniformity`.

    Args:
        model: a `BertForInforMinCL` or `RobertaForInforMinCL` with the heads that `args.heads` names; `load_model`
            builds it. Where views have their own dropout, or attention maps are read, its attention is exchanged.
        args: the options, objective included.
        train_dataset: rows of `input_ids` and `attention_mask`, one sentence each.
        eval_dataset: graded pairs; None with `eval_strategy="no"`.
        processing_class: the tokenizer.
        provenance: what the trainer cannot see of the run; see `informin.publishing.record.provenance`.
        kwargs: callbacks, optimizers: as Trainer takes them.

    Raises:
        UsageError: no dropout, other heads than the objective's, an attention implementation without maps, layers that
            the model has not, fewer sentences than one batch or than the queue holds, or a last batch of 1.
    """

    # Our losses are means over a batch: Trainer is to divide them by the number of accumulation steps.
    loss_is_scaled_for_ga = False

    def __init__(
        self,
        model: InforMinModel,
        args: InforMinTrainingArguments,
        train_dataset,
        eval_dataset: GradedPairs | None = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        provenance: dict | None = None,
        **kwargs,
    ):
        refuse_other_heads(model, args.heads)
        refuse_few_sentences(train_dataset, args)
        self._map_layers = []
        if any(part.reads_maps for part in args.parts):
            self._map_layers = attention_layers(model.config.num_hidden_layers, args.ami_layers)
            check_tiles(len(self._map_layers), model.config.num_attention_heads, args.ami_form)
        self._copies = 3 if args.mlm_weight and not args.masked_views else 2
        rates = args.view_dropout and [*args.view_dropout, None][: self._copies]  # a masked copy has the encoder's own
        prepare_encoder(model.base_model, rates, self._map_layers)
        refuse_without_dropout(model.base_model)  # the momentum encoder has its own
        self.provenance = provenance or {}
        self._masker = TokenMasker(processing_class, args.mlm_probability) if args.mlm_weight else None
        self._step_terms: dict[str, Tensor] = {}  # of the newest forward pass
        self._summed_terms: dict[str, Tensor] = {}  # since the last log line
        self._summed_steps = 0
        self.seconds_aside = 0.0  # spent on evaluation and checkpoints, not on training
        super().__init__(
            model=model,
            args=args,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            data_collator=DataCollatorWithPadding(processing_class),
            **kwargs,
        )
        for callback in (PrinterCallback, ProgressCallback):
            if self.pop_callback(callback):
                self.add_callback(Screen(eval_dataset and eval_dataset.name, partial(headline, self)))
        if args.queue_size:
            self.add_callback(UpdateMomentum())

    def get_batch_samples(self, epoch_iterator: Iterator, num_batches: int, device: torch.device):
        """The batches of one optimizer step, each stacked into two views and, with MLM, the masked copy."""
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        args, step = self.args, self.state.global_step
        seeds = [mask_seed(args.seed, step, micro_step, args.process_index) for micro_step in range(len(batches))]
        return [stack_views(b, self._masker, s, args.masked_views) for b, s in zip(batches, seeds)], None

    def compute_loss(self, model, inputs: dict[str, Tensor], return_outputs=False, num_items_in_batch=None):
        """The weighted sum of the terms, from one forward pass over rows that `stack_views` made."""
        labels = inputs.get("mlm_labels")
        mlm_mask = None if labels is None else labels != IGNORED
        sentences = len(inputs["input_ids"]) // self._copies
        outputs = model(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            mlm_mask=mlm_mask,
            output_attentions=bool(self._map_layers),
            num_sentences=sentences,
            gather=gather_with_gradient,
        )
        unwrapped = self.accelerator.unwrap_model(model)
        views = two_views(outputs, inputs["attention_mask"][:sentences])
        if self.args.queue_size:
            ids = inputs["sentence_ids"]
            views.queue, views.same = unwrapped.queue, ids[:, None] == unwrapped.queue_ids  # (Q, d), (B, Q)
        if labels is not None:
            views.mlm_logits, views.mlm_labels = outputs.mlm_logits, labels[mlm_mask]
        terms = {}
        for part in (part for part in self.args.parts if part.loss):
            # An option that a term does not name is no attribute here: what is refused as unread is unread.
            terms |= part.loss(views, SimpleNamespace(**{name: getattr(self.args, name) for name in part.options}))
        loss = sum(weight * terms[name] for name, weight in self.args.term_weights.items())
        self._step_terms = {name: term.detach() for name, term in terms.items()}
        if self.args.queue_size:
            unwrapped.enqueue(gather_with_gradient(outputs.momentum_projection), gather_with_gradient(ids))
        return (loss, outputs) if return_outputs else loss

    def create_scheduler(self, num_training_steps: int, optimizer=None):
        """Trainer's, and a word where the learning rate never gets to its peak: papers' warm-ups are for long runs."""
        warmup = self.args.get_warmup_steps(num_training_steps)
        if warmup >= num_training_steps:
            logger.warning(
                f"The learning rate rises over {counted(warmup, 'step')} and the run has {num_training_steps}: it "
                f"never reaches {self.args.learning_rate}. Give a lower --warmup_steps."
            )
        return super().create_scheduler(num_training_steps, optimizer)

    def training_step(self, model, inputs, num_items_in_batch=None) -> Tensor:
        """Trainer's, then a look at the loss before any weight changes.

        Raises:
            NonFiniteLossError: the loss is NaN or infinite.
        """
        loss = super().training_step(model, inputs, num_items_in_batch)
        if not torch.isfinite(loss):
            terms = ", ".join(f"{name} {term.item():.4g}" for name, term in self._step_terms.items())
            saved = complete_checkpoints(self.args.output_dir)
            good = f"The last good checkpoint is {saved[-1]}." if saved else "No checkpoint was saved before it."
            raise NonFiniteLossError(
                f"The loss is {loss.item()} at step {self.state.global_step + 1} ({terms}). {good} A lower "
                "--learning_rate, warm-up (--warmup_steps 0.1), or fp32 instead of fp16 usually helps."
            )
        for name, term in self._step_terms.items():
            self._summed_terms[name] = self._summed_terms.get(name, 0) + term
        self._summed_steps += 1
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Trainer's, with the mean of every term since the last line beside the loss."""
        if "loss" in logs and self._summed_steps:
            means = torch.stack(list(self._summed_terms.values())) / self._summed_steps
            means = self.accelerator.reduce(means, reduction="mean")  # over processes
            logs.update(zip(self._summed_terms, means.tolist()))
            self._summed_terms, self._summed_steps = {}, 0
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
        self, eval_dataset: GradedPairs | None = None, ignore_keys=None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Spearman, alignment and uniformity of the graded pairs; see `score_pairs`. NaN, and said, where undefined."""
        start = time.perf_counter()
        pairs = eval_dataset if eval_dataset is not None else self.eval_dataset
        try:
            scores = score_pairs(self.encode, pairs)
        except UndefinedScoreError as error:
            logger.warning(f"No score of {pairs.name} at step {self.state.global_step}: {error}.")
            scores = dict.fromkeys(("spearman", "alignment", "uniformity"), float("nan"))
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in scores.items()}
        metrics[f"{metric_key_prefix}_runtime"] = time.perf_counter() - start
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        self.seconds_aside += time.perf_counter() - start
        return metrics

    def _save_checkpoint(self, model, trial) -> None:
        start = time.perf_counter()
        super()._save_checkpoint(model, trial)
        self.seconds_aside += time.perf_counter() - start
