"""Attention mutual information compared with plain loops, and its sampling."""

import numpy as np
import pytest
import torch

from informin.objectives.attention_mi import ATTENTION_MI_FORMS, attention_mi
from tests.objectives.attention_mi_helpers import make_maps, same_count, tiles_of, valid_positions


def mutual_information(x, y):
    """-1/2 log(1 - rho^2) of the logarithms of two lists of probabilities."""
    x, y = np.log(np.array(x, dtype=np.float64)), np.log(np.array(y, dtype=np.float64))
    if len(x) < 3 or x.std() == 0 or y.std() == 0:
        return 0.0
    rho = ((x - x.mean()) * (y - y.mean())).mean() / (x.std() * y.std())
    return -0.5 * np.log(max(1 - rho**2, 1e-6))


def loop(maps1, maps2, mask, form, samples=150, draw=None):
    """Return the loss and the number of positions per tile; draw(sentence, tile, positions, n) samples n of them."""
    maps1, maps2 = maps1.detach().float().numpy(), maps2.detach().float().numpy()
    _, layers, heads, width, _ = maps1.shape
    tiles = tiles_of(form, layers, heads)
    valid = {
        (b, k): valid_positions(maps1[b], maps2[b], mask[b], tile, form)
        for b in range(len(mask))
        for k, tile in enumerate(tiles)
    }
    if form == "code":
        enough = {key: positions for key, positions in valid.items() if len(positions) >= samples}
        samples = samples if enough else min(len(positions) for positions in valid.values())
        valid = enough or valid
    values, counts = [], []
    for (b, k), positions in valid.items():
        if len(positions) > samples:
            positions = draw(b, k, positions, samples)
        values.append(mutual_information([maps1[b][p] for p in positions], [maps2[b][p] for p in positions]))
        counts.append(len(positions))
    mean = np.mean(values)
    if form == "code":
        size = len(tiles[0]) * width * width
        share = sum(len(valid_positions(maps1[b], maps2[b], mask[b], tiles[k], form)) for b, k in valid)
        mean *= (share / (len(valid) * size)) ** 2 + 1e-6
    return -mean, np.mean(counts)


def replay(seed, maps, form):
    """Return a function that repeats the sampling with this seed: the valid positions with the largest random keys."""
    batch, layers, heads, width, _ = maps.shape
    tiles = tiles_of(form, layers, heads)
    size = len(tiles[0]) * width * width
    keys = torch.rand((batch, len(tiles), size), generator=torch.Generator().manual_seed(seed)).numpy()

    def draw(b, k, positions, n):
        place = {p: tiles[k].index(p[:2]) * width * width + p[2] * width + p[3] for p in positions}
        return sorted(positions, key=lambda p: -keys[b, k, place[p]])[:n]

    return draw


class TestLoops:
    @pytest.mark.parametrize("dropout", [0.0, 0.2])
    @pytest.mark.parametrize("layers, heads", [(4, 4), (1, 2), (3, 6)])
    def test_paper_form_with_all_positions(self, layers, heads, dropout):
        maps1, maps2, mask = make_maps(layers=layers, heads=heads, dropout=dropout)
        loss, positions = attention_mi(maps1, maps2, mask)
        expected, counts = loop(maps1, maps2, mask, "paper")
        assert loss.item() == pytest.approx(expected, rel=1e-4)
        assert positions.item() == pytest.approx(counts, rel=1e-5)

    @pytest.mark.parametrize("seed", [0, 1, 2])
    def test_paper_form_with_sampled_positions(self, seed):
        maps1, maps2, mask = make_maps(lengths=(12, 11, 5), width=12)
        generator = torch.Generator().manual_seed(seed)
        loss, positions = attention_mi(maps1, maps2, mask, generator=generator)
        expected, counts = loop(maps1, maps2, mask, "paper", draw=replay(seed, maps1, "paper"))
        assert loss.item() == pytest.approx(expected, rel=1e-4)
        assert positions.item() == pytest.approx(counts, rel=1e-5) and counts < 150

    @pytest.mark.parametrize("layers", [2, 4, 6])
    def test_code_form_with_all_positions(self, layers):
        """No tile has 150 positions, so each uses the smallest number of all tiles."""
        maps1, maps2, mask = make_maps(layers=layers)
        same_count(maps1, maps2, 7, layers, heads=4)
        loss, positions = attention_mi(maps1, maps2, mask, "code")
        expected, _ = loop(maps1, maps2, mask, "code")
        assert loss.item() == pytest.approx(expected, rel=1e-4) and loss < 0
        assert positions.item() == 7

    @pytest.mark.parametrize("samples", [20, 30, 40, 150])
    @pytest.mark.parametrize("layers", [2, 4])
    def test_code_form_with_sampled_positions(self, samples, layers):
        """All, some or none of the tiles have enough positions."""
        maps1, maps2, mask = make_maps(layers=layers)
        generator = torch.Generator().manual_seed(5)
        loss, positions = attention_mi(maps1, maps2, mask, "code", samples, generator)
        expected, counts = loop(maps1, maps2, mask, "code", samples, replay(5, maps1, "code"))
        assert loss.item() == pytest.approx(expected, rel=1e-4) and loss < 0
        assert positions.item() == pytest.approx(counts, rel=1e-5)


