"""Interrupt every command that writes, and check what it leaves and whether the same command then works.

    python -m tools.interrupted_commands > table.md

Each command is stopped while it writes: by SIGTERM, by SIGKILL, by a full disk, by a read-only disk, and by a second
run with the same output. The disks are small tmpfs mounts, so these rows need root. Then two processes of `embed`,
`fit` and `eval` run together, one of them is killed, and the command runs again. Exits with 1 if a row is wrong.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tests import forked
from tests.conftest import ROOT, make_sentences, save_bert

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
# Runs a subcommand that waits at a call of a function until the file `go` exists. Chunks of 32 texts, no web server.
PAUSED = """
import importlib, os, sys, time
from pathlib import Path
from informin import program
from informin.models import embed_file
command, place, call, who = sys.argv[1:5]
del sys.argv[1:5]
main = importlib.import_module(f"informin.cli.{command}").main
embed_file.CHUNK = 32
if command == "search":
    from informin.cli import search
    search.require_gradio = search.build_page = search.wait = lambda *_: None
    search.serve = lambda *_: "the page"
module, _, name = place.rpartition(".")
try:
    owner = importlib.import_module(module)
except ImportError:
    owner = getattr(importlib.import_module(module.rpartition(".")[0]), module.rpartition(".")[2])
work, calls = getattr(owner, name), []
def pause(*args, **kwargs):
    calls.append(name)
    if len(calls) == int(call) and os.environ.get("RANK", who) == who:
        os.write(1, b"here\\n")  # the second process does not print
        while not Path("go").exists():
            time.sleep(0.01)
    return work(*args, **kwargs)
