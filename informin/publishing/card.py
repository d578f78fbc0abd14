"""The model card, generated from the files of an exported folder and nothing else."""

import hashlib
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from huggingface_hub.errors import HfHubHTTPError
from jinja2 import Template
from sentence_transformers.models import Pooling

from informin.errors import UsageError
from informin.evaluation.drift import CHANGED, FORGOT, MAIN, MEASURES, drift_table
from informin.evaluation.measures import KINDS, Measure
from informin.evaluation.results import Results, load_results
from informin.evaluation.senteval import GROUPS, STS_TASKS, TRANSFER_TASKS
from informin.evaluation.table import AVERAGE, SIMILARITY_TITLES, TITLES, Table, render, score_tables
from informin.files import PREFIX, last_name, read_json, save_text
from informin.hub import HUB_DATA, is_hub_id
from informin.model.open import ADAPTER_CONFIG, Source, modules_of
from informin.model.records import FitRecord, RunRecord

CARD = "README.md"
TEMPLATES = Path(__file__).parents[1] / "templates"
UNPUBLISHED = "path/to/this/folder"
STATIC = "static"  # kind of a record: a table of token vectors
BEFORE = "before training"
AFTER = "this model"
SECTION = "[Changes to the embeddings](#changes-to-the-embeddings)"


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


def _stamp(page: str) -> str:
    checksum = hashlib.sha256(page.encode()).hexdigest()
    return f"<!-- Written from the run; SHA-256 of the page above: {checksum}. A page edited by hand is left alone. -->"


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
    is_low_rank = (folder / ADAPTER_CONFIG).is_file()
    pin = f', revision="{in_quotes(revision)}"' if revision else ""
    if pin and is_low_rank:  # sentence-transformers reads only their configuration from `revision`
        pin += f', model_kwargs={{"adapter_kwargs": {{"revision": "{in_quotes(revision or "")}"}}}}'
    shown = {
        "name": escape(repo.rpartition("/")[2] if repo else last_name(folder).replace(PREFIX, "")),
        "base": f"[{hub_id}](https://huggingface.co/{hub_id})" if hub_id else f"`{escape(base['name'])}`",
        "repo": in_quotes(repo or UNPUBLISHED),
        "published": bool(repo),
        "pin": pin,
        "low_rank": is_low_rank,
        "has_words": _has_words(folder),
        "record": escape_all(asdict(record)),
        "onnx": [f"onnx/{path.name}" for path in sorted(folder.glob("onnx/*.onnx"))],
    }
    shown |= _usage(folder, record.options.get("prompt", "") if isinstance(record, RunRecord) else None)
    onnx_usage = Template((TEMPLATES / "onnx_usage.md").read_text(encoding="utf-8"))
    clients = settings_for_clients(folder) if shown["onnx"] else None
    shown["onnx_usage"] = onnx_usage.render(client_settings=clients, **shown) if shown["onnx"] else ""
    card = _run_card(folder, record, shown) if isinstance(record, RunRecord) else _fit_card(record, shown)
    page = re.sub(r"\n{3,}", "\n\n", str(card)).strip()
    return f"{page}\n{_stamp(page)}\n"


def _has_words(folder: Path) -> bool:
    """Return whether the tokenizer of a table has words of texts, which `distill` adds for search.

    A model that is fitted, distilled or trained from such a table has them, too.
    """
    modules = folder / "modules.json"
    known = json.loads(modules.read_text(encoding="utf-8")) if modules.is_file() else []
    tables = [module for module in known if module["type"].endswith("StaticEmbedding")]
    files = [folder / module["path"] / "tokenizer.json" for module in tables]
    added = [token for file in files if file.is_file() for token in read_json(file).get("added_tokens", [])]
    return any(token["single_word"] and not token["special"] for token in added)


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
        similarities=SIMILARITY_TITLES,
        kinds=KINDS,
        drift=render(drift_table({AFTER: drift}, BEFORE), "markdown") if drift else "",
        worse=list(worse_after_training(record, results)),
        citations=_citations(record.objective),
        **shown,
    )


