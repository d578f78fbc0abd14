"""Embed texts with a finished model, in memory or into a file. An interrupted file is resumed.

In a distributed run, all processes make the same calls. Each embeds a share of the texts, and gets all embeddings.
"""

import copy
import hashlib
import logging
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Router
from tokenizers import Tokenizer
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase
from typing_extensions import Unpack

from informin.distributed import first_only, gather_objects, gather_shares, on_first, rank, world_size
from informin.errors import UsageError, counted
from informin.fast.precision import precision_of
from informin.fast.speed import copy_of_tokenizer, set_inference
from informin.files import named_in_errors, only_writer, read_json, sha256, write_json
from informin.model.checksums import model_sha256
from informin.model.open import Loading, first_module, length_limit, load_model, loading_to_embed, name_of
from informin.options import check_value, with_home
from informin.texts import as_texts

logger = logging.getLogger(__name__)

TEXTS_PER_CALL = 8_192  # texts in one call of the model's `encode`, which sorts them by length
RECORDED_AT_ONCE = 4_096  # texts of a file that are embedded and recorded at once
KIND = "embeddings of informin"  # of a record
DOCUMENT_PROMPTS = ("document", "passage", "corpus")  # names in a model, best first


def embed(
    model: str | Path | SentenceTransformer,
    texts: Iterable[str],
    output: str | Path | None = None,
    *,
    side: str | None = None,
    prompt: str | None = None,
    batch_size: int = 64,
    overwrite: bool = False,
    pooler: str = "auto",
    **loading: Unpack[Loading],
) -> np.ndarray:
    """Embed texts. Texts that are too long for the model are truncated, which is logged once.

    In a distributed run, all processes call this function. Each embeds a share, and gets all embeddings.

    Args:
        model: Hub id, folder, or SentenceTransformer. Options for loading apply only to a name or folder.
        texts: N texts: a list, or another iterable of strings.
        output: A .npy file to write. It appears once it is complete. After an interruption, the same call resumes.
        overwrite: Whether to replace a file of other embeddings that this function wrote to `output`.
        side: `query` or `document`: embed with the prompt or route that the model has for them. Default: the model's
            `encode`.
        prompt: Prompt prepended to each text, instead of the stored prompt; an empty string for none.
        batch_size: Texts per forward pass.
        pooler, loading: Options of `informin.load_model`. `precision` is auto by default for a name or folder.

    Returns:
        (N, d) float32; with `output`, a memory map of the file.

    Raises:
        UsageError: The model, the texts or the name of the file cannot be used, or the file has other embeddings.
    """
    texts = as_texts(texts)
    check_value(side in ("query", "document", None), "side", side, "query, document or None")
    check_value(isinstance(overwrite, bool), "overwrite", overwrite, "True or False")
    if output is not None and Path(output).suffix != ".npy":
        raise UsageError(f"is {output}", option="output", needed="a name ending in .npy")
    st = load_model(model, pooler=pooler, **loading_to_embed(model, loading))
    how: dict[str, Any] = {"side": side, "prompt": prompt, "batch_size": batch_size}
    if output is None:
        return encode_in_shares(st, texts, **how)
    return embed_file(st, texts, with_home(output), **how, overwrite=overwrite)


# In memory


def encode_in_shares(
    model: SentenceTransformer,
    texts: Sequence[str],
    *,
    side: str | None = None,
    prompt: str | None = None,
    batch_size: int = 64,
    title: str | None = "embed",
    progress: Callable[[int], object] | None = None,
) -> np.ndarray:
    """Return the embeddings (N, d) float32 of N texts.

    With several processes, each embeds a share, and all of them get all embeddings.

    Args:
        model: The model.
        texts: N texts.
        side: `query` or `document`, for prompts and routes of search; None for `encode` of the model.
        prompt: Prompt prepended to each text, instead of the stored prompt; an empty string for none.
        batch_size: Texts per forward pass.
        title: Title of the progress bar; None for no bar.
        progress: Called after each chunk with its number of texts.

    Raises:
        UsageError: An embedding is not finite.
    """
    texts = as_texts(texts)
    note_truncated(model, texts, prompt, side)
    local = texts[rank() :: world_size()]
    blocks: list[np.ndarray] = []
    with bar_of_texts(model, len(local), title) as model:
        for start in range(0, max(1, len(local)), TEXTS_PER_CALL):
            blocks.append(encode(model, local[start : start + TEXTS_PER_CALL], side, prompt, batch_size))
            if progress:
                progress(len(blocks[-1]))
    return gather_shares(np.concatenate(blocks), len(texts))


