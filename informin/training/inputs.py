"""Check and load the inputs of a trainer: its arguments, the model and its tokenizer, the sentences."""

from functools import partial
from os import PathLike
from typing import Any

import datasets
from transformers import PreTrainedTokenizerBase

from informin.errors import UsageError
from informin.models.architectures import InforMinModel
from informin.models.checkpoint import Checkpoint
from informin.models.open_model import is_model
from informin.training.given_data import as_data
from informin.training.lengths import fitting_length, token_counts, warn_of_truncation
from informin.training.options import InforMinTrainingArguments
from informin.training.sentences import draw_sample, tokenize_and_count
from informin.training.streams import stream_share

# Arguments of Trainer that InforMinTrainer does not support, with the reason and what to do instead.
REFUSED = {
    "compute_metrics": (
        "there are no predictions to compare with labels",
        "Give `eval_dataset` a function: it gets an `encode` function, and returns scores by name.",
    ),
    "preprocess_logits_for_metrics": ("evaluation encodes sentences and computes no logits", None),
    "compute_loss_func": ("the objective defines the loss", "Add a loss to informin/objectives instead."),
    "model_init": ("the model is built only once", "To compare settings over seeds, use `informin study`."),
}


def checked_model(model: Any, args: InforMinTrainingArguments, tokenizer: object, kwargs: dict) -> Any:
    """Return the model that InforMinTrainer was given, a name as its `Checkpoint`.

    Raises:
        UsageError: An argument has the wrong type or is not supported.
    """
    if not is_model(model):
        raise UsageError(
            f"is a {type(model).__name__}",
            option="model",
            needed="the name of an encoder, a SentenceTransformer, or a model from `load_trainable`",
        )
    if isinstance(model, InforMinModel) and tokenizer is None:
        raise UsageError("is missing", option="processing_class", needed="the tokenizer of the given model")
    if not isinstance(args, InforMinTrainingArguments):
        raise UsageError(f"is a {type(args).__name__}", option="args", needed="InforMinTrainingArguments")
    for name, (reason, instead) in REFUSED.items():
        if kwargs.get(name) is not None:
            raise UsageError(f"is not supported: {reason}", option=name, fix=instead)
    return Checkpoint(model, args.model_revision) if isinstance(model, str | PathLike) else model


def settings_in_training(model: Any, args: InforMinTrainingArguments) -> dict:
    """Return `config.informin` for a model in training: options of the run, pooling and prompts.

    Raises:
        UsageError: The model was built with another `view_dropout_rate`.
    """
    built = model.config.informin
    if (rate := built.get("view_dropout_rate")) != args.view_dropout_rate:
        raise UsageError(
            f"is {args.view_dropout_rate}, and the model was built with {rate}",
            option="view_dropout_rate",
            fix="Load the model with informin.models.native_loading.load_trainable and `args.model_settings`.",
        )
    assert args.embedding is not None  # see `resolve`
    kept = {name: built[name] for name in ("dropouts",) if name in built}
    options = {name: value for name, value in args.model_settings.items() if name != "prompt"}
    return options | args.embedding.settings | kept


def training_rows(
    data,
    tokenizer: PreTrainedTokenizerBase,
    args: InforMinTrainingArguments,
    longest: int,
    text_column: str | None = None,
) -> tuple[object, datasets.Dataset | datasets.IterableDataset | None]:
    """Return tokenized rows with `input_ids` and `attention_mask`, and the sentences, None for rows without text.

    Args:
        data: See `as_data`. Tokenized rows are returned unchanged.
        tokenizer: Tokenizer of the encoder.
        args: Arguments of the run. If `max_seq_length` is None, it is set to a length that fits the sentences.
        longest: Maximum number of tokens that the encoder accepts.
        text_column: See `as_data`.
    """
    data, sentences = as_data(data, text_column)
    if sentences is not None:
        stream = isinstance(sentences, datasets.IterableDataset)
        if stream and args.max_train_samples is not None and args.dataloader_num_workers > 1:
            # Each worker reads an equal part of the sample, of which it may not have enough.
            fix = "Set `dataloader_num_workers` to 0 or 1."
            raise UsageError("of a stream cannot be read by several workers", option="max_train_samples", fix=fix)
        sentences = draw_sample(sentences, args.max_train_samples, args.seed)
    elif args.max_train_samples is not None:
        raise UsageError("has no effect on tokenized rows", option="max_train_samples", fix="Draw the sample before.")
    prompt = args.prompt or ""
    counts = partial(token_counts, sentences, tokenizer, prompt)
    if args.max_seq_length is None:
        args.max_seq_length = fitting_length([] if sentences is None else counts(), longest)
    rows = data if sentences is None else sentences
    if isinstance(rows, datasets.IterableDataset):
        rows = stream_share(rows, args)
    if sentences is not None:
        rows, cut = tokenize_and_count(rows, tokenizer, args.max_seq_length, prompt)
        if args.process_index == 0:
            warn_of_truncation(cut, None if cut is None else len(rows), counts, args.max_seq_length, longest)
    return rows, sentences
