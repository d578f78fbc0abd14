"""`informin.evaluate`: scores, tables, and files of results."""

import gzip
import json
import math
import os
import shutil

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from informin.evaluation.evaluate import evaluate
from informin.evaluation.results import load_all_results
from informin.frozen.rankings import SearchRankings
from tests.conftest import make_sentences, raises_usage
from tests.frozen.conftest import TEXTS


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


def test_retrieval_is_scored_as_by_hand(prompted, collection):
    result = evaluate(prompted, retrieval=collection, device="cpu")
    model = SentenceTransformer(str(prompted), device="cpu")
    cosines = model.encode_query(TEXTS[50:60]) @ model.encode_document(TEXTS[:50]).T
    ranks = 1 + (cosines > np.diag(cosines)[:, None] + 1e-6).sum(1)
    expected = 100 * np.mean([1 / rank if rank <= 10 else 0 for rank in ranks])
    assert result.rows[0].tasks["dogs"]["measures"]["mrr_10"] == pytest.approx(expected)
    ((label, scores),) = result.scores.items()
    assert label.startswith("prompted, mean") and scores == {"dogs": pytest.approx(expected)}


def test_a_file_whose_name_is_not_utf8_has_a_name_that_is(static, labels, tmp_path):
    path = os.path.join(os.fsencode(tmp_path), b"caf\xe9.tsv")
    shutil.copy(labels, path)
    (row,) = evaluate(static, labels=os.fsdecode(path), device="cpu").rows
    assert list(row.tasks) == [r"caf\xe9"]


def test_the_working_directory_is_named_after_its_folder(static, labels, tmp_path, monkeypatch):
    monkeypatch.chdir(static)
    result = evaluate(".", labels=labels, output=tmp_path, device="cpu")
    assert [path.name.startswith("static-") for path in tmp_path.iterdir()] == [True]
    assert next(iter(result.scores)).startswith("static, ") and load_all_results([tmp_path])[0].model == "static"


def test_models_are_rows_with_word_search_and_tests(static, st_mean, collection, labels, faq):
    rankings = SearchRankings(fuse=True)
    result = evaluate([static, st_mean], labels=labels, retrieval=[collection, faq], rankings=rankings, device="cpu")
    assert [list(scores) for scores in result.scores.values()] == [["parity", "dogs", "faq"]] * 2
    shown = result.table()
    assert "BM25" in shown and "p, nDCG@10" in shown and "randomization" in shown and shown == repr(result)
    assert all(line.startswith("% ") for line in result.table("latex").splitlines() if "randomization" in line)
    rows = json.loads(result.table("json"))
    assert [row["tasks"]["dogs"]["score"] for row in rows] == [scores["dogs"] for scores in result.scores.values()]


def test_a_compressed_file_and_a_link_are_the_same_data(static, faq, collection, tmp_path):
    (tmp_path / "faq.tsv.gz").write_bytes(gzip.compress(faq.read_bytes()))
    (tmp_path / "link").symlink_to(collection)
    evaluated = evaluate(static, retrieval=[faq, collection], output=tmp_path / "a.json", device="cpu")
    again = evaluate(static, retrieval=[tmp_path / "faq.tsv.gz", tmp_path / "link"], output=tmp_path / "a.json")
    assert again.rows[0].agrees_with(evaluated.rows[0])
    assert again.rows[0].seconds == evaluated.rows[0].seconds, "nothing is scored again"


def test_the_dev_split_is_one_of_senteval(static, labels, faq):
    for files in ({"labels": labels}, {"retrieval": faq}):
        with raises_usage("split"):
            evaluate(static, **files, split="dev", device="cpu")


def test_finished_tasks_are_resumed(static, labels, faq, tmp_path, monkeypatch):
    first = evaluate(static, labels=labels, output=tmp_path / "a.json", device="cpu")
    (saved,) = load_all_results([tmp_path / "a.json"])
    assert saved.tasks == first.rows[0].tasks
    evaluate(static, retrieval=faq, output=tmp_path / "a.json", device="cpu")
    monkeypatch.setattr("informin.evaluation.evaluate.encode_in_shares", lambda *_, **__: pytest.fail("embedded again"))
    again = evaluate(static, labels=labels, output=tmp_path / "a.json", device="cpu")
    assert again.rows[0].tasks == first.rows[0].tasks, "only the tasks that were asked for"
    assert list(load_all_results([tmp_path / "a.json"])[0].tasks) == ["parity", "faq"]


