"""What the files of a model folder may name: settings, classes, paths, links, base models and sizes.

Each change is refused in one line that names the file, by both backends, before anything is loaded.
"""

import json
import shutil
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer

from informin.cli import compare as compare_command
from informin.cli import embed as embed_command
from informin.cli import eval as eval_command
from informin.cli import fit as fit_command
from informin.cli import train as train_command
from informin.errors import UsageError
from informin.models import st_loading
from informin.models.checkpoint import Checkpoint
from informin.models.open_model import load_model, open_model
from tests.conftest import make_sentences, raises_usage
from tests.models.any_encoder.folders import PLACES, in_router, modules, pickle
from tests.models.any_encoder.helpers import change, read

TEXTS = make_sentences(6)
SETTINGS = "sentence_bert_config.json"
PICKLES = {"weights_only": False, "use_safetensors": False}
OPTIONS = SimpleNamespace(backend="auto", pooler="auto", lora_r=None, trust_remote_code=False, code_revision=None)
# The native backend loads the first, and sentence-transformers the second.
BACKENDS = {"native": "bert", "st": "labse"}


@pytest.fixture(params=BACKENDS)
def backend(request) -> str:
    return request.param


@pytest.fixture
def model(family, tmp_path, backend) -> Path:
    return shutil.copytree(family(BACKENDS[backend]), tmp_path / "model")


@pytest.fixture
def general(family, tmp_path) -> Path:
    """A model with a Dense module, which sentence-transformers loads."""
    return shutil.copytree(family("labse"), tmp_path / "model")


@pytest.fixture
def runs(tmp_path):
    """Return a function that writes code which creates a folder. Checks that it was not run."""
    mark = tmp_path / "was-run"

    def write(folder: Path, *names: str) -> Path:
        code = f"import os\nos.makedirs({str(mark)!r}, exist_ok=True)\nclass Evil: pass\n"
        for name in names:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(code)
        return mark

    yield write
    assert not mark.exists(), "code ran"


def refused(folder: Path, backend: str = "auto", **contained: str) -> None:
    with raises_usage(option="model_name", **contained) as caught:
        load_model(str(folder), device="cpu", backend=backend)
    assert str(caught.value).isprintable()


# Settings


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("file", [SETTINGS, "sentence_roberta_config.json", "sentence_xlnet_config.json"])
@pytest.mark.parametrize("key", ["model_args", "model_kwargs"])
def test_settings_cannot_load_a_pickle(general, runs, place, file, key):
    pickle(general, runs(general))
    (general / SETTINGS).rename(general / file)
    change(general, file, **{key: PICKLES})
    PLACES[place](general)
    refused(general, found=f"{place}{file}: {key}.weights_only is False; expected one of: True")
    with raises_usage(option="model_name", found=f"{key}.weights_only is False"):
        open_model(Checkpoint(general), OPTIONS)


def test_such_a_pickle_would_run(general, tmp_path):
    """Check that the other tests can fail."""
    pickle(general, tmp_path / "was-run")
    change(general, SETTINGS, model_args=PICKLES)
    with suppress(Exception):  # of the marker among the weights
        SentenceTransformer(str(general), device="cpu")
    assert (tmp_path / "was-run").exists()


@pytest.mark.parametrize("module", ["", "2_Dense"])
@pytest.mark.parametrize("unchecked", [False, True])
def test_pickles_are_never_loaded(general, runs, monkeypatch, module, unchecked):
    """Not even if the settings were not checked."""
    pickle(general / module, runs(general))
    if unchecked:
        monkeypatch.setattr(st_loading, "check_modules", lambda *_: None)
        monkeypatch.setattr("informin.models.model_config.check_modules", lambda *_: None)
        change(general, SETTINGS, model_args={"weights_only": False})
    refused(general, found="Weights only load failed")


