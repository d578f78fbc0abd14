"""Score a checkpoint on many tasks. Each sentence is encoded once, and each finished task is saved."""

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tqdm import tqdm

from informin.bars import hidden
from informin.distributed import gather_objects, rank
from informin.errors import UndefinedScoreError, UsageError, counted
from informin.evaluation import results
from informin.evaluation.collections import Collection, load_retrieval_pairs
from informin.evaluation.embedding_cache import EmbeddingCache, Encode
from informin.evaluation.labels import LABEL_COLUMNS, LabeledSentences, load_labels
from informin.evaluation.senteval import TASKS, StsTask, TransferTask, load_task
from informin.evaluation.similarity import COSINE
from informin.evaluation.sts import score_sts
from informin.evaluation.table import checkpoint_label
from informin.evaluation.together import encode_together
from informin.evaluation.transfer import score_transfer
from informin.evaluation.whitening import whitened
from informin.files import sha256
from informin.interrupts import during
from informin.textfiles import read_sentences, require_file, without_blanks
from informin.textlines import COMPRESSIONS

if TYPE_CHECKING:  # it imports transformers; any object with these attributes can be scored
    from informin.models.model import Model

logger = logging.getLogger(__name__)

ALL_DIMENSIONS = math.inf
# The encoder with its prompt for queries, and with its prompt for documents.
Sides = tuple["Model", "Model"]
Task = StsTask | TransferTask | LabeledSentences | Collection


@dataclass(frozen=True)
class WhiteningOptions:
    """How to whiten embeddings before they are scored."""

    dimensions: int | None  # number of dimensions to keep; None for all
    sentences: Sequence[str] | None = None  # sentences to fit on; None for those of each task
    fitted_on: str = "the sentences of each task"  # description of these sentences, for the results


def whitening_options(dimensions: float | None, file: str | None) -> WhiteningOptions | None:
    """Return the whitening that the options `whitening` and `whitening_file` of `informin eval` describe.

    Args:
        dimensions: Number of dimensions to keep, or ALL_DIMENSIONS; None for no whitening.
        file: Text file with sentences to fit on; None for the sentences of each task.

    Raises:
        UsageError: `dimensions` is below 1, there is a file but no `dimensions`, or the file cannot be read or has too
            few different sentences: N sentences span only N - 1 directions.
    """
    if dimensions is None:
        if file:
            raise UsageError("has no effect without `whitening`", option="whitening_file", fix="Set `whitening`.")
        return None
    if dimensions < 1:
        raise UsageError(f"is {dimensions}", option="whitening", needed="1 or more, or no number for all dimensions")
    kept = None if dimensions == ALL_DIMENSIONS else int(dimensions)
    if file is None:
        return WhiteningOptions(kept)
    path = Path(file)
    require_file("`whitening_file`", path)
    sentences = list(without_blanks(read_sentences(path, None)))
    different, needed = len(set(sentences)), (kept or 1) + 1
    if different < needed:
        raise UsageError(
            f"{path} has {counted(different, 'different sentence')}",
            option="whitening_file",
            needed=f"{needed:,} or more for {counted(needed - 1, 'dimension')}",
        )
    return WhiteningOptions(kept, sentences, f"{path.name} (SHA-256 {sha256(path)})")


@dataclass(frozen=True)
class Tasks:
    """Data of tasks by name, and the SHA-256 of their files. All SentEval tasks have the same split."""

    split: str
    data: dict[str, Task]
    checksums: dict[str, dict[str, str]]


