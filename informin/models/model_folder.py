"""Check the files, folders, models and module settings that the files of a model folder refer to."""

import os
from pathlib import Path

from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_INDEX_NAME

from informin.errors import UsageError
from informin.models.adapter_config import base_model
from informin.models.checkpoint import Checkpoint, once
from informin.models.files import check_name, refuse_links, refuse_links_within, refuse_outside, texts_in
from informin.models.module_settings import TRANSFORMERS, check_module
from informin.models.modules import Module, all_modules, joined
from modeling_informin import HEAD_FILE

MODEL_TYPE = "SentenceTransformer"
SETTINGS_FILE = "config_sentence_transformers.json"


@once
def check_paths(checkpoint: Checkpoint) -> None:
    """Raise UsageError if a link, or a path in any file of a model, leads outside of the model's folder.

    Both backends call it before they load anything.
    """
    check_name(checkpoint.name)
    local = checkpoint.is_folder
    if local:
        refuse_links(checkpoint.name)
    refuse_outside(checkpoint.name, HEAD_FILE)
    modules = all_modules(checkpoint)
    kind = checkpoint.json(SETTINGS_FILE).get("model_type", MODEL_TYPE)
    if modules and kind != MODEL_TYPE:  # a reranker or a sparse model, whose modules would be replaced
        found = f"{checkpoint}: model_type in {SETTINGS_FILE} is {kind!r:.60}"
        raise UsageError(found, option="model_name", needed=f"an embedding model ({MODEL_TYPE})")
    for path in folders_of(modules):
        if path and local:
            refuse_links_within(checkpoint.name, path)
    with_weights = modules if local else [one for one in modules if one.kind is None or one.kind in TRANSFORMERS]
    for path in folders_of(with_weights):  # on the Hub, each file is a request
        _check_weights(checkpoint, path)
        file = joined(path, "tokenizer_config.json")
        for name in texts_in(checkpoint.json(file).get("fast_tokenizer_files")):
            refuse_outside(checkpoint.name, name, file, path)
        if base := base_model(checkpoint, path):
            _check_weights(Checkpoint(base), "")


def check_modules(checkpoint: Checkpoint, trusted: bool = False) -> None:
    """Raise UsageError for a setting of a module that is not allowed; see `informin.models.module_settings`.

    Args:
        checkpoint: Files of the model.
        trusted: Code in the model's repository may run.
    """
    for module in all_modules(checkpoint):
        check_module(checkpoint, module, trusted)


def folders_of(modules: list[Module]) -> list[str]:
    """Return the distinct folders of modules, the model's folder first."""
    return list(dict.fromkeys(["", *(module.path for module in modules)]))


def _check_weights(checkpoint: Checkpoint, path: str) -> None:
    """Raise UsageError if config.json or an index of shards names weights outside of the folder."""
    config = checkpoint.json(joined(path, "config.json"))
    named = config.get("transformers_weights")
    if named is not None:
        refuse_outside(checkpoint.name, named, joined(path, "config.json"), path)
    indexes = [SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_INDEX_NAME, *texts_in([named])]
    folder = Path(checkpoint.name, path)
    if os.path.isdir(folder):  # Path.is_dir raises for a name that is too long
        indexes += [found.name for found in sorted(folder.glob("*.index.json"))]
    for index in dict.fromkeys(name for name in indexes if name.endswith(".index.json")):
        file = joined(path, index)
        shards = checkpoint.json(file).get("weight_map", {})
        if not isinstance(shards, dict):
            found = f"{checkpoint}: weight_map in {file} is a {type(shards).__name__}"
            raise UsageError(found, option="model_name", needed="a mapping from weights to files")
        for name in dict.fromkeys(map(str, shards.values())):
            refuse_outside(checkpoint.name, name, file, path)
