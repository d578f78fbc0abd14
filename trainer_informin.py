"""InforMinTrainer: a Hugging Face Trainer that trains sentence embeddings on two views of each sentence."""

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, cast

import datasets
import numpy as np
import torch
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.state import AcceleratorState, is_initialized
from accelerate.utils import TorchDynamoPlugin, recursively_apply
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset, Sampler
from transformers import (
    DataCollator,
    PreTrainedTokenizerBase,
    PrinterCallback,
    ProgressCallback,
    Trainer,
    TrainerCallback,
)
from transformers.trainer import DEFAULT_PROGRESS_CALLBACK, SCHEDULER_NAME
from transformers.trainer_pt_utils import LengthGroupedSampler
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, HubStrategy, SchedulerType, TrainOutput, has_length
from transformers.training_args import OptimizerNames
from transformers.utils import is_in_notebook

from informin.distributed import (
    first_of_machine_first,
    gather_objects,
    gather_shares,
    rank,
    world_size,
)
from informin.errors import UsageError, counted, error_line
from informin.evaluation.development import as_development
from informin.fast.threads import one_thread
from informin.files import damage, set_usual_modes
from informin.model.embedding import encode, encode_in_shares, note_truncated
from informin.model.lora import merged
from informin.model.open import embeddings_of_tokens
from informin.model.records import RunRecord
from informin.objectives.presets import Encoder, Objective, as_preset
from informin.objectives.term import Term
from informin.options import with_home
from informin.publishing.card import license_of, write_card
from informin.publishing.export import export_model
from informin.publishing.push import Destination, prepare, push_checkpoint, push_folder
from informin.publishing.report import write_training_report
from informin.texts import as_texts
from informin.training import checkpoints
from informin.training.arguments import (
    FIRST,
    InforMinTrainingArguments,
    check_sentences,
    check_terms,
    with_metric,
    with_paper_values,
)
from informin.training.batch import (
    PadRows,
    StackedViews,
    TokenTables,
    check_batch,
    names_to_read,
    on_device,
    step_seed,
)
from informin.training.callbacks import (
    TERM,
    AfterStep,
    FirstStepRatios,
    LogShortRuns,
    LossWatch,
    NotebookProgress,
    Progress,
    SeedProcesses,
    Throughput,
)
from informin.training.data import GroupedByLength, rows_sha256, stream_loader, training_rows
from informin.training.guide import add_guide
from informin.training.inputs import explains_keywords, keyword_here
from informin.training.model import TrainedModel
from informin.training.objective import ActiveObjective, activate
from informin.training.plain import forward, two_views, weighted_losses
from informin.training.record import (
    development_facts,
    drift_of_run,
    headline,
    of_given_optimizer,
    of_given_scheduler,
    options_of,
    run_facts,
    scores_of,
    summary,
)
from informin.views import View
from informin.views.view import SentenceTokens
from modeling_informin import InforMinMixin

__all__ = ["InforMinTrainer", "InforMinTrainingArguments"]

logger = logging.getLogger(__name__)