def load_tasks(
    folder: Path | None,
    names: Sequence[str],
    split: str = "test",
    labels: Sequence[str] = (),
    retrieval: Sequence[str] = (),
    columns: tuple[str, str] = LABEL_COLUMNS,
) -> Tasks:
    """Load and check the data of all tasks before the first is scored.

    Args:
        folder: SentEval's `data/downstream`; can be None if `names` is empty.
        names: SentEval tasks.
        split: Split of the SentEval tasks, test or dev.
        labels: Files for `load_labels`. Each is one task, named after the file.
        retrieval: Files for `load_retrieval_pairs`. Each is one task, named after the file.
        columns: Columns of `labels` with the sentences and their labels.

    Raises:
        UsageError: As `load_task`, `load_labels` and `load_retrieval_pairs`. Also if two tasks have the same name.
    """
    data: dict[str, Task] = {}
    checksums: dict[str, dict[str, str]] = {}
    for name in names:
        assert folder is not None
        task = load_task(folder, name, split)
        data[name], checksums[name] = task, results.checksums(task.files, folder)
    text, label = columns
    loaders: dict[str, Callable[[str, str], Task]] = {
        "labels": partial(load_labels, text_column=text, label_column=label),
        "retrieval": load_retrieval_pairs,
    }
    # Part of the checksum, so that results of other columns of the same file are neither resumed nor compared with.
    read = "" if columns == LABEL_COLUMNS else f" ({text}, {label})"
    for option, files in (("labels", labels), ("retrieval", retrieval)):
        for file in files:
            name = sample_name(file)
            if name in (*TASKS, *data):
                raise UsageError(f"{file}: a task {name} already exists", option=option, fix="Rename the file.")
            data[name] = loaders[option](file, option)
            checksums[name] = {Path(file).name: sha256(file) + (read if option == "labels" else "")}
    return Tasks(split, data, checksums)


def sample_name(file: str | Path) -> str:
    """Return the name of a file's task, such as banking77 for data/banking77.tsv.gz."""
    path = Path(file)
    return (path.with_suffix("") if path.suffix.lower() in COMPRESSIONS else path).stem


def score_encoder(
    encoder: "Model",
    tasks: Tasks,
    whitening: WhiteningOptions | None = None,
    outputs: dict[str, Path] | None = None,
    sides: Sides | None = None,
) -> list[dict]:
    """Score an encoder on every task, and return the results (see `evaluation.results`) of each of its poolings.

    Tasks are encoded and scored one after the other, and each is saved as soon as it is finished. Sentences of an
    earlier task are not encoded again.

    Args:
        encoder: The encoder.
        tasks: Data from `load_tasks`.
        whitening: How to whiten embeddings; None for no whitening.
        outputs: For each pooling, the file to save results in and to resume from; None to save nothing.
        sides: Encoders for retrieval; None for `encoder`.

    Raises:
        UsageError: A file in `outputs` has results of another checkpoint, `whitening` asks for more dimensions than
            embeddings have, or whitening is combined with `sides`.
    """
    asked, most = whitening and whitening.dimensions, encoder.dimensions
    if asked and asked > most:
        raise UsageError(
            f"is {asked}", option="whitening", needed=f"1 to {most}, the dimensions of {encoder.name}'s embeddings"
        )
    if sides and whitening:
        fix = "Set `prompt`, which both then have, or leave out `whitening`."
        if sides[0].prompt == sides[1].prompt:
            raise UsageError("cannot be used with a Router", option="whitening", fix="Leave it out.")
        raise UsageError("cannot be used with two prompts, for queries and documents", option="whitening", fix=fix)
    rows = {pooler: _start(encoder, pooler, tasks.split, whitening, outputs) for pooler in encoder.poolers}
    embeddings = _Embeddings(encoder, sides)
    pending = {
        name: [pooler for pooler, row in rows.items() if not _finished(row, name, tasks, embeddings.prompts(task))]
        for name, task in tasks.data.items()
    }
    pending = gather_objects(pending)[0]  # and no process saves results before all have read the earlier ones
    if whitening and any(pending.values()):
        embeddings.whiten(whitening)
    for name, poolers in pending.items():
        if not poolers:
            continue
        task, start = tasks.data[name], time.perf_counter()
        with during(f"the encoding of {name}"):
            sentences = embeddings.add(task)
        seconds = time.perf_counter() - start
        for pooler in poolers:
            with during(f"the scoring of {name}"):
                entry = _score(task, seconds, results.similarity_in(rows[pooler]), *embeddings.by(task, pooler))
            entry |= {"prompts": prompts} if (prompts := embeddings.prompts(task)) else {}
            entry["truncated"] = len(encoder.truncated.intersection(sentences))
            entry["data"] = tasks.checksums[name]
            results.add_task(rows[pooler], name, entry)
            if outputs and rank() == 0:
                results.save_results(outputs[pooler], rows[pooler])
            shown = "no score" if entry["score"] is None else f"{entry['score']:.2f}"
            logger.info(f"{checkpoint_label(rows[pooler])}: {name} {shown} ({sum(entry['seconds'].values()):.1f} s)")
    return list(rows.values())