def encode(
    model: SentenceTransformer,
    texts: list[str],
    side: str | None = None,
    prompt: str | None = None,
    batch_size: int = 64,
) -> np.ndarray:
    """Return the embeddings (N, d) float32 of N texts in this process; see `encode_in_shares`."""
    prompt = side_prompt(model, side) if prompt is None else prompt
    vectors = call_encode(model, texts, side, prompt=prompt, batch_size=batch_size)
    vectors = np.asarray(vectors, np.float32).reshape(len(texts), -1 if texts else width_of(model))
    check_finite(model, vectors)
    return vectors


def call_encode(
    model: SentenceTransformer, texts: list[str], side: str | None, *, batch_size: int, **options: Any
) -> Any:
    """Return what the model's `encode`, `encode_query` or `encode_document` returns, in its precision.

    Raises:
        UsageError: The batch size is not positive, or a Router needs a side.
    """
    if batch_size < 1:
        raise UsageError(f"is {batch_size}", option="batch_size", needed="1 or more")
    router = model[0]
    if side is None and isinstance(router, Router) and not (router.default_route or router.route_mappings):
        found = f"is not set, and {name_of(model)} has no default route"
        fix = "In Python, set `model[0].default_route`."
        raise UsageError(found, option="side", needed=f"one of: {', '.join(router.sub_modules)}", fix=fix)
    method = {"query": model.encode_query, "document": model.encode_document, None: model.encode}[side]
    return method(texts, batch_size=batch_size, show_progress_bar=False, **options)


def check_finite(model: SentenceTransformer, vectors: np.ndarray) -> None:
    """Raise UsageError if an embedding is not finite."""
    if not np.isfinite(vectors).all():
        raise UsageError(f"{name_of(model)} gives embeddings that are not finite", fix="Use another model.")


def side_prompt(model: SentenceTransformer, side: str | None) -> str | None:
    """Return the stored prompt of one side of search; None if there is none.

    sentence-transformers adds empty prompts `query` and `document`, and `encode_document` would prefer the empty one to
    a stored `passage`.
    """
    names = {"query": ("query",), "document": DOCUMENT_PROMPTS, None: ()}[side]
    return next((model.prompts[name] for name in names if model.prompts.get(name)), None)


def stored_prompt(model: SentenceTransformer, side: str | None) -> str:
    """Return the prompt that texts of a side get if none is given: that of the side, or the default; empty for none."""
    name = side if side in model.prompts else model.default_prompt_name
    return side_prompt(model, side) or model.prompts.get(name or "") or ""


def width_of(model: SentenceTransformer) -> int:
    """Return the number of dimensions of an embedding."""
    return model.get_embedding_dimension() or model.encode_document(["a"], show_progress_bar=False).shape[-1]


@contextmanager
def bar_of_texts(model: SentenceTransformer, total: int, title: str | None = "embed") -> Iterator[SentenceTransformer]:
    """Show a progress bar of the texts that a model embeds in a `with` block, updated after each forward pass.

    Yields a copy of the model, whose forward passes are counted. Other threads may use the model. The copy shares all
    modules except for the last one, which has a further hook.

    Args:
        model: The model.
        total: Number of texts.
        title: Title of the bar; None for no bar.
    """
    with tqdm(total=total, desc=title, unit=" texts", leave=False, disable=title is None or hidden()) as bar:
        if bar.disable:
            yield model
            return

        def count(module: Any, inputs: Any, features: dict[str, Any]) -> None:
            rows = len(features["sentence_embedding"])  # some of them may pad the batch
            bar.update(min(rows, total - bar.n))

        counted_model, last = copy.copy(model), copy.copy(model[-1])
        last._forward_hooks = last._forward_hooks.copy()
        last.register_forward_hook(count)
        counted_model._modules = counted_model._modules | {next(reversed(counted_model._modules)): last}
        yield set_inference(counted_model) if "_inference" in vars(model) else counted_model


