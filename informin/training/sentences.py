"""Training sentences from files or the Hub, tokenised once and cached; where the evaluation data come from."""

import bz2
import gzip
import inspect
import logging
import lzma
import math
import os
import shutil
import tarfile
import tempfile
import zlib
from pathlib import Path
from typing import BinaryIO

import datasets
import numpy as np
import pyarrow.compute as pc
from datasets.exceptions import DatasetGenerationError
from datasets.fingerprint import Hasher
from huggingface_hub import constants, hf_hub_download
from huggingface_hub.errors import HTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled
from transformers import PreTrainedTokenizerBase

from informin import textfiles
from informin.encoders.loading import forget_truncation, hub_problem
from informin.errors import UsageError, counted, error_line
from informin.evaluation import GradedPairs, load_pairs, load_stsb_dev
from informin.evaluation.senteval import STSB_DEV
from informin.textfiles import (
    COMPRESSIONS,
    SUFFIXES,
    as_text,
    choose_column,
    plain_suffix,
    read_sentences,
    require_file,
    shown,
    table_column,
)
from informin.training.options import DataArguments, InforMinTrainingArguments

logger = logging.getLogger(__name__)

MANY, BYTES_PER_SENTENCE = 100_000, 50  # more are read and tokenised with a progress bar: it takes seconds
HUB_DATA = "princeton-nlp/datasets-for-simcse"
HUB_SENTENCES = "wiki1m_for_simcse.txt"
HUB_SENTEVAL = "senteval.tar"
MOST_BYTES, MOST_MEMBERS = 4 * 2**30, 100_000  # of an archive; SentEval's has 0.3 GiB
SENTEVAL_INSTEAD = "--senteval_dir FOLDER (SentEval's data/downstream), or set SENTEVAL_DATA to it"
HUB_ERRORS = (HTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled, OSError)  # HTTPError: lost connections too


def load_sentences(args: DataArguments, seed: int) -> datasets.Dataset | datasets.IterableDataset:
    """The training sentences as one column, `text`, without blank ones.

    Args:
        args: where from; `max_train_samples` takes a random sample that `seed` decides.

    Raises:
        UsageError: no such file, column or data set, a file that cannot be read (see `read_sentences`), or copies of
            one sentence and nothing else.
    """
    columns = set()
    if args.dataset_name:
        dataset, source = _load_hub_dataset(args), args.dataset_name
        if args.streaming:
            sentences = dataset.filter(lambda row: bool(row["text"] and row["text"].strip()))
            sentences = sentences.shuffle(seed=seed, buffer_size=10_000)
            return sentences.take(args.max_train_samples) if args.max_train_samples else sentences
    else:
        files = find_files(args.train_file) if args.train_file else [_hub_file(HUB_SENTENCES, "--train_file FILE")]
        source = ", ".join(map(str, files)) if len(files) < 4 else f"{len(files)} files"
        columns = {table_column(file, args.text_column) for file in files} - {None, "text"}
        source += f", column {', '.join(map(repr, sorted(columns)))}" if columns else ""
        dataset = _load_files(files, args.text_column)
    text = dataset.data.column("text")
    trimmed = pc.utf8_trim_whitespace(pc.fill_null(text, ""))
    kept = np.flatnonzero(pc.not_equal(trimmed, "").to_numpy())
    found, blank = len(kept), counted(len(text) - len(kept), "blank line")
    if found == 0:
        raise UsageError(f"No sentences in {source}: {blank} and nothing else.")
    if args.max_train_samples and args.max_train_samples < found:
        kept = np.sort(np.random.default_rng(seed).choice(kept, args.max_train_samples, replace=False))
    first = trimmed[int(kept[0])]
    if len(kept) > 1 and not pc.not_equal(trimmed, first).to_numpy()[kept].any():
        raise UsageError(
            f"{source}: all {len(kept):,} sentences are '{shown([str(first)])}'; contrast needs different ones. Are "
            "these the right data, and is it the right --text_column?"
        )
    # Blank lines, and a column that was not named, are worth a line.
    level = logging.INFO if columns or found < len(text) else logging.DEBUG
    logger.log(level, f"{len(kept):,} of {counted(found, 'sentence')} from {source} ({blank} skipped)")
    return dataset.select(kept)


