"""Texts that are added and removed: rows, ids, blank texts, the request to erase, and threads."""

import datetime
import json
import math
import threading
from decimal import Decimal
from uuid import UUID

import numpy as np
import pandas
import pytest
import torch
from sentence_transformers import SentenceTransformer

from informin.cli import run_command
from informin.frozen.index import Index
from informin.frozen.index_entries import new_entries
from informin.frozen.index_files import DATA
from tests.conftest import make_sentences, raises_usage, save_letters
from tests.frozen.test_index import QUERIES, rows_of


def test_added_and_removed_texts(built, st_mean, texts, tmp_path):
    built.save(tmp_path)
    index = Index.load(tmp_path)
    assert index.add(["a zyzzyva", "the zyzzyva sleeps"]).tolist() == [150, 151]
    index.remove([3, 150])
    index.save(tmp_path)
    index = Index.load(tmp_path)
    rows = [*range(3), *range(4, 150), 151]
    new = Index.build(st_mean, [*(texts[row] for row in rows[:-1]), "the zyzzyva sleeps"])
    assert index.rows.tolist() == rows
    assert rows_of(index, ["zyzzyva"], 1) == [[151]]
    for hits, others in zip(index.search(QUERIES), new.search(QUERIES)):
        np.testing.assert_allclose([hit.score for hit in hits], [hit.score for hit in others], atol=1e-3)
        assert [hit.text for hit in hits] == [hit.text for hit in others]
    index.remove([151])
    assert index.add(["cat"]).tolist() == [152]  # no number is used twice
    assert len(list(tmp_path.glob(f"{DATA}*"))) == 1


def test_the_threshold_is_that_of_the_texts_that_are_left(built, st_mean, texts, tmp_path):
    """Also if their number is the same as before."""
    built.save(tmp_path)
    index = Index.load(tmp_path)
    others = make_sentences(150, seed=5)
    index.add(others)
    index.remove(range(150))
    assert index.threshold == pytest.approx(Index.build(st_mean, others).threshold, abs=1e-4) != built.threshold


@pytest.mark.parametrize("rows", [[150], [-1], [0, 999]])
def test_removed_rows_must_exist(built, rows):
    with raises_usage("rows"):
        built.remove(rows)
    assert len(built) == 150


def mask(rows: list[int]) -> np.ndarray:
    found = np.zeros(150, bool)
    found[rows] = True
    return found


@pytest.mark.parametrize(
    "form",
    [
        set,
        tuple,
        iter,
        np.array,
        mask,
        lambda rows: mask(rows).tolist(),
        lambda rows: dict.fromkeys(rows).keys(),
        lambda rows: (row for row in rows),
        lambda rows: np.array(rows, np.uint8),
        lambda rows: [rows[0], *rows],
        torch.tensor,
        lambda rows: torch.from_numpy(mask(rows)),
    ],
    ids=[
        "set",
        "tuple",
        "iterator",
        "array",
        "mask",
        "list of booleans",
        "keys",
        "generator",
        "bytes",
        "twice",
        "tensor",
        "tensor mask",
    ],
)
def test_rows_to_remove_in_any_form(few, form):
    few.remove(form([4, 9]))
    assert sorted(set(range(150)) - set(few.rows.tolist())) == [4, 9]


@pytest.fixture
def few(built) -> Index:
    """An index that a test may change."""
    return Index(built.model, built._state)


@pytest.mark.parametrize("kind", [int, np.int64, np.array, torch.tensor])
def test_one_row_is_removed(few, kind):
    row = few.search("the dog")[0].row
    few.remove(kind(row))
    assert len(few) == 149 and row not in few.rows


@pytest.mark.parametrize(
    "rows", [[1.5], ["4"], "4", [True, 3], [[1, 2]], np.zeros(149, bool), np.zeros((2, 2), bool), [None]], ids=repr
)
def test_what_is_not_rows_is_an_error(few, rows):
    with raises_usage("rows"):
        few.remove(rows)
    assert len(few) == 150


