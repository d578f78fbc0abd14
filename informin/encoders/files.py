"""The files of a checkpoint, in a folder or on the Hub, and what a name that leads to none may have meant."""

import difflib
import glob
import os
from fnmatch import fnmatch
from pathlib import Path

from transformers.utils import cached_file

from informin.errors import UsageError
from informin.files import hub_problem, leads_outside, read_json

# What transformers reads of a model's folder.
READ = ("*.json", "*.safetensors", "*.bin", "*.model", "*.jinja", "vocab.txt", "merges.txt", "bpe.codes")


def find_config(model_name: str, revision: str | None = None) -> str:
    """The path of a model's config.json, in a folder or from the Hub; else UsageError, with folders that have one."""
    folder = Path(model_name)
    if os.path.isfile(model_name):
        raise UsageError(f"`model_name` {model_name} is a file; needed its folder: `model_name` {folder.parent}")
    if os.path.isdir(model_name):
        if (folder / "config.json").is_file():
            for path in folder.iterdir():
                if path.is_symlink() and any(fnmatch(path.name, name) for name in READ):
                    refuse_outside(model_name, path.name)
            return str(folder / "config.json")
        problem = " cannot be loaded: the folder has no config.json"
    elif model_name.startswith((".", "/", "~")) or model_name.count("/") > 1:  # none of the Hub's names
        problem = ": there is no such folder"
    else:
        try:
            if path := cached_file(model_name, "config.json", revision=revision):
                return path
            problem = "its repository on the Hub has no config.json"
        except Exception as error:  # transformers' OSError is about the Hub's own error, or it is that itself
            problem = hub_problem(error.__cause__ or error, revision)
        problem = f" cannot be loaded: there is no such folder, and {problem}"
    raise UsageError(f"`model_name` {model_name}{problem}.{_near(model_name)}")


def _near(model_name: str) -> str:
    """Up to three folders with a config.json: inside, beside of a like name, elsewhere of the same name."""
    path = Path(os.path.expanduser(model_name))
    beside = {folder.name: folder for folder in _models(path.parent, "*")}
    alike = [beside[name] for name in difflib.get_close_matches(path.name, beside)]
    folders = [*_models(path, "*"), *alike, *_models(Path(), f"*/{glob.escape(path.name)}")]
    names = list(dict.fromkeys(map(str, folders)))[:3]
    return f" Did you mean {', '.join(names)}?" if names else ""


def _models(folder: Path, pattern: str) -> list[Path]:
    """Folders of models; sentence-transformers' other modules have a config.json too, without a model_type."""
    try:
        found = [path for path in folder.glob(f"{pattern}/config.json") if path.is_file()]
        files = [path for path in found if b'"model_type"' in path.read_bytes()]
    except OSError:  # a help less
        return []
    return sorted(path.parent for path in files)


def refuse_outside(model_name: str, name: object, named_in: str | None = None) -> None:
    """Raises UsageError where a file of a model lies outside of its folder, or is a link to such a file.

    Args:
        name: the path, relative to the folder.
        named_in: the file of the model that names the path; None for a name that the model does not choose.
    """
    if leads_outside(model_name, name):
        what = f"its {named_in} names {str(name)!r:.300}" if named_in else f"its {name} is a link"
        mend = "Copy the model again from its source" if named_in else "Replace the link by a copy of the file"
        raise UsageError(
            f"`model_name` {model_name}: {what}, which leads out of the folder; needed a file inside. {mend}."
        )


def optional_file(model_name: str, name: str, revision: str | None = None) -> str | None:
    """The path of a file of a checkpoint, in a folder or fetched from the Hub; None where there is none.

    Raises UsageError: it is outside of the folder.
    """
    refuse_outside(model_name, name)
    quiet = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
    return cached_file(model_name, name, revision=revision, **quiet)


def json_file(model_name: str, name: str, revision: str | None = None, kind: type = dict):
    """What such a file holds, empty where there is none; see `informin.files.read_json`."""
    path = optional_file(model_name, name, revision)
    return kind() if path is None else read_json(path, kind)
