"""Adapt a good encoder to the sentences of a domain, without labels, with other methods than ours.

    python benchmarks/adaptation.py --model_name MODEL --train_file FILE --labels FILE ... --output PEERS
    python benchmarks/adaptation.py --output PEERS --table STUDIES/adaptation/summary.json

Our own rows come from `informin study configs/studies/adaptation.yaml --output STUDIES`. The peers are the unsupervised
losses of sentence-transformers, trained with its own trainer at its documented learning rates, on the same sentences:
80 steps of batch size 64, 32 tokens, linear decay without warm-up, encoder in bf16 and loss in float32. Two more rows
need no training: whitening fitted on the sentences, and the encoder before training. All are scored like informin eval,
with STS-B dev under bf16 as in our training.

A run has the folder PEERS/PEER/TRAINFILE/seedN with results.json; its weights are deleted after scoring. Finished runs
are skipped, interrupted runs restart, and several processes can share PEERS. --table saves all finished runs to
PEERS/summary.json and their tables to PEERS/table.md.
"""

import argparse
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.adaptation_peers import PEERS, TITLES, train
from benchmarks.adaptation_table import ONCE, show
from informin import program
from informin.errors import UsageError, counted
from informin.evaluation import load_stsb_dev, score_pairs
from informin.evaluation.pairs import GradedPairs
from informin.evaluation.results import load_results, save_results
from informin.evaluation.scoring import (
    ALL_DIMENSIONS,
    Tasks,
    WhiteningOptions,
    load_tasks,
    sample_name,
    score_encoder,
    whitening_options,
)
from informin.evaluation.senteval import chosen_tasks
from informin.evaluation.senteval_files import senteval_folder
from informin.evaluation.table import samples
from informin.evaluation.whitening import whitened
from informin.files import sha256
from informin.models.open_model import load_model
from informin.textfiles import read_sentences, require_file


@dataclass(frozen=True)
class Data:
    """Data that all runs have in common."""

    file: Path
    sentences: list[str]
    checksum: str  # SHA-256 of the file
    tasks: Tasks
    dev: GradedPairs
    weights_sha256: str  # weights of the encoder before training


def score(name: str, bf16: bool, data: Data, whitening: WhiteningOptions | None) -> dict:
    """Return the results of informin eval, and in `dev` the Spearman x 100 on STS-B dev."""
    (results,) = score_encoder(load_model(name, bf16=bf16), data.tasks, whitening)
    encoder = load_model(name, bf16=True)

    def encode(sentences: Sequence[str]):
        return encoder(sentences)[encoder.poolers[0]]

    fitted = whitened(encode, None, whitening.sentences) if whitening else encode
    return results | {"dev": score_pairs(fitted, data.dev)["spearman"]}


def settings_of(name: str, seed: int | None, args: argparse.Namespace, data: Data) -> dict:
    """Return all settings that determine the scores of a run, except for the tasks."""
    peer = PEERS.get(name)
    trained = {} if peer is None else {"steps": args.max_steps, "batch": args.batch_size, "seed": seed}
    trained |= {"learning_rate": args.learning_rate or peer.learning_rate} if peer else {}
    sentences = {} if name == "before" else {"train_file": data.checksum}
    return {"peer": name, "encoder": data.weights_sha256, "bf16": args.bf16, **sentences, **trained}


def run_folder(output: str | Path, name: str, train_file: str | Path, seed: int | None) -> Path:
    """Return the folder of a run. All training files share that of the encoder before training."""
    if name == "before":
        return Path(output, name, ONCE)
    return Path(output, name, sample_name(train_file), ONCE if seed is None else f"seed{seed}")


def finished(file: Path, settings: dict, tasks: Tasks) -> bool:
    """Return whether a results file has every task on these files. Raise UsageError if it belongs to another run."""
    if not file.exists():
        return False
    kept = load_results(file)
    if kept.get("settings") != settings:
        raise UsageError(
            f"{file} contains other results: {kept.get('settings')}, now {settings}", fix="Choose another `output`."
        )
    return all(kept["tasks"].get(name, {}).get("data") == tasks.checksums[name] for name in tasks.data)


