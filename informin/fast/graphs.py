"""Replay the forward and backward pass of an encoder as CUDA graphs, without the cost of launching each kernel.

A graph has fixed shapes. Packed rows are therefore filled up to a multiple of `TOKENS`, padded ones to the longest text
of any batch, and each size has its own pair of graphs. The kernels are those of the encoder's own forward pass, and
dropout differs between replays. Pooling, heads, losses and the optimizer are not part of the graphs. For training on
one GPU.

With autocast, one kernel copies the weights of all linear layers to half precision, and one copies their gradients
back. Autocast would launch a kernel for each weight. The rounding is that of autocast with its cache.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._utils import _unflatten_dense_tensors
from torch.autograd.function import once_differentiable
from torch.func import functional_call

logger = logging.getLogger(__name__)


TOKENS = 256
MOST_GRAPHS = 16  # more sizes of rows run without graphs
WARMUP = 3  # passes before a capture, in which libraries load kernels and allocate their buffers
Inputs = dict[str, Tensor]
Encode = Callable[[Inputs], tuple[Tensor, ...]]


@dataclass
class Memory:
    """The memory of all graphs of an encoder.

    Attributes:
        owner: Stands for the forward pass whose activations it holds. None after a backward pass, which overwrites
            them.
    """

    owner: object = None


@dataclass
class Graph:
    """A captured forward and backward pass.

    Attributes:
        forward, backward: The graphs.
        inputs: Inputs of the forward pass.
        outputs: Outputs of the forward pass: hidden states, and attention maps if they are kept.
        gradients_in: Inputs of the backward pass: gradients with respect to the outputs.
        gradients_out: Output of the backward pass: gradients with respect to all weights, in one flat tensor that all
            graphs share.
        used: For each weight, whether it has an effect.
        memory: The memory of the activations. Graphs share it.
    """

    forward: torch.cuda.CUDAGraph
    backward: torch.cuda.CUDAGraph
    inputs: Inputs
    outputs: tuple[Tensor, ...]
    gradients_in: tuple[Tensor, ...]
    gradients_out: Tensor
    used: list[bool]
    memory: Memory


class GraphedEncoder:
    """Computes the outputs of an encoder by replaying graphs, which are captured when a size first occurs.

    An encoder that is not trained has forward passes only.

    Attributes:
        dtype: Data type of autocast; None without autocast.
    """

    def __init__(self, encoder: nn.Module, dtype: torch.dtype | None):
        self.dtype = dtype
        self._device = next(encoder.parameters()).device
        self._weights = [weight for weight in encoder.parameters() if weight.requires_grad]
        self._halves = Halves(encoder, dtype)
        self._sources = [self._halves.of(weight) for weight in self._weights]
        self._gradients = torch.zeros(sum(weight.numel() for weight in self._weights), device=self._device)
        self._views = _unflatten_dense_tensors(self._gradients, self._weights)
        self._graphs: dict[tuple[torch.Size, ...], Graph] = {}
        self._memory = Memory()
        self._most_graphs = MOST_GRAPHS

    def __call__(self, encode: Encode, inputs: Inputs) -> tuple[Tensor, ...]:
        """Return what a function of the encoder returns for some inputs, all of them tensors on the GPU.

        The memory holds the activations of one call. The backward pass of an earlier one repeats its forward pass, for
        which the weights must not have changed. Inputs of one shape must need the same kernels.
        """
        size = tuple(x.shape for x in inputs.values())
        if size not in self._graphs and len(self._graphs) < self._most_graphs:
            graph = self._captured(encode, inputs)
            if graph is None:
                self._give_up()
            else:
                self._graphs[size] = graph
        if size not in self._graphs:
            return self._run(encode, inputs)
        return _Replay.apply(self._graphs[size], len(inputs), *inputs.values(), *self._weights)

    def _give_up(self) -> None:
        """Drop all graphs and run without them from now on, which needs about half of the memory."""
        self._graphs.clear()
        self._most_graphs = 0
        torch.cuda.empty_cache()
        logger.warning(
            "The memory of the GPU is too small for CUDA graphs, and training continues without them. `cuda_graphs` "
            "false avoids the attempt."
        )

    def _run(self, encode: Encode, inputs: Inputs) -> tuple[Tensor, ...]:
        how: dict[str, Any] = {
            "dtype": self.dtype or torch.float32,
            "enabled": self.dtype is not None,
            "cache_enabled": False,
        }
        with torch.autocast(self._device.type, **how):
            return encode(inputs)

    def _captured(self, encode: Encode, inputs: Inputs) -> Graph | None:
        """Return graphs for inputs of these shapes; None if the memory does not suffice.

        The random state is restored, so that a resumed run stays bit-exact.
        """

        def run() -> tuple[Tensor, ...]:
            return self._halves.use(lambda: self._run(encode, own))

        own = {name: x.clone() for name, x in inputs.items()}
        random_state = torch.cuda.get_rng_state(self._device)
        has_memory = self._warm_up(run)
        if not has_memory:
            torch.cuda.set_rng_state(random_state, self._device)
            return None
        forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        pool = next((graph.forward.pool() for graph in self._graphs.values()), None)  # only one graph runs at a time
        # Other threads may call CUDA meanwhile, such as that of a data loader that pins memory.
        with torch.cuda.graph(forward, pool=pool, capture_error_mode="thread_local"):
            outputs = run()
        gradients_in = tuple(torch.zeros_like(x) for x in outputs)
        used: list[bool] = []
        if self._weights:
            with torch.cuda.graph(backward, pool=forward.pool(), capture_error_mode="thread_local"):
                used = self._differentiate(outputs, gradients_in)
        torch.cuda.set_rng_state(random_state, self._device)
        return Graph(
            forward=forward,
            backward=backward,
            inputs=own,
            outputs=tuple(x.detach() for x in outputs),
            gradients_in=gradients_in,
            gradients_out=self._gradients,
            used=used,
            memory=self._memory,
        )

    def _warm_up(self, run: Callable[[], tuple[Tensor, ...]]) -> bool:
        """Run the encoder a few times, and return whether the memory sufficed.

        The activations of each pass are freed before another one needs memory.
        """
        stream, current = torch.cuda.Stream(self._device), torch.cuda.current_stream(self._device)
        stream.wait_stream(current)
        try:
            with torch.cuda.stream(stream):
                for _ in range(WARMUP):
                    outputs = run()
                    self._differentiate(outputs, [torch.zeros_like(x) for x in outputs])
                    del outputs
        except torch.OutOfMemoryError:
            return False
        finally:
            current.wait_stream(stream)
        return True

    def _differentiate(self, outputs: Sequence[Tensor], gradients: Sequence[Tensor]) -> list[bool]:
        """Write the gradients by the weights to their places, and return which weights have an effect."""
        if not self._weights:
            return []
        found = torch.autograd.grad(outputs, self._sources, gradients, allow_unused=True)
        for dtype in {x.dtype for x in found if x is not None}:  # one kernel for each
            pairs = [(view, x) for view, x in zip(self._views, found) if x is not None and x.dtype == dtype]
            torch._foreach_copy_([view for view, _ in pairs], [x for _, x in pairs])
        return [x is not None for x in found]


class Halves:
    """Copies of the float32 weights of linear layers in the data type of autocast; none without autocast."""

    def __init__(self, encoder: nn.Module, dtype: torch.dtype | None):
        self._module = _Call(encoder)
        linear = _weights_of_linear_layers(encoder) if dtype is not None else []
        self._weights: list[Tensor] = [weight for weight in linear if weight.dtype == torch.float32]
        self._copies = [weight.detach().to(dtype).requires_grad_(weight.requires_grad) for weight in self._weights]
        self._copy_of = {id(weight): copy for weight, copy in zip(self._weights, self._copies)}
        named = self._module.named_parameters()
        self._named = {name: self._copy_of[id(weight)] for name, weight in named if id(weight) in self._copy_of}

    def of(self, weight: Tensor) -> Tensor:
        """Return the copy of a weight, or the weight itself if it has none."""
        return self._copy_of.get(id(weight), weight)

    def use(self, compute: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Return what a function of the encoder returns, with new copies in place of the weights."""
        if not self._weights:
            return compute()
        with torch.no_grad():
            torch._foreach_copy_(self._copies, self._weights)
        return functional_call(self._module, self._named, (compute,))


