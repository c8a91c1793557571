"""Buffers that a model assigns anew: the run, its evaluations and what it saves are those with buffers in place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from murmur.core.learner import Strategy
from murmur.engine.budget import Budget
from murmur.engine.checkpoints.checkpoint import read_pair
from murmur.engine.trainer import Trainer
from murmur.strategies import ADPSGD, KAVG, SyncSGD
from murmur.tasks.toy import ToyTask
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.named import named
from tests.support.running_means import Assigned, InPlace
from tests.support.unscaled import Experiment


@dataclass(frozen=True)
class Running(ToyTask):
    """Toy with a running mean of its inputs; minibatch `breaks` ends the process's work."""

    kind: type[InPlace] = InPlace
    breaks: int = -1

    def model(self) -> nn.Module:
        return self.kind(64, 10)

    def minibatch(self, n: int) -> tuple[Tensor, Tensor]:
        if n == self.breaks:
            raise ArithmeticError("planted")
        x, y = super().minibatch(n)
        return x + 1, y

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        assert isinstance(model, InPlace)
        return {**super().evaluate(model), "mean": float(model.m.mean())}


def trained(kind: type[InPlace], strategy: Strategy, out: Path, resumes: bool) -> tuple[object, list[Tensor]]:
    """Return the figures of a run, and the tensors of its model and of the model that it saves."""
    for breaks in (23, -1) if resumes else (-1,):
        task = Running(samples=8, per_epoch=10, kind=kind)
        run = Experiment(task, strategy, Budget(minibatches=40), evaluate_every_epochs=1.0)
        object.__setattr__(task, "breaks", breaks)
        trainer = Trainer(run, VirtualWorld(2), out=out, resume=resumes and breaks < 0)
        if breaks > 0:
            with pytest.raises(ArithmeticError):
                trainer.fit()
            continue
        outcome = trainer.fit()
    kept, _ = read_pair(out / "model")
    buffers = [b for b in outcome.model.buffers() if b.is_floating_point()]
    return outcome.figures, [*outcome.model.parameters(), *buffers, *(kept[name] for name in sorted(kept))]


@pytest.mark.parametrize("resumes", [False, True], ids=["whole", "resumed"])
@pytest.mark.parametrize("strategy", [SyncSGD(), KAVG(3), ADPSGD()], ids=named)
def test_the_run_is_that_with_buffers_in_place(strategy: Strategy, resumes: bool, tmp_path: Path) -> None:
    figures, tensors = trained(Assigned, strategy, tmp_path / "assigned", resumes)
    wanted, others = trained(InPlace, strategy, tmp_path / "in place", resumes)
    assert figures == wanted
    assert all(torch.equal(a, b) for a, b in zip(tensors, others, strict=True))
