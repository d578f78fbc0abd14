"""A run that is gone on with is the run that it says it is; nothing half-written stays."""

import errno
import json
import re
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from filelock import FileLock
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import TrainerCallback

import run_unsup
from informin.evaluation import pairs
from informin.files import damage, sha256, write_manifest
from informin.publishing.record import load_record
from informin.training.checkpoints import complete_checkpoints
from informin.training.data_options import DataArguments
from informin.training.lock import only_run_in
from informin.training.options import InforMinTrainingArguments
from informin.training.resume_checks import differences
from informin.training.sentences import load_sentences
from informin.training.signals import StopOnSignal
from tests import forked
from tests.conftest import FOUR_STEPS, make_sentences, raises_usage, save_bert, save_pairs, tokenizer_of
from tests.test_run import assert_same_weights
from tests.test_run_errors import fails
from trainer_informin import InforMinTrainer


@pytest.fixture(scope="session")
def through(bert, sentences_file, pairs_file, tmp_path_factory) -> Path:
    """A run of four steps that was not interrupted, with checkpoints at 2 and 4."""
    folder = tmp_path_factory.mktemp("through") / "run"
    options = dict(model_name=bert, train_file=sentences_file, eval_pairs=pairs_file, output_dir=folder)
    assert run_unsup.main([f"--{name}={value}" for name, value in (options | FOUR_STEPS).items()]) == 0
    return folder


@pytest.fixture
def half(through, tmp_path) -> Path:
    """The same, broken off after its second step, in the folder of `command`."""
    folder = tmp_path / "run"
    shutil.copytree(through / "checkpoint-2", folder / "checkpoint-2")
    state = folder / "checkpoint-2" / "trainer_state.json"
    state.write_text(state.read_text().replace(str(through), str(folder)))
    write_manifest(folder / "checkpoint-2")
    return folder


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def others(tmp_path) -> dict[str, Path]:
    """Other sentences, pairs and weights than those of `command`."""
    (tmp_path / "others.txt").write_text("\n".join(make_sentences(96, seed=9)) + "\n")
    return {
        "train_file": tmp_path / "others.txt",
        "eval_pairs": save_pairs(tmp_path / "others.tsv", seed=5),
        "model_name": save_bert(tmp_path / "other-bert", initializer_range=0.1),
    }


def test_the_same_command_goes_on_to_the_same_weights(command, half, through, tmp_path, sentences_file):
    """Files by other names, logs, checkpoints and words of the card are free."""
    moved = shutil.copy(sentences_file, tmp_path / "moved.txt")
    free = dict(
        train_file=moved, logging_steps=1, save_total_limit=3, run_name="x", data_description="words", verbose="true"
    )
    assert run_unsup.main([*command(**free), "--resume_from_checkpoint"]) == 0
    assert_same_weights(half / "checkpoint-4", through / "checkpoint-4")
    assert load_record(half)["earlier"] == []


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(objective="simcse"), "objective informin, now simcse; reconstruction_weight 0.4, now none"),
        (dict(seed=7), "seed 42, now 7"),
        (dict(temperature=0.1), "temperature 0.05, now 0.1"),
        (dict(reconstruction_weight=4), "reconstruction_weight 0.4, now 4.0"),
        (dict(reconstruction_form="reference"), "reconstruction_form squared_l2, now reference"),
        (dict(per_device_train_batch_size=8), "sentences_per_step 16, now 8"),
        (dict(learning_rate=2e-3), "learning_rate 0.001, now 0.002"),
        (dict(max_steps=6), "max_steps 4, now 6"),
        (dict(data_seed=3), "data_seed none, now 3"),
        (dict(max_seq_length=8), "max_seq_length 32, now 8"),
        (dict(train_file="others"), "sentences 96 from sentences.txt (SHA-256 "),
        (dict(max_train_samples=64), "now 64 from sentences.txt (SHA-256 "),
        (dict(eval_pairs="others"), "development data pairs.tsv, now others.tsv"),
        (dict(eval_pairs=None, eval_strategy="no"), "development data pairs.tsv, now none"),
        (dict(metric_for_best_model="alignment"), "metric_for_best_model none, now alignment"),
        (dict(load_best_model_at_end="false"), "load_best_model_at_end none, now False"),
        (dict(accelerator_config='{"use_seedable_sampler": false}'), "use_seedable_sampler none, now False"),
        (dict(optim_args="foreach=True"), "optim_args none, now foreach=True"),
        (dict(lr_scheduler_type="cosine_with_min_lr", lr_scheduler_kwargs='{"min_lr": 0.1}'), "now min_lr 0.1"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_another_run_is_refused_with_what_differs(command, half, others, capsys, changes, message):
    before = files(half)
    changes = {name: others[name] if value == "others" else value for name, value in changes.items()}
    error = fails(capsys, [*command(**changes), "--resume_from_checkpoint"])
    assert f"{half / 'checkpoint-2'} belongs to another run: " in error and message in error and "\n" not in error
    assert "--resume_with_changes" in error
    assert files(half) == before


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(optim="adafactor"), "has the state of --optim adamw_torch_fused, which adafactor cannot load."),
        (
            dict(lr_scheduler_type="reduce_lr_on_plateau"),
            "has the state of --lr_scheduler_type linear, which",
        ),
        (dict(mlm_weight=0.1), "was trained with lm_head False, and now it is True (set by --mlm_weight)"),
    ],
    ids=["optim", "scheduler", "heads"],
)
def test_what_cannot_be_changed_on_purpose_either(command, half, capsys, options, message):
    error = fails(capsys, [*command(**options), "--resume_from_checkpoint", "--resume_with_changes"])
    assert message in error and "\n" not in error


