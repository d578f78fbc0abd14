"""A run that is killed again and again ends with the weights of one that was not, bit for bit.

    python -m tests.kill_runs [--kills 20] [--seed 1]

A tiny BERT with MLM and a queue, a checkpoint every 3 steps. Half of the SIGKILLs come at a random moment after the
headline, half while a checkpoint is being written.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import load_file

from informin.files import MANIFEST
from informin.training.checkpoints import complete_checkpoints
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
    """Returns what it was at."""
    process.stdout.readline()  # the headline: what was left half-written is set aside by now
    end = time.monotonic() + source.uniform(0, 4)
    saving = source.random() < 0.5
    while process.poll() is None and time.monotonic() < end + 60 * saving:
        if saving and time.monotonic() > end and within_a_save(run):
            break
        time.sleep(0.0005)
    process.kill()
    process.wait()
    return "within a save" if within_a_save(run) else "between saves"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    source = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_bert(folder / "bert")
        (folder / "s.txt").write_text("\n".join(make_sentences(96)) + "\n")
        save_pairs(folder / "pairs.tsv")
        through = start(folder, "through")
        through.communicate()
        more = []
        for number in range(1, args.kills + 1):
            moment = kill_one(start(folder, "killed", *more), folder / "killed", source)
            whole = complete_checkpoints(folder / "killed")
            print(f"kill {number:2}  {moment:14} newest whole: {whole[-1].name if whole else 'none'}", flush=True)
            more = ["--resume_from_checkpoint"] if whole else []
        last = start(folder, "killed", *more)
        last.communicate()
        print(f"exit codes: through {through.returncode}, after the last resume {last.returncode}")
        last_step = f"checkpoint-{OPTIONS['max_steps']}"
        same = all(
            equal(folder / "through" / part / "model.safetensors", folder / "killed" / part / "model.safetensors")
            for part in (last_step, ".")
        )
        print("the weights of the last checkpoint and of the export are", "equal, bit for bit" if same else "DIFFERENT")
        return 0 if same else 1


def equal(first: Path, second: Path) -> bool:
    ours, theirs = load_file(first), load_file(second)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


if __name__ == "__main__":
    sys.exit(main())
