"""Scoring of a SentenceTransformer: every text once, resumed by task, with its prompts and similarity."""

import gzip
import math

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Router

from informin.errors import UndefinedScoreError
from informin.evaluation import evaluate as scoring
from informin.evaluation.encode import whiten, whitened
from informin.evaluation.evaluate import evaluate, load_tasks, pooler_of, score_model, score_sts
from informin.evaluation.labels import score_labels
from informin.evaluation.results import load_results
from informin.evaluation.senteval import load_task
from informin.model.open import load_model
from tests.conftest import make_sentences, raises_usage, save_sentence_transformer
from tests.support.senteval_data import small_counts, write_senteval

SHARE = 0.01


@pytest.fixture
def data(tmp_path, monkeypatch):
    small_counts(monkeypatch, SHARE)
    return write_senteval(tmp_path / "data", SHARE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, bert):
    return save_sentence_transformer(tmp_path_factory.mktemp("scoring") / "tiny", bert, normalize=False)


@pytest.fixture
def model(folder) -> SentenceTransformer:
    return load_model(folder, device="cpu")


@pytest.fixture
def embedded(monkeypatch) -> list[tuple]:
    """The side, prompt and texts of each call of `embed`."""
    calls, embed = [], scoring.encode_in_shares

    def spied(model, texts, *, side=None, prompt=None, **how):
        calls.append((side, prompt, list(texts)))
        return embed(model, texts, side=side, prompt=prompt, **how)

    monkeypatch.setattr(scoring, "encode_in_shares", spied)
    return calls


@pytest.fixture
def collection(tmp_path):
    """Twelve queries, each with one relevant document among 40."""
    documents, queries = make_sentences(40, 1), make_sentences(12, 2)
    folder = tmp_path / "mine"
    folder.mkdir()
    for name, texts in (("corpus", documents), ("queries", queries)):
        rows = [f"{i}\t{text}" for i, text in enumerate(texts)]
        (folder / f"{name}.tsv").write_text("\n".join(["id\ttext", *rows]) + "\n")
    (folder / "qrels.tsv").write_text("query\tdocument\n" + "".join(f"{i}\t{3 * i}\n" for i in range(12)))
    return folder


def test_a_model_is_scored_on_sentence_pairs_and_transfer(data, model, folder, tmp_path, embedded):
    tasks = load_tasks(data, ["STS-B", "STS12", "MR"])
    results = score_model(model, tasks, output=tmp_path / "a.json")
    assert results == load_results(tmp_path / "a.json")
    texts = [text for *_, texts in embedded for text in texts]
    assert len(texts) == len(set(texts)), "each text is encoded once"
    assert results.tasks["STS-B"]["score"] == pytest.approx(
        score_sts(lambda texts: model.encode(list(texts)), load_task(data, "STS-B"))["score"], abs=1e-4
    )
    assert results.tasks["MR"]["score"] > 60 and results.tasks["MR"]["n"] == load_task(data, "MR").counts["n"]
    assert (results.model, results.pooler, results.normalized) == (str(folder), "mean", False)
    assert (results.precision, results.prompt, results.similarity) == ("fp32", None, "cosine")
    assert results.environment["device"].startswith("cpu ") and results.max_seq_length == 66


def test_finished_tasks_are_not_scored_again(data, model, tmp_path, embedded):
    first = score_model(model, load_tasks(data, ["STS-B"]), output=tmp_path / "a.json")
    embedded.clear()
    both = score_model(model, load_tasks(data, ["STS-B", "SICK-R"]), output=tmp_path / "a.json")
    assert both.tasks["STS-B"] == first.tasks["STS-B"] and "SICK-R" in both.tasks
    texts = {text for *_, texts in embedded for text in texts}
    assert texts == set(load_task(data, "SICK-R").texts())
    with raises_usage("output"):
        score_model(model, load_tasks(data, ["STS-B"]), whitening=4, output=tmp_path / "a.json")


