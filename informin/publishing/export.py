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

import shutil
from collections.abc import Iterable
from pathlib import Path

import torch
from transformers.utils import SAFE_WEIGHTS_NAME

from informin.errors import UsageError
from informin.files import sha256
from informin.interrupts import during
from informin.models.checkpoint import Checkpoint
from informin.models.dense import load_dense
from informin.models.model import Model
from informin.models.native import NativeModel
from informin.models.native_files import add_dense
from informin.models.native_loading import load_saved, load_tokenizer, without_bars
from informin.models.sentence_transformers_files import load_embedding_config
from informin.models.st_module import TRAINED_FILE
from informin.outputs import new_files, new_folder, refuse_used
from informin.publishing.card import CARD, is_edited, write_card
from informin.publishing.module_files import LORA_CONFIG, LORA_WEIGHTS
from informin.publishing.origin import remove_origins
from informin.publishing.published import MADE_FROM_WEIGHTS, load_our_config, published_files, refuse_linked_files
from informin.publishing.record import load_record, save_record, saved_as_st

WHOLE_OR_LORA = (SAFE_WEIGHTS_NAME, LORA_CONFIG, LORA_WEIGHTS)  # in the root of a folder
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@during("export")
def export_folder(
    model: Model,
    folder: str | Path,
    record: dict | None = None,
    dtype: torch.dtype = torch.float32,
    weights: bool = True,
    merge: bool = True,
) -> None:
    """Write a model that can be loaded and published. `model` is not changed.

    Args:
        model: A model in training.
        folder: Folder to write. Files in it are replaced once all of them are written.
        record: Record of the run; see `informin.publishing.record`.
        dtype: Data type of the weights in the file.
        weights: False writes everything else, as a trial.
        merge: Merge low-rank matrices into the weights. False writes them alone, as an adapter of the source model.

    Raises:
        UsageError: A weight is NaN or infinite in this data type, or a file in the folder is a link.
    """
    folder = Path(folder)
    refuse_linked_files(folder)
    with new_files(folder) as new:  # the disk may be full
        with without_bars():
            model.write(new, dtype, weights, merge)
        remove_origins(new, record)
        stale = [name for name in WHOLE_OR_LORA if not (new / name).exists()]
        if _weights(folder) not in ({}, _weights(new)):
            for path in (path for pattern in MADE_FROM_WEIGHTS for path in folder.glob(pattern)):
                path.unlink()
    for name in stale if weights else ():  # whole weights next to low-rank ones, or the reverse, would be loaded
        (folder / name).unlink(missing_ok=True)
    if record:
        save_record(folder, record)
    if weights or (folder / "modules.json").exists():
        write_card(folder)


def _weights(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of the weights of the encoder, whole or low-rank."""
    return {name: sha256(folder / name) for name in WHOLE_OR_LORA if (folder / name).is_file()}


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
    source, folder = Path(checkpoint), Path(folder)
    copy = _copy_st if saved_as_st(source) else _export_native
    copy(source, folder, dtype)


def _export_native(source: Path, folder: Path, dtype: str) -> None:
    files = Checkpoint(source)
    config = load_our_config(files)
    refuse_used(folder)
    embedding = load_embedding_config(files, config)
    if embedding.adapter and not (source / CARD).is_file():
        raise UsageError(
            f"{source} has no {CARD}, the model card of the adapter",
            fix=f"Copy {CARD} from the output folder of `informin fit`.",
        )
    model = load_saved(files)
    model.config.informin |= embedding.settings
    trained = NativeModel(str(source), files, config, embedding, model, load_tokenizer(files))
    with new_folder(folder) as new:
        export_folder(trained, new, load_record(source), DTYPES[dtype])
        if embedding.adapter:
            add_dense(new, load_dense(files, embedding.adapter, config.hidden_size), embedding.normalize)
            shutil.copyfile(source / CARD, new / CARD)
        elif _weights(source) == _weights(new):  # the results belong to it, too
            _copy(source, new, [path for path in published_files(source) if path.parts[0] == "results"])
            if is_edited(source / CARD):
                shutil.copyfile(source / CARD, new / CARD)
            write_card(new)


def _copy_st(source: Path, folder: Path, dtype: str) -> None:
    """Copy the files of a SentenceTransformer without the state of the trainer, and write a model card."""
    if dtype != "float32":
        fix = "Load the export with sentence-transformers and save it in another data type."
        raise UsageError(f"is {dtype}, but a SentenceTransformer is copied as it is", option="dtype", fix=fix)
    if (source / TRAINED_FILE).is_file():
        fix = "Resume the run, which exports the model, or load the checkpoint with sentence-transformers."
        raise UsageError(f"{source} has low-rank matrices without the weights that they change", fix=fix)
    refuse_used(folder)
    with new_folder(folder) as new:
        _copy(source, new, published_files(source))
        remove_origins(new, load_record(source))
        write_card(new)


def _copy(source: Path, folder: Path, files: Iterable[Path]) -> None:
    for path in files:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / path, folder / path)
