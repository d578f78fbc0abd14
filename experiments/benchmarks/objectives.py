"""Measure speed and memory of training by objective, relative to simcse with the same sentences and precision.

    python -m experiments.benchmarks.objectives --model_name MODEL --train_file FILE

Each run is a separate process. A round runs all objectives one after the other, and ratios are computed within a round,
so that other load on the machine affects all equally. The table shows the median over rounds. The model must have a
language modeling head for objectives with MLM; it is also the generator of diffcse.
"""

import argparse
import statistics
from pathlib import Path

from experiments.benchmarks.report import in_process, report, spread
from experiments.benchmarks.throughput import MODULE

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name", required=True)
    parser.add_argument("--train_file", required=True)
    parser.add_argument("--batch_size", default="128")
    parser.add_argument("--steps", default="10")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    args = parser.parse_args()
    common = ["--model_name", args.model_name, "--train_file", args.train_file, "--batch_size", args.batch_size]
    common += ["--steps", args.steps, "--precision", args.precision, "--side", "here", "--options"]
    rounds = []
    for _ in range(args.rounds):
        rounds.append(
            {
                name: in_process(MODULE, *common, *(option.replace("MODEL", args.model_name) for option in options))
                for name, options in SETTINGS.items()
            }
        )
    rows = []
    for name in SETTINGS:
        speeds, memory = ([found[name][key] for found in rounds] for key in ("sentences_per_second", "peak_gib"))
        ratios = [speed / found["simcse"]["sentences_per_second"] for speed, found in zip(speeds, rounds)]
        median = (f"{statistics.median(values):.2f}" for values in (speeds, memory))
        rows.append([name, *median, spread(ratios)])
    title = f"Training of {Path(args.model_name).name} by objective, {args.precision}"
    columns = ("", "sentences/s", "peak GiB", "speed of simcse (least to most)")
    print(report("objectives", title, columns, rows, rounds))


if __name__ == "__main__":
    main()
