"""Write the folder that people load and that is pushed to the Hub.

config.json, model.safetensors          the encoder as transformers' own class, which all libraries can load
projection_head/model.safetensors       projection head, for further training; other training heads are left out
modeling_informin.py                    for BERT and RoBERTa: loaded by AutoModel with trust_remote_code=True
tokenizer.json, tokenizer_config.json   without the truncation and padding that training used
modules.json, 1_Pooling/config.json,
sentence_bert_config.json,
config_sentence_transformers.json       in the older, verbose format of sentence-transformers, which all versions read,
                                        with the settings of the source model
training.json                           record of the run: see `informin.publishing.record`
results/                                evaluation results: see `informin.publishing.card.scores`
onnx/                                   see `informin.publishing.onnx`
README.md                               the model card, generated from the files above
"""

import copy
import os
import shutil
from pathlib import Path
from typing import cast

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import SAFE_WEIGHTS_NAME

import modeling_informin
from informin.errors import UsageError
from informin.files import read_json, set_usual_modes, sha256, write_json
from informin.interrupts import during
from informin.models.architectures import InforMinModel
from informin.models.checkpoint import Checkpoint
from informin.models.dense import Dense, load_dense
from informin.models.embedding_config import embedding_of
from informin.models.encode import max_length
from informin.models.loading import load_saved, load_tokenizer
from informin.models.sentence_transformers_files import load_embedding_config
from informin.models.settings import COSINE
from informin.models.st_model import SETTINGS_FILE, TRAINED_FILE, StModel
from informin.models.tokenizer import forget_truncation
from informin.outputs import new_folder, refuse_used
from informin.publishing.card import write_card
from informin.publishing.module_files import LORA_CONFIG, LORA_WEIGHTS
from informin.publishing.origin import TOKENIZER_TRACES, remove_origins
from informin.publishing.published import (
    MADE_FROM_WEIGHTS,
    load_our_config,
    published_files,
    refuse_links,
    refuse_non_finite,
)
from informin.publishing.record import is_general, load_record, save_record
from informin.publishing.sentence_transformers_files import save_sentence_transformers_files
from informin.temporary import TemporaryFolder
from modeling_informin import ADAPTER_FILE, HEAD_FILE, TRAINING_HEADS, module_list

TRAINING_SETTINGS = ("dropouts", "sentence_transformers", "training_prompt")  # stored in other files of the folder
WHOLE_OR_LORA = (SAFE_WEIGHTS_NAME, LORA_CONFIG, LORA_WEIGHTS)  # in the root of a folder
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@during("export")
def export_folder(
    model: InforMinModel | StModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: str | Path,
    record: dict | None = None,
    dtype: torch.dtype = torch.float32,
    weights: bool = True,
    merge: bool = True,
) -> None:
    """Write a model that can be loaded and published. `model` is not changed.

    Args:
        model: A model of this project, or a SentenceTransformer in training.
        tokenizer: Its tokenizer.
        folder: Folder to write. Files in it are replaced once all of them are written.
        record: Record of the run; see `informin.publishing.record`.
        dtype: Data type of the weights in the file.
        weights: False writes everything else, as a trial.
        merge: Merge low-rank matrices into the weights. False writes them alone, as an adapter of the source model.

    Raises:
        UsageError: A weight is NaN or infinite in this data type, or a file in the folder is a link.
    """
    folder = Path(folder)
    refuse_links(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryFolder(folder) as partial:  # the disk may be full
        new = Path(partial)
        if isinstance(model, StModel):
            _write_general(model, new, weights, merge)
        else:
            _write_native(model, tokenizer, new, dtype, weights)
        remove_origins(new, record)
        stale = [name for name in WHOLE_OR_LORA if not (new / name).exists()]
        if _weights(folder) not in ({}, _weights(new)):
            for path in (path for pattern in MADE_FROM_WEIGHTS for path in folder.glob(pattern)):
                path.unlink()
        for path in (path for path in new.rglob("*") if path.is_file()):
            target = folder / path.relative_to(new)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, target)
        for name in stale if weights else ():  # whole weights next to low-rank ones, or the reverse, would be loaded
            (folder / name).unlink(missing_ok=True)
    if record:
        save_record(folder, record)
    if weights or not isinstance(model, StModel):
        write_card(folder)


