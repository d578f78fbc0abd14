"""Load and check the config.json of an encoder. Code in a checkpoint is never run."""

import copy
import logging
import math
from functools import cache

from transformers import CONFIG_MAPPING, MODEL_FOR_MASKED_LM_MAPPING, AutoConfig, PreTrainedConfig

from informin.errors import UsageError
from informin.models.architectures import architecture_of
from informin.models.checkpoint import Checkpoint, once
from informin.models.files import NotNativeError, cannot_load
from informin.models.model_folder import check_modules, check_paths
from informin.models.settings import check_settings
from informin.schema import RATE

logger = logging.getLogger(__name__)

# Limits that no real encoder reaches. Without them, a damaged config.json would build layers for hours.
LARGEST_SIZES = {
    "vocab_size": 10_000_000,
    "hidden_size": 100_000,
    "num_hidden_layers": 1_000,
    "num_attention_heads": 1_000,
    "intermediate_size": 1_000_000,
    "max_position_embeddings": 10_000_000,
    # The names of other architectures.
    **dict.fromkeys(("d_model", "d_ff", "d_kv", "n_embd", "head_dim", "embedding_size"), 1_000_000),
    **dict.fromkeys(("num_layers", "n_layer", "n_layers", "num_heads", "n_head", "num_key_value_heads"), 1_000),
}
MOST_TYPES = 100_000
ENCODER = "an encoder like BERT"
EPSILONS = ("layer_norm_eps", "norm_eps")  # if negative, the square root of a variance is NaN


def load_config(checkpoint: Checkpoint, any_encoder: bool = False) -> PreTrainedConfig:
    """Load the configuration of an encoder from a folder or the Hub.

    Args:
        checkpoint: Files of the model.
        any_encoder: Also accept BERT-like encoders that cannot be trained; see `architecture_of`.

    Raises:
        UsageError: The model does not exist, has another kind of architecture, or its configuration is invalid.
    """
    config = copy.deepcopy(_stored_config(checkpoint))
    settings = getattr(config, "informin", None)
    if settings or not any_encoder:
        check_settings(checkpoint.name, settings or {}, architecture_of(config).dropouts)
    return config


@once
def _stored_config(checkpoint: Checkpoint) -> PreTrainedConfig:
    checkpoint.require_config()
    values = checkpoint.json("config.json")
    check_paths(checkpoint)
    check_modules(checkpoint)
    for key, kind in {"architectures": list, "auto_map": dict, "informin": dict}.items():  # transformers does not check
        if not isinstance(values.get(key) or kind(), kind):
            found = f"{checkpoint}: {key} in config.json is a {type(values[key]).__name__}"
            raise UsageError(found, option="model_name", needed=f"a {kind.__name__}")
    name = values.get("model_type")
    known = isinstance(name, str) and name in CONFIG_MAPPING
    how: dict = {"revision": checkpoint.revision, "trust_remote_code": False}
    try:
        config = AutoConfig.from_pretrained(checkpoint.name, **how) if known else None
    except Exception as error:  # the type depends on the invalid value
        raise cannot_load(checkpoint.name, error) from None
    if config is None or config.is_encoder_decoder or type(config) not in MODEL_FOR_MASKED_LM_MAPPING:
        raise _no_encoder(checkpoint.name, values)
    check_encoder(checkpoint.name, config)
    check_config_numbers(checkpoint.name, values)
    if code := own_code(config):
        log_once(f"{checkpoint} names its own code ({code}), which is not run. It is loaded as a {name} model.")
    config._attn_implementation = None  # transformers would download code that this names
    # They have no effect here, and transformers refuses to save a model that sets them.
    config.output_attentions = config.output_hidden_states = False
    config.return_dict = True
    return config


def _no_encoder(model_name: str, values: dict) -> NotNativeError:
    name, code = values.get("model_type"), values.get("auto_map") or {}
    problem = f"has the architecture {name!r}" if name else "has no model_type in config.json"
    if code and not name:
        problem += f" and names its own code ({', '.join(map(str, code.values())):.200})"
    return NotNativeError(
        f"{model_name} {problem}",
        option="model_name",
        needed=ENCODER,
        fix="Code in a checkpoint is never run." if code else None,
    )


def check_config_numbers(model_name: str, values: dict) -> None:
    """Raise UsageError for quantized weights, invalid dropout rates, and numbers that are not finite."""
    if values.get("quantization_config"):
        raise UsageError(
            f"{model_name}: quantization_config in config.json says that the weights are quantized",
            option="model_name",
            needed="weights in float32, float16 or bfloat16",
        )
    for name, value in values.items():
        rate = "dropout" in name and type(value) in (int, float)
        if (rate and not RATE[0](value)) or (isinstance(value, float) and not math.isfinite(value)):
            needed = RATE[1] if rate else "a finite number"
            raise UsageError(f"{model_name}: {name} in config.json is {value}", option="model_name", needed=needed)


def check_encoder(model_name: str, config: PreTrainedConfig) -> None:
    """Raise UsageError for configurations that transformers accepts, but that describe no usable encoder."""
    check_sizes(model_name, config)
    for name in EPSILONS:
        value = getattr(config, name, None)
        if isinstance(value, int | float) and value < 0:
            needed = f"{name} in config.json of 0 or more"
            raise UsageError(f"{model_name} has {name} {value}", option="model_name", needed=needed)
    if getattr(config, "max_position_embeddings", None) is None:
        raise NotNativeError(
            f"{model_name} is a {config.model_type} model, which has no position embeddings",
            option="model_name",
            needed=ENCODER,
        )
    if getattr(config, "is_decoder", False):
        raise UsageError(
            f"{model_name} is a decoder: its [CLS] token cannot attend to the tokens after it",
            option="model_name",
            needed=ENCODER,
            fix="If it was trained as an encoder, set is_decoder to false in config.json.",
        )


def check_sizes(model_name: str, config: object) -> None:
    """Raise UsageError for sizes that no real model has."""
    for name, most in LARGEST_SIZES.items():
        size = getattr(config, name, None)
        if isinstance(size, int) and not 1 <= size <= most:
            needed = f"{name} in config.json from 1 to {most:,}"
            raise UsageError(f"{model_name} has {name} {size}", option="model_name", needed=needed)
    types = getattr(config, "type_vocab_size", None)
    if isinstance(types, int) and not 0 <= types <= MOST_TYPES:
        needed = f"type_vocab_size in config.json from 0 to {MOST_TYPES:,}"
        raise UsageError(f"{model_name} has type_vocab_size {types}", option="model_name", needed=needed)


def own_code(config: PreTrainedConfig) -> str | None:
    """Return the code that config.json names for the model; None if there is none, or if it is this project's."""
    named = getattr(config, "auto_map", None) or {}
    code = [named[name] for name in ("AutoModel", "AutoConfig", "AutoModelForMaskedLM") if named.get(name)]
    return next((str(name) for name in code if not str(name).startswith("modeling_informin.")), None)


@cache
def log_once(line: str) -> None:
    """Log a message once per process, since a model is loaded more than once per run."""
    logger.info(line)
