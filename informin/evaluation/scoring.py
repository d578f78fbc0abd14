"""One checkpoint on many tasks: each sentence encoded once, every finished task kept."""

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from tqdm import tqdm

from informin.bars import hidden
from informin.errors import UndefinedScoreError, UsageError, counted
from informin.evaluation import results
from informin.evaluation.embedding_cache import EmbeddingCache, Encode
from informin.evaluation.labels import LabeledSentences, load_labels
from informin.evaluation.retrieval import RetrievalPairs, load_retrieval_pairs
from informin.evaluation.senteval import TASKS, StsTask, TransferTask, load_task
from informin.evaluation.sts import score_sts
from informin.evaluation.table import label
from informin.evaluation.transfer import score_transfer
from informin.evaluation.whitening import whitened
from informin.files import sha256
from informin.interrupts import during
from informin.textfiles import COMPRESSIONS, read_sentences, require_file, without_blanks

logger = logging.getLogger(__name__)

ALL_DIMENSIONS = math.inf
Task = StsTask | TransferTask | LabeledSentences | RetrievalPairs


class AnyEncoder(Protocol):
    """What is scored: `encoders.encoder.Encoder` is one, and so is any object that has this."""

    name: str  # of the checkpoint, as it was given
    poolers: Sequence[str]  # by name, in order
    dimensions: int  # of an embedding
    device: torch.device
    length: int  # the most tokens that it reads
    normalized: bool  # embeddings have length 1
    prompt: str | None  # is put before every sentence
    bf16: bool  # it computes in bfloat16, else in float32
    truncated: set[str]  # longer sentences, which were cut

    def __call__(self, sentences: Sequence[str], progress: Callable[[int], object] | None) -> dict[str, np.ndarray]:
        """(N, d) of N sentences for each pooler; `progress` is told how many more are done."""

    def weights_sha256(self) -> str:
        """Of all weights, so that results of other weights are not gone on with."""


@dataclass(frozen=True)
class WhiteningOptions:
    """How embeddings are whitened before they are scored."""

    dimensions: int | None  # that are kept; None for all
    sentences: Sequence[str] | None = None  # what it is fitted on; None for each task's own
    fitted_on: str = "the sentences of each task"  # the same in words, for the results


def whitening_options(dimensions: float | None, file: str | None) -> WhiteningOptions | None:
    """What the options `whitening` and `whitening_file` of run_eval.py ask for.

    Args:
        dimensions: how many are kept, or ALL_DIMENSIONS; None without whitening.

    Raises:
        UsageError: fewer than 1 dimension; a file without dimensions, one that cannot be read, or one with too few
            different sentences: N of them differ in N - 1 directions.
    """
    if dimensions is None:
        if file:
            raise UsageError("has no effect without `whitening`", option="whitening_file", fix="Set `whitening`.")
        return None
    if dimensions < 1:
        raise UsageError(f"is {dimensions}", option="whitening", needed="1 or more, or no number for all dimensions")
    kept = None if dimensions == ALL_DIMENSIONS else dimensions
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
    """The data of the tasks of a call, by name, and the SHA-256 of their files; SentEval's are all of one split."""

    split: str
    data: dict[str, Task]
    checksums: dict[str, dict[str, str]]


def load_tasks(
    folder: Path | None,
    names: Sequence[str],
    split: str = "test",
    labels: Sequence[str] = (),
    retrieval: Sequence[str] = (),
) -> Tasks:
    """Reads and checks the data of all tasks, before any of them is scored.

    Args:
        folder: SentEval's `data/downstream`; None without `names`, its tasks.
        labels, retrieval: files, a task each, by the name of the file: see `load_labels` and `load_retrieval_pairs`.

    Raises:
        UsageError: as `load_task`, `load_labels` and `load_retrieval_pairs`; or two tasks would have one name.
    """
    data: dict[str, Task] = {name: load_task(folder, name, split) for name in names}
    checksums = {name: results.checksums(task.files, folder) for name, task in data.items()}
    for option, load, files in (("labels", load_labels, labels), ("retrieval", load_retrieval_pairs, retrieval)):
        for file in files:
            name = sample_name(file)
            if name in (*TASKS, *data):
                raise UsageError(f"{file}: a task {name} already exists", option=option, fix="Rename the file.")
            data[name] = load(file, option)
            checksums[name] = {Path(file).name: sha256(file)}
    return Tasks(split, data, checksums)


