"""The evaluation data in SentEval's layout (its `data/downstream` folder), checked against the counts of each task."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from informin.errors import UsageError
from informin.evaluation.pairs import GradedPairs, read_grade
from informin.textfiles import decoded_lines

# Graded pairs of each subset. STS13 is without SMT, whose licence forbids passing it on. The files of STS15 and STS16
# hold more pairs than were graded; the ungraded ones have a blank line for a grade.
YEARS = {
    "STS12": {"MSRpar": 750, "MSRvid": 750, "SMTeuroparl": 459, "surprise.OnWN": 750, "surprise.SMTnews": 399},
    "STS13": {"FNWN": 189, "headlines": 750, "OnWN": 561},
    "STS14": {"deft-forum": 450, "deft-news": 300, "headlines": 750, "images": 750, "OnWN": 750, "tweet-news": 750},
    "STS15": {"answers-forums": 375, "answers-students": 750, "belief": 375, "headlines": 750, "images": 750},
    "STS16": {
        **{"answer-answer": 254, "headlines": 249, "plagiarism": 230},
        **{"postediting": 244, "question-question": 209},
    },
}
STSB = {"dev": ("sts-dev.csv", 1500), "test": ("sts-test.csv", 1379)}
SICK = {"dev": ("SICK_trial.txt", 500), "test": ("SICK_test_annotated.txt", 4927)}
STSB_DEV = "STS/STSBenchmark/sts-dev.csv"

# Two files each, the second positive.
BINARY = {
    "MR": (("MR/rt-polarity.neg", 5331), ("MR/rt-polarity.pos", 5331)),
    "CR": (("CR/custrev.neg", 1368), ("CR/custrev.pos", 2407)),
    "SUBJ": (("SUBJ/subj.subjective", 5000), ("SUBJ/subj.objective", 5000)),
    "MPQA": (("MPQA/mpqa.neg", 7294), ("MPQA/mpqa.pos", 3312)),
}
SST2 = (
    ("SST/binary/sentiment-train", 67349),
    ("SST/binary/sentiment-dev", 872),
    ("SST/binary/sentiment-test", 1821),
)
TREC = (("TREC/train_5500.label", 5452), ("TREC/TREC_10.label", 500))
TREC_CLASSES = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
MRPC = (("MRPC/msr_paraphrase_train.txt", 4076), ("MRPC/msr_paraphrase_test.txt", 1725))

STS_TASKS = (*YEARS, "STS-B", "SICK-R")
TRANSFER_TASKS = (*BINARY, "SST2", "TREC", "MRPC")
GROUPS = {"sts": STS_TASKS, "transfer": TRANSFER_TASKS}
TASKS = STS_TASKS + TRANSFER_TASKS


@dataclass(frozen=True)
class StsTask:
    """Graded pairs in one or more subsets."""

    name: str
    subsets: list[GradedPairs]
    files: list[Path]

    @property
    def examples(self) -> int:
        """Pairs that are scored."""
        return sum(map(len, self.subsets))

    def sentences(self) -> list[str]:
        """The distinct sentences."""
        return list(dict.fromkeys(s for pairs in self.subsets for s in pairs.sentences1 + pairs.sentences2))


@dataclass(frozen=True)
class TransferTask:
    """Sentences, or pairs of them, in classes, and how they are split.

    Attributes:
        texts: one list of N sentences, or two for pairs.
        labels: (N,) integers.
        protocol: `nested`, ten-fold cross-validation in ten-fold cross-validation over all N; `dev`, train, dev and
            test parts; `folds`, ten-fold cross-validation on the train part, then the test part.
        parts: the rows of each part, by name; empty with `nested`.
        split: which accuracy is the score: `test`, or `dev`, what the strength of the penalty is chosen by.
    """

    name: str
    texts: tuple[list[str], ...]
    labels: np.ndarray
    protocol: Literal["nested", "dev", "folds"]
    parts: dict[str, slice]
    files: list[Path]
    split: str

    @property
    def examples(self) -> int:
        """Examples that the score is over."""
        part = {"dev": "train"}.get(self.split, "test") if self.protocol == "folds" else self.split
        rows = self.parts.get(part, slice(0, len(self.labels)))
        return rows.stop - rows.start

    def sentences(self) -> list[str]:
        """The distinct sentences."""
        return list(dict.fromkeys(s for side in self.texts for s in side))


def chosen_tasks(wanted: Sequence[str], split: str) -> list[str]:
    """The tasks that `sts`, `transfer`, `all` and names stand for, in the papers' order; hyphens and case are free.

    With the dev split, a group leaves out the tasks that have none.

    Raises:
        UsageError: one is unknown; or it was named, and has no dev split.
    """
    plain = {name.replace("-", "").lower(): name for name in TASKS}
    groups = GROUPS | {"all": TASKS}
    chosen = set()
    for word in wanted:
        key = word.replace("-", "").lower()
        if key in groups:
            chosen |= {name for name in groups[key] if split == "test" or name not in YEARS}
        elif key not in plain:
            raise UsageError(f"`tasks`: no task {word!r}; needed all, sts, transfer, or of: {', '.join(TASKS)}.")
        elif split != "test" and plain[key] in YEARS:
            raise UsageError(f"`tasks`: {plain[key]} has no {split} split. STS-B, SICK-R and the transfer tasks have.")
        else:
            chosen.add(plain[key])
    return [name for name in TASKS if name in chosen]


def load_task(folder: str | Path, name: str, split: str = "test") -> StsTask | TransferTask:
    """The data of one task.

    Args:
        folder: SentEval's `data/downstream`.
        name: one of `TASKS`.
        split: `test`, or `dev`, which the years of STS do not have.

    Raises:
        UsageError: a file is absent, damaged, or holds another number of examples than it should.
    """
    folder = Path(folder)
    if name in YEARS:
        return _load_year(folder, name)
    if name in ("STS-B", "SICK-R"):
        return _load_stsb(folder, split) if name == "STS-B" else _load_sick(folder, split)
    if name in BINARY:
        return _load_binary(folder, name, split)
    return {"SST2": _load_sst2, "TREC": _load_trec, "MRPC": _load_mrpc}[name](folder, split)


def load_stsb_dev(folder: str | Path) -> GradedPairs:
    """STS-B dev, which checkpoints are chosen by, from a SentEval `downstream` folder.

    Raises:
        UsageError: the file is not there, or is not the 1,500 pairs it should be.
    """
    return _load_stsb(Path(folder), "dev").subsets[0]


def _load_year(folder: Path, name: str) -> StsTask:
    subsets, files = [], []
    for subset, count in YEARS[name].items():
        inputs, grades = (folder / "STS" / f"{name}-en-test" / f"STS.{kind}.{subset}.txt" for kind in ("input", "gs"))
        pairs, scores = list(_lines(inputs)), list(_lines(grades))
        if len(pairs) != len(scores):
            raise UsageError(
                f"{inputs}: found {len(pairs)} pairs, and {len(scores)} grades in {grades.name}. Fetch both again."
            )
        rows = [
            (*_fields(pair, 2, inputs, number), read_grade(score, grades, number))
            for (number, pair), (_, score) in zip(pairs, scores)
            if score.strip()
        ]
        _check(inputs, len(rows), count, "graded pairs")
        subsets.append(_graded(subset, rows))
        files += [inputs, grades]
    return StsTask(name, subsets, files)


def _load_stsb(folder: Path, split: str) -> StsTask:
    file, count = STSB[split]
    path = folder / "STS" / "STSBenchmark" / file
    rows = []
    for number, line in _lines(path):  # genre, file, year, id, score, sentence 1, sentence 2
        fields = _fields(line, 7, path, number)
        rows.append((*fields[5:7], read_grade(fields[4], path, number)))
    _check(path, len(rows), count, "pairs")
    return StsTask("STS-B", [_graded(f"STS-B {split}", rows)], [path])


def _load_sick(folder: Path, split: str) -> StsTask:
    file, count = SICK[split]
    path = folder / "SICK" / file
    rows = []
    for number, line in list(_lines(path))[1:]:  # pair id, sentence A, sentence B, relatedness, entailment
        fields = _fields(line, 5, path, number)
        rows.append((*fields[1:3], read_grade(fields[3], path, number)))
    _check(path, len(rows), count, "pairs")
    return StsTask("SICK-R", [_graded(f"SICK-R {split}", rows)], [path])


def _load_binary(folder: Path, name: str, split: str) -> TransferTask:
    texts, labels, files = [], [], []
    for label, (file, count) in enumerate(BINARY[name]):
        path = folder / file
        sentences = [_normalised(line) for _, line in _lines(path)]
        _check(path, len(sentences), count, "sentences")
        texts += sentences
        labels += [label] * count
        files.append(path)
    return TransferTask(name, (texts,), np.array(labels), "nested", {}, files, split)


def _load_sst2(folder: Path, split: str) -> TransferTask:
    texts, labels, parts, files = [], [], {}, []
    for part, (file, count) in zip(("train", "dev", "test"), SST2):
        path = folder / file
        rows = [_fields(line, 2, path, number) for number, line in _lines(path)]
        _check(path, len(rows), count, "sentences")
        parts[part] = slice(len(texts), len(texts) + count)
        texts += [text for text, _ in rows]
        labels += [_label(label, path, i) for i, (_, label) in enumerate(rows, start=1)]
        files.append(path)
    return TransferTask("SST2", (texts,), np.array(labels), "dev", parts, files, split)


def _load_trec(folder: Path, split: str) -> TransferTask:
    texts, classes, parts, files = [], [], {}, []
    for part, (file, count) in zip(("train", "test"), TREC):
        path = folder / file
        lines = list(_lines(path, "latin-1"))  # the train file has a byte that is not UTF-8
        _check(path, len(lines), count, "questions")
        parts[part] = slice(len(texts), len(texts) + count)
        for number, line in lines:  # CLASS:subclass question
            label, _, rest = line.partition(":")
            if label not in TREC_CLASSES or " " not in rest:
                raise UsageError(
                    f"{path}, line {number}: found {line[:40]!r}; needed CLASS:subclass and a question, CLASS one of: "
                    f"{', '.join(TREC_CLASSES)}."
                )
            texts.append(_normalised(rest.partition(" ")[2]))
            classes.append(label)
        files.append(path)
    return TransferTask("TREC", (texts,), np.unique(classes, return_inverse=True)[1], "folds", parts, files, split)


def _load_mrpc(folder: Path, split: str) -> TransferTask:
    first, second, labels, parts, files = [], [], [], {}, []
    for part, (file, count) in zip(("train", "test"), MRPC):
        path = folder / file
        rows = [_fields(line, 5, path, number) for number, line in list(_lines(path))[1:]]
        _check(path, len(rows), count, "pairs")
        parts[part] = slice(len(labels), len(labels) + count)
        first += [row[3] for row in rows]  # quality, id 1, id 2, string 1, string 2
        second += [row[4] for row in rows]
        labels += [_label(row[0], path, i) for i, row in enumerate(rows, start=2)]
        files.append(path)
    return TransferTask("MRPC", (first, second), np.array(labels), "folds", parts, files, split)


def _lines(path: Path, encoding: str = "utf-8"):
    if not path.is_file():
        raise UsageError(
            f"{path} does not exist. The folder given must be SentEval's data/downstream, which holds this file."
        )
    return decoded_lines(path, encoding)


def _normalised(text: str) -> str:
    """Words parted by single blanks, as SentEval hands them over."""
    return " ".join(text.split())


def _fields(line: str, needed: int, path: Path, number: int) -> list[str]:
    fields = line.split("\t")
    if len(fields) < needed:
        raise UsageError(f"{path}, line {number}: found {len(fields)} tab-separated fields, needed {needed}.")
    return [_normalised(field) for field in fields[:needed]]


def _label(text: str, path: Path, number: int) -> int:
    if text not in ("0", "1"):
        raise UsageError(f"{path}, line {number}: the label is {text!r}; needed 0 or 1.")
    return int(text)


def _check(path: Path, found: int, needed: int, what: str) -> None:
    if found != needed:
        raise UsageError(f"{path}: found {found} {what}, needed {needed}. Fetch the file again.")


def _graded(name: str, rows: Sequence[tuple[str, str, float]]) -> GradedPairs:
    first, second, grades = zip(*rows)
    return GradedPairs(name, list(first), list(second), np.array(grades))