@pytest.mark.parametrize("change", ["dropout", "tokenizer"])
def test_another_configuration_or_tokenizer_of_the_same_weights(command, half, bert, tmp_path, capsys, change):
    other = shutil.copytree(bert, tmp_path / "models" / "tiny-bert")
    name, old, new = {
        "dropout": ("config.json", '"hidden_dropout_prob": 0.1', '"hidden_dropout_prob": 0.3'),
        "tokenizer": ("tokenizer.json", '"dog"', '"hound"'),
    }[change]
    assert old in (other / name).read_text()
    (other / name).write_text((other / name).read_text().replace(old, new))
    error = fails(capsys, [*command(model_name=other), "--resume_from_checkpoint"])
    assert "belongs to another run: configuration or tokenizer of tiny-bert (SHA-256 " in error


def test_streams_are_told_apart_by_their_names():
    def record(*sources):
        data = {"sources": list(sources), "sha256": None, "sentences": None}
        return {"seed": 1, "options": {}, "data": data, "base_model": None, "development_sha256": None}

    assert differences(record("a"), record("a")) == []
    assert differences(record("a"), record("b")) == ["sentences a, now b"]


@pytest.mark.parametrize("epochs", [None, 0.7])
def test_a_finished_run_takes_no_further_step(command, through, tmp_path, epochs):
    """Four steps of an epoch of six; Trainer would go on in the epoch."""
    options = dict(max_steps=None, num_train_epochs=epochs) if epochs else {}
    for more in ([], ["--resume_from_checkpoint"], ["--resume_from_checkpoint"]):
        assert run_unsup.main([*command(**options), *more]) == 0
    record = load_record(tmp_path / "run")
    assert record["steps"] == 4 + bool(epochs)
    assert [entry["step"] for entry in record["history"]] == [0, 2, 4] + [5] * bool(epochs)


def test_the_best_one_is_looked_for_beside_the_checkpoint(command, half, through, tmp_path, caplog):
    """In a run that was renamed, whose old name another run has by now."""
    state = json.loads((half / "checkpoint-2" / "trainer_state.json").read_text())
    assert state["best_model_checkpoint"] == str(half / "checkpoint-2")
    renamed = half.rename(tmp_path / "renamed")
    shutil.copytree(through, half)  # other weights by the old name
    (half / "checkpoint-2" / "model.safetensors").write_bytes(b"not ours")
    assert run_unsup.main([*command(output_dir=renamed), "--resume_from_checkpoint"]) == 0
    record = load_record(renamed)
    assert record["chosen"] and record["kept_step"] == load_record(through)["kept_step"]
    assert_same_weights_of_export(renamed, through)
    assert "damaged" not in caplog.text and "The best checkpoint" not in caplog.text


def test_the_best_one_that_is_gone_is_said(command, half, tmp_path, caplog, monkeypatch):
    shutil.copytree(half / "checkpoint-2", half / "checkpoint-3")
    state = json.loads((half / "checkpoint-3" / "trainer_state.json").read_text())
    (half / "checkpoint-3" / "trainer_state.json").write_text(json.dumps(state | {"best_global_step": 1}))
    write_manifest(half / "checkpoint-3")
    low = {"spearman": -100.0, "alignment": 0.0, "uniformity": 0.0}
    monkeypatch.setattr(pairs, "score_pairs", lambda *_: low)
    assert run_unsup.main([*command(), "--resume_from_checkpoint"]) == 0
    assert f"{half / 'checkpoint-1'}, the best checkpoint so far, no longer exists" in caplog.text
    assert load_record(half)["chosen"] is False


