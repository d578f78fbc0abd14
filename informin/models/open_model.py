"""Open a model: the only place that decides whether it is native or a SentenceTransformer."""

import sys
from collections.abc import Sequence
from os import PathLike
from typing import Any

from transformers import PreTrainedTokenizerBase

from informin.errors import UsageError
from informin.models.architectures import InforMinModel, architecture_of
from informin.models.checkpoint import Checkpoint
from informin.models.embedding_config import EmbeddingConfig, embedding_of
from informin.models.files import NotNativeError
from informin.models.model import LoadOptions, Model
from informin.models.model_config import ENCODER, load_config
from informin.models.model_folder import SETTINGS_FILE, check_modules, check_paths
from informin.models.native import NativeModel
from informin.models.remote_code import refuse_remote_code
from informin.models.sentence_transformers_files import load_embedding_config
from informin.models.st import StModel
from informin.models.st_loading import POOLER
from informin.models.st_module import StConfig

BACKENDS = ("auto", "native", "st")
Source = Any  # a name, a Checkpoint, a Model, an InforMinModel, or a SentenceTransformer, which is an optional package


def load_model(
    model: Source,
    poolers: Sequence[str] = ("auto",),
    length: int | None = None,
    batch_size: int = 64,
    device: str | None = None,
    bf16: bool = False,
    revision: str | None = None,
    prompt: str | None = None,
    backend: str = "auto",
    trust_remote_code: bool = False,
    code_revision: str | None = None,
) -> Model:
    """Load an embedding model in float32 from a folder or the Hub.

    BERT-like encoders are native. Any other model that sentence-transformers can load becomes an `StModel`.

    Args:
        model: Hub id or folder, or its files if they were read before; a SentenceTransformer; or a `Model` with
            weights, which is returned as it is.
        poolers: Names from `encode.POOLERS`, or only `auto` for the pooling stored in the checkpoint. An `StModel` has
            its own pooling.
        length: Maximum number of tokens per text; None for the model's own maximum.
        batch_size: Texts per forward pass.
        device: Device to run on; None for a GPU if there is one.
        bf16: Use bfloat16 autocast.
        revision: Branch, tag or commit on the Hub.
        prompt: Text before every text; None for the model's default prompt, if it has one.
        backend: `native`, `st` for an `StModel`, or `auto`: native if possible, else an `StModel` if the model has a
            modules.json.
        trust_remote_code: Allow an `StModel` to run code in the model's repository.
        code_revision: Branch, tag or commit of that code on the Hub; None for `revision`.

    Raises:
        UsageError: The model or its tokenizer cannot be loaded, it does not support the pooling, `auto` is given and
            the model stores no pooling, the prompt leaves no room for a text, or the model needs sentence-transformers
            or its own code.
    """
    if isinstance(model, Model) and model.module is not None:
        return model
    if backend not in BACKENDS:
        raise UsageError(f"is {backend}", option="backend", needed=f"one of: {', '.join(BACKENDS)}")
    if batch_size < 1:
        raise UsageError(f"is {batch_size}", option="batch_size", needed="1 or more")
    if "auto" in poolers and len(poolers) > 1:
        raise UsageError(f"is {' '.join(poolers)}", option="pooler", needed="auto alone, or names without auto")
    how = LoadOptions(poolers, length, batch_size, device, bf16, prompt)
    code: dict = {"trusted": trust_remote_code, "code_revision": code_revision}
    if is_sentence_transformer(model):
        return in_memory(model).load(how)
    checkpoint = Checkpoint.of(model, revision)
    if backend == "st":
        return _as_st(checkpoint, **code).load(how)
    try:
        return _as_native(checkpoint, any_encoder=True).load(how)
    except NotNativeError as error:
        if backend == "native":
            raise
        if not checkpoint.has_modules:
            if error.needed != ENCODER or error.fix:
                raise
            fix = "To load it with the default pooling of sentence-transformers, set `backend` to st."
            raise NotNativeError(error.found, option=error.option, needed=ENCODER, fix=fix) from None
        return _as_st(checkpoint, reason=error, **code).load(how)