def test_commands_run_no_pickle(general, runs, tmp_path, capsys):
    pickle(general, runs(general))
    change(general, SETTINGS, model_args=PICKLES)
    texts, labels = tmp_path / "texts.txt", tmp_path / "labels.tsv"
    texts.write_text("\n".join(make_sentences(40)) + "\n")
    labels.write_text("text\tlabel\n" + "".join(f"{text}\t{i % 2}\n" for i, text in enumerate(make_sentences(40))))
    name, file, out = ["--model_name", str(general)], ["--train_file", str(texts)], str(tmp_path / "out")
    calls = {
        embed_command: [*name, *file, "--output", str(tmp_path / "x.npy")],
        fit_command: [*name, *file, "--output_dir", out],
        compare_command: [str(general), *file],
        eval_command: [*name, "--labels", str(labels)],
        train_command: [*name, *file, "--output_dir", out, "--backend", "st", "--report_to", "none", "--use_cpu"],
    }
    for command, argv in calls.items():
        assert command.main(argv) == 2, command
        assert "model_args.weights_only is False" in capsys.readouterr().err
    assert not Path(out).exists() and not (tmp_path / "x.npy").exists()


REFUSED = {
    "model_args": [
        {"weights_only": False},
        {"weights_only": 0},
        {"weights_only": None},
        {"use_safetensors": False},
        {"trust_remote_code": True},
        {"code_revision": "main"},
        {"attn_implementation": "owner/kernel"},
        {"attn_implementation": {"": "owner/kernel"}},
        {"quantization_config": {"load_in_8bit": True}},
        {"device_map": "auto"},
        {"adapter_kwargs": {"_adapter_model_path": "/tmp"}},
        {"gguf_file": "x.gguf"},
        {"subfolder": "../x"},
        {"state_dict": {}},
        {"cache_dir": "/tmp"},
        {"torch_dtype": "evil.float"},
        None,
        ["weights_only"],
    ],
    "config_kwargs": [{"auto_map": {"AutoModel": "evil.Evil"}}, {"attn_implementation": "owner/kernel"}],
    "config_args": [{"use_cache": "yes"}, {"cache_dir": "/tmp"}],
    "tokenizer_args": [{"tokenizer_file": "/etc/passwd"}, {"tokenizer_class": "evil.Tok"}, {"padding_side": "up"}],
    "processor_kwargs": [{"vocab_file": "/etc/passwd"}, {"model_max_length": -1}, {"chat_template": "{{ x }}"}],
    "processing_kwargs": [{"text": {"padding_side": "left"}}, {"chat_template": {"chat_template": "{{ x }}"}}],
    "modality_config": [{"text": {"method": "save_pretrained", "method_output_name": None}}],
    "tokenizer_kwargs": [True],
    "tokenizer_name_or_path": ["/tmp/other", "owner/other"],
    "model_name_or_path": ["/tmp/other"],
    "cache_dir": ["/tmp"],
    "backend": ["onnx"],
    "unknown": [1],
}


@pytest.mark.parametrize("key", REFUSED)
def test_settings_are_refused_by_name(model, backend, key):
    for value in REFUSED[key]:
        change(model, SETTINGS, **{key: value})
        named = f"{key}.{next(iter(value))}" if isinstance(value, dict) else key
        refused(model, backend, found=f"{SETTINGS}: {named}", fix="Read that file")


ALLOWED = {
    "max_seq_length": 20,
    "do_lower_case": True,
    "model_args": {"attn_implementation": "eager", "add_pooling_layer": False, "torch_dtype": "float32"},
    "config_args": {"use_cache": False},
    "tokenizer_args": {"model_max_length": 18, "padding_side": "right"},
    "processing_kwargs": {"text": {"padding": True}},
    "unpad_inputs": False,
}


