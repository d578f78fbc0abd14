"""Measure speed and memory of training by objective, relative to simcse with the same sentences and precision.

    python benchmarks/objectives.py --model_name MODEL --train_file FILE

Each run is a separate process. A round runs all objectives one after the other, and ratios are computed within a round,
so that other load on the machine affects all equally. The table shows the median over rounds. Speed is that of training
without evaluation and checkpoints. Memory is the peak of the process, or on a GPU the peak allocated by PyTorch.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = {
    "simcse": ["--objective=simcse"],
    "informin": ["--objective=informin"],
    "informin, mlm": ["--objective=informin", "--mlm_weight=0.1"],
    "scd": ["--objective=scd"],
    "simcse, ami": ["--objective=simcse", "--attention_mi_weight=2.5e-3"],
    "simcse, queue": ["--objective=simcse", "--queue_size=384"],
    "micse": ["--objective=micse"],
}


def measure(args: argparse.Namespace, options: list[str]) -> tuple[float, float]:
    """Return sentences per second and peak GiB of one run."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(ROOT / "run_unsup.py"), *options, f"--output_dir={folder}/run"]
        command += [f"--model_name={args.model_name}", f"--train_file={args.train_file}", f"--bf16={args.bf16}"]
        command += [f"--per_device_train_batch_size={args.batch_size}", f"--max_steps={args.steps}"]
        command += ["--eval_strategy=no", "--save_strategy=no", "--disable_tqdm=true"]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    numbers = {
        line[:15].strip(): line.split()[2] for line in out.splitlines() if line.startswith(("training sp", "peak m"))
    }
    return float(numbers["training speed"]), float(numbers["peak memory"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name", required=True, help="Must have a language-model head for objectives with MLM.")
    parser.add_argument("--train_file", required=True)
    parser.add_argument(
        "--only", nargs="+", choices=SETTINGS, default=list(SETTINGS), help="Objectives to run, besides simcse."
    )
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bf16", default="false")
    args = parser.parse_args()
    names = ["simcse", *(name for name in args.only if name != "simcse")]
    rounds = [{name: measure(args, SETTINGS[name]) for name in names} for _ in range(args.rounds)]
    print(f"{'':15} {'sentences/s':>12} {'of simcse':>10} {'peak GiB':>9} {'of simcse':>10}")
    for name in names:
        median = [statistics.median(measured[name][i] for measured in rounds) for i in (0, 1)]
        ratio = [statistics.median(measured[name][i] / measured["simcse"][i] for measured in rounds) for i in (0, 1)]
        print(f"{name:15} {median[0]:12.1f} {ratio[0]:10.2f} {median[1]:9.2f} {ratio[1]:10.2f}")


if __name__ == "__main__":
    main()
