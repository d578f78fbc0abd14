"""A dataset in SentEval's layout with the numbers of examples that the loader requires, in words of the tiny models.

Sentences come from a small pool, so that even the full counts are few distinct sentences. Grades follow the words that
the sides of a pair share, and labels mostly follow a marking word, so that scores are neither chance nor perfect.
"""

from pathlib import Path

from informin.evaluation import senteval
from tests.conftest import make_sentences

# The loader's own tables, before a test makes them smaller.
TABLES = {name: getattr(senteval, name) for name in ("YEARS", "STSB", "SICK", "BINARY", "SST2", "TREC", "MRPC")}
CLASSES = {"DESC": "old", "ENTY": "young", "ABBR": "big", "HUM": "small", "NUM": "red", "LOC": "blue"}  # TREC's
POOL = make_sentences(300, seed=7)
LATIN = 7  # the question of TREC's train part that has a byte which is not UTF-8


def counts(share: float = 1.0) -> dict:
    """Return the loader's tables with a share of each count, but at least what ten-fold cross-validation needs."""

    def smaller(table, least):
        if isinstance(table, dict):
            return {name: smaller(part, least) for name, part in table.items()}
        if isinstance(table, int):
            return table if share == 1 else min(table, max(least, round(share * table)))
        return tuple(part if isinstance(part, str) else smaller(part, least) for part in table)

    least = {"TREC": 90, "MRPC": 36}  # six classes; two in three of one class
    return {name: smaller(table, least.get(name, 16)) for name, table in TABLES.items()}


def small_counts(monkeypatch, share: float) -> None:
    """Make the loader require what `write_senteval(folder, share)` writes."""
    for name, table in counts(share).items():
        monkeypatch.setattr(senteval, name, table)


def pair(i: int) -> tuple[str, str, str]:
    """Return the i-th pair and its grade g, 0 to 5. The second sentence keeps about g/5 of the words of the first."""
    first, other = POOL[i % len(POOL)].split(), POOL[(i * 7 + 1) % len(POOL)].split()
    changed = i % 6 * len(first) // 5
    return " ".join(first), " ".join(other[:changed] + first[changed:]), f"{max(0, 5 - i % 6 - i % 4 / 4):.3f}"


def example(i: int, mark: str, other: str) -> str:
    """Return the i-th sentence of a class. Six of seven begin with its mark, the others with that of another class."""
    return f"{other if i % 7 == 3 else mark} {POOL[i % len(POOL)]}"


def label_of(i: int) -> int:
    """Return the labels of tasks that have both in one file. Two of three are 1."""
    return int(i % 3 > 0)


def class_of(i: int) -> str:
    return list(CLASSES)[i % len(CLASSES)]


def question(i: int) -> str:
    marks = list(CLASSES.values())
    return example(i, marks[i % len(marks)], marks[(i + 1) % len(marks)])


def paraphrase(i: int) -> tuple[str, str]:
    """Return a pair for MRPC. With label 1, usually only the first word differs; otherwise the sentences differ."""
    first = POOL[i % len(POOL)]
    alike = label_of(i) if i % 7 != 3 else 1 - label_of(i)
    return first, " ".join(["the", *first.split()[1:]]) if alike else POOL[(i * 11 + 5) % len(POOL)]


def write(path: Path, lines, encoding: str = "utf-8", end: str = "\n") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(line + end for line in lines).encode(encoding))


def write_senteval(folder: Path, share: float = 1.0) -> Path:
    """Write all 14 tasks and return the folder.

    Args:
        share: of every count; below 1, the loader needs `small_counts` with the same share.
    """
    tables = counts(share)
    for year, subsets in tables["YEARS"].items():
        for subset, count in subsets.items():
            _write_subset(folder / "STS" / f"{year}-en-test", subset, count, ungraded=year in ("STS15", "STS16"))
    for file, count in tables["STSB"].values():
        write(folder / "STS/STSBenchmark" / file, map(_stsb_line, range(count)))
    for file, count in tables["SICK"].values():
        rows = ((str(i), *pair(i), "NEUTRAL") for i in range(count))
        header = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\r"
        write(folder / "SICK" / file, [header, *map("\t".join, rows)])
    for files in tables["BINARY"].values():
        for label, (file, count) in enumerate(files):
            marks = ("red", "blue") if label else ("blue", "red")
            rows = [example(i, *marks) + " " for i in range(count)]
            write(folder / file, [*rows[:-1], ""] if file.startswith("CR") else rows)  # like the real lines of CR
    for file, count in tables["SST2"]:
        marks = {0: ("small", "big"), 1: ("big", "small")}
        write(folder / file, (f"{example(i, *marks[label_of(i)])} \t{label_of(i)}" for i in range(count)))
    for part, (file, count) in enumerate(tables["TREC"]):
        rows = (f"{class_of(i)}:part {question(i)}{' café' * (i == LATIN and part == 0)} ?" for i in range(count))
        write(folder / file, rows, "latin-1")
    for file, count in tables["MRPC"]:
        rows = (f"{label_of(i)}\t{i}\t{i + 1}\t" + "\t".join(paraphrase(i)) for i in range(count))
        write(folder / file, ["\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String", *rows])
    return folder


def stsb_dev(mark: str) -> bytes:
    """Return 1,500 lines in STS-B's format whose first sentence is the mark."""
    lines = (f"genre\tfile\tyear\t{i}\t{i % 6}.000\t{mark}\tb {i}" for i in range(1500))
    return "\n".join(lines).encode()


def _stsb_line(i: int) -> str:
    """Return a line with an unmatched quotation mark and, in some lines, links after the sentences."""
    first, second, grade = pair(i)
    return "\t".join(["genre", "file", "2012", f"{i:04}", grade, f'"{first}', second, *["link"] * (i % 3)])


def _write_subset(folder: Path, subset: str, count: int, ungraded: bool) -> None:
    """Write pairs, and their grades to another file. If some are ungraded, there is one after every second pair."""
    inputs, grades = [], []
    for i in range(count):
        first, second, grade = pair(i)
        inputs.append(f"{first}\t{second}")
        grades.append(grade)
        if ungraded and i % 2:
            inputs.append("not graded\tat all")
            grades.append("")
    write(folder / f"STS.input.{subset}.txt", inputs)
    write(folder / f"STS.gs.{subset}.txt", grades)
