"""Rank, world size, and the collectives that exact losses and agreement over several processes need."""

from functools import lru_cache

import torch
import torch.distributed as dist
from torch import Tensor


def world_size() -> int:
    """Number of processes; 1 when no process group is running."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """This process's place among them, from 0."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


class _Gather(torch.autograd.Function):
    """all_gather whose backward pass is its transpose: the sum over processes, each keeping its own rows."""

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
    """Stacks every process's (N, d) into (world_size * N, d), in rank order; N is the same everywhere.

    The backward pass sums the gradient over processes and hands each its own rows. A loss whose anchors stay local and
    whose candidates come from here then has, after DDP's averaging, the gradient of one process on the joined batch.
    torch's own differentiable gather is deprecated, and its successor is private.
    """
    return _Gather.apply(x) if world_size() > 1 else x


def sum_over_processes(x: Tensor) -> Tensor:
    """Sum of a tensor over all processes, without gradient."""
    x = x.detach().clone()
    if world_size() > 1:
        dist.all_reduce(x)
    return x


def any_process(says: bool) -> bool:
    """Whether one process says so, asked of all; does not wait for what their GPUs are at."""
    if world_size() == 1:
        return says
    answer = torch.tensor(int(says))
    dist.all_reduce(answer, dist.ReduceOp.MAX, group=_processors(dist.group.WORLD))
    return bool(answer)


@lru_cache(maxsize=1)
def _processors(world: dist.ProcessGroup) -> dist.ProcessGroup:
    """The same processes, connected without their accelerators. All are to ask for it together."""
    return dist.new_group(backend="gloo")
