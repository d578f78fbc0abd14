"""The model card, generated from the files of an exported folder and nothing else."""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from huggingface_hub.utils import validate_repo_id
from jinja2 import Template

from informin.errors import UsageError
from informin.evaluation.drift import CHANGED, FORGOT, MAIN, MEASURES, drift_table
from informin.evaluation.measures import KINDS, Measure
from informin.evaluation.results import Results, load_results
from informin.evaluation.senteval import GROUPS, STS_TASKS, TRANSFER_TASKS
from informin.evaluation.table import TITLES, render, score_tables
from informin.files import PREFIX, last_name, read_json, save_text
from informin.hub import HUB_DATA
from informin.model.open import ADAPTER_CONFIG, Source
from informin.model.records import FitRecord, RunRecord
from informin.publishing.onnx import settings_for_clients

BASE = "base_model_name_or_path"  # the model that low-rank matrices belong to
TOKENIZER_CONFIG = "tokenizer_config.json"
# What libraries write about the place that a model was loaded from.
ORIGIN_FIELDS = (
    *("_name_or_path", "name_or_path", "is_local", "local_files_only"),
    *("tokenizer_file", "vocab_file", "merges_file", "special_tokens_map_file"),
)
CALLS = ("max_length", "stride", "pad_to_multiple_of", "truncation_strategy")  # of earlier calls of a tokenizer
QUOTED = re.compile(r'"/(?:[^"\\]|\\.)+"')  # an absolute path in JSON
LARGE = ("tokenizer.json", "vocab.json", "model.safetensors.index.json")  # files without settings


def is_hub_id(value: Any) -> bool:
    """Return whether a value is a valid name of a repository, and no folder here."""
    try:
        validate_repo_id(value)
    except HFValidationError:
        return False
    return value is not None and not os.path.exists(value)


def license_of(source: Source) -> dict[str, Any]:
    """Return `license`, `license_name` and `license_link` in the card of a model, without those that it lacks."""
    try:
        path = source.folder / "README.md" if source.folder else source.name
        card = ModelCard.load(path, ignore_metadata_errors=True).data.to_dict()
    except (OSError, ValueError, HfHubHTTPError, yaml.YAMLError):
        return {}
    values = {name: card.get(name) for name in ("license", "license_name", "license_link")}
    return {name: value for name, value in values.items() if isinstance(value, str)}


def remove_origins(folder: Path, hub_id: str | None = None) -> None:
    """Remove the paths that a model was loaded from.

    Args:
        folder: Folder of the model.
        hub_id: Hub id of the source model, for low-rank matrices that are not merged.
    """
    for path, values in _settings(folder, (path.relative_to(folder) for path in folder.rglob("*.json"))):
        if not isinstance(values, dict):
            continue
        traces = ORIGIN_FIELDS + CALLS if path.name == TOKENIZER_CONFIG else ORIGIN_FIELDS
        kept = {name: value for name, value in values.items() if name not in traces}
        if path.name == ADAPTER_CONFIG and hub_id:
            kept[BASE] = hub_id
        if kept != values:
            path.write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def raise_if_local_path(folder: Path, names: Iterable[Path]) -> None:
    """Raise UsageError if a file with settings, by its name in the folder, contains a path of this machine."""
    for path, values in _settings(folder, names):
        base = values.get(BASE) if path.name == ADAPTER_CONFIG else None
        local = [f"{BASE} is {base!r}"] if base and not is_hub_id(base) else []
        texts = map(json.loads, QUOTED.findall(path.read_text(encoding="utf-8")))
        local += [text for text in texts if _exists_here(text)]
        if local:
            raise UsageError(
                f"{path} names a path of this machine: {local[0]:.200}",
                needed="a Hub id",
                fix="After training, merge low-rank matrices (`lora_merge`), or set `base_model` to the Hub id of the "
                f"source model. After a fit, write that id as {BASE} into {ADAPTER_CONFIG}.",
            )


def _settings(folder: Path, names: Iterable[Path]) -> Iterator[tuple[Path, Any]]:
    """Yield the path and the content of each JSON file with settings."""
    for name in names:
        if name.suffix == ".json" and name.name not in LARGE:
            yield folder / name, json.loads((folder / name).read_text(encoding="utf-8"))


def _exists_here(text: str) -> bool:
    """Return whether a text is an absolute path on this machine."""
    if "\0" in text or not os.path.isabs(text) or len(Path(text).parts) < 3:  # a token may be /
        return False
    return Path(text).is_relative_to(Path.home()) or os.path.lexists(text)


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
    results = load_added_results(folder)
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
        tables=result_tables(results, record.seed, samples=False),
        samples=result_tables(results, record.seed, samples=True),
        kinds=KINDS,
        drift=render(drift_table({AFTER: drift}, BEFORE), "markdown") if drift else "",
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
