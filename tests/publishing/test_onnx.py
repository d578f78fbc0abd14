import numpy as np
import onnxruntime
import pytest
from transformers import AutoTokenizer

from informin.adapters.linear import LinearAdapter
from informin.errors import SaveError
from informin.models.opening import load_model
from informin.publishing import onnx
from informin.publishing.adapted import save_adapted
from tests.conftest import make_sentences
from tests.publishing.helpers import TEXTS, contents, export_of


def embed(folder, file: str, texts=TEXTS) -> np.ndarray:
    session = onnxruntime.InferenceSession(folder / file)
    batch = AutoTokenizer.from_pretrained(folder)(texts, padding=True, truncation=True, return_tensors="np")
    inputs = {one.name: batch[one.name] for one in session.get_inputs()}
    return session.run(["sentence_embedding"], inputs)[0]


@pytest.mark.parametrize(("name", "pooling"), [("bert", "cls"), ("roberta", "mean")])
def test_the_file_gives_the_embeddings_of_the_model(request, tmp_path, name, pooling):
    """Also after quantization, and it replaces a quantized file of other weights."""
    folder = export_of(request.getfixturevalue(name), tmp_path / "export", pooling=pooling)
    (folder / "onnx").mkdir()
    (folder / onnx.QUANTIZED).write_text("of other weights")
    path = onnx.export_onnx(folder)
    assert not (folder / onnx.QUANTIZED).exists()
    expected = load_model(folder, device="cpu").encode(TEXTS)
    assert np.abs(embed(folder, onnx.MODEL) - expected).max() < 1e-5
    assert np.abs(embed(folder, onnx.MODEL, TEXTS[:1]) - expected[:1]).max() < 1e-5
    assert str(tmp_path).encode() not in path.read_bytes()
    quantized = onnx.quantize_onnx(folder)
    cosines = (embed(folder, onnx.QUANTIZED) * expected).sum(1)
    lengths = np.linalg.norm(embed(folder, onnx.QUANTIZED), axis=1) * np.linalg.norm(expected, axis=1)
    assert (cosines / lengths).min() > 0.95
    assert quantized.stat().st_size < path.stat().st_size


def test_the_adapter_is_in_the_file(st_mean, tmp_path):
    model = load_model(st_mean, device="cpu")
    adapter = LinearAdapter(n_components=8).fit(model.encode(make_sentences(60)))
    save_adapted(model, adapter, tmp_path / "m", texts=60, task="search")
    onnx.export_onnx(tmp_path / "m")
    difference = embed(tmp_path / "m", onnx.MODEL) - adapter.transform(model.encode(TEXTS))
    assert np.abs(difference).max() < 1e-5


def test_a_file_with_other_embeddings_is_not_written(folder, monkeypatch):
    before = contents(folder)
    monkeypatch.setattr(onnx, "TOLERANCE", -1.0)
    with pytest.raises(SaveError):
        onnx.export_onnx(folder)
    assert contents(folder) == before