def sample_name(file: str | Path) -> str:
    """What a file's task is called: banking77 for data/banking77.tsv.gz."""
    path = Path(file)
    return (path.with_suffix("") if path.suffix.lower() in COMPRESSIONS else path).stem


def score_encoder(
    encoder: AnyEncoder, tasks: Tasks, whitening: WhiteningOptions | None = None, outputs: dict[str, Path] | None = None
) -> list[dict]:
    """Results (see `evaluation.results`) of an encoder on every task, one for each of its poolers.

    Tasks are encoded and scored one after the other, so that a task is finished, and kept, as early as can be; a
    sentence that an earlier task had is not encoded again.

    Args:
        outputs: for each pooler the file that its results are kept in and gone on from; None to keep nothing.

    Raises:
        UsageError: an output holds the results of another checkpoint; more dimensions than the embeddings have.
    """
    asked, most = whitening and whitening.dimensions, encoder.dimensions
    if asked and asked > most:
        raise UsageError(
            f"is {asked}", option="whitening", needed=f"1 to {most}, the dimensions of {encoder.name}'s embeddings"
        )
    rows = {pooler: _start(encoder, pooler, tasks.split, whitening, outputs) for pooler in encoder.poolers}
    once = EmbeddingCache(lambda sentences: encode_with_bar(encoder, sentences))
    encode = {pooler: once.by(pooler) for pooler in rows}
    pending = {name: [pooler for pooler, row in rows.items() if not _finished(row, name, tasks)] for name in tasks.data}
    if whitening and any(pending.values()):
        encode = {p: whitened(e, whitening.dimensions, whitening.sentences) for p, e in encode.items()}
    for name, poolers in pending.items():
        if not poolers:
            continue
        sentences, start = _sentences(tasks.data[name]), time.perf_counter()
        with during(f"the encoding of {name}"):
            once.add(sentences)
        seconds = time.perf_counter() - start
        for pooler in poolers:
            with during(f"the scoring of {name}"):
                entry = _score(encode[pooler], tasks.data[name], seconds)
            entry["truncated"] = len(encoder.truncated.intersection(sentences))
            entry["data"] = tasks.checksums[name]
            results.add_task(rows[pooler], name, entry)
            if outputs:
                results.save_results(outputs[pooler], rows[pooler])
            said = "no score" if entry["score"] is None else f"{entry['score']:.2f}"
            logger.info(f"{label(rows[pooler])}: {name} {said} ({sum(entry['seconds'].values()):.1f} s)")
    return list(rows.values())


def _start(encoder: AnyEncoder, pooler: str, split: str, whitening: WhiteningOptions | None, outputs) -> dict:
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
    fresh = results.new_results(encoder.name, identity, results.environment(encoder.device))
    if not outputs:
        return fresh
    results.make_folder_of(outputs[pooler])  # now, not after the first task has been encoded
    return results.resume_results(outputs[pooler], fresh)


def _finished(row: dict, name: str, tasks: Tasks) -> bool:
    """Whether results hold a score of a task from the same data files."""
    entry = row["tasks"].get(name)
    return entry is not None and entry["score"] is not None and entry["data"] == tasks.checksums[name]


def encode_with_bar(encoder: AnyEncoder, sentences: Sequence[str]) -> dict[str, np.ndarray]:
    """(N, d) of N sentences for each pooler of the encoder, with a progress bar where there is a terminal."""
    with tqdm(total=len(sentences), desc="encoding", unit=" sentences", leave=False, disable=hidden()) as bar:
        return encoder(sentences, bar.update)


def _score(encode: Encode, task: Task, seconds: float) -> dict:
    """The entry of a task whose sentences took so many seconds to encode."""
    start = time.perf_counter()
    try:
        entry = _scores(encode, task)
    except UndefinedScoreError as error:
        entry = {"score": None, **_facts(task), "error": str(error)}
    return entry | {"seconds": {"encode": seconds, "score": time.perf_counter() - start}}


def _scores(encode: Encode, task: Task) -> dict:
    if isinstance(task, StsTask):
        return score_sts(encode, task)
    if isinstance(task, TransferTask):
        return score_transfer(encode, task)
    measures = task.score(encode)
    return {"score": measures[next(iter(task.measures))], **_facts(task), "measures": measures}


def _facts(task: Task) -> dict:
    if isinstance(task, StsTask | TransferTask):
        return {"n": task.examples}
    return {"kind": task.kind, **task.counts}


def _sentences(task: Task) -> list[str]:
    return task.sentences() if isinstance(task, StsTask | TransferTask) else task.texts()
