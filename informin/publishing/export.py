"""Write finished models to folders for their users and the Hub, and say which files of such a folder are published.

An exported folder holds the encoder with its usual names, the settings of sentence-transformers, the record of the run
or the fit, and the model card. A projection head lies beside the encoder, in its own file.
"""

import copy
import json
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path, PurePath
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers import models as older
from sentence_transformers.sentence_transformer.modules import Transformer
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase
from transformers.dynamic_module_utils import get_relative_import_files
from transformers.trainer import TRAINER_STATE_NAME
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

import modeling_informin
from informin.errors import UsageError, error_line
from informin.files import (
    files_in,
    named_in_errors,
    new_files,
    new_folder,
    read_json,
    set_usual_modes,
    sha256,
    write_json,
)
from informin.hub import is_hub_id
from informin.model.lora import merged
from informin.model.open import (
    ADAPTER_CONFIG,
    MODULES,
    forget_truncation,
    has_own_code,
    load_finished,
    modules_of,
    own_dropouts,
)
from informin.model.pooling import NAME_OF_MODE
from informin.model.records import FITTED, HEADS_FILE, TRAINING, FitRecord, RunRecord
from informin.publishing.card import CARD, is_edited, write_card
from informin.publishing.report import PAGE
from modeling_informin import CLASSES, HEAD_FILE, has_pooler, sentence_transformers_files

WEIGHT_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
FOR_AUTO_MODEL = ("bert", "roberta")  # with trust_remote_code; values of `model_type`
ADAPTER_WEIGHTS = (ADAPTER_CONFIG, "adapter_model.safetensors")
TOKENIZER_CONFIG = "tokenizer_config.json"
ONNX_FILE = "onnx/model.onnx"
QUANTIZED = "onnx/model_quantized.onnx"  # the 8-bit file that transformers.js loads by default in browsers
BEFORE_TRAINING = "results/base-*.json"
RESULTS = ("results/model.json", BEFORE_TRAINING, "results/other_seeds/seed*.json")
SETTINGS = ("config.json", "config_sentence_transformers.json", "sentence_bert_config.json")  # also prompts and lengths
UNRELATED = ("__version__", "transformers_version", "model_args")  # among them
# Files that belong to one version of the weights.
MADE_FROM_WEIGHTS = ("results/model.json", "results/other_seeds/seed*.json", "onnx/*.onnx")

PLAIN_MODULES = ["Transformer", "Pooling"]
EXPORTED_MODULES = (
    PLAIN_MODULES,
    PLAIN_MODULES + ["Normalize"],
    PLAIN_MODULES + ["Normalize", "Dense"],
    PLAIN_MODULES + ["Normalize", "Dense", "Normalize"],
)


def export_model(
    model: SentenceTransformer,
    folder: str | Path,
    record: RunRecord | FitRecord | None = None,
    dtype: str = "float32",
    head: Mapping[str, Tensor] | None = None,
) -> None:
    """Write a finished model with its record and card. Files in the folder are replaced once all of them are written.

    Args:
        model: The model.
        folder: Folder to write.
        record: Record of the run or of the fit.
        dtype: Data type of the weights in the file, one of `WEIGHT_DTYPES`.
        head: Weights of the projection head.

    Raises:
        UsageError: A weight is NaN or infinite in this data type, or a file in the folder is a link.
        SaveError: The folder could not be written. Earlier files in it are unchanged.
    """
    folder = Path(folder)
    raise_if_linked(folder)
    if dtype != "float32":
        model = copy.deepcopy(model).to(WEIGHT_DTYPES[dtype])
    raise_if_weights_not_finite(model.state_dict(), f"The model in {dtype}")
    with named_in_errors(folder):  # the disk may be full
        with new_files(folder) as new:
            save_model(model, new, head, ((record and record.base_model) or {}).get("hub_id"))
            if record:
                record.save(new)
            stale = [folder / name for name in (*MODULE, HEAD_FILE) if not (new / name).exists()]
            if _what_embeds(folder) != _what_embeds(new):
                stale += [path for pattern in MADE_FROM_WEIGHTS for path in folder.glob(pattern)]
            source = ((record and record.base_model) or {}).get("weights_sha256")
            before = folder.glob(BEFORE_TRAINING) if record else ()
            stale += [path for path in before if read_json(path).get("weights_sha256") != source]
        for path in stale:  # of another model: readers would mix its tokenizer or low-rank weights with the new ones
            path.unlink(missing_ok=True)
        if (folder / ONNX_FILE).is_file():
            remove_model_args(folder)
        if record:
            write_card(folder)


