"""Training sentences from files or the Hub, tokenised once and cached; where the evaluation data come from."""

import logging
import lzma
import os
import shutil
import tarfile
import tempfile
import zlib
from pathlib import Path

import datasets
import numpy as np
import pyarrow.compute as pc
from datasets.exceptions import DatasetGenerationError
from datasets.fingerprint import Hasher
from huggingface_hub import constants, hf_hub_download
from huggingface_hub.errors import HTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled
from transformers import PreTrainedTokenizerBase

from informin import __version__
from informin.arguments import DataArguments
from informin.errors import UsageError, error_line
from informin.evaluation import GradedPairs, load_pairs, load_stsb_dev
from informin.evaluation.senteval import STSB_DEV
from informin.loading import forget_truncation
from informin.textfiles import COMPRESSIONS, SUFFIXES, as_text, choose_column, plain_suffix, read_sentences

logger = logging.getLogger(__name__)

HUB_DATA = "princeton-nlp/datasets-for-simcse"
HUB_SENTENCES = "wiki1m_for_simcse.txt"
HUB_SENTEVAL = "senteval.tar"
SENTEVAL_INSTEAD = "--data_dir FOLDER (SentEval's data/downstream), or set SENTEVAL_DATA to it"
HUB_ERRORS = (HTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled, OSError)  # HTTPError: lost connections too


def load_sentences(args: DataArguments, seed: int) -> datasets.Dataset | datasets.IterableDataset:
    """The training sentences as one column, `text`, without blank ones.

    Args:
        args: where from; `max_train_samples` takes a random sample that `seed` decides.

    Raises:
        UsageError: no such file, column or data set, or a file that cannot be read; see `read_sentences`.
    """
    if args.dataset_name:
        dataset, source = _load_hub_dataset(args), args.dataset_name
        if args.streaming:
            sentences = dataset.filter(lambda row: bool(row["text"] and row["text"].strip()))
            sentences = sentences.shuffle(seed=seed, buffer_size=10_000)
            return sentences.take(args.max_train_samples) if args.max_train_samples else sentences
    else:
        files = find_files(args.train_file) if args.train_file else [_hub_file(HUB_SENTENCES, "--train_file FILE")]
        source = ", ".join(map(str, files)) if len(files) < 4 else f"{len(files)} files"
        dataset = _load_files(files, args.text_column)
    text = dataset.data.column("text")
    kept = np.flatnonzero(pc.not_equal(pc.utf8_trim_whitespace(pc.fill_null(text, "")), "").to_numpy())
    blank = len(text) - len(kept)
    if len(kept) == 0:
        raise UsageError(f"No sentences in {source}: {blank:,} blank lines and nothing else.")
    found = len(kept)
    if args.max_train_samples and args.max_train_samples < found:
        kept = np.sort(np.random.default_rng(seed).choice(kept, args.max_train_samples, replace=False))
    logger.info(f"{len(kept):,} of {found:,} sentences from {source} ({blank:,} blank lines skipped)")
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
    # A fast tokenizer's own hash changes when it is first called, which would miss the cache.
    forget_truncation(tokenizer)
    fingerprint = Hasher.hash([sentences._fingerprint, tokenizer.backend_tokenizer.to_str(), max_seq_length])
    return sentences.map(tokens, batched=True, remove_columns=["text"], new_fingerprint=fingerprint, desc="Tokenising")


def load_evaluation_pairs(args: DataArguments) -> GradedPairs:
    """The pairs that choose the checkpoint: the user's own, else STS-B dev from a folder, the environment or the Hub.

    Raises:
        UsageError: there are none to be had; the message says how to go on without.
    """
    if args.eval_pairs:
        return load_pairs(args.eval_pairs)
    instead = (
        "--eval_data_dir FOLDER (SentEval's data/downstream), set SENTEVAL_DATA to it, give --eval_pairs FILE, or "
        "train without evaluation: --eval_strategy no"
    )
    return load_stsb_dev(senteval_folder(args.eval_data_dir, instead))


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
        UsageError: one does not exist, or a folder holds none that can be read.
    """
    files = []
    for path in map(Path, paths):
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.is_file() and plain_suffix(p) in SUFFIXES)
            if not inside:
                known = ", ".join(SUFFIXES + tuple(f".txt{c}" for c in COMPRESSIONS))
                raise UsageError(f"--train_file: the folder {path} holds no file ending in {known}.")
            files += inside
        elif path.is_file():
            files.append(path)
        else:
            raise UsageError(f"--train_file: {path} does not exist.")
    return files


def _rows(files: list[tuple], text_column: str | None):
    for path, *_ in files:
        for sentence in read_sentences(Path(path), text_column):
            yield {"text": sentence}


def _load_files(files: list[Path], text_column: str | None) -> datasets.Dataset:
    # Size, time and our version are part of the cache's key, so that a changed file is read again.
    keys = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns, __version__) for file in files]
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
            f"{name} cannot be fetched from the Hub data set {HUB_DATA} ({error_line(error)}). Without the Hub, give "
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
        UsageError: the archive is damaged or holds members that point outside.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(partial, filter="data")
        partial.chmod(0o755)
        partial.rename(folder)
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise UsageError(f"{archive} cannot be unpacked ({error}). Delete it, so that it is fetched again.") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
