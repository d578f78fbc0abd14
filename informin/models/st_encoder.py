"""Encoders of any other architecture: a SentenceTransformer whose own modules compute the embedding."""

import hashlib
import json
import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from packaging.version import Version
from torch import nn
from transformers import PreTrainedTokenizerBase

from informin.errors import UsageError, counted, error_line
from informin.files import sha256
from informin.models.dense import Dense
from informin.models.embedding_config import refuse_long_prompt
from informin.models.encoder import Encoder, similarity_of, to_device, weights_sha256
from informin.models.files import cannot_load, json_file, optional_file
from informin.models.loading import BERT_POOLER
from informin.models.model_config import check_numbers, check_sizes
from informin.models.model_folder import check_modules, check_paths, folders_of
from informin.models.modules import all_modules, joined
from informin.models.padding import fit_to_positions, require_independent
from informin.models.remote_code import refuse_remote_code
from informin.models.sentence_transformers_files import stored_prompts
from informin.models.settings import COSINE
from informin.models.texts import as_texts

POOLER = "st"  # name of the only pooling, in results and file names
OLDEST = "6.2"  # version of sentence-transformers; pyproject.toml has it, too
UNLIMITED = 1_000_000  # tokens; maximum length of models that do not truncate, such as static embeddings
# Files that can determine an embedding.
FINGERPRINTED = {
    *(".json", ".txt", ".model", ".jinja", ".codes", ".py"),
    *(".safetensors", ".bin", ".pt", ".pth", ".npy", ".npz", ".h5", ".gz"),
}


