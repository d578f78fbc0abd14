"""Write the folder that people load and that is pushed to the Hub.

config.json, model.safetensors          the encoder as transformers' own class, which all libraries can load
projection_head/model.safetensors       projection head, for further training; other training heads are left out
modeling_informin.py                    for BERT and RoBERTa: loaded by AutoModel with trust_remote_code=True
tokenizer.json, tokenizer_config.json   without the truncation and padding of earlier calls
modules.json, 1_Pooling/config.json,
sentence_bert_config.json,
config_sentence_transformers.json       in the older, verbose format of sentence-transformers, which all versions read
training.json, fit.json                 record of the run or of the fit: see `RunRecord` and `FitRecord`
results/                                evaluation results: see `informin.publishing.hub`
onnx/                                   see `informin.publishing.onnx`
README.md                               the model card, generated from the files above
"""

import copy
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers import models as older
from sentence_transformers.sentence_transformer.modules import Transformer
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase
from transformers.utils import SAFE_WEIGHTS_NAME

import modeling_informin
from informin.errors import UsageError
from informin.files import read_json, set_usual_modes, sha256, write_json
from informin.models.checksums import forget_truncation
from informin.models.dropouts import own_dropouts
from informin.models.model_files import MODULES
from informin.models.opening import load_finished
from informin.models.pooling import NAMES
from informin.outputs import new_files, new_folder
from informin.publishing.card import write_card
from informin.publishing.onnx import ONNX_FILE, remove_model_args
from informin.publishing.origin import remove_origins
from informin.publishing.published import (
    ADAPTER_WEIGHTS,
    MADE_FROM_WEIGHTS,
    raise_if_linked,
    raise_if_weights_not_finite,
)
from informin.records import FitRecord, RunRecord
from modeling_informin import CLASSES, HEAD_FILE, has_pooler, sentence_transformers_files

WEIGHT_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
WHOLE_OR_LORA = (SAFE_WEIGHTS_NAME, *ADAPTER_WEIGHTS)  # in the root of a folder
FOR_AUTO_MODEL = ("bert", "roberta")  # with trust_remote_code; values of `model_type`
PLAIN_MODULES = ["Transformer", "Pooling"]
EXPORTED_MODULES = (
    PLAIN_MODULES,
    PLAIN_MODULES + ["Normalize"],
    PLAIN_MODULES + ["Normalize", "Dense"],
    PLAIN_MODULES + ["Normalize", "Dense", "Normalize"],
)
# Settings of a Transformer module that the older format does not need.
USUAL = ("transformer_task", "modality_config", "module_output_name", "max_seq_length", "do_lower_case")


def export_checkpoint(checkpoint: str | Path, folder: str | Path, dtype: str = "float32") -> None:
    """Export a checkpoint of a run, or an exported folder again.

    Args:
        checkpoint: Folder to read.
        folder: Folder to write, which must be new or empty. It appears once it is complete.
        dtype: Data type of the weights in the file, one of `WEIGHT_DTYPES`.

    Raises:
        UsageError: The checkpoint cannot be loaded, `folder` is in use, or a weight is not finite in this data type.
    """
    source = Path(checkpoint)
    model = load_finished(source, "model_name", "a checkpoint or an exported folder", device="cpu")
    if not isinstance(model[0], Transformer):
        found = f"is {source}, whose first module is a {type(model[0]).__name__}"
        fix = "Load or push this folder as it is: only models with a transformer are exported."
        raise UsageError(found, option="model_name", fix=fix)
    record = RunRecord.load(source) or FitRecord.load(source)
    if hasattr(model[0].auto_model, "pooler"):  # BERT's own, which no embedding depends on, and may be random
        model[0].auto_model.pooler = None
    with new_folder(folder) as new:
        write_exported(model, new, record, dtype, projection_head(source))


