"""Attention mutual information: closed forms, invariances, gradients and errors."""

from functools import partial

import numpy as np
import pytest
import torch

from informin.objectives.attention_mi import ATTENTION_MI_FORMS, attention_layers, attention_mi
from tests.conftest import raises_usage
from tests.objectives.attention_mi_helpers import make_maps, same_count

LIMIT = -0.5 * np.log(1e-6)  # maximum mutual information of a tile


@pytest.fixture
def batch():
    return make_maps()


class TestClosedForms:
    def test_identical_views_reach_the_maximum_without_gradient(self):
        maps1, _, mask = make_maps(dropout=0.0)
        maps1.requires_grad_()
        maps2 = maps1.detach().clone().requires_grad_()
        loss, _ = attention_mi(maps1, maps2, mask)
        loss.backward()
        assert loss.item() == pytest.approx(-LIMIT, rel=1e-5) and LIMIT == pytest.approx(6.9078, abs=1e-4)
        assert not maps1.grad.any() and not maps2.grad.any()

    def test_identical_views_in_the_code_form_are_scaled(self):
        """With sentences of 6, 4 and 3 tokens padded to 6, 13/18 of all positions attend to tokens."""
        maps1, _, mask = make_maps(dropout=0.0)
        loss, _ = attention_mi(maps1, maps1, mask, "code")
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
        for form in ATTENTION_MI_FORMS:
            loss, _ = attention_mi(maps1, maps2, mask, form)
            loss.backward()
            assert loss.item() == 0 and not maps1.grad.any()


class TestInvariances:
    @pytest.mark.parametrize("form", ATTENTION_MI_FORMS)
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

    def test_pairing_of_layers_matters_in_the_code_form(self):
        maps1, maps2, mask = make_maps(dropout=0.0, lengths=(6, 6, 6))
        expected = attention_mi(maps1, maps2, mask, "code")[0]
        for order, alike in (([2, 1, 0, 3], True), ([1, 0, 3, 2], True), ([1, 0, 2, 3], False)):
            changed = attention_mi(maps1[:, order], maps2[:, order], mask, "code")[0]
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
            assert attention_mi(*rows, mask, "code")[0] != attention_mi(maps1, maps2, mask, "code")[0]

    def test_mean_over_processes_equals_the_joined_batch(self):
        """Each process pads to its own longest sentence, and the form `paper` is a mean over sentences."""
        maps1, maps2, mask = make_maps(lengths=(6, 5, 4, 3))
        short = attention_mi(maps1[2:, ..., :4, :4], maps2[2:, ..., :4, :4], mask[2:, :4])[0]
        two = (attention_mi(maps1[:2], maps2[:2], mask[:2])[0] + short) / 2
        torch.testing.assert_close(two, attention_mi(maps1, maps2, mask)[0])


class TestGradient:
    @pytest.mark.parametrize("form", ATTENTION_MI_FORMS)
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

    @pytest.mark.parametrize("form", ATTENTION_MI_FORMS)
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
        for form in ATTENTION_MI_FORMS:
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
        assert self.finite(torch.zeros_like(maps1), maps2, mask) == {"paper": 0, "code": 0}

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
    @pytest.mark.parametrize("form", ATTENTION_MI_FORMS)
    def test_half_precision_and_autocast_are_computed_in_float32(self, batch, dtype, form):
        maps1, maps2, mask = (maps.to(dtype) for maps in batch)
        loss = partial(attention_mi, mask=mask, form=form)
        expected = loss(maps1.float(), maps2.float(), generator=torch.Generator().manual_seed(0))[0]
        with torch.autocast("cpu", torch.bfloat16):
            value = loss(maps1.requires_grad_(), maps2, generator=torch.Generator().manual_seed(0))[0]
        value.backward()
        assert value.dtype == torch.float32 and value.item() == pytest.approx(expected.item(), rel=1e-5)
        assert maps1.grad.dtype == dtype and maps1.grad.isfinite().all()


class TestErrors:
    def test_odd_number_of_heads_is_an_error(self):
        maps1, maps2, mask = make_maps(heads=3)
        with raises_usage(option="attention_mi_form"):
            attention_mi(maps1, maps2, mask)
        assert attention_mi(maps1, maps2, mask, "code")[0] < 0

    def test_odd_number_of_layers_is_an_error(self):
        maps1, maps2, mask = make_maps(layers=3)
        with raises_usage(option="attention_mi_form"):
            attention_mi(maps1, maps2, mask, "code")

    def test_unknown_form(self, batch):
        with raises_usage(option="attention_mi_form"):
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
        with raises_usage(option="attention_mi_layers"):
            attention_layers(12, chosen)
