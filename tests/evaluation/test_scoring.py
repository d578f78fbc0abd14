"""Scoring of any encoder: an object with what it uses of a `Model` is enough."""

import gzip
import math

import numpy as np
import pytest
import torch

from informin.errors import UndefinedScoreError
from informin.evaluation.labels import score_labels
from informin.evaluation.results import load_results
from informin.evaluation.scoring import WhiteningOptions, load_tasks, score_encoder, whitening_options
from informin.evaluation.senteval import load_task
from informin.evaluation.sts import score_sts
from informin.evaluation.whitening import whitened
from informin.files import sha256
from tests.conftest import WORDS, make_sentences, raises_usage
from tests.senteval_data import small_counts, write_senteval

SHARE = 0.01


class WordCounts:
    """An encoder that counts words, without a model and without classes of this project."""

    name, poolers, dimensions, device = "words", ("sum", "minus"), len(WORDS), torch.device("cpu")
    length, normalized, bf16, prompt, similarity = 9, False, False, None, "cosine"

    def __init__(self):
        self.truncated = set()

    def __call__(self, sentences, progress):
        self.truncated |= {sentence for sentence in sentences if len(sentence.split()) > self.length}
        progress(len(sentences))
        counts = np.array([[s.split().count(word) for word in WORDS] for s in sentences], dtype=np.float32)
        return {"sum": counts, "minus": 1 - counts}

    def weights_sha256(self):
        return "0" * 64


@pytest.fixture
def data(tmp_path, monkeypatch):
    small_counts(monkeypatch, SHARE)
    return write_senteval(tmp_path / "data", SHARE)


def test_any_object_with_the_interface_is_scored(data, tmp_path):
    encoder, output = WordCounts(), {name: tmp_path / f"{name}.json" for name in WordCounts.poolers}
    rows = score_encoder(encoder, load_tasks(data, ["STS-B", "MR"]), None, output)
    assert [row["pooler"] for row in rows] == ["sum", "minus"] and rows[0] == load_results(output["sum"])
    task = load_task(data, "STS-B")
    for row in rows:
        expected = score_sts(lambda wanted, name=row["pooler"]: WordCounts()(wanted, int)[name], task)
        assert row["tasks"]["STS-B"]["score"] == expected["score"] and row["tasks"]["MR"]["score"] > 60
    assert rows[0]["tasks"]["STS-B"]["score"] != rows[1]["tasks"]["STS-B"]["score"]
    known = {"model": "words", "weights_sha256": "0" * 64, "max_length": 9, "precision": "fp32", "normalized": False}
    assert rows[0] | known == rows[0] and rows[0]["environment"]["device"].startswith("cpu ")
    cut = sum(len(sentence.split()) > 9 for sentence in load_task(data, "MR").sentences())
    assert rows[0]["tasks"]["MR"]["truncated"] == cut > 0


def test_sample_is_scored_like_a_task(tmp_path):
    """Named after its file and saved with all measures, without SentEval's data."""
    sentences = make_sentences(40)
    (tmp_path / "titles.tsv.gz").write_bytes(
        gzip.compress("\n".join(["text\tlabel", *(f"{s}\t{s.split()[0] < 'h'}" for s in sentences)]).encode())
    )
    tasks = load_tasks(None, [], labels=[str(tmp_path / "titles.tsv.gz")])
    output = {name: tmp_path / f"{name}.json" for name in WordCounts.poolers}
    (row, _) = score_encoder(WordCounts(), tasks, None, output)
    entry = load_results(output["sum"])["tasks"]["titles"]
    scores = score_labels(lambda wanted: WordCounts()(wanted, int)["sum"], tasks.data["titles"])
    assert entry["measures"] == pytest.approx(scores) and entry["score"] == entry["measures"]["v_measure"]
    assert (entry["kind"], entry["n"], entry["classes"]) == ("labels", 40, 2) and row["average"]["sts"] is None
    assert entry["data"] == {"titles.tsv.gz": sha256(tmp_path / "titles.tsv.gz")}


@pytest.mark.parametrize(
    "labels, retrieval", [(["STS12.tsv"], []), (["a/x.tsv", "b/x.csv"], []), (["a/x.tsv"], ["x.tsv"])]
)
def test_tasks_with_the_same_name_are_rejected(tmp_path, labels, retrieval):
    for file in {*labels, *retrieval}:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        rows = ["query\tdocument", "a\tb", "c\td"] if file in retrieval else ["text,label", "a,x", "b,x", "c,y"]
        text = "\n".join(rows)
        (tmp_path / file).write_text(text if file.endswith(".csv") else text.replace(",", "\t"))
    files = [[str(tmp_path / file) for file in given] for given in (labels, retrieval)]
    option = "retrieval" if retrieval else "labels"
    name = "STS12" if "STS12.tsv" in labels else "x"
    with raises_usage(option=option, found=f": a task {name} already exists", fix="Rename the file."):
        load_tasks(None, [], labels=files[0], retrieval=files[1])


def test_more_whitening_dimensions_than_embeddings_have_is_an_error(data):
    tasks = load_tasks(data, ["STS-B"])
    needed = f"1 to {len(WORDS)}, the dimensions of words's embeddings"
    with raises_usage(option="whitening", found=f"is {len(WORDS) + 1}", needed=needed):
        score_encoder(WordCounts(), tasks, WhiteningOptions(len(WORDS) + 1))


def test_whitening_needs_more_sentences_than_dimensions():
    """All cosines of N whitened embeddings in N - 1 directions are equal."""
    x = np.random.default_rng(0).normal(size=(9, 8))
    texts = [str(i) for i in range(9)]

    def encode(sentences):
        return np.stack([x[int(text)] for text in sentences])

    assert np.isfinite(whitened(encode, None)(texts)).all()
    for few, dimensions in ((texts[:8], None), (texts[:4], 4)):
        with pytest.raises(UndefinedScoreError, match=f"{len(few)} sentences cannot be whitened to {len(few)} dimen"):
            whitened(encode, dimensions)(few)
        assert whitened(encode, dimensions, texts)(few).shape == (len(few), len(few))


def test_invalid_whitening_is_rejected():
    with raises_usage(option="whitening_file", found="has no effect without `whitening`", fix="Set `whitening`."):
        whitening_options(None, "a.txt")
    with raises_usage(option="whitening", found="is 0", needed="1 or more, or no number for all dimensions"):
        whitening_options(0, None)
    assert whitening_options(math.inf, None) == WhiteningOptions(None)