def _what_embeds(folder: Path) -> dict[str, Any]:
    """Return what a new model in a folder must share with the old one: weights, tokenizer, modules and settings."""
    patterns = (*MODULE, SHARDS, MODULES, "[0-9]*_*/*")  # the last one is the modules after the encoder
    files = [path for pattern in patterns for path in folder.glob(pattern) if path.is_file()]
    found: dict[str, Any] = {path.relative_to(folder).as_posix(): sha256(path) for path in files}
    for name in SETTINGS:
        values = read_json(folder / name) if (folder / name).is_file() else {}
        found[name] = {key: value for key, value in values.items() if key not in UNRELATED}
    return found


def export_checkpoint(
    checkpoint: str | Path, folder: str | Path, dtype: str = "float32", trust_remote_code: bool = False
) -> None:
    """Export a checkpoint of a run, with merged weights if it has low-rank matrices, or an exported folder again.

    Args:
        checkpoint: Folder to read.
        folder: Folder to write, which must be new or empty. It appears once it is complete.
        dtype: Data type of the weights in the file, one of `WEIGHT_DTYPES`.
        trust_remote_code: Run the model's own code, which the folder then keeps.

    Raises:
        UsageError: The checkpoint cannot be loaded, `folder` is in use, or a weight is not finite in this data type.
    """
    source = Path(checkpoint)
    needed = "a checkpoint or an exported folder"
    model = load_finished(source, "model_name", needed, device="cpu", trust_remote_code=trust_remote_code)
    if not isinstance(model[0], Transformer):
        found = f"is {source}, whose first module is a {type(model[0]).__name__}"
        fix = "Load or push this folder as it is: only models with a transformer are exported."
        raise UsageError(found, option="model_name", fix=fix)
    record = RunRecord.load(source) or FitRecord.load(source)
    if hasattr(model[0].auto_model, "pooler"):  # BERT's own, which no embedding depends on, and may be random
        model[0].auto_model.pooler = None
    is_merged = (source / TRAINER_STATE_NAME).is_file() and (source / ADAPTER_CONFIG).is_file()
    with new_folder(folder) as new, merged(model) if is_merged else nullcontext():
        export_model(model, new, record, dtype, projection_head(source))


def projection_head(folder: Path) -> dict[str, Tensor] | None:
    """Return the weights of the projection head of an exported folder or a checkpoint; None if it has none."""
    if (folder / HEAD_FILE).is_file():
        return load_file(folder / HEAD_FILE)
    for path in (folder / name for name in (SAFE_WEIGHTS_NAME, HEADS_FILE) if (folder / name).is_file()):
        with safe_open(path, "pt") as file:
            if names := [name for name in file.keys() if name.startswith("mlp.")]:
                return {name.removeprefix("mlp."): file.get_tensor(name) for name in names}
    return None


def save_model(
    model: SentenceTransformer,
    folder: Path,
    head: Mapping[str, Tensor] | None = None,
    hub_id: str | None = None,
) -> None:
    """Write a finished model into an empty folder, without a card.

    A model whose modules are Transformer, Pooling, Normalize and Dense gets the older files of sentence-transformers. A
    BERT or RoBERTa among them can also be loaded by AutoModel with trust_remote_code=True.

    Args:
        model: The model.
        folder: The folder.
        head: Weights of the projection head.
        hub_id: Hub id of the source model, for low-rank matrices that are not merged.
    """
    if isinstance(model.tokenizer, PreTrainedTokenizerBase) and model.tokenizer.is_fast:
        forget_truncation(model.tokenizer)
    model.save_pretrained(str(folder), create_model_card=False)
    _name_modules_as_before(folder)
    path = folder / "config.json"
    if _fits_older_files(model, folder):
        _write_older_files(model, folder, head)
    elif path.is_file() and "informin" in (config := read_json(path)):  # of a source that AutoModel could load
        write_json(path, {name: value for name, value in config.items() if name not in ("informin", "auto_map")}, 2)
    _remove_origins(folder, hub_id)
    set_usual_modes(folder)  # safetensors writes files that only their owner can read


