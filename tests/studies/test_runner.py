"""`informin study`: running, resuming and interrupting the runs of a study."""

import fcntl
import json
import math
import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest
import yaml

from informin.cli import study as study_command
from informin.files import write_manifest
from informin.studies import runner as study_runner
from informin.studies.plan import read_study
from informin.studies.runner import Progress, Runner, duration
from informin.studies.runs import runs_of
from tests import forked
from tests.models.any_encoder.helpers import change
from tests.senteval_data import write_senteval
from tests.studies.helpers import FRACTION, calls, done, run_json


def test_complete_study(write, stub, tmp_path, capsys):
    """Runs are ordered by seed, files and report are complete, and no run is repeated by any study."""
    output = tmp_path / "out"
    arguments = ["--output", str(output)]
    assert study_command.main([str(write(tasks=["sts"])), *arguments]) == 0
    both = ("train", "eval")
    assert done(stub) == [(script, t, seed) for seed in (1, 2) for t in (0.05, 0.1) for script in both]
    out = capsys.readouterr().out
    assert "4 runs, 0 of them already finished\n[1/4] cold seed 1 starts\n[1/4] cold seed 1: STS average 61.50 (" in out
    assert "); 3 left, about " in out and "[4/4] warm seed 2: STS average 63.00 (" in out
    finished = json.loads(run_json(output)[0].read_text())
    assert finished["seed"] == 1 and finished["dev"]["spearman"] == 71.5 and finished["averages"]["sts"] == 61.5
    assert finished["dev"] == {"name": "STS-B dev", "spearman": 71.5, "alignment": 0.25, "uniformity": -2.5}
    assert finished["scores"]["STS12"] == 61.5 and finished["seconds"]["training"] > 0 < finished["seconds"]["scoring"]
    assert finished["options"]["model_name"] == "tiny-bert" and str(tmp_path) not in json.dumps(finished)
    assert list(output.glob("runs/*/*/model/checkpoint-*")) == []
    assert {path.name for path in (output / "tiny").iterdir()} == {
        *("table.md", "summary.json", "plot.png", "plot.svg", "plot.csv", "report.html")
    }

    before = done(stub)
    assert study_command.main([str(write(tasks=["sts"])), *arguments]) == 0
    assert done(stub) == before and "4 runs, 4 of them already finished" in capsys.readouterr().out
    study = write("other", recipes={"same": {"temperature": "5e-2"}, "new": {"temperature": 0.2}}, baseline=None)
    assert study_command.main([str(study), *arguments, "--seeds", "1", "--jobs", "2"]) == 0
    assert done(stub)[len(before) :] == [("train", 0.2, 1)]
    assert "2 runs, 1 of them already finished\n[2/2] new seed 1 starts\n" in capsys.readouterr().out


@pytest.fixture
def titles(tmp_path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "titles.tsv").write_text("text\tlabel\na\tx\nb\tx\nc\ty\n")
    return tmp_path / "data" / "titles.tsv"


