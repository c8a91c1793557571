"""A process that trains many times keeps no files of ended runs open."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest
import torch
from torch import nn

from murmur.core.group import PeerLost
from murmur.core.learner import Strategy
from murmur.core.trace import Span
from murmur.core.world import World
from murmur.engine.budget import Budget
from murmur.engine.optim.optimizer import SGD
from murmur.engine.record import Record
from murmur.engine.run_files import ChromeTrace, JsonLines
from murmur.engine.task import Loss
from murmur.engine.trainer import Trainer
from murmur.strategies import ADPSGD, KAVG, DelayByOne
from murmur.tasks.toy import ToyTask
from murmur.worlds.threads import ThreadWorld
from murmur.worlds.virtual.cluster import Cluster, ConstantSeconds, Kill, Rejoin
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.named import named
from tests.support.unscaled import Experiment

OPEN = Path("/proc/self/fd")
pytestmark = pytest.mark.skipif(not OPEN.is_dir(), reason="the system does not list the open files of a process")


class Broken(ToyTask):
    """Task whose losses are not numbers."""

    def loss(self, model: nn.Module, minibatch: object) -> Loss:
        found = super().loss(model, minibatch)  # type: ignore[arg-type]
        return Loss(found.total * torch.nan, found.samples)


def opened(folder: Path) -> list[str]:
    """Names of open files below a folder."""
    gc.collect()
    links = [Path(os.readlink(each)) for each in OPEN.iterdir() if each.is_symlink()]
    return [link.name for link in links if folder in link.parents]


def faulty(*faults: Kill | Rejoin) -> VirtualWorld:
    """Three virtual learners with faults."""
    return VirtualWorld(Cluster(3, ConstantSeconds(0.1), faults=faults, lease_seconds=0.3))


@pytest.mark.parametrize("strategy", [KAVG(2), ADPSGD(), DelayByOne()], ids=named)
@pytest.mark.parametrize(
    "world",
    [VirtualWorld(3), ThreadWorld(3), faulty(Kill(1, 1.0)), faulty(Kill(1, 1.0), Rejoin(1, 1.8))],
    ids=["virtual", "threads", "a learner is lost", "a learner is started again"],
)
def test_a_run_leaves_no_file_open(world: World, strategy: Strategy, tmp_path: Path) -> None:
    trainer = Trainer(Experiment(ToyTask(), strategy, Budget(minibatches=60), SGD(0.1)), world, out=tmp_path / "run")
    try:
        trainer.fit()
    except PeerLost:
        assert strategy == DelayByOne()
    assert (tmp_path / "run" / "records.jsonl").stat().st_size > 0
    assert opened(tmp_path) == []


def test_a_run_that_fails_leaves_no_file_open(tmp_path: Path) -> None:
    experiment = Experiment(Broken(), KAVG(2), Budget(minibatches=60), SGD(0.1))
    with pytest.raises(FloatingPointError):
        Trainer(experiment, VirtualWorld(2), out=tmp_path / "run").fit()
    assert opened(tmp_path) == []


def test_what_comes_after_the_end_is_written_to_no_other_file(tmp_path: Path) -> None:
    """The number of a closed file is given to the next one that is opened."""
    lines, spans = JsonLines(tmp_path / "records.jsonl"), ChromeTrace(tmp_path / "trace.json", every=1)
    for file in (lines, spans):
        file.close()
        file.close()
    others = [(tmp_path / name).open("wb") for name in "ab"]
    lines(Record("step", 0, 1, 1, 1.0, 0.1, 1.0, 0.5))
    spans(Span(0, "compute", 0.0, 1.0, "minibatch 0"))
    for other in others:
        other.close()
    assert [path.stat().st_size for path in sorted(tmp_path.iterdir())] == [0, 0, 0, 0]
