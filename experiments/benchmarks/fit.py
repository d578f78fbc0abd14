"""Time and memory to fit an adapter on many rows, beside scikit-learn's PCA.

    python -m experiments.benchmarks.fit [--rows 1000000] [--rounds 3]
    python -m experiments.benchmarks.fit --rows 10000000 --rounds 1 --sides adapter   # PCA needs the rows in memory

Half of the rows (rows, 384) are random, half come from 1,000 clusters, in a float32 file. Each side is a separate
process: the adapter reads a memory map, PCA an array in memory. Time excludes imports, and reading the file for PCA.
Memory is the peak resident set, which can include pages of the memory map.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np

from experiments.benchmarks.report import in_process, report, spread

SIDES, WIDTH, CLUSTERS, BLOCK = ("pca", "adapter"), 384, 1_000, 100_000


def write_rows(path: Path, rows: int) -> None:
    """Write the rows in blocks."""
    source = np.random.default_rng(0)
    centers = source.normal(size=(CLUSTERS, WIDTH)).astype(np.float32)
    array = np.lib.format.open_memmap(path, "w+", np.float32, (rows, WIDTH))
    for start in range(0, rows, BLOCK):
        size = min(BLOCK, rows - start)
        block = source.standard_normal((size, WIDTH), dtype=np.float32)
        block[::2] = centers[source.integers(CLUSTERS, size=len(block[::2]))] + 0.5 * block[::2]
        array[start : start + size] = block


def run_side(side: str, path: Path) -> dict[str, float]:
    """Fit one side and return the seconds."""
    if side == "pca":
        from sklearn.decomposition import PCA

        x = np.load(path)
        start = time.perf_counter()
        PCA(WIDTH).fit(x)
    else:
        from informin.frozen.adapter import LinearAdapter

        x = np.load(path, mmap_mode="r")
        start = time.perf_counter()
        LinearAdapter().fit(x)
    return {"seconds": time.perf_counter() - start}


def main() -> None:
    """Measure both sides alternately and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", help="Folder for the file of rows. Default: the folder of temporary files.")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES, help="Sides to measure.")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        print("RESULT", json.dumps(run_side(args.side, args.file)))
        return
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        path = Path(folder, "rows.npy")
        write_rows(path, args.rows)
        rounds = []
        for _ in range(args.rounds):
            found = {}
            for side in args.sides:
                found[side] = in_process("experiments.benchmarks.fit", "--side", side, "--file", str(path))
            rounds.append(found)
    rows = []
    for side in args.sides:
        title = {"pca": "PCA of scikit-learn, 384 components", "adapter": "LinearAdapter"}[side]
        seconds = [found[side]["seconds"] for found in rounds]
        ratios = [found[side]["seconds"] / found["pca"]["seconds"] for found in rounds if "pca" in found]
        peak = max(found[side]["peak_gib"] for found in rounds)
        rows.append((title, spread(seconds), spread(ratios) if ratios else "", f"{peak:.2f}"))
    title = f"Fitting on {args.rows:,} rows of {WIDTH} numbers: median (minimum to maximum) of {args.rounds} rounds"
    print(report("fit", title, ("", "seconds", "ratio to PCA", "peak GiB"), rows, rounds))


if __name__ == "__main__":
    main()
