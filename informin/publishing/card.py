"""The model card: written from the files of an exported folder and from nothing else.

`results/` holds what run_eval.py measured, each file by its part in the card:

    model.json                 these weights
    base-POOLER.json           the encoder before training, read by this pooler
    other_seeds/seedN.json     runs of the same settings with other seeds
"""

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from jinja2 import Environment, StrictUndefined

from informin.errors import UsageError, counted
from informin.evaluation.drift import drift_table
from informin.evaluation.measures import KINDS
from informin.evaluation.results import load_results
from informin.evaluation.senteval import STS_TASKS, TRANSFER_TASKS
from informin.evaluation.senteval_files import HUB_DATA
from informin.evaluation.table import TITLES, render, samples, score_tables
from informin.files import read_json
from informin.publishing.metadata import NO_LANGUAGE, known_id, known_language, known_license
from informin.publishing.record import load_record, prompt_of_training
from informin.schema import FLAG, TEXT, Kind, one_of
from informin.temporary import new_file

CARD = "README.md"
TEMPLATE = Path(__file__).parent / "templates" / "model_card.md"
CITATIONS = TEMPLATE.parent / "citations"  # NAME.bib, of an objective or of what a term's `paper` names
BEFORE, AFTER = "before training", "these weights"
BY_POOLER = {"cls": "read at [CLS]", "mean": "read by its mean", "last": "read at its last token"}
EMBEDDINGS = {"cls": "the [CLS] vector", "mean": "the mean over its tokens", "last": "the vector of its last token"}
SETTINGS = {"pooling": one_of(*EMBEDDINGS), "normalize": FLAG, "prompt": TEXT}  # of `config.informin`, used by the card
AUTO_MAP: Kind = (lambda value: value is None or isinstance(value, dict), "a mapping")
UNPUBLISHED = "path/to/this/folder"
# What Markdown reads as more than text, within a line. An underscore within a word, or brackets without an address, it
# does not.
MARKUP = re.compile(r"[\\`*<>|~$]|\](?=\()|&(?=#?\w+;)|(?<![^\W_])_|_(?![^\W_])")
ENTITIES = {"<": "&lt;", ">": "&gt;", "&": "&amp;"}


class Markdown(str):
    """A part of the page that is Markdown already: made here, with what comes from files escaped by `_text`.

    Whatever else enters the template is escaped there.
    """


def write_card(folder: str | Path, repo: str | None = None, revision: str | None = None) -> bool:
    """Writes README.md, unless somebody edited it; returns whether it was written.

    Args:
        repo: the Hub id that the examples load from; None for the folder itself.
        revision: the commit that they pin.
    """
    path = Path(folder, CARD)
    if is_edited(path):
        return False
    card = render_card(folder, repo, revision)
    with new_file(path) as partial:
        partial.write_text(card, encoding="utf-8")
    return True


def is_untouched(text: str) -> bool:
    """Whether a card is as `render_card` wrote it."""
    page, _, mark = text.rstrip("\n").rpartition("\n")
    return mark == _mark(page)


def is_edited(path: Path) -> bool:
    """Whether a file is there, and is no card as `render_card` wrote it."""
    return path.is_file() and not is_untouched(path.read_text(encoding="utf-8", errors="replace"))


