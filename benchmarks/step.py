"""Profile a training step with torch.profiler, to separate arithmetic from overhead.

    python benchmarks/step.py --model_name MODEL --train_file FILE

SimCSE with [CLS] pooling and without a projection head, batch size 128, 32 tokens, without padding where that is the
default. Values are percentages of the operators' own time, over several steps after a first one. The rest of the wall
clock time is spent in Python between operators.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from report import report
from torch.profiler import ProfilerActivity, profile
from transformers import TrainerCallback

from informin.textfiles import read_sentences
from informin.training.options import InforMinTrainingArguments
from trainer_informin import InforMinTrainer

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


class Watch(TrainerCallback):
    """Profile all steps after the first."""

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 1:
            self.profile = profile(activities=[ProfilerActivity.CPU])
            self.profile.__enter__()
            self.start = time.perf_counter()
        if state.global_step == state.max_steps:
            self.wall = time.perf_counter() - self.start
            self.profile.__exit__(None, None, None)


def kind_of(name: str) -> str:
    return next((kind for kind, words in KINDS.items() if any(word in name.lower() for word in words)), "other")


def measure(args: argparse.Namespace, bf16: bool, folder: str) -> tuple[dict[str, float], float]:
    """Return the seconds of each kind of operator, and the wall clock seconds."""
    lines = [line for line in read_sentences(Path(args.train_file), None) if line.strip()]
    options = dict(objective="simcse", projection_head="none", pooler="cls", per_device_train_batch_size=128, seed=1)
    options |= dict(max_steps=args.steps + 1, max_seq_length=32, bf16=bf16, warmup_steps=0, learning_rate=3e-5)
    options |= dict(eval_strategy="no", save_strategy="no", report_to="none", disable_tqdm=True, logging_steps=10**6)
    watch = Watch()
    arguments = InforMinTrainingArguments(folder, **options)
    InforMinTrainer(args.model_name, arguments, lines[: 128 * (args.steps + 1)], callbacks=[watch]).train()
    found = {}
    for event in watch.profile.key_averages():
        kind = kind_of(event.key)
        found[kind] = found.get(kind, 0) + event.self_cpu_time_total / 1e6
    return found, watch.wall


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name", required=True)
    parser.add_argument("--train_file", required=True)
    parser.add_argument("--steps", type=int, default=5)
    args = parser.parse_args()
    measured = {}
    for precision in ("fp32", "bf16"):
        with tempfile.TemporaryDirectory() as folder:
            found, wall = measure(args, precision == "bf16", f"{folder}/run")
        measured[precision] = {"seconds": found, "wall": wall}
    shares = {
        precision: {kind: 100 * seconds / sum(found["seconds"].values()) for kind, seconds in found["seconds"].items()}
        for precision, found in measured.items()
    }
    kinds = sorted(shares["fp32"], key=lambda kind: -shares["fp32"][kind])
    rows = [[kind, *(f"{shares[precision].get(kind, 0):.1f}" for precision in shares)] for kind in kinds]
    title = f"A training step of {Path(args.model_name).name}, shares of the operators' time in percent"
    print(report("step", title, ("", *shares), rows, measured))


if __name__ == "__main__":
    main()
