"""Prompts for queries and documents: stored under usual names, overridden by options, in eval, embed and fit."""

import json

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from informin.cli import embed as embed_command
from informin.cli import eval as eval_command
from informin.cli import fit as fit_command
from informin.evaluation.collections import load_collection, load_retrieval_pairs
from informin.evaluation.geometry import unit
from informin.models.open_model import load_model
from informin.models.prompts import named_prompt, side_prompts
from tests.conftest import make_sentences, raises_usage
from tests.evaluation.test_collections import DOCUMENTS, QUERIES, tsv  # noqa: F401
from tests.models.any_encoder.helpers import PROMPTS, sentence_transformer
from tests.models.any_encoder.st_models import save_family

TEXTS = make_sentences(9)
pytestmark = pytest.mark.usefixtures("logging_as_before")


@pytest.fixture(scope="module", params=["native", "st"])
def model(request, bert, tmp_path_factory):
    """A model with prompts and the default prompt `query`: a BERT, and a decoder that is not native."""
    folder = tmp_path_factory.mktemp("prompted") / "model"
    if request.param == "native":
        return sentence_transformer(bert, folder)
    folder = save_family("qwen3", folder.parent)
    config = json.loads((folder / "config_sentence_transformers.json").read_text())
    changed = config | {"prompts": PROMPTS, "default_prompt_name": "query"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(changed))
    return folder


@pytest.mark.parametrize(
    ("stored", "default", "expected"),
    [
        ({"query": "q: ", "document": "d: "}, "q: ", ("q: ", "d: ")),
        ({"query": "q: ", "passage": "p: "}, "", ("q: ", "p: ")),
        ({"search_query": "q: ", "search_document": "d: ", "clustering": "c: "}, "c: ", ("q: ", "d: ")),
        ({"retrieval.query": "q: ", "retrieval.passage": "p: "}, "", ("q: ", "p: ")),
        ({"Retrieval-query": "r: ", "query": "q: ", "Retrieval-document": "d: "}, "", ("q: ", "d: ")),
        ({"s2p_query": "q: ", "s2s_query": "s: "}, "", ("q: ", "")),
        ({"query": "q: "}, "q: ", ("q: ", "")),  # the default prompt is not for documents
        ({"STS": "s: "}, "s: ", ("s: ", "s: ")),
        ({}, "", ("", "")),
    ],
)
def test_prompts_of_both_sides(stored, default, expected):
    assert side_prompts(stored, default) == expected


def test_prompts_by_name():
    stored = {"search_query": "q: ", "Clustering": "c: ", "passage": "p: ", "s": ""}
    found = {name: named_prompt(stored, name) for name in ("query", "document", "Clustering", "search_query", "s")}
    assert found == {"query": "q: ", "document": "p: ", "Clustering": "c: ", "search_query": "q: ", "s": ""}
    with raises_usage(option="prompt_name", found="is sts", needed="stores: search_query, Clustering, passage, s"):
        named_prompt(stored, "sts")
    with raises_usage(option="prompt_name", found="is query", needed="none, so set `prompt` instead"):
        named_prompt({}, "query")


def test_an_encoder_gets_another_prompt(model):
    encoder, theirs = load_model(str(model), device="cpu"), SentenceTransformer(str(model), device="cpu")
    assert encoder.side_prompts == (PROMPTS["query"], PROMPTS["document"]) and encoder.prompt == PROMPTS["query"]
    for prompt in ("a ", "", "today "):
        other = encoder.with_prompt(prompt)
        np.testing.assert_allclose(*(other(TEXTS)[other.poolers[0]], theirs.encode(TEXTS, prompt=prompt)), atol=1e-5)
    assert encoder.prompt == PROMPTS["query"] and other.sha256() != encoder.sha256()
    with raises_usage(option="prompt", found="which leaves no room for a word"):
        encoder.with_prompt("the " * 70)


def ndcg(model, folder, query: str, document: str) -> float:
    """By sentence-transformers."""
    collection, theirs = load_collection(folder), SentenceTransformer(str(model), device="cpu")
    sides = ((collection.queries, query), (collection.documents, document))
    both = [unit(theirs.encode(texts, prompt=prompt)).astype(np.float32) for texts, prompt in sides]
    return float(collection.scores(collection.rank(*both))["ndcg_10"].mean())


CHOICES = [
    ({}, ("the old ", "a ")),
    ({"query_prompt": "today "}, ("today ", "a ")),
    ({"document_prompt": ""}, ("the old ", "")),
    ({"prompt": "small "}, ("small ", "small ")),
    ({"prompt": "small ", "query_prompt": ""}, ("", "small ")),
]


def flags(options: dict) -> list[str]:
    return [word for name, value in options.items() for word in (f"--{name}", value)]


