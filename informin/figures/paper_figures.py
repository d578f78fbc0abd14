"""The papers' figures for any checkpoint. One function per figure encodes, measures, prints and draws.

Each function takes `model_name`, a list of Hub ids or folders; `output`, the path of the files without suffix; and
`**loading`, the pooler, batch size and device for `encoders`. It returns the paths of the PNG, SVG and CSV files.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import numpy as np

from informin.errors import UsageError
from informin.evaluation import score_pairs
from informin.evaluation.drift import SAMPLE, SEED, draw, drift_table, measure_drift, stsb_dev
from informin.evaluation.embedding_cache import EmbeddingCache, embed_once
from informin.evaluation.pairs import cosine, positive
from informin.evaluation.results import load_all_results
from informin.evaluation.scoring import encode_with_bar, load_tasks, score_encoder
from informin.evaluation.senteval import STS_TASKS, load_stsb
from informin.evaluation.senteval_files import senteval_folder
from informin.evaluation.table import Row, Table, difference, render
from informin.figures import plots, run_plots
from informin.figures.redundancy import probe
from informin.labeled_sentences import load_labeled_sentences
from informin.models.model import Model
from informin.models.open_model import load_model
from informin.publishing.report_record import load_report
from informin.textfiles import read_sentences, require_file, without_blanks
from informin.training.checkpoints import read_history
from informin.training.information import BOUND, ENTROPY


def alignment(
    model_name: Sequence[str],
    output: str,
    senteval_dir: str | None = None,
    split: str = "dev",
    results: Sequence[str] = (),
    **loading,
) -> Sequence[Path]:
    """Draw alignment against uniformity, as in figure 3 of Chen et al. (2022).

    Args:
        split: Split of STS-B.
        results: Results files of `informin eval`, folders of them, or summaries. Checkpoints with an STS average in
            them are not scored again.
    """
    folder = senteval_folder(senteval_dir)
    pairs = load_stsb(folder, split)
    known = load_all_results(results)
    tasks = load_tasks(folder, STS_TASKS)
    rows = []
    for name, encoder in encoders(model_name, **loading):
        scores = score_pairs(encode_with(encoder), pairs)
        average = next(
            (entry["average"]["sts"] for entry in known if entry["average"]["sts"] and is_of(entry, encoder)), None
        )
        average = average or score_encoder(encoder, tasks)[0]["average"]["sts"]
        rows.append({"name": name, **scores, "sts_average": average, "n": int(positive(pairs.scores).sum())})
    columns = ["alignment", "uniformity", "sts_average"]
    lines = [Row(row["name"], {column: row[column] for column in columns}, digits=3) for row in rows]
    print(render(Table(f"{pairs.name}, and the average of the 7 STS tests", columns, lines), "text"))
    return plots.alignment_uniformity(rows, pairs.name, output)


def tsne(
    model_name: Sequence[str],
    output: str,
    train_file: str,
    max_sentences: int = 2000,
    seed: int = 42,
    clusters: int = 10,
    **loading,
) -> Sequence[Path]:
    """Draw t-SNE of a sample of sentences, as in figure 2 of Chen et al. (2022).

    A column `label` colors the sentences. Without it, the K-means clusters of each checkpoint do, as in the paper.
    """
    texts = sample(train_file, max_sentences, seed)
    labels = labels_of(train_file, texts)
    embedded = {name: encode_with(encoder)(texts) for name, encoder in encoders(model_name, **loading)}
    panels = [(name, *plots.project(x, clusters, seed)) for name, x in embedded.items()]
    return plots.tsne(panels, texts, output, labels)


def cosines(
    model_name: Sequence[str], output: str, senteval_dir: str | None = None, split: str = "dev", **loading
) -> Sequence[Path]:
    """Draw the cosine of sentence pairs against their gold score, as in figure 7 of Klein & Nabi (ACL 2023)."""
    pairs = load_stsb(senteval_folder(senteval_dir), split)
    panels = []
    for name, encoder in encoders(model_name, **loading):
        embedding = embed_once(encode_with(encoder), pairs.sentences1 + pairs.sentences2)
        panels.append((name, cosine(embedding(pairs.sentences1), embedding(pairs.sentences2)), pairs.scores))
    return plots.cosine_against_gold(panels, output)


def curves(run: str, output: str) -> Sequence[Path]:
    """Draw the training curves of a run, from its output folder.

    A finished run may have kept only an earlier checkpoint, or none: its whole log is in report.json.
    """
    logs: list[list[dict]] = []
    for read in (read_history, read_log):
        with suppress(UsageError):
            logs.append(read(run))
    if not any(logs):
        raise UsageError(
            f"{run} has no complete checkpoint and no report.json to read the log from",
            option="run",
            needed="the output folder of a training run",
        )
    return run_plots.training_curves(max(logs, key=lambda log: log[-1]["step"] if log else -1), output)


def information(run: Sequence[str], output: str) -> Sequence[Path]:
    """Draw runs in the plane of theorems 1 and 2 of Chen et al. (2022), from their output folders."""
    short = [Path(folder).name for folder in run]
    labels = short if len(set(short)) == len(run) else run
    rows = [
        {"run": label, **entry} for label, folder in zip(labels, run) for entry in measured(folder, read_log(folder))
    ]
    last = {row["run"]: row for row in rows}
    columns = ["conditional_entropy", "infonce_bound", "spearman"]
    lines = [Row(name, {column: row[column] for column in columns}, digits=3) for name, row in last.items()]
    print(render(Table("Last log entry, nats per dimension, nats and Spearman x 100", columns, lines), "text"))
    return run_plots.information(rows, output)


def read_log(folder: str) -> list[dict]:
    """Return the log in report.json of a run. Raise UsageError if it has none."""
    record = load_report(folder)
    if record["command"] != "train":
        raise UsageError(
            f"{folder} is the output of `informin fit`", option="run", needed="the output folder of a training run"
        )
    return record["log"]


def measured(folder: str, log: Sequence[Mapping]) -> list[dict]:
    """Return the log entries with measures of information, each with the last development score until then.

    The score of a step is logged after its losses.
    """
    scores = {entry["step"]: entry["eval_spearman"] for entry in log if entry.get("eval_spearman") is not None}
    found = [
        {name: entry[name] for name in ("step", BOUND, ENTROPY)}
        | {"spearman": next((scores[step] for step in sorted(scores, reverse=True) if step <= entry["step"]), None)}
        for entry in log
        if entry.get(BOUND) is not None and entry.get(ENTROPY) is not None
    ]
    if not found:
        raise UsageError(
            f"{folder} has no measures of information", option="run", fix="Train it again with `measure_information`."
        )
    return found


def redundancy(
    model_name: Sequence[str],
    output: str,
    train_file: str,
    max_sentences: int = 2000,
    seed: int = 42,
    compare: str | None = None,
    **loading,
) -> Sequence[Path]:
    """Measure the redundancy of table 1 of Chen et al. (2022); `compare` is a checkpoint to subtract."""
    texts = sample(train_file, max_sentences, seed)
    names = ([compare] if compare else []) + list(model_name)
    scores = {name: probe(encode_with(encoder), texts, seed) for name, encoder in encoders(names, **loading)}
    for column, spread, title in (
        ("cosine", "cosine_sd", "Cosine to the original, mean ± sd over sentences"),
        (
            "style_accuracy",
            "style_accuracy_sd",
            "Style probe accuracy, % ± sd over folds (50: forgotten)",
        ),
    ):
        lines = []
        for name, kinds in scores.items():
            means, spreads = ({score.kind: getattr(score, key) for score in kinds} for key in (column, spread))
            lines.append(Row(name, means, spreads, digits=3))
        if compare:
            lines += [difference(line, lines[0]) for line in lines[1:]]
        print(render(Table(title, list(lines[0].values), lines), "text") + "\n")
    rows = [{"checkpoint": name, **asdict(score)} for name, kinds in scores.items() for score in kinds]
    return plots.redundancy(rows, output)


def drift(
    model_name: Sequence[str],
    output: str,
    train_file: str,
    compare: str,
    max_sentences: int = SAMPLE,
    seed: int = SEED,
    senteval_dir: str | None = None,
    **loading,
) -> Sequence[Path]:
    """Compare `model_name` with `compare` on a sample of sentences, without labels; see `evaluation.drift`."""
    texts, pairs = draw(read_lines(train_file), max_sentences, seed), stsb_dev(senteval_dir)
    loaded = encoders([compare, *model_name], **loading)
    old_name, old = next(loaded)
    once = EmbeddingCache(lambda wanted: encode_with_bar(old, wanted)).by(old.poolers[0])
    drifts = {name: measure_drift(once, encode_with(encoder), texts, pairs) for name, encoder in loaded}
    records = {name: measured.record() for name, measured in drifts.items()}
    print(render(drift_table(records, old_name), "text") + "\n")
    for name, record in records.items():
        for warning in record["warnings"]:
            print(f"{name} {warning}\n")
    return plots.drift(drifts, old_name, output)


def encoders(
    names: Sequence[str], pooler: str = "auto", batch_size: int = 64, device: str | None = None
) -> Iterator[tuple[str, Model]]:
    """Yield each checkpoint with a label: the last part of its name if these are unique, else the full name.

    Args:
        pooler: See `load_model`; `auto` uses the pooling stored in each checkpoint.
    """
    short = [Path(name).name for name in names]
    for name, label in zip(names, short if len(set(short)) == len(names) else names):
        yield label, load_model(name, [pooler], batch_size=batch_size, device=device)


def encode_with(encoder: Model) -> Callable[[Sequence[str]], np.ndarray]:
    """Return an encode() with a progress bar, for the encoder's only pooler."""
    return lambda sentences: encode_with_bar(encoder, sentences)[encoder.poolers[0]]


