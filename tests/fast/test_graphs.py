"""CUDA graphs without a GPU: a stand-in records the operations of a capture, and repeats them on the same tensors.

What a graph would repeat unchanged is repeated, too: Python numbers, and tensors that are not inputs.
"""

import weakref
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers.utils import import_utils

import informin.fast.packing as packing
import informin.fast.plan as planning
from informin.fast.graphs import TOKENS, WARMUP, Graph, GraphedEncoder
from tests.conftest import FOUR_STEPS, how_to_train, make_sentences, raises_usage, save_bert
from tests.test_gpu import QUEUE_OF, STILL, gradients
from trainer_informin import InforMinTrainer

pytestmark = pytest.mark.filterwarnings("ignore:User provided device_type of 'cuda'")


class RecordedGraph:
    """Stands for `torch.cuda.CUDAGraph`.

    Attributes:
        calls: Each operation with its arguments and its result.
    """

    def __init__(self):
        self.calls: list[tuple] = []

    def pool(self) -> None:
        return None

    @torch.no_grad()
    def replay(self) -> None:
        for function, args, kwargs, before in self.calls:
            now = function(*args, **kwargs)
            for old, new in zip(tree_leaves(before), tree_leaves(now)):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.detach().copy_(new)


class Recorder(TorchDispatchMode):
    """Adds every operation to the calls of a graph."""

    def __init__(self, calls: list[tuple]):
        super().__init__()
        self.calls = calls

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func not in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default), "waits"
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result


@pytest.fixture
def recorded_graphs(monkeypatch):
    """Replace what `informin.fast.graphs` uses of torch.cuda."""

    @contextmanager
    def capture(graph: RecordedGraph, pool: None, capture_error_mode: str):
        assert capture_error_mode == "thread_local"  # by default, an error for what other threads call
        with monkeypatch.context() as during, Recorder(graph.calls):
            during.setattr(import_utils, "is_cuda_stream_capturing", lambda: True)  # transformers then reads no mask
            yield

    stream = SimpleNamespace(wait_stream=lambda other: None)
    stand_ins = {
        "CUDAGraph": RecordedGraph,
        "graph": capture,
        "Stream": lambda device: stream,
        "current_stream": lambda device: stream,
        "stream": lambda stream: nullcontext(),
        "get_rng_state": lambda device: torch.get_rng_state(),
        "set_rng_state": lambda state, device: torch.set_rng_state(state),
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)


def attend_by_ends(query, key, value, packed, dropout, scaling, window, causal):
    """Stand for the FlashAttention kernel, which reads where texts end from a tensor."""
    text = torch.searchsorted(packed.ends, torch.arange(len(query), dtype=torch.int32), right=True)
    mask = text[:, None] == text
    query, key, value = (x.transpose(0, 1) for x in (query, key, value))
    return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling).transpose(0, 1)


def trainer_of(folder, output_dir, **options) -> InforMinTrainer:
    how = FOUR_STEPS | dict(view="crop", eval_strategy="no", report_to="none") | options
    return InforMinTrainer(str(folder), train_dataset=make_sentences(96), **how_to_train(str(output_dir), **how))


def gradients_of_batches(run) -> list[dict[str, Tensor]]:
    run.model.train()
    batches = iter(run.get_train_dataloader())
    rows = [run.get_batch_samples(batches, 1, run.args.device)[0][0] for _ in range(4)]
    return [gradients(run, row) for row in rows]


