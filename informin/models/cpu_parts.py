"""Workers on a CPU that process separate batches, or, in training, separate parts of a packed batch.

By default, PyTorch splits each operation across threads and synchronizes them afterward. Workers that
process separate batches do not synchronize, and the activations of a batch stay in the cache of one core. In training,
workers synchronize twice per step: after the forward pass of the layers, and after their backward pass.
Each part has a gradient of its own for every weight, so there are at most `MOST_PARTS`, and a worker can have several
threads.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import dropout, scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from transformers import BertModel
from transformers.models.bert.modeling_bert import BertLayer

from informin.models.packing import Packed, packed_forward, run_layers

Batch = TypeVar("Batch")
# With fewer batches per core, some cores would be idle for too long at the end.
BATCHES_PER_CORE = 4
Result = TypeVar("Result")
MOST_PARTS = 4


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


def packed_forward_in_parts(
    encoder: BertModel, input_ids: Tensor, mask: Tensor, pooling: str, wanted: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Compute what `packed_forward` does, in parts of the batch, each with the same number of PyTorch threads.

    Without dropout, embeddings and gradients are those of `packed_forward`. With one thread, they are bit-equal.
    """
    return packed_forward(encoder, input_ids, mask, pooling, wanted, run_in_parts)


def run_in_parts(layers: list[BertLayer], hidden: Tensor, packed: Packed, first_alone: bool) -> Tensor:
    """Compute what `run_layers` does, in parts of the sentences, each with the same number of PyTorch threads."""
    parts = packed.split(number_of_parts(torch.get_num_threads()))
    if len(parts) == 1:
        return run_layers(layers, hidden, packed, first_alone)
    weights = [x for layer in layers for x in layer.parameters() if x.requires_grad]
    recorded = torch.is_grad_enabled() and (hidden.requires_grad or bool(weights))
    return _Parts.apply(layers, parts, first_alone, recorded, hidden, *weights)


def parts_in_training(args: Any) -> int:
    """Return the number of parts that a packed batch is trained in, which the dropout masks depend on.

    The parts keep their activations until the backward pass, and gradient caching discards them.

    Args:
        args: InforMinTrainingArguments.
    """
    is_split = args.device.type == "cpu" and not args.gradient_cache_chunk_size and args.mixed_precision != "fp16"
    return number_of_parts(torch.get_num_threads()) if is_split else 1


def number_of_parts(cores: int) -> int:
    """Return the largest number of parts that divides the number of cores."""
    return max(number for number in range(1, MOST_PARTS + 1) if cores % number == 0)


class _Parts(torch.autograd.Function):
    """The layers, applied to each part in a thread. Each part has its own graph, from detached inputs."""

    retained = False  # the graphs, after a backward pass

    @staticmethod
    def forward(ctx: Any, layers, parts, first_alone, recorded, hidden, *weights) -> Tensor:
        dtype, autocast = torch.get_autocast_dtype("cpu"), torch.is_autocast_enabled("cpu")
        seed = int(torch.randint(2**62, ())) if layers[0].training else 0

        def run(number: int, part: Packed, x: Tensor) -> tuple[Tensor, Tensor]:
            x = x.detach().requires_grad_(recorded)
            generator = torch.Generator().manual_seed(seed + number)
            with torch.set_grad_enabled(recorded), torch.autocast("cpu", dtype, autocast), OwnDropout(generator):
                return x, run_layers(layers, x, part, first_alone)

        rows = hidden.split([sum(number * length for number, length in part.runs) for part in parts])
        graphs = _in_threads(run, range(len(parts)), parts, rows)
        if recorded:
            ctx.graphs, ctx.weights = graphs, weights
        return torch.cat([output.detach() for _, output in graphs])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        graphs, retained = ctx.graphs, _Parts.retained
        ctx.graphs = graphs if retained else None

        def run(graph: tuple[Tensor, Tensor], part: Tensor) -> tuple[Tensor, ...]:
            x, output = graph
            return torch.autograd.grad(output, [x, *ctx.weights], part, retain_graph=retained)

        found = _in_threads(run, graphs, gradient.split([len(output) for _, output in graphs]))
        inputs, *weights = zip(*found)
        for first, *others in weights:
            for other in others:
                first.add_(other)
        return None, None, None, None, torch.cat(inputs), *(first for first, *_ in weights)


@contextmanager
def retained_graphs() -> Iterator[None]:
    """Let backward passes keep the graphs of the parts, which `retain_graph` does not reach."""
    _Parts.retained = True
    try:
        yield
    finally:
        _Parts.retained = False


class OwnDropout(TorchFunctionMode):
    """Draw the dropout masks of this thread from a generator of its own; threads share PyTorch's default generator."""

    def __init__(self, generator: torch.Generator):
        super().__init__()
        self.generator = generator

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is dropout:
            return self._dropout(*args, **kwargs)
        if func is scaled_dot_product_attention and kwargs["dropout_p"]:
            return self._attention(*args, **kwargs)
        return func(*args, **kwargs)

    def _dropout(self, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training or p == 0:
            return x
        return x * keep_mask(x, p, self.generator)

    def _attention(self, query: Tensor, key: Tensor, value: Tensor, dropout_p: float, scale: float) -> Tensor:
        weights = (query * scale @ key.transpose(-2, -1)).softmax(-1)
        return self._dropout(weights, dropout_p) @ value


def keep_mask(x: Tensor, rate: float, generator: torch.Generator) -> Tensor:
    """Return a random mask like x, 0 with probability `rate`, rounded to 1/65,536, and else what keeps the mean.

    With 16 random bits per number, this is three times as fast as `bernoulli_`.
    """
    kept = round((1 - rate) * 2**16)
    bits = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None, generator=generator)
    chosen = bits.view(torch.int16)[: x.numel()].view(x.shape) < kept - 2**15
    return chosen.to(x.dtype).mul_(2**16 / max(kept, 1))


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
    try:
        calls = [_worker(part, threads).submit(function, *row) for part, row in enumerate(zip(*columns, strict=True))]
        return [call.result() for call in calls]
    finally:
        torch.set_num_threads(cores)  # threads that have just started changed the default for new ones
