"""Compare the time of whole training runs, from the start of Python to the saved model.

    python -m experiments.benchmarks.whole_runs --model_name MODEL --train_file FILE [FILE ...]

With mean pooling, batches of 128 sentences and 32 tokens, without evaluation. Sides:

* MNRL: MultipleNegativesRankingLoss on pairs (s, s) with the trainer of sentence-transformers
* simcse: the same loss here, run_unsup.py --objective simcse
* simcse, same work: with --measure_drift false, because sentence-transformers does not measure drift
* GIST: GISTEmbedLoss on the same pairs; its guide, the model before training, runs in every step
* adapt: run_unsup.py --recipe adapt; its guide, the same model, embeds each sentence once

Our other runs include their drift report, and all of them their model card. A round runs all sides one after the
other, and ratios are computed within a round. The table shows medians over rounds. Rows name the file and the fraction
of padding in unsorted batches.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path

from experiments.benchmarks.report import report, spread
from experiments.benchmarks.throughput import padding

SAME_WORK = "simcse, same work"
SIDES = {  # side: what it is compared with
    "MNRL": "MNRL",
    "simcse": "MNRL",
    SAME_WORK: "MNRL",
    "GIST": "GIST",
    "adapt": "GIST",
}


def theirs(args: argparse.Namespace, loss: str, folder: str) -> None:
    """Train with sentence-transformers and save."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import GISTEmbedLoss, MultipleNegativesRankingLoss

    lines = [line for line in Path(args.train_file[0]).read_text(encoding="utf-8").splitlines() if line.strip()]
    lines = lines[: args.steps * args.batch_size]
    model = SentenceTransformer(args.model_name, device="cpu")
    model.max_seq_length = args.length
    if loss == "GIST":
        guide = SentenceTransformer(args.model_name, device="cpu")
        guide.max_seq_length = args.length
        function = GISTEmbedLoss(model, guide)
    else:
        function = MultipleNegativesRankingLoss(model)
    options = SentenceTransformerTrainingArguments(
        folder, use_cpu=True, per_device_train_batch_size=args.batch_size, max_steps=args.steps, learning_rate=3e-5,
        lr_scheduler_type="linear", save_strategy="no", report_to="none", disable_tqdm=True, seed=1,
        dataloader_drop_last=True, bf16=args.precision[0] == "bf16",
    )  # fmt: skip
    data = Dataset.from_dict({"anchor": lines, "positive": lines})
    SentenceTransformerTrainer(model=model, args=options, train_dataset=data, loss=function).train()
    model.save_pretrained(f"{folder}/model")


def command_of(side: str, args: argparse.Namespace, folder: str) -> list[str]:
    """Return the command of a run."""
    file, precision = args.train_file[0], args.precision[0]
    if side == SIDES[side]:
        chosen = ["--train_file", file, "--precision", precision, "--side", side, "--folder", folder]
        return [sys.executable, "-m", "experiments.benchmarks.whole_runs", *sys.argv[1:], *chosen]
    options = dict(model_name=args.model_name, train_file=file, output_dir=f"{folder}/run")
    options |= dict(max_steps=args.steps, per_device_train_batch_size=args.batch_size, max_seq_length=args.length)
    options |= dict(eval_strategy="no", report_to="none", bf16=precision == "bf16", use_cpu="true", learning_rate=3e-5)
    options |= dict(max_train_samples=args.steps * args.batch_size)
    if side in ("simcse", SAME_WORK):
        options |= dict(objective="simcse", pooler="mean", projection_head="none", lr_scheduler_type="linear")
        options |= dict(measure_drift=side != SAME_WORK)
    else:
        options |= dict(recipe="adapt")
    return [sys.executable, "-m", "informin", "train", *(f"--{name}={value}" for name, value in options.items())]


def seconds_of(side: str, args: argparse.Namespace) -> float:
    """Return the wall time of one whole run."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        subprocess.run(
            command_of(side, args, folder),
            check=True,
            stdout=subprocess.DEVNULL,
            env=os.environ | {"HF_HUB_OFFLINE": "1"},
        )
        return time.perf_counter() - start


def main() -> None:
    """Measure all sides alternately and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name", required=True)
    parser.add_argument("--train_file", nargs="+", required=True, help="Plain text, one sentence per line.")
    parser.add_argument("--precision", nargs="+", choices=["fp32", "bf16"], default=["fp32"])
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES), help="Sides to run. Default: all.")
    parser.add_argument("--name", default="whole_runs", help="Name of the files in benchmarks/results.")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        theirs(args, args.side, args.folder)
        return
    rows, measured = [], {}
    for file, precision in product(args.train_file, args.precision):
        one = argparse.Namespace(**vars(args) | {"train_file": [file], "precision": [precision]})
        padded = padding(argparse.Namespace(**vars(one) | {"model_name": [args.model_name], "join": 1}))
        name = f"{Path(file).stem} ({padded:.0%} padding), {precision}"
        rounds = measured[name] = []
        for _ in range(args.rounds):
            rounds.append({side: seconds_of(side, one) for side in args.sides})
            print(name, rounds[-1], flush=True)
        for side in args.sides:
            seconds = spread([found[side] for found in rounds])
            ratios = [found[SIDES[side]] / found[side] for found in rounds if SIDES[side] in found]
            faster = "" if side == SIDES[side] else f"{spread(ratios)}, {SIDES[side]}"
            rows.append((f"{name}: {side}", seconds, faster))
    title = f"Whole runs of {args.steps} steps of {args.batch_size} sentences, mean pooling: median (min to max)"
    print(report(args.name, title, ("", "seconds", "times as fast as"), rows, measured))


if __name__ == "__main__":
    main()
