"""run_unsup.py: complete runs, resuming, interrupting, several processes, and exit codes."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel

from informin.cli import train
from informin.fast.precision import weights_sha256
from informin.model.open import load_model
from tests.conftest import ROOT
from tests.support import forked
from tests.support.forked import Forked

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "TOKENIZERS_PARALLELISM": "false"}


# A run that waits for its end before step 9, however long the test takes to send it.
PAUSE = """
import signal
from transformers import TrainerCallback
from transformers.trainer import DEFAULT_CALLBACKS

class Pause(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 9:
            signal.pause()

DEFAULT_CALLBACKS.append(Pause)
"""


def start(arguments: list[str], log: Path, before: str | None = None) -> Forked:
    return forked.script("run_unsup.py", arguments, before, env=ENVIRONMENT, log=log)


def wait_for_file(path: Path, process: Forked, log: Path) -> None:
    end = time.monotonic() + forked.LIMIT
    while not path.exists():
        assert process.poll() is None and time.monotonic() < end, log.read_text()
        time.sleep(0.005)


def assert_same_weights(first: Path, second: Path) -> None:
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (first, second))
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


def history(folder: Path) -> list[dict]:
    return json.loads((folder / "trainer_state.json").read_text())["log_history"]


@pytest.mark.parametrize(
    "name, options", [("bert", dict(objective="simcse")), ("roberta", dict(objective="informin", mlm_weight=0.1))]
)
def test_complete_run(command, request, tmp_path, capsys, name, options):
    """Trains, selects the best checkpoint, exports, and prints two lines of code that load the model."""
    assert train.main(command(model_name=request.getfixturevalue(name), **options)) == 0
    out, folder = capsys.readouterr().out, tmp_path / "run"
    scores = {
        entry["step"]: entry["eval_spearman"] for entry in history(folder / "checkpoint-4") if "eval_spearman" in entry
    }
    best = max((step for step in scores if step), key=scores.get)
    assert f"{scores[0]:.2f} before, {scores[best]:.2f} after (step {best})" in out
    loaded: dict = {}
    exec("\n".join(line.strip() for line in out[out.index("Load the model:") :].splitlines()[1:3]), loaded)
    assert type(loaded["model"]).__name__ == "SentenceTransformer"
    exported, checkpoint = (load_model(path, device="cpu") for path in (folder, folder / f"checkpoint-{best}"))
    assert weights_sha256(exported) == weights_sha256(checkpoint)
    assert json.loads((folder / "training.json").read_text())["options"]["objective"] == options["objective"]
    assert "loss over the steps" in (folder / "report.html").read_text()


def test_weights_depend_only_on_the_seed(command, tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        train.main(command(output_dir=tmp_path / name, seed=seed))
    assert_same_weights(tmp_path / "a" / "checkpoint-4", tmp_path / "b" / "checkpoint-4")
    with pytest.raises(AssertionError):
        assert_same_weights(tmp_path / "a" / "checkpoint-4", tmp_path / "c" / "checkpoint-4")


def test_killed_and_resumed_run_has_the_same_weights(command, tmp_path):
    """SIGKILL at any point after a checkpoint, in a run of several epochs."""
    epochs = dict(max_steps=None, num_train_epochs=3, per_device_train_batch_size=24)  # of 4 steps
    options = epochs | dict(eval_steps=6, mlm_weight=0.3, save_total_limit=None)
    killed, through, log = tmp_path / "killed", tmp_path / "through", tmp_path / "log.txt"
    arguments = command(output_dir=killed, **options)
    process = start(arguments, log, before=PAUSE)
    wait_for_file(killed / "checkpoint-6" / "manifest.json", process, log)
    process.kill()
    process.wait()
    assert not (killed / "checkpoint-12").exists(), "the run had ended before the kill"
    assert not (killed / "model.safetensors").exists()
    assert train.main([*arguments, "--resume_from_checkpoint"]) == 0
    assert train.main(command(output_dir=through, **options)) == 0
    assert_same_weights(killed / "checkpoint-12", through / "checkpoint-12")
    assert_same_weights(killed, through)
    scores = [
        [
            (entry["step"], entry["eval_spearman"])
            for entry in history(folder / "checkpoint-12")
            if "eval_spearman" in entry
        ]
        for folder in (killed, through)
    ]
    assert scores[0] == scores[1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_saves_a_checkpoint_and_prints_how_to_resume(command, tmp_path, number):
    log = tmp_path / "log.txt"
    process = start(command(max_steps=4000, eval_steps=10), log)
    wait_for_file(tmp_path / "run" / "checkpoint-10" / "manifest.json", process, log)
    process.send_signal(number)
    assert process.wait(forked.LIMIT) == 128 + number
    text = log.read_text()
    step = int(text.split("Interrupted at step ")[1].split(";")[0])
    assert (tmp_path / "run" / f"checkpoint-{step}" / "trainer_state.json").is_file()
    assert "--resume_from_checkpoint" in text and "Traceback" not in text
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_two_processes(command, tmp_path):
    """They divide the evaluation, whose scores equal those of one process with the same weights."""
    arguments = command(per_device_train_batch_size=8, mlm_weight=0.1)
    group = forked.group(
        "from informin.cli import train; import sys; sys.exit(train.main(sys.argv[1:]))", [arguments] * 2, ENVIRONMENT
    )
    done = [forked.run(process) for process in group]
    assert [each.returncode for each in done] == [0, 0], done[0].stderr + done[1].stderr
    assert done[0].stdout.count("Load the model:") == 1 and done[1].stdout == ""
    assert AutoModel.from_pretrained(tmp_path / "run").config.model_type == "bert"
    train.main(command(output_dir=tmp_path / "one", mlm_weight=0.1))
    before = [history(tmp_path / name / "checkpoint-4")[0] for name in ("run", "one")]
    for score in ("eval_spearman", "eval_alignment", "eval_uniformity"):
        assert before[0][score] == pytest.approx(before[1][score], rel=1e-5)


def test_exploding_loss_exits_with_1(command, capsys):
    assert train.main(command(learning_rate=1e30, max_grad_norm=0, max_steps=20)) == 1
    assert "The loss is nan at step" in capsys.readouterr().err


def test_exit_code_of_the_script(command):
    run = forked.run(forked.script("run_unsup.py", command(train_file="nowhere.txt"), env=ENVIRONMENT))
    assert run.returncode == 2 and "Traceback" not in run.stderr
    assert "error: --train_file" in run.stderr and "nowhere.txt" in run.stderr