def test_usual_settings_are_accepted(general):
    """Also with other keys that code in the repository may read, if that is trusted."""
    change(general, SETTINGS, **ALLOWED)
    encoder = load_model(str(general), device="cpu")
    assert encoder.length == 18
    expected = SentenceTransformer(str(general), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(encoder(TEXTS)["st"], expected, atol=1e-5)


def test_trusted_code_may_have_settings_of_its_own(general):
    """Pickles stay refused."""
    own = {"model_args": {"trust_remote_code": True, "attn_implementation": "eager"}, "own": {"rank": 4}}
    change(general, SETTINGS, **own)
    with raises_usage(option="model_name", found="cannot be loaded: ", fix="Check that its files"):
        load_model(str(general), trust_remote_code=True)  # sentence-transformers' own module has no such setting
    change(general, SETTINGS, model_args=PICKLES)
    with raises_usage(option="model_name", found="model_args.weights_only is False"):
        load_model(str(general), trust_remote_code=True)


# Classes

CLASSES = ("torch.Evil", "evil.Evil", "sentence_transformers.evil.Evil", "os.system", "sentence_transformers.Router")


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("place", ["modules.json", "router_config.json", "config.json"])
def test_modules_of_other_packages_are_code(model, backend, runs, monkeypatch, name, place):
    """Not only for versions of sentence-transformers that ask: it is never called."""
    runs(model, "torch.py", "evil.py", "os.py", "sentence_transformers/evil.py")
    monkeypatch.setattr(st_loading, "_load", None)
    if place == "modules.json":
        modules(model, 1, type=name)
    else:
        modules(model, 1, type="sentence_transformers.models.Asym", path="1_R")
        (model / "1_R").mkdir()
        (model / "1_R" / place).write_text(json.dumps({"types": {"a": name}, "structure": {}, "parameters": {}}))
    refused(model, found=f"it would run {name.rpartition('.')[0].replace('.', '/')}.py")


def test_native_backend_does_not_guess_a_module_by_its_last_name(model, backend):
    modules(model, 1, type="evil.Pooling")
    with raises_usage(option="pooler", found="modules.json lists Transformer, evil.Pooling"):
        load_model(str(model), backend="native")


@pytest.mark.parametrize("name", ["torch.Evil", "torch.hub.load", "torch.nn.functional.relu", "evil.Evil", 5, ["x"]])
def test_activations_are_layers_of_torch(general, runs, monkeypatch, name):
    runs(general, "torch.py", "evil.py")
    change(general / "2_Dense", "config.json", activation_function=name)
    monkeypatch.setattr(st_loading, "_load", None)
    refused(general, found="it would run ")


@pytest.mark.parametrize("name", ["torch.nn.Tanh", "torch.nn.modules.activation.GELU"])
def test_activations_of_torch_are_accepted(general, name):
    change(general / "2_Dense", "config.json", activation_function=name)
    load_model(str(general), device="cpu")


@pytest.mark.parametrize("name", ["evil.Tok", "torch.Tok", "sentence_transformers.evil.Tok", "os.system"])
def test_word_tokenizers_are_those_of_the_library(general, runs, name):
    runs(general, "evil.py", "torch.py")
    modules(general, 0, type="sentence_transformers.models.WordEmbeddings", path="0_W")
    (general / "0_W").mkdir()
    (general / "0_W" / "wordembedding_config.json").write_text(json.dumps({"tokenizer_class": name}))
    refused(general, found="it would run ")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("file", "values", "code"),
    [
        ("config.json", {"text_config": {"auto_map": {"AutoModel": "evil.Evil"}}}, "evil.py"),
        ("config.json", {"attn_implementation": {"text_config": "owner/kernel"}}, "kernel.py of owner/kernel"),
        ("config.json", {"text_config": {"_attn_implementation": "owner/kernel"}}, "kernel.py of owner/kernel"),
        ("config.json", {"experts_implementation": "owner/kernel"}, "kernel.py of owner/kernel"),
        ("config.json", {"tokenizer_class": "evil.Tok"}, "evil.py"),
        ("tokenizer_config.json", {"tokenizer_class": "evil.Tok"}, "evil.py"),
        ("tokenizer_config.json", {"processor_class": "evil.Tok"}, "evil.py"),
        ("processor_config.json", {"image_processor": {"auto_map": {"AutoProcessor": "evil.P"}}}, "evil.py"),
    ],
)
def test_code_is_found_at_any_depth(general, place, file, values, code):
    (general / file).write_text(json.dumps((read(general, file) if (general / file).exists() else {}) | values))
    PLACES[place](general)
    refused(general, found=f"it would run {code}")


