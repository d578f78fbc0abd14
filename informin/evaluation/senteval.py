"""Find SentEval's data in a folder or on the Hub, load it, and check the number of examples."""

import os
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
from filelock import FileLock
from huggingface_hub import constants, hf_hub_download

from informin.errors import UsageError, error_line
from informin.evaluation.pairs import GradedPairs
from informin.files import new_folder
from informin.hub import HUB_DATA, HUB_SENTEVAL, hub_is_reachable
from informin.options import with_home

# Number of graded pairs in each subset. STS13 lacks SMT, whose license forbids redistribution. The files of STS15 and
# STS16 also contain pairs without a grade, marked by a blank line.
YEARS = {
    "STS12": {"MSRpar": 750, "MSRvid": 750, "SMTeuroparl": 459, "surprise.OnWN": 750, "surprise.SMTnews": 399},
    "STS13": {"FNWN": 189, "headlines": 750, "OnWN": 561},
    "STS14": {"deft-forum": 450, "deft-news": 300, "headlines": 750, "images": 750, "OnWN": 750, "tweet-news": 750},
    "STS15": {"answers-forums": 375, "answers-students": 750, "belief": 375, "headlines": 750, "images": 750},
    "STS16": {"answer-answer": 254, "headlines": 249, "plagiarism": 230, "postediting": 244, "question-question": 209},
}
STSB = {"dev": ("sts-dev.csv", 1500), "test": ("sts-test.csv", 1379)}
SICK = {"dev": ("SICK_trial.txt", 500), "test": ("SICK_test_annotated.txt", 4927)}
STSB_COLUMNS = ("genre", "file", "year", "id", "score", "first", "second")
SICK_COLUMNS = ("id", "first", "second", "score", "entailment")
AGAIN = "Download the file again."
STSB_DEV = "STS/STSBenchmark/sts-dev.csv"

# Negative and positive examples are separate files.
BINARY = {
    "MR": (("MR/rt-polarity.neg", 5331), ("MR/rt-polarity.pos", 5331)),
    "CR": (("CR/custrev.neg", 1368), ("CR/custrev.pos", 2407)),
    "SUBJ": (("SUBJ/subj.subjective", 5000), ("SUBJ/subj.objective", 5000)),
    "MPQA": (("MPQA/mpqa.neg", 7294), ("MPQA/mpqa.pos", 3312)),
}
SST2 = (("SST/binary/sentiment-train", 67349), ("SST/binary/sentiment-dev", 872), ("SST/binary/sentiment-test", 1821))
TREC = (("TREC/train_5500.label", 5452), ("TREC/TREC_10.label", 500))
TREC_CLASSES = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
MRPC = (("MRPC/msr_paraphrase_train.txt", 4076), ("MRPC/msr_paraphrase_test.txt", 1725))

STS_TASKS = (*YEARS, "STS-B", "SICK-R")
TRANSFER_TASKS = (*BINARY, "SST2", "TREC", "MRPC")
GROUPS = {"sts": STS_TASKS, "transfer": TRANSFER_TASKS}
TASKS = STS_TASKS + TRANSFER_TASKS
Protocol = Literal["nested", "dev", "folds"]
SENTEVAL_INSTEAD = "`senteval_dir` FOLDER (SentEval's data/downstream), or set SENTEVAL_DATA to it"


@dataclass(frozen=True)
class StsTask:
    """Graded pairs in one or more subsets."""

    name: str
    subsets: list[GradedPairs]
    files: list[Path]

    @property
    def counts(self) -> dict[str, int]:
        """Number of scored pairs."""
        return {"n": sum(map(len, self.subsets))}

    def texts(self) -> list[str]:
        """Return the distinct sentences."""
        return list(dict.fromkeys(s for pairs in self.subsets for s in pairs.sentences1 + pairs.sentences2))


@dataclass(frozen=True)
class TransferTask:
    """Labeled sentences or sentence pairs, and how to split them.

    Attributes:
        name: Name of the task.
        sides: One list of N sentences, or two for pairs.
        labels: (N,) integers.
        protocol: `nested`: nested ten-fold cross-validation over all N. `dev`: train, dev and test parts. `folds`:
            ten-fold cross-validation on the train part, then the test part.
        parts: Rows of each part by name; empty with `nested`.
        files: Files that the task was loaded from.
        split: Which accuracy is the score: `test`, or `dev`, the accuracy that selects the strength of the penalty.
    """

    name: str
    sides: tuple[list[str], ...]
    labels: np.ndarray
    protocol: Protocol
    parts: dict[str, slice]
    files: list[Path]
    split: str

    @property
    def counts(self) -> dict[str, int]:
        """Number of scored examples."""
        part = "train" if (self.protocol, self.split) == ("folds", "dev") else self.split
        rows = self.parts.get(part, slice(0, len(self.labels)))
        return {"n": rows.stop - rows.start}

    def texts(self) -> list[str]:
        """Return the distinct sentences."""
        return list(dict.fromkeys(s for side in self.sides for s in side))


