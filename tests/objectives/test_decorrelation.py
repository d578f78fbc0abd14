"""SCD's two terms: a numpy loop of the paper, closed forms, invariances, errors; the projector; two processes."""

import os

import numpy as np
import pytest
import torch
import torch.distributed as dist
from scipy.linalg import hadamard
from torch.nn.functional import relu
from torch.nn.parallel import DistributedDataParallel

from informin.distributed import gather_with_gradient
from informin.objectives.decorrelation import SELF_CONTRAST_FORMS, Projector, decorrelation, self_contrast
from tests.conftest import raises_usage
from tests.objectives.conftest import assert_gradient, head_values, model_of, rows
from tests.support import forked

WORLD = 2
WEIGHT = 0.3  # weight of the off-diagonal sum; far above the paper's 0.013, so that an error in either sum is visible


@pytest.fixture
def views():
    generator = torch.Generator().manual_seed(0)
    p1 = torch.randn(9, 5, generator=generator)
    return p1, p1 + 0.7 * torch.randn(9, 5, generator=generator)


def orthogonal_columns(first: int, last: int) -> torch.Tensor:
    """Return (8, last - first + 1): uncorrelated columns of mean 0 and variance 1."""
    return torch.tensor(hadamard(8)[:, first : last + 1], dtype=torch.float32)


def correlations(p1, p2):
    """Compute C entry by entry in float64: eq. 3 with batch-normalized projections."""
    p1, p2 = (p.detach().double().numpy() for p in (p1, p2))
    n, d = p1.shape
    c = np.zeros((d, d))
    for j in range(d):
        for k in range(d):
            mean1, mean2 = p1[:, j].sum() / n, p2[:, k].sum() / n
            deviation1 = np.sqrt(((p1[:, j] - mean1) ** 2).sum() / n + 1e-5)
            deviation2 = np.sqrt(((p2[:, k] - mean2) ** 2).sum() / n + 1e-5)
            c[j, k] = sum((p1[i, j] - mean1) * (p2[i, k] - mean2) for i in range(n)) / (n * deviation1 * deviation2)
    return c


class TestSelfContrast:
    def test_numpy_loops(self, views):
        h1, h2 = (h.double().numpy() for h in views)
        total = sum(np.dot(a, b) / np.sqrt(np.dot(a, a) * np.dot(b, b)) for a, b in zip(h1, h2))
        assert self_contrast(*views).item() == pytest.approx(total / 9, rel=1e-5)
        assert self_contrast(*views, "code").item() == pytest.approx(total / 9 / 0.05, rel=1e-5)

    def test_closed_forms_equal_opposite_and_orthogonal_views(self, views):
        h, _ = views
        assert self_contrast(h, h).item() == pytest.approx(1, rel=1e-5)
        assert self_contrast(h, -h).item() == pytest.approx(-1, rel=1e-5)
        assert self_contrast(torch.eye(4), torch.eye(4).roll(1, 0)).item() == 0
        assert self_contrast(h, h, "code").item() == pytest.approx(20, rel=1e-5)

    @pytest.mark.parametrize("form", SELF_CONTRAST_FORMS)
    def test_minimizing_pushes_the_views_apart(self, views, form):
        """With the opposite sign, it would pull them together."""
        h1, h2 = views[0].clone().requires_grad_(), views[1]
        self_contrast(h1, h2, form).backward()
        moved = h1 - 0.1 * h1.grad
        assert torch.cosine_similarity(moved, h2).mean() < torch.cosine_similarity(h1, h2).mean()

    def test_lengths_order_and_exchange_do_not_matter_but_pairing_does(self, views):
        h1, h2 = views
        expected, order = self_contrast(h1, h2), torch.tensor([3, 1, 0, 8, 6, 5, 2, 4, 7])
        torch.testing.assert_close(self_contrast(3 * h1, torch.rand(9, 1) * h2), expected)
        torch.testing.assert_close(self_contrast(h1[order], h2[order]), expected)
        torch.testing.assert_close(self_contrast(h2, h1), expected)
        assert self_contrast(h1[order], h2) < expected - 0.1

    def test_zero_embeddings_have_similarity_0_and_finite_gradients(self, views):
        h1, h2 = (h.clone() for h in views)
        h1[0] = h2[3] = h1[5] = h2[5] = 0
        h1.requires_grad_(), h2.requires_grad_()
        loss = self_contrast(h1, h2)
        loss.backward()
        others = torch.tensor([1, 2, 4, 6, 7, 8])
        torch.testing.assert_close(loss, 6 / 9 * self_contrast(h1[others], h2[others]))
        assert h1.grad.isfinite().all() and h2.grad.isfinite().all()

    def test_bfloat16_is_computed_in_float32(self, views):
        h1, h2 = (h.bfloat16() for h in views)
        torch.testing.assert_close(self_contrast(h1, h2), self_contrast(h1.float(), h2.float()))
        with torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(self_contrast(*views), self_contrast(*(h.float() for h in views)))

    def test_unknown_form_is_an_error(self, views):
        with raises_usage(option="form"):
            self_contrast(*views, "l1")


