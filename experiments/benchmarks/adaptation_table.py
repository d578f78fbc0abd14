"""Tables of a study and of the peers in adaptation.py, paired by seed."""

from collections.abc import Mapping
from pathlib import Path

from experiments.benchmarks.adaptation_peers import TITLES
from experiments.studies.plan import BEFORE, DEVELOPMENT
from experiments.studies.table import intervals, mean_and_sd, value_of
from experiments.study import load_study
from experiments.tables import markdown, read_summary, write_summary
from informin.files import read_json

Records = dict[str, dict[int | None, dict]]  # records for `value_of` by row and seed; None for no seed
Values = Mapping[int | None, float]  # by seed


def save_tables(output: str, summary: str, reference: str) -> None:
    """Print and write the tables of finished runs, for each training file of the study, which is its grid."""
    study, ours = load_study(summary)
    runs, parts = peer_records(Path(output)), []
    files = dict.fromkeys(Path(str(setting.options["train_file"])).stem for setting in study.settings)
    for file, sample in zip(files, study.samples):
        rows: Records = {}
        for run in runs:
            if run["train_file"] in (None, file):  # the encoder before training is shared by all files
                rows.setdefault(TITLES[run["peer"]], {})[run["seed"]] = run
        for setting in study.settings:
            if Path(str(setting.options["train_file"])).stem == file:
                rows[setting.recipe] = {seed: run for (name, seed), run in ours.items() if name == setting.name}
        parts += tables(file, {name: records for name, records in rows.items() if records}, sample, reference)
    text = "\n\n".join(parts) + "\n"
    print(text, end="")
    write_summary(Path(output, "summary.json"), {}, runs)
    Path(output, "table.md").write_text(text, encoding="utf-8")


def tables(title: str, records: Records, sample: str, reference: str) -> list[str]:
    """Return a table of scores with changes to the encoder before training, and one of `reference` minus other rows."""
    labeled = {"V-measure": f"{sample}/v_measure", "1-NN": f"{sample}/nearest_neighbor"}
    measures = labeled | {"STS-B dev": DEVELOPMENT, "STS average": "sts"}
    scores = {row: {name: values(runs, key) for name, key in measures.items()} for row, runs in records.items()}
    start, rows = scores[BEFORE], []
    for row, found in scores.items():
        cells: list[object] = [row, len(records[row])]
        for name in measures:
            change = None if row == BEFORE else gain(found[name], start[name])
            cells += [mean_cell(found[name]), change and change.removesuffix(" signal")]
        rows.append(cells)
    columns = ["", "runs", *(column for name in measures for column in (name, f"{name}, change"))]
    parts = [markdown(f"{title}: mean ± sd over seeds, change to before training (95% t)", columns, rows)]
    if reference in scores:
        rows = [
            [f"{reference} - {row}", *(gain(scores[reference][name], found[name]) for name in labeled)]
            for row, found in scores.items()
            if row != reference
        ]
        heading = f"{title}: {reference} minus the others, paired by seed (95% t)"
        parts.append(markdown(heading, ["", *labeled], rows))
    return parts


def peer_records(output: Path) -> list[dict]:
    """Return the finished runs in summary.json and in the folders of PEERS."""
    summary = output / "summary.json"
    found = (
        {(run["peer"], run["train_file"], run["seed"]): run for run in read_summary(summary)[1]}
        if summary.exists()
        else {}
    )
    for file in sorted(output.rglob("results.json")):
        peer, *data, seed = file.parent.relative_to(output).parts
        results = read_json(file)
        samples = {
            name: {"measures": task["measures"]} for name, task in results["tasks"].items() if "measures" in task
        }
        key = (peer, data[0] if data else None, None if seed == "once" else int(seed.removeprefix("seed")))
        found[key] = dict(zip(("peer", "train_file", "seed"), key)) | {
            "scores": {name: task["score"] for name, task in results["tasks"].items()},
            "averages": results["average"],
            "dev": {"spearman": results["dev"]},
            "samples": samples,
        }
    order = list(TITLES)
    return sorted(found.values(), key=lambda run: (order.index(run["peer"]), run["train_file"] or "", run["seed"] or 0))


def values(records: dict[int | None, dict], measure: str) -> Values:
    """Return a measure of each run that has it."""
    found = {seed: value_of(record, measure) for seed, record in records.items()}
    return {seed: value for seed, value in found.items() if value is not None}


def gain(scores: Values, other: Values) -> str | None:
    """Format the mean difference and its 95% t interval, paired by seed, or with the value of a row without seeds."""
    gains = [
        value - other[seed if seed in other else None] for seed, value in scores.items() if {seed, None} & set(other)
    ]
    if not gains:
        return None
    mean, (_, interval) = f"{sum(gains) / len(gains):+.2f}", intervals(gains)
    if interval is None:
        return mean
    return f"{mean} ({interval[0]:+.2f} to {interval[1]:+.2f}){' signal' if interval[0] > 0 else ''}"


def mean_cell(found: Values) -> str | None:
    """Format the mean ± standard deviation (n - 1) over seeds."""
    summary = mean_and_sd(dict(enumerate(found.values())))
    if summary["n"] == 0:
        return None
    return f"{summary['mean']:.2f}" + ("" if summary["sd"] is None else f" ± {summary['sd']:.2f}")
