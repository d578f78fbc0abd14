"""Training sentences from files or the Hub, tokenized once and cached; where the evaluation pairs come from."""

import inspect
import logging
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import datasets
import numpy as np
import pyarrow.compute as pc
from datasets.exceptions import DatasetGenerationError
from datasets.fingerprint import Hasher
from huggingface_hub import dataset_info
from transformers import PreTrainedTokenizerBase

from informin import textfiles
from informin.encoders.loading import forget_truncation
from informin.encoders.usage import refuse_long_prompt
from informin.errors import UsageError, counted, error_line
from informin.evaluation import GradedPairs, load_pairs, load_stsb_dev
from informin.evaluation.development import Development
from informin.evaluation.drift import stsb_dev
from informin.evaluation.labels import load_labels
from informin.evaluation.retrieval import load_retrieval_pairs
from informin.evaluation.senteval_files import HUB_ERRORS, hub_file, senteval_folder
from informin.textfiles import (
    COMPRESSIONS,
    SUFFIXES,
    as_text,
    choose_column,
    plain_suffix,
    refuse_long,
    require_file,
    shown,
    table_column,
)
from informin.training.data_options import DataArguments
from informin.training.fingerprints import fingerprints, with_source
from informin.training.options import InforMinTrainingArguments
from informin.training.streams import TEXT, shard_rows, stream_files

logger = logging.getLogger(__name__)

MANY, BYTES_PER_SENTENCE = 100_000, 50  # more are read and tokenized with a progress bar: it takes seconds
BUFFER = 10_000  # sentences of a stream that are shuffled together
CUT = "truncated"  # the column that says whether a sentence was
HUB_SENTENCES = "wiki1m_for_simcse.txt"


def load_sentences(args: DataArguments, seed: int) -> datasets.Dataset | datasets.IterableDataset:
    """The training sentences as one column, `text`, without blank ones.

    Args:
        args: where from.
        seed: of the order of a stream.

    Raises:
        UsageError: no such file, column or data set, a file that cannot be read (see `read_sentences`), or copies of
            one sentence and nothing else.
    """
    columns, files = set(), []
    if args.dataset_name:
        dataset, source = _load_hub_dataset(args), args.dataset_name
    else:
        files = find_files(args.train_file) if args.train_file else [hub_file(HUB_SENTENCES, "`train_file` FILE")]
        if next(shard_rows([(file, 0, 1) for file in files], args.text_column), None) is None:
            raise UsageError(f"No sentences in {', '.join(map(str, files))}: nothing to read.")
    if args.streaming:
        sentences = stream_files(files, args.text_column) if files else dataset
        sentences = sentences.filter(_holds_text).shuffle(seed=seed, buffer_size=BUFFER)
        return with_source(sentences.cast(TEXT), _source(args, files))  # features, which filter forgets
    if files:
        source = ", ".join(map(str, files)) if len(files) < 4 else f"{len(files)} files"
        columns = {table_column(file, args.text_column) for file in files} - {None, "text"}
        source += f", column {', '.join(map(repr, sorted(columns)))}" if columns else ""
        dataset = _load_files(files, args.text_column)
    kept = not_blank(dataset)
    found, blank = len(kept), counted(len(dataset) - len(kept), "blank line")
    if found == 0:
        raise UsageError(f"No sentences in {source}: {blank} and nothing else.")
    sentences = dataset.select(kept)
    refuse_copies(sentences, source)
    # Blank lines, and a column that was not named, are worth a line.
    level = logging.INFO if columns or found < len(dataset) else logging.DEBUG
    logger.log(level, f"{counted(found, 'sentence')} from {source} ({blank} skipped)")
    return sentences


def refuse_copies(sentences: datasets.Dataset, source: str) -> None:
    """Raises UsageError for copies of one sentence and nothing else."""
    first = sentences[0]["text"].strip()
    if len(sentences) > 1 and all(sentence.strip() == first for sentence in sentences["text"]):
        raise UsageError(
            f"{source}: all {len(sentences):,} sentences are '{shown([first])}'; contrast needs different ones. Are "
            "these the right data, and is it the right `text_column`?"
        )


def draw_sample(sentences: datasets.Dataset | datasets.IterableDataset, number: int | None, seed: int):
    """A random sample that the seed decides, in the order of the data; of a stream, which is shuffled, the first.

    Args:
        number: of sentences; None for all.
    """
    if number is None:
        return sentences
    if isinstance(sentences, datasets.IterableDataset):
        return sentences.take(number)
    if number >= len(sentences):
        return sentences
    sample = sentences.select(np.sort(np.random.default_rng(seed).choice(len(sentences), number, replace=False)))
    refuse_copies(sample, "the sample")
    return sample


