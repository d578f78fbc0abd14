"""The forward pass of a step on a GPU, on fake tensors, which have a device and a data type, but no data.

They raise an error for tensors on two devices, and for whatever would wait for a GPU: numbers that Python reads, and
shapes that depend on data. PyTorch for CPUs has no backward pass for them.
"""

import ctypes
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import Parameter

import informin.fast.forward as forward
import informin.fast.packing as packing
import informin.training.batch as stacking
from informin.evaluation.neighbors import nearest
from informin.fast.plan import plan_of
from informin.model.open import load_model
from informin.training.arguments import InforMinTrainingArguments
from informin.training.callbacks import LossWatch
from tests.conftest import FOUR_STEPS, how_to_train, make_sentences
from tests.support import one_layer
from trainer_informin import InforMinTrainer

FAKE = FakeTensorMode(allow_non_fake_inputs=False)
GPU = torch.device("cuda", 0)
CUDA, META = 1, 14  # places in PyTorch's enumeration of device types
QUEUE = dict(queue_size=16, momentum_dropout=0.1)
MASKS = dict(mlm_weight=0.1)
NEAR = dict(false_negative_fraction=0.2, false_negative_similarity="model")
CHUNKS = dict(gradient_cache_chunk_size=24)  # two of 48 rows
bert, roberta, st_mean = one_layer.bert, one_layer.roberta, one_layer.st_mean  # a second one calls the same operations


def fake(x: Tensor, device: torch.device = GPU) -> Tensor:
    if device.type == "cpu":
        return x
    with FAKE:
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device)


def move(*models: nn.Module) -> None:
    """Replace all weights and buffers by fake ones on a GPU. Models may share them."""
    made: dict[Tensor, Tensor] = {}
    for module in (part for model in models for part in model.modules()):
        for tensors in (module._parameters, module._buffers):
            for name, x in tensors.items():
                if x is not None and x.device != GPU:
                    new = Parameter(fake(x), requires_grad=False) if isinstance(x, Parameter) else fake(x)
                    tensors[name] = made.setdefault(x, new)


@pytest.fixture(autouse=True)
def device_guard():
    """Let PyTorch for CPUs slice tensors on a GPU: the guard of the device `meta`, which does nothing, stands for its.

    The table of guards is part of no interface, so a version of PyTorch without it skips these tests.
    """
    library = Path(torch.__file__).parent / "lib" / "libc10.so"
    try:
        guards = (ctypes.c_void_p * 20).in_dll(ctypes.CDLL(str(library)), "_ZN3c104impl26device_guard_impl_registryE")
    except (OSError, ValueError):
        pytest.skip("needs the table of device guards of PyTorch for Linux")
    before = guards[CUDA]
    guards[CUDA] = before or guards[META]
    yield
    guards[CUDA] = before


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch):
    for module in (forward, packing, stacking):
        monkeypatch.setattr(module, "to_device", fake)
    monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    stream = SimpleNamespace(wait_stream=lambda other: None)
    replaced = {
        "is_bf16_supported": lambda: True,
        "get_device_capability": lambda device: (9, 0),
        "CUDAGraph": lambda: SimpleNamespace(pool=lambda: None, replay=lambda: None),
        "graph": lambda graph, **how: nullcontext(),
        "Stream": lambda device: stream,
        "current_stream": lambda device: stream,
        "stream": lambda stream: nullcontext(),
        "get_rng_state": lambda device: None,
        "set_rng_state": lambda state, device: None,
    }
    for name, stand_in in replaced.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)


@pytest.mark.parametrize(
    "model, objective, options, packs, graphs",
    [
        ("bert", "informin", MASKS | QUEUE | NEAR, True, 2),
        ("bert", "simcse", MASKS | CHUNKS, True, 0),
        ("bert", "scd", dict(projector_size=8), False, 1),
        ("roberta", "micse", QUEUE | dict(view="crop"), False, 2),
        ("st_mean", "informin", dict(cuda_graphs=False, lora_r=2), True, 0),
    ],
)
def test_a_step_stays_on_the_gpu(request, tmp_path, monkeypatch, model, objective, options, packs, graphs):
    how = FOUR_STEPS | dict(objective=objective, eval_strategy="no", report_to="none", bf16=True) | options
    folder = str(request.getfixturevalue(model))
    run = InforMinTrainer(folder, train_dataset=make_sentences(96), **how_to_train(str(tmp_path), **how))
    run.gradient_ratios.is_on = False  # which reads numbers
    run.loss_watch = LossWatch(GPU)
    monkeypatch.setattr(InforMinTrainingArguments, "device", GPU)
    own = run.model.forward_pass
    given = dict(cuda_graphs=run.args.cuda_graphs, chunk_size=run.args.gradient_cache_chunk_size)
    own.plan = plan_of(run.trained.finished, run.objective.needs(run.args), GPU, "bf16", 24, **given)
    assert own.plan.packs == packs
    run.model.train()
    batches = iter(run.get_train_dataloader())
    number = 2 if graphs else 1  # the first step captures the graphs
    rows = [run.get_batch_samples(batches, 1, GPU)[0][0] for _ in range(number)]
    move(run.model, run.trained.finished)
    for row in rows:
        with FAKE, torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            loss = run.compute_loss(run.model, row)
            for head in run.model.heads.values():
                head.after_step(run.model)
            run.loss_watch.add(1, loss, run._step_values)
        assert (loss.device, loss.dtype) == (GPU, torch.float32)
    assert len(own._graphs) == graphs


def test_encode_packs_in_half_precision_only(st_mean, monkeypatch):
    model = load_model(st_mean, device="cpu")
    rows = model._inference._tokenized(make_sentences(20), prompt=None, with_types=False, options={})
    given = dict(device=None, options={"output_value": "sentence_embedding"})
    assert model._inference._packs(["a dog"], **given)
    move(model)
    assert not model._inference._packs(["a dog"], **given)
    kept = {name: rows[name] for name in ("modality", "prompt_length") if name in rows}
    wanted = SimpleNamespace(padding_index=None, options={}, width=16, normalized=True, with_tokens=False)
    with FAKE, torch.inference_mode(), torch.autocast("cuda", torch.bfloat16):
        assert model._inference._packs(["a dog"], **given)
        vectors = model._inference._for_one_call(packs=True)._forward(rows["input_ids"], kept, wanted)
    assert (vectors.shape, vectors.device) == ((20, 16), GPU)


def test_a_gpu_build_of_torch_needs_no_gpu(monkeypatch):
    """Such a build, as PyPI has it for Linux, names its accelerator unless it is asked whether it is there."""

    def named(check_available: bool = False) -> torch.device | None:
        return None if check_available else torch.device("cuda")

    monkeypatch.setattr(torch.accelerator, "current_accelerator", named)
    assert nearest(np.eye(4, dtype=np.float32), 1)[0].ravel().tolist() == [1, 0, 0, 0]
    assert InforMinTrainingArguments().use_cpu
