"""The runs of a study: their folders and their state.

OUTPUT/runs/SETTING-DIGEST/seedN    one run, shared by all studies that contain it; DIGEST is a hash of the options
    options.yaml                    options for run_unsup.py
    model/                          its output_dir
    results.json                    results of `informin eval`
    seconds.json                    time spent on training and scoring so far
    run.json                        written when the run is finished: see `run_record`
    log.txt                         output of both commands
    lock                            locked by the process that works on the run
OUTPUT/runs/before-training-DIGEST/once    an untrained encoder: the same without model/

Files and folders are compared by name. If the content of a file changes, use another OUTPUT.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from informin.evaluation.measures import PAIRS
from informin.evaluation.results import load_results
from informin.evaluation.table import samples
from informin.publishing.record import load_record
from informin.schema import AMOUNT, ANY, SCORE, TEXT, Keys, integer, one_of, or_none, read_checked
from informin.studies.plan import Setting, Study, without_paths
from informin.training.checkpoints import resumable_checkpoints

SCHEMA = 1
SECONDS = Keys({"training": AMOUNT, "scoring": AMOUNT})
_MEASURES = Keys(others=or_none(SCORE))
_SCORES = dict.fromkeys(PAIRS, or_none(SCORE))
RECORD = Keys(
    {
        "schema": one_of(SCHEMA),
        "scores": _MEASURES,
        "averages": Keys({"sts": or_none(SCORE), "transfer": or_none(SCORE)}),
        "dev": Keys({"name": or_none(TEXT), **_SCORES}),
        "base_model": Keys({"name": TEXT, "weights_sha256": TEXT}, others=ANY),
        "data": Keys({"sentences": or_none(integer(0))}, others=ANY, null=True),
        "precision": TEXT,
        "environment": Keys({}, {"threads": integer(1)}, TEXT),
        "seconds": SECONDS,
    },
    {"samples": Keys(others=Keys({"measures": _MEASURES}, others=ANY)), "seed": or_none(integer(0))},
    ANY,
)


@dataclass(frozen=True)
class Run:
    """One training run of a setting with its scores, or the scores of an untrained encoder."""

    setting: Setting
    seed: int | None  # None for an untrained encoder
    folder: Path

    @property
    def name(self) -> str:
        return run_name(self.setting.name, self.seed)

    @property
    def model(self) -> Path:
        return self.folder / "model"

    @property
    def results(self) -> Path:
        return self.folder / "results.json"


def run_name(setting: str, seed: int | None) -> str:
    """Return the name of a run in tables and messages."""
    return setting if seed is None else f"{setting} seed {seed}"


def runs_of(study: Study, output: str | Path) -> list[Run]:
    """Return all runs, ordered by seed, so that an interrupted study has about the same seeds of each setting.

    Untrained encoders come first, so that problems with scoring appear early.
    """
    folders = {}
    for setting in (*study.before, *study.settings):
        slug = re.sub(r"[^a-z0-9.]+", "-", setting.name.lower())[:40].strip("-.") or "run"
        made = sorted(Path(output, "runs").glob(f"*-{setting.digest}"))  # another study may have named it differently
        folders[setting.name] = made[0] if made else Path(output, "runs", f"{slug}-{setting.digest}")
    before = [Run(setting, None, folders[setting.name] / "once") for setting in study.before]
    return before + [Run(s, seed, folders[s.name] / f"seed{seed}") for seed in study.seeds for s in study.settings]


def read_run(run: Run, tasks: Sequence[str]) -> dict | None:
    """Return the content of run.json; None if the run is not finished or lacks one of the tasks.

    A task with an undefined score counts as present.

    Raises:
        UsageError: run.json is invalid.
    """
    path = run.folder / "run.json"
    if not path.exists():
        return None
    record = read_checked(path, RECORD, "Delete it. The study then writes it again.")
    return record if set(tasks) <= record["scores"].keys() else None


def seconds_spent(run: Run) -> dict[str, float]:
    """Return the seconds spent on training and scoring. Raise UsageError if seconds.json is invalid."""
    path = run.folder / "seconds.json"
    if not path.exists():
        return {"training": 0.0, "scoring": 0.0}
    return read_checked(path, SECONDS, "Delete it.")


def untrained(run: Run) -> bool:
    """Return whether the exported model is missing or incomplete. Export writes training.json last.

    Raises:
        UsageError: training.json is damaged or has another version. The model may be intact, so a study must not
            delete it and train again.
    """
    if not run.setting.trained:
        return False
    return not (load_record(run.model) and (run.model / "modules.json").exists())


def unscored(run: Run, tasks: Sequence[str]) -> list[str]:
    """Return the tasks that are missing in the results. A task with an undefined score is not missing."""
    scored = load_results(run.results)["tasks"] if run.results.exists() else {}
    return [task for task in tasks if task not in scored]


def resumable(run: Run) -> bool:
    """Return whether training was interrupted and can resume from a checkpoint."""
    return untrained(run) and bool(resumable_checkpoints(run.model))


def run_record(run: Run) -> dict:
    """Return the content of run.json. Paths are reduced to their last part.

    seed, options    options of run_unsup.py, as the study sets them
    training         all options that affect the weights, with defaults filled in. This, base_model, data, steps,
                     kept_step and environment are copied from training.json: see `informin.publishing.record`
    weights_sha256   SHA-256 of the scored weights, null without scores
    dev              name of the development pairs; spearman (x 100), alignment, uniformity at the kept step, or null
    scores, averages scores of `informin eval`, x 100; null if undefined or if a group is incomplete
    samples          all measures of each labeled or retrieval sample by name, and the SHA-256 of its file
    seconds          training and scoring, including interrupted attempts

    For an untrained encoder, seed, training, data and the values in dev are null.
    """
    results = load_results(run.results) if run.results.exists() else {"tasks": {}, "average": {}}
    training = load_record(run.model) if run.setting.trained else _untrained_record(run, results)
    assert training is not None  # the run is trained
    kept: dict = next((entry for entry in training["history"] if entry["step"] == training["kept_step"]), {})
    dev = {name: kept.get(name) for name in PAIRS}
    return {
        "schema": SCHEMA,
        "seed": run.seed,
        "options": without_paths(run.setting.options),
        "training": training["options"],
        **{name: training[name] for name in ("base_model", "data", "steps", "kept_step")},
        "weights_sha256": results.get("weights_sha256"),
        "precision": training["options"]["precision"] if run.setting.trained else results["precision"],
        "dev": {"name": training["development"], **dev},
        "scores": {name: task["score"] for name, task in results["tasks"].items()},
        "samples": {
            name: {"measures": entry.get("measures", {}), "data": entry["data"]}
            for name, entry in samples(results).items()
        },
        "averages": {name: results["average"].get(name) for name in ("sts", "transfer")},
        "seconds": seconds_spent(run),
        "environment": training["environment"],
    }


def _untrained_record(run: Run, results: dict) -> dict:
    """Return the values that training.json would have for an untrained encoder."""
    name = without_paths(run.setting.options)["model_name"]
    return {
        "options": None,
        "base_model": {"name": name, "weights_sha256": results["weights_sha256"]},
        **{"data": None, "steps": 0, "kept_step": 0, "development": None, "history": []},
        "environment": results["environment"],
    }