def test_sample_is_scored_like_a_task(tmp_path, model):
    """Named after its file and saved with all measures, without SentEval's data."""
    rows = "\n".join(["text\tlabel", *(f"{s}\t{s.split()[0] < 'h'}" for s in make_sentences(40))])
    (tmp_path / "titles.tsv.gz").write_bytes(gzip.compress(rows.encode()))
    tasks = load_tasks(None, [], labels=[tmp_path / "titles.tsv.gz"])
    entry = score_model(model, tasks).tasks["titles"]
    scores = score_labels(lambda texts: model.encode(list(texts)), tasks.data["titles"])
    assert entry["measures"] == pytest.approx(scores) and entry["score"] == entry["measures"]["v_measure"]
    assert (entry["kind"], entry["n"], entry["classes"]) == ("labels", 40, 2)
    assert entry["data"] == {"titles": tasks.data["titles"].sha256}


class Reversed:
    """Ranks documents by their numbers, the last first."""

    settings = {"order": "reversed"}

    def has_ranked(self, entry):
        return entry.get("order") == "reversed"

    def embed(self, model, collection, prompts, batch_size):
        return None

    def rank(self, collection, embedded, similarity):
        assert embedded.documents.shape == (40, 32) and embedded.queries.shape == (12, 32)
        return {"reversed": np.tile(np.arange(40)[::-1], (12, 1))}


def test_a_collection_is_ranked_by_vectors_and_in_other_ways(collection, model, tmp_path):
    """Another ranking is scored beside that of the vectors, and saved results without it are not finished."""
    tasks = load_tasks(None, [], retrieval=[collection])
    output = tmp_path / "a.json"
    entry = score_model(model, tasks, output=output).tasks["mine"]
    scores = tasks.data["mine"].score(lambda texts: model.encode(list(texts)))
    assert entry["measures"] == pytest.approx(scores) and entry["score"] == pytest.approx(scores["mrr_10"])
    assert np.mean(entry["queries"]["ndcg_10"]) == pytest.approx(scores["ndcg_10"], abs=1e-5)
    assert set(entry) == {"kind", "n", "documents", "measures", "queries", "score", "seconds", "data"}
    again = score_model(model, tasks, rankings=Reversed(), output=output).tasks["mine"]
    assert again["measures"] == entry["measures"] and again["order"] == "reversed"
    ranks = [40 - 3 * i for i in range(12)]
    expected = 100 * np.mean([1 / rank if rank <= 10 else 0 for rank in ranks])
    assert again["reversed"]["measures"]["mrr_10"] == pytest.approx(expected)
    assert score_model(model, tasks, rankings=Reversed(), output=output).tasks["mine"] == again  # with its seconds


def test_queries_and_documents_have_their_prompts(collection, bert, tmp_path, embedded):
    prompts = {"query": "the dog ", "document": ""}
    model = load_model(save_sentence_transformer(tmp_path / "asks", bert, prompts=prompts), device="cpu")
    tasks = load_tasks(None, [], retrieval=[collection])
    stored = score_model(model, tasks, output=tmp_path / "a.json").tasks["mine"]
    assert [call[:2] for call in embedded] == [("query", None), ("document", None)]
    assert stored["prompts"] == prompts
    named = score_model(model, tasks, query_prompt="a cat ", output=tmp_path / "a.json").tasks["mine"]
    assert named["prompts"] == {"query": "a cat ", "document": ""} and named["measures"] != stored["measures"]
    both = score_model(model, tasks, prompt="a cat ")
    assert both.prompt == "a cat " and "prompts" not in both.tasks["mine"]


def test_a_router_has_a_route_for_each_side(collection, bert, tmp_path):
    sides = [
        SentenceTransformer(str(save_sentence_transformer(tmp_path / x, bert, pooling=x))) for x in ("cls", "mean")
    ]
    router = Router.for_query_document(query_modules=list(sides[0]), document_modules=list(sides[1]))
    model = SentenceTransformer(modules=[router], device="cpu")
    tasks = load_tasks(None, [], retrieval=[collection])
    mine = tasks.data["mine"]
    ranking = mine.rank(model.encode_query(mine.queries), model.encode_document(mine.documents))
    expected = {name: values.mean() for name, values in mine.scores(ranking).items()}
    assert score_model(model, tasks).tasks["mine"]["measures"] == pytest.approx(expected)
    assert expected != mine.score(lambda texts: model.encode_document(list(texts)))