def _weights(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of the weights of the encoder, whole or low-rank."""
    return {name: sha256(folder / name) for name in WHOLE_OR_LORA if (folder / name).is_file()}


def _write_native(
    model: InforMinModel, tokenizer: PreTrainedTokenizerBase, new: Path, dtype: torch.dtype, weights: bool
) -> None:
    """Write the files of a native model to an empty folder."""
    clean = without_training_heads(model)
    if weights:
        clean = clean.to(dtype)  # type: ignore[arg-type]  # transformers wraps `to` without its overloads
        refuse_non_finite(clean.state_dict(), within=f" in {dtype}")
    _save_model(clean, new, weights)
    _save_tokenizer(tokenizer, new)
    embedding, longest = embedding_of(model), max_length(clean.config, tokenizer)
    save_sentence_transformers_files(_encoder(clean), embedding, embedding.max_length(longest), new)


def _write_general(model: StModel, new: Path, weights: bool, merge: bool) -> None:
    """Write the files of a SentenceTransformer to an empty folder, in its own format; as a trial its tokenizer only."""
    if not weights:
        model.tokenizer.save_pretrained(new)
        return
    refuse_non_finite(model.state_dict())
    model.save(new, merge=merge and model.lora is not None)
    set_usual_modes(new)


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


@during("export")
def export_checkpoint(checkpoint: str | Path, folder: str | Path, dtype: str = "float32") -> None:
    """Export a checkpoint of a run, or a folder that is an export already.

    Args:
        checkpoint: Folder to read.
        folder: Folder to write, which must be new or empty. It appears once it is complete.
        dtype: One of `DTYPES`.

    Raises:
        UsageError: `checkpoint` is not an InforMin-CL model, or `folder` is in use or cannot be written.
    """
    checkpoint, folder = Path(checkpoint), Path(folder)
    if is_general(checkpoint):
        return _export_general(checkpoint, folder, dtype)
    files = Checkpoint(checkpoint)
    config = load_our_config(files)
    refuse_used(folder)
    embedding = load_embedding_config(files, config)
    model = cast(InforMinModel, load_saved(files))
    model.config.informin |= embedding.settings
    tokenizer = load_tokenizer(files)

    with new_folder(folder) as new:
        export_folder(model, tokenizer, new, load_record(checkpoint), DTYPES[dtype])
        if embedding.adapter:
            dense = load_dense(files, embedding.adapter, config.hidden_size)
            add_dense(new, dense, embedding.normalize)
            shutil.copyfile(checkpoint / "README.md", new / "README.md")


def _export_general(checkpoint: Path, folder: Path, dtype: str) -> None:
    """Export a checkpoint of a SentenceTransformer: its files without the state of the trainer, and a model card."""
    if dtype != "float32":
        fix = "Load the export with sentence-transformers and save it in another data type."
        raise UsageError(f"is {dtype}, but a SentenceTransformer is copied as it is", option="dtype", fix=fix)
    if (checkpoint / TRAINED_FILE).is_file():
        fix = "Resume the run, which exports the model, or load the checkpoint with sentence-transformers."
        raise UsageError(f"{checkpoint} has low-rank matrices without the weights that they change", fix=fix)
    refuse_used(folder)

    with new_folder(folder) as new:
        for path in published_files(checkpoint):
            (new / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(checkpoint / path, new / path)
        remove_origins(new, load_record(checkpoint))
        write_card(new)


def _encoder(model: InforMinModel) -> PreTrainedModel:
    """Return transformers' own model inside ours."""
    return cast(PreTrainedModel, model.base_model)


def _save_model(model: InforMinModel, folder: Path, weights: bool = True) -> None:
    """Save the encoder as transformers' own class, so that its weights have the names that other programs expect.

    `auto_map` refers to our class. The source model's own `auto_map` is dropped, because its code is not in the folder.
    """
    encoder = _encoder(model)
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


def _save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
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