def test_version_of_the_library(general, monkeypatch):
    monkeypatch.setattr("sentence_transformers.__version__", "5.7.0")
    found = "needs sentence-transformers 6.2 or newer, and 5.7.0 is installed"
    with raises_usage(option="model_name", found=found, fix="pip install -U 'sentence-transformers>=6.2'"):
        load_model(str(general))
    pyproject = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    assert f'"sentence-transformers>={st_loading.OLDEST},<' in pyproject


# Paths


@pytest.mark.parametrize("place", list(PLACES)[1:])
@pytest.mark.parametrize("index", ["model.safetensors.index.json", "pytorch_model.bin.index.json", "x.index.json"])
@pytest.mark.parametrize("where", ["../../outside.safetensors", "/outside.safetensors", "link"])
def test_shards_of_modules_are_inside(general, tmp_path, place, index, where):
    PLACES[place](general)
    folder = general / place
    weights = load_file(folder / "model.safetensors")
    shutil.move(folder / "model.safetensors", tmp_path / "outside.safetensors")
    if where == "link":
        (folder / "link").symlink_to(tmp_path / "outside.safetensors")
        found = f"{place}link is a link to a file outside of the folder"
    else:
        found = f"{place}{index} names {where!r}, which is outside of the folder"
    (folder / index).write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(weights, where)}))
    refused(general, found=found)


@pytest.mark.parametrize("place", list(PLACES)[1:])
def test_named_weights_and_tokenizers_of_modules_are_inside(general, place):
    PLACES[place](general)
    change(general / place, "config.json", transformers_weights="../../w.safetensors")
    refused(general, found=f"{place}config.json names '../../w.safetensors', which is outside")
    change(general / place, "config.json", transformers_weights=None)
    change(general / place, "tokenizer_config.json", fast_tokenizer_files=["../tokenizer.4.0.0.json"])
    refused(general, found=f"{place}tokenizer_config.json names '../tokenizer.4.0.0.json', which is outside")


LINKS = (
    *("1_Pooling/config.json", "2_Dense/model.safetensors", "2_Dense/deep/any.file", "2_Dense/deep"),
    *("README.md", "additional_chat_templates", "additional_chat_templates/a.jinja", "model.py"),
)


@pytest.mark.parametrize("name", LINKS)
def test_links_in_modules_stay_inside(model, backend, tmp_path, name):
    if backend == "native" and name.startswith("2_Dense"):
        name = name.replace("2_Dense", "1_Pooling")
    outside, link = tmp_path / "outside", model / name
    if link.exists():
        shutil.move(link, outside)
    elif link.suffix:
        outside.write_text("private")
    else:
        outside.mkdir()
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(outside)
    refused(model, backend, found=f"{name} is a link to a file outside of the folder")
    with raises_usage(option="model_name", found=f"{name} is a link"):
        open_model(Checkpoint(model), OPTIONS)


@pytest.mark.parametrize("route", ["../x", "/x", "a/../../x", "x\\y", "", "."])
def test_routes_are_inside(general, route):
    in_router(general)
    router = read(general / "0_R", "router_config.json")
    router["types"] = {route: "sentence_transformers.models.Transformer"}
    (general / "0_R" / "router_config.json").write_text(json.dumps(router))
    refused(general, found="0_R/router_config.json names ")


