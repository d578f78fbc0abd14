"""Load a SentenceTransformer from checked files."""

import hashlib
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from packaging.version import Version

from informin.errors import UsageError, counted
from informin.files import sha256
from informin.models.checkpoint import Checkpoint
from informin.models.embedding_files import KIND, load_embedding_record
from informin.models.files import cannot_load
from informin.models.model_config import check_config_numbers, check_sizes
from informin.models.model_folder import check_modules, check_paths, folders_of
from informin.models.modules import all_modules, joined
from informin.models.native_loading import BERT_POOLER, load_reports
from informin.models.remote_code import refuse_remote_code

POOLER = "st"  # name of the only pooling, in results and file names
OLDEST = "6.2"  # version of sentence-transformers; pyproject.toml has it, too
UNLIMITED = 1_000_000  # tokens; maximum length of models that do not truncate, such as static embeddings
# Files that can determine an embedding.
FINGERPRINTED = {
    *(".json", ".txt", ".model", ".jinja", ".codes", ".py"),
    *(".safetensors", ".bin", ".pt", ".pth", ".npy", ".npz", ".h5", ".gz"),
}
# In results, training.json and records of embeddings, and in no file that a model reads.
WRITTEN_LATER = (b'"weights_sha256"', b'"kept_step"', f'"kind": "{KIND}"'.encode())


def load_sentence_transformer(
    checkpoint: Checkpoint,
    trust_remote_code: bool = False,
    code_revision: str | None = None,
    reason: UsageError | None = None,
    dtype: torch.dtype = torch.float32,
) -> Any:
    """Load a SentenceTransformer in evaluation mode on the CPU.

    Args:
        checkpoint: Files of the model.
        trust_remote_code: Allow code in the model's repository to run.
        code_revision: Branch, tag or commit of that code on the Hub; None for that of the model.
        reason: Why the model is not native, for the message if sentence-transformers is missing.
        dtype: Data type of the weights.

    Raises:
        UsageError: It cannot be loaded, or it needs sentence-transformers or its own code.
    """
    library = require_library(checkpoint.name, reason)
    check_paths(checkpoint)
    if code_revision and checkpoint.is_folder:
        fix = "Leave it out: code in a folder has no revision."
        raise UsageError(f"is {code_revision}, but {checkpoint} is a folder", option="code_revision", fix=fix)
    if not trust_remote_code:
        refuse_remote_code(checkpoint)
    check_modules(checkpoint, trust_remote_code)
    for path in folders_of(all_modules(checkpoint)):
        values = checkpoint.json(joined(path, "config.json"))
        for part in (values, values.get("text_config")):
            if isinstance(part, dict):
                check_config_numbers(checkpoint.name, part)
                check_sizes(checkpoint.name, SimpleNamespace(**part))
    with quiet():
        return _load(library, checkpoint, trust_remote_code, code_revision).to(dtype)


def require_library(model_name: str, reason: UsageError | None) -> Any:
    """Return the package sentence_transformers.

    Raises:
        UsageError: It is not installed, or it is a version that runs code which this project's checks do not know.
    """
    try:
        import sentence_transformers
    except ImportError:
        why = f" ({reason.found})" if reason else ""
        raise UsageError(
            f"{model_name} needs the package sentence-transformers, which is not installed{why}",
            option="model_name",
            fix="Install the extra `st` (see Install in README).",
        ) from None
    found = sentence_transformers.__version__
    if Version(found) < Version(OLDEST):
        raise UsageError(
            f"{model_name} needs sentence-transformers {OLDEST} or newer, and {found} is installed",
            option="model_name",
            fix=f"Upgrade it: pip install -U 'sentence-transformers>={OLDEST}'.",
        )
    return sentence_transformers


def _load(library: Any, checkpoint: Checkpoint, trust: bool, code_revision: str | None) -> Any:
    code = {"code_revision": code_revision} if code_revision else {}
    safe = {"weights_only": True}  # replaces what the folder says
    more = {"model_kwargs": _Kept(code | safe)} | ({"config_kwargs": _Kept(code)} if code else {})
    how = dict(device="cpu", revision=checkpoint.revision, trust_remote_code=trust, **more)
    try:
        with load_reports() as reports:
            model = library.SentenceTransformer(checkpoint.name, **how)
    except UsageError:
        raise
    except Exception as error:  # the type depends on what is wrong with the files
        raise cannot_load(checkpoint.name, error) from None
    bad = re.findall(r"^(\S.*?) *\| *(?:MISSING|MISMATCH)", "\n".join(reports), re.MULTILINE)
    if bad := [name for name in bad if not name.startswith(BERT_POOLER)]:
        found = f"{checkpoint}: {counted(len(bad), 'weight')} missing or of another shape, such as {bad[0]}"
        raise UsageError(found, option="model_name", fix="Copy the model again from its source.")
    return model.eval()


class _Kept(dict):
    """Options that all modules get: sentence-transformers removes `code_revision` after the first one."""

    def pop(self, key, *default):
        return self.get(key, *default)


def files_sha256(checkpoint: Checkpoint, code_revision: str | None) -> str:
    """Return the SHA-256 of all files of a model that can determine an embedding, and of their names.

    Results, records and embeddings that this project's commands write into the folder of a model do not count.
    """
    found = [checkpoint.path(name) for name in ("modules.json", "config.json")]
    digest = hashlib.sha256((code_revision or "").encode())
    for folder in [Path(file).parent for file in found if file][:1]:
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder)
            hidden = any(part.startswith(".") for part in name.parts)
            if path.suffix in FINGERPRINTED and path.is_file() and not hidden:
                digest.update(_line(name.as_posix(), path))
    return digest.hexdigest()


def _line(name: str, path: Path) -> bytes:
    """Return a file's name and checksum; nothing for results, the record of a run, and embeddings with their record."""
    if path.suffix == ".json":
        content = path.read_bytes()
        if any(text in content for text in WRITTEN_LATER):
            return b""
        return f"{name} {hashlib.sha256(content).hexdigest()}\n".encode()
    if path.suffix == ".npy" and load_embedding_record(path):
        return b""
    return f"{name} {sha256(path)}\n".encode()


@contextmanager
def quiet() -> Iterator[None]:
    """Hide what sentence-transformers logs while it loads a model, such as the default prompt."""
    log = logging.getLogger("sentence_transformers")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)
