"""Each term four ways: a plain numpy loop of the paper, a closed form, an invariance, an error."""

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from informin.errors import UsageError
from informin.objectives import RECONSTRUCTION_FORMS, contrast, masked_lm, reconstruction


@pytest.fixture
def views():
    generator = torch.Generator().manual_seed(0)
    z1 = torch.randn(7, 12, generator=generator)
    return z1, z1 + 0.5 * torch.randn(7, 12, generator=generator)


def cosine(a, b):
    return float(np.dot(a, b) / np.sqrt(np.dot(a, a) * np.dot(b, b)))


class TestContrast:
    @pytest.mark.parametrize("temperature", [0.05, 1.0])
    def test_numpy_loop(self, views, temperature):
        z1, z2 = (z.double().numpy() for z in views)
        total = 0.0
        for i in range(len(z1)):
            scores = [np.exp(cosine(z1[i], z2[k]) / temperature) for k in range(len(z2))]
            total -= np.log(scores[i] / sum(scores))
        assert contrast(*views, temperature).item() == pytest.approx(total / len(z1), rel=1e-5)

    def test_closed_form_all_sentences_alike(self):
        """With nothing to tell sentences apart every candidate is as likely: log N."""
        z = torch.ones(8, 4)
        assert contrast(z, z).item() == pytest.approx(np.log(8), rel=1e-6)

    def test_closed_form_orthogonal_sentences(self):
        """cos 1 to itself and 0 to the others: log(1 + (N - 1) exp(-1 / temperature))."""
        z = torch.eye(5)
        assert contrast(z, z, 0.5).item() == pytest.approx(np.log(1 + 4 * np.exp(-2)), rel=1e-5)

    def test_lengths_and_rotation_do_not_matter(self, views):
        z1, z2 = views
        rotation = torch.linalg.qr(torch.randn(12, 12, generator=torch.Generator().manual_seed(1)))[0]
        expected = contrast(z1, z2)
        torch.testing.assert_close(contrast(3 * z1, torch.rand(7, 1) * z2), expected)
        torch.testing.assert_close(contrast(z1 @ rotation, z2 @ rotation), expected, atol=1e-4, rtol=1e-4)

    def test_order_of_sentences_does_not_matter_but_pairing_does(self, views):
        z1, z2 = views
        order = torch.tensor([3, 1, 0, 6, 5, 2, 4])
        torch.testing.assert_close(contrast(z1[order], z2[order]), contrast(z1, z2))
        assert contrast(z1[order], z2) > contrast(z1, z2) + 1

    def test_bfloat16_is_computed_in_float32(self, views):
        z1, z2 = (z.bfloat16() for z in views)
        torch.testing.assert_close(contrast(z1, z2), contrast(z1.float(), z2.float()))

    def test_one_sentence_is_an_error(self):
        for queue in (None, torch.ones(3, 4)):
            with pytest.raises(UsageError, match="batch of 1 sentence and so no negatives"):
                contrast(torch.ones(1, 4), torch.ones(1, 4), queue=queue)


