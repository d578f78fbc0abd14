"""Measure seconds and peak memory before the first step: reading, checksum, tokenizing and starting.

    python benchmarks/reading.py --model_name MODEL --sentences FILE --numbers 100000 1000000 10000000

For each number of lines, in a separate process. The lines of FILE are repeated, each with its number in front, so that
all differ. Memory is the anonymous memory of the process (RssAnon), without pages of the cache files, which the system
can reclaim. Requires Linux, and temporarily 400 bytes of disk space per line.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from itertools import cycle, islice
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

PARTS = ("reading", "checksum", "tokenizing", "two steps")


class Peak:
    """Measure peak anonymous memory in MiB, and seconds, of a `with` block."""

    def __enter__(self):
        self.mib, self._done = 0.0, threading.Event()
        self._watch = threading.Thread(target=self._look, daemon=True)
        self._start = time.perf_counter()
        self._watch.start()
        return self

    def __exit__(self, *_):
        self.seconds = time.perf_counter() - self._start
        self._done.set()
        self._watch.join()

    def _look(self):
        while True:
            lines = Path("/proc/self/status").read_text().splitlines()
            self.mib = max(self.mib, next(int(line.split()[1]) / 1024 for line in lines if "RssAnon" in line))
            if self._done.wait(0.05):
                return


def measure(model_name: str, file: str, folder: str) -> dict:
    """Return seconds and peak memory of each part before the first step."""
    from informin.training.command_line import parse
    from informin.training.record import describe_sentences
    from informin.training.sentences import load_sentences, tokenize
    from trainer_informin import InforMinTrainer

    argv = f"--model_name={model_name} --objective=simcse --train_file={file} --output_dir={folder}/run --max_steps=2"
    _, data, _, args = parse([*argv.split(), "--eval_strategy=no", "--save_strategy=no"])
    found = {}

    def lap(name, work):
        with Peak() as peak:
            result = work()
        found[name] = {"seconds": peak.seconds, "mib": peak.mib}
        return result

    sentences = lap("reading", lambda: load_sentences(data, args.seed))
    lap("checksum", lambda: describe_sentences(sentences))
    trainer = InforMinTrainer(model_name, args, sentences.select(range(args.per_device_train_batch_size)))
    rows = lap("tokenizing", lambda: tokenize(sentences, trainer.processing_class, args.max_seq_length))
    trainer.train_dataset = rows
    lap("two steps", trainer.train)
    return found


def main() -> None:
    """Start one process for each number of lines, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name", required=True)
    parser.add_argument("--sentences", required=True)
    parser.add_argument("--numbers", type=int, nargs="+", default=[100_000, 1_000_000, 10_000_000])
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print("RESULT" + json.dumps(measure(args.model_name, *args.measure)))
        return
    from report import report

    lines = [line for line in Path(args.sentences).read_text(encoding="utf-8").splitlines() if line.strip()]
    measured, rows = {}, []
    for number in args.numbers:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "lines.txt")
            with file.open("w", encoding="utf-8") as out:
                out.writelines(f"{i} {line}\n" for i, line in enumerate(islice(cycle(lines), number)))
            command = [sys.executable, *sys.argv, "--measure", str(file), folder]
            where = os.environ | {"HF_DATASETS_CACHE": f"{folder}/cache"}
            done = subprocess.run(command, check=True, capture_output=True, text=True, env=where)
            size = file.stat().st_size / 2**20
        found = json.loads(done.stdout.rpartition("RESULT")[2])
        measured[number] = {"file_mib": size, **found}
        rows.append([f"{number:,}", f"{size:,.0f}"])
        rows[-1] += [f"{found[part]['seconds']:,.0f} ({found[part]['mib']:,.0f})" for part in PARTS]
        print(rows[-1], flush=True)
    columns = ("lines", "file, MiB", *(f"{part}, s (peak, MiB)" for part in PARTS))
    print(report("reading", "A run's start on local text", columns, rows, measured))


if __name__ == "__main__":
    main()