def test_resume_without_callback_states(command, half):
    path = half / "checkpoint-2" / "trainer_state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"stateful_callbacks": None}))
    write_manifest(half / "checkpoint-2")
    assert run_unsup.main([*command(), "--resume_from_checkpoint"]) == 0


def test_changed_twice_has_three_parts(command, half, monkeypatch):
    better = iter([10.0, 20.0])  # so that the last step is kept
    scores = {"alignment": 0.0, "uniformity": 0.0}
    monkeypatch.setattr(pairs, "score_pairs", lambda *_: scores | {"spearman": next(better)})
    for step, temperature in ((4, 0.1), (6, 0.2)):
        options = command(max_steps=step, temperature=temperature)
        assert run_unsup.main([*options, "--resume_from_checkpoint", "--resume_with_changes"]) == 0
    record = load_record(half)
    told = [(part["until_step"], part["options"]["temperature"]) for part in record["earlier"]]
    assert told == [(2, 0.05), (4, 0.1)] and record["options"]["temperature"] == 0.2
    assert all(part["environment"]["device"].startswith("cpu") for part in record["earlier"])
    again = ", then 2 steps with other options"
    assert f"2 steps of InforMin-CL{again}{again} on 96 sentences" in (half / "README.md").read_text()


@pytest.mark.parametrize("flag", [[], ["--resume_with_changes"]], ids=["", "with-changes"])
def test_another_encoder_is_another_run(command, half, others, capsys, flag):
    """Its weights would not be read, only its settings and its tokenizer."""
    error = fails(capsys, [*command(model_name=others["model_name"]), "--resume_from_checkpoint", *flag])
    assert "checkpoint-2 began with the encoder tiny-bert, and the weights of other-bert differ from it" in error


def test_the_number_of_processes_is_part_of_a_run(command, half, capsys):
    record = json.loads((half / "checkpoint-2" / "training.json").read_text())
    record["options"]["processes"] = 2
    (half / "checkpoint-2" / "training.json").write_text(json.dumps(record))
    write_manifest(half / "checkpoint-2")
    assert "processes 2, now 1." in fails(capsys, [*command(), "--resume_from_checkpoint"])


def test_changes_on_purpose_are_told_as_parts(command, half, through, others, capsys):
    """And have the effect that their options say: the optimizer's moments are kept, its rates are the new ones."""
    changes = dict(
        objective="simcse", learning_rate=5e-3, eval_pairs=others["eval_pairs"], weight_decay=0.1, logging_steps=1
    )
    changes |= dict(max_steps=6, lr_scheduler_type="constant", train_file=others["train_file"])
    assert run_unsup.main([*command(**changes), "--resume_from_checkpoint", "--resume_with_changes"]) == 0
    assert "Load the model:" in capsys.readouterr().out
    record, began = load_record(half), load_record(through)
    (part,) = record["earlier"]
    assert part["until_step"] == 2 and part["options"] == began["options"] and part["data"] == began["data"]
    assert part["development"] == "pairs.tsv" and [entry["step"] for entry in part["history"]] == [0, 2]
    assert record["options"]["objective"] == "simcse" and record["steps"] == 6
    assert record["development"] == "others.tsv" and [entry["step"] for entry in record["history"]] == [4, 6]
    assert record["kept_step"] in (4, 6), "the best of those scored on the same pairs"
    assert record["data"]["sources"] == ["others.txt"]
    card = (half / "README.md").read_text()
    assert "2 steps of InforMin-CL on 96 sentences (sentences.txt), then " in card
    assert f"then {record['kept_step'] - 2} steps of unsupervised SimCSE on 96 sentences (others.txt)." in card
    assert "The options changed during training." in card and "| setting | steps 1 to 2 | steps 3 to 6 |" in card
    assert "| objective | informin | simcse |" in card and "| learning_rate | 0.001 | 0.005 |" in card
    assert "- simcse" in card and "{gao-etal-2021-simcse" in card and "{chen-etal-2022-information" in card
    groups = torch.load(half / "checkpoint-6" / "optimizer.pt", weights_only=True)["param_groups"]
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    log = json.loads((half / "checkpoint-6" / "trainer_state.json").read_text())["log_history"]
    assert [entry["learning_rate"] for entry in log if entry["step"] > 2 and "loss" in entry] == [5e-3] * 4
    assert all(("terms/reconstruction" in entry) == (entry["step"] <= 2) for entry in log if "loss" in entry)
    # The parts stay when the run is gone on with as it is now.
    shutil.rmtree(half / "checkpoint-6")
    assert run_unsup.main([*command(**changes), "--resume_from_checkpoint"]) == 0
    assert load_record(half)["earlier"] == record["earlier"]