class TestSampling:
    @pytest.mark.parametrize("form", ATTENTION_MI_FORMS)
    def test_sampled_positions_are_valid_and_equal_in_both_views(self, form):
        """The gradient is nonzero at the sampled positions."""
        maps1, maps2, mask = make_maps(lengths=(12, 8), width=12)
        maps1.requires_grad_(), maps2.requires_grad_()
        loss, positions = attention_mi(maps1, maps2, mask, form, 40, torch.Generator().manual_seed(0))
        loss.backward()
        drawn1, drawn2 = maps1.grad != 0, maps2.grad != 0
        assert torch.equal(drawn1, drawn2)
        assert not drawn1[(maps1 == 0) | (maps2 == 0)].any()
        for b in range(2):
            for tile in tiles_of(form, 4, 4):
                assert sum(int(drawn1[b][place].sum()) for place in tile) == 40
        assert positions.item() == 40 and not positions.requires_grad

    def test_valid_positions_are_sampled_uniformly(self):
        maps1, maps2, mask = make_maps(lengths=(5,), layers=1, heads=2)
        maps1.requires_grad_()
        generator, times = torch.Generator().manual_seed(0), 400
        counts = torch.zeros_like(maps1)
        for _ in range(times):
            gradient = torch.autograd.grad(attention_mi(maps1, maps2, mask, "paper", 10, generator)[0], maps1)[0]
            counts += gradient != 0
        valid = (maps1 > 0) & (maps2 > 0) & (mask[0, :, None] & mask[0]).bool()
        chance = 10 / valid.sum()
        assert not counts[~valid].any()
        spread = (chance * (1 - chance) / times).sqrt()
        assert ((counts[valid] / times - chance).abs() < 4.5 * spread).all()

    def test_generator_determines_the_sample(self):
        maps1, maps2, mask = make_maps(lengths=(12, 12), width=12)

        def loss(seed):
            return attention_mi(maps1, maps2, mask, generator=torch.Generator().manual_seed(seed))[0]

        before = torch.get_rng_state()
        assert loss(1) == loss(1) and loss(1) != loss(2)
        assert torch.equal(torch.get_rng_state(), before)

    def test_number_of_positions_shows_short_sentences(self):
        for length, expected in ((2, 8), (6, 72), (8, 128), (9, 150), (12, 150)):
            maps1, maps2, mask = make_maps(lengths=(length,) * 3, width=12, dropout=0.0)
            assert attention_mi(maps1, maps2, mask)[1].item() == expected

    def test_code_form_skips_small_tiles_unless_all_are_small(self):
        """Sentences of 6, 4 and 3 tokens have 72, 48 and 36 valid positions per tile, including padding as queries."""
        maps1, maps2, mask = make_maps(dropout=0.0)
        for samples, used, drawn in ((72, [0], 72), (48, [0, 1], 48), (40, [0, 1], 40), (73, [0, 1, 2], 36)):
            left = maps1.clone().requires_grad_()
            loss, positions = attention_mi(left, maps2, mask, "code", samples)
            loss.backward()
            assert left.grad.flatten(1).any(-1).nonzero().flatten().tolist() == used
            assert positions.item() == drawn
