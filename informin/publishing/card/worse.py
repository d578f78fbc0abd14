"""Where a model is worse than the one it starts from, which a card says before anything else."""

from collections.abc import Iterator, Mapping

from informin.evaluation.drift import CHANGED, FORGOT, MEASURES
from informin.evaluation.measures import KINDS, Measure
from informin.evaluation.results import Results
from informin.evaluation.senteval import GROUPS
from informin.publishing.card.markdown import escape
from informin.publishing.card.tables import AddedResults, pooling_name
from informin.training.record import RunRecord

TITLES = {"sts": "STS", "transfer": "transfer"}
STSB_DEV = MEASURES["stsb_dev"]
SECTION = "[Changes to the embeddings](#changes-to-the-embeddings)"


def worse_after_training(record: RunRecord, results: AddedResults) -> Iterator[str]:
    """Yield the scores and measures by which training made the model worse, each as a sentence."""
    chosen = {entry["step"]: entry for entry in record.history}
    old, new = chosen.get(0, {}), chosen.get(record.kept_step, {})
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
    scored = STSB_DEV.title in [data["name"] for data in record.development_sets]
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
        yield from _lower(f"Spearman x 100 on {STSB_DEV.title}", STSB_DEV, old, new)
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
            yield f"{TITLES[group]} average", *averages
        else:
            yield from ((f"score on {task}", _score(base, task), _score(model, task)) for task in tasks)
    for name, entry in model.samples().items():
        title = next(iter(KINDS[entry["kind"]].values())).title
        yield f"{title} on {name}", _score(base, name), _score(model, name)


def _score(results: Results, task: str) -> float | None:
    return results.tasks.get(task, {}).get("score")