@dataclass
class StEncoder(Encoder):
    """Computes embeddings of sentences with a SentenceTransformer.

    Attributes:
        model: The SentenceTransformer.
        tokenizer: Its tokenizer; not a tokenizer of transformers for static embeddings.
        poolers: `st` alone.
        length: Maximum number of tokens per sentence; `UNLIMITED` if the model does not truncate.
        own_length: The model's own maximum, which `length` replaces in memory.
        width: Number of dimensions of an embedding.
        files_sha256: SHA-256 of its weights, configuration and code when it was loaded.
        has_default: Whether a Router has a default route.
    """

    model: Any
    tokenizer: Any
    own_length: int = UNLIMITED
    width: int = 0
    files_sha256: str = ""
    has_default: bool = True

    @property
    def routed(self) -> bool:
        router = import_module("sentence_transformers.models").Router
        return any(isinstance(module, router) for module in self.model.modules())

    @property
    def dimensions(self) -> int:
        return self.width

    def __call__(
        self, sentences: Sequence[str], progress: Callable[[int], object] | None = None
    ) -> dict[str, np.ndarray]:
        """Return the embeddings (N, d) float32 of N sentences; see `Encoder.__call__`."""
        if self.task is None and not self.has_default:
            raise UsageError(
                f"{self.name} has a Router without a default route, so texts must be queries or documents",
                option="model_name",
                fix="Set `prompt_name` to query or document, or score it with `retrieval` in `informin eval`.",
            )
        sentences = as_texts(sentences)
        self.note_truncated(sentences)
        embeddings = np.empty((len(sentences), self.width), np.float32)
        order = sorted(range(len(sentences)), key=lambda i: -len(sentences[i]))
        for start in range(0, len(order), self.batch_size):
            rows = order[start : start + self.batch_size]
            embeddings[rows] = self._encode([sentences[i] for i in rows])
            if progress:
                progress(len(rows))
        return {POOLER: embeddings}

    def _encode(self, sentences: list[str]) -> np.ndarray:
        # An empty prompt turns off the model's default prompt.
        prompt = self.prompt if self.prompt or self.model.default_prompt_name else None
        # Only a Router reads these names. Other modules may have tasks of their own, as jina-embeddings-v3 does.
        route = {"task": self.task} if self.task else {}
        how = dict(prompt=prompt, batch_size=len(sentences), show_progress_bar=False)
        with torch.autocast(self.device.type, dtype=torch.bfloat16) if self.bf16 else nullcontext():
            return self.model.encode(sentences, **how, **route)

    def for_side(self, side: str, prompt: str) -> "StEncoder":
        encoder = cast(StEncoder, self.with_prompt(prompt))
        if not self.routed:
            return encoder
        encoder = replace(encoder, task=side)
        try:
            width = encoder._encode(["a"]).shape[-1]
        except ValueError as error:
            raise UsageError(
                f"{self.name} has a Router without a route for a {side}: {error_line(error)}",
                option="model_name",
                needed="the routes query and document",
            ) from None
        if width != self.width:
            found = (
                f"{self.name} embeds a {side} in {width} dimensions by one route, and texts in {self.width} by another"
            )
            raise UsageError(found, option="model_name", needed="routes with equal dimensions")
        return encoder

    def save_with(self, dense: Dense, folder: Path) -> None:
        """Save the SentenceTransformer with an affine map of its unit-length embedding.

        Appends a Dense module, after a Normalize module if the model has none. A model that normalized its embeddings
        still does: another Normalize module follows. A `truncate_dim` is saved as a Dense module before the map.
        """
        models: Any = import_module("sentence_transformers.models")
        library: Any = import_module("sentence_transformers")

        def linear(weight: np.ndarray, bias: np.ndarray | None = None) -> Any:
            wide, narrow = weight.shape[1], weight.shape[0]
            module = models.Dense(wide, narrow, bias=bias is not None, activation_function=nn.Identity())
            module.linear.weight.data = torch.from_numpy(weight)
            if bias is not None:
                module.linear.bias.data = torch.from_numpy(bias)
            return module

        more = [] if self.normalized else [models.Normalize()]
        if self.model.truncate_dim is not None:
            with self.model.truncate_embeddings(None):
                whole = self.model.get_embedding_dimension()
            more = [linear(np.eye(self.width, whole, dtype=np.float32)), *more]
        more += [linear(dense.weight, dense.bias), *([models.Normalize()] if self.normalized else [])]
        named = dict(self.model.named_children())
        new = {str(i): module for i, module in enumerate(more, start=len(named))}
        how = {name: getattr(self.model, name) for name in ("prompts", "default_prompt_name")}
        how["similarity_fn_name"] = COSINE  # the map gives vectors for the cosine
        both = library.SentenceTransformer(modules=OrderedDict(named | new), device=str(self.device), **how)
        both.module_kwargs = self.model.module_kwargs
        try:
            if self.length != self.own_length < UNLIMITED:
                self.model.max_seq_length = self.own_length
            both.save_pretrained(str(folder), create_model_card=False)
        finally:
            if self.length != self.own_length < UNLIMITED:
                self.model.max_seq_length = self.length

    def note_truncated(self, sentences: Sequence[str]) -> None:
        if self.length < UNLIMITED and isinstance(self.tokenizer, PreTrainedTokenizerBase):
            super().note_truncated(sentences)

    def limit(self, length: int) -> None:
        """Truncate texts to this many tokens, if the model truncates."""
        self.length = length
        if self.own_length < UNLIMITED:
            self.model.max_seq_length = length

    def state_sha256(self) -> str:
        """Return the SHA-256 of the weights in memory, for a model without files."""
        return weights_sha256(self.model.state_dict())

    def weights_sha256(self) -> str:
        """Return the SHA-256 of the files with weights, configuration and code."""
        return self.files_sha256

    def sha256(self) -> str:
        parts = ["sentence-transformers", self.files_sha256, self.prompt, self.length, self.bf16]
        parts += [self.task] if self.task else []
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def load_st_encoder(
    model_name: str,
    poolers: Sequence[str] = ("auto",),
    length: int | None = None,
    batch_size: int = 64,
    device: str | None = None,
    bf16: bool = False,
    revision: str | None = None,
    prompt: str | None = None,
    trust_remote_code: bool = False,
    code_revision: str | None = None,
    reason: UsageError | None = None,
    dtype: torch.dtype = torch.float32,
) -> StEncoder:
    """Load any model of sentence-transformers; see `informin.models.encoder.load_encoder`.

    Args:
        reason: Why the model is not native, for the message if sentence-transformers is missing.
        dtype: Data type of the weights.

    Raises:
        UsageError: See `load_encoder`.
    """
    if list(poolers) != ["auto"]:
        why = f"but {reason.found}: sentence-transformers" if reason else "but sentence-transformers"
        found = f"is {' '.join(poolers)}, {why} loads it with its own pooling"
        raise UsageError(found, option="pooler", needed="auto")
    library = _library(model_name, reason)
    check_paths(model_name, revision)
    if code_revision and Path(model_name).is_dir():
        fix = "Leave it out: code in a folder has no revision."
        raise UsageError(f"is {code_revision}, but {model_name} is a folder", option="code_revision", fix=fix)
    if not trust_remote_code:
        refuse_remote_code(model_name, revision)
    check_modules(model_name, revision, trust_remote_code)
    _check_numbers(model_name, revision)
    with _quiet():
        model = _load(library, model_name, revision, trust_remote_code, code_revision).to(dtype)
        files = _files_sha256(model_name, revision, code_revision)
        encoder = as_encoder(model, model_name, files, length, batch_size, device, bf16, prompt)
    # model.prompts also has empty prompts that sentence-transformers adds.
    encoder.prompts = stored_prompts(model_name, revision)[1].get("prompts") or {}
    return encoder


