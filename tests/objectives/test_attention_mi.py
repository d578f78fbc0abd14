"""Attention mutual information: numpy loops of both forms, closed forms, invariances, sampling, edge cases, errors."""

from functools import partial

import numpy as np
import pytest
import torch

from informin.objectives.attention_mi import FORMS, attention_layers, attention_mi
from tests.conftest import raises_usage

LENGTHS = (6, 4, 3)
LIMIT = -0.5 * np.log(1e-6)  # maximum mutual information of a tile


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


@pytest.fixture
def batch():
    return make_maps()


def mutual_information(x, y):
    """-1/2 log(1 - rho^2) of the logarithms of two lists of probabilities."""
    x, y = np.log(np.array(x, dtype=np.float64)), np.log(np.array(y, dtype=np.float64))
    if len(x) < 3 or x.std() == 0 or y.std() == 0:
        return 0.0
    rho = ((x - x.mean()) * (y - y.mean())).mean() / (x.std() * y.std())
    return -0.5 * np.log(max(1 - rho**2, 1e-6))


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
        if x[t, h, i, j] > 0 and y[t, h, i, j] > 0 and (form == "reference" or (mask[i] and mask[j]))
    ]


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
    if form == "reference":
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
    if form == "reference":
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


def same_count(maps1, maps2, count, layers, heads):
    """Set attention to 0 until every tile of the form `reference` has this many valid positions."""
    for b in range(len(maps1)):
        for tile in tiles_of("reference", layers, heads):
            x, y = maps1[b].numpy(), maps2[b].numpy()
            for place in valid_positions(x, y, np.ones(maps1.shape[-1]), tile, "reference")[count:]:
                maps1[b][place] = 0.0


class TestLoops:
    @pytest.mark.parametrize("dropout", [0.0, 0.2])
    @pytest.mark.parametrize("layers, heads", [(4, 4), (1, 2), (3, 6)])
    def test_paper_form_with_all_positions(self, layers, heads, dropout):
        maps1, maps2, mask = make_maps(layers=layers, heads=heads, dropout=dropout)
        loss, positions = attention_mi(maps1, maps2, mask)
        expected, counts = loop(maps1, maps2, mask, "paper")
        assert loss.item() == pytest.approx(expected, rel=1e-4)
        assert positions.item() == pytest.approx(counts)

    @pytest.mark.parametrize("seed", [0, 1, 2])
    def test_paper_form_with_sampled_positions(self, seed):
        maps1, maps2, mask = make_maps(lengths=(12, 11, 5), width=12)
        generator = torch.Generator().manual_seed(seed)
        loss, positions = attention_mi(maps1, maps2, mask, generator=generator)
        expected, counts = loop(maps1, maps2, mask, "paper", draw=replay(seed, maps1, "paper"))
        assert loss.item() == pytest.approx(expected, rel=1e-4)
        assert positions.item() == pytest.approx(counts) and counts < 150

    @pytest.mark.parametrize("layers", [2, 4, 6])
    def test_reference_form_with_all_positions(self, layers):
        """No tile has 150 positions, so each uses the smallest number of all tiles."""
        maps1, maps2, mask = make_maps(layers=layers)
        same_count(maps1, maps2, 7, layers, heads=4)
        loss, positions = attention_mi(maps1, maps2, mask, "reference")
        expected, _ = loop(maps1, maps2, mask, "reference")
        assert loss.item() == pytest.approx(expected, rel=1e-4) and loss < 0
        assert positions.item() == 7

    @pytest.mark.parametrize("samples", [20, 30, 40, 150])
    @pytest.mark.parametrize("layers", [2, 4])
    def test_reference_form_with_sampled_positions(self, samples, layers):
        """All, some or none of the tiles have enough positions."""
        maps1, maps2, mask = make_maps(layers=layers)
        generator = torch.Generator().manual_seed(5)
        loss, positions = attention_mi(maps1, maps2, mask, "reference", samples, generator)
        expected, counts = loop(maps1, maps2, mask, "reference", samples, replay(5, maps1, "reference"))
        assert loss.item() == pytest.approx(expected, rel=1e-4) and loss < 0
        assert positions.item() == pytest.approx(counts)


