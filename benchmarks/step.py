"""Profile a training step, and compare its matrix products with the fastest ones of the processor.

    python benchmarks/step.py --model_name MODEL --train_file FILE [FILE ...]

SimCSE with mean pooling and without a projection head, batch size 128, 32 tokens, packed, the first lines of each file.

* A step on one thread, profiled with torch.profiler. Values are percentages of the operators' own time.
* A step by text, precision and number of threads. `split` divides each operation between the threads, and `parts` gives
  each thread a part of the batch; steps of both alternate in one process. Cells are medians over steps. Threads that
  wait for each other use CPU seconds. `at the limit` is what the step's matrix products would take at the speed of a
  product of two matrices of size 2,048 on one thread, `limit`. CPU seconds can be compared on a busy machine, too;
  seconds cannot.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import torch
from report import report
from torch import nn
from torch.profiler import ProfilerActivity, profile

from informin.models.cpu_parts import packed_forward_in_parts
from informin.models.packing import packed_forward
from informin.textfiles import read_sentences
from informin.training.options import InforMinTrainingArguments
from trainer_informin import InforMinTrainer

BATCH = 128
SIDES = {"split": packed_forward, "parts": packed_forward_in_parts}
KINDS = {  # the first kind with a word that is in the operator's name applies
    "optimizer, clipping": ("adam", "foreach", "norm.out", "linalg_vector_norm"),
    "attention": ("attention", "softmax"),
    "matrix products": ("mm", "linear", "matmul", "baddbmm"),
    "embedding tables": ("embedding", "index_put", "index_add"),
    "dropout": ("dropout", "bernoulli"),
    "layer norm": ("layer_norm",),
    "GELU": ("gelu",),
    "copies and casts": ("copy", "cat", "clone", "contiguous", "index", "gather", "fill", "zero", "slice", "split"),
    "other elementwise": ("add", "mul", "div", "sub", "sum", "exp", "pow", "where"),
}


def kind_of(name: str) -> str:
    return next((kind for kind, words in KINDS.items() if any(word in name.lower() for word in words)), "other")


def trainer_of(args: argparse.Namespace, text: str, bf16: bool, steps: int, folder: str) -> InforMinTrainer:
    lines = [line for line in read_sentences(Path(text), None) if line.strip()]
    options = dict(objective="simcse", projection_head="none", pooler="mean", per_device_train_batch_size=BATCH, seed=1)
    options |= dict(max_steps=steps, max_seq_length=32, bf16=bf16, warmup_steps=0, learning_rate=3e-5, use_cpu=True)
    options |= dict(eval_strategy="no", save_strategy="no", report_to="none", disable_tqdm=True, logging_steps=10**6)
    return InforMinTrainer(args.model_name, InforMinTrainingArguments(folder, **options), lines[: BATCH * steps])


def matrix_products(encoder: nn.Module, mask: torch.Tensor) -> float:
    """Return the floating-point operations of the matrix products in a step, for a batch with the mask (N, L).

    A matrix product of the forward pass has two of the same size in the backward pass.
    """
    lengths = mask.sum(1)
    layers = encoder.encoder.layer
    linear = sum(x.weight.numel() for x in layers.modules() if isinstance(x, nn.Linear)) * lengths.sum().item()
    attention = 2 * len(layers) * encoder.config.hidden_size * (lengths**2).sum().item()
    return 3 * 2 * (linear + attention)


def limit(dtype: torch.dtype) -> float:
    """Return the 10^9 floating-point operations per CPU second of a large matrix product on one thread."""
    torch.set_num_threads(1)
    x = torch.randn(2048, 2048).to(dtype)
    seconds = []
    for _ in range(10):
        start = time.process_time()
        x @ x
        seconds.append(time.process_time() - start)
    return 2 * 2048**3 / min(seconds) / 1e9


def steps_of(args: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    """Return what each step took, after the first one of each side."""
    torch.set_num_threads(args.threads[0])
    text, bf16 = args.train_file[0], args.precision[0] == "bf16"
    sides = SIDES if args.threads[0] > 1 else {"one thread": packed_forward}
    found: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(args, text, bf16, (args.steps + 1) * len(sides), f"{folder}/run")
        step, order = trainer.training_step, itertools.cycle([*sides, *reversed(sides)])

        def measured(model, inputs, *rest):
            side = next(order)
            model.packed_forward = sides[side]
            wall, cpu = time.perf_counter(), time.process_time()
            loss = step(model, inputs, *rest)
            seconds = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
            mask = inputs["attention_mask"]
            counts = {
                "tokens": mask.sum().item(),
                "padding": 1 - mask.double().mean().item(),
                "load": os.getloadavg()[0],
            }
            found[side].append(seconds | counts | {"gflop": matrix_products(model.base_model, mask) / 1e9})
            return loss

        trainer.training_step = measured
        trainer.train()
    fastest = limit(torch.bfloat16 if bf16 else torch.float32)
    return {side: [{**one, "limit": fastest} for one in steps[1:]] for side, steps in found.items()}


def row_of(name: str, steps: list[dict[str, float]]) -> list[str]:
    middle = {key: statistics.median(one[key] for one in steps) for key in steps[0]}
    products = middle["gflop"] / middle["limit"]
    cells = [
        f"{100 * middle['padding']:.0f}",
        f"{middle['tokens']:,.0f}",
        f"{middle['wall']:.2f}",
        f"{middle['load']:.1f}",
    ]
    cells += [
        f"{middle['cpu']:.2f}",
        f"{products:.2f}",
        f"{100 * products / middle['cpu']:.0f}",
        f"{middle['limit']:.0f}",
    ]
    return [name, *cells]


def profiled(args: argparse.Namespace, bf16: bool) -> dict[str, float]:
    """Return the seconds of each kind of operator on one thread."""
    found: dict[str, float] = {}
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(args, args.train_file[0], bf16, args.steps, f"{folder}/run")
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            trainer.train()
    for event in profiler.key_averages():
        kind = kind_of(event.key)
        found[kind] = found.get(kind, 0) + event.self_cpu_time_total / 1e6
    return found


def in_process(args: argparse.Namespace, **options: object) -> dict:
    """Return what `main` prints with other options, in a process of its own."""
    words = itertools.chain.from_iterable((f"--{name}", str(value)) for name, value in options.items())
    command = [sys.executable, __file__, "--model_name", args.model_name, "--steps", str(args.steps), *words]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(out.rpartition("RESULT")[2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name", required=True)
    parser.add_argument("--train_file", nargs="+", required=True, help="The first one is profiled.")
    parser.add_argument("--precision", nargs="+", choices=["fp32", "bf16"], default=["fp32", "bf16"])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--steps", type=int, default=5, help="Number of measured steps of each side.")
    parser.add_argument("--part", choices=["profile", "steps"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        found = profiled(args, args.precision[0] == "bf16") if args.part == "profile" else steps_of(args)
        print("RESULT", json.dumps(found))
        return
    first = args.train_file[0]
    seconds = {x: in_process(args, part="profile", train_file=first, precision=x) for x in args.precision}
    shares = {x: {kind: 100 * y / sum(found.values()) for kind, y in found.items()} for x, found in seconds.items()}
    kinds = sorted(shares[args.precision[0]], key=lambda kind: -shares[args.precision[0]][kind])
    rows = [[kind, *(f"{shares[x].get(kind, 0):.1f}" for x in shares)] for kind in kinds]
    title = f"A training step of {Path(args.model_name).name} on one thread, shares of the operators' time in percent"
    print(report("step", title, ("", *shares), rows, seconds))
    rows, measured = [], {}
    for text, precision, threads in itertools.product(args.train_file, args.precision, args.threads):
        found = in_process(args, part="steps", train_file=text, precision=precision, threads=threads)
        for side, steps in found.items():
            name = f"{Path(text).stem}, {precision}, " + (side if threads == 1 else f"{threads} threads, {side}")
            measured[name] = steps
            rows.append(row_of(name, steps))
            print(*rows[-1], sep="  ", flush=True)
    title = f"A training step of {Path(args.model_name).name} against the limit of the processor"
    columns = (
        "",
        "padding, %",
        "tokens",
        "seconds",
        "load",
        "CPU seconds",
        "products at the limit, seconds",
        "% of the limit",
        "limit, GF/s",
    )
    print(report("step_limit", title, columns, rows, measured))


if __name__ == "__main__":
    main()
