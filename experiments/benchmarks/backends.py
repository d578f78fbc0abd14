"""The adapt recipe with all weights and with LoRA.

    python -m experiments.benchmarks.backends --model_name MODEL --data_dir ../shared/data --cache CACHE [--seeds 1 2 3]
    python -m experiments.benchmarks.backends ... --data stackoverflow --seeds 11 --rows LoRA --rates 5e-5 2e-4 5e-4

Each row of each seed is one run of `informin train --recipe adapt --distillation_weight 0`, scored on texts that it did
not see: every fourth StackOverflow title, and the test file of Banking77. Time is the CPU time of the whole run, which
other jobs on the machine hardly affect. It excludes computing the guide's embeddings, which are cached beforehand.
Memory is the peak resident set size. Finished runs are kept in CACHE, so an interrupted benchmark can resume.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from experiments.benchmarks.report import in_process, report

LORA_RATE = 2e-4
ROWS = {
    "native": {},
    "LoRA": {"lora_r": 16},
}
MEASURES = {
    "one_nn": "1-NN",
    "v_measure": "V-measure",
    "sts": "STS-B dev",
    "cpu_seconds": "CPU seconds",
    "peak_gib": "peak GiB",
}


def texts(data: str, folder: Path) -> tuple[list[str], list[str]]:
    """Return the training texts and the lines of the labeled test file."""
    if data == "banking77":
        train, test = (
            (folder / "domain" / f"banking77_{part}.tsv").read_text(encoding="utf-8").splitlines()
            for part in ("train", "test")
        )
        return [line.split("\t")[0] for line in train[1:]], test
    lines = (folder / "domain" / "stackoverflow.tsv").read_text(encoding="utf-8").splitlines()
    test = [lines[0], *lines[1::4]]
    return [line.split("\t")[0] for i, line in enumerate(lines[1:]) if i % 4], test


def score(model_name: str, labels: Path, senteval: Path) -> dict[str, float]:
    """Return the scores of a model."""
    from informin.evaluation.labels import load_labels, score_labels
    from informin.evaluation.pairs import score_pairs
    from informin.evaluation.senteval import load_stsb_dev
    from informin.model.embedding import encode_in_shares
    from informin.model.open import load_model

    model = load_model(model_name, max_seq_length=64)

    def encode(sentences):
        return encode_in_shares(model, sentences, title=None)

    found = score_labels(encode, load_labels(labels))
    sts = score_pairs(encode, load_stsb_dev(senteval))["spearman"]
    return {"one_nn": found["nearest_neighbor"], "v_measure": found["v_measure"], "sts": sts}


def run(args: argparse.Namespace, data: str, row: str, seed: int, rate: float) -> dict[str, float]:
    """Train and score once, or return the cached result."""
    cached = args.cache / f"{Path(args.model_name).name}-{data}-{row}-{rate:g}-seed{seed}.json"
    if cached.exists():
        return json.loads(cached.read_text())
    train, test = texts(data, args.data_dir)
    senteval = args.data_dir / "senteval"
    with tempfile.TemporaryDirectory() as folder:
        file, labels, out = Path(folder, "train.txt"), Path(folder, "test.tsv"), Path(folder, "run")
        file.write_text("\n".join(train), encoding="utf-8")
        labels.write_text("\n".join(test), encoding="utf-8")
        if row == "before":
            return _keep(cached, score(args.model_name, labels, senteval))
        options = dict(model_name=args.model_name, recipe="adapt", train_file=file, output_dir=out, seed=seed)
        options |= dict(learning_rate=rate, measure_drift=False, report_to="none", guide_cache=args.cache / "guide")
        options |= dict(distillation_weight=0) | ROWS[row]
        command = ["train", *(f"--{name}={value}" for name, value in options.items())]
        in_process("informin", *command, "--max_steps=1", f"--output_dir={folder}/first")  # caches the guide
        return _keep(cached, in_process("informin", *command) | score(str(out), labels, senteval))


def _keep(file: Path, found: dict[str, float]) -> dict[str, float]:
    file.write_text(json.dumps(found))
    print(file.stem, found, flush=True)
    return found


def main() -> None:
    """Run all rows and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name", required=True)
    parser.add_argument("--data_dir", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--data", nargs="+", default=["stackoverflow", "banking77"])
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=[*ROWS])
    parser.add_argument("--rates", nargs="+", type=float, help="Learning rates of LoRA. Default: the chosen one.")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    args = parser.parse_args()
    args.cache.mkdir(parents=True, exist_ok=True)
    lines, measured = [], {}
    for data in args.data:
        before = run(args, data, "before", 0, 0.0)
        lines.append((data, "before", *(f"{before[name]:.2f}" if name in before else "" for name in MEASURES)))
        for row in args.rows:
            for rate in (args.rates or [LORA_RATE]) if row == "LoRA" else [5e-5]:
                runs = [run(args, data, row, seed, rate) for seed in args.seeds]
                measured[f"{data} {row} {rate:g}"] = runs
                values = [[one[name] for one in runs] for name in MEASURES]
                shown = [
                    f"{statistics.mean(v):.2f}" + (f" ± {statistics.stdev(v):.2f}" if len(v) > 1 else "")
                    for v in values
                ]
                lines.append((data, f"{row}, {rate:g}", *shown))
    model = Path(args.model_name).name
    title = f"The adapt recipe without distillation on {model}, {len(args.seeds)} seeds: mean ± standard deviation"
    print(report(f"backends-{model}", title, ("data", "row, learning rate", *MEASURES.values()), lines, measured))


if __name__ == "__main__":
    main()
