"""Check that a run that is killed repeatedly ends with bit-equal weights, and that signals leave no files behind.

    python -m tools.kill_runs [--kills 20] [--seed 1]

Trains a tiny BERT with MLM and a queue, with a checkpoint every 3 steps. Half of the SIGKILLs arrive at a random moment
after the first line of output, half while a checkpoint is being written.

Then sends every signal at every place outside of training, and checks exit code, last line, leftover files, and the
result when the program runs again. `--kills 0` runs only this part.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import load_file

from informin.files import MANIFEST
from informin.training.checkpoints import complete_checkpoints
from tests import forked
from tests.conftest import ROOT, make_sentences, save_bert, save_pairs

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
OPTIONS = dict(per_device_train_batch_size=16, max_steps=900, eval_steps=3, logging_steps=3, learning_rate=1e-3)
OPTIONS |= dict(objective="simcse", queue_size=32, mlm_weight=0.1, bf16="false", use_cpu="true")


def start(folder: Path, name: str, *more: str) -> subprocess.Popen:
    paths = dict(model_name="bert", train_file="s.txt", eval_pairs="pairs.tsv", output_dir=name)
    arguments = [f"--{option}={value}" for option, value in (OPTIONS | paths).items()]
    command = [sys.executable, "-u", str(ROOT / "run_unsup.py"), *arguments, *more]
    return subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def within_a_save(run: Path) -> bool:
    return any(not (path / MANIFEST).exists() for path in run.glob("checkpoint-*"))


def kill_one(process: subprocess.Popen, run: Path, source: random.Random) -> str:
    """Kill a run at a random moment, and return whether it was saving."""
    process.stdout.readline()  # the first line: incomplete files have been set aside
    end = time.monotonic() + source.uniform(0, 4)
    saving = source.random() < 0.5
    while process.poll() is None and time.monotonic() < end + 60 * saving:
        if saving and time.monotonic() > end and within_a_save(run):
            break
        time.sleep(0.0005)
    process.kill()
    process.wait()
    return "within a save" if within_a_save(run) else "between saves"


# Program that pauses at the given call (1 for the first) of a function in a module.
PAUSED = """
import importlib, sys, time
from informin import program
command, module, name, call = sys.argv[1:5]
del sys.argv[1:5]
main = importlib.import_module(f"informin.cli.{command}").main
work, calls = getattr(importlib.import_module(module), name), []
def pause(*args, **kwargs):
    calls.append(name)
    if len(calls) < int(call):
        return work(*args, **kwargs)
    print("here", flush=True)
    time.sleep(600)
setattr(importlib.import_module(module), name, pause)
program.run(main)
"""
# By the description in the last line of output: arguments of PAUSED, and whether temporary output is open. The
# tokenizer is also saved before training, where a signal waits for the first step.
PLACES = {
    "guide embedding": ("train", "informin.guide.cache", "normalize", "1", True),
    "the scoring of labels": ("eval", "informin.evaluation.labels", "clustering", "1", False),  # by k-means
    "export": ("train", "informin.models.native_files", "save_tokenizer", "2", True),
    "the drift report": ("train", "informin.training.drift", "measure_drift", "1", False),
}
NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
TRAINING = dict(model_name="bert", train_file="s.txt", output_dir="out", eval_strategy="no", objective="simcse")
TRAINING |= dict(
    max_steps=2, per_device_train_batch_size=16, view="neighbor", view_neighbors=1, bf16="false", use_cpu="true"
)
SCORING = dict(model_name="bert", labels="labels.tsv", pooler="mean", output="out/scores.json")


def save_inputs(folder: Path) -> None:
    """Write the inputs of the programs in PLACES."""
    save_bert(folder / "bert")
    sentences = make_sentences(96)
    (folder / "s.txt").write_text("\n".join(sentences) + "\n")
    rows = [f"{sentence}\t{'even' if i % 2 else 'odd'}" for i, sentence in enumerate(sentences)]
    (folder / "labels.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    (folder / "tmp").mkdir()


def arguments_of(command: str) -> list[str]:
    options = SCORING if command == "eval" else TRAINING
    return [f"--{option}={value}" for option, value in options.items()]


def where(folder: Path) -> dict:
    """Return the directory and environment of a program."""
    return dict(cwd=folder, env=ENVIRONMENT | {"PYTHONPATH": str(ROOT), "TMPDIR": str(folder / "tmp")})


def begin_paused(folder: Path, place: str) -> forked.Forked:
    """Start a program and return it when it pauses at a place."""
    process = forked.python(PAUSED, [*PLACES[place][:4], *arguments_of(PLACES[place][0])], **where(folder))
    while (line := process.stdout.readline()) != "here\n":
        if not line:
            raise RuntimeError(process.stderr.read())
    return process


def leftovers(folder: Path) -> list[str]:
    """Return the names of temporary output, locks, and files in the system's temporary folder."""
    hidden = [path for path in folder.rglob(".*") if path.parent == folder / "out" or "informin" in path.name]
    return sorted(path.name for path in {*hidden, *folder.glob("tmp/*")})


