"""Training on the documents of test collections without labels: crops with and without the guide, and the adapt recipe.

    python -m experiments.documents --model_name MODEL ... --retrieval FOLDER ... --output OUT

Each model trains on the documents of each collection, 45 steps of 32, and is scored on its queries: nDCG@10 of the
vectors and of the index, which adds BM25. STS-B dev shows what is lost outside. A model that needs prompts has them in
its config_sentence_transformers.json, as `prompts` `query` and `document`; it trains with that of documents.

Finished runs are skipped. The output has results.json and table.md.
"""

import argparse
import shutil
import statistics
import time
from itertools import product
from pathlib import Path

from experiments.tables import markdown
from informin import InforMinTrainer, load_model, recipe
from informin.evaluation.evaluate import Tasks, load_tasks, score_model
from informin.evaluation.pairs import score_pairs
from informin.evaluation.retrieval import load_collection
from informin.evaluation.senteval import load_stsb_dev, senteval_folder
from informin.files import last_name, read_json, write_json
from informin.frozen.rankings import SearchRankings
from informin.model.embedding import encode_in_shares

CROPS = {"objective": "simcse", "view": "crop", "guided_weight": 0, "guided_neighbors": 0, "learning_rate": 3e-5}
RUNS = {  # options that differ from the recipe
    "crops": CROPS | {"distillation_weight": 0, "replay_weight": 0},
    "crops, distillation and replay": CROPS,
    "crops, guided negatives, distillation and replay": CROPS | {"false_negative_fraction": 0.05},
    "adapt": {},
}
COLUMNS = ("vectors", "index", "STS-B dev")
BEFORE = "before training"


def train(
    model: str, documents: list[str], prompt: str | None, name: str, seed: int, folder: Path, bf16: bool
) -> float:
    """Train a run, export it to its folder, and return the processor seconds of training."""
    how = recipe(
        "adapt",
        output_dir=str(folder),
        guide_cache=str(folder.parent / "guide"),  # of all runs
        seed=seed,
        per_device_train_batch_size=32,
        max_steps=45,
        max_seq_length=128,
        prompt=prompt,
        bf16=bf16,
        measure_drift=False,
        **RUNS[name],
    )
    trainer = InforMinTrainer(model, train_dataset=documents, **how)
    start = time.process_time()
    trainer.train()
    seconds = time.process_time() - start
    trainer.export(report=False)
    return seconds


def score(folder: str | Path, tasks: Tasks, pairs) -> dict[str, float]:
    """Return nDCG@10 of the vectors and of the index, and the correlation on STS-B dev."""
    model = load_model(folder)
    (entry,) = score_model(model, tasks, rankings=SearchRankings()).tasks.values()
    prompts = getattr(model, "prompts", {})

    def encode(texts):
        return encode_in_shares(model, [prompts.get("query", "") + text for text in texts], title=None)

    found = (
        entry["measures"]["ndcg_10"],
        entry["with_words"]["measures"]["ndcg_10"],
        score_pairs(encode, pairs)["spearman"],
    )
    return dict(zip(COLUMNS, found, strict=True))


def table(runs: dict[str, dict[str, dict[str, float]]]) -> str:
    """Return the mean changes over seeds, with standard deviations, in Markdown."""
    rows: list[list[object]] = []
    for cell, scores in runs.items():
        before = scores[BEFORE]
        rows.append([cell, BEFORE, *(f"{before[column]:.2f}" for column in COLUMNS), None])
        for name in RUNS:
            of_name = [run for key, run in scores.items() if key.rpartition(" seed ")[0] == name]
            if not of_name:
                continue
            row: list[object] = [None, f"{name} ({len(of_name)})"]
            for column in COLUMNS:
                changes = [run[column] - before[column] for run in of_name]
                spread = f" ± {statistics.stdev(changes):.2f}" if len(changes) > 1 else ""
                row.append(f"{statistics.mean(changes):+.2f}{spread}")
            rows.append([*row, round(statistics.mean(run["seconds"] for run in of_name))])
    return markdown("Trained on documents: change (seeds)", ["", "", *COLUMNS, "CPU seconds"], rows)


def main() -> None:
    """Train and score what is not finished, ordered by seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model_name", nargs="+", required=True, help="Folders or Hub ids of sentence-transformers models.")
    add("--retrieval", nargs="+", required=True, metavar="FOLDER", help="Collections.")
    add("--senteval_dir", help="SentEval's data/downstream. Default: as informin eval.")
    add("--runs", nargs="+", choices=RUNS, default=[*RUNS], metavar="NAME", help="Default: all.")
    add("--seeds", nargs="+", type=int, default=[1, 2, 3])
    add("--bf16", action="store_true", help="Train in bf16. Models are scored in fp32.")
    add("--output", required=True, help="Folder of the results.")
    args = parser.parse_args()
    folder = Path(args.output)
    file = folder / "results.json"
    runs: dict[str, dict[str, dict[str, float]]] = read_json(file) if file.exists() else {}
    pairs = load_stsb_dev(senteval_folder(args.senteval_dir))
    folder.mkdir(parents=True, exist_ok=True)
    for seed, model, source in product(args.seeds, args.model_name, args.retrieval):
        collection = load_collection(source)
        cell = f"{last_name(model)}, {collection.name}"
        tasks = load_tasks(None, [], retrieval=[source])
        prompt = getattr(load_model(model), "prompts", {}).get("document") or None
        scores = runs.setdefault(cell, {})
        keys = {BEFORE: BEFORE} | {name: f"{name} seed {seed}" for name in args.runs}
        for name, key in keys.items():
            if key in scores:
                continue
            run = folder / f"{cell} {key}".replace(", ", "-").replace(" ", "-")
            if name == BEFORE:
                scores[key] = score(model, tasks, pairs)
            else:
                seconds = train(model, collection.documents, prompt, name, seed, run, args.bf16)
                scores[key] = score(run, tasks, pairs) | {"seconds": seconds}
                shutil.rmtree(run)
            write_json(file, runs)
            print(cell, key, scores[key], flush=True)
    text = table(runs)
    (folder / "table.md").write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
