"""Load encoders and their weights. Code in a checkpoint is never run."""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel
from transformers.utils import SAFE_WEIGHTS_NAME
from transformers.utils import logging as logs

from informin.errors import UsageError, counted, error_line
from informin.models.architectures import ARCHITECTURES, InforMinModel, architecture_of
from informin.models.checkpoint import Checkpoint
from informin.models.embedding_config import EmbeddingConfig
from informin.models.files import NotNativeError, cannot_load
from informin.models.model_config import load_config, log_once, own_code
from informin.models.native_checks import refuse_unsafe
from informin.models.sentence_transformers_files import load_embedding_config
from informin.models.tokenizer import load_tokenizer
from modeling_informin import HEAD_FILE, HEADS, TRAINING_HEADS

__all__ = ["load_config", "load_saved", "load_tokenizer", "load_trainable"]
BERT_POOLER = "pooler."
# Prefixes of weights that checkpoints usually have next to the encoder: pretraining heads and this project's heads.
USUAL_HEADS = (
    BERT_POOLER,
    "bert.pooler.",
    "cls.",
    "lm_head.",
    "mlp.",
    "heads.",
    "generator_",
    "discriminator_",
    "vocab_",
)


def load_trainable(checkpoint: Checkpoint, settings: dict, embedding: EmbeddingConfig | None = None) -> InforMinModel:
    """Load an encoder in float32 for training, with its heads; the projection head may be newly initialized.

    Args:
        checkpoint: Files of the model.
        settings: `model_settings` of the arguments. `modeling_informin.HEADS` lists the settings that build heads.
            `view_dropout_rate` sets every dropout rate of the encoder; `dropouts` then stores its own rates.
        embedding: Resolved pooling and prompt; None resolves those of `settings`.

    Raises:
        UsageError: The weights cannot be loaded, or the encoder cannot be trained.
    """
    config = load_config(checkpoint)
    architecture = architecture_of(config)
    if embedding is None:
        own = load_embedding_config(checkpoint, config)
        embedding = own.for_training(settings.get("pooling", "cls"), settings.get("prompt"))
    before = getattr(config, "informin", None) or {}
    config.update(before.get("dropouts", {}))  # the encoder's own rates, if this is a checkpoint
    config.informin = {name: value for name, value in settings.items() if name != "prompt"} | embedding.settings
    if settings.get("view_dropout_rate") is not None:
        config.informin["dropouts"] = {name: getattr(config, name) for name in architecture.dropouts}
        config.update(dict.fromkeys(architecture.dropouts, settings["view_dropout_rate"]))
    model = load_weights(config, checkpoint, fresh_head=True)
    assert isinstance(model, InforMinModel)  # `config.informin` is set
    if before:
        _load_projection_head(model, checkpoint)
    if config.model_type not in ARCHITECTURES:
        refuse_unsafe(model)
    # save_pretrained leaves tied weights out anyway. Listed here, Trainer does not warn that a checkpoint lacks them.
    model._keys_to_ignore_on_save = set(model.all_tied_weights_keys)
    return model


def load_saved(checkpoint: Checkpoint) -> PreTrainedModel:
    """Load an encoder in float32 as it was saved, with its projection head but without heads used only in training.

    Returns:
        Our class if its configuration has settings of this project, otherwise the class of transformers.
    """
    config = load_config(checkpoint, any_encoder=True)
    config.informin = saved_settings(config, checkpoint)
    model = load_weights(config, checkpoint)
    _load_projection_head(model, checkpoint)
    return model


def saved_settings(config: PreTrainedConfig, checkpoint: Checkpoint) -> dict | None:
    """Return `config.informin` of a saved model without heads used only in training; None for other models.

    The projection head is left out if the folder has none: other libraries that save our checkpoint again drop the
    head but keep the settings.
    """
    if not (own := getattr(config, "informin", None)):
        return None
    among_weights = _class_of(config).__name__ in (config.architectures or [])
    saved = among_weights or checkpoint.path(HEAD_FILE) is not None
    own = {name: value for name, value in own.items() if name != "adapter"}  # applied to the pooled embedding: dense.py
    return HEADS | own | TRAINING_HEADS | ({} if saved else {"projection_head": "none"})


def load_weights(config: PreTrainedConfig, checkpoint: Checkpoint, fresh_head: bool = False) -> PreTrainedModel:
    """Load a model in float32, and check that the checkpoint has all of its weights, except for BERT's unused pooler.

    Args:
        config: `config.informin` determines the heads; see `load_saved` for the class.
        checkpoint: Files of the model.
        fresh_head: The projection head may be missing, and is then newly initialized.

    Raises:
        UsageError: The weights cannot be loaded, are incomplete, or have shapes that do not match the configuration.
    """
    try:
        with load_reports():  # `_check_report` raises instead
            model, report = _class_of(config).from_pretrained(
                checkpoint.name,
                config=config,
                revision=checkpoint.revision,
                dtype=torch.float32,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                trust_remote_code=False,
            )
    except Exception as error:  # the type depends on what is wrong with the files
        raise cannot_load(checkpoint.name, error) from None
    if not fresh_head:
        report["missing_keys"] |= _missing_head(model, checkpoint)
    _check_report(model, checkpoint.name, report)
    if unused := sorted(name for name in report["unexpected_keys"] if not name.startswith(USUAL_HEADS)):
        log_once(
            f"{checkpoint} has {counted(len(unused), 'weight')} that its encoder does not use, such as {unused[0]}."
        )
    return model


