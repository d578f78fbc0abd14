"""The 14 tasks from files in SentEval's layout: what is read, in which order, and what is refused."""

import numpy as np
import pytest

from informin.evaluation import senteval
from informin.evaluation.senteval import TASKS, StsTask, TransferTask, chosen_tasks, load_stsb_dev, load_task
from tests.conftest import SHARED, raises_usage
from tests.senteval_data import (
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
        assert (task.name, task.examples) == (name, count)
        assert all(path.is_file() for path in task.files) and len(set(task.files)) == len(task.files)
        assert all(sentence == " ".join(sentence.split()) for sentence in task.sentences())
        if isinstance(task, StsTask):
            assert all(len(p) == len(p.sentences1) == len(p.sentences2) == len(p.scores) for p in task.subsets)
            assert all(0 <= pairs.scores.min() < pairs.scores.max() <= 5 for pairs in task.subsets)
        else:
            total = {name: end for name, parts in PARTS.items() for _, end in parts.values()}.get(name, count)
            assert {len(side) for side in task.texts} == {len(task.labels)} == {total}
            assert {part: (rows.start, rows.stop) for part, rows in task.parts.items()} == PARTS.get(name, {})
            assert np.unique(task.labels).tolist() == list(range(6 if name == "TREC" else 2))
            assert (task.protocol, task.split) == (PROTOCOLS.get(name, "nested"), "test")
    assert len(load_stsb_dev(folder)) == 1500


def test_number_of_examples_of_dev_splits(folder):
    for name, count in DEV.items():
        assert load_task(folder, name, "dev").examples == count
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
    assert mrpc.texts[0][0].startswith("Amrozi accused his brother") and mrpc.texts[1][0].startswith("Referring to him")
    assert mrpc.labels[:4076].mean() == pytest.approx(0.675, abs=1e-3) and mpqa.labels.mean() == pytest.approx(
        3312 / 10606
    )
    assert (mpqa.texts[0][0], mpqa.labels[0]) == ("complaining", 0)
    assert trec.texts[0][5452] == "How far is it from Denver to Aspen ?"
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
    assert blank == (name in ("STS15", "STS16")), "the data set has ungraded pairs where the real one has"


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
    assert task.texts == (expected,) and task.labels.tolist() == [0] * counts[0] + [1] * counts[1]
    assert task.files[0] == small / name / negative and len(task.files) == 2


def test_blank_lines_are_empty_sentences(small):
    """CR and MPQA contain blank sentences. SentEval keeps them, and the counts include them."""
    task = load_task(small, "CR")
    assert [i for i, sentence in enumerate(task.texts[0]) if not sentence] == [15, 31] and "" in task.sentences()


def test_sst2(small):
    task = load_task(small, "SST2")
    sizes = [count for _, count in senteval.SST2]
    rows = [i for size in sizes for i in range(size)]
    marks = {0: ("small", "big"), 1: ("big", "small")}
    assert task.texts == ([example(i, *marks[label_of(i)]) for i in rows],)
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
    assert b"caf\xe9" in task.files[0].read_bytes() and task.texts == (expected,)
    assert task.labels.tolist() == [sorted(CLASSES).index(class_of(i)) for i in rows]
    assert list(task.parts.values()) == [slice(0, sizes[0]), slice(sizes[0], sum(sizes))]


def test_mrpc(small):
    """The first line is a header with a byte order mark."""
    task = load_task(small, "MRPC")
    sizes = [count for _, count in senteval.MRPC]
    rows = [i for size in sizes for i in range(size)]
    assert task.texts == tuple(map(list, zip(*map(paraphrase, rows))))
    assert task.labels.tolist() == [label_of(i) for i in rows]
    assert task.files[0].read_bytes().startswith(b"\xef\xbb\xbfQuality")
    assert list(task.parts.values()) == [slice(0, sizes[0]), slice(sizes[0], sum(sizes))]


def test_sentences_are_the_distinct_ones_in_their_order(small):
    task = load_task(small, "STS13")
    sides = [side for pairs in task.subsets for side in (pairs.sentences1, pairs.sentences2)]
    assert task.sentences() == sorted(
        {s for side in sides for s in side}, key=[s for side in sides for s in side].index
    )
    task = load_task(small, "MRPC")
    both = task.texts[0] + task.texts[1]
    assert task.sentences() == sorted(set(both), key=both.index) and len(task.sentences()) < len(both)


@pytest.mark.parametrize(
    "protocol, split, examples", [("nested", "dev", 9), ("dev", "dev", 2), ("dev", "test", 3), ("folds", "dev", 4)]
)
def test_examples_counts_the_scored_part(protocol, split, examples):
    parts = {"train": slice(0, 4), "dev": slice(4, 6), "test": slice(6, 9)} if protocol != "nested" else {}
    task = TransferTask("any", (["a"] * 9,), np.zeros(9), protocol, parts, [], split)
    assert task.examples == examples


def replaced(number: int, line: str):
    """Return an edit that replaces a line, counted from 1."""
    return lambda lines: [*lines[: number - 1], line, *lines[number:]]


def shorter(lines):
    return lines[:-1]


def longer(lines):
    return [*lines, lines[-1]]


STS12, STS15 = "STS/STS12-en-test/STS.{}.MSRvid.txt", "STS/STS15-en-test/STS.{}.belief.txt"
FETCH = "Download the file again."
DAMAGES = [
    ("SUBJ", "SUBJ/subj.objective", shorter, f"PATH: found 15 sentences; expected 16. {FETCH}"),
    ("SUBJ", "SUBJ/subj.subjective", longer, f"PATH: found 17 sentences; expected 16. {FETCH}"),
    ("SST2", "SST/binary/sentiment-dev", shorter, f"PATH: found 15 sentences; expected 16. {FETCH}"),
    ("TREC", "TREC/TREC_10.label", longer, f"PATH: found 91 questions; expected 90. {FETCH}"),
    ("MRPC", "MRPC/msr_paraphrase_test.txt", shorter, f"PATH: found 35 pairs; expected 36. {FETCH}"),
    ("STS-B", "STS/STSBenchmark/sts-test.csv", longer, f"PATH: found 17 pairs; expected 16. {FETCH}"),
    ("SICK-R", "SICK/SICK_test_annotated.txt", shorter, f"PATH: found 15 pairs; expected 16. {FETCH}"),
    ("SICK-R", "SICK/SICK_test_annotated.txt", lambda lines: [], f"PATH: found 0 pairs; expected 16. {FETCH}"),
    (
        "STS12",
        STS12.format("gs"),
        shorter,
        "PATH: found 16 pairs, but 15 grades in STS.gs.MSRvid.txt; expected one grade per pair. Download both files",
    ),
    ("STS12", STS12.format("input"), longer, "PATH: found 17 pairs, but 16 grades in STS.gs.MSRvid.txt;"),
    ("STS12", STS12.format("gs"), replaced(4, ""), f"PATH: found 15 graded pairs; expected 16. {FETCH}"),
    ("STS15", STS15.format("gs"), replaced(3, "2"), f"PATH: found 17 graded pairs; expected 16. {FETCH}"),
    (
        "STS15",
        STS15.format("gs"),
        replaced(5, "4,5"),
        "PATH, line 5: the score is '4,5'; expected a number between -10^9 and 10^9.",
    ),
    (
        "STS12",
        STS12.format("gs"),
        replaced(2, "nan"),
        "PATH, line 2: the score is 'nan'; expected a number between -10^9 and 10^9.",
    ),
    ("STS12", STS12.format("input"), replaced(3, "a b"), "PATH, line 3: found 1 tab-separated field; expected 2."),
    ("STS-B", "STS/STSBenchmark/sts-test.csv", replaced(9, "g\tf\ty\ti\t1\ta"), "PATH, line 9: found 6 tab-separated"),
    ("STS-B", "STS/STSBenchmark/sts-test.csv", replaced(9, "g\tf\ty\ti\tx\ta\tb"), "PATH, line 9: the score is 'x'"),
    ("SICK-R", "SICK/SICK_test_annotated.txt", replaced(2, "1\ta\tb\thigh\tE"), "PATH, line 2: the score is 'high'; e"),
    ("SICK-R", "SICK/SICK_test_annotated.txt", replaced(3, "1\ta\tb\t3"), "PATH, line 3: found 4 tab-separated fields"),
    ("SST2", "SST/binary/sentiment-test", replaced(2, "a b\t2"), "PATH, line 2: the label is '2'; expected 0 or 1."),
    (
        "SST2",
        "SST/binary/sentiment-test",
        replaced(2, "a b 1"),
        "PATH, line 2: found 1 tab-separated field; expected 2",
    ),
    ("MRPC", "MRPC/msr_paraphrase_train.txt", replaced(3, "yes\t1\t2\ta\tb"), "PATH, line 3: the label is 'yes'; expe"),
    (
        "MRPC",
        "MRPC/msr_paraphrase_train.txt",
        replaced(3, "1\t1\t2\ta"),
        "PATH, line 3: found 4 tab-separated fields; expected 5",
    ),
    (
        "TREC",
        "TREC/train_5500.label",
        replaced(5, "DESC what is it ?"),
        "PATH, line 5: found 'DESC what is it ?'; expected",
    ),
    (
        "TREC",
        "TREC/train_5500.label",
        replaced(5, "DESC:def"),
        "found 'DESC:def'; expected CLASS:subclass and a question, with CLASS one of: ABBR, DESC, ENTY, HUM, LOC, NUM.",
    ),
    ("MR", "MR/rt-polarity.pos", replaced(6, "caf\udce9"), "PATH, line 6: not UTF-8 (byte 0xe9 at column 4)"),
]


@pytest.mark.parametrize("name, file, edit, message", DAMAGES)
def test_damaged_files_are_rejected(small, name, file, edit, message):
    path, options = small / file, dict(encoding="utf-8", errors="surrogateescape")
    load_task(small, name)
    content = path.read_bytes().decode("latin-1" if name == "TREC" else "utf-8")
    path.write_text("".join(line + "\n" for line in edit(content.split("\n")[:-1])), newline="", **options)
    shown = small / file.replace(".gs.", ".input.") if "graded" in message or "Download both" in message else path
    with raises_usage() as caught:
        load_task(small, name)
    assert message.replace("PATH", str(shown)) in str(caught.value)


@pytest.mark.parametrize("name", TASKS)
def test_missing_files_are_rejected(small, name):
    for path in load_task(small, name).files:
        hidden = path.rename(path.with_suffix(".hidden"))
        with raises_usage(found=f"{path} does not exist", needed="SentEval's data/downstream"):
            load_task(str(small), name)
        hidden.rename(path)


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


@pytest.mark.parametrize(
    "wanted, split, found, needed",
    [
        (
            ["mr", "sts17"],
            "test",
            "contains 'sts17'",
            f"names of these tasks: {', '.join(TASKS)}",
        ),
        ([""], "test", "contains ''", "all, sts, transfer"),
        (["sts-13"], "dev", "contains STS13, which has no dev split", "STS-B, SICK-R or transfer tasks"),
    ],
)
def test_unknown_tasks_are_rejected(wanted, split, found, needed):
    with raises_usage(option="tasks", found=found, needed=needed):
        chosen_tasks(wanted, split)
