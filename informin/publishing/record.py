"""What a training run was, kept as training.json beside its weights: the model card is written from it.

schema                2
informin              version of this package
base_model            name; hub_id (null for a folder); revision, the commit; weights_sha256 as run_eval.py has it;
                      settings_sha256, of configuration and tokenizer
data                  sources, file names or the Hub id; hub_id (null for files); description; sentences and their
                      sha256, in their order (null: stream)
inputs                what else affects the weights, by name: of files name, size and sha256, of a sample where they are
                      above 1 GB; how the encoder is read; the workers of a stream. Older files have none
language, license     for the card; null where nothing says
objective             name; title; terms: those that were on, in their order: name, title, paper (a file of
                      publishing/templates/citations, or null), own (false: added to the objective by an option)
seed, options         every option that shapes the weights
development           the name of what was scored in training, and development_sha256; null where nothing was;
                      development_sets, kind (pairs, labels, retrieval) and name of each (older files: pairs alone)
history               step and the measures of each evaluation by their names in `informin.evaluation.measures`;
                      null: undefined
earlier               the parts of the run before its options, seed, sentences or pairs were changed, each with its
                      until_step; the rest of this file tells the last part
steps, kept_step      taken; of the weights that were kept; chosen: they were the best of those scored
drift                 what training changed: sentences, their number; old and new, the measures of
                      `informin.evaluation.drift`, null where not scored; warnings; null where it was not measured, and
                      in a checkpoint
sentences_per_second  of training, all processes together; null in a checkpoint
environment           versions, device, number of threads

No path, user or machine name is in it: of files and folders the last part of the name alone.
"""

from pathlib import Path

from informin.evaluation.measures import KINDS
from informin.files import write_json
from informin.schema import AMOUNT, ANY, FLAG, SCORE, TEXT, Each, Keys, list_of, one_of, or_none, read_checked, whole

TRAINING = "training.json"
SCHEMA = 2  # 1 had other names for the options

_TEXT_OR_NONE = or_none(TEXT)
_MEASURES = Keys(others=or_none(SCORE))
_DATA = Keys(
    {},
    {
        "sources": list_of(TEXT),
        "sentences": or_none(whole(0)),
        "sha256": _TEXT_OR_NONE,
        "hub_id": ANY,  # of which the card takes what the Hub takes, here and below
        "description": _TEXT_OR_NONE,
    },
    ANY,
    null=True,
)
# Of a run, or of an earlier part of it.
_PART = {
    "seed": whole(0),
    "options": Keys({}, dict.fromkeys(("objective", "prompt", "precision", "optim", "lr_scheduler_type"), TEXT), ANY),
}
_TERM = Keys({"name": TEXT, "title": TEXT, "paper": _TEXT_OR_NONE, "own": FLAG}, others=ANY)
_HISTORY = Each(Keys({"step": whole(0)}, others=or_none(SCORE)))
_PART_LATER = {  # what older records do not have
    "development": _TEXT_OR_NONE,
    "history": _HISTORY,
    "development_sha256": _TEXT_OR_NONE,
    "objective": Keys({"name": TEXT, "title": TEXT, "terms": Each(_TERM)}, others=ANY, null=True),
    "development_sets": Each(Keys({"kind": one_of(*KINDS), "name": TEXT}, others=ANY)),
    "data": _DATA,
    "environment": Keys({"device": TEXT, "threads": whole(1)}, others=ANY),
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
        "steps": whole(0),
        "kept_step": whole(0),
        "chosen": FLAG,
    },
    {
        **{name: kind for name, kind in _PART_LATER.items() if name not in ("data", "environment")},
        "earlier": Each(Keys({"until_step": whole(1), **_PART}, _PART_LATER, ANY)),
        "drift": Keys(
            {"sentences": whole(0), "old": _MEASURES, "new": _MEASURES, "warnings": list_of(TEXT)},
            others=ANY,
            null=True,
        ),
        "sentences_per_second": or_none(AMOUNT),
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
    """Writes training.json."""
    write_json(Path(folder, TRAINING), record)


def prompt_of_training(record: dict | None, settings: dict) -> str:
    """What stood before every sentence in training: as the record says, else the prompt in `config.informin`."""
    options = (record or {}).get("options")
    return settings.get("prompt", "") if options is None else options.get("prompt", "")


def load_record(folder: str | Path) -> dict | None:
    """Reads training.json; None where there is none, UsageError where it is no record of this schema."""
    path = Path(folder, TRAINING)
    if not path.is_file():
        return None
    record = read_checked(path, RECORD, "Copy it again from its run, or train again with this version.")
    record.setdefault("earlier", [])
    record.setdefault("development_sha256", None)
    return record
