"""Fuzz input files: each mutated file must lead to correct work or to a one-line error.

    python -m tools.fuzz_files [--mutations 500] [--seed 1] [--only KIND ...]

Prints the outcomes for each kind of file, and the first traceback of each failure. Cases work on copies of a folder, in
separate processes with limits of time and memory. The kinds share all cores.
"""

import argparse
import gc
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path

from informin.errors import InforMinError
from informin.files import write_manifest
from tools.fuzz_hostile import CANARY
from tools.fuzz_kinds import Kind, build
from tools.fuzz_mutations import mutated

SECONDS = 20  # time limit of a case, for a busy machine
BYTES = 16 * 2**30  # limit of address space; torch needs several GiB
CORRECT, REFUSED, TRACEBACK, HANG, CRASH, LEFT, RAN = OUTCOMES = (
    *("correct", "one-line error", "traceback", "hang", "crash", "leftover files", "code ran"),
)
TEMPORARY = "temporary"  # the folder of a case's temporary files


def fuzz(kind: Kind, name: str, base: Path, mutations: int, seed: int) -> Iterator[tuple[str, str, bytes]]:
    """Yield outcome, message and bytes of each case. The unchanged file is tried first and must work."""
    original = (base / kind.folder / kind.file).read_bytes()
    [(outcome, message)] = try_cases(base, kind, [original])
    if outcome != CORRECT:
        raise RuntimeError(f"{name}, unchanged: {outcome} {message}")
    source = random.Random(f"{seed} {name}")
    files = [mutated(original, kind.form, source) for _ in range(mutations)]
    for start in range(0, mutations, kind.together):
        some = files[start : start + kind.together]
        yield from ((*ending, data) for ending, data in zip(try_cases(base, kind, some), some))


def try_cases(base: Path, kind: Kind, files: Sequence[bytes]) -> list[tuple[str, str]]:
    """Return the outcome of reading each of several mutated files, and its message."""
    with tempfile.TemporaryDirectory() as folder:
        cases = [_prepared(base, kind, data, Path(folder, str(i))) for i, data in enumerate(files)]
        before = [_listing(case) for case in cases]
        endings: list[tuple[str, str]] = []
        while len(endings) < len(cases):
            endings += _in_child(kind.read, cases[len(endings) :])
        return [_with_leftovers(*of_case) for of_case in zip(endings, cases, before)]


def _prepared(base: Path, kind: Kind, data: bytes, case: Path) -> Path:
    """Make the folder of a case."""
    target = shutil.copytree(base / kind.folder, case / kind.folder)
    (case / TEMPORARY).mkdir()
    (target / kind.file).write_bytes(data)
    if kind.sealed:
        write_manifest((target / kind.file).parent)
    return case


def _listing(case: Path) -> set[str]:
    return {str(path.relative_to(case)) for path in case.rglob("*") if path.is_file()}


def _with_leftovers(ending: tuple[str, str], case: Path, before: set[str]) -> tuple[str, str]:
    """Return the outcome, RAN if code ran, or LEFT for leftover files (after an error, any new file)."""
    if (case / CANARY).exists():
        return RAN, ending[1]
    changed = sorted(_listing(case) ^ before)
    if ending[0] == CORRECT:
        changed = [path for path in changed if path.startswith(TEMPORARY)]
    return (LEFT, f"{changed[:3]} after: {ending[1]}") if changed and ending[0] in (CORRECT, REFUSED) else ending


def _in_child(read: Callable[[], object], cases: Sequence[Path]) -> list[tuple[str, str]]:
    """Run cases in a child process, which ends at the time limit. Return the outcomes of the cases that it reached."""
    receiver, sender = os.pipe()
    gc.freeze()  # otherwise the child's garbage collector copies all memory of this process
    child = os.fork()
    if not child:
        _read_all(read, cases, sender)
        os._exit(0)
    os.close(sender)
    with os.fdopen(receiver, encoding="utf-8") as pipe:
        endings = [tuple(json.loads(line)) for line in pipe if line.endswith("\n")]
    _, status = os.waitpid(child, 0)
    if len(endings) == len(cases):
        return endings
    if not os.WIFSIGNALED(status):
        return [*endings, (CRASH, f"exit code {os.waitstatus_to_exitcode(status)}")]
    number = os.WTERMSIG(status)
    return [*endings, (HANG, "") if number == signal.SIGALRM else (CRASH, signal.Signals(number).name)]


