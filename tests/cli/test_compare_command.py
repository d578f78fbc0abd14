"""`informin compare`: models and files of embeddings, in one table, one figure and one JSON file."""

import csv
import json

import numpy as np
import pytest

from informin.adapters.halves import score_halves
from informin.adapters.prediction import make_test
from informin.cli import compare as command
from informin.cli import embed as embed_command
from informin.jobs import compare as job
from informin.jobs import compare_files
from informin.jobs.compare_table import Entry
from informin.models.open_model import load_model
from tests.conftest import make_sentences
from tests.models.any_encoder.st_models import static

TEXTS = make_sentences(400)
pytestmark = pytest.mark.usefixtures("logging_as_before")


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n")
    return path


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """A static model without config.json."""
    return static(tmp_path_factory.mktemp("models") / "words")


def compare(*words, file, **options) -> int:
    more = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
    return command.main([*map(str, words), "--train_file", str(file), "--device", "cpu", *more])


def expected(folder, texts=TEXTS):
    encoder = load_model(str(folder), device="cpu")
    (pooler,) = encoder.poolers
    encode = lambda some: encoder(some)[pooler]  # noqa: E731
    return score_halves(make_test(texts, encode(texts), encode))


@pytest.fixture
def sentence_model(bert, tmp_path):
    from tests.models.any_encoder.helpers import sentence_transformer

    return sentence_transformer(bert, tmp_path / "sentences", prompt=None)


def test_models_are_ranked_with_speed_dimensions_and_adapter(sentence_model, words, file, tmp_path, capsys):
    assert compare(sentence_model, words, file=file, output_dir=tmp_path / "out") == 0
    scores = {folder.name: expected(folder) for folder in (sentence_model, words)}
    best, other = sorted(scores, key=lambda name: scores[name].rank)
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0].startswith("Rank of the second half of ") and [line.split()[0] for line in lines[2:4]] == [
        best,
        other,
    ]
    assert f"{scores[best].rank:.2f}" in lines[2] and "1.00x" in lines[2]
    assert f"{scores[other].rank / scores[best].rank:.2f}x, " in lines[3]
    assert "In our tests" in out and "texts/s: median of 3 rounds on 256 texts" in out

    found = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert [model["model"] for model in found["models"]] == [best, other]
    for model in found["models"]:
        score = scores[model["model"]]
        assert model["rank"] == pytest.approx(score.rank) and model["verdict"] == score.adapter.verdict
        assert model["adapted_rank"] == pytest.approx(score.adapted_rank)
        assert model["error"] is None and len(model["turns"]) == 3
        assert model["texts_per_second"] == sorted(model["turns"])[1] > 0
    assert {model["model"]: model["dimensions"] for model in found["models"]} == {"sentences": 32, "words": 16}
    assert found["data"] == dict(
        files=["texts.txt"], seed=0, texts=400, sampled=400, held_out=len(scores[best].log_ranks)
    )
    assert f"| {best}" in (tmp_path / "out" / "table.md").read_text()
    assert (tmp_path / "out" / "figure.png").read_bytes().startswith(b"\x89PNG")
    with open(tmp_path / "out" / "figure.csv", newline="") as drawn:
        rows = [*csv.DictReader(drawn)]
    assert [row["name"].split("\n")[0] for row in rows] == [best, other]
    assert float(rows[1]["rank"]) == pytest.approx(scores[other].rank)


def test_embeddings_of_the_written_texts_give_the_rank_of_the_model(words, file, tmp_path):
    """Also for a sample, with a file of other tools: any format that `fit --embeddings` reads."""
    written, vectors = tmp_path / "written.jsonl", tmp_path / "vectors.npy"
    assert compare(file=file, write_texts=written, max_texts=300) == 0
    how = ["--model_name", str(words), "--device", "cpu"]
    assert embed_command.main([*how, "--train_file", str(written), "--output", str(vectors)]) == 0
    assert compare(words, vectors, file=file, max_texts=300, output_dir=tmp_path / "out") == 0
    model, table = json.loads((tmp_path / "out" / "compare.json").read_text())["models"]
    for key in ("rank", "adapted_rank", "dimensions", "mean_cosine"):
        assert model[key] == pytest.approx(table[key]), key
    assert {model["model"], table["model"]} == {"words", "vectors.npy"}
    assert sorted([len(model["turns"]), len(table["turns"])]) == [0, 3]


