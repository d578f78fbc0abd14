"""Many logistic regressions on the same features, one for every training set of a cross-validation, solved together."""

import torch
from torch import Tensor
from torch.nn.functional import softplus

TOLERANCE = 1e-3  # of the Newton decrement, relative to the norm of the weights: below it no prediction moves
MOST_STEPS = 50
MOST_CG_STEPS = 30


class LogisticPath:
    """L2-regularized binary logistic regressions for F training sets and a grid of C, from the smallest C up.

    Minimizes, for each training set, |w|^2 / 2 + C sum_i log(1 + exp(-y_i (w x_i + b))), y = -1 or 1, the intercept
    b free: scikit-learn's `LogisticRegression(C=C)`. All training sets take each Newton step together, by conjugate
    gradients whose matrix products are shared. They are preconditioned by the Hessian of one regression on all the
    data, which the training sets of a cross-validation nearly share, and start from its solution; so a handful of
    products is enough.

    Args:
        features: (N, d) float32.
        targets: (N,) bool.
        masks: (N, F) bool, the rows of each training set.
    """

    def __init__(self, features: Tensor, targets: Tensor, masks: Tensor):
        # Centring changes the intercept alone, which is free, and spares float32 a common offset.
        ones = torch.ones(len(features), 1, dtype=features.dtype, device=features.device)
        self.x = torch.cat([features - features[masks.any(1)].mean(0), ones], dim=1)  # (N, d + 1)
        self.y = targets.to(features.dtype)[:, None]  # (N, 1)
        self.masks = masks.to(features.dtype)
        self.penalty = torch.ones(self.x.shape[1], 1, dtype=features.dtype, device=features.device)
        self.penalty[-1] = 0
        self.pooled_mask = masks.any(1, keepdim=True).to(features.dtype)
        self.pooled_weights = torch.zeros_like(self.penalty)

    def decision_values(self, c: float) -> Tensor:
        """(N, F): w x + b of every row under every training set's regression."""
        self.pooled_weights, values, factor = self._solve(self.pooled_mask, c, self.pooled_weights, None)
        if self.masks.shape[1] == 1:
            return values
        start = self.pooled_weights.expand(-1, self.masks.shape[1]).clone()
        return self._solve(self.masks, c, start, factor)[1]

    def _solve(self, masks: Tensor, c: float, weights: Tensor, factor: Tensor | None):
        """Newton's method from `weights` (d + 1, F), a direction from `factor` or, without, from the exact Hessian."""
        values = self.x @ weights
        for _ in range(MOST_STEPS):
            probability = torch.sigmoid(values)
            gradient = c * (self.x.T @ (masks * (probability - self.y))) + self.penalty * weights
            curvature = c * masks * probability * (1 - probability)
            if factor is None:
                exact = self._hessian_factor(curvature)
                direction = -_cholesky_solve(gradient, exact)
            else:
                direction = -self._conjugate_gradients(gradient, curvature, factor)
            decrement = -(gradient * direction).sum(0)  # (F,)
            change = self.x @ direction
            step = self._line_search(masks, c, weights, values, direction, change, decrement)
            weights, values = weights + step * direction, values + step * change
            if bool((decrement.clamp(min=0).sqrt() <= TOLERANCE * (1 + weights[:-1].norm(dim=0))).all()):
                break
        return weights, values, exact if factor is None else factor

    def _hessian_factor(self, curvature: Tensor) -> Tensor:
        hessian = (self.x.T @ (curvature * self.x)).double() + torch.diag(self.penalty[:, 0]).double()
        hessian[-1, -1] += 1e-6 * hessian[-1, -1] + 1e-9  # positive definite where every probability is 0 or 1
        for exponent in range(-6, 2):
            factor, failed = torch.linalg.cholesky_ex(hessian)
            if not failed:
                break
            hessian.diagonal().mul_(1 + 10.0**exponent)  # huge features: float32 lost the smallest curvatures
        return factor

    def _conjugate_gradients(self, gradient: Tensor, curvature: Tensor, factor: Tensor) -> Tensor:
        """Solves H v = gradient for every column, H its own Hessian, to a tenth of the gradient."""
        solution = torch.zeros_like(gradient)
        residual = gradient.clone()
        preconditioned = _cholesky_solve(residual, factor)
        direction = preconditioned.clone()
        size = start = (residual * preconditioned).sum(0)
        for _ in range(MOST_CG_STEPS):
            product = self.x.T @ (curvature * (self.x @ direction)) + self.penalty * direction
            step = size / (direction * product).sum(0).clamp(min=1e-30)
            solution += step * direction
            residual -= step * product
            preconditioned = _cholesky_solve(residual, factor)
            previous, size = size, (residual * preconditioned).sum(0)
            if bool((size <= 0.01 * start).all()):
                break
            direction = preconditioned + size / previous.clamp(min=1e-30) * direction
        return solution

    def _line_search(self, masks, c, weights, values, direction, change, decrement) -> Tensor:
        """(F,) step lengths, halved from 1 until the objective falls (Armijo's rule)."""

        def objective(step):
            moved = values + step * change
            loss = (masks * (softplus(moved) - self.y * moved)).sum(0)
            return c * loss + 0.5 * (self.penalty * (weights + step * direction) ** 2).sum(0)

        step = torch.ones_like(decrement)
        before = objective(torch.zeros_like(decrement))
        slack = 1e-5 * before.abs()  # float32 cannot see less
        for _ in range(20):
            too_far = objective(step) > before - 1e-4 * step * decrement + slack
            if not bool(too_far.any()):
                break
            step = torch.where(too_far, step / 2, step)
        return step


def _cholesky_solve(right: Tensor, factor: Tensor) -> Tensor:
    return torch.cholesky_solve(right.double(), factor).to(right.dtype)
