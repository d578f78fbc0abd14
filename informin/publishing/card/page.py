"""Render and write README.md. A checksum at the end of the page tells whether a person edited it."""

import hashlib
import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from jinja2 import Template

from informin.errors import UsageError
from informin.evaluation.drift import MAIN, drift_table
from informin.evaluation.measures import KINDS
from informin.evaluation.results import Results
from informin.evaluation.senteval import STS_TASKS, TRANSFER_TASKS
from informin.evaluation.table import render
from informin.files import last_name, read_json
from informin.hub_access import HUB_DATA
from informin.outputs import PREFIX, save_text
from informin.publishing.card import tables
from informin.publishing.card.tables import escape, escaped, in_quotes, worse_after_training, worse_by_drift
from informin.publishing.onnx import settings_for_clients
from informin.publishing.origin import is_hub_id
from informin.records import FitRecord, RunRecord

TAGS = ["sentence-transformers", "sentence-similarity", "feature-extraction"]
# Task type, metric type and metric name.
STS = ("semantic-similarity", "spearman_cosine", "Spearman x 100")
TRANSFER = ("text-classification", "accuracy", "Accuracy x 100")
TITLES_OF_TASKS = {**dict.fromkeys(STS_TASKS, STS), **dict.fromkeys(TRANSFER_TASKS, TRANSFER)}
SAMPLE_TYPES = {"labels": "Clustering", "retrieval": "Retrieval"}
CARD = "README.md"
TEMPLATES = Path(__file__).parents[1] / "templates"
UNPUBLISHED = "path/to/this/folder"
STATIC = "static"  # kind of a record: a table of token vectors


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
        if name in TITLES_OF_TASKS and entry["score"] is not None:
            data |= {"dataset_type": HUB_DATA, "dataset_config": name, "dataset_split": "test"}
            scored.append(_result(TITLES_OF_TASKS[name], entry["score"], data))
        for key, measure in KINDS[entry["kind"]].items() if entry.get("measures") else ():
            scored.append(_result((SAMPLE_TYPES[entry["kind"]], key, measure.title), entry["measures"][key], data))
    return scored


def _result(kind: tuple[str, str, str], score: float, data: dict[str, Any]) -> EvalResult:
    task, metric, name = kind
    return EvalResult(task_type=task, metric_type=metric, metric_name=name, metric_value=round(score, 2), **data)


def write_card(folder: str | Path, repo: str | None = None, revision: str | None = None) -> bool:
    """Write README.md unless a person edited it.

    Args:
        folder: An exported folder.
        repo: Hub id that the examples load; None for the folder itself.
        revision: Commit that the examples pin.

    Returns:
        Whether the card was written.
    """
    path = Path(folder, CARD)
    if is_edited(path):
        return False
    save_text(path, render_card(folder, repo, revision))
    return True


def is_edited(path: Path) -> bool:
    """Return whether a file exists and is not an unchanged card."""
    if not path.is_file():
        return False
    page, _, stamp = path.read_text(encoding="utf-8", errors="replace").rstrip("\n").rpartition("\n")
    return stamp != _stamp(page)


def render_card(folder: str | Path, repo: str | None = None, revision: str | None = None) -> str:
    """Return the card of an exported folder: YAML metadata, then Markdown. See `write_card`.

    Raises:
        UsageError: The folder has no record of a run or a fit.
    """
    folder = Path(folder)
    record = RunRecord.load(folder) or FitRecord.load(folder)
    if record is None:
        raise UsageError(f"{folder} has no record of a run or a fit, so it has no model card", option="model_name")
    base = record.base_model or {"name": "encoder"}
    hub_id = base["hub_id"] if is_hub_id(base.get("hub_id")) else None
    shown = {
        "name": escape(repo.rpartition("/")[2] if repo else last_name(folder).replace(PREFIX, "")),
        "base": f"[{hub_id}](https://huggingface.co/{hub_id})" if hub_id else f"`{escape(base['name'])}`",
        "repo": in_quotes(repo or UNPUBLISHED),
        "published": bool(repo),
        "pin": f', revision="{in_quotes(revision)}"' if revision else "",
        "record": escaped(asdict(record)),
        "onnx": [f"onnx/{path.name}" for path in sorted(folder.glob("onnx/*.onnx"))],
    }
    shown["onnx_usage"] = _onnx_usage(folder, record, shown) if shown["onnx"] else ""
    card = _run_card(folder, record, shown) if isinstance(record, RunRecord) else _fit_card(folder, record, shown)
    page = re.sub(r"\n{3,}", "\n\n", str(card)).strip()
    return f"{page}\n{_stamp(page)}\n"


