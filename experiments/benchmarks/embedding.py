"""Compare the speed of embedding here, with SentenceTransformer.encode and with the 8-bit ONNX file.

    python benchmarks/embedding.py --model_name MODEL [MODEL ...] --sentences FILE

Each round embeds the same sentences with every library in turn, in one process, with the default batch size of each
(32 in sentence-transformers, 64 here). Speedups are computed within a round, and the table shows their median. It
also shows the lowest cosine similarity to the embeddings of sentence-transformers. With bf16, both use autocast. The
8-bit model is exported with `informin export --onnx --int8`.
"""

import argparse
import statistics
import sys
import tempfile
import time
from contextlib import nullcontext
from itertools import product
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import numpy as np
import torch
from report import report, spread

from informin.models.checkpoint import Checkpoint
from informin.models.native_loading import load_tokenizer, load_trainable
from informin.models.open_model import in_memory, load_model
from informin.publishing.export import export_folder
from informin.publishing.onnx import QUANTIZED, export_onnx, load_onnx_encoder, quantize_onnx
from informin.textfiles import read_sentences

SIDES = ("sentence-transformers", "here", "here, 8 bits")


def sides_of(model: str, pooler: str, length: int, bf16: bool, folder: str) -> dict:
    """Return a function that embeds sentences for each side. The 8-bit file is timed only with fp32."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer

    encoder = Transformer(model, max_seq_length=length)
    modules = [encoder, Pooling(encoder.get_embedding_dimension(), pooling_mode=pooler)]
    theirs = SentenceTransformer(modules=modules, device="cpu")
    ours = load_model(model, (pooler,), length=length, bf16=bf16)

    def encode(sentences):
        with torch.autocast("cpu", torch.bfloat16) if bf16 else nullcontext():
            return theirs.encode(sentences, show_progress_bar=False)

    sides = {SIDES[0]: encode, SIDES[1]: lambda sentences: ours(sentences)[pooler]}
    if not bf16:
        exported = Path(folder, f"{Path(model).name}-{pooler}")
        settings = {"pooling": pooler, "projection_head": "none", "lm_head": False, "max_seq_length": length}
        export_folder(
            in_memory(load_trainable(Checkpoint(model), settings), load_tokenizer(Checkpoint(model))), exported
        )
        export_onnx(exported)
        quantize_onnx(exported)
        sides[SIDES[2]] = load_onnx_encoder(exported, QUANTIZED)
    return sides


def least_cosine(x: np.ndarray, y: np.ndarray) -> float:
    """Return the smallest cosine between the two embeddings of a sentence, both (N, d)."""
    x, y = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (x, y))
    return float((x * y).sum(1).min())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name", nargs="+", required=True)
    parser.add_argument("--sentences", required=True)
    parser.add_argument("--pooler", nargs="+", choices=["cls", "mean"], default=["cls", "mean"])
    parser.add_argument("--number", type=int, default=2000)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    sentences = [line for line in read_sentences(Path(args.sentences), None) if line.strip()][: args.number]
    measured, rows = {}, []
    with tempfile.TemporaryDirectory() as folder:
        for model in args.model_name:
            for pooler, precision in product(args.pooler, ("fp32", "bf16")):
                sides = sides_of(model, pooler, args.length, precision == "bf16", folder)
                first = {side: embed(sentences[:128]) for side, embed in sides.items()}  # warm-up and comparison
                seconds = {side: [] for side in sides}
                for _ in range(args.rounds):
                    for side, embed in sides.items():
                        start = time.perf_counter()
                        embed(sentences)
                        seconds[side].append(time.perf_counter() - start)
                name = f"{Path(model).name}, {pooler}, {precision}"
                measured[name] = seconds
                for side, own in seconds.items():
                    ratios = [other / mine for mine, other in zip(own, seconds[SIDES[0]])]
                    cosine = least_cosine(first[side], first[SIDES[0]])
                    speed = len(sentences) / statistics.median(own)
                    rows.append([f"{name}: {side}", f"{speed:.0f}", spread(ratios), f"{cosine:.4f}"])
    title = f"Embedding, {len(sentences):,} sentences, {args.rounds} rounds"
    columns = ("", "sentences/s", "ratio to sentence-transformers (least to most)", "least cosine to its embeddings")
    print(report("embedding", title, columns, rows, measured))


if __name__ == "__main__":
    main()
