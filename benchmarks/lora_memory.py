"""Peak memory and time of LoRA on a randomly initialized model with the configuration of Qwen3-Embedding-0.6B.

    python benchmarks/lora_memory.py --train_file FILE [--steps 10] [--batch_size 16]

Runs ten steps of informin train --lora_r 16 in bfloat16, with last-token pooling and 32 tokens: once with gradient
checkpointing and once without. Each run is a process of its own. The tokenizer knows exactly the words in the file.
Memory is the peak resident set size of the process. Seconds per step are CPU seconds: those of the run minus those of a
run of one step, divided by the number of the other steps.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
from usage import usage_of

from tools.memory_table import MODELS


def save_model(words: list[str], folder: Path) -> None:
    """Save the model with random weights in bfloat16, as a SentenceTransformer with last-token pooling."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Normalize, Pooling, Transformer
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    kind, config = MODELS["Qwen3-Embedding-0.6B"]
    plain = folder / "plain"
    kind(config).to(torch.bfloat16).save_pretrained(plain)
    backend = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(["<pad>", "<unk>", "<eos>", *words])}, unk_token="<unk>")
    )
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(single="$A <eos>", special_tokens=[("<eos>", 2)])
    special = dict(pad_token="<pad>", unk_token="<unk>", eos_token="<eos>", padding_side="left", model_max_length=512)
    PreTrainedTokenizerFast(tokenizer_object=backend, **special).save_pretrained(plain)
    transformer = Transformer(str(plain))
    modules = [transformer, Pooling(transformer.get_embedding_dimension(), pooling_mode="lasttoken"), Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(folder / "model"), create_model_card=False)


def run(args: argparse.Namespace, folder: Path, steps: int, recompute: bool) -> dict[str, float]:
    """Train for some steps and return CPU seconds and peak memory in GiB."""
    options = dict(model_name=folder / "model", train_file=args.train_file, output_dir=folder / f"{steps}-{recompute}")
    options |= dict(lora_r=16, lora_dropout=0.1, bf16=True, use_cpu=True, objective="simcse", max_steps=steps)
    options |= dict(per_device_train_batch_size=args.batch_size, max_seq_length=32, gradient_checkpointing=recompute)
    options |= dict(eval_strategy="no", save_strategy="no", report_to="none", measure_drift=False, lora_merge=False)
    options |= dict(max_train_samples=args.steps * args.batch_size)
    command = [sys.executable, str(ROOT / "run_unsup.py"), *(f"--{name}={value}" for name, value in options.items())]
    return usage_of(command)


def main() -> None:
    """Measure both ways and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train_file", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch_size", type=int, default=16)
    args = parser.parse_args()
    from report import report

    words = sorted(set(args.train_file.read_text(encoding="utf-8").split()))[:100_000]
    rows, measured = [], {}
    with tempfile.TemporaryDirectory() as name:
        save_model(words, Path(name))
        for recompute in (False, True):
            one, all_ = (run(args, Path(name), steps, recompute) for steps in (1, args.steps))
            step = (all_["seconds"] - one["seconds"]) / (args.steps - 1)
            title = "recomputed" if recompute else "kept"
            measured[title] = {"one": one, "all": all_}
            rows.append((title, f"{all_['gib']:.1f}", f"{step:.1f}"))
    title = f"LoRA, 0.6B parameters, bf16, batches of {args.batch_size} sentences of 32 tokens, {args.steps} steps"
    print(report("lora_memory", title, ("activations", "peak GiB", "CPU seconds per step"), rows, measured))


if __name__ == "__main__":
    main()
