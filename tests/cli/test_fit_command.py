"""What `informin fit`, `embed` and `compare` check before the long work, and the list of rows that they write."""

import csv
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from informin import program
from informin.cli import analyze, compare, embed, fit, study, train
from informin.jobs.given_vectors import check_vectors
from informin.jobs.source_rows import SourceRows
from informin.models.open_model import load_model
from tests.conftest import make_sentences, raises_usage
from tests.models.any_encoder.st_models import static

TEXTS = make_sentences(40)
pytestmark = pytest.mark.usefixtures("logging_as_before")


@pytest.fixture(scope="module", params=["native", "st"])
def encoder(request, bert, tmp_path_factory):
    if request.param == "native":
        return load_model(str(bert), ["mean"], device="cpu")
    return load_model(str(static(tmp_path_factory.mktemp("models") / "words")), device="cpu")


def embedded(encoder, texts=TEXTS) -> np.ndarray:
    (pooler,) = encoder.poolers
    return encoder(texts)[pooler]


def test_vectors_of_the_model_pass_however_they_are_stored(encoder):
    vectors = embedded(encoder)
    small = np.abs(vectors).max() / 127
    kinds = {"float16": vectors.astype(np.float16), "int8": np.round(vectors / small) * small, "scaled": 7 * vectors}
    for seed, stored in enumerate([vectors, *kinds.values()]):
        check_vectors("x.npy", stored, TEXTS, encoder, seed)
    alike = ["the dog"] * 40
    check_vectors("x.npy", embedded(encoder, alike).astype(np.float16), alike, encoder)


@pytest.mark.parametrize("wrong", ["order", "shifted", "model", "texts", "prompt"])
def test_other_vectors_are_refused(encoder, wrong):
    vectors = embedded(encoder)
    others = {
        "order": vectors[::-1],
        "shifted": np.roll(vectors, 1, axis=0),
        "model": np.random.default_rng(0).normal(size=vectors.shape),
        "texts": embedded(encoder, make_sentences(40, seed=7)),
        "prompt": embedded(encoder.with_prompt("small bird today: ")),
    }
    with raises_usage(option="embeddings", found=f"x.npy does not have the embeddings of {encoder.name}"):
        check_vectors("x.npy", others[wrong], TEXTS, encoder)


def test_other_vectors_are_refused_where_all_are_alike(encoder):
    class Alike:
        name, poolers, dimensions = "m", ["mean"], encoder.dimensions
        truncated, length = set[str](), 64

        def __call__(self, texts):
            return {"mean": embedded(encoder, texts) + 30}

    vectors = Alike()(TEXTS)["mean"]
    check_vectors("x.npy", vectors, TEXTS, Alike())
    with raises_usage(option="embeddings", found="x.npy does not have the embeddings of m"):
        check_vectors("x.npy", vectors[::-1], TEXTS, Alike())


def test_vectors_of_another_width_are_refused(encoder):
    with raises_usage(option="embeddings", found=f"has 5 dimensions, and {encoder.name} has {encoder.dimensions}"):
        check_vectors("x.npy", np.ones((40, 5)), TEXTS, encoder)


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Texts with blank rows in three formats, and one vector per text."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("\n".join(["", TEXTS[0], "  ", *TEXTS[1:4], ""]) + "\n")
    (tmp_path / "b.csv").write_text("id,text\n" + "".join(f"{i},{text}\n" for i, text in enumerate(["", *TEXTS[4:6]])))
    pq.write_table(pa.table({"text": [TEXTS[6], None, *TEXTS[7:]]}), tmp_path / "c.parquet")
    np.save("x.npy", np.random.default_rng(0).normal(size=(40, 6)))
    return ["a.txt", "b.csv", "c.parquet"]


def listed(path: str) -> list[tuple[str, int]]:
    with open(path, newline="") as file:
        header, *rows = csv.reader(file, delimiter="\t")
    assert header[:2] == ["file", "row"]
    return [(name, int(row)) for name, row, *_ in rows]


EXPECTED = [
    *(("a.txt", row) for row in (1, 3, 4, 5)),
    *(("b.csv", row) for row in (1, 2)),
    *(("c.parquet", row) for row in (0, *range(2, 35))),
]


def test_fit_lists_the_rows_of_its_texts(files, capsys):
    options = ["--embeddings", "x.npy", "--output_dir", "o", "--train_file"]
    assert fit.main([*options, *files]) == 0
    shown = capsys.readouterr().out
    assert (
        shown.startswith("5 blank rows skipped, 40 texts left.") and "o/documents.rows.tsv: the file and row" in shown
    )
    assert listed("o/documents.rows.tsv") == EXPECTED and len(np.load("o/documents.npy")) == 40
    lines = Path("o/documents.rows.tsv").read_text().splitlines()
    assert lines[:2] == ["file\trow\tid", "a.txt\t1\t"] and lines[5:7] == ["b.csv\t1\t1", "b.csv\t2\t2"]


def test_without_blank_rows_there_is_no_list(files, tmp_path, capsys):
    (tmp_path / "d.txt").write_text("\n".join(TEXTS))
    assert fit.main(["--embeddings", "x.npy", "--output_dir", "o", "--train_file", "d.txt"]) == 0
    assert "blank" not in capsys.readouterr().out and not (tmp_path / "o" / "documents.rows.tsv").exists()