class TestDecorrelation:
    @pytest.mark.parametrize("weight", [0.0, 0.013, WEIGHT])
    def test_numpy_loop(self, views, weight):
        c = correlations(*views)
        total = 0.0
        for j in range(5):
            for k in range(5):
                total += (1 - c[j, k]) ** 2 if j == k else weight * c[j, k] ** 2
        assert decorrelation(*views, weight).item() == pytest.approx(total, rel=1e-5)

    def test_closed_form_identity_correlation(self):
        """C = I is the minimum: each feature correlates only with itself in the other view."""
        p = orthogonal_columns(1, 7)
        assert decorrelation(p, p, WEIGHT).item() == pytest.approx(0, abs=1e-5)

    def test_closed_form_opposite_views(self):
        """C = -I: 4 per feature. With the sign printed in eq. 4, this would be the minimum."""
        p = orthogonal_columns(1, 7)
        assert decorrelation(p, -p, WEIGHT).item() == pytest.approx(4 * 7, rel=1e-4)

    def test_closed_form_uncorrelated_views(self):
        """C = 0: 1 per feature, for any weight."""
        for weight in (0.013, 5.0):
            loss = decorrelation(orthogonal_columns(1, 3), orthogonal_columns(4, 6), weight)
            assert loss.item() == pytest.approx(3, rel=1e-5)

    def test_closed_form_equal_features(self):
        """C = 1 everywhere: only the 4 * 3 off-diagonal entries count."""
        p = orthogonal_columns(1, 1).repeat(1, 4)
        assert decorrelation(p, p, WEIGHT).item() == pytest.approx(WEIGHT * 12, rel=1e-4)

    def test_minimizing_raises_the_diagonal_and_lowers_the_rest(self, views):
        p1, p2 = (p.clone().requires_grad_() for p in views)
        optimizer = torch.optim.SGD([p1, p2], lr=0.5)
        for _ in range(500):
            optimizer.zero_grad()
            decorrelation(p1, p2, WEIGHT).backward()
            optimizer.step()
        before, after = correlations(*views), correlations(p1, p2)
        rest = ~np.eye(5, dtype=bool)
        assert after.diagonal().mean() > 0.97 > before.diagonal().mean()
        assert np.abs(after[rest]).mean() < 0.25 * np.abs(before[rest]).mean()

    def test_invariant_to_scale_and_shift_of_features(self, views):
        p1, p2 = views
        scale, shift = torch.tensor([0.5, 2.0, 3.0, 10.0, 1.0]), torch.tensor([4.0, -1.0, 0.0, 7.0, 2.0])
        changed = decorrelation(p1 * scale + shift, p2 * scale.flip(0) - shift, WEIGHT)
        torch.testing.assert_close(changed, decorrelation(p1, p2, WEIGHT), rtol=1e-3, atol=0)  # 1e-5 in the variance

    def test_invariant_to_exchange_and_order_but_not_to_pairing(self, views):
        p1, p2 = views
        expected, sentences = decorrelation(p1, p2, WEIGHT), torch.tensor([3, 1, 0, 8, 6, 5, 2, 4, 7])
        features = torch.tensor([4, 0, 3, 1, 2])
        torch.testing.assert_close(decorrelation(p2, p1, WEIGHT), expected)
        torch.testing.assert_close(decorrelation(p1[sentences], p2[sentences], WEIGHT), expected)
        torch.testing.assert_close(decorrelation(p1[:, features], p2[:, features], WEIGHT), expected)
        assert decorrelation(p1[sentences], p2, WEIGHT) > expected + 1
        assert decorrelation(p1[:, features], p2, WEIGHT) > expected + 1

    @pytest.mark.parametrize("n, d", [(24, 300), (300, 24)])
    def test_exact_for_more_and_fewer_features_than_sentences(self, n, d):
        generator = torch.Generator().manual_seed(2)
        p1, p2 = (torch.randn(n, d, generator=generator) for _ in range(2))
        a, b = ((p - p.mean(0)) / (p.var(0, correction=0) + 1e-5).sqrt() for p in (p1.double(), p2.double()))
        c = a.T @ b / n
        expected = (1 - c.diagonal()).square().sum() + 0.013 * (c - torch.diag(c.diagonal())).square().sum()
        assert decorrelation(p1, p2, 0.013).item() == pytest.approx(expected.item(), rel=1e-5)

    def test_constant_feature_gives_a_finite_loss(self, views):
        p1, p2 = (p.clone() for p in views)
        p1[:, 2] = p2[:, 2] = p2[:, 3] = 1.5
        p1.requires_grad_(), p2.requires_grad_()
        loss = decorrelation(p1, p2, WEIGHT)
        loss.backward()
        assert loss.isfinite() and p1.grad.isfinite().all() and p2.grad.isfinite().all()

    def test_bfloat16_and_autocast_are_computed_in_float32(self, views):
        p1, p2 = (p.bfloat16() for p in views)
        expected = decorrelation(p1.float(), p2.float(), WEIGHT)
        torch.testing.assert_close(decorrelation(p1, p2, WEIGHT), expected, rtol=1e-5, atol=0)
        with torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(decorrelation(p1, p2, WEIGHT), expected, rtol=1e-5, atol=0)

    def test_one_sentence_is_an_error(self):
        with raises_usage():
            decorrelation(torch.ones(1, 4), torch.ones(1, 4), WEIGHT)


