"""Measure speed and memory of training by objective, relative to simcse with the same sentences and precision.

    python -m experiments.benchmarks.objectives --model_name MODEL --train_file FILE

All objectives train in one process and take turns, step by step, so that other load on the machine affects neighboring
steps equally. The table shows the median time of a step and the median ratio to the neighboring step of simcse, without
the first `--skip` steps. Peak memory is measured in a separate process for each objective. The model must have a
language modeling head for objectives with MLM; it is also the generator of diffcse.
"""

import argparse
import os
import statistics
import tempfile
import time
import traceback
from pathlib import Path
from threading import Semaphore, Thread

import torch
from transformers import TrainerCallback

from experiments.benchmarks.report import in_process, report, spread
from experiments.benchmarks.throughput import MODULE, our_trainer

SETTINGS = {
    "simcse": ["objective=simcse"],
    "informin": ["objective=informin"],
    "informin, mlm": ["objective=informin", "mlm_weight=0.1"],
    "scd": ["objective=scd", "projection_head=none"],
    "simcse, ami": ["objective=simcse", "attention_mi_weight=2.5e-3"],
    "simcse, queue": ["objective=simcse", "queue_size=384"],
    "micse": ["objective=micse"],
    "ct": ["objective=ct", "projection_head=none"],
    "tsdae": ["objective=tsdae", "projection_head=none"],
    "isbert": ["objective=isbert", "projection_head=none"],
    "diffcse": ["objective=diffcse", "generator=MODEL"],
    "vascl": ["objective=vascl"],
    "mirrorbert": ["objective=mirrorbert", "projection_head=none"],
    "consert": ["objective=consert", "projection_head=none"],
}


class Turn(TrainerCallback):
    """Measures the seconds of each step, and waits after a step until the other trainers have taken one."""

    def __init__(self):
        self.may_go, self.seconds, self.next = Semaphore(0), [], self

    def on_train_begin(self, args, state, control, **kwargs):
        self.wait()

    def on_step_end(self, args, state, control, **kwargs):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.seconds.append(time.perf_counter() - self.start)
        self.next.may_go.release()
        self.wait()

    def wait(self) -> None:
        self.may_go.acquire()
        self.start = time.perf_counter()

    def train(self, trainer) -> None:
        try:
            trainer.train()
            self.next.may_go.release()
        except BaseException:
            traceback.print_exc()
            os._exit(1)  # the other trainers would wait forever


def seconds_of_steps(args: argparse.Namespace, chosen: dict[str, list[str]]) -> dict[str, list[float]]:
    """Return the seconds of the steps of each objective, measured in turns."""
    fixed = dict(pooler="cls", length=32, join=1, chunk_size=None, gpu=torch.cuda.is_available())
    one = dict(model_name=[args.model_name], train_file=[args.train_file], precision=[args.precision])
    turns = [Turn() for _ in chosen]
    for turn, following in zip(turns, [*turns[1:], turns[0]]):
        turn.next = following
    with tempfile.TemporaryDirectory() as folder:
        threads = []
        for name, turn in zip(chosen, turns):
            options = argparse.Namespace(**vars(args) | fixed | one | dict(options=chosen[name]))
            trainer = our_trainer(options, f"{folder}/{name}", None, turn)
            threads.append(Thread(target=turn.train, args=(trainer,)))
        for thread in threads:
            thread.start()
        turns[0].may_go.release()
        for thread in threads:
            thread.join()
    return {name: turn.seconds for name, turn in zip(chosen, turns)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name", required=True)
    parser.add_argument("--train_file", required=True)
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--skip", type=int, default=2, help="Steps before the measured ones.")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--objectives", nargs="+", choices=SETTINGS, default=list(SETTINGS), help="Default: all.")
    parser.add_argument("--name", default="objectives", help="Name of the files in benchmarks/results.")
    args = parser.parse_args()
    names = ["simcse", *(name for name in args.objectives if name != "simcse")]
    chosen = {name: [option.replace("MODEL", args.model_name) for option in SETTINGS[name]] for name in names}
    same = ["--model_name", args.model_name, "--train_file", args.train_file, "--precision", args.precision]
    same += ["--batch_size", str(args.batch_size), "--steps", str(args.steps), "--side", "here", "--options"]
    memory = {name: in_process(MODULE, *same, *chosen[name])["peak_gib"] for name in names}
    seconds = seconds_of_steps(args, chosen)
    rows = []
    for name in names:
        own, simcse = seconds[name][args.skip :], seconds["simcse"][args.skip :]
        ratios = [theirs / ours for theirs, ours in zip(simcse, own)]
        rows.append([name, f"{statistics.median(own):.3f}", spread(ratios), f"{memory[name]:.2f}"])
    title = f"Training of {Path(args.model_name).name} by objective, {args.precision}, batch size {args.batch_size}"
    columns = ("", "seconds a step", "speed of simcse (least to most)", "peak GiB")
    print(report(args.name, title, columns, rows, {"seconds": seconds, "peak_gib": memory}))


if __name__ == "__main__":
    main()