def chosen_tasks(wanted: Sequence[str], split: str) -> list[str]:
    """Return the tasks selected by names, `sts`, `transfer` and `all`, in the papers' order. Ignores hyphens and case.

    With the dev split, groups omit the tasks that have none.

    Raises:
        UsageError: A task is unknown, or was chosen by name and has no dev split.
    """
    plain = {name.replace("-", "").lower(): name for name in TASKS}
    groups = GROUPS | {"all": TASKS}
    chosen = set()
    for word in wanted:
        key = word.replace("-", "").lower()
        if key in groups:
            chosen |= {name for name in groups[key] if split == "test" or name not in YEARS}
        elif key not in plain:
            needed = f"all, sts, transfer or names of these tasks: {', '.join(TASKS)}"
            raise UsageError(f"contains {word!r}", option="tasks", needed=needed)
        elif split != "test" and plain[key] in YEARS:
            found = f"contains {plain[key]}, which has no {split} split"
            needed = "STS-B, SICK-R or transfer tasks"
            raise UsageError(found, option="tasks", needed=needed)
        else:
            chosen.add(plain[key])
    return [name for name in TASKS if name in chosen]


def load_task(folder: str | Path, name: str, split: str = "test") -> StsTask | TransferTask:
    """Load the data of a task.

    Args:
        folder: SentEval's `data/downstream`.
        name: One of `TASKS`.
        split: `test` or `dev`. STS12 to STS16 have no dev split.

    Raises:
        UsageError: A file is missing or damaged, or has an unexpected number of examples.
    """
    data = Path(folder)
    try:
        if name in YEARS:
            return _load_year(data, name)
        if name == "STS-B":
            return _load_pairs(name, split, data / "STS" / "STSBenchmark", STSB, STSB_COLUMNS)
        if name == "SICK-R":
            return _load_pairs(name, split, data / "SICK", SICK, SICK_COLUMNS, header=1)
        return _load_transfer(data, name, split)
    except (FileNotFoundError, NotADirectoryError) as error:
        found = f"is {folder}, which has no {os.path.relpath(error.filename, folder)}"
        raise UsageError(found, option="senteval_dir", needed="SentEval's data/downstream") from None
    except UsageError:
        raise
    except ValueError as error:  # a line that was cut off, or text that is not UTF-8
        found = f"is {folder}, where a file of {name} is damaged ({error_line(error)})"
        raise UsageError(found, option="senteval_dir", fix=AGAIN) from error


def load_stsb(folder: str | Path, split: str) -> GradedPairs:
    """Load the dev or test split of STS-B; see `load_task`."""
    task = load_task(folder, "STS-B", split)
    assert isinstance(task, StsTask)
    return task.subsets[0]


def load_stsb_dev(folder: str | Path) -> GradedPairs:
    """Load STS-B dev, the 1,500 pairs that select the best checkpoint; see `load_task`."""
    return load_stsb(folder, "dev")


def _load_year(folder: Path, name: str) -> StsTask:
    subsets = []
    files = []
    for subset, count in YEARS[name].items():
        inputs, grades = (folder / "STS" / f"{name}-en-test" / f"STS.{kind}.{subset}.txt" for kind in ("input", "gs"))
        pairs = _decoded_lines(inputs)
        scores = _decoded_lines(grades)
        _check(inputs, len(pairs), len(scores), "pairs, one for each grade")
        rows = []
        for pair, score in zip(pairs, scores):
            if score.strip():
                first, second = _fields(pair, 2)
                rows.append((first, second, float(score)))
        _check(inputs, len(rows), count, "graded pairs")
        subsets.append(GradedPairs.of_rows(subset, rows))
        files += [inputs, grades]
    return StsTask(name, subsets, files)


def _load_pairs(name: str, split: str, folder: Path, files: dict, columns: Sequence[str], header: int = 0) -> StsTask:
    file, count = files[split]
    path = folder / file
    rows = []
    for line in _decoded_lines(path)[header:]:
        row = dict(zip(columns, _fields(line, len(columns)), strict=True))
        rows.append((row["first"], row["second"], float(row["score"])))
    _check(path, len(rows), count, "pairs")
    return StsTask(name, [GradedPairs.of_rows(f"{name} {split}", rows)], [path])


