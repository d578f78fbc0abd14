"""The folder that people load: what a run and run_export.py leave in it, and what never gets there."""

import hashlib
import json
import logging
import os
import shutil
from pathlib import Path

import huggingface_hub
import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoTokenizer

import run_export
import run_unsup
from informin.encoders.encode import encode
from informin.encoders.encoder import load_encoder
from informin.encoders.loading import load_config, load_model, load_tokenizer
from informin.errors import UndefinedScoreError
from informin.evaluation.results import add_task, environment, new_results, save_results
from informin.evaluation.senteval import TASKS
from informin.publishing.export import export_checkpoint, export_folder
from informin.publishing.published import check_export, published_files
from informin.publishing.record import load_record
from informin.publishing.results import add_results
from informin.training.data_options import CardArguments, DataArguments
from informin.training.record import describe_model, describe_sentences, provenance
from tests.conftest import ROOT, make_sentences, raises_usage, save_bert, save_roberta, tokenizer_of
from trainer_informin import InforMinTrainer

EXPORTED = [
    *("1_Pooling/config.json", "README.md", "config.json", "config_sentence_transformers.json", "model.safetensors"),
    *("modeling_informin.py", "modules.json", "projection_head/model.safetensors", "sentence_bert_config.json"),
    *("tokenizer.json", "tokenizer_config.json", "training.json"),
]
LM_HEADS = ("cls.", "lm_head.")
NAN = torch.full([32], torch.nan)
MACHINE = {
    **{"USER": "login-of-somebody", "LOGNAME": "login-of-somebody", "HOME": "/home-of/somebody"},
    **{"HOSTNAME": "desk-of-somebody", "HF_TOKEN": "hf_secretTokenOfSomebody"},
}


class Run:
    """A run of run_unsup.main, its trainer, and what transformers logged."""

    def __init__(self, folder: Path, **options):
        self.folder, self.messages = folder, []
        handler = logging.Handler()
        handler.emit = lambda record: self.messages.append(record.getMessage())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("datasets.config.HF_DATASETS_CACHE", folder.parent / "datasets-cache")
            patch.setattr("informin.cli.train.InforMinTrainer", self.trainer_of)
            patch.setattr("socket.gethostname", lambda: MACHINE["HOSTNAME"])
            for name, value in MACHINE.items():
                patch.setenv(name, value)
            arguments = dict(
                **dict(output_dir=folder, per_device_train_batch_size=16, learning_rate=1e-3, max_steps=4),
                **dict(eval_steps=2, logging_steps=2, bf16="false", use_cpu="true", disable_tqdm="true"),
            )
            logging.getLogger("transformers").addHandler(handler)
            options = {name: value for name, value in (arguments | options).items() if value is not None}
            self.code = run_unsup.main([f"--{name}={value}" for name, value in options.items()])
            logging.getLogger("transformers").removeHandler(handler)

    def trainer_of(self, *args, **kwargs) -> InforMinTrainer:
        self.trainer = InforMinTrainer(*args, **kwargs)
        return self.trainer

    @property
    def record(self) -> dict:
        return read_json(self.folder / "training.json")

    @property
    def kept(self) -> Path:
        return self.folder / f"checkpoint-{self.record['kept_step']}"

    @property
    def other(self) -> Path:
        """The checkpoint that was not kept."""
        return self.folder / f"checkpoint-{6 - self.record['kept_step']}"


def read_json(path: Path):
    """Strict: JSON has no NaN."""
    return json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda name: pytest.fail(f"{path}: {name}"))


def published(folder: Path) -> list[str]:
    return [path.as_posix() for path in published_files(folder)]


