"""`informin eval`."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer

from informin.cli import run_command
from informin.model.open import load_model
from tests.conftest import make_sentences, save_sentence_transformer
from tests.evaluation.results_helpers import results, sample
from tests.support.senteval_data import small_counts, write_senteval

FRACTION = 0.01  # of the examples of each task; the smallest has 16


@pytest.fixture(scope="session")
def senteval(tmp_path_factory) -> Path:
    return write_senteval(tmp_path_factory.mktemp("senteval"), FRACTION)


@pytest.fixture
def run(model, senteval, monkeypatch, capsys):
    """Return a function that runs the command and returns exit code, stdout and stderr. Keywords set options."""
    small_counts(monkeypatch, FRACTION)

    def run(*flags: object, **changes) -> tuple[int, str, str]:
        options = dict(model_name=model, senteval_dir=senteval, device="cpu") | changes
        argv = list(map(str, flags))
        for name, value in options.items():
            values = value if isinstance(value, list) else [value]
            argv += [] if value is None else [f"--{name}", *map(str, values)]
        capsys.readouterr()
        code = run_command("eval", *argv)
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def titles(tmp_path) -> Path:
    """A labeled file."""
    rows = ["text\tlabel", *(f"{sentence}\t{sentence.split()[0] < 'h'}" for sentence in make_sentences(60))]
    (tmp_path / "titles.tsv").write_text("\n".join(rows))
    return tmp_path / "titles.tsv"


@pytest.fixture
def collection(tmp_path) -> Path:
    """A test collection, in which each query is the first half of its document."""
    folder = tmp_path / "c"
    folder.mkdir()
    documents = make_sentences(30)
    numbered = list(enumerate(documents))
    (folder / "corpus.tsv").write_text("id\ttext\n" + "".join(f"{i}\t{text}\n" for i, text in numbered))
    halves = [(i, " ".join(text.split()[: len(text.split()) // 2])) for i, text in numbered]
    (folder / "queries.tsv").write_text("id\ttext\n" + "".join(f"q{i}\t{half}\n" for i, half in halves))
    (folder / "qrels.tsv").write_text("query\tdocument\n" + "".join(f"q{i}\t{i}\n" for i, _ in numbered))
    return folder


def another(source: Path, folder: Path, value: float | None = None) -> Path:
    """Save a model with noise on its word embeddings, or with all of them set to a value."""
    loaded = load_model(source, device="cpu")
    loaded.save_pretrained(str(folder), create_model_card=False)
    weights = load_file(folder / "model.safetensors")
    table = next(weight for name, weight in weights.items() if "word_embeddings" in name)
    if value is None:
        table += 0.1 * torch.randn(table.shape, generator=torch.Generator().manual_seed(0))
    else:
        table[:] = value
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def read(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def line(text: str, start: str) -> list[str]:
    """Return the cells of the first line that begins with a label, in a text table."""
    return next(x for x in text.splitlines() if x.startswith(start)).removeprefix(start).split()


def test_one_row_per_model_and_pooling(run, model, tmp_path):
    other, output = another(model, tmp_path / "other"), tmp_path / "out"
    options = dict(model_name=[model, other], pooler=["cls", "mean"], tasks=["STS-B", "MR"])
    code, out, _ = run(output=output, **options)
    names = [(name, pooler) for name in ("m", "other") for pooler in ("cls", "mean")]
    assert code == 0
    assert sorted(path.name for path in output.iterdir()) == [f"{name}-{pooler}.json" for name, pooler in names]
    scores = [read(output / f"{name}-{pooler}.json")["tasks"]["STS-B"]["score"] for name, pooler in names]
    assert [line(out, f"{name}, {pooler}") for name, pooler in names] == [[f"{score:.2f}", "-"] for score in scores]
    assert len(set(scores)) == 4


def test_rows_of_the_same_pooling_have_a_file_each(run, bert, titles, tmp_path):
    """The model normalizes its mean; the pooling that was asked for does not."""
    folder = save_sentence_transformer(tmp_path / "n", bert)
    options = dict(
        model_name=folder, senteval_dir=None, labels=titles, pooler=["auto", "mean"], output=tmp_path / "out"
    )
    code, first, _ = run(**options)
    assert code == 0
    saved = [read(path) for path in (tmp_path / "out").iterdir()]
    assert sorted(row["normalized"] for row in saved) == [False, True]
    code, second, _ = run(**options)  # resumed
    assert code == 0 and second == first
    code, report, _ = run("--report", tmp_path / "out", model_name=None, senteval_dir=None, device=None)
    assert code == 0 and report == first


def test_saved_results_are_printed_again_and_compared(run, model, tmp_path):
    other = another(model, tmp_path / "other")
    options = dict(tasks=["STS-B"], pooler=["cls", "mean"])
    _, first, _ = run(output=tmp_path / "before", **options)
    _, second, _ = run(output=tmp_path / "after", model_name=other, **options)
    report = dict(model_name=None, senteval_dir=None, device=None)
    code, out, _ = run("--report", tmp_path / "after", output=tmp_path / "table", **report)
    assert code == 0 and out == second
    assert sorted(path.suffix for path in (tmp_path / "table").iterdir()) == [".json", ".json", ".md"]
    code, _, err = run("--report", tmp_path / "after", output=tmp_path / "after", **report)
    assert code == 2 and "--output" in err
    _, out, _ = run("--report", tmp_path / "after", "--compare", tmp_path / "before", "--seeds", **report)
    gain = float(line(second, "other, cls")[0]) - float(line(first, "m, cls")[0])
    assert float(line(out, "other, cls - m, cls")[0]) == pytest.approx(gain, abs=0.011)
    assert "mean ± sd" not in out, "each pooling has one seed"


def test_copies_of_results_are_one_row_of_a_report(tmp_path, capsys):
    """`Evaluation.save` writes them beside the `output` of `evaluate`: --seeds counted each run twice."""
    for name, score in (("a", 1.0), ("b", 2.0), ("copy of b", 2.0)):
        results({"MR": score}, model=name[-1]).save(tmp_path / f"{name}.json")
    assert run_command("eval", "--report", str(tmp_path), "--seeds") == 0
    out = capsys.readouterr().out
    assert "mean ± sd of these 2" in out and "1.50 ± 0.71" in out


def test_results_of_some_tasks_of_a_model_are_part_of_its_row(tmp_path, capsys):
    """A model with the results of some tasks in further files was another row, which --seeds and --compare counted."""
    for folder, gain in (("before", 0.0), ("after", 1.0)):
        saved = {"1": {"MR": 3.0 + gain}, "2": {"MR": 1.0, "CR": 2.0}, "3": {"CR": 2.0, "MPQA": 5.0}, "4": {"MR": 7.0}}
        (tmp_path / folder).mkdir()
        for (name, scores), model in zip(saved.items(), ("a", "b", "b", "c")):
            results(scores, model=model).save(tmp_path / folder / f"{name}.json")
    after, before = str(tmp_path / "after"), str(tmp_path / "before")
    assert run_command("eval", "--report", after, "--compare", before, "--seeds") == 0
    out = capsys.readouterr().out
    assert line(out, "b, cls") == ["1.00", "2.00", "5.00", "-"] and out.count("mean ± sd of these 3") == 3
    assert line(out, "a, cls - a, cls")[0] == "+1.00" and line(out, "c, cls - c, cls")[0] == "+0.00"
    files = [str(tmp_path / "before" / f"{name}.json") for name in "141"]
    assert run_command("eval", "--report", after, "--compare", *files) == 0
    assert "c, cls - a, cls" in capsys.readouterr().out
    results({"MR": 1.5}, model="b").save(tmp_path / "before" / "other.json")
    assert run_command("eval", "--report", before, "--seeds") == 0
    assert "mean ± sd of these 4" in capsys.readouterr().out, "other scores of the model are another row"


def test_saved_results_of_other_data_are_not_in_one_table(tmp_path, capsys):
    for folder, entries in (("a", "1"), ("b", "2")):
        saved = results({})
        saved.add("titles", sample(1.0, data={"titles.tsv": entries * 64}))
        saved.save(tmp_path / f"{folder}.json")
    results({"STS-B": 1.0}, split="dev").save(tmp_path / "dev.json")
    one, other, dev = (str(tmp_path / f"{name}.json") for name in ("a", "b", "dev"))
    for words in ([one, other], [one, "--compare", other], [one, dev], [dev, "--compare", one]):
        assert run_command("eval", "--report", *words) == 2, words
        assert "was scored on" in capsys.readouterr().err
    assert run_command("eval", "--report", dev, "--compare", dev) == 0


def test_finished_tasks_are_kept(run, titles, tmp_path):
    output = tmp_path / "a.json"
    assert run(labels=titles, output=output)[0] == 0
    saved = read(output)["tasks"]["titles"]
    assert run("--tasks", "STS-B", labels=titles, output=output)[0] == 0
    assert list(read(output)["tasks"]) == ["titles", "STS-B"] and read(output)["tasks"]["titles"] == saved
    code, _, err = run(labels=titles, prompt="old ", output=output)
    assert (code == 2 and "--output" in err) or str(output) in err


def test_files_need_no_senteval(run, titles):
    code, out, _ = run(labels=titles, senteval_dir=None)
    assert code == 0 and out.startswith("titles: 60 sentences of 2 classes")
    assert len(line(out, "m, mean")) == 4


def test_collection_is_scored_by_the_similarity_of_the_model(run, model, collection):
    code, out, _ = run(retrieval=collection)
    loaded = SentenceTransformer(str(model), device="cpu")
    rows = {name: (collection / f"{name}.tsv").read_text().splitlines()[1:] for name in ("corpus", "queries")}
    texts = {name: [row.split("\t")[1] for row in listed] for name, listed in rows.items()}
    scores = loaded.similarity(loaded.encode(texts["queries"]), loaded.encode(texts["corpus"])).numpy()
    ranks = (scores > scores.diagonal()[:, None]).sum(1)
    expected = 100 * np.mean([1 / (rank + 1) if rank < 10 else 0 for rank in ranks])
    columns = out.splitlines()[1].split()
    assert code == 0 and out.startswith("c: ")
    assert float(line(out, "m, mean")[columns.index("MRR@10")]) == pytest.approx(expected, abs=0.5)


def test_words_beside_a_model(run, collection):
    code, out, _ = run("--bm25", retrieval=collection)
    assert code == 0 and "rank fusion: BM25 + m, mean" in out
    assert [len(line(out, name)) > 3 for name in ("m, mean", "with BM25: m, mean", "BM25 ")] == [True] * 3


def test_prompt_of_queries(run, collection):
    outputs = [run(retrieval=collection, **options)[1] for options in ({}, {"query_prompt": "old river "})]
    assert line(outputs[0], "m, mean") != line(outputs[1], "m, mean") and "'old river '" in outputs[1]


@pytest.mark.parametrize("form", ["markdown", "latex", "json"])
def test_formats(run, titles, tmp_path, form):
    _, out, _ = run(labels=titles, format=form, output=tmp_path / "a.json")
    score = read(tmp_path / "a.json")["tasks"]["titles"]["score"]
    if form == "json":
        assert json.loads(out)
    else:
        assert f"{score:.2f}" in out and {"markdown": "| m, mean |", "latex": "m, mean &"}[form] in out


def test_undefined_scores_exit_with_1(run, model, titles, tmp_path):
    """All embeddings are equal, so a correlation is undefined, while labels have scores."""
    flat = another(model, tmp_path / "flat", value=0.0)
    weights = load_file(flat / "model.safetensors")
    for name, weight in weights.items():
        if name.endswith("LayerNorm.weight"):
            weight.zero_()
    save_file(weights, flat / "model.safetensors", metadata={"format": "pt"})
    code, out, _ = run("--tasks", "STS-B", model_name=flat, output=tmp_path / "a.json")
    assert code == 1 and "STS-B has no score" in out and read(tmp_path / "a.json")["tasks"]["STS-B"]["score"] is None


def test_dev_split_and_whitening(run, tmp_path):
    code, out, _ = run("--whitening", 4, tasks=["STS-B"], split="dev", output=tmp_path / "out")
    assert code == 0 and "m, mean, whitening 4" in out
    (path,) = (tmp_path / "out").iterdir()
    assert read(path)["split"] == "dev" and read(path)["whitening"]["dimensions"] == 4


@pytest.mark.parametrize(
    "options, named",
    [
        (dict(tasks=["STS17"]), "--tasks"),
        (dict(model_name="/no/model"), "--model_name"),
        (dict(pooler=["mlp"]), "--pooler"),
        (dict(pooler=["mean", "maen"], output="out"), "--pooler"),  # before the first one is scored
        (dict(whitening=33), "--whitening"),
        (dict(labels="/no/file.tsv"), "--labels"),
        (dict(retrieval="/no/file.tsv"), "--retrieval"),
        (dict(pooler=["cls", "mean"], output="a.json"), "--output"),
        (dict(format="json", compare="/no/results.json"), "--format"),
    ],
)
def test_wrong_options_are_one_line(run, tmp_path, monkeypatch, options, named):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(**({"tasks": "STS-B"} | options))
    assert (code, out) == (2, "") and named in err and err.startswith("error: ") and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_models_of_one_name_are_not_saved_in_one_file(run, tmp_path):
    folders = [tmp_path / parent / "m" for parent in "ab"]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    code, out, err = run(model_name=list(map(str, folders)), tasks="STS-B", output=str(tmp_path / "out"))
    assert (code, out) == (2, "") and err.startswith("error: --output") and not (tmp_path / "out").exists()


def test_missing_data_is_one_line_with_its_path(run):
    code, out, err = run(tasks="STS-B", senteval_dir="/no/data")
    assert (
        code > 0
        and out == ""
        and err.startswith("error: ")
        and "--senteval_dir is /no/data" in err
        and err.count("\n") == 1
    )


def test_a_model_or_saved_results_are_needed(capsys):
    for argv in ([], ["--model_name", "m", "--report", "r"]):
        assert run_command("eval", *argv) == 2
        assert "--report" in capsys.readouterr().err
