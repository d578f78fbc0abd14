"""Replay the forward and backward pass of an encoder as CUDA graphs, without the cost of launching each kernel.

A graph has fixed shapes. Rows are therefore filled up to a multiple of `TOKENS`, and each size has its own pair of
graphs. The kernels are those of the encoder's own forward pass, and dropout differs between replays. Pooling, heads,
losses and the optimizer are not part of the graphs. For training on one GPU.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from transformers import PreTrainedModel

from informin.models.packing import Packed, packed_attention_of

TOKENS = 512
MOST_GRAPHS = 16  # more sizes of rows run without graphs
WARMUP = 3  # forward passes before a capture, in which libraries allocate their buffers


@dataclass
class Graph:
    """A captured forward and backward pass.

    Attributes:
        forward, backward: The graphs.
        row: Its tensors are the inputs of the forward pass.
        output: Its output, hidden states (1, T, d).
        gradient: Input of the backward pass, the gradient by the output.
        gradients: Its outputs, by weight; None for a weight without effect.
    """

    forward: torch.cuda.CUDAGraph
    backward: torch.cuda.CUDAGraph
    row: Packed
    output: Tensor
    gradient: Tensor
    gradients: tuple[Tensor | None, ...]


class GraphedEncoder:
    """Computes the hidden states of packed rows by replaying graphs, which are captured when a size first occurs.

    Attributes:
        encoder: The encoder in training.
        dtype: Data type of autocast; None without autocast.
    """

    def __init__(self, encoder: PreTrainedModel, dtype: torch.dtype | None):
        self.encoder, self.dtype = encoder, dtype
        self._weights = [weight for weight in encoder.parameters() if weight.requires_grad]
        self._graphs: dict[tuple[int, int], Graph] = {}

    def __call__(self, packed: Packed) -> Tensor:
        """Return the hidden states (1, T, d) of a row. Call it once in each step, before its backward pass."""
        size = packed.input_ids.shape[1], len(packed.ends)
        if size not in self._graphs:
            if len(self._graphs) == MOST_GRAPHS:
                return self._forward(packed)
            self._graphs[size] = self._captured(packed)
        inputs = packed.input_ids, packed.position_ids, packed.ends
        return _Replay.apply(self._graphs[size], *inputs, *self._weights)

    def _forward(self, row: Packed) -> Tensor:
        how: dict[str, Any] = {
            "dtype": self.dtype or torch.float32,
            "enabled": self.dtype is not None,
            "cache_enabled": False,
        }
        with torch.autocast("cuda", **how), packed_attention_of(self.encoder):
            return self.encoder(**row.features()).last_hidden_state

    def _captured(self, packed: Packed) -> Graph:
        """Return graphs for rows of this size. The random state stays as it was, so that a resumed run is the same."""
        tensors = {name: getattr(packed, name).clone() for name in ("input_ids", "position_ids", "ends")}
        row, device = replace(packed, **tensors), packed.input_ids.device
        random_state = torch.cuda.get_rng_state(device)
        stream, current = torch.cuda.Stream(device), torch.cuda.current_stream(device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            for _ in range(WARMUP):
                output = self._forward(row)
                torch.autograd.grad(output, self._weights, torch.zeros_like(output), allow_unused=True)
        current.wait_stream(stream)
        forward, backward, pool = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph(), self._pool()
        with torch.cuda.graph(forward, pool=pool):
            output = self._forward(row)
        gradient = torch.zeros_like(output)
        # retain_graph: the activations must not be overwritten, because the backward pass can be replayed twice.
        how: dict[str, Any] = {"retain_graph": True, "allow_unused": True}
        with torch.cuda.graph(backward, pool=forward.pool()):
            gradients = torch.autograd.grad(output, self._weights, gradient, **how)
        torch.cuda.set_rng_state(random_state, device)
        return Graph(forward, backward, row, output.detach(), gradient, gradients)

    def _pool(self) -> Any:
        """Return the memory that all graphs share: only one of them is in use at a time."""
        first = next(iter(self._graphs.values()), None)
        return None if first is None else first.forward.pool()


class _Replay(torch.autograd.Function):
    """Replays a graph. The weights are inputs, so that their gradients have a place in the graph of autograd."""

    @staticmethod
    def forward(ctx: Any, graph: Graph, input_ids: Tensor, position_ids: Tensor, ends: Tensor, *_: Tensor) -> Tensor:
        ctx.graph = graph
        graph.row.input_ids.copy_(input_ids)
        graph.row.position_ids.copy_(position_ids)
        graph.row.ends.copy_(ends)
        graph.forward.replay()
        return graph.output.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        graph = ctx.graph
        graph.gradient.copy_(gradient)
        graph.backward.replay()
        copies = [None if x is None else x.clone() for x in graph.gradients]  # the next replay overwrites them
        return None, None, None, None, *copies
