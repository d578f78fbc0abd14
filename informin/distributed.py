"""Rank, world size, and collective operations for losses and decisions that all processes share."""

from functools import lru_cache

import torch
import torch.distributed as dist
from torch import Tensor


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
    if world_size() > 1:
        dist.all_reduce(x)
    return x


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
