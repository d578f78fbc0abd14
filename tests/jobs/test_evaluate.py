"""`informin.evaluate`: scores, tables, and the files of `informin eval`."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

import informin
from informin.cli import eval as command
from informin.evaluation.results import load_all_results
from informin.jobs.collections import is_collection
from tests.conftest import make_sentences, raises_usage
from tests.jobs.conftest import TEXTS


@pytest.fixture(scope="module")
def labels(tmp_path_factory):
    path = tmp_path_factory.mktemp("labels") / "parity.tsv"
    rows = [f"{text}\t{'even' if number % 2 else 'odd'}" for number, text in enumerate(TEXTS[:60])]
    path.write_text("\n".join(["text\tlabel", *rows]) + "\n")
    return path


@pytest.fixture(scope="module")
def faq(tmp_path_factory):
    path = tmp_path_factory.mktemp("retrieval") / "faq.tsv"
    rows = [f"{a}\t{b}" for a, b in zip(make_sentences(12, 1), make_sentences(12, 2))]
    path.write_text("\n".join(["query\tdocument", *rows]) + "\n")
    return path


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    folder = tmp_path_factory.mktemp("collections") / "dogs"
    folder.mkdir()
    (folder / "corpus.tsv").write_text("id\ttext\n" + "".join(f"d{i}\t{text}\n" for i, text in enumerate(TEXTS[:50])))
    asked = enumerate(TEXTS[50:60])
    (folder / "queries.tsv").write_text("id\ttext\n" + "".join(f"q{i}\t{text}\n" for i, text in asked))
    (folder / "qrels.tsv").write_text("query\tdocument\trelevance\n" + "".join(f"q{i}\td{i}\t1\n" for i in range(10)))
    return folder


def without_times(row: dict) -> dict:
    return {name: {k: v for k, v in task.items() if k != "seconds"} for name, task in row["tasks"].items()}


def test_scores_are_those_of_the_command(words, labels, faq, tmp_path, capfd):
    options = [f"--model_name={words}", f"--labels={labels}", f"--retrieval={faq}", "--device=cpu"]
    assert command.main([*options, f"--output={tmp_path / 'a.json'}"]) == 0
    capfd.readouterr()
    result = informin.evaluate(words, labels=[labels], retrieval=str(faq), device="cpu", output=tmp_path / "b.json")
    one, other = load_all_results([tmp_path / "a.json", tmp_path / "b.json"])
    assert without_times(one) == without_times(other) == without_times(result.rows[0])
    assert result.scores == {"words, st": {name: task["score"] for name, task in one["tasks"].items()}}
    shown = repr(result)
    assert "parity: 60 sentences of 2 classes" in shown and "faq: search" in shown and "Seconds" not in shown
    assert command.main([f"--report={tmp_path / 'b.json'}"]) == 0
    assert capfd.readouterr().out == result.table() + "\n"


def test_saved_tables_are_read_by_report(words, sentences, labels, tmp_path, capfd):
    result = informin.evaluate([words, sentences], labels=[labels], device="cpu")
    result.save(tmp_path / "out", seeds=True)
    assert "mean ± sd of these 2" in (tmp_path / "out" / "table.md").read_text()
    assert len(json.loads((tmp_path / "out" / "summary.json").read_text())["runs"]) == 2
    assert command.main([f"--report={tmp_path / 'out'}"]) == 0
    assert capfd.readouterr().out.startswith("parity: 60 sentences of 2 classes")
    assert list(result.scores) == ["words, st", "sentences, mean, prompt 'the old '"]


def test_collections_and_files_together(words, labels, collection, tmp_path, capfd):
    result = informin.evaluate(words, labels=[labels], retrieval=[collection], device="cpu")
    (found,) = result.collections
    score = result.scores["words, st"]
    assert list(score) == ["parity", found.name] and score[found.name] == found.scores["words, st"]["ndcg_10"].mean()
    assert command.main([f"--model_name={words}", f"--retrieval={collection}", "--device=cpu"]) == 0
    printed = capfd.readouterr().out
    alone = informin.evaluate(words, retrieval=[collection], device="cpu")
    assert alone.table() + "\n" == printed and not alone.rows and result.table().startswith(printed.rstrip("\n"))
    result.save(tmp_path / "out")
    assert found.table.title in (tmp_path / "out" / "table.md").read_text()


def test_a_prompt_given_at_loading_replaces_stored_prompts(sentences, collection, tmp_path):
    folder = Path(shutil.copytree(sentences, tmp_path / "model"))
    stored = {"prompts": {"query": "the old ", "document": "a new "}, "default_prompt_name": None}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(stored))
    by_name, loaded, own = (
        informin.evaluate(model, retrieval=[collection], device=device, prompt=prompt).collections[0].scores
        for model, device, prompt in (
            (folder, "cpu", "of "),
            (informin.load_model(folder, prompt="of ", device="cpu"), None, None),
            (informin.load_model(folder, device="cpu"), None, None),
        )
    )
    name = next(iter(by_name))
    assert np.array_equal(by_name[name]["ndcg_10"], loaded[name]["ndcg_10"])
    assert not np.array_equal(by_name[name]["ndcg_10"], own[name]["ndcg_10"])


def test_models_with_equal_names_keep_their_scores(words, sentences, labels, collection, tmp_path):
    folders = [shutil.copytree(model, tmp_path / name / "model") for model, name in ((sentences, "a"), (words, "b"))]
    models = [informin.load_model(folder, prompt="", device="cpu") for folder in folders]
    models.append(informin.load_model(folders[0], prompt="", device="cpu", max_length=6))
    result = informin.evaluate(models, labels=[labels], retrieval=[collection])
    assert len(result.scores) == len(result.rows) == len(result.collections[0].scores) == 3
    for row, scores in zip(result.rows, result.scores.values()):
        assert list(scores) == ["parity", result.collections[0].name]
        assert scores["parity"] == row["tasks"]["parity"]["score"]


def test_the_command_prints_collections_before_files(words, labels, collection, capfd):
    options = [f"--model_name={words}", f"--labels={labels}", f"--retrieval={collection}", "--device=cpu"]
    assert command.main([*options, "--query_prompt=the "]) == 0
    printed = capfd.readouterr().out
    assert printed.index("documents, x 100") < printed.index("parity") and "prompt of queries: 'the '" in printed
    assert command.main([*options, "--format=json"]) == 0
    found = json.loads(capfd.readouterr().out)  # one document
    assert list(found["collections"]) and list(found["results"][0]["tasks"]) == ["parity"]
    assert command.main([*options[::2], options[3], "--format=json"]) == 0
    assert json.loads(capfd.readouterr().out) == {"collections": found["collections"], "results": []}


def test_sts_reads_the_pairs_of_senteval(words, tmp_path, monkeypatch):
    from tests.senteval_data import small_counts, write_senteval

    small_counts(monkeypatch, 0.01)
    data = write_senteval(tmp_path / "data", 0.01)
    result = informin.evaluate(words, tasks="STS-B", senteval_dir=data, split="dev", device="cpu")
    ((name, score),) = result.scores["words, st"].items()
    assert name == "STS-B" and -100 <= score <= 100


def test_several_poolings_and_whitening(sentences, labels, tmp_path):
    result = informin.evaluate(
        sentences, labels=[labels], pooler=["cls", "mean"], whitening=math.inf, output=tmp_path, device="cpu"
    )
    names = [f"sentences-{pooler}-whitening.json" for pooler in ("cls", "mean")]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert [row["pooler"] for row in result.rows] == ["cls", "mean"]


def test_mistakes_are_errors(words, labels, collection, tmp_path):
    for option, given in (
        ("model", {"model": []}),
        ("query_prompt", {"query_prompt": "a", "labels": [labels]}),
        ("bm25", {"bm25": True, "labels": [labels]}),
        ("output", {"retrieval": [collection], "output": tmp_path}),
        ("split", {"split": "train", "labels": [labels]}),
        ("retrieval", {"retrieval": [collection, shutil.copytree(collection, tmp_path / Path(collection).name)]}),
        ("tasks", {"tasks": ["STS99"]}),
        ("output", {"model": [words, "other"], "labels": [labels], "output": "a.json"}),
    ):
        with raises_usage(option=option):
            informin.evaluate(**({"model": words} | given))
    result = informin.evaluate(words, labels=[labels], device="cpu")
    with raises_usage(option="format", found="is html"):
        result.table("html")


def test_html_is_escaped(words, labels):
    result = informin.evaluate(words, labels=[labels], device="cpu")
    result.rows[0]["model"] = "<b>"
    assert "&lt;b&gt;, st" in result._repr_html_() and "<b>" not in result._repr_html_()


def test_collections_as_json_and_latex(words, labels, collection):
    result = informin.evaluate([words, words], labels=[labels], retrieval=[collection], device="cpu")
    found = json.loads(result.table("json"))
    scores = result.collections[0].scores
    assert list(found["collections"][result.collections[0].name]) == list(scores) and len(found["results"]) == 2
    assert all(line.startswith("% ") for line in result.table("latex").splitlines() if "randomization" in line)
    assert "randomization" in result.table("latex")


@pytest.mark.parametrize(
    "name, found", [("NFCorpus", True), ("Touche2020Retrieval.v3", True), ("pairs.tsv", False), ("a/b", False)]
)
def test_names_of_collections(name, found):
    assert is_collection(name) is found
