"""Results of one model on tasks, stored in a JSON file."""

import platform
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path

import numpy as np

from informin.errors import UsageError
from informin.evaluation.senteval import GROUPS
from informin.files import last_name, named_in_errors, read_json, sha256, write_json

CLASSIFIER = "L2 logistic regression, one class against the rest; C = 2^t by SentEval's scikit-learn grids"
COSINE, DOT = "cosine", "dot"
# What must be equal to resume results.
IDENTITY = (
    "weights_sha256",
    "settings_sha256",
    "pooler",
    "normalized",
    "truncate_dim",
    "prompt",
    "whitening",
    "max_seq_length",
    "precision",
    "split",
    "similarity",
)


@dataclass
class Results:
    """Scores of a model, with what they depend on.

    Attributes:
        model: Hub id or folder that the caller gave.
        weights_sha256: SHA-256 of the names and float32 values of all weights.
        pooler: cls, mean, ...
        normalized: Whether the model normalizes its embeddings to unit length.
        max_seq_length: Maximum number of tokens of a text; None for no limit.
        precision: fp32, bf16 or fp16.
        split: test or dev.
        prompt: Prompt prepended to each text; None for none.
        whitening: None, or `dimensions` (None for all) and `fitted_on`.
        similarity: What compares embeddings in STS and retrieval.
        settings_sha256: SHA-256 of the settings of modules, configuration and tokenizer; empty in older files.
        truncate_dim: Number of dimensions that embeddings are truncated to; None for all.
        classifier: Classifier of the transfer tasks.
        tasks: For each task `score` (None if it is undefined; `error` has the reason), `n`, and:

            * STS: `mean`, `wmean`, `pearson`, and `subsets` with `score` and `n` of each;  Spearman x 100.
            * Transfer: `dev`, the accuracy that selected C;  accuracy x 100.
            * Own files: `kind` (labels or retrieval); `measures`, all scores (see `informin.evaluation.measures`);
              `classes` or `documents`, their number. The score is V-measure or MRR@10. Retrieval also has `queries`,
              the scores of each query for a paired test; `prompts`, those of queries and documents if they differ from
              `prompt`; and further rankings, each with `measures` and `queries`: `smoothed`, `bm25`, `with_words`
              (vectors and BM25), `reranked` (the same, by token vectors) and, if asked for, `fused`; their `language`.
            * `data`: SHA-256 of each file. `seconds`: `encode` and `score`. A text is encoded only in the first task
              that contains it.
        average: `sts` and `transfer`: mean of seven scores, None unless all seven are known.
        environment: Versions, device and number of threads of the latest run, which resumed tasks may not share.
        seconds: Time of encoding and scoring, over all tasks.
    """

    model: str
    weights_sha256: str
    pooler: str
    normalized: bool
    max_seq_length: int | None
    precision: str
    split: str
    prompt: str | None = None
    whitening: dict | None = None
    similarity: str = COSINE
    settings_sha256: str = ""
    truncate_dim: int | None = None
    classifier: str = CLASSIFIER
    tasks: dict[str, dict] = field(default_factory=dict)
    average: dict[str, float | None] = field(default_factory=lambda: dict.fromkeys(GROUPS))
    environment: dict = field(default_factory=dict)
    seconds: float = 0.0
    schema: int = 1

    def save(self, path: str | Path) -> None:
        """Write a results file. Raises SaveError if it cannot be written."""
        with named_in_errors(path):
            write_json(path, asdict(self))

    def add(self, name: str, task: dict) -> None:
        """Add the entry of a task, and update averages and seconds."""
        self.tasks[name] = task
        for group, names in GROUPS.items():
            scores = [task["score"] for name, task in self.tasks.items() if name in names and task["score"] is not None]
            self.average[group] = float(np.mean(scores)) if len(scores) == len(names) else None
        self.seconds = sum(sum(task["seconds"].values()) for task in self.tasks.values())

    def of_tasks(self, names: Iterable[str]) -> "Results":
        """Return these results with some of their tasks."""
        chosen = replace(self, tasks={}, average=dict.fromkeys(GROUPS), seconds=0.0)
        for name in names:
            chosen.add(name, self.tasks[name])
        return chosen

    def samples(self) -> dict[str, dict]:
        """Return the entries of the user's own files by name."""
        return {name: task for name, task in self.tasks.items() if "kind" in task}

    def agrees_with(self, other: "Results") -> bool:
        """Return whether other results are of the same model and settings, with equal scores of the same tasks."""
        same_model = all(getattr(self, name) == getattr(other, name) for name in ("model", *IDENTITY))
        shared = [(self.tasks[name], other.tasks[name]) for name in self.tasks.keys() & other.tasks.keys()]
        return same_model and all(one | {"seconds": None} == task | {"seconds": None} for one, task in shared)

    def resumed(self, path: str | Path) -> "Results":
        """Return these results with the tasks in a file, if it exists.

        Raises:
            UsageError: The results in the file are of another model or other settings.
        """
        if not Path(path).exists():
            return self
        saved = load_results(path)
        saved.settings_sha256 = saved.settings_sha256 or self.settings_sha256
        different = [name for name in IDENTITY if getattr(saved, name) != getattr(self, name)]
        if different:
            changes = "; ".join(f"{name} {getattr(saved, name)!r}, now {getattr(self, name)!r}" for name in different)
            raise UsageError(f"{path} contains other results ({changes})", option="output", fix="Choose another one.")
        return replace(saved, model=self.model, environment=self.environment)


