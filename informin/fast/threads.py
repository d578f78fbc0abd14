"""Threads on a CPU that process separate batches, or, in training, separate parts of a packed batch.

By default, PyTorch splits each operation across threads and synchronizes them afterward. Workers that
process separate batches do not synchronize, and the activations of a batch stay in the cache of one core. In training,
workers synchronize twice per step: after the forward pass of the layers, and after their backward pass.
Each part has a gradient of its own for every weight, so there are at most `MOST_PARTS`, and a worker can have several
threads.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from threading import Lock, Thread
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from informin.fast.masks import NumpyDropout

Item = TypeVar("Item")
# With fewer batches per core, some cores would be idle for too long at the end.
BATCHES_PER_CORE = 4
Result = TypeVar("Result")
MOST_PARTS = 4
_setting = Lock()  # of the default number of threads
_retained = ContextVar("retained", default=False)  # the graphs of the parts, after a backward pass


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

    def run_all(function: Callable[[Item], Result], batches: Iterable[Item]) -> Iterable[Result]:
        def run(batch: Item) -> Result:
            with torch.inference_mode(), torch.autocast("cpu", dtype, enabled):  # thread-local
                return function(batch)

        return pool.map(run, batches)

    pool = ThreadPoolExecutor(cores, initializer=use_threads, initargs=(1,))
    try:
        yield run_all
    finally:
        pool.shutdown(cancel_futures=True)


def use_threads(number: int) -> None:
    """Set how many threads an operation in this thread uses.

    PyTorch also makes it the default of threads that start later. Another thread, which sets nothing but its own number
    and the default, therefore sets the default again.
    """
    with _setting:
        default = torch.get_num_threads()  # the first call in a thread resets the thread's setting to the default
        torch.set_num_threads(number)
        other = Thread(target=torch.set_num_threads, args=(default,))
        other.start()
        other.join()


@contextmanager
def one_thread() -> Iterator[None]:
    """Let PyTorch compute small tensors on a CPU with one thread: waking the others takes up to a millisecond."""
    before = torch.get_num_threads()
    use_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def run_in_threads(
    call: Callable[[int, Tensor], tuple[Tensor, ...]], inputs: Sequence[Tensor], module: nn.Module, without: nn.Module
) -> list[tuple[Tensor, ...]]:
    """Return what a function returns for each part, computed in threads, each with its share of PyTorch's threads.

    Args:
        call: Called with the number of a part and its input, in a thread. It may use the weights of `module`.
        inputs: Input of each part.
        module: Module with the weights that the results depend on, beside the inputs.
        without: Part of the module that computed the inputs.
    """
    known = set(without.parameters())
    weights = [weight for weight in module.parameters() if weight.requires_grad and weight not in known]
    recorded = torch.is_grad_enabled() and (bool(weights) or any(x.requires_grad for x in inputs))
    outputs = _Parts.apply(call, len(inputs), recorded, module.training, *inputs, *weights)
    size = len(outputs) // len(inputs)
    return [outputs[start : start + size] for start in range(0, len(outputs), size)]


def number_of_parts(cores: int) -> int:
    """Return the largest number of parts that divides the number of cores."""
    return max(number for number in range(1, MOST_PARTS + 1) if cores % number == 0)


class _Parts(torch.autograd.Function):
    """A function of each part, in a thread. Each part has its own graph, from detached inputs."""

    @staticmethod
    def forward(ctx: Any, call, number: int, recorded: bool, training: bool, *tensors: Tensor) -> tuple[Tensor, ...]:
        dtype, autocast = torch.get_autocast_dtype("cpu"), torch.is_autocast_enabled("cpu")
        seed = int(torch.randint(2**62, ())) if training else 0

        def run(part: int, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
            x = x.detach().requires_grad_(recorded)
            with torch.set_grad_enabled(recorded), torch.autocast("cpu", dtype, autocast), NumpyDropout(seed + part):
                return x, call(part, x)

        graphs = _in_threads(run, range(number), tensors[:number])
        if recorded:
            ctx.graphs, ctx.weights = graphs, tensors[number:]
        return tuple(output.detach() for _, outputs in graphs for output in outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        graphs, retained = ctx.graphs, _retained.get()
        ctx.graphs = graphs if retained else None
        size = len(gradients) // len(graphs)

        def run(part: int, graph: tuple[Tensor, tuple[Tensor, ...]]) -> tuple[Tensor | None, ...]:
            x, outputs = graph
            own = gradients[part * size : (part + 1) * size]
            how = {"retain_graph": retained, "allow_unused": True}
            return torch.autograd.grad(outputs, [x, *ctx.weights], own, **how)

        found = _in_threads(run, range(len(graphs)), graphs)
        sums = [_sum(column) for column in zip(*(weights for _, *weights in found))]
        return None, None, None, None, *(inputs for inputs, *_ in found), *sums


def _sum(gradients: Sequence[Tensor | None]) -> Tensor | None:
    """Return the sum of the gradients of a weight by the parts; None if it is unused."""
    used = [gradient for gradient in gradients if gradient is not None]
    for other in used[1:]:
        used[0].add_(other)
    return used[0] if used else None


@contextmanager
def retained_graphs() -> Iterator[None]:
    """Let backward passes keep the graphs of the parts, which `retain_graph` does not reach."""
    token = _retained.set(True)
    try:
        yield
    finally:
        _retained.reset(token)


@cache
def _worker(part: int, threads: int) -> ThreadPoolExecutor:
    """Return the thread of a part.

    It stays the same, because libraries below PyTorch keep buffers for each thread, and memory that a thread frees is
    reused by the same thread.
    """
    return ThreadPoolExecutor(1, f"part {part}", initializer=use_threads, initargs=(threads,))


def _in_threads(function: Callable[..., Result], *columns: Sequence) -> list[Result]:
    """Call a function for each row of columns, each in its own thread, and return the results in order."""
    cores = torch.get_num_threads()
    threads = cores // number_of_parts(cores)
    calls = [_worker(part, threads).submit(function, *row) for part, row in enumerate(zip(*columns, strict=True))]
    return [call.result() for call in calls]