def test_embeddings_of_whole_texts_have_no_rank(words, file, tmp_path, capsys):
    vectors = tmp_path / "vectors.npy"
    np.save(vectors, np.random.default_rng(0).normal(size=(400, 7)))
    assert compare(vectors, words, file=file, output_dir=tmp_path / "out") == 0
    last = json.loads((tmp_path / "out" / "compare.json").read_text())["models"][-1]
    assert last["model"] == "vectors.npy" and last["dimensions"] == 7 and "rank" not in last
    assert last["mean_cosine"] == pytest.approx(0, abs=0.02)
    assert "vectors.npy: no rank, because it has no embeddings of halves. See --write_texts." in capsys.readouterr().out


def test_rows_of_a_sample_of_whole_texts_are_chosen(words, file, tmp_path):
    """The mean cosine is that of the sampled rows."""
    encoder = load_model(str(words), device="cpu")
    np.save(tmp_path / "all.npy", encoder(TEXTS)["st"])
    assert compare(words, tmp_path / "all.npy", file=file, max_texts=90, output_dir=tmp_path / "out") == 0
    model, whole = json.loads((tmp_path / "out" / "compare.json").read_text())["models"]
    assert model["mean_cosine"] == pytest.approx(whole["mean_cosine"], rel=1e-5)


def test_a_model_that_fails_does_not_lose_the_others(words, file, tmp_path, capsys):
    np.save(tmp_path / "short.npy", np.ones((3, 4)))
    broken = tmp_path / "missing"
    assert compare(broken, words, tmp_path / "short.npy", file=file, output_dir=tmp_path / "out") == 1
    out = capsys.readouterr().out
    assert "short.npy has 3 rows; expected 400, one per text that is not blank, or 5" in out
    models = json.loads((tmp_path / "out" / "compare.json").read_text())["models"]
    assert next(model["model"] for model in models) == "words" and [bool(m["error"]) for m in models] == [
        False,
        True,
        True,
    ]
    assert out.count("error") >= 2 and (tmp_path / "out" / "figure.png").exists()


def test_foreign_errors_are_reported_in_the_row(words, file, tmp_path, monkeypatch, capsys):
    real = job.text_encoder

    def failing(name, options):
        if name == "broken":
            raise RuntimeError("own code\nfailed")
        return real(name, options)

    monkeypatch.setattr(job, "text_encoder", failing)
    assert compare("broken", words, file=file) == 1
    assert "broken: RuntimeError: own code failed" in capsys.readouterr().out


def test_nothing_is_saved_if_every_model_fails(file, tmp_path, capsys):
    assert compare(tmp_path / "missing", file=file, output_dir=tmp_path / "out") == 2
    assert not (tmp_path / "out").exists() and capsys.readouterr().err.count("error: ") == 1


def test_speed_is_measured_in_turns(monkeypatch):
    calls = []
    times = iter(range(100))
    monkeypatch.setattr(compare_files.time, "perf_counter", lambda: float(next(times)))
    encoders = {name: lambda some, name=name: calls.append((name, tuple(some))) for name in "ab"}
    speeds = compare_files.texts_per_second(encoders, TEXTS)
    assert [name for name, _ in calls] == ["a", "b"] * 3 and len({texts for _, texts in calls}) == 1
    assert speeds == {"a": [256.0] * 3, "b": [256.0] * 3}
    assert Entry("a", speeds=[3.0, 1.0, 2.0]).speed == 2.0


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({}, "There is no model. Name one or more: informin compare MODEL."),
        ({"write_texts": "texts.txt"}, "--write_texts is texts.txt; expected a name ending in .jsonl."),
        ({"write_texts": "a.jsonl", "output_dir": "out"}, "--write_texts only writes texts."),
        ({"write_texts": "a.jsonl", "max_texts": 1}, "--max_texts is 1; expected 2 or more."),
    ],
)
def test_mistakes_give_one_line(file, options, error, capsys):
    assert compare(file=file, **options) == 2
    assert error in capsys.readouterr().err


def test_short_texts_have_no_rank_but_a_speed(words, tmp_path, capsys):
    short = tmp_path / "short.txt"
    short.write_text("\n".join(f"dog {word}" for word in [*TEXTS[0].split(), "cat", "bird"]))
    assert compare(words, file=short, output_dir=tmp_path / "out") == 0
    assert "0 texts of four words or more are held out" in capsys.readouterr().out
    assert not (tmp_path / "out" / "figure.png").exists()
