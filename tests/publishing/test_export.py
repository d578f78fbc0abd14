"""The folder that a run or an export leaves: weights, checkpoints and refused targets."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModel, AutoTokenizer

from informin.cli import export as export_command
from informin.models.open_model import in_memory
from informin.publishing.export import export_checkpoint, export_folder
from informin.publishing.published import check_export
from tests.conftest import make_sentences
from tests.publishing.export_helpers import (
    EXPORTED,
    Run,
    change_weights,
    copy,
    published,
    read_json,
    snapshot,
    weights_sha256,
)

LM_HEADS = ("cls.", "lm_head.")


# What a run leaves


def test_a_run_leaves_an_export_and_complete_checkpoints(run):
    assert run.code == 0
    assert published(run.folder) == EXPORTED
    check_export(run.folder)
    exported = load_file(run.folder / "model.safetensors")
    plain = AutoModel.from_config(AutoConfig.from_pretrained(run.folder), add_pooling_layer=False)
    assert exported.keys() == plain.state_dict().keys()
    assert load_file(run.folder / "projection_head" / "model.safetensors").keys() == {"dense.weight", "dense.bias"}
    for name in ("model.safetensors", "projection_head/model.safetensors"):
        assert (run.folder / name).stat().st_mode & 0o777 == 0o644  # a server may run as another user
    assert read_json(run.folder / "config.json")["informin"]["lm_head"] is False
    state = {"optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"}
    model = {"config.json", "model.safetensors", "modeling_informin.py", "tokenizer.json", "tokenizer_config.json"}
    model |= {"modules.json", "1_Pooling", "sentence_bert_config.json", "config_sentence_transformers.json"}
    for checkpoint in (run.folder / "checkpoint-2", run.folder / "checkpoint-4"):
        assert {path.name for path in checkpoint.iterdir()} == state | model | {"training.json", "manifest.json"}
        assert [name for name in load_file(checkpoint / "model.safetensors") if name.startswith(LM_HEADS)]
        assert read_json(checkpoint / "config.json")["informin"]["lm_head"] is True
    assert not list(run.folder.rglob("training_args.bin"))


def test_a_run_does_not_report_unused_weights(run):
    """transformers' load report would list the language-model head and a pooler as missing."""
    assert [message for message in run.messages if "LOAD REPORT" in message] == []


def test_one_process_saves(bert_run, tmp_path, monkeypatch):
    """Trainer calls `_save` in every process. Others would write into a folder that does not exist yet."""
    monkeypatch.setattr(type(bert_run.trainer.args), "should_save", False)
    bert_run.trainer.write_model(str(tmp_path / "checkpoint-1"))
    assert not (tmp_path / "checkpoint-1").exists()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_export_does_not_change_the_model(run, tmp_path, dtype):
    """Neither the run's own export nor another one changes it."""
    model, tokenizer = run.trainer.model.train(), run.trainer.processing_class
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    settings = model.config.to_dict()
    assert settings["informin"]["lm_head"] and [name for name in before if name.startswith(LM_HEADS)]
    export_folder(in_memory(model, tokenizer), tmp_path, dtype=dtype)
    assert model.config.to_dict() == settings and model.training
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert [name for name in before if after[name].dtype != torch.float32 or not after[name].equal(before[name])] == []
    assert all(parameter.requires_grad for parameter in model.parameters())
    batch = tokenizer(make_sentences(3), padding=True, return_tensors="pt", return_token_type_ids=False)
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    losses = model(**batch, lm_labels=labels).lm_losses
    assert losses.shape == (batch["attention_mask"].sum(),) and losses.isfinite().all()


def test_a_run_resumes_from_its_checkpoint(run, encoder_of, data, tmp_path):
    """Our code and training.json in the checkpoint do not interfere."""
    copy(run.folder, tmp_path / "run")
    options = dict(mlm_weight=0.1, max_steps=6, resume_from_checkpoint="last")
    resumed = Run(tmp_path / "run", model_name=encoder_of(run), resume_with_changes="true", **options, **data)
    assert resumed.code == 0 and resumed.record["steps"] == 6
    assert [entry["step"] for entry in resumed.record["history"]] == [0, 2, 4, 6]
    checkpoints = (run.folder / "checkpoint-4", tmp_path / "run" / "checkpoint-6")
    earlier, later = (load_file(checkpoint / "model.safetensors") for checkpoint in checkpoints)
    heads = [name for name in later if name.startswith(LM_HEADS)]
    assert heads and not [name for name in heads if later[name].equal(earlier[name])]


@pytest.fixture
def encoder_of(bert, roberta):
    """The encoder that a run started from."""
    return lambda run: {"bert": bert, "roberta": roberta}[run.trainer.model.config.model_type]


