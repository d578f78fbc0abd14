"""Attention maps, and a plain implementation of attention mutual information with loops."""

import numpy as np
import torch

LENGTHS = (6, 4, 3)


def make_maps(lengths=LENGTHS, layers=4, heads=4, width=6, dropout=0.2, seed=0):
    """Return attention maps of two views like those of BERT after dropout, and the mask. Attention to padding is 0."""
    generator = torch.Generator().manual_seed(seed)
    shape = (len(lengths), layers, heads, width, width)
    mask = (torch.arange(width) < torch.tensor(lengths)[:, None]).long()
    logits = torch.randn(shape, generator=generator)
    maps = []
    for _ in range(2):
        view = logits + 0.7 * torch.randn(shape, generator=generator)
        attention = view.masked_fill(mask[:, None, None, None] == 0, -torch.inf).softmax(-1)
        maps.append(attention * (torch.rand(shape, generator=generator) >= dropout) / (1 - dropout))
    return *maps, mask


def tiles_of(form, layers, heads):
    """Return the (layer, head) pairs of each tile, as pooled in the paper or in the released code."""
    if form == "paper":
        return [[(t, h), (t, h + 1)] for t in range(layers) for h in range(0, heads, 2)]
    return [[(t, h) for t in range(first, layers, 2)] for first in (0, 1) for h in range(heads)]


def valid_positions(x, y, mask, tile, form):
    """Return the indices (layer, head, query, key) of valid positions; in the paper's form, only of tokens."""
    width = len(mask)
    return [
        (t, h, i, j)
        for t, h in tile
        for i in range(width)
        for j in range(width)
        if x[t, h, i, j] > 0 and y[t, h, i, j] > 0 and (form == "code" or (mask[i] and mask[j]))
    ]


def same_count(maps1, maps2, count, layers, heads):
    """Set attention to 0 until every tile of the form `code` has this many valid positions."""
    for b in range(len(maps1)):
        for tile in tiles_of("code", layers, heads):
            x, y = maps1[b].numpy(), maps2[b].numpy()
            for place in valid_positions(x, y, np.ones(maps1.shape[-1]), tile, "code")[count:]:
                maps1[b][place] = 0.0