class _Embeddings:
    """Embeddings of the sentences of tasks, encoded once. With `sides`, queries and documents have their own."""

    def __init__(self, encoder: "Model", sides: Sides | None):
        self._once = EmbeddingCache(partial(encode_with_bar, encoder))
        self._sides = {name: side.prompt or "" for name, side in zip(("query", "document"), sides or ())}
        self._caches = [EmbeddingCache(partial(encode_with_bar, side)) for side in sides or ()]
        self._encode = {pooler: self._once.by(pooler) for pooler in encoder.poolers}

    def whiten(self, whitening: WhiteningOptions) -> None:
        how = (whitening.dimensions, whitening.sentences)
        self._encode = {pooler: whitened(encode, *how) for pooler, encode in self._encode.items()}

    def prompts(self, task: Task) -> dict[str, str] | None:
        """Return the prompts of a task for queries and documents; None if it has only the encoder's own."""
        return self._sides if self._sides and isinstance(task, Collection) else None

    def add(self, task: Task) -> list[str]:
        """Encode the sentences of a task, and return them."""
        if self._sides and isinstance(task, Collection):
            for cache, texts in zip(self._caches, (task.queries, task.documents)):
                cache.add(texts)
            return task.texts()
        sentences = task.sentences() if isinstance(task, StsTask | TransferTask) else task.texts()
        self._once.add(sentences)
        return sentences

    def by(self, task: Task, pooler: str) -> list[Encode]:
        """Return the function that encodes the sentences of a task or, for its documents and for its queries, two."""
        if self.prompts(task):
            return [cache.by(pooler) for cache in reversed(self._caches)]
        return [self._encode[pooler]]


def _start(encoder: "Model", pooler: str, split: str, whitening: WhiteningOptions | None, outputs) -> dict:
    identity = {
        "weights_sha256": encoder.weights_sha256(),
        "pooler": pooler,
        "normalized": encoder.normalized,
        "prompt": encoder.prompt or None,
        "whitening": whitening and {"dimensions": whitening.dimensions, "fitted_on": whitening.fitted_on},
        "max_length": encoder.length,
        "precision": "bf16" if encoder.bf16 else "fp32",
        "split": split,
    }
    similarity = COSINE if whitening else encoder.similarity
    fresh = results.new_results(encoder.name, identity, results.environment(encoder.device), similarity)
    if not outputs:
        return fresh
    results.make_folder_of(outputs[pooler])  # fail before the first task is encoded
    return results.resume_results(outputs[pooler], fresh)


def _finished(row: dict, name: str, tasks: Tasks, prompts: dict[str, str] | None) -> bool:
    """Return whether results contain a score of a task, computed from the same files with the same prompts."""
    entry = row["tasks"].get(name)
    if entry is None or entry["score"] is None or entry.get("prompts") != prompts:
        return False
    return entry["data"] == tasks.checksums[name]


def encode_with_bar(encoder: "Model", sentences: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the embeddings (N, d) of N sentences for each pooling, with a progress bar in a terminal."""
    with tqdm(total=len(sentences), desc="encoding", unit=" sentences", leave=False, disable=hidden()) as bar:
        return encode_together(encoder, sentences, bar.update)


def _score(task: Task, seconds: float, similarity: str, encode: Encode, encode_queries: Encode | None = None) -> dict:
    """Return the entry of a task.

    Args:
        task: Data of the task.
        seconds: Time that the encoding of its sentences took.
        similarity: How embeddings are compared in STS and retrieval.
        encode: Function from N sentences to embeddings (N, d).
        encode_queries: Function for the queries of a retrieval task, if they have another prompt.
    """
    start = time.perf_counter()
    try:
        if isinstance(task, StsTask):
            entry = score_sts(encode, task, similarity)
        elif isinstance(task, TransferTask):
            entry = score_transfer(encode, task)
        else:
            sides = (encode, encode_queries, similarity)
            measures = task.score(*sides) if isinstance(task, Collection) else task.score(encode)
            entry = {"score": measures[next(iter(task.measures))], **_facts(task), "measures": measures}
    except UndefinedScoreError as error:
        entry = {"score": None, **_facts(task), "error": str(error)}
    return entry | {"seconds": {"encode": seconds, "score": time.perf_counter() - start}}


def _facts(task: Task) -> dict:
    if isinstance(task, StsTask | TransferTask):
        return {"n": task.examples}
    return {"kind": task.kind, **task.counts}