@pytest.mark.parametrize(
    "objective, padding_free",
    [("simcse", True), ("simcse", False), ("informin", True), ("micse", False), ("scd", False)],
)
def test_replays_give_the_gradients_of_the_eager_step(tmp_path, monkeypatch, recorded_graphs, objective, padding_free):
    monkeypatch.setattr(packing, "_attend_by_runs", attend_by_ends)
    monkeypatch.setattr(packing, "_attend_at_once", attend_by_ends)
    folder = save_bert(tmp_path / "still", **STILL)
    how = dict(objective=objective, padding_free=padding_free) | QUEUE_OF.get(objective, {})
    if objective == "scd":
        how |= dict(view_dropout=[0.0, 1e-9], projector_size=8)
    found = []
    for length in (24, None):
        run = trainer_of(folder, tmp_path / str(length), **how)
        own = run.model.forward_pass
        own.plan = replace(own.plan, graph_length=length, threads=1)
        found.append(gradients_of_batches(run))
        if length is not None:
            encoders = own._graphs.values()
            assert len(encoders) == (2 if objective in QUEUE_OF else 1)  # and the momentum encoder
            for encoder in encoders:
                assert len(encoder._graphs) < 4  # so that some are replayed
                for rows, tokens in (shapes[0] for shapes in encoder._graphs):
                    assert (rows == 1 and tokens % TOKENS == 0) if own.plan.packs else tokens == 24
    for graphed, eager in zip(*found):
        assert graphed.keys() == eager.keys()
        scale = max(x.abs().max() for x in eager.values())
        assert max((graphed[name] - x).abs().max() / scale for name, x in eager.items()) < 1e-4


def overwrite_masks(graph: Graph) -> None:
    """Overwrite the dropout masks, as another pass in the same memory does."""
    masks = [result for function, *_, result in graph.forward.calls if "bernoulli" in str(function)]
    assert masks
    for mask in masks:
        mask.zero_()


def test_a_second_backward_pass_repeats_the_forward_pass_with_its_masks(recorded_graphs):
    """The first one has overwritten the activations."""
    encoder = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8), nn.Dropout(0.5))
    graphed = GraphedEncoder(encoder, dtype=None)

    def encode(inputs):
        return (encoder(inputs["x"]),)

    for _ in range(2):
        (output,) = graphed(encode, {"x": torch.randn(4, 8)})
        loss = output.square().sum()
        weights = list(encoder.parameters())
        first = torch.autograd.grad(loss, weights, retain_graph=True)
        torch.rand(1)
        state = torch.get_rng_state()
        for graph in graphed._graphs.values():
            overwrite_masks(graph)
        second = torch.autograd.grad(loss, weights, retain_graph=True)
        assert torch.equal(state, torch.get_rng_state())
        for x, y in zip(first, second):
            torch.testing.assert_close(x, y)


@pytest.mark.parametrize("other_size", [4, 6])
def test_two_forward_passes_before_their_backward_passes(recorded_graphs, other_size):
    """Of one size or of two, which share memory: the second one overwrites inputs and activations of the first one."""
    encoder = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8))
    graphed = GraphedEncoder(encoder, dtype=None)
    texts = [torch.randn(size, 8) for size in (4, other_size)]

    def encode(inputs):
        return (encoder(inputs["x"]),)

    def outputs_of(compute) -> list[Tensor]:
        torch.manual_seed(2)
        return [compute(encode, {"x": x})[0] for x in texts]

    for _ in range(2):
        first, second = outputs_of(graphed)
        if other_size != 4:
            overwrite_masks(next(iter(graphed._graphs.values())))
        found = [torch.autograd.grad(output.square().sum(), list(encoder.parameters())) for output in (first, second)]
        eager = outputs_of(lambda encode, inputs: encode(inputs))
        for output, gradients_by_weights in zip(eager, found):
            expected = torch.autograd.grad(output.square().sum(), list(encoder.parameters()))
            torch.testing.assert_close(gradients_by_weights, expected)


