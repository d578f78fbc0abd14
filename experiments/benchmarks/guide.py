"""Measure the cost of a guide: embedding the sentences, their neighborhoods, and for comparison the training.

    OMP_NUM_THREADS=2 python benchmarks/guide.py MODEL --sentences FILE --numbers 10000 100000

For each number of sentences, in a separate process: the seconds of each part, the seconds of 80 steps of the recipe
`adapt`, and peak memory. The parts are measured within a normal run.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from informin.guide.cache import load_guide
from informin.models.open_model import load_model
from informin.textfiles import read_sentences
from informin.training.command_line import parse
from trainer_informin import InforMinTrainer

PARTS = ("embeddings", "neighborhoods", "training")


def measure(model_name: str, sentences: list[str]) -> dict:
    """Return the seconds of each part, and the peak memory after it in MiB."""
    found = {}

    def lap(name, work):
        start = time.perf_counter()
        result = work()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        found[name] = {"seconds": time.perf_counter() - start, "peak": peak}
        return result

    with tempfile.TemporaryDirectory() as folder:
        argv = f"--model_name={model_name} --recipe=adapt --output_dir={folder}/run --guide_cache={folder}/guide"
        _, _, _, args = parse(argv.split())
        encoder = load_model(model_name, (args.model_settings["pooling"],), bf16=args.bf16)
        guide = lap("embeddings", lambda: load_guide(Path(folder, "guide"), encoder, sentences))
        lap("neighborhoods", lambda: guide.neighborhood_means(args.neighbor_count))
        trainer = InforMinTrainer(model_name, args, sentences)
        lap("training", trainer.train)
    return found


def main() -> None:
    """Start one process for each number of sentences, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model_name")
    parser.add_argument("--sentences", required=True)
    parser.add_argument("--numbers", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        sentences = [line for line in read_sentences(Path(args.sentences), None) if line.strip()][: args.measure]
        print(json.dumps(measure(args.model_name, sentences)))
        return
    print("| sentences | " + " | ".join(f"{part}, s (peak, MiB)" for part in PARTS) + " |")
    print("|---:" * (1 + len(PARTS)) + "|")
    for number in args.numbers:
        done = subprocess.run([sys.executable, *sys.argv, "--measure", str(number)], check=True, capture_output=True)
        found = json.loads(done.stdout.decode().splitlines()[-1])
        cells = (f"{found[part]['seconds']:.0f} ({found[part]['peak']:.0f})" for part in PARTS)
        print(f"| {number:,} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