def _name_modules_as_before(folder: Path) -> None:
    """Name the modules of a model as sentence-transformers did until version 5, which version 6 reads, too.

    Version 6 also saves the usual names of a module's input and output, which older versions do not know.
    """
    modules = json.loads((folder / MODULES).read_text(encoding="utf-8"))
    for module in modules:
        package, kind = module["type"].partition(".")[0], module["type"].rpartition(".")[2]
        if package == "sentence_transformers" and hasattr(older, kind):
            module["type"] = f"sentence_transformers.models.{kind}"
        path = folder / module["path"] / "config.json"
        if kind in ("Dense", "Normalize") and path.is_file():
            values = {name: value for name, value in read_json(path).items() if value != "sentence_embedding"}
            write_json(path, values, indent=2)
            if not values:  # older versions have no settings there
                path.unlink()
                path.parent.rmdir()
    write_json(folder / MODULES, modules, indent=2)


def _fits_older_files(model: Any, folder: Path) -> bool:
    """Return whether the older files can describe a model that was saved in a folder."""
    older_settings = ("transformer_task", "modality_config", "module_output_name", "max_seq_length", "do_lower_case")
    if [type(module).__name__ for module in model] not in EXPORTED_MODULES or not (folder / "config.json").is_file():
        return False
    settings = read_json(folder / "sentence_bert_config.json")
    pooling = model[1]
    maps = [module for module in model if type(module).__name__ == "Dense"]
    linear = all(type(one.activation_function) is nn.Identity and one.bias and not one.use_residual for one in maps)
    return (
        linear
        and model.truncate_dim is None
        and set(settings) <= set(older_settings)
        and pooling.pooling_mode in NAME_OF_MODE
        and pooling.include_prompt
    )


def _write_older_files(model: Any, folder: Path, head: Mapping[str, Tensor] | None) -> None:
    """Replace the settings by those that older versions read, and add the projection head and the modeling file."""
    transformer, pooling, *others = model
    config = read_json(folder / "config.json")
    settings: dict[str, Any] = {
        "pooling": NAME_OF_MODE[pooling.pooling_mode],
        "normalize": type(model[-1]).__name__ == "Normalize",
        "prompt": model.prompts.get(model.default_prompt_name or "", ""),
        "projection_head": "mlp" if head else "none",
        "lm_head": False,
    }
    for dense in (module for module in others if type(module).__name__ == "Dense"):
        settings |= {"adapter": True, "adapter_dimensions": dense.out_features}
        settings["projection_head"] = "none"  # this one reads the adapted embedding, unlike that of the class
        path = next(folder.glob("*_Dense/config.json"))
        kept = ("in_features", "out_features", "bias", "activation_function")
        write_json(path, {name: value for name, value in read_json(path).items() if name in kept}, indent=2)
    source = {
        "do_lower_case": transformer.do_lower_case,
        "prompts": {name: text for name, text in model.prompts.items() if text},
        "default_prompt_name": model.default_prompt_name,
        "similarity_fn_name": model.similarity_fn_name,
    }
    width = pooling.get_embedding_dimension()
    longest = model.max_seq_length
    without = has_pooler(type(transformer.auto_model)) and transformer.auto_model.pooler is None
    files = sentence_transformers_files(settings | {"sentence_transformers": source}, width, longest, without)
    for name, values in files.items():
        write_json(folder / name, values, indent=2)
    if config["model_type"] in CLASSES and not has_own_code(transformer):
        config |= own_dropouts(config.get("informin"))  # the encoder's own, not those of training
        config["informin"] = settings
        config.pop("auto_map", None)  # that of a checkpoint
        if config["model_type"] in FOR_AUTO_MODEL:
            shutil.copyfile(modeling_informin.__file__, folder / "modeling_informin.py")
            config["auto_map"] = {"AutoModel": f"modeling_informin.{CLASSES[config['model_type']].__name__}"}
        write_json(folder / "config.json", dict(sorted(config.items())), indent=2)
    if head:
        (folder / HEAD_FILE).parent.mkdir()
        save_file(dict(head), folder / HEAD_FILE, {"format": "pt"})