def test_the_similarity_of_the_model_compares_embeddings(collection, data, bert, tmp_path):
    folder = save_sentence_transformer(tmp_path / "dot", bert, normalize=False, similarity_fn_name="dot")
    model = load_model(folder, device="cpu")
    results = score_model(model, load_tasks(data, ["STS-B"], retrieval=[collection]))
    assert results.similarity == "dot"
    model.similarity_fn_name = "cosine"
    others = score_model(model, load_tasks(data, ["STS-B"], retrieval=[collection]))
    for name in ("STS-B", "mine"):
        assert results.tasks[name]["score"] != others.tasks[name]["score"]


def test_whitening(collection, data, model):
    tasks = load_tasks(data, ["STS-B"], retrieval=[collection])
    results = score_model(model, tasks, whitening=8)
    assert results.whitening == {"dimensions": 8, "fitted_on": "the sentences of each task"}
    encode = whitened(lambda texts: model.encode(list(texts)), 8)
    assert results.tasks["STS-B"]["score"] == pytest.approx(score_sts(encode, tasks.data["STS-B"])["score"], abs=0.01)
    assert results.tasks["mine"]["measures"] == pytest.approx(tasks.data["mine"].score(encode), abs=0.01)
    undefined = score_model(model, load_tasks(None, [], retrieval=[collection]), whitening=math.inf)
    assert undefined.whitening["dimensions"] is None and undefined.tasks["mine"]["score"] is not None
    for wrong in (0, 33, True, 2.5, math.nan):
        with raises_usage("whitening"):
            score_model(model, tasks, whitening=wrong)


def test_a_task_without_a_score_has_a_reason(tmp_path, model):
    rows = [f"{text}\t{i % 2}" for i, text in enumerate(make_sentences(20))]
    (tmp_path / "few.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    entry = score_model(model, load_tasks(None, [], labels=[tmp_path / "few.tsv"]), whitening=32).tasks["few"]
    assert entry["score"] is None and "20 sentences cannot be whitened to 32 dimensions" in entry["error"]


@pytest.mark.parametrize("vector", [np.ones(8, np.float32), np.full(8, 0.1, np.float32), np.zeros(8, np.float32)])
def test_equal_embeddings_cannot_be_whitened(vector):
    with pytest.raises(UndefinedScoreError):
        whiten(np.tile(vector, (20, 1)), 4)


def test_results_have_only_the_averages_of_their_tasks(data, folder, tmp_path):
    how = dict(senteval_dir=data, output=tmp_path / "a.json", device="cpu")
    (whole,) = evaluate(str(folder), tasks=["sts"], **how).rows
    (part,) = evaluate(str(folder), tasks=["STS12"], **how).rows
    assert whole.average["sts"] is not None and list(part.tasks) == ["STS12"]
    assert part.average["sts"] is None and part.seconds < whole.seconds


def test_whitening_needs_more_sentences_than_dimensions():
    """All cosines of N whitened embeddings in N - 1 directions are equal."""
    x = np.random.default_rng(0).normal(size=(9, 8))
    assert np.isfinite(whiten(x, None)).all()
    np.testing.assert_allclose(np.cov(whiten(x, 4).T, bias=True), np.eye(4), atol=1e-5)
    for few, dimensions in ((x[:8], None), (x[:4], 4)):
        with pytest.raises(UndefinedScoreError):
            whiten(few, dimensions)


@pytest.mark.parametrize("pooler", ["cls", "mean", "first_last"])
def test_name_of_the_pooling(folder, pooler):
    assert pooler_of(load_model(folder, pooler=pooler, device="cpu")) == (
        "LayerPooling" if pooler == "first_last" else pooler
    )


@pytest.mark.parametrize(
    "labels, retrieval", [(["STS12.tsv"], []), (["a/x.tsv", "b/x.csv"], []), (["a/x.tsv"], ["x.tsv"])]
)
def test_tasks_with_the_same_name_are_rejected(tmp_path, labels, retrieval):
    for file in {*labels, *retrieval}:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        rows = ["query,document", "a,b", "c,d"] if file in retrieval else ["text,label", "a,x", "b,x", "c,y"]
        text = "\n".join(rows)
        (tmp_path / file).write_text(text if file.endswith(".csv") else text.replace(",", "\t"))
    files = [[tmp_path / file for file in names] for names in (labels, retrieval)]
    with raises_usage("retrieval" if retrieval else "labels"):
        load_tasks(None, [], labels=files[0], retrieval=files[1])
