"""ONNX files: same outputs as torch, the layout of optimum, and no traces of the machine."""

import json
import logging
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

import informin.publishing.onnx
from informin.cli import export as export_command
from informin.errors import OnnxMismatchError
from informin.evaluation import load_pairs, score_pairs
from informin.models.architectures import ARCHITECTURES
from informin.models.checkpoint import Checkpoint
from informin.models.native_loading import load_config, load_trainable
from informin.models.open_model import in_memory, load_model
from informin.publishing.export import export_folder
from informin.publishing.onnx import (
    MODEL,
    QUANTIZED,
    export_onnx,
    load_onnx_encoder,
    quantize_onnx,
    refuse_unsupported,
)
from informin.publishing.published import check_export, published_files
from tests.conftest import ROOT, make_sentences, raises_usage, save_bert, tokenizer_of

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")

LONG = "dog " * 80  # more tokens than the maximum of the models, 64 or 66


@pytest.fixture(scope="module", params=["bert", "roberta"])
def exported(request, tmp_path_factory) -> Path:
    """An exported model with both ONNX files."""
    start = request.getfixturevalue(request.param)
    folder = tmp_path_factory.mktemp("exported")
    settings = {"objective": "informin", "pooling": "cls", "projection_head": "mlp", "lm_head": True}
    model = load_trainable(Checkpoint(start), settings)
    export_folder(in_memory(model, tokenizer_of(start)), folder)
    assert export_onnx(folder) == folder / MODEL
    assert quantize_onnx(folder) == folder / QUANTIZED
    return folder


@pytest.fixture
def copied(exported, tmp_path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(exported, tmp_path / "copied"))


def session(path: Path):
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "name", [name for name in ARCHITECTURES if name not in ("bert", "roberta", "xlm-roberta", "camembert")]
)
def test_other_architectures(folder_of, tmp_path, name):
    """Pooling, normalization and prompts follow the settings."""
    start = folder_of(name)
    settings = {"pooling": "mean", "projection_head": "none", "lm_head": False, "prompt": "the old "}
    model = load_trainable(Checkpoint(start), settings)
    model.config.informin["normalize"] = True
    export_folder(in_memory(model, tokenizer_of(start)), tmp_path)
    export_onnx(tmp_path)
    assert [tensor.name for tensor in session(tmp_path / MODEL).get_inputs()] == [*ARCHITECTURES[name].onnx_inputs]
    sentences = [*make_sentences(5), LONG, "dog"]
    expected, embeddings = load_model(str(tmp_path))(sentences)["mean"], load_onnx_encoder(tmp_path)(sentences)
    np.testing.assert_allclose(embeddings, expected, atol=1e-5, rtol=0)
    np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), 1, atol=1e-5)


@pytest.mark.parametrize("file", [MODEL, QUANTIZED])
def test_layout_is_that_of_optimum(exported, file):
    """Both names and order, because libraries pass inputs by name or by position."""
    names = ["input_ids", "attention_mask", "token_type_ids"]
    names = names if load_config(Checkpoint(exported)).model_type == "bert" else names[:2]
    opened = session(exported / file)
    assert [(tensor.name, tensor.type) for tensor in opened.get_inputs()] == [(name, "tensor(int64)") for name in names]
    assert [tensor.shape for tensor in opened.get_inputs()] == [["batch_size", "sequence_length"]] * len(names)
    (output,) = opened.get_outputs()
    assert (output.name, output.type) == ("last_hidden_state", "tensor(float)")
    assert output.shape == ["batch_size", "sequence_length", 32]


