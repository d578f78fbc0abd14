"""Which files of an exported folder may be published, and whether they can be."""

import shlex
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path, PurePath

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import PreTrainedConfig
from transformers.utils import SAFE_WEIGHTS_NAME

from informin.encoders.architectures import architecture_of
from informin.encoders.loading import load_config
from informin.encoders.sentence_transformers_files import listed_modules
from informin.encoders.st_model import HEADS_FILE, TRAINED_FILE
from informin.errors import UsageError, counted, error_line
from informin.files import AGAIN, MANIFEST
from informin.publishing.record import TRAINING, is_general
from modeling_informin import ADAPTER_FILE, HEAD_FILE

# Files that belong to one version of the weights. Results that `informin eval` wrote to results/ itself are not
# published: they contain the path of the model.
MADE_FROM_WEIGHTS = ("results/model.json", "results/other_seeds/seed*.json", "onnx/*.onnx", "onnx/scores.json")
# Checkpoints, logs (their names contain the host name) and other files in the folder are not published.
PUBLISHED = (
    *("config.json", SAFE_WEIGHTS_NAME, HEAD_FILE, "modeling_informin.py", TRAINING, "README.md"),
    *("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "merges.txt", "special_tokens_map.json"),
    *("modules.json", "1_Pooling/config.json", "sentence_bert_config.json", "config_sentence_transformers.json"),
    *("3_Dense/config.json", ADAPTER_FILE),
    *("results/base-*.json", *MADE_FROM_WEIGHTS),
)
# Folders are included, because the files in a linked folder are elsewhere too.
NO_LINKS = (*PUBLISHED, *sorted({folder.as_posix() for name in PUBLISHED for folder in PurePath(name).parents} - {"."}))
EXPORTED = "a folder that training or `informin export` wrote"
MODULE_FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja", "*.py")  # of a SentenceTransformer's module
# Files of checkpoints, and of exported folders that are not published.
STATE_FILES = ("trainer_state.json", HEADS_FILE, TRAINED_FILE, MANIFEST)


def published_files(folder: str | Path) -> list[Path]:
    """Return the files of a folder that are published, relative to it.

    Raises:
        UsageError: One of them is a link; see `refuse_links`.
    """
    folder = Path(folder)
    refuse_links(folder)
    patterns = [*PUBLISHED, *(_module_patterns(folder) if is_general(folder) else [])]
    files = (path for pattern in patterns for path in folder.glob(pattern) if path.is_file())
    return sorted({path.relative_to(folder) for path in files if path.name not in STATE_FILES})


def _module_patterns(folder: Path) -> list[str]:
    """Return the patterns of the files of each module of a SentenceTransformer.

    Raises:
        UsageError: modules.json is missing or not valid.
    """
    paths = ["", *(module["path"] for module in listed_modules(str(folder)))]
    for path in paths:
        refuse_links(folder, [str(PurePath(path, name)) for name in MODULE_FILES])
    return [str(PurePath(path, name)) for path in dict.fromkeys(paths) for name in MODULE_FILES]


def check_export(folder: str | Path) -> None:
    """Check that a folder can be published.

    Raises:
        UsageError: The folder is not an export, contains links, or has weights that are NaN or infinite.
    """
    folder = Path(folder)
    refuse_links(folder)
    if is_general(folder):
        _check_general(folder)
        return
    code = ["modeling_informin.py"] if architecture_of(load_our_config(folder)).model._auto_class else []
    missing = [name for name in (SAFE_WEIGHTS_NAME, *code, "modules.json") if not (folder / name).is_file()]
    if missing:
        raise UsageError(
            f"{folder} is a checkpoint, which cannot be published: it has no {', no '.join(missing)}",
            fix=f"Export it first: python -m informin export {shlex.quote(str(folder))} NEW_FOLDER",
        )
    _check_weights(folder, [folder / SAFE_WEIGHTS_NAME, folder / HEAD_FILE])


def _check_general(folder: Path) -> None:
    """Check that the folder of a SentenceTransformer can be published; see `check_export`."""
    if (folder / "trainer_state.json").is_file():
        raise UsageError(
            f"{folder} is a checkpoint, which cannot be published",
            fix=f"Export it first: python -m informin export {shlex.quote(str(folder))} NEW_FOLDER",
        )
    _check_weights(folder, [folder / path for path in published_files(folder) if path.suffix == ".safetensors"])


def _check_weights(folder: Path, files: Sequence[Path]) -> None:
    """Raise UsageError if weights in existing files cannot be read, or are NaN or infinite."""
    try:
        for path in (path for path in files if path.is_file()):
            refuse_non_finite(load_file(path), f"{folder}: ")
    except (SafetensorError, OSError) as error:
        raise UsageError(f"The weights in {folder} cannot be read: {error_line(error)}", fix=AGAIN) from None


def load_our_config(folder: Path) -> PreTrainedConfig:
    """Load config.json. Raise UsageError if it does not belong to an InforMin-CL model."""
    if not folder.is_dir():
        raise UsageError(f"{folder} does not exist", needed=EXPORTED)
    config = load_config(str(folder))
    if not getattr(config, "informin", None):
        raise UsageError(
            f"{folder} is not an InforMin-CL model: its config.json has no `informin` settings", needed=EXPORTED
        )
    return config


def refuse_non_finite(weights: dict[str, torch.Tensor], before: str = "", within: str = "") -> None:
    """Raise UsageError if a weight is NaN or infinite. `before` and `within` are added to the message."""
    if bad := [name for name, tensor in weights.items() if not torch.isfinite(tensor).all()]:
        raise UsageError(
            f"{before}NaN or infinity in {counted(len(bad), 'weight')}{within}, such as {bad[0]}",
            fix="Export an earlier checkpoint, or choose another `dtype`.",
        )


def refuse_links(folder: str | Path, names: Sequence[str] = NO_LINKS) -> None:
    """Raise UsageError if a file in the folder is a link, so that no private file is published or overwritten.

    Pipes, sockets and devices are rejected too, because reading one may never end. The folder itself may be a link.

    Args:
        folder: A local folder.
        names: Patterns of the files and folders to check for links, relative to the folder.
    """
    folder = Path(folder)
    inside = sorted(folder.rglob("*"))
    special = [path for path in inside if not (path.is_symlink() or path.is_file() or path.is_dir())]
    if special:
        raise UsageError(
            f"{special[0]} is a pipe, a socket or a device", needed="only files and folders", fix="Remove it."
        )
    links = [path for path in inside if path.is_symlink()]
    links = [path for path in links if any(fnmatch(path.relative_to(folder).as_posix(), name) for name in names)]
    if not links:
        return
    fix = "Replace each link with a copy of its target, or remove it."
    if folder.resolve().parent.name == "snapshots":  # of the Hub's cache, where every file is a link
        fix = f"Copy the snapshot with the targets of its links: cp -rL {shlex.quote(str(folder))} NEW_FOLDER"
    others = f" (so are {len(links) - 1} others)" if links[1:] else ""
    raise UsageError(
        f"{links[0]} is a link{others}", needed="regular files, because a link may lead to private data", fix=fix
    )