def result(folder: Path, command: str) -> object:
    """Return the output of a program, for comparison."""
    if command == "eval":
        return json.loads((folder / "out" / "scores.json").read_text())["tasks"]["labels"]["measures"]
    return {name: tensor.tolist() for name, tensor in load_file(folder / "out" / "model.safetensors").items()}


def interrupt(folder: Path, place: str, number: int) -> tuple[int, str, list[str]]:
    """Stop a program at a place, and return its exit code, last line and leftover files."""
    process = begin_paused(folder, place)
    process.send_signal(number)
    said = process.communicate()[1]
    return process.returncode, said.splitlines()[-1] if said else "", leftovers(folder)


def rerun(folder: Path, command: str) -> tuple[object, list[str]]:
    """Run a program to its end, from the checkpoint if there is one; return its result and leftover files."""
    more = ["--resume_from_checkpoint=last"] if complete_checkpoints(folder / "out") else []
    done = forked.run(forked.module("informin", [command, *arguments_of(command), *more], **where(folder)))
    if done.returncode:
        raise RuntimeError(done.stderr)
    return result(folder, command), leftovers(folder)


def problems(place: str, number: int, through: object) -> list[str]:
    """Print a row for a signal at a place, and return what is wrong."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_inputs(folder)
        code, line, left = interrupt(folder, place, number)
        again, left_again = rerun(folder, PLACES[place][0])
    signal_name, killed = signal.Signals(number).name, number == signal.SIGKILL
    print(
        f"{signal_name:7}  {place:21}  exit code {code}, {len(left)} left, then {len(left_again)}  {line}", flush=True
    )
    by = "" if number == signal.SIGINT else f" by {signal_name}"
    held = {
        "exit code": code == (-number if killed else 128 + number),
        "last line": killed or line.startswith(f"Interrupted{by} during {place}. "),
        "leftover files": not left or killed,
        "temporary output after SIGKILL": not killed or PLACES[place][4] == any("informin" in name for name in left),
        "leftover files after the next run": not left_again,
        "other result": again == through,
    }
    return [what for what, fine in held.items() if not fine]


def undisturbed(command: str) -> object:
    """Return the result of a command without a signal."""
    with tempfile.TemporaryDirectory() as name:
        save_inputs(Path(name))
        return rerun(Path(name), command)[0]


def signals_outside_training() -> int:
    """Send every signal at every place. Return how many cases are wrong."""
    wrong, through = 0, {command: undisturbed(command) for command in {command for command, *_ in PLACES.values()}}
    for place, (command, *_) in PLACES.items():
        for number in NUMBERS:
            if found := problems(place, number, through[command]):
                wrong += 1
                print(f"         WRONG: {', '.join(found)}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    same = not args.kills or killed_repeatedly(args.kills, random.Random(args.seed))
    return 0 if signals_outside_training() == 0 and same else 1


def killed_repeatedly(kills: int, source: random.Random) -> bool:
    """Return whether a run that is killed repeatedly has the weights of an undisturbed run."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_bert(folder / "bert")
        (folder / "s.txt").write_text("\n".join(make_sentences(96)) + "\n")
        save_pairs(folder / "pairs.tsv")
        through = start(folder, "through")
        through.communicate()
        more = []
        for number in range(1, kills + 1):
            moment = kill_one(start(folder, "killed", *more), folder / "killed", source)
            complete = complete_checkpoints(folder / "killed")
            newest = complete[-1].name if complete else "none"
            print(f"kill {number:2}  {moment:14} newest complete checkpoint: {newest}", flush=True)
            more = ["--resume_from_checkpoint"] if complete else []
        last = start(folder, "killed", *more)
        last.communicate()
        print(f"exit codes: undisturbed {through.returncode}, after the last resume {last.returncode}")
        last_step = f"checkpoint-{OPTIONS['max_steps']}"
        same = all(
            equal(folder / "through" / part / "model.safetensors", folder / "killed" / part / "model.safetensors")
            for part in (last_step, ".")
        )
        print("the weights of the last checkpoint and of the export are", "equal, bit for bit" if same else "DIFFERENT")
        return same


def equal(first: Path, second: Path) -> bool:
    ours, theirs = load_file(first), load_file(second)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


if __name__ == "__main__":
    sys.exit(main())
