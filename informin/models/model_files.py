"""The files of a model, before it is opened: what its modules are, and whether it can and may be opened."""

import json
import posixpath
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from transformers.utils import cached_file

from informin.errors import UsageError

MODULES = "modules.json"
ROUTES = ("router_config.json", "config.json")  # of a Router; the second one in older versions
ADAPTER_CONFIG = "adapter_config.json"  # of peft


def file_of(name: str, file: str, revision: str | None = None) -> str | None:
    """Return the path of a file of a model, downloaded if needed; None if there is none."""
    quiet = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
    return cached_file(name, file, revision=revision, _raise_exceptions_for_gated_repo=False, **quiet)


def json_of(name: str, file: str, revision: str | None) -> Any:
    """Return the content of a JSON file of a model; None if there is no such file."""
    path = file_of(name, file, revision)
    return json.loads(Path(path).read_text(encoding="utf-8")) if path else None


def modules_of(name: str, revision: str | None = None) -> list[tuple[str, str]]:
    """Return the folder and the type of each module of a model. A Router lists its modules in a separate file."""
    listed = json_of(name, MODULES, revision) or []
    waiting = [(str(one.get("path", "")), str(one.get("type", ""))) for one in listed]
    found: list[tuple[str, str]] = []
    while waiting:
        module = waiting.pop(0)
        if module not in found:  # a file may name its own folder
            found.append(module)
            waiting += _routes_of(name, module[0], revision)
    return found


def _routes_of(name: str, path: str, revision: str | None) -> list[tuple[str, str]]:
    """Return the folder and the type of each module of a Router; an empty list for another module."""
    types = [(json_of(name, posixpath.join(path, file), revision) or {}).get("types") for file in ROUTES]
    routes = [route for each in types if isinstance(each, dict) for route in each.items()]
    return [(posixpath.normpath(posixpath.join(path, route)), str(kind)) for route, kind in routes]


def raise_if_code_in_adapter(name: str, revision: str | None = None) -> None:
    """Raise UsageError if peft would import a module that adapter_config.json names, in any folder of a model."""
    for folder in {"", *(path for path, _ in modules_of(name, revision))}:
        config = json_of(name, posixpath.join(folder, ADAPTER_CONFIG), revision) or {}
        imported = [str((config.get("auto_mapping") or {}).get("parent_library", "transformers"))]
        if config.get("megatron_config"):
            imported.append(str(config.get("megatron_core", "megatron.core")))
        for module in imported:
            if module.partition(".")[0] not in ("transformers", "sentence_transformers"):
                raise UsageError(f"{name} would import {module}, named in {ADAPTER_CONFIG}", option="model_name")


def raise_if_no_embeddings(name: str, revision: str | None = None) -> None:
    """Raise UsageError for a cross-encoder, which sentence-transformers would convert with a pooling of its choice."""
    kind = (json_of(name, "config_sentence_transformers.json", revision) or {}).get("model_type")
    if kind == "CrossEncoder":
        found = f"is {name}, which is a cross-encoder: it scores pairs and has no embeddings"
        raise UsageError(found, option="model_name", needed="a SentenceTransformer")


def raise_if_quantized_table(name: str, revision: str | None = None) -> None:
    """Raise UsageError if a model is a table of model2vec with whole numbers, which nothing else can open."""
    try:
        path = file_of(name, "model.safetensors", revision)
    except OSError:  # neither a folder nor a name on the Hub
        return
    if path is None:
        return
    try:
        with safe_open(path, "pt") as file:
            kind = file.get_slice("embeddings").get_dtype() if "embeddings" in file.keys() else ""
    except SafetensorError:  # damaged
        return
    if kind.startswith(("I", "U")):
        raise UsageError(
            f"{name} is a model2vec model with vectors in {kind}, which sentence-transformers cannot open",
            option="model_name",
            needed="vectors in float32 or float16",
            fix='Convert it with model2vec: StaticModel.from_pretrained(FOLDER, quantize_to="float32").save_pretrained('
            "NEW_FOLDER).",
        )
