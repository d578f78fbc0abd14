"""Code in a checkpoint is never run or downloaded."""

import io
import shutil
from pathlib import Path

import pytest
import transformers
import yaml

from informin.cli import export as export_command
from informin.cli import push as push_command
from informin.cli import study as study_command
from informin.models.open_model import load_model
from informin.publishing.onnx import export_onnx, load_onnx_encoder
from tests.conftest import raises_usage
from tests.models.loading_helpers import change, config, printed, refusal

FOREIGN = """
from pathlib import Path

from transformers import PreTrainedConfig

Path({mark!r}).touch()


class Foreign(PreTrainedConfig):
    model_type = "foreign"
"""


pytestmark = pytest.mark.usefixtures("small_senteval")


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
        "push": lambda model: push_command.main([str(model), "alice/m", "--dry_run"]),
        "onnx": lambda model: export_command.main([str(model), f"{model}-onnx", "--onnx"]),
        "study": lambda model: study_command.main([str(write_study(model)), "--output", f"{model}-study"]),
    }
    pooler = f"--pooler is cls, but {foreign} has the architecture 'foreign': sentence-transformers loads it with its"
    for name, call in calls.items():
        message = f"`model_name` {foreign} has the architecture 'foreign'; expected an encoder like BERT. Code in a"
        expected = pooler if name in ("eval", "analysis") else f"{printed(name, message)} checkpoint is never run."
        code = f"{foreign} needs code from its repository: it would run foreign.py. Read that file."
        error = refusal(capsys, call, foreign)
        assert expected in error or (name in ("unsup", "study") and code in error)
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


def test_foreign_code_would_write_a_file(model, tmp_path, monkeypatch):
    """Check that the other tests of this file can fail."""
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
    expected = load_model(str(model))(["the dog"])["cls"]
    config(_attn_implementation="kernels-community/flash-attn")(model)
    encoder = load_model(str(model))
    assert encoder.module.config._attn_implementation == "sdpa"
    assert (encoder(["the dog"])["cls"] == expected).all()
