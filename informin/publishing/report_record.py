"""What report.html shows and training.json does not contain, stored as report.json in the output folder of a run.

schema      1
command     train or fit
informin    version of this package
snapshot    sentences before and after the run: see `informin.evaluation.snapshot`. Null if not measured
general     drift on general English sentences, as `drift` in training.json. Null if not measured

After training, in addition to training.json:

log         log entries of the run, at most 1,000: step, loss and terms, and the scores
scores      scores on the development data before and after, with intervals: see `informin.evaluation.paired`

After a fit:

model       name of the model, null for embeddings alone; texts, their number; dimensions
options     all options of the adapter, and how the texts were embedded
strength    how much of its full effect the adapter has: less than 1 with few texts
prediction  gain, its standard error, the number of held-out texts, the gain of halves alone, and the verdict: see
            `informin.adapters.prediction`. Null for embeddings alone
curve       predicted quality by the number of dimensions: see `informin.adapters.prediction.Width`
drift       drift on the texts, as in training.json
environment versions, device and number of threads

Unlike training.json, report.json and report.html contain sentences. Neither is published by `informin push`.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from informin import __version__
from informin.adapters.prediction import VERDICTS
from informin.errors import UsageError
from informin.evaluation.measures import ALL, KINDS
from informin.evaluation.snapshot import SNAPSHOT, inconsistency
from informin.files import write_json
from informin.publishing.record import DRIFT
from informin.schema import (
    ANY,
    NUMBER,
    RATE,
    SCORE,
    TEXT,
    Each,
    Keys,
    Kind,
    Schema,
    integer,
    number,
    one_of,
    or_none,
    read_checked,
)

REPORT = "report.json"
SCHEMA = 1
MOST_LOGGED = 1000
AGAIN = "Copy the file again, or run the command again that wrote it."

_INTERVAL: Kind = (
    lambda value: isinstance(value, list) and len(value) == 3 and all(map(SCORE[0], value)),
    "a score and the two ends of its interval",
)
_SCORES = Each(
    Keys(
        {
            "name": TEXT,
            "kind": one_of(*KINDS),
            "measure": one_of(*ALL),
            "n": integer(1),
            **dict.fromkeys(("old", "new", "difference"), _INTERVAL),
        }
    )
)
_COMMON: dict[str, Schema] = {"schema": one_of(SCHEMA), "informin": TEXT, "snapshot": SNAPSHOT, "general": DRIFT}
_TRAIN = Keys(
    {
        **_COMMON,
        "command": one_of("train"),
        "log": Each(Keys({"step": integer(0)}, others=or_none(NUMBER))),
        "scores": _SCORES,
    }
)
# The logarithm of a factor, which is finite.
_LOG: Kind = (lambda value: number(value) and abs(value) <= 100, "a number from -100 to 100")
_RANK: Kind = (lambda value: number(value) and value >= 0, "a number of 0 or more")
_PREDICTION = Keys(
    {
        **dict.fromkeys(("gain", "error", "halves"), _LOG),
        "texts": integer(0),
        "verdict": one_of(*VERDICTS),
    },
    null=True,
)
_CURVE = Each(Keys({"dimension": integer(1), **dict.fromkeys(("rank", "error"), _RANK), "loss": _LOG}))
_FIT = Keys(
    {
        **_COMMON,
        "command": one_of("fit"),
        "model": or_none(TEXT),
        "texts": integer(1),
        "dimensions": integer(1),
        "options": Keys(others=ANY),
        "strength": RATE,
        "prediction": _PREDICTION,
        "curve": _CURVE,
        "drift": DRIFT,
        "environment": Keys({"device": TEXT}, others=ANY),
    }
)
_UNCHECKED: Kind = (lambda _: True, "")  # until the command is known
RECORDS = {"train": _TRAIN, "fit": _FIT}


def save_report(folder: str | Path, command: str, values: Mapping) -> None:
    """Write report.json atomically."""
    write_json(Path(folder, REPORT), {"schema": SCHEMA, "command": command, "informin": __version__, **values})


def load_report(folder: str | Path) -> dict:
    """Load report.json.

    Raises:
        UsageError: It is missing, or does not match the schema of its command.
    """
    path = Path(folder, REPORT)
    if not path.is_file():
        raise UsageError(
            f"{folder} has no {REPORT}", needed="the output folder of a run", fix="Run the command again to write it."
        )
    command = read_checked(path, Keys({"command": one_of(*RECORDS)}, others=_UNCHECKED), AGAIN)["command"]
    record = read_checked(path, RECORDS[command], AGAIN)
    if found := record["snapshot"] and inconsistency(record["snapshot"]):
        raise UsageError(f"{path}: {found}", fix=AGAIN)
    return record


def logged(entries: Sequence[Mapping]) -> list[dict]:
    """Return the numbers in log entries: all scores, and a part of the losses if there are more than 1,000."""
    scored = [any(name.startswith("eval_") for name in entry) and "aside" not in entry for entry in entries]
    wanted = [entry for entry, score in zip(entries, scored) if "loss" in entry or score]
    every = math.ceil(len(wanted) / MOST_LOGGED)
    kept = [e for i, e in enumerate(wanted) if i % every == 0 or "loss" not in e or e is wanted[-1]]
    numbers = ({name: value for name, value in entry.items() if type(value) in (int, float)} for entry in kept)
    return [{name: x if math.isfinite(x) else None for name, x in entry.items()} for entry in numbers]
