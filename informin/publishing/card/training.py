"""What the card says about the training run: source model, method, options, environment and citations."""

from pathlib import Path

from informin.errors import counted
from informin.publishing.card.markdown import Markdown, code, escape, markdown_table
from informin.publishing.metadata import known_id

CITATIONS = Path(__file__).parent.parent / "templates" / "citations"  # NAME.bib of an objective or of a term's `paper`
NOT_PACKAGES = ("informin", "device", "threads")


def source_model(base: dict) -> str:
    """Name the source model, with a link if it is on the Hub."""
    if hub_id := known_id(base.get("hub_id")):
        return Markdown(f"[{escape(hub_id)}](https://huggingface.co/{hub_id})")
    return code(base["name"]) if base else "an unrecorded encoder"


def stages(record: dict, settings: dict) -> list[dict]:
    """Return the parts of the run up to the kept step. Options, seed or data changed between parts.

    Args:
        record: The record of the run. Its own options belong to the last part.
        settings: `config.informin`, used where the record has no options.

    Returns:
        Each part with its `objective` (see `_objective`), `options` and number of `steps`, None if unknown.
    """
    kept: int = record.get("kept_step", 0)  # 0 if there is no record
    before, found = 0, []
    for stage in record["earlier"]:
        if kept <= before:
            break
        steps = min(stage["until_step"], kept) - before
        found.append(stage | {"objective": _objective(stage, settings), "steps": steps})
        before = stage["until_step"]
    if not found or kept > before:
        own = {"objective": _objective(record, settings), "options": record["options"] or settings}
        found.append(record | own | {"steps": kept - before or None})
    return found


def _objective(stage: dict, settings: dict) -> dict:
    """Return name, title and terms of the objective. Older records have only the name."""
    name = (settings | (stage["options"] or {})).get("objective", "unknown")
    recorded = {"name": name, "title": name, "terms": []} | (stage.get("objective") or {})
    return recorded | {"name": known_id(recorded["name"]) or "unknown"}


def methods(parts: list[dict]) -> Markdown:
    """Say what each part of the run trained, and on which sentences if they changed."""
    texts = []
    for before, stage, following in zip([None, *parts], parts, [*parts[1:], None]):
        method, data = _method(stage["objective"]), stage["data"] or {}
        if before and method == _method(before["objective"]):
            text = f"{counted(stage['steps'], 'step')} with other options"
        else:
            text = f"{counted(stage['steps'], 'step')} of {method}" if stage["steps"] else f"training with {method}"
        if following is None or data.get("sha256") != (following["data"] or {}).get("sha256"):
            text += _sentences(data)
        texts.append(text)
    return Markdown(", then ".join(texts))


def _method(objective: dict) -> str:
    """Name an objective and the terms that the user added to it."""
    titles = [escape(term["title"]) for term in objective["terms"] if not term["own"]]
    *first, last = titles or [Markdown()]
    added = f"{', '.join(first)} and {last}" if first else last
    return f"{escape(objective['title'])}{f' with {added}' if added else ''}"


def _sentences(data: dict) -> str:
    number = f" on {counted(data['sentences'], 'sentence')}" if data.get("sentences") else ""
    name = escape(data.get("description") or ", ".join(data.get("sources", [])))
    return f"{number} ({name})" if name else number


def options_table(config: dict, record: dict, parts: list[dict]) -> Markdown:
    """Return the options as a table, with one column for each part of the run."""
    if record["options"] is None:
        note = "The folder has no training.json. These are the settings in config.json.\n\n"
        settings = [[name, value] for name, value in config["informin"].items()]
        return Markdown(note + markdown_table(["setting", "value"], settings))
    columns = [stage["options"] | {"seed": stage["seed"]} for stage in parts]
    names = dict.fromkeys(name for column in columns for name in column)
    rows = [[name, *(column.get(name, "-") for column in columns)] for name in names]
    ends = [stage.get("until_step", record["steps"]) for stage in parts]
    if len(parts) == 1:
        note, heads = "", ["value"]
        rows.append(["steps", record["steps"]])
    else:
        note = "The options changed during training.\n\n"
        heads = [f"steps {start + 1:,} to {end:,}" for start, end in zip([0, *ends], ends)]
    if record["chosen"]:
        metric = str(record["options"].get("metric_for_best_model", "Spearman")).removeprefix("eval_")
        chosen = f"{metric} on {record['development']}: step {record['kept_step']}"
        rows.append(["checkpoint selected by", *("" for _ in parts[1:]), chosen])
    return Markdown(note + markdown_table(["setting", *heads], rows))


def environment_note(record: dict) -> Markdown:
    """Name the versions, the device and the speed of training."""
    if not (environment := record.get("environment")):
        return Markdown()
    packages = {name: version for name, version in environment.items() if name not in NOT_PACKAGES}
    versions = escape(", ".join(f"{name} {version}" for name, version in packages.items()))
    rate = record.get("sentences_per_second")
    speed = f", {counted(round(rate), 'sentence')} per second" if rate else ""
    scored = " and the scores of every evaluation" if record["history"] else ""
    return Markdown(
        f"Trained with InforMin-CL {escape(record['informin'])} on {escape(environment['device'])} "
        f"({counted(environment['threads'], 'thread')}{speed}), with {versions}. `training.json` has these values"
        f"{scored} in machine-readable form."
    )


def citations(objectives: list[dict]) -> list[tuple[Markdown, Markdown]]:
    """Return what to cite and its BibTeX entry: first the objectives, then the papers of their terms."""
    named = {objective["name"]: "The objective" for objective in objectives}
    for term in (term for objective in objectives for term in objective["terms"]):
        named.setdefault(str(term["paper"]), f"The {escape(term['title'])}")
    files = {path.stem: path for path in CITATIONS.glob("*.bib")}  # a record could name any path
    entries = {name: Markdown(files[name].read_text(encoding="utf-8").strip()) for name in named if name in files}
    return [(Markdown(named[name]), entry) for name, entry in entries.items()]
