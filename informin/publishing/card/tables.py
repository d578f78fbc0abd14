"""The card's tables of scores, read from results/, the training history and the drift record.

`informin push --results` writes the files in results/:

    model.json                 this model
    base-POOLER.json           the source model with this pooling
    other_seeds/seedN.json     runs with the same options and another seed
"""

from dataclasses import dataclass, replace
from pathlib import Path

from informin.evaluation.results import Results, load_results
from informin.evaluation.table import TITLES, render, score_tables
from informin.publishing.card.markdown import escape

BEFORE, AFTER = "before training", "this model"


@dataclass
class AddedResults:
    """All results of a folder.

    Attributes:
        model: Results of this model; None if it was not evaluated.
        base: Results of the source model by pooling.
        seeds: Results of other runs by seed.
    """

    model: Results | None
    base: dict[str, Results]
    seeds: dict[int, Results]


def load_added_results(folder: str | Path) -> AddedResults:
    """Load the files in results/."""
    folder = Path(folder, "results")
    base = {path.stem.removeprefix("base-"): load_results(path) for path in sorted(folder.glob("base-*.json"))}
    seeds = {int(path.stem.removeprefix("seed")): load_results(path) for path in folder.glob("other_seeds/seed*.json")}
    model = load_results(folder / "model.json") if (folder / "model.json").is_file() else None
    return AddedResults(model, base, dict(sorted(seeds.items())))


def result_tables(results: AddedResults, seed: int, samples: bool) -> str:
    """Return the tables of STS and transfer, or with `samples` those of the user's labeled data.

    Rows are the source model, this model and the other seeds, then mean and standard deviation over the seeds.
    """
    if results.model is None:
        return ""
    runs = [results.model, *results.seeds.values()]
    labels = [f"{AFTER} (seed {seed})", *(f"seed {number}" for number in results.seeds)]
    before = {table.title: table.rows for table in score_tables(list(results.base.values()))}
    rendered = []
    for table in score_tables(runs, seeds=len(runs) > 1):
        if samples == (table.title in TITLES.values()):
            continue
        ours = [replace(row, label=name) for row, name in zip(table.rows, labels)] + table.rows[len(labels) :]
        base = zip(before.get(table.title, []), results.base)
        rows = [replace(row, label=f"{BEFORE}, {pooling_name(pooler)}") for row, pooler in base]
        rendered.append(render(replace(table, title=escape(table.title), rows=rows + ours), "markdown"))
    return "\n\n".join(rendered)


def pooling_name(pooler: str) -> str:
    """Return the name of a pooling in words."""
    return {"cls": "[CLS] pooling", "mean": "mean pooling", "last": "last-token pooling"}.get(pooler, escape(pooler))