def test_without_memory_for_a_further_size_all_run_without_graphs(recorded_graphs, caplog):
    """The passes before a capture need as much memory again as the graphs hold."""
    encoder = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    graphed = GraphedEncoder(encoder, dtype=None)
    calls = []

    def encode(inputs):
        calls.append(len(inputs["x"]))
        if calls == [2] * (WARMUP + 1) + [3]:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return (encoder(inputs["x"]),)

    for rows in (2, 3, 2):
        torch.manual_seed(rows)
        (found,) = graphed(encode, {"x": torch.ones(rows, 4)})
        torch.manual_seed(rows)
        assert torch.equal(found, encoder(torch.ones(rows, 4)))
        encoder.zero_grad()
        found.sum().backward()
        assert encoder[0].weight.grad.abs().sum() > 0
    assert calls == [2] * (WARMUP + 1) + [3, 3, 2]
    assert [record.levelname for record in caplog.records] == ["WARNING"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_copies_in_half_precision_give_the_gradients_of_autocast(recorded_graphs, dtype):
    """The table of words is also an output layer, and is not copied."""
    torch.manual_seed(0)
    encoder = nn.ModuleDict({"table": nn.Embedding(16, 8), "first": nn.Linear(8, 8), "norm": nn.LayerNorm(8)})
    encoder["last"] = nn.Linear(8, 16, bias=False)
    encoder["last"].weight = encoder["table"].weight
    encoder["frozen"] = nn.Linear(8, 8).requires_grad_(False)

    def encode(inputs):
        states = encoder["first"](encoder["table"](inputs["ids"]))
        return (encoder["last"](encoder["frozen"](encoder["norm"](states))).float(),)

    ids = torch.arange(8)[None]
    graphed = GraphedEncoder(encoder, dtype)
    assert {name for name, _ in encoder.named_parameters() if "first" in name or "frozen" in name} == {
        name.removeprefix("encoder.") for name in graphed._halves._named
    }
    found = []
    for step in range(2):
        for graphs in (True, False):
            encoder.zero_grad()
            with torch.autocast("cpu", dtype):
                (output,) = graphed(encode, {"ids": ids}) if graphs else encode({"ids": ids})
                output.square().sum().backward()
            found.append([output.detach().clone(), *(x.grad for x in encoder.parameters() if x.requires_grad)])
        for graphed_one, eager in zip(*found[-2:]):
            torch.testing.assert_close(graphed_one, eager, rtol=0, atol=0)
        with torch.no_grad():
            for x in encoder.parameters():
                x.add_(0.1 * step + 0.05)  # as an optimizer does, in place


def test_attention_that_reads_lengths_as_python_numbers_is_not_captured(tmp_path, recorded_graphs):
    run = trainer_of(save_bert(tmp_path / "bert"), tmp_path / "run", objective="simcse", padding_free=True)
    own = run.model.forward_pass
    own.plan = replace(own.plan, graph_length=24, threads=1)
    with raises_usage("cuda_graphs", found="float32"):
        gradients_of_batches(run)


AMPERE, TURING = (8, 0), (7, 5)  # FlashAttention runs on the first


@pytest.mark.parametrize(
    "precision, capability, padding_free, packs, expected",
    [
        ("bf16", AMPERE, None, True, 24),
        ("no", AMPERE, None, False, 24),
        ("no", AMPERE, True, True, None),
        ("fp16", TURING, None, False, 24),
        ("fp16", TURING, True, True, None),
    ],
)
def test_rows_are_packed_and_captured_where_one_kernel_computes_them(
    monkeypatch, precision, capability, padding_free, packs, expected
):
    monkeypatch.setattr(planning, "reads_packed_rows", lambda st: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    st = [SimpleNamespace(auto_model=nn.Linear(1, 1))]
    given = (st, {}, torch.device("cuda"), precision, 24)
    plan = planning.plan_of(*given, padding_free=padding_free)
    assert (plan.packs, plan.graph_length) == (packs, expected)
    with nullcontext() if expected else raises_usage("cuda_graphs"):
        assert planning.plan_of(*given, padding_free=padding_free, cuda_graphs=True).graph_length == expected


def test_graphs_that_are_asked_for_on_a_cpu_are_an_error(tmp_path, bert):
    with raises_usage("cuda_graphs", found="cpu"):
        trainer_of(bert, tmp_path / "run", objective="simcse", cuda_graphs=True)


def test_a_pass_of_the_warm_up_frees_its_activations(recorded_graphs):
    """Otherwise the next one doubles the peak memory of training."""
    alive: list[weakref.ref] = []

    class Holding(torch.autograd.Function):
        """Holds an object as long as the graph of autograd exists."""

        @staticmethod
        def forward(ctx, x):
            ctx.held = RecordedGraph()
            alive.append(weakref.ref(ctx.held))
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    encoder = nn.Linear(2, 2)

    def encode(inputs):
        assert [one for one in alive if one() is not None] == []
        return (Holding.apply(encoder(inputs["x"])),)

    graphed = GraphedEncoder(encoder, dtype=None)
    (output,) = graphed(encode, {"x": torch.eye(2)})
    output.sum().backward()
    assert len(alive) == WARMUP + 1
    torch.testing.assert_close(encoder.weight.grad, torch.ones(2, 2))
