"""The papers' figures for checkpoints: encodes, measures, prints the numbers and draws. One function a figure."""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from informin.encoders.encoder import Encoder, load_encoder
from informin.errors import UsageError
from informin.evaluation import score_pairs
from informin.evaluation.pairs import cosine, embed_once, positive
from informin.evaluation.results import load_results, results_files
from informin.evaluation.scoring import encode_with_bar, load_tasks, score_encoder
from informin.evaluation.senteval import STS_TASKS, load_task
from informin.evaluation.table import Row, Table, difference, render
from informin.figures import plots
from informin.figures.redundancy import probe
from informin.textfiles import read_sentences, require_file
from informin.training.checkpoints import read_history
from informin.training.sentences import SENTEVAL_INSTEAD, senteval_folder


def alignment(args: argparse.Namespace) -> Sequence[Path]:
    """Figure 3 of Chen et al. (2022)."""
    folder = senteval_folder(args.senteval_dir, SENTEVAL_INSTEAD)
    (pairs,) = load_task(folder, "STS-B", args.split).subsets
    known = [load_results(path) for given in args.results for path in results_files(given)]
    tasks = load_tasks(folder, STS_TASKS)
    rows = []
    for name, encoder in encoders(args.model_name, args):
        scores = score_pairs(encode_with(encoder), pairs)
        average = next((found["average"]["sts"] for found in known if is_of(found, encoder)), None)
        average = average or score_encoder(encoder, tasks)[0]["average"]["sts"]
        rows.append({"name": name, **scores, "sts_average": average, "n": int(positive(pairs.scores).sum())})
    columns = ["alignment", "uniformity", "sts_average"]
    lines = [Row(row["name"], {column: row[column] for column in columns}, digits=3) for row in rows]
    print(render(Table(f"{pairs.name}, and the average of the 7 STS tests", columns, lines), "text"))
    return plots.alignment_uniformity(rows, pairs.name, args.output)


def tsne(args: argparse.Namespace) -> Sequence[Path]:
    """Figure 2 of Chen et al. (2022)."""
    sentences = sample(args)
    embedded = {name: encode_with(encoder)(sentences) for name, encoder in encoders(args.model_name, args)}
    panels = [(name, *plots.project(x, args.clusters, args.seed)) for name, x in embedded.items()]
    return plots.tsne(panels, sentences, args.output)


def cosines(args: argparse.Namespace) -> Sequence[Path]:
    """Figure 7 of Klein & Nabi (ACL 2023)."""
    (pairs,) = load_task(senteval_folder(args.senteval_dir, SENTEVAL_INSTEAD), "STS-B", args.split).subsets
    panels = []
    for name, encoder in encoders(args.model_name, args):
        embedding = embed_once(encode_with(encoder), pairs.sentences1 + pairs.sentences2)
        panels.append((name, cosine(embedding(pairs.sentences1), embedding(pairs.sentences2)), pairs.scores))
    return plots.cosine_against_gold(panels, args.output)


def curves(args: argparse.Namespace) -> Sequence[Path]:
    """The log of a run."""
    return plots.training_curves(read_history(args.run), args.output)


def redundancy(args: argparse.Namespace) -> Sequence[Path]:
    """The redundancy of table 1 of Chen et al. (2022), measured."""
    sentences = sample(args)
    names = ([args.compare] if args.compare else []) + args.model_name
    scores = {name: probe(encode_with(e), sentences, args.seed) for name, e in encoders(names, args)}
    rows = [{"checkpoint": name, **asdict(score)} for name, found in scores.items() for score in found]
    for column, spread, title in (
        ("cosine", "cosine_sd", "Cosine to the original, mean ± sd over sentences"),
        ("style_accuracy", "style_accuracy_sd", "Style read by a linear probe, % ± sd over folds (50: forgotten)"),
    ):
        lines = [
            Row(
                name, {s.kind: getattr(s, column) for s in found}, {s.kind: getattr(s, spread) for s in found}, digits=3
            )
            for name, found in scores.items()
        ]
        if args.compare:
            lines += [difference(line, lines[0]) for line in lines[1:]]
        print(render(Table(title, [score.kind for score in next(iter(scores.values()))], lines), "text") + "\n")
    return plots.redundancy(rows, args.output)


def encoders(names: Sequence[str], args: argparse.Namespace) -> Iterator[tuple[str, Encoder]]:
    """The checkpoints one after the other, by the last part of their name where that tells them apart."""
    short = [Path(name).name for name in names]
    for name, label in zip(names, short if len(set(short)) == len(names) else names):
        yield label, load_encoder(name, [args.pooler], batch_size=args.batch_size, device=args.device)


def encode_with(encoder: Encoder) -> Callable[[Sequence[str]], np.ndarray]:
    """An encode() with a progress bar, of the encoder's only pooler."""
    return lambda sentences: encode_with_bar(encoder, sentences)[encoder.poolers[0]]


def sample(args: argparse.Namespace) -> list[str]:
    """--max_sentences of the distinct sentences of the file.

    Raises:
        UsageError: no such file, or no sentence in it.
    """
    path = Path(args.sentences)
    require_file("--sentences", path)
    found = list(dict.fromkeys(" ".join(line.split()) for line in read_sentences(path, None) if line.strip()))
    if not found:
        raise UsageError(f"--sentences: {path} holds no sentence.")
    chosen = np.random.default_rng(args.seed).permutation(len(found))[: args.max_sentences]
    return [found[i] for i in chosen]


def is_of(results: dict, encoder: Encoder) -> bool:
    """Whether the results of run_eval.py are those of this checkpoint, read in this way."""
    names = ("pooler", "whitening", "max_length", "precision", "split")
    if [results[name] for name in names] != [encoder.poolers[0], None, encoder.length, "fp32", "test"]:
        return False  # before the checksum, which reads all weights
    return results["weights_sha256"] == encoder.weights_sha256()