def snapshot(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def copy(folder: Path, to: Path) -> Path:
    return Path(shutil.copytree(folder, to))


def change_weights(folder: Path, **values: torch.Tensor | None) -> None:
    """Puts in tensors by name, with __ for dots; None takes one out."""
    weights = load_file(folder / "model.safetensors")
    weights |= {name.replace("__", "."): value for name, value in values.items()}
    weights = {name: value for name, value in weights.items() if value is not None}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def weights_sha256(folder: Path) -> str:
    return load_encoder(str(folder), ("cls",), device="cpu").weights_sha256()


@pytest.fixture(scope="module")
def data(sentences_file, pairs_file) -> dict:
    return dict(train_file=sentences_file, eval_pairs=pairs_file)


@pytest.fixture(scope="module")
def bert_run(bert, data, tmp_path_factory) -> Run:
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    return Run(folder, model_name=bert, mlm_weight=0.1, report_to="tensorboard", **data)


@pytest.fixture(scope="module")
def roberta_run(roberta, data, tmp_path_factory) -> Run:
    return Run(tmp_path_factory.mktemp("runs") / "tiny", model_name=roberta, mlm_weight=0.1, **data)


@pytest.fixture(params=["bert", "roberta"])
def run(request) -> Run:
    """Of each architecture in turn."""
    return request.getfixturevalue(f"{request.param}_run")


@pytest.fixture(scope="module")
def other_seed(bert, data, tmp_path_factory) -> Path:
    return Run(tmp_path_factory.mktemp("runs") / "other", model_name=bert, mlm_weight=0.1, seed=1, **data).folder


# What a run leaves


def test_run_leaves_an_export_and_whole_checkpoints(run):
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
    for checkpoint in (run.folder / "checkpoint-2", run.folder / "checkpoint-4"):
        assert {path.name for path in checkpoint.iterdir()} == state | model | {"training.json", "manifest.json"}
        assert [name for name in load_file(checkpoint / "model.safetensors") if name.startswith(LM_HEADS)]
        assert read_json(checkpoint / "config.json")["informin"]["lm_head"] is True
    assert not list(run.folder.rglob("training_args.bin"))


def test_a_run_says_nothing_of_weights_that_are_not_needed(run):
    """transformers' load report would list the language-model head and a pooler as if something were wrong."""
    assert [message for message in run.messages if "LOAD REPORT" in message] == []


def test_one_process_saves(bert_run, tmp_path, monkeypatch):
    """Trainer calls `_save` in every process; the others would write into a folder that is not there yet."""
    monkeypatch.setattr(type(bert_run.trainer.args), "should_save", False)
    bert_run.trainer.write_model(str(tmp_path / "checkpoint-1"))
    assert not (tmp_path / "checkpoint-1").exists()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_export_leaves_the_model_as_it_was(run, tmp_path, dtype):
    """After the run's own export, and after one more."""
    model, tokenizer = run.trainer.model.train(), run.trainer.processing_class
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    settings = model.config.to_dict()
    assert settings["informin"]["lm_head"] and [name for name in before if name.startswith(LM_HEADS)]
    export_folder(model, tokenizer, tmp_path, dtype=dtype)
    assert model.config.to_dict() == settings and model.training
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert [name for name in before if after[name].dtype != torch.float32 or not after[name].equal(before[name])] == []
    assert all(parameter.requires_grad for parameter in model.parameters())
    batch = tokenizer(make_sentences(3), padding=True, return_tensors="pt", return_token_type_ids=False)
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    losses = model(**batch, lm_labels=labels).lm_losses
    assert losses.shape == (batch["attention_mask"].sum(),) and losses.isfinite().all()


def test_run_goes_on_from_its_checkpoint(run, encoder_of, data, tmp_path):
    """The checkpoint's folder holds our code and its own training.json; neither is in the way."""
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


# What is published


def test_no_trace_of_the_machine_or_the_data(bert_run, other_seed, bert, sentences_file, tmp_path):
    """Every byte of every published file, results of run_eval.py among them."""
    folder = copy(bert_run.folder, tmp_path / "run")
    results = [save(results_of(path, **how), tmp_path) for path, how in ((folder, {}), (bert, {}), (other_seed, {}))]
    add_results(folder, results, [str(other_seed)])
    export_folder(bert_run.trainer.model, bert_run.trainer.processing_class, folder, bert_run.record)
    words = [*MACHINE.values(), str(Path.home()), str(ROOT), "pytest-of", str(bert_run.folder), str(bert), "optimizer"]
    sentences = [line for line in sentences_file.read_text().splitlines() if line.count(" ") > 3]
    assert len(sentences) > 20 and len(published(folder)) == len(EXPORTED) + 3
    for name in published(folder):
        content = (folder / name).read_bytes().decode("latin-1")
        assert [word for word in words + sentences if word in content] == [], name
    # Where they would have been found: a checkpoint has the path, the name of a log the host.
    assert str(bert_run.folder) in (folder / "checkpoint-4" / "trainer_state.json").read_text()
    assert [path for path in folder.rglob("runs/*") if MACHINE["HOSTNAME"] in path.name]


def test_only_files_of_the_export_are_published(bert_run, tmp_path):
    folder = copy(bert_run.folder, tmp_path / "run")
    strays = [
        *("training_args.bin", "optimizer.pt", "pytorch_model.bin", "notes.txt", ".env", "trainer_state.json"),
        *("sentences.txt", "README.md~", "model.safetensors.bak", "onnx/trace.log", "runs/a/config.json"),
        *("results/log.txt", "results/other_seeds/log.txt", "checkpoint-6/model.safetensors", "1_Pooling/notes.json"),
    ]
    for name in strays:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    assert published(folder) == EXPORTED


@pytest.mark.parametrize("name", ["tiny-cls.json", "other_seeds/tiny-cls.json"])
def test_results_that_add_results_did_not_put_there_are_not_published(bert_run, tmp_path, name):
    """run_eval.py may have written them there, and they hold the path of the model."""
    folder = copy(bert_run.folder, tmp_path / "run")
    save_results(folder / "results" / name, results_of(folder))
    assert published(folder) == EXPORTED


@pytest.fixture
def elsewhere(tmp_path) -> Path:
    """A folder of private files, under the names of an export's."""
    folder = tmp_path / "elsewhere"
    for name in ("private.txt", "scores.json", "other_seeds/seed7.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("private")
    return folder


@pytest.mark.parametrize(
    ("name", "to"),
    [
        *((name, "private.txt") for name in ("vocab.txt", "README.md", "config.json", "model.safetensors")),
        *((name, "private.txt") for name in ("onnx/model.onnx", "results/base-cls.json", "1_Pooling/config.json")),
        *((name, "") for name in ("onnx", "results", "results/other_seeds", "1_Pooling", "projection_head")),
        *((name, "gone.txt") for name in ("README.md", "vocab.txt", "results")),
    ],
)
def test_links_are_neither_read_nor_written(bert_run, elsewhere, tmp_path, name, to):
    """Of what would be published, and of folders on the way to it; also where they lead nowhere."""
    folder = copy(bert_run.folder, tmp_path / "run")
    results = save(results_of(folder), tmp_path / "scores")
    link = folder / name
    if link.is_dir():
        shutil.rmtree(link)
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(elsewhere / to)
    before = snapshot(elsewhere), snapshot(folder)
    for use in (
        lambda: check_export(folder),
        lambda: published_files(folder),
        lambda: add_results(folder, [results]),
        lambda: export_folder(bert_run.trainer.model, bert_run.trainer.processing_class, folder, bert_run.record),
    ):
        with raises_usage(found=f"{link} is a link", needed="private data", fix="Replace each link with a copy of its"):
            use()
    assert (snapshot(elsewhere), snapshot(folder)) == before and link.is_symlink()


@pytest.mark.parametrize("name", ["results/x.json", "README.md", "notes", "onnx/model.onnx"])
def test_pipes_are_refused_before_they_are_read(bert_run, tmp_path, name):
    """A reader of a pipe that nobody writes to waits for ever."""
    folder = copy(bert_run.folder, tmp_path / "run")
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    for use in (
        lambda: check_export(folder),
        lambda: published_files(folder),
        lambda: add_results(folder, [str(tmp_path / "scores.json")]),
        lambda: export_folder(bert_run.trainer.model, bert_run.trainer.processing_class, folder, bert_run.record),
    ):
        with raises_usage(found=f"{folder / name} is a pipe, a socket or a device", needed="only files and folders"):
            use()


def test_links_that_nobody_publishes_are_left_alone(bert_run, elsewhere, tmp_path):
    """Of a name that is not published; and the folder itself, wherever it lies."""
    folder = copy(bert_run.folder, tmp_path / "run")
    for name in ("notes.txt", "checkpoint-6", "runs/vocab.txt", "results/log.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).symlink_to(elsewhere / "private.txt")
    (tmp_path / "link").symlink_to(folder)
    check_export(tmp_path / "link")
    assert published(tmp_path / "link") == EXPORTED


# From a checkpoint


def test_export_of_the_kept_checkpoint_is_the_export_of_the_run(run, tmp_path):
    export_checkpoint(run.kept, tmp_path / "export")
    ours, theirs = snapshot(tmp_path / "export"), {name: (run.folder / name).read_bytes() for name in EXPORTED}
    assert ours.keys() == theirs.keys()
    assert {name for name in ours if ours[name] != theirs[name]} <= {"README.md", "training.json"}


def test_record_of_a_checkpoint_is_of_its_own_weights(run, tmp_path):
    """The other checkpoint is not taken for the best one, which its state names."""
    step = int(run.other.name.rpartition("-")[2])
    export_checkpoint(run.other, tmp_path / "export")
    assert weights_sha256(tmp_path / "export") == weights_sha256(run.other) != weights_sha256(run.kept)
    record = read_json(tmp_path / "export" / "training.json")
    own = {"steps": step, "kept_step": step, "chosen": False, "sentences_per_second": None, "drift": None}
    history = [entry for entry in run.record["history"] if entry["step"] <= step]
    assert record == run.record | own | {"history": history}


def test_an_export_can_be_exported(run, tmp_path):
    assert run_export.main([str(run.folder), str(tmp_path / "again")]) == 0
    again = snapshot(tmp_path / "again")
    assert {name for name in EXPORTED if again[name] != (run.folder / name).read_bytes()} == set()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(run, tmp_path, capsys, dtype):
    folder = tmp_path / "half"
    assert run_export.main([str(run.kept), str(folder), f"--dtype={dtype}"]) == 0
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
def test_weights_that_are_no_numbers_are_refused(bert_run, tmp_path, capsys, value, dtype):
    checkpoint = copy(bert_run.kept, tmp_path / "checkpoint-1")
    change_weights(checkpoint, mlp__dense__bias=torch.full([32], value))
    assert run_export.main([str(checkpoint), str(tmp_path / "new" / "export"), f"--dtype={dtype}"]) == 2
    error = capsys.readouterr().err
    assert f"error: NaN or infinity in 1 weight in torch.{dtype}, such as mlp.dense.bias." in error
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-1"]


def test_number_too_large_for_float16_is_no_reason_against_bfloat16(bert_run, tmp_path):
    checkpoint = copy(bert_run.kept, tmp_path / "checkpoint-1")
    change_weights(checkpoint, mlp__dense__bias=torch.full([32], 1e6))
    export_checkpoint(checkpoint, tmp_path / "export", "bfloat16")
    check_export(tmp_path / "export")
    head = load_file(tmp_path / "export" / "projection_head" / "model.safetensors")
    assert head["dense.bias"].equal(torch.full([32], 1e6, dtype=torch.bfloat16))


@pytest.mark.parametrize("held", ["file", "folder"])
def test_target_in_use_is_refused(bert_run, tmp_path, capsys, held):
    target = tmp_path / "export"
    if held == "file":
        target.write_text("mine")
    else:
        target.mkdir()
        (target / "notes.txt").write_text("mine")
    before = snapshot(tmp_path)
    assert run_export.main([str(bert_run.kept), str(target)]) == 2
    assert f"error: {target} is in use; expected a new folder." in capsys.readouterr().err
    assert snapshot(tmp_path) == before


def test_target_below_a_file_is_refused(bert_run, tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    assert run_export.main([str(bert_run.kept), str(tmp_path / "file" / "export")]) == 2
    assert "error: " in capsys.readouterr().err


def test_empty_target_is_taken(bert_run, tmp_path):
    (tmp_path / "export").mkdir()
    export_checkpoint(bert_run.kept, tmp_path / "export")
    assert published(tmp_path / "export") == EXPORTED


def cut(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (shutil.rmtree, "does not exist"),
        (lambda folder: (folder / "config.json").unlink(), "cannot be loaded"),
        (lambda folder: (folder / "config.json").write_text('{"model_type": "gpt2"}'), "expected an encoder like"),
        (lambda folder: (folder / "model.safetensors").unlink(), "cannot be loaded"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b""), "cannot be loaded"),
        (cut, "cannot be loaded"),
        (lambda folder: change_weights(folder, bert__embeddings__LayerNorm__bias=torch.zeros(7)), "cannot be loaded"),
        (lambda folder: change_weights(folder, bert__embeddings__LayerNorm__bias=None), "LayerNorm.bias"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer"),
        (lambda folder: (folder / "training.json").write_text("{"), "training.json is not JSON"),
        (lambda folder: (folder / "training.json").write_bytes(b"\xe4"), "training.json is not JSON"),
        (
            lambda folder: (folder / "training.json").write_text("[1]"),
            "training.json: it is a list; expected a mapping",
        ),
        (lambda folder: (folder / "training.json").write_text('{"schema": 3}'), "train again with this version"),
    ],
    ids=[
        *("no-folder", "no-config", "gpt2", "no-weights", "empty-weights", "cut-weights", "other-shape", "one-missing"),
        *("no-tokenizer", "record-cut", "record-no-text", "record-a-list", "record-of-another-schema"),
    ],
)
def test_damaged_checkpoint_is_refused(bert_run, tmp_path, capsys, damage, message):
    checkpoint = copy(bert_run.kept, tmp_path / "checkpoint-1")
    damage(checkpoint)
    assert run_export.main([str(checkpoint), str(tmp_path / "export")]) == 2
    error = capsys.readouterr().err
    error = error[error.index("error: ") :].strip()
    assert message in error and "\n" not in error
    assert [path.name for path in tmp_path.iterdir() if path != checkpoint] == []


def test_other_models_are_refused(bert, tmp_path, capsys):
    assert run_export.main([str(bert), str(tmp_path / "export")]) == 2
    assert f"{bert} is not an InforMin-CL model: its config.json has no `informin`" in capsys.readouterr().err
    assert not (tmp_path / "export").exists()


def test_check_export_names_the_command_that_mends_a_checkpoint(bert_run, tmp_path, monkeypatch):
    with raises_usage(found="is a checkpoint, which cannot be published: it has no modules") as error:
        check_export(bert_run.kept)
    command = error.value.fix.partition("Export it first: ")[2]
    assert command == f"python -m informin export {bert_run.kept} NEW_FOLDER"
    monkeypatch.chdir(tmp_path)
    assert run_export.main(command.split()[4:]) == 0
    check_export("NEW_FOLDER")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "model.safetensors").unlink(), "it has no model.safetensors"),
        (lambda folder: (folder / "modeling_informin.py").unlink(), "it has no modeling_informin.py"),
        (cut, "/run cannot be read: "),
        (lambda folder: (folder / "model.safetensors").write_bytes(b""), "/run cannot be read: "),
        (lambda folder: cut(folder / "projection_head"), "/run cannot be read: "),
        (lambda folder: change_weights(folder, pooler__x=NAN), "run: NaN or infinity in 1 weight, such as pooler.x"),
        (lambda folder: change_weights(folder / "projection_head", dense__bias=NAN), "such as dense.bias"),
        (lambda folder: (folder / "config.json").write_text('{"model_type": "bert"}'), "is not an InforMin-CL model"),
    ],
    ids="no-weights no-code cut-weights empty-weights cut-head nan nan-in-head plain-bert".split(),
)
def test_check_export_refuses(bert_run, tmp_path, damage, message):
    folder = copy(bert_run.folder, tmp_path / "run")
    damage(folder)
    with raises_usage(found=message):
        check_export(folder)