def test_with_the_flag_and_nothing_changed_the_weights_are_the_same(command, half, through):
    assert run_unsup.main([*command(), "--resume_from_checkpoint", "--resume_with_changes"]) == 0
    assert_same_weights(half / "checkpoint-4", through / "checkpoint-4")
    assert load_record(half)["earlier"] == []


def test_another_seed_on_purpose_draws_anew(command, half, tmp_path):
    """Two runs that go on with two other seeds differ, and each can be repeated."""
    for name, seed in (("a", 7), ("b", 8), ("c", 7)):
        shutil.copytree(half, tmp_path / name)
        arguments = command(output_dir=tmp_path / name, seed=seed, data_seed=1)  # so that dropout alone differs
        assert run_unsup.main([*arguments, "--resume_from_checkpoint", "--resume_with_changes"]) == 0
        assert [part["seed"] for part in load_record(tmp_path / name)["earlier"]] == [42]
    last = {name: tmp_path / name / "checkpoint-4" for name in "abc"}
    assert_same_weights(last["a"], last["c"])
    with pytest.raises(AssertionError):
        assert_same_weights(last["a"], last["b"])


@pytest.mark.parametrize(
    "changes, flags",
    [(dict(max_steps=1), []), (dict(max_steps=None, num_train_epochs=0.1), ["--resume_with_changes"])],
    ids=["steps", "epochs"],
)
def test_nothing_is_left_to_do(command, half, capsys, changes, flags):
    error = fails(capsys, [*command(**changes), "--resume_from_checkpoint", *flags])
    assert f"{half / 'checkpoint-2'} is already past the end of training: 2 steps are done, and " in error
    assert not (half / "model.safetensors").exists()


@pytest.mark.parametrize("word", ["true", "True", "yes", "last"])
def test_true_means_last(command, half, through, word):
    assert run_unsup.main([*command(), "--resume_from_checkpoint", word]) == 0
    assert_same_weights(half / "checkpoint-4", through / "checkpoint-4")


def test_false_means_a_new_run(command, tmp_path):
    assert run_unsup.main([*command(max_steps=1), "--resume_from_checkpoint=false"]) == 0
    assert load_record(tmp_path / "run")["steps"] == 1


@pytest.mark.parametrize(
    "name, harm",
    [
        *[("optimizer.pt", "deleted"), ("scheduler.pt", "garbage"), ("rng_state.pth", "deleted")],
        *[("model.safetensors", "cut"), ("config.json", "garbage"), ("trainer_state.json", "garbage")],
    ],
)
def test_a_checkpoint_with_a_damaged_file_is_passed_over(command, half, through, caplog, name, harm):
    shutil.copytree(through / "checkpoint-4", half / "checkpoint-4")
    path = half / "checkpoint-4" / name
    if harm == "deleted":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-3] if harm == "cut" else b"[]")
    assert run_unsup.main([*command(), "--resume_from_checkpoint"]) == 0
    assert (
        f"{half / 'checkpoint-4'} is damaged ({name} " in caplog.text
        and "Resuming from checkpoint-2 instead." in caplog.text
    )
    assert_same_weights(half / "checkpoint-4", through / "checkpoint-4")
    assert damage(half / "checkpoint-4") is None and (half / "damaged-checkpoint-4").is_dir()


def replace_real_saves(monkeypatch, replacement) -> None:
    """Replace torch.save, except in the dry run of a save before the first step."""
    save = torch.save

    def chosen(value, path, *rest):
        return (save if "informin-save-" in str(path) else replacement)(value, path, *rest)

    monkeypatch.setattr(torch, "save", chosen)


def test_a_damaged_best_checkpoint_is_said_and_not_claimed(command, half, caplog, monkeypatch):
    """The best one, of step 2, is damaged while the run goes on."""
    low = {"spearman": -100.0, "alignment": 0.0, "uniformity": 0.0}
    monkeypatch.setattr(pairs, "score_pairs", lambda *_: low)
    save = torch.save

    def saving(*arguments):
        (half / "checkpoint-2" / "model.safetensors").write_bytes(b"x")
        save(*arguments)

    replace_real_saves(monkeypatch, saving)
    assert run_unsup.main([*command(), "--resume_from_checkpoint"]) == 0
    assert "checkpoint-2, is damaged (model.safetensors has 1 byte" in caplog.text
    record = load_record(half)
    assert record["kept_step"] == 4 and record["chosen"] is False
    assert_same_weights_of_export(half, half / "checkpoint-4")


def assert_same_weights_of_export(folder: Path, checkpoint: Path) -> None:
    from tests.test_run import embedding_weights

    assert embedding_weights(folder) == embedding_weights(checkpoint)


# A disk that is full