def _read_all(read: Callable[[], object], cases: Sequence[Path], sender: int) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # also ends native code
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    with os.fdopen(sender, "w", encoding="utf-8") as pipe:
        for case in cases:
            os.chdir(case)
            tempfile.tempdir = str(case / TEMPORARY)
            signal.setitimer(signal.ITIMER_REAL, SECONDS)
            ending = _ending(read)
            signal.setitimer(signal.ITIMER_REAL, 0)
            print(json.dumps(ending), file=pipe, flush=True)


def _ending(read: Callable[[], object]) -> tuple[str, str]:
    try:
        read()
    except InforMinError as error:
        return (REFUSED, str(error)) if str(error).isprintable() else (TRACEBACK, f"several lines: {error}")
    except BaseException:  # the tokenizers library raises a PanicException
        return TRACEBACK, traceback.format_exc()
    return CORRECT, ""


def main() -> int:
    """Print the table. Return 1 if a case failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutations", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", help="kinds of files, by the beginning of their names")
    parser.add_argument("--keep", type=Path, help="folder for the first file of each failure")
    args = parser.parse_args()
    sys.stdout.reconfigure(errors="backslashreplace")  # messages can contain half of a surrogate pair
    start, total, failures = time.monotonic(), Counter(), {}
    print(f"| file | {' | '.join(OUTCOMES)} |\n|{' --- |' * (len(OUTCOMES) + 1)}")
    with tempfile.TemporaryDirectory() as folder:
        for name, counts, failed in _on_all_cores(Path(folder), args):
            total += counts
            failures |= failed
            print(_row(name, counts), flush=True)
    print(_row("all", total), f"\n\n{time.monotonic() - start:.0f} seconds")
    for number, ((name, outcome, *_), (message, data)) in enumerate(failures.items()):
        print(f"\n## {name}: {outcome}", *(line[:300] for line in message.splitlines()[-24:]), sep="\n")
        if args.keep:
            args.keep.mkdir(parents=True, exist_ok=True)
            (args.keep / f"{number}-{name}").write_bytes(data)
    return 1 if failures else 0


def _on_all_cores(folder: Path, args: argparse.Namespace) -> Iterator[tuple[str, Counter, dict]]:
    """Fuzz each kind of file, one per core at a time. Yield name, counts of outcomes, and failures in order."""
    kinds = build(folder)
    names = [name for name in kinds if not args.only or name.startswith(tuple(args.only))]
    global _count  # forked workers inherit it: the kinds hold functions that cannot be pickled

    def _count(name: str) -> tuple[str, Counter, dict]:
        counts, failed = Counter(), {}
        for outcome, message, data in fuzz(kinds[name], name, folder, args.mutations, args.seed):
            counts[outcome] += 1
            if outcome not in (CORRECT, REFUSED):
                failed.setdefault((name, outcome, *_place(message)), (message, data))
        return name, counts, failed

    with get_context("fork").Pool(len(os.sched_getaffinity(0))) as pool:
        yield from pool.imap(_call, names, chunksize=1)


def _call(name: str) -> tuple[str, Counter, dict]:
    return _count(name)


def _row(name: str, counts: Counter) -> str:
    return f"| {name} | {' | '.join(str(counts[outcome]) for outcome in OUTCOMES)} |"


def _place(message: str) -> tuple[str, ...]:
    """Return a key for a failure: the last two frames of a traceback, and the beginning of its last line."""
    lines = message.strip().splitlines() or [""]
    places = [line for line in lines if line.startswith("  File")]
    return (*places[-2:], lines[-1][:40])


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main())
