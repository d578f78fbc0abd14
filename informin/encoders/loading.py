"""Loading of configurations, tokenizers and weights, never of code that a checkpoint brings along."""

import difflib
import glob
import os
from pathlib import Path

import torch
from safetensors import safe_open
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
from transformers.utils import SAFE_WEIGHTS_NAME, cached_file

from informin.encoders.architectures import ARCHITECTURES, OFFSET_POSITIONS, InforMinModel
from informin.encoders.encode import max_length
from informin.errors import UsageError, counted, error_line
from informin.files import hub_problem, read_json
from modeling_informin import HEAD_FILE, HEADS, TRAINING_HEADS

BERT_POOLER = "pooler."
TOKENIZER_FILES = ("tokenizer_config.json", "tokenizer.json", "special_tokens_map.json")
COPY_TOKENIZER = (
    "Copy the tokenizer files (tokenizer.json, tokenizer_config.json) of the checkpoint it was trained from there."
)


def load_config(model_name: str, revision: str | None = None, any_encoder: bool = False) -> PreTrainedConfig:
    """The configuration of an encoder, from a folder or the Hub.

    Args:
        any_encoder: takes every encoder like BERT that transformers has; else those of `ARCHITECTURES` alone.

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
    known = isinstance(name, str) and name in (CONFIG_MAPPING if any_encoder else ARCHITECTURES)
    try:
        config = AutoConfig.from_pretrained(model_name, revision=revision, trust_remote_code=False) if known else None
    except Exception as error:  # what transformers raises depends on the value
        raise UsageError(f"`model_name` {model_name} cannot be loaded: {_reason(error)}") from None
    if not known or config.is_encoder_decoder or type(config) not in MODEL_FOR_MASKED_LM_MAPPING:
        needed = "an encoder like BERT" if any_encoder else f"one of: {', '.join(ARCHITECTURES)}"
        code = " Code that a checkpoint brings along is never run." if "auto_map" in values else ""
        problem = f"is of the architecture {name!r}" if name else "has no model_type in its config.json"
        raise UsageError(f"`model_name` {model_name} {problem}; needed {needed}.{code}")
    refuse_no_encoder(model_name, config)
    config._attn_implementation = None  # by a name of the Hub, transformers would fetch code from there
    return config


def refuse_no_encoder(model_name: str, config: PreTrainedConfig) -> None:
    """UsageError for what transformers builds, and what is no encoder, or fails at the first sentence."""
    for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings"):
        size = getattr(config, name, None)
        if isinstance(size, int) and size < 1:
            raise UsageError(f"`model_name` {model_name}: {name} in its config.json is {size}; needed 1 or more.")
    if getattr(config, "max_position_embeddings", None) is None:
        raise UsageError(
            f"`model_name` {model_name}: {config.model_type} has no table of positions; needed an encoder like BERT."
        )
    if getattr(config, "is_decoder", False):
        raise UsageError(
            f"`model_name` {model_name} is a decoder: no token sees those after it, and [CLS] only itself. If it was "
            "trained as an encoder, set is_decoder to false in its config.json; else take another model."
        )


def find_config(model_name: str, revision: str | None = None) -> str:
    """The path of a model's config.json, in a folder or from the Hub; else UsageError, with folders that have one."""
    folder = Path(model_name)
    if os.path.isfile(model_name):
        raise UsageError(f"`model_name` {model_name} is a file; needed its folder: `model_name` {folder.parent}")
    if os.path.isdir(model_name):
        if (folder / "config.json").is_file():
            return str(folder / "config.json")
        problem = " cannot be loaded: the folder has no config.json"
    elif model_name.startswith((".", "/", "~")) or model_name.count("/") > 1:  # none of the Hub's names
        problem = ": there is no such folder"
    else:
        try:
            if path := cached_file(model_name, "config.json", revision=revision):
                return path
            problem = "its repository on the Hub has no config.json"
        except Exception as error:  # transformers' OSError is about the Hub's own error, or it is that itself
            problem = hub_problem(error.__cause__ or error, revision)
        problem = f" cannot be loaded: there is no such folder, and {problem}"
    raise UsageError(f"`model_name` {model_name}{problem}.{_near(model_name)}")


