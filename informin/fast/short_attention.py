"""Attention within texts of up to 64 tokens on a GPU, by one Triton program for each text and head.

FlashAttention computes blocks of 128 queries and up to 128 keys, and a sentence of 25 tokens fills a small part of one.
Here a block is as long as the longest text. The backward pass computes the softmax and the dropout mask again from
queries, keys and a seed, and writes each gradient once, so that a resumed run is bit-exact.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable


class ShortAttention(torch.autograd.Function):
    """Attention (T, H, d) of a row of texts.

    Args:
        query, key, value: (T, H, d) in fp16 or bf16, contiguous.
        ends: (S + 1,), places where the texts start, and where the last one ends.
        longest: No text is longer; at most 64.
        rate: Dropout rate of attention weights.
        scale: Factor of the scores.
        window: Sliding window; None without one.
        causal: Whether a token sees earlier tokens only.
    """

    @staticmethod
    def forward(ctx, query, key, value, ends, longest, rate, scale, window, causal):
        seed = torch.randint(2**31 - 1, (1,), device=query.device) if rate else ends[:1]
        ctx.save_for_backward(query, key, value, ends, seed)
        heads, width = query.shape[1:]
        size = max(16, triton.next_power_of_2(longest))
        ctx.how = {
            "scale": scale,
            "window": size if window is None else window,
            "RATE": rate,
            "CAUSAL": causal,
            "HEADS": heads,
            "WIDTH": width,
            "SIZE": size,
            "COLUMNS": max(16, triton.next_power_of_2(width)),
            "num_warps": 4 if size > 32 else 2,
        }
        ctx.grid = ((len(ends) - 1) * heads,)
        output = torch.empty_like(query)
        with torch.cuda.device_of(query):  # Triton starts kernels on the current device
            _forward[ctx.grid](query, key, value, output, ends, seed, **ctx.how)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, ends, seed = ctx.saved_tensors
        found = tuple(torch.empty_like(x) for x in (query, key, value))
        with torch.cuda.device_of(query):
            _backward[ctx.grid](query, key, value, gradient.contiguous(), *found, ends, seed, **ctx.how)
        return *found, *(None,) * 6


@triton.jit
def _block(text, head, ends, HEADS: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr, COLUMNS: tl.constexpr):
    """Return the places (SIZE, COLUMNS) of a text's tokens in one head, which of them exist, and the text's length."""
    start = tl.load(ends + text).to(tl.int64)
    length = (tl.load(ends + text + 1) - start).to(tl.int32)
    rows = tl.arange(0, SIZE)[:, None]
    columns = tl.arange(0, COLUMNS)[None, :]
    places = ((start + rows) * HEADS + head) * WIDTH + columns
    return places, (rows < length) & (columns < WIDTH), length


@triton.jit
def _weights(query, key, length, scale, window, CAUSAL: tl.constexpr, SIZE: tl.constexpr):
    """Return the attention weights (SIZE, SIZE) of a text before dropout. Rows after its end have any weights."""
    rows = tl.arange(0, SIZE)[:, None]
    columns = tl.arange(0, SIZE)[None, :]
    seen = (columns < length) & (tl.abs(rows - columns) < window)
    if CAUSAL:
        seen = seen & (rows >= columns)
    scores = tl.dot(query, tl.trans(key)) * scale
    scores = tl.where(seen | (rows >= length), scores, float("-inf"))
    powers = tl.exp(scores - tl.max(scores, 1)[:, None])
    return powers / tl.sum(powers, 1)[:, None]


@triton.jit
def _kept(number, seed, RATE: tl.constexpr, SIZE: tl.constexpr):
    """Return the factors (SIZE, SIZE) of dropout in a program: 0, or 1 / (1 - RATE)."""
    places = number * (SIZE * SIZE) + tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    return tl.where(tl.rand(tl.load(seed), places) < RATE, 0.0, 1 / (1 - RATE))


@triton.jit
def _forward(
    queries,
    keys,
    values,
    outputs,
    ends,
    seed,
    scale,
    window,
    RATE: tl.constexpr,
    CAUSAL: tl.constexpr,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    SIZE: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    number = tl.program_id(0)
    places, there, length = _block(number // HEADS, number % HEADS, ends, HEADS, WIDTH, SIZE, COLUMNS)
    query = tl.load(queries + places, there, 0.0)
    key = tl.load(keys + places, there, 0.0)
    value = tl.load(values + places, there, 0.0)
    weights = _weights(query, key, length, scale, window, CAUSAL, SIZE)
    if RATE > 0:
        weights *= _kept(number, seed, RATE, SIZE)
    tl.store(outputs + places, tl.dot(weights.to(value.dtype), value).to(value.dtype), there)


@triton.jit
def _backward(
    queries,
    keys,
    values,
    gradients,
    by_queries,
    by_keys,
    by_values,
    ends,
    seed,
    scale,
    window,
    RATE: tl.constexpr,
    CAUSAL: tl.constexpr,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    SIZE: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    number = tl.program_id(0)
    places, there, length = _block(number // HEADS, number % HEADS, ends, HEADS, WIDTH, SIZE, COLUMNS)
    query = tl.load(queries + places, there, 0.0)
    key = tl.load(keys + places, there, 0.0)
    value = tl.load(values + places, there, 0.0)
    gradient = tl.load(gradients + places, there, 0.0)
    weights = _weights(query, key, length, scale, window, CAUSAL, SIZE)
    dropped = weights
    by_weights = tl.dot(gradient, tl.trans(value))
    if RATE > 0:
        kept = _kept(number, seed, RATE, SIZE)
        dropped *= kept
        by_weights *= kept
    by_scores = weights * (by_weights - tl.sum(weights * by_weights, 1)[:, None]) * scale
    by_scores = by_scores.to(query.dtype)
    tl.store(by_queries + places, tl.dot(by_scores, key).to(query.dtype), there)
    tl.store(by_keys + places, tl.dot(tl.trans(by_scores), query).to(query.dtype), there)
    tl.store(by_values + places, tl.dot(tl.trans(dropped.to(query.dtype)), gradient).to(query.dtype), there)