@pytest.mark.parametrize("at", [2, 4], ids=["first", "second"])
@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        RuntimeError("unexpected pos 8405568 vs 8405456"),
        SafetensorError("I/O error: No space left on device (os error 28)"),
    ],
    ids=["os", "quota", "torch", "safetensors"],
)
def test_a_full_disk(command, through, tmp_path, capsys, monkeypatch, at, error):
    run, save, free = tmp_path / "run", torch.save, shutil.disk_usage(tmp_path)._replace(free=3 * 2**10)

    def full(value, path):
        if f"checkpoint-{at}" in str(path):
            Path(path).write_bytes(b"half")
            raise error
        save(value, path)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", full)
        patch.setattr(shutil, "disk_usage", lambda path: free)
        message = fails(capsys, command(), code=1)
    assert f"checkpoint-{at} could not be saved: the disk is full. The checkpoint needs 0." in message
    assert (
        "The incomplete checkpoint was deleted." in message and f"{run} has 0.00 MiB" in message and "\n" not in message
    )
    if at == 2:
        assert "There is no earlier checkpoint." in message and not run.exists()
        return
    assert (
        f"then run the same command with --resume_from_checkpoint last to resume from {run / 'checkpoint-2'}."
        in message
    )
    assert sorted(path.name for path in run.iterdir()) == ["checkpoint-2"]
    assert run_unsup.main([*command(), "--resume_from_checkpoint"]) == 0
    assert_same_weights(run / "checkpoint-4", through / "checkpoint-4")


@pytest.mark.parametrize(
    "error", [OSError(errno.EFBIG, "File too large"), RuntimeError("unexpected pos 64 vs 0")], ids=["os", "torch"]
)
def test_a_checkpoint_that_cannot_be_written_where_there_is_room(command, tmp_path, capsys, monkeypatch, error):
    """As under a limit for the size of files."""

    def broken(value, path):
        Path(path).write_bytes(b"half")
        raise error

    replace_real_saves(monkeypatch, broken)
    message = fails(capsys, command(), code=1)
    assert (
        f"could not be saved: {error}. The incomplete checkpoint was deleted. There is no earlier checkpoint."
        in message
    )
    assert not (tmp_path / "run").exists()


def test_other_failures_of_a_save_stay_what_they_are(command, monkeypatch):
    def broken(*_):
        raise RuntimeError("a bug")

    replace_real_saves(monkeypatch, broken)
    with pytest.raises(RuntimeError, match=r"^a bug$"):
        run_unsup.main(command())


def test_a_disk_that_fills_while_the_model_is_written(command, tmp_path, capsys, monkeypatch):
    """The checkpoints are whole, and say how to go on; nothing of the export is there."""

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("informin.publishing.export.save_file", full)
    message = fails(capsys, command(), code=1)
    run = tmp_path / "run"
    assert f"The model could not be written to {run}: [Errno 28] No space left on device." in message
    assert message.endswith(
        f"{run / 'checkpoint-4'} is complete. Run: python -m informin export {run / 'checkpoint-4'} NEW_FOLDER"
    )
    assert sorted(path.name for path in run.iterdir()) == ["checkpoint-2", "checkpoint-4"]


# One run a folder


def test_a_folder_in_use_is_refused_with_its_holder(command, tmp_path, capsys):
    holding = (
        "import sys, time; from informin.training.lock import only_run_in\n"
        "with only_run_in(sys.argv[1]): print('held', flush=True); time.sleep(600)"
    )
    holder = forked.python(holding, [tmp_path / "run"])
    assert holder.stdout.readline() == "held\n"
    error = fails(capsys, command())
    assert f"run is in use by another run (process {holder.pid} on " in error and ", since 2" in error
    holder.kill()  # nothing is tidied up
    holder.wait()
    assert (tmp_path / "run" / ".lock").exists()
    assert run_unsup.main(command(max_steps=1)) == 0, "the lock of a dead process is taken over"
    assert not list((tmp_path / "run").glob(".lock*"))


def test_a_folder_that_cannot_be_made(command, tmp_path, capsys):
    (tmp_path / "file").touch()
    error = fails(capsys, command(output_dir=tmp_path / "file" / "run"))
    assert f"--output_dir {tmp_path / 'file' / 'run'} cannot be written: " in error and "Not a directory" in error