def _fit_card(record: FitRecord, shown: dict[str, Any]) -> ModelCard:
    """Return the card of a model with a linear adapter, or of a static model."""
    drift = record.drift
    is_static = record.kind == STATIC
    label = "static" if is_static else "adapted"
    return ModelCard.from_template(
        card_data(record, ["informin-cl", "static-embeddings" if is_static else "linear-adapter"]),
        template_path=str(TEMPLATES / ("static_card.md" if is_static else "adapter_card.md")),
        given="".join(f" --{name} {shlex.quote(str(value))}" for name, value in record.options.items()),
        worse=list(worse_by_drift(drift, "The table" if is_static else "The adapter")),
        drift=render(drift_table({label: drift}, "before", MAIN), "markdown") if drift else "",
        **shown,
    )


TAGS = ["sentence-transformers", "sentence-similarity", "feature-extraction"]
# Task type, metric type and metric name.
STS = ("semantic-similarity", "spearman_{}", "Spearman x 100")  # with the similarity
TRANSFER = ("text-classification", "accuracy", "Accuracy x 100")
TITLES_OF_TASKS = {**dict.fromkeys(STS_TASKS, STS), **dict.fromkeys(TRANSFER_TASKS, TRANSFER)}
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
    scored: list[EvalResult] = []

    def add(kind: tuple[str, str, str], score: float, **data: Any) -> None:
        task, metric, name = kind
        how = {"metric_type": metric.format(results.similarity), "metric_name": name}
        scored.append(EvalResult(task_type=task, metric_value=round(score, 2), **how, **data))

    for name, entry in results.tasks.items():
        if name in TITLES_OF_TASKS and entry["score"] is not None:
            data = {"dataset_type": HUB_DATA, "dataset_config": name, "dataset_split": "test"}
            add(TITLES_OF_TASKS[name], entry["score"], dataset_name=name, **data)
        for key, measure in KINDS[entry["kind"]].items() if entry.get("measures") else ():
            kind = (SAMPLE_TYPES[entry["kind"]], key, measure.title)
            add(kind, entry["measures"][key], dataset_type=name, dataset_name=name)
    return scored


def license_of(source: Source) -> dict[str, Any]:
    """Return `license`, `license_name` and `license_link` in the card of a model, without those that it lacks."""
    path = source.folder / "README.md" if source.folder else source.hub_id
    if path is None:
        return {}
    try:
        card = ModelCard.load(path, ignore_metadata_errors=True).data.to_dict()
    except (OSError, ValueError, HfHubHTTPError, yaml.YAMLError):
        return {}
    values = {name: card.get(name) for name in ("license", "license_name", "license_link")}
    return {name: value for name, value in values.items() if isinstance(value, str)}


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
    before = {table.title: table for table in score_tables(list(results.base.values()))}
    rendered = []
    for table in score_tables(runs, seeds=len(runs) > 1):
        if samples == (table.title in TITLES.values()):
            continue
        ours = [replace(row, label=name) for row, name in zip(table.rows, labels)] + table.rows[len(labels) :]
        base = before.get(table.title, Table(table.title, [], []))
        has_all = set(base.columns) <= set(table.columns)  # otherwise, the average is over tasks that are not shown
        rows = [
            replace(
                row,
                label=f"{BEFORE}, {pooling_name(pooler)}",
                values=row.values if has_all else {**row.values, AVERAGE: None},
            )
            for row, pooler in zip(base.rows, results.base)
        ]
        # The p-values of the rows before training and of the others are against different rows.
        columns = [column for column in table.columns if not column.startswith("p, ")]
        rendered.append(render(Table(escape(table.title), columns, rows + ours), "markdown"))
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
        for score, theirs, ours in _compared_scores(base, results.model) if results.model else ():
            if theirs is not None and ours is not None and round(theirs, 2) > round(ours, 2):
                yield (
                    f"Without this training, the source model has a higher {escape(score)} ({pooling_name(pooler)}): "
                    f"{theirs:.2f} instead of {ours:.2f}."
                )
    scored = MEASURES["stsb_dev"].title in [data["name"] for data in record.development_sets]
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
        yield from _lower(f"Spearman x 100 on {MEASURES['stsb_dev'].title}", MEASURES["stsb_dev"], old, new)
    for warning in drift["warnings"]:
        if not warning.startswith((CHANGED, FORGOT)):
            yield f"{subject} {escape(warning.partition(':')[0].rstrip('.'))}: see {SECTION}."


