"""`precision`: the encoder has weights in half precision, and everything after it is in float32."""

import json
import logging
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Dense
from torch.utils._python_dispatch import TorchDispatchMode

import informin
from informin.cli import run_command
from informin.fast.precision import native_precision, precision_of, processor_has_bf16, weights_sha256
from informin.fast.speed import speed_up
from informin.frozen.index import Index
from informin.model.checksums import model_sha256
from informin.model.open import load_model
from tests.conftest import make_sentences, raises_usage, save_sentence_transformer

TEXTS = make_sentences(40)
HALF = ["bf16", "fp16"]


@pytest.fixture
def auto_is_bf16(monkeypatch):
    """As on a processor with AMX."""
    monkeypatch.setattr("informin.fast.precision.native_precision", lambda device: "bf16")


@pytest.fixture(scope="module")
def st_dense(tmp_path_factory, bert):
    torch.manual_seed(1)
    return save_sentence_transformer(tmp_path_factory.mktemp("models") / "dense", bert, Dense(32, 8))


class Products(TorchDispatchMode):
    """Counts matrix products by the data type of both factors."""

    NAMES = ("mm", "addmm", "bmm", "linear", "_scaled_dot_product_flash_attention_for_cpu")

    def __init__(self):
        super().__init__()
        self.dtypes: Counter = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.overloadpacket.__name__ in self.NAMES:
            matrices = [x for x in args if isinstance(x, torch.Tensor) and x.dim() > 1]
            self.dtypes[tuple(x.dtype for x in matrices[:2])] += 1
        return function(*args, **kwargs or {})


def save_labels(path: Path) -> Path:
    path.write_text("text\tlabel\n" + "".join(f"{text}\t{number % 2}\n" for number, text in enumerate(TEXTS)))
    return path


def assert_rounded(found: np.ndarray, exact: np.ndarray) -> None:
    """The embeddings are float32 of unit length, and those of fp32 up to the rounding of the encoder."""
    found, exact = np.asarray(found), np.asarray(exact)
    assert found.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(found.astype(np.float64), axis=1), 1, atol=1e-6)
    assert (found * exact).sum(1).min() >= 0.9995 and np.abs(found - exact).max() > 1e-5


# What a processor or a GPU has


@pytest.mark.parametrize(
    "capability, avx512, amx, expected",
    [("AVX512", True, False, "bf16"), ("AVX512", False, True, "bf16"), ("AVX512", False, False, "fp32")]
    + [("AVX2", True, True, "fp32"), ("DEFAULT", False, False, "fp32")],
)
def test_auto_follows_the_processor(monkeypatch, capability, avx512, amx, expected):
    """ATEN_CPU_CAPABILITY=avx2 counts as a processor without bf16."""
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: capability)
    monkeypatch.setattr("torch.cpu._is_avx512_bf16_supported", lambda: avx512)
    monkeypatch.setattr("torch.cpu._is_amx_tile_supported", lambda: amx)
    assert native_precision("cpu") == expected and processor_has_bf16() is (expected == "bf16")


@pytest.mark.parametrize("capability, expected", [((8, 0), "bf16"), ((7, 5), "fp16"), ((6, 1), "fp32")])
def test_auto_follows_the_gpu(monkeypatch, capability, expected):
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: capability)
    assert native_precision("cuda:0") == expected and native_precision("mps") == "fp32"


def test_a_precision_that_is_slow_here_is_logged(st_mean, monkeypatch, caplog):
    for native, expected in (("fp32", 1), ("bf16", 0)):
        monkeypatch.setattr("informin.fast.precision.native_precision", lambda device, native=native: native)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "informin"):
            model = load_model(st_mean, precision="bf16", device="cpu")
        assert precision_of(model) == "bf16" and len(caplog.messages) == expected


# Embeddings


@pytest.fixture(scope="module")
def exact(st_dense) -> dict[str, np.ndarray]:
    """The embeddings in float32 by the side of padding."""
    model, found = load_model(st_dense, precision="fp32", device="cpu"), {}
    for model.tokenizer.padding_side in ("right", "left"):
        found[model.tokenizer.padding_side] = model.encode(TEXTS)
    return found