def remove_model_args(folder: str | Path) -> None:
    """Remove the arguments of the torch model, which sentence-transformers passes to other backends, too: they fail."""
    path = Path(folder, "sentence_bert_config.json")
    settings = read_json(path) if path.is_file() else {}
    if settings.pop("model_args", None):
        write_json(path, settings, indent=2)


BASE = "base_model_name_or_path"  # the model that low-rank matrices belong to
# What libraries write about the place that a model was loaded from.
ORIGIN_FIELDS = (
    "_name_or_path",
    "name_or_path",
    "is_local",
    "local_files_only",
    "tokenizer_file",
    "vocab_file",
    "merges_file",
    "special_tokens_map_file",
)
CALLS = ("max_length", "stride", "pad_to_multiple_of", "truncation_strategy")  # of earlier calls of a tokenizer
COPY_AGAIN = "Copy or export the model again."
LARGE = ("tokenizer.json", "vocab.json", "model.safetensors.index.json")  # files without settings


def _remove_origins(folder: Path, hub_id: str | None = None) -> None:
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


def _settings(folder: Path, names: Iterable[Path]) -> Iterator[tuple[Path, Any]]:
    """Yield the path and the content of each JSON file with settings.

    Raises:
        UsageError: A file is not JSON in UTF-8.
    """
    for path in (folder / name for name in names if name.suffix == ".json" and name.name not in LARGE):
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            found = f"{path} is damaged: {error_line(error)}"
            raise UsageError(found, option="model_name", fix=COPY_AGAIN) from error
        yield path, values


# Published files