def _check_report(model: PreTrainedModel, model_name: str, report: dict) -> None:
    """Raise UsageError if weights are missing or have the wrong shape, by transformers' report."""
    config = model.config
    if report["mismatched_keys"]:
        name, given, needed = min(report["mismatched_keys"])
        _refuse_own_code(model_name, config)
        raise UsageError(
            f"{model_name} cannot be loaded: {name} has the shape {tuple(given)} in its weights, and {tuple(needed)} "
            "by its config.json",
            option="model_name",
            fix="Copy weights and config.json again from the same source.",
        )
    missing = sorted(name for name in report["missing_keys"] if not name.startswith(BERT_POOLER))
    lm_head = architecture_of(config).lm_head if isinstance(model, InforMinModel) else None
    if {name.partition(".")[0] for name in missing} == {lm_head}:
        raise UsageError(
            f"{model_name} has no language-model head, which the objective needs",
            option="model_name",
            fix="Use a checkpoint with a language-model head, or set `mlm_weight` to 0.",
        )
    if missing:
        _refuse_own_code(model_name, config)
        raise UsageError(
            f"{model_name} lacks {counted(len(missing), 'weight')} of the encoder, such as {missing[0]}",
            option="model_name",
            fix="Copy the model again from its source.",
        )


@contextmanager
def without_warnings() -> Iterator[None]:
    """Hide transformers' warnings about a checkpoint that was loaded before."""
    verbosity = logs.get_verbosity()
    logs.set_verbosity_error()
    try:
        yield
    finally:
        logs.set_verbosity(verbosity)


@contextmanager
def without_bars() -> Iterator[None]:
    """Hide transformers' bars for each saved file."""
    shown = logs.is_progress_bar_enabled()
    logs.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logs.enable_progress_bar()


@contextmanager
def load_reports() -> Iterator[list[str]]:
    """Hide transformers' tables of weights that do not fit, and yield a list that they are added to."""
    log = logging.getLogger("transformers.modeling_utils")
    reports: list[str] = []

    def keep(record: logging.LogRecord) -> bool:
        message = re.sub(r"\x1b\[[0-9;]*m", "", record.getMessage())
        reports.extend([message] if "LOAD REPORT" in message else [])
        return "LOAD REPORT" not in message and record.levelno >= shown

    level, shown = log.level, log.getEffectiveLevel()
    log.setLevel(logging.WARNING - 1)  # at WARNING, transformers also reports layers without a tensor-parallel plan
    log.addFilter(keep)
    try:
        yield reports
    finally:
        log.removeFilter(keep)
        log.setLevel(level)


def _refuse_own_code(model_name: str, config: PreTrainedConfig) -> None:
    """Raise UsageError for weights that do not fit because the checkpoint needs its own code."""
    if code := own_code(config):
        raise NotNativeError(
            f"{model_name} needs its own code ({code}, in auto_map), which is never run: its weights do not fit the "
            f"{config.model_type} model of transformers",
            option="model_name",
            needed="an encoder that transformers has",
        )


def _class_of(config: PreTrainedConfig) -> Any:
    return architecture_of(config).model if getattr(config, "informin", None) else AutoModel


def _load_projection_head(model: PreTrainedModel, checkpoint: Checkpoint) -> None:
    """Load the projection head of a published folder into a class that does not load it itself.

    Only the classes in modeling_informin.py load it themselves, those of `make_model_class` do not.
    """
    if not isinstance(model, InforMinModel) or model.config.informin["projection_head"] != "mlp":
        return
    path = None if model._auto_class else checkpoint.path(HEAD_FILE)
    if path is None:
        return
    try:
        model.mlp.load_state_dict(load_file(path))
    except (SafetensorError, OSError, RuntimeError) as error:
        raise cannot_load(checkpoint.name, error) from None


def _missing_head(model: PreTrainedModel, checkpoint: Checkpoint) -> set[str]:
    """Return the names of a missing projection head, which transformers does not report for our classes."""
    weights = checkpoint.path(SAFE_WEIGHTS_NAME)
    if not isinstance(model, InforMinModel) or weights is None or checkpoint.path(HEAD_FILE):
        return set()
    with safe_open(weights, "pt") as file:
        return {name for name in model.state_dict() if name.startswith("mlp.")} - set(file.keys())


def to_device(model: nn.Module, device: str | None) -> None:
    """Move a model to a device for inference; None for a GPU if there is one."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        model.eval().to(device)
    except (RuntimeError, AssertionError) as error:  # PyTorch without CUDA raises AssertionError
        raise UsageError(f"{device} cannot be used: {error_line(error)}", option="device") from None