def _source(args: DataArguments, files: list[Path]) -> dict:
    """What a stream reads, for `informin.training.fingerprints`; of a data set on the Hub its commit."""
    source = {"text_column": args.text_column}
    if args.dataset_name and not os.path.exists(args.dataset_name):
        try:
            return source | {"commit": dataset_info(args.dataset_name).sha}
        except HUB_ERRORS:
            return source | {"commit": None}
    if args.dataset_name:
        files = sorted(path for path in Path(args.dataset_name).rglob("*") if path.is_file())
    return source | {"files of the stream": fingerprints(files)}


def not_blank(dataset: datasets.Dataset) -> np.ndarray:
    """The rows of a data set whose `text` holds more than white space; looked at in parts, as it may be large."""
    parts = [
        pc.not_equal(pc.utf8_trim_whitespace(pc.fill_null(batch["text"], "")), "").to_numpy()
        for batch in dataset.with_format("arrow").iter(MANY)
    ]
    return np.flatnonzero(np.concatenate(parts)) if parts else np.empty(0, np.int64)


def _holds_text(row: dict) -> bool:
    return bool(row["text"] and row["text"].strip())


def tokenize(sentences, tokenizer: PreTrainedTokenizerBase, max_seq_length: int, prompt: str = ""):
    """`input_ids` and `attention_mask` of every sentence after the prompt, cut at `max_seq_length`; cached on disk.

    Raises UsageError: see `tokenize_and_count`.
    """
    return tokenize_and_count(sentences, tokenizer, max_seq_length, prompt)[0]


def tokenize_and_count(sentences, tokenizer: PreTrainedTokenizerBase, max_seq_length: int, prompt: str = ""):
    """The same, and how many sentences were cut; None of a stream.

    Raises UsageError: `max_seq_length` is more than the tokenizer's model reads, or the prompt leaves no room in it.
    """
    if max_seq_length > tokenizer.model_max_length:
        raise UsageError(
            f"`max_seq_length` {max_seq_length}: this model reads at most {tokenizer.model_max_length} tokens."
        )

    refuse_long_prompt(prompt, tokenizer, "max_seq_length", max_seq_length)
    # No function of its own: what workers of a data loader run has to be pickled where they are not forked.
    tokens = partial(_tokens, tokenizer=tokenizer, max_length=max_seq_length, prompt=prompt)
    if isinstance(sentences, datasets.IterableDataset):
        return sentences.map(tokens, batched=True, remove_columns=["text"]).remove_columns(CUT), None
    _show_bars(len(sentences) > MANY)
    # A fast tokenizer's own hash changes when it is first called, which would miss the cache.
    forget_truncation(tokenizer)
    fingerprint = Hasher.hash(
        [sentences._fingerprint, tokenizer.backend_tokenizer.to_str(), max_seq_length, prompt, CUT]
    )
    how = dict(new_fingerprint=fingerprint, desc="Tokenizing")
    with _writing_cache():
        rows = sentences.map(tokens, batched=True, remove_columns=["text"], **how)
    return rows.remove_columns(CUT), pc.sum(rows.with_format("arrow")[CUT]).as_py()