def render_card(folder: str | Path, repo: str | None = None, revision: str | None = None) -> str:
    """The card of an exported folder: metadata in YAML, then Markdown; see `write_card`."""
    folder = Path(folder)
    settings = _checked_config(folder)["informin"]
    config = _one_line(read_json(folder / "config.json"))
    unknown = {"base_model": None, "data": None, "history": [], "options": None, "earlier": [], "drift": None}
    record = _one_line(unknown | (load_record(folder) or {}))
    results = load_all_results(folder)
    base = record["base_model"] or {}
    stages = _stages(record, config["informin"])
    objective = stages[-1]["objective"]
    start = str(known_id(base.get("hub_id")) or base.get("name") or config["model_type"]).rpartition("/")[2]
    name = repo.rpartition("/")[2] if repo else f"{start}-{objective['name']}"
    metadata = _metadata(name, record, objective, results, any(folder.glob("onnx/*.onnx")))
    pages = Environment(finalize=_text, undefined=StrictUndefined)
    content = pages.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        card_data=Markdown(metadata.to_yaml()),
        name=name,
        base=_base_text(base),
        method=_methods(stages),
        dimensions=read_json(folder / "1_Pooling" / "config.json")["word_embedding_dimension"],
        **_use(settings, prompt_of_training(load_record(folder), settings)),
        has_pooler="model_args" in read_json(folder / "sentence_bert_config.json"),
        repo=_in_quotes(repo or UNPUBLISHED),
        published=bool(repo),
        pin=Markdown(f', revision="{_in_quotes(revision)}"' if revision else ""),
        architecture=_code(str((config.get("auto_map") or {}).get("AutoModel", "")).rpartition(".")[2]),
        onnx=_onnx_files(folder),
        tables=_score_tables(results, record.get("seed"), samples=False),
        samples=_score_tables(results, record.get("seed"), samples=True),
        seeds=len(results["seeds"]) + 1,
        seed=record.get("seed"),
        history=_history_tables(record),
        developed_on=[one["kind"] for one in _development_sets(record)],
        drift=_drift_table(record["drift"]),
        training=_training_table(config, record, stages),
        environment=_environment(record),
        limits=_limits(folder, config, record, results),
        citations=_citations([stage["objective"] for stage in stages]),
    )
    page = re.sub(r"\n{3,}", "\n\n", str(ModelCard(content))).strip()
    return f"{page}\n{_mark(page)}\n"


def _checked_config(folder: Path) -> dict:
    """Return config.json. Raises UsageError if it does not say how this project's model computes embeddings."""
    config, name = read_json(folder / "config.json"), str(folder / "config.json")
    settings = config.get("informin")
    if not isinstance(settings, dict):
        found = "has no `informin` settings" if settings is None else f"has `informin` {settings!r:.60}"
        raise UsageError(f"{name} {found}", needed="a folder that training or `informin export` wrote")
    given = {f"informin.{key}": (settings[key], kind) for key, kind in SETTINGS.items() if key in settings}
    given["auto_map"] = (config.get("auto_map"), AUTO_MAP)
    for key, (value, (fits, needed)) in given.items():
        if not fits(value):
            raise UsageError(f"{name}: {key} is {value!r:.60}", needed=needed)
    return config


def _use(settings: dict, trained_with: str) -> dict[str, str]:
    """How the embedding is read: in words, and as code for tensors and arrays, from `config.informin`.

    Args:
        trained_with: the prompt of training.
    """
    pooling, prompt = settings.get("pooling", "cls"), settings.get("prompt", "")
    scaled = ", scaled to length 1" if settings.get("normalize") else ""
    code = {
        "cls": "{}[:, 0]",
        "mean": '{}\nmask = batch["attention_mask"][..., None]\nembeddings = (embeddings * mask).sum(1) / mask.sum(1)',
        "last": '{}\nembeddings = embeddings[range(len(embeddings)), batch["attention_mask"].sum(1) - 1]',
    }[pooling]
    if scaled:
        code += "\nembeddings = embeddings / (embeddings**2).sum(1)[:, None] ** 0.5"
    texts = [trained_with + text for text in ("A dog sleeps.", "The dog is asleep.")]
    embedding = EMBEDDINGS[pooling] + scaled
    return {
        "embedding": embedding,
        "pooler_output": embedding if embedding == EMBEDDINGS["cls"] else "the embedding",
        "prompt": _prompt_note(prompt, trained_with),
        "encode_prompt": Markdown("" if prompt == trained_with else f', prompt="{_in_quotes(trained_with)}"'),
        "texts": Markdown(json.dumps(texts, ensure_ascii=False)),
        "torch_embeddings": Markdown(code.format("model(**batch).last_hidden_state")),
        "onnx_embeddings": Markdown(code.format('session.run(["last_hidden_state"], inputs)[0]')),
    }


