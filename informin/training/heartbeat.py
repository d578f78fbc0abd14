"""Several processes: the others end, with a word, when one is gone.

A process that dies closes its connections, and the collectives of the others fail at once. A machine that loses its
power or its network closes nothing: they would wait as long as `ddp_timeout` says, half an hour.
"""

import os
import socket
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from informin.distributed import rank, world_size
from informin.errors import LostProcessError, error_line
from informin.training.checkpoints import complete_checkpoints

LIBRARIES = ("gloo", "NCCL")  # named in the errors of collectives


def lost(what: str, output_dir: str) -> LostProcessError:
    """The error to raise where another process is gone."""
    saved = complete_checkpoints(output_dir)
    newest = f"The newest whole checkpoint is {saved[-1]}" if saved else "No checkpoint was saved"
    return LostProcessError(
        f"{what}. {newest}. Run the same command on all machines again"
        f"{', with `resume_from_checkpoint` last' if saved else ''}."
    )


def is_of_collective(error: RuntimeError) -> bool:
    """Whether an error says that another process did not answer."""
    return world_size() > 1 and (
        isinstance(error, dist.DistError) or any(library in str(error) for library in LIBRARIES)
    )


class Heartbeat:
    """Within its `with` block every process says now and then that it lives, and looks whether the others do.

    Where one has said nothing for long, this one prints so and ends with exit code 1, whatever it waits for.

    Args:
        output_dir: of the run, whose checkpoints are named.
        device: that collectives are on.
        every: seconds between two beats.
        patience: seconds without one after which a process is gone.
    """

    def __init__(self, output_dir: str, device: torch.device, every: float = 5.0, patience: float = 45.0):
        self.output_dir, self.device, self.every, self.patience = output_dir, device, every, patience
        self._over, self._threads = threading.Event(), []

    def __enter__(self) -> "Heartbeat":
        if world_size() > 1:
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

    def __exit__(self, kind, *_) -> None:
        self._over.set()
        if self._threads and kind is None:
            for thread in self._threads:
                thread.join()
            dist.barrier()  # until then the first has what the others ask

    def _beat(self) -> None:
        """Says that this process lives, and hears the others; a call to a first process that is silent never ends."""
        beats = 0
        while not self._over.wait(self.every):
            beats += 1
            try:
                self._store.set(str(rank()), f"{socket.gethostname()} {beats}")
                for other, (last, _) in list(self._heard.items()):
                    if self._store.check([str(other)]) and (new := self._store.get(str(other))) != last:
                        self._heard[other] = (new, time.monotonic())
            except RuntimeError as error:
                self._end(f"Process 0 of {world_size()} does not answer ({error_line(error)})")

    def _watch(self) -> None:
        before = time.monotonic()
        while not self._over.wait(self.every):
            now = time.monotonic()
            if now - before > self.every + self.patience / 2:  # it was itself suspended, and the others may have been
                self._heard = {other: (last, now) for other, (last, _) in self._heard.items()}
            before = now
            silent = [other for other, (_, when) in self._heard.items() if now - when > self.patience]
            if silent:
                # Where the first is silent, nothing is heard of any, this one included.
                last, _ = self._heard[silent[0]]
                host = f" on {last.decode().split()[0]}" if last else ""
                name = f"Process {silent[0]} of {world_size()}{host}"
                self._end(f"{name} has said nothing for {self.patience:g} s: it hangs, or its machine is gone")

    def _end(self, what: str) -> None:
        if not self._over.is_set():
            os.write(2, f"error: {lost(what, self.output_dir)}\n".encode())
            os._exit(LostProcessError.exit_code)
