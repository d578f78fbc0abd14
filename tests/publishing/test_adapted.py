"""Models with a linear adapter: `informin fit`, `informin embed`, and every way to load the folder."""

import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers import AutoModel, AutoTokenizer

from informin.adapters.linear import LinearAdapter
from informin.adapters.prediction import PRESETS
from informin.adapters.vectors import load_vectors
from informin.cli import embed, fit
from informin.models.checkpoint import Checkpoint
from informin.models.embed_file import embed_file
from informin.models.native import FOR_ADAPTER
from informin.models.native_loading import load_trainable
from informin.models.open_model import load_model
from informin.publishing.adapted import save_adapted
from informin.publishing.export import export_checkpoint
from informin.publishing.onnx import export_onnx, load_onnx_encoder
from informin.publishing.published import published_files
from modeling_informin import BertForInforMinCL
from tests import forked
from tests.conftest import make_sentences, raises_usage, save_bert

TEXTS = make_sentences(120)


def sentence_transformer(encoder: Path, folder: Path, normalize: bool = True) -> Path:
    """A mean-pooled sentence-transformers model."""
    from sentence_transformers import SentenceTransformer, models

    transformer = models.Transformer(str(encoder))
    pooling = models.Pooling(transformer.get_embedding_dimension(), "mean")
    modules = [transformer, pooling, *([models.Normalize()] if normalize else [])]
    SentenceTransformer(modules=modules, device="cpu").save(str(folder))
    return folder


def copy_of(folder: Path, target: Path) -> Path:
    return Path(shutil.copytree(folder, target))


def chosen() -> LinearAdapter:
    """The adapter that `informin fit` chooses, as there are too few texts to judge the other."""
    return LinearAdapter(**PRESETS["short_texts"])


@pytest.fixture(scope="module", params=[True, False], ids=["normalized", "not-normalized"])
def adapted(request, tmp_path_factory):
    """The source model and the folder that `informin fit` wrote."""
    pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    folder = tmp_path_factory.mktemp("adapted")
    source = sentence_transformer(save_bert(folder / "bert"), folder / "source", request.param)
    (folder / "texts.txt").write_text("\n\n".join(TEXTS))
    options = ["--model_name", str(source), "--train_file", str(folder / "texts.txt")]
    assert fit.main([*options, "--output_dir", str(folder / "out"), "--documents", "smoothed"]) == 0
    return source, folder / "out"