def tokenise(sentences, tokenizer: PreTrainedTokenizerBase, max_seq_length: int):
    """`input_ids` and `attention_mask` of every sentence, cut at `max_seq_length` tokens; cached on disk.

    Raises:
        UsageError: `max_seq_length` is more than the tokenizer's model reads.
    """
    if max_seq_length > tokenizer.model_max_length:
        raise UsageError(
            f"--max_seq_length {max_seq_length}: this model reads at most {tokenizer.model_max_length} tokens."
        )

    def tokens(batch):
        return tokenizer(batch["text"], truncation=True, max_length=max_seq_length, return_token_type_ids=False)

    if isinstance(sentences, datasets.IterableDataset):
        return sentences.map(tokens, batched=True, remove_columns=["text"])
    _show_bars(len(sentences) > MANY)
    # A fast tokenizer's own hash changes when it is first called, which would miss the cache.
    forget_truncation(tokenizer)
    fingerprint = Hasher.hash([sentences._fingerprint, tokenizer.backend_tokenizer.to_str(), max_seq_length])
    return sentences.map(tokens, batched=True, remove_columns=["text"], new_fingerprint=fingerprint, desc="Tokenising")


def refuse_few_sentences(train_dataset, args: InforMinTrainingArguments) -> None:
    """Raises UsageError for fewer sentences than one batch, or than the queue holds, and for a last batch of 1."""
    batch = args.per_device_train_batch_size * args.world_size
    steps = args.max_steps if args.max_steps > 0 else math.inf
    found = len(train_dataset) if hasattr(train_dataset, "__len__") else math.inf
    read = min(found, steps * batch * args.gradient_accumulation_steps)
    if args.dataloader_drop_last and found < batch:
        raise UsageError(
            f"Found {counted(found, 'sentence')}, fewer than one batch of {batch}. Add sentences, or lower "
            "--per_device_train_batch_size."
        )
    if not args.dataloader_drop_last and found % batch == 1:
        raise UsageError(
            f"The last batch of {found} sentences by {batch} would be 1 sentence, which has no negatives and no "
            "variance. Leave --dataloader_drop_last on, or change --per_device_train_batch_size."
        )
    if args.queue_size > read:
        raise UsageError(
            f"--queue_size {args.queue_size} is more than the {read} sentences that the run reads: it would hold some "
            f"of them twice, or never be full. Add sentences or steps, or give a --queue_size of at most {read}."
        )


def load_evaluation_pairs(args: DataArguments) -> GradedPairs:
    """The pairs that choose the checkpoint: the user's own, else STS-B dev from a folder, the environment or the Hub.

    Raises:
        UsageError: there are none to be had; the message says how to go on without.
    """
    if args.eval_pairs:
        return load_pairs(args.eval_pairs)
    instead = (
        "--senteval_dir FOLDER (SentEval's data/downstream), set SENTEVAL_DATA to it, give --eval_pairs FILE, or "
        "train without evaluation: --eval_strategy no"
    )
    return load_stsb_dev(senteval_folder(args.senteval_dir, instead))


def senteval_folder(given: str | None, instead: str) -> Path:
    """SentEval's `data/downstream`: the folder given, else $SENTEVAL_DATA, else fetched from the Hub and unpacked.

    Args:
        instead: what to do without the Hub, for the error message: "Without the Hub, give ...".

    Raises:
        UsageError: it cannot be fetched.
    """
    folder = given or os.environ.get("SENTEVAL_DATA")
    return Path(folder) if folder else _hub_senteval(instead)


def find_files(paths: list[str]) -> list[Path]:
    """The files named, and those in the folders named, in a fixed order.

    Raises:
        UsageError: one does not exist or is no file, or a folder holds none that can be read.
    """
    files = []
    for path in map(Path, paths):
        inside = [path]
        if os.path.isdir(path):  # Path.is_dir would raise for a name that is too long
            inside = sorted(p for p in _walk(path) if plain_suffix(p) in SUFFIXES)
            if not inside:
                known = ", ".join(SUFFIXES + tuple(f".txt{c}" for c in COMPRESSIONS))
                raise UsageError(f"--train_file: the folder {path} holds no file ending in {known}.")
        for file in inside:
            require_file("--train_file", file)
        files += inside
    return files


def _walk(folder: Path):
    def refuse(error: OSError):
        raise UsageError(f"--train_file: the folder {error.filename} cannot be read ({error.strerror}).")

    for path, _, names in os.walk(folder, onerror=refuse):
        yield from (Path(path, name) for name in names)


def _rows(files: list[tuple], text_column: str | None):
    for path, *_ in files:
        for sentence in read_sentences(Path(path), text_column):
            yield {"text": sentence}


def _show_bars(many: bool) -> None:
    if many and not datasets.config.HF_DATASETS_DISABLE_PROGRESS_BARS:
        datasets.enable_progress_bars()