def test_a_lock_that_cannot_be_opened_is_left_alone(tmp_path, monkeypatch):
    """Another user's, for instance."""
    (tmp_path / ".lock").touch()
    (tmp_path / ".lock-holder").write_text("somebody")

    def denied(self, *_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(FileLock, "acquire", denied)
    with raises_usage(option="output_dir", found="cannot be written"):
        with only_run_in(tmp_path):
            pass
    assert {path.name for path in tmp_path.iterdir()} == {".lock", ".lock-holder"}


def test_only_what_was_made_for_the_lock_is_removed(tmp_path):
    (tmp_path / "there").mkdir()
    for folder in (tmp_path / "there", tmp_path / "a" / "b"):
        with only_run_in(folder):
            assert (folder / ".lock").exists()
    with only_run_in(tmp_path / "kept" / "run"):
        (tmp_path / "kept" / "run" / "model").touch()
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == [
        *("kept", "kept/run", "kept/run/model", "there")
    ]


class Sender(TrainerCallback):
    """Lets a signal come to `stop` in an event of a step."""

    def __init__(self, stop: StopOnSignal, event: str, at: int):
        self.times = 0

        def send(args, state, control, **kwargs):
            if state.global_step == at:
                stop.received, self.times = signal.SIGTERM, self.times + 1

        setattr(self, event, send)


@pytest.fixture
def run(bert, pairs_file, tmp_path):
    """Runs of six steps over three epochs, evaluated and saved after every second."""

    def start(name: str, strategy: str = "steps", callbacks=(), resume=None) -> InforMinTrainer:
        steps = {"steps": dict(eval_steps=2, save_steps=2, max_steps=6), "epoch": dict(num_train_epochs=3)}[strategy]
        how = dict(eval_strategy=strategy, save_strategy=strategy, seed=1, objective="simcse", learning_rate=1e-3)
        how |= dict(per_device_train_batch_size=8, per_device_eval_batch_size=8, report_to=[], bf16=False) | steps
        args = InforMinTrainingArguments(str(tmp_path / name), use_cpu=True, **how)
        trainer = InforMinTrainer(str(bert), args, make_sentences(16), str(pairs_file), callbacks=list(callbacks))
        trainer.train(resume)
        return trainer

    return start


def assert_same_run(one: InforMinTrainer, other: InforMinTrainer) -> None:
    assert scores(one) == scores(other)
    assert one.state.best_metric == other.state.best_metric
    assert Path(one.state.best_model_checkpoint).name == Path(other.state.best_model_checkpoint).name
    for name, weight in other.model.state_dict().items():
        assert weight.equal(one.model.state_dict()[name]), name


@pytest.mark.parametrize("strategy, at", [("steps", 4), ("steps", 6), ("epoch", 4), ("epoch", 6)])
def test_a_signal_in_an_evaluation_is_heeded_there(run, tmp_path, at, strategy):
    """In the first of its batches; the run that goes on evaluates first and is the run that was not interrupted."""
    stop = StopOnSignal()
    sender = Sender(stop, "on_prediction_step", at)
    whole = run("whole", strategy)
    left = run("run", strategy, [sender, stop])
    assert sender.times == 1 and left.state.global_step == at
    assert "eval_spearman" not in left.state.log_history[-1] and complete_checkpoints(tmp_path / "run")
    assert_same_run(run("run", strategy, resume="last"), whole)


def test_a_signal_in_the_evaluation_that_is_owed_waits_for_its_end(run):
    whole, stop, again = run("whole"), StopOnSignal(), StopOnSignal()
    run("run", callbacks=[Sender(stop, "on_prediction_step", 4), stop])
    left = run("run", callbacks=[Sender(again, "on_train_begin", 4), again], resume="last")
    assert left.state.global_step == 5 and 4 in scores(left)
    assert_same_run(run("run", resume="last"), whole)


@pytest.mark.parametrize("event", ["on_evaluate", "on_save"])
def test_a_signal_at_the_end_of_an_evaluation_or_in_a_save_takes_no_further_step(run, event):
    stop = StopOnSignal()
    left = run("run", callbacks=[Sender(stop, event, 2), stop])
    assert left.state.global_step == 2 and 2 in scores(left)
    assert_same_run(run("run", resume="last"), run("whole"))


def scores(trainer) -> dict[int, float]:
    return {entry["step"]: entry["eval_spearman"] for entry in trainer.state.log_history if "eval_spearman" in entry}


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(train_sampling_strategy="group_by_length"), "`train_sampling_strategy` group_by_length"),
        (dict(accelerator_config={"use_seedable_sampler": False}), "`use_seedable_sampler` false"),
        (dict(accelerator_config={"dispatch_batches": True}), "`dispatch_batches` true"),
    ],
    ids=["lengths", "unseeded", "dispatched"],
)
def test_an_order_that_cannot_be_drawn_again_is_refused_in_a_later_epoch(bert, arguments, options, message):
    options |= dict(eval_strategy="no", save_steps=1, save_total_limit=9, max_steps=4)
    sentences = make_sentences(33)  # epochs of 2 steps
    first = InforMinTrainer(str(bert), arguments(**options), sentences)
    first.train()
    folder = Path(first.args.output_dir)
    whole = {name: weight.clone() for name, weight in first.model.state_dict().items()}
    shutil.rmtree(folder / "checkpoint-4")
    with raises_usage(option="resume_from_checkpoint", found=message) as error:
        InforMinTrainer(str(bert), arguments(**options), sentences).train("last")
    assert "checkpoint-3 cannot be continued with the same order" in error.value.found
    shutil.rmtree(folder / "checkpoint-3")
    again = InforMinTrainer(str(bert), arguments(**options), sentences)
    again.train("last")
    assert all(weight.equal(whole[name]) for name, weight in again.model.state_dict().items())


