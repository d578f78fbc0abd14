"""run_unsup.py: complete runs, resuming, interrupting, and several processes."""

import json
import os
import select
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import launch_command_parser
from safetensors.torch import load_file
from transformers import AutoModel

import run_unsup
from informin.evaluation import pairs
from informin.models.open_model import load_model
from informin.training.checkpoints import complete_checkpoints, resumable_checkpoints, step_of
from tests import forked
from tests.conftest import ROOT, SHARED
from tests.forked import Forked

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "TOKENIZERS_PARALLELISM": "false"}


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def embedding_weights(folder: Path) -> str:
    """Return the checksum of encoder and projection head, independent of the names in the folder."""
    return load_model(str(folder)).weights_sha256()


def assert_same_weights(first: Path, second: Path) -> None:
    ours, theirs = weights(first), weights(second)
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


@pytest.mark.full_reports
@pytest.mark.parametrize(
    "options",
    [dict(objective="simcse"), dict(objective="informin", mlm_weight=0.1)],
    ids=["simcse", "informin-mlm"],
)
def test_complete_run(command, encoder, tmp_path, capsys, caplog, options):
    """Trains, selects the best checkpoint, exports, and prints two lines of code that load the model."""
    assert run_unsup.main(command(model_name=encoder, **options)) == 0
    out = capsys.readouterr().out
    folder = tmp_path / "run"
    state = json.loads((folder / "checkpoint-4" / "trainer_state.json").read_text())
    scores = {e["step"]: e["eval_spearman"] for e in state["log_history"] if "eval_spearman" in e}
    best = max((step for step in scores if step), key=scores.get)
    assert f"{scores[0]:.2f} before, {scores[best]:.2f} after (step {best})" in out
    assert "sentences/s" in out and "GiB" in out and "contrast" in out
    lines = out[out.index("Load the model:") :].splitlines()[1:3]
    loaded = {}
    exec("\n".join(line.strip() for line in lines), loaded)
    assert type(loaded["model"]).__name__.endswith("ForInforMinCL")
    assert embedding_weights(folder) == embedding_weights(folder / f"checkpoint-{best}")
    settings = json.loads((folder / "config.json").read_text())["informin"]
    assert settings["objective"] == options["objective"] and settings["pooling"] == "cls"


@pytest.mark.parametrize(("scores", "noted"), [([50.0, 40.0, 30.0], True), ([50.0, 51.0, 30.0], False)])
def test_note_if_no_checkpoint_beats_the_start(command, capsys, monkeypatch, scores, noted):
    coming = iter(scores)
    monkeypatch.setattr(
        pairs,
        "score_pairs",
        lambda encode, pairs: {"spearman": next(coming), "alignment": 0.0, "uniformity": 0.0},
    )
    run_unsup.main(command())
    out = capsys.readouterr().out
    assert f"50.00 before, {scores[1]:.2f} after (step 2)" in out
    assert ("the best score on pairs.tsv is the one before the first step" in out) == noted


def test_without_evaluation_the_last_step_is_exported(command, tmp_path, capsys, caplog):
    assert run_unsup.main(command(eval_strategy="no")) == 0
    assert "Spearman" not in capsys.readouterr().out
    assert "`eval_pairs` has no effect, because `eval_strategy` is no." in caplog.text
    assert embedding_weights(tmp_path / "run") == embedding_weights(tmp_path / "run" / "checkpoint-4")


