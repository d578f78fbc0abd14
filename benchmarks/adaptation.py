"""A good encoder, sentences of a domain, no labels: what other ways of training than ours make of it.

    python benchmarks/adaptation.py --model_name MODEL --train_file FILE --labels FILE ... --output PEERS
    python benchmarks/adaptation.py --output PEERS --table STUDIES/adaptation/summary.json

Our own rows are `run_study.py configs/studies/adaptation.yaml --output STUDIES`. The peers here are the unsupervised
losses of sentence-transformers, through its own trainer and at the learning rates of its documentation, on the same
sentences and as many of them: 80 steps of 64, 32 tokens, linear decay without warm-up, the encoder in bf16 and the loss
in float32; then whitening fitted on the sentences, and the encoder before training, which learn nothing. All are scored
as run_eval.py scores; STS-B dev under bf16, as our training does.

A run is a folder, PEERS/PEER/TRAINFILE/seedN, with results.json; its weights are deleted once they are scored. What is
finished is not done again, what was broken off is begun again, and several processes may share PEERS. --table keeps
every run that is there in PEERS/summary.json, and the tables of all runs that this file holds in PEERS/table.md.
"""

import argparse
import random
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from datasets import Dataset
from filelock import FileLock
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer import losses
from torch import nn
from transformers import PrinterCallback, set_seed

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from informin import program
from informin.encoders.encoder import load_encoder
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
from informin.evaluation.table import Row, Table, render, samples
from informin.evaluation.whitening import whitened
from informin.files import sha256
from informin.studies.plan import BEFORE, DEVELOPMENT, Study
from informin.studies.summary import load_study
from informin.studies.table import intervals, mean_and_sd, value_of
from informin.summaries import read_summary, write_summary
from informin.textfiles import read_sentences, require_file

LENGTH = 32  # tokens of a sentence in training
DELETED = 0.6  # share of the words that TSDAE deletes: Wang et al. (2021), section 4.1
NEGATIVES = 7  # pairs of different sentences to one of the same, of contrastive tension
ONCE = "once"  # in place of a seed, where nothing is trained
WHITENING = "in-domain whitening"
KEPT = ("settings", "weights_sha256", "precision", "loss", "training_seconds", "seconds", "environment")  # of results
Records = dict[str, dict[int | None, dict]]  # of each row and seed what `value_of` reads; None: without a seed


def same_twice(sentences: list[str], source: random.Random) -> dict[str, list[str]]:
    """Pairs of a sentence and itself: dropout makes the difference."""
    return {"anchor": sentences, "positive": sentences}


def damaged(sentences: list[str], source: random.Random) -> dict[str, list[str]]:
    """Sentences with words missing, one word left at least, and whole.

    Here, as the library's own noise needs nltk, and the noise of its documentation keeps 0.6 of the words.
    """
    noisy = []
    for sentence in sentences:
        words = sentence.split()
        noisy.append(" ".join([word for word in words if source.random() >= DELETED] or [source.choice(words)]))
    return {"noisy": noisy, "text": sentences}


def tension_pairs(sentences: list[str], source: random.Random) -> dict[str, list[str]]:
    """A sentence and itself in one of eight pairs, else and another one; the loss tells them apart by itself."""
    share = 1 / (1 + NEGATIVES)
    seconds = [s if source.random() < share else source.choice(sentences) for s in sentences]
    return {"text1": sentences, "text2": seconds}


def single(sentences: list[str], source: random.Random) -> dict[str, list[str]]:
    """The sentences as they are."""
    return {"sentence": sentences}


@dataclass(frozen=True)
class Peer:
    """A way to train as sentence-transformers documents it."""

    title: str
    learning_rate: float
    columns: Callable[[list[str], random.Random], dict[str, list[str]]]  # of the data set, from sentences
    loss: Callable[[SentenceTransformer, str], nn.Module]  # of the model, and the name that it was loaded from
    batch_sampler: str = "batch_sampler"


PEERS = {
    "simcse": Peer(  # the rate of its example train_stsb_simcse.py; the sampler as the loss recommends
        "MultipleNegativesRankingLoss",
        5e-5,
        same_twice,
        lambda model, name: losses.MultipleNegativesRankingLoss(model),
        "no_duplicates",
    ),
    "tsdae": Peer(  # its documentation's rate; the decoder's cross-attention and head are new, as MiniLM has none
        "DenoisingAutoEncoderLoss (TSDAE)",
        3e-5,
        damaged,
        lambda model, name: losses.DenoisingAutoEncoderLoss(model, tie_encoder_decoder=True),
    ),
    "ct": Peer(  # this and the next: the rate of the example in the documentation of the loss
        "ContrastiveTensionLoss",
        5e-5,
        tension_pairs,
        lambda model, name: losses.ContrastiveTensionLoss(model),
    ),
    "ct_in_batch": Peer(
        "ContrastiveTensionLossInBatchNegatives",
        5e-5,
        single,
        lambda model, name: losses.ContrastiveTensionLossInBatchNegatives(model),
    ),
    # No rate is documented: ours. A sentence is its own positive, so the guide's cosine is 1: without a margin nothing
    # is dropped as too near, and the sentence itself is a negative. The margin is that of the documented example.
    "gist": Peer(
        "GISTEmbedLoss",
        3e-5,
        same_twice,
        lambda model, name: losses.GISTEmbedLoss(model, guide=SentenceTransformer(name), margin=0.1),
        "no_duplicates",
    ),
}
TITLES = {"before": BEFORE, "whitening": WHITENING, **{name: peer.title for name, peer in PEERS.items()}}


