"""The YAML metadata of the card, which the Hub reads."""

from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from informin.evaluation.measures import KINDS
from informin.evaluation.senteval import STS_TASKS, TRANSFER_TASKS
from informin.evaluation.senteval_files import HUB_DATA
from informin.evaluation.table import samples
from informin.publishing.card.markdown import single_line
from informin.publishing.metadata import known_id, known_language, known_license, known_license_link, known_license_name

# Task type and name, metric type and name.
STS = ("semantic-similarity", "Semantic similarity", "spearman_cosine", "Spearman x 100")
TRANSFER = ("text-classification", "Transfer", "accuracy", "Accuracy x 100")
KINDS_OF_TASKS = {**dict.fromkeys(STS_TASKS, STS), **dict.fromkeys(TRANSFER_TASKS, TRANSFER)}
SAMPLE_TYPES = {"labels": "Clustering", "retrieval": "Retrieval"}


def front_matter(name: str, record: dict, objective: dict, results: dict | None, onnx: bool) -> ModelCardData:
    """Return the metadata. Values that the Hub would not accept are left out.

    Args:
        name: Name of the model.
        record: The record of the run; see `informin.publishing.record`.
        objective: Name and title of the objective.
        results: Scores of this model; None if it was not evaluated.
        onnx: Whether the folder has ONNX files.
    """
    hub_data = known_id((record["data"] or {}).get("hub_id"))
    scores = [*_task_results(results), *_sample_results(results)] if results else []
    return ModelCardData(
        language=known_language(record.get("language")),
        **license_metadata(record),
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        base_model=known_id((record["base_model"] or {}).get("hub_id")),
        datasets=[hub_data] if hub_data else None,
        tags=[
            *("sentence-transformers", "sentence-similarity", "feature-extraction", "transformers"),
            *("unsupervised", (known_id(objective["title"]) or objective["name"]).lower()),
            *(["onnx"] if onnx else []),
        ],
        model_name=name if scores else None,  # of the model-index
        eval_results=scores or None,
    )


def license_metadata(values: dict) -> dict[str, Any]:
    """Return the license with its name and link, of those values that the Hub accepts."""
    return {
        "license": known_license(values.get("license")),  # the Hub also accepts a list
        "license_name": known_license_name(values.get("license_name")),
        "license_link": known_license_link(values.get("license_link")),
    }


def _task_results(results: dict) -> list[EvalResult]:
    """Return the scores of SentEval tasks."""
    found = []
    for task, entry in results["tasks"].items():
        if task in KINDS_OF_TASKS and entry["score"] is not None:
            task_type, task_name, metric_type, metric_name = KINDS_OF_TASKS[task]
            found.append(
                EvalResult(
                    task_type=task_type,
                    task_name=task_name,
                    dataset_type=HUB_DATA,
                    dataset_name=f"{task} (SentEval)",
                    dataset_config=task,
                    dataset_split="test",
                    metric_type=metric_type,
                    metric_name=metric_name,
                    metric_value=round(entry["score"], 2),
                )
            )
    return found


def _sample_results(results: dict) -> list[EvalResult]:
    """Return every measure of the user's own labeled data."""
    return [
        EvalResult(
            task_type=SAMPLE_TYPES[entry["kind"]],
            dataset_type=name,
            dataset_name=name,
            metric_type=key,
            metric_name=measure.title,
            metric_value=round(entry["measures"][key], 2),
        )
        for name, entry in single_line(samples(results)).items()
        for key, measure in KINDS[entry["kind"]].items()
        if entry["score"] is not None
    ]
