"""Contrast: a numpy loop of the paper, closed forms, invariances, errors."""

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from informin.objectives.contrast import contrast
from tests.conftest import raises_usage
from tests.objectives.conftest import assert_gradient


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

    def test_closed_form_equal_sentences(self):
        """All candidates are equally likely: log N."""
        z = torch.ones(8, 4)
        assert contrast(z, z).item() == pytest.approx(np.log(8), rel=1e-5)

    def test_closed_form_orthogonal_sentences(self):
        """Cosine 1 with itself and 0 with the others: log(1 + (N - 1) exp(-1 / temperature))."""
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
            with raises_usage():
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

    def test_queue_masks_own_sentence(self, views, queue):
        """Compare with a numpy loop: only an anchor's own sentence is masked."""
        own = torch.zeros(len(views[0]), 5, dtype=torch.bool)
        own[0, 3] = own[1, 3] = own[2, 0] = True
        z1, z2, further = (z.double().numpy() for z in (*views, queue))
        total = 0.0
        for i in range(len(z1)):
            candidates = [*z2, *(further[k] for k in range(5) if not own[i, k])]
            scores = [np.exp(cosine(z1[i], candidate) / 0.2) for candidate in candidates]
            total -= np.log(scores[i] / sum(scores))
        assert contrast(*views, 0.2, queue, own).item() == pytest.approx(total / len(z1), rel=1e-5)
        torch.testing.assert_close(contrast(*views, 0.2, queue, ~own & False), contrast(*views, 0.2, queue))

    def test_closed_form_equal_embeddings(self):
        """All candidates are equally likely: log of 8 in the batch plus 5 in the queue."""
        z = torch.ones(8, 4)
        assert contrast(z, z, queue=torch.ones(5, 4)).item() == pytest.approx(np.log(13), rel=1e-5)

    def test_empty_queue_slots_are_ignored(self, views, queue):
        z1, z2 = (z.clone().requires_grad_() for z in views)
        empty = torch.zeros(20, 12)
        contrast(z1, z2, queue=empty).backward()
        plain = [z.clone().requires_grad_() for z in views]
        contrast(*plain).backward()
        torch.testing.assert_close([z1.grad, z2.grad], [z.grad for z in plain])
        torch.testing.assert_close(contrast(*views, queue=empty), contrast(*views))
        half = torch.cat([queue, empty])
        torch.testing.assert_close(contrast(*views, 0.2, half), contrast(*views, 0.2, queue))
        own = torch.zeros(len(z1), len(half), dtype=torch.bool)
        torch.testing.assert_close(contrast(*views, 0.2, half, own), contrast(*views, 0.2, queue))

    def test_queue_order_and_vector_lengths_do_not_matter(self, views, queue):
        expected = contrast(*views, 0.2, queue)
        torch.testing.assert_close(contrast(*views, 0.2, queue.flip(0)), expected)
        torch.testing.assert_close(contrast(*views, 0.2, queue * torch.tensor([[5.0], [1], [2], [0.1], [9]])), expected)
        torch.testing.assert_close(contrast(*views, 0.2, queue.bfloat16()), expected, rtol=1e-2, atol=1e-2)

    def test_queue_repels_anchors_and_has_no_gradient(self, views, queue):
        z1, kept = views[0].clone().requires_grad_(), queue.clone().requires_grad_()
        loss = contrast(z1, views[1], 0.2, kept) - contrast(z1, views[1], 0.2)
        with torch.no_grad():
            kept[:] = 7  # the model adds the batch to its queue before the backward pass
        loss.backward()
        assert loss > 0 and kept.grad is None
        with torch.no_grad():
            before, after = (normalize(z) @ normalize(queue).T / 0.2 for z in (z1, z1 - 0.1 * z1.grad))
        assert after.logsumexp(-1).mean() < before.logsumexp(-1).mean()


def test_gradients_by_finite_differences(views):
    assert_gradient(lambda z1, z2: contrast(z1, z2, 0.5), views)
