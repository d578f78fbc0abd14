"""A run that is gone on with is the run that it says it is; nothing half-written stays."""

import errno
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import run_unsup
from informin.lock import only_run_in
from informin.manifest import damage, write_manifest
from informin.record import load_record
from tests.conftest import make_sentences, save_bert
from tests.test_run import ENVIRONMENT, assert_same_weights, fails


@pytest.fixture(scope="session")
def through(bert, sentences_file, pairs_file, tmp_path_factory) -> Path:
    """A run of four steps that was not interrupted, with checkpoints at 2 and 4."""
    folder = tmp_path_factory.mktemp("through") / "run"
    options = dict(model_name=bert, train_file=sentences_file, eval_pairs=pairs_file, output_dir=folder)
    options |= dict(per_device_train_batch_size=16, learning_rate=1e-3, max_steps=4, eval_steps=2, logging_steps=2)
    options |= dict(bf16="false", use_cpu="true", disable_tqdm="true")
    assert run_unsup.main([f"--{name}={value}" for name, value in options.items()]) == 0
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
    pairs = zip(make_sentences(8, seed=5), make_sentences(8, seed=6))
    rows = [f"{a}\t{b}\t{i}" for i, (a, b) in enumerate(pairs)]
    (tmp_path / "others.tsv").write_text("\n".join(["sentence1\tsentence2\tscore", *rows]) + "\n")
    return {
        "train_file": tmp_path / "others.txt",
        "eval_pairs": tmp_path / "others.tsv",
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
        (dict(train_file="others"), "sentences 96 of sentences.txt (SHA-256 "),
        (dict(max_train_samples=64), "now 64 of sentences.txt (SHA-256 "),
        (dict(eval_pairs="others"), "development pairs pairs.tsv, now others.tsv"),
        (dict(eval_pairs=None, eval_strategy="no"), "development pairs pairs.tsv, now none"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_another_run_is_refused_with_what_differs(command, half, others, capsys, changes, message):
    before = files(half)
    changes = {name: others[name] if value == "others" else value for name, value in changes.items()}
    error = fails(capsys, [*command(**changes), "--resume_from_checkpoint"])
    assert f"{half / 'checkpoint-2'} is of another run: " in error and message in error and "\n" not in error
    assert "--resume_with_changes" in error
    assert files(half) == before


@pytest.mark.parametrize("flag", [[], ["--resume_with_changes"]], ids=["", "with-changes"])
def test_another_encoder_is_another_run(command, half, others, capsys, flag):
    """Its weights would not be read, only its settings and its tokenizer."""
    error = fails(capsys, [*command(model_name=others["model_name"]), "--resume_from_checkpoint", *flag])
    assert "checkpoint-2 began with the encoder tiny-bert, and other-bert has other weights, which would" in error


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
    assert "Load it:" in capsys.readouterr().out
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
    assert "The settings were changed while it ran." in card and "| setting | steps 1 to 2 | steps 3 to 6 |" in card
    assert "| objective | informin | simcse |" in card and "| learning_rate | 0.001 | 0.005 |" in card
    assert "- simcse" in card and "{gao-etal-2021-simcse" in card and "{chen-etal-2022-information" in card
    log = json.loads((half / "checkpoint-6" / "trainer_state.json").read_text())["log_history"]
    assert [entry["learning_rate"] for entry in log if entry["step"] > 2 and "loss" in entry] == [5e-3] * 4
    assert all(("reconstruction" in entry) == (entry["step"] <= 2) for entry in log if "loss" in entry)
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
        arguments = command(output_dir=tmp_path / name, seed=seed)
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
    assert f"Nothing is left to do: {half / 'checkpoint-2'} has 2 steps behind it, and the run is to have " in error
    assert not (half / "model.safetensors").exists()


@pytest.mark.parametrize("word", ["true", "True", "yes", "last"])
def test_true_means_last(command, half, through, word):
    assert run_unsup.main([*command(), "--resume_from_checkpoint", word]) == 0
    assert_same_weights(half / "checkpoint-4", through / "checkpoint-4")


def test_false_means_a_new_run(command, tmp_path):
    assert run_unsup.main([*command(max_steps=1), "--resume_from_checkpoint=false"]) == 0


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
        f"{half / 'checkpoint-4'} is damaged ({name} " in caplog.text and "going on from checkpoint-2." in caplog.text
    )
    assert_same_weights(half / "checkpoint-4", through / "checkpoint-4")
    assert damage(half / "checkpoint-4") is None and (half / "damaged-checkpoint-4").is_dir()


def test_a_damaged_best_checkpoint_is_said_and_not_claimed(command, half, caplog, monkeypatch):
    """The best one, of step 2, is damaged while the run goes on."""
    import trainer_informin

    low = {"spearman": -100.0, "alignment": 0.0, "uniformity": 0.0}
    monkeypatch.setattr(trainer_informin, "score_pairs", lambda *_: low)
    save = torch.save

    def saving(*arguments):
        (half / "checkpoint-2" / "model.safetensors").write_bytes(b"x")
        save(*arguments)

    monkeypatch.setattr(torch, "save", saving)
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
    [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("unexpected pos 8405568 vs 8405456")],
    ids=["os", "torch"],
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
    assert (
        f"checkpoint-{at} could not be saved, and what was written of it is deleted; the disk is full: it " in message
    )
    assert "it needs 0." in message and f"{run} has 0.00 MiB" in message and "\n" not in message
    if at == 2:
        assert "There is no earlier one." in message and not run.exists()
        return
    assert f"{run / 'checkpoint-2'} is whole: make room, and go on" in message
    assert sorted(path.name for path in run.iterdir()) == ["checkpoint-2"]
    assert run_unsup.main([*command(), "--resume_from_checkpoint"]) == 0
    assert_same_weights(run / "checkpoint-4", through / "checkpoint-4")


def test_other_failures_of_a_save_stay_what_they_are(command, monkeypatch):
    def broken(*_):
        raise RuntimeError("a bug")

    monkeypatch.setattr(torch, "save", broken)
    with pytest.raises(RuntimeError, match=r"^a bug$"):
        run_unsup.main(command())


def test_a_disk_that_fills_while_the_model_is_written(command, tmp_path, capsys, monkeypatch):
    """The checkpoints are whole, and say how to go on; nothing of the export is there."""

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("informin.hub.save_file", full)
    message = fails(capsys, command(), code=1)
    run = tmp_path / "run"
    assert f"The model could not be written to {run}: [Errno 28] No space left on device." in message
    assert message.endswith(f"{run / 'checkpoint-4'} is whole: python run_export.py {run / 'checkpoint-4'} NEW_FOLDER")
    assert sorted(path.name for path in run.iterdir()) == ["checkpoint-2", "checkpoint-4"]


# One run a folder


def test_a_folder_in_use_is_refused_with_its_holder(command, tmp_path, capsys):
    holding = (
        "import sys, informin.lock as l\nwith l.only_run_in(sys.argv[1]): print('held', flush=True); sys.stdin.read()"
    )
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    holder = subprocess.Popen([sys.executable, "-c", holding, tmp_path / "run"], env=ENVIRONMENT, **pipes)
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
