"""The Triton kernel for short texts: on a GPU, or in Triton's interpreter on a CPU, where Triton is installed."""

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="needs Triton, which comes with PyTorch for GPUs")
pytestmark = pytest.mark.gpu
HAS_GPU = torch.cuda.is_available()
DEVICE, DTYPE = ("cuda", torch.float16) if HAS_GPU else ("cpu", torch.float32)
CLOSE = dict(atol=2e-2, rtol=2e-2) if HAS_GPU else dict(atol=1e-5, rtol=1e-4)

from informin.fast import packing
from informin.fast.packing import LONGEST, WIDEST, attention_of_short_texts
from informin.fast.short_attention import ShortAttention


def row(lengths: list[int], heads: int, width: int) -> tuple[list[Tensor], Tensor]:
    """Return queries, keys and values (T, H, d) of texts, and their ends."""
    generator = torch.Generator().manual_seed(1)
    size = (sum(lengths), heads, width)
    drawn = [torch.randn(size, generator=generator).to(DEVICE, DTYPE) for _ in range(3)]
    ends = torch.tensor([0, *lengths], device=DEVICE).cumsum(0).int()
    return [x.requires_grad_() for x in drawn], ends


def text_by_text(query, key, value, ends, scale, window, causal) -> Tensor:
    outputs = []
    for start, end in zip(ends.tolist(), ends.tolist()[1:]):
        q, k, v = (x[start:end].float().transpose(0, 1) for x in (query, key, value))
        place = torch.arange(end - start, device=q.device)
        distance = place[:, None] - place
        seen = distance.abs() < (LONGEST if window is None else window)
        if causal:
            seen = seen & (distance >= 0)
        scores = (q @ k.transpose(1, 2) * scale).masked_fill(~seen, float("-inf"))
        outputs.append((scores.softmax(-1) @ v).transpose(0, 1))
    return torch.cat(outputs)


@pytest.mark.parametrize(
    "longest, heads, width, window, causal",
    [(32, 3, 8, None, False), (13, 2, 16, None, True), (64, 2, 24, 5, False), (33, 1, 64, 7, True)],
)
def test_it_equals_attention_text_by_text(longest, heads, width, window, causal):
    """Empty texts may follow, as in a CUDA graph."""
    tensors, ends = row([longest, longest - 2, 7, 3, 1, 0, 0], heads, width)
    output = ShortAttention.apply(*tensors, ends, longest, 0.0, width**-0.5, window, causal)
    expected = text_by_text(*tensors, ends, width**-0.5, window, causal)
    torch.testing.assert_close(output.float(), expected, **CLOSE)
    gradient = torch.randn_like(output)
    found = torch.autograd.grad(output, tensors, gradient)
    for x, y in zip(found, torch.autograd.grad(expected, tensors, gradient.float())):
        torch.testing.assert_close(x.float(), y.float(), **CLOSE)


def test_dropout_keeps_its_masks_in_the_backward_pass():
    """With values of a unit matrix, the output is the dropped weights, and the gradient by values shows them, too."""
    length, heads, rate = 16, 4, 0.25
    texts = 20
    value = torch.eye(length, device=DEVICE, dtype=DTYPE).repeat(texts, 1)[:, None].repeat(1, heads, 1)
    value.requires_grad_()
    flat = torch.zeros_like(value)
    ends = torch.arange(0, texts * length + 1, length, device=DEVICE).int()
    torch.manual_seed(3)
    first, second = (ShortAttention.apply(flat, flat, value, ends, length, rate, 1.0, None, False) for _ in range(2))
    assert not torch.equal(first, second)
    kept = first.detach() > 0
    assert abs(kept.float().mean().item() - (1 - rate)) < 0.03
    torch.testing.assert_close(first[kept], torch.full_like(first[kept], 1 / length / (1 - rate)))
    one = kept.view(texts, length, heads, length)
    assert not torch.equal(one[0], one[1])
    assert not torch.equal(one[:, :, 0], one[:, :, 1])
    (by_values,) = torch.autograd.grad(first, value, torch.ones_like(first))
    weights = first.detach().view(texts, length, heads, length).sum(1)  # over queries: (texts, heads, keys)
    torch.testing.assert_close(by_values.view(texts, length, heads, length)[..., 0], weights.transpose(1, 2), **CLOSE)


def test_gradients_by_queries_and_keys_with_dropout_equal_differences():
    if HAS_GPU:
        pytest.skip("needs float32, which the kernel computes in the interpreter only")
    tensors, ends = row([20, 16, 9], 2, 16)

    def compute(*given: Tensor) -> Tensor:
        torch.manual_seed(5)
        return ShortAttention.apply(*given, ends, 20, 0.1, 0.25, None, False)

    gradient = torch.randn(compute(*tensors).shape)
    found = torch.autograd.grad(compute(*tensors), tensors, gradient)
    for number, analytic in enumerate(found):
        step = 0.01 * torch.randn_like(analytic)
        above = [x + step if place == number else x for place, x in enumerate(tensors)]
        below = [x - step if place == number else x for place, x in enumerate(tensors)]
        difference = ((compute(*above) - compute(*below)) * gradient).sum() / 2
        torch.testing.assert_close(difference, (analytic * step).sum(), atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(
    "longest, width, expected", [(LONGEST, WIDEST, True), (LONGEST + 1, 64, False), (8, 256, False)]
)
def test_it_is_used_for_short_texts_and_usual_heads(longest, width, expected):
    query = torch.zeros(1, 1, width, device=DEVICE, dtype=DTYPE)
    assert (attention_of_short_texts(longest, query) is not None) == expected


def test_without_a_compiler_it_is_not_used(monkeypatch):
    def fail(*_):
        raise RuntimeError("Failed to find C compiler")

    packing._kernel_for.cache_clear()
    monkeypatch.setattr(ShortAttention, "apply", fail)
    assert attention_of_short_texts(8, torch.zeros(1, 1, 64, device=DEVICE)) is None
    packing._kernel_for.cache_clear()
