"""Loading of configurations, tokenizers and weights, never of code that a checkpoint brings along."""

import logging
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import nn
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoConfig,
    AutoModel,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, WEIGHTS_INDEX_NAME

from informin.encoders.architectures import ARCHITECTURES, OFFSET_POSITIONS, InforMinModel, architecture_of
from informin.encoders.encode import max_length
from informin.encoders.files import find_config, json_file, optional_file, refuse_outside
from informin.encoders.settings import check_settings
from informin.encoders.usage import usage_of
from informin.errors import UsageError, counted, error_line
from informin.files import read_json
from informin.schema import RATE
from modeling_informin import HEAD_FILE, HEADS, TRAINING_HEADS

logger = logging.getLogger(__name__)

BERT_POOLER = "pooler."
# Of weights beside an encoder: the heads of pretraining, and this project's.
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
# Limits that no real encoder reaches. Without them a damaged config.json builds layers for hours.
LARGEST_SIZES = {
    "vocab_size": 10_000_000,
    "hidden_size": 100_000,
    "num_hidden_layers": 1_000,
    "num_attention_heads": 1_000,
    "intermediate_size": 1_000_000,
    "max_position_embeddings": 10_000_000,
}
EPSILONS = ("layer_norm_eps", "norm_eps")  # below 0, the square root of a variance is NaN
TOKENIZER_FILES = ("tokenizer_config.json", "tokenizer.json", "special_tokens_map.json")
COPY_TOKENIZER = (
    "Copy the tokenizer files (tokenizer.json, tokenizer_config.json) of the checkpoint it was trained from there."
)


def load_config(model_name: str, revision: str | None = None, any_encoder: bool = False) -> PreTrainedConfig:
    """The configuration of an encoder, from a folder or the Hub.

    Args:
        any_encoder: takes every encoder like BERT that transformers has; else those alone that can be trained, see
            `architecture_of`.

    Raises:
        UsageError: there is no such model, it is of another architecture, or its configuration cannot be.
    """
    values = read_json(find_config(model_name, revision))
    for name, kind in {
        "architectures": list,
        "auto_map": dict,
        "informin": dict,
    }.items():  # transformers just reads them
        if not isinstance(values.get(name) or kind(), kind):
            given = f"{name} in its config.json is a {type(values[name]).__name__}"
            raise UsageError(f"`model_name` {model_name}: {given}; needed a {kind.__name__}.")
    name = values.get("model_type")
    known = isinstance(name, str) and name in CONFIG_MAPPING
    try:
        config = AutoConfig.from_pretrained(model_name, revision=revision, trust_remote_code=False) if known else None
    except Exception as error:  # what transformers raises depends on the value
        raise UsageError(f"`model_name` {model_name} cannot be loaded: {_reason(error)}") from None
    if not known or config.is_encoder_decoder or type(config) not in MODEL_FOR_MASKED_LM_MAPPING:
        code = " Code that a checkpoint brings along is never run." if "auto_map" in values else ""
        problem = f"is of the architecture {name!r}" if name else "has no model_type in its config.json"
        if code and not name:
            problem += f" and names code of its own ({', '.join(map(str, values['auto_map'].values())):.200})"
        raise UsageError(f"`model_name` {model_name} {problem}; needed an encoder like BERT.{code}")
    refuse_no_encoder(model_name, config)
    refuse_other_numbers(model_name, values)
    if code := own_code(config):
        _tell_once(f"{model_name} names code of its own ({code}), which is not run: it is read as a {name}.")
    settings = getattr(config, "informin", None)
    if settings or not any_encoder:
        check_settings(model_name, settings or {}, architecture_of(config).dropouts)
    config._attn_implementation = None  # by a name of the Hub, transformers would fetch code from there
    # Nothing here reads these, and with them transformers refuses to save the model.
    config.output_attentions = config.output_hidden_states = False
    config.return_dict = True
    return config