ROOT = (
    *(CARD, TRAINING, FITTED, MODULES, "config_sentence_transformers.json", HEAD_FILE),
    *("modeling_informin.py", ONNX_FILE, QUANTIZED),
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
SHARDS = "model-?????-of-?????.safetensors"
ADDED = re.compile(r"this model|before training|seed [0-9]+")  # `model` in results that `add_results` added
SHOWN = 3  # files of others that an error names
# What an upload deletes from the repository if the folder does not have it.
REPLACED = (*ROOT, *MODULE, SHARDS, *(f"[0-9]*_*/{name}" for name in MODULE), *RESULTS)


def published_files(folder: str | Path) -> list[Path]:
    """Return the files of a folder that are published, relative to it.

    Raises:
        UsageError: One of them is a link; see `raise_if_linked`.
    """
    folder = Path(folder)
    raise_if_linked(folder)
    names: set[PurePath] = {PurePath(name) for name in ROOT}
    for results in (path for pattern in RESULTS for path in folder.glob(pattern)):
        if ADDED.fullmatch(str(read_json(results).get("model"))):  # those of `informin eval` contain a path
            names.add(results.relative_to(folder))
    classes: dict[str, list[str]] = {}  # by the folder of the module
    for path, kind in modules_of(str(folder)):
        classes.setdefault(path, []).append(kind)
    for path, kinds in classes.items():
        names |= {PurePath(path, name) for name in MODULE}
        inside = (folder / path).glob("*.safetensors")
        names |= {PurePath(path, file.name) for file in inside if SHARD.fullmatch(file.name)}
        names |= _code(folder, path, kinds)
    inner = (name for name in names if not name.is_absolute() and ".." not in name.parts)
    return sorted(Path(name) for name in inner if (folder / name).is_file())


def _code(folder: Path, path: str, kinds: list[str]) -> set[PurePath]:
    """Return the files with a module's own code: those of its classes, and what they import from the same folder."""
    classes = list(kinds)
    for settings in (folder / path / name for name in ("config.json", TOKENIZER_CONFIG)):
        named = read_json(settings).get("auto_map", {}) if settings.is_file() else {}
        for value in named.values() if isinstance(named, dict) else [named]:
            classes += value if isinstance(value, list) else [value]
    found = set()
    for name in (str(name) for name in classes if "--" not in str(name)):  # REPOSITORY--FILE.CLASS is on the Hub
        for file in (folder / where / f"{name.rpartition('.')[0].replace('.', '/')}.py" for where in (path, "")):
            if file.is_file():
                found |= {os.path.relpath(str(one), folder) for one in (file, *get_relative_import_files(file))}
    return set(map(PurePath, found))


def raise_if_foreign_files(folder: str | Path) -> None:
    """Raise UsageError if a folder contains files that no command writes into an export; replacing it loses them."""
    folder = Path(folder)
    files = [path.relative_to(folder) for path in files_in(folder)] if folder.is_dir() else []
    if not files:
        return
    try:
        own = {*published_files(folder), Path(PAGE)}
    except (ValueError, AttributeError):  # a link, or a modules.json of another program
        own = set()
    own |= {path.relative_to(folder) for pattern in RESULTS for path in folder.glob(pattern)}
    if is_edited(folder / CARD):
        own.discard(Path(CARD))
    if foreign := sorted(str(path) for path in files if path not in own):
        more = f" and {len(foreign) - SHOWN:,} more" if len(foreign) > SHOWN else ""
        raise UsageError(
            f"{folder} contains files that no export writes: {', '.join(foreign[:SHOWN])}{more}",
            option="output_dir",
            needed="a new folder, or an export without other files",
            fix="Replacing the folder would delete them: move them, or use another folder.",
        )


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


# Checks before a folder is published

EXPORTED = "a folder that `informin train`, `fit` or `export` wrote"


def check_export(folder: str | Path) -> None:
    """Check that a folder can be published.

    Raises:
        UsageError: It is not an exported model or is a checkpoint, contains links or a damaged file, lacks a file,
            names a path of this machine, or has weights that are NaN or infinite.
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
    try:
        files = published_files(folder)
        _raise_if_incomplete(folder)
        for path in (path for path in files if path.suffix == ".safetensors"):
            raise_if_weights_not_finite(load_file(folder / path), str(folder / path))
        _raise_if_local_path(folder, files)
    except (json.JSONDecodeError, UnicodeDecodeError, SafetensorError) as error:  # such as an incomplete copy
        found = f"{folder} has a damaged file: {error_line(error)}"
        raise UsageError(found, option="model_name", fix=COPY_AGAIN) from error


def _raise_if_incomplete(folder: Path) -> None:
    """Raise UsageError if an encoder lacks a file: publishing would delete it from a repository that has it."""
    for path in (path for path, kind in modules_of(str(folder)) if kind.endswith(".Transformer")):
        index = folder / path / SAFE_WEIGHTS_INDEX_NAME
        if (folder / path / ADAPTER_CONFIG).is_file():
            names = [*ADAPTER_WEIGHTS]
        elif index.is_file():
            names = ["config.json", *sorted(set(read_json(index)["weight_map"].values()))]
        else:
            names = ["config.json", SAFE_WEIGHTS_NAME]
        if missing := [name for name in names if not (folder / path / name).is_file()]:
            found = f"is {folder}, which lacks {', '.join(missing)}"
            raise UsageError(found, option="model_name", fix=COPY_AGAIN)


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


QUOTED = re.compile(r'"/(?:[^"\\]|\\.)+"')  # an absolute path in JSON


def _raise_if_local_path(folder: Path, names: Iterable[Path]) -> None:
    """Raise UsageError if a file with settings, by its name in the folder, contains a path of this machine."""
    for path, values in _settings(folder, names):
        base = values.get(BASE) if path.name == ADAPTER_CONFIG else None
        local = [f"{BASE} is {base!r}"] if base and not is_hub_id(base) else []
        for text in map(json.loads, QUOTED.findall(path.read_text(encoding="utf-8"))):
            is_path = "\0" not in text and os.path.isabs(text) and len(Path(text).parts) > 2  # a token may be /
            if is_path and (Path(text).is_relative_to(Path.home()) or os.path.lexists(text)):
                local.append(text)
        if local:
            raise UsageError(
                f"{path} names a path of this machine: {local[0]:.200}",
                needed="a Hub id",
                fix="After training, merge low-rank matrices (`lora_merge`), or set `base_model` to the Hub id of the "
                f"source model. After a fit, write that id as {BASE} into {ADAPTER_CONFIG}.",
            )
