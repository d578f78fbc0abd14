"""Rank, world size, collective operations, and whole models from weights that FSDP shards across processes."""

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from informin.errors import UsageError, error_line

if TYPE_CHECKING:
    from transformers import TrainingArguments

T = TypeVar("T")


def world_size() -> int:
    """Return the number of processes; 1 without a process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Return the index of this process, from 0."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


class _Gather(torch.autograd.Function):
    """An all_gather that can be differentiated: its backward pass sums gradients and returns this process's rows."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        gathered = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(world_size())]
        dist.all_gather(gathered, x.contiguous())
        return torch.cat(gathered)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        gradient = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient)
        return gradient.chunk(world_size())[rank()]


def gather_with_gradient(x: Tensor) -> Tensor:
    """Gather rows (N, d) of all processes into (world_size * N, d), in rank order. N must be equal in all processes.

    The backward pass sums the gradient over processes, and each process gets its own rows. With local anchors and
    gathered candidates, the gradient after DDP's averaging equals that of one process with the whole batch. PyTorch's
    differentiable gather is deprecated, and its successor is private.
    """
    return _Gather.apply(x) if world_size() > 1 else x


def sum_over_processes(x: Tensor) -> Tensor:
    """Return the sum of a tensor over all processes, without gradient."""
    x = x.detach().clone()
    if world_size() > 1:  # the group of a run on GPUs takes no tensors on CPUs
        dist.all_reduce(x, group=_processors(dist.group.WORLD) if x.device.type == "cpu" else None)
    return x


def own_places(x: Tensor) -> Tensor:
    """Return the places (N,) of this process's rows (N, d) among those that `gather_with_gradient` returns."""
    return rank() * len(x) + torch.arange(len(x), device=x.device)


def part_of_mean(total: Tensor, number: Tensor) -> Tensor:
    """Return this process's part of the mean over the values of all processes.

    Processes have different numbers of values. The mean of the parts, which DDP computes of their gradients, is that of
    the joined batch.

    Args:
        total: Sum of the values of this process.
        number: Their number. If no process has any, the mean is 0.
    """
    return total * world_size() / sum_over_processes(number).clamp(min=1)


def any_process(condition: bool) -> bool:
    """Return whether the condition holds in at least one process, without waiting for work on the GPUs.

    All processes must call this function together.
    """
    if world_size() == 1:
        return condition
    value = torch.tensor(int(condition))
    dist.all_reduce(value, dist.ReduceOp.MAX, group=_processors(dist.group.WORLD))
    return bool(value)


@lru_cache(maxsize=1)
def _processors(world: dist.ProcessGroup) -> dist.ProcessGroup:
    """Return a process group of the same processes that communicates over CPUs. All processes must call it together."""
    return dist.new_group(backend="gloo")


def gather_objects(value: Any) -> list:
    """Return the picklable values of all processes, by rank. All processes must call this function together."""
    values = [value] * world_size()
    if world_size() > 1:
        dist.all_gather_object(values, value, group=_patient(dist.group.WORLD))
    return values


@contextmanager
def first_of_machine_first(args: "TrainingArguments") -> Iterator[None]:
    """Run a block in the first process of each machine, and then in the others, however long it takes.

    `main_process_first` of `TrainingArguments` waits in the default process group, whose timeout is half an hour. All
    processes must call this function together.
    """
    first = args.local_process_index == 0
    if world_size() > 1:
        _patient(dist.group.WORLD)  # create the group first: its creation has the default timeout
        if not first:
            gather_objects(None)
    try:
        yield
    finally:
        if first:
            gather_objects(None)


def gather_shares(share: np.ndarray, rows: int) -> np.ndarray:
    """Return all rows (rows, d) from the shares of the processes: process r has the rows r, r + world_size, ...

    All processes must call this function together.
    """
    count = world_size()
    if count == 1:
        return share
    padded = torch.zeros(-(-rows // count), share.shape[1], dtype=torch.from_numpy(share[:0]).dtype)
    padded[: len(share)] = torch.from_numpy(np.ascontiguousarray(share))
    gathered = [torch.empty_like(padded) for _ in range(count)]
    dist.all_gather(gathered, padded, group=_patient(dist.group.WORLD))
    return torch.stack(gathered, dim=1).flatten(0, 1)[:rows].numpy()


def on_first(work: Callable[[], T]) -> T:
    """Return in every process what a function returns in the first process, and raise the error that it raises there.

    All processes must call this function together. Only the first calls `work`, whose value must be picklable.

    Raises:
        UsageError: `work` raised an error. In the first process, its own error is raised.
    """
    problem: Exception | None = None
    value: Any = None
    if rank() == 0:
        try:
            value = work()
        except Exception as error:  # the other processes wait
            problem = error
    message, shared = gather_objects((problem and error_line(problem), value))[0]
    if problem:
        raise problem
    if message is not None:
        raise UsageError(message)
    return shared


@contextmanager
def first_only(context: AbstractContextManager) -> Iterator[None]:
    """Enter a context in the first process only. If that fails, every process raises the error."""
    with ExitStack() as stack:
        on_first(lambda: bool(stack.enter_context(context)))
        yield


@lru_cache(maxsize=1)
def _patient(world: dist.ProcessGroup) -> dist.ProcessGroup:
    """Return a process group on CPUs that waits for work of any length. All processes must call it together."""
    return dist.new_group(backend="gloo", timeout=timedelta(days=30))


def skeleton(model: Any) -> nn.Module:
    """Return a copy of a model without storage for its weights. Call it before FSDP wraps the model.

    It also leaves the embedding module out of the modules that FSDP wraps: accelerate 1.15 wraps the word embeddings
    in it a second time, which torch refuses.
    """
    names = getattr(model, "_no_split_modules", None) or []
    if any("Embeddings" in name for name in names):
        model._no_split_modules = type(names)(name for name in names if "Embeddings" not in name)
    weights = {
        id(weight): nn.Parameter(torch.empty_like(weight, device="meta"), weight.requires_grad)
        for weight in model.parameters()
    }
    return copy.deepcopy(model, dict(weights))


def with_weights(bones: nn.Module, state: dict[str, Tensor]) -> Any:
    """Return a `skeleton` with the weights of a full state dict. It shares them, and `bones` stays as it is."""
    whole = copy.deepcopy(bones)
    whole.load_state_dict(state, strict=False, assign=True)
    return whole


def to_device(x: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device. Copies from the CPU to a CUDA GPU do not wait for the GPU.

    Other copies do: on MPS, a copy that does not wait may read memory that was released (PyTorch issue 189690).
    """
    if device.type == "cuda" and x.device.type == "cpu":
        return x.pin_memory().to(device, non_blocking=True)
    return x.to(device)