def as_encoder(
    model: Any,
    name: str,
    files_sha256: str,
    length: int | None = None,
    batch_size: int = 64,
    device: str | None = None,
    bf16: bool = False,
    prompt: str | None = None,
) -> StEncoder:
    """Return the encoder of a loaded SentenceTransformer, which is moved to the device and set to evaluation mode.

    Args:
        model: The SentenceTransformer.
        name: Its Hub id or folder.
        files_sha256: See `StEncoder`.
        length, batch_size, device, bf16, prompt: See `load_encoder`.

    Raises:
        UsageError: The length or the prompt does not fit, or the model cannot embed a text.
    """
    fit_to_positions(model)
    own = model.get_max_seq_length()
    if isinstance(own, int | float) and not own >= 3:
        found = f"{name} has the maximum length {own}"
        raise UsageError(found, option="model_name", needed="room for 3 tokens")
    most = int(own) if isinstance(own, int | float) and own < UNLIMITED else UNLIMITED
    _set_length(model, name, length, most)
    to_device(model, device)
    default = model.prompts.get(model.default_prompt_name) if model.default_prompt_name else None
    prompt = (default or "") if prompt is None else prompt
    tokenizer = getattr(model, "tokenizer", None)  # the first module of a damaged list may have none
    if isinstance(tokenizer, PreTrainedTokenizerBase):
        refuse_long_prompt(prompt, tokenizer, "max_length", length or most)
    normalized = type(list(model)[-1]).__name__ == "Normalize" and model.truncate_dim is None
    options = ((POOLER,), length or most, normalized, batch_size, bf16, prompt)
    encoder = StEncoder(name, model, tokenizer, *options, own_length=most, files_sha256=files_sha256)
    encoder.similarity = similarity_of(model.similarity_fn_name, normalized)
    try:
        encoder.width, encoder.has_default = _width(encoder)
        some = encoder if encoder.has_default else replace(encoder, task="document")
        require_independent(model, name, lambda texts: some._encode(list(texts)))
    except UsageError:
        raise
    except Exception as error:  # the type depends on the model's code
        raise cannot_load(name, error) from None
    return encoder


def _width(encoder: StEncoder) -> tuple[int, bool]:
    """Return the number of dimensions, and whether texts that are neither queries nor documents can be embedded."""
    texts = ["a", "a a a"]  # of two lengths: the padding token of a damaged tokenizer may have no embedding
    try:
        return encoder._encode(texts).shape[-1], True
    except ValueError:
        if not encoder.routed:
            raise
        return replace(encoder, task="document")._encode(texts).shape[-1], False