def load_results(path: str | Path) -> Results:
    """Read a results file. Raises UsageError if it is not one."""
    try:
        return Results(**read_json(path))
    except TypeError as error:
        raise UsageError(f"{path} is not a results file of `informin eval`: {error}") from None


def load_all_results(paths: Iterable[str | Path]) -> list[Results]:
    """Load all results from files and folders, seed2 before seed10. Raises UsageError as `load_results`."""
    return [load_results(file) for path in paths for file in results_files(path)]


def load_rows(paths: Iterable[str | Path]) -> list[Results]:
    """Load all results for a table. Results of one model with the same settings are one row, unless they disagree.

    `Evaluation.save` may write a copy of some tasks beside the `output` of `evaluate`. As a separate row, the copy
    would count a seed twice.

    Raises:
        UsageError: As `load_results`.
    """
    rows: list[Results] = []
    for results in load_all_results(paths):
        if row := next((row for row in rows if row.agrees_with(results)), None):
            for name, task in results.tasks.items():
                row.add(name, task)
        else:
            rows.append(results)
    return rows


def results_files(path: str | Path) -> list[Path]:
    """Return the file, or the .json files of a folder, seed2 before seed10. Raises UsageError if there are none."""

    def number_aware(file: Path) -> list[int | str]:
        return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", file.stem)]

    path = Path(path)
    files = sorted(path.glob("*.json"), key=number_aware) if path.is_dir() else [path]
    if not files:
        raise UsageError(f"{path} contains no .json file", needed="a folder with results of `informin eval`")
    return files


def environment(device) -> dict[str, str | int]:
    """Return versions of packages, the name of the device (a torch.device) and the number of threads."""
    import torch  # imported here, so that results can be read without it

    from informin import __version__

    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {
        "informin": __version__,
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "transformers", "tokenizers", "numpy", "scipy", "scikit-learn")},
        "device": gpu or f"{device.type} {platform.machine()}",
        "threads": torch.get_num_threads(),
    }


def task_name(path: str | Path) -> str:
    """Return the name of the task of a file or folder, such as banking77 for data/banking77.tsv.gz."""
    if Path(path).is_dir():
        return last_name(Path(path).resolve())
    name = Path(last_name(path))
    return (name.with_suffix("") if name.suffix.lower() == ".gz" else name).stem


def checksums(files: list[Path], folder: str | Path) -> dict[str, str]:
    """Return the SHA-256 of each file by its path in the folder."""
    return {path.relative_to(folder).as_posix(): sha256(path) for path in map(Path, files)}
