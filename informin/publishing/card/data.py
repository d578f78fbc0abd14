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
# Entries of an `EvalResult`.
STS: dict[str, Any] = {
    "task_type": "semantic-similarity",
    "metric_type": "spearman_cosine",
    "metric_name": "Spearman x 100",
}
TRANSFER: dict[str, Any] = {
    "task_type": "text-classification",
    "metric_type": "accuracy",
    "metric_name": "Accuracy x 100",
}
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
            scored.append(EvalResult(**TASKS[name], **data, metric_value=round(entry["score"], 2)))
        for key, measure in KINDS[entry["kind"]].items() if entry.get("measures") else ():
            kind: dict[str, Any] = {
                "task_type": SAMPLE_TYPES[entry["kind"]],
                "metric_type": key,
                "metric_name": measure.title,
            }
            scored.append(EvalResult(**kind, **data, metric_value=round(entry["measures"][key], 2)))
    return scored