def _load_files(files: list[Path], text_column: str | None) -> datasets.Dataset:
    # Size, time and our reader are part of the cache's key: what has changed, or is read otherwise, is read again.
    reader = Hasher.hash(inspect.getsource(textfiles))
    _show_bars(sum(file.stat().st_size for file in files) > BYTES_PER_SENTENCE * MANY)
    keys = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns, reader) for file in files]
    if next(_rows(keys, text_column), None) is None:
        raise UsageError(f"No sentences in {', '.join(map(str, files))}: nothing to read.")
    features = datasets.Features({"text": datasets.Value("string")})
    try:
        return datasets.Dataset.from_generator(
            _rows, features=features, gen_kwargs={"files": keys, "text_column": text_column}, split="train"
        )
    except DatasetGenerationError as error:
        if isinstance(error.__cause__, UsageError):
            raise error.__cause__ from None
        raise


def _load_hub_dataset(args: DataArguments):
    try:
        dataset = datasets.load_dataset(
            args.dataset_name, args.dataset_config, split=args.dataset_split, streaming=args.streaming
        )
        first = next(iter(dataset), None)
    except (*HUB_ERRORS, ValueError, DatasetGenerationError) as error:
        cause = error.__cause__ or error
        raise UsageError(f"--dataset_name {args.dataset_name} cannot be loaded: {error_line(cause)}") from None
    if first is None:
        raise UsageError(f"No sentences in {args.dataset_name}: its split {args.dataset_split!r} is empty.")
    columns = list(first)
    column = choose_column(columns, args.text_column, args.dataset_name)
    if dataset.features is None:  # a stream that does not say what its columns hold
        as_text(first[column], args.dataset_name, None)
    elif dataset.features[column] not in (datasets.Value("string"), datasets.Value("large_string")):
        raise UsageError(
            f"{args.dataset_name}: the text column holds {first[column]!r}; needed text. Name another with "
            "--text_column."
        )
    dataset = dataset.remove_columns([name for name in columns if name != column])
    return dataset if column == "text" else dataset.rename_column(column, "text")


def _hub_file(name: str, instead: str) -> Path:
    try:
        return Path(hf_hub_download(HUB_DATA, name, repo_type="dataset"))
    except HUB_ERRORS as error:
        raise UsageError(
            f"{name} cannot be fetched from the Hub data set {HUB_DATA}: {hub_problem(error)}. Without the Hub, give "
            f"{instead}."
        ) from None


def _hub_senteval(instead: str) -> Path:
    archive = _hub_file(HUB_SENTEVAL, instead)
    folder = Path(constants.HF_HOME) / "informin-cl" / archive.resolve().name
    if not folder.is_dir():
        unpack(archive, folder)
    found = next((p for p in folder.rglob("sts-dev.csv") if p.as_posix().endswith(STSB_DEV)), None)
    if found is None:
        raise UsageError(f"{archive} holds no {STSB_DEV}. Delete it, so that it is fetched again.")
    return found.parents[2]


def unpack(archive: Path, folder: Path) -> None:
    """Unpacks a tar file; nothing leaves `folder`, and `folder` appears only when it is whole.

    Raises:
        UsageError: the archive is damaged, too large, or holds members that point outside; or there is no space.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        with _decompressed(archive) as file, tarfile.open(fileobj=_Bounded(file), mode="r:") as tar:
            _refuse_large(tar)
            tar.extractall(partial, filter="data")
        partial.chmod(0o755)
        partial.rename(folder)
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise UsageError(f"{archive} cannot be unpacked ({error}). Delete it, so that it is fetched again.") from None
    except OSError as error:  # no space, for instance
        raise UsageError(f"{archive} cannot be unpacked in {folder.parent} ({error}).") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _decompressed(archive: Path) -> BinaryIO:
    with open(archive, "rb") as file:
        head = file.read(3)
    return {b"\x1f\x8b\x08": gzip.open, b"BZh": bz2.open, b"\xfd7z": lzma.open}.get(head, open)(archive, "rb")


class _Bounded:
    """The first MOST_BYTES of a file: a few kilobytes can inflate without end, while tarfile looks for a header too."""

    def __init__(self, file: BinaryIO):
        self.file, self.tell = file, file.tell

    def read(self, size: int) -> bytes:
        self.check(self.tell() + size)
        return self.file.read(size)

    def seek(self, position: int) -> None:
        self.check(position)
        self.file.seek(position)

    def check(self, position: int) -> None:
        if position > MOST_BYTES:
            raise tarfile.ReadError(f"more than {MOST_BYTES / 2**30:.1f} GiB")


def _refuse_large(tar: tarfile.TarFile) -> None:
    size = 0
    for number, member in enumerate(tar, start=1):  # the data of a member are passed over when the next is asked for
        size += member.size
        if size > MOST_BYTES or number > MOST_MEMBERS:
            raise tarfile.ReadError(
                f"{size / 2**30:,.1f} GiB in {counted(number, 'member')}, and no more than {MOST_BYTES / 2**30:.1f} "
                f"GiB in {MOST_MEMBERS:,} members are unpacked"
            )