def _load_transfer(folder: Path, name: str, split: str) -> TransferTask:
    # Files with their numbers of examples, the function that reads one, the protocol, and the parts.
    layouts: dict[str, tuple] = {
        "SST2": (SST2, _sentiments, "dev", ("train", "dev", "test")),
        "TREC": (TREC, _questions, "folds", ("train", "test")),
        "MRPC": (MRPC, _paraphrases, "folds", ("train", "test")),
    }
    files, read, protocol, parts = layouts.get(name) or (BINARY[name], None, "nested", ())
    rows: list[tuple] = []
    ends = [0]
    paths = [folder / file for file, _ in files]
    for label, (path, (_, count)) in enumerate(zip(paths, files)):  # without a function, each class has its own file
        rows += read(path) if read else [(label, _normalized(line)) for line in _decoded_lines(path)]
        _check(path, len(rows) - ends[-1], count, "examples")
        ends.append(len(rows))
    labels, *texts = zip(*rows)
    slices = {part: slice(*bounds) for part, bounds in zip(parts, pairwise(ends))}
    return TransferTask(name, tuple(map(list, texts)), np.array(labels), protocol, slices, paths, split)


def _sentiments(path: Path) -> Iterator[tuple[int, str]]:
    for line in _decoded_lines(path):
        text, label = _fields(line, 2)
        yield int(label), text


def _questions(path: Path) -> Iterator[tuple[int, str]]:
    for line in _decoded_lines(path, "latin-1"):  # the train file has a byte that is not UTF-8
        label, _, rest = line.partition(":")  # CLASS:subclass question
        yield TREC_CLASSES.index(label), _normalized(rest.partition(" ")[2])


def _paraphrases(path: Path) -> Iterator[tuple[int, str, str]]:
    for line in _decoded_lines(path)[1:]:  # quality, id 1, id 2, string 1, string 2
        label, _, _, first, second = _fields(line, 5)
        yield int(label), first, second


def _decoded_lines(path: Path, encoding: str = "utf-8-sig") -> list[str]:
    r"""Return the lines of a file. Only \n, \r\n and \r end a line; other characters may be part of a sentence."""
    lines = path.read_text(encoding).split("\n")
    return lines if lines[-1] else lines[:-1]


def _normalized(text: str) -> str:
    """Return the text with single spaces between words, as in SentEval."""
    return " ".join(text.split())


def _fields(line: str, needed: int) -> list[str]:
    return [_normalized(field) for field in line.split("\t")[:needed]]


def _check(path: Path, count: int, needed: int, what: str) -> None:
    if count != needed:
        raise UsageError(f"{path}: found {count} {what}", needed=str(needed), fix=AGAIN)


def senteval_folder(folder: str | Path | None, instead: str = SENTEVAL_INSTEAD) -> Path:
    """Return SentEval's `data/downstream`: the folder, $SENTEVAL_DATA, or a download from the Hub.

    Args:
        instead: What to do without the Hub. Completes the error message "Without the Hub, give ...".

    Raises:
        UsageError: The data cannot be downloaded.
    """
    named = folder or os.environ.get("SENTEVAL_DATA")
    if named:
        return Path(with_home(named))
    archive = hub_file(HUB_SENTEVAL, instead)
    unpacked = Path(constants.HF_HOME) / "informin-cl" / archive.resolve().name
    if not unpacked.is_dir():
        unpack(archive, unpacked)
    dev = next((p for p in unpacked.rglob("sts-dev.csv") if p.as_posix().endswith(STSB_DEV)), None)
    if dev is None:
        raise UsageError(f"{archive} does not contain {STSB_DEV}", fix="Delete it to download a new copy.")
    return dev.parents[2]


def hub_file(name: str, instead: str) -> Path:
    """Download a file of the Hub dataset with SentEval and the papers' sentences, and return its path in the cache.

    Args:
        instead: As in `senteval_folder`.

    Raises:
        UsageError: The file cannot be downloaded.
    """
    hub_is_reachable()  # if not, only the cache is searched, without retries
    try:
        return Path(hf_hub_download(HUB_DATA, name, repo_type="dataset"))
    except OSError as error:
        raise UsageError(
            f"{name} cannot be downloaded from the Hub dataset {HUB_DATA}: {error_line(error)}",
            fix=f"Without the Hub, give {instead}.",
        ) from None


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar file into a folder, which appears once it is complete, unless a process has done so.

    No member is written outside of it.

    Raises:
        tarfile.TarError: The archive is damaged, or a member points outside.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.is_dir():
            with new_folder(folder) as new, tarfile.open(archive) as tar:
                tar.extractall(new, filter="data")
