"""Which files of an exported folder may be published: an explicit list of names in the folders of its modules.

Checkpoints, logs (their names contain the host name), reports (they may contain sentences), indexes and files that this
project did not write are not published.
"""

import json
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any

from safetensors.torch import load_file
from torch import Tensor
from transformers.dynamic_module_utils import get_relative_import_files
from transformers.trainer import TRAINER_STATE_NAME
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from informin.errors import UsageError
from informin.files import read_json
from informin.models.model_files import ADAPTER_CONFIG, modules_of
from informin.publishing.card import CARD
from informin.publishing.origin import TOKENIZER_CONFIG, raise_if_local_path
from informin.records import FITTED, TRAINING
from modeling_informin import HEAD_FILE

ADAPTER_WEIGHTS = (ADAPTER_CONFIG, "adapter_model.safetensors")
# Files that belong to one version of the weights.
MADE_FROM_WEIGHTS = ("results/model.json", "results/other_seeds/seed*.json", "onnx/*.onnx")
RESULTS = ("results/model.json", "results/base-*.json", "results/other_seeds/seed*.json")
ROOT = (
    *(CARD, TRAINING, FITTED, "modules.json", "config_sentence_transformers.json", HEAD_FILE),
    *("modeling_informin.py", "onnx/model.onnx", "onnx/model_quantized.onnx"),
)
# What the modules of sentence-transformers write: weights, settings and tokenizers.
MODULE = (
    *("config.json", "generation_config.json", "router_config.json", SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME),
    *(*ADAPTER_WEIGHTS, TOKENIZER_CONFIG, "tokenizer.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.txt", "vocab.json", "merges.txt", "bpe.codes", "chat_template.jinja"),
    *("spiece.model", "spm.model", "tokenizer.model", "sentencepiece.model", "sentencepiece.bpe.model"),
    *("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json"),
    *("cnn_config.json", "lstm_config.json", "wordembedding_config.json"),
    *("whitespacetokenizer_config.json", "phrasetokenizer_config.json", "sentence_bert_config.json"),
)
SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
# What an upload deletes from the repository if the folder does not have it.
REPLACED = (*ROOT, *MODULE, "model-?????-of-?????.safetensors", *(f"[0-9]*_*/{name}" for name in MODULE), *RESULTS)
# `model` in results that `informin.publishing.hub` added.
ADDED = re.compile(r"this model|before training|seed [0-9]+")
EXPORTED = "a folder that `informin train`, `fit` or `export` wrote"


def published_files(folder: str | Path) -> list[Path]:
    """Return the files of a folder that are published, relative to it.

    Raises:
        UsageError: One of them is a link; see `raise_if_linked`.
    """
    folder = Path(folder)
    raise_if_linked(folder)
    names: set[PurePath] = {PurePath(name) for name in ROOT} | set(result_files(folder))
    for path in module_folders(folder):
        names |= {PurePath(path, name) for name in MODULE}
        inside = (folder / path).glob("*.safetensors")
        names |= {PurePath(path, file.name) for file in inside if SHARD.fullmatch(file.name)}
        names |= set(_code(folder, path))
    inner = (name for name in names if not name.is_absolute() and ".." not in name.parts)
    return sorted(Path(name) for name in inner if (folder / name).is_file())


def result_files(folder: str | Path) -> list[PurePath]:
    """Return the results that `add_results` put into a folder. Those of `informin eval` contain a path."""
    files = [path for pattern in RESULTS for path in Path(folder).glob(pattern)]
    added = [path for path in files if ADDED.fullmatch(str(read_json(path).get("model")))]
    return [path.relative_to(folder) for path in added]


def module_folders(folder: Path) -> list[str]:
    """Return the folders of all modules, relative to the model's folder, with those in a Router."""
    return list(dict.fromkeys(path for path, _ in modules_of(str(folder))))


@contextmanager
def preview(folder: str | Path) -> Iterator[Path]:
    """Yield a copy of the published files of a folder, to try changes on. Weights are as large, but empty."""
    with tempfile.TemporaryDirectory() as copy:
        for name in published_files(folder):
            path = Path(copy, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix in (".safetensors", ".onnx"):
                path.touch()
                os.truncate(path, Path(folder, name).stat().st_size)
            else:
                shutil.copyfile(Path(folder, name), path)
        yield Path(copy)


def check_export(folder: str | Path) -> None:
    """Check that a folder can be published.

    Raises:
        UsageError: It is not an exported model or is a checkpoint, contains links, names a path of this machine, or has
            weights that are NaN or infinite.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UsageError(f"is {folder}, which is not a folder", option="model_name", needed=EXPORTED)
    raise_if_linked(folder)
    if (folder / TRAINER_STATE_NAME).is_file():
        fix = f"Export it first: informin export --model_name {shlex.quote(str(folder))} --output_dir NEW_FOLDER"
        raise UsageError(f"{folder} is a checkpoint of a run", option="model_name", needed=EXPORTED, fix=fix)
    if not any((folder / name).is_file() for name in (TRAINING, FITTED)) or not (folder / "modules.json").is_file():
        raise UsageError(f"{folder} is not an exported model", option="model_name", needed=EXPORTED)
    files = published_files(folder)
    for path in (path for path in files if path.suffix == ".safetensors"):
        raise_if_weights_not_finite(load_file(folder / path), str(folder / path))
    raise_if_local_path(folder, files)


def raise_if_weights_not_finite(weights: Mapping[str, Tensor], where: str) -> None:
    """Raise UsageError if a weight is NaN or infinite."""
    for name, weight in weights.items():
        if weight.is_floating_point() and not weight.isfinite().all():
            raise UsageError(f"{where}: the weight {name} is NaN or infinite")


def raise_if_linked(folder: str | Path) -> None:
    """Raise UsageError if a folder contains a link: it may lead to a private file, or to one that must stay as it is.

    The folder itself may be a link, and checkpoints and logs in it are ignored.
    """
    folder = Path(folder)
    links = sorted(path for path in folder.rglob("*") if path.is_symlink())
    ignored = ("checkpoint-", "runs")
    links = [path for path in links if not path.relative_to(folder).parts[0].startswith(ignored)]
    if links:
        fix = f"Copy the folder with the targets of its links: cp -rL {shlex.quote(str(folder))} NEW_FOLDER"
        raise UsageError(f"{links[0]} is a link", needed="regular files", fix=fix)


def _code(folder: Path, path: str) -> Iterator[PurePath]:
    """Yield the files with a module's own code: those of its classes, and what they import from the same folder."""
    classes = [kind for where, kind in modules_of(str(folder)) if where == path]
    for name in ("config.json", TOKENIZER_CONFIG):
        named = _json(folder / path / name, {}).get("auto_map", {})
        for value in named.values() if isinstance(named, dict) else [named]:
            classes += value if isinstance(value, list) else [value]
    for name in (str(name) for name in classes if "--" not in str(name)):  # REPOSITORY--FILE.CLASS is on the Hub
        for file in (folder / where / f"{name.rpartition('.')[0].replace('.', '/')}.py" for where in (path, "")):
            if file.is_file():
                yield from (
                    PurePath(os.path.relpath(str(one), folder)) for one in (file, *get_relative_import_files(file))
                )


def _json(path: Path, missing: Any) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else missing