def _near(model_name: str) -> str:
    """Up to three folders with a config.json: inside, beside of a like name, elsewhere of the same name."""
    path = Path(os.path.expanduser(model_name))
    beside = {folder.name: folder for folder in _models(path.parent, "*")}
    alike = [beside[name] for name in difflib.get_close_matches(path.name, beside)]
    folders = [*_models(path, "*"), *alike, *_models(Path(), f"*/{glob.escape(path.name)}")]
    names = list(dict.fromkeys(map(str, folders)))[:3]
    return f" Did you mean {', '.join(names)}?" if names else ""


def _models(folder: Path, pattern: str) -> list[Path]:
    """Folders of models; sentence-transformers' other modules have a config.json too, without a model_type."""
    try:
        files = [path for path in folder.glob(f"{pattern}/config.json") if b'"model_type"' in path.read_bytes()]
    except OSError:  # a help less
        return []
    return sorted(path.parent for path in files)


def optional_file(model_name: str, name: str, revision: str | None = None) -> str | None:
    """The path of a file of a checkpoint, in a folder or fetched from the Hub; None where there is none."""
    quiet = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
    return cached_file(model_name, name, revision=revision, **quiet)


def json_file(model_name: str, name: str, revision: str | None = None, kind: type = dict):
    """What such a file holds, empty where there is none; see `informin.files.read_json`."""
    path = optional_file(model_name, name, revision)
    return kind() if path is None else read_json(path, kind)


def load_tokenizer(model_name: str, config: PreTrainedConfig, revision: str | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer beside a model; its `model_max_length` is never more than the model has positions for.

    Raises:
        UsageError: there is none, it has no words or no padding token, or it is not the model's.
    """
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
    problem, last = None, max(tokenizer.all_special_ids)
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

    The settings go into `config.informin`; `modeling_informin.HEADS` says which heads they build.
    """
    config.informin = settings
    model = load_weights(config, model_name, revision, fresh_head=True)
    # save_pretrained leaves tied weights out anyway; named here, Trainer does not warn that a checkpoint lacks them.
    model._keys_to_ignore_on_save = set(model.all_tied_weights_keys)
    return model


def load_saved(config: PreTrainedConfig, model_name: str, revision: str | None = None) -> PreTrainedModel:
    """The encoder in float32 as it was saved, with its projection head, and without the heads that only training reads.

    Of transformers' own class, where `config` has no settings of this project or is of none of `ARCHITECTURES`.
    """
    config.informin = saved_settings(config, model_name, revision)
    return load_weights(config, model_name, revision)


def saved_settings(config: PreTrainedConfig, model_name: str, revision: str | None = None) -> dict | None:
    """`config.informin` of a saved model, without the heads that only training reads; None where it is not ours.

    Without a projection head too where none was saved: another class that saves our checkpoint again loses it, and
    keeps the settings that name it.
    """
    if not (own := getattr(config, "informin", None)):
        return None
    among_weights = _class_of(config).__name__ in (config.architectures or [])
    saved = among_weights or optional_file(model_name, HEAD_FILE, revision) is not None
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
    try:
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
        raise UsageError(
            f"`model_name` {model_name} cannot be loaded: {name} is {tuple(given)} in its weights and {tuple(needed)} "
            "by its config.json; they do not belong together."
        )
    missing = report["missing_keys"] | (set() if fresh_head else _missing_head(model, model_name, revision))
    missing = sorted(name for name in missing if not name.startswith(BERT_POOLER))
    architecture = ARCHITECTURES.get(config.model_type)
    if architecture and {name.partition(".")[0] for name in missing} == {architecture.lm_head}:
        raise UsageError(
            f"The checkpoint {model_name} has no language-model head, which the objective reads: its logits would be "
            "random. Start from a checkpoint that has one, or leave MLM off (`mlm_weight` 0)."
        )
    if missing:
        raise UsageError(
            f"`model_name` {model_name} lacks {counted(len(missing), 'weight')} of the encoder, {missing[0]} the "
            "first: what is lacking would be random. Copy the model again from its source."
        )
    return model


def _class_of(config: PreTrainedConfig) -> type:
    ours = getattr(config, "informin", None) and ARCHITECTURES.get(config.model_type)
    return ours.model if ours else AutoModel


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
        dropouts = " and ".join(ARCHITECTURES[encoder.config.model_type].dropouts)
        raise UsageError(
            "Every dropout of this model is 0, so the two views of a sentence would be identical. Set "
            f"{dropouts} in its config.json, to 0.1 for instance, or give `view_dropout`."
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
