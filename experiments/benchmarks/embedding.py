"""Compare runtimes that embed with one folder: speed, cosine to sentence-transformers, and nDCG@10.

    informin export --model_name MODEL --output_dir FOLDER --onnx --int8
    pip install openvino nncf fastembed
    OMP_NUM_THREADS=1 python -m experiments.benchmarks.embedding --model_name FOLDER --retrieval COLLECTION ...
    python -m experiments.benchmarks.embedding --gpu --model_name FOLDER --sentences FILE

Runtimes that are not installed are left out, and those that read an ONNX file need one in the folder. Sides in bf16 are
measured where `precision` auto means bf16. OpenVINO's int8 is static and calibrated on 100 random texts of the data;
ONNX Runtime's is dynamic.

All sides run in one process, with the same tokenizer, truncation and number of threads, and sort texts by length. Each
has the batch size, 8, 32 or 64, that is fastest for it on a ninth of the texts. In each round, all sides embed another
random part of the texts, one after the other, so that all texts are embedded once. Ratios are of the processor time of
a round, which other jobs on the machine hardly affect; on a GPU, of the clock. Documents and queries of a search
collection get the stored prompts.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from experiments.benchmarks.report import report, spread
from informin.evaluation.encode import unit
from informin.evaluation.retrieval import Collection, load_collection
from informin.fast.precision import native_precision
from informin.fast.speed import speed_up
from informin.model.embedding import side_prompt
from informin.publishing.export import ONNX_FILE, QUANTIZED
from informin.texts import read_texts

PLAIN = "sentence-transformers"
SIZES = {"cpu": (8, 32, 64), "cuda": (64, 256, 1_024)}  # batch sizes to choose from
CALIBRATION = 100  # texts
Encode = Callable[[list[str], int], np.ndarray]  # texts and a batch size
Run = Callable[[dict[str, np.ndarray]], np.ndarray]  # tokens of a batch
COLUMNS = ("", "batch", "texts/s", "speed (least to most)", "least cosine", "mean cosine", "nDCG@10", "change")


def installed_sides(folder: Path, device: str, calibration: list[str]) -> dict[str, Callable[[], Encode]]:
    """Return a function that opens the folder in each runtime that is installed and can read it."""
    opened = partial(SentenceTransformer, str(folder), device=device)
    plain = opened()  # also makes the tokens for graphs
    sides = {PLAIN: lambda: by_model(plain), "speed_up": lambda: by_model(speed_up(opened()))}
    if native_precision(device) == "bf16":
        sides[f"{PLAIN}, bf16"] = lambda: by_model(opened().bfloat16())
        sides["speed_up, bf16"] = lambda: by_model(speed_up(opened(), precision="bf16"))
    if device == "cuda":
        return sides
    file, quantized = folder / ONNX_FILE, folder / QUANTIZED
    if file.is_file() and find_spec("onnxruntime"):
        sides["ONNX Runtime"] = lambda: by_graph(plain, run_onnx(file))
    if quantized.is_file() and find_spec("onnxruntime"):
        sides["ONNX Runtime, int8"] = lambda: by_graph(plain, run_onnx(quantized))
    if file.is_file() and find_spec("openvino"):
        sides["OpenVINO"] = lambda: by_graph(plain, run_openvino(file))
    if file.is_file() and find_spec("openvino") and find_spec("nncf"):
        sides["OpenVINO, int8"] = lambda: by_graph(
            plain, run_openvino(file, [tokens_of(plain, [text]) for text in calibration])
        )
    if file.is_file() and find_spec("fastembed"):
        sides["fastembed"] = lambda: by_fastembed(folder, plain)
    if find_spec("optimum") and find_spec("optimum.intel"):
        threads = {"ov_config": {"INFERENCE_NUM_THREADS": str(torch.get_num_threads())}}
        sides[f"{PLAIN}, openvino"] = lambda: by_model(opened(backend="openvino", model_kwargs=threads))
    return sides


def by_model(model: SentenceTransformer) -> Encode:
    return lambda texts, size: model.encode(texts, batch_size=size, show_progress_bar=False)


def by_graph(model: SentenceTransformer, run: Run) -> Encode:
    """Embed with a function of tokens, in batches of similar length as in `encode`, and with its tokenizer."""

    def encode(texts: list[str], size: int) -> np.ndarray:
        order = np.argsort([-len(text) for text in texts], kind="stable")
        batches = (order[start : start + size] for start in range(0, len(order), size))
        parts = [run(tokens_of(model, [texts[i] for i in batch])) for batch in batches]
        return np.concatenate(parts)[np.argsort(order)]

    return encode


def by_fastembed(folder: Path, model: SentenceTransformer) -> Encode:
    """Embed with fastembed, which pools the first output, and which gets the texts by length, too."""
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    name = "informin/benchmark"
    how = {"normalization": True, "dim": model.get_embedding_dimension(), "model_file": ONNX_FILE}
    pooling = PoolingType(model[1].pooling_mode.upper())
    TextEmbedding.add_custom_model(name, pooling, sources=ModelSource(hf=name), **how)
    opened = TextEmbedding(name, specific_model_path=str(folder), threads=torch.get_num_threads())

    def encode(texts: list[str], size: int) -> np.ndarray:
        order = np.argsort([-len(text) for text in texts], kind="stable")
        vectors = opened.embed([texts[i] for i in order], batch_size=size)
        return np.stack(list(vectors))[np.argsort(order)]

    return encode


def tokens_of(model: SentenceTransformer, texts: list[str]) -> dict[str, np.ndarray]:
    """Return input_ids, attention_mask and, for some models, token_type_ids, each (N, L)."""
    return {name: value.numpy() for name, value in model.preprocess(texts).items() if isinstance(value, torch.Tensor)}


def run_onnx(file: Path) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    return lambda tokens: session.run(["sentence_embedding"], {name: tokens[name] for name in names})[0]


def run_openvino(file: Path, calibration: list[dict[str, np.ndarray]] | None = None) -> Run:
    """Run an ONNX file in OpenVINO, in 8 bits if there are batches to calibrate it on."""
    import openvino

    graph = openvino.Core().read_model(file)
    names = [value.get_any_name() for value in graph.inputs]
    if calibration:
        import nncf

        data = nncf.Dataset([{name: tokens[name] for name in names} for tokens in calibration])
        graph = nncf.quantize(graph, data, model_type=nncf.ModelType.TRANSFORMER, subset_size=len(calibration))
    compiled = openvino.compile_model(graph, "CPU", {"INFERENCE_NUM_THREADS": torch.get_num_threads()})
    return lambda tokens: compiled({name: tokens[name] for name in names})["sentence_embedding"]


def read_data(path: Path, model: SentenceTransformer, number: int) -> tuple[list[str], Collection | None]:
    """Return texts with their prompts: documents and queries of a collection, or the first lines of a file."""
    if not path.is_dir():
        return list(read_texts(path))[:number], None
    collection = load_collection(path)
    documents, queries = ((side_prompt(model, side) or "") for side in ("document", "query"))
    texts = [documents + text for text in collection.documents] + [queries + text for text in collection.queries]
    return texts, collection


def fastest_size(encode: Encode, texts: list[str], sizes: tuple[int, ...], clock: Callable[[], float]) -> int:
    """Return the fastest batch size, on every third of the largest batches that the texts give when sorted."""
    largest, ordered = max(sizes), sorted(texts, key=len)
    blocks = [ordered[start : start + largest] for start in range(0, len(ordered), largest)][1::3] or [ordered]
    encode(blocks[0], largest)  # the first call allocates memory
    seconds = np.array([[seconds_of(encode, block, size, clock)[0] for size in sizes] for block in blocks])
    return sizes[seconds.sum(0).argmin()]


def seconds_of(encode: Encode, texts: list[str], size: int, clock: Callable[[], float]) -> tuple[float, np.ndarray]:
    """Return the seconds that a side takes, and the embeddings."""
    start = clock()
    vectors = encode(texts, size)
    return clock() - start, vectors


def measure(sides: dict[str, Encode], texts: list[str], rounds: int, device: str) -> dict[str, dict]:
    """Return batch size, seconds of each round, and the embeddings of all texts, for each side."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    parts = np.array_split(np.random.default_rng(0).permutation(len(texts)), rounds)
    found: dict[str, dict] = {}
    for side, encode in sides.items():
        size = fastest_size(encode, [texts[i] for i in parts[0]], SIZES[device], clock)
        found[side] = {"batch": size, "seconds": [], "vectors": {}}
    for part in parts:
        for side, encode in sides.items():
            own = found[side]
            seconds, vectors = seconds_of(encode, [texts[i] for i in part], own["batch"], clock)
            own["seconds"].append(seconds)
            own["vectors"] |= dict(zip(part.tolist(), vectors))
            print(side, own["batch"], f"{len(part) / seconds:.1f} texts/s", flush=True)
    for own in found.values():
        own["vectors"] = np.stack([own["vectors"][i] for i in range(len(texts))])
    return found


