"""The adapt recipe with replay, merged with the model before training, and with its last two layers only.

    python -m experiments.merging --model_name MODEL --train_file FILE --labels FILE ... --retrieval FOLDER --output OUT

--train_file is the domain; the first of --labels belongs to it and shows the gain. The other labels, the collection and
STS-B dev show what is lost outside. A run is scored with its weights, and without replay also with the mean of the
weights before and after training. `last 2` trains the last two layers and reads the others without dropout.

Finished runs are skipped. The output has results.json and table.md for each train file.
"""

import argparse
import shutil
import statistics
import time
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from torch import nn

from experiments.tables import markdown
from informin import InforMinTrainer, recipe
from informin.evaluation.evaluate import Tasks, load_tasks, score_model
from informin.evaluation.pairs import score_pairs
from informin.evaluation.senteval import load_stsb_dev, senteval_folder
from informin.files import read_json, write_json
from informin.model.embedding import encode_in_shares
from informin.model.open import load_model
from informin.texts import read_texts

RUNS = {  # options that differ from the recipe, and whether only the last two layers are trained
    "adapt": ({}, False),
    "no replay": ({"replay_weight": 0}, False),
    "adapt, last 2": ({}, True),
}
MERGED, WEIGHT = "no replay", 0.5  # the run that is also scored merged, and the weight of the trained model
MEASURES = ("nearest_neighbor", "v_measure", "ndcg_10")
BEFORE = "before"


def freeze_first_layers(model: nn.Module, trained: int = 2) -> None:
    """Let training change only the last layers of a BERT encoder, and read the others without dropout."""
    layers = next(module for name, module in model.named_modules() if name.endswith("encoder.layer"))
    embeddings = next(module for name, module in model.named_modules() if name.endswith("embeddings"))
    for module in (embeddings, *layers[:-trained]):
        module.requires_grad_(False)
        for dropout in module.modules():
            if isinstance(dropout, nn.Dropout):
                dropout.p = 0.0


def train(model: str, sentences: list[str], name: str, seed: int, folder: Path) -> tuple[Path, float]:
    """Train a run and return the folder of its model and its processor seconds."""
    options, last_only = RUNS[name]
    how = recipe(
        "adapt",
        output_dir=str(folder),
        guide_cache=str(folder.parent / "guide"),  # of all runs
        seed=seed,
        bf16=False,
        measure_drift=False,
        max_seq_length=32,
        **options,
    )
    trainer = InforMinTrainer(model, train_dataset=sentences, **how)
    if last_only:
        freeze_first_layers(trainer.model)
    start = time.process_time()
    trainer.train()
    seconds = time.process_time() - start
    trainer.export(report=False)
    return folder, seconds


def merged(before: SentenceTransformer, after: SentenceTransformer) -> SentenceTransformer:
    """Return `after` with `WEIGHT` times its own weights plus 1 - `WEIGHT` times those of `before`."""
    old = before.state_dict()
    with torch.no_grad():
        for name, parameter in after.named_parameters():
            parameter.lerp_(old[name], 1 - WEIGHT)
    return after


def score(model: SentenceTransformer, tasks: Tasks, pairs) -> dict[str, float]:
    """Return the scores of a model by task and measure."""
    results = score_model(model, tasks)
    scores = {
        f"{task} {measure}": entry["measures"][measure]
        for task, entry in results.tasks.items()
        for measure in MEASURES
        if measure in entry["measures"]
    }
    return scores | {
        "STS-B dev": score_pairs(lambda texts: encode_in_shares(model, texts, title=None), pairs)["spearman"]
    }


def table(runs: dict[str, dict[str, float]], train_file: str) -> str:
    """Return the mean changes over seeds, with standard deviations, in Markdown."""
    before = runs[BEFORE]
    names = list(dict.fromkeys(key.rpartition(" seed ")[0] for key in runs if key != BEFORE))
    rows: list[list[object]] = [[BEFORE, *(f"{before[column]:.2f}" for column in before), None]]
    for name in names:
        of_name = [run for key, run in runs.items() if key.rpartition(" seed ")[0] == name]
        row: list[object] = [f"{name} ({len(of_name)})"]
        for column in before:
            changes = [run[column] - before[column] for run in of_name]
            spread = f" ± {statistics.stdev(changes):.2f}" if len(changes) > 1 else ""
            row.append(f"{statistics.mean(changes):+.2f}{spread}")
        seconds = [run["seconds"] for run in of_name if "seconds" in run]
        rows.append([*row, round(statistics.mean(seconds)) if seconds else None])
    return markdown(f"Trained on {train_file}: change (seeds)", ["", *before, "CPU seconds"], rows)


def main() -> None:
    """Train, merge and score what is not finished, ordered by seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model_name", required=True, help="Folder or Hub id of a sentence-transformers model.")
    add(
        "--train_file",
        required=True,
        metavar="FILE",
        help="Texts of the domain: TXT, or TSV or CSV with a column text.",
    )
    add("--labels", nargs="+", required=True, metavar="FILE", help="Labeled files; the first is of the domain.")
    add("--retrieval", nargs="*", default=[], metavar="FOLDER", help="Collections.")
    add("--senteval_dir", help="SentEval's data/downstream. Default: as informin eval.")
    add("--seeds", nargs="+", type=int, default=[1, 2, 3])
    add("--output", required=True, help="Folder of the results.")
    args = parser.parse_args()
    folder = Path(args.output, Path(args.train_file).stem)
    file = folder / "results.json"
    runs: dict[str, dict[str, float]] = read_json(file) if file.exists() else {}
    tasks = load_tasks(None, [], labels=args.labels, retrieval=args.retrieval)
    pairs = load_stsb_dev(senteval_folder(args.senteval_dir))
    sentences = list(read_texts(args.train_file))
    folder.mkdir(parents=True, exist_ok=True)

    def save(key: str, scores: dict[str, float]) -> None:
        runs[key] = scores
        write_json(file, runs)
        print(key, scores, flush=True)

    if BEFORE not in runs:
        save(BEFORE, score(load_model(args.model_name), tasks, pairs))
    for seed in args.seeds:
        for name in RUNS:
            if (key := f"{name} seed {seed}") in runs:
                continue
            run = folder / key.replace(" ", "-")
            model, seconds = train(args.model_name, sentences, name, seed, run)
            if name == MERGED:
                both = merged(load_model(args.model_name), load_model(model))
                save(f"{name}, merged {WEIGHT:g} seed {seed}", score(both, tasks, pairs))
            save(key, score(load_model(model), tasks, pairs) | {"seconds": seconds})
            shutil.rmtree(run)
    (folder / "table.md").write_text(table(runs, Path(args.train_file).name) + "\n", encoding="utf-8")
    print(table(runs, Path(args.train_file).name))


if __name__ == "__main__":
    main()