def test_other_settings_of_equal_weights_have_their_own_scores(st_mean, labels, tmp_path):
    whole, cut = (SentenceTransformer(str(st_mean), device="cpu", truncate_dim=width) for width in (None, 4))
    file, score = tmp_path / "whole.json", evaluate(cut, labels=labels).rows[0].tasks["parity"]["score"]
    first = evaluate(whole, labels=labels, output=file).rows[0].tasks["parity"]["score"]
    rows = [evaluate(model, labels=labels, output=tmp_path / "out").rows[0] for model in (whole, cut)]
    assert [row.tasks["parity"]["score"] for row in rows] == [first, score] and first != score
    whole.tokenizer.truncation_side = "left"
    for changed in (cut, whole):
        with raises_usage("output"):
            evaluate(changed, labels=labels, output=file)


def test_saved_results_are_read_again(st_mean, labels, tmp_path):
    other = shutil.copytree(st_mean, tmp_path / "other")
    result = evaluate([st_mean, other], labels=labels, device="cpu")
    result.save(tmp_path / "out", seeds=True)
    assert "mean ± sd of these 2" in (tmp_path / "out" / "table.md").read_text()
    assert {row.model for row in load_all_results([tmp_path / "out"])} == {str(st_mean), str(other)}


def test_results_to_compare_with_are_subtracted(static, st_mean, labels, faq, tmp_path):
    before = evaluate(static, labels=labels, output=tmp_path / "a.json", device="cpu")
    result = evaluate(st_mean, labels=labels, compare=tmp_path / "a.json", device="cpu")
    one, other = (next(iter(e.scores.values()))["parity"] for e in (before, result))
    assert f"{other - one:+.2f}" in result.table()
    changed = shutil.copy(labels, tmp_path / "parity.tsv")
    with open(changed, "a") as file:
        file.write("the red cat\todd\n")
    with raises_usage(option="compare"):
        evaluate(st_mean, labels=changed, compare=tmp_path / "a.json", device="cpu")
    with raises_usage(option="compare"):
        evaluate([static] * 3, labels=labels, compare=[tmp_path / "a.json"] * 2, device="cpu")


def test_models_with_equal_names_keep_their_scores(static, st_mean, labels, tmp_path):
    folders = [shutil.copytree(model, tmp_path / name / "model") for model, name in ((st_mean, "a"), (static, "b"))]
    models = [*folders, folders[0]]
    result = evaluate(models, labels=labels, device="cpu")
    assert len(result.scores) == 3
    for row, scores in zip(result.rows, result.scores.values()):
        assert scores == {"parity": row.tasks["parity"]["score"]}
    result.save(tmp_path / "out")
    assert len(load_all_results([tmp_path / "out"])) == 3
    with raises_usage(option="output"):
        evaluate(models, labels=labels, output=tmp_path / "results", device="cpu")
    with raises_usage(option="output", found="a file"):
        evaluate(static, labels=labels, output=labels, device="cpu")


def test_poolings_are_rows(bert, labels, tmp_path):
    options = {"labels": labels, "pooler": ["cls", "mean"], "output": tmp_path, "device": "cpu"}
    result = evaluate(bert, whitening=math.inf, **options)
    names = [f"tiny-bert-{pooler}-whitening.json" for pooler in ("cls", "mean")]
    assert sorted(path.name for path in tmp_path.glob("*.json")) == names
    assert [row.pooler for row in result.rows] == ["cls", "mean"]


def test_mistakes_are_errors(static, labels, collection, tmp_path):
    for option, wrong in (
        ("retrieval", {"retrieval": [collection, shutil.copytree(collection, tmp_path / collection.name)]}),
        ("tasks", {"tasks": ["STS99"]}),
        ("output", {"model": [static, "other"], "labels": labels, "output": "a.json"}),
    ):
        with raises_usage(option=option):
            evaluate(**({"model": static} | wrong))


def test_html_is_escaped(static, labels):
    result = evaluate(static, labels=labels, device="cpu")
    result.rows[0].model = "<b>"
    assert "&lt;b&gt;" in result._repr_html_() and "<b>" not in result._repr_html_()
