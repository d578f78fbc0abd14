"""Loading an encoder and its tokenizer for training."""

from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase
from transformers.utils import cached_file

from informin.encoding import max_length
from informin.errors import UsageError, error_line
from modeling_informin import BertForInforMinCL, RobertaForInforMinCL

ARCHITECTURES = {"bert": BertForInforMinCL, "roberta": RobertaForInforMinCL}
InforMinModel = BertForInforMinCL | RobertaForInforMinCL


def load_config(model_name: str, revision: str | None = None) -> PreTrainedConfig:
    """The configuration of a BERT or RoBERTa, from a folder or the Hub.

    Raises:
        UsageError: there is no such model, or it is of another architecture.
    """
    refuse_absent_folder(model_name)
    try:
        config = AutoConfig.from_pretrained(model_name, revision=revision)
    except (OSError, ValueError) as error:
        raise UsageError(f"--model_name {model_name} cannot be loaded: {error_line(error)}") from None
    if config.model_type not in ARCHITECTURES:
        raise UsageError(
            f"--model_name {model_name} is of the architecture {config.model_type!r}; needed one of: "
            f"{', '.join(ARCHITECTURES)}."
        )
    return config


def refuse_absent_folder(model_name: str) -> None:
    """A path that is none of the Hub's names, and not there: transformers would complain of the name.

    Raises:
        UsageError: there is no such folder.
    """
    is_path = model_name.startswith((".", "/", "~")) or model_name.count("/") > 1
    if is_path and not Path(model_name).is_dir():
        raise UsageError(f"--model_name {model_name}: there is no such folder.")


def optional_file(model_name: str, name: str, revision: str | None = None) -> str | None:
    """The path of a file of a checkpoint, in a folder or fetched from the Hub; None where there is none."""
    return cached_file(
        model_name,
        name,
        revision=revision,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )


def load_tokenizer(model_name: str, config: PreTrainedConfig, revision: str | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer beside a model; its `model_max_length` is never more than the model has positions for.

    Raises:
        UsageError: there is none, it has no words or no padding token, or more words than the model knows.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(model_name, revision=revision)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"--model_name {model_name} has no tokenizer that can be loaded: {error_line(error)}"
        ) from None
    if len(tokenizer) <= len(tokenizer.all_special_tokens):  # what transformers makes up where the files are missing
        raise UsageError(
            f"--model_name {model_name} has no tokenizer: no vocabulary was found beside the weights. Copy the "
            "tokenizer files (tokenizer.json, tokenizer_config.json) of the checkpoint it was trained from there."
        )
    if tokenizer.pad_token is None:
        raise UsageError(f"--model_name {model_name}: its tokenizer has no padding token, and batches need one.")
    if len(tokenizer) > config.vocab_size:
        raise UsageError(
            f"--model_name {model_name}: its tokenizer has {len(tokenizer)} words and the model {config.vocab_size}; "
            "they do not belong together."
        )
    tokenizer.model_max_length = max_length(config, tokenizer)
    forget_truncation(tokenizer)
    return tokenizer


def forget_truncation(tokenizer: PreTrainedTokenizerBase) -> None:
    """Removes the truncation and padding of the last call, which save_pretrained would write into tokenizer.json."""
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()


def load_model(config: PreTrainedConfig, model_name: str, settings: dict, revision: str | None = None) -> InforMinModel:
    """The encoder in float32 with the heads that `settings` asks for.

    Args:
        config: of the same model, from `load_config`.
        settings: what goes into `config.informin`; `modeling_informin.HEADS` says which heads it builds.

    Raises:
        UsageError: an LM head is asked for and the checkpoint has none.
    """
    config.informin = settings
    try:
        model, report = ARCHITECTURES[config.model_type].from_pretrained(
            model_name, config=config, revision=revision, dtype=torch.float32, output_loading_info=True
        )
    except (OSError, SafetensorError) as error:
        raise UsageError(f"--model_name {model_name} cannot be loaded: {error_line(error)}") from None
    if settings["lm_head"] and any(key.startswith(("cls.", "lm_head.")) for key in report["missing_keys"]):
        raise UsageError(
            f"--mlm_weight is above 0, but the checkpoint {model_name} has no language-model head: its logits would be "
            "random. Start from a checkpoint that has one, or leave MLM off (--mlm_weight 0)."
        )
    # save_pretrained leaves tied weights out anyway; named here, Trainer does not warn that a checkpoint lacks them.
    model._keys_to_ignore_on_save = set(model.all_tied_weights_keys)
    if model.config.informin["queue_size"]:
        model.start_momentum()
    return model


def refuse_without_dropout(encoder: nn.Module) -> None:
    """Two views of a sentence differ by dropout alone.

    Raises:
        UsageError: every dropout is 0, so the two views would be identical.
    """
    if not any(module.p > 0 for module in encoder.modules() if isinstance(module, nn.Dropout)):
        raise UsageError(
            "Every dropout of this model is 0, so the two views of a sentence would be identical. Set "
            "hidden_dropout_prob and attention_probs_dropout_prob in its config.json, to 0.1 for instance, or give "
            "--view_dropout."
        )


def refuse_other_heads(model: InforMinModel, heads: dict) -> None:
    """A head that is missing cannot be read; one that is never read breaks training over several processes.

    Args:
        heads: what the objective needs in `config.informin`.

    Raises:
        UsageError: the model's heads are not those of the objective.
    """
    for name, needed in heads.items():
        found = model.config.informin[name]
        if found != needed:
            raise UsageError(
                f"The objective needs {name} = {needed}, but the model was built with {name} = {found}: a head that is "
                "missing, or never read. Load it with informin.loading.load_model and args.heads among its settings."
            )
