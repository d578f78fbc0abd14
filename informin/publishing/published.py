"""Which files of an exported folder may be published, and whether they can be."""

import re
import shlex
from collections.abc import Sequence
from fnmatch import fnmatch
from glob import escape
from pathlib import Path, PurePath

from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import PreTrainedConfig
from transformers.trainer import TRAINER_STATE_NAME
from transformers.utils import SAFE_WEIGHTS_NAME

from informin.errors import UsageError, error_line
from informin.files import AGAIN, read_json
from informin.models.architectures import architecture_of
from informin.models.checkpoint import Checkpoint
from informin.models.modules import all_modules
from informin.models.native_loading import load_config
from informin.models.weights import refuse_non_finite
from informin.publishing.card import CARD
from informin.publishing.module_files import CONFIG, ROOT, VOCABULARIES, WITH_WEIGHTS, module_files
from informin.publishing.origin import refuse_local_paths
from informin.publishing.record import TRAINING, saved_as_st
from modeling_informin import HEAD_FILE

# Files that belong to one version of the weights.
MADE_FROM_WEIGHTS = ("results/model.json", "results/other_seeds/seed*.json", "onnx/*.onnx", "onnx/scores.json")
ONNX = ("onnx/model.onnx", "onnx/model_quantized.onnx", "onnx/scores.json")
ALWAYS = (CARD, TRAINING, "modules.json", "config_sentence_transformers.json", HEAD_FILE, *ONNX)
# `model` in results that `informin.publishing.added_results` added.
OWN_RESULTS, BASE_RESULTS, SEED_RESULTS = "this model", "before training", "seed {}"
ADDED = re.compile(rf"{OWN_RESULTS}|{BASE_RESULTS}|{SEED_RESULTS.format('[0-9]+')}")
# Patterns of names that an export may have, with those of the modules. They say which links to refuse and which files
# on the Hub an upload replaces, but not which files are published.
PATTERNS = (
    *(*ALWAYS, *ROOT, "modeling_informin.py"),
    *(f"{number}_*/{name}" for number in ("[0-9]", "[0-9][0-9]") for name in ROOT),
    *("results/base-*.json", *MADE_FROM_WEIGHTS),
)
# Folders are included, because the files in a linked folder are elsewhere too.
NO_LINKS = (*PATTERNS, *sorted({folder.as_posix() for name in PATTERNS for folder in PurePath(name).parents} - {"."}))
# Files without which a module cannot be loaded, by kind.
NEEDED = {
    **dict.fromkeys(("Pooling", "Dropout", "BoW"), (CONFIG,)),
    **dict.fromkeys(("Dense", "LayerNorm", "WeightedLayerPooling", "WordWeights"), WITH_WEIGHTS),
    "StaticEmbedding": (SAFE_WEIGHTS_NAME, "tokenizer.json"),
}
EXPORTED = "a folder that training or `informin export` wrote"


def published_files(folder: str | Path) -> list[Path]:
    """Return the files of a folder that are published, relative to it: an explicit list, the same for every model.

    Checkpoints, logs (their names contain the host name), reports (they contain sentences) and files that this project
    did not write are not published.

    Raises:
        UsageError: One of them is a link; see `refuse_linked_files`.
    """
    folder = Path(folder)
    refuse_linked_files(folder)  # the names are read from some of these files
    # Results that `informin eval` wrote to results/ itself are left out: they contain the path of the model.
    patterns = ("results/model.json", "results/base-*.json", "results/other_seeds/seed*.json")
    results = [path for pattern in patterns for path in folder.glob(pattern) if path.is_file()]
    added = [path for path in results if ADDED.fullmatch(str(read_json(path).get("model")))]
    results_added = (path.relative_to(folder).as_posix() for path in added)
    names = dict.fromkeys([*ALWAYS, *module_files(folder), *results_added])
    paths = {path for name in names for path in (PurePath(name), *PurePath(name).parents)}
    refuse_linked_files(folder, [escape(path.as_posix()) for path in paths])
    return sorted(Path(name) for name in names if (folder / name).is_file())


def check_export(folder: str | Path) -> None:
    """Check that a folder can be published.

    Raises:
        UsageError: The folder is not an export, contains links, names a path of this machine, or has weights that are
            NaN or infinite.
    """
    folder = Path(folder)
    refuse_linked_files(folder)
    # Files that an export has, and whether the folder has the state of a run or weights of our class instead.
    if saved_as_st(folder):
        needed, unfinished = ["modules.json"], (folder / TRAINER_STATE_NAME).is_file()
    else:
        config = load_our_config(Checkpoint(folder))
        model = architecture_of(config).model
        needed = [SAFE_WEIGHTS_NAME, *(["modeling_informin.py"] if model._auto_class else []), "modules.json"]
        unfinished = model.__name__ in (config.architectures or [])
    published = published_files(folder)
    weights = [path for path in published if path.suffix == ".safetensors"]
    missing = [name for name in needed if not (folder / name).is_file()] or ([] if weights else ["weights"])
    if missing or unfinished:
        found = f"{folder} is a checkpoint, which cannot be published"
        raise UsageError(
            f"{found}: it has no {', no '.join(missing)}" if missing else found,
            fix=f"Export it first: python -m informin export {shlex.quote(str(folder))} NEW_FOLDER",
        )
    _refuse_missing_modules(folder)
    _check_weights(folder, [folder / path for path in weights])
    refuse_local_paths(folder, published)


def _refuse_missing_modules(folder: Path) -> None:
    """Raise UsageError if a module in modules.json has no files, or a Transformer no tokenizer."""
    for module in all_modules(Checkpoint(folder)):
        names = {path.name for path in (folder / module.path).glob("*") if path.is_file()}
        missing = [name for name in NEEDED.get(module.kind or "", ()) if name not in names]
        if module.kind == "Transformer" and not names & set(VOCABULARIES):
            missing = ["tokenizer.json"]
        if missing:
            raise UsageError(
                f"{folder} has no {(PurePath(module.path) / missing[0]).as_posix()}",
                needed="the files of all modules in modules.json",
                fix="Copy the whole folder again, or export it again.",
            )


def _check_weights(folder: Path, files: Sequence[Path]) -> None:
    """Raise UsageError if weights in existing files cannot be read, or are NaN or infinite."""
    try:
        for path in (path for path in files if path.is_file()):
            refuse_non_finite(load_file(path), f"{folder}: ")
    except (SafetensorError, OSError) as error:
        raise UsageError(f"The weights in {folder} cannot be read: {error_line(error)}", fix=AGAIN) from None


def load_our_config(checkpoint: Checkpoint) -> PreTrainedConfig:
    """Load config.json. Raise UsageError if it does not belong to an InforMin-CL model."""
    if not checkpoint.is_folder:
        raise UsageError(f"{checkpoint} does not exist", needed=EXPORTED)
    config = load_config(checkpoint)
    if not getattr(config, "informin", None):
        raise UsageError(
            f"{checkpoint} is not an InforMin-CL model: its config.json has no `informin` settings", needed=EXPORTED
        )
    return config


def refuse_linked_files(folder: str | Path, names: Sequence[str] = NO_LINKS) -> None:
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