def test_samples_and_encoder_before_training(write, stub, tmp_path, titles, bert, capsys):
    """The encoder is scored once, before the runs. All measures are saved, and the first two are compared."""
    path, output = write(labels=["elsewhere/titles.tsv"], tasks=["MR"], before=True), tmp_path / "out"
    arguments = [str(path), "--output", str(output), "--labels", str(titles)]
    assert study_command.main(arguments) == 0
    first, *others = calls(stub)
    assert first["script"] == "eval" and len(others) == 8
    asked = ["--model_name", str(bert), "--tasks", "MR", "--labels", str(titles), "--device", "cpu"]
    assert first["argv"][: len(asked)] == asked
    out = capsys.readouterr().out
    assert "5 runs, 0 of them already finished\n[1/5] before training is scored\n[1/5] before training: MR 60.0" in out
    assert "titles V-measure 50.00, titles 1-NN 70.00 (" in out
    table = out[out.index("tiny: mean") :].split("\n\n")[0].splitlines()
    assert table[1].split("  ")[-1].strip() == "uniformity" and "titles V-measure" in table[1]
    assert table[2].split() == ["before", "training", "-", "60.00", "50.00", "70.00", "-", "-"]
    assert table[3].startswith("cold") and "52.00 ± 0.71 (2)  72.00 ± 0.71 (2)" in table[3]
    assert "titles 1-NN: difference, paired by seed" in out
    (before,) = output.glob("runs/before-training-*/once/run.json")
    kept = json.loads(before.read_text())
    assert (kept["seed"], kept["training"], kept["data"]) == (None, None, None)
    assert kept["options"]["model_name"] == "tiny-bert" and kept["base_model"]["name"] == "tiny-bert"
    finished = json.loads(run_json(output)[0].read_text())["samples"]["titles"]
    assert finished["measures"].keys() >= {"v_measure", "v_measure_sd", "nearest_10", "few_shot"} and finished["data"]
    summary = json.loads((output / "tiny" / "summary.json").read_text())
    assert summary["samples"] == {"titles": ["labels", "titles.tsv"]} and summary["missing"] == []
    assert summary["before"]["before training"]["titles/nearest_neighbor"] == 70

    assert study_command.main(arguments) == 0 and len(calls(stub)) == 9
    assert "5 runs, 5 of them already finished" in capsys.readouterr().out


def test_added_tasks_are_scored_without_training(write, stub, tmp_path, capsys):
    arguments = ["--output", str(tmp_path / "out"), "--seeds", "1"]
    assert study_command.main([str(write(tasks=["STS12"])), *arguments]) == 0
    capsys.readouterr()
    assert study_command.main([str(write(tasks=["STS12", "MR"])), *arguments]) == 0
    assert [call["script"] for call in calls(stub)] == ["train", "eval"] * 2 + ["eval"] * 2
    assert (
        "[2/2] warm seed 1 is already trained; scoring\n[2/2] warm seed 1: STS12 62.00, MR 62.00 ("
        in capsys.readouterr().out
    )
    asked = calls(stub)[-1]["argv"]
    assert asked[asked.index("--tasks") :][:4] == ["--tasks", "MR", "--device", "cpu"]
    assert json.loads(run_json(tmp_path / "out")[0].read_text())["scores"].keys() == {"STS12", "MR"}


def test_a_failed_run_does_not_stop_the_others(write, stub, tmp_path, capsys):
    (stub / "behavior.json").write_text(json.dumps({"fail": [["train", 0.05, 1], ["eval", 0.1, 2]]}))
    arguments = [str(write(tasks=["MR"])), "--output", str(tmp_path / "out")]
    assert study_command.main(arguments) == 1
    out = capsys.readouterr().out
    assert "[1/4] cold seed 1 failed with exit code 1; 3 left\n    " in out
    assert "    the stub begins\n    error: as requested\n    (last lines of " in out
    assert "Missing: cold seed 1 failed with exit code 1. Run the same command again to retry." in out
    assert "Missing: warm seed 2" in out and out.count("Missing") == 2
    assert len(run_json(tmp_path / "out")) == 2
    assert "warm - cold, MR: without seeds that are missing or undefined in one of the two: 1, 2." in out
    (stub / "behavior.json").write_text("{}")
    before = len(calls(stub))
    assert study_command.main(arguments) == 0
    assert done(stub)[before:] == [("train", 0.05, 1), ("eval", 0.05, 1), ("eval", 0.1, 2)]


def test_nohup_is_respected():
    """A study continues after its terminal is closed."""
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Runner([], False, 1, []) as runner:
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) == runner._forward
    finally:
        signal.signal(signal.SIGHUP, previous)


