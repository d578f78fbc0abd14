"""benchmarks/long_texts.py: cells are measured once, scored with and without a matrix, and collected in a table."""

import argparse
import json
from dataclasses import replace

import numpy as np
import pytest

from informin.evaluation.collections import make_collection
from informin.evaluation.pairs import GradedPairs
from tests.conftest import make_sentences

pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

from benchmarks import long_texts, long_texts_report
from benchmarks.prediction import Data


@pytest.fixture
def bench(tmp_path, bert, monkeypatch) -> long_texts.Bench:
    """A collection of 24 documents and 4 queries, a tiny encoder, and trainings of 2 steps."""
    modules = [Transformer(str(bert)), Pooling(32, pooling_mode="mean"), Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(tmp_path / "st"), create_model_card=False)
    sentences = make_sentences(120)
    documents = {str(i): " ".join(sentences[4 * i : 4 * i + 4]) for i in range(24)}
    queries = {f"q{i}": sentences[100 + i] for i in range(4)}
    cisi = make_collection("tiny", documents, queries, {(f"q{i}", str(i)): 1 for i in range(4)}, shared_ids=False)
    rows = [(sentences[i], sentences[i + 1], float(i % 6)) for i in range(12)]
    data = Data("tiny", cisi.documents, cisi.queries, lambda x, y: 0.0, False)
    steps = {"max_steps": 2, "per_device_train_batch_size": 8, "max_seq_length": 32}
    monkeypatch.setattr(long_texts, "LONG", steps)
    args = argparse.Namespace(model_name=str(tmp_path / "st"), output=tmp_path / "cells")
    return long_texts.Bench(args, data, cisi, GradedPairs.of_rows("dev", rows))


def test_cells_and_their_table(bench, tmp_path, capsys):
    for method in ("before", "matrix", "adapt, crops, guide with matrix", "contriever"):
        bench.run(method, 1)
    cells = sorted(path.name for path in bench.folder.glob("*.json"))
    assert cells == [
        "adapt, crops, guide with matrix-seed1.json", "before-seed0.json", "contriever-seed1.json", "matrix-seed0.json",
    ]  # fmt: skip
    before = {path: path.read_bytes() for path in bench.folder.glob("*.json")}
    capsys.readouterr()
    bench.run("contriever", 1)
    assert capsys.readouterr().out == "" and before == {path: path.read_bytes() for path in bench.folder.glob("*.json")}

    long_texts_report.collect(tmp_path / "cells", tmp_path / "table.json", tmp_path / "figure.png")
    printed = capsys.readouterr().out
    (rows,) = json.loads((tmp_path / "table.json").read_text())["data"].values()
    found = {row["method"]: row for row in rows}
    assert list(found)[:2] == ["before", "matrix"] and "contriever, then matrix" in found
    assert found["contriever"]["cpu"] < found["contriever, then matrix"]["cpu"]
    assert (
        "| independent crops (Contriever), then matrix |" in printed and (tmp_path / "figure.png").stat().st_size > 1000
    )


def test_domains_are_scored_with_a_matrix_after_training_too(bench, monkeypatch):
    scored = make_sentences(12, seed=1)
    data = replace(bench.data, scored=scored, classes=np.arange(12) % 3)
    monkeypatch.setattr(long_texts, "SHORT", long_texts.LONG)
    domain = long_texts.Bench(bench.args, data, None, bench.dev)
    domain.run("adapt", 1)
    cell = json.loads(domain.cell("adapt", 1).read_text())
    assert cell["scores"].keys() == cell["then"]["scores"].keys() == {"1-NN", "V-measure", "STS-B dev"}
    assert cell["scores"] != cell["then"]["scores"] and cell["cpu"] < cell["then"]["cpu"]


def test_table_has_mean_and_standard_deviation(tmp_path):
    for seed, score in ((1, 40.0), (2, 44.0)):
        cell = {"data": "CISI", "method": "adapt", "seed": seed, "machine": {}, "cpu": 10.0, "per_query": None,
                "scores": {"nDCG@10": score, "STS-B dev": 86.0}}  # fmt: skip
        (tmp_path / "CISI").mkdir(exist_ok=True)
        (tmp_path / "CISI" / f"adapt-seed{seed}.json").write_text(json.dumps(cell))
    long_texts_report.collect(tmp_path, tmp_path / "table.json", None)
    found = json.loads((tmp_path / "table.json").read_text())["data"]
    assert found["CISI"][0]["scores"]["nDCG@10"] == [42.0, pytest.approx(8**0.5)]
    assert found["CISI"][0]["seeds"] == [1, 2]


def test_cpu_seconds_counts_this_process():
    with long_texts.cpu_seconds() as spent:
        np.linalg.svd(np.random.default_rng(0).normal(size=(300, 300)))
    assert 0 < spent[0] < 60
