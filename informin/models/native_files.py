"""Write a native model as transformers' own class, which all libraries can load, without heads for training."""

import copy
import shutil
from pathlib import Path
from typing import cast

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import modeling_informin
from informin.files import read_json, set_usual_modes, write_json
from informin.models.architectures import InforMinModel
from informin.models.dense import Dense
from informin.models.embedding_config import embedding_of
from informin.models.encode import max_length
from informin.models.model_folder import SETTINGS_FILE
from informin.models.settings import COSINE
from informin.models.tokenizer import save_tokenizer
from informin.models.weights import refuse_non_finite
from modeling_informin import (
    ADAPTER_FILE,
    HEAD_FILE,
    TRAINING_HEADS,
    has_pooler,
    module_list,
    sentence_transformers_files,
)

TRAINING_SETTINGS = ("dropouts", "sentence_transformers", "training_prompt")  # stored in other files of the folder


def write_native(
    model: InforMinModel,
    tokenizer: PreTrainedTokenizerBase,
    new: Path,
    dtype: torch.dtype = torch.float32,
    weights: bool = True,
) -> None:
    """Write the files of a native model to an empty folder."""
    clean = without_training_heads(model)
    if weights:
        clean = clean.to(dtype)  # type: ignore[arg-type]  # transformers wraps `to` without its overloads
        refuse_non_finite(clean.state_dict(), within=f" in {dtype}")
    _save_model(clean, new, weights)
    save_tokenizer(tokenizer, new)
    embedding, longest = embedding_of(model), max_length(clean.config, tokenizer)
    width, pooler = clean.config.hidden_size, has_pooler(type(cast(PreTrainedModel, clean.base_model)))
    (new / "1_Pooling").mkdir()
    files = sentence_transformers_files(embedding.settings, width, embedding.max_length(longest), pooler)
    for name, values in files.items():
        write_json(new / name, values, indent=2)


def add_dense(folder: Path, dense: Dense, normalize: bool) -> None:
    """Add the Dense module of a linear adapter to an exported folder, and a Normalize module after it if asked for.

    The adapter is fitted on unit vectors, so the folder declares the cosine, also where the encoder declares another
    similarity.
    """
    dense.save(folder / Path(ADAPTER_FILE).parent)
    write_json(folder / "modules.json", module_list(normalize, adapted=True), indent=2)
    declared = read_json(folder / SETTINGS_FILE) | {"similarity_fn_name": COSINE}
    write_json(folder / SETTINGS_FILE, declared, indent=2)
    config = read_json(folder / "config.json")
    config["informin"]["adapter"] = True
    if len(dense.bias) < dense.weight.shape[1]:
        config["informin"]["adapter_dimensions"] = len(dense.bias)
    write_json(folder / "config.json", config, indent=2)


def without_training_heads(model: InforMinModel) -> InforMinModel:
    """Return the encoder with its own dropout rates and its projection head. It shares the weights of `model`."""
    config = copy.deepcopy(model.config)
    config.update(config.informin.get("dropouts", {}))
    settings = {name: value for name, value in config.informin.items() if name not in TRAINING_SETTINGS}
    config.informin = settings | TRAINING_HEADS
    with torch.device("meta"):
        clean = type(model)(config)
    clean.load_state_dict(model.state_dict(), strict=False, assign=True)
    return clean.eval()


def _save_model(model: InforMinModel, folder: Path, weights: bool = True) -> None:
    """Save the encoder as transformers' own class, so that its weights have the names that other programs expect.

    `auto_map` refers to our class. The source model's own `auto_map` is dropped, because its code is not in the folder.
    """
    encoder = cast(PreTrainedModel, model.base_model)
    encoder.config.auto_map = {"AutoModel": f"modeling_informin.{type(model).__name__}"}
    if model._auto_class:
        shutil.copyfile(modeling_informin.__file__, folder / "modeling_informin.py")
    else:
        del encoder.config.auto_map
    encoder.save_pretrained(folder, state_dict=None if weights else {})
    if weights and model.config.informin["projection_head"] == "mlp":
        (folder / HEAD_FILE).parent.mkdir()
        save_file(model.mlp.state_dict(), folder / HEAD_FILE, {"format": "pt"})
    set_usual_modes(folder)  # safetensors writes files that only their owner can read
