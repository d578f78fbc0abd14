"""The small files of a model at one revision, each read once."""

import copy
import os
import re
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

from transformers.utils import cached_file
from transformers.utils.hub import extract_commit_hash

from informin.errors import UsageError
from informin.files import hub_problem, last_name, read_json
from informin.models.files import NotNativeError, check_name, refuse_links, refuse_outside, similar_names

Found = TypeVar("Found")
SAYS_NOTHING = re.compile(r"(best_|final_|my_)?(model|encoder|checkpoint|output|export)s?([-_]?\d+)?", re.IGNORECASE)
TITLE = re.compile(r"^# +(\w[\w.-]*) *$", re.MULTILINE)  # a name, not a sentence


class Checkpoint:
    """The small files of a model, in a folder or on the Hub, each read once.

    All code that reads a model's files takes a checkpoint, so that a run sees one version of them. If a folder changes
    during a run (a resumed run, an export), create a new one.

    Attributes:
        name: Hub id or folder.
        revision: Branch, tag or commit on the Hub.
    """

    def __init__(self, name: str | os.PathLike, revision: str | None = None):
        self.name, self.revision = str(name), revision
        self._paths: dict[str, str | None] = {}
        self._values: dict[tuple[str, type], Any] = {}
        self._known: dict[Callable, Any] = {}  # see `once`

    def __str__(self) -> str:
        return self.name

    @classmethod
    def of(cls, model: "str | os.PathLike | Checkpoint", revision: str | None = None) -> "Checkpoint":
        """Return a checkpoint unchanged, or create one from a name."""
        return model if isinstance(model, Checkpoint) else cls(model, revision)

    @property
    def is_folder(self) -> bool:
        return os.path.isdir(self.name)  # Path.is_dir raises for a name that is too long

    @property
    def title(self) -> str:
        """The last part of the name or, for a folder with a name such as `model`, the title of its card."""
        name = last_name(self.name)
        card = self.path("README.md") if self.is_folder and SAYS_NOTHING.fullmatch(name) else None
        found = TITLE.search(Path(card).read_text(encoding="utf-8", errors="replace")) if card else None
        return found[1] if found else name

    @property
    def commit(self) -> str | None:
        """The commit on the Hub; None for a folder."""
        found = [self.path(name) for name in ("config.json", "modules.json")]
        return extract_commit_hash(next(filter(None, found), None), None)

    @property
    def has_modules(self) -> bool:
        """Whether there is the file in which sentence-transformers lists its modules."""
        try:
            return self.path("modules.json") is not None
        except OSError:  # there is no such repository
            return False

    def path(self, file: str) -> str | None:
        """Return the path of a file; None if there is no such file.

        Raises:
            UsageError: The file is outside of the folder.
        """
        if file not in self._paths:
            refuse_outside(self.name, file)
            quiet = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
            self._paths[file] = cached_file(self.name, file, revision=self.revision, **quiet)
        return self._paths[file]

    def json(self, file: str, kind: type = dict) -> Any:
        """Return the contents of a JSON file, empty if there is no such file.

        Raises:
            UsageError: See `informin.files.read_json`.
        """
        if (file, kind) not in self._values:
            path = self.path(file)
            self._values[file, kind] = kind() if path is None else read_json(path, kind)
        return copy.deepcopy(self._values[file, kind])

    def first_json(self, files: Iterable[str]) -> tuple[str, dict]:
        """Return the name and the contents of the first of several JSON files that is not empty; or the last one."""
        name, values = "", {}
        for name in files:
            if values := self.json(name):
                break
        return name, values

    def require_config(self) -> None:
        """Raise UsageError if there is no config.json. The message suggests folders with similar names."""
        check_name(self.name)
        folder = Path(self.name)
        if os.path.isfile(self.name):
            raise UsageError(
                f"{self} is a file", option="model_name", needed="its folder", fix=f"Use `model_name` {folder.parent}"
            )
        if self.is_folder:
            if (folder / "config.json").is_file():
                refuse_links(self.name)
                return
            problem = " cannot be loaded: the folder has no config.json"
        elif self.name.startswith((".", "/", "~")) or self.name.count("/") > 1:  # not a valid Hub id
            problem = ": there is no such folder"
        else:
            try:
                if found := cached_file(self.name, "config.json", revision=self.revision):
                    self._paths["config.json"] = found
                    return
                problem = "its repository on the Hub has no config.json"
            except Exception as error:  # transformers wraps the Hub's error in an OSError, or raises it directly
                problem = hub_problem(error.__cause__ or error, self.revision)
            problem = f" cannot be loaded: there is no such folder, and {problem}"
        raise NotNativeError(f"{self}{problem}", option="model_name", fix=similar_names(self.name))


def once(function: Callable[[Checkpoint], Found]) -> Callable[[Checkpoint], Found]:
    """Cache the result of a function of a checkpoint. Callers must not change it."""

    @wraps(function)
    def known(checkpoint: Checkpoint) -> Found:
        if function not in checkpoint._known:
            checkpoint._known[function] = function(checkpoint)
        return checkpoint._known[function]

    return known
