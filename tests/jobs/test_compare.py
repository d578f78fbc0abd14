"""`informin.compare`: the table, and the folder that `informin compare` writes."""

import json

import numpy as np

import informin
from informin.cli import compare as command
from informin.jobs.compare import draw
from informin.jobs.compare_files import write_texts
from tests.conftest import raises_usage
from tests.jobs.conftest import TEXTS, embedded

MEASURED = ("model", "rank", "adapted_rank", "dimensions", "mean_cosine", "verdict", "word_agreement")


def models_in(folder) -> list[dict]:
    record = json.loads((folder / "compare.json").read_text())
    return [{name: model.get(name) for name in MEASURED} for model in record["models"]]


def test_the_folder_is_that_of_the_command(words, sentences, file, tmp_path, capfd):
    options = ["--device=cpu", "--seed=2", "--max_texts=300", f"--train_file={file}", f"--output_dir={tmp_path / 'a'}"]
    assert command.main([str(words), str(sentences), *options]) == 0
    table = capfd.readouterr().out.splitlines()
    comparison = informin.compare([words, str(sentences)], iter(TEXTS), seed=2, max_texts=300, device="cpu")
    comparison.save(tmp_path / "b")
    assert models_in(tmp_path / "a") == models_in(tmp_path / "b")
    names = [sorted(path.name for path in (tmp_path / folder).iterdir()) for folder in "ab"]
    assert names[0] == names[1] and "report.html" in names[0]
    assert "Embedding models on 320 texts" in (tmp_path / "b" / "report.html").read_text()
    shown = repr(comparison).splitlines()
    assert [line.split()[0] for line in shown[2:4]] == [line.split()[0] for line in table[2:4]]
    assert comparison.table.rows[0].label == shown[2].split()[0]
    assert {entry.label: entry.score.rank for entry in comparison.entries} == {
        model["model"]: model["rank"] for model in models_in(tmp_path / "a")
    }


def test_one_model_a_loaded_one_and_a_file(words, tmp_path):
    model = informin.load_model(words, device="cpu")
    np.save(tmp_path / "x.npy", embedded(model))
    comparison = informin.compare([model, tmp_path / "x.npy", model, model.with_prompt("the ")], TEXTS)
    assert [entry.label for entry in comparison.entries] == ["words (1)", "x.npy", "words (2)"]
    first, file, second = comparison.entries
    assert first.score.rank != second.score.rank and file.score is None and first.speed and not file.speed
    np.testing.assert_allclose(file.mean_cosine, first.mean_cosine)
    assert "x.npy: no rank, because it has no embeddings of halves. See `write_texts`." in comparison.notes
    alone = informin.compare(words, TEXTS, device="cpu")
    assert [entry.score.rank for entry in alone.entries] == [first.score.rank]


def test_halves_of_other_texts_are_refused(words, tmp_path):
    """Their number is the same with every seed."""
    model = informin.load_model(words, device="cpu")
    drawn = draw(TEXTS, seed=1)
    write_texts(tmp_path / "rows.jsonl", drawn.sample, drawn.held_out)
    rows = [json.loads(line)["text"] for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    np.save(tmp_path / "x.npy", embedded(model, rows))
    (right,) = informin.compare(tmp_path / "x.npy", TEXTS, seed=1).entries
    assert right.score is not None
    for refused in (
        lambda: informin.compare(tmp_path / "x.npy", TEXTS, seed=2),
        lambda: informin.upgrade(tmp_path / "x.npy", words, TEXTS, seed=2, device="cpu"),
    ):
        with raises_usage(found="halves are no nearer to their own texts", needed="the same files, `max_texts` and"):
            refused()


def test_a_model_that_fails_is_a_row(words, tmp_path):
    seen = []
    models = [tmp_path / "missing", words]
    comparison = informin.compare(models, TEXTS, device="cpu", progress=seen.append)
    assert seen == comparison.entries and [bool(entry.error) for entry in seen] == [True, False]
    assert "--" not in seen[0].error and "error" in repr(comparison)
    with raises_usage(option="model_name"):
        informin.compare(tmp_path / "missing", TEXTS)


def test_mistakes_are_errors(words):
    for option, models, texts, given in (
        ("models", [], TEXTS, {}),
        ("texts", words, [], {}),
        ("texts", words, "one text", {}),
        ("max_texts", words, TEXTS, {"max_texts": 1}),
        ("seed", words, TEXTS, {"seed": -1}),
    ):
        with raises_usage(option=option):
            informin.compare(models, texts, **given)


def test_html_is_escaped(words):
    comparison = informin.compare(words, TEXTS[:100], device="cpu")
    comparison.entries[0].label = "<b>"
    comparison.notes = ["<i>"]
    html = comparison._repr_html_()
    assert "&lt;b&gt;" in html and "&lt;i&gt;" in html and "<b>" not in html and "<i>" not in html


def test_each_model_has_the_cosines_of_unrelated_texts(words, tmp_path):
    np.save(tmp_path / "x.npy", embedded(informin.load_model(words, device="cpu")))
    comparison = informin.compare([words, tmp_path / "x.npy"], TEXTS, max_texts=300, device="cpu")
    comparison.save(tmp_path / "compared")
    models = json.loads((tmp_path / "compared" / "compare.json").read_text())["models"]
    records = [entry.unrelated.record() for entry in comparison.entries]
    assert records[0]["texts"] == 320 and records[0] == records[1]
    assert [model["unrelated"] for model in models] == json.loads(json.dumps(records))
    above = f"above a cosine of {comparison.entries[0].unrelated.threshold():.3f}"
    assert sum(above in note for note in comparison.notes) == 2
