"""Models that are no native architecture, through sentence-transformers."""

import builtins
import json
import logging
import shutil

import numpy as np
import pytest
import transformers
from sentence_transformers import SentenceTransformer

from informin.cli import embed as embed_command
from informin.cli import eval as eval_command
from informin.cli import fit as fit_command
from informin.models.open_model import load_model
from informin.models.st import StModel
from informin.models.st_loading import UNLIMITED
from tests.conftest import WORDS, make_sentences, raises_usage
from tests.models.any_encoder.helpers import change, sentence_transformer
from tests.models.any_encoder.st_models import FAMILIES, LENGTH, PROMPTS

STATIC = ("static", "potion")
TEXTS = ["the dog", *make_sentences(9), " ".join(WORDS * 2), "today", "a cat sees the red house"]


def load(folder, **options) -> StModel:
    encoder = load_model(str(folder), device="cpu", trust_remote_code=folder.name == "remote", **options)
    assert isinstance(encoder, StModel) and encoder.poolers == ("st",)
    return encoder


def reference(folder) -> SentenceTransformer:
    return SentenceTransformer(str(folder), device="cpu", trust_remote_code=folder.name == "remote")


def trust(name: str) -> list[str]:
    return ["--trust_remote_code"] if name == "remote" else []


@pytest.mark.parametrize("name", FAMILIES)
def test_embeddings_equal_sentence_transformers(family, name):
    """In batches of mixed length, with and without a prompt, and with long texts truncated."""
    folder = family(name)
    assert sum(path.stat().st_size for path in folder.rglob("*")) < 1_000_000
    theirs, encoder = reference(folder), load(folder, batch_size=4)
    seen: list[int] = []
    embeddings = encoder(TEXTS, seen.append)["st"]
    expected = theirs.encode(TEXTS, batch_size=1)
    np.testing.assert_allclose(embeddings, expected, atol=1e-5)
    assert embeddings.dtype == np.float32 and embeddings.shape == (len(TEXTS), encoder.dimensions)
    assert sum(seen) == len(TEXTS) and seen[0] == 4
    assert (np.abs(np.linalg.norm(embeddings, axis=1) - 1).max() < 1e-5) == encoder.normalized == (name != "static")
    prompted = load(folder, prompt="a small ")(TEXTS)["st"]
    np.testing.assert_allclose(prompted, theirs.encode(TEXTS, prompt="a small "), atol=1e-5)
    assert np.abs(prompted - expected).max() > 1e-3
    assert encoder.length == (UNLIMITED if name in STATIC else LENGTH)
    assert encoder.truncated == (set() if name in STATIC else {TEXTS[10]})
    assert encoder([])["st"].shape == (0, encoder.dimensions)


def test_loading_prints_no_warning(family, monkeypatch, caplog):
    folder = family("qwen3")
    transformers.utils.logging.set_verbosity_warning()
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    caplog.clear()
    load(folder)
    assert not caplog.records


def test_default_prompt_is_used_and_can_be_turned_off(family):
    folder = family("gemma")
    theirs = reference(folder)
    assert (load(folder).prompt, load(family("qwen3")).prompt) == (PROMPTS["query"], "")
    np.testing.assert_allclose(load(folder, prompt="")(TEXTS)["st"], theirs.encode(TEXTS, prompt=""), atol=1e-5)
    np.testing.assert_allclose(load(folder)(TEXTS)["st"], theirs.encode(TEXTS, prompt_name="query"), atol=1e-5)


@pytest.mark.parametrize("name", ["qwen3", "t5"])
def test_max_length_truncates(family, name):
    theirs, encoder = reference(family(name)), load(family(name), length=5)
    theirs.max_seq_length = 5
    np.testing.assert_allclose(encoder(TEXTS)["st"], theirs.encode(TEXTS), atol=1e-5)
    assert len(encoder.truncated) > 5
    with raises_usage(option="max_length", found="is 25", needed=f"3 to {LENGTH} tokens"):
        load(family(name), length=25)
    with raises_usage(option="prompt", found="has 3 tokens", fix="set `max_length` to 6 or more"):
        load(family(name), length=5, prompt="the old dog")


def test_static_embeddings_have_no_maximum_length(family):
    with raises_usage(option="max_length", found="does not truncate texts"):
        load(family("static"), length=5)


