"""Check what the files of a model folder name: other files, folders, models, and settings of its modules."""

import os
from collections.abc import Iterator
from pathlib import Path

from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_INDEX_NAME

from informin.errors import UsageError
from informin.models.adapter_config import base_model
from informin.models.files import check_name, json_file, refuse_links, refuse_links_within, refuse_outside, texts_in
from informin.models.module_settings import TRANSFORMERS, check_module
from informin.models.modules import Module, all_modules, joined
from modeling_informin import HEAD_FILE

MODEL_TYPE = "SentenceTransformer"
SETTINGS_FILE = "config_sentence_transformers.json"


def check_paths(model_name: str, revision: str | None = None) -> None:
    """Raise UsageError if a link, or a path in any file of a model, leads outside of the model's folder.

    Both backends call it before they load anything.
    """
    check_name(model_name)
    local = os.path.isdir(model_name)
    if local:
        refuse_links(model_name)
    refuse_outside(model_name, HEAD_FILE)
    modules = all_modules(model_name, revision)
    _refuse_other_type(model_name, modules, revision)
    for path in folders_of(modules):
        if path and local:
            refuse_links_within(model_name, path)
    with_weights = modules if local else [one for one in modules if one.kind is None or one.kind in TRANSFORMERS]
    for path in folders_of(with_weights):  # on the Hub, each file is a request
        _check_weights(model_name, path, revision)
        _check_tokenizer(model_name, path, revision)
        if base := base_model(model_name, path, revision):
            _check_weights(base, "", None)


def check_modules(model_name: str, revision: str | None = None, trusted: bool = False) -> None:
    """Raise UsageError for a setting of a module that is not allowed; see `informin.models.module_settings`.

    Args:
        model_name: Hub id or folder.
        revision: Branch, tag or commit on the Hub.
        trusted: Code in the model's repository may run.
    """
    for module in all_modules(model_name, revision):
        check_module(model_name, module, revision, trusted)


def folders_of(modules: list[Module]) -> list[str]:
    """Return the distinct folders of modules, the model's folder first."""
    return list(dict.fromkeys(["", *(module.path for module in modules)]))


def _refuse_other_type(model_name: str, modules: list[Module], revision: str | None) -> None:
    """Raise UsageError for a reranker or a sparse model: sentence-transformers would replace its modules."""
    kind = json_file(model_name, SETTINGS_FILE, revision).get("model_type", MODEL_TYPE)
    if modules and kind != MODEL_TYPE:
        found = f"{model_name}: model_type in {SETTINGS_FILE} is {kind!r:.60}"
        raise UsageError(found, option="model_name", needed=f"an embedding model ({MODEL_TYPE})")


def _check_weights(model_name: str, path: str, revision: str | None) -> None:
    """Raise UsageError if config.json or an index of shards names weights outside of the folder."""
    config = json_file(model_name, joined(path, "config.json"), revision)
    named = config.get("transformers_weights")
    if named is not None:
        refuse_outside(model_name, named, joined(path, "config.json"), path)
    indexes = [name for name in texts_in([named]) if name.endswith(".index.json")]
    for index in dict.fromkeys((SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_INDEX_NAME, *indexes, *_indexes(model_name, path))):
        file = joined(path, index)
        shards = json_file(model_name, file, revision).get("weight_map", {})
        if not isinstance(shards, dict):
            found = f"{model_name}: weight_map in {file} is a {type(shards).__name__}"
            raise UsageError(found, option="model_name", needed="a mapping from weights to files")
        for name in dict.fromkeys(map(str, shards.values())):
            refuse_outside(model_name, name, file, path)


def _indexes(model_name: str, path: str) -> Iterator[str]:
    folder = Path(model_name, path)
    if os.path.isdir(folder):  # Path.is_dir raises for a name that is too long
        yield from (found.name for found in sorted(folder.glob("*.index.json")))


def _check_tokenizer(model_name: str, path: str, revision: str | None) -> None:
    """Raise UsageError if tokenizer_config.json names a tokenizer.json outside of the folder."""
    file = joined(path, "tokenizer_config.json")
    for name in texts_in(json_file(model_name, file, revision).get("fast_tokenizer_files")):
        refuse_outside(model_name, name, file, path)
