"""Where the files of a model say that it came from. A path of this machine must not be published."""

import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import ModelCard
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from huggingface_hub.utils import validate_repo_id

from informin.errors import UsageError
from informin.models.model_files import ADAPTER_CONFIG
from informin.models.opening import Source

BASE = "base_model_name_or_path"  # the model that low-rank matrices belong to
TOKENIZER_CONFIG = "tokenizer_config.json"
# What libraries write about the place that a model was loaded from.
ORIGIN_FIELDS = (
    *("_name_or_path", "name_or_path", "is_local", "local_files_only"),
    *("tokenizer_file", "vocab_file", "merges_file", "special_tokens_map_file"),
)
CALLS = ("max_length", "stride", "pad_to_multiple_of", "truncation_strategy")  # of earlier calls of a tokenizer
QUOTED = re.compile(r'"/(?:[^"\\]|\\.)+"')  # an absolute path in JSON
LARGE = ("tokenizer.json", "vocab.json", "model.safetensors.index.json")  # files without settings


def is_hub_id(value: Any) -> bool:
    """Return whether a value is a valid name of a repository, and no folder here."""
    try:
        validate_repo_id(value)
    except HFValidationError:
        return False
    return value is not None and not os.path.exists(value)


def license_of(source: Source) -> dict[str, Any]:
    """Return `license`, `license_name` and `license_link` in the card of a model, without those that it lacks."""
    try:
        path = source.folder / "README.md" if source.folder else source.name
        card = ModelCard.load(path, ignore_metadata_errors=True).data.to_dict()
    except (OSError, ValueError, HfHubHTTPError, yaml.YAMLError):
        return {}
    values = {name: card.get(name) for name in ("license", "license_name", "license_link")}
    return {name: value for name, value in values.items() if isinstance(value, str)}


def remove_origins(folder: Path, hub_id: str | None = None) -> None:
    """Remove the paths that a model was loaded from.

    Args:
        folder: Folder of the model.
        hub_id: Hub id of the source model, for low-rank matrices that are not merged.
    """
    for path, values in _settings(folder, (path.relative_to(folder) for path in folder.rglob("*.json"))):
        if not isinstance(values, dict):
            continue
        traces = ORIGIN_FIELDS + CALLS if path.name == TOKENIZER_CONFIG else ORIGIN_FIELDS
        kept = {name: value for name, value in values.items() if name not in traces}
        if path.name == ADAPTER_CONFIG and hub_id:
            kept[BASE] = hub_id
        if kept != values:
            path.write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def raise_if_local_path(folder: Path, names: Iterable[Path]) -> None:
    """Raise UsageError if a file with settings, by its name in the folder, contains a path of this machine."""
    for path, values in _settings(folder, names):
        base = values.get(BASE) if path.name == ADAPTER_CONFIG else None
        local = [f"{BASE} is {base!r}"] if base and not is_hub_id(base) else []
        texts = map(json.loads, QUOTED.findall(path.read_text(encoding="utf-8")))
        local += [text for text in texts if _exists_here(text)]
        if local:
            raise UsageError(
                f"{path} names a path of this machine: {local[0]:.200}",
                needed="a Hub id",
                fix="After training, merge low-rank matrices (`lora_merge`), or set `base_model` to the Hub id of the "
                f"source model. After a fit, write that id as {BASE} into {ADAPTER_CONFIG}.",
            )


def _settings(folder: Path, names: Iterable[Path]) -> Iterator[tuple[Path, Any]]:
    """Yield the path and the content of each JSON file with settings."""
    for name in names:
        if name.suffix == ".json" and name.name not in LARGE:
            yield folder / name, json.loads((folder / name).read_text(encoding="utf-8"))


def _exists_here(text: str) -> bool:
    """Return whether a text is an absolute path on this machine."""
    if "\0" in text or not os.path.isabs(text) or len(Path(text).parts) < 3:  # a token may be /
        return False
    return Path(text).is_relative_to(Path.home()) or os.path.lexists(text)
