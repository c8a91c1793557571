"""Programs on the late device, of the code that ships; each raises AssertionError if the result is not that of the CPU.

`PROGRAMS` are those that together need every wait of the accelerator module, each in well under a second.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

import murmur
from murmur.accelerator import device as accelerator
from murmur.core.flat import Layout
from murmur.core.learner import Strategy
from murmur.core.mean_gradient import MeanBehindBackward
from murmur.core.trace import Trace
from murmur.core.weights import Weights
from murmur.core.world import drive
from murmur.engine.budget import Budget
from murmur.engine.optim.optimizer import SGD
from murmur.engine.prefetch import Prefetch
from murmur.engine.trainer import Trainer
from murmur.run import dry_run
from murmur.strategies import KAVG
from murmur.tasks.toy import ToyTask
from murmur.worlds.process.environment import Place
from murmur.worlds.process.group import TorchGroup
from murmur.worlds.process.torch_store import connect
from murmur.worlds.process.world import ProcessWorld
from murmur.worlds.virtual.cluster import Cluster, Link, LognormalSeconds
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.late_device import DEVICE, LateDevice, LateStream, installed
from tests.support.tasks import Steps, weights_of
from tests.support.unscaled import Experiment

TOY = ToyTask(samples=4, hidden=8, per_epoch=6)
CLUSTER = Cluster(2, LognormalSeconds(0.1, 0.3), Link(1e-4, 1e8), lease_seconds=0.3)


def in_thread(work: Callable[[], None]) -> None:
    """Run a function in a thread of its own to its end; raise its error."""
    errors: list[Exception] = []

    def caught() -> None:
        try:
            work()
        except Exception as error:
            errors.append(error)

    thread = Thread(target=caught)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def weights_from_two_threads(device: LateDevice) -> None:
    """Steps and changes from two threads with streams of their own, one of them while a gradient holds the model."""
    found = []
    for name in ("cpu", DEVICE):
        model = nn.Linear(3, 2).requires_grad_(True)
        nn.init.ones_(model.weight)
        nn.init.ones_(model.bias)
        model.to(name)
        weights = Weights(Layout.trainable(model))
        for sign in (1.0, -3.0):
            delta = torch.full((8,), sign).to(name)

            def change(delta: Tensor = delta, weights: Weights = weights) -> None:
                with device.using(device.new_stream()):
                    mine = weights.snapshot()
                    weights.add_(delta)
                    weights.pull_(delta * 0.5, mine, 0.25)

            def step(model: nn.Linear = model) -> None:
                with torch.no_grad():
                    model.weight.mul_(2).add_(1)

            in_thread(change)
            weights.step(step)
            with weights.held():
                held = model.weight.detach() * 3
                in_thread(change)
                in_thread(change)
            weights.step(step)
            found.append(held)
        found.append(weights.snapshot())
    half = len(found) // 2
    for here, there in zip(found[:half], found[half:], strict=True):
        assert torch.equal(here, there.cpu())


def prefetched_minibatches(device: LateDevice) -> None:
    """Minibatches that are copied in the background, used by work that is still to run, and dropped."""
    made = [torch.arange(4.0) + n for n in range(6)]
    prefetch = Prefetch(lambda n: {"x": made[n]}, 2, DEVICE)
    results = []
    for n in range(6):
        prefetch.expect(range(n, min(n + 2, 6)))
        results.append(prefetch.get(n)["x"] * 2)
    prefetch.close()
    assert [x.tolist() for x in results] == [(x * 2).tolist() for x in made]


def prefetch_makes_nothing_wait(device: LateDevice) -> None:
    """No work has run when minibatches are there for the computing stream: neither the host nor a stream has waited."""
    prefetch = Prefetch(lambda n: (torch.ones(3), torch.ones(2)), 2, DEVICE)
    x = torch.zeros(3, device=DEVICE)
    prefetch.expect([0, 1])
    moved = [part for n in (0, 1) for part in prefetch.get(n)]
    prefetch.close()
    assert device.ran == 0
    assert sum((part.sum() for part in moved), x.sum()).item() == 10.0


def pinned_memory(device: LateDevice) -> None:
    assert device.is_pinned(accelerator.pinned(torch.zeros(3), DEVICE))


def recorded_pass(device: LateDevice) -> None:
    """A recorded pass begins after what was before it, and its first repetition after the runs that warm it."""
    found = []
    for name in ("cpu", DEVICE):
        x = torch.zeros(2).to(name)
        x.add_(1)

        def compute(x: Tensor = x) -> None:
            x.mul_(2).add_(1)

        run = accelerator.recorded(compute, torch.device(name))
        for _ in range(2 if name == DEVICE else 2 + accelerator.WARMING_RUNS):
            run()
        found.append(x.tolist())
    assert found[0] == found[1]


def dry_run_times_whole_steps(device: LateDevice) -> None:
    """A dry run reads the clock at the end of a step when all of its work has run."""
    left: list[int] = []

    def seconds() -> float:
        left.append(device.pending)
        return time.perf_counter()

    experiment = Experiment(TOY, KAVG(2), Budget(minibatches=2), SGD(0.1))
    with patch.object(dry_run, "time", SimpleNamespace(perf_counter=seconds)):
        dry_run.first_steps(experiment, TOY.model().to(DEVICE), DEVICE)
    assert left == [0] * 8  # two readings a step, two steps, twice


class LateNccl:
    """Sums over two equal learners on a stream of their own, as NCCL orders them."""

    def __init__(self, device: LateDevice) -> None:
        self._device, self.stream = device, device.new_stream()

    def allreduce(self, xs: list[Tensor]) -> SimpleNamespace:
        here: LateStream = self._device.present_stream()
        self.stream.wait_stream(here)
        with self._device.using(self.stream):
            xs[0].mul_(2)
        done = self._device.new_event()
        done.record(self.stream)
        return SimpleNamespace(wait=lambda: self._device.present_stream().wait_event(done))


def sums_behind_the_backward_pass(device: LateDevice) -> None:
    """Means of gradients whose buckets a collective sums while the backward pass runs."""
    group = object.__new__(TorchGroup)
    wiring = SimpleNamespace(trace=Trace(0, time.monotonic))
    group.__dict__.update(_group=object(), _nccl=LateNccl(device), _on_one_host=False, wiring=wiring, name="two")
    group.__dict__.update(rank=0, size=2, members=[0, 1], _fastest=defaultdict(lambda: float("inf")))
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
    x = torch.randn(4, 4)
    model(x).sum().backward()
    expected, _ = Layout.trainable(model).gather_gradients()
    model.zero_grad()
    model.to(DEVICE)
    behind = MeanBehindBackward(Layout.trainable(model), group, bucket_bytes=80)
    for _ in range(2):
        behind.start(4.0)
        model(x.to(DEVICE)).sum().backward()
        g, present = drive(behind.finish())
        model.zero_grad()
        assert (group.total_weight, present) == (8.0, [True] * 4)
        assert torch.equal(g.cpu(), expected)


PROGRAMS: tuple[Callable[[LateDevice], None], ...] = (
    weights_from_two_threads,
    prefetched_minibatches,
    prefetch_makes_nothing_wait,
    pinned_memory,
    recorded_pass,
    dry_run_times_whole_steps,
    sums_behind_the_backward_pass,
)


def trained(strategy: Strategy, device: str, out: Path) -> dict[str, bytes]:
    """Train the toy with two simulated learners; return the consensus, and the tensors of all files, as bytes."""
    experiment = Experiment(TOY, strategy, Budget(minibatches=8), SGD(0.1, momentum=0.5), seed=3)
    outcome = Trainer(experiment, VirtualWorld(CLUSTER, device=device), out).fit()
    files = {str(f.relative_to(out)): f.read_bytes() for f in sorted(out.rglob("*.safetensors"))}
    return {**files, "consensus": weights_of(outcome.model).cpu().numpy().tobytes()}


def joined_loop(device: str) -> list[list[float]]:
    """A user's loop with its own optimizer and BatchNorm, as the only learner; return its losses and its state."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    losses = []
    with murmur.join(KAVG(K=2), model, optimizer) as me:
        for _ in range(4):
            x, y = torch.randn(4, 6), torch.randint(0, 3, (4,))
            loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            loss.backward()
            me.step()
            losses.append(loss.detach())
    return [[loss.item() for loss in losses], Layout.everything(model).gather().tolist()]


@contextmanager
def on_late_device(seed: int | None, own_streams: bool) -> Iterator[LateDevice]:
    torch.set_num_threads(1)
    with installed(seed, own_streams) as device:
        yield device


def in_processes(place: Place, strategy: Strategy, device: str, seed: int | None, own_streams: bool) -> list[float]:
    """Train at one seat of a world of processes, with gradients that do not depend on the weights."""
    task, world = Steps(6), ProcessWorld(place, device, timeout_seconds=60, store=connect(place, 60))
    experiment: Any = Experiment(task, strategy, Budget(minibatches=12), SGD(0.1))
    with on_late_device(seed, own_streams):
        weights: list[float] = weights_of(Trainer(experiment, world).fit().model).tolist()
    return weights