def refuse_other_numbers(model_name: str, values: dict) -> None:
    """UsageError for quantized weights, for a dropout rate that is none, and for numbers that are not finite."""
    if values.get("quantization_config"):
        raise UsageError(
            f"`model_name` {model_name}: quantization_config in its config.json says that its weights are quantized; "
            "needed weights in float32, float16 or bfloat16."
        )
    for name, value in values.items():
        rate = "dropout" in name and type(value) in (int, float)
        if (rate and not RATE[0](value)) or (isinstance(value, float) and not math.isfinite(value)):
            needed = RATE[1] if rate else "a finite number"
            raise UsageError(f"`model_name` {model_name}: {name} in its config.json is {value}; needed {needed}.")


def refuse_no_encoder(model_name: str, config: PreTrainedConfig) -> None:
    """UsageError for what transformers builds, and what is no encoder, or fails at the first sentence."""
    for name, most in LARGEST_SIZES.items():
        size = getattr(config, name, None)
        if isinstance(size, int) and not 1 <= size <= most:
            needed = f"{name} in its config.json from 1 to {most:,}"
            raise UsageError(f"{model_name} has {name} {size}", option="model_name", needed=needed)
    for name in EPSILONS:
        value = getattr(config, name, None)
        if isinstance(value, int | float) and value < 0:
            needed = f"{name} in its config.json of 0 or more"
            raise UsageError(f"{model_name} has {name} {value}", option="model_name", needed=needed)
    if getattr(config, "max_position_embeddings", None) is None:
        raise UsageError(
            f"`model_name` {model_name}: {config.model_type} has no table of positions; needed an encoder like BERT."
        )
    if getattr(config, "is_decoder", False):
        raise UsageError(
            f"`model_name` {model_name} is a decoder: no token sees those after it, and [CLS] only itself. If it was "
            "trained as an encoder, set is_decoder to false in its config.json; else take another model."
        )


