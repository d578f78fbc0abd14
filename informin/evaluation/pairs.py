"""Graded sentence pairs: STS-B dev or the user's own, and their score."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from informin.analysis import alignment, uniformity, unit
from informin.errors import UsageError
from informin.textfiles import TABLES, as_text, decoded_lines, json_records, plain_suffix, table_rows

STSB_DEV = "STS/STSBenchmark/sts-dev.csv"
STSB_DEV_PAIRS = 1500
COLUMNS = ("sentence1", "sentence2", "score")


@dataclass(frozen=True)
class GradedPairs:
    """Sentence pairs with a human grade of their similarity, higher is more similar.

    Attributes:
        name: what to call them in tables, "STS-B dev" for instance.
        sentences1, sentences2: N sentences each.
        scores: N grades, on any scale.
    """

    name: str
    sentences1: list[str]
    sentences2: list[str]
    scores: np.ndarray

    def __len__(self) -> int:
        return len(self.scores)


def load_stsb_dev(folder: str | Path) -> GradedPairs:
    """STS-B dev from a SentEval `downstream` folder.

    Raises:
        UsageError: the file is not there, or is not the 1,500 pairs it should be.
    """
    path = Path(folder) / STSB_DEV
    if not path.is_file():
        raise UsageError(
            f"No STS-B dev data: {path} does not exist. The folder given must be SentEval's data/downstream, with "
            f"{STSB_DEV} in it."
        )
    rows = []
    for number, line in decoded_lines(path):
        fields = line.split("\t")  # genre, file, year, id, score, sentence 1, sentence 2
        if len(fields) < 7:
            raise UsageError(f"{path}, line {number}: found {len(fields)} tab-separated fields, needed 7.")
        rows.append((fields[5], fields[6], _grade(fields[4], path, number)))
    if len(rows) != STSB_DEV_PAIRS:
        raise UsageError(f"{path}: found {len(rows)} pairs, needed {STSB_DEV_PAIRS}. Fetch the file again.")
    return _pairs("STS-B dev", rows, path)


def load_pairs(path: str | Path) -> GradedPairs:
    """The user's own pairs: TSV, CSV or JSONL with sentence1, sentence2 and score.

    Raises:
        UsageError: no such file or column, a grade that is no number, fewer than 2 pairs, or grades all alike.
    """
    path = Path(path)
    if not path.is_file():
        raise UsageError(f"--eval_pairs: {path} does not exist.")
    kind = plain_suffix(path)
    if kind == ".jsonl":
        records = ((number, record) for number, record in json_records(path) if record)
    elif kind in TABLES:
        records = _table_records(path)
    else:
        raise UsageError(f"--eval_pairs: {path} ends in {kind or 'nothing'}; needed .tsv, .csv or .jsonl.")
    rows = []
    for number, record in records:
        missing = [name for name in COLUMNS if record.get(name) in (None, "")]
        if missing:
            raise UsageError(
                f"{path}, line {number}: no {' and no '.join(missing)}. Every row needs {', '.join(COLUMNS)}; "
                f"found {', '.join(map(str, record))}."
            )
        first, second = (as_text(record[name], path, number) for name in COLUMNS[:2])
        rows.append((first, second, _grade(record["score"], path, number)))
    return _pairs(path.name, rows, path)


def score_pairs(encode: Callable[[Sequence[str]], np.ndarray], pairs: GradedPairs) -> dict[str, float]:
    """How well the cosine of embeddings follows the grades, and how the embeddings lie on the sphere.

    Args:
        encode: from N sentences to (N, d).

    Returns:
        `spearman`: Spearman correlation of cosine and grade, x 100. `alignment`: over the pairs graded above 80% of the
        scale (on STS-B, above 4, as in Gao et al., 2021, section 3). `uniformity`: over all distinct sentences.
    """
    sentences = list(dict.fromkeys(pairs.sentences1 + pairs.sentences2))
    row = {sentence: i for i, sentence in enumerate(sentences)}
    embeddings = encode(sentences)  # (distinct sentences, d)
    x = embeddings[[row[sentence] for sentence in pairs.sentences1]]  # (N, d)
    y = embeddings[[row[sentence] for sentence in pairs.sentences2]]
    cosine = (unit(x) * unit(y)).sum(-1)
    low, high = pairs.scores.min(), pairs.scores.max()
    positive = pairs.scores > low + 0.8 * (high - low)
    return {
        "spearman": 100 * float(spearmanr(cosine, pairs.scores).statistic),
        "alignment": alignment(x[positive], y[positive]),
        "uniformity": uniformity(embeddings),
    }


def _pairs(name: str, rows: list[tuple[str, str, float]], path: Path) -> GradedPairs:
    if len({grade for _, _, grade in rows}) < 2:
        raise UsageError(
            f"{path}: found {len(rows)} pairs and fewer than two different scores. A rank correlation needs at least "
            "two pairs with different scores."
        )
    first, second, grades = zip(*rows)
    return GradedPairs(name, list(first), list(second), np.array(grades))


def _grade(text: object, path: Path, number: int) -> float:
    try:
        grade = float(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        grade = math.nan
    if not math.isfinite(grade):
        raise UsageError(f"{path}, line {number}: the score is {text!r}; needed a number.")
    return grade


def _table_records(path: Path):
    rows = table_rows(path)
    _, header = next(rows, (0, []))
    absent = [name for name in COLUMNS if name not in header]
    if absent:
        raise UsageError(
            f"{path}: no column {' and no column '.join(absent)} in its first line; found "
            f"{', '.join(header) or 'nothing'}."
        )
    return ((number, dict(zip(header, row))) for number, row in rows if row)
