"""The 14 tasks from files in SentEval's layout: what is read, in which order, and what is refused."""

import numpy as np
import pytest

from informin.evaluation import senteval
from informin.evaluation.senteval import TASKS, StsTask, TransferTask, chosen_tasks, load_stsb_dev, load_task
from tests.conftest import SHARED, raises_usage
from tests.support.senteval_data import (
    CLASSES,
    LATIN,
    class_of,
    example,
    label_of,
    pair,
    paraphrase,
    question,
    small_counts,
    write_senteval,
)

REAL = SHARED / "data/senteval"
SHARE = 0.002
YEARS = ["STS12", "STS13", "STS14", "STS15", "STS16"]
EXAMPLES = {  # that the test score is over
    **{"STS12": 3108, "STS13": 1500, "STS14": 3750, "STS15": 3000, "STS16": 1186, "STS-B": 1379, "SICK-R": 4927},
    **{"MR": 10662, "CR": 3775, "SUBJ": 10000, "MPQA": 10606, "SST2": 1821, "TREC": 500, "MRPC": 1725},
}
PARTS = {
    "SST2": {"train": (0, 67349), "dev": (67349, 68221), "test": (68221, 70042)},
    "TREC": {"train": (0, 5452), "test": (5452, 5952)},
    "MRPC": {"train": (0, 4076), "test": (4076, 5801)},
}
DEV = {"STS-B": 1500, "SICK-R": 500, "SST2": 872, "TREC": 5452, "MRPC": 4076, "MR": 10662}
PROTOCOLS = {"SST2": "dev", "TREC": "folds", "MRPC": "folds"}


@pytest.fixture(scope="session")
def full(tmp_path_factory):
    """All tasks with their real numbers of examples."""
    return write_senteval(tmp_path_factory.mktemp("senteval"))


@pytest.fixture
def small(tmp_path, monkeypatch):
    """All tasks with a few examples, for tests that damage them."""
    small_counts(monkeypatch, SHARE)
    return write_senteval(tmp_path, SHARE)


@pytest.fixture(params=["synthetic", "real"])
def folder(request, full):
    """Synthetic data with the real numbers of examples, and the real data if it exists."""
    if request.param == "real" and not REAL.is_dir():
        pytest.skip(f"the SentEval data are not at {REAL}")
    return REAL if request.param == "real" else full


def test_number_of_examples_of_all_tasks(folder):
    assert tuple(EXAMPLES) == TASKS
    for name, count in EXAMPLES.items():
        task = load_task(folder, name)
        assert (task.name, task.counts["n"]) == (name, count)
        assert all(path.is_file() for path in task.files) and len(set(task.files)) == len(task.files)
        assert all(sentence == " ".join(sentence.split()) for sentence in task.texts())
        if isinstance(task, StsTask):
            assert all(len(p) == len(p.sentences1) == len(p.sentences2) == len(p.scores) for p in task.subsets)
            assert all(0 <= pairs.scores.min() < pairs.scores.max() <= 5 for pairs in task.subsets)
        else:
            total = {name: end for name, parts in PARTS.items() for _, end in parts.values()}.get(name, count)
            assert {len(side) for side in task.sides} == {len(task.labels)} == {total}
            assert {part: (rows.start, rows.stop) for part, rows in task.parts.items()} == PARTS.get(name, {})
            assert np.unique(task.labels).tolist() == list(range(6 if name == "TREC" else 2))
            assert (task.protocol, task.split) == (PROTOCOLS.get(name, "nested"), "test")
    assert len(load_stsb_dev(folder)) == 1500


def test_number_of_examples_of_dev_splits(folder):
    for name, count in DEV.items():
        assert load_task(folder, name, "dev").counts["n"] == count
    assert [pairs.name for name in ("STS-B", "SICK-R") for pairs in load_task(folder, name, "dev").subsets] == [
        *("STS-B dev", "SICK-R dev")
    ]


@pytest.mark.skipif(not REAL.is_dir(), reason=f"the SentEval data are not at {REAL}")
def test_real_senteval_files():
    """Their first rows, and the fraction of the largest class, which is 1 in MRPC and 0 in MPQA."""
    assert (
        load_task(REAL, "STS12").subsets[0].sentences1[0].lower().startswith("the problem likely will mean corrective")
    )
    first = load_task(REAL, "SICK-R").subsets[0]
    assert (
        first.sentences1[0] == "There is no boy playing outdoors and there is no man smiling" and first.scores[0] == 3.3
    )
    mrpc, mpqa, trec = (load_task(REAL, name) for name in ("MRPC", "MPQA", "TREC"))
    assert mrpc.sides[0][0].startswith("Amrozi accused his brother") and mrpc.sides[1][0].startswith("Referring to him")
    assert mrpc.labels[:4076].mean() == pytest.approx(0.675, abs=1e-3) and mpqa.labels.mean() == pytest.approx(
        3312 / 10606
    )
    assert (mpqa.sides[0][0], mpqa.labels[0]) == ("complaining", 0)
    assert trec.sides[0][5452] == "How far is it from Denver to Aspen ?"
    labels = dict(zip(("LOC", "NUM", "DESC"), (trec.labels[5453], trec.labels[5452], trec.labels[0])))
    assert labels == {"LOC": 4, "NUM": 5, "DESC": 1}