setattr(owner, name, pause)
program.run(lambda: main(sys.argv[1:]))
"""


@dataclass(frozen=True)
class Command:
    """A command, and a call while it works or writes.

    Attributes:
        words: The subcommand and its options. It runs next to the inputs and writes to `w`.
        place: Function at whose call it is stopped.
        call: Which call.
        resumes: Whether unfinished output is kept, and the same command continues.
        parts: Whether it writes several files one after the other, each of which is complete.
    """

    words: str
    place: str
    call: int = 1
    resumes: bool = False
    parts: bool = False

    @property
    def name(self) -> str:
        return self.words.split()[0]


SAVE_CHUNK = "informin.models.embedding_files.Progress.save"
COMMANDS = {
    "embed": Command("embed --model_name bert --pooler mean --train_file s.txt --output w/o.npy", SAVE_CHUNK, 2, True),
    "search --embeddings": Command(
        "search bert --pooler mean --train_file s.txt --embeddings w/o.npy", SAVE_CHUNK, 2, True
    ),
    "fit --model_name": Command(
        "fit --model_name st --train_file s.txt --output_dir w/o --documents smoothed --preset documents",
        "informin.jobs.fit_files.save_report",
    ),
    "fit --embeddings": Command("fit --embeddings v.npy --output_dir w/o", "informin.jobs.fit_files.save_report"),
    "compare --output_dir": Command(
        "compare v.npy --train_file s.txt --output_dir w/o", "informin.jobs.compare_files.write_page"
    ),
    "compare --write_texts": Command(
        "compare --train_file s.txt --write_texts w/o.jsonl", "informin.jobs.compare_files.save_text"
    ),
    "eval --output": Command(
        "eval --model_name bert --pooler mean --labels l.tsv --output w/o.json", "informin.evaluation.labels.clustering"
    ),
    "eval --report": Command("eval --report scores.json --output w/o", "informin.evaluation.result_tables.save_texts"),
    "export": Command("export adapted w/o", "informin.publishing.export.add_dense"),
    "report": Command("report w/fitted", "informin.report.page.render"),
    "analyze tsne": Command(
        "analyze tsne --model_name bert --pooler mean --train_file s.txt --output w/o", "informin.figures.plots.save"
    ),
    "study summary.json": Command("study w/summary.json", "informin.figures.run_plots.save", parts=True),
}
TOGETHER = ("embed", "fit --model_name", "eval --output")
SITUATIONS = ("SIGTERM", "SIGKILL", "full disk", "read-only disk", "second run")
RANDOM, SOURCE = re.compile(r"\.informin-[\w-]+"), re.compile(r"\[/\S+\.cc:\d+\] ")
DISK, FREE = 8 * 2**20, 4_096  # bytes: of the disk, and what is free if it is full


def save_inputs(folder: Path, outputs: bool = True) -> None:
    """Write the inputs of all commands to a folder; without `outputs`, those that other commands do not write."""
    from sentence_transformers import SentenceTransformer, models

    transformer = models.Transformer(str(save_bert(folder / "bert")))
    parts = [transformer, models.Pooling(transformer.get_embedding_dimension(), "mean")]
    SentenceTransformer(modules=parts, device="cpu").save(str(folder / "st"))
    texts = make_sentences(96)
    (folder / "s.txt").write_text("\n".join(texts) + "\n")
    rows = [f"{text}\t{'even' if i % 2 else 'odd'}" for i, text in enumerate(texts)]
    (folder / "l.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    np.save(folder / "v.npy", np.random.default_rng(0).normal(size=(96, 16)).astype(np.float32))
    if not outputs:
        return
    for words in (
        "fit --embeddings v.npy --output_dir fitted",
        "fit --model_name st --train_file s.txt --output_dir adapted --preset documents",
        "eval --model_name bert --pooler mean --labels l.tsv --output scores.json",
    ):
        made = start(folder, words)
        assert forked.run(made).returncode == 0
    shutil.copy(next((ROOT / "results" / "studies").glob("*/summary.json")), folder / "summary.json")


@contextmanager
def workplace(inputs: Path, command: Command, disk: bool = False) -> Iterator[Path]:
    """Yield a folder with the inputs and an empty folder `w`, which is a small disk if asked for."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path in inputs.iterdir():
            (folder / path.name).symlink_to(path)
        (folder / "w").mkdir()
        (folder / "tmp").mkdir()
        if disk:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", folder / "w"], check=True)
        try:
            if command.name == "report":
                shutil.copytree(inputs / "fitted", folder / "w" / "fitted")
                (folder / "w" / "fitted" / "report.html").unlink()
            if command.name == "study":
                shutil.copy(inputs / "summary.json", folder / "w" / "summary.json")
            yield folder
        finally:
            if disk:
                subprocess.run(["umount", folder / "w"], check=True)


def where(folder: Path, more: Mapping[str, str] | None = None) -> dict:
    """Return the directory and environment of a command."""
    own = {"PYTHONPATH": str(ROOT), "TMPDIR": str(folder / "tmp"), "HF_HOME": str(folder / "home")}
    return dict(cwd=folder, env=ENVIRONMENT | own | (more or {}))


def start(folder: Path, words: str, place: str = "informin.program.say", call: int = 0, **more: str) -> forked.Forked:
    """Start a command that waits at a place; by default, nowhere."""
    first, *others = words.split()
    return forked.python(PAUSED, [first, place, call, more.pop("who", "0"), *others], **where(folder, more))


def start_paused(folder: Path, command: Command) -> forked.Forked:
    """Start a command and return it when it waits at its place."""
    process = start(folder, command.words, command.place, command.call)
    wait_until_there(process)
    return process


def wait_until_there(process: forked.Forked) -> None:
    while (line := process.stdout.readline()) != "here\n":
        if not line:
            raise RuntimeError(process.stderr.read())


def contents(folder: Path) -> dict[str, int]:
    """Return what is in the output folder and the system's temporary folder: the number of files by top-level name."""
    tops = [path for path in (*(folder / "w").iterdir(), *(folder / "tmp").iterdir()) if path.name != "filler"]
    return {path.name: sum(p.is_file() for p in path.rglob("*")) if path.is_dir() else 1 for path in sorted(tops)}


