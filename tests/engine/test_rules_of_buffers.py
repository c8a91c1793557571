"""Buffers that have no mean, in runs of the engine: evaluations, saved models, averaged checkpoints, resumed runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from murmur.core.learner import Strategy
from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment
from murmur.engine.optim.optimizer import SGD
from murmur.engine.trainer import Trainer
from murmur.run.configuration import typed
from murmur.run.saved_model import read_into
from murmur.strategies import ADPSGD, KAVG, SuperLearners, SyncSGD
from murmur.tasks.toy import ToyTask
from murmur.worlds.threads import ThreadWorld
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.named import named

BIG = 2**60 + 1
INF = float("inf")


class Net(nn.Module):
    """A classifier with BatchNorm, spectral norm, a mask, and a counter beyond 2^53."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(spectral_norm(nn.Linear(64, 16)), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))
        self.register_buffer("mask", torch.triu(torch.full((3, 3), -INF), 1))
        self.register_buffer("seen", torch.tensor(BIG))
        self.register_buffer("wanted", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen += 1
            self.wanted += x.detach().abs().mean()
        return self.net(x)


@dataclass(frozen=True)
class Buffered(ToyTask):
    """The toy task with that model."""

    def model(self) -> nn.Module:
        return Net()


def experiment(strategy: Strategy) -> Experiment:
    return Experiment(Buffered(samples=8, per_epoch=16), strategy, Budget(epochs=3), SGD(0.1))


@pytest.mark.parametrize("world", [ThreadWorld, VirtualWorld])
@pytest.mark.parametrize("strategy", [SyncSGD(), KAVG(4), ADPSGD(), SuperLearners(KAVG(2), 2)], ids=named)
def test_models_of_a_run_have_buffers_of_their_rules(strategy: Strategy, world: type, tmp_path: Path) -> None:
    Trainer(experiment(strategy), world(2), out=tmp_path).fit()
    for name in ("model", "best", "averaged"):
        net = Net()
        read_into(net, tmp_path / name)
        assert torch.equal(net.mask, Net().mask)
        assert BIG < int(net.seen) < BIG + 100
        u, v = net.net[0].parametrizations.weight[0]._u, net.net[0].parametrizations.weight[0]._v
        assert [float(x.norm()) for x in (u, v)] == pytest.approx([1.0, 1.0], abs=1e-5)
        assert torch.isfinite(net.eval()(torch.ones(1, 64))).all()
        assert net.net[1].running_mean.abs().sum() > 0


def test_a_resumed_run_has_the_exact_counter(tmp_path: Path) -> None:
    begun = experiment(KAVG(4))
    Trainer(replace(begun, budget=Budget(epochs=1)), VirtualWorld(2), out=tmp_path).fit()
    Trainer(begun, VirtualWorld(2), out=tmp_path, resume=True).fit()
    found = load_file(tmp_path / "model.safetensors")["integers"]
    assert found.dtype == torch.int64
    assert found.max() == BIG + 24


def test_a_rule_is_a_setting(tmp_path: Path) -> None:
    found = {}
    for rule in ("mean", "first", "own"):
        rules = typed(f"{{'want*': {rule!r}}}", Mapping[str, str], "buffers")
        chosen = replace(experiment(KAVG(4)), buffers=rules)
        assert chosen.digest() != experiment(KAVG(4)).digest()
        Trainer(chosen, VirtualWorld(2), out=tmp_path / rule).fit()
        net = Net()
        read_into(net, tmp_path / rule / "model")
        found[rule] = net.wanted.tolist()
    assert found["first"] == found["own"] != found["mean"]


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ({"masks": "own"}, "the model has no buffer 'masks'; did you mean 'mask'"),
        ({"mask": "frist"}, "'mask' has the rule 'frist'; did you mean 'first'"),
        (("mask", "own"), "buffers must map names"),
    ],
)
def test_unknown_names_are_refused(rules: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Trainer(replace(experiment(KAVG(4)), buffers=rules), VirtualWorld(2)).fit()  # type: ignore[arg-type]