def test_check_export_does_not_ask_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with raises_usage(found="model does not exist", needed="a folder that training or `informin export` wrote"):
        check_export("model")


# The files


def test_files_for_sentence_transformers(run):
    """In the older, verbose form, which every reader knows."""
    kinds = {"": "sentence_transformers.models.Transformer", "1_Pooling": "sentence_transformers.models.Pooling"}
    modules = [{"idx": i, "name": str(i), "path": path, "type": kind} for i, (path, kind) in enumerate(kinds.items())]
    assert read_json(run.folder / "modules.json") == modules
    assert read_json(run.folder / "1_Pooling" / "config.json") == {
        "word_embedding_dimension": 32,
        "pooling_mode_cls_token": True,
        "pooling_mode_mean_tokens": False,
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
    }
    # Of 66 positions, and not the 32 of training.
    longest = {"bert": 66, "roberta": 64}[run.trainer.model.config.model_type]
    settings = {"max_seq_length": longest, "do_lower_case": False, "model_args": {"add_pooling_layer": False}}
    assert read_json(run.folder / "sentence_bert_config.json") == settings
    prompts = {"prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    assert read_json(run.folder / "config_sentence_transformers.json") == prompts


def test_sentence_transformers_gives_cls(run):
    """Of short sentences, and of one that is longer than the model reads."""
    from sentence_transformers import SentenceTransformer

    sentences = [*make_sentences(5), " ".join(make_sentences(20))]
    reader = SentenceTransformer(str(run.folder), device="cpu")
    model, tokenizer = run.trainer.model, run.trainer.processing_class
    expected = torch.from_numpy(encode(model, tokenizer, sentences)["cls"])
    torch.testing.assert_close(torch.from_numpy(reader.encode(sentences)), expected, rtol=1e-4, atol=1e-5)
    assert reader.max_seq_length == read_json(run.folder / "sentence_bert_config.json")["max_seq_length"]


@pytest.mark.parametrize("trusted", [False, True])
def test_sentence_transformers_misses_nothing(run, trusted):
    """Without a word of a pooler, by the plain class and by ours."""
    from sentence_transformers import SentenceTransformer

    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("transformers").addHandler(handler)
    SentenceTransformer(str(run.folder), device="cpu", trust_remote_code=trusted)
    logging.getLogger("transformers").removeHandler(handler)
    assert said == []


@pytest.mark.parametrize(("make", "longest"), [(save_bert, 66), (save_roberta, 64)], ids=["bert", "roberta"])
def test_tokenizer_forgets_its_calls_and_its_machine(tmp_path, make, longest):
    """A tokenizer like all-MiniLM-L6-v2's, whose files keep truncation, padding, and where they once lay."""
    base = make(tmp_path / "base")
    own = read_json(base / "tokenizer_config.json")
    traces = dict(
        backend="tokenizers", max_length=8, stride=0, truncation_strategy="longest_first", pad_to_multiple_of=8
    )
    places = ("name_or_path", "special_tokens_map_file", "tokenizer_file", "vocab_file")
    traces |= dict.fromkeys(places, "/home-of/x") | {"is_local": True, "local_files_only": True}
    traces["backend"] = "tokenizers"
    (base / "tokenizer_config.json").write_text(json.dumps(own | traces | {"model_max_length": 10**30}))
    backend = read_json(base / "tokenizer.json")
    padding = dict(strategy={"Fixed": 8}, direction="Right", pad_to_multiple_of=None, pad_id=0, pad_type_id=0)
    cutting = dict(direction="Right", max_length=8, strategy="LongestFirst", stride=0)
    fixed = backend | {"truncation": cutting, "padding": padding | {"pad_token": "[PAD]"}}
    (base / "tokenizer.json").write_text(json.dumps(fixed))
    config = load_config(str(base))
    model = load_model(config, str(base), {"projection_head": "mlp", "lm_head": False})
    tokenizer = tokenizer_of(base)
    tokenizer(["the dog"], truncation=True, padding="max_length", max_length=5)
    export_folder(model, tokenizer, tmp_path / "export")
    exported = read_json(tmp_path / "export" / "tokenizer.json")
    assert exported["truncation"] is None and exported["padding"] is None
    settings = read_json(tmp_path / "export" / "tokenizer_config.json")
    assert settings.keys() & traces.keys() == set()
    # transformers 4 does not know transformers 5's name of a tokenizer without a class of its own.
    classes = {"TokenizersBackend": "PreTrainedTokenizerFast"}
    kept = {name: value for name, value in own.items() if name not in traces} | {"model_max_length": longest}
    kept["tokenizer_class"] = classes.get(own["tokenizer_class"], own["tokenizer_class"])
    assert settings == settings | kept
    assert read_json(tmp_path / "export" / "sentence_bert_config.json")["max_seq_length"] == longest


# training.json


def test_training_record(bert_run, bert, sentences_file):
    record = bert_run.record
    sha256 = weights_sha256(bert)
    told = dict(name="tiny-bert", hub_id=None, revision=None, weights_sha256=sha256)
    assert record["base_model"] == told | {"settings_sha256": facts(bert)["base_model"]["settings_sha256"]}
    text = "".join(f"{line}\0" for line in sentences_file.read_text().splitlines())
    assert record["data"] == dict(
        **dict(sources=[sentences_file.name], hub_id=None, description=None, sentences=96),
        sha256=hashlib.sha256(text.encode()).hexdigest(),
    )
    assert (record["schema"], record["language"], record["license"], record["seed"]) == (2, None, None, 42)
    state = read_json(bert_run.folder / "checkpoint-4" / "trainer_state.json")
    scores = [entry for entry in state["log_history"] if "eval_spearman" in entry]
    names = ("spearman", "alignment", "uniformity")
    history = [{"step": entry["step"]} | {name: entry[f"eval_{name}"] for name in names} for entry in scores]
    assert record["history"] == history and [entry["step"] for entry in history] == [0, 2, 4]
    assert record["development"] == "pairs.tsv" and record["steps"] == 4 and record["chosen"] is True
    assert record["kept_step"] == max(history[1:], key=lambda entry: entry["spearman"])["step"]
    assert record["sentences_per_second"] > 0
    assert record["environment"] == environment(torch.device("cpu"))
    kinds = [
        ("contrast", "simcse", True),
        ("reconstruction", "informin", True),
        ("masked language modeling", None, False),
    ]
    objective = record["objective"]
    assert (objective["name"], objective["title"]) == ("informin", "InforMin-CL")
    assert [(term["title"], term["paper"], term["own"]) for term in objective["terms"]] == kinds
    card = (bert_run.folder / "README.md").read_text()
    assert f"{record['kept_step']} steps of InforMin-CL with masked language modeling on 96 sentences" in card


COMMON = dict(
    **dict(temperature=0.05, projection_head="mlp", max_seq_length=32, sentences_per_step=16, learning_rate=1e-3),
    **dict(lr_scheduler_type="linear", warmup_steps=0, weight_decay=0.0, max_grad_norm=1.0, optim="adamw_torch_fused"),
    **dict(adam_beta1=0.9, adam_beta2=0.999, adam_epsilon=1e-8),
    **dict(gradient_accumulation_steps=1, padding_free=True, precision="fp32", processes=1),
)


def test_options_of_the_record(bert_run, bert, sentences_file, tmp_path):
    """Every option that shapes the weights, and none that had no effect."""
    mlm = dict(mlm_weight=0.1, mlm_probability=0.15, masked_views=False)
    informin = dict(objective="informin", reconstruction_weight=0.4, reconstruction_form="squared_l2")
    assert bert_run.record["options"] == COMMON | informin | mlm | {"max_steps": 4}
    simcse = dict(objective="simcse", projection_head="none", max_seq_length=16, warmup_steps=0.1, weight_decay=0.01)
    epochs = dict(max_steps=None, num_train_epochs=0.5, eval_strategy="no")
    run = Run(tmp_path / "run", model_name=bert, train_file=sentences_file, **simcse, **epochs)
    assert run.record["options"] == COMMON | simcse | {"num_train_epochs": 0.5}
    unscored = {"development": None, "history": [], "steps": 3, "kept_step": 3, "chosen": False}
    assert {name: run.record[name] for name in unscored} == unscored


def test_undefined_score_is_null(bert, data, tmp_path, monkeypatch):
    """Before the first step there is none here; the card shows a dash."""
    scores = iter([None, {"spearman": 50.0, "alignment": float("inf"), "uniformity": -1.0}])

    def score(encode, pairs):
        scored = next(scores)
        if scored is None:
            raise UndefinedScoreError("no reason")
        return scored

    monkeypatch.setattr("informin.evaluation.pairs.score_pairs", score)
    run = Run(tmp_path / "run", model_name=bert, max_steps=2, **data)
    undefined = dict.fromkeys(("spearman", "alignment", "uniformity"))
    assert run.record["history"] == [
        {"step": 0, **undefined},
        {"step": 2, "spearman": 50.0, "alignment": None, "uniformity": -1.0},
    ]
    card = (run.folder / "README.md").read_text()
    assert "| before training | - | - | - |" in card and "| step 2, this model | 50.00 | - | -1.000 |" in card


def facts(model_name, *, revision=None, sentences=("a", "b"), data=None, **card) -> dict:
    """What is told of a run before its first step."""
    name, data = str(model_name), DataArguments(**data or {"train_file": ["x.txt"]})
    if isinstance(sentences, tuple):
        sentences = Dataset.from_dict({"text": list(sentences)})
    told = provenance(name, data, CardArguments(**card), revision)
    config = load_config(name, revision)
    model = load_model(config, name, {"projection_head": "mlp", "lm_head": False}, revision)
    tokenizer = load_tokenizer(name, config, revision)
    base = describe_model(name, model, tokenizer, revision, told["hub_id"])
    return told | {"base_model": base, "data": describe_sentences(sentences) | told["data"]}


def test_of_files_and_folders_the_last_name_alone(bert, tmp_path, monkeypatch):
    for path in ("a/one.txt", "b/c/two.csv"):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text("x")
    files = [str(tmp_path / "a" / "one.txt"), f"{tmp_path}/b/c/"]
    told = facts(f"{bert}/", data=dict(train_file=files))
    assert told["base_model"]["name"] == "tiny-bert" and told["base_model"]["hub_id"] is None
    sha256 = hashlib.sha256(b"a\0b\0").hexdigest()
    assert told["data"] == dict(sources=["one.txt", "c"], hub_id=None, description=None, sentences=2, sha256=sha256)
    monkeypatch.chdir(bert)
    assert facts(".")["base_model"]["name"] == "tiny-bert"
    monkeypatch.chdir(tmp_path / "b")
    assert facts(bert, data=dict(train_file=["."]))["data"]["sources"] == ["b"]


def test_data_set_in_a_folder_is_no_data_set_of_the_hub(bert, tmp_path):
    """`dataset_name` takes what datasets.load_dataset takes, folders too."""
    (tmp_path / "own").mkdir()
    told = facts(bert, data=dict(dataset_name=str(tmp_path / "own")))["data"]
    assert told["sources"] == ["own"] and told["hub_id"] is None


def test_names_of_the_hub(bert, tmp_path, monkeypatch):
    """Of a model in the Hub's cache: its id, the commit, its own card's license; of data sets their ids."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    cached = tmp_path / "models--org--tiny"
    copy(bert, cached / "snapshots" / commit)
    (cached / "snapshots" / commit / "README.md").write_text("---\nlicense: mit\n---\n# Tiny\n")
    (cached / "refs").mkdir()
    (cached / "refs" / "v1").write_text(commit)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    told = facts("org/tiny", revision="v1", data=dict(dataset_name="org/data", dataset_config="small"))
    checksums = {name: facts(bert)["base_model"][name] for name in ("weights_sha256", "settings_sha256")}
    assert told["base_model"] == dict(name="org/tiny", hub_id="org/tiny", revision=commit, **checksums)
    assert told["data"]["sources"] == ["org/data/small/train"] and told["data"]["hub_id"] == "org/data"
    assert told["license"] == "mit" and told["language"] is None


@pytest.mark.parametrize("name", ["/home/me/encoder", "../encoder", "a b"])
def test_a_base_model_that_is_no_id_of_the_hub_is_refused(name):
    """It would put a path into the public page."""
    with raises_usage(option="base_model", found=f"is {name!r}", needed="the Hub id"):
        CardArguments(base_model=name)


@pytest.mark.parametrize(
    ("card", "option", "fields"),
    [
        (dict(license="Apache 2.0"), "license", dict(found="is 'Apache 2.0'", fix="Similar ids: apache-2.0")),
        (
            dict(license="GPL-3.0-or-later"),
            "license",
            dict(needed="https://huggingface", fix="gpl-3.0, lgpl-3.0, agpl"),
        ),
        (dict(license=["mit", "Apache"]), "license", dict(fix="Similar ids: ")),
        (dict(license="<b>\n"), "license", dict(found=r"is '<b>\n', which is not in the Hub's list of licenses")),
        (dict(license=""), "license", dict(found="is '', which", needed="or other")),
        (dict(language="English"), "language", dict(found="is 'English'", needed="ISO 639 code such as en or deu")),
        (dict(language="EN"), "language", dict(found="is 'EN'")),
        (dict(language="<b>\n"), "language", dict(found=r"is '<b>\n'")),
    ],
    ids=str,
)
def test_licenses_and_languages_that_the_hub_rejects(card, option, fields):
    with raises_usage(option=option, **fields) as caught:
        CardArguments(**card)
    assert "\n" not in str(caught.value)


def test_default_sentences_are_english_and_of_the_hub(bert):
    told = facts(bert, sentences=Dataset.from_dict({"text": ["a"]}).to_iterable_dataset(), data={"train_file": None})
    assert told["data"]["sources"] == ["princeton-nlp/datasets-for-simcse/wiki1m_for_simcse.txt"]
    assert told["data"]["hub_id"] == "princeton-nlp/datasets-for-simcse" and told["data"]["sentences"] is None
    assert told["language"] == "en"


@pytest.mark.parametrize(
    ("card", "license", "said"),
    [
        (b"---\nlicense: apache-2.0\nlanguage: de\n---\n# Model\n", "apache-2.0", None),
        (b"---\nlicense:\n- mit\n- cc0-1.0\nmodel-index: broken\ntags: 5\n1: 2\n---\n", ["mit", "cc0-1.0"], None),
        (b"---\nlicense: [{evil: <b>}]\n---\n", None, "[{'evil': '<b>'}]"),
        (b"---\nlicense: [mit, Own]\n---\n", None, "['mit', 'Own']"),
        (b"---\nlicense: 2.0\n---\n", None, "2.0"),
        (b"---\nlicense: MIT\n---\n", None, "'MIT'"),
        (b"---\nlicense: |\n  mit\n  ---\n  " + b"x" * 10**5 + b"\n---\n", None, "'mit\\n---\\nxx...xxxxxxxxxxxxx'"),
        (b"---\nlicense: " + b"[" * 10**4 + b"\n---\n", None, None),
        (b"---\nlicense:\n---\n", None, None),
        (b"# No metadata\n", None, None),
        (b"---\n- a list\n---\n", None, None),
        (b"---\nlicense: [mit\n---\n", None, None),
        (b"---\nlicense: \xe4\n---\n", None, None),
    ],
    ids="license two html one-of-two number capitals long deep empty no-metadata list no-yaml no-text".split(),
)
def test_license_comes_from_the_card_of_the_encoder(bert, tmp_path, caplog, card, license, said):
    """One that the Hub does not know is left out, which is said once, in one line."""
    caplog.set_level("INFO", logger="informin.training.record")
    base = copy(bert, tmp_path / "base")
    (base / "README.md").write_bytes(card)
    assert facts(base)["license"] == license
    line = (
        f"The model card of {base} has the license {said}, which the Hub does not know. It is ignored; set `license`."
    )
    assert caplog.messages == ([line] if said else [])
    assert facts(base, license="cc-by-4.0")["license"] == "cc-by-4.0"
    assert len(caplog.messages) == (said is not None)


def test_what_the_user_says_for_the_card(bert):
    said = dict(base_model="org/tiny", language="de", data_description="tales", license="mit")
    told = facts(bert, **said)
    assert told["base_model"]["hub_id"] == "org/tiny" and told["base_model"]["name"] == "tiny-bert"
    assert (told["language"], told["license"], told["data"]["description"]) == ("de", "mit", "tales")


def test_checkpoint_without_a_record_is_exported(bert_run, tmp_path):
    checkpoint = copy(bert_run.kept, tmp_path / "checkpoint-1")
    (checkpoint / "training.json").unlink()
    export_checkpoint(checkpoint, tmp_path / "export")
    assert published(tmp_path / "export") == [name for name in EXPORTED if name != "training.json"]
    assert "The folder has no training.json." in (tmp_path / "export" / "README.md").read_text()


# Results


def results_of(folder: Path, score: float = 70.0, **how) -> dict:
    """What run_eval.py would write of a folder."""
    read = dict(pooler="cls", normalized=False, prompt=None, whitening=None, max_length=66)
    read |= dict(precision="fp32", split="test")
    identity = {"weights_sha256": weights_sha256(folder), **read, **how}
    results = new_results(str(folder), identity, environment(torch.device("cpu")))
    for name in TASKS:
        add_task(results, name, dict(score=score, n=3, seconds=dict(encode=0.1, score=0.1), truncated=0, data={}))
    return results


def save(results: dict, folder: Path) -> str:
    path = folder / f"{results['weights_sha256'][:8]}-{results['pooler']}.json"
    save_results(path, results)
    return str(path)


@pytest.fixture
def export(bert_run, tmp_path) -> Path:
    """A fresh copy of an exported folder."""
    export_checkpoint(bert_run.kept, tmp_path / "export")
    shutil.copy(bert_run.folder / "training.json", tmp_path / "export")
    return tmp_path / "export"


def test_results_are_told_apart_by_their_weights(export, bert, other_seed, tmp_path):
    """From one folder of files: of these weights, of the start by two poolers, of another seed."""
    whose = [(export, 71.0, "cls"), (bert, 72.0, "cls"), (bert, 73.0, "mean"), (other_seed, 74.0, "cls")]
    for folder, score, pooler in whose:
        save(results_of(folder, score, pooler=pooler), tmp_path / "results")
    add_results(export, [str(tmp_path / "results")], [str(other_seed)])
    wanted = {
        "model.json": ("this model", 71.0),
        "base-cls.json": ("before training", 72.0),
        "base-mean.json": ("before training", 73.0),
        "other_seeds/seed1.json": ("seed 1", 74.0),
    }
    added = {name: json.loads(content) for name, content in snapshot(export / "results").items()}
    assert {name: (kept["model"], kept["average"]["sts"]) for name, kept in added.items()} == wanted
    assert published(export) == sorted([*EXPORTED, *(f"results/{name}" for name in wanted)], key=Path)
    given = results_of(bert, 73.0, pooler="mean")
    assert added["base-mean.json"] | {"environment": 0} == given | {"model": "before training", "environment": 0}


def test_newer_results_take_the_place_of_older(export, tmp_path):
    for score in (50.0, 60.0):
        add_results(export, [save(results_of(export, score), tmp_path)])
    assert read_json(export / "results" / "model.json")["average"]["sts"] == 60.0


@pytest.mark.parametrize(
    ("how", "found", "needed"),
    [
        (dict(whitening={"dimensions": None, "fitted_on": "x"}), "was scored with whitening {", "None"),
        (dict(split="dev"), "was scored with split 'dev'", "'test'"),
        (dict(pooler="mean"), "was scored with pooler 'mean'", "'cls'"),
        (dict(weights_sha256="0" * 64), "has results of another model (export)", "the weights of "),
        (dict(precision="bf16"), "was scored with precision 'bf16'", "'fp32'"),
        (dict(max_length=32), "was scored with max_length 32", "66"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_results_that_do_not_belong_in_the_table_are_refused(export, bert, tmp_path, how, found, needed):
    """And nothing of the call is kept, not even what was right."""
    good = save(results_of(bert), tmp_path / "good")
    bad = save(results_of(export, **how), tmp_path / "bad")
    with raises_usage(found=f"{bad} {found}", needed=needed):
        add_results(export, [good, bad])
    assert not (export / "results").exists()


def test_results_of_another_seed_need_its_folder(export, other_seed, tmp_path):
    path = save(results_of(other_seed), tmp_path)
    with raises_usage(found="has results of another model", fix=f"`informin eval` with `model_name` {export}."):
        add_results(export, [path])
    add_results(export, [path], [str(other_seed)])
    assert [path.name for path in (export / "results").rglob("*.json")] == ["seed1.json"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "x.json cannot be read: "),
        ("[]", "it is a list; expected a mapping"),
        ('{"schema": 1}', "model is missing"),
    ],
)
def test_files_that_are_no_results_are_refused(export, tmp_path, content, message):
    (tmp_path / "x.json").write_text(content)
    with raises_usage(found=message):
        add_results(export, [str(tmp_path / "x.json")])


def change_record(folder: Path, **values) -> None:
    (folder / "training.json").write_text(json.dumps(load_record(folder) | values))


@pytest.mark.parametrize(
    ("change", "option", "found"),
    [
        (lambda seed: change_record(seed, options=COMMON), "seeds", "options differ (training.json)"),
        (lambda seed: change_record(seed, data=None, base_model={"name": "x"}), "seeds", "base_model, data differ"),
        (lambda seed: change_record(seed, seed=42), "seeds", "both have seed 42"),
        (lambda seed: (seed / "training.json").unlink(), "seeds", "base_model, data, options differ"),
        (lambda seed: (seed / "modules.json").unlink(), None, "is a checkpoint, which cannot be published"),
        (shutil.rmtree, None, "does not exist"),
    ],
    ids=["other-options", "other-start", "same-seed", "no-record", "checkpoint", "no-folder"],
)
def test_folder_that_is_no_other_seed_is_refused(export, other_seed, tmp_path, change, option, found):
    results, seed = save(results_of(export), tmp_path), copy(other_seed, tmp_path / "seed")
    change(seed)
    with raises_usage(option=option, found=found):
        add_results(export, [results], [str(seed)])
    assert not (export / "results").exists()


def test_export_without_a_record_has_no_other_seeds(export, other_seed, tmp_path):
    """Not even where the other has none either."""
    seed = copy(other_seed, tmp_path / "seed")
    for folder in (export, seed):
        (folder / "training.json").unlink()
    with raises_usage(option="seeds", found="base_model, data, options differ"):
        add_results(export, [save(results_of(export), tmp_path)], [str(seed)])
    add_results(export, [save(results_of(export), tmp_path)])
    assert published(export)[-3:] == ["sentence_bert_config.json", "tokenizer.json", "tokenizer_config.json"]


def test_results_do_not_outlive_their_weights(export, bert, bert_run, tmp_path):
    """A run that goes on exports other weights to the same folder: scores and ONNX files of the earlier ones go."""
    add_results(export, [save(results_of(folder), tmp_path) for folder in (export, bert)])
    (export / "onnx").mkdir()
    (export / "onnx" / "model.onnx").write_bytes(b"x")
    (export / "results" / "mine.json").write_text("{}")
    before, trained = published(export), (bert_run.trainer.model, bert_run.trainer.processing_class)
    export_folder(*trained, export, bert_run.record)
    assert published(export) == before and "this model (seed 42)" in (export / "README.md").read_text()
    export_folder(*trained, export, bert_run.record, torch.bfloat16)
    assert set(before) - set(published(export)) == {"results/model.json", "onnx/model.onnx"}
    assert "Not evaluated" in (export / "README.md").read_text() and (export / "results" / "mine.json").exists()


def test_half_precision_is_another_model(export, bert_run, tmp_path):
    """Rounded weights have scores of their own."""
    export_checkpoint(bert_run.kept, tmp_path / "half", "float16")
    with raises_usage(found="has results of another model"):
        add_results(tmp_path / "half", [save(results_of(export), tmp_path)])


@pytest.mark.parametrize(("umask", "mode"), [(0o077, 0o600), (0o022, 0o644), (0o027, 0o640)])
def test_files_have_the_modes_that_the_umask_gives(command, tmp_path, umask, mode):
    """Of the run, of its checkpoints, and of an export made from one."""
    before = os.umask(umask)
    try:
        assert run_unsup.main(command()) == 0
        assert run_export.main([str(tmp_path / "run" / "checkpoint-4"), str(tmp_path / "new" / "export")]) == 0
    finally:
        os.umask(before)
    written = [*(tmp_path / "run").rglob("*"), *(tmp_path / "new").rglob("*"), tmp_path / "run", tmp_path / "new"]
    modes = {path: path.stat().st_mode & 0o777 for path in written}
    folders = mode | (mode & 0o444) >> 2
    assert {path: oct(found) for path, found in modes.items() if found != (folders if path.is_dir() else mode)} == {}