def _fit_card(folder: Path, record: FitRecord, shown: dict[str, Any]) -> ModelCard:
    """Return the card of a model with a linear adapter, or of a static model."""
    drift = record.drift
    is_static = record.kind == STATIC
    label = "static" if is_static else "adapted"
    return ModelCard.from_template(
        card_data(record, ["informin-cl", "static-embeddings" if is_static else "linear-adapter"]),
        template_path=str(TEMPLATES / ("static_card.md" if is_static else "adapter_card.md")),
        worse=list(worse_by_drift(drift, "The table" if is_static else "The adapter")),
        drift=render(drift_table({label: drift}, "before", MAIN), "markdown") if drift else "",
        **_usage(folder, None),
        **shown,
    )


def _run_card(folder: Path, record: RunRecord, shown: dict[str, Any]) -> ModelCard:
    """Return the card of a trained model."""
    results = tables.load_added_results(folder)
    data = record.data or {}
    drift = record.drift
    scores = eval_results(results.model) if results.model else None
    title = record.objective["title"]
    name = record.objective["name"]
    metadata = card_data(
        record,
        [
            "transformers",
            "unsupervised",
            (title if is_hub_id(title) else name).lower(),
            *(["onnx"] if shown["onnx"] else []),
        ],
        language=record.language,
        datasets=[data["hub_id"]] if is_hub_id(data.get("hub_id")) else None,
        model_name=shown["name"] if scores else None,  # of the model-index
        eval_results=scores or None,
    )
    return ModelCard.from_template(
        metadata,
        template_path=str(TEMPLATES / "model_card.md"),
        results=results,
        tables=tables.result_tables(results, record.seed, samples=False),
        samples=tables.result_tables(results, record.seed, samples=True),
        kinds=KINDS,
        drift=render(drift_table({tables.AFTER: drift}, tables.BEFORE), "markdown") if drift else "",
        worse=list(worse_after_training(record, results)),
        citations=_citations(record.objective),
        **_usage(folder, record.options.get("prompt")),
        **shown,
    )


def _usage(folder: Path, training_prompt: str | None) -> dict[str, Any]:
    """Return how embeddings are computed, by the files of a folder.

    Args:
        folder: The folder of the model.
        training_prompt: Prompt used in training; None if that is the default prompt.
    """
    config = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    declared = read_json(folder / "config_sentence_transformers.json")
    prompts = declared.get("prompts") or {}
    default = prompts.get(declared.get("default_prompt_name"), "")
    prompt = default if training_prompt is None else training_prompt
    pooling = read_json(folder / "1_Pooling/config.json") if (folder / "1_Pooling/config.json").is_file() else {}
    return {
        "width": pooling.get("word_embedding_dimension"),
        "architecture": (config.get("auto_map") or {}).get("AutoModel", "").removeprefix("modeling_informin."),
        "settings": escaped(config.get("informin") or {}),
        "prompt": escape(prompt),
        "default_prompt": escape(default),
        "encode_prompt": "" if prompt == default else f', prompt="{in_quotes(prompt)}"',
        "texts": json.dumps([prompt + text for text in ("A dog sleeps.", "The dog is asleep.")], ensure_ascii=False),
        "asymmetric": prompts.get("query") != prompts.get("document") or any(folder.rglob("router_config.json")),
    }


def _onnx_usage(folder: Path, record: RunRecord | FitRecord, shown: dict[str, Any]) -> str:
    """Return the part of a card about the ONNX files."""
    template = Template((TEMPLATES / "onnx_usage.md").read_text(encoding="utf-8"))
    usage = _usage(folder, record.options.get("prompt"))
    return template.render(client_settings=settings_for_clients(folder), **usage, **shown)


def _citations(objective: dict) -> list[tuple[str, str]]:
    """Return what to cite and its BibTeX entry: first the objective, then the papers of its terms."""
    named = {objective["name"]: "The objective"}
    for term in objective["terms"]:
        named.setdefault(str(term["paper"]), f"The {escape(term['title'])}")
    files = {path.stem: path for path in (TEMPLATES / "citations").glob("*.bib")}  # a record could name any path
    return [(named[name], files[name].read_text(encoding="utf-8").strip()) for name in named if name in files]


def _stamp(page: str) -> str:
    checksum = hashlib.sha256(page.encode()).hexdigest()
    return f"<!-- Written from the run; SHA-256 of the page above: {checksum}. A page edited by hand is left alone. -->"
