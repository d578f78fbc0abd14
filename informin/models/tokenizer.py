"""Load and check the tokenizer of an encoder."""

import copy
from pathlib import Path

from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase

from informin.errors import UsageError, counted, error_line
from informin.files import read_json, write_json
from informin.models.architectures import OFFSET_POSITIONS
from informin.models.checkpoint import Checkpoint, once
from informin.models.encode import max_length
from informin.models.model_config import load_config
from informin.models.sentence_transformers_files import load_embedding_config

TOKENIZER_FILES = ("tokenizer_config.json", "tokenizer.json", "special_tokens_map.json")
# Traces of the machine that loaded a tokenizer, and of earlier calls.
TOKENIZER_TRACES = (
    *("is_local", "local_files_only", "name_or_path", "backend"),
    *("max_length", "stride", "pad_to_multiple_of", "truncation_strategy"),
)
COPY_TOKENIZER = "Copy tokenizer.json and tokenizer_config.json from the checkpoint that the model was trained from."


def load_tokenizer(checkpoint: Checkpoint) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model, and limit its `model_max_length` to the model's number of positions.

    Raises:
        UsageError: There is no tokenizer, it has no vocabulary or padding token, or it belongs to another model.
    """
    config, tokenizer = load_config(checkpoint, any_encoder=True), copy.deepcopy(_stored_tokenizer(checkpoint))
    if not tokenizer.is_fast:
        raise UsageError(
            f"{checkpoint} has a slow tokenizer, {type(tokenizer).__name__}",
            option="model_name",
            needed="a tokenizer.json",
        )
    if len(tokenizer) <= len(tokenizer.all_special_tokens):  # what transformers creates if the files are missing
        raise UsageError(f"{checkpoint} has no vocabulary next to its weights", option="model_name", fix=COPY_TOKENIZER)
    if tokenizer.pad_token is None:
        raise UsageError(
            f"{checkpoint} has a tokenizer without a padding token", option="model_name", needed="pad_token to be set"
        )
    if problem := mismatch(config, tokenizer):
        found = f"{checkpoint}: the tokenizer does not belong to the model: {problem}"
        raise UsageError(found, option="model_name", fix=COPY_TOKENIZER)
    given = tokenizer.model_max_length
    stated = load_embedding_config(checkpoint, config).files.get("max_seq_length")
    if isinstance(given, int | float) and given >= 1:  # as in sentence-transformers, where its own setting wins
        tokenizer.model_max_length = max(given, stated or 0)
    if not isinstance(given, int | float) or max_length(config, tokenizer) < 3:
        raise UsageError(
            f"{checkpoint} has max_position_embeddings {config.max_position_embeddings} in config.json and "
            f"model_max_length {given!r} in tokenizer_config.json",
            option="model_name",
            needed="room for 3 tokens",
        )
    tokenizer.model_max_length = max_length(config, tokenizer)
    forget_truncation(tokenizer)
    return pad_right(tokenizer)


@once
def _stored_tokenizer(checkpoint: Checkpoint) -> PreTrainedTokenizerBase:
    how = {"revision": checkpoint.revision, "trust_remote_code": False}
    try:
        return AutoTokenizer.from_pretrained(checkpoint.name, **how)
    except Exception as error:  # tokenizers raises Exception itself
        files = [checkpoint.json(name) for name in TOKENIZER_FILES]  # raises for a damaged file
        found, needed = f"{checkpoint} defines its tokenizer in code, which is never run", "a tokenizer.json"
        if any("auto_map" in values for values in files):
            raise UsageError(found, option="model_name", needed=needed) from None
        found = f"{checkpoint} has no tokenizer that can be loaded: {error_line(error)} ({type(error).__name__})"
        raise UsageError(found, option="model_name", fix="Copy the model again from its source.") from None


def pad_right(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Make a tokenizer pad on the right: with padding on the left, positions would depend on the batch."""
    tokenizer.padding_side = "right"
    return tokenizer


def mismatch(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Return why a tokenizer cannot belong to a model; None if it can."""
    last, size = max(tokenizer.get_vocab().values()), config.vocab_size
    if len(tokenizer) > size:
        return f"it has {counted(len(tokenizer), 'token')}, and the model {size:,}"
    if last >= size:
        name = tokenizer.convert_ids_to_tokens(last)
        return f"its token {name} has the id {last:,}, and the model has {counted(size, 'token')}"
    if config.model_type in OFFSET_POSITIONS and tokenizer.pad_token_id != config.pad_token_id:
        return (
            f"its padding token {tokenizer.pad_token} has the id {tokenizer.pad_token_id}, and pad_token_id in "
            f"config.json is {config.pad_token_id}"
        )
    return None


def forget_truncation(tokenizer: PreTrainedTokenizerBase) -> None:
    """Reset the truncation and padding of the last call, which save_pretrained would write to tokenizer.json."""
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Save the tokenizer's files in a form that transformers 4 can load too."""
    forget_truncation(tokenizer)
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    settings = {name: value for name, value in read_json(path).items() if name not in TOKENIZER_TRACES}
    if settings.get("tokenizer_class") == "TokenizersBackend":  # its name in transformers 5
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    write_json(path, settings, indent=2, allow_nan=True)
    path = folder / "tokenizer.json"
    settings = read_json(path)
    merges = settings["model"].get("merges") or []
    if not any(isinstance(pair, str) or " " in "".join(pair) for pair in merges):
        settings["model"]["merges"] = [" ".join(pair) for pair in merges]  # lists of pairs need tokenizers 0.20
    write_json(path, settings, indent=2, allow_nan=True)