@explains_keywords(keyword_here)
class InforMinTrainer(Trainer):
    """Train sentence embeddings on unlabeled text with InforMin-CL, another published objective, or a custom loss.

    Each sentence is encoded twice in one forward pass, or once if the objective needs only one view. By default, the
    two views differ only by dropout (see `view`). The loss is the weighted sum of the terms of the objective (see
    `informin.objectives`); for InforMin-CL, eq. 9 of Chen et al. (2022). The total is logged as loss, and each
    unweighted term as terms/NAME. Evaluation scores sentence pairs, labeled sentences and retrieval pairs, logged as
    eval_MEASURE (see `informin.evaluation.measures`).

    Seven private methods of Trainer are overridden, each with the reason in its docstring.

    Args:
        model: Encoder to train: a Hub id, a folder, a SentenceTransformer, a BertForInforMinCL or a
            RobertaForInforMinCL. If you pass a model object, the trainer works on a copy with shared weights. Training
            updates these weights, and converts them to float32 on the device of the run. With LoRA, they do not change.
            Heads are newly initialized.
        args: Training arguments. The trainer uses a copy if it has to fill in the paper's values, the output folder or
            the metric, and otherwise this object.
        data_collator: Turns a list of rows into a batch. None pads to the longest row. This position also accepts the
            sentences, followed by the evaluation data: `InforMinTrainer(model, args, sentences, pairs)`.
        train_dataset: Sentences (a list or another iterable, a dataset with a column of sentences, a `DatasetDict`, a
            stream), or tokenized rows with `input_ids` and `attention_mask`.
        eval_dataset: `GradedPairs`, `LabeledSentences`, `Collection`, a dataset with their columns, the path of a file
            of pairs, a function from `encode` to scores, an evaluator of sentence-transformers, or a list or a
            dictionary of these; see `informin.evaluation.development.as_development`. With None, nothing is evaluated.
        processing_class: Tokenizer. None uses the encoder's own.
        callbacks, optimizers, optimizer_cls_and_kwargs: As in Trainer.
        objective: The name of a preset such as "simcse" (`informin.objectives.PRESETS` lists all of them), a term, or a
            list of terms such as `[Contrast(temperature=0.05)]` (see `informin.objectives.Term`). None uses
            `args.objective`.
        view: How the two views of a sentence are made, such as `Crop(min_fraction=0.3)`. None uses `args.view`.
        text_column: Column of the sentences in `train_dataset`. Default: `text`, `sentence`, or the only column. With
            the view `Pair`, two columns, such as ("title", "body"). Default: `anchor` and `positive`, or the only two.
        provenance: Facts for training.json that the trainer cannot derive; see `informin.training.record.provenance`.

    Attributes:
        model: What is trained: encoder, pooling and the heads of the terms. Its forward returns `InforMinOutput`.
        trained: The model with its tokenizer and prompt, how it was opened, the finished model that shares its weights,
            and the model before training.
        objective, terms: The objective of the run, and its terms.
        sentences: The sentences, and where they come from.
        facts: Facts about the run in training.json: data, base model, versions, machine, drift.

    Raises:
        UsageError: The encoder cannot do what the objective needs, there are too few sentences for a batch or a term,
            or the model or the data has an unsupported type.
    """

    # The losses are means over a batch, so Trainer must divide them by the number of accumulation steps.
    loss_is_scaled_for_ga = False

    args: InforMinTrainingArguments
    model: Any
    eval_dataset: Any
    hub_model_id: Any
    optimizer: Any
    lr_scheduler: Any
    trained: TrainedModel
    facts: dict[str, Any]
    objective: ActiveObjective
    terms: list[Term]
    _created_optimizer = False  # whether the optimizer is that of `optim`, and was not given
    _hub: Destination | None = None  # where to push
    _operations: int | None = None  # floating-point operations per token
    neftune_hook_handle: Any = None  # of `neftune_noise_alpha`, since the first call of `train`
    _chosen_step: int | None = None  # of the best checkpoint, if its weights were loaded
    _gathered: TrainedModel | None = None  # with the weights after training, if FSDP shards them
    _optimizer_state: dict[str, Any] | None = None  # of a checkpoint that is not finished

    def __init__(
        self,
        model: str | Path | SentenceTransformer | InforMinMixin,
        args: InforMinTrainingArguments | None = None,
        data_collator: DataCollator | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        *,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[Optimizer | None, LambdaLR | None] = (None, None),
        optimizer_cls_and_kwargs: tuple[type[Optimizer], dict[str, Any]] | None = None,
        objective: Objective | None = None,
        view: View | None = None,
        text_column: str | Sequence[str] | None = None,
        provenance: dict[str, Any] | None = None,
    ):
        args = InforMinTrainingArguments() if args is None else args
        if data_collator is not None and not callable(data_collator):  # a collator is a function, sentences are not
            eval_dataset = eval_dataset if train_dataset is None else train_dataset
            data_collator, train_dataset = None, data_collator
        development = as_development(eval_dataset)
        self.trained = TrainedModel.open(model, args, processing_class)
        args = self._set_objective(args, objective, view)
        args = with_metric(args, development)
        check_terms(self.terms, self.objective.view, args)
        self.trained.build(args, self.objective)
        rows = self._read_sentences(train_dataset, args, text_column)
        facts = provenance or {}
        facts = facts if "license" in facts else facts | license_of(self.trained.source)
        self.facts = run_facts(args, self.objective, self.trained, self.sentences, facts) | {"inputs": self._checksums}
        tokenizer = self.trained.tokenizer
        if is_initialized() and AcceleratorState().mixed_precision != args.mixed_precision:
            AcceleratorState._reset_state()  # that of an earlier trainer, which TrainingArguments resets, too
        super().__init__(
            self.trained.model,
            args,
            train_dataset=rows,
            eval_dataset=development,
            processing_class=tokenizer,
            data_collator=data_collator or PadRows(tokenizer, self._columns_read),
            callbacks=callbacks,
            optimizers=optimizers,
            optimizer_cls_and_kwargs=optimizer_cls_and_kwargs,
        )
        self.background = checkpoints.Background()  # finishes the last checkpoint
        self.label_names = self._columns_read  # a step reads these columns, so Trainer must not remove them
        self._noted_truncation = False
        self._watch_training()

    def _set_objective(
        self, args: InforMinTrainingArguments, objective: Objective | None, view: View | None
    ) -> InforMinTrainingArguments:
        """Set the terms and the views of the run, and return the arguments with the values of the paper."""
        trained = self.trained
        encoder = Encoder(model_type=trained.architecture, width=trained.config.hidden_size)
        preset = as_preset(args.objective if objective is None else objective)
        self.objective = activate(preset, encoder, args.view if view is None else view, args.view_dropout)
        self.terms = self.objective.terms
        self._stack_views = StackedViews(
            SentenceTokens(trained.tokenizer, trained.prompt, trained.length, trained.embedding_width),
            masking=self.objective.masking,
            view=self.objective.view,
            encodes_once=self.objective.encodes_once,
        )
        args = with_paper_values(args, preset, encoder, trained.name)
        return self.objective.with_unused_parameters(args)

    def _read_sentences(
        self, train_dataset: Any, args: InforMinTrainingArguments, text_column: str | Sequence[str] | None
    ) -> Any:
        """Return the tokenized rows of the sentences, with what the terms need from a guide."""
        trained, preset = self.trained, self.objective.preset
        published = preset.max_seq_length and min(preset.max_seq_length, trained.length)
        wanted = published if args.max_seq_length is None else args.max_seq_length
        with first_of_machine_first(args):
            rows, self.sentences, self.max_seq_length = training_rows(
                train_dataset,
                trained.tokenizer,
                args,
                trained.prompt,
                longest=trained.length,
                vocabulary=embeddings_of_tokens(trained.finished[0]),
                length=wanted,
                text_column=text_column,
                columns=self.objective.view.columns,
            )
        trained.model.config.informin["max_seq_length"] = self.max_seq_length  # may depend on the sentences
        check_sentences(rows, args, self.terms)
        rows, self._add_general, self._checksums = add_guide(
            trained, args, self.terms, rows, self.sentences, self.max_seq_length
        )
        if self.sentences is None and (checksum := rows_sha256(rows, names_to_read(self.objective.view.columns))):
            self._checksums["tokenized rows"] = checksum
        self._columns_read = names_to_read(self.objective.view.columns, getattr(rows, "column_names", None) or [])
        return rows

    def _watch_training(self) -> None:
        """Add what measures and shows a run: its losses, gradient ratios, speed and progress."""
        self.loss_watch = LossWatch(self.args.device)
        self._step_values: dict[str, Tensor] = {}  # of the last forward pass
        has_whole_gradients = not (self.is_fsdp_enabled or self.is_deepspeed_enabled)
        self.gradient_ratios = FirstStepRatios(has_whole_gradients, reads_weights=not self.args.gradient_checkpointing)
        self.throughput = Throughput()
        for kind in (PrinterCallback, ProgressCallback, DEFAULT_PROGRESS_CALLBACK):
            self.remove_callback(kind)
        show = NotebookProgress if is_in_notebook() and not self.args.disable_tqdm else Progress
        self._progress = show(self.eval_dataset, self._headline, self.gradient_ratios.line)
        own = [self._progress, AfterStep(), LogShortRuns(), SeedProcesses(), checkpoints.EpochStart(), self.throughput]
        for callback in own:
            self.add_callback(callback)

    def _headline(self) -> str:
        """Return the line that describes the run when training begins."""
        data: Any = self.train_dataset
        preset, name, step = self.objective.preset, self.trained.name, self.state.global_step
        sentences = len(data) if hasattr(data, "__len__") else None
        return headline(self.args, preset, name, self.record().options, sentences, step)

    def create_optimizer(self, *args, **kwargs) -> torch.optim.Optimizer:
        """Create the optimizer, or check the given one.

        Raises:
            UsageError: It does not train the model, its package is not installed, or `optim_args` do not fit.
        """
        self._created_optimizer |= self.optimizer is None
        try:
            optimizer = super().create_optimizer(*args, **kwargs)
        except (ImportError, ValueError, TypeError, NotImplementedError) as error:
            if self.optimizer_cls_and_kwargs:  # not one of `optim`
                raise
            chosen = OptimizerNames(self.args.optim).value
            if self.args.optim_args:
                chosen += f" with `optim_args` {self.args.optim_args}"
            raise UsageError(f"is {chosen}, which cannot be used: {error_line(error)}", option="optim") from error
        model = args[0] if args else self.model
        trained = {name: id(weight) for name, weight in model.named_parameters() if weight.requires_grad}
        given = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
        if not trained:
            raise UsageError("All parameters of the model are frozen", fix="Set `requires_grad` of some to True.")
        left_out = [] if self.is_fsdp_enabled else [name for name, weight in trained.items() if weight not in given]
        fix = "Set `optim` and `learning_rate`, or build it on the parameters of `trainer.model`."
        if len(left_out) == len(trained):
            raise UsageError("trains no parameter of this model", option="optimizers", fix=fix)
        if left_out:  # such as a new head, if it was built on the parameters of the encoder
            left = f"{counted(len(left_out), 'parameter')} of the model, such as {left_out[0]}"
            logger.warning(f"The optimizer does not train {left}. {fix}")
        return optimizer

    def create_scheduler(self, num_training_steps: int, optimizer=None):
        """Create the scheduler. Warn if the warmup is longer than the run, as the papers' warmup often is.

        Raises:
            UsageError: `lr_scheduler_kwargs` do not fit.
        """
        warmup = self.args.get_warmup_steps(num_training_steps)
        if warmup >= num_training_steps:
            logger.warning(
                f"The warmup takes {counted(warmup, 'step')}, but the run has only {num_training_steps}. The learning "
                f"rate never reaches {self.args.learning_rate}. Set fewer `warmup_steps`."
            )
        try:
            return super().create_scheduler(num_training_steps, optimizer)
        except (ValueError, TypeError) as error:
            name = SchedulerType(self.args.lr_scheduler_type).value
            found = f"is {name}, which cannot be used: {error_line(error)}"
            raise UsageError(found, option="lr_scheduler_type", fix="Set `lr_scheduler_kwargs`.") from error

    # A training step

    def get_train_dataloader(self) -> DataLoader:
        """Return the data loader, whose batches stay on the CPU until they are stacked.

        Persistent workers get a separate random generator. They start only once, and in a resumed run at a different
        step, so drawing their seed from the global random state would change dropout.
        """
        rows: Any = self.train_dataset
        is_padded = isinstance(rows, datasets.Dataset) and isinstance(self.data_collator, PadRows)
        if is_padded and rows.format["type"] != "custom":  # that of a transform
            self.train_dataset = TokenTables(rows, self._columns_read)
        try:
            is_stream = isinstance(rows, datasets.IterableDataset)
            loader: Any = stream_loader(self) if is_stream else super().get_train_dataloader()
        finally:
            self.train_dataset = rows
        loader.device = None
        if self.args.dataloader_persistent_workers:
            loader.base_dataloader.generator = torch.Generator()
        return loader

    def _get_train_sampler(self, train_dataset: Dataset | None = None) -> Sampler | None:
        """Return the sampler. Overridden because that of groups by length draws another order in each process."""
        sampler = super()._get_train_sampler(train_dataset)
        if isinstance(sampler, LengthGroupedSampler):
            seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
            return GroupedByLength(sampler.batch_size, sampler.lengths, seed)
        return sampler

    def get_batch_samples(self, epoch_iterator: Iterator, num_batches: int, device: torch.device):
        """Return the batches of one optimizer step, each stacked into two views and, for MLM, a masked copy.

        A run that resumed at its last step gets no batches, because Trainer would take one more step. An incomplete
        last step of a stream gets none either: Trainer would add its gradients to the first step of the next epoch, but
        checkpoints do not contain gradients.
        """
        step = self.state.global_step
        if 0 < self.state.max_steps <= step:
            self.control.should_training_stop = True
            return [], None
        with one_thread() if self.args.device.type == "cuda" else nullcontext():
            batches = super().get_batch_samples(epoch_iterator, num_batches, device)[0]
            if len(batches) < num_batches and not has_length(self.train_dataset):
                return [], None
            stacked = []
            for number, batch in enumerate(batches):
                check_batch(batch, self._columns_read)
                seed = step_seed(self.args.seed, step, number, self.args.process_index)
                rows = self._stack_views(batch, seed)
                if self._add_general:
                    rows = self._add_general(rows, seed)
                stacked.append(on_device(self.trained.split(rows), self.args.device))
        return stacked, None

    def compute_loss(self, model, inputs: dict[str, Any], return_outputs=False, num_items_in_batch=None):
        """Return the weighted sum of the terms, computed in one forward pass over the stacked views."""
        of_maps = next((term for term in self.terms if term.reads_maps), None)
        outputs = forward(model, inputs, reads_maps=of_maps is not None)
        if of_maps and not outputs.attentions:
            raise UsageError(
                "needs attention maps, but the model returned none",
                option=of_maps.option_name("weight"),
                fix="Use an encoder that returns attention maps in training, such as BERT.",
            )
        views = two_views(outputs, inputs)
        weighted, values = weighted_losses(self.terms, views)
        self._step_values = {f"{TERM}{name}": value for name, value in values.items()}
        self.gradient_ratios.measure(weighted, cast(Tensor, outputs.projection), len(views.z1), model)
        total: Any = sum(weighted.values())
        return (total, outputs) if return_outputs else total

    def training_step(self, model, inputs, num_items_in_batch=None) -> Tensor:
        """Compute the gradient of a batch, and collect its loss and terms.

        Raises:
            NonFiniteLossError: The loss is NaN or infinite. On a GPU it is checked for each log line, and before
                anything is saved or evaluated.
        """
        fast = self.trained.model.forward_pass  # None if `fast` is false
        with nullcontext() if fast is None else fast.masks_by_numpy(self.trained.model):
            loss = super().training_step(model, inputs, num_items_in_batch)
        self.throughput.sentences += len(inputs["sentence_ids"])
        self.loss_watch.add(self.state.global_step + 1, loss, self._step_values)
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log, and add the mean of every term since the last entry."""
        if "loss" in logs:
            logs.update(self.loss_watch.pop_means(self.accelerator))
        super().log(logs, start_time)

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Return the operations of a step, as Trainer does, but count the weights only once in a run."""
        tokens = inputs["input_ids"].numel()
        if self._operations is None:
            self._operations = super().floating_point_ops(inputs) // tokens
        return self._operations * tokens

    # Evaluation

    def encode(self, sentences: str | Iterable[str]) -> np.ndarray:
        """Return the embeddings (N, d) of N sentences, or (d,) of one string, with the training prompt.

        With several processes, each encodes a part. Under FSDP, the first encodes everything. All get the complete
        result.
        """
        if isinstance(sentences, str):
            return self.encode([sentences])[0]
        sentences = as_texts(sentences)
        if not self._noted_truncation:
            self._noted_truncation = note_truncated(self.trained.finished, sentences, self.trained.prompt)
        self._use_averages()
        size = self.args.per_device_eval_batch_size
        model = self.gathered.finished
        share = sentences[rank() :: world_size()]
        if self.is_fsdp_enabled:
            share = [] if rank() else sentences
        blocks = []
        self.loss_watch.check()
        with checkpoints.leaving_on_signal(self) as leave_if_received, self.accelerator.autocast():
            for start in range(0, max(1, len(share)), 16 * size):
                texts = share[start : start + 16 * size]
                blocks.append(encode(model, texts, prompt=self.trained.prompt, batch_size=size))
                leave_if_received()
        own = np.concatenate(blocks)  # after the block: a signal may end it early
        return gather_objects(own)[0] if self.is_fsdp_enabled else gather_shares(own, len(sentences))

    def _use_averages(self) -> None:
        """Set the weights to those that the optimizer evaluates, such as the averages of a schedule-free one.

        The next training step sets them back.
        """
        if isinstance(self.optimizer, AcceleratedOptimizer):
            self.optimizer.eval()

    def predict(self, *args, **kwargs) -> Any:
        """Raise UsageError, because this trainer makes no predictions."""
        raise UsageError("`predict` has no labels to predict", fix="Call `encode` for embeddings, or `evaluate`.")

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix: str = "eval") -> dict[str, float]:
        """Return the scores on the evaluation data. An undefined score is NaN, and a warning is logged.

        Args:
            eval_dataset: As in the constructor; None uses the trainer's own.
            ignore_keys: Ignored.
            metric_key_prefix: Prefix of the scores' names.

        Raises:
            UsageError: There is no evaluation data, a score is named runtime, or the run's own scores lack
                `metric_for_best_model`.
        """
        start = time.perf_counter()
        development = as_development(eval_dataset) or self.eval_dataset
        if development is None:
            raise UsageError("is missing", option="eval_dataset", fix="Pass it to `evaluate` or to the trainer.")
        scores, problems = development.score(self.encode)
        if "runtime" in scores:  # which the log has for the duration
            raise UsageError("has a score with the name runtime", option="eval_dataset", needed="another name")
        for name, problem in problems.items():
            logger.warning(f"No score of {name} at step {self.state.global_step}: {problem}.")
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in scores.items()}
        is_of_run = self.is_in_train and eval_dataset is None and metric_key_prefix == "eval"  # not of a callback
        if is_of_run:
            if self.args.metric_for_best_model == FIRST:
                self.args.metric_for_best_model = next(iter(metrics))
            wanted = f"eval_{str(self.args.metric_for_best_model).removeprefix('eval_')}"
            if wanted not in metrics and self.args.metric_for_best_model:
                raise UsageError(f"is {wanted}", option="metric_for_best_model", needed=f"one of {', '.join(metrics)}")
        metrics[f"{metric_key_prefix}_runtime"] = time.perf_counter() - start
        self._progress.development = development  # which may be other data than before
        self.log(metrics)
        if not is_of_run:
            self.state.log_history[-1]["outside_training"] = True  # maybe on other data
        is_due = self.is_in_train and self.control.should_evaluate
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        if not is_of_run:
            self.control.should_evaluate |= is_due  # the handler clears it, but the run has not been evaluated
        return metrics

    # Training and resuming

    def train(self, resume_from_checkpoint: str | bool | None = None, *args, **kwargs) -> TrainOutput:
        """Train the model. A resumed run needs the same settings, and gives the same weights as an uninterrupted one.

        A second call without a checkpoint continues from the weights of the first one, with a warning.

        Args:
            resume_from_checkpoint: Checkpoint folder; True or "last" for the latest complete one in the output folder.
                Default: that of the arguments.
            args, kwargs: See `Trainer.train`.

        Raises:
            UsageError: There is no checkpoint to resume from, or it belongs to another run.
            UsageError: The model could not be compiled (`torch_compile`), such as without a C++ compiler.
            NonFiniteLossError: A loss was NaN or infinite.
        """
        wanted = self.args.resume_from_checkpoint if resume_from_checkpoint is None else resume_from_checkpoint
        if wanted is None or wanted is False:
            checkpoints.raise_if_output_used(str(self.args.output_dir), allow_incomplete=True)
            if self.state.global_step:
                logger.warning(
                    f"The weights are those after {counted(self.state.global_step, 'step')} of an earlier call of "
                    "`train`. training.json and the model card will count only the steps of this call. Build another "
                    "trainer to start from the source model."
                )
            return self._train_from(None, *args, **kwargs)
        checkpoint = checkpoints.checkpoint_to_resume(str(self.args.output_dir), wanted)
        began = RunRecord.load(checkpoint)
        if began and self.args.metric_for_best_model == FIRST:
            self.args.metric_for_best_model = began.options.get("metric_for_best_model", "eval_spearman")
        checkpoints.check_same_run(checkpoint, self.record(), evaluates=self.args.eval_strategy != "no")
        checkpoints.check_same_order(checkpoint, self.args, has_size=has_length(self.train_dataset))
        resumed = checkpoints.ResumedRun(self, checkpoint)
        self.add_callback(resumed)
        evaluates_on_start = self.args.eval_on_start
        self.args.eval_on_start = False  # the checkpoint has the score before the first step
        try:
            return self._train_from(checkpoint, *args, **kwargs)
        finally:
            self.args.eval_on_start = evaluates_on_start
            self.remove_callback(resumed)

    def _train_from(self, checkpoint: Path | None, *args, **kwargs) -> TrainOutput:
        state = self.accelerator.state  # of all trainers in this process, set by the last one that was built
        state._mixed_precision = self.args.mixed_precision
        state.dynamo_plugin = TorchDynamoPlugin(self.args.torch_compile_backend, self.args.torch_compile_mode)
        if self.is_fsdp_enabled:
            self.trained.prepare_gathering()
        self._gathered = None
        self._chosen_step = None
        self.loss_watch.reset()
        try:
            result = super().train(None if checkpoint is None else str(checkpoint), *args, **kwargs)
        except checkpoints.EvaluationLeft:
            result = checkpoints.save_and_stop(self)
        except RuntimeError as error:
            if "Expected to have finished reduction" in str(error):  # of DDP
                raise UsageError(
                    "leaves weights without gradient, and DDP was not told so",
                    option="objective",
                    fix="Set `reads_projections = False` in terms that do not read `views.z1` and `views.z2`, or set "
                    "`ddp_find_unused_parameters`.",
                ) from error
            if not self.args.torch_compile or not isinstance(error, torch._dynamo.exc.TorchDynamoException):
                raise
            found = f"cannot be used here: {str(error).splitlines()[0]}"
            raise UsageError(found, option="torch_compile", fix="Leave it out.") from error
        finally:
            self.is_in_train = False  # Trainer leaves it True after an error, such as KeyboardInterrupt in a notebook
            if self.neftune_hook_handle is not None:  # Trainer leaves it, too, and the next call adds another
                self.neftune_hook_handle.remove()
            self.background.wait()
        self.loss_watch.check()
        self._gathered = self.gathered if self.trained.is_sharded else None
        is_stopped = any(
            isinstance(one, checkpoints.StopOnSignal) and one.received for one in self.callback_handler.callbacks
        )
        if self.state.global_step == 0 and not has_length(self.train_dataset) and not is_stopped:
            raise UsageError(
                "The stream has too few sentences for one step",
                fix="Add sentences, or lower `per_device_train_batch_size` or `gradient_accumulation_steps`.",
            )
        return result

    def _init_training_state(
        self, max_steps, num_update_steps_per_epoch, num_train_epochs, resume_from_checkpoint, trial
    ) -> tuple[int, int]:
        """Return the number of finished epochs, and of batches to skip in the current one.

        Overridden because Trainer treats a stream as one epoch of `max_steps`. Here an epoch is one pass over it.
        """
        lengths = (max_steps, num_update_steps_per_epoch, num_train_epochs)
        position = super()._init_training_state(*lengths, resume_from_checkpoint, trial)
        if resume_from_checkpoint is None or has_length(self.train_dataset):
            return position
        return checkpoints.position_in_stream(Path(resume_from_checkpoint), self.args)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        """Load the weights of a checkpoint. Overridden because a SentenceTransformer has its own format."""
        if self.is_fsdp_enabled or self.trained.is_native:
            super()._load_from_checkpoint(resume_from_checkpoint, model)
        else:
            self.trained.load(resume_from_checkpoint)

    def _finalize_training(self, *args, **kwargs) -> TrainOutput:
        """Finish the last checkpoint in every process. Overridden because Trainer then loads the best one."""
        self.background.wait()
        self.accelerator.wait_for_everyone()
        self._use_averages()  # before the weights of the best checkpoint replace them
        best, saved = self.state.best_global_step, self.state.best_model_checkpoint
        kept = checkpoints.step_of(Path(saved)) if saved else None
        if self.args.load_best_model_at_end and best and best != kept:
            weights = "last weights" if kept is None else f"weights of step {kept}"
            logger.warning(
                f"The best score is that of step {best}, which has no checkpoint. The {weights} are kept instead. Set "
                "`save_strategy` to best, or `save_steps` to `eval_steps`."
            )
        return super()._finalize_training(*args, **kwargs)

    def _load_best_model(self) -> None:
        """Load the best checkpoint if it is intact, else keep the last weights.

        Overridden because Trainer does not check the file, and a SentenceTransformer has its own format.
        """
        best = self.state.best_model_checkpoint
        problem = damage(best) if best else "its folder is unknown"
        if problem:
            logger.warning(f"The best checkpoint, {best}, is damaged ({problem}). The last weights are kept instead.")
            self.state.best_model_checkpoint = None
            return
        if self.is_fsdp_enabled or self.trained.is_native:
            super()._load_best_model()
        else:
            self.trained.load(str(best))
        self._chosen_step = checkpoints.step_of(Path(str(best)))

    # Checkpoints, export and report

    def record(self) -> RunRecord:
        """Return the record of the run so far, for training.json."""
        args, state = self.args, self.state
        given = of_given_optimizer(None if self._created_optimizer else self.optimizer, self.optimizer_cls_and_kwargs)
        given |= of_given_scheduler(None if self._created_lr_scheduler else self.lr_scheduler)
        is_stream = isinstance(self.train_dataset, datasets.IterableDataset)
        return RunRecord(
            options=options_of(args, self.objective, self.trained, given, is_stream),
            steps=state.global_step,
            kept_step=state.global_step if self._chosen_step is None else self._chosen_step,
            chosen=self._chosen_step is not None,
            history=scores_of(state.log_history),
            sentences_per_second=self.throughput.sentences_per_second,
            **development_facts(self.eval_dataset),
            **self.facts,
        )

    @property
    def gathered(self) -> TrainedModel:
        """`trained` with whole weights. If FSDP shards them, this is a copy on the CPU. In training, all processes must
        access it. After training, it is cached."""
        if not self.trained.is_sharded:
            return self.trained
        return self._gathered or self.trained.gathered(self.accelerator.get_state_dict(self.model))

    def _save_checkpoint(self, model: nn.Module, trial) -> None:
        """Save a checkpoint, and finish it in the background: see `finish_checkpoint`. Push the model.

        Overridden because Trainer has no hook between the writing of a checkpoint and the deletion of older ones.

        Raises:
            SaveError: It or the one before could not be written; its incomplete files are deleted.
            NonFiniteLossError: A loss since the last check was NaN or infinite.
        """
        self.loss_watch.check()
        self.background.wait()
        self._use_averages()
        folder = Path(str(self.args.output_dir), f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}")
        saved = self.state.best_model_checkpoint
        with checkpoints.unfinished_checkpoint(self, folder):
            super()._save_checkpoint(model, trial)
        # Trainer ignores the score of this checkpoint if a step without a checkpoint had a better one.
        checkpoints.set_best(self.state, self.args, [*([Path(saved)] if saved else []), folder])
        if self.args.should_save:
            finish = partial(
                checkpoints.finish_checkpoint,
                folder,
                optimizer=self._optimizer_state,
                limit=self.args.save_total_limit,
                best=self.state.best_model_checkpoint,
            )
            self.background.start(finish)
            self._optimizer_state = None  # is freed after it is written
        is_read = self.args.push_to_hub or any(map(checkpoints.reads_checkpoint, self.callback_handler.callbacks))
        if is_read or self.control.should_training_stop:
            self.background.wait()
        if self.args.push_to_hub and HubStrategy(self.args.hub_strategy) != HubStrategy.END:
            push_checkpoint(self._export, self._hub, self.state.global_step)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Write the scheduler, and copy the state of the optimizer, which `finish_checkpoint` writes.

        Overridden because it is the largest file, and Trainer would write it while training waits. All processes
        together write sharded states, as in Trainer.
        """
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            super()._save_optimizer_and_scheduler(output_dir)
        elif self.args.should_save:
            self._optimizer_state = recursively_apply(torch.Tensor.to, self.optimizer.state_dict(), "cpu", copy=True)
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir, SCHEDULER_NAME))

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the model, its tokenizer and training.json to a folder. Call it in every process."""
        folder = output_dir or str(self.args.output_dir)
        is_wrapped = self.is_fsdp_enabled or self.is_deepspeed_enabled
        state = self.accelerator.get_state_dict(self.model_wrapped) if is_wrapped else None
        if self.args.should_save:
            self.trained.gathered(state).save(folder, state)
            self.record().save(folder)
            set_usual_modes(folder)  # transformers copies the modeling file with its mode
        if self.args.push_to_hub and not _internal_call:
            self.push_to_hub("Model save")

    def export(self, folder: str | Path | None = None, report: bool = True) -> None:
        """Export the model to a folder, and print a report. Call it in every process.

        Args:
            folder: Folder to write; None for the output folder.
            report: Whether to write and print the report.

        Raises:
            SaveError: It could not be written; existing files are unchanged.
        """
        self._export(with_home(folder))
        if report:
            self.report(folder)

    def _export(self, folder: str | Path | None = None) -> None:
        """Write the exported model, by default to the output folder. Call it in every process."""
        trained = self.gathered  # needs all processes
        if not self.is_world_process_zero():
            return
        head = getattr(trained.model, "mlp", None)
        is_merged = trained.has_lora and self.args.lora_merge
        with merged(trained.finished) if is_merged else nullcontext():
            weights = None if head is None else head.state_dict()
            export_model(trained.finished, folder or str(self.args.output_dir), self.record(), head=weights)

    def create_model_card(self) -> None:  # type: ignore[override]  # its facts are those of training.json
        """Write the model card of the exported output folder again. Overridden because Trainer would replace the card.

        The arguments of `Trainer.create_model_card` are options here, such as `license` and `language`.
        """
        if self.is_world_process_zero():
            write_card(str(self.args.output_dir))

    def report(self, folder: str | Path | None = None, senteval_dir: str | None = None) -> None:
        """Measure the drift if `measure_drift` is set, write report.html, and print the scores and the speed.

        Call it in every process, after `export`.

        Args:
            folder: Exported folder; None for the output folder.
            senteval_dir: SentEval's data/downstream folder, for STS-B dev; None uses $SENTEVAL_DATA.
        """
        target = str(with_home(folder) or self.args.output_dir)
        changes = None
        if self.args.measure_drift:
            changes = drift_of_run(self.sentences, self.encode, self._encode_before, senteval_dir)
        if not self.is_world_process_zero():
            return
        drift, examples = changes or (None, None)
        if drift:
            self.facts["drift"] = drift
            self.record().save(target)
            write_card(target)
        history = self.state.log_history
        write_training_report(target, self.record(), history, examples or (), resumed_from=self.throughput.first_step)
        print("\n" + summary(target, self.args, self.state, self.record(), self.eval_dataset), flush=True)

    def _encode_before(self, texts: Sequence[str]) -> np.ndarray:
        """Return the embeddings (N, d) of N texts by the model before training, in the precision of training."""
        size = self.args.per_device_eval_batch_size
        with self.trained.before(self.args) as model, self.accelerator.autocast():
            return encode_in_shares(model, texts, prompt=self.trained.prompt, batch_size=size, title=None)

    def init_hf_repo(
        self,
        token: str | None = None,
        private: bool | None = None,
        revision: str | None = None,
        create_pr: bool = False,
    ) -> None:
        """Check that a push can succeed and create the repository.

        Raises:
            UsageError: A push cannot succeed; see `informin.publishing.push.prepare`. Or low-rank matrices of a local
                model would be pushed.
        """
        if self.is_world_process_zero():
            args = self.args
            base = self.facts["base_model"] or {}
            if args.lora_r and not args.lora_merge and not base.get("hub_id"):
                raise UsageError(
                    f"is false, and the source model {self.trained.name} is a local folder, which others do not have",
                    option="lora_merge",
                    fix="Merge the matrices, or set `base_model` to the Hub id of the source model.",
                )
            name = args.hub_model_id or Path(str(args.output_dir)).absolute().name
            private = args.hub_private_repo if private is None else private
            revision = revision or args.hub_revision
            self._hub = prepare(name, private, token or args.hub_token, revision, create_pr=create_pr)
            self.hub_model_id = self._hub.repo

    def push_to_hub(  # type: ignore[override]  # Trainer returns a CommitInfo; a push here has two commits
        self,
        commit_message: str | None = "End of training",
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        create_pr: bool = False,
    ) -> str | None:
        """Export the model, upload it with its card, and wait until the upload ends.

        Args:
            commit_message: Title of the commit.
            token: Hub token; None for `hub_token`.
            revision: An existing branch; None for `hub_revision`.
            private: Whether a new repository is private; None for `hub_private_repo`.
            create_pr: Open a pull request, also in a repository that you cannot write to.

        Returns:
            On the first process, the URL of the model page, or that of the pull request.

        Raises:
            PushError: The upload failed. The exported model is in the output folder.
        """
        usual, is_other = self._hub, token or private or revision or create_pr
        if usual is None or is_other:
            self.init_hf_repo(token, private, revision, create_pr)
        to = self._hub
        if is_other:
            self._hub = usual  # the options are those of this push alone
        self._export()
        if not self.is_world_process_zero() or to is None:
            return None
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        return push_folder(str(self.args.output_dir), to, commit_message or "End of training")
