"""Compare the speed of embedding here, with SentenceTransformer.encode and with the 8-bit ONNX file.

    python -m experiments.benchmarks.embedding --model_name MODEL [MODEL ...] --sentences FILE

Each round embeds the same sentences with every library in turn, in one process, with the default batch size of each
(32 in sentence-transformers, 64 here). Speedups are computed within a round, and the table shows their median. It
also shows the lowest cosine similarity to the embeddings of sentence-transformers. With bf16, both use autocast. The
8-bit model is exported with `informin export --onnx --int8`. With --gpu, sentence-transformers has batches of 256.
"""

import argparse
import statistics
import tempfile
import time
from contextlib import nullcontext
from itertools import product
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

from experiments.benchmarks.report import report, spread
from informin.model.embedding import encode_in_shares
from informin.model.open import load_model
from informin.publishing.onnx import export_onnx, quantize_onnx
from informin.texts import read_texts

SIDES = ("sentence-transformers", "here", "here, 8 bits")


def sides_of(model: str, pooler: str, length: int, bf16: bool, folder: str, device: str) -> dict:
    """Return a function that embeds sentences for each side. The 8-bit file is timed only with fp32."""
    encoder = Transformer(model, max_seq_length=length)
    modules = [encoder, Pooling(encoder.get_embedding_dimension(), pooling_mode=pooler)]
    theirs = SentenceTransformer(modules=modules, device=device)
    ours = load_model(model, pooler=pooler, max_seq_length=length, bf16=bf16, device=device)
    batch_size = 32 if device == "cpu" else 256

    def encode(sentences):
        with torch.autocast(device, torch.bfloat16) if bf16 else nullcontext():
            return theirs.encode(sentences, batch_size=batch_size, show_progress_bar=False)

    sides = {SIDES[0]: encode, SIDES[1]: lambda sentences: encode_in_shares(ours, sentences, title=None)}
    if not bf16 and device == "cpu":
        exported = Path(folder, f"{Path(model).name}-{pooler}")
        theirs.save_pretrained(str(exported))
        export_onnx(exported)
        session = onnxruntime.InferenceSession(str(quantize_onnx(exported)))
        sides[SIDES[2]] = lambda sentences: run_onnx(session, theirs, sentences)
    return sides


def run_onnx(session: onnxruntime.InferenceSession, model: SentenceTransformer, sentences: list[str]) -> np.ndarray:
    """Return the embeddings (N, d) of an ONNX file, with batches of 64 texts of similar length."""
    order = sorted(range(len(sentences)), key=lambda i: len(sentences[i]))
    names, parts = [value.name for value in session.get_inputs()], []
    for start in range(0, len(order), 64):
        rows = model.preprocess([sentences[i] for i in order[start : start + 64]])
        parts.append(session.run(["sentence_embedding"], {name: rows[name].numpy() for name in names})[0])
    return np.concatenate(parts)[np.argsort(order)]


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
    parser.add_argument("--gpu", action="store_true")
    args = parser.parse_args()
    sentences = list(read_texts(args.sentences))[: args.number]
    measured, rows = {}, []
    with tempfile.TemporaryDirectory() as folder:
        for model in args.model_name:
            for pooler, precision in product(args.pooler, ("fp32", "bf16")):
                sides = sides_of(model, pooler, args.length, precision == "bf16", folder, "cuda" if args.gpu else "cpu")
                first = {side: encode(sentences[:128]) for side, encode in sides.items()}  # warm-up and comparison
                seconds = {side: [] for side in sides}
                for _ in range(args.rounds):
                    for side, encode in sides.items():
                        start = time.perf_counter()
                        encode(sentences)
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