@pytest.mark.parametrize(
    "opened, precision",
    [
        ("load_model", "bf16"),
        ("load_model", "fp16"),
        ("given", "bf16"),
        ("speed_up", "bf16"),
        ("half before speed_up", "fp16"),
        ("half after speed_up", "bf16"),
    ],
)
def test_embeddings_in_half_precision(st_dense, exact, precision, opened):
    """Packed or not, whoever converted the weights, and with a Dense module, whose weights stay in float32."""
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    model = SentenceTransformer(str(st_dense), device="cpu")
    if opened == "load_model":
        model = load_model(st_dense, precision=precision, device="cpu")
    elif opened == "given":
        model = load_model(model, precision=precision)
    elif opened == "speed_up":
        speed_up(model, precision)
    else:
        model = speed_up(model.to(dtype)) if "before" in opened else speed_up(model).to(dtype)
    assert {weight.dtype for weight in model[0].parameters()} == {dtype} and precision_of(model) == precision
    assert_rounded(model.encode(TEXTS), exact["right"])
    assert_rounded(model.encode(TEXTS, normalize_embeddings=True), exact["right"])
    for output in model.encode(TEXTS[:3], output_value=None):
        assert output["token_embeddings"].dtype == output["sentence_embedding"].dtype == torch.float32
    model.tokenizer.padding_side = "left"  # which is not packed
    assert_rounded(model.encode(TEXTS), exact["left"])


@pytest.mark.parametrize("side", ["right", "left"])
def test_products_of_the_encoder_are_in_half_precision(st_dense, side):
    """Without a conversion of weights in each call."""
    model = load_model(st_dense, precision="bf16", device="cpu")
    model.tokenizer.padding_side = side  # texts are packed only if it is right
    model.encode(TEXTS)  # the first call tries whether the model can be packed
    with Products() as products:
        model.encode(TEXTS[:20])
    assert products.dtypes.pop((torch.float32, torch.float32)) == 1, "the Dense module"
    assert set(products.dtypes) == {(torch.bfloat16, torch.bfloat16)} and products.dtypes.total() >= 2 * 6


def test_modules_run_without_encode(st_dense):
    model = load_model(st_dense, precision="bf16", device="cpu")
    with torch.no_grad():
        found = model(model.preprocess(TEXTS))["sentence_embedding"]
    assert_rounded(found, load_model(st_dense, device="cpu").encode(TEXTS))


def test_fp32_is_the_default_and_unchanged(st_mean):
    expected = speed_up(SentenceTransformer(str(st_mean), device="cpu")).encode(TEXTS)
    for how in ({}, {"precision": "fp32"}, {"precision": "auto"}, {"bf16": False}):
        model = load_model(st_mean, device="cpu", **how)
        assert precision_of(model) == "fp32"
        np.testing.assert_array_equal(model.encode(TEXTS), expected)


def test_a_given_model_keeps_its_weights(st_mean):
    model = load_model(st_mean, device="cpu")
    expected = model.encode(TEXTS)
    rounded = informin.embed(model, TEXTS, precision="bf16")
    assert_rounded(rounded, expected)
    assert precision_of(model) == "fp32" and load_model(model, precision="fp32") is model
    np.testing.assert_array_equal(model.encode(TEXTS), expected)
    np.testing.assert_array_equal(informin.embed(model, TEXTS), expected)


def test_a_model_with_rotary_positions_keeps_their_frequencies(tmp_path, bert):
    from transformers import AutoTokenizer, ModernBertConfig, ModernBertModel

    tokenizer = AutoTokenizer.from_pretrained(bert)
    sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
    config = ModernBertConfig(vocab_size=len(tokenizer), pad_token_id=0, **sizes)
    torch.manual_seed(0)
    ModernBertModel(config).save_pretrained(tmp_path / "encoder")
    tokenizer.save_pretrained(tmp_path / "encoder")
    folder = save_sentence_transformer(tmp_path / "model", tmp_path / "encoder")
    model = load_model(folder, precision="bf16", device="cpu")
    buffers = {name: buffer for name, buffer in model.named_buffers() if "inv_freq" in name}
    assert buffers and all(buffer.dtype == torch.float32 for buffer in buffers.values())
    assert_rounded(model.encode(TEXTS), load_model(folder, device="cpu").encode(TEXTS))


