"""Measure training speed by number of processes, batch size and text length, and compare with sentence-transformers.

    python benchmarks/scaling.py --model_name MODEL --train_file FILE

Each cell is the median over rounds of benchmarks/throughput.py in separate processes. With several processes, the total
batch size stays the same, and each process has one thread. Longer texts are joined lines of the file, one per 32
tokens, with a smaller batch size, so that the number of tokens per step stays the same.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from report import report, spread

THEIRS, HERE = "sentence-transformers", "here"
BATCH, LENGTH = 128, 32


def settings(args: argparse.Namespace) -> dict[str, tuple[str, int, list[str]]]:
    """Return for each row the side to measure, the number of processes, and options of throughput.py."""
    found = {}
    for processes in args.processes:
        options = ["--batch_size", str(BATCH // processes), "--length", str(LENGTH)]
        found[f"{processes} process{'es' * (processes > 1)}, a thread each"] = (HERE, processes, options)
    for batch in args.batch_sizes:
        found[f"batch {batch}"] = (HERE, 0, ["--batch_size", str(batch), "--length", str(LENGTH)])
    for length in args.lengths:
        times = length // LENGTH
        options = ["--batch_size", str(BATCH // times), "--length", str(length), "--join", str(times)]
        for side in (THEIRS, HERE):
            found[f"{length} tokens, {side}"] = (side, 0, options)
    return found


def measure(args: argparse.Namespace, side: str, processes: int, options: list[str]) -> float:
    """Return sentences per second. 0 processes means one process with all threads."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    command = [sys.executable, *(launcher if processes > 1 else []), str(ROOT / "benchmarks" / "throughput.py")]
    command += ["--model_name", args.model_name, "--train_file", args.train_file, "--precision", args.precision]
    command += ["--steps", str(args.steps), "--side", side, *options]
    threads = {"OMP_NUM_THREADS": "1"} if processes else {}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | threads)
    line = done.stdout.rpartition("RESULT")[2]
    return json.JSONDecoder().raw_decode(line.strip())[0]["sentences_per_second"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name", required=True)
    parser.add_argument("--train_file", required=True)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--batch_sizes", type=int, nargs="+", default=[32, 64, 128, 256])
    parser.add_argument("--lengths", type=int, nargs="+", default=[32, 64, 128, 256])
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="bf16")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    found = {name: [] for name in settings(args)}
    for _ in range(args.rounds):
        for name, how in settings(args).items():
            found[name].append(measure(args, *how))
            print(name, f"{found[name][-1]:.1f}", flush=True)
    rows = []
    for name, speeds in found.items():
        other = found.get(name.removesuffix(HERE) + THEIRS, []) if name.endswith(HERE) else []
        ratios = spread([mine / its for mine, its in zip(speeds, other)]) if other else ""
        rows.append([name, f"{statistics.median(speeds):.1f}", ratios])
    title = f"Training {Path(args.model_name).name} in {args.precision}, {args.rounds} rounds of {args.steps} steps"
    columns = ("", "sentences/s", "ratio to sentence-transformers (least to most)")
    print(report("scaling", title, columns, rows, found))


if __name__ == "__main__":
    main()
