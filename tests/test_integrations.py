"""The snippets of docs/integrations.md run, on a tiny adapted model, and find what the vectors say."""

import ast
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from informin.cli import fit
from informin.evaluation.collections import load_collection
from tests.conftest import ROOT, make_sentences, save_bert
from tests.publishing.test_adapted import sentence_transformer
from tools.integrations import read_snippets, run_code, same_output

SNIPPETS = read_snippets()
EMBEDS_ITSELF = ("langchain",)  # snippets that do not use documents.npy
SEARCHES = {"faiss", "qdrant", "chroma", "langchain", "llamaindex", "onnx-runtime"}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder with documents.txt, the model `better`, and a test collection."""
    pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    folder = tmp_path_factory.mktemp("snippets")
    texts = make_sentences(120)
    (folder / "documents.txt").write_text("\n".join(texts) + "\n")
    source = sentence_transformer(save_bert(folder.parent / "bert"), folder.parent / "source")
    options = ["--model_name", str(source), "--train_file", str(folder / "documents.txt"), "--documents", "smoothed"]
    assert fit.main([*options, "--output_dir", str(folder / "better")]) == 0
    (folder / "collection").mkdir()
    for name, rows in (("corpus", texts[:60]), ("queries", texts[60:72])):
        lines = [f"{number}\t{text}" for number, text in enumerate(rows)]
        (folder / "collection" / f"{name}.tsv").write_text("\n".join(["id\ttext", *lines]) + "\n")
    judged = [f"{query}\t{query * 5 + place}" for query in range(12) for place in (0, 1)]
    (folder / "collection" / "qrels.tsv").write_text("\n".join(["query\tdocument", *judged]) + "\n")
    return folder


def interpreter(name: str) -> str:
    """The snippet's own environment if `python -m tools.integrations` made one, else this Python."""
    own = Path(os.environ.get("SNIPPET_ENVIRONMENTS", ROOT / "nowhere"), name, "bin", "python")
    return str(own if own.exists() else sys.executable)


def imported(code: str) -> set[str]:
    """The packages that a code block imports."""
    nodes = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    return {name.partition(".")[0] for name in names}


def run(name: str, data: Path, code: str | None = None) -> str:
    """Return what a snippet prints, or other code for its packages. Skips the test if a package is missing."""
    snippet, python = SNIPPETS[name], interpreter(name)
    packages = imported(snippet.code) | ({"optimum"} if 'backend="onnx"' in snippet.code else set())
    snippet = replace(snippet, code=code or snippet.code)
    find = f"from importlib.util import find_spec; print(*(p for p in {sorted(packages)} if not find_spec(p)))"
    missing = subprocess.run([python, "-c", find], capture_output=True, text=True, check=True).stdout.strip()
    if missing:
        pytest.skip(f"not installed: {missing}; python -m tools.integrations makes an environment")
    done = run_code(snippet, python, data)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def query_of(code: str) -> str:
    """The value of `query` in a code block, a string."""
    return next(
        node.value.value
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "query"
    )


@pytest.mark.parametrize("name", sorted(SEARCHES & SNIPPETS.keys()))
def test_searching_finds_the_nearest_documents(name, data):
    from sentence_transformers import SentenceTransformer

    texts = (data / "documents.txt").read_text().splitlines()
    model = SentenceTransformer(str(data / "better"), device="cpu")
    vectors = model.encode(texts) if name in EMBEDS_ITSELF else np.load(data / "better" / "documents.npy")
    cosines = vectors @ model.encode(query_of(SNIPPETS[name].code), normalize_embeddings=True)
    best = np.argsort(-cosines)[:3]
    expected = "\n".join(f"{cosines[i]:.3f}  {texts[i]}" for i in best)
    shown = run(name, data)
    assert same_output(expected, shown), shown


def test_mteb_gives_the_scores_of_informin(data):
    from sentence_transformers import SentenceTransformer

    collection = load_collection(data / "collection")
    encode = SentenceTransformer(str(data / "better"), device="cpu").encode
    scores = collection.scores(collection.search(encode))
    ndcg, recall = (scores[name].mean() for name in ("ndcg_10", "recall_100"))
    shown = run("mteb", data)
    assert same_output(f"nDCG@10 {ndcg:.2f}, recall@100 {recall:.2f}", shown), shown


def test_mteb_does_not_load_folders(data):
    """If this fails, mteb.get_model works: change the page."""
    code = "import mteb\nfor name in ('better', './better'):\n    try:\n        mteb.get_model(name)\n"
    shown = run(
        "mteb", data, f"{code}    except Exception as error:\n        print(f'{{type(error).__name__}}: {{error}}')"
    )
    for line, start in zip(shown.splitlines(), ("OfflineModeIsEnabled: Cannot reach", "NotImplementedError: No model")):
        assert line.startswith(start)
    assert len(shown.splitlines()) == 2


def test_bertopic_finds_topics(data):
    lines = run("bertopic", data).strip().splitlines()
    assert lines and sum(int(line.split()[0]) for line in lines) <= 120


def test_setfit_trains_a_classifier(data):
    assert [line.split()[0] in ("sports", "weather") for line in run("setfit", data).splitlines()[-2:]] == [True, True]


def test_every_snippet_is_complete():
    assert SEARCHES | {"bertopic", "mteb", "setfit"} == SNIPPETS.keys()
    for name, snippet in SNIPPETS.items():
        assert 10 <= len(snippet.code.strip().splitlines()) <= 40, name
        assert snippet.output.strip(), name
        assert (
            len(snippet.versions)
            > len({"sentence-transformers", "transformers", "torch"} & snippet.versions.keys())
            == 3
        )


def test_outputs_are_compared_by_words_and_rounded_numbers():
    assert same_output("0.580  a train\n", "a log line\n0.581 a train")
    assert not same_output("0.580  a train\n", "0.590  a train\n")
    assert not same_output("0.580  a train\n", "0.580  a bus\n")
    assert not same_output("1 a\n2 b\n", "2 b\n")
