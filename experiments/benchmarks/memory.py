"""Measure peak memory of training by batch size, with and without gradient caching.

    python -m experiments.benchmarks.memory --model_name MODEL --train_file FILE

Each row is a run of SimCSE in a separate process. All runs use the same sentences, because libraries below PyTorch
cache data for every new shape, so that memory grows with the number of shapes. --whole_up_to skips batches that do not
fit.
"""

import argparse

from experiments.benchmarks.report import in_process, report
from experiments.benchmarks.throughput import MODULE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name", required=True)
    parser.add_argument("--train_file", required=True)
    parser.add_argument("--batch_sizes", type=int, nargs="+", default=[64, 128, 256, 512, 1024, 2048, 4096])
    parser.add_argument("--whole_up_to", type=int, default=1024)
    parser.add_argument("--chunk_size", type=int, default=128)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="bf16")
    parser.add_argument("--sentences", type=int, default=8192, help="Number of sentences per run.")
    args = parser.parse_args()
    base = ["--side", "here", "--model_name", args.model_name, "--train_file", args.train_file]
    base += ["--precision", args.precision]
    measured, rows = {}, []
    for batch in args.batch_sizes:
        found = {}
        for name, options in {"whole": [], "cached": ["--chunk_size", str(args.chunk_size)]}.items():
            if name == "cached" or batch <= args.whole_up_to:
                steps = max(1, args.sentences // batch)
                command = [*base, "--batch_size", str(batch), "--steps", str(steps), *options]
                found[name] = in_process(MODULE, *command)
        measured[batch] = found
        shown = (found.get(name) for name in ("whole", "cached"))
        cells = [f"{one['peak_gib']:.2f}, {one['sentences_per_second']:.0f}" if one else "" for one in shown]
        rows.append([f"{batch:,}", *cells])
        print(rows[-1], flush=True)
    title = (
        f"Memory of training by batch, in GiB, and sentences a second; {args.sentences:,} sentences, {args.precision}"
    )
    columns = ("batch", "read at once", f"{args.chunk_size} rows at a time")
    print(report("memory", title, columns, rows, measured))


if __name__ == "__main__":
    main()
