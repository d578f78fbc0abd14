"""Near-duplicates: pairs, groups and the rows to keep, by hand-made vectors."""

import csv
import json
from datetime import date

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sentence_transformers import SentenceTransformer

import informin
from informin.cli import run_command
from informin.evaluation.rows import unit_rows
from informin.frozen import near_duplicates
from informin.frozen.near_duplicates import Words, is_typing_error, repeated_rows
from tests.conftest import raises_usage

TITLES = [
    "Sort a list in Java",
    "sort a lsit in JAVA",  # typing error, case
    "In Java: sort a list",  # order
    "Sort a list in Perl",  # near miss
    "   ",
    "Sort a list in Java",  # equal
]


def circle(*degrees: float) -> np.ndarray:
    """Return unit vectors (n, 2) with angles."""
    angles = np.deg2rad(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def test_pairs_groups_and_kept_rows():
    found = informin.duplicates(None, TITLES, embeddings=circle(0, 10, 20, 5, 0, 0))
    assert [pair[:2] for pair in found.pairs] == [(1, 0), (2, 0), (5, 0)]
    np.testing.assert_allclose([pair.cosine for pair in found.pairs], np.cos(np.deg2rad([10, 20, 0])), atol=1e-6)
    assert found.groups == [[0, 1, 2, 5]]
    assert found.kept == [0, 3, 4]
    assert found.threshold is None  # fewer than 100 texts


def test_with_a_threshold_only_the_cosine_counts():
    found = informin.duplicates(None, TITLES, 0.99, embeddings=circle(0, 90, 180, 5, 0, 0))
    assert [pair[:2] for pair in found.pairs] == [(3, 0), (5, 0)]
    assert found.threshold == 0.99


def test_a_threshold_of_1_finds_equal_embeddings_up_to_rounding():
    """As of two texts that differ in case alone, for a model without case."""
    for seed in range(10):
        x = np.random.default_rng(seed).normal(size=(2, 384)).astype(np.float32)
        found = informin.duplicates(None, ["Hello", "hello", "x"], 1.0, embeddings=x[[0, 0, 1]])
        assert found.pairs == [(1, 0, pytest.approx(1, abs=1e-6))]


def test_vowel_signs_are_part_of_a_word():
    """Hindi: day and donation, and a typing error in another word."""
    texts = ["\u0926\u093f\u0928 good", "\u0926\u093e\u0928 good", "\u0926\u093f\u0928 godo"]
    found = informin.duplicates(None, texts, embeddings=np.eye(3) + 1)
    assert [pair[:2] for pair in found.pairs] == [(2, 0)]


def test_an_emoji_is_not_a_word():
    """Not even its variation selector, which is a mark."""
    found = informin.duplicates(None, ["good \u2764\ufe0f day", "good day"], embeddings=np.eye(2) + 1)
    assert found.groups == [[0, 1]]


def test_a_chain_does_not_join_texts_that_differ():
    """b is near a, and c near b but not near a: c is kept. d is nearer to c than to a."""
    found = informin.duplicates(None, list("abcd"), np.cos(np.deg2rad(12)), embeddings=circle(0, 10, 20, 11))
    assert [pair[:2] for pair in found.pairs] == [(1, 0), (3, 2)]
    assert found.kept == [0, 2]
    assert found.groups == [[0, 1], [2, 3]]


@pytest.mark.parametrize("lowest", [None, 0.55])
def test_blocks_give_what_a_plain_loop_gives(monkeypatch, lowest):
    draws = np.random.default_rng(0)
    x = draws.normal(size=(300, 4)).astype(np.float32)
    words = Words([f"word{number}" for number in draws.integers(20, size=300)])
    monkeypatch.setattr(near_duplicates, "ROWS_AT_ONCE", 37)
    monkeypatch.setattr(near_duplicates, "COLUMNS_AT_ONCE", 11)
    cosines = unit_rows(x) @ unit_rows(x).T
    kept, expected = [], []
    for row in range(300):
        near = [
            other for other in kept if words.agree(other, row) and (lowest is None or cosines[row, other] >= lowest)
        ]
        if near:
            expected.append((row, max(near, key=lambda other: cosines[row, other])))
        else:
            kept.append(row)
    found = list(repeated_rows(x, lowest, words))
    assert [pair[:2] for pair in found] == expected and 20 < len(expected) < 290
    np.testing.assert_allclose([pair[2] for pair in found], [cosines[pair] for pair in expected], atol=1e-6)


def test_only_the_most_similar_rows_are_compared_by_words(monkeypatch):
    """Of rows with a cosine above the threshold, which may be all, a fixed number is compared."""
    monkeypatch.setattr(near_duplicates, "MOST_CANDIDATES", 3)
    compared = []
    monkeypatch.setattr(Words, "agree", lambda self, i, j: compared.append((j, i)))
    words = Words(["text"] * 6)
    assert list(repeated_rows(circle(0, 10, 20, 30, 40, 50), 0.1, words)) == []
    assert compared[-3:] == [(5, 4), (5, 3), (5, 2)] and len(compared) == 1 + 2 + 3 + 3 + 3


def test_the_threshold_is_one_of_unrelated_texts():
    """Two topics of 60 texts: the same words do not count across a cosine that unrelated texts reach."""
    draws = np.random.default_rng(0)
    x = np.repeat(np.eye(8, 16), 20, axis=0) + 0.1 * draws.normal(size=(160, 16))
    texts = [f"number{row}" for row in range(160)]
    texts[19], texts[100] = texts[18] + "x", texts[0] + "x"  # not letters alone: other words
    texts[18], texts[19] = "the same words", "same words, the"  # of one topic
    texts[0], texts[100] = "other equal words", "words, other equal"  # of two topics
    found = informin.duplicates(None, texts, embeddings=x)
    assert [pair[:2] for pair in found.pairs] == [(19, 18)]
    assert 0.1 < found.threshold < x[18] @ x[19] / np.linalg.norm(x[18]) / np.linalg.norm(x[19])


@pytest.mark.parametrize(
    "word, other, expected",
    [
        ("list", "lsit", True),  # swapped
        ("list", "lst", True),  # missing
        ("lst", "list", True),
        ("list", "liist", True),  # added
        ("list", "lizt", True),  # wrong
        ("list", "lists", True),
        ("list", "mist", False),  # the first letter
        ("list", "lost1", False),
        ("2008", "2009", False),
        ("c", "ch", False),
        ("cat", "car", False),
        ("listen", "lisetm", False),  # two errors
        ("\u0915\u093f\u0924\u093e\u092c", "\u0915\u093f\u0924\u092c", True),  # Hindi with vowel signs
    ],
)
def test_typing_errors(word, other, expected):
    assert is_typing_error(word, other) == expected


@pytest.mark.parametrize(
    "text, expected",
    [
        ("Update a row of the table", True),
        ("update row of table", True),  # without common words
        ("table row the UPDATE a of", True),
        ("Update a column of the table", False),
        ("Update a row of a table", True),  # the other lacks one
        ("Update the row of this table", False),  # a common word replaced by another
        ("Do not update a row of the table", False),  # a negation is never common
        ("Don\u2019t update a row of the table", False),
        ("Update a row of the table twice", False),
        ("the of a", False),
        ("!", False),
    ],
)
def test_words_agree(text, expected):
    """Words in 5% of 200 texts are common: the, of, a, this, do, not, don't."""
    others = ["the of a this do not don't"] * 10 + [f"other{number}" for number in range(188)]
    words = Words(["Update a row of the table", text, *others])
    assert words.agree(0, 1) == words.agree(1, 0) == expected


@pytest.mark.parametrize(
    "text, expected",
    [
        ("the table", True),
        ("row table a the", True),
        ("the table of", False),
        ("table a the of row", False),
        ("the", False),
    ],
)
def test_common_words_are_at_most_half_of_a_text(text, expected):
    """One of them is always allowed, but not as the whole text."""
    rest = " ".join(word for word in text.split() if word in ("table", "row"))
    words = Words([rest, text, *["the of a"] * 10])
    assert words.agree(0, 1) == words.agree(1, 0) == expected


@pytest.mark.parametrize("number", [4, 5])
def test_a_word_is_common_in_five_texts(number):
    words = Words(["row", "the row", *["the"] * (number - 1)])
    assert words.agree(0, 1) == (number == 5)


def test_characters_are_words_where_no_spaces_are():
    words = Words(["東京の天気", "天気の東京", "京都の天気"])
    assert words.agree(0, 1) and not words.agree(0, 2)


def test_blank_texts_may_have_vectors_or_not():
    x = circle(0, 10, 20, 5, 77, 0)
    of_all = informin.duplicates(None, TITLES, embeddings=x)
    assert informin.duplicates(None, TITLES, embeddings=np.delete(x, 4, axis=0)) == of_all


def test_a_model_embeds_the_texts(static):
    texts = ["a young man", "A man, young", "a boy", "a boy"]
    model = SentenceTransformer(str(static), device="cpu")
    found = informin.duplicates(model, texts)
    assert [pair[:2] for pair in found.pairs] == [(1, 0), (3, 2)]
    vectors = unit_rows(model.encode(texts))
    assert found.pairs[0].cosine == pytest.approx(float(vectors[0] @ vectors[1]), abs=1e-6)


def test_errors():
    with raises_usage("threshold"):
        informin.duplicates(None, ["a"], 1.5, embeddings=circle(0))
    with raises_usage("model_name"):
        informin.duplicates(None, ["a"])
    with raises_usage("train_file"):
        informin.duplicates(None, [" "], embeddings=circle(0))
    with raises_usage("embeddings"):
        informin.duplicates(None, ["a", "b"], embeddings=circle(0))


@pytest.fixture
def given(tmp_path) -> list[str]:
    """Options with the titles, their ids and embeddings."""
    with open(tmp_path / "titles.csv", "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "number"), *((title, f"t{row}") for row, title in enumerate(TITLES))])
    np.save(tmp_path / "x.npy", circle(0, 10, 20, 5, 0, 0))
    return ["--train_file", f"{tmp_path}/titles.csv", "--embeddings", f"{tmp_path}/x.npy", "--id_column", "number"]


def test_command_prints_groups(given, capsys):
    assert run_command("duplicates", *given) == 0
    out = capsys.readouterr().out
    assert [line.split()[-1] for line in out.splitlines() if "  " in line] == ["t0]", "t1]", "t2]", "t5]"]
    assert "3 of 6 texts" in out and "0.985" in out
    assert run_command("duplicates", *given, "--format", "json") == 0
    (group,) = json.loads(capsys.readouterr().out)
    assert group[0] == {"row": 0, "id": "t0", "text": TITLES[0]}
    assert group[1] == {"row": 1, "id": "t1", "cosine": 0.9848, "text": TITLES[1]}


def test_control_characters_of_ids_do_not_reach_the_terminal(given, tmp_path, capsys):
    content = (tmp_path / "titles.csv").read_text()
    (tmp_path / "titles.csv").write_text(content.replace("t1", "\x1b[2Jt1"))
    assert run_command("duplicates", *given) == 0
    assert "id \ufffd[2Jt1]" in capsys.readouterr().out


def test_a_large_group_does_not_fill_the_screen(tmp_path, capsys):
    (tmp_path / "titles.txt").write_text("Sort a list in Java\n" * 200)
    np.save(tmp_path / "x.npy", circle(*[0] * 200))
    options = ["--train_file", f"{tmp_path}/titles.txt", "--embeddings", f"{tmp_path}/x.npy"]
    assert run_command("duplicates", *options) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) < 20 and any("190 more" in line for line in lines)
    assert run_command("duplicates", *options, "--format", "json") == 0
    assert len(json.loads(capsys.readouterr().out)[0]) == 200


def test_ids_of_a_table_may_be_dates(given, tmp_path, capsys):
    days = [date(2026, 11, day) for day in range(1, 7)]
    pq.write_table(pa.table({"text": TITLES, "number": days}), tmp_path / "titles.parquet")
    options = [word.replace("titles.csv", "titles.parquet") for word in given]
    assert run_command("duplicates", *options, "--format", "json") == 0
    (group,) = json.loads(capsys.readouterr().out)
    assert [member["id"] for member in group][:2] == ["2026-11-01", "2026-11-02"]


def test_a_text_without_an_id_shows_its_row_alone(given, tmp_path, capsys):
    pq.write_table(pa.table({"text": TITLES, "number": [0, None, 2, 3, 4, 5]}), tmp_path / "titles.parquet")
    assert run_command("duplicates", *(word.replace("titles.csv", "titles.parquet") for word in given)) == 0
    shown = [line.partition("  [")[2] for line in capsys.readouterr().out.splitlines() if "  [" in line]
    assert shown == ["row 0, id 0]", "row 1]", "row 2, id 2]", "row 5, id 5]"]


def test_command_writes_a_table(given, tmp_path, capsys):
    table = tmp_path / "new" / "table.csv"
    assert run_command("duplicates", *given, "--output", str(table)) == 0
    with open(table, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["text"] for row in rows] == [title.strip() for title in TITLES]
    assert [row["duplicate_of"] for row in rows] == ["", "0", "0", "", "", "0"]
    assert [row["id"] for row in rows] == [f"t{row}" for row in range(6)]
    assert rows[1]["cosine"] == "0.9848"
    before = table.read_bytes()
    assert run_command("duplicates", *given, "--output", str(table)) == 2
    assert "--output" in capsys.readouterr().err
    assert run_command("duplicates", *given, "--output", str(table), "--overwrite", "--threshold", "0.99") == 0
    assert table.read_bytes() != before


def test_a_table_keeps_every_sign_of_a_text(tmp_path):
    texts = ["one\rtwo", 'a "quoted" text, with a comma', "three\nfour\r\nfive", "plain"]
    informin.duplicates(None, texts, threshold=1, embeddings=np.eye(4)).save(tmp_path / "table.csv")
    with open(tmp_path / "table.csv", encoding="utf-8", newline="") as file:
        assert [row["text"] for row in csv.DictReader(file)] == texts
    assert (tmp_path / "table.csv").read_bytes().endswith(b",plain\n")


def test_ids_of_a_series_are_taken_by_position(tmp_path):
    """As of rows that were sorted, whose labels are in another order."""
    result = informin.duplicates(None, ["a b", "a c"], 0.9, embeddings=np.eye(2))
    result.save(tmp_path / "table.csv", ids=pd.Series(["first", "second"], index=[1, 0]))
    assert [row["id"] for row in csv.DictReader((tmp_path / "table.csv").open())] == ["first", "second"]
    with raises_usage(option="ids"):
        result.save(tmp_path / "other.csv", ids=["first", "second", "third"])


def test_command_replaces_only_its_own_tables(given, tmp_path, capsys):
    """The file of the texts is one, too."""
    texts = tmp_path / "titles.csv"
    before = texts.read_bytes()
    assert run_command("duplicates", *given, "--output", str(texts), "--overwrite") == 2
    assert texts.read_bytes() == before and "--output" in capsys.readouterr().err
    assert run_command("duplicates", *given, "--output", str(tmp_path / "table.txt")) == 2
    assert not (tmp_path / "table.txt").exists()


def test_a_table_in_the_folder_of_the_texts_is_not_read_as_texts(given, tmp_path, capsys):
    (tmp_path / "all").mkdir()
    (tmp_path / "titles.csv").rename(tmp_path / "all" / "titles.csv")
    words = ["duplicates", f"--train_file={tmp_path}/all", *given[2:4], f"--output={tmp_path}/all/d.csv"]
    assert run_command(*words) == 0
    capsys.readouterr()
    assert run_command(*words, "--overwrite") == 2
    assert capsys.readouterr().err.startswith("error: --output ")


def test_command_needs_a_model_or_embeddings(given, capsys):
    assert run_command("duplicates", *given[:2]) == 2
    assert "--model_name" in capsys.readouterr().err
    assert run_command("duplicates", *given, "--pooler", "cls") == 2
    assert "--pooler" in capsys.readouterr().err