def test_both_backends_agree_on_a_native_model(bert, tmp_path):
    folder = sentence_transformer(bert, tmp_path / "st")
    native, general = (load_model(str(folder), device="cpu", backend=backend) for backend in ("auto", "st"))
    assert not isinstance(native, StModel) and isinstance(general, StModel)
    assert (native.prompt, native.length, native.normalized) == (general.prompt, general.length, general.normalized)
    np.testing.assert_allclose(native(TEXTS)["mean"], general(TEXTS)["st"], atol=1e-5)
    assert native.truncated == general.truncated != set()
    assert native.sha256() != general.sha256()


def test_bf16_is_close(family):
    exact, rounded = (load(family("qwen3"), bf16=bf16)(TEXTS)["st"] for bf16 in (False, True))
    assert rounded.dtype == np.float32 and 0 < np.abs(exact - rounded).max() < 0.1


@pytest.mark.parametrize("name", ["gemma", "remote"])
def test_fingerprint_covers_every_file(family, tmp_path, name):
    """Weights, settings of modules, tokenizer, code and options; not the model card or the name of the folder."""
    folder = shutil.copytree(family(name), tmp_path / name)
    before = load(folder).sha256()
    assert load(family(name)).sha256() == before
    (folder / "README.md").write_text("A model card.")
    assert load(folder).sha256() == before
    assert len({before, load(folder, prompt="a ").sha256(), load(folder, length=9).sha256()}) == 3
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "README.md"]
    assert len(files) >= 7
    for path in files:
        content = path.read_bytes()
        if path.suffix == ".safetensors":
            path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))  # one bit of one weight
        else:
            path.write_bytes(content + b"\n")
        changed = load(folder)
        assert before not in (changed.sha256(), changed.weights_sha256()), path
        path.write_bytes(content)


@pytest.mark.parametrize("name", FAMILIES)
def test_commands_embed_and_evaluate(family, tmp_path, capsys, name):
    folder = family(name)
    texts, labels = tmp_path / "texts.txt", tmp_path / "labels.tsv"
    texts.write_text("\n".join(TEXTS) + "\n")
    rows = [f"{text}\t{'AB'[i % 2]}" for i, text in enumerate(make_sentences(60))]
    labels.write_text("\n".join(["text\tlabel", *rows]) + "\n")
    how = ["--model_name", str(folder), "--device", "cpu", *trust(name)]
    assert embed_command.main([*how, "--train_file", str(texts), "--output", str(tmp_path / "x.npy")]) == 0
    np.testing.assert_allclose(np.load(tmp_path / "x.npy"), reference(folder).encode(TEXTS), atol=1e-5)
    scores = ["--labels", str(labels), "--output", str(tmp_path / "scores")]
    assert eval_command.main([*how, *scores]) == 0
    assert folder.name in capsys.readouterr().out
    found = json.loads((tmp_path / "scores" / f"{name}-st.json").read_text())
    assert found["pooler"] == "st" and found["tasks"]["labels"]["score"] is not None
    assert found["weights_sha256"] == load(folder).weights_sha256()


def test_commands_resume_in_the_folder_of_the_model(family, tmp_path, caplog):
    """What they write there does not change the checksum of the model."""
    folder = shutil.copytree(family("static"), tmp_path / "model")
    labels, before = folder / "labels.tsv", load(folder).weights_sha256()
    labels.write_text("text\tlabel\n" + "".join(f"{text}\t{i % 2}\n" for i, text in enumerate(TEXTS)))
    for _ in range(2):
        how = ["--model_name", str(folder)]
        assert eval_command.main([*how, "--labels", str(labels), "--output", str(folder / "scores.json")]) == 0
        assert embed_command.main([*how, "--train_file", str(labels), "--output", str(folder / "x.npy")]) == 0
    assert load(folder).weights_sha256() == before
    np.save(folder / "y.npy", np.ones(3))
    assert load(folder).weights_sha256() != before, "only vectors with a record"


def test_commands_refuse_a_pooling(family, tmp_path, capsys):
    """And other backends, in one line."""
    (tmp_path / "texts.txt").write_text("the dog\n")
    how = ["--model_name", str(family("qwen3")), "--train_file", str(tmp_path / "texts.txt"), "--output", "x.npy"]
    assert embed_command.main([*how, "--pooler", "mean"]) == 2
    error = capsys.readouterr().err
    assert "error: --pooler is mean, but" in error and "has the architecture 'qwen3'" in error
    assert "sentence-transformers loads it with its own pooling; expected auto." in error
    assert embed_command.main([*how, "--backend", "native"]) == 2
    assert "has the architecture 'qwen3'; expected an encoder like BERT." in capsys.readouterr().err
    with raises_usage(option="backend", found="is onnx", needed="one of: auto, native, st"):
        load_model(str(family("qwen3")), backend="onnx")


