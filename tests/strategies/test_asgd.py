"""Parameter server: order of arrival, ages, damping, lost learners, a lost server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from murmur.core.group import Message, PeerLost
from murmur.core.trace import Trace
from murmur.core.world import drive
from murmur.engine.budget import Budget
from murmur.engine.optim.optimizer import SGD
from murmur.engine.record import Record
from murmur.engine.schedule import Constant, TimesLearners
from murmur.engine.task import Loss
from murmur.engine.trainer import Trainer
from murmur.simulation.planner.timing import time_strategy
from murmur.strategies import ASGD
from murmur.strategies.asgd import by_age, undamped
from murmur.testing.strategies import plain_loop
from murmur.worlds.virtual import clock
from murmur.worlds.virtual.cluster import Cluster, ConstantSeconds, Kill, Link, LognormalSeconds, Rejoin, Stop
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.pool import Pool
from tests.support.tally import BUDGET, Tally
from tests.support.tasks import Point, Quadratic, fit, fit_in_process, weights_of
from tests.support.unscaled import Experiment

AT_ONCE = Link(latency_seconds=0.0, bytes_per_second=1e18)
ALPHA = 0.1


class Counted(Quadratic):
    """Task with the gradient -e_n for minibatch n of 20."""

    def model(self) -> nn.Module:
        return Point(20)

    def minibatch(self, n: int) -> tuple[torch.Tensor, float]:
        return nn.functional.one_hot(torch.tensor(n), 20).double(), 1.0

    def loss(self, model: nn.Module, minibatch: tuple[torch.Tensor, float]) -> Loss:
        return Loss(-(model.w * minibatch[0]).sum(), 1.0)


class Statistics(Quadratic):
    """Task whose model notes that it has computed a gradient."""

    def model(self) -> nn.Module:
        model = Point(self.size)
        model.register_buffer("seen", torch.zeros(1, dtype=torch.float64))
        return model

    def loss(self, model: nn.Module, minibatch: tuple[torch.Tensor, float]) -> Loss:
        model.seen.fill_(1.0)
        return super().loss(model, minibatch)


def test_one_learner_and_a_server_are_the_plain_loop() -> None:
    experiment = Experiment(Quadratic(), ASGD(), Budget(minibatches=50), SGD(ALPHA, momentum=0.9))
    assert torch.equal(fit(experiment, VirtualWorld(2)), plain_loop(experiment))


@pytest.mark.parametrize("servers", [1, 2])
def test_records_of_a_server_have_the_seconds_of_the_gradients(servers: int) -> None:
    steps: list[Record] = []
    cluster = Cluster(servers + 3, ConstantSeconds(2.0), AT_ONCE)
    experiment = Experiment(Quadratic(), ASGD(servers=servers), Budget(minibatches=30), SGD(ALPHA))
    Trainer(experiment, VirtualWorld(cluster), observers=lambda _: (steps.append,)).fit()
    seconds = [record.compute_seconds for record in steps if record.kind == "step"]
    assert seconds == pytest.approx([2.0] * 30)


class Served:
    """The oracle's servers: weights, updates and latest pull of each part."""

    def __init__(self, size: int, servers: int, learners: int) -> None:
        self.w = torch.zeros(size, dtype=torch.float64)
        self.parts = [slice(size * s // servers, size * (s + 1) // servers) for s in range(servers)]
        self.updates = [0] * servers
        self.pulled = {learner: [0] * servers for learner in range(learners)}

    def push(self, server: int, learner: int, g: torch.Tensor, damping: Callable[[int], float]) -> None:
        part, age = self.parts[server], self.updates[server] - self.pulled[learner][server]
        self.w[part] -= ALPHA * damping(age) * g[part]
        self.updates[server] += 1

    def pull(self, server: int, learner: int) -> torch.Tensor:
        self.pulled[learner][server] = self.updates[server]
        return self.w[self.parts[server]].clone()


@pytest.mark.parametrize("damping", [undamped, by_age])
@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("learners", [1, 2, 3, 5])
def test_servers_take_gradients_in_order_of_arrival(
    damping: Callable[[int], float], servers: int, learners: int
) -> None:
    """Replay event by event: arrival times, ages, and the weights of each gradient."""
    task, compute = Quadratic(), LognormalSeconds(0.1, 0.8, seed=7)
    minibatches = 60
    server, claimed = Served(task.size, servers, learners), 0
    under_way: list[tuple[float, int, int, torch.Tensor]] = []  # (arrival, learner, n, weights)
    steps = dict.fromkeys(range(learners), 0)

    def claim(now: float, learner: int) -> None:
        nonlocal claimed
        if claimed < minibatches:
            w = torch.cat([server.pull(s, learner) for s in range(servers)])
            under_way.append((now + compute(servers + learner, steps[learner]), learner, claimed, w))
            steps[learner] += 1
            claimed += 1

    for learner in steps:
        claim(0.0, learner)
    while under_way:
        under_way.sort(key=lambda job: job[0])
        now, learner, n, phi = under_way.pop(0)
        for s in range(servers):
            server.push(s, learner, phi - task.centre(n), damping)
        claim(now, learner)
    experiment = Experiment(task, ASGD(damping, servers), Budget(minibatches=minibatches), SGD(ALPHA))
    got = fit(experiment, VirtualWorld(Cluster(learners=servers + learners, compute=compute, link=AT_ONCE)))
    assert torch.allclose(got, server.w, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("damping", [undamped, by_age])
def test_each_part_has_its_own_order_and_ages(damping: Callable[[int], float]) -> None:
    """Pushes of learners 2 to 4 arrive in other orders at server 1 than at server 0, which is nearer."""
    task, compute = Quadratic(size=4), LognormalSeconds(0.1, 0.8, seed=5)
    away = {0: 0.0, 1: 0.15, 2: 0.1, 3: 0.2, 4: 0.0}  # latency of each; that of a message is the larger one
    server, events = Served(4, 2, 3), list[tuple[float, int, int]]()  # (arrival, learner, server)
    order: list[list[int]] = [[], []]
    steps, claimed = [0, 0, 0], 0
    given: list[tuple[int, torch.Tensor] | None] = [None] * 3  # minibatch and weights of the gradient under way
    parts: list[dict[int, torch.Tensor]] = [{}, {}, {}]
    ready: list[tuple[float, int]] = []  # when a learner has the answers of both servers

    def send(now: float, learner: int) -> None:
        parts[learner].clear()
        events.extend((now + max(away[2 + learner], away[s]), learner, s) for s in (0, 1))

    for learner in range(3):
        send(0.0, learner)
    while events or ready:
        if ready and (not events or min(ready) < min(events)[:2]):
            now, learner = ready.pop(ready.index(min(ready)))
            if claimed < 60:
                given[learner] = claimed, torch.cat([parts[learner][s] for s in (0, 1)])
                claimed, steps[learner] = claimed + 1, steps[learner] + 1
                send(now + compute(2 + learner, steps[learner] - 1), learner)
            continue
        now, learner, s = events.pop(events.index(min(events)))
        if (job := given[learner]) is not None:
            server.push(s, learner, job[1] - task.centre(job[0]), damping)
            order[s].append(job[0])
        parts[learner][s] = server.pull(s, learner)
        if len(parts[learner]) == 2:
            back = (max(away[2 + learner], away[near]) for near in (0, 1))
            began = now - max(away[2 + learner], away[s])
            ready.append((began + 2 * max(back), learner))
    assert order[0] != order[1]
    links = {i: Link(latency, 1e18) for i, latency in away.items()}
    experiment = Experiment(task, ASGD(damping, servers=2), Budget(minibatches=60), SGD(ALPHA))
    got = fit(experiment, VirtualWorld(Cluster(5, compute, AT_ONCE, links=links)))
    assert torch.allclose(got, server.w, rtol=1e-12, atol=1e-12)


def test_the_age_is_what_is_recorded() -> None:
    """With L equally fast learners every gradient is L - 1 updates old, after the first round."""
    records: list[Record] = []
    world = VirtualWorld(Cluster(learners=5, compute=ConstantSeconds(0.1), link=AT_ONCE))
    experiment = Experiment(Quadratic(), ASGD(), Budget(minibatches=40), SGD(0.01))
    Trainer(experiment, world, observers=lambda _: (records.append,)).fit()
    ages = [r.staleness for r in records if r.kind == "step"]
    assert ages == [0, 1, 2, 3, *[3] * 36]
    assert [r.minibatches for r in records if r.kind == "step"] == list(range(1, 41))


@pytest.mark.parametrize("servers", [1, 2])
def test_learners_may_die_and_come_back(servers: int) -> None:
    faults = (Kill(2, 1.05), Kill(3, 1.5), Rejoin(3, 2.2))
    cluster = Cluster(learners=3 + servers, compute=ConstantSeconds(0.1), faults=faults, lease_seconds=0.5)
    experiment = Experiment(
        Quadratic(), ASGD(servers=servers), Budget(minibatches=200), SGD(0.05), evaluate_every_epochs=0.03
    )
    got = fit(experiment, VirtualWorld(cluster))
    assert float((got**2).sum()) < 1.0


def test_a_learner_that_comes_back_asks_no_server_before_its_first_gradient() -> None:
    """A server may have ended its service by then, and the late learner would wait for ever."""
    steps: list[str] = []

    async def gradients() -> AsyncIterator[Tensor]:
        steps.append("gradients")
        for _ in ():
            yield torch.empty(0)

    def post(*_: object) -> None:
        steps.append("request")

    async def poll(*_: object) -> Message:
        return Message(torch.zeros(1), 0, (3.0,))

    membership = SimpleNamespace(view=lambda: SimpleNamespace(incarnations={0: 0, 1: 0}))
    for late in (True, False):
        me: Any = SimpleNamespace(
            group=SimpleNamespace(size=2, post=post, poll=poll, membership=membership),
            seat=SimpleNamespace(late=late, trace=Trace(1, lambda: 0.0)),
            averager=SimpleNamespace(poll_seconds=1.0),
            weights=SimpleNamespace(snapshot=lambda: torch.zeros(1), set_=lambda _: None),
            claimed_gradients=gradients,
        )
        drive(ASGD().learn(me, [slice(0, 1)]))
    assert steps == ["gradients", "request", "gradients"]


@pytest.mark.parametrize("servers", [1, 2])
def test_a_learner_that_comes_back_after_the_last_gradient_is_answered(
    servers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was suspended in a gradient that another one computed again. The server had ended its service by then."""
    monkeypatch.setattr(clock, "IDLE_POLLS", 2000)
    learners = servers + 2
    for at, seconds in ((0.93, 1.45), (0.93, 1.5), (0.55, 2.5), (1.05, 1.45)):
        faults = (Stop(learners - 1, at, seconds),)
        cluster = Cluster(learners, ConstantSeconds(0.1), message_bytes=1e6, faults=faults, lease_seconds=0.2)
        assert time_strategy(ASGD(servers=servers), cluster, 30).minibatches == 30


def test_the_first_gradient_of_a_learner_that_comes_back_has_age_0() -> None:
    """It has pulled no weights, but caught up; it was as old as all updates of the run."""
    records: list[Record] = []
    faults = (Kill(3, 1.05), Rejoin(3, 2.05))
    cluster = Cluster(4, ConstantSeconds(0.1), link=AT_ONCE, faults=faults, lease_seconds=0.5)
    experiment = Experiment(Quadratic(), ASGD(), Budget(minibatches=100), SGD(0.01))
    Trainer(experiment, VirtualWorld(cluster), observers=lambda _: (records.append,)).fit()
    ages = [r.staleness for r in records if r.kind == "step"]
    assert len(ages) == 100
    assert max(ages) <= 4


def test_without_its_server_the_run_ends_with_an_error() -> None:
    cluster = Cluster(learners=3, compute=ConstantSeconds(0.1), faults=(Kill(0, 1.0),), lease_seconds=0.5)
    experiment = Experiment(Quadratic(), ASGD(), Budget(minibatches=200), SGD(0.05))
    with pytest.raises(PeerLost, match="learner 0 was killed"):
        fit(experiment, VirtualWorld(cluster))


@pytest.mark.parametrize("faults", [(Kill(1, 1.0),), (Kill(1, 1.0), Rejoin(1, 1.2))], ids=["lost", "started again"])
@pytest.mark.parametrize("learners", [3, 5])
def test_without_one_of_its_servers_the_run_ends_by_its_name(faults: tuple[Kill | Rejoin, ...], learners: int) -> None:
    cluster = Cluster(learners, ConstantSeconds(0.1), faults=faults, lease_seconds=0.5)
    world = VirtualWorld(cluster)
    with pytest.raises(PeerLost, match=r"learner 1( is gone| was started again|, which held a part)"):
        fit(Experiment(Quadratic(), ASGD(servers=2), Budget(minibatches=200), SGD(0.05)), world)
    assert world.clock.now < 3.0


@pytest.mark.parametrize("servers", [1, 2])
def test_a_gradient_of_a_lost_learner_is_applied_once(servers: int) -> None:
    """It is killed in its gradient, while this is under way to the servers or when some have it, or as answers come."""
    victim, task = servers + 1, Tally(cut={"left": 10_000})
    links = {victim: Link(0.01, 1e18), servers - 1: Link(0.005 + 0.01 * servers, 1e18)}
    experiment = Experiment(task, ASGD(servers=servers), Budget(minibatches=BUDGET), SGD(1.0))
    for phase in range(15):
        faults = (Kill(victim, 1.5 + 0.01 * phase),)
        cluster = Cluster(servers + 3, ConstantSeconds(0.1), AT_ONCE, links, faults=faults, lease_seconds=0.5)
        assert torch.equal(fit(experiment, VirtualWorld(cluster)), torch.ones(BUDGET, dtype=torch.float64)), phase


def test_a_run_continues_with_the_servers_of_its_checkpoint_alone(tmp_path: Path) -> None:
    def of(servers: int, minibatches: int) -> Trainer:
        experiment = Experiment(Quadratic(), ASGD(servers=servers), Budget(minibatches=minibatches), SGD(0.1))
        return Trainer(experiment, VirtualWorld(4), tmp_path, resume=minibatches > 40)

    of(2, 40).fit()
    assert float((weights_of(of(2, 80).fit().model) ** 2).sum()) < 1.0
    with pytest.raises(ValueError, match="holds elements 0 to 1 of 5 of the model, but it serves 0 to 0 of 5 now"):
        of(3, 120).fit()


@pytest.mark.parametrize("servers", [1, 2])
def test_running_statistics_are_those_of_the_learners_that_train(servers: int) -> None:
    """Servers compute no gradients, so that theirs stay as they began."""
    model = (
        Trainer(
            Experiment(Statistics(), ASGD(servers=servers), Budget(minibatches=30), SGD(0.1)), VirtualWorld(servers + 2)
        )
        .fit()
        .model
    )
    assert model.seen.item() == 1.0


def test_a_model_needs_an_element_for_each_server() -> None:
    with pytest.raises(ValueError, match="a model of 5 elements cannot be cut in 6 parts"):
        fit(Experiment(Quadratic(), ASGD(servers=6), Budget(minibatches=9), SGD(0.1)), VirtualWorld(8))


@pytest.mark.parametrize("servers", [0, 3])
def test_numbers_of_servers_that_cannot_be(servers: int) -> None:
    with pytest.raises(ValueError, match=r"servers must be at least 1, got 0|servers=3 needs at least 4 learners"):
        fit(Experiment(Quadratic(), ASGD(servers=servers), Budget(minibatches=9), SGD(0.1)), VirtualWorld(3))


def test_one_record_for_a_gradient() -> None:
    records: list[Record] = []
    experiment = Experiment(Quadratic(), ASGD(servers=3), Budget(minibatches=40), SGD(0.01))
    Trainer(experiment, VirtualWorld(5), observers=lambda _: (records.append,)).fit()
    assert [r.minibatches for r in records if r.kind == "step"] == list(range(1, 41))


def test_schedules_see_the_learners_that_train() -> None:
    """Four learners of which two serve: the rate is twice that of the schedule."""
    records: list[Record] = []
    schedule = TimesLearners(Constant())
    experiment = Experiment(Quadratic(), ASGD(servers=2), Budget(minibatches=9), SGD(0.01), schedule)
    Trainer(experiment, VirtualWorld(4), observers=lambda _: (records.append,)).fit()
    assert {r.rate for r in records if r.kind == "step"} == {0.02}


@pytest.mark.processes
@pytest.mark.timeout(120)
def test_processes_apply_every_gradient_once(pool: Pool) -> None:
    task = Counted()
    for weights in pool.call(fit_in_process, 3, Experiment(task, ASGD(servers=2), Budget(minibatches=20), SGD(1.0))):
        assert weights == [1.0] * 20


def test_a_server_without_workers_ends() -> None:
    """It waited without end: the gradients that are left can come from no other learner."""
    cluster = Cluster(learners=2, compute=ConstantSeconds(0.1), faults=(Kill(1, 0.55),))
    experiment = Experiment(Quadratic(), ASGD(), Budget(minibatches=61), SGD(0.1))
    with pytest.raises(PeerLost, match="all other learners are lost"):
        Trainer(experiment, VirtualWorld(cluster)).fit()
