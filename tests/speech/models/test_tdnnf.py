"""Factored layers against their equation, and configurations that cannot be."""

from contextlib import nullcontext

import pytest
import torch
from torch.nn import functional

from murmur.engine.optim.optimizer import SGD, NaturalGradientSGD
from murmur.speech.models import Convolutions, TdnnF
from murmur.speech.models.tdnn import orthonormal_rows


def test_a_factored_layer_is_its_equation():
    """Frame by frame: b_t = M [x_{t-2}; x_t], y_t = norm(relu(W [b_t; b_{t+2}] + c)), output y_t + 0.5 x_t."""
    torch.manual_seed(0)
    config = TdnnF(6, 4, offsets=(0,), strides=(2,), bypass=0.5, dropout=0.0)
    model, feats = config.build(3, 2).eval(), torch.randn(1, 11, 3)
    first = model.first(feats)[0]
    layer = model.layers[0]
    with torch.no_grad():
        layer.wide.weight.mul_(3.0)  # so that many values pass the ReLU
        M = orthonormal_rows(layer.narrow.weight)
        frames = len(first)
        narrow = [M @ torch.cat([first[max(t - 2, 0)], first[t]]) for t in range(frames)]
        expected = []
        for t in range(frames):
            y = functional.relu(layer.wide(torch.cat([narrow[t], narrow[min(t + 2, frames - 1)]])))
            y = (y - y.mean()) / (y.var(correction=0) + layer.norm.eps).sqrt()
            expected.append(model.output(y + 0.5 * first[t]))
        torch.testing.assert_close(model(feats)[0], torch.stack(expected), atol=1e-5, rtol=1e-4)


def test_the_numbers_of_parameters_of_the_two_factors():
    layer = TdnnF(32, 8, strides=(1, 0)).build(5, 3).layers
    sizes = [[tuple(p.shape) for p in (one.narrow.weight, one.wide.weight)] for one in layer]
    assert sizes == [[(8, 64), (32, 16)], [(8, 32), (32, 8)]]


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (TdnnF(strides=()), "at least one"),
        (TdnnF(strides=(-1,)), "no negative stride"),
        (TdnnF(offsets=()), "at least one"),
        (TdnnF(8, 9, strides=(0,)), "bottleneck smaller"),
    ],
)
def test_networks_that_cannot_be_are_refused(config, says):
    with pytest.raises(ValueError, match=says):
        config.build(3, 2)


def test_natural_gradient_leaves_the_semi_orthogonal_factor_its_plain_gradient():
    """The first layer's convolution and affine maps are preconditioned; outputs are the same."""
    found = []
    for optimizer in (SGD(0.1), NaturalGradientSGD(0.1)):
        torch.manual_seed(0)
        model = TdnnF(12, 5, strides=(1,), dropout=0.0, front=Convolutions((3, 3), bins=6)).build(6, 4)
        step, feats = optimizer(model), torch.randn(3, 15, 6)
        preconditioning = getattr(step, "preconditioning", None)
        with preconditioning or nullcontext():
            logits = model(feats)
            if preconditioning is not None:
                preconditioning.samples = 45.0
            functional.cross_entropy(logits.flatten(0, 1), torch.arange(45) % 4).backward()
        found.append((logits.detach(), {name: p.grad for name, p in model.named_parameters()}))
        step.step()
    (plain, gradients), (natural, others) = found
    torch.testing.assert_close(natural, plain, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(others["layers.0.narrow.weight"], gradients["layers.0.narrow.weight"])
    for name in ("front.1.filters.weight", "first.linear.weight", "layers.0.wide.weight"):
        assert others[name].isfinite().all()
        assert not torch.allclose(others[name], gradients[name], rtol=1e-3)
