"""Child processes for tests, forked from a server that has already imported the package.

Importing torch, transformers and datasets takes seconds of CPU time, which each `python run_unsup.py` spends again.
Start a real interpreter only if its startup is what a test is about. The server is a fork of the process of pytest.
"""

import logging
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for
from pathlib import Path
from unittest.mock import patch

import torch
from torch.distributed import TCPStore
from transformers import AttentionInterface

ROOT = Path(__file__).parents[2]
PACKAGE = ("informin", "modeling_informin", "trainer_informin")
LIMIT = 500  # seconds: a process that runs longer hangs, however busy the machine is
_execute = subprocess.Popen._execute_child
FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload(["tests.support.preloaded"])
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))  # for the server


def start_server() -> None:
    """Fork this process as the server. Otherwise a new interpreter would import everything again.

    Call it before the first test: later, there may be threads, and handlers of pytest.
    """
    resource_tracker.ensure_running()
    with patch.object(multiprocessing.util, "spawnv_passfds", _fork_as_server):
        forkserver.ensure_running()


def _fork_as_server(executable: bytes, words: Sequence[str], passed: Sequence[int]) -> int:
    """Run `python -c CODE` in a fork of this process. Arguments follow the code in Python 3.14."""
    pid = os.fork()
    if not pid:
        try:
            _leave_pytest({0, 1, 2, *passed})
            exec(words[words.index("-c") + 1], {})
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(1)
    return pid


def _leave_pytest(kept: set[int]) -> None:
    """Write and log to the streams of the system, and keep only some open files, as a new interpreter would."""
    _open_streams()
    logging.root.handlers.clear()
    sys.unraisablehook, threading.excepthook = sys.__unraisablehook__, threading.__excepthook__
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in {*map(int, os.listdir("/proc/self/fd"))} - kept - {nothing}:
        with suppress(OSError):  # the folder was listed through one that is closed again
            os.fstat(number)
            os.dup2(nothing, number)  # objects that hold the file may close it later


def _open_streams() -> None:
    """Open the streams of Python anew, for print and loggers."""
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)
    sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    for logger in logging.root.manager.loggerDict.values():
        for handler in getattr(logger, "handlers", ()):
            if type(handler) is logging.StreamHandler:
                handler.setStream(sys.stderr)