class TestClosedForms:
    def test_identical_views_reach_the_maximum_without_gradient(self):
        maps1, _, mask = make_maps(dropout=0.0)
        maps1.requires_grad_()
        maps2 = maps1.detach().clone().requires_grad_()
        loss, _ = attention_mi(maps1, maps2, mask)
        loss.backward()
        assert loss.item() == pytest.approx(-LIMIT, rel=1e-5) and LIMIT == pytest.approx(6.9078, abs=1e-4)
        assert not maps1.grad.any() and not maps2.grad.any()

    def test_identical_views_in_the_reference_form_are_scaled(self):
        """With sentences of 6, 4 and 3 tokens padded to 6, 13/18 of all positions attend to tokens."""
        maps1, _, mask = make_maps(dropout=0.0)
        loss, _ = attention_mi(maps1, maps1, mask, "reference")
        assert loss.item() == pytest.approx(-LIMIT * ((13 / 18) ** 2 + 1e-6), rel=1e-5)

    def test_inverted_views_have_the_same_value(self):
        """rho = -1: mutual information does not depend on the sign of the correlation."""
        maps1, _, mask = make_maps(dropout=0.0)
        maps2 = torch.where(maps1 > 0, 1 / maps1, 0)
        assert attention_mi(maps1, maps2, mask)[0].item() == pytest.approx(-LIMIT, rel=1e-5)

    def test_known_correlation(self):
        """The logarithms are mixtures of independent numbers with rho = 0.6, so MI = -1/2 log 0.64."""
        a = torch.tensor([1.0, 1.0, -1.0, -1.0]).repeat(2)
        b = torch.tensor([1.0, -1.0, 1.0, -1.0]).repeat(2)
        shape = (1, 1, 2, 2, 2)
        loss, positions = attention_mi(
            a.exp().reshape(shape), (0.6 * a + 0.8 * b).exp().reshape(shape), torch.ones(1, 2)
        )
        assert loss.item() == pytest.approx(0.5 * np.log(0.64), rel=1e-5) and positions.item() == 8

    def test_views_without_variance_have_value_zero(self):
        """Uniform attention has the value 0, and rounding of its logarithms gives no gradient."""
        _, maps2, mask = make_maps(lengths=(6, 6, 6), dropout=0.0)
        maps1 = torch.full_like(maps2, 1 / 6).requires_grad_()
        for form in FORMS:
            loss, _ = attention_mi(maps1, maps2, mask, form)
            loss.backward()
            assert loss.item() == 0 and not maps1.grad.any()


class TestInvariances:
    @pytest.mark.parametrize("form", FORMS)
    def test_invariant_to_scale_power_and_exchange_of_views(self, batch, form):
        maps1, maps2, mask = batch
        ami = partial(attention_mi, mask=mask, form=form)

        def loss(a, b):
            return ami(a, b, generator=torch.Generator().manual_seed(0))[0]

        expected = loss(maps1, maps2)
        torch.testing.assert_close(loss(3 * maps1, maps2 / 7), expected, rtol=1e-4, atol=0)
        torch.testing.assert_close(loss(maps1**2, maps2), expected, rtol=1e-4, atol=0)
        torch.testing.assert_close(loss(maps2, maps1), expected, rtol=1e-4, atol=0)

    def test_invariant_to_order_of_sentences_layers_and_head_pairs(self, batch):
        maps1, maps2, mask = batch
        expected = attention_mi(maps1, maps2, mask)[0]
        for order in ([2, 0, 1], [1, 0, 2]):
            torch.testing.assert_close(attention_mi(maps1[order], maps2[order], mask[order])[0], expected)
        for axis, order in ((1, [3, 1, 0, 2]), (2, [2, 3, 0, 1]), (2, [1, 0, 3, 2])):
            moved = (maps.index_select(axis, torch.tensor(order)) for maps in (maps1, maps2))
            torch.testing.assert_close(attention_mi(*moved, mask)[0], expected)

    def test_pairing_of_heads_matters(self, batch):
        maps1, maps2, mask = batch
        crossed = [0, 2, 1, 3]
        changed = attention_mi(maps1[:, :, crossed], maps2[:, :, crossed], mask)[0]
        assert abs(changed - attention_mi(maps1, maps2, mask)[0]) > 1e-3

    def test_pairing_of_layers_matters_in_the_reference_form(self):
        maps1, maps2, mask = make_maps(dropout=0.0, lengths=(6, 6, 6))
        expected = attention_mi(maps1, maps2, mask, "reference")[0]
        for order, alike in (([2, 1, 0, 3], True), ([1, 0, 3, 2], True), ([1, 0, 2, 3], False)):
            changed = attention_mi(maps1[:, order], maps2[:, order], mask, "reference")[0]
            assert (abs(changed - expected) < 1e-5) == alike

    def test_paper_form_ignores_padding(self, batch):
        """The rows of padding are not zero: they are a softmax over the tokens, like all rows."""
        maps1, maps2, mask = batch
        real = (mask[:, :, None] & mask[:, None, :]).bool()[:, None, None]
        expected = attention_mi(maps1, maps2, mask)[0]
        assert (maps1[1, :, :, 4:] > 0).any() and not maps1[1, :, :, :, 4:].any()
        for seed in range(3):
            torch.manual_seed(seed)
            garbage = [torch.where(real, maps, torch.rand(maps.shape)) for maps in (maps1, maps2)]
            torch.testing.assert_close(attention_mi(*garbage, mask)[0], expected)
            rows = [maps * real.any(-1, keepdim=True) for maps in (maps1, maps2)]
            assert attention_mi(*rows, mask, "reference")[0] != attention_mi(maps1, maps2, mask, "reference")[0]

    def test_mean_over_processes_equals_the_joined_batch(self):
        """Each process pads to its own longest sentence, and the form `paper` is a mean over sentences."""
        maps1, maps2, mask = make_maps(lengths=(6, 5, 4, 3))
        short = attention_mi(maps1[2:, ..., :4, :4], maps2[2:, ..., :4, :4], mask[2:, :4])[0]
        two = (attention_mi(maps1[:2], maps2[:2], mask[:2])[0] + short) / 2
        torch.testing.assert_close(two, attention_mi(maps1, maps2, mask)[0])


