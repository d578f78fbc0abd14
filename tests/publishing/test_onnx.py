import logging
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import load as load_onnx
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling, Transformer
from transformers import AutoTokenizer

from informin.cli import run_command
from informin.errors import SaveError
from informin.frozen.adapter import LinearAdapter
from informin.model.open import load_model
from informin.publishing import onnx
from tests.conftest import ROOT, make_sentences, raises_usage, save_bert, save_roberta, save_sentence_transformer
from tests.publishing.helpers import TEXTS, contents, export_of, read_json, save_adapted


def embed(folder, file: str, texts=TEXTS) -> np.ndarray:
    session = onnxruntime.InferenceSession(folder / file)
    batch = AutoTokenizer.from_pretrained(folder)(texts, padding=True, truncation=True, return_tensors="np")
    inputs = {one.name: batch[one.name] for one in session.get_inputs()}
    return session.run(["sentence_embedding"], inputs)[0]


@pytest.fixture(scope="module")
def adapted(tmp_path_factory) -> tuple[Path, np.ndarray]:
    """A folder with an adapter and its ONNX file, and the embeddings of TEXTS, by an encoder of one layer."""
    folder = tmp_path_factory.mktemp("adapted") / "m"
    roberta = save_roberta(folder.with_name("roberta"), num_hidden_layers=1)
    model = load_model(export_of(roberta, folder.with_name("source-export"), pooling="cls"), device="cpu")
    adapter = LinearAdapter(n_components=8).fit(model.encode(make_sentences(60)))
    save_adapted(model, adapter, folder)
    (folder / "onnx").mkdir()
    (folder / onnx.QUANTIZED).write_text("of other weights")
    onnx.export_onnx(folder)
    return folder, adapter.transform(model.encode(TEXTS))


def test_the_file_gives_the_embeddings_of_the_model(adapted):
    """Also after quantization, and it replaces a quantized file of other weights."""
    (folder, expected), path = adapted, adapted[0] / onnx.ONNX_FILE
    assert not (folder / onnx.QUANTIZED).exists()
    assert np.abs(embed(folder, onnx.ONNX_FILE) - expected).max() < 1e-5
    assert np.abs(embed(folder, onnx.ONNX_FILE, TEXTS[:1]) - expected[:1]).max() < 1e-5
    for local in (folder.parent, ROOT, Path(onnxruntime.__file__).parents[1]):
        assert str(local).encode() not in path.read_bytes()
    quantized = onnx.quantize_onnx(folder)
    cosines = (embed(folder, onnx.QUANTIZED) * expected).sum(1)
    lengths = np.linalg.norm(embed(folder, onnx.QUANTIZED), axis=1) * np.linalg.norm(expected, axis=1)
    assert (cosines / lengths).min() > 0.95
    assert quantized.stat().st_size < path.stat().st_size
    weights = {one.name: one for one in load_onnx(quantized).graph.initializer}
    scales = [one for name, one in weights.items() if name.endswith("_scale")]
    assert any(one.dims and one.dims[0] > 1 for one in scales), "one scale per output of a layer"


def pooled_by_client(folder: Path, pooling: str) -> np.ndarray:
    """Return what a client does that takes the first output: it pools the tokens and normalizes."""
    session = onnxruntime.InferenceSession(folder / onnx.ONNX_FILE)
    batch = AutoTokenizer.from_pretrained(folder)(TEXTS, padding=True, truncation=True, return_tensors="np")
    first = session.run(None, {one.name: batch[one.name] for one in session.get_inputs()})[0]
    mask = batch["attention_mask"][..., None]
    pooled = first[:, 0] if pooling == "cls" else (first * mask).sum(1) / mask.sum(1)
    return pooled / np.linalg.norm(pooled, axis=1, keepdims=True)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_clients_that_pool_the_first_output_do_not_lose_the_adapter(adapted, pooling):
    folder, expected = adapted
    unit = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    assert np.abs(pooled_by_client(folder, pooling) - unit).max() < 1e-5
    assert "sentence_embedding" in onnx.advice_for_clients(folder) and onnx.settings_for_clients(folder) is None


def test_what_other_clients_need(tmp_path):
    """The ONNX backend of sentence-transformers takes no arguments for torch, and looks for last_hidden_state."""
    exported = export_of(save_bert(tmp_path / "bert", num_hidden_layers=0), tmp_path / "exported")
    settings = "sentence_bert_config.json"
    assert "model_args" in read_json(exported / settings)
    folder = tmp_path / "my models"
    assert run_command("export", "--model_name", str(exported), "--output_dir", str(folder), "--onnx") == 0
    assert "model_args" not in read_json(folder / settings)
    model = load_model(folder, device="cpu")
    assert np.abs(pooled_by_client(folder, "mean") - model.encode(TEXTS)).max() < 1e-5
    assert onnx.settings_for_clients(folder) == "mean pooling and normalization"
    names = [one.name for one in onnxruntime.InferenceSession(folder / onnx.ONNX_FILE).get_outputs()]
    assert names[0] == "last_hidden_state"


def test_the_file_truncates_embeddings_as_the_model_and_prepends_no_prompt(tmp_path):
    bert, folder = save_bert(tmp_path / "bert", num_hidden_layers=0), tmp_path / "new"
    prompts = {"prompts": {"old": "the "}, "default_prompt_name": "old"}
    source = save_sentence_transformer(tmp_path / "source", bert, truncate_dim=8, **prompts)
    assert run_command("export", "--model_name", str(source), "--output_dir", str(folder), "--onnx") == 0
    expected = SentenceTransformer(str(source), device="cpu").encode(TEXTS, prompt="")
    assert expected.shape[1] == 8 and np.abs(embed(folder, onnx.ONNX_FILE) - expected).max() < 1e-5
    assert onnx.settings_for_clients(folder) is None


def test_what_a_file_cannot_compute_is_refused(tmp_path, monkeypatch):
    bert, folder = save_bert(tmp_path / "bert", num_hidden_layers=0), tmp_path / "without"
    modules = [Transformer(str(bert)), Pooling(32, include_prompt=False)]
    model = SentenceTransformer(modules=modules, prompts={"query": "the "}, device="cpu")
    model.save_pretrained(str(folder), create_model_card=False)
    with raises_usage("onnx", found="prompt"):
        onnx.export_onnx(folder)
    monkeypatch.setattr(torch.Tensor, "numel", lambda self: 2**28)
    with raises_usage("onnx", found="GiB"):
        onnx.export_onnx(save_sentence_transformer(tmp_path / "large", bert))
    assert not list(tmp_path.rglob("*.onnx"))


def test_a_missing_package_is_named_with_its_extra(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with raises_usage("onnx", found="onnxscript", fix="onnx"):
        onnx.export_onnx(folder)
    assert not (folder / "onnx").exists()


def test_a_file_with_other_embeddings_is_not_written(adapted, monkeypatch, caplog):
    folder, _ = adapted
    program, before = SimpleNamespace(model_proto=load_onnx(folder / onnx.ONNX_FILE)), contents(folder)
    monkeypatch.setattr(torch.onnx, "export", lambda *args, **options: program)
    monkeypatch.setattr(onnx, "ONNX_TOLERANCE", -1.0)
    with caplog.at_level(logging.INFO, "torch.onnx"):
        with pytest.raises(SaveError):
            onnx.export_onnx(folder)
        assert logging.getLogger("torch.onnx").level == logging.INFO
    assert contents(folder) == before
