"""What a trainer is given, and what it makes of it: arguments, model and tokenizer, sentences."""

from collections.abc import Mapping
from functools import partial
from os import PathLike

import datasets
from transformers import PreTrainedTokenizerBase, set_seed

from informin.encoders.architectures import InforMinModel
from informin.encoders.loading import load_config, load_model, load_tokenizer
from informin.encoders.usage import lower_case, usage_of_settings
from informin.errors import UsageError
from informin.training.lengths import fitting_length, token_counts, warn_of_truncation
from informin.training.options import InforMinTrainingArguments
from informin.training.record import describe_model
from informin.training.sentences import draw_sample, not_blank, tokenize_and_count
from informin.training.streams import own_share

# What Trainer takes and this one does not, and why.
REFUSED = {
    "compute_metrics": "there are no labels to compare predictions with; override `evaluate` to score otherwise",
    "preprocess_logits_for_metrics": "evaluation encodes sentences and looks at no logits",
    "compute_loss_func": "the loss is the objective's; a new one is a file in informin/objectives",
    "model_init": "the model is built once; make a trainer for each trial",
}


def refuse_arguments(model: object, args: object, tokenizer: object, kwargs: dict) -> None:
    """Raises UsageError for what cannot be trained, and for what Trainer takes and this one does not."""
    if not isinstance(model, str | PathLike | InforMinModel):
        raise UsageError(
            f"`model` is a {type(model).__name__}; needed the name of an encoder, or a model of "
            "informin.encoders.loading.load_model."
        )
    if isinstance(model, InforMinModel) and tokenizer is None:
        raise UsageError("`processing_class` is missing; a model that is built already needs its tokenizer.")
    if not isinstance(args, InforMinTrainingArguments):
        raise UsageError(f"`args` is a {type(args).__name__}; needed InforMinTrainingArguments, which it extends.")
    for name, reason in REFUSED.items():
        if kwargs.get(name) is not None:
            raise UsageError(f"`{name}` has no use here: {reason}.")


def load_for_training(
    model_name: str, args: InforMinTrainingArguments, tokenizer: PreTrainedTokenizerBase | None, hub_id: str | None
) -> tuple[InforMinTrainingArguments, InforMinModel, PreTrainedTokenizerBase, dict]:
    """Return the arguments resolved for the model, the model, its tokenizer, and its entry in training.json.

    Args:
        tokenizer: None for the model's own.
        hub_id: of a model that is a folder here.
    """
    revision = args.model_revision
    config = load_config(model_name, revision)
    args = args.resolve(model_name, config)
    tokenizer = tokenizer or load_tokenizer(model_name, config, revision)
    set_seed(args.seed)  # decides the weights of fresh heads
    model = load_model(config, model_name, args.model_settings, revision)
    lower_case(tokenizer, usage_of_settings(model.config.informin))
    return args, model, tokenizer, describe_model(model_name, model, tokenizer, revision, hub_id)


def settings_in_training(model: InforMinModel, args: InforMinTrainingArguments) -> dict:
    """`config.informin` of a model that is trained by these options: what they say, and how its checkpoint is used.

    Raises UsageError: it was built for another `view_dropout_rate`.
    """
    built = model.config.informin
    if (rate := built.get("view_dropout_rate")) != args.view_dropout_rate:
        raise UsageError(
            f"`view_dropout_rate` is {args.view_dropout_rate}, and the model was built with {rate}. Load it with "
            "informin.encoders.loading.load_model and `args.model_settings`."
        )
    usage = usage_of_settings(built).trained(args.pooler, args.prompt, args.export_prompt)
    kept = {name: built[name] for name in ("dropouts",) if name in built}
    options = {name: value for name, value in args.model_settings.items() if name != "prompt"}
    return options | usage.settings | kept


def training_rows(
    data, tokenizer: PreTrainedTokenizerBase, args: InforMinTrainingArguments, longest: int
) -> tuple[object, datasets.Dataset | datasets.IterableDataset | None]:
    """Rows of `input_ids` and `attention_mask` of what a trainer is given, and the sentences, where it has them.

    Args:
        data: a list of sentences, a data set with a column `text`, or such rows, which are taken as they are.
        args: where they leave `max_seq_length` open, it is filled in from the data.
        longest: the tokens that the encoder reads of a sentence.
    """
    sentences = as_sentences(data)
    if sentences is not None:
        sentences = draw_sample(sentences, args.max_train_samples, args.seed)
    counts = partial(token_counts, sentences, tokenizer, args.prompt)
    if args.max_seq_length is None:
        args.max_seq_length = fitting_length([] if sentences is None else counts(), longest)
    rows = data if sentences is None else sentences
    if isinstance(rows, datasets.IterableDataset):
        rows = own_share(rows, args)
    if sentences is not None:
        rows, cut = tokenize_and_count(rows, tokenizer, args.max_seq_length, args.prompt)
        if args.process_index == 0:
            warn_of_truncation(cut, None if cut is None else len(rows), counts, args.max_seq_length, longest)
    return rows, sentences


def as_sentences(data) -> datasets.Dataset | datasets.IterableDataset | None:
    """The sentences of a list, or of a data set with a column `text`, blank ones left out; None of tokenized rows.

    Raises UsageError: it is something else, or a list that holds something else.
    """
    if isinstance(data, list | tuple) and not (data and isinstance(data[0], Mapping)):
        wrong = [item for item in data if not isinstance(item, str)]
        if wrong:
            raise UsageError(f"The training sentences hold {wrong[0]!r:.60}; needed text, or a data set.")
        features = datasets.Features({"text": datasets.Value("string")})
        data = datasets.Dataset.from_dict({"text": list(data)}, features)
    if isinstance(data, str | PathLike | Mapping) or not (hasattr(data, "__iter__") or hasattr(data, "__getitem__")):
        raise UsageError(
            f"`train_dataset` is a {type(data).__name__}; needed a list of sentences, or a data set (of several splits "
            "one). informin.training.sentences.load_sentences reads files."
        )
    columns = getattr(data, "column_names", None) or ["input_ids"]
    if not {"text", "input_ids"} & set(columns):
        raise UsageError(f"`train_dataset` has the columns {', '.join(columns)}; needed text, or tokens as input_ids.")
    if "input_ids" in columns:
        return None
    sentences = data.select_columns("text")
    return sentences.select(not_blank(sentences)) if isinstance(sentences, datasets.Dataset) else sentences