def _compared_scores(base: Results, model: Results) -> Iterator[tuple[str, float | None, float | None]]:
    """Yield the name of each score, the source model's and this model's: averages, or tasks of an incomplete group."""

    def scores_on(task: str) -> tuple[float | None, float | None]:
        old, new = (results.tasks.get(task, {}).get("score") for results in (base, model))
        return old, new

    for group, tasks in GROUPS.items():
        old, new = base.average[group], model.average[group]
        if old is not None and new is not None:
            yield f"{'STS' if group == 'sts' else group} average", old, new
        else:
            yield from ((f"score on {task}", *scores_on(task)) for task in tasks)
    for name, entry in model.samples().items():
        yield f"{next(iter(KINDS[entry['kind']].values())).title} on {name}", *scores_on(name)


def _lower(title: str, measure: Measure, old: float | None, new: float | None) -> Iterator[str]:
    """Yield a sentence if the score fell, as far as the digits that are shown."""
    if old is not None and new is not None and round(new, measure.digits) < round(old, measure.digits):
        yield f"{escape(title)} is {measure.shown(new)}, and {measure.shown(old)} before."


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
    home, _, architecture = (config.get("auto_map") or {}).get("AutoModel", "").rpartition(".")
    pooling = read_json(folder / "1_Pooling/config.json") if (folder / "1_Pooling/config.json").is_file() else {}
    return {
        "width": pooling.get("word_embedding_dimension"),
        "architecture": architecture if home == "modeling_informin" else "",  # not that of a model with its own code
        "settings": escape_all(config.get("informin") or {}),
        "prompt": prompt and escape(f'"{prompt}"'),  # quotation marks keep a space at the end
        "default_prompt": default and escape(f'"{default}"'),
        "encode_prompt": "" if prompt == default else f', prompt="{in_quotes(prompt)}"',
        "texts": json.dumps([prompt + text for text in ("A dog sleeps.", "The dog is asleep.")], ensure_ascii=False),
        "asymmetric": prompts.get("query") != prompts.get("document") or any(folder.rglob("router_config.json")),
    }


def settings_for_clients(folder: str | Path) -> str | None:
    """Return with which settings clients that pool the hidden states get the embedding; None if none gives it.

    Args:
        folder: Folder of a model.

    Returns:
        `mean pooling` or `cls pooling`, with ` and normalization` if the model normalizes.
    """
    (_, first), *others = modules_of(str(folder))
    kinds = [kind.rpartition(".")[2] for _, kind in others]
    if read_json(Path(folder, "config_sentence_transformers.json")).get("truncate_dim") is not None:
        return None
    if first.rpartition(".")[2] != "Transformer" or kinds not in (["Pooling"], ["Pooling", "Normalize"]):
        return None
    mode = Pooling.load(str(folder), subfolder=others[0][0]).pooling_mode
    return f"{mode} pooling{' and normalization' if len(kinds) > 1 else ''}" if mode in ("cls", "mean") else None


def _citations(objective: dict) -> list[tuple[str, str]]:
    """Return what to cite and its BibTeX entry: first the objective, then the papers of its terms."""
    named = {objective["name"]: "The objective"}
    for term in objective["terms"]:
        named.setdefault(str(term["paper"]), f"The {escape(term['title'])}")
    files = {path.stem: path for path in (TEMPLATES / "citations").glob("*.bib")}  # a record could name any path
    return [(named[name], files[name].read_text(encoding="utf-8").strip()) for name in named if name in files]


# Characters with a meaning in Markdown. An underscore within a word and brackets without a link target have none.
MARKUP = re.compile(r"[\\`*<>|~$]|\](?=\()|&(?=#?\w+;)|(?<![^\W_])_|_(?![^\W_])")
ENTITIES = {"<": "&lt;", ">": "&gt;", "&": "&amp;"}


def escape(value: object) -> str:
    """Return a value on a single line with its markup escaped."""
    line = " ".join(str(value).split())
    return MARKUP.sub(lambda match: ENTITIES.get(match[0], f"\\{match[0]}"), line)


def escape_all(value: Any) -> Any:
    """Return a JSON value with the markup in its texts escaped, also in names."""
    if isinstance(value, dict):
        return {escape(name): escape_all(item) for name, item in value.items()}
    if isinstance(value, list):
        return [escape_all(item) for item in value]
    return escape(value) if isinstance(value, str) else value


def in_quotes(value: str) -> str:
    """Return a text for use between double quotes in Python code."""
    return json.dumps(value, ensure_ascii=False)[1:-1].replace("`", "\\x60")