def count_truncated(
    model: SentenceTransformer, texts: Sequence[str], prompt: str | None = None, side: str | None = None
) -> int:
    """Return how many texts a model truncates; 0 for a model without a maximum length. See `encode_in_shares`."""
    tokenizer, length = getattr(first_module(model, side), "tokenizer", None), length_limit(model, side)
    if not isinstance(tokenizer, PreTrainedTokenizerBase | Tokenizer) or length is None or length > 10**6:
        return 0
    backend, number = copy_of_tokenizer(tokenizer), 0
    for start in range(0, len(texts), TEXTS_PER_CALL):  # the tokens of all texts would take gigabytes
        block = (((prompt or "") + text).encode() for text in texts[start : start + TEXTS_PER_CALL])
        # Only long texts need counting: a token has at least one byte, and two tokens are special.
        if long := [text.decode() for text in block if len(text) > length - 2]:
            if isinstance(backend, Tokenizer):  # of static embeddings
                tokens = [encoding.ids for encoding in backend.encode_batch_fast(long, add_special_tokens=False)]
            else:
                tokens = backend(long, verbose=False, truncation=False)["input_ids"]
            number += sum(len(ids) > length for ids in tokens)
    return number


def note_truncated(
    model: SentenceTransformer, texts: Sequence[str], prompt: str | None = None, side: str | None = None
) -> bool:
    """Log how many texts are truncated, if any are, and return whether any are. See `encode_in_shares`."""
    number = count_truncated(model, texts, stored_prompt(model, side) if prompt is None else prompt, side)
    if number:
        logger.info(
            f"{counted(number, 'text')} of {len(texts):,} {'is' if number == 1 else 'are'} truncated to "
            f"{length_limit(model, side)} tokens."
        )
    return number > 0


