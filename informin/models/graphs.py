"""Replay the forward and backward pass of an encoder as CUDA graphs, without the cost of launching each kernel.

A graph has fixed shapes. Packed rows are therefore filled up to a multiple of `TOKENS`, padded ones to the longest text
of any batch, and each size has its own pair of graphs. The kernels are those of the encoder's own forward pass, and
dropout differs between replays. Pooling, heads, losses and the optimizer are not part of the graphs. For training on
one GPU.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

TOKENS = 512
MOST_GRAPHS = 16  # more sizes of rows run without graphs
WARMUP = 3  # forward passes before a capture, in which libraries allocate their buffers
Inputs = dict[str, Tensor]
Encode = Callable[[Inputs], tuple[Tensor, ...]]


@dataclass
class Graph:
    """A captured forward and backward pass.

    Attributes:
        forward, backward: The graphs.
        inputs: Inputs of the forward pass.
        outputs: Its outputs: hidden states, and attention maps if they are kept.
        gradients_in: Inputs of the backward pass, the gradients by the outputs.
        gradients_out: Its outputs, by weight; None for a weight without effect.
    """

    forward: torch.cuda.CUDAGraph
    backward: torch.cuda.CUDAGraph
    inputs: Inputs
    outputs: tuple[Tensor, ...]
    gradients_in: tuple[Tensor, ...]
    gradients_out: tuple[Tensor | None, ...]


class GraphedEncoder:
    """Computes the outputs of an encoder by replaying graphs, which are captured when a size first occurs.

    Attributes:
        dtype: Data type of autocast; None without autocast.
    """

    def __init__(self, encoder: nn.Module, dtype: torch.dtype | None):
        self.dtype = dtype
        self._weights = [weight for weight in encoder.parameters() if weight.requires_grad]
        self._graphs: dict[tuple[torch.Size, ...], Graph] = {}

    def __call__(self, encode: Encode, inputs: Inputs) -> tuple[Tensor, ...]:
        """Return what a function of the encoder returns for some inputs, all of them tensors on the GPU.

        Call it once in each step, before its backward pass. Inputs of one shape must need the same kernels.
        """
        size = tuple(x.shape for x in inputs.values())
        if size not in self._graphs:
            if len(self._graphs) == MOST_GRAPHS:
                return self._run(encode, inputs)
            self._graphs[size] = self._captured(encode, inputs)
        return _Replay.apply(self._graphs[size], len(inputs), *inputs.values(), *self._weights)

    def _run(self, encode: Encode, inputs: Inputs) -> tuple[Tensor, ...]:
        how: dict[str, Any] = {
            "dtype": self.dtype or torch.float32,
            "enabled": self.dtype is not None,
            "cache_enabled": False,
        }
        with torch.autocast("cuda", **how):
            return encode(inputs)

    def _captured(self, encode: Encode, inputs: Inputs) -> Graph:
        """Return graphs for inputs of these shapes. The random state stays as it was: a resumed run is the same."""
        own = {name: x.clone() for name, x in inputs.items()}
        device = next(iter(own.values())).device
        random_state = torch.cuda.get_rng_state(device)
        stream, current = torch.cuda.Stream(device), torch.cuda.current_stream(device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            for _ in range(WARMUP):
                outputs = self._run(encode, own)
                zeros = [torch.zeros_like(x) for x in outputs]
                torch.autograd.grad(outputs, self._weights, zeros, allow_unused=True)
            del outputs
        current.wait_stream(stream)
        forward, backward, pool = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph(), self._pool()
        with torch.cuda.graph(forward, pool=pool):
            outputs = self._run(encode, own)
        gradients_in = tuple(torch.zeros_like(x) for x in outputs)
        # retain_graph: the activations must not be overwritten, because the backward pass can be replayed twice.
        how: dict[str, Any] = {"retain_graph": True, "allow_unused": True}
        with torch.cuda.graph(backward, pool=forward.pool()):
            gradients_out = torch.autograd.grad(outputs, self._weights, gradients_in, **how)
        torch.cuda.set_rng_state(random_state, device)
        found = tuple(x.detach() for x in outputs)
        return Graph(
            forward=forward,
            backward=backward,
            inputs=own,
            outputs=found,
            gradients_in=gradients_in,
            gradients_out=gradients_out,
        )

    def _pool(self) -> Any:
        """Return the memory that all graphs share: only one of them is in use at a time."""
        first = next(iter(self._graphs.values()), None)
        return None if first is None else first.forward.pool()


class _Replay(torch.autograd.Function):
    """Replays a graph. The weights are inputs, so that their gradients have a place in the graph of autograd."""

    @staticmethod
    def forward(ctx: Any, graph: Graph, number: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.graph = graph
        ctx.unused = (None,) * (2 + number)
        for own, given in zip(graph.inputs.values(), tensors[:number]):
            own.copy_(given)
        graph.forward.replay()
        return tuple(x.clone() for x in graph.outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        graph = ctx.graph
        for own, given in zip(graph.gradients_in, gradients):
            own.copy_(given)
        graph.backward.replay()
        copies = tuple(None if x is None else x.clone() for x in graph.gradients_out)  # the next replay overwrites them
        return ctx.unused + copies