@contextmanager
def _writing_cache() -> Iterator[None]:
    """UsageError where data sets cannot be cached: in a home that is read-only, for instance."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"Data sets cannot be cached in {datasets.config.HF_DATASETS_CACHE}: {error_line(error)}. Set HF_HOME to a "
            "folder that can be written."
        ) from None


def _tokens(batch: dict, tokenizer: PreTrainedTokenizerBase, max_length: int, prompt: str):
    texts = [prompt + refuse_long(text, "a training sentence") for text in batch["text"]]
    tokens = tokenizer(texts, truncation=True, max_length=max_length, return_token_type_ids=False)
    return {**tokens, CUT: [bool(encoding.overflowing) for encoding in tokens.encodings]}


def refuse_few_sentences(train_dataset, args: InforMinTrainingArguments) -> None:
    """Raises UsageError for fewer sentences than a batch, or than a term needs in the run or in its last batch."""
    batch = args.per_device_train_batch_size * args.world_size
    steps = args.max_steps if args.max_steps > 0 else math.inf
    found = len(train_dataset) if hasattr(train_dataset, "__len__") else math.inf
    read = min(found, steps * batch * args.gradient_accumulation_steps)
    if args.dataloader_drop_last and found < batch:
        raise UsageError(
            f"Found {counted(found, 'sentence')}, fewer than one batch of {batch}. Add sentences, or lower "
            "`per_device_train_batch_size`."
        )
    last = 0 if args.dataloader_drop_last else found % batch
    for term in args.terms:
        if 0 < last < term.smallest_batch:
            raise UsageError(
                f"The last batch of {found} sentences by {batch} would be {counted(last, 'sentence')}, too small for "
                f"{term.title}, which needs {term.smallest_batch} or more. Leave `dataloader_drop_last` on, or change "
                "`per_device_train_batch_size`."
            )
        term.require_sentences(read)


def load_development(args: DataArguments) -> Development:
    """What chooses the checkpoint: the user's own pairs, labeled sample and search.

    Without pairs, STS-B dev from a folder, the environment or the Hub; beside a sample or a search only if it is here.

    Raises UsageError: there is nothing to be had; the message says how to go on without.
    """
    own = [load_pairs(args.eval_pairs)] if args.eval_pairs else []
    if args.eval_labels:
        own.append(load_labels(args.eval_labels, "eval_labels"))
    if args.eval_retrieval:
        own.append(load_retrieval_pairs(args.eval_retrieval))
    if args.eval_pairs or (own and not args.senteval_dir):
        return Development((*own, *([] if args.eval_pairs else _stsb_dev_that_is_here())))
    instead = (
        "`senteval_dir` FOLDER (SentEval's data/downstream), set SENTEVAL_DATA to it, give `eval_pairs` FILE, or "
        "train without evaluation: `eval_strategy` no"
    )
    return Development((load_stsb_dev(senteval_folder(args.senteval_dir, instead)), *own))


def _stsb_dev_that_is_here() -> list[GradedPairs]:
    """STS-B dev where the environment says that it is."""
    try:
        return [pairs] if (pairs := stsb_dev(None)) else []
    except UsageError as error:
        logger.info(f"STS-B dev is not scored: {error}")
        return []


def find_files(paths: list[str]) -> list[Path]:
    """The files named, and those in the folders named, in a fixed order.

    Raises UsageError: one does not exist or is no file, or a folder holds none that can be read.
    """
    files = []
    for path in map(Path, paths):
        inside = [path]
        if os.path.isdir(path):  # Path.is_dir would raise for a name that is too long
            inside = sorted(p for p in _walk(path) if plain_suffix(p) in SUFFIXES)
            if not inside:
                known = ", ".join(SUFFIXES + tuple(f".txt{c}" for c in COMPRESSIONS))
                raise UsageError(f"`train_file`: the folder {path} holds no file ending in {known}.")
        for file in inside:
            require_file("`train_file`", file)
        files += inside
    return files


def _walk(folder: Path):
    def refuse(error: OSError):
        raise UsageError(f"`train_file`: the folder {error.filename} cannot be read ({error.strerror}).")

    for path, _, names in os.walk(folder, onerror=refuse):
        yield from (Path(path, name) for name in names)


def _show_bars(many: bool) -> None:
    if many and not datasets.config.HF_DATASETS_DISABLE_PROGRESS_BARS:
        datasets.enable_progress_bars()


def _load_files(files: list[Path], text_column: str | None) -> datasets.Dataset:
    # Size, time and our reader are part of the cache's key: what has changed, or is read otherwise, is read again.
    reader = Hasher.hash(inspect.getsource(textfiles))
    _show_bars(sum(file.stat().st_size for file in files) > BYTES_PER_SENTENCE * MANY)
    keys = [(str(file.resolve()), 0, 1, file.stat().st_size, file.stat().st_mtime_ns, reader) for file in files]
    try:
        with _writing_cache():
            return datasets.Dataset.from_generator(
                shard_rows, features=TEXT, gen_kwargs={"shards": keys, "text_column": text_column}, split="train"
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
        raise UsageError(f"`dataset_name` {args.dataset_name} cannot be loaded: {error_line(cause)}") from None
    if first is None:
        raise UsageError(f"No sentences in {args.dataset_name}: its split {args.dataset_split!r} is empty.")
    columns = list(first)
    column = choose_column(columns, args.text_column, args.dataset_name)
    if dataset.features is None:  # a stream that does not say what its columns hold
        as_text(first[column], args.dataset_name, None)
    elif dataset.features[column] not in (datasets.Value("string"), datasets.Value("large_string")):
        raise UsageError(
            f"{args.dataset_name}: the text column holds {first[column]!r}; needed text. Name another with "
            "`text_column`."
        )
    dataset = dataset.remove_columns([name for name in columns if name != column])
    return dataset if column == "text" else dataset.rename_column(column, "text")
