"""The card's tables of scores, read from results/, the training history and the drift record.

`informin push --results` writes the files in results/:

    model.json                 this model
    base-POOLER.json           the source model with this pooling
    other_seeds/seedN.json     runs with the same options and another seed
"""

from dataclasses import dataclass, field, replace
from pathlib import Path

from informin.evaluation.drift import drift_table
from informin.evaluation.measures import ALL, KINDS
from informin.evaluation.results import load_results
from informin.evaluation.table import TITLES, render, score_tables
from informin.publishing.card.markdown import Markdown, escape, markdown_table, single_line

BEFORE, AFTER = "before training", "this model"
POOLINGS = {
    "cls": "[CLS] pooling",
    "mean": "mean pooling",
    "last": "last-token pooling",
    "st": "the model's own pooling",
}


@dataclass
class Results:
    """All results of a folder.

    Attributes:
        model: Results of this model; None if it was not evaluated.
        base: Results of the source model by pooling.
        seeds: Results of other runs by seed.
    """

    model: dict | None = None
    base: dict[str, dict] = field(default_factory=dict)
    seeds: dict[int, dict] = field(default_factory=dict)


def load_added_results(folder: str | Path) -> Results:
    """Load the files in results/."""
    folder = Path(folder, "results")
    model = folder / "model.json"
    base = {path.stem.removeprefix("base-"): path for path in sorted(folder.glob("base-*.json"))}
    seeds = {int(path.stem.removeprefix("seed")): path for path in folder.glob("other_seeds/seed*.json")}
    return Results(
        model=load_results(model) if model.is_file() else None,
        base={pooler: load_results(path) for pooler, path in base.items()},
        seeds={seed: load_results(seeds[seed]) for seed in sorted(seeds)},
    )


def pooling_name(pooler: str) -> str:
    """Return the name of a pooling in words. The file name of results gives the pooling."""
    return POOLINGS.get(pooler, pooler)


def result_tables(results: Results, seed: int | None, samples: bool) -> Markdown:
    """Return the tables of STS and transfer, or with `samples` those of the user's labeled data.

    Rows are the source model, this model and the other seeds, then mean and standard deviation over the seeds.
    """
    if results.model is None:
        return Markdown()
    runs = [results.model, *results.seeds.values()]
    labels = [f"{AFTER}{'' if seed is None else f' (seed {escape(seed)})'}", *(f"seed {n}" for n in results.seeds)]
    before = {table.title: table.rows for table in score_tables(list(results.base.values()))}
    rendered = []
    for table in score_tables(runs, seeds=len(runs) > 1):
        if samples == (table.title in TITLES.values()):
            continue
        own = [replace(row, label=name) for row, name in zip(table.rows, labels)] + table.rows[len(labels) :]
        base = zip(before.get(table.title, []), results.base)
        rows = [replace(row, label=f"{BEFORE}, {escape(pooling_name(pooler))}") for row, pooler in base]
        title = escape(single_line(table.title))
        rendered.append(render(replace(table, title=title, rows=rows + own), "markdown"))
    return Markdown("\n\n".join(rendered))


def development_sets(record: dict) -> list[dict]:
    """Return `kind` and `name` of each development set. Older records have only pairs."""
    return record.get("development_sets", [{"kind": "pairs", "name": record.get("development")}])


def development_tables(record: dict) -> Markdown:
    """Return one table per development set, with the scores before training and at the kept step."""
    chosen = {entry["step"]: entry for entry in record["history"] if entry["step"] in (0, record["kept_step"])}
    if not chosen:
        return Markdown()
    tables = []
    for one in development_sets(record):
        rows, measures = [], KINDS[one["kind"]]
        for step, entry in sorted(chosen.items()):
            values = [(entry.get(name), measure) for name, measure in measures.items()]
            cells = ["-" if value is None else measure.shown(value) for value, measure in values]
            rows.append([f"step {step:,}, {AFTER}" if step else BEFORE, *cells])
        heads = [one["name"], *(measure.title for measure in measures.values())]
        tables.append(markdown_table(heads, rows, " ---: |"))
    if own := [name for name in chosen[max(chosen)] if name not in ("step", *ALL)]:
        rows = []
        for step, entry in sorted(chosen.items()):
            cells = ["-" if entry.get(name) is None else f"{entry[name]:.4g}" for name in own]
            rows.append([f"step {step:,}, {AFTER}" if step else BEFORE, *cells])
        tables.append(markdown_table(["Own evaluation", *own], rows, " ---: |"))
    return Markdown("\n\n".join(tables))


def changes_table(drift: dict | None) -> Markdown:
    """Return how much training changed the embeddings, with warnings. Older records have no drift."""
    if not drift:
        return Markdown()
    table = drift_table({AFTER: drift}, BEFORE)
    rows = [[row.label, *map(row.cell, table.columns)] for row in table.rows]
    notes = [f"Training {escape(warning)}" for warning in drift["warnings"]]
    return Markdown("\n\n".join([markdown_table([table.title, *table.columns], rows, " ---: |"), *notes]))