@pytest.mark.parametrize("batch", [["dog"], [LONG], ["dog", LONG], ["a dog runs", "dog"], [LONG, *make_sentences(6)]])
def test_hidden_states_equal_those_of_torch(exported, batch):
    """For all tokens, compared with transformers' own class. Neither needs code of this project."""
    tokenizer = AutoTokenizer.from_pretrained(exported)
    model = AutoModel.from_pretrained(exported, trust_remote_code=False).eval()
    inputs = tokenizer(batch, padding=True, truncation=True, return_tensors="pt", return_token_type_ids=True)
    with torch.inference_mode():
        expected = model(**inputs).last_hidden_state
    if model.config.model_type != "bert":
        del inputs["token_type_ids"]
    (hidden,) = session(exported / MODEL).run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
    assert hidden.shape == (len(batch), inputs["input_ids"].shape[1], 32) and hidden.dtype == np.float32
    assert LONG not in batch or hidden.shape[1] == tokenizer.model_max_length
    tokens = inputs["attention_mask"].bool()
    torch.testing.assert_close(torch.from_numpy(hidden)[tokens], expected[tokens], atol=1e-5, rtol=0)


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_embeddings_equal_those_of_the_model(exported, batch_size):
    """In the order of the sentences, and truncated only at the model's maximum."""
    sentences = [*make_sentences(7), LONG, "dog", "the " * 20]
    expected = load_model(str(exported), ("cls",), device="cpu")(sentences)["cls"]
    embeddings = load_onnx_encoder(exported, batch_size=batch_size)(sentences)
    assert embeddings.dtype == np.float32
    np.testing.assert_allclose(embeddings, expected, atol=1e-5, rtol=0)
    assert load_onnx_encoder(exported)([]).shape == (0, 32)


def test_8_bits(exported):
    """Smaller, with similar embeddings. Linear layers use 7 of 8 bits, so they cannot overflow."""
    sentences = make_sentences(20)
    expected, embeddings = (load_onnx_encoder(exported, file)(sentences) for file in (MODEL, QUANTIZED))
    cosines = (expected * embeddings).sum(1) / np.linalg.norm(expected, axis=1) / np.linalg.norm(embeddings, axis=1)
    assert cosines.min() > 0.99 and np.abs(expected - embeddings).max() > 1e-3
    assert (exported / QUANTIZED).stat().st_size < 0.8 * (exported / MODEL).stat().st_size

    graph = onnx.load(exported / QUANTIZED).graph
    values = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    linear = [node for node in graph.node if node.op_type == "MatMulInteger"]
    assert len(linear) == 2 * 6  # of 2 layers: query, key, value, output and the feed-forward two
    for weights in (values[node.input[1]] for node in linear):
        assert weights.dtype == np.int8 and 32 < np.abs(weights.astype(int)).max() <= 64
    scales = [value for name, value in values.items() if name.endswith("_scale") and value.size > 1]
    assert sorted(value.size for value in scales) == [32] * 10 + [64] * 2
    tables = [values[node.input[0]] for node in graph.node if node.op_type == "Gather" and node.input[0] in values]
    assert [table.dtype for table in tables if table.ndim == 2 and table.dtype != np.int64] == [np.uint8] * 3


@pytest.mark.parametrize("file", [MODEL, QUANTIZED])
def test_files_have_no_traces_of_the_machine(exported, file):
    content = (exported / file).read_bytes()
    places = [ROOT, Path.home(), exported, Path(torch.__file__).parent, Path(sys.prefix)]
    for text in [*(str(place) for place in places if place != Path("/")), "site-packages", "stack_trace", "modeling_"]:
        assert text.encode() not in content, text
    # The exporter's notes, whatever they may hold: pkg.torch.onnx.name_scopes and the like.
    assert re.findall(rb"pkg\.[\w.]+", content) == []