def test_every_way_to_load_it_gives_the_same_embeddings(adapted):
    from sentence_transformers import SentenceTransformer

    source, folder = adapted
    before = load_model(str(source))
    adapter = chosen().fit(before(TEXTS)["mean"])
    expected = adapter.transform(before(TEXTS)["mean"])
    encoder = load_model(str(folder))
    if not before.normalized:
        dense = load_file(folder / "3_Dense" / "model.safetensors")
        unit = before(TEXTS)["mean"] / np.linalg.norm(before(TEXTS)["mean"], axis=-1, keepdims=True)
        expected = unit @ dense["linear.weight"].T + dense["linear.bias"]
    assert np.abs(expected - before(TEXTS)["mean"]).max() > 0.01, "the adapter changes nothing"
    found = encoder(TEXTS)["mean"]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    theirs = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(theirs, expected, atol=1e-5)
    model = AutoModel.from_pretrained(folder, trust_remote_code=True).eval()
    batch = AutoTokenizer.from_pretrained(folder)(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        np.testing.assert_allclose(model(**batch).pooler_output.numpy(), expected, atol=1e-5)
    assert encoder.weights_sha256() != before.weights_sha256() and encoder.sha256() != before.sha256()


def test_its_onnx_file_gives_the_same_embeddings(adapted, tmp_path):
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    _, folder = adapted
    export_checkpoint(folder, tmp_path / "export")
    export_onnx(tmp_path / "export")
    expected = load_model(str(folder))(TEXTS)["mean"]
    np.testing.assert_allclose(load_onnx_encoder(tmp_path / "export")(TEXTS), expected, atol=1e-5)
    np.testing.assert_allclose(load_model(str(tmp_path / "export"))(TEXTS)["mean"], expected, atol=1e-6)


def test_a_folder_with_fewer_dimensions_loads_in_every_way(tmp_path):
    from sentence_transformers import SentenceTransformer

    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    source = load_model(str(sentence_transformer(save_bert(tmp_path / "bert"), tmp_path / "source")))
    vectors, folder = source(TEXTS)["mean"], tmp_path / "out"
    adapter = LinearAdapter(n_components=9).fit(vectors)
    save_adapted(source, adapter, folder, texts=len(TEXTS))
    expected = adapter.transform(vectors)
    model = AutoModel.from_pretrained(folder, trust_remote_code=True).eval()
    batch = AutoTokenizer.from_pretrained(folder)(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        np.testing.assert_allclose(model(**batch).pooler_output.numpy(), expected, atol=1e-5)
    model.save_pretrained(tmp_path / "again")
    (tmp_path / "again" / "README.md").unlink(missing_ok=True)
    with raises_usage(found="again has no README.md, the model card of the adapter"):
        export_checkpoint(tmp_path / "again", tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()
    export_checkpoint(folder, tmp_path / "export")
    export_onnx(tmp_path / "export")
    for path in (folder, tmp_path / "export"):
        np.testing.assert_allclose(load_model(str(path))(TEXTS)["mean"], expected, atol=1e-5)
        np.testing.assert_allclose(SentenceTransformer(str(path), device="cpu").encode(TEXTS), expected, atol=1e-5)
    np.testing.assert_allclose(load_onnx_encoder(tmp_path / "export")(TEXTS), expected, atol=1e-5)
    assert json.loads((tmp_path / "again" / "3_Dense" / "config.json").read_text())["out_features"] == 9


def test_a_server_that_skips_normalize_modules_gives_the_same_embeddings(adapted):
    """text-embeddings-inference applies Dense modules to the pooled tokens, and scales the result to unit length."""
    from sentence_transformers import SentenceTransformer

    _, folder = adapted
    model = SentenceTransformer(str(folder), device="cpu")
    expected = model.encode(TEXTS, normalize_embeddings=True)
    skipping = SentenceTransformer(modules=[m for m in model if type(m).__name__ != "Normalize"], device="cpu")
    found = skipping.encode(TEXTS)
    assert np.abs(np.linalg.norm(found, axis=1) - 1).min() > 0.1
    np.testing.assert_allclose(found / np.linalg.norm(found, axis=1, keepdims=True), expected, atol=1e-5)


def test_documents_are_smoothed_and_the_card_is_complete(adapted):
    source, folder = adapted
    vectors = load_model(str(source))(TEXTS)["mean"]
    np.testing.assert_allclose(np.load(folder / "documents.npy"), chosen().fit(vectors).smooth(vectors), atol=1e-5)
    card = (folder / "README.md").read_text()
    assert "fitted in closed form on 120 unlabeled texts" in card and "| `self_weight` | 0.7 |" in card
    assert "10 nearest neighbors kept" in card and str(folder.parent) not in card
    published = {path.as_posix() for path in published_files(folder)}
    assert {"3_Dense/model.safetensors", "README.md"} <= published and "documents.npy" not in published


def test_it_is_not_trained(adapted):
    _, folder = adapted
    with raises_usage(option="model_name", found="has a linear adapter"):
        load_trainable(Checkpoint(folder), dict(FOR_ADAPTER))


@pytest.mark.parametrize("damage", ["shape", "nan", "missing"])
def test_a_damaged_dense_module_is_refused(adapted, tmp_path, damage):
    import shutil

    shutil.copytree(adapted[1], tmp_path / "copy")
    path = tmp_path / "copy" / "3_Dense" / "model.safetensors"
    tensors = load_file(path)
    if damage == "shape":
        tensors["linear.weight"] = tensors["linear.weight"][1:].copy()
    if damage == "nan":
        tensors["linear.bias"][0] = np.nan
    path.unlink()
    if damage != "missing":
        save_file(tensors, path)
    with raises_usage(option="model_name", found="3_Dense/model.safetensors"):
        load_model(str(tmp_path / "copy"))


@pytest.mark.parametrize("missing", ["3_Dense", "3_Dense/config.json", "modules.json"])
def test_a_folder_without_its_adapter_is_refused(adapted, tmp_path, missing):
    folder = copy_of(adapted[1], tmp_path / "part")
    path = folder / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with raises_usage(option="model_name", found="has a linear adapter by its config.json"):
        load_model(str(folder))
    if missing == "3_Dense":
        with pytest.raises(OSError, match=r"has a linear adapter, but 3_Dense/model\.safetensors is missing"):
            AutoModel.from_pretrained(folder, trust_remote_code=True)


def test_a_subfolder_has_its_adapter(adapted, tmp_path):
    copy_of(adapted[1], tmp_path / "models" / "better")
    model = BertForInforMinCL.from_pretrained(tmp_path / "models", subfolder="better")
    expected = load_file(adapted[1] / "3_Dense" / "model.safetensors")["linear.weight"]
    assert np.array_equal(model.adapter.weight.detach().numpy(), expected)


@pytest.mark.parametrize("suffix", [".npy", ".parquet", ".safetensors"])
def test_embeddings_from_anywhere(tmp_path, capsys, suffix):
    vectors = np.random.default_rng(0).normal(size=(300, 8)).astype(np.float32)
    path = tmp_path / f"vectors{suffix}"
    if suffix == ".npy":
        np.save(path, vectors)
    elif suffix == ".parquet":
        pq.write_table(pa.table({"id": range(300), "vector": list(vectors)}), path)
    else:
        save_file({"vectors": vectors}, path)
    assert fit.main(["--embeddings", str(path), "--output_dir", str(tmp_path / "out")]) == 0
    adapter = LinearAdapter().fit(vectors)
    np.testing.assert_allclose(np.load(tmp_path / "out" / "documents.npy"), adapter.transform(vectors), atol=1e-6)
    lines = capsys.readouterr().out.partition("with NumPy:\n")[2]
    found = {"np": np, "queries": vectors[:9]}
    assert lines.count("\n") == 4
    exec(lines, found)  # the lines that are printed
    np.testing.assert_allclose(found["vectors"], adapter.transform(vectors[:9]), atol=1e-5)


@pytest.mark.parametrize(
    "content, found",
    [(np.ones(5), "shape (5,)"), (np.ones((5, 2), int), "type int64"), (b"x", "cannot be read")],
    ids=["vector", "integers", "damaged"],
)
def test_files_without_embeddings_are_refused(tmp_path, content, found):
    path = tmp_path / "x.npy"
    path.write_bytes(content) if isinstance(content, bytes) else np.save(path, content)
    with raises_usage(option="embeddings", found=found):
        load_vectors(path)


@pytest.mark.parametrize(
    "options, message",
    [
        ({}, "--model_name is missing. Give --model_name with --train_file, or --embeddings."),
        ({"model_name": "m"}, "--train_file is missing."),
        ({"embeddings": "nowhere.npy"}, "--embeddings nowhere.npy does not exist"),
        ({"model_name": "m", "train_file": "x", "pooler": "cls"}, "--pooler is cls; expected auto."),
    ],
)
def test_mistakes_are_one_line(tmp_path, capsys, options, message):
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    assert fit.main([*words, "--output_dir", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error and "\n" not in error and not (tmp_path / "out").exists()


def test_embed_writes_what_sentence_transformers_computes(adapted, tmp_path, capsys):
    from sentence_transformers import SentenceTransformer

    source, _ = adapted
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    options = ["--model_name", str(source), "--train_file", str(tmp_path / "texts.txt")]
    assert embed.main([*options, "--output", str(tmp_path / "x.npy")]) == 0
    assert "120 texts, 32 dimensions" in capsys.readouterr().out
    expected = SentenceTransformer(str(source), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(np.load(tmp_path / "x.npy"), expected, atol=1e-5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["texts.txt", "x.npy", "x.npy.json"]
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS[1:]))
    assert embed.main([*options, "--output", str(tmp_path / "x.npy")]) == 2
    assert "exists and contains other embeddings" in capsys.readouterr().err


KILLED = """
import os, signal, sys
from informin.models import embed_file
from informin.models.native import NativeModel as Model
embed_file.CHUNK = 16
call = Model.__call__
def some(encoder, sentences, progress=None):
    some.calls += 1
    if some.calls == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return call(encoder, sentences, progress)
some.calls = 0
Model.__call__ = some
from informin.cli import embed
embed.main(sys.argv[1:])
"""


def test_embed_resumes_after_sigkill(bert, tmp_path, monkeypatch):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    options = ["--model_name", str(bert), "--pooler", "mean", "--train_file", str(tmp_path / "texts.txt")]
    options += ["--output", str(tmp_path / "x.npy")]
    killed = forked.run(forked.python(KILLED, options))
    assert killed.returncode == -signal.SIGKILL and not (tmp_path / "x.npy").exists()
    assert len(os.listdir(tmp_path / ".x.npy.embedding")) == 2 + 3  # rows, description and three chunks
    monkeypatch.setattr("informin.models.embed_file.CHUNK", 16)
    encoder = load_model(str(bert), ("mean",))
    expected = encoder(TEXTS)["mean"]
    embedded = []
    monkeypatch.setattr(type(encoder), "__call__", spy(type(encoder).__call__, embedded))
    np.testing.assert_allclose(embed_file(encoder, TEXTS, tmp_path / "x.npy"), expected, atol=1e-6)
    assert len(embedded) == 120 - 3 * 16, "finished chunks were embedded again"
    assert json.loads((tmp_path / "x.npy.json").read_text())["rows"] == 120


def spy(call, embedded: list):
    def counting(encoder, sentences, progress=None):
        embedded.extend(sentences)
        return call(encoder, sentences, progress)

    return counting


EMBED_IN_CHUNKS = """
import sys
from informin.models import embed_file
embed_file.CHUNK = 16
from informin.cli import embed
sys.exit(embed.main(sys.argv[1:]))
"""


def test_two_processes_embed_what_one_does(bert, tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    options = ["--model_name", bert, "--pooler", "mean", "--train_file", tmp_path / "texts.txt", "--device=cpu"]
    options += ["--output", tmp_path / "x.npy"]
    group = forked.group(EMBED_IN_CHUNKS, [options] * 2, os.environ | {"ACCELERATE_USE_CPU": "true"})
    done, other = (forked.run(process) for process in group)
    assert done.returncode == other.returncode == 0, done.stderr + other.stderr
    assert done.stdout.count("120 texts") == 1
    expected = load_model(str(bert), ("mean",))(TEXTS)["mean"]
    np.testing.assert_allclose(np.load(tmp_path / "x.npy"), expected, atol=1e-5)