class Forked:
    """A forked process with the part of `subprocess.Popen`'s interface that tests use.

    Args:
        work: function to call with `args`.
        cwd: directory to work in.
        env: environment variables.
        log: file for stdout and stderr, instead of pipes.
    """

    def __init__(
        self,
        work: Callable,
        *args: object,
        cwd: Path = ROOT,
        env: Mapping[str, str] = os.environ,
        log: Path | None = None,
    ):
        pipes = [FORKSERVER.Pipe(duplex=False) for _ in range(2)]
        setup = (cwd, dict(env), [write for _, write in pipes], log)
        self._process = FORKSERVER.Process(target=_run, args=(setup, work, args))
        self._process.start()
        for _, write in pipes:
            write.close()
        self.stdout, self.stderr = (os.fdopen(os.dup(read.fileno()), "r", errors="replace") for read, _ in pipes)
        for read, _ in pipes:
            read.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    poll = returncode.fget

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code.

        Raises:
            subprocess.TimeoutExpired: the process runs longer than `timeout` seconds.
        """
        if not wait_for([self._process.sentinel], timeout):
            raise subprocess.TimeoutExpired(str(self._process), timeout)
        self._process.join()
        return self.returncode

    def communicate(self, timeout: float = LIMIT) -> tuple[str, str]:
        """Wait for the end and return the rest of stdout and of stderr."""
        with ThreadPoolExecutor(2) as readers:
            texts = [readers.submit(stream.read) for stream in (self.stdout, self.stderr)]
            try:
                self.wait(timeout)
            except BaseException:
                self.kill()  # ends the readers
                raise
            return texts[0].result(), texts[1].result()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(setup: tuple[Path, dict[str, str], list[Connection], Path | None], work: Callable, args: tuple) -> None:
    """In the new process: set directory, environment and streams as a new program would find them, and work."""
    folder, environment, pipes, log = setup
    for number, pipe in enumerate(pipes, start=1):
        os.dup2(pipe.fileno(), number)
        pipe.close()
    if log:
        file = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(file, 1)
        os.dup2(file, 2)
    _open_streams()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    tempfile.tempdir = None
    work(*args)


def script(name: str, arguments: list[str], before: str | None = None, **how) -> Forked:
    """Start a script at the root, such as "run_unsup.py"; `before` is code to execute first."""
    return Forked(_run_script, name, list(map(str, arguments)), before, **how)


def module(name: str, arguments: list[str], before: str | None = None, **how) -> Forked:
    """Start a module as `python -m NAME ARGUMENTS` would; `before` is code to execute first."""
    return Forked(_run_module, name, list(map(str, arguments)), before, **how)


def _run_module(name: str, arguments: list[str], before: str | None = None) -> None:
    sys.argv = [name, *arguments]
    exec(before or "", {})
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _run_script(name: str, arguments: list[str], before: str | None) -> None:
    sys.argv = [name, *arguments]
    exec(before or "", {})
    runpy.run_path(str(ROOT / name), run_name="__main__")


def python(code: str, arguments: list[str], **how) -> Forked:
    """Start code as `python -c CODE ARGUMENTS` would."""
    return Forked(_run_code, code, list(map(str, arguments)), **how)


def _run_code(code: str, arguments: list[str]) -> None:
    sys.argv = ["-c", *arguments]
    exec(code, {"__name__": "__main__"})


def fork_children() -> None:
    """From now on, `subprocess.Popen` forks this process for `sys.executable` with a script or a module.

    Streams, environment, session, signals and exit code of the child are as usual.
    """
    subprocess.Popen._execute_child = _fork_or_execute


def _fork_or_execute(popen, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest) -> None:
    words = [os.fspath(word) for word in args] if isinstance(args, (list, tuple)) else []
    if words[:1] != [sys.executable] or "-c" in words[:3]:
        return _execute(popen, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest)
    streams, new_session = rest[3:9], rest[14]
    sys.stdout.flush()
    sys.stderr.flush()
    popen.pid = os.fork()
    if not popen.pid:
        code = 1
        try:
            for number, stream in enumerate((streams[0], streams[3], streams[5])):
                if stream != -1:
                    os.dup2(stream, number)
            for number in {*map(int, os.listdir("/proc/self/fd"))} - {0, 1, 2, *pass_fds}:
                with suppress(OSError):
                    os.close(number)
            if new_session:
                os.setsid()
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if callable(signal.getsignal(number)):
                    signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
            code = _exit_code([word for word in words[1:] if word != "-u"], cwd, env)
        finally:
            os._exit(code)
    popen._child_created = True
    popen._close_pipe_fds(*streams)


def _exit_code(words: list[str], cwd: Path | None, env: Mapping[str, str] | None) -> int:
    """Run `python WORDS` in this process, and return the exit code as the interpreter would."""
    if cwd:
        os.chdir(cwd)
    if env is not None:
        os.environ.clear()
        os.environ.update(env)
    sys.stdout.reconfigure(line_buffering=True)
    try:
        if words[0] == "-m":
            _run_module(words[1], words[2:])
        else:
            sys.argv = words
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
    return 0


# Code to execute first in a program whose own Python processes are to be forked from it.
CHILDREN_ARE_FORKS = "from tests.support import forked; forked.fork_children()"


def forget_this_package() -> None:
    """Forget what the server imported of this package, as if the process had not imported it yet."""
    functions = AttentionInterface._global_mapping
    for name in [name for name in functions if name.startswith("informin")]:
        del functions[name]
    for name in [name for name in sys.modules if name.partition(".")[0] in PACKAGE]:
        del sys.modules[name]


def group(code: str, arguments_of: Sequence[list[str]], env: Mapping[str, str] = os.environ) -> list[Forked]:
    """Start code once per rank, with the variables that torchrun sets.

    As under torchrun, the processes meet in a store of this process. It listens on a port that the system chooses: one
    that is looked up first can be taken by another program before rank 0 listens on it.
    """
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    count = str(len(arguments_of))
    common = dict(env) | dict(WORLD_SIZE=count, LOCAL_WORLD_SIZE=count)
    common |= dict(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(store.port), TORCHELASTIC_USE_AGENT_STORE="True")
    started = [
        python(code, arguments, env=common | dict(RANK=str(rank), LOCAL_RANK=str(rank)))
        for rank, arguments in enumerate(arguments_of)
    ]
    for process in started:
        process.store = store  # it closes when nothing refers to it
    return started


def run(started: Forked, timeout: float = LIMIT) -> subprocess.CompletedProcess:
    """Wait for a process and return its exit code and output, as `subprocess.run` does."""
    out, err = started.communicate(timeout)
    return subprocess.CompletedProcess(started.pid, started.returncode, out, err)


def ranks(work: Callable, args: tuple, count: int) -> None:
    """Call `work(rank, *args)` in several processes and wait for them; an exception in one is raised here."""
    torch.multiprocessing.start_processes(work, args, count, start_method="forkserver")