def test_interrupted_run_resumes_or_restarts(write, stub, tmp_path, capsys):
    """Resumes from a complete checkpoint; deletes checkpoints without the optimizer, and models."""
    path, output = write(), tmp_path / "out"
    assert study_command.main([str(path), "--output", str(output), "--seeds", "1"]) == 0
    cold, warm = (run for run in runs_of(read_study(path), output) if run.seed == 1)
    for run in (cold, warm):
        (run.folder / "run.json").unlink()
        checkpoint = run.model / "checkpoint-2"
        checkpoint.mkdir()
        (run.model / "modules.json").unlink()
        (run.model / "training.json").rename(checkpoint / "training.json")
        if run is cold:  # the other one is as with `save_only_model`
            (checkpoint / "scheduler.pt").touch()
        write_manifest(checkpoint)
    (warm.model / "model.safetensors").write_text("half")
    (warm.folder / "results.json").write_text("of other weights")
    before = len(calls(stub))
    assert study_command.main([str(path), "--output", str(output), "--seeds", "1"]) == 0
    first, second = (call["argv"] for call in calls(stub)[before:])
    assert first[-2:] == ["--resume_from_checkpoint", "last"] and "--resume_from_checkpoint" not in second
    assert "cold seed 1 resumes from its checkpoint" in capsys.readouterr().out
    assert not (warm.model / "model.safetensors").exists() and not warm.results.exists()


def test_undefined_score_is_a_result(write, stub, tmp_path, capsys):
    """The run is finished. The score is null in run.json and a dash in the table, with a note."""
    (stub / "behavior.json").write_text(json.dumps({"undefined": [["MR", 1], ["MR", 2], ["STS12", 2]]}))
    arguments = [str(write(tasks=["STS12", "MR"])), "--output", str(tmp_path / "out")]
    assert study_command.main(arguments) == 0
    out = capsys.readouterr().out
    assert "[1/4] cold seed 1: STS12 61.50, MR undefined (" in out and "Missing" not in out
    assert "cold seed 2: STS12, MR undefined." in out and "warm seed 1: MR undefined." in out
    assert "warm - cold, STS12: without seeds that are missing or undefined in one of the two: 2." in out
    assert "| cold | 72.00 ± 0.71 (2) | 61.50 (1) |  - |" in (tmp_path / "out" / "tiny" / "table.md").read_text()
    assert [json.loads(path.read_text())["scores"]["MR"] for path in run_json(tmp_path / "out")] == 4 * [None]
    before = done(stub)
    assert study_command.main(arguments) == 0
    assert done(stub) == before and "4 runs, 4 of them already finished" in capsys.readouterr().out


def test_task_data_is_checked_before_training(write, stub, tmp_path, capsys, monkeypatch):
    path, arguments = write(tasks=["MR"]), ["--output", str(tmp_path / "out")]
    monkeypatch.setenv("SENTEVAL_DATA", str(tmp_path / "nowhere"))
    assert study_command.main([str(path), *arguments]) == 2
    assert "does not exist; expected SentEval's data/downstream" in capsys.readouterr().err
    assert calls(stub) == [] and not (tmp_path / "out").exists()
    data = write_senteval(tmp_path / "own", FRACTION)
    arguments += ["--set", f"senteval_dir={data}"]
    assert study_command.main([str(path), *arguments]) == 0
    (data / "MR").rename(data / "elsewhere")
    assert study_command.main([str(path), *arguments]) == 0, "all runs are finished, so the data is not needed"


def test_checkpoints_are_kept_on_demand(write, stub, tmp_path):
    assert study_command.main([str(write()), "--output", str(tmp_path), "--seeds", "1", "--keep_checkpoints"]) == 0
    assert len(list(tmp_path.glob("runs/*/*/model/checkpoint-4"))) == 2