def test_routes_have_modules(general):
    in_router(general)
    change(general / "0_R", "router_config.json", structure={"query": []})
    refused(general, found="cannot be loaded: index 0 is out of range")


def test_routers_cannot_be_endless(general):
    in_router(general)
    change(general / "0_R", "router_config.json", types={"r": "sentence_transformers.models.Router"})
    (general / "0_R" / "r").symlink_to(".")
    refused(general, found="names the folder 'r' for a module")


def adapter(folder: Path, **values) -> None:
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["query"]}
    (folder / "adapter_config.json").write_text(json.dumps(config | values))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("base", ["ABSOLUTE", "RELATIVE", ".", "~/x", "https://example.com/x", "../x", "a/b/c"])
def test_base_models_are_on_the_hub(general, family, monkeypatch, place, base):
    """A folder would be loaded, and its weights saved in an output, whatever it contains."""
    monkeypatch.chdir(family("bert").parent)
    base = {"ABSOLUTE": str(family("bert")), "RELATIVE": "bert"}.get(base, base)
    PLACES[place](general)
    adapter(general / place, base_model_name_or_path=base)
    refused(general, found=f"{place}adapter_config.json names the base model {base!r}", needed="on the Hub")


def test_native_folders_with_an_adapter_are_checked(model, backend):
    adapter(model, base_model_name_or_path=str(model))
    refused(model, backend, found="adapter_config.json names the base model")


@pytest.mark.parametrize(
    "values",
    [
        {"megatron_config": {"a": 1}, "megatron_core": "evil"},
        {"megatron_core": "evil"},
        {
            "peft_type": "PROMPT_TUNING",
            "tokenizer_name_or_path": "a/b",
            "tokenizer_kwargs": {"trust_remote_code": True},
        },
        {"peft_type": "XLORA", "adapters": {"a": "/x"}},
        {"auto_mapping": {"base_model_class": "Evil", "parent_library": "evil"}},
        {"peft_type": "IA3"},
        {"base_model_name_or_path": None},
        {"r": 10**9},
        {"r": -1},
    ],
)
def test_settings_of_adapters_are_those_of_lora(general, values):
    adapter(general, **{"base_model_name_or_path": "owner/base"} | values)
    refused(general, found="adapter_config.json: ", fix="that peft saved as LORA")


def test_adapter_of_a_model_on_the_hub(bert, train, logged_in, tmp_path):
    """Its base model must not need code either."""
    pytest.importorskip("peft", reason="the extra lora is not installed")
    files = {path.name: path.read_bytes() for path in bert.iterdir()}
    logged_in.add_repo("alice/base", files)
    run = train(SentenceTransformer("alice/base", device="cpu"), lora_r=4, lora_merge=False, view="crop")
    run.train()
    run.export(tmp_path / "adapter")
    change(tmp_path / "adapter", "adapter_config.json", base_model_name_or_path="alice/base")
    loaded = load_model(str(tmp_path / "adapter"), device="cpu")
    np.testing.assert_allclose(loaded(TEXTS)["st"], run.encode(TEXTS), atol=2e-6)
    config = json.loads(files["config.json"]) | {"attn_implementation": "owner/kernel"}
    logged_in.add_repo("alice/kernel", files | {"config.json": json.dumps(config).encode()})
    change(tmp_path / "adapter", "adapter_config.json", base_model_name_or_path="alice/kernel")
    refused(tmp_path / "adapter", found="it would run kernel.py of owner/kernel")
    index = {"metadata": {}, "weight_map": {"x": "../../outside.safetensors"}}
    logged_in.add_repo("alice/index", files | {"model.safetensors.index.json": json.dumps(index).encode()})
    change(tmp_path / "adapter", "adapter_config.json", base_model_name_or_path="alice/index")
    refused(tmp_path / "adapter", found="model.safetensors.index.json names '../../outside.safetensors'")
    change(tmp_path / "adapter", "adapter_config.json", base_model_name_or_path="alice/none")
    refused(tmp_path / "adapter", found="names the base model alice/none: the Hub has no such repository")


