"""Checksums of the settings of models, and of everything that an embedding depends on."""

import hashlib
import json
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Transformer
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.dynamic_module_utils import get_relative_import_files

from informin.fast.precision import weights_sha256
from informin.fast.speed import copy_of_tokenizer
from informin.files import sha256
from informin.model.open import own_code_of, own_dropouts

# Settings of a configuration that do not affect embeddings.
SILENT = ("_name_or_path", "transformers_version", "dtype", "architectures", "auto_map", "informin")


def settings_sha256(model: SentenceTransformer) -> str:
    """Return the SHA-256 of the settings of modules, configuration and tokenizer, and of a model's own code."""
    parts: list[Any] = [model.truncate_dim]
    for module in model.modules():
        parts += [type(module).__name__, module.get_config_dict()] if hasattr(module, "get_config_dict") else []
        if isinstance(module, PreTrainedModel):
            settings = module.config.to_dict() | own_dropouts(getattr(module.config, "informin", None))
            parts.append({name: value for name, value in settings.items() if name not in SILENT})
        if hasattr(module, "lora_A"):  # a layer of peft, whose configuration is not that of the model
            parts.append([module.scaling, module.active_adapters, module.disable_adapters])
    custom = (module for module in model if not hasattr(module, "get_config_dict"))  # which cannot be saved
    for module in chain.from_iterable(each.modules() for each in custom):
        values = {name: value for name, value in vars(module).items() if _is_plain(value)}
        parts += [type(module).__name__, values | {"training": False}]
    # The model's maximum length is the longest one of the routes of a Router.
    lengths = [module.max_seq_length for module in model.modules() if isinstance(module, Transformer)]
    parts += lengths if len(set(lengths)) > 1 else []
    # A SentenceTransformer has the tokenizer of its first module. In a Router, each route has its own.
    own = [getattr(module, "tokenizer", None) for module in model.modules()]
    found: list[list[Any]] = []
    for each in {id(each): each for each in own}.values():
        settings = _tokenizer_settings(each)
        found += [settings] if settings not in found else []
    parts += chain.from_iterable(found)
    parts += _code_sha256(own_code_of([*model.modules(), *own]))
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=_plain_value).encode()).hexdigest()


def _code_sha256(modules: set[str]) -> list[str]:
    """Return names and SHA-256 of the files of Python modules from a model's repository, and of those they import."""
    files = [str(sys.modules[module].__file__) for module in modules]
    read = {path for file in files for path in (file, *get_relative_import_files(file))}
    return sorted(f"{Path(path).name} {sha256(path)}" for path in read)


def _is_plain(value: Any) -> bool:
    """Return whether a value of a custom module is text, a number, an array, or a list of them."""
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return isinstance(value, str | int | float | np.generic | np.ndarray | Tensor)


def _plain_value(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.generic | np.ndarray | Tensor) else str(value)


def _tokenizer_settings(tokenizer: Any) -> list[Any]:
    """Return the settings of a tokenizer that affect tokens; none for other objects."""
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        return [tokenizer.to_str()] if hasattr(tokenizer, "to_str") else []  # of static embeddings
    more = [True] if tokenizer.split_special_tokens else []
    if not tokenizer.is_fast:
        return [tokenizer.get_vocab(), *more]
    tokenizer = copy_of_tokenizer(tokenizer)  # without truncation and padding, which are not settings
    return [tokenizer.backend_tokenizer.to_str(), tokenizer.padding_side, tokenizer.truncation_side, *more]


def model_sha256(model: SentenceTransformer, prompt: str | None = None) -> str:
    """Return the SHA-256 of everything that an embedding depends on, except for rounding and precision.

    Args:
        model: The model.
        prompt: Prompt prepended to each text; None for the model's own prompts.
    """
    prompts = [model.prompts, model.default_prompt_name] if prompt is None else prompt
    parts = [weights_sha256(model), settings_sha256(model), model.max_seq_length, False, prompts]  # False: unused
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