@pytest.mark.parametrize("form", SELF_CONTRAST_FORMS)
def test_gradients_of_the_self_contrast_by_finite_differences(views, form):
    assert_gradient(lambda h1, h2: self_contrast(h1, h2, form), views)


@pytest.mark.parametrize("weight", [0.0, 5.0])
def test_gradients_of_the_decorrelation_by_finite_differences(views, weight):
    assert_gradient(lambda p1, p2: decorrelation(p1, p2, weight), views)


class TestProjector:
    @pytest.fixture
    def model(self, encoder):
        """Return a model with a projector of width 8."""
        model = model_of(encoder)
        model.heads["decorrelation"] = Projector(model, 8)
        return model

    def test_projector_is_initialized_like_new_layers_of_the_encoder(self, encoder):
        """The weights are three normal draws in order, so a seed always gives the same weights."""
        model = model_of(encoder)
        torch.manual_seed(5)
        head, after = Projector(model, 8), torch.get_rng_state()
        torch.manual_seed(5)
        for layer, shape in zip(head.layers[::3], ((8, 32), (8, 8), (8, 8))):
            assert torch.equal(layer.weight, torch.empty(shape).normal_(0, model.config.initializer_range))
        assert torch.equal(torch.get_rng_state(), after)
        assert not head.layers[0].bias.any() and head.layers[3].bias is head.layers[6].bias is None
        for norm in head.layers[1::3]:
            values = {name: set(value.flatten().tolist()) for name, value in norm.state_dict().items()}
            ones = dict(weight={1}, bias={0}, running_mean={0}, running_var={1}, num_batches_tracked={0})
            assert values == ones

    def test_views_are_normalized_separately(self, encoder, model):
        """Compare with the three layers written out. Joint statistics of both views would differ."""
        batch = rows(encoder, count=12, copies=3)
        first, norm1, _, second, norm2, _, third = model.heads["decorrelation"].layers

        def normalize(x, norm):
            return (x - x.mean(0)) / (x.var(0, unbiased=False) + norm.eps).sqrt() * norm.weight + norm.bias

        def project(x):
            hidden = relu(normalize(x @ first.weight.T + first.bias, norm1))
            return relu(normalize(hidden @ second.weight.T, norm2)) @ third.weight.T

        views = []
        projected = head_values(model, batch, range(12), lambda x: views.append(x) or x)["decorrelation"]
        assert [len(view) for view in views] == [12, 12], "the third copy, MLM's, is no view"
        for features, view in zip(projected, views):
            torch.testing.assert_close(features, project(view), rtol=1e-4, atol=1e-5)
        together = project(torch.cat(views)).chunk(2)
        assert (together[0] - projected[0]).abs().max() > 0.01

    def test_batch_normalization_covers_all_processes(self, encoder, model):
        gathered = []

        def gather(x):
            gathered.append(x)
            return torch.cat([x, 2 * x])

        outputs = model.train()(**rows(encoder), views={"sentence_ids": torch.arange(6), "gather": gather})
        assert [torch.equal(x, view) for x, view in zip(gathered, outputs.projection.chunk(2))] == [True, True]
        for features, view in zip(outputs.heads["decorrelation"], gathered):
            torch.testing.assert_close(features, model.heads["decorrelation"].layers(torch.cat([view, 2 * view])))