@pytest.mark.parametrize("rows", [[], set(), np.zeros(150, bool), np.array([])], ids=repr)
def test_no_rows_remove_nothing(few, rows):
    few.remove(rows)
    assert len(few) == 150


def test_all_rows_cannot_be_removed(few):
    with raises_usage():
        few.remove(few.rows)
    assert len(few) == 150


@pytest.mark.parametrize(
    "left", [["the old house"], ["the old house"] * 9, ["zyzzyva", "qq"]], ids=["one", "equal", "unknown"]
)
def test_few_texts_are_left_with_static_queries(st_mean, tmp_path, left):
    """A request to erase is not refused because the rest is too little to fit static embeddings to."""
    texts = [*left, *make_sentences(20)]
    index = Index.build(st_mean, texts, queries="static")
    index.remove(range(len(left), len(texts)))
    assert sorted(hit.text for hit in index.search("the old house", 20)) == sorted(left)
    index.save(tmp_path)
    index = Index.load(tmp_path)
    assert len(index) == len(left)
    index.add(make_sentences(20))
    assert index.search(texts[-1], 1)[0].text == texts[-1]
    with raises_usage("queries"):
        Index.build(st_mean, left, queries="static")


def test_blank_texts_are_left_out(st_mean):
    index = Index.build(st_mean, ["the dog", " ", "a cat", ""])
    assert index.rows.tolist() == [0, 2] and index.texts == ["the dog", "a cat"]
    assert index.add(["", "a bird", "\n"]).tolist() == [5]
    assert index.add([" "]).tolist() == []
    assert index.add(["a man"]).tolist() == [8]
    assert index.texts == ["the dog", "a cat", "a bird", "a man"]


def test_only_blank_texts(st_mean):
    with raises_usage("texts"):
        Index.build(st_mean, [" "])


def test_ids_and_fields(st_mean, tmp_path):
    titles = [{"title": "Dogs"}, {"title": "Cats", "url": None}, {}]
    index = Index.build(st_mean, ["the dog", "a cat", "a bird"], ids=["d", np.int64(7), None], fields=titles)
    index.add(["a man", " ", "a woman"], ids=["m", "blank", "w"], fields=[{"title": "Men"}, {}, {}])
    index.remove([1])
    index.save(tmp_path)
    index = Index.load(tmp_path)
    found = {hit.text: (hit.id, hit.fields) for hit in index.search("the dog", 10)}
    assert found == {
        "the dog": ("d", {"title": "Dogs"}),
        "a bird": (None, {}),
        "a man": ("m", {"title": "Men"}),
        "a woman": ("w", {}),
    }
    assert index.ids == ["d", None, "m", "w"] and index.fields[0] == {"title": "Dogs"}


def test_a_changed_hit_does_not_change_the_index(st_mean):
    index = Index.build(st_mean, ["the dog", "a cat"], fields=[{"title": "Dogs", "tags": ["a"]}, {}])
    (hit,) = index.search("the dog", 1)
    hit.fields["tags"].append("b")
    hit.fields.pop("title")
    assert index.search("the dog", 1)[0].fields == index.fields[0] == {"title": "Dogs", "tags": ["a"]}


@pytest.mark.parametrize("option", ["ids", "fields"])
def test_ids_and_fields_that_do_not_fit(st_mean, option):
    one = {"ids": ["a"], "fields": [{}]}
    with raises_usage(option):
        Index.build(st_mean, ["the dog", "a cat"], **{option: one[option]})
    with raises_usage("ids"):
        Index.build(st_mean, ["the dog", "a cat"], ids={"a", "b"})  # in another order in each process
    unsaved = {"ids": [b"a"], "fields": [{"a": object()}]}
    with raises_usage(option):
        Index.build(st_mean, ["the dog"], **{option: unsaved[option]})