def test_run_locked_by_another_process_is_skipped(write, stub, tmp_path, capsys):
    path = write()
    run = runs_of(read_study(path), tmp_path)[0]
    run.folder.mkdir(parents=True)
    with open(run.folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert study_command.main([str(path), "--output", str(tmp_path), "--seeds", "1"]) == 1
    out = capsys.readouterr().out
    assert "[1/2] cold seed 1 is being run by another process; 1 left\n" in out
    assert "Missing: cold seed 1 is being run by another process. Run the same command again to retry." in out
    assert done(stub) == [("train", 0.1, 1)]
    assert study_command.main([str(path), "--output", str(tmp_path), "--seeds", "1"]) == 0


def test_run_finished_by_another_process_is_not_repeated(write, stub, tmp_path):
    study = read_study(write())
    run = runs_of(study, tmp_path)[0]
    runner = Runner(study.tasks, False, 1, [])
    assert runner.do(run, 0) == "finished"
    run.model.rename(run.folder / "deleted")  # only run.json shows that the run is finished
    assert runner.do(run, 0) == "finished" and len(calls(stub)) == 1


@pytest.mark.parametrize("jobs", [1, 2])
def test_signal_reaches_each_subprocess_once_and_no_run_starts(write, stub, tmp_path, capsys, jobs):
    (stub / "behavior.json").write_text(json.dumps({"wait": [["train", 1]]}))

    def interrupt():
        while len(calls(stub)) < jobs:
            time.sleep(0.01)
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGTERM)

    previous = signal.getsignal(signal.SIGTERM)
    threading.Thread(target=interrupt, daemon=True).start()
    assert study_command.main([str(write()), "--output", str(tmp_path / "out"), "--jobs", str(jobs)]) == 143
    assert "Interrupted. Finished runs are kept. Run the same command again to resume." in capsys.readouterr().err
    assert json.loads((stub / "signals.json").read_text()) == [signal.SIGTERM]
    assert all(call["leads_session"] for call in calls(stub)), "otherwise Ctrl-C in a terminal would reach it twice"
    assert len(calls(stub)) == jobs and run_json(tmp_path / "out") == []
    assert signal.getsignal(signal.SIGTERM) == previous