class Projected(torch.nn.Module):
    """A linear encoder of this process's sentences, and a projector that normalizes over all processes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        nn = torch.nn
        self.encoder = nn.Linear(6, 5)
        self.projector = nn.Sequential(nn.Linear(5, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8, bias=False))

    def forward(self, x1, x2):
        h1, h2 = self.encoder(x1), self.encoder(x2)
        p1, p2 = (self.projector(gather_with_gradient(h)) for h in (h1, h2))
        return self_contrast(h1, h2) + 0.5 * decorrelation(p1, p2, WEIGHT)


def make_rows(process):
    generator = torch.Generator().manual_seed(process)
    x1 = torch.randn(4, 6, generator=generator)
    return x1, x1 + torch.randn(4, 6, generator=generator)


def worker(process, out, init):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=init, rank=process, world_size=WORLD)
    model = Projected()
    wrapped = DistributedDataParallel(model)
    loss = wrapped(*make_rows(process))
    loss.backward()
    leaves = [x.clone().requires_grad_() for x in make_rows(process)]
    alone = decorrelation(*(gather_with_gradient(x) for x in leaves), WEIGHT)
    alone.backward()
    results = {
        "loss": loss.detach(),
        "grads": {name: parameter.grad for name, parameter in model.named_parameters()},
        "alone": alone.detach(),
        "rows": [x.grad for x in leaves],
    }
    torch.save(results, f"{out}/{process}.pt")
    dist.barrier()
    os._exit(0)  # without teardown, which can deadlock: see tests/training/test_distributed.py


def test_two_processes_equal_one_on_the_joined_batch(tmp_path):
    """Compare values and gradients: of the parameters under DDP, and of the projections of each process."""
    forked.ranks(worker, (str(tmp_path), f"file://{tmp_path}/init"), WORLD)
    two = [torch.load(tmp_path / f"{process}.pt") for process in range(WORLD)]
    joined = [torch.cat(rows) for rows in zip(*(make_rows(process) for process in range(WORLD)))]

    model = Projected()
    loss = model(*joined)
    loss.backward()
    torch.testing.assert_close((two[0]["loss"] + two[1]["loss"]) / WORLD, loss.detach())
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(two[0]["grads"][name], parameter.grad, rtol=1e-4, atol=5e-5)
        torch.testing.assert_close(two[1]["grads"][name], parameter.grad, rtol=1e-4, atol=5e-5)

    leaves = [x.clone().requires_grad_() for x in joined]
    alone = decorrelation(*leaves, WEIGHT)
    alone.backward()
    for process, own in enumerate(two):
        torch.testing.assert_close(own["alone"], alone.detach())
        for x, gradient in zip(leaves, own["rows"]):  # each process has the sum over processes, which DDP averages
            torch.testing.assert_close(gradient / WORLD, x.grad.chunk(WORLD)[process], rtol=1e-4, atol=1e-6)
