"""Restricted Boltzmann machines against enumeration of all their states, 8 visible and 6 hidden units."""

from __future__ import annotations

import itertools
import math
from typing import Literal

import pytest
import torch
from torch import Tensor

from murmur.speech.models import Dnn
from murmur.speech.models.dnn import Rbm, RbmStack

V, H = 8, 6
Units = Literal["bernoulli", "gaussian"]


def all_states(units: int) -> Tensor:
    return torch.tensor(list(itertools.product([0.0, 1.0], repeat=units)), dtype=torch.float64)


def machine(units: Units, seed: int = 0, scale: float = 0.7) -> Rbm:
    draw = torch.Generator().manual_seed(seed)
    shapes = [(H, V), (H,), (V,)]
    parts = [torch.randn(s, generator=draw, dtype=torch.float64).mul(scale).requires_grad_() for s in shapes]
    return Rbm(parts[0], parts[1], parts[2], units)


def parts(rbm: Rbm) -> list[Tensor]:
    return [rbm.weight, rbm.hidden_bias, rbm.visible_bias]


def energy(rbm: Rbm, v: Tensor, h: Tensor) -> Tensor:
    """E of every pair of rows, (len(v), len(h)), term by term as defined."""
    with_h = -(h @ rbm.hidden_bias)[None] - v @ rbm.weight.T @ h.T
    if rbm.units == "gaussian":
        return 0.5 * ((v - rbm.visible_bias) ** 2).sum(1)[:, None] + with_h
    return -(v @ rbm.visible_bias)[:, None] + with_h


def log_partition(rbm: Rbm) -> Tensor:
    """log Z: the sum over all states; for Gaussian units the integral over v is computed analytically."""
    h = all_states(H)
    if rbm.units == "bernoulli":
        return torch.logsumexp(-energy(rbm, all_states(V), h).flatten(), 0)
    mean = rbm.visible_bias + h @ rbm.weight  # completing the square: |mean|^2 / 2 - |a|^2 / 2 + b'h
    logs = 0.5 * (mean**2).sum(1) - 0.5 * (rbm.visible_bias**2).sum() + h @ rbm.hidden_bias
    return torch.logsumexp(logs, 0) + 0.5 * V * math.log(2 * math.pi)


def data(units: Units, frames: int = 40) -> Tensor:
    draw = torch.Generator().manual_seed(9)
    patterns = torch.bernoulli(torch.full((3, V), 0.5, dtype=torch.float64), generator=draw)
    chosen = patterns[torch.randint(3, (frames,), generator=draw)]
    if units == "gaussian":
        return 2 * chosen - 1 + 0.3 * torch.randn(frames, V, generator=draw, dtype=torch.float64)
    flipped = torch.bernoulli(torch.full_like(chosen, 0.05), generator=draw)
    return (chosen - flipped).abs()


@pytest.mark.parametrize("units", ["bernoulli", "gaussian"])
def test_free_energy_and_conditionals_are_those_of_the_joint_distribution(units: Units) -> None:
    rbm, v, h = machine(units), data(units), all_states(H)
    joint = -energy(rbm, v, h)
    torch.testing.assert_close(-rbm.free_energy(v), torch.logsumexp(joint, 1))
    torch.testing.assert_close(rbm.hidden(v), joint.softmax(1) @ h)
    if units == "bernoulli":
        every = all_states(V)
        torch.testing.assert_close(rbm.visible(h), (-energy(rbm, every, h)).softmax(0).T @ every)
        total = torch.logsumexp(-rbm.free_energy(every), 0)
        torch.testing.assert_close(total, log_partition(rbm))
    else:  # p(v | h) is a Gaussian: the energy is least at its mean
        v_h = rbm.visible(h[5:6]).detach().requires_grad_()
        energy(rbm, v_h, h[5:6]).sum().backward()
        assert float(v_h.grad.abs().max()) < 1e-12  # type: ignore[union-attr]