def test_missing_package_is_named(family, monkeypatch):
    real, folders = builtins.__import__, {name: str(family(name)) for name in ("qwen3", "labse")}

    def without(name, *args, **kwargs):
        if name.partition(".")[0] == "sentence_transformers":
            raise ModuleNotFoundError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    found = "needs the package sentence-transformers, which is not installed"
    for name, reason in (("qwen3", "has the architecture 'qwen3'"), ("labse", "modules.json lists Transformer, ")):
        with raises_usage(option="model_name", found=found, fix="the extra `st`") as caught:
            load_model(folders[name])
        assert reason in caught.value.found


def in_config(folder):
    return folder, "modeling_sum.py"


def in_modules(folder):
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["type"] = "owner/code--custom_st.CustomTransformer"
    (folder / "modules.json").write_text(json.dumps(modules))
    change(folder, "config.json", auto_map={})
    return folder, "custom_st.py of owner/code"


def in_tokenizer(folder):
    change(folder, "config.json", auto_map={})
    change(folder, "tokenizer_config.json", auto_map={"AutoTokenizer": [None, "tokens.OwnTokenizer"]})
    return folder, "tokens.py"


def in_attention(folder):
    change(folder, "config.json", auto_map={}, _attn_implementation="kernels-community/flash-attn")
    return folder, "kernel.py of kernels-community/flash-attn"


@pytest.mark.parametrize("place", [in_config, in_modules, in_tokenizer, in_attention])
def test_code_needs_a_flag(family, tmp_path, monkeypatch, capsys, place):
    """The message names the file. Nothing runs, and nobody is asked."""
    folder, file = place(shutil.copytree(family("remote"), tmp_path / "model"))
    monkeypatch.setattr("transformers.dynamic_module_utils.get_class_from_dynamic_module", None)
    with raises_usage(option="model_name", found=f"it would run {file}", fix="set `trust_remote_code`"):
        load_model(str(folder))
    (tmp_path / "texts.txt").write_text("the dog\n")
    how = ["--train_file", str(tmp_path / "texts.txt"), "--output", str(tmp_path / "x.npy")]
    assert embed_command.main(["--model_name", str(folder), *how]) == 2
    assert "If you trust it, set --trust_remote_code." in capsys.readouterr().err


def test_code_of_a_known_architecture_is_not_ignored(family, tmp_path):
    """Transformers has a class for it, which it would use instead."""
    folder = shutil.copytree(family("qwen3"), tmp_path / "model")
    change(folder, "config.json", auto_map={"AutoModel": "modeling_own.OwnQwen"})
    with raises_usage(option="model_name", found="it would run modeling_own.py"):
        load_model(str(folder))


def test_code_revision_of_a_folder_is_refused(family):
    with raises_usage(option="code_revision", found="is v1, but"):
        load_model(str(family("remote")), trust_remote_code=True, code_revision="v1")


@pytest.mark.parametrize(
    ("changes", "option", "found"),
    [
        (dict(hidden_size=10**9), "model_name", "has hidden_size 1000000000"),
        (dict(quantization_config={"bits": 4}), "model_name", "the weights are quantized"),
        (dict(head_dim=6), "model_name", "cannot be loaded: "),
        (dict(num_hidden_layers=3, layer_types=["full_attention"] * 3), "model_name", "shape, such as layers.2."),
        (dict(hidden_act="none"), "model_name", "cannot be loaded: "),
    ],
)
def test_damaged_models_give_one_line(family, tmp_path, changes, option, found):
    folder = shutil.copytree(family("qwen3"), tmp_path / "model")
    change(folder, "config.json", **changes)
    with raises_usage(option=option, found=found):
        load_model(str(folder))


def fitted(source, folder, *options) -> tuple[StModel, np.ndarray]:
    """Fit an adapter with the command. Return the encoder in the new folder, and the embeddings expected of it."""
    from safetensors.numpy import load_file

    texts = folder.with_name("texts.txt")
    sentences = make_sentences(120)
    texts.write_text("\n".join(sentences))
    how = ["--model_name", str(source), "--train_file", str(texts), "--output_dir", str(folder), *options]
    assert fit_command.main([*how, "--device", "cpu", *trust(source.name)]) == 0
    encoder, before = load(folder), load(source)(TEXTS)["st"]
    last = max(folder.glob("*_Dense"), key=lambda path: int(path.name.partition("_")[0]))
    dense = load_file(last / "model.safetensors")
    unit = before / np.linalg.norm(before, axis=-1, keepdims=True)
    expected = unit @ dense["linear.weight"].T + dense["linear.bias"]
    if encoder.normalized:
        expected /= np.linalg.norm(expected, axis=-1, keepdims=True)
    assert np.abs(expected - unit).max() > 0.01, "the adapter changes nothing"
    return encoder, expected