def test_threads_share_a_model_in_half_precision(st_dense):
    model = load_model(st_dense, precision="bf16", device="cpu")
    parts = [TEXTS[start::4] for start in range(4)]
    expected = [model.encode(part) for part in parts]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            for found, alone in zip(pool.map(model.encode, parts), expected):
                np.testing.assert_array_equal(found, alone)


def test_values_are_checked(st_mean, static_model):
    for how in ({"precision": "float16"}, {"precision": True}, {"precision": "fp32", "bf16": True}):
        with raises_usage(option="bf16" if "bf16" in how else "precision"):
            load_model(st_mean, device="cpu", **how)
    assert precision_of(load_model(st_mean, bf16=True, device="cpu")) == "bf16"


@pytest.fixture
def static_model():
    from sentence_transformers.models import StaticEmbedding
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    tokenizer = Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    return SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=4)], device="cpu")


def test_a_model_without_an_encoder_stays_in_fp32(static_model, caplog):
    expected = static_model.encode(TEXTS)
    with caplog.at_level(logging.WARNING, "informin"):
        np.testing.assert_array_equal(informin.embed(static_model, TEXTS, precision="bf16"), expected)
    assert len(caplog.messages) == 1


# Checksums and what is stored


@pytest.mark.parametrize("precision", HALF)
def test_a_rounded_model_has_the_checksum_of_its_files(st_dense, precision):
    exact = load_model(st_dense, device="cpu")
    rounded = load_model(st_dense, precision=precision, device="cpu")
    given = load_model(exact, precision=precision)
    assert len({model_sha256(model) for model in (exact, rounded, given)}) == 1
    assert len({weights_sha256(model) for model in (exact, rounded, given)}) == 1
    rounded[0].auto_model.encoder.layer[0].output.dense.weight.data[0, 0] += 1
    assert weights_sha256(rounded) != weights_sha256(exact), "it has been trained since"


def test_a_model_back_in_float32_is_not_that_of_its_files(st_dense, tmp_path):
    exact, rounded = (load_model(st_dense, precision=precision, device="cpu") for precision in ("fp32", "bf16"))
    back = load_model(rounded, precision="fp32")
    kept = informin.embed(back, TEXTS, tmp_path / "a.npy")
    assert np.abs(kept - exact.encode(TEXTS)).max() > 1e-4
    with raises_usage(found="other embeddings"):
        informin.embed(exact, TEXTS, tmp_path / "a.npy")
    again = load_model(back, precision="bf16")
    assert weights_sha256(again) == weights_sha256(back) != weights_sha256(exact)


def test_what_only_embeds_takes_the_precision_of_the_machine(st_mean, tmp_path, auto_is_bf16):
    exact = load_model(st_mean, device="cpu").encode(TEXTS)
    assert_rounded(informin.embed(st_mean, TEXTS, device="cpu"), exact)
    assert_rounded(informin.embed(st_mean, TEXTS, tmp_path / "x.npy", device="cpu"), exact)
    assert json.loads((tmp_path / "x.npy.json").read_text())["precision"] == "bf16"
    index = Index.build(st_mean, TEXTS, device="cpu")
    assert index.record.precision == precision_of(index.model) == "bf16"
    fitted = informin.fit(st_mean, TEXTS, task="clustering", device="cpu")
    assert_rounded(fitted.vectors, exact)
    table = informin.distill(st_mean, TEXTS, task="clustering", device="cpu")
    for result, name in ((fitted, "fitted"), (table, "table")):
        result.save(tmp_path / name)
        assert json.loads((tmp_path / name / "fit.json").read_text())["precision"] == "bf16"
    saved, source = (load_file(folder / "model.safetensors") for folder in (tmp_path / "fitted", st_mean))
    assert all(torch.equal(saved[name], weight) for name, weight in source.items()), "the model is saved as it was"
    assert precision_of(load_model(st_mean, device="cpu")) == "fp32"