class TestContrastWithAQueue:
    @pytest.fixture
    def queue(self):
        return torch.randn(5, 12, generator=torch.Generator().manual_seed(2))

    def test_numpy_loop(self, views, queue):
        z1, z2, further = (z.double().numpy() for z in (*views, queue))
        total = 0.0
        for i in range(len(z1)):
            scores = [np.exp(cosine(z1[i], candidate) / 0.2) for candidate in [*z2, *further]]
            total -= np.log(scores[i] / sum(scores))
        assert contrast(*views, 0.2, queue).item() == pytest.approx(total / len(z1), rel=1e-5)

    def test_an_anchors_own_sentence_is_no_candidate(self, views, queue):
        """The numpy loop once more; a place that holds another anchor's sentence stays this one's negative."""
        same = torch.zeros(len(views[0]), 5, dtype=torch.bool)
        same[0, 3] = same[1, 3] = same[2, 0] = True
        z1, z2, further = (z.double().numpy() for z in (*views, queue))
        total = 0.0
        for i in range(len(z1)):
            candidates = [*z2, *(further[k] for k in range(5) if not same[i, k])]
            scores = [np.exp(cosine(z1[i], candidate) / 0.2) for candidate in candidates]
            total -= np.log(scores[i] / sum(scores))
        assert contrast(*views, 0.2, queue, same).item() == pytest.approx(total / len(z1), rel=1e-5)
        torch.testing.assert_close(contrast(*views, 0.2, queue, ~same & False), contrast(*views, 0.2, queue))

    def test_closed_form_all_alike(self):
        """Every candidate is as likely: log of 8 in the batch and 5 in the queue."""
        z = torch.ones(8, 4)
        assert contrast(z, z, queue=torch.ones(5, 4)).item() == pytest.approx(np.log(13), rel=1e-6)

    def test_places_not_filled_are_left_out(self, views, queue):
        z1, z2 = (z.clone().requires_grad_() for z in views)
        empty = torch.zeros(20, 12)
        contrast(z1, z2, queue=empty).backward()
        plain = [z.clone().requires_grad_() for z in views]
        contrast(*plain).backward()
        torch.testing.assert_close([z1.grad, z2.grad], [z.grad for z in plain])
        torch.testing.assert_close(contrast(*views, queue=empty), contrast(*views))
        half = torch.cat([queue, empty])
        torch.testing.assert_close(contrast(*views, 0.2, half), contrast(*views, 0.2, queue))

    def test_order_and_lengths_in_it_do_not_matter(self, views, queue):
        expected = contrast(*views, 0.2, queue)
        torch.testing.assert_close(contrast(*views, 0.2, queue.flip(0)), expected)
        torch.testing.assert_close(contrast(*views, 0.2, queue * torch.tensor([[5.0], [1], [2], [0.1], [9]])), expected)
        torch.testing.assert_close(contrast(*views, 0.2, queue.bfloat16()), expected, rtol=1e-2, atol=1e-2)

    def test_pushes_anchors_away_from_it_and_has_no_gradient(self, views, queue):
        z1, kept = views[0].clone().requires_grad_(), queue.clone().requires_grad_()
        loss = contrast(z1, views[1], 0.2, kept) - contrast(z1, views[1], 0.2)
        with torch.no_grad():
            kept[:] = 7  # the model puts the batch into its queue before the backward pass
        loss.backward()
        assert loss > 0 and kept.grad is None
        with torch.no_grad():
            before, after = (normalize(z) @ normalize(queue).T / 0.2 for z in (z1, z1 - 0.1 * z1.grad))
        assert after.logsumexp(-1).mean() < before.logsumexp(-1).mean()