def cells(found: dict[str, dict], side: str, collection: Collection | None) -> tuple[list[str], dict]:
    """Return the cells of a side in the table, and what was measured."""
    own, plain = found[side], found[PLAIN]
    ratios = [theirs / ours for theirs, ours in zip(plain["seconds"], own["seconds"])]
    cosines = (unit(own["vectors"]) * unit(plain["vectors"])).sum(1)
    speed = len(cosines) / sum(own["seconds"])
    row = [str(own["batch"]), f"{speed:.1f}", spread(ratios), f"{cosines.min():.6f}", f"{cosines.mean():.6f}"]
    kept = {name: own[name] for name in ("batch", "seconds")} | {"cosines": [cosines.min(), cosines.mean()]}
    if collection is None:
        return [*row, "", ""], kept
    ndcg, before = (ndcg_10(collection, one["vectors"]) for one in (own, plain))
    return [*row, f"{ndcg:.2f}", f"{ndcg - before:+.2f}"], kept | {"ndcg_10": ndcg}


def ndcg_10(collection: Collection, vectors: np.ndarray) -> float:
    """Return the nDCG@10 x 100 of embeddings of the documents and then the queries."""
    documents, queries = np.split(vectors, [len(collection.documents)])
    return float(collection.scores(collection.rank(queries, documents))["ndcg_10"].mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name", type=Path, required=True)
    parser.add_argument("--retrieval", type=Path, nargs="+", default=[], help="Folders of search collections.")
    parser.add_argument("--sentences", type=Path, nargs="+", default=[], help="Files of texts.")
    parser.add_argument("--number", type=int, default=2_000, help="Texts of a file.")
    parser.add_argument("--sides", nargs="+", help="Sides to measure beside sentence-transformers. Default: all.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gpu", action="store_true")
    args = parser.parse_args()
    device = "cuda" if args.gpu else "cpu"
    model = SentenceTransformer(str(args.model_name), device=device)
    data = {path: read_data(path, model, args.number) for path in (*args.retrieval, *args.sentences)}
    every = [text for texts, _ in data.values() for text in texts]
    chosen = np.random.default_rng(1).permutation(len(every))[:CALIBRATION]
    installed = installed_sides(args.model_name, device, [every[i] for i in chosen])
    sides = {side: installed[side]() for side in installed if side in (PLAIN, *(args.sides or installed))}
    rows, measured = [], {}
    for path, (texts, collection) in data.items():
        found = measure(sides, texts, args.rounds, device)
        for side in sides:
            row, measured[f"{path.name}: {side}"] = cells(found, side, collection)
            rows.append([f"{path.name}: {side}", *row])
            print(*rows[-1], flush=True)
    name, names = args.model_name.resolve().name, [path.name for path in data]
    title = f"Runtimes of {name}: {', '.join(names)}"
    print(report("-".join(("embedding", name, *names)), title, COLUMNS, rows, measured))


if __name__ == "__main__":
    main()