@dataclass(frozen=True)
class Data:
    """What all runs of a call share."""

    file: Path
    sentences: list[str]
    checksum: str  # of the file
    tasks: Tasks
    dev: GradedPairs
    weights_sha256: str  # of the encoder before training


def train(peer: Peer, args: argparse.Namespace, sentences: list[str], seed: int, folder: Path) -> dict:
    """Trains and saves folder/model, as a user of the library would. Returns what to keep: loss and seconds."""
    set_seed(seed)
    model = SentenceTransformer(args.model_name)
    longest, model.max_seq_length = model.max_seq_length, LENGTH
    options = SentenceTransformerTrainingArguments(
        output_dir=str(folder / "trainer"),
        max_steps=args.max_steps,
        per_device_train_batch_size=args.batch_size,
        learning_rate=args.learning_rate or peer.learning_rate,
        lr_scheduler_type="linear",
        warmup_steps=0,
        max_grad_norm=1.0,
        bf16=True,
        use_cpu=not torch.cuda.is_available(),
        seed=seed,
        batch_sampler=peer.batch_sampler,
        dataloader_drop_last=True,
        **dict(save_strategy="no", eval_strategy="no", logging_strategy="no", report_to="none", disable_tqdm=True),
    )
    trainer = SentenceTransformerTrainer(
        model=model,
        args=options,
        train_dataset=Dataset.from_dict(peer.columns(sentences, random.Random(seed))),
        loss=peer.loss(model, args.model_name),
    )
    trainer.remove_callback(PrinterCallback)
    start = time.perf_counter()
    loss = trainer.train().training_loss
    seconds = round(time.perf_counter() - start, 2)
    model.max_seq_length = longest
    model.save_pretrained(str(folder / "model"), create_model_card=False)
    return {"loss": loss, "training_seconds": seconds}


def score(name: str, bf16: bool, data: Data, whitening: WhiteningOptions | None) -> dict:
    """Results as run_eval.py keeps them, and `dev`: Spearman x 100 on STS-B dev."""
    (results,) = score_encoder(load_encoder(name, bf16=bf16), data.tasks, whitening)
    encoder = load_encoder(name, bf16=True)

    def encode(sentences: Sequence[str]):
        return encoder(sentences)[encoder.poolers[0]]

    fitted = whitened(encode, None, whitening.sentences) if whitening else encode
    return results | {"dev": score_pairs(fitted, data.dev)["spearman"]}


def settings_of(name: str, seed: int | None, args: argparse.Namespace, data: Data) -> dict:
    """What decides a run's figures but for its tasks."""
    peer = PEERS.get(name)
    trained = {} if peer is None else {"steps": args.max_steps, "batch": args.batch_size, "seed": seed}
    trained |= {"learning_rate": args.learning_rate or peer.learning_rate} if peer else {}
    sentences = {} if name == "before" else {"train_file": data.checksum}
    return {"peer": name, "encoder": data.weights_sha256, "bf16": args.bf16, **sentences, **trained}


def run_folder(output: str | Path, name: str, train_file: str | Path, seed: int | None) -> Path:
    """Where a run lies; that of the encoder before training is of all train files."""
    if name == "before":
        return Path(output, name, ONCE)
    return Path(output, name, sample_name(train_file), ONCE if seed is None else f"seed{seed}")


def finished(file: Path, settings: dict, tasks: Tasks) -> bool:
    """Whether results hold every task on these files. Raises UsageError where they are of another run."""
    if not file.exists():
        return False
    kept = load_results(file)
    if kept.get("settings") != settings:
        raise UsageError(f"{file} holds other results: {kept.get('settings')}, now {settings}. Give another `output`.")
    return all(kept["tasks"].get(name, {}).get("data") == tasks.checksums[name] for name in tasks.data)