def projection_head(folder: Path) -> dict[str, Tensor] | None:
    """Return the weights of the projection head of an exported folder or a checkpoint; None if it has none."""
    if (folder / HEAD_FILE).is_file():
        return load_file(folder / HEAD_FILE)
    if not (folder / SAFE_WEIGHTS_NAME).is_file():
        return None
    with safe_open(folder / SAFE_WEIGHTS_NAME, "pt") as file:
        names = [name for name in file.keys() if name.startswith("mlp.")]
        return {name.removeprefix("mlp."): file.get_tensor(name) for name in names} or None


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
    _write_older_names(folder)
    path = folder / "config.json"
    if _is_plain(model, folder):
        _write_older_files(model, folder, head)
    elif path.is_file() and "informin" in (config := read_json(path)):  # of a source that AutoModel could load
        write_json(path, {name: value for name, value in config.items() if name not in ("informin", "auto_map")}, 2)
    remove_origins(folder, hub_id)
    set_usual_modes(folder)  # safetensors writes files that only their owner can read


def write_exported(
    model: SentenceTransformer,
    folder: Path,
    record: RunRecord | FitRecord | None,
    dtype: str,
    head: Mapping[str, Tensor] | None,
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
    """
    raise_if_linked(folder)
    if dtype != "float32":
        model = copy.deepcopy(model).to(WEIGHT_DTYPES[dtype])
    raise_if_weights_not_finite(model.state_dict(), f"The model in {dtype}")
    with new_files(folder) as new:  # the disk may be full
        save_model(model, new, head, ((record and record.base_model) or {}).get("hub_id"))
        if record:
            record.save(new)
        stale = [folder / name for name in WHOLE_OR_LORA if not (new / name).exists()]
        if _weights(folder) != _weights(new):
            stale += [path for pattern in MADE_FROM_WEIGHTS for path in folder.glob(pattern)]
    for path in stale:  # results of other weights; whole weights next to low-rank ones, or the reverse
        path.unlink(missing_ok=True)
    if (folder / ONNX_FILE).is_file():
        remove_model_args(folder)
    if record:
        write_card(folder)


def _weights(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of the weights of the encoder, whole or low-rank."""
    return {name: sha256(folder / name) for name in WHOLE_OR_LORA if (folder / name).is_file()}


def _is_plain(model: Any, folder: Path) -> bool:
    """Return whether the older files can describe a model that was saved in a folder."""
    if [type(module).__name__ for module in model] not in EXPORTED_MODULES or not (folder / "config.json").is_file():
        return False
    settings = read_json(folder / "sentence_bert_config.json")
    pooling = model[1]
    maps = [module for module in model if type(module).__name__ == "Dense"]
    linear = all(type(one.activation_function) is nn.Identity and one.bias and not one.use_residual for one in maps)
    return linear and set(settings) <= set(USUAL) and pooling.pooling_mode in NAMES and pooling.include_prompt


def _write_older_names(folder: Path) -> None:
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
    (folder / MODULES).write_text(json.dumps(modules, indent=2) + "\n", encoding="utf-8")


def _write_older_files(model: Any, folder: Path, head: Mapping[str, Tensor] | None) -> None:
    transformer, pooling, *others = model
    config = read_json(folder / "config.json")
    settings: dict[str, Any] = {
        "pooling": NAMES[pooling.pooling_mode],
        "normalize": type(model[-1]).__name__ == "Normalize",
        "prompt": model.prompts.get(model.default_prompt_name or "", ""),
        "projection_head": "mlp" if head else "none",
        "lm_head": False,
    }
    for dense in (module for module in others if type(module).__name__ == "Dense"):
        settings |= {"adapter": True, "adapter_dimensions": dense.out_features}
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
        (folder / name).write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    if config["model_type"] in CLASSES:
        config |= own_dropouts(config.get("informin"))  # the encoder's own, not those of training
        config["informin"] = settings
        if config["model_type"] in FOR_AUTO_MODEL:
            shutil.copyfile(modeling_informin.__file__, folder / "modeling_informin.py")
            config["auto_map"] = {"AutoModel": f"modeling_informin.{CLASSES[config['model_type']].__name__}"}
        write_json(folder / "config.json", dict(sorted(config.items())), indent=2)
    if head:
        (folder / HEAD_FILE).parent.mkdir()
        save_file(dict(head), folder / HEAD_FILE, {"format": "pt"})
