"""Process batches in parallel on a CPU, with one single-threaded PyTorch worker per core.

By default, PyTorch splits each operation across threads and synchronizes them afterward. Workers that process separate
batches do not synchronize, and the activations of a batch stay in the cache of one core.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

Batch = TypeVar("Batch")
Result = TypeVar("Result")
# With fewer batches per core, some cores would be idle for too long at the end.
BATCHES_PER_CORE = 4


@contextmanager
def parallel_map(number: int) -> Iterator[Callable[..., Iterable[Any]]]:
    """Provide a parallel `map` with one worker thread per PyTorch thread.

    Workers run in inference mode and use the caller's autocast settings. When the context exits, batches that have not
    started are canceled.

    Args:
        number: Number of batches. With fewer than `BATCHES_PER_CORE` batches per core, the built-in `map` is used.
    """
    cores = torch.get_num_threads()
    if cores == 1 or number < BATCHES_PER_CORE * cores:
        yield map
        return
    dtype, enabled = torch.get_autocast_dtype("cpu"), torch.is_autocast_enabled("cpu")

    def run_all(function: Callable[[Batch], Result], batches: Iterable[Batch]) -> Iterable[Result]:
        def run(batch: Batch) -> Result:
            with torch.inference_mode(), torch.autocast("cpu", dtype, enabled):  # thread-local
                return function(batch)

        return pool.map(run, batches)

    pool = ThreadPoolExecutor(cores, initializer=use_threads, initargs=(1,))
    try:
        yield run_all
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(cores)  # workers changed the default for new threads


def use_threads(number: int) -> None:
    """Set how many threads an operation in this thread uses."""
    torch.get_num_threads()  # the first call in a thread resets the thread's setting to the default
    torch.set_num_threads(number)