class _Call(nn.Module):
    """Calls a function of an encoder, in which `functional_call` replaces its weights."""

    def __init__(self, encoder: nn.Module):
        super().__init__()
        self.encoder = encoder

    def forward(self, compute: Callable[[], Any]) -> Any:
        return compute()


def _weights_of_linear_layers(encoder: nn.Module) -> list[nn.Parameter]:
    """Return the weights that only linear layers use."""
    linear: dict[int, nn.Parameter] = {}
    others: set[int] = set()
    for module in encoder.modules():
        for weight in module.parameters(recurse=False):
            if type(module) is nn.Linear:
                linear[id(weight)] = weight
            else:
                others.add(id(weight))
    return [weight for number, weight in linear.items() if number not in others]


class _Replay(torch.autograd.Function):
    """Replays a graph. The weights are inputs, so that their gradients have a place in the graph of autograd."""

    @staticmethod
    def forward(ctx: Any, graph: Graph, number: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.graph = graph
        ctx.weights = tensors[number:]
        ctx.unused = (None,) * (2 + number)
        ctx.inputs = tensors[:number]
        ctx.random_state = torch.cuda.get_rng_state(tensors[0].device)
        ctx.owner = graph.memory.owner = object()
        _replay_forward(graph, ctx.inputs)
        return tuple(x.clone() for x in graph.outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        graph = ctx.graph
        for own, given in zip(graph.gradients_in, gradients):
            own.copy_(given)
        if graph.memory.owner is not ctx.owner:  # repeat the forward pass with its dropout masks
            now = torch.cuda.get_rng_state(own.device)
            torch.cuda.set_rng_state(ctx.random_state, own.device)
            _replay_forward(graph, ctx.inputs)
            torch.cuda.set_rng_state(now, own.device)
        graph.backward.replay()
        graph.memory.owner = None
        copy = graph.gradients_out.clone()  # the next replay overwrites it
        found = zip(_unflatten_dense_tensors(copy, ctx.weights), graph.used)
        return ctx.unused + tuple(x if used else None for x, used in found)


def _replay_forward(graph: Graph, inputs: Sequence[Tensor]) -> None:
    for own, given in zip(graph.inputs.values(), inputs):
        own.copy_(given)
    graph.forward.replay()