def test_interrupted_run_resumes_with_its_number_of_threads(write, stub, tmp_path, monkeypatch):
    """The parts of a batch, and so the dropout masks, depend on it; `--jobs` may be another one now."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    path, output = write(), tmp_path / "out"
    assert study_command.main([str(path), "--output", str(output), "--seeds", "1"]) == 0
    run = next(run for run in runs_of(read_study(path), output) if run.seed == 1)
    (run.folder / "run.json").unlink()
    (run.model / "checkpoint-2").mkdir()
    for name in ("modules.json", "training.json"):
        (run.model / name).rename(run.model / "checkpoint-2" / name)
    change(run.model / "checkpoint-2", "training.json", environment=dict(device="cpu", threads=3))
    (run.model / "checkpoint-2" / "scheduler.pt").touch()
    write_manifest(run.model / "checkpoint-2")
    assert study_command.main([str(path), "--output", str(output), "--seeds", "1", "--jobs", "2"]) == 0
    again = next(call for call in calls(stub) if "--resume_from_checkpoint" in call["argv"])
    assert again["threads"] == "3"


@pytest.mark.parametrize("gpus", [[], ["3", "5"]], ids=["cpu", "gpus"])
def test_jobs_share_the_machine(write, stub, tmp_path, monkeypatch, gpus):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    monkeypatch.setattr(os, "cpu_count", lambda: 9)
    monkeypatch.setattr("informin.cli.study.visible_gpus", lambda: gpus)
    assert study_command.main([str(write()), "--output", str(tmp_path), *([] if gpus else ["--jobs", "2"])]) == 0
    made = calls(stub)
    assert len(made) == 4
    if gpus:
        assert {call["gpu"] for call in made} == {"3", "5"} and {call["threads"] for call in made} == {None}
    else:
        assert {call["threads"] for call in made} == {"4"}


def test_visible_gpus(monkeypatch):
    monkeypatch.setattr(study_runner.torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert study_runner.visible_gpus() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    assert study_runner.visible_gpus() == ["4", "7"]


def test_duration_format():
    assert [duration(seconds) for seconds in (0.4, 59.6, 192, 7500)] == ["0 s", "1 min 0 s", "3 min 12 s", "2 h 5 min"]


def test_remaining_time(write, stub, tmp_path):
    """Estimated from finished runs of the same setting, otherwise of all settings, divided by the jobs in use."""
    study = read_study(write(recipes={name: {"temperature": i + 1} for i, name in enumerate("abc")}, baseline="a"))
    runs = runs_of(study, tmp_path)
    runner = Runner(study.tasks, False, 1, [])

    def finish(i: int, training: float) -> None:
        assert runner.do(runs[i], 0) == "finished"
        file = runs[i].folder / "run.json"
        seconds = {"training": training, "scoring": 10}
        file.write_text(json.dumps(json.loads(file.read_text()) | {"seconds": seconds}))

    assert Progress(study, runs, runner, 2)._rest() == "6 left"
    finish(0, 90)  # a seed 1
    finish(1, 290)  # b seed 1; left: c seed 1, then a, b, c of seed 2
    progress = Progress(study, runs, runner, 2)
    assert progress._rest() == f"4 left, about {duration((200 + 100 + 300 + 200) / 2)}"
    finish(3, 190)
    progress._end("", runs[3], "finished", 200.0)
    assert progress._rest() == f"3 left, about {duration((200 + 300 + 200) / 2)}"
    progress._end("", runs[5], "was stopped", 1.0)
    progress._end("", runs[2], "was stopped", 1.0)
    assert progress._rest() == f"1 left, about {duration(300)}"
    finish(4, 290)
    progress._end("", runs[4], "finished", 300.0)
    assert progress._rest() == "0 left"


def test_a_run_without_a_folder_fails_alone(write, stub, tmp_path, capsys):
    path, output = write(), tmp_path / "out"
    first = runs_of(read_study(path), output)[0]
    first.folder.parent.mkdir(parents=True)
    first.folder.touch()
    assert study_command.main([str(path), "--output", str(output)]) == 1
    assert f"{first.name} failed: " in capsys.readouterr().out and len(done(stub)) > 1


def test_killed_study_resumes(write, tmp_path):
    """SIGKILL during training with the real scripts: the subprocess keeps the lock, and training resumes."""
    data = write_senteval(tmp_path / "senteval")
    base = yaml.safe_load(write().read_text())["base"]
    base |= dict(per_device_train_batch_size=16, max_steps=60, eval_steps=10, senteval_dir=str(data))
    path = write(base=base, recipes={"simcse": {"objective": "simcse"}}, baseline=None, seeds=[3], tasks=["STS-B"])
    (run,) = runs_of(read_study(path), tmp_path / "out")
    arguments = [str(path), "--output", str(tmp_path / "out")]
    parent = forked.module("informin", ["study", *arguments], forked.CHILDREN_ARE_FORKS, log=tmp_path / "study.txt")
    end = time.monotonic() + 90
    while not (run.model / "checkpoint-10" / "manifest.json").exists():
        assert parent.poll() is None and time.monotonic() < end, (run.folder / "log.txt").read_text()
        time.sleep(0.01)
    (child,) = psutil.Process(parent.pid).children()
    child.suspend()
    parent.kill()
    parent.wait()
    with open(run.folder / "lock", "w") as lock:
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        child.kill()
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the subprocess dies
    assert not (run.model / "training.json").exists()

    again = forked.run(forked.module("informin", ["study", *arguments], forked.CHILDREN_ARE_FORKS))
    assert again.returncode == 0, again.stdout + again.stderr
    assert "[1/1] simcse seed 3 resumes from its checkpoint\n[1/1] simcse seed 3: STS-B " in again.stdout
    finished = json.loads((run.folder / "run.json").read_text())
    assert finished["steps"] == 60 and finished["seed"] == 3 and finished["training"]["objective"] == "simcse"
    assert f"{finished['scores']['STS-B']:.2f} (1)" in again.stdout and finished["averages"]["sts"] is None
    assert finished["dev"]["name"] == "pairs.tsv" and math.isfinite(finished["dev"]["uniformity"])
    log = (run.folder / "log.txt").read_text()
    assert log.count("$ ") == 3 and log.count("--resume_from_checkpoint last") == 1
