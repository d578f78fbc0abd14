"""Tables of a study and of the peers in adaptation.py, paired by seed."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.adaptation_peers import TITLES
from informin.errors import UsageError, counted
from informin.evaluation.results import load_results
from informin.evaluation.scoring import sample_name
from informin.evaluation.table import Row, Table, render, samples
from informin.studies.plan import BEFORE, DEVELOPMENT, Study
from informin.studies.summary import load_study
from informin.studies.table import intervals, mean_and_sd, value_of
from informin.summaries import read_summary, write_summary

ONCE = "once"  # folder of a run without a seed
# Keys of results.json that are copied to summary.json.
KEPT = ("settings", "weights_sha256", "precision", "loss", "training_seconds", "seconds", "environment")
Records = dict[str, dict[int | None, dict]]  # records for `value_of` by row and seed; None for no seed
Values = Mapping[int | None, float]  # by seed


def show(args: argparse.Namespace) -> None:
    """Print and write the tables of finished runs, for each training file of the study."""
    study, ours = load_study(args.table)
    files = list(dict.fromkeys(str(setting.options.get("train_file")) for setting in study.settings))
    if study.grid != ["train_file"] or len(files) != len(study.samples):
        grid = ", ".join(study.grid) or "nothing"
        raise UsageError(
            f"{args.table} has a grid of {grid} and {counted(len(study.samples), 'file')} of labels",
            option="table",
            needed="a study whose grid is only train_file, with one file in `labels` for each",
        )
    runs = peer_records(args.output)
    shown: list[Table] = []
    for file, sample in zip(files, study.samples):
        peers, own = of_peers(runs, file), of_study(study, ours, file)
        before = own.pop(BEFORE, None)  # lacks STS-B dev, so the peers' record is preferred
        found = {BEFORE: before} | peers | own if before and BEFORE not in peers else peers | own
        if found.keys() - {BEFORE}:
            shown += tables(sample_name(file), found, sample, args.reference)
    if not shown:
        raise UsageError(
            f"No run on {', '.join(files)} is finished, neither in {args.output} nor in {args.table}",
            fix="Train first, without `table`.",
        )
    text = "\n\n".join(render(table, "markdown") for table in shown) + "\n"
    print(text, end="")
    if runs:
        write_summary(Path(args.output, "summary.json"), {}, runs)
        Path(args.output, "table.md").write_text(text, encoding="utf-8")


def tables(title: str, records: Records, sample: str, reference: str) -> list[Table]:
    """Return a table of scores with changes to the encoder before training, and one of `reference` minus other rows.

    Args:
        title: Name of the training file.
        records: Runs by row and seed.
        sample: Name of the labeled sample of the same domain.
        reference: A recipe of the study.
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
            # Only the second table marks signals.
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
        shown.append(Table(f"{title}: {reference} minus the others, paired by seed (95% t)", list(labeled), against))
    return shown


def peer_records(output: str | Path) -> list[dict]:
    """Return the finished runs in summary.json and in the folders of PEERS."""
    summary = Path(output, "summary.json")
    kept = read_summary(summary)[1] if summary.exists() else []
    found = {(run["peer"], run["train_file"], run["seed"]): run for run in kept}
    for file in sorted(Path(output).rglob("results.json")):
        peer, *data, seed = file.parent.relative_to(output).parts
        results = load_results(file)
        run = {
            "peer": peer,
            "train_file": data[0] if data else None,  # the encoder before training is shared by all files
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
    """Return the peers' runs on a training file by row and seed."""
    found: Records = {}
    for run in runs:
        if run["train_file"] in (None, sample_name(train_file)):
            found.setdefault(TITLES[run["peer"]], {})[run["seed"]] = run
    return found


def of_study(study: Study, runs: dict[tuple[str, int | None], dict], train_file: str) -> Records:
    """Return the study's runs on a training file by recipe and seed, including the encoder before training."""
    found: Records = {}
    for setting in (*study.before, *study.settings):
        file = setting.options.get("train_file", train_file)
        if sample_name(file) == sample_name(train_file):
            own = {seed: run for (name, seed), run in runs.items() if name == setting.name}
            if own:
                found[setting.recipe] = own
    return found


def values(records: dict[int | None, dict], measure: str) -> Values:
    """Return a measure of each run that has it. Raise UsageError if a run was not scored on its sample."""
    found = {seed: value_of(record, measure) for seed, record in records.items()}
    if "/" in measure and None in found.values():
        sample = measure.rpartition("/")[0]
        raise UsageError(
            f"A run was not scored on {sample}",
            needed=f"{sample} in every run",
            fix="Run it again with that file in `labels`.",
        )
    return {seed: value for seed, value in found.items() if value is not None}


def gain(own: Values, other: Values) -> str | None:
    """Format the mean difference and its 95% t interval, paired by seed, or with the value of a row without seeds."""
    gains = []
    for seed, value in own.items():
        if {seed, None} & other.keys():
            gains.append(value - other[seed if seed in other else None])
    if not gains:
        return None
    _, interval = intervals(gains)
    mean = f"{mean_and_sd(dict(enumerate(gains)))['mean']:+.2f}"
    if interval is None:
        return mean
    return f"{mean} ({interval[0]:+.2f} to {interval[1]:+.2f}){' signal' if interval[0] > 0 else ''}"


def mean_cell(found: Values) -> str | None:
    """Format the mean ± standard deviation (n - 1) over seeds."""
    summary = mean_and_sd(dict(enumerate(found.values())))
    if summary["n"] == 0:
        return None
    return f"{summary['mean']:.2f}" + ("" if summary["sd"] is None else f" ± {summary['sd']:.2f}")
