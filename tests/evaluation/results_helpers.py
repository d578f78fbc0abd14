"""Results for tests."""

from informin.evaluation.results import (
    add_task,
    new_results,
)
from informin.evaluation.senteval import STS_TASKS

MODEL = dict(
    weights_sha256="0" * 64,
    pooler="cls",
    normalized=False,
    prompt=None,
    whitening=None,
    max_length=512,
    precision="fp32",
    split="test",
)
STS = dict(zip(STS_TASKS, [10.0, 20.5, 30.0, 40.25, 50.0, 60.0, 70.0]))


def entry(score: float | None, **more) -> dict:
    seconds = {"encode": 1.5, "score": 0.25}
    found = {"score": score, "n": 9, "truncated": 0, "data": {"a.txt": "1" * 64}, "seconds": seconds}
    return found | ({"error": "nothing is finite"} if score is None else {}) | more


def results(scores: dict[str, float | None], model: str = "org/model", **changes) -> dict:
    found = new_results(model, MODEL | changes, {"torch": "2"})
    for name, score in scores.items():
        add_task(found, name, entry(score))
    return found


def sample(score: float | None, **more) -> dict:
    """Return the entry of a labeled sample."""
    names = ("v_measure", "nearest_neighbor", "nearest_10", "few_shot")
    measures = {} if score is None else {"measures": {name: score + i for i, name in enumerate(names)}}
    return entry(score, kind="labels", classes=3, **measures) | {"n": 1200} | more