def _library(model_name: str, reason: UsageError | None) -> Any:
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


def _check_numbers(model_name: str, revision: str | None) -> None:
    """Raise UsageError for numbers in a config.json that no real model has."""
    for path in folders_of(all_modules(model_name, revision)):
        values = json_file(model_name, joined(path, "config.json"), revision)
        for part in (values, values.get("text_config")):
            if isinstance(part, dict):
                check_numbers(model_name, part)
                check_sizes(model_name, SimpleNamespace(**part))


def _load(library: Any, model_name: str, revision: str | None, trust: bool, code_revision: str | None) -> Any:
    code = {"code_revision": code_revision} if code_revision else {}
    safe = {"weights_only": True}  # replaces what the folder says
    more = {"model_kwargs": _Kept(code | safe)} | ({"config_kwargs": _Kept(code)} if code else {})
    how = dict(device="cpu", revision=revision, trust_remote_code=trust, **more)
    try:
        with _no_missing_weights(model_name):
            model = library.SentenceTransformer(model_name, **how)
        return model.eval()
    except UsageError:
        raise
    except Exception as error:  # the type depends on what is wrong with the files
        raise cannot_load(model_name, error) from None


class _Kept(dict):
    """Options that stay for all modules: sentence-transformers removes `code_revision` at the first one."""

    def pop(self, key, *default):
        return self.get(key, *default)


def _set_length(model: Any, model_name: str, length: int | None, most: int) -> None:
    """Truncate texts to `length` tokens; None for the model's own maximum."""
    if length is None:
        return
    if most == UNLIMITED and not isinstance(model.tokenizer, PreTrainedTokenizerBase):
        raise UsageError(
            f"is {length}, but {model_name} does not truncate texts", option="max_length", fix="Leave it out."
        )
    if not 3 <= length <= most:
        raise UsageError(f"is {length}", option="max_length", needed=f"3 to {most} tokens for {model_name}")
    model.max_seq_length = length


def _files_sha256(model_name: str, revision: str | None, code_revision: str | None) -> str:
    """Return the SHA-256 of all files of a model that can determine an embedding, and of their names."""
    found = [optional_file(model_name, name, revision) for name in ("modules.json", "config.json")]
    digest = hashlib.sha256((code_revision or "").encode())
    for folder in [Path(file).parent for file in found if file][:1]:
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder)
            if path.suffix in FINGERPRINTED and path.is_file() and not any(part.startswith(".") for part in name.parts):
                digest.update(f"{name.as_posix()} {sha256(path)}\n".encode())
    return digest.hexdigest()


@contextmanager
def _no_missing_weights(model_name: str) -> Iterator[None]:
    """Raise UsageError if transformers reports weights that are missing or have the wrong shape. Hides its table."""
    log = logging.getLogger("transformers.modeling_utils")
    reports: list[str] = []

    def keep(record: logging.LogRecord) -> bool:
        message = re.sub(r"\x1b\[[0-9;]*m", "", record.getMessage())
        reports.extend([message] if "LOAD REPORT" in message else [])
        return "LOAD REPORT" not in message and record.levelno >= shown

    level, shown = log.level, log.getEffectiveLevel()
    log.setLevel(logging.WARNING - 1)  # at WARNING, transformers also reports layers without a tensor-parallel plan
    log.addFilter(keep)
    try:
        yield
    finally:
        log.removeFilter(keep)
        log.setLevel(level)
    bad = re.findall(r"^(\S.*?) *\| *(?:MISSING|MISMATCH)", "\n".join(reports), re.MULTILINE)
    bad = [name for name in bad if not name.startswith(BERT_POOLER)]
    if bad:
        found = f"{model_name}: {counted(len(bad), 'weight')} missing or of another shape, such as {bad[0]}"
        raise UsageError(found, option="model_name", fix="Copy the model again from its source.")


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide what sentence-transformers logs while it loads a model, such as the default prompt."""
    log = logging.getLogger("sentence_transformers")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)
