"""Results of one checkpoint with one pooling, stored in a JSON file.

schema           1
model            Hub id or folder, as it was given
weights_sha256   SHA-256 of the names and float32 values of all weights
pooler           cls, mean, ...
normalized       whether embeddings were normalized to unit length, as the checkpoint's settings say
similarity       dot, euclidean or manhattan, if this compares embeddings in STS and retrieval instead of the cosine
prompt           text before every sentence, or null
whitening        null, or {dimensions: K or null for all, fitted_on: text}
max_length       maximum number of tokens per sentence
precision        fp32 or bf16
split            test or dev
classifier       classifier of the transfer tasks
tasks.NAME       score (null if undefined; `error` then contains the reason), n, and:
                   STS: mean, wmean, pearson, subsets.SUBSET.score and .n;  Spearman x 100
                   transfer: dev, the accuracy that selected C;  accuracy x 100
                   samples: kind (labels or retrieval); measures, all scores (`evaluation.measures`) and their standard
                   deviation over draws; the number of classes or documents. The score is V-measure or MRR@10.
                   prompts (retrieval): query and document, if they differ from `prompt`
                   truncated: number of truncated sentences;  data: SHA-256 of each file
                   seconds: {encode, score}. A sentence is encoded only in the first task that contains it. All poolings
                   of one call share the encoding, and the time of each includes it.
average          sts and transfer: mean of seven scores, null unless all seven are known
environment      versions, device and number of threads
seconds          time of encoding and scoring, over all tasks

A summary.json (`informin.summaries`) contains the results of several checkpoints.
"""

import logging
import platform
import re
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from informin import __version__
from informin.errors import UsageError, error_line
from informin.evaluation.measures import KINDS
from informin.evaluation.senteval import GROUPS
from informin.evaluation.similarity import COSINE, SIMILARITIES
from informin.files import parse_json, regular_text, sha256, write_json
from informin.outputs import writing
from informin.schema import AMOUNT, ANY, FLAG, SCORE, TEXT, Keys, integer, one_of, or_none, problem
from informin.summaries import SUMMARY, is_summary, read_summary

logger = logging.getLogger(__name__)

SCHEMA = 1
OTHER = "Choose another `output`."
CLASSIFIER = "L2 logistic regression, one class against the rest; C = 2^t by SentEval's scikit-learn grids"
# What must be equal to resume results.
IDENTITY = ("weights_sha256", "pooler", "normalized", "prompt", "whitening", "max_length", "precision", "split")

_SAMPLES = {"labels": "classes", "retrieval": "documents"}  # key of each kind of sample besides `n`
_TASK = Keys(
    {
        "score": or_none(SCORE),
        "n": integer(0),
        "truncated": integer(0),
        "data": Keys(others=TEXT),
        "seconds": Keys({"encode": AMOUNT, "score": AMOUNT}),
    },
    {
        **dict.fromkeys(("mean", "wmean", "pearson"), or_none(SCORE)),
        "error": TEXT,
        "kind": one_of(*_SAMPLES),
        "measures": Keys(others=SCORE),
        "prompts": Keys({"query": TEXT, "document": TEXT}),
        **dict.fromkeys(_SAMPLES.values(), integer(0)),
    },
    ANY,
)
RESULTS = Keys(
    {
        "schema": one_of(SCHEMA),
        "model": TEXT,
        "tasks": Keys(others=_TASK),
        "average": Keys(dict.fromkeys(GROUPS, or_none(SCORE))),
        "weights_sha256": TEXT,
        "pooler": TEXT,
        "normalized": FLAG,
        "whitening": Keys({"dimensions": or_none(integer(1)), "fitted_on": TEXT}, null=True),
        "max_length": integer(1),
        "precision": TEXT,
        "split": TEXT,
    },
    {"prompt": or_none(TEXT), "similarity": one_of(*SIMILARITIES), "environment": Keys(others=ANY)},
    ANY,
)


def new_results(model: str, identity: dict, environment: dict, similarity: str = COSINE) -> dict:
    """Return results without tasks.

    Args:
        identity: A value for each name in `IDENTITY`.
        similarity: What compares embeddings, from `informin.evaluation.similarity.SIMILARITIES`.
    """
    return {
        "schema": SCHEMA,
        "model": model,
        **{name: identity[name] for name in IDENTITY},
        **({"similarity": similarity} if similarity != COSINE else {}),
        "classifier": CLASSIFIER,
        "tasks": {},
        "average": {"sts": None, "transfer": None},
        "environment": environment,
        "seconds": 0.0,
    }