def run(name: str, seed: int | None, args: argparse.Namespace, data: Data) -> None:
    """Train and score one row with one seed unless it is finished, and print the scores.

    Args:
        name: A name in `TITLES`.
        seed: Seed of the training; None for rows without training.
        args: Options of the command line.
        data: Data from `load`.
    """
    folder = run_folder(args.output, name, data.file, seed)
    folder.mkdir(parents=True, exist_ok=True)
    file, settings = folder / "results.json", settings_of(name, seed, args, data)
    with FileLock(folder / "lock"):  # waits for another process with the same run
        if finished(file, settings, data.tasks):
            return
        start, model, kept, whitening = time.perf_counter(), args.model_name, {}, None
        if name in PEERS and seed is not None:
            shutil.rmtree(folder / "model", ignore_errors=True)
            kept, model = train(PEERS[name], args, data.sentences, seed, folder), str(folder / "model")
        elif name == "whitening":
            whitening = whitening_options(ALL_DIMENSIONS, str(data.file))
        results = score(model, args.bf16, data, whitening)
        save_results(file, results | kept | {"model": Path(args.model_name).name, "settings": settings})
        for part in ("model", "trainer"):
            shutil.rmtree(folder / part, ignore_errors=True)
    scores = [results["average"]["sts"], results["dev"], *(task["score"] for task in samples(results).values())]
    shown = ", ".join("-" if value is None else f"{value:.2f}" for value in scores)
    print(f"{folder}: STS, STS-B dev, V-measures: {shown} ({time.perf_counter() - start:.0f} s)", flush=True)


def load(args: argparse.Namespace) -> Data:
    """Load all data before the first training."""
    needed = ("model_name", "train_file", "labels")
    missing = [name for name in needed if not getattr(args, name)]
    if missing:
        raise UsageError("is missing", option=missing[0], fix="Give it to train, or give `table` to print tables.")
    file = Path(args.train_file)
    require_file("`train_file`", file)
    sentences = [sentence for sentence in read_sentences(file, None) if sentence.strip()]
    if len(sentences) < args.batch_size:
        found = counted(len(sentences), "sentence")
        raise UsageError(f"{file} has {found}", option="train_file", needed=f"{args.batch_size} or more, for one batch")
    folder = senteval_folder(args.senteval_dir)
    tasks = load_tasks(folder, chosen_tasks(args.tasks, "test") if args.tasks else [], labels=args.labels)
    weights = load_model(args.model_name).weights_sha256()
    return Data(file, sentences, sha256(file), tasks, load_stsb_dev(folder), weights)


def parser() -> program.Parser:
    """Return the parser."""
    parser = program.Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--output", default="outputs/adaptation", help="Folder of the runs. Default: %(default)s.")
    add("--model_name", help="Folder or Hub id of a sentence-transformers model.")
    add("--train_file", metavar="FILE", help="Sentences: TXT, or TSV, CSV or JSONL with a column text.")
    add("--labels", nargs="+", default=[], metavar="FILE", help="Labeled files of the study.")
    add("--tasks", nargs="*", default=["sts"], help="Tasks of informin eval; empty for none. Default: sts.")
    add("--senteval_dir", help="SentEval's data/downstream. Default: as informin eval.")
    add("--only", nargs="+", choices=list(TITLES), default=list(TITLES), help="Rows to run. Default: all.")
    add("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    add("--max_steps", type=int, default=80)
    add("--batch_size", type=int, default=64)
    add("--learning_rate", type=float, help="Learning rate instead of each peer's own.")
    text = "Score under bfloat16 autocast, as informin study does for runs trained with it."
    add("--bf16", action="store_true", help=text)
    add("--table", metavar="SUMMARY", help="summary.json of the study: print tables of its runs and of the peers.")
    add("--reference", default="adapt", help="With --table: recipe to compare with the others.")
    return parser


def work(args: argparse.Namespace) -> None:
    """Run everything that is not finished, ordered by seed, or print the tables."""
    if args.table:
        show(args)
        return
    data = load(args)
    for name in args.only:
        if name not in PEERS:
            run(name, None, args, data)
    for seed in args.seeds:
        for name in args.only:
            if name in PEERS:
                run(name, seed, args, data)


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark. Returns the exit code: 0, 2 (usage), 130 (interrupted)."""
    options = parser()
    args = options.parse_args(argv)
    return program.exit_code(lambda: work(args), options.option_names(), "The same command resumes.")


if __name__ == "__main__":
    program.run(main)