@pytest.mark.parametrize("units", ["bernoulli", "gaussian"])
def test_the_mean_gradient_of_one_step_is_the_exact_expectation(units: Units) -> None:
    """E over h~ ~ p(h | v) by enumeration of 2^6 states, against the average of many draws."""
    rbm, v, h = machine(units), data(units, 4), all_states(H)
    torch.manual_seed(0)
    repeats = 4000
    rbm.contrast(v.repeat(repeats, 1)).backward()
    drawn = [p.grad / repeats for p in parts(rbm) if p.grad is not None]
    for p in parts(rbm):
        p.grad = None
    posterior = (-energy(rbm, v, h)).softmax(1).detach()
    expected = rbm.free_energy(v).sum() - (posterior @ rbm.free_energy(rbm.visible(h).detach())).sum()
    expected.backward()
    for own, p in zip(drawn, parts(rbm), strict=True):
        assert p.grad is not None
        torch.testing.assert_close(own, p.grad, atol=0.08, rtol=0.03)


@pytest.mark.parametrize("units", ["bernoulli", "gaussian"])
def test_the_positive_phase_less_the_exact_negative_one_is_the_likelihoods_gradient(units: Units) -> None:
    """d log p(v) = <v h'> of the data - <v h'> of the model, the latter enumerated; CD-1 points the same way."""
    rbm, v, h = machine(units, scale=0.3), data(units), all_states(H)
    likelihood = (-rbm.free_energy(v)).mean() - log_partition(rbm)
    exact = torch.autograd.grad(likelihood, parts(rbm))
    positive = torch.einsum("mh,mv->hv", rbm.hidden(v), v) / len(v)
    if units == "bernoulli":
        every = all_states(V)
        p = (-energy(rbm, every, h)).flatten().softmax(0).view(len(every), len(h))
        negative = torch.einsum("xy,yh,xv->hv", p, h, every)
    else:
        mean = rbm.visible_bias + h @ rbm.weight
        logs = 0.5 * (mean**2).sum(1) + h @ rbm.hidden_bias
        negative = torch.einsum("y,yh,yv->hv", logs.softmax(0), h, mean)
    torch.testing.assert_close(exact[0], positive - negative)
    torch.manual_seed(0)
    for _ in range(50):
        rbm.contrast(v).backward()
    contrast = torch.cat([-p.grad.flatten() for p in parts(rbm) if p.grad is not None])
    assert float(torch.cosine_similarity(contrast, torch.cat([g.flatten() for g in exact]), dim=0)) > 0.8


@pytest.mark.parametrize("units", ["bernoulli", "gaussian"])
def test_contrastive_divergence_raises_the_exact_likelihood(units: Units) -> None:
    rbm, v = machine(units, scale=0.05), data(units, 100)

    def likelihood() -> float:
        with torch.no_grad():
            return float((-rbm.free_energy(v)).mean() - log_partition(rbm))

    torch.manual_seed(0)
    optimizer = torch.optim.SGD(parts(rbm), lr=0.05, momentum=0.5)
    before, lost = likelihood(), float(rbm.reconstruction_error(v).mean().detach())
    for _ in range(500):
        optimizer.zero_grad()
        (rbm.contrast(v) / len(v)).backward()
        optimizer.step()
    assert likelihood() > before + 1.0
    assert float(rbm.reconstruction_error(v).mean().detach()) < 0.6 * lost


def test_a_stack_sees_what_its_network_computes() -> None:
    torch.manual_seed(0)
    stack = RbmStack(Dnn(hidden=7, layers=3, context=1), 4, 5)
    feats = torch.randn(2, 9, 4)
    x = stack.spliced(feats)
    for number, units in enumerate(("gaussian", "bernoulli", "bernoulli")):
        torch.testing.assert_close(stack.below(number, feats), x)
        rbm = stack.machine(number)
        assert rbm.units == units
        x = stack.layer(number, x)
        torch.testing.assert_close(rbm.hidden(stack.below(number, feats)), x)
    stack.machine(1).contrast(stack.below(1, feats).flatten(0, 1)).backward()
    assert {n for n, p in stack.named_parameters() if p.grad is not None} == {
        "maps.1.weight",
        "maps.1.bias",
        "visible.1",
    }
    with pytest.raises(ValueError, match="sigmoid hidden units, the network relu"):
        RbmStack(Dnn(nonlinearity="relu"), 4, 5)