@pytest.mark.parametrize("name", FAMILIES)
def test_fit_adds_a_dense_module(family, tmp_path, capsys, name):
    """The folder has the model's prompts, length and normalization. Other libraries give the same embeddings."""
    source, folder = family(name), tmp_path / name
    encoder, expected = fitted(source, folder)
    old, new = reference(source), reference(folder)
    np.testing.assert_allclose(encoder(TEXTS)["st"], expected, atol=1e-5)
    np.testing.assert_allclose(new.encode(TEXTS), expected, atol=1e-5)
    kept = ("prompts", "default_prompt_name", "similarity_fn_name", "max_seq_length")
    assert [getattr(new, key) for key in kept] == [getattr(old, key) for key in kept]
    assert encoder.normalized == (name != "static")
    out, card = capsys.readouterr().out, (folder / "README.md").read_text()
    for text in (out, card):
        assert ("trust_remote_code=True" in text) == (name == "remote")
    assert "with a linear adapter" in card and ("Plain `AutoModel`" in card) == (name == "remote")
    assert (folder / "modeling_sum.py").exists() == (name == "remote")


def test_fit_keeps_the_maximum_length(family, tmp_path):
    fitted(family("qwen3"), tmp_path / "qwen3", "--max_length", "9")
    assert load(tmp_path / "qwen3").length == LENGTH


def test_fit_keeps_truncated_dimensions(family, tmp_path):
    """The map gets the truncated embedding, which is not normalized."""
    source = shutil.copytree(family("qwen3"), tmp_path / "source")
    change(source, "config_sentence_transformers.json", truncate_dim=12)
    assert load(source).dimensions == 12 and not load(source).normalized
    encoder, expected = fitted(source, tmp_path / "out")
    np.testing.assert_allclose(encoder(TEXTS)["st"], expected, atol=1e-5)
    assert encoder.dimensions == 12


def test_models_and_code_from_the_hub(family, logged_in, tmp_path):
    """Static embeddings have no config.json. `code_revision` pins the code alone."""
    files = {name: family(name).rglob("*") for name in ("static", "remote")}
    for name, paths in files.items():
        found = {str(path.relative_to(family(name))): path.read_bytes() for path in paths if path.is_file()}
        first = logged_in.add_repo(f"alice/{name}", found)
    static = load_model("alice/static", device="cpu")
    np.testing.assert_allclose(static(TEXTS)["st"], load(family("static"))(TEXTS)["st"], atol=1e-6)
    code = (family("remote") / "modeling_sum.py").read_text()
    logged_in.commit("alice/remote", {"modeling_sum.py": code.replace(".cumsum(1)", "").encode()})
    with raises_usage(option="model_name", found="it would run modeling_sum.py"):
        load_model("alice/remote")
    how = dict(device="cpu", trust_remote_code=True)
    new, old = (load_model("alice/remote", **how, code_revision=revision) for revision in (None, first))
    expected = load(family("remote"))(TEXTS)["st"]
    np.testing.assert_allclose(old(TEXTS)["st"], expected, atol=1e-6)
    assert np.abs(new(TEXTS)["st"] - expected).max() > 0.01 and new.sha256() != old.sha256()


def test_guide_is_any_model(family, trainer):
    """Its dimension and tokenizer differ from those of the trained encoder."""
    run = trainer("bert", objective="guided", guided_weight=1.0, guide_model=str(family("static")))
    run.train()
    assert np.isfinite(run.state.log_history[0]["loss"])
    with raises_usage(option="model_name", found="it would run modeling_sum.py"):
        trainer("bert", objective="guided", guided_weight=1.0, guide_model=str(family("remote")))


def test_model_without_modules_needs_the_backend(family):
    """sentence-transformers would choose a pooling."""
    plain = family("qwen3").with_name("plain")
    with raises_usage(option="model_name", found="has the architecture 'qwen3'", fix="set `backend` to st"):
        load_model(str(plain))
    theirs = reference(plain).encode(TEXTS)
    np.testing.assert_allclose(load(plain, backend="st")(TEXTS)["st"], theirs, atol=1e-5)
