"""Choose how the encoder of a run is trained: by a native class, or as a SentenceTransformer."""

from typing import Any

from transformers import PreTrainedConfig

from informin.errors import UsageError
from informin.models.architectures import architecture_of
from informin.models.checkpoint import Checkpoint
from informin.models.embedding_config import EmbeddingConfig
from informin.models.files import NotNativeError
from informin.models.model_config import load_config
from informin.models.model_folder import check_modules, check_paths
from informin.models.remote_code import refuse_remote_code
from informin.models.sentence_transformers_files import load_embedding_config
from informin.models.st_encoder import POOLER
from informin.models.st_model import MODEL_TYPE, describe_st
from informin.objectives.terms import Term
from informin.training.encoder_options import EncoderOptions


def describe_encoder(checkpoint: Checkpoint, args: EncoderOptions) -> tuple[PreTrainedConfig, EmbeddingConfig]:
    """Return the configuration of an encoder, an `StConfig` if it is not native, and how it computes embeddings.

    Args:
        checkpoint: Files of the model.
        args: Options of the run. With `backend` auto, a model with a modules.json that is not native, has modules or a
            pooling that are not native, or is trained with LoRA, becomes a SentenceTransformer.

    Raises:
        UsageError: The model cannot be trained with this backend.
    """
    if args.backend == "st" or args.lora_r is not None:
        return _general(checkpoint, args)
    try:
        config = load_config(checkpoint)
        embedding = load_embedding_config(checkpoint, config)
        if args.backend == "auto" and args.pooler == "auto" and checkpoint.has_modules:
            if embedding.pooling is None and embedding.problem:
                raise NotNativeError(embedding.problem)
            architecture_of(config)
        return config, embedding
    except UsageError:
        if args.backend == "native" or args.pooler != "auto" or not checkpoint.has_modules:
            raise
        if not _is_other_architecture(checkpoint):
            raise
    return _general(checkpoint, args)


def _is_other_architecture(checkpoint: Checkpoint) -> bool:
    """Return whether a model is no native encoder, rather than a native one with damaged files."""
    try:
        config = load_config(checkpoint, any_encoder=True)
    except NotNativeError:
        return True
    except UsageError:
        return False
    try:
        architecture_of(config)
    except UsageError:
        return True
    return load_embedding_config(checkpoint, config).pooling is None


def _general(checkpoint: Checkpoint, args: EncoderOptions) -> tuple[PreTrainedConfig, EmbeddingConfig]:
    if args.pooler not in ("auto", POOLER):
        raise UsageError(
            f"is {args.pooler}, but a SentenceTransformer has its own pooling", option="pooler", needed="auto"
        )
    check_paths(checkpoint)
    if not args.trust_remote_code:
        refuse_remote_code(checkpoint)
    check_modules(checkpoint, args.trust_remote_code)
    return describe_st(checkpoint)


def is_general(config: PreTrainedConfig) -> bool:
    """Return whether a configuration stands for a SentenceTransformer."""
    return config.model_type == MODEL_TYPE


def check_general(args: Any) -> None:
    """Raise UsageError for options that need internals of the encoder, and so a native one."""
    for term in args.terms:
        if what := _internals(term):
            raise _needs_native(term.weight or "objective", what)
    given = {
        "projection_head": args.projection_head != "none",
        "view_dropout": args.view_dropout is not None,
        "view_dropout_rate": args.view_dropout_rate is not None,
        "padding_free": args.padding_free,
        "neftune_noise_alpha": args.neftune_noise_alpha is not None,
        "debug": args.debug,
    }
    for name in (name for name, value in given.items() if value):
        raise _needs_native(name, "the encoder's own modules")


def _internals(term: Term) -> str | None:
    """Return what a term needs from inside of an encoder, or None."""
    needs = {
        "attention maps": term.reads_maps,
        "a language-model head": term.lm_head,
        "masked tokens": term.masking is not None,
        "a momentum copy of the encoder": term.follows_weights,
    }
    return next((what for what, holds in needs.items() if holds), None)


def _needs_native(name: str, what: str) -> UsageError:
    return UsageError(
        f"requires a native encoder, because it uses {what}; this model is trained as a SentenceTransformer",
        option=name,
        fix=f"Leave `{name}` out, or use a BERT-like encoder.",
    )
