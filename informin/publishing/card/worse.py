"""Where a model is worse than the one it starts from, which a card says before anything else."""

from collections.abc import Iterator, Mapping

from informin.evaluation.drift import CHANGED, FORGOT, MEASURES
from informin.evaluation.measures import KINDS, Measure
from informin.evaluation.senteval import STS_TASKS, TRANSFER_TASKS
from informin.evaluation.table import samples
from informin.publishing.card.markdown import Markdown, escape
from informin.publishing.card.scores import Results, development_sets, pooling_name

TITLES = {"sts": "STS", "transfer": "transfer"}
STSB_DEV = MEASURES["stsb_dev"].title
SECTION = "[Changes to the embeddings](#changes-to-the-embeddings)"


def worse_after_training(record: Mapping, results: Results) -> list[Markdown]:
    """Return the scores and measures by which training made the model worse, each as a sentence."""
    found = [*_by_development(record), *_by_results(results)]
    named = {one["name"] for one in development_sets(dict(record))}
    return found + worse_by_drift(record["drift"], "Training", scored=STSB_DEV in named)


def worse_by_drift(drift: Mapping | None, subject: str, scored: bool = False) -> list[Markdown]:
    """Return what a drift record shows as worse, each as a sentence.

    Args:
        drift: A record of `informin.evaluation.drift`.
        subject: What changed the embeddings.
        scored: Whether the score on STS-B dev is shown elsewhere.
    """
    if not drift:
        return []
    old, new = (drift[side].get("stsb_dev") for side in ("old", "new"))
    found = [] if scored else _lower("Spearman x 100", STSB_DEV, MEASURES["stsb_dev"], old, new)
    harmful = [warning.partition(":")[0] for warning in drift["warnings"] if not warning.startswith((CHANGED, FORGOT))]
    return found + [Markdown(f"{subject} {escape(warning.rstrip('.'))}: see {SECTION}.") for warning in harmful]


def _by_development(record: Mapping) -> Iterator[Markdown]:
    chosen = {entry["step"]: entry for entry in record["history"]}
    if 0 not in chosen or record["kept_step"] not in chosen:
        return
    for one in development_sets(dict(record)):
        name, measure = next(iter(KINDS[one["kind"]].items()))
        old, new = (chosen[step].get(name) for step in (0, record["kept_step"]))
        yield from _lower(measure.title, one["name"], measure, old, new)


def _lower(title: str, name: str, measure: Measure, old: float | None, new: float | None) -> list[Markdown]:
    """Return a sentence if the score fell, as far as the digits that are shown."""
    if old is None or new is None or round(new, measure.digits) >= round(old, measure.digits):
        return []
    return [Markdown(f"{title} on {escape(name)} is {measure.shown(new)}, and {measure.shown(old)} before.")]


def _by_results(results: Results) -> Iterator[Markdown]:
    if results.model is None:
        return
    for score, pooler, theirs, ours in _losses(results.model, results.base):
        yield Markdown(
            f"Without this training, the source model has a higher {escape(score)} ({escape(pooling_name(pooler))}): "
            f"{theirs:.2f} instead of {ours:.2f}."
        )


def _losses(model: dict, base: dict[str, dict]) -> Iterator[tuple[str, str, float, float]]:
    """Yield each score that training lowered, as its name, the pooling, the source model's score and this model's."""
    for group, tasks in (("sts", STS_TASKS), ("transfer", TRANSFER_TASKS)):
        for pooler, before in base.items():
            scores = {f"{TITLES[group]} average": [one["average"][group] for one in (model, before)]}
            if None in next(iter(scores.values())):  # not all tasks were scored
                scores = {f"score on {task}": [_score(one, task) for one in (model, before)] for task in tasks}
            for name, (ours, theirs) in scores.items():
                if ours is not None and theirs is not None and theirs > ours:
                    yield name, pooler, theirs, ours
    for pooler, before in base.items():
        known = samples(before)
        for sample, entry in samples(model).items():
            ours, theirs = entry["score"], known.get(sample, {}).get("score")
            if ours is not None and theirs is not None and theirs > ours:
                yield f"{next(iter(KINDS[entry['kind']].values())).title} on {sample}", pooler, theirs, ours


def _score(results: dict, task: str) -> float | None:
    return results["tasks"].get(task, {}).get("score")
