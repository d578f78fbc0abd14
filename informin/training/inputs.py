"""Check and load the inputs of a trainer: its arguments, the model and its tokenizer, the sentences."""

from functools import partial
from os import PathLike
from typing import Any

import datasets
import torch
from transformers import PreTrainedTokenizerBase, set_seed

from informin.errors import UsageError
from informin.models.architectures import InforMinModel
from informin.models.checkpoint import Checkpoint
from informin.models.embedding_config import embedding_of, lower_case
from informin.models.loading import load_model, load_tokenizer
from informin.models.st_model import StModel, describe_object, is_sentence_transformer, load_st_model
from informin.models.tokenizer import pad_right
from informin.training.backends import describe_encoder, is_general
from informin.training.given_data import as_data
from informin.training.lengths import fitting_length, token_counts, warn_of_truncation
from informin.training.options import InforMinTrainingArguments
from informin.training.record import describe_general, describe_model
from informin.training.sentences import draw_sample, tokenize_and_count
from informin.training.streams import own_share

# Arguments of Trainer that InforMinTrainer does not support, with the reason and what to do instead.
REFUSED = {
    "compute_metrics": ("there are no labels to compare predictions with", "Override `evaluate` instead."),
    "preprocess_logits_for_metrics": ("evaluation encodes sentences and computes no logits", None),
    "compute_loss_func": ("the objective defines the loss", "Add a loss to informin/objectives instead."),
    "model_init": ("the model is built only once", "Create one trainer per trial instead."),
}


def checked_model(model: Any, args: InforMinTrainingArguments, tokenizer: object, kwargs: dict) -> Any:
    """Return the model that InforMinTrainer was given, a name as its `Checkpoint`.

    Raises:
        UsageError: An argument has the wrong type or is not supported.
    """
    if not isinstance(model, str | PathLike | Checkpoint | InforMinModel | StModel) and not is_sentence_transformer(
        model
    ):
        raise UsageError(
            f"is a {type(model).__name__}",
            option="model",
            needed="the name of an encoder, a SentenceTransformer, or a model from `load_model`",
        )
    if isinstance(model, InforMinModel) and tokenizer is None:
        raise UsageError("is missing", option="processing_class", needed="the tokenizer of the given model")
    if not isinstance(args, InforMinTrainingArguments):
        raise UsageError(f"is a {type(args).__name__}", option="args", needed="InforMinTrainingArguments")
    for name, (reason, instead) in REFUSED.items():
        if kwargs.get(name) is not None:
            raise UsageError(f"is not supported: {reason}", option=name, fix=instead)
    return Checkpoint(model, args.model_revision) if isinstance(model, str | PathLike) else model


def load_for_training(
    model: Checkpoint | InforMinModel,
    args: InforMinTrainingArguments,
    tokenizer: PreTrainedTokenizerBase | None,
    hub_id: str | None,
) -> tuple[InforMinTrainingArguments, InforMinModel | StModel, PreTrainedTokenizerBase, dict | None]:
    """Return the arguments resolved for the model, the model, its tokenizer, and its entry in training.json.

    Args:
        model: Files of the encoder; a SentenceTransformer; or a loaded model, which has no entry.
        args: Arguments of the run.
        tokenizer: Tokenizer; None for the encoder's own.
        hub_id: Hub id of an encoder that is a local folder.
    """
    if is_sentence_transformer(model):
        args = args.resolve("model", *describe_object(model))
        return args, *_load_general(model, args, None)
    if not isinstance(model, Checkpoint):
        assert tokenizer is not None  # see `checked_model`
        name = model.config.name_or_path or model.config.model_type
        return args.resolve(name, model.config, embedding_of(model)), model, pad_right(tokenizer), None
    config, embedding = describe_encoder(model, args)
    args = args.resolve(model.name, config, embedding)
    if is_general(config):
        return args, *_load_general(model, args, hub_id)
    tokenizer = pad_right(tokenizer) if tokenizer else load_tokenizer(model)
    set_seed(args.seed)  # for newly initialized heads
    loaded = load_model(model, args.model_settings, args.embedding)
    lower_case(tokenizer, embedding_of(loaded))
    return args, loaded, tokenizer, describe_model(model, loaded, tokenizer, hub_id)


def _load_general(
    model: object, args: InforMinTrainingArguments, hub_id: str | None
) -> tuple[StModel, PreTrainedTokenizerBase, dict | None]:
    """Load a SentenceTransformer; see `load_for_training`."""
    assert args.embedding is not None  # see `resolve`
    set_seed(args.seed)  # for newly initialized low-rank matrices
    loaded = load_st_model(
        model,
        args.embedding,
        trust_remote_code=args.trust_remote_code,
        code_revision=args.code_revision,
        train_dense=args.train_dense,
        lora=args.lora,
        dtype=torch.bfloat16 if args.bf16 else torch.float32,
        settings={name: value for name, value in args.model_settings.items() if name != "prompt"},
    )
    if not any(module.__class__.__name__ == "Dense" for module in loaded.st) and not args.train_dense:
        raise UsageError("is false, but the model has no Dense module", option="train_dense", fix="Leave it out.")
    entry = None
    if isinstance(model, Checkpoint):
        entry = describe_general(model, loaded.encoder.files_sha256, hub_id)
    return loaded, loaded.tokenizer, entry


def settings_in_training(model: InforMinModel | StModel, args: InforMinTrainingArguments) -> dict:
    """Return `config.informin` for a model in training: options of the run, pooling and prompts.

    Raises:
        UsageError: The model was built with another `view_dropout_rate`.
    """
    built = model.config.informin
    if (rate := built.get("view_dropout_rate")) != args.view_dropout_rate:
        raise UsageError(
            f"is {args.view_dropout_rate}, and the model was built with {rate}",
            option="view_dropout_rate",
            fix="Load the model with informin.models.loading.load_model and `args.model_settings`.",
        )
    assert args.embedding is not None  # see `resolve`
    kept = {name: built[name] for name in ("dropouts",) if name in built}
    options = {name: value for name, value in args.model_settings.items() if name != "prompt"}
    return options | args.embedding.settings | kept


def training_rows(
    data, tokenizer: PreTrainedTokenizerBase, args: InforMinTrainingArguments, longest: int
) -> tuple[object, datasets.Dataset | datasets.IterableDataset | None]:
    """Return tokenized rows with `input_ids` and `attention_mask`, and the sentences, None for rows without text.

    Args:
        data: See `as_data`. Tokenized rows are returned unchanged.
        tokenizer: Tokenizer of the encoder.
        args: Arguments of the run. If `max_seq_length` is None, it is set to a length that fits the sentences.
        longest: Maximum number of tokens that the encoder accepts.
    """
    data, sentences = as_data(data)
    if sentences is not None:
        sentences = draw_sample(sentences, args.max_train_samples, args.seed)
    prompt = args.prompt or ""
    counts = partial(token_counts, sentences, tokenizer, prompt)
    if args.max_seq_length is None:
        args.max_seq_length = fitting_length([] if sentences is None else counts(), longest)
    rows = data if sentences is None else sentences
    if isinstance(rows, datasets.IterableDataset):
        rows = own_share(rows, args)
    if sentences is not None:
        rows, cut = tokenize_and_count(rows, tokenizer, args.max_seq_length, prompt)
        if args.process_index == 0:
            warn_of_truncation(cut, None if cut is None else len(rows), counts, args.max_seq_length, longest)
    return rows, sentences
