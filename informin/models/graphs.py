"""Replay the forward and backward pass of an encoder as CUDA graphs, without the cost of launching each kernel.

A graph has fixed shapes. Packed rows are therefore filled up to a multiple of `TOKENS`, padded ones to the longest text
of any batch, and each size has its own pair of graphs. The kernels are those of the encoder's own forward pass, and
dropout differs between replays. Pooling, heads, losses and the optimizer are not part of the graphs. For training on
one GPU.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

TOKENS = 256
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
        gradients_out: Its output, the gradients by all weights, one after the other. Graphs share it.
        used: For each weight, whether it has an effect.
    """

    forward: torch.cuda.CUDAGraph
    backward: torch.cuda.CUDAGraph
    inputs: Inputs
    outputs: tuple[Tensor, ...]
    gradients_in: tuple[Tensor, ...]
    gradients_out: Tensor
    used: list[bool]


class GraphedEncoder:
    """Computes the outputs of an encoder by replaying graphs, which are captured when a size first occurs.

    An encoder that is not trained has forward passes only.

    Attributes:
        dtype: Data type of autocast; None without autocast.
    """

    def __init__(self, encoder: nn.Module, dtype: torch.dtype | None):
        self.dtype = dtype
        self._weights = [weight for weight in encoder.parameters() if weight.requires_grad]
        sizes = [weight.numel() for weight in self._weights]
        self._gradients = torch.zeros(sum(sizes), device=next(encoder.parameters()).device)
        self._views = [x.view_as(weight) for x, weight in zip(self._gradients.split(sizes), self._weights)]
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
                self._warm_up(encode, own)
        current.wait_stream(stream)
        forward, backward, pool = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph(), self._pool()
        # Other threads may call CUDA meanwhile, such as that of a data loader that pins memory.
        with torch.cuda.graph(forward, pool=pool, capture_error_mode="thread_local"):
            outputs = self._run(encode, own)
        gradients_in = tuple(torch.zeros_like(x) for x in outputs)
        used: list[bool] = []
        if self._weights:
            with torch.cuda.graph(backward, pool=forward.pool(), capture_error_mode="thread_local"):
                # The activations must not be overwritten, because the backward pass can be replayed twice.
                used = self._differentiate(outputs, gradients_in, keep=True)
        torch.cuda.set_rng_state(random_state, device)
        return Graph(
            forward=forward,
            backward=backward,
            inputs=own,
            outputs=tuple(x.detach() for x in outputs),
            gradients_in=gradients_in,
            gradients_out=self._gradients,
            used=used,
        )

    def _warm_up(self, encode: Encode, inputs: Inputs) -> None:
        """Run the encoder once. The activations are freed in the backward pass, before another pass needs memory."""
        outputs = self._run(encode, inputs)
        self._differentiate(outputs, [torch.zeros_like(x) for x in outputs])

    def _differentiate(self, outputs: Sequence[Tensor], gradients: Sequence[Tensor], keep: bool = False) -> list[bool]:
        """Write the gradients by the weights to their places, and return which weights have an effect."""
        if not self._weights:
            return []
        found = torch.autograd.grad(outputs, self._weights, gradients, retain_graph=keep, allow_unused=True)
        used = [x is not None for x in found]
        torch._foreach_copy_(list(compress(self._views, used)), list(compress(found, used)))
        return used

    def _pool(self) -> Any:
        """Return the memory that all graphs share: only one of them is in use at a time."""
        first = next(iter(self._graphs.values()), None)
        return None if first is None else first.forward.pool()


class _Replay(torch.autograd.Function):
    """Replays a graph. The weights are inputs, so that their gradients have a place in the graph of autograd."""

    @staticmethod
    def forward(ctx: Any, graph: Graph, number: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        weights = tensors[number:]
        ctx.graph = graph
        ctx.shapes = [weight.shape for weight in weights]
        ctx.sizes = [weight.numel() for weight in weights]
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
        copies = graph.gradients_out.clone().split(ctx.sizes)  # the next replay overwrites them
        found = zip(copies, ctx.shapes, graph.used)
        return ctx.unused + tuple(x.view(shape) if used else None for x, shape, used in found)
