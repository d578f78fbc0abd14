"""Adapt a good encoder to the sentences of a domain, without labels, with methods that differ from ours.

    python -m experiments.benchmarks.adaptation --model_name MODEL --train_file FILE --labels FILE ... --output PEERS
    python -m experiments.benchmarks.adaptation --output PEERS --table STUDIES/adaptation/summary.json

Our own rows come from `python -m experiments.study experiments/configs/adaptation.yaml --output STUDIES`. The peers are
the unsupervised losses of sentence-transformers, trained with its own trainer at its documented learning rates, on the
same sentences: 80 steps of batch size 64, 32 tokens, linear decay without warm-up, encoder in bf16 and loss in float32.
All are scored like `informin eval`, with STS-B dev under bf16 as in our training.

A run has the folder PEERS/PEER/TRAINFILE/seedN with results.json; its weights are deleted after scoring. Finished runs
are skipped. --table saves all finished runs to PEERS/summary.json and their tables to PEERS/table.md.
"""

import argparse
import shutil
from pathlib import Path

from experiments.benchmarks.adaptation_peers import BEFORE, PEERS, train
from experiments.benchmarks.adaptation_table import save_tables
from informin.evaluation.evaluate import Tasks, load_tasks, score_model
from informin.evaluation.pairs import score_pairs
from informin.evaluation.senteval import STS_TASKS, load_stsb_dev, senteval_folder
from informin.files import read_json, write_json
from informin.model.embedding import encode_in_shares
from informin.model.open import load_model
from informin.texts import read_texts


def run(name: str, seed: int | None, args: argparse.Namespace, tasks: Tasks, sentences: list[str]) -> None:
    """Train and score one peer with one seed, or score the encoder before training, unless that is finished."""
    part = [BEFORE, "once"] if seed is None else [name, Path(args.train_file).stem, f"seed{seed}"]
    folder = Path(args.output, *part)
    file, model, kept = folder / "results.json", args.model_name, {}
    if file.exists() and "dev" in read_json(file):
        return
    folder.mkdir(parents=True, exist_ok=True)
    if seed is not None:
        kept, model = train(PEERS[name], args, sentences, seed, folder), str(folder / "model")
    results = score_model(load_model(model, bf16=args.bf16), tasks, output=file)
    encoder = load_model(model, bf16=True)
    pairs = load_stsb_dev(senteval_folder(args.senteval_dir))
    dev = score_pairs(lambda texts: encode_in_shares(encoder, texts, title=None), pairs)["spearman"]
    write_json(file, read_json(file) | kept | {"model": Path(args.model_name).name, "dev": dev})
    for part in ("model", "trainer"):
        shutil.rmtree(folder / part, ignore_errors=True)
    print(f"{folder}: STS average {results.average['sts']:.2f}, STS-B dev {dev:.2f}", flush=True)


def main() -> None:
    """Run everything that is not finished, ordered by seed, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--output", default="outputs/adaptation", help="Folder of the runs. Default: %(default)s.")
    add("--model_name", help="Folder or Hub id of a sentence-transformers model.")
    add("--train_file", metavar="FILE", help="Sentences: TXT, or TSV, CSV or JSONL with a column text.")
    add("--labels", nargs="+", default=[], metavar="FILE", help="Labeled files of the study.")
    add("--senteval_dir", help="SentEval's data/downstream. Default: as informin eval.")
    add("--only", nargs="+", choices=list(PEERS), default=list(PEERS), help="Peers to run. Default: all.")
    add("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    add("--max_steps", type=int, default=80)
    add("--batch_size", type=int, default=64)
    add("--learning_rate", type=float, help="Learning rate instead of each peer's own.")
    add("--bf16", action="store_true", help="Score under bfloat16 autocast, as studies do for runs trained with it.")
    add("--table", metavar="SUMMARY", help="summary.json of the study: print tables of its runs and of the peers.")
    add("--reference", default="adapt", help="With --table: recipe to compare with the others.")
    args = parser.parse_args()
    if args.table:
        save_tables(args.output, args.table, args.reference)
        return
    tasks = load_tasks(senteval_folder(args.senteval_dir), STS_TASKS, labels=args.labels)
    sentences = list(read_texts(args.train_file))
    run(BEFORE, None, args, tasks, sentences)
    for seed in args.seeds:
        for name in args.only:
            run(name, seed, args, tasks, sentences)


if __name__ == "__main__":
    main()