def _prompt_note(prompt: str, trained_with: str) -> Markdown:
    """What to do about prompts: `prompt` is the one that sentence-transformers adds, which may be empty."""
    added, trained = (_code(" ".join(text.split())) if text else "" for text in (prompt, trained_with))
    if prompt == trained_with:
        note = f"The prompt {added} is put before every sentence; sentence-transformers does so by itself."
        return Markdown(note if added else "")
    training = f"Training put the prompt {trained} before every sentence" if trained else "Training used no prompt"
    default = f"sentence-transformers adds {added} by itself" if added else "sentence-transformers adds none by itself"
    advice = "pass `prompt` to `encode`" + (", or write it before your sentences" if not added else "")
    return Markdown(f"{training}, and {default}: {advice}.")


def load_all_results(folder: str | Path) -> dict:
    """`model`: results or None; `base`: those of the starting encoder by pooler; `seeds`: those of other seeds."""
    folder = Path(folder, "results")
    model = folder / "model.json"
    base = {path.stem.removeprefix("base-"): path for path in sorted(folder.glob("base-*.json"))}
    seeds = {int(path.stem.removeprefix("seed")): path for path in folder.glob("other_seeds/seed*.json")}
    return {
        "model": load_results(model) if model.is_file() else None,
        "base": {pooler: load_results(path) for pooler, path in base.items()},
        "seeds": {seed: load_results(seeds[seed]) for seed in sorted(seeds)},
    }


