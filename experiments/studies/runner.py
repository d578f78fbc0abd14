"""Train and score the unfinished runs of a study, by `informin train` and `informin eval`.

OUTPUT/runs/SETTING-DIGEST/seedN    one run, shared by all studies that contain it
    model/                          --output_dir of the training
    results.json                    results of `informin eval`
    run.json                        written when the run is finished: see `run_record`
    log.txt                         output of both commands
OUTPUT/runs/before-training-DIGEST/once    an untrained encoder: the same without model/
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from experiments.studies.plan import SAMPLES, Setting, Study
from informin.files import last_name, read_json, write_json

ROOT = Path(__file__).resolve().parents[2]
INFORMIN = [sys.executable, "-m", "informin"]
PAIRS = ("spearman", "alignment", "uniformity")


@dataclass(frozen=True)
class Run:
    """One training run of a setting with its scores, or the scores of an untrained encoder, whose seed is None."""

    setting: Setting
    seed: int | None
    folder: Path

    @property
    def name(self) -> str:
        return self.setting.name if self.seed is None else f"{self.setting.name} seed {self.seed}"


def runs_of(study: Study, output: str | Path) -> list[Run]:
    """Return all runs by seed: an interrupted study then has about the same seeds of each setting."""
    runs = [(setting, None) for setting in study.before]
    runs += [(setting, seed) for seed in study.seeds for setting in study.settings]
    place = Path(output, "runs")
    return [Run(s, seed, place / s.folder / ("once" if seed is None else f"seed{seed}")) for s, seed in runs]


def read_run(run: Run, scored: Sequence[str]) -> dict | None:
    """Return the content of run.json; None if the run is not finished or lacks one of the scores."""
    path = run.folder / "run.json"
    record = read_json(path) if path.exists() else None
    return record if record and set(scored) <= record["scores"].keys() else None


class Runner:
    """Trains and scores runs, several at a time; `stop` ends the commands, which then save a checkpoint."""

    def __init__(self, study: Study, jobs: int, keep_checkpoints: bool = False):
        self._study, self._jobs, self._keep_checkpoints = study, jobs, keep_checkpoints
        self._children: dict[int, subprocess.Popen] = {}  # by job
        self._stopped = False

    def process(self, runs: Sequence[Run]) -> None:
        """Finish all runs, and print a line for each."""
        waiting = iter([run for run in runs if not read_run(run, self._study.scored)])
        previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            with ThreadPoolExecutor(self._jobs) as threads:
                futures = [threads.submit(self._work, job, waiting) for job in range(self._jobs)]
                try:
                    for future in futures:
                        future.result()
                except BaseException:
                    self.stop()
                    raise
        finally:
            signal.signal(signal.SIGTERM, previous)

    def stop(self) -> None:
        """Interrupt the running commands; no other one starts."""
        self._stopped = True
        for child in list(self._children.values()):
            child.terminate()

    def _work(self, job: int, waiting) -> None:
        for run in waiting:
            start = time.perf_counter()
            run.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(run.folder / "lock"):
                failed = None if read_run(run, self._study.scored) else self._finish(run, job)
            if self._stopped:
                return
            outcome = f"failed: see {run.folder / 'log.txt'}" if failed else "finished"
            print(f"{run.name}: {outcome} ({time.perf_counter() - start:.0f} s)", flush=True)

    def _finish(self, run: Run, job: int) -> bool:
        """Train and score a run as far as necessary, and write its run.json. Return whether a command failed."""
        model, results = run.folder / "model", run.folder / "results.json"
        seconds = {"training": 0.0, "scoring": 0.0}
        if run.setting.trained and not (model / "training.json").exists():
            results.unlink(missing_ok=True)  # of an earlier model
            seconds["training"] = self._call(run, training_command(run, model), job)
            if not (model / "training.json").exists():
                return True
        if not self._keep_checkpoints:
            for checkpoint in model.glob("checkpoint-*"):
                shutil.rmtree(checkpoint)
        if self._study.scored:  # scores of other studies with the same run stay
            seconds["scoring"] = self._call(run, scoring_command(run, model, self._study, results), job)
        record = run_record(run, model, results)
        if not set(self._study.scored) <= record["scores"].keys():
            return True
        write_json(run.folder / "run.json", record | {"seconds": seconds})
        return False

    def _call(self, run: Run, command: list[str], job: int) -> float:
        """Run a command, and return its seconds."""
        start, gpus = time.perf_counter(), torch.cuda.device_count()
        threads = str(max(1, (os.cpu_count() or 1) // self._jobs))
        share = {"CUDA_VISIBLE_DEVICES": str(job % gpus)} if gpus else {"OMP_NUM_THREADS": threads}
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        with open(run.folder / "log.txt", "a", encoding="utf-8") as log:
            print("\n$", *command, file=log, flush=True)
            if not self._stopped:
                # In this session, the terminal's Ctrl-C would reach the command twice, and a second one ends it.
                env = share | os.environ | {"PYTHONPATH": path}
                child = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, env=env)
                self._children[job] = child
                child.wait()
        return round(time.perf_counter() - start, 2)


def words(options: dict) -> list[str]:
    """Return options as words of a command line."""
    command = []
    for name, value in options.items():
        values = value if isinstance(value, list) else [value]
        texts = [json.dumps(item) if isinstance(item, bool | dict) else str(item) for item in values]
        command += [f"--{name}", *texts]
    return command


def training_command(run: Run, model: Path) -> list[str]:
    """Return the command that trains a run, from its newest checkpoint if there is one."""
    resumes = ["--resume_from_checkpoint", "last"] if any(model.glob("checkpoint-*")) else []
    options = run.setting.options | {"seed": run.seed, "output_dir": str(model), "disable_tqdm": True}
    return INFORMIN + ["train"] + words(options) + resumes


def scoring_command(run: Run, model: Path, study: Study, results: Path) -> list[str]:
    """Return the command that scores the exported model, or the untrained encoder."""
    options = run.setting.options
    reading = {"model_name": str(model) if run.setting.trained else options["model_name"]}
    # An exported model stores its pooling. Its prompt can differ from the one in training.
    names = ("prompt", "senteval_dir") if run.setting.trained else ("pooler", "prompt", "senteval_dir")
    reading |= {name: options[name] for name in names if name in options}
    reading |= {"tasks": study.tasks} if study.tasks else {}
    for kind in SAMPLES:
        files = [file for sample, file in study.samples.values() if sample == kind]
        reading |= {kind: files} if files else {}
    reading |= {"device": "cpu"} if options.get("use_cpu") else {}
    flags = [f"--{name}" for name in ("bf16", "trust_remote_code") if options.get(name)]
    return INFORMIN + ["eval"] + words(reading) + flags + ["--output", str(results)]


def run_record(run: Run, model: Path, results: Path) -> dict:
    """Return the content of run.json: options, what was trained, and scores. Paths are reduced to their names."""
    scored = read_json(results) if results.exists() else {"tasks": {}, "average": {}}
    training = read_json(model / "training.json") if run.setting.trained else {"options": {}, "history": []}
    kept = next((entry for entry in training["history"] if entry["step"] == training["kept_step"]), {})
    copied = ("base_model", "data", "steps", "kept_step", "environment")
    return {
        "seed": run.seed,
        "options": without_paths(run.setting.options),
        "training": training["options"],
        **{name: training.get(name) for name in copied},
        "weights_sha256": scored.get("weights_sha256"),
        "precision": training["options"].get("precision") or scored.get("precision"),
        "dev": {"name": training.get("development"), **{name: kept.get(name) for name in PAIRS}},
        "scores": {name: task["score"] for name, task in scored["tasks"].items()},
        "samples": {
            name: {"measures": task["measures"], "data": task.get("data")}
            for name, task in scored["tasks"].items()
            if "measures" in task
        },
        "averages": {name: scored["average"].get(name) for name in ("sts", "transfer")},
    }


def without_paths(options: dict) -> dict:
    """Return options whose folders and files are reduced to their names."""

    def shortened(value: Any) -> Any:
        if isinstance(value, list):
            return [shortened(each) for each in value]
        is_path = isinstance(value, str) and (value.startswith(("/", "~")) or os.path.exists(value))
        return last_name(value) if is_path else value

    return {name: shortened(value) for name, value in options.items()}