@pytest.mark.parametrize("name", YEARS)
def test_years_hold_the_graded_pairs_of_each_subset(small, name):
    task = load_task(small, name)
    assert [pairs.name for pairs in task.subsets] == list(senteval.YEARS[name])
    folder, subsets = small / "STS" / f"{name}-en-test", list(senteval.YEARS[name])
    assert task.files == [folder / f"STS.{kind}.{subset}.txt" for subset in subsets for kind in ("input", "gs")]
    for pairs, count in zip(task.subsets, senteval.YEARS[name].values()):
        expected = [(first, second, float(grade)) for first, second, grade in map(pair, range(count))]
        assert list(zip(pairs.sentences1, pairs.sentences2, pairs.scores.tolist())) == expected
    blank = "" in (folder / f"STS.gs.{subsets[0]}.txt").read_text().split("\n")[:-1]
    assert blank == (name in ("STS15", "STS16")), "the dataset has ungraded pairs where the real one has"


@pytest.mark.parametrize(
    "split, stsb, sick", [("test", "sts-test", "SICK_test_annotated"), ("dev", "sts-dev", "SICK_trial")]
)
def test_stsb_and_sick(small, split, stsb, sick):
    for name, path, quote in (("STS-B", f"STS/STSBenchmark/{stsb}.csv", '"'), ("SICK-R", f"SICK/{sick}.txt", "")):
        task = load_task(small, name, split)
        (pairs,) = task.subsets
        expected = [(quote + first, second, float(grade)) for first, second, grade in map(pair, range(16))]
        assert list(zip(pairs.sentences1, pairs.sentences2, pairs.scores.tolist())) == expected
        assert (task.name, pairs.name, task.files) == (name, f"{name} {split}", [small / path])


@pytest.mark.parametrize(
    "name, negative", [("MR", "rt-polarity.neg"), ("SUBJ", "subj.subjective"), ("MPQA", "mpqa.neg")]
)
def test_binary_tasks(small, name, negative):
    """The space at the end of each line in the real files is removed."""
    task = load_task(small, name)
    counts = [count for _, count in senteval.BINARY[name]]
    expected = [example(i, "blue", "red") for i in range(counts[0])] + [
        example(i, "red", "blue") for i in range(counts[1])
    ]
    assert task.sides == (expected,) and task.labels.tolist() == [0] * counts[0] + [1] * counts[1]
    assert task.files[0] == small / name / negative and len(task.files) == 2


def test_blank_lines_are_empty_sentences(small):
    """CR and MPQA contain blank sentences. SentEval keeps them, and the counts include them."""
    task = load_task(small, "CR")
    assert [i for i, sentence in enumerate(task.sides[0]) if not sentence] == [15, 31] and "" in task.texts()


def test_sst2(small):
    task = load_task(small, "SST2")
    sizes = [count for _, count in senteval.SST2]
    rows = [i for size in sizes for i in range(size)]
    marks = {0: ("small", "big"), 1: ("big", "small")}
    assert task.sides == ([example(i, *marks[label_of(i)]) for i in rows],)
    assert task.labels.tolist() == [label_of(i) for i in rows]
    assert [rows.stop - rows.start for rows in task.parts.values()] == sizes
    assert [path.name for path in task.files] == ["sentiment-train", "sentiment-dev", "sentiment-test"]


def test_trec(small):
    """Classes are in alphabetical order, and one line is latin-1."""
    task = load_task(small, "TREC")
    sizes = [count for _, count in senteval.TREC]
    rows = [i for size in sizes for i in range(size)]
    expected = [f"{question(i)} ?" for i in rows]
    expected[LATIN] = f"{question(LATIN)} café ?"
    assert b"caf\xe9" in task.files[0].read_bytes() and task.sides == (expected,)
    assert task.labels.tolist() == [sorted(CLASSES).index(class_of(i)) for i in rows]
    assert list(task.parts.values()) == [slice(0, sizes[0]), slice(sizes[0], sum(sizes))]


def test_mrpc(small):
    """The first line is a header with a byte order mark."""
    task = load_task(small, "MRPC")
    sizes = [count for _, count in senteval.MRPC]
    rows = [i for size in sizes for i in range(size)]
    assert task.sides == tuple(map(list, zip(*map(paraphrase, rows))))
    assert task.labels.tolist() == [label_of(i) for i in rows]
    assert task.files[0].read_bytes().startswith(b"\xef\xbb\xbfQuality")
    assert list(task.parts.values()) == [slice(0, sizes[0]), slice(sizes[0], sum(sizes))]


@pytest.mark.parametrize(
    "protocol, split, examples", [("nested", "dev", 9), ("dev", "dev", 2), ("dev", "test", 3), ("folds", "dev", 4)]
)
def test_examples_counts_the_scored_part(protocol, split, examples):
    parts = {"train": slice(0, 4), "dev": slice(4, 6), "test": slice(6, 9)} if protocol != "nested" else {}
    task = TransferTask("any", (["a"] * 9,), np.zeros(9), protocol, parts, [], split)
    assert task.counts["n"] == examples