def test_embed_lists_the_rows_and_replaces_no_other_list(files, bert, tmp_path, capsys):
    options = ["--model_name", str(bert), "--pooler", "mean", "--output", "e.npy", "--train_file", *files]
    (tmp_path / "e.rows.tsv").write_text("mine")
    assert embed.main(options) == 2
    assert "e.rows.tsv exists and lists other rows" in capsys.readouterr().err
    assert (tmp_path / "e.rows.tsv").read_text() == "mine" and not (tmp_path / "e.npy").exists()
    (tmp_path / "e.rows.tsv").unlink()
    for _ in range(2):
        assert embed.main(options) == 0
        assert "5 blank rows skipped, 40 texts left." in capsys.readouterr().out
        assert listed("e.rows.tsv") == EXPECTED and len(np.load("e.npy")) == 40


def test_names_of_files_are_quoted(tmp_path):
    SourceRows([("a\tb\n.txt", [3]), ("\udcff.txt", [5])], blank=1).save(tmp_path / "x.npy")
    assert listed(tmp_path / "x.rows.tsv") == [("a\tb\n.txt", 3), ("\\udcff.txt", 5)]


@pytest.mark.parametrize("model", [True, False])
def test_fewer_vectors_than_texts_are_refused_before_the_model_is_loaded(files, capsys, model):
    np.save("x.npy", np.ones((39, 6)))
    options = ["--embeddings", "x.npy", "--output_dir", "o", "--train_file", *files]
    assert fit.main([*options, *(["--model_name", "no/model"] if model else [])]) == 2
    assert "x.npy has 39 rows, and there are 40 texts" in capsys.readouterr().err


SEEDS = {
    "fit": (fit, ["--embeddings", "x.npy", "--output_dir", "o", "--seed"]),
    "compare": (compare, ["x.npy", "--train_file", "a.txt", "--seed"]),
    "analyze": (analyze, ["tsne", "--model_name", "m", "--train_file", "a.txt", "--seed"]),
    "train": (train, ["--model_name", "m", "--train_file", "a.txt", "--output_dir", "o", "--seed"]),
    "study": (study, ["study.yaml", "--output", "o", "--seeds", "3"]),
}


@pytest.mark.parametrize("seed", [-1, 2**32, -(2**70)])
@pytest.mark.parametrize("command", SEEDS)
def test_a_seed_out_of_range_is_one_line(files, bert, tmp_path, capsys, command, seed):
    main, options = SEEDS[command]
    (tmp_path / "study.yaml").write_text(f"recipes: {{a: {{}}}}\nbase: {{model_name: {bert}}}\nseeds: [1]\n")
    options = [str(bert) if word == "m" else word for word in options]
    assert main.main([*options, str(seed)]) == 2
    error = capsys.readouterr().err.strip()
    assert "--seed" in error and str(seed) in error and "4294967295" in error and error.count("\n") == 0
    assert not (tmp_path / "o").exists()


def test_the_largest_seed_is_accepted(files):
    assert fit.main(["--embeddings", "x.npy", "--output_dir", "o", "--seed", str(program.LARGEST_SEED)]) == 0


@pytest.mark.parametrize("place", [0, -1])
@pytest.mark.parametrize("command", SEEDS)
def test_words_that_are_not_utf_8_are_one_line(files, tmp_path, capsys, command, place):
    main, options = SEEDS[command]
    words = [*options, "1"]
    words.insert(len(words) + place if place else 0, "\udcff.npy")
    try:
        code = main.main(words)
    except SystemExit as error:
        code = error.code
    assert code == 2
    assert capsys.readouterr().err == "error: \\udcff.npy is not UTF-8. Rename it, or write it in UTF-8.\n"
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("command", ["fit", "compare"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_vectors_that_are_not_finite_are_one_line(files, tmp_path, capsys, command, value):
    vectors = np.load("x.npy")
    vectors[7, 3] = value
    np.save("x.npy", vectors)
    main, options = SEEDS[command]
    assert main.main([*options, "1"]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert "x.npy contains NaN or infinity (first in row 7)" in error and not (tmp_path / "o").exists()


@pytest.mark.parametrize("power", [-300, 300])
def test_fit_reports_on_vectors_of_any_length(files, tmp_path, power):
    np.save("x.npy", np.load("x.npy") * 10.0**power)
    assert fit.main(["--embeddings", "x.npy", "--output_dir", "o"]) == 0
    assert np.isfinite(np.load("o/documents.npy")).all() and (tmp_path / "o" / "report.html").exists()


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """A small model that is fast to save."""
    return static(tmp_path_factory.mktemp("models") / "words")


@pytest.mark.parametrize("wrong", ["order", "model"])
def test_fit_refuses_vectors_that_are_not_those_of_the_texts(files, words, tmp_path, capsys, wrong):
    vectors = embedded(load_model(str(words), device="cpu"))
    np.save("x.npy", vectors[::-1] if wrong == "order" else np.random.default_rng(0).normal(size=vectors.shape))
    options = ["--model_name", str(words), "--embeddings", "x.npy", "--output_dir", "o", "--train_file", *files]
    assert fit.main(options) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert (
        error.startswith("error: --embeddings x.npy does not have the embeddings of") and not (tmp_path / "o").exists()
    )


@pytest.mark.parametrize("documents", [True, False])
def test_fit_with_a_model_lists_the_rows_beside_the_documents(files, words, tmp_path, documents):
    np.save("x.npy", embedded(load_model(str(words), device="cpu")).astype(np.float16))
    options = ["--model_name", str(words), "--embeddings", "x.npy", "--output_dir", "o", "--train_file", *files]
    assert fit.main([*options, *(["--documents", "adapted"] if documents else [])]) == 0
    assert (tmp_path / "o" / "documents.rows.tsv").exists() == documents
    if documents:
        assert listed("o/documents.rows.tsv") == EXPECTED and len(np.load("o/documents.npy")) == 40
