"""A folder of `informin fit` in a FAISS index, through the example."""

import runpy
import sys

import numpy as np
import pytest

from informin.cli import fit
from tests.conftest import ROOT, make_sentences, save_bert
from tests.publishing.test_adapted import sentence_transformer


def test_the_example_finds_what_the_adapted_vectors_say(tmp_path, monkeypatch, capsys):
    pytest.importorskip("faiss", reason="faiss is not installed")
    st = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    texts = make_sentences(80)
    (tmp_path / "texts.txt").write_text("\n\n".join(texts))
    source = sentence_transformer(save_bert(tmp_path / "bert"), tmp_path / "source")
    options = ["--model_name", str(source), "--train_file", str(tmp_path / "texts.txt"), "--documents", "smoothed"]
    assert fit.main([*options, "--output_dir", str(tmp_path / "better")]) == 0
    capsys.readouterr()
    query = "the small dog sleeps"
    arguments = [str(tmp_path / "better"), query, "--train_file", str(tmp_path / "texts.txt")]
    monkeypatch.setattr(sys, "argv", ["search_index.py", *arguments])
    runpy.run_path(str(ROOT / "examples" / "search_index.py"))
    shown = capsys.readouterr().out.strip().splitlines()
    documents = np.load(tmp_path / "better" / "documents.npy")
    cosines = documents @ st.SentenceTransformer(str(tmp_path / "better"), device="cpu").encode([query])[0]
    assert len(documents) == len(texts) and shown[0] == query
    best = np.argsort(-cosines)[:5]
    assert [line.split(maxsplit=1)[1] for line in shown[1:]] == [texts[i] for i in best]
    assert [float(line.split()[0]) for line in shown[1:]] == pytest.approx(cosines[best], abs=2e-3)
