"""Matrices with orthonormal rows: against singular values, gradients, other iterations, any optimizer, any mean."""

import pytest
import torch
from torch import nn

from murmur.engine.optim.optimizer import SGD, Adam, NaturalGradientSGD
from murmur.speech.models.tdnn import SemiOrthogonal, orthonormal_rows
from tests.support.named import named


def drawn(rows, columns, condition, seed=0, dtype=torch.float64):
    """A matrix with singular values from 1 down to 1 / condition, and its two orthonormal factors multiplied."""
    generator = torch.Generator().manual_seed(seed)
    found = torch.linalg.svd(torch.randn(rows, columns, generator=generator, dtype=dtype), full_matrices=False)
    values = torch.logspace(0, -torch.tensor(float(condition)).log10().item(), rows, dtype=dtype)
    return found.U @ values.diag() @ found.Vh, found.U @ found.Vh


@pytest.mark.parametrize("condition", [1, 5, 20])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_the_result_is_the_nearest_matrix_with_orthonormal_rows(condition, scale):
    """U V^T of the singular value decomposition, in float32."""
    given, nearest = drawn(20, 60, condition, dtype=torch.float32)
    found = orthonormal_rows(given * scale)
    torch.testing.assert_close(found, nearest, atol=1e-5, rtol=0)
    torch.testing.assert_close(found @ found.T, torch.eye(20), atol=1e-5, rtol=0)


def test_steps_of_the_published_update_lead_to_the_same_matrix():
    given, _ = drawn(6, 20, 1.5)
    stepped = given
    for _ in range(60):
        stepped = stepped - 0.5 * (stepped @ stepped.T - torch.eye(6, dtype=torch.float64)) @ stepped
    torch.testing.assert_close(stepped, orthonormal_rows(given), atol=1e-9, rtol=0)


def test_gradients_are_finite_differences_and_orthogonal_to_the_weight():
    given, _ = drawn(3, 7, 3)
    assert torch.autograd.gradcheck(orthonormal_rows, given.requires_grad_())
    target, _ = drawn(3, 7, 2, seed=1)
    (orthonormal_rows(given) * target).sum().backward()
    assert given.grad.norm() > 0.1
    assert abs(float((given.grad * given.detach()).sum())) < 1e-12


@pytest.mark.parametrize(
    "optimizer", [SGD(0.5, 0.9, weight_decay=0.01), Adam(0.05, weight_decay=0.1), NaturalGradientSGD(0.5)], ids=named
)
def test_every_step_of_every_optimizer_and_every_mean_keeps_the_constraint(optimizer):
    learners = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        layer = nn.Sequential(SemiOrthogonal(12, 4), nn.Linear(4, 3))
        step, x, y = optimizer(layer), torch.randn(64, 12), torch.randint(3, (64,))
        for _ in range(20):
            loss = nn.functional.cross_entropy(layer(x), y)
            loss.backward()
            step.step()
            step.zero_grad()
            rows = orthonormal_rows(layer[0].weight.detach())
            torch.testing.assert_close(rows @ rows.T, torch.eye(4), atol=1e-5, rtol=0)
        learners.append(layer[0].weight.detach())
    assert not torch.allclose(*learners, atol=0.1)
    mean = orthonormal_rows((learners[0] + learners[1]) / 2)
    torch.testing.assert_close(mean @ mean.T, torch.eye(4), atol=1e-5, rtol=0)


def test_low_precision_around_it_leaves_the_matrix_exact():
    torch.manual_seed(0)
    layer, x = SemiOrthogonal(64, 16), torch.randn(10, 64)
    exact = orthonormal_rows(layer.weight)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
        assert orthonormal_rows(layer.weight).equal(exact)


def test_more_rows_than_columns_are_refused():
    with pytest.raises(ValueError, match="bottleneck smaller"):
        SemiOrthogonal(4, 5)