def test_duplicates_are_compared_in_the_precision_of_the_machine(st_mean, auto_is_bf16):
    given = {"default": {}, "bf16": {"precision": "bf16"}, "fp32": {"precision": "fp32"}}
    found = {name: informin.duplicates(st_mean, TEXTS, -1, device="cpu", **how).pairs for name, how in given.items()}
    assert found["default"] == found["bf16"] != found["fp32"]


def test_scores_are_in_fp32_unless_asked(st_mean, tmp_path, auto_is_bf16):
    labels = save_labels(tmp_path / "labels.tsv")
    asked = {"fp32": {}, "bf16": {"precision": "auto"}}
    for expected, how in asked.items():
        (row,) = informin.evaluate(st_mean, labels=labels, device="cpu", **how).rows
        assert row.precision == expected and row.weights_sha256 == weights_sha256(load_model(st_mean, device="cpu"))


def test_an_index_is_opened_in_the_precision_of_the_machine(st_mean, tmp_path, monkeypatch):
    """Made in bf16, and opened on a processor without it; and the reverse."""
    found = {}
    for made, here in (("bf16", "fp32"), ("fp32", "bf16")):
        monkeypatch.setattr("informin.fast.precision.native_precision", lambda device, made=made: made)
        Index.build(st_mean, TEXTS, rerank=True, device="cpu").save(tmp_path / made)
        monkeypatch.setattr("informin.fast.precision.native_precision", lambda device, here=here: here)
        opened = Index.load(tmp_path / made)
        assert opened.record.precision == made and precision_of(opened.model) == here
        assert precision_of(Index.load(tmp_path / made, precision=made).model) == made
        opened.add(["the old dog sees a bird"])
        found[made] = opened.search(TEXTS[:5], 1)
    assert [hits[0].row for hits in found["bf16"]] == [hits[0].row for hits in found["fp32"]]


def test_a_file_of_another_precision_is_not_continued(st_mean, tmp_path):
    path = tmp_path / "x.npy"
    exact = np.array(informin.embed(st_mean, TEXTS, path, device="cpu"))
    with raises_usage(found="in fp32, not bf16", fix="`precision`"):
        informin.embed(st_mean, TEXTS, path, precision="bf16", device="cpu")
    assert_rounded(informin.embed(st_mean, TEXTS, path, precision="bf16", overwrite=True, device="cpu"), exact)
    record = tmp_path / "x.npy.json"
    values = json.loads(record.read_text())
    del values["precision"]  # as in older records
    record.write_text(json.dumps(values))
    with raises_usage(found="in fp32, not bf16"):
        informin.embed(st_mean, TEXTS, path, precision="bf16", device="cpu")


def test_commands_have_the_option(st_mean, tmp_path, auto_is_bf16):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    save_labels(tmp_path / "labels.tsv")
    texts = ["--model_name", str(st_mean), "--train_file", str(tmp_path / "texts.txt"), "--device", "cpu"]
    labels = ["--model_name", str(st_mean), "--labels", str(tmp_path / "labels.tsv"), "--device", "cpu"]
    given = {"default": [], "fp32": ["--precision", "fp32"], "old": ["--bf16"]}
    expected = {"index": {"default": "bf16", "fp32": "fp32"}, "embed": {"default": "bf16", "fp32": "fp32"}}
    expected["eval"] = {"default": "fp32", "old": "bf16"}
    for command, precisions in expected.items():
        for name, precision in precisions.items():
            folder = tmp_path / f"{command}-{name}"
            folder.mkdir()
            outputs = {"index": ["--output_dir", folder / "i"], "embed": ["--output", folder / "x.npy"]}
            output = outputs.get(command, ["--output", folder / "r.json"])
            words = [*(labels if command == "eval" else texts), *map(str, output), *given[name]]
            assert run_command(command, *words) == 0
            (record,) = [path for path in folder.rglob("*.json") if path.name in ("index.json", "x.npy.json", "r.json")]
            assert json.loads(record.read_text())["precision"] == precision, (command, name)
    search = ["the dog", "--index", str(tmp_path / "index-default" / "i")]
    assert run_command("search", *search, "--precision", "fp32") == 0
    assert run_command("search", *search, "--precision", "fp64") == 2
