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
                      model_cards/citations, or null), own (false: added to the objective by an option)
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

from informin.errors import UsageError
from informin.files import read_json, write_json

TRAINING = "training.json"
SCHEMA = 2  # 1 had other names for the options


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
    record = read_json(path, object)
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        raise UsageError(
            f"{path}: expected a training record of schema {SCHEMA}; found something else. "
            "Train again with this version."
        )
    return record
