"""A heartbeat between processes: if one is lost, the others exit with an error message.

A process that dies closes its connections, and the collectives of the others fail at once. A machine that loses
power or network, or is suspended, closes nothing. The others would wait for `ddp_timeout`, half an hour by default.
"""

import os
import socket
import threading
import time
from contextlib import suppress
from datetime import timedelta

import torch
import torch.distributed as dist

from informin.distributed import rank, world_size
from informin.errors import InforMinError, LostProcessError, error_line
from informin.temporary import remove_own
from informin.training.checkpoints import complete_checkpoints, resumable_checkpoints

LIBRARIES = ("gloo", "NCCL")  # which occur in the error messages of collectives
DONE = b"done"  # last beat of a process that has finished


def lost(what: str, output_dir: str | None, again: str = "") -> LostProcessError:
    """Return the error to raise if another process is lost.

    Args:
        what: What happened.
        output_dir: Output folder of a training run, to report its latest checkpoint; None outside of training.
        again: What to do outside of training.
    """
    if output_dir is None:
        return LostProcessError(f"{what}. {again}")
    saved = complete_checkpoints(output_dir)
    latest = f"The latest complete checkpoint is {saved[-1]}" if saved else "No checkpoint was saved"
    resume = " with `resume_from_checkpoint` last" if resumable_checkpoints(output_dir) else ""
    return LostProcessError(f"{what}. {latest}. Run the same command on all machines again{resume}.")


class Heartbeat:
    """Sends beats to the other processes and watches theirs within its `with` block.

    If another process has been silent for `patience` seconds, this one prints an error and exits with code 1, even
    while it waits for a collective. All processes must enter the block together. They may leave it at different
    times; the first process stays until the others have left. Nested blocks have no effect.

    Args:
        output_dir: Output folder of the run, to report its latest checkpoint; None outside of training.
        device: Device for collectives.
        every: Seconds between two beats.
        patience: Seconds without a beat after which a process counts as lost.
        again: What to do then, outside of training.

    Raises:
        LostProcessError: A collective in the block failed.
    """

    _running = False  # whether this process is in a block

    def __init__(
        self,
        output_dir: str | None,
        device: torch.device,
        every: float = 5.0,
        patience: float = 45.0,
        *,
        again: str = "",
    ):
        self.output_dir, self.device, self.every, self.patience, self.again = output_dir, device, every, patience, again
        self._left, self._over = threading.Event(), threading.Event()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> "Heartbeat":
        if world_size() > 1 and not Heartbeat._running:
            Heartbeat._running = True
            host, wait, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), timedelta(seconds=self.patience / 2), [0]
            if rank() == 0:
                self._server = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=wait)
                port = [self._server.port]
            dist.broadcast_object_list(port, device=self.device)
            self._store = dist.TCPStore(host, port[0], is_master=False, timeout=wait)
            self._heard = {other: (b"", time.monotonic()) for other in range(world_size())}
            self._threads = [threading.Thread(target=work, daemon=True) for work in (self._beat, self._watch)]
            for thread in self._threads:
                thread.start()
        return self

    def __exit__(self, kind, error, _) -> None:
        if self._threads:
            Heartbeat._running = False
            if kind is None:
                self._left.set()
                self._threads[0].join()
            self._over.set()
        if world_size() == 1 or not isinstance(error, RuntimeError) or isinstance(error, InforMinError):
            return
        if isinstance(error, dist.DistError) or any(library in str(error) for library in LIBRARIES):
            raise lost(f"Another process does not answer ({error_line(error)})", self.output_dir, self.again) from error

    def _beat(self) -> None:
        """Exchange beats until this process leaves the block. Calls to a lost first process never return."""
        beats = 0
        try:
            while not self._left.wait(self.every) and not self._over.is_set():
                beats += 1
                self._exchange(str(beats).encode())
            if not self._over.is_set():
                self._exchange(DONE)
            while rank() == 0 and not self._over.wait(0.05) and not all(map(self._done, self._heard)):
                self._exchange(DONE)  # which the other processes query
        except RuntimeError as error:
            self._end(f"Process 0 of {world_size()} does not answer ({error_line(error)})")

    def _exchange(self, beat: bytes) -> None:
        self._store.set(str(rank()), f"{socket.gethostname()} {beat.decode()}")
        for other, (last, _) in list(self._heard.items()):
            if self._store.check([str(other)]) and (new := self._store.get(str(other))) != last:
                self._heard[other] = (new, time.monotonic())

    def _done(self, other: int) -> bool:
        return self._heard[other][0].endswith(DONE)

    def _watch(self) -> None:
        before = time.monotonic()
        while not self._over.wait(self.every):
            now = time.monotonic()
            if now - before > self.every + self.patience / 2:  # suspended, perhaps with the others
                self._heard = {other: (last, now) for other, (last, _) in self._heard.items()}
            before = now
            late = [other for other, (_, when) in self._heard.items() if now - when > self.patience]
            silent = [other for other in late if not self._done(other)]
            if silent:
                # If the first process is silent, no process can be heard, not even this one.
                last, _ = self._heard[silent[0]]
                host = f" on {last.decode().split()[0]}" if last else ""
                name = f"Process {silent[0]} of {world_size()}{host}"
                self._end(f"{name} has been silent for {self.patience:g} s: it hangs, or its machine is unreachable")

    def _end(self, what: str) -> None:
        if not self._over.is_set():
            with suppress(OSError):  # stderr is closed
                os.write(2, f"error: {lost(what, self.output_dir, self.again)}\n".encode())
            remove_own()
            os._exit(LostProcessError.exit_code)
