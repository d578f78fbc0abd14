"""The record of a training run, stored as training.json next to the weights. The model card is generated from it.

schema                2
informin              version of this package
base_model            the source model: name; hub_id (null for a folder); revision, a commit; weights_sha256, as in
                      results of `informin eval`; settings_sha256, of its configuration and tokenizer
data                  sources, file names or a Hub id; hub_id (null for files); description; sentences, their number;
                      sha256 of the sentences in order (both null for a stream)
inputs                other inputs that affect the weights, by name: for files name, size and sha256 (of a sample above
                      1 GB); how the encoder computes embeddings; the workers of a stream. Missing in older records
language, license     for the card; null if unknown. license_name and license_link, of a license that the Hub does not
                      list, are missing if the source model has none
objective             name; title; active terms in order, each with name, title, paper (a file in
                      publishing/templates/citations, or null) and own (false if an option added it to the objective)
seed, options         every option that affects the weights
development           name of the development sets; null without evaluation. development_sha256, their checksum;
                      development_sets, with kind (pairs, labels, retrieval) and name of each. Older records have pairs
history               step and measures of each evaluation, named as in `informin.evaluation.measures`, and scores of
                      the user's own evaluations; null: undefined
earlier               earlier parts of a run whose options, seed or data changed, each with its until_step. The other
                      entries describe the last part
dimensions            of the embeddings of a SentenceTransformer; missing for native encoders
remote_code           whether the model needs code from its repository; missing for native encoders
steps, kept_step      number of steps taken, and the step whose weights were kept. chosen: they had the best score
drift                 changes to the embeddings: sentences, their number; old and new, the measures of
                      `informin.evaluation.drift` (null: not scored); warnings. Null if not measured, and in checkpoints
sentences_per_second  training speed of all processes together; null in checkpoints
environment           versions, device and number of threads

The record contains no path, user name or host name. For files and folders it has only the last part of the path.
"""

from pathlib import Path

from informin.evaluation.measures import KINDS
from informin.files import read_json, write_json
from informin.publishing.fitted_card import is_adapter_card
from informin.schema import (
    AMOUNT,
    ANY,
    FLAG,
    SCORE,
    TEXT,
    Each,
    Keys,
    Schema,
    integer,
    list_of,
    one_of,
    or_none,
    read_checked,
)

TRAINING = "training.json"
SCHEMA = 2  # 1 had other names for the options

_TEXT_OR_NONE = or_none(TEXT)
_MEASURES = Keys(others=or_none(SCORE))
DRIFT = Keys(
    {"sentences": integer(0), "old": _MEASURES, "new": _MEASURES, "warnings": list_of(TEXT)}, others=ANY, null=True
)
_DATA = Keys(
    {},
    {
        "sources": list_of(TEXT),
        "sentences": or_none(integer(0)),
        "sha256": _TEXT_OR_NONE,
        "hub_id": ANY,  # the card uses only values that the Hub accepts, here and below
        "description": _TEXT_OR_NONE,
    },
    ANY,
    null=True,
)
# Entries of a run and of each earlier part.
_PART: dict[str, Schema] = {
    "seed": integer(0),
    "options": Keys({}, dict.fromkeys(("objective", "prompt", "precision", "optim", "lr_scheduler_type"), TEXT), ANY),
}
_TERM = Keys({"name": TEXT, "title": TEXT, "paper": _TEXT_OR_NONE, "own": FLAG}, others=ANY)
_HISTORY = Each(Keys({"step": integer(0)}, others=or_none(SCORE)))
_PART_LATER: dict[str, Schema] = {  # missing in older records
    "development": _TEXT_OR_NONE,
    "history": _HISTORY,
    "development_sha256": _TEXT_OR_NONE,
    "objective": Keys({"name": TEXT, "title": TEXT, "terms": Each(_TERM)}, others=ANY, null=True),
    "development_sets": Each(Keys({"kind": one_of(*KINDS), "name": TEXT}, others=ANY)),
    "data": _DATA,
    "environment": Keys({"device": TEXT, "threads": integer(1)}, others=ANY),
}
RECORD = Keys(
    {
        "schema": one_of(SCHEMA),
        "informin": TEXT,
        "base_model": Keys(
            {"name": TEXT},
            {"weights_sha256": TEXT, "hub_id": ANY, "revision": _TEXT_OR_NONE, "settings_sha256": TEXT},
            ANY,
            null=True,
        ),
        **_PART,
        "development": _TEXT_OR_NONE,
        "history": _HISTORY,
        "data": _DATA,
        "environment": _PART_LATER["environment"],
        "steps": integer(0),
        "kept_step": integer(0),
        "chosen": FLAG,
    },
    {
        **{name: kind for name, kind in _PART_LATER.items() if name not in ("data", "environment")},
        "earlier": Each(Keys({"until_step": integer(1), **_PART}, _PART_LATER, ANY)),
        "drift": DRIFT,
        "sentences_per_second": or_none(AMOUNT),
        "dimensions": integer(1),
        "remote_code": FLAG,
    },
    ANY,
)
# What a resumed run compares, in addition to that.
RESUMED = Keys(
    {
        "base_model": Keys({"weights_sha256": TEXT, "settings_sha256": TEXT}, others=ANY, null=True),
        "data": Keys({"sources": ANY, "sentences": ANY, "sha256": ANY}, others=ANY, null=True),
    },
    {"inputs": Keys(others=ANY)},
    ANY,
)


def save_record(folder: str | Path, record: dict) -> None:
    """Write training.json."""
    write_json(Path(folder, TRAINING), record)


def saved_as_st(folder: str | Path) -> bool:
    """Return whether a folder is a SentenceTransformer that was trained or fitted here; see `informin.models.st`."""
    record = load_record(folder)
    if record is None and is_adapter_card(Path(folder, "README.md")):
        config = Path(folder, "config.json")  # a SentenceTransformer without a Transformer has none
        return not (config.is_file() and "informin" in read_json(config))
    return ((record or {}).get("options") or {}).get("backend") == "st"


def prompt_of_training(record: dict | None, settings: dict) -> str:
    """Return the prompt used in training, from the record or, without a record, from `config.informin`."""
    options = (record or {}).get("options")
    return settings.get("prompt", "") if options is None else options.get("prompt", "")


def load_record(folder: str | Path) -> dict | None:
    """Load training.json. Return None if there is none.

    Raises:
        UsageError: The file does not match `RECORD`.
    """
    path = Path(folder, TRAINING)
    if not path.is_file():
        return None
    record = read_checked(path, RECORD, "Copy the file again, or train again with this version.")
    record.setdefault("earlier", [])
    record.setdefault("development_sha256", None)
    return record
