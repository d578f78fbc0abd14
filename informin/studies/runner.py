"""Train and score the unfinished runs of a study: subprocesses of `informin train` and `eval`. Requires POSIX."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean

import torch
import yaml
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from informin.errors import UsageError
from informin.files import write_json
from informin.interrupts import handled_signals, silence, terminals
from informin.publishing.record import load_record
from informin.studies.plan import SAMPLES, Study
from informin.studies.runs import Run, read_run, resumable, run_record, seconds_spent, unscored, untrained
from informin.studies.table import name_of, value_of
from informin.training.checkpoints import LAST, resumable_checkpoints

INFORMIN = [sys.executable, "-m", "informin"]
FINISHED, BUSY, STOPPED = "finished", "is being run by another process", "was stopped"
UNDEFINED = 1  # exit code of `informin eval` if a score is undefined, and of Python after an exception
LOG_LINES = 6  # lines of a failed run's log to print


class Runner:
    """Trains and scores runs, several at a time.

    Within the `with` block, Ctrl-C, SIGTERM and SIGHUP are forwarded once to each subprocess, unless this process
    ignores them. Training then saves a checkpoint, and no new subprocess starts.

    Args:
        tasks: Tasks of the study.
        keep_checkpoints: Keep the checkpoints of finished runs.
        jobs: Number of runs at a time, which share the machine.
        gpus: Result of `visible_gpus`.
        samples: Samples of the study.
    """

    def __init__(
        self,
        tasks: Sequence[str],
        keep_checkpoints: bool,
        jobs: int,
        gpus: Sequence[str],
        samples: Mapping[str, tuple[str, str]] | None = None,
    ):
        self.received: int | None = None  # number of the signal
        self._samples = dict(samples or {})
        tasks = [*tasks, *self._samples]
        self._tasks, self._keep_checkpoints, self._jobs, self._gpus = list(tasks), keep_checkpoints, jobs, gpus
        self._children: list[subprocess.Popen] = []
        self._guard = threading.Lock()

    def __enter__(self):
        self._terminals = terminals()
        self._previous = {number: signal.signal(number, self._forward) for number in handled_signals()}
        return self

    def __exit__(self, *_):
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _forward(self, number, _frame):
        if number == getattr(signal, "SIGHUP", None):
            silence(self._terminals)
        with self._guard:  # handlers run in the main thread, which acquires the lock nowhere else
            self.received = number
            for child in self._children:
                child.send_signal(number)

    def do(self, run: Run, job: int) -> str:
        """Train and score a run as far as necessary, and write its run.json.

        Args:
            run: The run.
            job: Index of the job, from 0.

        Returns:
            "finished", or the reason why it is not.
        """
        run.folder.mkdir(parents=True, exist_ok=True)
        with open(run.folder / "lock", "w") as lock, open(run.folder / "log.txt", "a", encoding="utf-8") as log:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return BUSY
            if read_run(run, self._tasks):
                return FINISHED  # by another process in the meantime
            if untrained(run) and (code := self._call("training", run, training_command(run), log, lock, job)):
                return STOPPED if self.received else f"failed with exit code {code}"
            if not self._keep_checkpoints:
                for checkpoint in run.model.glob(f"{PREFIX_CHECKPOINT_DIR}-*"):
                    shutil.rmtree(checkpoint)
            tasks = unscored(run, self._tasks)
            command = scoring_command(run, tasks, self._samples)
            if tasks and (code := self._call("scoring", run, command, log, lock, job)):
                if code != UNDEFINED or unscored(run, tasks):
                    return STOPPED if self.received else f"failed with exit code {code}"
            write_json(run.folder / "run.json", run_record(run))
        return FINISHED

    def _call(self, part: str, run: Run, command: list[str], log, lock, job: int) -> int:
        """Run a command unless a signal was received, add its time to seconds.json, and return the exit code."""
        print("\n$", *command, file=log, flush=True)
        start = time.perf_counter()
        resources = self._resources(job, _threads_before(run) if part == "training" else None)
        with self._guard:
            if self.received:
                return 128 + self.received
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | resources | {"PYTHONUNBUFFERED": "1", "PYTHONPATH": python_path()},
                # In our session, the terminal would send it Ctrl-C in addition to the forwarded signal, and a second
                # signal ends a run without a checkpoint.
                start_new_session=True,
                # If this process is killed, the run stays locked until its subprocess ends.
                pass_fds=[lock.fileno()],
            )
            self._children.append(child)
        code = child.wait()
        with self._guard:
            self._children.remove(child)
        spent = seconds_spent(run)
        spent[part] = round(spent[part] + time.perf_counter() - start, 2)
        write_json(run.folder / "seconds.json", spent)
        return code

    def _resources(self, job: int, before: int | None) -> dict[str, str]:
        """Return environment variables that assign a GPU, or a fraction of the CPU cores, to a job.

        Args:
            before: Number of threads with which the run began, if it resumes.
        """
        if self._gpus:
            return {"CUDA_VISIBLE_DEVICES": self._gpus[job % len(self._gpus)]}
        threads = before or max(1, (os.cpu_count() or 1) // self._jobs)
        return {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": str(threads)}


def _threads_before(run: Run) -> int | None:
    """Return the number of threads of an interrupted run, which determines its dropout masks; None for a new run."""
    existing = resumable_checkpoints(run.model)
    record = load_record(existing[-1]) if existing else None
    return record["environment"]["threads"] if record else None


def python_path() -> str:
    """Return PYTHONPATH with the folder of this package first, so that `-m informin` works in a clone too."""
    return os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))


def visible_gpus() -> list[str]:
    """Return the GPUs, as CUDA_VISIBLE_DEVICES names them."""
    count, named = torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",")[:count] if named else [str(i) for i in range(count)]


def training_command(run: Run) -> list[str]:
    """Write options.yaml and return the command that trains a run, from its newest checkpoint if there is one.

    Without a checkpoint, files of earlier weights are deleted.
    """
    resume = resumable(run)
    if not resume:
        shutil.rmtree(run.model, ignore_errors=True)
        for name in ("results.json", "run.json", "seconds.json"):  # they belong to other weights
            (run.folder / name).unlink(missing_ok=True)
    file = run.folder / "options.yaml"
    options = run.setting.options | {"seed": run.seed, "output_dir": str(run.model)}
    file.write_text(yaml.safe_dump(options, sort_keys=False, allow_unicode=True), encoding="utf-8")
    command = [*INFORMIN, "train", "--config", str(file), "--disable_tqdm", "true"]
    return [*command, "--resume_from_checkpoint", LAST] if resume else command


def scoring_command(run: Run, tasks: Sequence[str], samples: Mapping[str, tuple[str, str]]) -> list[str]:
    """Return the command that scores the exported model, or the untrained encoder, on the given tasks."""
    options = run.setting.options
    model = run.model if run.setting.trained else options["model_name"]
    command = [*INFORMIN, "eval", "--model_name", str(model)]
    # An exported model stores its pooling. Its prompt can differ from the one in training.
    reading = ("prompt",) if run.setting.trained else ("pooler", "prompt")
    command += [f"--{name}={options[name]}" for name in reading if name in options]
    asked = {"tasks": [task for task in tasks if task not in samples]}
    for kind in SAMPLES:
        asked[kind] = [samples[task][1] for task in tasks if task in samples and samples[task][0] == kind]
    command += [word for name, values in asked.items() if values for word in (f"--{name}", *values)]
    command += ["--senteval_dir", str(options["senteval_dir"])] if "senteval_dir" in options else []
    command += ["--device", "cpu"] if options.get("use_cpu") in (True, "true", "yes") else []
    command += ["--bf16"] if options.get("bf16") in (True, "true", "yes") else []  # as in training
    command += ["--trust_remote_code"] if options.get("trust_remote_code") in (True, "true", "yes") else []
    return [*command, "--output", str(run.results)]


class Progress:
    """Processes the unfinished runs in several threads, and prints a line at the start and the end of each."""

    def __init__(self, study: Study, runs: Sequence[Run], runner: Runner, jobs: int):
        self.outcomes: dict[str, str] = {}  # by name of the run
        self._study, self._runner, self._jobs, self._all = study, runner, jobs, len(runs)
        self._seconds: dict[str, list[float]] = {}  # of finished runs, by setting
        self._left = [run for run in runs if not self._add_seconds(run)]
        self._todo = iter(list(enumerate(self._left, start=self._all - len(self._left) + 1)))
        self._guard = threading.Lock()

    def process(self) -> None:
        """Process all runs. Returns early if a signal was received, after running subprocesses have stopped."""
        print(f"{self._all} runs, {self._all - len(self._left)} of them already finished", flush=True)
        with ThreadPoolExecutor(self._jobs) as threads:
            list(threads.map(self._work, range(self._jobs)))

    def _work(self, job: int) -> None:
        while not self._runner.received:
            with self._guard:
                count, run = next(self._todo, (0, None))
                if run is None:
                    return
                number = f"[{count:{len(str(self._all))}}/{self._all}]"
                how = "is already trained; scoring" if run.setting.trained else "is scored"
                how = "starts" if untrained(run) else how
                how = "resumes from its checkpoint" if resumable(run) else how
                print(f"{number} {run.name} {how}", flush=True)
            start = time.perf_counter()
            try:
                outcome = self._runner.do(run, job)
            except (UsageError, OSError) as error:
                outcome = f"failed: {error}"
            with self._guard:
                self._end(number, run, outcome, time.perf_counter() - start)

    def _end(self, number: str, run: Run, outcome: str, seconds: float) -> None:
        self._left.remove(run)
        self.outcomes[run.name] = outcome
        how = f" {outcome}"
        if outcome == FINISHED and (record := self._add_seconds(run)):
            values = {name_of(measure): value_of(record, measure) for measure in self._study.measures}
            scores = [f"{name} {'undefined' if value is None else f'{value:.2f}'}" for name, value in values.items()]
            how = f": {', '.join(scores)} ({duration(seconds)})"
        print(f"{number} {run.name}{how}; {self._rest()}", flush=True)
        log = run.folder / "log.txt"
        if outcome.startswith("failed") and log.is_file():  # or its folder could not be made
            lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
            print(*(f"    {line}" for line in [*lines[-LOG_LINES:], f"(last lines of {log})"]), sep="\n", flush=True)

    def _add_seconds(self, run: Run) -> dict | None:
        """Record the time of a finished run, and return its run.json; None if it is not finished."""
        record = read_run(run, self._study.scored)
        if record:
            self._seconds.setdefault(run.setting.name, []).append(sum(record["seconds"].values()))
        return record

    def _rest(self) -> str:
        """Return the number of remaining runs and their estimated time, from runs of the same setting or of all."""
        count, known = len(self._left), [seconds for own in self._seconds.values() for seconds in own]
        if not (count and known):
            return f"{count} left"
        total = sum(fmean(self._seconds.get(run.setting.name, known)) for run in self._left)
        return f"{count} left, about {duration(total / min(self._jobs, count))}"


def duration(seconds: float) -> str:
    """Format a duration, such as 12 s, 3 min 12 s or 2 h 5 min."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 1:
        return f"{rest} s"
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