class TestReconstruction:
    def test_numpy_loops(self, views):
        z1, z2 = (z.double().numpy() for z in views)
        n, d = z1.shape
        squared = unit = reference = 0.0
        for a, b in zip(z1, z2):
            squared += sum((a[j] - b[j]) ** 2 for j in range(d)) / n
            u, v = a / np.sqrt(np.dot(a, a)), b / np.sqrt(np.dot(b, b))
            unit += sum((u[j] - v[j]) ** 2 for j in range(d)) / n
            reference += sum((u[j] - v[j]) ** 2 + (v[j] - u[j]) ** 2 for j in range(d)) / (n * d)
        assert reconstruction(*views, "squared_l2").item() == pytest.approx(squared, rel=1e-5)
        assert reconstruction(*views, "unit_squared_l2").item() == pytest.approx(unit, rel=1e-5)
        assert reconstruction(*views, "reference").item() == pytest.approx(reference, rel=1e-5)

    def test_closed_forms_in_the_cosine(self, views):
        """2 (1 - cos) and 4 (1 - cos) / d: at d = 12, 6 times weaker for the same lambda."""
        z1, z2 = views
        distance = 1 - torch.cosine_similarity(z1, z2).mean()
        torch.testing.assert_close(reconstruction(z1, z2, "unit_squared_l2"), 2 * distance)
        torch.testing.assert_close(reconstruction(z1, z2, "reference"), 4 * distance / 12)

    @pytest.mark.parametrize("form", RECONSTRUCTION_FORMS)
    def test_minimising_pulls_the_views_together(self, views, form):
        """The sign that the paper prints would push them apart."""
        z1, z2 = views[0].clone().requires_grad_(), views[1]
        reconstruction(z1, z2, form).backward()
        moved = z1 - 0.1 * z1.grad
        assert torch.cosine_similarity(moved, z2).mean() > torch.cosine_similarity(z1, z2).mean()

    @pytest.mark.parametrize("form", RECONSTRUCTION_FORMS)
    def test_symmetric_and_zero_for_identical_views(self, views, form):
        torch.testing.assert_close(reconstruction(*views, form), reconstruction(*views[::-1], form))
        assert reconstruction(views[0], views[0], form).item() == 0

    def test_only_the_raw_form_feels_the_length(self, views):
        z1, z2 = views
        half = {form: reconstruction(z1 / 2, z2 / 2, form) for form in RECONSTRUCTION_FORMS}
        full = {form: reconstruction(z1, z2, form) for form in RECONSTRUCTION_FORMS}
        torch.testing.assert_close(half["squared_l2"], full["squared_l2"] / 4)
        torch.testing.assert_close(half["unit_squared_l2"], full["unit_squared_l2"])
        torch.testing.assert_close(half["reference"], full["reference"])

    def test_unknown_form_is_an_error(self, views):
        with pytest.raises(UsageError, match=r"Unknown reconstruction form 'l1'\. Use one of: squared_l2"):
            reconstruction(*views, "l1")


class TestMaskedLM:
    def test_numpy_loop(self):
        logits = torch.randn(6, 9, generator=torch.Generator().manual_seed(0))
        labels = torch.tensor([3, 0, 8, 8, 1, 5])
        total = 0.0
        for row, label in zip(logits.double().numpy(), labels.tolist()):
            total -= row[label] - np.log(np.exp(row).sum())
        assert masked_lm(logits, labels).item() == pytest.approx(total / 6, rel=1e-5)

    def test_closed_form_know_nothing(self):
        assert masked_lm(torch.zeros(4, 50), torch.arange(4)).item() == pytest.approx(np.log(50), rel=1e-6)

    def test_a_constant_added_to_the_logits_does_not_matter(self):
        logits = torch.randn(6, 9, generator=torch.Generator().manual_seed(0))
        labels = torch.arange(6)
        torch.testing.assert_close(masked_lm(logits + 5, labels), masked_lm(logits, labels))

    def test_nothing_masked_is_zero_and_has_a_gradient(self):
        logits = torch.zeros(0, 9, requires_grad=True)
        loss = masked_lm(logits, torch.zeros(0, dtype=torch.long))
        loss.backward()
        assert loss.item() == 0 and logits.grad.shape == (0, 9)

    def test_label_outside_the_vocabulary_is_an_error(self):
        with pytest.raises(IndexError, match="out of bounds"):
            masked_lm(torch.zeros(1, 9), torch.tensor([9]))


def test_gradients_by_finite_differences(views):
    """float32 inside, so the tolerance is loose; a wrong sign or factor is far outside it."""
    for loss in (lambda a, b: contrast(a, b, 0.5), lambda a, b: reconstruction(a, b, "unit_squared_l2")):
        z1, z2 = (normalize(z).requires_grad_() for z in views)
        loss(z1, z2).backward()
        direction = torch.randn(z2.shape, generator=torch.Generator().manual_seed(3))
        with torch.no_grad():
            slope = (loss(z1, z2 + 1e-2 * direction) - loss(z1, z2 - 1e-2 * direction)) / 2e-2
        torch.testing.assert_close(slope, (z2.grad * direction).sum(), rtol=0.02, atol=1e-3)