def do(name: str, seed: int | None, args: argparse.Namespace, data: Data) -> None:
    """Does a run, unless it is finished, and says what came of it."""
    folder = run_folder(args.output, name, data.file, seed)
    folder.mkdir(parents=True, exist_ok=True)
    file, settings = folder / "results.json", settings_of(name, seed, args, data)
    with FileLock(folder / "lock"):  # another process at the same run is waited for
        if finished(file, settings, data.tasks):
            return
        start, model, kept, whitening = time.perf_counter(), args.model_name, {}, None
        if name in PEERS:
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
    """Reads everything before anything is trained."""
    needed = ("model_name", "train_file", "labels")
    missing = [f"`{name}`" for name in needed if not getattr(args, name)]
    if missing:
        raise UsageError(f"Needed {', '.join(missing)} to train, or `table` to look at what is there.")
    file = Path(args.train_file)
    require_file("`train_file`", file)
    sentences = [sentence for sentence in read_sentences(file, None) if sentence.strip()]
    if len(sentences) < args.batch_size:
        found = counted(len(sentences), "sentence")
        raise UsageError(f"`train_file` {file} holds {found}; needed {args.batch_size} or more, one batch.")
    folder = senteval_folder(args.senteval_dir)
    tasks = load_tasks(folder, chosen_tasks(args.tasks, "test") if args.tasks else [], labels=args.labels)
    weights = load_encoder(args.model_name).weights_sha256()
    return Data(file, sentences, sha256(file), tasks, load_stsb_dev(folder), weights)


def peer_records(output: str | Path) -> list[dict]:
    """Every finished run: those of PEERS/summary.json, and those whose results are there."""
    summary = Path(output, "summary.json")
    kept = read_summary(summary)[1] if summary.exists() else []
    found = {(run["peer"], run["train_file"], run["seed"]): run for run in kept}
    for file in sorted(Path(output).rglob("results.json")):
        peer, *data, seed = file.parent.relative_to(output).parts
        results = load_results(file)
        run = {
            "peer": peer,
            "train_file": data[0] if data else None,  # the encoder before training is of all files
            "seed": None if seed == ONCE else int(seed.removeprefix("seed")),
            "scores": {name: task["score"] for name, task in results["tasks"].items()},
            "averages": results["average"],
            "dev": {"spearman": results["dev"]},
            "samples": {
                name: {"measures": entry["measures"], "data": entry.get("data")}
                for name, entry in samples(results).items()
            },
            **{name: results.get(name) for name in KEPT},
        }
        found[peer, run["train_file"], run["seed"]] = run
    return sorted(
        found.values(), key=lambda run: (list(TITLES).index(run["peer"]), run["train_file"] or "", run["seed"] or 0)
    )


def of_peers(runs: Sequence[dict], train_file: str) -> Records:
    """The peers' runs of one train file, by row and seed."""
    found: Records = {}
    for run in runs:
        if run["train_file"] in (None, sample_name(train_file)):
            found.setdefault(TITLES[run["peer"]], {})[run["seed"]] = run
    return found


def of_study(study: Study, runs: dict[tuple[str, int | None], dict], train_file: str) -> Records:
    """The study's runs of one train file, by recipe and seed, the encoder before training among them."""
    found: Records = {}
    for setting in (*study.before, *study.settings):
        file = setting.options.get("train_file", train_file)
        if sample_name(file) == sample_name(train_file):
            own = {seed: run for (name, seed), run in runs.items() if name == setting.name}
            if own:
                found[setting.recipe] = own
    return found


def values(records: dict[int | None, dict], measure: str) -> dict[int | None, float]:
    """A measure of each run that has it. Raises UsageError where a run was not scored on its sample."""
    found = {seed: value_of(record, measure) for seed, record in records.items()}
    if "/" in measure and None in found.values():
        sample = measure.rpartition("/")[0]
        raise UsageError(
            f"A run was not scored on {sample}",
            needed=f"{sample} in every run",
            fix="Run it again with that file in `labels`.",
        )
    return {seed: value for seed, value in found.items() if value is not None}


def gain(own: dict[int | None, float], other: dict[int | None, float]) -> str | None:
    """Mean difference and its 95% t interval, paired by seed, or with the one value of what has no seeds."""
    gains = [value - other.get(seed, other.get(None)) for seed, value in own.items() if {seed, None} & other.keys()]
    if not gains:
        return None
    _, interval = intervals(gains)
    mean = f"{mean_and_sd(dict(enumerate(gains)))['mean']:+.2f}"
    if interval is None:
        return mean
    return f"{mean} ({interval[0]:+.2f} to {interval[1]:+.2f}){' signal' if interval[0] > 0 else ''}"


def mean_cell(found: dict[int | None, float]) -> str | None:
    """Mean ± sd (n - 1) over seeds."""
    summary = mean_and_sd(found)
    if summary["n"] == 0:
        return None
    return f"{summary['mean']:.2f}" + ("" if summary["sd"] is None else f" ± {summary['sd']:.2f}")