def environment(device) -> dict[str, str | int]:
    """Return versions of packages, the name of the device (a torch.device) and the number of threads."""
    import torch  # imported here, so that results can be read without it

    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {
        "informin": __version__,
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "transformers", "tokenizers", "numpy", "scipy", "scikit-learn")},
        "device": gpu or f"{device.type} {platform.machine()}",
        "threads": torch.get_num_threads(),
    }


def add_task(results: dict, name: str, entry: dict) -> None:
    """Add the entry of a task, and update averages and seconds."""
    tasks = results["tasks"]
    tasks[name] = entry
    for group, names in GROUPS.items():
        scores = [tasks.get(task, {}).get("score") for task in names]
        results["average"][group] = None if None in scores else float(np.mean(scores))
    results["seconds"] = sum(sum(task["seconds"].values()) for task in tasks.values())


def load_results(path: str | Path) -> dict:
    """Read a results file. Raise UsageError if it is missing or does not match this schema."""
    return _checked(_parsed(path), path)


def load_all_results(paths: Iterable[str | Path]) -> list[dict]:
    """Load all results from files, folders and summaries, in order. Raise UsageError as `load_results`."""
    found = []
    for path in (path for given in paths for path in results_files(given)):
        content = _parsed(path)
        rows = read_summary(path)[1] if is_summary(content) else [content]
        found += [_checked(row, path) for row in rows]
    return found


def _parsed(path: str | Path) -> Any:
    try:
        return parse_json(regular_text(path))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path} cannot be read: {error_line(error)}", needed="a results file of `informin eval`"
        ) from None


def _checked(results: Any, path: str | Path) -> dict:
    if found := problem(results, RESULTS) or _incomplete(results["tasks"]):
        raise UsageError(f"{path} is not a results file: {found}", fix="Score the model again with `informin eval`.")
    results.setdefault("prompt", None)  # older files have no prompt
    for name, entry in list(results["tasks"].items()):
        if "measures" in entry and not KINDS[entry["kind"]].keys() <= entry["measures"].keys():
            del results["tasks"][name]  # their recall@k is accuracy@k: see CHANGELOG.md
            logger.warning(f"{path}: {name} was scored by an older version, with other measures. Score it again.")
    return results


def _incomplete(tasks: dict) -> str | None:
    """Return which key of a task is missing, or None."""
    for name, entry in tasks.items():
        needed = ["error"] * (entry["score"] is None)
        if "kind" in entry or "measures" in entry:
            needed += ["kind", *["measures"] * (entry["score"] is not None)]
        needed += [_SAMPLES[entry["kind"]]] if "kind" in entry else []
        if missing := [key for key in needed if key not in entry]:
            return f"tasks.{name:.60}.{missing[0]} is missing"
    return None


def results_files(path: str | Path) -> list[Path]:
    """Return the file, or the results files of a folder, seed2 before seed10. Raise UsageError if there are none.

    A summary next to results repeats them, and is left out.
    """
    path = Path(path)
    files = sorted(path.glob("*.json"), key=_natural) if path.is_dir() else [path]
    files = [file for file in files if file.name != SUMMARY] or files
    if not files:
        raise UsageError(f"{path} contains no .json file", needed="a folder with results of `informin eval`")
    return files


def _natural(path: Path) -> list:
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", path.name)]


def make_folder_of(path: str | Path) -> None:
    """Create the folder of a results file. Raise UsageError if that fails."""
    with writing(path, fix=OTHER):
        Path(path).parent.mkdir(parents=True, exist_ok=True)


def save_results(path: str | Path, results: dict) -> None:
    """Write a results file. If that fails, keep the previous file and raise UsageError."""
    make_folder_of(path)
    with writing(path, fix=OTHER):
        write_json(path, results)


def resume_results(path: str | Path, fresh: dict) -> dict:
    """Return the results in the file to resume from, or the fresh ones if there is no file.

    Raises:
        UsageError: The results in the file are of another checkpoint or other settings.
    """
    if not Path(path).exists():
        return fresh
    kept = load_results(path)
    old, new = (found | {"similarity": similarity_in(found)} for found in (kept, fresh))
    differing = [name for name in (*IDENTITY, "similarity") if old[name] != new[name]]
    if differing:
        differences = "; ".join(f"{name} {old[name]!r}, now {new[name]!r}" for name in differing)
        raise UsageError(f"{path} contains other results ({differences})", fix=f"{OTHER[:-1]}, or delete the file.")
    return kept | {name: fresh[name] for name in ("model", "environment")}


def similarity_in(results: dict) -> str:
    """Return what compared embeddings in STS and retrieval."""
    return results.get("similarity", COSINE)


def checksums(files: list[Path], folder: str | Path) -> dict[str, str]:
    """Return the SHA-256 of each file by its path in the folder."""
    return {path.relative_to(folder).as_posix(): sha256(path) for path in map(Path, files)}