class TestSampling:
    @pytest.mark.parametrize("form", FORMS)
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

    def test_reference_form_skips_small_tiles_unless_all_are_small(self):
        """Sentences of 6, 4 and 3 tokens have 72, 48 and 36 valid positions per tile, including padding as queries."""
        maps1, maps2, mask = make_maps(dropout=0.0)
        for samples, used, drawn in ((72, [0], 72), (48, [0, 1], 48), (40, [0, 1], 40), (73, [0, 1, 2], 36)):
            left = maps1.clone().requires_grad_()
            loss, positions = attention_mi(left, maps2, mask, "reference", samples)
            loss.backward()
            assert left.grad.flatten(1).any(-1).nonzero().flatten().tolist() == used
            assert positions.item() == drawn


class TestGradient:
    @pytest.mark.parametrize("form", FORMS)
    def test_finite_differences(self, form):
        """The loss uses float32, so the tolerance is loose; a wrong sign or factor still fails."""
        maps1, maps2, mask = make_maps(lengths=(6, 5, 4))
        same_count(maps1, maps2, 15, 4, 4)
        maps = [maps1.requires_grad_(), maps2.requires_grad_()]
        attention_mi(*maps, mask, form)[0].backward()
        generator = torch.Generator().manual_seed(3)
        steps = [2e-2 * m.detach() * torch.randn(m.shape, generator=generator) for m in maps]
        with torch.no_grad():
            ahead, behind = ([m + sign * s for m, s in zip(maps, steps)] for sign in (1, -1))
            slope = (attention_mi(*ahead, mask, form)[0] - attention_mi(*behind, mask, form)[0]) / 2
        expected = sum((m.grad * s).sum() for m, s in zip(maps, steps))
        torch.testing.assert_close(slope, expected, rtol=0.02, atol=1e-5)

    @pytest.mark.parametrize("form", FORMS)
    def test_minimizing_raises_the_mutual_information(self, batch, form):
        maps1, maps2, mask = batch
        maps1.requires_grad_()
        seeded = partial(attention_mi, maps2=maps2, mask=mask, form=form)
        before = seeded(maps1, generator=torch.Generator().manual_seed(0))[0]
        before.backward()
        moved = maps1 * torch.exp(-0.5 * maps1.grad * maps1)  # stays positive
        after = seeded(moved, generator=torch.Generator().manual_seed(0))[0]
        assert after < before < 0

    def test_gradient_is_zero_at_padding_and_dropped_positions(self, batch):
        maps1, maps2, mask = batch
        maps1.requires_grad_(), maps2.requires_grad_()
        attention_mi(maps1, maps2, mask)[0].backward()
        valid = (maps1 > 0) & (maps2 > 0) & (mask[:, :, None] & mask[:, None, :]).bool()[:, None, None]
        assert torch.equal(maps1.grad != 0, valid) and torch.equal(maps2.grad != 0, valid)