def test_ids_and_fields_are_the_same_after_saving(st_mean, tmp_path):
    day = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc)
    fields = [
        {"when": day, "day": day.date(), "price": Decimal("1.10"), "size": (1, np.float32(0.5)), "of": {1: math.nan}},
        {"when": np.datetime64("2026-01-02"), "price": np.nan, "key": UUID(int=7), "flag": np.bool_(True)},
    ]
    index = Index.build(st_mean, ["the dog", "a cat"], ids=[math.nan, day.date()], fields=fields)
    index.save(tmp_path)
    assert index.ids == Index.load(tmp_path).ids == [None, "2026-01-02"]
    assert index.fields == Index.load(tmp_path).fields
    assert index.fields == [
        {
            "when": "2026-01-02T03:04:05+00:00",
            "day": "2026-01-02",
            "price": "1.10",
            "size": [1, 0.5],
            "of": {"1": None},
        },
        {"when": "2026-01-02", "price": None, "key": str(UUID(int=7)), "flag": True},
    ]


@pytest.mark.parametrize(
    "missing",
    [np.datetime64("NaT"), np.datetime64("NaT", "ns"), np.timedelta64("NaT"), np.float32("nan"), np.ma.masked]
    + [pandas.NaT, pandas.NA, Decimal("NaN"), math.nan, None],
    ids=repr,
)
def test_missing_values_are_none(missing):
    entries = new_entries(["the dog", "a cat"], [missing, 1], [{"a": missing, "b": [missing, 2]}, {}])
    assert entries.ids == [None, 1] and entries.fields == [{"a": None, "b": [None, 2]}, {}]


@pytest.mark.parametrize("value", [b"a", math.inf, {"a": object()}, "no mapping"])
def test_fields_that_json_cannot_hold(st_mean, value):
    with raises_usage("fields"):
        Index.build(st_mean, ["the dog"], fields=[value if value == "no mapping" else {"a": value}])


def test_hits_are_strict_json(st_mean, tmp_path, capsys):
    """Other programs refuse NaN, which a column of numbers in a Parquet file may have."""
    import pyarrow
    from pyarrow.parquet import write_table

    columns = {"text": ["the dog", "a cat"], "size": [math.nan, 1.5], "day": [datetime.date(2026, 1, 2), None]}
    write_table(pyarrow.table(columns), tmp_path / "texts.parquet")
    options = ["--model_name", str(st_mean), "--train_file", str(tmp_path / "texts.parquet"), "--id_column", "size"]
    assert run_command("index", *[*options, "--keep", "day,size", "--output_dir", str(tmp_path / "index")]) == 0
    capsys.readouterr()
    assert run_command("search", *["the dog", "--index", str(tmp_path / "index"), "--format", "json"]) == 0
    hits = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    found = {hit["text"]: (hit["id"], hit["fields"]) for hit in hits}
    assert found == {
        "the dog": (None, {"day": "2026-01-02", "size": None}),
        "a cat": (1.5, {"day": None, "size": 1.5}),
    }


@pytest.mark.parametrize(
    ("asked", "option"),
    [
        (["--id_column", "nope"], "--id_column"),
        (["--keep", "nope"], "--keep"),
        (["--keep", "raw"], "--keep"),
        (["--id_column", "raw"], "--id_column"),
        (["--text_column", "blank"], "--train_file"),
    ],
)
def test_errors_of_columns_name_their_option(st_mean, tmp_path, capsys, asked, option):
    import pyarrow
    from pyarrow.parquet import write_table

    write_table(pyarrow.table({"text": ["the dog"], "raw": [b"a"], "blank": [" "]}), tmp_path / "texts.parquet")
    options = ["--model_name", str(st_mean), "--train_file", str(tmp_path / "texts.parquet")]
    assert run_command("index", *[*options, *asked, "--output_dir", str(tmp_path / "index")]) == 2
    assert capsys.readouterr().err.startswith(f"error: {option} ")


