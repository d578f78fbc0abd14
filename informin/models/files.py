"""Refuse links and paths that lead outside of a model's folder, and suggest names for a missing one."""

import difflib
import glob
import os
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from informin.errors import UsageError, error_line
from informin.files import leads_outside

# Files of a model folder that transformers and sentence-transformers read.
MODEL_FILES = (
    *("*.json", "*.safetensors", "*.bin", "*.pt", "*.pth", "*.h5", "*.npy", "*.npz"),
    *("*.model", "*.spm", "*.vocab", "*.tiktoken", "vocab.txt", "merges.txt", "dict.txt", "bpe.codes"),
    *("*.jinja", "*.py", "README.md"),
)
TEMPLATES = "additional_chat_templates"  # a folder of the tokenizer


class NotNativeError(UsageError):
    """The model does not have a native architecture. A SentenceTransformer may still load it; see `load_model`."""


def check_name(model_name: str) -> None:
    """Raise UsageError for control characters in a model's name: tables, logs and paths in files would break."""
    if not str(model_name).isprintable():
        raise UsageError(f"is {str(model_name)!r:.300}", option="model_name", needed="a name that can be printed")


def refuse_links(folder: str | Path) -> None:
    """Raise UsageError if a model file in a folder is a link to a file outside of the folder."""
    for path in Path(folder).iterdir():
        if path.is_symlink() and any(fnmatch(path.name, name) for name in (*MODEL_FILES, TEMPLATES)):
            refuse_outside(str(folder), path.name)
    refuse_links_within(folder, TEMPLATES)


def refuse_links_within(folder: str | Path, path: str) -> None:
    """Raise UsageError if a link, at any depth of a subfolder, leads outside of the model's folder."""
    for inner, folders, files in os.walk(Path(folder, path)):
        for name in (*folders, *files):
            if (found := Path(inner, name)).is_symlink():
                refuse_outside(str(folder), found.relative_to(folder).as_posix())


def similar_names(model_name: str) -> str | None:
    """Suggest up to three model folders: inside the given one, with a similar name next to it, or the same name."""
    path = Path(os.path.expanduser(model_name))
    siblings = {folder.name: folder for folder in _models(path.parent, "*")}
    similar = [siblings[name] for name in difflib.get_close_matches(path.name, siblings)]
    folders = [*_models(path, "*"), *similar, *_models(Path(), f"*/{glob.escape(path.name)}")]
    names = list(dict.fromkeys(map(str, folders)))[:3]
    return f"Did you mean {', '.join(names)}?" if names else None


def _models(folder: Path, pattern: str) -> list[Path]:
    """Return the folders with a config.json that has a model_type; sentence-transformers' other modules have none."""
    try:
        found = [path for path in folder.glob(f"{pattern}/config.json") if path.is_file()]
        files = [path for path in found if b'"model_type"' in path.read_bytes()]
    except OSError:  # only the suggestion is lost
        return []
    return sorted(path.parent for path in files)


def cannot_load(model_name: str, error: Exception) -> UsageError:
    """Return the error for files that a library cannot load, with its type: some messages are a single word."""
    return UsageError(
        f"{model_name} cannot be loaded: {error_line(error)} ({type(error).__name__})",
        option="model_name",
        fix="Check that its files are complete, or copy them again from their source.",
    )


def refuse_outside(model_name: str, name: object, named_in: str | None = None, within: str = "") -> None:
    """Raise UsageError if a file of a model is outside of its folder, or a link to such a file.

    Args:
        model_name: Hub id or folder.
        name: Path relative to the folder.
        named_in: File of the model that contains the path; None for a fixed name.
        within: Folder inside the model's folder that the path is relative to.
    """
    full = str(PurePosixPath(within, name)) if within and isinstance(name, str) else name
    if leads_outside(model_name, full):
        found = f"{named_in} names {str(name)!r:.300}, which is" if named_in else f"{name} is a link to a file"
        raise UsageError(
            f"{model_name}: {found} outside of the folder",
            option="model_name",
            needed="a file inside",
            fix="Copy the model again from its source." if named_in else "Replace the link with a copy of the file.",
        )


def texts_in(values: object) -> list[str]:
    """Return the strings of a list, or an empty list for another value."""
    return [name for name in values if isinstance(name, str)] if isinstance(values, list) else []