def test_weights_depend_only_on_the_seed(command, tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        run_unsup.main(command(output_dir=tmp_path / name, seed=seed))
    assert_same_weights(tmp_path / "a" / "checkpoint-4", tmp_path / "b" / "checkpoint-4")
    with pytest.raises(AssertionError):
        assert_same_weights(tmp_path / "a" / "checkpoint-4", tmp_path / "c" / "checkpoint-4")


# Resuming


def start(arguments: list[str], log: Path, before: str | None = None) -> Forked:
    return forked.script("run_unsup.py", arguments, before, env=ENVIRONMENT, log=log)


def wait_until(condition, process: Forked, log: Path, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None and time.monotonic() < end, log.read_text()
        time.sleep(0.005)


@pytest.mark.parametrize("mlm_weight", [0, 0.3], ids=["plain", "mlm"])
def test_killed_and_resumed_run_has_the_same_weights(command, tmp_path, mlm_weight):
    """SIGKILL at any point after a checkpoint, in a run of several epochs."""
    options = dict(max_steps=None, num_train_epochs=10, eval_steps=5, mlm_weight=mlm_weight, save_total_limit=None)
    arguments = command(output_dir=tmp_path / "killed", **options)
    log = tmp_path / "log.txt"
    process = start(arguments, log)
    first = tmp_path / "killed" / "checkpoint-20" / "manifest.json"
    wait_until(first.exists, process, log)
    process.kill()
    process.wait()
    assert not (tmp_path / "killed" / "checkpoint-60").exists(), "the run had ended before the kill"
    assert not (tmp_path / "killed" / "model.safetensors").exists()
    assert run_unsup.main([*arguments, "--resume_from_checkpoint"]) == 0
    assert run_unsup.main(command(output_dir=tmp_path / "through", **options)) == 0
    assert_same_weights(tmp_path / "killed" / "checkpoint-60", tmp_path / "through" / "checkpoint-60")
    assert_same_weights(tmp_path / "killed", tmp_path / "through")
    states = [
        json.loads((tmp_path / name / "checkpoint-60" / "trainer_state.json").read_text())["log_history"]
        for name in ("killed", "through")
    ]
    scores = [[(e["step"], e["eval_spearman"]) for e in s if "eval_spearman" in e] for s in states]
    assert scores[0] == scores[1]


@pytest.mark.parametrize(
    "number, how",
    [
        (signal.SIGINT, "To resume, run the same command with --resume_from_checkpoint last"),
        (signal.SIGTERM, "It cannot be resumed, because --save_only_model leaves out the optimizer state."),
        (signal.SIGHUP, "To resume, run the same command with --resume_from_checkpoint last"),
    ],
    ids=["ctrl-c", "sigterm", "closed-terminal"],
)
def test_signal_saves_a_checkpoint_and_prints_how_to_resume(command, tmp_path, number, how):
    resumes = how.startswith("To resume")
    arguments = command(max_steps=4000, eval_steps=10, save_only_model=not resumes)
    log = tmp_path / "log.txt"
    process = start(arguments, log)
    wait_until((tmp_path / "run" / "checkpoint-10" / "manifest.json").exists, process, log)
    process.send_signal(number)
    assert process.wait(60) == 128 + number
    text = log.read_text()
    step = int(text.split("Interrupted at step ")[1].split(";")[0])
    assert (tmp_path / "run" / f"checkpoint-{step}" / "trainer_state.json").is_file()
    assert text.endswith(f"{how}\n")
    assert bool(resumable_checkpoints(tmp_path / "run")) == resumes
    assert not (tmp_path / "run" / "model.safetensors").exists()
    assert "Traceback" not in text


# Make this process the leader of a session with the terminal, like a command of a shell.
ON_TERMINAL = """
import fcntl, os, termios
os.setsid()
terminal = os.open("{terminal}", os.O_RDWR)
fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
for number in range(3):
    os.dup2(terminal, number)
os.close(terminal)
"""


def test_closed_terminal_ends_a_run_with_a_checkpoint(command, tmp_path):
    """Writing to a closed terminal fails, which must not end the run early."""
    terminal, other_end = os.openpty()
    process = start(
        command(max_steps=4000, eval_steps=10, disable_tqdm=None),
        tmp_path / "log.txt",
        before=ON_TERMINAL.format(terminal=os.ttyname(other_end)),
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "run" / "checkpoint-10" / "manifest.json").exists():
        assert process.poll() is None and time.monotonic() < deadline
        if select.select([terminal], [], [], 0.01)[0]:
            os.read(terminal, 65536)
    os.close(other_end)
    os.close(terminal)
    assert process.wait(60) == 128 + signal.SIGHUP
    newest = complete_checkpoints(tmp_path / "run")[-1]  # checkpoint-10 itself, if the signal came while it was saved
    assert step_of(newest) >= 10 and not list((tmp_path / "run").glob(".lock*"))


def test_nohup_is_respected(command, tmp_path):
    log, ignoring = tmp_path / "log.txt", "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)"
    process = start(command(max_steps=60, eval_steps=10), log, before=ignoring)
    wait_until((tmp_path / "run" / "checkpoint-10" / "manifest.json").exists, process, log)
    process.send_signal(signal.SIGHUP)
    assert process.wait(60) == 0 and (tmp_path / "run" / "model.safetensors").is_file()


def test_run_restarted_by_torchrun_resumes(command, tmp_path, caplog, monkeypatch):
    """torchrun restarts all processes with the same command if one died, here before and after a checkpoint."""
    run_unsup.main(command(output_dir=tmp_path / "through"))
    (tmp_path / "run" / "checkpoint-2").mkdir(parents=True)  # incomplete
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert run_unsup.main(command()) == 0
    assert "started again" not in caplog.text
    assert_same_weights(tmp_path / "run" / "checkpoint-4", tmp_path / "through" / "checkpoint-4")
    shutil.rmtree(tmp_path / "run" / "checkpoint-4")
    whole = (tmp_path / "run" / "checkpoint-2").rename(tmp_path / "checkpoint-2")
    model = (tmp_path / "run" / "model.safetensors").read_bytes()
    assert run_unsup.main(command()) == 2, "a folder with a model belongs to another run"
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == model
    whole.rename(tmp_path / "run" / "checkpoint-2")
    for left in (tmp_path / "run").iterdir():
        if left.name != "checkpoint-2":
            shutil.rmtree(left) if left.is_dir() else left.unlink()
    assert run_unsup.main(command()) == 0
    assert "A process died, and the run was restarted. It resumes from checkpoint-2." in caplog.text
    assert_same_weights(tmp_path / "run" / "checkpoint-4", tmp_path / "through" / "checkpoint-4")


def test_resume_ignores_an_incomplete_checkpoint(command, tmp_path):
    run_unsup.main(command())
    (tmp_path / "run" / "checkpoint-6").mkdir()
    assert run_unsup.main([*command(max_steps=6), "--resume_from_checkpoint", "last", "--resume_with_changes"]) == 0
    assert (tmp_path / "run" / "checkpoint-6" / "trainer_state.json").is_file()


# Several processes


def test_two_processes(command, tmp_path):
    """They divide the evaluation, whose scores equal those of one process with the same weights."""
    arguments = command(per_device_train_batch_size=8, mlm_weight=0.1)
    group = forked.group("import run_unsup, sys; sys.exit(run_unsup.main(sys.argv[1:]))", [arguments] * 2, ENVIRONMENT)
    done = [forked.run(process) for process in group]
    assert [each.returncode for each in done] == [0, 0], done[0].stderr + done[1].stderr
    out = done[0].stdout
    assert out.count("Load the model:") == 1 and "2 processes" in out and done[1].stdout == ""
    assert AutoModel.from_pretrained(tmp_path / "run").config.model_type == "bert"
    run_unsup.main(command(output_dir=tmp_path / "one", mlm_weight=0.1))
    before = []
    for name in ("run", "one"):
        history = json.loads((tmp_path / name / "checkpoint-4" / "trainer_state.json").read_text())["log_history"]
        before.append([history[0][f"eval_{score}"] for score in ("spearman", "alignment", "uniformity")])
    assert before[0] == pytest.approx(before[1], rel=1e-5)
    drifts = [json.loads((tmp_path / name / "training.json").read_text())["drift"] for name in ("run", "one")]
    assert [drift["sentences"] for drift in drifts] == [96, 96] and drifts[0]["new"]["neighbors_kept"] < 100
    assert drifts[0]["old"]["uniformity"] == pytest.approx(drifts[1]["old"]["uniformity"], rel=1e-5)


def test_ctrl_c_under_torchrun_prints_how_to_resume(command, tmp_path):
    """A terminal sends it to all processes. torchrun forwards it again, and ends with its own traceback."""
    arguments = command(per_device_train_batch_size=8, max_steps=4000, eval_steps=10)
    torchrun = f"{forked.CHILDREN_ARE_FORKS}\nimport os; os.setsid(); from torch.distributed.run import main; main()"
    log, words = tmp_path / "log.txt", ["--standalone", "--nproc_per_node=2", ROOT / "run_unsup.py", *arguments]
    process = forked.python(torchrun, words, env=ENVIRONMENT, log=log)
    wait_until((tmp_path / "run" / "checkpoint-10" / "manifest.json").exists, process, log)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(60) != 0
    wait_for_end = time.monotonic() + 10
    while "To resume, run" not in log.read_text() and time.monotonic() < wait_for_end:
        time.sleep(0.05)
    lines = [line for line in log.read_text().splitlines() if line]
    step = int(lines[-2].removeprefix("Interrupted at step ").split(";")[0])
    assert lines[-1] == "To resume, run the same command with --resume_from_checkpoint last"
    assert step_of(complete_checkpoints(tmp_path / "run")[-1]) == step


def test_accelerate_launch(command, tmp_path):
    config, arguments = ROOT / "configs" / "accelerate" / "cpu_2procs.yaml", command(per_device_train_batch_size=8)
    words = [f"--config_file={config}", ROOT / "run_unsup.py", *arguments]
    done = forked.run(forked.module("accelerate.commands.launch", words, forked.CHILDREN_ARE_FORKS, env=ENVIRONMENT))
    assert done.returncode == 0, done.stderr[-3000:]
    assert "2 processes, fp32" in done.stdout and (tmp_path / "run" / "model.safetensors").is_file()


@pytest.mark.parametrize("path", sorted((ROOT / "configs" / "accelerate").glob("*.yaml")), ids=lambda path: path.stem)
def test_accelerate_knows_every_key_of_our_configurations(path):
    """It would ignore unknown keys silently."""
    config = load_config_from_file(str(path))
    parts = [config.deepspeed_config, config.fsdp_config]
    known = {action.dest for action in launch_command_parser()._actions}
    named = {name for part in parts for name in part}
    assert named <= known and path.read_text(encoding="utf-8").startswith("# ")
    assert config.num_processes % config.num_machines == 0


# Real data


@pytest.mark.skipif(not SHARED.is_dir(), reason="the real data in ../shared does not exist")
def test_real_text_and_real_encoder(tmp_path, capsys):
    """64 Wikipedia sentences, a pretrained BERT with a language-model head, and STS-B dev."""
    code = run_unsup.main(
        [
            f"--model_name={SHARED / 'models' / 'bert-mini-wiki'}",
            f"--train_file={SHARED / 'data' / 'wiki' / 'wiki1m_for_simcse_head.txt'}",
            f"--senteval_dir={SHARED / 'data' / 'senteval'}",
            f"--output_dir={tmp_path / 'run'}",
            *"--max_train_samples=64 --per_device_train_batch_size=32 --mlm_weight=0.1 --eval_steps=2".split(),
            *"--logging_steps=1 --bf16=false --disable_tqdm=true --measure_drift=false".split(),
        ]
    )
    assert code == 0
    state = json.loads((tmp_path / "run" / "checkpoint-2" / "trainer_state.json").read_text())["log_history"]
    before = next(entry for entry in state if "eval_spearman" in entry)["eval_spearman"]
    assert before == pytest.approx(59.4, abs=0.05)  # as in the model card of the encoder
    mlm = next(entry for entry in state if "terms/mlm" in entry)["terms/mlm"]
    assert mlm < 5  # 3.27 after pretraining without dropout; random weights would have log 8192 = 9.0
