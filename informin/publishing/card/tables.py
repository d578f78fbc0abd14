"""The card's tables of scores, read from results/, and the scores that are worse than those of the source model.

`informin push --results` writes the files in results/:

    model.json                 this model
    base-POOLER.json           the source model with this pooling
    other_seeds/seedN.json     runs with the same options and another seed
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from informin.evaluation.drift import CHANGED, FORGOT, MEASURES
from informin.evaluation.measures import KINDS, Measure
from informin.evaluation.results import Results, load_results
from informin.evaluation.senteval import GROUPS
from informin.evaluation.table import TITLES, render, score_tables
from informin.records import RunRecord

# Characters with a meaning in Markdown. An underscore within a word and brackets without a link target have none.
MARKUP = re.compile(r"[\\`*<>|~$]|\](?=\()|&(?=#?\w+;)|(?<![^\W_])_|_(?![^\W_])")
ENTITIES = {"<": "&lt;", ">": "&gt;", "&": "&amp;"}
BEFORE = "before training"
AFTER = "this model"
GROUP_TITLES = {"sts": "STS", "transfer": "transfer"}
STSB_DEV_MEASURE = MEASURES["stsb_dev"]
SECTION = "[Changes to the embeddings](#changes-to-the-embeddings)"


def escape(value: object) -> str:
    """Return a value on a single line with its markup escaped."""
    line = " ".join(str(value).split())
    return MARKUP.sub(lambda match: ENTITIES.get(match[0], f"\\{match[0]}"), line)


def escaped(value: Any) -> Any:
    """Return a JSON value with the markup in its texts escaped, also in names."""
    if isinstance(value, dict):
        return {escape(name): escaped(item) for name, item in value.items()}
    if isinstance(value, list):
        return [escaped(item) for item in value]
    return escape(value) if isinstance(value, str) else value


def in_quotes(value: str) -> str:
    """Return a text for use between double quotes in Python code."""
    return json.dumps(value, ensure_ascii=False)[1:-1].replace("`", "\\x60")


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


def worse_after_training(record: RunRecord, results: AddedResults) -> Iterator[str]:
    """Yield the scores and measures by which training made the model worse, each as a sentence."""
    chosen = {entry["step"]: entry for entry in record.history}
    old = chosen.get(0, {})
    new = chosen.get(record.kept_step, {})
    for data in record.development_sets:
        name, measure = next(iter(KINDS[data["kind"]].items()))
        yield from _lower(f"{measure.title} on {data['name']}", measure, old.get(name), new.get(name))
    for pooler, base in results.base.items():
        for score, theirs, ours in _scores(base, results.model) if results.model else ():
            if theirs is not None and ours is not None and theirs > ours:
                yield (
                    f"Without this training, the source model has a higher {escape(score)} ({pooling_name(pooler)}): "
                    f"{theirs:.2f} instead of {ours:.2f}."
                )
    scored = STSB_DEV_MEASURE.title in [data["name"] for data in record.development_sets]
    yield from worse_by_drift(record.drift, "Training", scored)


def worse_by_drift(drift: Mapping | None, subject: str, scored: bool = False) -> Iterator[str]:
    """Yield what a drift record shows as worse, each as a sentence.

    Args:
        drift: A record of `informin.evaluation.drift`.
        subject: What changed the embeddings.
        scored: Whether the score on STS-B dev is shown elsewhere.
    """
    if not drift:
        return
    if not scored:
        old, new = (drift[side].get("stsb_dev") for side in ("old", "new"))
        yield from _lower(f"Spearman x 100 on {STSB_DEV_MEASURE.title}", STSB_DEV_MEASURE, old, new)
    for warning in drift["warnings"]:
        if not warning.startswith((CHANGED, FORGOT)):
            yield f"{subject} {escape(warning.partition(':')[0].rstrip('.'))}: see {SECTION}."


def _lower(title: str, measure: Measure, old: float | None, new: float | None) -> Iterator[str]:
    """Yield a sentence if the score fell, as far as the digits that are shown."""
    if old is not None and new is not None and round(new, measure.digits) < round(old, measure.digits):
        yield f"{escape(title)} is {measure.shown(new)}, and {measure.shown(old)} before."


def _scores(base: Results, model: Results) -> Iterator[tuple[str, float | None, float | None]]:
    """Yield the name of each score, the source model's and this model's: averages, or tasks of an incomplete group."""
    for group, tasks in GROUPS.items():
        averages = base.average[group], model.average[group]
        if None not in averages:
            yield f"{GROUP_TITLES[group]} average", *averages
        else:
            yield from ((f"score on {task}", _score_of(base, task), _score_of(model, task)) for task in tasks)
    for name, entry in model.samples().items():
        title = next(iter(KINDS[entry["kind"]].values())).title
        yield f"{title} on {name}", _score_of(base, name), _score_of(model, name)


def _score_of(results: Results, task: str) -> float | None:
    return results.tasks.get(task, {}).get("score")