def test_each_export_is_one_file(exported):
    """No separate file of weights, and no temporary files."""
    assert files(exported / "onnx") == {"model.onnx", "model_quantized.onnx"}
    assert [path.name for path in exported.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("exported", ["bert"], indirect=True)
def test_a_file_with_other_embeddings_is_deleted(copied, monkeypatch):
    before = {name: (copied / name).read_bytes() for name in files(copied)}
    monkeypatch.setattr(informin.publishing.onnx, "_trace", lambda model, path: shutil.copy(copied / QUANTIZED, path))
    with pytest.raises(OnnxMismatchError, match=r"differs by \d\.\de-0[12], more than 1e-04\. It was deleted"):
        export_onnx(copied)
    assert {name: (copied / name).read_bytes() for name in files(copied)} == before


@pytest.mark.parametrize("exported", ["bert"], indirect=True)
def test_incomplete_files_are_deleted(copied, monkeypatch):
    """The disk fills up while the file is written."""

    def fill(model, path):
        path.write_bytes(b"half")
        raise OSError("No space left on device")

    shutil.rmtree(copied / "onnx")
    before = files(copied)
    monkeypatch.setattr(informin.publishing.onnx, "_trace", fill)
    with pytest.raises(OSError, match="No space left"):
        export_onnx(copied)
    assert files(copied) == before and not (copied / "onnx").exists()


@pytest.mark.parametrize("exported", ["bert"], indirect=True)
def test_8_bit_files_of_earlier_weights_are_deleted(copied, monkeypatch):
    monkeypatch.setattr(informin.publishing.onnx, "_trace", lambda model, path: shutil.copy(copied / MODEL, path))
    export_onnx(copied)
    assert (copied / MODEL).is_file() and not (copied / QUANTIZED).exists()


@pytest.mark.parametrize("exported", ["bert"], indirect=True)
def test_logging_settings_are_restored(copied, monkeypatch, capfd):
    """onnxruntime's quantizer uses the root logger, which adds a handler."""
    monkeypatch.setattr(logging.root, "handlers", [])
    quantize_onnx(copied)
    assert logging.root.handlers == [] and logging.root.manager.disable == logging.NOTSET
    assert capfd.readouterr() == ("", "")


def test_a_pooler_of_bert_is_left_out(tmp_path):
    """Plain BERT checkpoints have one, which would be a second output."""
    from transformers import BertModel

    folder = save_bert(tmp_path, num_hidden_layers=1)
    model = BertModel(load_config(Checkpoint(folder)))
    assert model.pooler is not None
    model.save_pretrained(folder)
    export_onnx(folder)
    assert [tensor.name for tensor in session(folder / MODEL).get_outputs()] == ["last_hidden_state"]
    assert not any("pooler" in tensor.name for tensor in onnx.load(folder / MODEL).graph.initializer)


@pytest.mark.parametrize("exported", ["bert"], indirect=True)
def test_models_that_cannot_be_exported(copied, tmp_path):
    with raises_usage(found="nowhere has no config.json", needed="an exported model"):
        export_onnx(tmp_path / "nowhere")
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | {"model_type": "albert"}))
    with raises_usage(found="The architecture 'albert' cannot be exported to ONNX", needed="one of: bert, roberta"):
        export_onnx(copied)
    (copied / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with raises_usage(option="model_name", found="lacks 16 weights of the encoder, such as"):
        export_onnx(copied)


def test_scores_need_pooled_hidden_states(bert, tmp_path):
    models = pytest.importorskip("sentence_transformers.models", reason="sentence-transformers is not installed")
    library = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    modules = [models.Transformer(str(bert)), models.Pooling(32), models.Dense(32, 8)]
    library.SentenceTransformer(modules=modules, device="cpu").save(str(tmp_path / "dense"))
    refuse_unsupported(tmp_path / "dense")
    with raises_usage(option="int8", found="are not pooled hidden states", fix="Leave it out."):
        refuse_unsupported(tmp_path / "dense", scored=True)


@pytest.mark.parametrize("exported", ["bert"], indirect=True)
def test_models_too_large_for_one_file(copied, monkeypatch):
    monkeypatch.setattr(informin.publishing.onnx, "LARGEST", 1000)
    with raises_usage(option="onnx", found="GiB of weights in float32", fix="Export without an ONNX file."):
        export_onnx(copied)


@pytest.mark.parametrize("exported", ["bert"], indirect=True)
def test_files_that_cannot_be_read(copied):
    (copied / QUANTIZED).write_bytes((copied / QUANTIZED).read_bytes()[:-5000])
    with raises_usage(found="model_quantized.onnx cannot be read: ", fix="Create it again."):
        load_onnx_encoder(copied, QUANTIZED)
    (copied / MODEL).unlink()
    for use in (load_onnx_encoder, quantize_onnx):
        with raises_usage(found="has no onnx/model.onnx", fix="Create it with `export_onnx`."):
            use(copied)


def test_packages_that_are_not_installed(tmp_path, monkeypatch):
    """Each function first checks the packages that it needs."""
    monkeypatch.setattr(informin.publishing.onnx, "find_spec", lambda name: None)
    for use, packages in (
        (export_onnx, "onnx onnxscript onnxruntime"),
        (quantize_onnx, "onnx onnxruntime"),
        (load_onnx_encoder, "onnxruntime"),
    ):
        with raises_usage(found="Packages for ONNX are not installed", fix=f"pip install {packages}"):
            use(tmp_path)


# `informin export`


@pytest.fixture
def checkpoint(bert, tmp_path) -> Path:
    """A folder that `informin export` accepts, without ONNX files."""
    settings = {"objective": "informin", "pooling": "cls", "projection_head": "mlp", "lm_head": False}
    export_folder(in_memory(load_trainable(Checkpoint(bert), settings), tokenizer_of(bert)), tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


@pytest.mark.usefixtures("logging_as_before")
def test_export_writes_both_files_and_prints_the_loss_of_8_bits(checkpoint, tmp_path, monkeypatch, capsys, pairs_file):
    pairs = load_pairs(pairs_file)
    monkeypatch.setattr("informin.cli.export.load_stsb_dev", lambda folder: pairs)
    folder = tmp_path / "exported"
    assert export_command.main([str(checkpoint), str(folder), "--onnx", "--int8", "--senteval_dir=senteval"]) == 0
    scores = {
        Path(name).name: score_pairs(load_onnx_encoder(folder, name), pairs)["spearman"] for name in (MODEL, QUANTIZED)
    }
    said = ", ".join(f"{name} {score:.2f}" for name, score in scores.items())
    out = capsys.readouterr().out
    assert f"pairs.tsv, Spearman x 100: {said}\n" in out
    assert json.loads((folder / "onnx" / "scores.json").read_text()) == {"pairs": "pairs.tsv", "spearman": scores}
    assert out.splitlines()[1:] == [path.as_posix() for path in published_files(folder)]
    assert {MODEL, QUANTIZED, "onnx/scores.json"} <= set(out.splitlines())
    card = (folder / "README.md").read_text()
    for name, score in scores.items():
        assert f"`onnx/{name}` (pairs.tsv {score:.2f})" in card
    export_onnx(folder)  # of what may be other weights
    assert files(folder / "onnx") == {"model.onnx"}


@pytest.mark.usefixtures("logging_as_before")
def test_export_when_the_onnx_file_is_wrong(checkpoint, tmp_path, monkeypatch, capsys):
    def refuse(*_):
        raise OnnxMismatchError("The ONNX file gives other embeddings.")

    monkeypatch.setattr(informin.publishing.onnx, "_refuse_difference", refuse)
    folder = tmp_path / "exported"
    assert export_command.main([str(checkpoint), str(folder), "--onnx"]) == 1
    message = f"error: The ONNX file gives other embeddings. The other files of {folder} are complete.\n"
    assert capsys.readouterr().err.endswith(message)
    check_export(folder)
    assert not (folder / "onnx").exists()


@pytest.mark.usefixtures("logging_as_before")
def test_export_checks_options_before_it_writes(checkpoint, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "exported"
    assert export_command.main([str(checkpoint), str(folder), "--int8"]) == 2
    assert "--int8 is set without --onnx. Set both." in capsys.readouterr().err
    assert export_command.main([str(checkpoint), str(folder), "--onnx", "--int8", f"--senteval_dir={tmp_path}"]) == 2
    assert "sts-dev.csv" in capsys.readouterr().err
    monkeypatch.setattr(informin.publishing.onnx, "find_spec", lambda name: None)
    assert export_command.main([str(checkpoint), str(folder), "--onnx"]) == 2
    assert "pip install onnx onnxscript onnxruntime" in capsys.readouterr().err
    assert not folder.exists()