def open_model(model: Source, args: Any, tokenizer: PreTrainedTokenizerBase | None = None) -> Model:
    """Return a model to train, without weights unless it is in memory.

    Args:
        model: The files of a model; a SentenceTransformer; or a model of this project in memory.
        args: `InforMinTrainingArguments`, before `resolve`. With `backend` auto, a model with a modules.json that is
            not native, has modules or a pooling that are not native, or is trained with LoRA, becomes an `StModel`.
        tokenizer: Tokenizer of a model of this project in memory.

    Raises:
        UsageError: The model cannot be trained with this backend.
    """
    if not isinstance(model, Checkpoint):
        return in_memory(model, tokenizer)
    own_pooling = args.pooler == "auto"
    if args.backend == "st" or args.lora_r is not None:
        return _st_to_train(model, args)
    try:
        native = _as_native(model)
        if args.backend == "auto" and own_pooling and model.has_modules:
            if native.embedding.pooling is None and native.embedding.problem:
                raise NotNativeError(native.embedding.problem)
            architecture_of(native.config)
        return native
    except UsageError:
        if args.backend == "native" or not own_pooling or not model.has_modules or not _is_other_architecture(model):
            raise
    return _st_to_train(model, args)


def is_sentence_transformer(model: object) -> bool:
    """Return whether an object is a SentenceTransformer, without importing sentence-transformers."""
    library = sys.modules.get("sentence_transformers")
    return library is not None and isinstance(model, library.SentenceTransformer)


def is_model(model: object) -> bool:
    """Return whether `open_model` and InforMinTrainer accept an object or a name."""
    return isinstance(model, str | PathLike | Checkpoint | InforMinModel) or is_sentence_transformer(model)


def _as_native(checkpoint: Checkpoint, any_encoder: bool = False) -> NativeModel:
    config = load_config(checkpoint, any_encoder)
    return NativeModel(checkpoint.name, checkpoint, config, load_embedding_config(checkpoint, config))


def _as_st(checkpoint: Checkpoint, **code: Any) -> StModel:
    check_paths(checkpoint)
    values = checkpoint.json(SETTINGS_FILE)
    embedding = _prompts(values.get("prompts") or {}, values.get("default_prompt_name"))
    return StModel(checkpoint.name, checkpoint, StConfig(name_or_path=checkpoint.name), embedding, **code)


def _st_to_train(checkpoint: Checkpoint, args: Any) -> StModel:
    if args.pooler not in ("auto", POOLER):
        raise UsageError(
            f"is {args.pooler}, but a SentenceTransformer has its own pooling", option="pooler", needed="auto"
        )
    model = _as_st(checkpoint, trusted=args.trust_remote_code, code_revision=args.code_revision)
    if not args.trust_remote_code:
        refuse_remote_code(checkpoint)
    check_modules(checkpoint, args.trust_remote_code)
    return model


def in_memory(model: Any, tokenizer: PreTrainedTokenizerBase | None = None) -> Model:
    """Return a model of this project or a SentenceTransformer that was created in memory."""
    if is_sentence_transformer(model):
        name = str(getattr(model.model_card_data, "base_model", None) or "SentenceTransformer")
        embedding = _prompts(dict(model.prompts), model.default_prompt_name)
        return StModel(name, None, StConfig(), embedding, module=model)
    name = model.config.name_or_path or model.config.model_type
    return NativeModel(name, None, model.config, embedding_of(model), module=model, tokenizer=tokenizer)


def _prompts(prompts: dict, default: str | None) -> EmbeddingConfig:
    """Return the embedding configuration of a SentenceTransformer, which only has prompts."""
    files = {"prompts": prompts, "default_prompt_name": default}
    prompt = prompts.get(default, "")
    return EmbeddingConfig(POOLER, prompt=prompt, files={name: value for name, value in files.items() if value})


def _is_other_architecture(checkpoint: Checkpoint) -> bool:
    """Return whether a model is not a native encoder, as opposed to one with damaged files."""
    try:
        native = _as_native(checkpoint, any_encoder=True)
    except NotNativeError:
        return True
    except UsageError:
        return False
    try:
        architecture_of(native.config)
    except UsageError:
        return True
    return native.embedding.pooling is None
