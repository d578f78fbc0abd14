"""Checksums of weights, and a check that they are finite."""

import hashlib
import json
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from informin.errors import UsageError, counted
from informin.models.native_loading import BERT_POOLER

OTHER_SETTINGS = {"truncation_side": "right", "split_special_tokens": False}  # not in tokenizer.json, with defaults
# Settings of a configuration that do not affect embeddings.
SILENT_SETTINGS = ("_name_or_path", "transformers_version", "dtype", "architectures", "auto_map", "informin")


def weights_sha256(weights: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of the names and float32 values of the weights.

    BERT's own pooler is left out: no embedding depends on it, and it is random if a checkpoint has none.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        if not name.startswith(BERT_POOLER):
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(tensor.detach().cpu().float().numpy()).data)
    return digest.hexdigest()


def settings_sha256(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the SHA-256 of the settings of a configuration and a tokenizer that affect embeddings."""
    settings = config.to_dict() | (getattr(config, "informin", None) or {}).get("dropouts", {})
    settings = {name: value for name, value in settings.items() if name not in SILENT_SETTINGS}
    text = json.dumps(settings, sort_keys=True, default=str) + tokenizer_settings(tokenizer)
    return hashlib.sha256(text.encode()).hexdigest()


def tokenizer_settings(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the settings of a tokenizer that its tokens depend on, in one text."""
    others = [getattr(tokenizer, name, default) for name, default in OTHER_SETTINGS.items()]
    changed = others != [*OTHER_SETTINGS.values()]
    return tokenizer.backend_tokenizer.to_str() + (json.dumps(others) if changed else "")


def refuse_non_finite(weights: Mapping[str, Tensor], before: str = "", within: str = "") -> None:
    """Raise UsageError if a weight is NaN or infinite. `before` and `within` are added to the message."""
    if bad := [name for name, tensor in weights.items() if not torch.isfinite(tensor).all()]:
        raise UsageError(
            f"{before}NaN or infinity in {counted(len(bad), 'weight')}{within}, such as {bad[0]}",
            fix="Export an earlier checkpoint, or choose another `dtype`.",
        )
