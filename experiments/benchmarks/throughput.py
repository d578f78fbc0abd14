"""Compare training speed and peak memory here and with the trainer of sentence-transformers.

    python -m experiments.benchmarks.throughput --model_name MODEL [MODEL ...] --train_file FILE [FILE ...]

Both train SimCSE on the same sentences: MultipleNegativesRankingLoss on pairs (s, s) there, the contrastive term here,
both with the pooling of --pooler, without a projection head, with learning rate 3e-5 and gradient clipping at norm 1.
Each run is a separate process. A round runs all sides one after the other, and ratios are computed within a round, so
that other load on the machine affects all equally. The table shows the median over rounds. Time is measured from the
beginning of the first step to the end of the last. Tokenization happens within the step there and before training here,
which takes less than a hundredth of the time. `sorted` is sentence-transformers with length-sorted batches: less
padding, but harder negatives. `two processes` is sentence-transformers in two processes of one thread, each with half
of the batch, so that there are half as many negatives; its memory is that of both. `padded` is our trainer with
`--padding_free false`. On a GPU, memory is the peak allocated by PyTorch, and `--skip` leaves out the first steps, in
which kernels are loaded and CUDA graphs captured. Rows name the file and the fraction of padding in unsorted batches.
"""

import argparse
import json
import os
import random
import resource
import statistics
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from experiments.benchmarks.report import in_process, report, spread

MODULE = "experiments.benchmarks.throughput"
THEIRS = ("sentence-transformers", "sorted", "two processes")
SIDES = (*THEIRS, "padded", "here")


def steady_clock(skip: int, batch_size: int) -> Any:
    """Return a callback that measures the sentences per second of the steps after `skip`."""
    import torch
    from transformers import TrainerCallback

    class SteadyClock(TrainerCallback):
        sentences_per_second = 0.0
        start = 0.0

        def on_train_begin(self, args, state, control, **kwargs):
            self.start = time.perf_counter()

        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step in (skip, state.max_steps) and torch.cuda.is_available():
                torch.cuda.synchronize()
            now = time.perf_counter()
            if state.global_step == skip:
                self.start = now
            if state.global_step == state.max_steps:
                self.sentences_per_second = (state.max_steps - skip) * batch_size / (now - self.start)

    return SteadyClock()