def test_batches_out_of_order_are_refused(bert, arguments):
    options = dict(eval_strategy="no", save_steps=1, max_steps=1)
    InforMinTrainer(str(bert), arguments(**options), make_sentences(33)).train()
    options |= dict(max_steps=1, dataloader_num_workers=2, dataloader_in_order=False)
    with raises_usage(option="resume_from_checkpoint", found="because of `dataloader_in_order` false"):
        InforMinTrainer(str(bert), arguments(**options), make_sentences(33)).train("last")


def stream_of(folder: Path, sentences: list[str]):
    (folder / "stream.txt").write_text("\n".join(sentences) + "\n")
    return load_sentences(DataArguments(train_file=[str(folder / "stream.txt")], streaming=True), seed=1)


def test_a_stream_without_a_known_place_is_refused_after_its_first_epoch(bert, arguments, tmp_path):
    """Checkpoints of older versions."""
    options = dict(eval_strategy="no", save_steps=1, save_total_limit=9, max_steps=4)
    stream = stream_of(tmp_path, make_sentences(33))
    InforMinTrainer(str(bert), arguments(**options), stream).train()
    shutil.rmtree(tmp_path / "run" / "checkpoint-4")
    for step in (3, 2):
        state = tmp_path / "run" / f"checkpoint-{step}" / "trainer_state.json"
        values = json.loads(state.read_text())
        del values["stateful_callbacks"]["EpochStart"]
        state.write_text(json.dumps(values))
        write_manifest(state.parent)
    with raises_usage(option="resume_from_checkpoint", found="did not record the position in the stream"):
        InforMinTrainer(str(bert), arguments(**options), stream).train("last")
    shutil.rmtree(tmp_path / "run" / "checkpoint-3")
    InforMinTrainer(str(bert), arguments(**options), stream).train("last")


def test_batches_at_the_end_of_a_stream_that_fill_no_step_are_left_out(bert, arguments, tmp_path):
    """Their gradients would be added to the next epoch's first step, and a checkpoint between does not have them."""
    options = dict(eval_strategy="no", save_strategy="epoch", gradient_accumulation_steps=2, max_steps=2)
    stream = stream_of(tmp_path, make_sentences(49))  # 3 batches: a step, and half of one
    whole = InforMinTrainer(str(bert), arguments(**options), stream)
    whole.train()
    shutil.rmtree(tmp_path / "run" / "checkpoint-2")
    again = InforMinTrainer(str(bert), arguments(**options), stream)
    again.train("last")
    weights = again.model.state_dict()
    assert all(weight.equal(weights[name]) for name, weight in whole.model.state_dict().items())


GUIDED = dict(replay_weight=0.5, replay_size=4, distillation_weight=0.5, eval_strategy="no", save_steps=2, max_steps=4)


@pytest.fixture
def guided(bert, pairs_file, tmp_path):
    """Makes the trainer of a run that reads a guide and general sentences, each a copy that a test may change."""
    shutil.copytree(bert, tmp_path / "guide-model")
    export = dict(pooling="mean")
    config = json.loads((tmp_path / "guide-model" / "config.json").read_text())
    (tmp_path / "guide-model" / "config.json").write_text(json.dumps(config | {"informin": export}))
    (tmp_path / "general.txt").write_text("\n".join(make_sentences(20, seed=4)) + "\n")

    def build(**changes) -> InforMinTrainer:
        options = GUIDED | dict(FOUR_STEPS, save_strategy="steps", output_dir=str(tmp_path / "run")) | GUIDED
        options |= dict(guide_model=str(tmp_path / "guide-model"), replay_file=str(tmp_path / "general.txt"))
        args = InforMinTrainingArguments(**options | changes)
        return InforMinTrainer(str(bert), args, make_sentences(64))

    return build


def other_weights(folder: Path) -> None:
    weights = load_file(folder / "guide-model" / "model.safetensors")
    weights = {name: x + 0.1 * torch.randn_like(x) for name, x in weights.items()}
    save_file(weights, folder / "guide-model" / "model.safetensors", {"format": "pt"})


