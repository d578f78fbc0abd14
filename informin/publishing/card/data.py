"""The YAML metadata of the card, which the Hub reads."""

from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from informin.evaluation.measures import KINDS
from informin.evaluation.results import Results
from informin.evaluation.senteval import STS_TASKS, TRANSFER_TASKS
from informin.evaluation.senteval_files import HUB_DATA
from informin.publishing.fit_record import FitRecord
from informin.publishing.origin import is_hub_id
from informin.training.record import RunRecord

TAGS = ["sentence-transformers", "sentence-similarity", "feature-extraction"]
# Task type, metric type and metric name.
STS = ("semantic-similarity", "spearman_cosine", "Spearman x 100")
TRANSFER = ("text-classification", "accuracy", "Accuracy x 100")
TASKS = {**dict.fromkeys(STS_TASKS, STS), **dict.fromkeys(TRANSFER_TASKS, TRANSFER)}
SAMPLE_TYPES = {"labels": "Clustering", "retrieval": "Retrieval"}


def card_data(record: RunRecord | FitRecord, tags: list[str], **others: Any) -> ModelCardData:
    """Return the metadata of a model.

    Args:
        record: Record of the run or the fit.
        tags: Tags in addition to `TAGS`.
        others: Further entries.
    """
    hub_id = (record.base_model or {}).get("hub_id")
    base = hub_id if hub_id and is_hub_id(hub_id) else None
    return ModelCardData(
        license=record.license,
        license_name=record.license_name,
        license_link=record.license_link,
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        base_model=base,
        base_model_relation="finetune" if base else None,
        tags=[*TAGS, *tags],
        **others,
    )


def eval_results(results: Results) -> list[EvalResult]:
    """Return the scores of SentEval tasks, and every measure of the user's own labeled data."""
    scored = []
    for name, entry in results.tasks.items():
        data: dict[str, Any] = {"dataset_type": name, "dataset_name": name}
        if name in TASKS and entry["score"] is not None:
            data |= {"dataset_type": HUB_DATA, "dataset_config": name, "dataset_split": "test"}
            scored.append(_result(TASKS[name], entry["score"], data))
        for key, measure in KINDS[entry["kind"]].items() if entry.get("measures") else ():
            scored.append(_result((SAMPLE_TYPES[entry["kind"]], key, measure.title), entry["measures"][key], data))
    return scored


def _result(kind: tuple[str, str, str], score: float, data: dict[str, Any]) -> EvalResult:
    task, metric, name = kind
    return EvalResult(task_type=task, metric_type=metric, metric_name=name, metric_value=round(score, 2), **data)
