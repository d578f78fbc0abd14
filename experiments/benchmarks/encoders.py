"""Time of training steps and of `encode`, here and with sentence-transformers, for several kinds of encoders.

    python -m experiments.benchmarks.encoders --train_file FILE --tokenizer FOLDER [--kinds modernbert distilbert]

The encoders have the sizes of ModernBERT-base, DistilBERT-base and XLM-R-base and random weights, or are those of a
folder; all have the tokenizer of a folder, so that lengths are equal. Both sides train SimCSE with mean pooling, in
fp32, without a projection head, with learning rate 3e-5 and gradient clipping at norm 1, and embed the same sentences.
Training cuts them at 32 tokens, embedding at 256.
Ratios are those of the time on the clock, which only a quiet machine shows, and those of the processor's time
(`..._cpu`), which other jobs change little, but which counts waiting threads. Both sides take turns, and the result has
the median of the ratios over rounds.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from informin.texts import read_texts

KINDS: dict[str, dict[str, Any]] = {
    "modernbert": {"attention_dropout": 0.1, "mlp_dropout": 0.1, "embedding_dropout": 0.1},  # 0 by default
    "distilbert": {},
    "xlm-roberta": {"vocab_size": 250_002, "max_position_embeddings": 514, "pad_token_id": 0},
}


def save_encoder(kind: str, tokenizer: str, folder: Path) -> str:
    """Save an encoder of the default sizes of its architecture with random weights."""
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    words = AutoTokenizer.from_pretrained(tokenizer)
    special = {
        "pad_token_id": words.pad_token_id,
        "cls_token_id": words.cls_token_id,
        "sep_token_id": words.sep_token_id,
    }
    sizes = KINDS[kind] | ({"vocab_size": len(words)} if "vocab_size" not in KINDS[kind] else {})
    torch.manual_seed(0)
    AutoModel.from_config(AutoConfig.for_model(kind, **special | sizes)).save_pretrained(folder)
    words.save_pretrained(folder)
    return str(folder)


def shared(args: argparse.Namespace) -> dict[str, Any]:
    """Return the training arguments of both sides."""
    return {
        "per_device_train_batch_size": args.batch_size,
        "max_steps": args.steps,
        "learning_rate": 3e-5,
        "bf16": False,
        "use_cpu": True,
        "eval_strategy": "no",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "seed": 1,
    }


def model_of(name: str, length: int = 32) -> Any:
    """Return a SentenceTransformer with mean pooling and a maximum length."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer

    if Path(name, "modules.json").exists():
        model = SentenceTransformer(name, device="cpu")
    else:
        transformer = Transformer(name)
        pooling = Pooling(transformer.get_embedding_dimension(), pooling_mode="mean")
        model = SentenceTransformer(modules=[transformer, pooling], device="cpu")
    model.max_seq_length = length
    return model


def trainer_here(name: str, lines: list[str], folder: str, args: argparse.Namespace) -> Any:
    """Return our trainer."""
    from informin.training.arguments import InforMinTrainingArguments
    from trainer_informin import InforMinTrainer

    options = {"objective": "simcse", "projection_head": "none", "max_seq_length": 32}
    arguments = InforMinTrainingArguments(folder, **options, **shared(args))
    return InforMinTrainer(model_of(name), arguments, train_dataset=lines)


def trainer_there(name: str, lines: list[str], folder: str, args: argparse.Namespace) -> Any:
    """Return the trainer of sentence-transformers."""
    from datasets import Dataset
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    model = model_of(name)
    return SentenceTransformerTrainer(
        model=model,
        args=SentenceTransformerTrainingArguments(folder, **shared(args)),
        train_dataset=Dataset.from_dict({"anchor": lines, "positive": lines}),
        loss=MultipleNegativesRankingLoss(model),
    )


def seconds(work: Any) -> np.ndarray:
    """Return the time on the clock and the processor time of a call."""
    start = np.array([time.perf_counter(), time.process_time()])
    work()
    return np.array([time.perf_counter(), time.process_time()]) - start


def ratios(name: str, args: argparse.Namespace) -> dict[str, float]:
    """Return seconds there divided by seconds here, for training and for `encode`, and the seconds here."""
    from informin.fast.speed import speed_up

    lines = list(read_texts(args.train_file))
    training, embedding = lines[: args.batch_size * args.steps], lines[: args.texts]
    found: dict[str, list[float]] = defaultdict(list)
    plain, fast = model_of(name, 256), speed_up(model_of(name, 256))
    fast.encode(embedding[:8])
    for _ in range(args.rounds):
        with tempfile.TemporaryDirectory() as folder:
            there = seconds(trainer_there(name, training, folder, args).train)
            here = seconds(trainer_here(name, training, folder, args).train)
        add(found, "train", here, there)
        here = seconds(lambda: fast.encode(embedding))
        add(found, "encode", here, seconds(lambda: plain.encode(embedding)))
    return {key: round(statistics.median(values), 2) for key, values in found.items()}


def add(found: dict[str, list[float]], work: str, here: np.ndarray, there: np.ndarray) -> None:
    """Add the ratios of one round to those of the others."""
    ratio, cpu_ratio = there / here
    found[work].append(ratio)
    found[f"{work}_cpu"].append(cpu_ratio)
    found[f"{work}_seconds_here"].append(here[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train_file", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), help="Architectures, or folders of models.")
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--texts", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        for kind in args.kinds:
            name = save_encoder(kind, args.tokenizer, Path(work, kind)) if kind in KINDS else kind
            result = {"kind": Path(kind).name, "threads": torch.get_num_threads()} | ratios(name, args)
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