def _one_line(value):
    """A file's values with their texts in one line: names of files, and what the user said, may hold anything."""
    if isinstance(value, dict):
        return {_one_line(name): _one_line(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_one_line(item) for item in value]
    return " ".join(value.split()) if isinstance(value, str) else value


def _text(value: object) -> Markdown:
    """What comes from outside, to be read as it is written, in a line or in a cell of a table; Markdown as it is."""
    if isinstance(value, Markdown):
        return value
    line = " ".join(str(value).split())
    return Markdown(MARKUP.sub(lambda match: ENTITIES.get(match[0], f"\\{match[0]}"), line))


def _code(value: str) -> Markdown:
    """A name in backticks, unless it holds what could end them."""
    return Markdown(f"`{value}`") if _text(value) == value else _text(value)


def _in_quotes(value: str) -> Markdown:
    """A text between the quotes of Python code."""
    return Markdown(json.dumps(value, ensure_ascii=False)[1:-1])


def _mark(page: str) -> str:
    checksum = hashlib.sha256(page.encode()).hexdigest()
    return f"<!-- Written from the run; SHA-256 of the page above: {checksum}. A page edited by hand is left alone. -->"


def _metadata(name: str, record: dict, objective: dict, results: dict, onnx: bool) -> ModelCardData:
    hub_data = known_id((record["data"] or {}).get("hub_id"))
    scores = _eval_results(results["model"])
    return ModelCardData(
        language=known_language(record.get("language")),
        license=known_license(record.get("license")),
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


def _eval_results(results: dict | None) -> list[EvalResult]:
    """The scores of these weights, one for each task that has one, and every measure of samples."""
    results = results or {"tasks": {}}
    kinds = {
        **dict.fromkeys(STS_TASKS, ("semantic-similarity", "Semantic similarity", "spearman_cosine", "Spearman x 100")),
        **dict.fromkeys(TRANSFER_TASKS, ("text-classification", "Transfer", "accuracy", "Accuracy x 100")),
    }
    own = [
        EvalResult(
            task_type={"labels": "Clustering", "retrieval": "Retrieval"}[entry["kind"]],
            dataset_type=name,
            dataset_name=name,
            metric_type=key,
            metric_name=measure.title,
            metric_value=round(entry["measures"][key], 2),
        )
        for name, entry in _one_line(samples(results)).items()
        for key, measure in KINDS[entry["kind"]].items()
        if entry["score"] is not None
    ]
    return [
        EvalResult(
            task_type=kinds[task][0],
            task_name=kinds[task][1],
            dataset_type=HUB_DATA,
            dataset_name=f"{task} (SentEval)",
            dataset_config=task,
            dataset_split="test",
            metric_type=kinds[task][2],
            metric_name=kinds[task][3],
            metric_value=round(entry["score"], 2),
        )
        for task, entry in results["tasks"].items()
        if task in kinds and entry["score"] is not None
    ] + own


def _base_text(base: dict) -> str:
    if hub_id := known_id(base.get("hub_id")):
        return Markdown(f"[{_text(hub_id)}](https://huggingface.co/{hub_id})")
    return _code(base["name"]) if base else "an encoder that the run did not record"


def _stages(record: dict, settings: dict) -> list[dict]:
    """The parts of the run that these weights went through; the last one is the record's own, unless it came too late.

    Each with its `objective` (see `_objective`), `options` and the number of its `steps`, None where nothing tells.
    The settings are `config.informin`, of the last part.
    """
    kept, before, stages = record.get("kept_step"), 0, []
    for stage in record["earlier"]:
        if kept <= before:
            break
        steps = min(stage["until_step"], kept) - before
        stages.append(stage | {"objective": _objective(stage, settings), "steps": steps})
        before = stage["until_step"]
    if not stages or kept > before:
        own = {"objective": _objective(record, settings), "options": record["options"] or settings}
        stages.append(record | own | {"steps": kept and kept - before})
    return stages


def _objective(stage: dict, settings: dict) -> dict:
    """Name, title and terms of what was trained; of older records, which do not tell them, the name alone."""
    name = (settings | (stage["options"] or {})).get("objective", "unknown")
    told = {"name": name, "title": name, "terms": []} | (stage.get("objective") or {})
    return told | {"name": known_id(told["name"]) or "unknown"}


def _methods(stages: list[dict]) -> Markdown:
    """What was done in each part of the run, and on which sentences, where they changed."""
    texts = []
    for before, stage, following in zip([None, *stages], stages, [*stages[1:], None]):
        trained, data = _trained(stage["objective"]), stage["data"] or {}
        if before and trained == _trained(before["objective"]):
            method = f"{counted(stage['steps'], 'step')} with other settings"
        else:
            method = f"{counted(stage['steps'], 'step')} of {trained}" if stage["steps"] else f"training by {trained}"
        told = following is None or data.get("sha256") != (following["data"] or {}).get("sha256")
        texts.append(method + (_sentences(data) if told else ""))
    return Markdown(", then ".join(texts))


def _trained(objective: dict) -> str:
    """An objective with the terms that the user added to it."""
    *first, last = [_text(term["title"]) for term in objective["terms"] if not term["own"]] or [""]
    added = f"{', '.join(first)} and {last}" if first else last
    return f"{_text(objective['title'])}{f' with {added}' if added else ''}"


def _sentences(data: dict) -> str:
    number = f" on {counted(data['sentences'], 'sentence')}" if data.get("sentences") else ""
    named = _text(data.get("description") or ", ".join(data.get("sources", [])))
    return f"{number} ({named})" if named else number


def _score_tables(results: dict, seed: int | None, samples: bool) -> Markdown:
    """A table of STS and one of transfer, or one of each sample: before training, each seed, mean and spread."""
    if results["model"] is None:
        return Markdown()
    runs = [results["model"], *results["seeds"].values()]
    labels = [
        f"these weights{'' if seed is None else f' (seed {_text(seed)})'}",
        *(f"seed {n}" for n in results["seeds"]),
    ]
    before = {table.title: table.rows for table in score_tables(list(results["base"].values()))}
    rendered = []
    for table in score_tables(runs, seeds=len(runs) > 1):
        if samples == (table.title in TITLES.values()):
            continue
        own = [replace(row, label=name) for row, name in zip(table.rows, labels)] + table.rows[len(labels) :]
        base = zip(before.get(table.title, []), results["base"])
        rows = [replace(row, label=f"before training, {_text(_read_by(pooler))}") for row, pooler in base]
        title = _text(_one_line(table.title))
        rendered.append(render(replace(table, title=title, rows=rows + own), "markdown"))
    return Markdown("\n\n".join(rendered))


def _read_by(pooler: str) -> str:
    """In words; a pooler is known by the name of its file."""
    return BY_POOLER.get(pooler, pooler)


def _onnx_files(folder: Path) -> Markdown:
    """The ONNX files and, where they were scored, what 8 bits cost."""
    path = folder / "onnx" / "scores.json"
    scored = read_json(path) if path.is_file() else {"pairs": "", "spearman": {}}
    files = []
    for file in sorted(folder.glob("onnx/*.onnx")):
        score = scored["spearman"].get(file.name)
        note = f" ({_text(scored['pairs'])} {score:.2f})" if score is not None else ""
        files.append(_code(f"onnx/{file.name}") + note)
    return Markdown(", ".join(files))


def _development_sets(record: dict) -> list[dict]:
    """What was scored in training, `kind` and `name` of each; records of before there were others have pairs."""
    return record.get("development_sets") or [{"kind": "pairs", "name": record.get("development")}]


def _history_tables(record: dict) -> Markdown:
    """The scores before training and at the step that was kept, a table for each development set."""
    chosen = {entry["step"]: entry for entry in record["history"] if entry["step"] in (0, record["kept_step"])}
    if not chosen:
        return Markdown()
    tables = []
    for one in _development_sets(record):
        rows, measures = [], KINDS[one["kind"]]
        for step, entry in sorted(chosen.items()):
            values = [(entry.get(name), measure) for name, measure in measures.items()]
            cells = ["-" if value is None else measure.shown(value) for value, measure in values]
            rows.append([f"step {step:,}, these weights" if step else "before training", *cells])
        heads = [one["name"], *(measure.title for measure in measures.values())]
        tables.append(_table(heads, rows, " ---: |"))
    return Markdown("\n\n".join(tables))


def _drift_table(drift: dict | None) -> Markdown:
    """What training changed, without labels, and the warnings; records of older versions have none."""
    if not drift:
        return Markdown()
    table = drift_table({AFTER: drift}, BEFORE)
    rows = [[row.label, *map(row.cell, table.columns)] for row in table.rows]
    notes = [f"Training {_text(warning)}" for warning in drift["warnings"]]
    return Markdown("\n\n".join([_table([table.title, *table.columns], rows, " ---: |"), *notes]))


def _training_table(config: dict, record: dict, stages: list[dict]) -> Markdown:
    """The settings, as a table of names and values; a column for each part of the run, where there are several."""
    if record["options"] is None:
        note = "The folder has no record of its run; these are the settings in its config.json.\n\n"
        settings = [[name, value] for name, value in config["informin"].items()]
        return Markdown(note + _table(["setting", "value"], settings))
    columns = [stage["options"] | {"seed": stage["seed"]} for stage in stages]
    names = dict.fromkeys(name for column in columns for name in column)
    rows = [[name, *(column.get(name, "-") for column in columns)] for name in names]
    ends = [stage.get("until_step", record["steps"]) for stage in stages]
    if len(stages) == 1:
        note, heads = "", ["value"]
        rows.append(["steps", record["steps"]])
    else:
        note = "The settings were changed while it ran.\n\n"
        heads = [f"steps {start + 1:,} to {end:,}" for start, end in zip([0, *ends], ends)]
    if record["chosen"]:
        metric = str((record["options"] or {}).get("metric_for_best_model", "Spearman")).removeprefix("eval_")
        chosen = f"{metric} on {record['development']}: step {record['kept_step']}"
        rows.append(["checkpoint chosen by", *("" for _ in stages[1:]), chosen])
    return Markdown(note + _table(["setting", *heads], rows))


def _table(heads: list[str], rows: list[list], align: str = " --- |") -> str:
    first, *lines = [f"| {' | '.join(map(_text, row))} |" for row in (heads, *rows)]
    return "\n".join([first, f"| --- |{align * len(heads[1:])}", *lines])


def _environment(record: dict) -> Markdown:
    if not (environment := record.get("environment")):
        return Markdown()
    packages = {name: version for name, version in environment.items() if name not in ("informin", "device", "threads")}
    versions = _text(", ".join(f"{name} {version}" for name, version in packages.items()))
    rate = record.get("sentences_per_second")
    speed = f" at {counted(round(rate), 'sentence')} a second" if rate else ""
    return Markdown(
        f"Trained by `run_unsup.py` of InforMin-CL {_text(record['informin'])} on {_text(environment['device'])}, "
        f"{counted(environment['threads'], 'thread')}{speed}; {versions}. `training.json` has all of this for programs."
    )


def _citations(objectives: list[dict]) -> list[tuple[str, str]]:
    """What to cite, with the BibTeX entry: the objectives' papers, then those that their terms come from."""
    named = {objective["name"]: "The objective" for objective in objectives}
    for term in (term for objective in objectives for term in objective["terms"]):
        named.setdefault(str(term["paper"]), f"The {_text(term['title'])}")
    files = {path.stem: path for path in CITATIONS.glob("*.bib")}  # a record may name any file
    entries = {name: Markdown(files[name].read_text(encoding="utf-8").strip()) for name in named if name in files}
    return [(Markdown(named[name]), entry) for name, entry in entries.items()]


def _limits(folder: Path, config: dict, record: dict, results: dict) -> list[str]:
    """What a reader should know before trusting the figures, as far as the files tell."""
    limits = []
    if cut := config["informin"].get("max_seq_length"):
        longest = read_json(folder / "sentence_bert_config.json")["max_seq_length"]
        limits.append(
            f"Trained on sentences cut to {cut} tokens; up to {longest} are read, and nothing here measures how well."
        )
    language = known_language(record.get("language"))
    if language and language not in NO_LANGUAGE:
        limits.append(f"The training sentences were in one language ({language}).")
    if not results["seeds"]:
        limits.append("One seed. Runs that differ by the seed alone differ in score: a few tenths may be chance.")
    if results["model"] and not results["base"]:
        limits.append("The starting encoder was not scored beside it: the tables do not say what training changed.")
    for group, name in (("sts", "STS"), ("transfer", "transfer")):
        for pooler, base in results["base"].items() if results["model"] else ():
            ours, theirs = results["model"]["average"][group], base["average"][group]
            if ours is not None and theirs is not None and theirs > ours:
                limits.append(
                    f"The starting encoder without this training, {_read_by(pooler)}, has a higher {name} average: "
                    f"{theirs:.2f} against {ours:.2f}."
                )
    for pooler, base in results["base"].items() if results["model"] else ():
        known = samples(base)
        for name, entry in samples(results["model"]).items():
            ours, theirs = entry["score"], known.get(name, {}).get("score")
            if ours is not None and theirs is not None and theirs > ours:
                title = next(iter(KINDS[entry["kind"]].values())).title
                limits.append(
                    f"The starting encoder without this training, {_read_by(pooler)}, has a higher {title} on "
                    f"{name}: {theirs:.2f} against {ours:.2f}."
                )
    if (dtype := config.get("dtype", "float32")) != "float32":
        stored = f"The weights are stored in {_text(dtype)}, and transformers loads them so"
        limits.append(Markdown(f"{stored}; `dtype=torch.float32` widens them."))
    limits.append("What the starting encoder took from its own training data, biases included, is still there.")
    return limits