def shown(found: Mapping[str, int], before: Mapping[str, int]) -> str:
    """Return the new files and folders as text."""
    new = [f"{name}/ ({count})" if count > 1 else name for name, count in found.items() if before.get(name) != count]
    return RANDOM.sub(".informin-*", ", ".join(new)) or "nothing"


def interrupted(folder: Path, command: Command, situation: str) -> tuple[int, str]:
    """Run a command in a situation, and return its exit code and last line of errors."""
    if situation in ("SIGTERM", "SIGKILL"):
        process = start_paused(folder, command)
        process.send_signal(getattr(signal, situation))
        said = process.communicate()[1]
        return process.returncode, last_line(said)
    if situation == "second run":
        process = start_paused(folder, command)
        second = forked.run(start(folder, command.words))
        (folder / "go").touch()
        said = process.communicate()[1]
        if process.returncode:
            raise RuntimeError(said)
        return second.returncode, last_line(second.stderr)
    if situation == "full disk":
        usage = shutil.disk_usage(folder / "w")
        (folder / "w" / "filler").write_bytes(bytes(usage.free - FREE))
    else:
        subprocess.run(["mount", "-o", "remount,ro", folder / "w"], check=True)
    done = forked.run(start(folder, command.words))
    return done.returncode, last_line(done.stderr)


def last_line(said: str) -> str:
    """Return the last line; a traceback is marked."""
    lines = [line for line in said.splitlines() if line.strip()]
    return ("TRACEBACK " if "Traceback" in said else "") + (lines[-1] if lines else "")


def without_paths(line: str, folder: Path) -> str:
    """Return a line for the table: without folders of this machine, random names and places in source code."""
    for path in (folder, ROOT):
        line = line.replace(f"{path}/", "")
    return RANDOM.sub(".informin-*", SOURCE.sub("", line)).replace("|", "/")


def again(folder: Path, command: Command, situation: str) -> int | str:
    """Undo the situation, run the same command, and return its exit code."""
    if situation == "second run":
        return "not needed"
    if situation == "full disk":
        (folder / "w" / "filler").unlink()
    if situation == "read-only disk":
        subprocess.run(["mount", "-o", "remount,rw", folder / "w"], check=True)
    return forked.run(start(folder, command.words)).returncode


def row(inputs: Path, name: str, situation: str, complete: Mapping[str, int]) -> tuple[list[str], list[str]]:
    """Return a row of the table, and what is wrong with it.

    Args:
        complete: What an undisturbed run leaves.
    """
    command = COMMANDS[name]
    with workplace(inputs, command, disk="disk" in situation) as folder:
        before = contents(folder)
        code, line = interrupted(folder, command, situation)
        left = contents(folder)
        second = again(folder, command, situation)
        end = contents(folder)
    killed = situation == "SIGKILL"
    expected = {"SIGTERM": 128 + signal.SIGTERM, "SIGKILL": -signal.SIGKILL}.get(situation, 2)
    clean = {name: count for name, count in left.items() if not (command.resumes and name.endswith(".embedding"))}
    # Whatever is written last is written at once, so a signal or an error leaves nothing, or all of it.
    wrong = {
        f"exit code {code}": code == expected or (situation == "second run" and code == 0),
        "no error in one line": killed or code == 0 or (line.startswith(("error: ", "Interrupted")) and line != ""),
        f"left {clean}": killed or command.parts or situation == "second run" or clean == before,
        f"again: {second}": second in (0, "not needed"),
        f"at the end {end}": end == complete,
    }
    cells = [name, situation, str(code), shown(left, before), str(second), without_paths(line, folder)]
    return cells, [what for what, fine in wrong.items() if not fine]


def undisturbed(inputs: Path, command: Command) -> dict[str, int]:
    """Return what a command leaves without an interruption."""
    with workplace(inputs, command) as folder:
        done = forked.run(start(folder, command.words))
        if done.returncode:
            raise RuntimeError(done.stderr)
        return contents(folder)