class TestSafety:
    def finite(self, maps1, maps2, mask):
        """Return the losses of both forms, after checking that their gradients are finite."""
        losses = {}
        for form in FORMS:
            pair = [maps.detach().clone().requires_grad_() for maps in (maps1, maps2)]
            loss, positions = attention_mi(*pair, mask, form)
            loss.backward()
            assert loss.isfinite() and positions.isfinite()
            assert all(maps.grad.isfinite().all() for maps in pair)
            losses[form] = loss.item()
        return losses

    def test_nearly_equal_views(self):
        maps1, _, mask = make_maps(dropout=0.0)
        for noise in (1e-1, 1e-2, 1e-3, 1e-4, 1e-5):
            loss = self.finite(maps1, maps1 * (1 + noise * torch.rand(maps1.shape)), mask)
            assert -LIMIT - 1e-4 < loss["paper"] < -1
        assert loss["paper"] == pytest.approx(-LIMIT, rel=1e-5)

    def test_all_attention_dropped(self, batch):
        maps1, maps2, mask = batch
        assert self.finite(torch.zeros_like(maps1), maps2, mask) == {"paper": 0, "reference": 0}

    def test_very_short_sentences(self):
        """[CLS] [SEP] has 8 positions per tile. With only 2 positions, the correlation would always be perfect."""
        maps1, maps2, mask = make_maps(lengths=(3, 2, 1), dropout=0.0)
        assert -LIMIT < self.finite(maps1, maps2, mask)["paper"] < 0
        assert attention_mi(maps1[2:], maps2[2:], mask[2:])[0] == 0

    def test_tiny_probabilities_count_as_dropped(self):
        """A softmax in float32 can be as small as 1e-45, and 1/x of that is infinite."""
        maps1, maps2, mask = make_maps(lengths=(6, 6, 6), dropout=0.0)
        maps1[..., 2], maps2[..., 4] = 1e-42, 1e-31
        self.finite(maps1, maps2, mask)
        dropped = [maps.where(maps > 1e-30, 0) for maps in (maps1, maps2)]
        torch.testing.assert_close(attention_mi(maps1, maps2, mask)[0], attention_mi(*dropped, mask)[0])

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    @pytest.mark.parametrize("form", FORMS)
    def test_half_precision_and_autocast_are_computed_in_float32(self, batch, dtype, form):
        maps1, maps2, mask = (maps.to(dtype) for maps in batch)
        loss = partial(attention_mi, mask=mask, form=form)
        expected = loss(maps1.float(), maps2.float(), generator=torch.Generator().manual_seed(0))[0]
        with torch.autocast("cpu", torch.bfloat16):
            value = loss(maps1.requires_grad_(), maps2, generator=torch.Generator().manual_seed(0))[0]
        value.backward()
        assert value.dtype == torch.float32 and value.item() == pytest.approx(expected.item(), rel=1e-6)
        assert maps1.grad.dtype == dtype and maps1.grad.isfinite().all()


class TestErrors:
    def test_odd_number_of_heads_is_an_error(self):
        maps1, maps2, mask = make_maps(heads=3)
        with raises_usage(option="attention_mi_form", found="3 heads per layer", fix="an even number of heads"):
            attention_mi(maps1, maps2, mask)
        assert attention_mi(maps1, maps2, mask, "reference")[0] < 0

    def test_odd_number_of_layers_is_an_error(self):
        maps1, maps2, mask = make_maps(layers=3)
        with raises_usage(option="attention_mi_form", found="3 are selected", fix="an even number of layers"):
            attention_mi(maps1, maps2, mask, "reference")

    def test_unknown_form(self, batch):
        with raises_usage(option="attention_mi_form", found="is l1", needed="one of: paper, reference"):
            attention_mi(*batch, "l1")


class TestLayers:
    @pytest.mark.parametrize(
        "number, expected",
        [(1, [0]), (2, [0, 1]), (3, [1, 2]), (6, [4, 5]), (12, [8, 9, 10, 11]), (24, list(range(16, 24)))],
    )
    def test_default_layers_are_the_upper_third(self, number, expected):
        assert attention_layers(number) == expected

    def test_chosen_layers_are_used(self):
        assert attention_layers(12, [7, 8, 9, 10]) == [7, 8, 9, 10]
        assert attention_layers(12, [0, 11]) == [0, 11]

    @pytest.mark.parametrize("chosen", [[], [11, 12], [-1, 3], [8, 8], [9, 8]])
    def test_layers_that_cannot_be_used_are_an_error(self, chosen):
        with raises_usage(
            option="attention_mi_layers", found="the encoder has 12 layers", needed="one or more of 0 to 11"
        ):
            attention_layers(12, chosen)
