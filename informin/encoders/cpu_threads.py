"""Compute independent batches on a CPU in parallel: one Python thread per core, each with one thread of PyTorch.

PyTorch divides every operation among its threads, which wait for each other after each. Threads that work on different
batches never wait, and the caches of a core keep the activations of one batch.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Protocol, TypeVar

import torch

Batch = TypeVar("Batch")
Result = TypeVar("Result")
# With fewer batches per core, too many cores would be idle at the end.
BATCHES_PER_CORE = 4


class BatchMap(Protocol):
    """Calls a function for each batch and returns the results in order, like `map`."""

    def __call__(self, function: Callable[[Batch], Result], batches: Iterable[Batch], /) -> Iterable[Result]: ...


@contextmanager
def parallel_map(number: int) -> Iterator[BatchMap]:
    """Provide a `map` for batches that runs on as many cores as PyTorch has threads.

    Threads run in inference mode, with the caller's autocast. If the caller stops early, batches that have not started
    are dropped.

    Args:
        number: Number of batches. With fewer than `BATCHES_PER_CORE` per core, it is Python's own `map`.
    """
    cores = torch.get_num_threads()
    if cores == 1 or number < BATCHES_PER_CORE * cores:
        yield map
        return
    dtype, enabled = torch.get_autocast_dtype("cpu"), torch.is_autocast_enabled("cpu")

    def run_all(function: Callable[[Batch], Result], batches: Iterable[Batch]) -> Iterable[Result]:
        def run(batch: Batch) -> Result:
            with torch.inference_mode(), torch.autocast("cpu", dtype, enabled):  # both apply to one thread
                return function(batch)

        return pool.map(run, batches)

    pool = ThreadPoolExecutor(cores, initializer=_use_one_thread)
    try:
        yield run_all
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(cores)  # new threads would inherit the setting of the last thread that set it


def _use_one_thread() -> None:
    """Run PyTorch's operations in this Python thread alone."""
    torch.get_num_threads()  # its first call in a thread overwrites the thread's setting
    torch.set_num_threads(1)
