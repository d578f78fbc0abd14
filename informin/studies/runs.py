"""The runs of a study: where each lies, and what is there of it.

OUTPUT/runs/SETTING-DIGEST/seedN    one run, whatever studies it is in; DIGEST, of the options, tells settings apart
    options.yaml                    as run_unsup.py reads them
    model/                          its output_dir
    results.json                    of run_eval.py
    (before-training-DIGEST/once    an encoder as it came: no model, no seed)
    seconds.json                    spent on training and scoring so far
    run.json                        written when all is done: see `run_record`
    log.txt                         what both commands print
    lock                            locked by the process that is at it

Files and folders count by their names as they are given: another file under the same name needs another OUTPUT.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from informin.evaluation.measures import PAIRS
from informin.evaluation.results import load_results
from informin.evaluation.table import samples
from informin.publishing.record import load_record
from informin.schema import AMOUNT, ANY, SCORE, TEXT, Keys, one_of, or_none, read_checked, whole
from informin.studies.plan import Setting, Study, without_paths
from informin.training.checkpoints import complete_checkpoints

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
        "data": Keys({"sentences": or_none(whole(0))}, others=ANY, null=True),
        "precision": TEXT,
        "environment": Keys({}, {"threads": whole(1)}, TEXT),
        "seconds": SECONDS,
    },
    {"samples": Keys(others=Keys({"measures": _MEASURES}, others=ANY)), "seed": or_none(whole(0))},
    ANY,
)


@dataclass(frozen=True)
class Run:
    """One training of a setting, and its scores; or those of an encoder as it came."""

    setting: Setting
    seed: int | None  # None where nothing is trained
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
    """What tables and messages call a run."""
    return setting if seed is None else f"{setting} seed {seed}"


def runs_of(study: Study, output: str | Path) -> list[Run]:
    """All runs, seed after seed, so that a study that is broken off has as many seeds of one setting as of another.

    Encoders as they came are first: what is wrong with scoring shows soon.
    """
    folders = {}
    for setting in (*study.before, *study.settings):
        slug = re.sub(r"[^a-z0-9.]+", "-", setting.name.lower())[:40].strip("-.") or "run"
        made = sorted(Path(output, "runs").glob(f"*-{setting.digest}"))  # under another name, by another study
        folders[setting.name] = made[0] if made else Path(output, "runs", f"{slug}-{setting.digest}")
    before = [Run(setting, None, folders[setting.name] / "once") for setting in study.before]
    return before + [Run(s, seed, folders[s.name] / f"seed{seed}") for seed in study.seeds for s in study.settings]


def read_run(run: Run, tasks: Sequence[str]) -> dict | None:
    """A finished run's run.json; None while it, or one of these tasks, is not there. An undefined score is there.

    Raises UsageError where it is something else.
    """
    path = run.folder / "run.json"
    if not path.exists():
        return None
    record = read_checked(path, RECORD, "Delete it, and the study writes it again.")
    return record if set(tasks) <= record["scores"].keys() else None


def seconds_spent(run: Run) -> dict[str, float]:
    """On training and scoring. Raises UsageError where the file says something else."""
    path = run.folder / "seconds.json"
    if not path.exists():
        return {"training": 0.0, "scoring": 0.0}
    return read_checked(path, SECONDS, "Delete it.")


def untrained(run: Run) -> bool:
    """Whether the exported folder is missing or incomplete: training.json is written after the files that load it.

    Raises UsageError if training.json is damaged or of another version. The model may be fine, so a study must not
    delete it and train again.
    """
    if not run.setting.trained:
        return False
    return not (load_record(run.model) and (run.model / "modules.json").exists())


def unscored(run: Run, tasks: Sequence[str]) -> list[str]:
    """The tasks that are not in the results. An undefined score, null, is in them."""
    scored = load_results(run.results)["tasks"] if run.results.exists() else {}
    return [task for task in tasks if task not in scored]


def resumable(run: Run) -> bool:
    """Whether training was broken off and left a checkpoint to go on from."""
    return untrained(run) and bool(complete_checkpoints(run.model))


def run_record(run: Run) -> dict:
    """What run.json keeps of a run. Of files and folders it has the last part of the name alone.

    seed, options    of run_unsup.py, as the study gives them
    training         every option that shapes the weights, with what was filled in; this, base_model, data, steps,
                     kept_step and environment as in training.json: see `informin.publishing.record`
    weights_sha256   checksum of the weights that were scored, null without scores
    dev              name of the development pairs; spearman (x 100), alignment, uniformity at the kept step, or null
    scores, averages of run_eval.py, x 100; null where they are undefined, or not all of a group is scored
    samples          every measure of each labeled sample or search, by name, and the SHA-256 of its file
    seconds          training and scoring, attempts that were broken off included

    Of an encoder as it came, seed, training, data and what dev holds are null.
    """
    results = load_results(run.results) if run.results.exists() else {"tasks": {}, "average": {}}
    training = load_record(run.model) if run.setting.trained else _untrained_record(run, results)
    kept = next((entry for entry in training["history"] if entry["step"] == training["kept_step"]), {})
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
    """What takes the place of training.json for an encoder as it came."""
    name = without_paths(run.setting.options)["model_name"]
    return {
        "options": None,
        "base_model": {"name": name, "weights_sha256": results["weights_sha256"]},
        **{"data": None, "steps": 0, "kept_step": 0, "development": None, "history": []},
        "environment": results["environment"],
    }