@pytest.mark.parametrize(("options", "used"), CHOICES)
def test_collections_use_them(model, tsv, capsys, options, used):  # noqa: F811
    how = ["--model_name", str(model), "--retrieval", str(tsv), "--device", "cpu"]
    assert eval_command.main([*how, *flags(options)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split()[3] == f"{ndcg(model, tsv, *used):.2f}" and "nDCG@10" in lines[1]
    names = [repr(prompt) if prompt else "none" for prompt in used]
    assert lines[-1].endswith(f"prompt of queries: {names[0]}; of documents: {names[1]}.")


@pytest.mark.parametrize(("options", "used"), CHOICES)
def test_files_of_pairs_use_them(model, tmp_path, capsys, options, used):
    """And the results keep them. A query that is also a document is embedded twice."""
    rows = [f"{query}\t{document}" for query, document in zip(QUERIES, DOCUMENTS)] + [f"{DOCUMENTS[9]}\t{QUERIES[0]}"]
    pairs = tmp_path / "faq.tsv"
    pairs.write_text("\n".join(["query\tdocument", *rows]) + "\n")
    how = [
        "--model_name",
        str(model),
        "--retrieval",
        str(pairs),
        "--device",
        "cpu",
        "--output",
        str(tmp_path / "out.json"),
    ]
    assert eval_command.main([*how, *flags(options)]) == 0
    theirs = SentenceTransformer(str(model), device="cpu")
    query, document = (lambda texts, p=prompt: theirs.encode(list(texts), prompt=p) for prompt in used)
    expected = load_retrieval_pairs(pairs).score(document, query)
    results = json.loads((tmp_path / "out.json").read_text())
    entry = results["tasks"]["faq"]
    assert entry["measures"] == pytest.approx(expected) and entry["measures"]["mrr_10"] < 100
    apart = used != (results["prompt"] or "",) * 2
    assert entry.get("prompts") == (dict(zip(("query", "document"), used)) if apart else None)
    assert ("prompt of queries: " in capsys.readouterr().out) == apart


def test_results_with_other_prompts_are_not_resumed(model, tmp_path):
    pairs, output = tmp_path / "faq.tsv", tmp_path / "out.json"
    pairs.write_text("\n".join(["query\tdocument", *(f"{q}\t{d}" for q, d in zip(QUERIES, DOCUMENTS))]) + "\n")
    how = ["--model_name", str(model), "--retrieval", str(pairs), "--device", "cpu", "--output", str(output)]
    kept = []
    for options in (
        [],
        [],
        ["--query_prompt", "today "],
        ["--query_prompt", "the old ", "--document_prompt", "the old "],
    ):
        assert eval_command.main([*how, *options]) == 0
        kept.append(json.loads(output.read_text())["tasks"]["faq"])
    assert kept[0] == kept[1]  # with the seconds of the first
    prompts = [entry.get("prompts") for entry in kept[1:]]
    assert prompts == [PROMPTS, {"query": "today ", "document": "a "}, None]  # both are the default prompt at last


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--labels", "{labels}", "--query_prompt", "a "], "--query_prompt has no effect without --retrieval."),
        (["--retrieval", "{pairs}", "--whitening", "3"], "--whitening cannot be used with two prompts"),
        (["--retrieval", "{pairs}", "--query_prompt", "the " * 70], "--prompt has 70 tokens, which leaves no room"),
    ],
)
def test_mistakes_give_one_line(model, tmp_path, capsys, options, error):
    (tmp_path / "pairs.tsv").write_text("query\tdocument\nthe dog\ta cat\na man\tthe old dog\n")
    (tmp_path / "labels.tsv").write_text("text\tlabel\nthe dog\ta\na cat\ta\na man\tb\nthe river\tb\n")
    paths = {name: tmp_path / f"{name}.tsv" for name in ("pairs", "labels")}
    argv = ["--model_name", str(model), "--device", "cpu", *(word.format(**paths) for word in options)]
    assert eval_command.main(argv) == 2
    assert error in capsys.readouterr().err


@pytest.mark.parametrize("name", ["query", "document"])
def test_embed_and_fit_use_a_stored_prompt_by_name(model, tmp_path, capsys, name):
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(make_sentences(60)) + "\n")
    how = ["--model_name", str(model), "--train_file", str(texts), "--device", "cpu", "--prompt_name", name]
    assert embed_command.main([*how, "--output", str(tmp_path / "x.npy")]) == 0
    theirs = SentenceTransformer(str(model), device="cpu")
    np.testing.assert_allclose(
        np.load(tmp_path / "x.npy"), theirs.encode(make_sentences(60), prompt_name=name), atol=1e-5
    )
    assert fit_command.main([*how, "--output_dir", str(tmp_path / "fitted")]) == 0
    kept = load_model(str(tmp_path / "fitted"), device="cpu")
    assert (dict(kept.prompts), kept.prompt) == (PROMPTS, PROMPTS["query"])
    capsys.readouterr()
    assert embed_command.main([*how, "--output", str(tmp_path / "y.npy"), "--prompt", "a "]) == 2
    assert "--prompt_name cannot be combined with --prompt." in capsys.readouterr().err
