"""Results for tests."""

from informin.evaluation.results import Results
from informin.evaluation.senteval import STS_TASKS

MODEL = dict(
    weights_sha256="0" * 64,
    pooler="cls",
    normalized=False,
    max_seq_length=512,
    precision="fp32",
    split="test",
)
STS = dict(zip(STS_TASKS, [10.0, 20.5, 30.0, 40.25, 50.0, 60.0, 70.0]))


def entry(score: float | None, **more) -> dict:
    seconds = {"encode": 1.5, "score": 0.25}
    values = {"score": score, "n": 9, "data": {"a.txt": "1" * 64}, "seconds": seconds}
    return values | ({"error": "nothing is finite"} if score is None else {}) | more


def results(scores: dict[str, float | None], model: str = "org/model", **changes) -> Results:
    made = Results(model=model, environment={"torch": "2"}, **(MODEL | changes))
    for name, score in scores.items():
        made.add(name, entry(score))
    return made


def sample(score: float | None, **more) -> dict:
    """Return the entry of a labeled sample."""
    names = ("v_measure", "nearest_neighbor", "nearest_10", "few_shot")
    measures = {} if score is None else {"measures": {name: score + i for i, name in enumerate(names)}}
    return entry(score, kind="labels", classes=3, **measures) | {"n": 1200} | more


def search(score: float, queries: list[float], **more) -> dict:
    """Return the entry of a collection with two measures and the nDCG@10 of each query."""
    measures = dict.fromkeys(("map_100", "recall_10", "recall_100", "accuracy_1", "accuracy_10"))
    measures |= {"mrr_10": score, "ndcg_10": sum(queries) / len(queries)}
    values = entry(score, kind="retrieval", documents=40, measures=measures, queries={"ndcg_10": queries})
    return values | {"n": len(queries)} | more