# Other damage


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({"hidden_size": 10**9}, "hidden_size 1000000000"),
        ({"num_layers": 10**9}, "num_layers 1000000000"),
        ({"type_vocab_size": 10**9}, "type_vocab_size 1000000000"),
        ({"vocab_size": -1}, "vocab_size -1"),
        ({"quantization_config": {"bits": 4}}, "the weights are quantized"),
        ({"text_config": {"quantization_config": {"bits": 4}}}, "the weights are quantized"),
    ],
)
def test_sizes_of_transformers(general, place, values, found):
    change(general, "config.json", **values)
    PLACES[place](general)
    refused(general, found=found)


@pytest.mark.parametrize(
    "values", [{"in_features": -1}, {"out_features": 10**12}, {"in_features": "32"}, {"in_features": 32.5}]
)
def test_sizes_of_dense_modules(general, values):
    change(general / "2_Dense", "config.json", **values)
    refused(general, found=f"2_Dense/config.json: {next(iter(values))} is ")
    change(general / "2_Dense", "config.json", in_features=10**5, out_features=10**5)
    refused(general, found="in_features times out_features 10,000,000,000")


@pytest.mark.parametrize("kind", ["CrossEncoder", "SparseEncoder", 5])
def test_other_kinds_of_models(model, backend, kind):
    """sentence-transformers would replace their modules."""
    change(model, "config_sentence_transformers.json", model_type=kind)
    refused(model, backend, found=f"model_type in config_sentence_transformers.json is {kind!r}")


@pytest.mark.parametrize("values", [{"type": 5}, {"type": None}, {"name": "0"}, {"path": None}, {"path": "../x"}])
def test_damaged_lists_of_modules(model, backend, values):
    modules(model, 1, **values)
    refused(model, backend, found="modules.json ")


@pytest.mark.parametrize("values", [{"pad_token": "unknown"}, *({"model_max_length": x} for x in (0, -1, 0.5, True))])
def test_damaged_tokenizers(model, backend, values):
    """A token without an embedding, and no room for tokens."""
    change(model, "tokenizer_config.json", **values)
    refused(model, backend)


@pytest.mark.parametrize("path", ["x" * 5_000, "x" * 200_000, "é" * 300])
def test_paths_that_are_too_long(model, backend, path):
    modules(model, 1, path=path)
    with pytest.raises(UsageError):
        load_model(str(model), device="cpu", backend=backend)


def test_first_module_without_a_tokenizer(general):
    listed = read(general, "modules.json")
    (general / "modules.json").write_text(json.dumps(listed[1:]))
    refused(general, found="cannot be loaded: ")


@pytest.mark.parametrize("name", ["bad\nname", "\x1b[31mred", "a\0b", "half \udcff", "zero​width"])
def test_names_are_printable(name, backend, tmp_path, monkeypatch, bert):
    """Also those of folders that exist."""
    monkeypatch.chdir(tmp_path)
    if "\0" not in name and "\udcff" not in name:
        shutil.copytree(bert, name)
    for load in (
        lambda: load_model(name, backend=backend),
        lambda: open_model(Checkpoint(name), SimpleNamespace(**vars(OPTIONS) | {"backend": backend})),
    ):
        with pytest.raises(UsageError) as caught:
            load()
        assert caught.value.needed == "a name that can be printed" and str(caught.value).isprintable()


def test_compare_prints_clean_lines(tmp_path, capsys, caplog):
    (tmp_path / "texts.txt").write_text("\n".join(make_sentences(40)))
    assert compare_command.main(["bad\nname\x1b[31m", "--train_file", str(tmp_path / "texts.txt")]) == 2
    out, err = capsys.readouterr()
    lines = [*out.splitlines(), *err.splitlines(), *(record.getMessage() for record in caplog.records)]
    assert all(line.isprintable() for line in lines), lines
