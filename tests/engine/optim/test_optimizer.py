"""Optimizers of experiments: PyTorch's to the bit, without its compiler."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from murmur.engine.optim.optimizer import SGD, Adam, NaturalGradientSGD

STEPS = 12
TRAIN = """
import sys
from pathlib import Path
from murmur.engine.trainer import Trainer
from murmur.recipes import toy
from murmur.run.configuration import configure
from murmur.worlds.threads import ThreadWorld

for optimizer in ("SGD(0.1,momentum=0.9)", "Adam(0.01)", "NaturalGradientSGD(0.1)"):
    for resume, minibatches in ((False, 8), (True, 16)):
        settings = [f"budget.minibatches={minibatches}", "task.hidden=8", f"optimizer={optimizer}"]
        Trainer(configure(toy.experiment(), settings), ThreadWorld(2), Path(optimizer), resume=resume).fit()
assert "torch._dynamo" not in sys.modules
"""


def steps(make: Callable[[nn.Module], torch.optim.Optimizer]) -> tuple[list[Tensor], object]:
    """Return weights after steps along drawn gradients at a falling rate; the state is reloaded half-way."""
    torch.manual_seed(3)
    model = nn.Linear(5, 4)
    optimizer = make(model)
    draw = torch.Generator().manual_seed(5)
    for n in range(STEPS):
        if n == STEPS // 2:
            state = optimizer.state_dict()
            optimizer = make(model)
            optimizer.load_state_dict(state)
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=draw)
        optimizer.param_groups[0]["lr"] *= 0.9
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        assert all(parameter.grad is None for parameter in model.parameters())
    return [parameter.detach() for parameter in model.parameters()], optimizer.state_dict()["param_groups"]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (SGD(0.1), lambda m: torch.optim.SGD(m.parameters(), 0.1)),
        (
            SGD(0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
            lambda m: torch.optim.SGD(m.parameters(), 0.1, 0.9, weight_decay=0.01, nesterov=True),
        ),
        (
            Adam(0.01, 0.8, 0.95, weight_decay=0.1),
            lambda m: torch.optim.AdamW(m.parameters(), 0.01, (0.8, 0.95), weight_decay=0.1),
        ),
    ],
    ids=["SGD", "Nesterov", "AdamW"],
)
def test_steps_are_those_of_pytorch_to_the_bit(ours: SGD | Adam, theirs: Callable[..., torch.optim.Optimizer]) -> None:
    (found, settings), (wanted, wanted_settings) = steps(ours), steps(theirs)
    assert all(map(torch.equal, found, wanted))
    assert settings == wanted_settings


@pytest.mark.parametrize("optimizer", [SGD(0.5), Adam(0.5), NaturalGradientSGD(0.5)], ids=lambda o: type(o).__name__)
def test_weight_decay_shrinks_every_trainable_tensor(optimizer: SGD | Adam | NaturalGradientSGD) -> None:
    """Without gradients w becomes w (1 - rate * decay): weights, biases, scales of normalisations; nothing frozen."""
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    model[0].bias.requires_grad_(False)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    step = replace(optimizer, weight_decay=0.1)(model)
    for p in model.parameters():
        p.grad = torch.zeros_like(p) if p.requires_grad else None
    step.step()
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), before[name] * (0.95 if p.requires_grad else 1.0))


def test_step_hooks_are_called() -> None:
    optimizer, called = SGD(0.1)(nn.Linear(2, 2)), []
    optimizer.register_step_post_hook(lambda *_: called.append("after"))
    optimizer.register_step_pre_hook(lambda *_: called.append("before"))
    optimizer.step()
    assert called == ["before", "after"]


@pytest.mark.interpreter
def test_training_does_not_import_the_compiler(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", TRAIN], check=False, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