def other_tokens(folder: Path) -> None:
    path = folder / "guide-model" / "tokenizer.json"
    path.write_text(path.read_text().replace('"dog"', '"hound"'))


def other_replay(folder: Path) -> None:
    (folder / "general.txt").write_text("\n".join(make_sentences(20, seed=5)) + "\n")


def edited_cache(folder: Path) -> None:
    """With a header that fits: what is merely damaged is computed again."""
    for path in (folder / "run" / "guide").glob("*.npy"):
        embeddings = np.load(path)
        np.save(path, embeddings[::-1])
        header = json.loads(path.with_suffix(".json").read_text())
        path.with_suffix(".json").write_text(json.dumps(header | {"sha256": sha256(path)}))


@pytest.mark.parametrize(
    "change, message",
    [
        (other_weights, r"embeddings of the guide \w+\.npy \([\d,]+ bytes, SHA-256 \w{8}\)"),
        (other_tokens, r"embeddings of the guide \w+\.npy"),
        (edited_cache, r"embeddings of the guide \w+\.npy"),
        (other_replay, r"general sentences general\.txt \([\d,]+ bytes, SHA-256 \w{8}\), now general\.txt"),
    ],
)
def test_another_input_of_the_same_name_is_refused(guided, tmp_path, change, message):
    guided().train()
    shutil.rmtree(tmp_path / "run" / "checkpoint-4")
    change(tmp_path)
    with raises_usage(option="resume_from_checkpoint") as info:
        guided().train("last")
    assert re.search(f"belongs to another run: .*{message}", info.value.found)
    again = guided(resume_with_changes=True)
    again.train("last")
    (part,) = again.record()["earlier"]
    assert part["until_step"] == 2 and part["inputs"] != again.record()["inputs"]


def test_the_same_inputs_by_other_names_are_the_same(guided, tmp_path):
    guided().train()
    shutil.rmtree(tmp_path / "run" / "checkpoint-4")
    shutil.move(tmp_path / "run" / "guide", tmp_path / "cache")
    again = guided(guide_cache=str(tmp_path / "cache"))
    again.train("last")
    assert again.record()["earlier"] == []


def test_a_record_without_fingerprints_is_said(guided, tmp_path, caplog):
    guided().train()
    shutil.rmtree(tmp_path / "run" / "checkpoint-4")
    record = tmp_path / "run" / "checkpoint-2" / "training.json"
    values = json.loads(record.read_text())
    assert sorted(values.pop("inputs")) == ["embeddings of the guide", "general sentences", "pooling"]
    record.write_text(json.dumps(values))
    write_manifest(record.parent)
    caplog.set_level("INFO", "informin")
    guided().train("last")
    assert "checkpoint-2 was saved by a version that recorded no fingerprints. Changes to" in caplog.text


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(sentences=32), r"files of the stream stream\.txt \([\d,]+ bytes, SHA-256 \w{8}\), now stream\.txt"),
        (dict(max_train_samples=20), "max_train_samples none, now 20"),
        (dict(dataloader_num_workers=2), "dataloader_num_workers 0, now 2"),
        (dict(streaming=False), "streaming True, now none"),
    ],
    ids=["edited", "fewer", "workers", "not-streamed"],
)
def test_another_stream_of_the_same_name_is_refused(bert, arguments, tmp_path, changes, message):
    options = dict(eval_strategy="no", save_steps=1, max_steps=1)
    InforMinTrainer(str(bert), arguments(**options), stream_of(tmp_path, make_sentences(33))).train()
    changes, given = dict(changes), dict(streaming=True)
    (tmp_path / "stream.txt").write_text("\n".join(make_sentences(changes.pop("sentences", 33))) + "\n")
    given |= {name: changes.pop(name) for name in ("streaming",) if name in changes}
    sentences = load_sentences(DataArguments(train_file=[str(tmp_path / "stream.txt")], **given), seed=1)
    with raises_usage(option="resume_from_checkpoint") as info:
        InforMinTrainer(str(bert), arguments(**options, **changes), sentences).train("last")
    assert re.search(f"belongs to another run: .*{message}", info.value.found)


def test_other_tokens_are_refused(bert, arguments):
    options = dict(eval_strategy="no", save_steps=1, max_steps=1)
    tokenizer = tokenizer_of(bert)

    def trainer(seed: int) -> InforMinTrainer:
        rows = [{"input_ids": tokenizer(sentence)["input_ids"]} for sentence in make_sentences(32, seed)]
        return InforMinTrainer(str(bert), arguments(**options), Dataset.from_list(rows), processing_class=tokenizer)

    trainer(0).train()
    with raises_usage(option="resume_from_checkpoint", found="belongs to another run: tokens '"):
        trainer(1).train("last")
