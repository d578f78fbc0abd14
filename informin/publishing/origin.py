"""Where the files of a model say that it came from. A local path in them must not be published."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from informin.errors import UsageError
from informin.files import read_json, write_json
from informin.models.tokenizer import TOKENIZER_TRACES
from informin.publishing.metadata import known_id
from informin.publishing.module_files import LORA_CONFIG, TOKENIZER_CONFIG
from informin.publishing.record import load_record

BASE = "base_model_name_or_path"  # the model that low-rank matrices belong to
NAMES = (
    *(BASE, "_name_or_path", "name_or_path"),
    *("tokenizer_file", "vocab_file", "merges_file", "special_tokens_map_file"),
)
LARGE = ("tokenizer.json", "vocab.json", "model.safetensors.index.json")  # files without settings
MERGE = (
    "Merge the matrices: run the training command again with `lora_merge` true and `resume_from_checkpoint` last. Or "
    "set `base_model` to the Hub id of the source model."
)


def hub_id_of(record: dict | None) -> str | None:
    """Return the Hub id of the source model by the record of a run; None if it was a local folder."""
    return known_id(((record or {}).get("base_model") or {}).get("hub_id"))


def remove_origins(folder: Path, record: dict | None) -> None:
    """Remove the paths that a model was loaded from, and name the source model of low-rank matrices by its Hub id."""
    for path in folder.rglob("*.json"):
        if path.name in LARGE:
            continue
        values = read_json(path, object)
        traces = (*NAMES, *(TOKENIZER_TRACES if path.name == TOKENIZER_CONFIG else ()))
        kept = values
        if isinstance(values, dict):
            kept = {name: value for name, value in values.items() if name == BASE or name not in traces}
        if path.name == LORA_CONFIG and (hub_id := hub_id_of(record)):
            kept[BASE] = hub_id
        if kept != values:
            write_json(path, kept, indent=2, allow_nan=True)


def refuse_local_base(args: Any, base: dict | None) -> None:
    """Raise UsageError if a run would push low-rank matrices of a local model, which others do not have.

    Args:
        args: Arguments of the run.
        base: The entry `base_model` of its record; None if it is unknown.
    """
    if args.push_to_hub and args.lora_r and not args.lora_merge and base and not hub_id_of({"base_model": base}):
        raise UsageError(
            f"is false, and the source model {base['name']} is a local folder",
            option="lora_merge",
            needed="true, to push a model that others can load",
            fix="Or set `base_model` to the Hub id of the source model.",
        )


def refuse_local_paths(folder: Path, published: list[Path]) -> None:
    """Raise UsageError if a published file with settings names a path of this machine."""
    for path in published:
        if path.suffix != ".json" or path.name in LARGE:
            continue
        values = read_json(folder / path, object)
        if path.name == LORA_CONFIG and isinstance(values, dict):
            _refuse_local_base(folder / path, values.get(BASE), load_record(folder))
        for key, value in _texts(values):
            if (key in NAMES and key != BASE and _is_local(value)) or _exists_here(value):
                raise UsageError(
                    f"{folder / path} names a path of this machine: {key} is {value!r:.200}",
                    needed="a Hub id",
                    fix="Remove the entry, or export the folder again with `informin export`.",
                )


def _refuse_local_base(path: Path, base: object, record: dict | None) -> None:
    """Raise UsageError if low-rank matrices belong to a model that nobody else has."""
    hub_id = hub_id_of(record)
    recorded = (record or {}).get("base_model")
    if (hub_id and base == hub_id) or (not recorded and not _is_local(base)):
        return
    raise UsageError(
        f"{path} names a local folder as the base model of its low-rank matrices: {BASE} is {base!r:.200}",
        needed=f"the Hub id {hub_id}" if hub_id else "a Hub id, so that others can load the model",
        fix=MERGE,
    )


def _is_local(value: object) -> bool:
    """Return whether a name of a model is no Hub id, or also a local path."""
    return bool(value) and (known_id(value) is None or os.path.exists(str(value)))


def _exists_here(value: str) -> bool:
    """Return whether a text is an absolute path on this machine."""
    if "\0" in value or not os.path.isabs(value) or len(Path(value).parts) < 3:  # a token may be /
        return False
    return Path(value).is_relative_to(Path.home()) or os.path.lexists(value)


def _texts(value: object, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield all texts in a JSON value, each with the key that it belongs to."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _texts(item, name)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item, key)
