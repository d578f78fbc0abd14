"""What is loaded, and what is refused, by every command: foreign code, names, damaged files, what does not fit."""

import io
import json
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import transformers
import yaml
from safetensors.torch import load_file, save_file

import run_analysis
import run_eval
import run_export
import run_push
import run_study
import run_unsup
from informin.encoders.encoder import load_encoder
from informin.encoders.loading import load_config, load_model, load_saved, load_tokenizer
from informin.encoders.trainable import refuse_without_dropout
from informin.errors import UsageError
from informin.publishing.export import export_checkpoint, export_folder
from informin.publishing.onnx import export_onnx, load_onnx_encoder
from modeling_informin import HEAD_FILE
from tests.conftest import SHARED, make_sentences, raises_usage, tokenizer_of
from tests.senteval_data import small_counts, write_senteval

SHARE = 0.02
SETTINGS = {"projection_head": "mlp", "lm_head": False, "pooling": "cls"}
FOREIGN = """
from pathlib import Path

from transformers import PreTrainedConfig

Path({mark!r}).touch()


class Foreign(PreTrainedConfig):
    model_type = "foreign"
"""
TOGETHER = "the tokenizer does not belong to the model"


@pytest.fixture(autouse=True)
def quiet(monkeypatch, logging_as_before):
    small_counts(monkeypatch, SHARE)
    transformers.utils.logging.set_verbosity_error()


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_senteval(tmp_path_factory.mktemp("senteval"), SHARE)


@pytest.fixture(scope="module")
def exported(bert, roberta, tmp_path_factory) -> dict[str, Path]:
    """An exported model of each architecture, which every command accepts."""
    folders = {}
    for start in (bert, roberta):
        folder = folders[start.name] = tmp_path_factory.mktemp("exported") / start.name
        export_folder(load_model(load_config(str(start)), str(start), dict(SETTINGS)), tokenizer_of(start), folder)
    return folders


@pytest.fixture
def model(exported, tmp_path) -> Path:
    """A BERT for tests that change it."""
    return shutil.copytree(exported["tiny-bert"], tmp_path / "model")


@pytest.fixture
def commands(command, data, sentences_file, tmp_path):
    """The commands that load a model, as functions that return the exit code."""
    lines = tmp_path / "sentences.txt"
    lines.write_text("\n".join(make_sentences(40)))
    where = ["--device", "cpu", "--pooler", "cls"]
    tsne = ["--sentences", str(lines), "--clusters", "2", "--output", str(tmp_path / "figure")]
    tasks = ["--tasks", "STS-B", "--split", "dev", "--senteval_dir", str(data)]
    return {
        "unsup": lambda model: run_unsup.main(command(model_name=model, eval_strategy="no", eval_pairs=None)),
        "eval": lambda model: run_eval.main(["--model_name", str(model), *tasks, *where]),
        "analysis": lambda model: run_analysis.main(["tsne", "--model_name", str(model), *tsne, *where]),
        "export": lambda model: run_export.main([str(model), str(tmp_path / "export")]),
    }


def refusal(capsys, call, model) -> str:
    """Return the single line that a command prints before exit code 2."""
    capsys.readouterr()
    assert call(model) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("error: ") == 1 and "Traceback" not in err
    line = err[err.index("error: ") :]
    assert line.count("\n") == 1
    return line.removeprefix("error: ").rstrip("\n")


def printed(command: str, message: str) -> str:
    """Return a message as a command prints it, with options as flags."""
    return message if command in ("export", "push", "onnx") else message.replace("`model_name`", "--model_name")