def output_of(folder: Path, name: str) -> np.ndarray:
    """Return the numbers that a command with several processes writes."""
    if name == "embed":
        return np.load(folder / "w" / "o.npy")
    if name == "eval --output":
        measures = json.loads((folder / "w" / "o.json").read_text())["tasks"]["l"]["measures"]
        return np.array([measures[key] for key in sorted(measures)])
    return np.load(folder / "w" / "o" / "documents.npy")


def start_two(folder: Path, command: Command, who: int | None) -> list[forked.Forked]:
    """Start a command as two processes, of which `who` waits at its place."""
    first, *others = command.words.split()
    arguments = [first, command.place, str(command.call), str(who), *others, "--device=cpu"]
    with_paths = where(folder, {"ACCELERATE_USE_CPU": "true"})
    return forked.group(f"import os; os.chdir({str(folder)!r})\n{PAUSED}", [arguments] * 2, with_paths["env"])


def one_killed(inputs: Path, name: str, killed: int) -> tuple[list[str], list[str]]:
    """Kill one of two processes, then run both again; return a row of the table and what is wrong with it."""
    command = COMMANDS[name]
    # A place where both processes still work. Each has one or two chunks of texts.
    place = "informin.jobs.fit.chosen_adapter" if name == "fit --model_name" else command.place
    command = replace(command, place=place, call=1)
    with workplace(inputs, command) as folder:
        forked.run(start(folder, command.words))
        alone = output_of(folder, name)
    with workplace(inputs, command) as folder:
        pair = start_two(folder, command, killed)
        wait_until_there(pair[killed])
        pair[killed].kill()
        pair[killed].communicate()
        said = pair[1 - killed].communicate(timeout=120)[1]
        code, line, left = pair[1 - killed].returncode, last_line(said), contents(folder)
        both = [forked.run(process) for process in start_two(folder, command, None)]
        codes = [done.returncode for done in both]
        same = not any(codes) and np.allclose(output_of(folder, name), alone, atol=1e-5)
    wrong = {
        f"exit code {code}": code == 1,
        "no error in one line": line.startswith(("error: ", "Another process")),
        f"again: {codes}": codes == [0, 0],
        "other numbers than one process": bool(same),
    }
    cells = [name, f"process {killed} killed", str(code), shown(left, {}), str(codes[0]), without_paths(line, folder)]
    return cells, [what for what, fine in wrong.items() if not fine]


HEADER = ("command", "interrupted by", "exit code", "left", "same command again", "last line")
TITLE = """# Interrupted commands

Each command is stopped while it writes. Then the same command runs again. "Left" lists new files and folders, with the
number of files in a folder. `.informin-*` and locks of a killed process are removed by the next command that writes to
the same folder. "second run": while the first is stopped, the same command starts a second time. The exit code and the
last line are those of the second; the first then ends with 0. The last rows are two processes of `accelerate launch`,
of which one is killed. They show the other process.
"""


def main() -> int:
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    print(TITLE)
    print(f"| {' | '.join(HEADER)} |\n|{' --- |' * len(HEADER)}")
    failures = 0

    def show(cells: list[str], wrong: list[str]) -> None:
        nonlocal failures
        failures += bool(wrong)
        print(f"| {' | '.join(cells)} |", flush=True)
        if wrong:
            print(f"{cells[0]}, {cells[1]}: WRONG: {'; '.join(wrong)}", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory() as inputs:
        save_inputs(Path(inputs))
        for name, command in COMMANDS.items():
            complete = undisturbed(Path(inputs), command)
            for situation in SITUATIONS if os.geteuid() == 0 else [one for one in SITUATIONS if "disk" not in one]:
                show(*row(Path(inputs), name, situation, complete))
        for name in TOGETHER:
            for killed in (0, 1):
                show(*one_killed(Path(inputs), name, killed))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
