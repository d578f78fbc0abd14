"""Measure search by the number of dimensions, and with int8 and bits, against what `informin fit` predicts.

    python benchmarks/widths.py --model_name MODEL[:POOLER] ... --data_dir SHARED/data --cache FOLDER \
        --output results/widths.json

nDCG@10 on CISI and NPL with the first dimensions of the original vectors, of their PCA, and of the adapter (preset
documents), which is rotated to the principal axes. `predicted` is the adapter's score at full width, times the
nDCG@10 of the halves of held-out texts at this width, over that at full width. Documents are quantized with
quantize_embeddings of sentence-transformers, and queries are floats. `adapter, bits` has rotation="bits".
A model folder without config.json is read as the unpacked wordllama package, and a folder whose parent is named e5 gets
the prompts of E5.
"""

import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from sentence_transformers.util.quantization import quantize_embeddings
from sklearn.decomposition import PCA

from benchmarks.prediction import Data, arguments, cached, encoder_of, label_of, load_data, sides
from benchmarks.report import machine
from informin.adapters.linear import LinearAdapter
from informin.adapters.prediction import PRESETS, make_tests, shortest
from informin.evaluation.geometry import unit
from informin.files import write_json

SHARES = (1, 1 / 2, 3 / 8, 1 / 4, 1 / 8)


def pseudo_ndcg(log_ranks: np.ndarray) -> float:
    """Return nDCG@10 with one right answer per query, from the logs of its ranks."""
    ranks = np.exp(log_ranks)
    return float(np.where(ranks < 10.5, 1 / np.log2(1 + ranks), 0).mean())


def quantized(data: Data, documents: np.ndarray, queries: np.ndarray) -> dict[str, float]:
    """Return nDCG@10 with documents in int8 and in bits, and with queries in bits, too."""
    documents, queries = unit(documents).astype(np.float32), unit(queries).astype(np.float32)
    ranges = np.vstack([documents.min(0), documents.max(0)])
    steps = (ranges[1] - ranges[0]) / 255
    numbers = quantize_embeddings(documents, precision="int8", ranges=ranges)
    restored = (numbers.astype(np.float32) + 128) * steps + ranges[0]
    signs, own = (2.0 * np.unpackbits(quantize_embeddings(x, precision="ubinary"), axis=1)[:, : x.shape[1]] - 1
                  for x in (documents, queries))  # fmt: skip
    pairs = {"int8": (restored, queries), "bits": (signs, queries), "bits of both": (signs, own)}
    return {name: float(data.score(*pair).mean()) for name, pair in pairs.items()}


def cell(name: str, data: Data, cache: Path) -> dict:
    """Measure a model on a collection."""
    query, document = sides(cached(encoder_of(name), name, cache), name, data)
    x, q = document(data.texts), query(data.scored)
    test = make_tests(data.texts, x, document, query)[0]
    held_out = LinearAdapter(**PRESETS["documents"]).fit(test.fit_on)
    adapter, pca = LinearAdapter(**PRESETS["documents"]).fit(x), PCA().fit(unit(x))
    a, b = adapter.transform(x), adapter.transform(q)
    full, most = pseudo_ndcg(test.log_ranks(held_out)), x.shape[1]
    whole, rows = float(data.score(a, b).mean()), []
    for width in (round(most * share) for share in SHARES):
        axes = pca.components_[:width].T
        predicted = whole * pseudo_ndcg(test.log_ranks(held_out.cut(width))) / full
        rows.append({
            "width": width, "first": float(data.score(x[:, :width], q[:, :width]).mean()),
            "pca": float(data.score(unit(x) @ axes, unit(q) @ axes).mean()),
            "adapter": float(data.score(a[:, :width], b[:, :width]).mean()), "predicted": predicted,
        })  # fmt: skip
    rotated = LinearAdapter(**PRESETS["documents"], rotation="bits").fit(x)
    bits = {"original": quantized(data, x, q), "adapter": quantized(data, a, b),
            "adapter, bits": quantized(data, rotated.transform(x), rotated.transform(q))}  # fmt: skip
    return {"model": label_of(name), "data": data.name, "widths": rows, "bits": bits,
            "auto": shortest(test.curve(held_out)), "whole": whole}  # fmt: skip


def width_table(cells: list[dict]) -> str:
    """Return nDCG@10 by width."""
    lines = ["| model | data | width | first dimensions | PCA | adapter | predicted | difference |",
             "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |"]  # fmt: skip
    for one in cells:
        for row in one["widths"]:
            scores = " | ".join(f"{row[key]:.2f}" for key in ("first", "pca", "adapter", "predicted"))
            difference = row["predicted"] - row["adapter"]
            lines.append(f"| {one['model']} | {one['data']} | {row['width']} | {scores} | {difference:+.2f} |")
    return "\n".join(lines)


def bit_table(cells: list[dict]) -> str:
    """Return nDCG@10 with quantized documents."""
    keys = ("int8", "bits", "bits of both")
    lines = [f"| model | data | vectors | floats | {' | '.join(keys)} |", f"| --- | --- | --- |{' ---: |' * 4}"]
    for one in cells:
        for vectors, found in one["bits"].items():
            whole = one["widths"][0]["first"] if vectors == "original" else one["whole"]
            scores = " | ".join(f"{found[key]:.2f}" for key in keys)
            lines.append(f"| {one['model']} | {one['data']} | {vectors} | {whole:.2f} | {scores} |")
    return "\n".join(lines)


def main() -> int:
    """Measure all cells and print the tables."""
    args = arguments(__doc__)
    cells: list[dict] = []
    for data in load_data(args.data_dir):
        for name in args.model_name if data.classes is None else ():
            cells.append(cell(name, data, args.cache))
            print(cells[-1], flush=True)
    write_json(args.output, {"machine": machine(), "cells": cells})
    print(width_table(cells), bit_table(cells), sep="\n\n")
    for one in cells:
        print(f"{one['model']}, {one['data']}: --dimension auto is {one['auto']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