# From a checkpoint


def test_exporting_the_kept_checkpoint_gives_the_export_of_the_run(run, tmp_path):
    export_checkpoint(run.kept, tmp_path / "export")
    ours, theirs = snapshot(tmp_path / "export"), {name: (run.folder / name).read_bytes() for name in EXPORTED}
    assert ours.keys() == theirs.keys()
    assert {name for name in ours if ours[name] != theirs[name]} <= {"README.md", "training.json"}


def test_the_record_of_a_checkpoint_describes_its_own_weights(run, tmp_path):
    """It does not describe the best checkpoint, which its state names."""
    step = int(run.other.name.rpartition("-")[2])
    export_checkpoint(run.other, tmp_path / "export")
    assert weights_sha256(tmp_path / "export") == weights_sha256(run.other) != weights_sha256(run.kept)
    record = read_json(tmp_path / "export" / "training.json")
    own = {"steps": step, "kept_step": step, "chosen": False, "sentences_per_second": None, "drift": None}
    history = [entry for entry in run.record["history"] if entry["step"] <= step]
    assert record == run.record | own | {"history": history}


def test_an_export_can_be_exported(run, tmp_path):
    assert export_command.main([str(run.folder), str(tmp_path / "again")]) == 0
    again = snapshot(tmp_path / "again")
    assert {name for name in EXPORTED if again[name] != (run.folder / name).read_bytes()} == set()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(run, tmp_path, capsys, dtype):
    folder = tmp_path / "half"
    assert export_command.main([str(run.kept), str(folder), f"--dtype={dtype}"]) == 0
    assert capsys.readouterr().out.split() == published(folder) == EXPORTED
    assert read_json(folder / "config.json")["dtype"] == dtype
    for name in ("model.safetensors", "projection_head/model.safetensors"):
        assert {tensor.dtype for tensor in load_file(folder / name).values()} == {getattr(torch, dtype)}
        assert (folder / name).stat().st_size < 0.6 * (run.folder / name).stat().st_size
    with torch.no_grad():
        batch = AutoTokenizer.from_pretrained(folder)(make_sentences(4), padding=True, return_tensors="pt")
        half, whole = (AutoModel.from_pretrained(path).eval() for path in (folder, run.folder))
        vectors = [model(**batch).last_hidden_state[:, 0].float() for model in (half, whole)]
    assert half.dtype == getattr(torch, dtype)
    torch.testing.assert_close(vectors[0], vectors[1], rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    ("value", "dtype"), [(1e6, "float16"), (float("nan"), "float32"), (float("inf"), "bfloat16")], ids=str
)
def test_weights_that_are_not_finite_are_refused(bert_run, tmp_path, capsys, value, dtype):
    checkpoint = copy(bert_run.kept, tmp_path / "checkpoint-1")
    change_weights(checkpoint, mlp__dense__bias=torch.full([32], value))
    assert export_command.main([str(checkpoint), str(tmp_path / "new" / "export"), f"--dtype={dtype}"]) == 2
    error = capsys.readouterr().err
    assert f"error: NaN or infinity in 1 weight in torch.{dtype}, such as mlp.dense.bias." in error
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-1"]


def test_numbers_too_large_for_float16_fit_bfloat16(bert_run, tmp_path):
    checkpoint = copy(bert_run.kept, tmp_path / "checkpoint-1")
    change_weights(checkpoint, mlp__dense__bias=torch.full([32], 1e6))
    export_checkpoint(checkpoint, tmp_path / "export", "bfloat16")
    check_export(tmp_path / "export")
    head = load_file(tmp_path / "export" / "projection_head" / "model.safetensors")
    assert head["dense.bias"].equal(torch.full([32], 1e6, dtype=torch.bfloat16))


@pytest.mark.parametrize("held", ["file", "folder"])
def test_a_target_with_files_is_refused(bert_run, tmp_path, capsys, held):
    target = tmp_path / "export"
    if held == "file":
        target.write_text("mine")
    else:
        target.mkdir()
        (target / "notes.txt").write_text("mine")
    before = snapshot(tmp_path)
    assert export_command.main([str(bert_run.kept), str(target)]) == 2
    assert f"error: {target} is in use; expected a new folder." in capsys.readouterr().err
    assert snapshot(tmp_path) == before


def test_target_below_a_file_is_refused(bert_run, tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    assert export_command.main([str(bert_run.kept), str(tmp_path / "file" / "export")]) == 2
    assert "error: " in capsys.readouterr().err


def test_an_empty_target_is_accepted(bert_run, tmp_path):
    (tmp_path / "export").mkdir()
    export_checkpoint(bert_run.kept, tmp_path / "export")
    assert published(tmp_path / "export") == EXPORTED