def hidden() -> bool | None:
    """Return the value of tqdm's `disable`: False in a notebook, otherwise None: show bars in a terminal only."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return False if shell is not None and "IPKernelApp" in shell.config else None


# Into a file


def embed_file(
    model: SentenceTransformer,
    texts: Sequence[str],
    path: str | Path,
    *,
    side: str | None = None,
    prompt: str | None = None,
    batch_size: int = 64,
    overwrite: bool = False,
) -> np.ndarray:
    """Embed texts into a `.npy` file, and return it as a memory map.

    The file appears when it is complete, next to the record `NAME.npy.json` with its checksum. Until then, the folder
    `.NAME.npy.embedding` has the rows and the checksum of each chunk of them. After an interruption, even a SIGKILL,
    the same call continues with the unfinished chunks. Under `accelerate launch` every process makes the same call and
    embeds its share of the chunks.

    Args:
        model: The model.
        texts: N texts.
        path: The file to write. An existing file is returned as it is if it holds the same texts and model.
        side, prompt, batch_size: See `encode_in_shares`.
        overwrite: Whether to replace a file of other embeddings that this function wrote.

    Returns:
        (N, d) float32, memory-mapped.

    Raises:
        UsageError: The file exists with other embeddings or is damaged, or another process writes it.
        SaveError: The file cannot be written. The same call resumes.
    """
    path, texts = Path(path), as_texts(texts)
    encoder = hashlib.sha256(f"{model_sha256(model, prompt)} {side}".encode()).hexdigest()
    description: dict[str, Any] = {"kind": KIND, "texts": texts_sha256(texts), "encoder": encoder}
    description |= {"rows": len(texts), "dimensions": width_of(model), "precision": precision_of(model)}
    with first_only(only_writer(path)):
        if on_first(lambda: _is_finished(path, description, overwrite)):
            return np.load(path, mmap_mode="r")
        note_truncated(model, texts, prompt, side)
        folder = path.with_name(f".{path.name}.embedding")
        with named_in_errors(path):
            on_first(lambda: _begin(folder, description, overwrite))
        chunks = range(0, len(texts), RECORDED_AT_ONCE)
        unfinished = [start for start in list(chunks)[rank() :: world_size()] if not _is_recorded(folder, start)]
        total = sum(len(texts[start : start + RECORDED_AT_ONCE]) for start in unfinished)
        with bar_of_texts(model, total) as model:
            for start in unfinished:
                block = encode(model, texts[start : start + RECORDED_AT_ONCE], side, prompt, batch_size)
                with named_in_errors(path):
                    _write_chunk(folder, start, block)
        gather_objects(None)  # wait for the other processes
        with named_in_errors(path):
            on_first(lambda: _finish(folder, path, description, chunks))
    return np.load(path, mmap_mode="r")


def _is_finished(path: Path, description: dict[str, Any], overwrite: bool) -> bool:
    """Return whether a file holds these embeddings. Raise UsageError if it holds anything else.

    With `overwrite`, a file of other embeddings that has a record is not an error, and is replaced once the new one is
    complete.
    """
    record = _record(path)
    if _record_file(path).exists() and not record:
        raise UsageError(f"{_record_file(path)} exists and is not such a record", fix="Choose another output.")
    if not path.exists():
        return False
    different = [name for name, value in description.items() if record.get(name) != value]
    is_same = not different
    if is_same and record.get("sha256") == sha256(path):
        return True
    if overwrite and record:
        return False
    if is_same:
        raise UsageError(
            f"{path} is damaged: its checksum is not that of its record",
            fix="Delete it, or replace it with `overwrite`.",
        )
    _raise_if_other_precision(path, record, description)
    raise UsageError(
        f"{path} exists and contains other embeddings",
        fix="Choose another file, or replace an output of the same command with `overwrite`.",
    )


def _raise_if_other_precision(path: Path, record: dict[str, Any], description: dict[str, Any]) -> None:
    """Raise UsageError if only the precision differs, as that of `auto` does on another processor."""
    if [name for name, value in description.items() if record.get(name) != value] == ["precision"]:
        raise UsageError(
            f"{path} exists and contains the embeddings in {record['precision']}, not {description['precision']}",
            fix=f"Set `precision` to {record['precision']}, or replace them with `overwrite`.",
        )


def _begin(folder: Path, description: dict[str, Any], overwrite: bool) -> None:
    """Create the folder of an unfinished file, or reuse one of the same texts and model."""
    shape = (description["rows"], description["dimensions"])
    known: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        rows, known = np.load(folder / "rows.npy", mmap_mode="r"), read_json(folder / "description.json")
        if known == description and rows.shape == shape:
            return
    if not overwrite:
        _raise_if_other_precision(folder, known, description)
    if folder.exists():
        logger.warning(f"The unfinished embeddings in {folder} have other texts or another model.")
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    np.lib.format.open_memmap(folder / "rows.npy", "w+", np.float32, shape).flush()
    write_json(folder / "description.json", description)


def _write_chunk(folder: Path, start: int, block: np.ndarray) -> None:
    """Write rows and their checksum. If the disk is full, writing to a memory map would kill the process."""
    rows = np.load(folder / "rows.npy", mmap_mode="r")
    block = np.ascontiguousarray(block, rows.dtype)
    with (folder / "rows.npy").open("r+b") as file:
        file.seek(rows.offset + start * rows.strides[0])
        file.write(block.data)
    (folder / str(start)).write_text(hashlib.sha256(block.data).hexdigest(), encoding="utf-8")


def _is_recorded(folder: Path, start: int) -> bool:
    """Return whether the rows of a chunk match their recorded checksum."""
    with suppress(OSError):
        recorded = (folder / str(start)).read_text(encoding="utf-8", errors="replace")
        rows = np.load(folder / "rows.npy", mmap_mode="r")[start : start + RECORDED_AT_ONCE]
        return recorded == hashlib.sha256(np.ascontiguousarray(rows).data).hexdigest()
    return False


def _finish(folder: Path, path: Path, description: dict[str, Any], chunks: Sequence[int]) -> None:
    """Write the record and move the rows to their place."""
    if lost := [start for start in chunks if not _is_recorded(folder, start)]:  # written to another disk
        raise UsageError(
            f"{folder} lacks {counted(len(lost), 'chunk')} of other processes",
            fix="Use a folder that all machines share, and run the same command again.",
        )
    write_json(_record_file(path), description | {"sha256": sha256(folder / "rows.npy")})
    (folder / "rows.npy").rename(path)
    shutil.rmtree(folder)


def raise_if_other_texts(path: Path, texts: Sequence[str]) -> None:
    """Raise UsageError if the record of a file says that its embeddings are of other texts.

    A file without a record is not checked, nor one that was written again without it.
    """
    record = _record(path)
    if record and record["texts"] != texts_sha256(texts) and record.get("sha256") == sha256(path):
        raise UsageError(
            f"is {path}, whose record {_record_file(path).name} says that it was embedded from other texts",
            option="embeddings",
            fix="The texts or their order have changed since then. Run `informin embed` again, or give the old texts.",
        )


def texts_sha256(texts: Sequence[str]) -> str:
    """Return the checksum of texts in their order."""
    digest = hashlib.sha256()
    for text in texts:
        data = text.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def _record_file(path: Path) -> Path:
    """Return the path of the record of a file."""
    return path.with_name(f"{path.name}.json")


def _record(path: Path) -> dict[str, Any]:
    """Return the record of a file; empty if there is none, or another file has its name."""
    with suppress(OSError, ValueError):
        record = read_json(_record_file(path))
        if isinstance(record, dict) and record.get("kind") == KIND:
            return {"precision": "fp32"} | record  # older records lack it
    return {}
