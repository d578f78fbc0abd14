"""Render and write README.md. A checksum at the end of the page tells whether a person edited it."""

import hashlib
import re
from pathlib import Path

from huggingface_hub import ModelCard
from jinja2 import Environment, StrictUndefined

from informin.errors import UsageError
from informin.files import read_json
from informin.outputs import writing
from informin.publishing.card.front_matter import front_matter
from informin.publishing.card.limitations import limitations
from informin.publishing.card.markdown import Markdown, code, escape, in_quotes, single_line
from informin.publishing.card.scores import (
    changes_table,
    development_sets,
    development_tables,
    load_added_results,
    result_tables,
)
from informin.publishing.card.training import citations, environment_note, methods, options_table, source_model, stages
from informin.publishing.card.usage import EMBEDDINGS, ST, onnx_files, usage
from informin.publishing.card.worse import worse_after_training
from informin.publishing.fitted_card import is_adapter_card, with_name
from informin.publishing.metadata import known_id
from informin.publishing.record import load_record, prompt_of_training, saved_as_st
from informin.schema import FLAG, TEXT, Kind, one_of
from informin.temporary import new_file

CARD = "README.md"
TEMPLATE = Path(__file__).parent.parent / "templates" / "model_card.md"
UNPUBLISHED = "path/to/this/folder"
SETTINGS = {
    "pooling": one_of(*EMBEDDINGS),
    "normalize": FLAG,
    "prompt": TEXT,
}  # of `config.informin`
AUTO_MAP: Kind = (lambda value: value is None or isinstance(value, dict), "a mapping")
# Of a folder without a record, and of records of older versions.
NO_RECORD: dict = {
    "base_model": None,
    "data": None,
    "history": [],
    "options": None,
    "earlier": [],
    "drift": None,
}


def write_card(folder: str | Path, repo: str | None = None, revision: str | None = None) -> bool:
    """Write README.md unless a person edited it. The card of `informin fit` is kept, and its examples load `repo`.

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
    if not is_adapter_card(path):
        card = render_card(folder, repo, revision)
    elif repo:
        page = path.read_text(encoding="utf-8").rstrip("\n").rpartition("\n")[0]
        card = stamped(with_name(page, repo, revision))
    else:
        return False
    with writing(path), new_file(path) as partial:
        partial.write_text(card, encoding="utf-8")
    return True


def is_untouched(text: str) -> bool:
    """Return whether a card is unchanged since `render_card` created it."""
    page, _, stamp = text.rstrip("\n").rpartition("\n")
    return stamp == _stamp(page)


def is_edited(path: Path) -> bool:
    """Return whether a file exists and is not an unchanged card."""
    return path.is_file() and not is_untouched(path.read_text(encoding="utf-8", errors="replace"))


def _stamp(page: str) -> str:
    checksum = hashlib.sha256(page.encode()).hexdigest()
    return f"<!-- Written from the run; SHA-256 of the page above: {checksum}. A page edited by hand is left alone. -->"


def render_card(folder: str | Path, repo: str | None = None, revision: str | None = None) -> str:
    """Return the card of an exported folder: YAML metadata, then Markdown. See `write_card`.

    Raises:
        UsageError: A file of the folder is not valid.
    """
    folder = Path(folder)
    native = not saved_as_st(folder)
    config = _checked_config(folder) if native else _st_config(folder)
    settings = config["informin"]
    config = single_line(config)
    record = single_line(NO_RECORD | (load_record(folder) or {}))
    results = load_added_results(folder)
    base = record["base_model"] or {}
    parts = stages(record, config["informin"])
    objective = parts[-1]["objective"]
    start = str(known_id(base.get("hub_id")) or base.get("name") or config["model_type"]).rpartition("/")[2]
    name = repo.rpartition("/")[2] if repo else f"{start}-{objective['name']}"
    loaded = str((config.get("auto_map") or {}).get("AutoModel", "")).rpartition(".")[2]  # of modeling_informin.py
    metadata = front_matter(name, record, objective, results.model, any(folder.glob("onnx/*.onnx")))
    pages = Environment(finalize=escape, undefined=StrictUndefined)
    content = pages.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        card_data=Markdown(metadata.to_yaml()),
        name=name,
        base=source_model(base),
        method=methods(parts),
        dimensions=_dimensions(folder, record),
        **usage(settings, prompt_of_training(load_record(folder), settings)),
        has_pooler=native and "model_args" in read_json(folder / "sentence_bert_config.json"),
        plain=native,
        trust=Markdown(", trust_remote_code=True" if record.get("remote_code") else ""),
        repo=in_quotes(repo or UNPUBLISHED),
        published=bool(repo),
        pin=Markdown(f', revision="{in_quotes(revision)}"' if revision else ""),
        architecture=code(loaded) if loaded else "",
        onnx=onnx_files(folder),
        tables=result_tables(results, record.get("seed"), samples=False),
        samples=result_tables(results, record.get("seed"), samples=True),
        seeds=len(results.seeds) + 1,
        seed=record.get("seed"),
        history=development_tables(record),
        developed_on=[one["kind"] for one in development_sets(record)],
        drift=changes_table(record["drift"]),
        training=options_table(config, record, parts),
        environment=environment_note(record),
        worse=worse_after_training(record, results),
        limits=list(limitations(folder, config, record, results)),
        citations=citations([stage["objective"] for stage in parts]),
    )
    page = re.sub(r"\n{3,}", "\n\n", str(ModelCard(content))).strip()
    return stamped(page)


def stamped(page: str) -> str:
    """Return a page with a checksum at its end, which tells `is_untouched` that nobody edited it."""
    return f"{page}\n{_stamp(page)}\n"


def _st_config(folder: Path) -> dict:
    """Return the prompt of a SentenceTransformer in the form of config.json."""
    values = read_json(folder / "config_sentence_transformers.json")
    prompt = (values.get("prompts") or {}).get(values.get("default_prompt_name"), "")
    return {"informin": {"pooling": ST, "prompt": prompt}, "model_type": "SentenceTransformer"}


def _dimensions(folder: Path, record: dict) -> int | None:
    """Return the number of dimensions of an embedding; None for a record without it."""
    if "dimensions" in record:
        return record["dimensions"]
    return read_json(folder / "1_Pooling" / "config.json")["word_embedding_dimension"]


def _checked_config(folder: Path) -> dict:
    """Return config.json. Raise UsageError if it does not say how an InforMin-CL model computes embeddings."""
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
