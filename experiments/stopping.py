"""Scores of a run of the adapt recipe along its steps, beside what can be measured without labels.

    python -m experiments.stopping --model_name MODEL --train_file FILE --labels FILE --output OUT

Each checkpoint is scored on the labels and on STS-B dev. Two measures need no labels: the share of the 10 nearest
neighbors that 2,000 training sentences keep, since the previous checkpoint and since the start.

Finished seeds are skipped. The output has results.json and table.md for each train file.
"""

import argparse
import shutil
import statistics
from pathlib import Path

from experiments.tables import markdown
from informin import InforMinTrainer, recipe
from informin.evaluation.drift import draw, measure_drift
from informin.evaluation.evaluate import load_tasks, score_model
from informin.evaluation.pairs import score_pairs
from informin.evaluation.senteval import load_stsb_dev, senteval_folder
from informin.files import read_json, write_json
from informin.model.embedding import encode_in_shares
from informin.model.open import load_model
from informin.texts import read_texts

COLUMNS = ("nearest_neighbor", "v_measure", "STS-B dev", "kept since the start", "kept since the last checkpoint")


def encoder_of(model):
    """Return the function that embeds texts, without a progress bar."""
    return lambda texts: encode_in_shares(model, texts, title=None)


def scored_steps(args: argparse.Namespace, sentences: list[str], seed: int, run: Path) -> dict[str, dict[str, float]]:
    """Train with a seed and return the scores of each checkpoint by its step, with those before training at step 0."""
    how = recipe(
        "adapt",
        output_dir=str(run),
        guide_cache=str(run.parent / "guide"),  # of all seeds
        seed=seed,
        max_steps=args.steps,
        save_strategy="steps",
        save_steps=args.every,
        save_total_limit=args.steps,
        bf16=False,
        measure_drift=False,
        max_seq_length=32,
    )
    InforMinTrainer(args.model_name, train_dataset=sentences, **how).train()
    tasks = load_tasks(None, [], labels=[args.labels])
    pairs = load_stsb_dev(senteval_folder(args.senteval_dir))
    texts = draw(sentences)
    start = last = load_model(args.model_name)
    found = {}
    for step in range(0, args.steps + 1, args.every):
        model = load_model(run / f"checkpoint-{step}") if step else start
        (task,) = score_model(model, tasks).tasks.values()
        kept = [measure_drift(encoder_of(old), encoder_of(model), texts).new["neighbors_kept"] for old in (start, last)]
        dev = score_pairs(encoder_of(model), pairs)["spearman"]
        measures = task["measures"]
        found[str(step)] = dict(zip(COLUMNS, (measures[COLUMNS[0]], measures[COLUMNS[1]], dev, *kept), strict=True))
        last = model
        print(seed, step, found[str(step)], flush=True)
    return found


def table(runs: dict[str, dict[str, dict[str, float]]], train_file: str) -> str:
    """Return the mean over seeds of each step, with standard deviations, in Markdown."""
    rows: list[list[object]] = []
    for step in next(iter(runs.values())):
        row: list[object] = [step]
        for column in COLUMNS:
            values = [run[step][column] for run in runs.values()]
            spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 and step != "0" else ""
            row.append(f"{statistics.mean(values):.2f}{spread}")
        rows.append(row)
    return markdown(f"Trained on {train_file}: mean over {len(runs)} seeds", ["step", *COLUMNS], rows)


def main() -> None:
    """Train and score the seeds that are not finished."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model_name", required=True, help="Folder or Hub id of a sentence-transformers model.")
    add("--train_file", required=True, metavar="FILE", help="Texts of the domain: TXT, or TSV or CSV, column text.")
    add("--labels", required=True, metavar="FILE", help="Labeled texts of the domain.")
    add("--senteval_dir", help="SentEval's data/downstream. Default: as informin eval.")
    add("--steps", type=int, default=80, help="Steps of a run. The learning rate falls to 0 at the last one.")
    add("--every", type=int, default=20, help="Steps between checkpoints.")
    add("--seeds", nargs="+", type=int, default=[1, 2, 3])
    add("--output", required=True, help="Folder of the results.")
    args = parser.parse_args()
    folder = Path(args.output, Path(args.train_file).stem)
    file = folder / "results.json"
    runs = read_json(file) if file.exists() else {}
    sentences = list(read_texts(args.train_file))
    for seed in args.seeds:
        if str(seed) not in runs:
            run = folder / f"seed{seed}"
            runs[str(seed)] = scored_steps(args, sentences, seed, run)
            write_json(file, runs)
            shutil.rmtree(run)
    text = table(runs, Path(args.train_file).name)
    (folder / "table.md").write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