def sample(file: str, count: int, seed: int) -> list[str]:
    """Return a random sample of at most `count` distinct sentences of a file. Raises UsageError as `read_lines`."""
    distinct = list(dict.fromkeys(" ".join(line.split()) for line in read_lines(file)))
    chosen = np.random.default_rng(seed).permutation(len(distinct))[:count]
    return [distinct[i] for i in chosen]


def labels_of(file: str, texts: Sequence[str]) -> list[str]:
    """Return the label of the first copy of each text from `sample`; an empty list without a column `label`."""
    found = load_labeled_sentences(file)
    if found.labels is None:
        return []
    first = {" ".join(text.split()): label for text, label in reversed([*zip(found.texts, found.labels)])}
    return [first[text] for text in texts]


def read_lines(file: str) -> list[str]:
    """Return the nonblank sentences of a file. Raises UsageError if the file does not exist or has none."""
    path = Path(file)
    require_file("`train_file`", path)
    lines = list(without_blanks(read_sentences(path, None)))
    if not lines:
        raise UsageError(f"names {path}, which contains no sentence", option="train_file")
    return lines


def is_of(results: dict, encoder: Model) -> bool:
    """Return whether results of `informin eval` belong to this checkpoint, pooler and length."""
    names = ("pooler", "whitening", "max_length", "precision", "split")
    if [results[name] for name in names] != [encoder.poolers[0], None, encoder.length, "fp32", "test"]:
        return False  # computing the checksum below reads all weights
    if (results["prompt"] or "") != encoder.prompt:
        return False
    return results["weights_sha256"] == encoder.weights_sha256()