def replaced(number: int, line: str):
    """Return an edit that replaces a line, counted from 1."""
    return lambda lines: [*lines[: number - 1], line, *lines[number:]]


def shorter(lines):
    return lines[:-1]


def longer(lines):
    return [*lines, lines[-1]]


STS12, STS15 = "STS/STS12-en-test/STS.{}.MSRvid.txt", "STS/STS15-en-test/STS.{}.belief.txt"
COUNTS = [  # another number of examples
    ("SUBJ", "SUBJ/subj.objective", shorter),
    ("SUBJ", "SUBJ/subj.subjective", longer),
    ("SST2", "SST/binary/sentiment-dev", shorter),
    ("TREC", "TREC/TREC_10.label", longer),
    ("MRPC", "MRPC/msr_paraphrase_test.txt", shorter),
    ("STS-B", "STS/STSBenchmark/sts-test.csv", longer),
    ("SICK-R", "SICK/SICK_test_annotated.txt", shorter),
    ("SICK-R", "SICK/SICK_test_annotated.txt", lambda lines: []),
    ("STS12", STS12.format("gs"), shorter),
    ("STS12", STS12.format("input"), longer),
    ("STS12", STS12.format("gs"), replaced(4, "")),
    ("STS15", STS15.format("gs"), replaced(3, "2")),
]
VALUES = [  # too few fields, and values that are not numbers or classes
    ("STS12", STS12.format("input"), replaced(3, "a b")),
    ("STS-B", "STS/STSBenchmark/sts-test.csv", replaced(9, "g\tf\ty\ti\t1\ta")),
    ("SICK-R", "SICK/SICK_test_annotated.txt", replaced(3, "1\ta\tb\t3")),
    ("SST2", "SST/binary/sentiment-test", replaced(2, "a b 1")),
    ("MRPC", "MRPC/msr_paraphrase_train.txt", replaced(3, "1\t1\t2\ta")),
    ("STS15", STS15.format("gs"), replaced(5, "4,5")),
    ("STS-B", "STS/STSBenchmark/sts-test.csv", replaced(9, "g\tf\ty\ti\tx\ta\tb")),
    ("SICK-R", "SICK/SICK_test_annotated.txt", replaced(2, "1\ta\tb\thigh\tE")),
    ("MRPC", "MRPC/msr_paraphrase_train.txt", replaced(3, "yes\t1\t2\ta\tb")),
    ("TREC", "TREC/train_5500.label", replaced(5, "WHAT what is it ?")),
]


def damage(path, edit, encoding: str = "utf-8") -> None:
    lines = path.read_bytes().decode(encoding).split("\n")[:-1]
    path.write_bytes("".join(line + "\n" for line in edit(lines)).encode(encoding))


@pytest.mark.parametrize("name, file, edit", COUNTS)
def test_files_with_other_numbers_of_examples_are_rejected(small, name, file, edit):
    damage(small / file, edit, "latin-1" if name == "TREC" else "utf-8")
    with raises_usage(found=str(small / file.replace(".gs.", ".input."))):
        load_task(small, name)


@pytest.mark.parametrize("name, file, edit", VALUES)
def test_other_fields_and_values_are_rejected(small, name, file, edit):
    damage(small / file, edit, "latin-1" if name == "TREC" else "utf-8")
    with pytest.raises(ValueError):
        load_task(small, name)


@pytest.mark.parametrize("name", ["STS13", "SICK-R", "TREC"])
def test_missing_files_are_named(small, name):
    path = load_task(small, name).files[-1]
    path.unlink()
    with raises_usage("senteval_dir", found=path.name):
        load_task(str(small), name)
    with raises_usage("senteval_dir"):
        load_task(small.parent, name)


@pytest.mark.parametrize(
    "wanted, split, found",
    [
        (["all"], "test", list(TASKS)),
        (["sts"], "test", [*YEARS, "STS-B", "SICK-R"]),
        (["transfer"], "test", ["MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC"]),
        (["all"], "dev", [*TASKS[5:]]),
        (["sts"], "dev", ["STS-B", "SICK-R"]),
        (["Transfer"], "dev", [*TASKS[7:]]),
        (["mrpc", "STSB", "sts-b", "Sick-r", "STS-16"], "test", ["STS16", "STS-B", "SICK-R", "MRPC"]),
        (["trec", "sickr"], "dev", ["SICK-R", "TREC"]),
        (["STS", "mr"], "test", [*YEARS, "STS-B", "SICK-R", "MR"]),
        ([], "test", []),
    ],
)
def test_chosen_tasks(wanted, split, found):
    assert chosen_tasks(wanted, split) == found


@pytest.mark.parametrize("wanted, split", [(["mr", "sts17"], "test"), ([""], "test"), (["sts-13"], "dev")])
def test_unknown_tasks_are_rejected(wanted, split):
    with raises_usage(option="tasks"):
        chosen_tasks(wanted, split)
