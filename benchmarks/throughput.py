"""Training here against sentence-transformers' trainer: sentences a second and peak memory, as ratios.

    python benchmarks/throughput.py --model_name MODEL [MODEL ...] --train_file FILE

Both train SimCSE on the same sentences: MultipleNegativesRankingLoss on pairs (s, s) there, the contrast alone here,
both at [CLS] and without a projection head, learning rate 3e-5, gradient norm clipped at 1. Every run is a process of
its own; a round runs all sides one after the other, and each ratio is taken within a round, so that what else the
machine does falls on all alike. The table has the median of the rounds. The clock is the same on all sides: from the
first step's beginning to the last step's end. Sentences are tokenized in the step there and beforehand here, which is
less than a hundredth of either. `padded` is here without `--padding_free`. On a GPU memory is what torch held there.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
SIDES = ("sentence-transformers", "padded", "here")


def peak_memory() -> float:
    """GiB that this process, or torch on the GPU, held at most."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.max_memory_reserved() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def read_lines(args: argparse.Namespace) -> list[str]:
    from informin.textfiles import read_sentences

    lines = [line for line in read_sentences(Path(args.train_file), None) if line.strip()]
    if args.join > 1:
        lines = [" ".join(lines[start : start + args.join]) for start in range(0, len(lines), args.join)]
    return lines[: args.batch_size * args.steps * int(os.environ.get("WORLD_SIZE", "1"))]


def ours(args: argparse.Namespace, folder: str, padding_free: bool) -> float:
    """Sentences a second of InforMinTrainer."""
    from informin.training.options import InforMinTrainingArguments
    from trainer_informin import InforMinTrainer

    options = dict(objective="simcse", projection_head="none", pooler="cls", padding_free=padding_free)
    arguments = InforMinTrainingArguments(folder, **options, **shared(args), gradient_cache_chunk_size=args.chunk_size)
    trainer = InforMinTrainer(args.model_name[0], arguments, read_lines(args))
    trainer.train()
    return trainer.throughput.sentences_per_second


def theirs(args: argparse.Namespace, folder: str) -> float:
    """Sentences a second of SentenceTransformerTrainer."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.losses import MultipleNegativesRankingLoss
    from sentence_transformers.models import Pooling, Transformer

    from informin.training.throughput import Throughput

    encoder = Transformer(args.model_name[0], max_seq_length=args.length)
    modules = [encoder, Pooling(encoder.get_embedding_dimension(), pooling_mode="cls")]
    model = SentenceTransformer(modules=modules, device=None if args.gpu else "cpu")
    clock, lines = Throughput(), read_lines(args)
    options = {name: value for name, value in shared(args).items() if name != "max_seq_length"}
    trainer = SentenceTransformerTrainer(
        model=model,
        args=SentenceTransformerTrainingArguments(folder, use_cpu=not args.gpu, **options),
        train_dataset=Dataset.from_dict({"anchor": lines, "positive": lines}),
        loss=MultipleNegativesRankingLoss(model),
        callbacks=[clock],
    )
    trainer.train()
    return clock.sentences_per_second


def shared(args: argparse.Namespace) -> dict:
    options = dict(per_device_train_batch_size=args.batch_size, max_steps=args.steps, max_seq_length=args.length)
    options |= dict(bf16=args.precision[0] == "bf16", learning_rate=3e-5, lr_scheduler_type="linear", warmup_steps=0)
    options |= dict(eval_strategy="no", save_strategy="no", report_to="none", disable_tqdm=True, logging_steps=10**6)
    return options | dict(dataloader_drop_last=True, seed=1)


def measure(args: argparse.Namespace, model: str, precision: str, side: str) -> dict[str, float]:
    """Speed and memory of one run, in a process of its own."""
    command = [sys.executable, __file__, *sys.argv[1:], "--model_name", model, "--precision", precision, "--side", side]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.rpartition("RESULT")[2])


def run_side(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        if args.side == SIDES[0]:
            speed = theirs(args, folder)
        else:
            speed = ours(args, f"{folder}/run", padding_free=args.side == "here")
    print("RESULT", json.dumps({"sentences_per_second": speed, "peak_gib": peak_memory()}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name", nargs="+", required=True)
    parser.add_argument("--train_file", required=True)
    parser.add_argument("--precision", nargs="+", choices=["fp32", "bf16"], default=["fp32", "bf16"])
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--join", type=int, default=1, help="So many lines of the file are a text.")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--chunk_size", type=int, help="--gradient_cache_chunk_size here.")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--name", default="throughput", help="Of the files in benchmarks/results.")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        run_side(args)
        return
    from report import report, spread

    measured, rows = {}, []
    for model in args.model_name:
        for precision in args.precision:
            rounds = [{side: measure(args, model, precision, side) for side in SIDES} for _ in range(args.rounds)]
            name = f"{Path(model).name}, {precision}"
            measured[name] = rounds
            for side in SIDES:
                speeds = [found[side]["sentences_per_second"] for found in rounds]
                ratios = [speed / found[SIDES[0]]["sentences_per_second"] for speed, found in zip(speeds, rounds)]
                memory = statistics.median(found[side]["peak_gib"] for found in rounds)
                rows.append([f"{name}: {side}", f"{statistics.median(speeds):.1f}", spread(ratios), f"{memory:.2f}"])
    title = f"Training, batch {args.batch_size}, {args.length} tokens, {args.rounds} rounds of {args.steps} steps"
    columns = ("", "sentences/s", "ratio to sentence-transformers (least to most)", "peak memory, GiB")
    print(report(args.name, title, columns, rows, measured))


if __name__ == "__main__":
    main()