def change(name: str, **values):
    """Change values in a JSON file."""

    def damage(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return damage


def config(**values):
    return change("config.json", **values)


def write(name: str, content: str | bytes):
    def damage(folder: Path) -> None:
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return damage


def halve(name: str):
    def damage(folder: Path) -> None:
        (folder / name).write_bytes((folder / name).read_bytes()[: (folder / name).stat().st_size // 2])

    return damage


# Code that a checkpoint brings along


@pytest.fixture
def foreign(model, tmp_path, monkeypatch):
    """Code that writes a file if it runs, and yes to every prompt. Checks that neither happened."""
    mark = tmp_path / "was-run"
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    (model / "foreign.py").write_text(FOREIGN.format(mark=str(mark)))
    answers = io.StringIO("y\n" * 9)
    monkeypatch.setattr("sys.stdin", answers)
    yield model
    assert answers.tell() == 0, "somebody was asked"
    assert not mark.exists()


def of_another_architecture(folder: Path) -> None:
    config(model_type="foreign", auto_map={"AutoConfig": "foreign.Foreign", "AutoModel": "foreign.Foreign"})(folder)


def test_architecture_defined_by_the_checkpoint_is_refused(foreign, commands, write_study, capsys):
    of_another_architecture(foreign)
    calls = commands | {
        "push": lambda model: run_push.main([str(model), "alice/m", "--dry_run"]),
        "onnx": lambda model: run_export.main([str(model), f"{model}-onnx", "--onnx"]),
        "study": lambda model: run_study.main([str(write_study(model)), "--output", f"{model}-study"]),
    }
    for name, call in calls.items():
        message = f"`model_name` {foreign} has the architecture 'foreign'; expected an encoder like BERT. Code in a"
        assert f"{printed(name, message)} checkpoint is never run." in refusal(capsys, call, foreign)
    for load in (export_onnx, load_onnx_encoder):
        (foreign / "onnx").mkdir(exist_ok=True)
        (foreign / "onnx" / "model.onnx").touch()
        with raises_usage(option="model_name", fix="Code in a checkpoint is never run."):
            load(foreign)


@pytest.fixture
def write_study(sentences_file, tmp_path):
    def write_study(model: Path) -> Path:
        base = {"model_name": str(model), "train_file": str(sentences_file), "eval_strategy": "no", "use_cpu": True}
        study = {"base": base, "recipes": {"a": {}}, "seeds": [1], "tasks": ["stsb"]}
        (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
        return tmp_path / "study.yaml"

    return write_study


def test_control_code_of_a_checkpoint_would_leave_a_file(model, tmp_path, monkeypatch):
    """Shows that the tests of this file can fail."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    (model / "foreign.py").write_text(FOREIGN.format(mark=str(tmp_path / "was-run")))
    of_another_architecture(model)
    transformers.AutoConfig.from_pretrained(model, trust_remote_code=True)
    assert (tmp_path / "was-run").exists()


def test_code_next_to_a_bert_is_not_run(foreign, commands, capsys):
    """Like our own exported folders. The tokenizer is that of tokenizer.json."""
    config(auto_map={"AutoConfig": "foreign.Foreign", "AutoModel": "foreign.Foreign"})(foreign)
    tokenizer = {"AutoTokenizer": ["foreign.Foreign", "foreign.Foreign"]}
    change("tokenizer_config.json", tokenizer_class="Foreign", auto_map=tokenizer)(foreign)
    for call in commands.values():
        assert call(foreign) == 0
    (foreign / "tokenizer.json").unlink()
    for name in ("out", "run", "export"):
        shutil.rmtree(foreign.parent / name, ignore_errors=True)
    message = f"`model_name` {foreign} defines its tokenizer in code, which is never run; expected a tokenizer.json."
    for name, call in commands.items():
        assert refusal(capsys, call, foreign) == printed(name, message)


def test_attention_from_the_hub_is_not_fetched(model):
    """transformers would install code under this name."""
    expected = load_encoder(str(model))(["the dog"])["cls"]
    config(_attn_implementation="kernels-community/flash-attn")(model)
    encoder = load_encoder(str(model))
    assert encoder.model.config._attn_implementation == "sdpa"
    assert (encoder(["the dog"])["cls"] == expected).all()


# What does not fit


@pytest.mark.parametrize("start", ["tiny-bert", "tiny-roberta"])
def test_decoder_is_refused(exported, tmp_path, commands, capsys, start):
    model = shutil.copytree(exported[start], tmp_path / "decoder")
    config(is_decoder=True)(model)
    message = (
        f"`model_name` {model} is a decoder: its [CLS] token cannot attend to the tokens after it; expected an encoder "
        "like BERT. If it was trained as an encoder, set is_decoder to false in config.json."
    )
    for name, call in commands.items():
        assert refusal(capsys, call, model) == printed(name, message)


def test_roberta_with_tokenizer_of_bert_is_refused(exported, tmp_path, commands, capsys):
    """Positions start after the padding index, so every position would be wrong."""
    model = shutil.copytree(exported["tiny-roberta"], tmp_path / "crossed")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(exported["tiny-bert"] / name, model)
    message = (
        f"`model_name` {model}: {TOGETHER}: its padding token [PAD] has the id 0, and pad_token_id in config.json is "
        "1. Copy tokenizer.json and tokenizer_config.json from the checkpoint that the model was trained from."
    )
    for name, call in commands.items():
        assert refusal(capsys, call, model) == printed(name, message)


@pytest.mark.parametrize("pad", [0, 2, -1, None])
def test_padding_index_must_match_the_tokenizer(roberta, tmp_path, pad):
    model = shutil.copytree(roberta, tmp_path / "model")
    config(pad_token_id=pad)(model)
    with raises_usage(option="model_name", found=f"has the id 1, and pad_token_id in config.json is {pad}"):
        tokenizer_of(model)


@pytest.mark.parametrize("pad", [None, 3])
def test_bert_accepts_any_padding_index(bert, tmp_path, pad):
    """Padding does not affect BERT."""
    model = shutil.copytree(bert, tmp_path / "model")
    config(pad_token_id=pad)(model)
    assert tokenizer_of(model).pad_token_id == 0


def test_special_tokens_outside_of_the_vocabulary(model):
    """The number of tokens matches the model, but one id is too large."""
    path = model / "tokenizer.json"
    words = json.loads(path.read_text())
    words["model"]["vocab"]["[MASK]"] = 99
    for token in words["added_tokens"]:
        token["id"] = 99 if token["content"] == "[MASK]" else token["id"]
    path.write_text(json.dumps(words))
    found = f"{model}: {TOGETHER}: its token [MASK] has the id 99, and the model has 34 tokens"
    with raises_usage(option="model_name", found=found, fix="Copy tokenizer.json"):
        load_tokenizer(str(model), load_config(str(model)))


REAL = sorted((SHARED / "models").glob("*/config.json"))


@pytest.mark.skipif(not REAL, reason="real models: ../shared/models is not here")
@pytest.mark.parametrize("path", REAL, ids=lambda path: path.parent.name)
def test_real_models_are_not_refused(path):
    assert load_encoder(str(path.parent), ("cls",)).length == 512


# Damaged files

# Commands that load the tokenizer first find its mismatch first; the others find that of the weights.
FEWER_TOKENS = (
    "the tokenizer does not belong to the model: ",
    "word_embeddings.weight has the shape (34, 32) in its weights, and (10, 32) by its config.json",
)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (write("config.json", "[]"), "MODEL/config.json is not valid: found list; expected dict. Download or copy"),
        (write("config.json", '"bert"'), "MODEL/config.json is not valid: found str; expected dict."),
        (write("config.json", "null"), "MODEL/config.json is not valid: found NoneType; expected dict."),
        (write("config.json", '{"model'), "MODEL/config.json is not JSON (Unterminated string"),
        (
            write("config.json", ""),
            "MODEL/config.json is not JSON (Expecting value: line 1 column 1 (char 0)).",
        ),
        (write("config.json", b"\xff\xfe\x00"), "MODEL/config.json is not JSON ('utf-8' codec can't decode byte 0xff"),
        (write("config.json", "{}"), "MODEL has no model_type in config.json; expected"),
        (config(model_type=["bert"]), "MODEL has the architecture ['bert']; expected"),
        (config(is_decoder="no"), "cannot be loaded: Validation error for field 'is_decoder': TypeError: Field"),
        (config(informin=[1]), "informin in config.json is a list; expected a dict."),
        (config(architectures=3), "architectures in config.json is a int; expected a list."),
        (
            config(num_attention_heads=5),
            "cannot be loaded: The hidden size (32) is not a multiple of the number",
        ),
        (
            config(num_attention_heads=0),
            "has num_attention_heads 0; expected num_attention_heads in config.json from 1 to",
        ),
        (config(hidden_size=0), "has hidden_size 0; expected hidden_size in config.json from 1 to"),
        (
            config(num_hidden_layers=-1),
            "has num_hidden_layers -1; expected num_hidden_layers in config.json from 1 to",
        ),
        (
            config(max_position_embeddings=-1),
            "has max_position_embeddings -1; expected max_position_embeddings in config.json from 1 to",
        ),
        (config(vocab_size=10), FEWER_TOKENS),
        (
            config(vocab_size=99),
            "word_embeddings.weight has the shape (34, 32) in its weights, and (99, 32) by its config.json",
        ),
        (config(pad_token_id=99), "cannot be loaded: Padding_idx must be within num_embeddings (AssertionError)."),
        (
            config(hidden_act="no"),
            "cannot be loaded: 'no' (KeyError). Check that its files are complete, or copy",
        ),
        (config(dtype="no"), "cannot be loaded: module 'torch' has no attribute 'no' (AttributeError)."),
        (halve("model.safetensors"), "cannot be loaded: Error while deserializing header: incomplete metadata"),
        (write("model.safetensors", ""), "cannot be loaded: Error while deserializing header: header too small"),
        (
            lambda folder: (folder / "model.safetensors").unlink(),
            "cannot be loaded: Error no file named model.saf",
        ),
        (write(HEAD_FILE, ""), "cannot be loaded: Error while deserializing header: header too small"),
        (halve("tokenizer.json"), "MODEL/tokenizer.json is not JSON (Unterminated string"),
        (write("tokenizer.json", "[]"), "MODEL/tokenizer.json is not valid: found list; expected dict."),
        (
            write("tokenizer.json", "{}"),
            "MODEL has no tokenizer that can be loaded: 'added_tokens' (KeyError). Copy",
        ),
        (halve("tokenizer_config.json"), "MODEL/tokenizer_config.json is not JSON ("),
        (write("tokenizer_config.json", "[]"), "MODEL/tokenizer_config.json is not valid: found list"),
        (change("tokenizer_config.json", model_max_length="x"), "model_max_length 'x' in tokenizer_config.json"),
        (change("tokenizer_config.json", model_max_length=-1), "model_max_length -1 in tokenizer_config.json"),
        (change("tokenizer_config.json", pad_token=3), "has no tokenizer that can be loaded: Special token pad_token"),
    ],
    ids=[
        *"config-list config-string config-null config-cut config-empty config-binary config-without-type".split(),
        *"type-list decoder-string settings-list architectures-number heads-that-do-not-divide no-heads".split(),
        *"no-width negative-layers negative-positions few-words many-words pad-outside activation dtype".split(),
        *"weights-cut weights-empty no-weights head-empty tokenizer-cut tokenizer-list tokenizer-without".split(),
        *"tokenizer-config-cut tokenizer-config-list length-string length-negative pad-number".split(),
    ],
)
def test_damaged_folders(model, commands, tmp_path, capsys, damage, message):
    damage(model)
    for call in commands.values():
        error = refusal(capsys, call, model)
        messages = (message,) if isinstance(message, str) else message
        assert any(text.replace("MODEL", str(model)) in error for text in messages)
    assert not (tmp_path / "export").exists() and not (tmp_path / "figure.csv").exists()
    assert list((tmp_path / "run").glob("[!.]*")) == []


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (write("modules.json", "{}"), "MODEL/modules.json is not valid: found dict; expected list."),
        (write("modules.json", "[1]"), "modules.json lists a module without type or path."),
        (write("1_Pooling/config.json", "["), "MODEL/1_Pooling/config.json is not JSON ("),
        (write("config_sentence_transformers.json", "[]"), "MODEL/config_sentence_transformers.json is not valid: fou"),
        (
            change("sentence_bert_config.json", max_seq_length="9"),
            "in sentence_bert_config.json is '9'; expected an integer of 1 or more",
        ),
    ],
    ids="modules-no-list modules-of-numbers pooling prompts length".split(),
)
def test_damaged_files_of_sentence_transformers(model, damage, message):
    damage(model)
    with pytest.raises(UsageError) as caught:
        load_encoder(str(model))
    assert message.replace("MODEL", str(model)) in str(caught.value)


# Weights that are missing


def without(folder: Path, *prefixes: str) -> Path:
    """Remove the weights with these prefixes."""
    path = folder / "model.safetensors"
    weights = {name: tensor for name, tensor in load_file(path).items() if not name.startswith(prefixes)}
    assert len(weights) < len(load_file(path))
    save_file(weights, path, metadata={"format": "pt"})
    return folder


def train(folder: Path, **settings):
    return load_model(load_config(str(folder)), str(folder), SETTINGS | settings)


def saved(folder: Path):
    return load_saved(load_config(str(folder)), str(folder))


def test_missing_encoder_weights_are_an_error(encoder, tmp_path):
    """In training and elsewhere. If the language-model head is missing too, the error names the encoder."""
    prefix = load_config(str(encoder)).model_type
    folder = shutil.copytree(encoder, tmp_path / "model")
    without(folder, f"{prefix}.encoder.layer.1.output.dense.", "cls.", "lm_head.")
    for load, names in ((train, f"{prefix}."), (saved, "")):
        found = f"{folder} lacks 2 weights of the encoder, such as {names}encoder.layer.1.output.dense.bias"
        with raises_usage(option="model_name", found=found, fix="Copy the model again from its source."):
            load(folder)
    with raises_usage(option="model_name", found=" weights of the encoder, such as"):
        train(folder, lm_head=True)


def test_missing_language_model_head_is_an_error(encoder, tmp_path):
    folder = shutil.copytree(encoder, tmp_path / "model")
    without(folder, "cls.predictions.transform.", "lm_head.dense.")
    train(folder)
    with raises_usage(option="model_name", found=f"{folder} has no language-model head", fix="set `mlm_weight` to 0"):
        train(folder, lm_head=True)


def test_projection_head_is_initialized_only_in_training(encoder, tmp_path):
    """The class of a checkpoint hides the missing head from transformers' report."""
    model = train(encoder)
    weights = {name: tensor.clone() for name, tensor in model.mlp.state_dict().items()}
    checkpoint = tmp_path / "checkpoint"
    model.save_pretrained(checkpoint)
    tokenizer_of(encoder).save_pretrained(checkpoint)
    for load in (train, saved):
        for name, tensor in load(checkpoint).mlp.state_dict().items():
            assert torch.equal(tensor, weights[name])
    without(checkpoint, "mlp.")
    assert not torch.equal(train(checkpoint).mlp.dense.weight, weights["dense.weight"])
    for load in (saved, lambda folder: export_checkpoint(folder, tmp_path / "export")):
        with raises_usage(option="model_name", found="lacks 2 weights of the encoder, such as mlp.dense.bias"):
            load(checkpoint)


def test_export_saved_by_another_class_loses_its_head(exported, tmp_path):
    """Its settings name a lost projection head. A random head is not published instead."""
    again, folder = tmp_path / "again", tmp_path / "export"
    transformers.AutoModel.from_pretrained(exported["tiny-bert"]).save_pretrained(again)
    tokenizer_of(exported["tiny-bert"]).save_pretrained(again)
    export_checkpoint(again, folder)
    assert json.loads((folder / "config.json").read_text())["informin"]["projection_head"] == "none"
    assert not (folder / HEAD_FILE).exists()
    expected = load_file(exported["tiny-bert"] / "model.safetensors")
    weights = load_file(folder / "model.safetensors")
    assert weights.keys() == expected.keys() and all(torch.equal(weights[name], expected[name]) for name in weights)


def test_model_without_position_embeddings_is_refused(tmp_path):
    transformers.FunnelConfig().save_pretrained(tmp_path)
    found = f"{tmp_path} is a funnel model, which has no position embeddings"
    with raises_usage(option="model_name", found=found, needed="an encoder like BERT"):
        load_encoder(str(tmp_path), ("cls",))


def test_without_dropout(encoder, tmp_path):
    """One rate above 0 is enough."""
    model = shutil.copytree(encoder, tmp_path / "model")
    for hidden, attention in ((0.1, 0.0), (0.0, 0.1), (0.0, 0.0)):
        config(hidden_dropout_prob=hidden, attention_probs_dropout_prob=attention)(model)
        still = hidden == attention == 0.0
        with pytest.raises(UsageError) if still else nullcontext() as caught:
            refuse_without_dropout(train(model).base_model)
    assert str(caught.value) == (
        "Every dropout rate of this model is 0, so the two views of a sentence would be identical. Set "
        "`view_dropout_rate`, for example to 0.1, `view_dropout`, or hidden_dropout_prob and "
        "attention_probs_dropout_prob in config.json."
    )


# Names


@pytest.fixture
def near(bert, tmp_path, monkeypatch) -> Path:
    """A working folder with the model outputs/run and folders that are not models."""
    shutil.copytree(bert, tmp_path / "work" / "outputs" / "run")
    for name in ("rum", "1_Pooling"):
        (tmp_path / "work" / "outputs" / name).mkdir()
    (tmp_path / "work" / "outputs" / "1_Pooling" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


OFFLINE = "there is no such folder, and it is not in the local cache of the Hub, and HF_HUB_OFFLINE is set"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("outputs/rnu", f" cannot be loaded: {OFFLINE}. Did you mean outputs/run?"),
        ("run", f" cannot be loaded: {OFFLINE}. Did you mean outputs/run?"),
        ("output/run", f" cannot be loaded: {OFFLINE}. Did you mean outputs/run?"),
        ("bert", f" cannot be loaded: {OFFLINE}."),
        ("a b", " cannot be loaded: there is no such folder, and it is not a valid name on the Hub."),
        ("", " cannot be loaded: there is no such folder, and it is not a valid name on the Hub."),
        ("./outputs/ru", ": there is no such folder. Did you mean outputs/run?"),
        ("~/outputs/rnu", ": there is no such folder. Did you mean HOME/outputs/run?"),
        ("outputs/run/checkpoint-9", ": there is no such folder."),
        ("x" * 300, " cannot be loaded: there is no such folder, and it is not a valid name on the Hub."),
        ("outputs", " cannot be loaded: the folder has no config.json. Did you mean outputs/run?"),
        ("outputs/rum", " cannot be loaded: the folder has no config.json. Did you mean outputs/run?"),
        ("outputs/run/model.safetensors", " is a file; expected its folder. Use `model_name` outputs/run"),
    ],
)
def test_names_of_nothing(near, monkeypatch, name, message):
    monkeypatch.setenv("HOME", str(near))
    expected = f"`model_name` {name}{message}".replace("HOME", str(near))
    for load in (load_config, lambda name: load_encoder(name, ("cls",))):
        with pytest.raises(UsageError) as caught:
            load(name)
        assert str(caught.value) == expected


@pytest.mark.parametrize(
    ("name", "revision", "problem"),
    [
        ("alice/none", None, "the Hub has no such repository, or it is private (`hf auth login`)"),
        ("alice/bare", None, "its repository on the Hub has no config.json"),
        ("alice/bert", "v9", "its repository on the Hub has no revision v9"),
        ("alice/none", "unreachable", "the Hub (http://127.0.0.1:1) cannot be reached"),
    ],
)
def test_hub_errors_are_explained(near, logged_in, bert, monkeypatch, name, revision, problem):
    logged_in.add_repo("alice/bare", {"notes.txt": b""})
    logged_in.add_repo("alice/bert", {path.name: path.read_bytes() for path in bert.iterdir()})
    assert load_config("alice/bert").model_type == "bert"
    if revision == "unreachable":
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:1")
        where = "http://127.0.0.1:1/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", where)
    with raises_usage(option="model_name", found=f"{name} cannot be loaded: there is no such folder, and {problem}"):
        load_config(name, revision)