def load_tokenizer(model_name: str, config: PreTrainedConfig, revision: str | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer beside a model; its `model_max_length` is never more than the model has positions for.

    Raises:
        UsageError: there is none, it has no words or no padding token, or it is not the model's.
    """
    for name in _names(json_file(model_name, "tokenizer_config.json", revision).get("fast_tokenizer_files")):
        refuse_outside(model_name, name, "tokenizer_config.json")
    try:
        tokenizer = AutoTokenizer.from_pretrained(model_name, revision=revision, trust_remote_code=False)
    except Exception as error:  # tokenizers raises Exception itself
        files = [json_file(model_name, name, revision) for name in TOKENIZER_FILES]  # says which is damaged
        if any("auto_map" in values for values in files):
            raise UsageError(
                f"`model_name` {model_name}: its tokenizer is code of the checkpoint, which is never run; "
                "needed a tokenizer.json."
            ) from None
        raise UsageError(f"`model_name` {model_name} has no tokenizer that can be loaded: {_reason(error)}") from None
    if not tokenizer.is_fast:
        raise UsageError(
            f"`model_name` {model_name}: its tokenizer, {type(tokenizer).__name__}, is none of the tokenizers library; "
            "needed a tokenizer.json."
        )
    if len(tokenizer) <= len(tokenizer.all_special_tokens):  # what transformers makes up where the files are missing
        raise UsageError(
            f"`model_name` {model_name} has no tokenizer: no vocabulary was found beside the weights. {COPY_TOKENIZER}"
        )
    if tokenizer.pad_token is None:
        raise UsageError(f"`model_name` {model_name}: its tokenizer has no padding token, and batches need one.")
    refuse_other_tokenizer(model_name, config, tokenizer)
    given = tokenizer.model_max_length
    if not isinstance(given, int | float) or max_length(config, tokenizer) < 3:
        raise UsageError(
            f"`model_name` {model_name} reads no sentence of 3 tokens: max_position_embeddings in its config.json is "
            f"{config.max_position_embeddings}, model_max_length in its tokenizer_config.json {given!r}."
        )
    tokenizer.model_max_length = max_length(config, tokenizer)
    forget_truncation(tokenizer)
    return tokenizer


def refuse_other_tokenizer(model_name: str, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """UsageError for the tokenizer of another model: its ids mean other words, or nothing."""
    problem, last = None, max(tokenizer.get_vocab().values())
    if len(tokenizer) > config.vocab_size:
        problem = f"its tokenizer has {counted(len(tokenizer), 'word')} and the model {config.vocab_size:,}"
    elif last >= config.vocab_size:
        problem = f"{tokenizer.convert_ids_to_tokens(last)} of its tokenizer has the id {last:,}, and the model "
        problem += counted(config.vocab_size, "word")
    elif config.model_type in OFFSET_POSITIONS and tokenizer.pad_token_id != config.pad_token_id:
        problem = (
            f"{tokenizer.pad_token}, with which its tokenizer pads, has the id {tokenizer.pad_token_id}, and "
            f"pad_token_id in its config.json is {config.pad_token_id}"
        )
    if problem:
        raise UsageError(f"`model_name` {model_name}: {problem}; they do not belong together. {COPY_TOKENIZER}")


def forget_truncation(tokenizer: PreTrainedTokenizerBase) -> None:
    """Removes the truncation and padding of the last call, which save_pretrained would write into tokenizer.json."""
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()


def load_model(config: PreTrainedConfig, model_name: str, settings: dict, revision: str | None = None) -> InforMinModel:
    """The encoder in float32 with the heads that `settings` asks for; the projection head may be fresh.

    The settings go into `config.informin`: `modeling_informin.HEADS` says which heads they build. A `pooling` of auto
    and a `prompt` of None become what the checkpoint says, beside the rest of how it is used. `view_dropout_rate` is
    the rate of every dropout of the encoder; `dropouts` then keeps its own.

    Raises:
        UsageError: see `load_weights` and `Usage.trained`; or the encoder cannot be trained.
    """
    architecture = architecture_of(config)
    usage = usage_of(model_name, config, revision).trained(settings.get("pooling", "cls"), settings.get("prompt"))
    before = getattr(config, "informin", None) or {}
    check_settings(model_name, before, architecture.dropouts)  # of a configuration that `load_config` did not read
    config.update(before.get("dropouts", {}))  # of a checkpoint: the encoder's own
    config.informin = {name: value for name, value in settings.items() if name != "prompt"} | usage.settings
    if settings.get("view_dropout_rate") is not None:
        config.informin["dropouts"] = {name: getattr(config, name) for name in architecture.dropouts}
        config.update(dict.fromkeys(architecture.dropouts, settings["view_dropout_rate"]))
    model = load_weights(config, model_name, revision, fresh_head=True)
    if before:
        _read_head(model, model_name, revision)
    if config.model_type not in ARCHITECTURES:
        refuse_unsafe(model)
    # save_pretrained leaves tied weights out anyway; named here, Trainer does not warn that a checkpoint lacks them.
    model._keys_to_ignore_on_save = set(model.all_tied_weights_keys)
    return model


def load_saved(config: PreTrainedConfig, model_name: str, revision: str | None = None) -> PreTrainedModel:
    """The encoder in float32 as it was saved, with its projection head, and without the heads that only training reads.

    Of transformers' own class, where `config` has no settings of this project.
    """
    config.informin = saved_settings(config, model_name, revision)
    model = load_weights(config, model_name, revision)
    _read_head(model, model_name, revision)
    return model


def saved_settings(config: PreTrainedConfig, model_name: str, revision: str | None = None) -> dict | None:
    """`config.informin` of a saved model, without the heads that only training reads; None where it is not ours.

    Without a projection head too where none was saved: another class that saves our checkpoint again loses it, and
    keeps the settings that name it.
    """
    if not (own := getattr(config, "informin", None)):
        return None
    among_weights = _class_of(config).__name__ in (config.architectures or [])
    saved = among_weights or optional_file(model_name, HEAD_FILE, revision) is not None
    own = {name: value for name, value in own.items() if name != "adapter"}  # applied to the pooled embedding: dense.py
    return HEADS | own | TRAINING_HEADS | ({} if saved else {"projection_head": "none"})


def load_weights(
    config: PreTrainedConfig, model_name: str, revision: str | None = None, fresh_head: bool = False
) -> PreTrainedModel:
    """A model in float32, all of which the checkpoint has; BERT's own pooler alone, which nothing reads, may be random.

    Args:
        config: `config.informin` says which heads it has; see `load_saved` for the class.
        fresh_head: the projection head may be random too.

    Raises:
        UsageError: the weights cannot be read, have other shapes than the configuration says, or are not all there.
    """
    refuse_weights_outside(model_name, config, revision)
    try:
        with _without_load_report():
            model, report = _class_of(config).from_pretrained(
                model_name,
                config=config,
                revision=revision,
                dtype=torch.float32,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # refused below, by name
                trust_remote_code=False,
            )
    except Exception as error:  # what is raised depends on what is wrong with the files
        raise UsageError(f"`model_name` {model_name} cannot be loaded: {_reason(error)}") from None
    if report["mismatched_keys"]:
        name, given, needed = min(report["mismatched_keys"])
        refuse_own_code(model_name, config)
        raise UsageError(
            f"`model_name` {model_name} cannot be loaded: {name} is {tuple(given)} in its weights and {tuple(needed)} "
            "by its config.json; they do not belong together."
        )
    missing = report["missing_keys"] | (set() if fresh_head else _missing_head(model, model_name, revision))
    missing = sorted(name for name in missing if not name.startswith(BERT_POOLER))
    lm_head = architecture_of(config).lm_head if isinstance(model, InforMinModel) else None
    if {name.partition(".")[0] for name in missing} == {lm_head}:
        raise UsageError(
            f"The checkpoint {model_name} has no language-model head, which the objective reads: its logits would be "
            "random. Start from a checkpoint that has one, or leave MLM off (`mlm_weight` 0)."
        )
    if missing:
        refuse_own_code(model_name, config)
        raise UsageError(
            f"`model_name` {model_name} lacks {counted(len(missing), 'weight')} of the encoder, {missing[0]} the "
            "first: what is lacking would be random. Copy the model again from its source."
        )
    _tell_unread(model_name, report["unexpected_keys"])
    return model


@contextmanager
def _without_load_report() -> Iterator[None]:
    """Without transformers' table of weights that do not fit: `load_weights` names them in a line."""
    log = logging.getLogger("transformers.modeling_utils")
    log.addFilter(_is_no_report)
    try:
        yield
    finally:
        log.removeFilter(_is_no_report)


def _is_no_report(record: logging.LogRecord) -> bool:
    return "LOAD REPORT" not in record.getMessage()


def _tell_unread(model_name: str, names: Iterable[str]) -> None:
    """A line on weights that are neither the encoder's nor a head's that checkpoints usually have."""
    unread = sorted(name for name in names if not name.startswith(USUAL_HEADS))
    if unread:
        _tell_once(
            f"{model_name} has {counted(len(unread), 'weight')} that its encoder does not read, {unread[0]} first."
        )


@cache
def _tell_once(line: str) -> None:
    """A model is loaded more than once in a run."""
    logger.info(line)


def own_code(config: PreTrainedConfig) -> str | None:
    """The code that a config.json names for its model, where it is not this project's."""
    named = getattr(config, "auto_map", None) or {}
    code = [named[name] for name in ("AutoModel", "AutoConfig", "AutoModelForMaskedLM") if named.get(name)]
    return next((str(name) for name in code if not str(name).startswith("modeling_informin.")), None)


def refuse_own_code(model_name: str, config: PreTrainedConfig) -> None:
    """UsageError for weights that do not fit because the checkpoint's own code was to read them."""
    if code := own_code(config):
        raise UsageError(
            f"`model_name` {model_name} needs code of its own ({code}, in its auto_map), which is never run: its "
            f"weights are not those of a {config.model_type} of transformers. Take an encoder that transformers has."
        )


def refuse_weights_outside(model_name: str, config: PreTrainedConfig, revision: str | None = None) -> None:
    """UsageError where weights are in files outside of the model's folder, which config.json or an index may name."""
    refuse_outside(model_name, HEAD_FILE)
    named = getattr(config, "transformers_weights", None)
    if named is not None:
        refuse_outside(model_name, named, "config.json")
    for index in dict.fromkeys((SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_INDEX_NAME, *_names([named]))):
        shards = json_file(model_name, index, revision).get("weight_map", {}) if index.endswith(".index.json") else {}
        if not isinstance(shards, dict):
            raise UsageError(
                f"`model_name` {model_name}: weight_map in its {index} does not say the file of each weight."
            )
        for name in dict.fromkeys(map(str, shards.values())):
            refuse_outside(model_name, name, index)


def _names(values: object) -> list[str]:
    return [name for name in values if isinstance(name, str)] if isinstance(values, list) else []


def _class_of(config: PreTrainedConfig) -> type:
    return architecture_of(config).model if getattr(config, "informin", None) else AutoModel


def _read_head(model: PreTrainedModel, model_name: str, revision: str | None) -> None:
    """The projection head of a published folder, where the class does not read it itself: those of `sister` do not."""
    if not isinstance(model, InforMinModel) or model.config.informin["projection_head"] != "mlp":
        return
    path = None if model._auto_class else optional_file(model_name, HEAD_FILE, revision)
    if path is None:
        return
    try:
        model.mlp.load_state_dict(load_file(path))
    except (SafetensorError, OSError, RuntimeError) as error:
        raise UsageError(f"`model_name` {model_name} cannot be loaded: {_reason(error)}") from None


def refuse_unsafe(model: InforMinModel) -> None:
    """UsageError for an encoder that cannot be trained as others are, by a try with one sentence.

    What it gives would depend on the padding of a batch; or some of its weights would not be reached by a sentence, and
    several processes would wait for their gradients.
    """
    pad = model.config.pad_token_id or 0
    words = [word for word in range(5) if word != pad][-3:]
    try:
        alone, padded = (
            model.base_model(
                input_ids=torch.tensor([words + [pad] * more]), attention_mask=torch.tensor([[1] * 3 + [0] * more])
            ).last_hidden_state[:, :3]
            for more in (0, 2)
        )
        alone.sum().backward()
        fits = alone.shape == (1, 3, model.config.hidden_size) and torch.allclose(alone, padded, rtol=1e-3, atol=1e-4)
        problem = None if fits else "what it gives depends on the padding of a batch"
    except Exception as error:  # of a model that was never tried here
        problem = f"{error_line(error)} ({type(error).__name__})"
    unread = [name for name, x in model.base_model.named_parameters() if x.requires_grad and x.grad is None]
    if problem is None and unread:
        problem = f"a sentence does not reach {counted(len(unread), 'weight')} of it, {unread[0]} the first"
    model.zero_grad()
    if problem:
        raise UsageError(
            f"The architecture {model.config.model_type!r} cannot be trained here: {problem}. Take an encoder of: "
            f"{', '.join(ARCHITECTURES)}."
        )


def _missing_head(model: PreTrainedModel, model_name: str, revision: str | None) -> set[str]:
    """The names of a projection head that is not there: our class has transformers keep silent about them."""
    weights = optional_file(model_name, SAFE_WEIGHTS_NAME, revision)
    if not isinstance(model, InforMinModel) or weights is None or optional_file(model_name, HEAD_FILE, revision):
        return set()
    with safe_open(weights, "pt") as file:
        return {name for name in model.state_dict() if name.startswith("mlp.")} - set(file.keys())


def refuse_without_dropout(encoder: PreTrainedModel) -> None:
    """UsageError where every dropout is 0: two views of a sentence differ by dropout alone."""
    if not any(module.p > 0 for module in encoder.modules() if isinstance(module, nn.Dropout)):
        dropouts = " and ".join(architecture_of(encoder.config).dropouts)
        raise UsageError(
            "Every dropout of this model is 0, so the two views of a sentence would be identical. Give "
            f"`view_dropout_rate` 0.1, for instance, or set {dropouts} in its config.json, or give `view_dropout`."
        )


def refuse_other_heads(model: InforMinModel, heads: dict) -> None:
    """UsageError where the model's heads are not those of the objective, named as in `config.informin`.

    A head that is missing cannot be read; one that is never read breaks training over several processes.
    """
    for name, needed in heads.items():
        if (built := model.config.informin[name]) != needed:
            raise UsageError(
                f"The objective needs {name} = {needed}, but the model was built with {name} = {built}: a head that is "
                "missing, or never read. Load it with informin.encoders.loading.load_model and `args.model_settings`."
            )


def _reason(error: Exception) -> str:
    """With the kind of the error, as some messages are a word."""
    return f"{error_line(error)} ({type(error).__name__}). Are its files whole? Else copy them again from their source."