def tables(title: str, records: Records, sample: str, reference: str) -> list[Table]:
    """The scores of a train file with the differences to the encoder before training, then `reference` less the rest.

    Args:
        sample: the labeled sample of the same domain.
        reference: a recipe of the study.
    """
    labeled = {"V-measure": f"{sample}/v_measure", "1-NN": f"{sample}/nearest_neighbor"}
    measures = labeled | {"STS-B dev": DEVELOPMENT, "STS average": "sts"}
    found = {label: {name: values(runs, m) for name, m in measures.items()} for label, runs in records.items()}
    start = found.get(BEFORE) or {name: {} for name in measures}
    rows = []
    for label, row in found.items():
        cells: dict[str, str | None] = {"runs": str(len(records[label]))}
        for name in measures:
            cells[name] = mean_cell(row[name])
            # A signal is a word for the second table; here every row has its interval.
            change = None if label == BEFORE else gain(row[name], start[name])
            cells[f"{name}, change"] = change and change.removesuffix(" signal")
        rows.append(Row(label, cells))
    shown = [Table(f"{title}: mean ± sd over seeds, change to before training (95% t)", list(rows[0].values), rows)]
    if reference in found:
        own = found[reference]
        against = [
            Row(f"{reference} - {label}", {name: gain(own[name], row[name]) for name in labeled})
            for label, row in found.items()
            if label != reference
        ]
        shown.append(Table(f"{title}: {reference} less the others, by seed (95% t)", list(labeled), against))
    return shown


def show(args: argparse.Namespace) -> None:
    """Prints and writes the tables of what is finished, of each train file of the study in its order."""
    study, ours = load_study(args.table)
    files = list(dict.fromkeys(str(setting.options.get("train_file")) for setting in study.settings))
    if study.grid != ["train_file"] or len(files) != len(study.samples):
        raise UsageError(
            f"`table` {args.table}: needed a study with a grid of train_file alone and `labels`, one for each; found a "
            f"grid of {', '.join(study.grid) or 'nothing'} and {counted(len(study.samples), 'file')} of labels."
        )
    runs, shown = peer_records(args.output), []
    for file, sample in zip(files, study.samples):
        peers, own = of_peers(runs, file), of_study(study, ours, file)
        before = own.pop(BEFORE, None)  # without STS-B dev: the peers' is taken where there is one
        found = {BEFORE: before} | peers | own if before and BEFORE not in peers else peers | own
        if found.keys() - {BEFORE}:
            shown += tables(sample_name(file), found, sample, args.reference)
    if not shown:
        raise UsageError(f"No run is finished of {', '.join(files)}, neither in {args.output} nor in {args.table}.")
    text = "\n\n".join(render(table, "markdown") for table in shown) + "\n"
    print(text, end="")
    if runs:
        write_summary(Path(args.output, "summary.json"), {}, runs)
        Path(args.output, "table.md").write_text(text, encoding="utf-8")


def parser() -> program.Parser:
    """The options."""
    parser = program.Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--output", default="outputs/adaptation", help="Default: %(default)s.")
    add("--model_name", help="A folder or Hub id of sentence-transformers.")
    add("--train_file", metavar="FILE", help="TXT, TSV, CSV or JSONL with a column text.")
    add("--labels", nargs="+", default=[], metavar="FILE", help="Labeled samples of the study.")
    add("--tasks", nargs="*", default=["sts"], help="Of run_eval.py; no word for none. Default: sts.")
    add("--senteval_dir", help="SentEval's data/downstream. Default: as run_eval.py.")
    add("--only", nargs="+", choices=list(TITLES), default=list(TITLES), help="Default: all.")
    add("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    add("--max_steps", type=int, default=80)
    add("--batch_size", type=int, default=64)
    add("--learning_rate", type=float, help="In place of every peer's own.")
    text = "Score under bfloat16 autocast, as run_study.py does with runs that were trained so."
    add("--bf16", action="store_true", help=text)
    add("--table", metavar="SUMMARY", help="The summary.json of the study: the tables of its runs and the peers'.")
    add("--reference", default="adapt", help="Of --table: the recipe that the others are compared with.")
    return parser


def work(args: argparse.Namespace) -> None:
    """Every run that is not finished, seed after seed, or the tables."""
    if args.table:
        return show(args)
    data = load(args)
    for name in args.only:
        if name not in PEERS:
            do(name, None, args, data)
    for seed in args.seeds:
        for name in args.only:
            if name in PEERS:
                do(name, seed, args, data)


def main(argv: list[str] | None = None) -> int:
    """Returns the exit code: 0, 2 (usage), 130 (interrupted)."""
    options = parser()
    args = options.parse_args(argv)
    return program.exit_code(lambda: work(args), options.option_names(), "Interrupted. The same command goes on.")


if __name__ == "__main__":
    program.run(main)