@pytest.mark.parametrize("query", ["", " \n"])
def test_a_blank_query_is_an_error(built, tmp_path, capsys, query):
    built.save(tmp_path)
    assert run_command("search", *[query, "--index", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_blank_query_has_no_hits(built):
    first, blank, last = built.search(["the dog", " ", "a cat"], 3)
    assert [hit.row for hit in first] == [hit.row for hit in built.search("the dog", 3)]
    assert [hit.row for hit in last] == [hit.row for hit in built.search("a cat", 3)]
    assert blank == []
    assert built.search("\n") == []


def test_words_of_a_query_need_no_quotes(built, tmp_path, capsys):
    built.save(tmp_path)
    shown = []
    for words in (["the", "dog"], ["the dog"]):
        assert run_command("search", *[*words, "--index", str(tmp_path)]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1] != ""


@pytest.mark.parametrize("option", ["--id_column", "--keep"])
def test_a_column_without_a_name(st_mean, option, tmp_path):
    """As in a table of pandas; a variable of the shell that is not set names it, too, and is not ignored."""
    (tmp_path / "texts.csv").write_text(",text\na,the dog\nb,a cat\n")
    words = ["index", f"--model_name={st_mean}", f"--train_file={tmp_path}/texts.csv", f"--output_dir={tmp_path}/index"]
    assert run_command(*words, option, "") == 0
    index = Index.load(tmp_path / "index")
    assert (index.ids if option == "--id_column" else [fields[""] for fields in index.fields]) == ["a", "b"]


def test_the_option_prompt_is_for_texts_and_queries(st_mean, tmp_path):
    (tmp_path / "texts.txt").write_text("the dog\na cat\n")
    model = SentenceTransformer(str(st_mean), device="cpu", prompts={"query": "old ", "document": "small "})
    model.save_pretrained(str(tmp_path / "model"))
    words = ["index", f"--model_name={tmp_path}/model", f"--train_file={tmp_path}/texts.txt"]
    assert run_command(*words, "--prompt", "", "--output_dir", str(tmp_path / "index")) == 0
    index = Index.load(tmp_path / "index")
    np.testing.assert_allclose(index.embed_queries(["the dog"]), index.documents[:1], atol=1e-3)


def test_columns_of_ids_and_fields(st_mean, tmp_path, capsys):
    rows = "key,text,title,url\n7,the dog,Dogs,http://dogs\n8, ,Blank,\n9,a cat,Cats,\n"
    (tmp_path / "texts.csv").write_text(rows)
    options = ["--model_name", str(st_mean), "--train_file", str(tmp_path / "texts.csv")]
    folder = str(tmp_path / "index")
    kept = ["--id_column", "key", "--keep", "title, url"]
    assert run_command("index", *[*options, "--output_dir", folder, *kept]) == 0
    index = Index.load(folder)
    assert index.ids == ["7", "9"]
    assert index.fields == [{"title": "Dogs", "url": "http://dogs"}, {"title": "Cats", "url": None}]
    capsys.readouterr()
    assert run_command("search", *["the dog", "--index", folder]) == 0
    printed = {line.strip() for line in capsys.readouterr().out.splitlines()}
    assert {"the dog  [row 0, id 7]", "title: Dogs", "url: http://dogs", "a cat  [row 2, id 9]"} < printed
    assert len(printed) == 7, "a line with scores and one with the text for each hit, and the three fields"
    assert run_command("search", *["the dog", "--index", folder, "--format", "json"]) == 0
    found = {hit["id"]: hit["fields"] for hit in json.loads(capsys.readouterr().out)}
    assert found == dict(zip(index.ids, index.fields))
    assert run_command("index", *[*options, "--output_dir", str(tmp_path / "other"), "--keep", "author"]) == 2
    (tmp_path / "texts.txt").write_text("the dog\na cat\n")
    options[-1] = str(tmp_path / "texts.txt")
    assert run_command("index", *[*options, "--output_dir", str(tmp_path / "other"), *kept]) == 2


def test_rows_of_hits_are_lines_of_the_file(st_mean, tmp_path):
    """As `build` counts the texts of a list: blank ones keep their numbers."""
    lines = ["the dog", "", "a cat", " ", "the bird"]
    (tmp_path / "texts.txt").write_text("\n".join(lines) + "\n")
    options = ["--model_name", str(st_mean), "--train_file", str(tmp_path / "texts.txt")]
    assert run_command("index", *[*options, "--output_dir", str(tmp_path / "index")]) == 0
    index = Index.load(tmp_path / "index")
    assert index.rows.tolist() == Index.build(st_mean, lines).rows.tolist() == [0, 2, 4]
    assert [lines[hit.row] for hit in index.search("a bird")] == [hit.text for hit in index.search("a bird")]
    assert index.add(["a man"]).tolist() == [5]


SECRET = "quarkolepton"


def files_with(folder, text: str) -> list[str]:
    found = (path for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes())
    return [path.name for path in found]


@pytest.mark.parametrize("queries", ["model", "static"])
def test_nothing_of_a_removed_text_remains(tmp_path, queries):
    save_letters(tmp_path / "model")
    texts = make_sentences(150)
    secret = [f"{SECRET} dog", f"a {SECRET}"]
    hidden = [{"title": f"{SECRET} title"}] * 2
    index = Index.build(tmp_path / "model", [*texts, *secret], fields=[{}] * 150 + hidden, smooth=True, queries=queries)
    vector = index.vectors[-1].tobytes()
    index.save(tmp_path / "index")
    assert files_with(tmp_path / "index", SECRET)
    index = Index.load(tmp_path / "index")
    index.remove([150, 151])
    index.save(tmp_path / "index")
    assert files_with(tmp_path / "index", SECRET) == []
    assert not any(vector in path.read_bytes() for path in (tmp_path / "index").rglob("*.npy"))
    new = Index.build(tmp_path / "model", texts, smooth=True, queries=queries)
    new.save(tmp_path / "new")
    for path in (tmp_path / "index").rglob("*.npy"):  # all that is computed is as if the texts had never been there
        (same,) = (tmp_path / "new").rglob(path.name)
        assert path.read_bytes() == same.read_bytes(), path.name
    assert Index.load(tmp_path / "index").search(QUERIES) == new.search(QUERIES)


def test_a_large_vocabulary_does_not_tell_which_tokens_removed_texts_had(st_mean, tmp_path, monkeypatch):
    from informin.frozen import index_model as fitting
    from informin.frozen import static as table_module

    monkeypatch.setattr(table_module, "VOCABULARY", 9)
    monkeypatch.setattr(fitting, "VOCABULARY", 9)
    texts = ["the dog sees a cat", "a small dog", "the cat"] * 5
    index = Index.build(st_mean, [*texts, "an old house"], queries="static")
    house = index.static_queries.tokenizer.token_to_id("house")
    assert index.static_queries.alone[house].any() and index.static_queries.rows[house].any()
    index.remove([15])
    assert not index.static_queries.alone[house].any() and not index.static_queries.rows[house].any()


def test_searches_in_threads_see_the_old_or_the_new_index(few):
    """Each text is at its row, whenever a search runs."""
    known = dict(zip(few.rows.tolist(), few.texts))
    wrong, stop = [], threading.Event()

    def read():
        while not stop.is_set():
            try:
                wrong.extend(hit for hit in few.search("the dog", 150) if known[hit.row] != hit.text)
                few.sparse_queries(["the dog"])
            except Exception as error:
                wrong.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(12):
        text = f"the dog sees the {'big ' * number}cat"
        known[few.record.next_row] = text
        (row,) = few.add([text])
        few.remove([int(few.rows[number % 20])])
        assert row in few.rows
    stop.set()
    for reader in readers:
        reader.join()
    assert wrong == []


def test_changes_in_threads_do_not_get_lost(few):
    def add(number: int):
        few.add([f"the {'big ' * number}dog"])

    threads = [threading.Thread(target=add, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert few.rows.tolist() == list(range(154))