def peak_memory() -> float:
    """Return the peak memory in GiB of this process, or of PyTorch on the GPU."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def read_lines(args: argparse.Namespace) -> list[str]:
    from informin.texts import read_texts

    lines = list(read_texts(args.train_file[0]))
    if args.join > 1:
        lines = [" ".join(lines[start : start + args.join]) for start in range(0, len(lines), args.join)]
    return lines[: args.batch_size * args.steps * int(os.environ.get("WORLD_SIZE", "1"))]


def our_trainer(args: argparse.Namespace, folder: str, padding_free: bool | None, clock: Any) -> Any:
    """Return an InforMinTrainer with a callback."""
    from informin.cli.train_options import parse
    from trainer_informin import InforMinTrainer

    options = dict(objective="simcse", projection_head="none", pooler=args.pooler, padding_free=padding_free)
    options |= {name: yaml.safe_load(value) for name, value in (word.split("=") for word in args.options)}
    options |= dict(model_name=args.model_name[0], output_dir=folder, gradient_cache_chunk_size=args.chunk_size)
    run = parse([], options | shared(args))
    how = dict(args=run.args, objective=run.objective, view=run.view, callbacks=[clock])
    return InforMinTrainer(run.model_name, train_dataset=read_lines(args), **how)


def ours(args: argparse.Namespace, folder: str, padding_free: bool | None) -> float:
    """Return the sentences per second of InforMinTrainer."""
    clock = steady_clock(args.skip, args.batch_size)
    our_trainer(args, folder, padding_free, clock).train()
    return clock.sentences_per_second


def theirs(args: argparse.Namespace, folder: str) -> float:
    """Return the sentences per second of SentenceTransformerTrainer."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    encoder = Transformer(args.model_name[0], max_seq_length=args.length)
    modules = [encoder, Pooling(encoder.get_embedding_dimension(), pooling_mode=args.pooler)]
    model = SentenceTransformer(modules=modules, device=None if args.gpu else "cpu")
    lines = read_lines(args)
    clock = steady_clock(args.skip, args.batch_size * int(os.environ.get("WORLD_SIZE", "1")))

    class SortedTrainer(SentenceTransformerTrainer):
        def get_batch_sampler(self, dataset, batch_size, *_args, **_kwargs):
            batches = [list(range(start, start + batch_size)) for start in range(0, len(dataset), batch_size)]
            return random.Random(1).sample(batches, len(batches))

    if args.side == "sorted":
        lines.sort(key=lambda line: len(model.tokenizer(line)["input_ids"]))
    kind = SortedTrainer if args.side == "sorted" else SentenceTransformerTrainer
    options = {name: value for name, value in shared(args).items() if name != "max_seq_length"}
    trainer = kind(
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


def padding(args: argparse.Namespace) -> float:
    """Return the fraction of padding in batches of the first sentences."""
    from transformers import AutoTokenizer

    tokenizer, lines = AutoTokenizer.from_pretrained(args.model_name[0]), read_lines(args)
    lengths = [len(ids) for ids in tokenizer(lines, truncation=True, max_length=args.length)["input_ids"]]
    batches = [lengths[start : start + args.batch_size] for start in range(0, len(lengths), args.batch_size)]
    return 1 - sum(lengths) / sum(max(batch) * len(batch) for batch in batches)


def measure(file: str, model: str, precision: str, side: str) -> dict[str, float]:
    """Return speed and memory of one run, in a separate process, or in two."""
    chosen = ["--train_file", file, "--model_name", model, "--precision", precision, "--side", side]
    words = [*sys.argv[1:], *chosen]
    if side == "two processes":
        launch = ["--standalone", "--nproc_per_node=2", "-m", MODULE]
        return in_process("torch.distributed.run", *launch, *words, OMP_NUM_THREADS="1")
    return in_process(MODULE, *words)


def run_side(args: argparse.Namespace) -> None:
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if args.side == "two processes":
        args.batch_size //= processes
    with tempfile.TemporaryDirectory() as folder:
        if args.side in THEIRS:
            speed = theirs(args, folder)
        else:
            speed = ours(args, f"{folder}/run", padding_free=None if args.side == "here" else False)
    if os.environ.get("RANK", "0") == "0":
        print("RESULT", json.dumps({"sentences_per_second": speed, "peak_gib": peak_memory() * processes}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name", nargs="+", required=True)
    parser.add_argument("--train_file", nargs="+", required=True)
    parser.add_argument("--precision", nargs="+", choices=["fp32", "bf16"], default=["fp32", "bf16"])
    parser.add_argument("--pooler", choices=["cls", "mean"], default="cls")
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--join", type=int, default=1, help="Number of lines of the file to join into one text.")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--skip", type=int, default=0, help="Steps before the measured ones.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--chunk_size", type=int, help="Value of --gradient_cache_chunk_size here.")
    parser.add_argument("--options", nargs="+", default=[], metavar="OPTION=VALUE", help="Further options here.")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--name", default="throughput", help="Name of the files in benchmarks/results.")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES, help="Sides to run. Default: all.")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        run_side(args)
        return
    measured, rows = {}, []
    for file, model, precision in product(args.train_file, args.model_name, args.precision):
        rounds = [{side: measure(file, model, precision, side) for side in args.sides} for _ in range(args.rounds)]
        padded = padding(argparse.Namespace(**vars(args) | {"train_file": [file], "model_name": [model]}))
        name = f"{Path(file).stem} ({padded:.0%} padding), {Path(model).name}, {precision}"
        measured[name] = rounds
        for side in args.sides:
            speeds = [found[side]["sentences_per_second"] for found in rounds]
            ratios = [speed / found[SIDES[0]]["sentences_per_second"] for speed, found in zip(speeds, rounds)]
            memory = statistics.median(found[side]["peak_gib"] for found in rounds)
            rows.append([f"{name}: {side}", f"{statistics.median(speeds):.1f}", spread(ratios), f"{memory:.2f}"])
    title = f"Training with {args.pooler} pooling"
    title += f", batch {args.batch_size}, {args.length} tokens, {args.rounds} rounds of {args.steps} steps"
    columns = ("", "sentences/s", "ratio to sentence-transformers (least to most)", "peak memory, GiB")
    print(report(args.name, title, columns, rows, measured))


if __name__ == "__main__":
    main()
