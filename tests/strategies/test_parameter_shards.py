"""Downpour and elastic averaging: event-by-event oracles, sums that are kept, losses, checkpoints."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field, replace
from itertools import permutations
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from murmur.core.facts import learners_for
from murmur.core.group import PeerLost
from murmur.core.learner import Learner
from murmur.core.pairwise import PairwiseAverager
from murmur.core.world import Seat, World
from murmur.engine.budget import Budget
from murmur.engine.optim.optimizer import SGD
from murmur.engine.record import Record
from murmur.engine.trainer import Trainer
from murmur.simulation.planner.timing import time_strategy
from murmur.strategies import EASGD, Compressed, DecoupledDiLoCo, Downpour
from murmur.strategies.parameter_shards import CENTRE
from murmur.testing.strategies import Observed, plain_loop
from murmur.worlds.threads import ThreadWorld
from murmur.worlds.virtual.cluster import (
    Cluster,
    ComputeTime,
    ConstantSeconds,
    Kill,
    Link,
    LognormalSeconds,
    Rejoin,
    Stop,
)
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.named import named
from tests.support.pool import Pool
from tests.support.tally import Tally
from tests.support.tasks import Quadratic, Steps, fit, fit_in_process
from tests.support.unscaled import Experiment

AT_ONCE = Link(latency_seconds=0.0, bytes_per_second=1e18)
ALPHA, MINIBATCHES = 0.1, 60
SHARDED = [Downpour(), Downpour(push=1, pull=3), Downpour(push=4, pull=2), EASGD(2), EASGD(3, rate=0.4)]
APART = [Downpour(servers=1), Downpour(3, 2, servers=2), EASGD(2, servers=1), EASGD(3, rate=0.4, servers=3)]


@dataclass
class Replayed:
    """One learner of the oracle: its weights, and what the equations of the strategies need.

    Attributes:
        w: Weights.
        base: Downpour: centre at its latest pull, plus what it has pushed since.
        pushed, pulled: Gradients since then; EASGD uses the first.
    """

    w: Tensor
    base: Tensor
    pushed: int = 0
    pulled: int = 0


def exchange(strategy: Downpour | EASGD, it: Replayed, centre: Tensor, learners: int, last: bool) -> Tensor:
    """Carry out what is due after a gradient, and return the centre."""
    it.pushed, it.pulled = it.pushed + 1 - last, it.pulled + 1 - last
    if isinstance(strategy, EASGD):
        if last or it.pushed >= strategy.K:
            it.pushed = 0
            difference = (strategy.rate or 0.9 / learners) * (it.w - centre)
            centre, it.w = centre + difference, it.w - difference
        return centre
    if last or it.pushed >= strategy.push:
        it.pushed = 0
        centre, it.base = centre + it.w - it.base, it.w.clone()
    if it.pulled >= strategy.pull:
        it.pulled = 0
        it.w, it.base = centre + it.w - it.base, centre.clone()
    return centre


def replay(
    strategy: Downpour | EASGD, learners: int, compute: Callable[[int, int], float]
) -> tuple[Tensor, list[Replayed]]:
    """Return the centre and the learners after all minibatches, event by event, on a network that takes no time.

    Answers land when the next gradient has begun, except those of learner 0 to itself if it trains and holds the only
    shard. Learners are counted from the first that trains.
    """
    task, claimed = Quadratic(), 0
    centre = torch.zeros(task.size, dtype=torch.float64)
    them = [Replayed(centre.clone(), centre.clone()) for _ in range(learners)]
    under_way: list[tuple[float, int, int, Tensor]] = []  # (end, learner, minibatch, point of the gradient)
    steps = [0] * learners

    def claim(now: float, i: int, at: Tensor) -> None:
        nonlocal claimed
        if claimed < MINIBATCHES:
            under_way.append((now + compute(strategy.servers + i, steps[i]), i, claimed, at))
            steps[i] += 1
            claimed += 1

    for i in range(learners):
        claim(0.0, i, them[i].w)
    while under_way:
        under_way.sort(key=lambda job: job[0])
        now, i, n, point = under_way.pop(0)
        them[i].w = before = them[i].w - ALPHA * (point - task.centre(n))
        centre = exchange(strategy, them[i], centre, learners, last=False)
        claim(now, i, them[0].w if i == 0 and strategy.servers == 0 else before)
    return centre, them


def ends(strategy: Downpour | EASGD, centre: Tensor, them: list[Replayed]) -> Iterator[Tensor]:
    """Yield the centre after a last exchange of all learners, for each order in which these may arrive."""
    for order in permutations(them):
        end = centre
        for it in order:
            end = exchange(strategy, replace(it), end, len(them), last=True)
        yield end


@pytest.mark.parametrize("learners", [2, 3, 5])
@pytest.mark.parametrize("strategy", SHARDED + APART, ids=named)
def test_event_by_event(strategy: Downpour | EASGD, learners: int) -> None:
    compute = LognormalSeconds(0.1, 0.8, seed=7)
    experiment = Experiment(Quadratic(), strategy, Budget(minibatches=MINIBATCHES), SGD(ALPHA))
    cluster = Cluster(learners=learners_for(strategy, learners), compute=compute, link=AT_ONCE)
    got = fit(experiment, VirtualWorld(cluster))
    centre, them = replay(strategy, learners, compute)
    assert any(torch.allclose(got, end, rtol=1e-12, atol=1e-12) for end in ends(strategy, centre, them))


@pytest.mark.parametrize("placed", [(1, 0), (2, 0), (5, 0), (1, 1), (1, 2)])
@pytest.mark.parametrize("periods", [(1, 1), (3, 2)])
@pytest.mark.parametrize("latency", [0.0, 0.35])
def test_downpour_adds_every_step_once(periods: tuple[int, int], placed: tuple[int, int], latency: float) -> None:
    """With gradients that do not depend on the weights, the centre ends at the sum of all steps."""
    strategy, task = Downpour(*periods, *placed), Steps()
    cluster = Cluster(4, LognormalSeconds(0.1, 0.7, seed=3), Link(latency, 1e3))
    got = fit(Experiment(task, strategy, Budget(minibatches=MINIBATCHES), SGD(ALPHA)), VirtualWorld(cluster))
    assert torch.allclose(got, ALPHA * sum(task.centre(n) for n in range(MINIBATCHES)), rtol=0, atol=1e-12)


def test_what_a_compression_loses_is_pushed_later() -> None:
    """The last push of each learner and the centre at the end lose at most 1/254 of their largest elements."""
    task, strategy = Steps(size=600), Observed(Compressed(Downpour(1, 2, shards=3), "int8"))
    cluster = Cluster(4, LognormalSeconds(0.1, 0.7, seed=3))
    got = fit(Experiment(task, strategy, Budget(minibatches=4 * MINIBATCHES), SGD(ALPHA)), VirtualWorld(cluster))
    wanted = ALPHA * sum(task.centre(n) for n in range(4 * MINIBATCHES))
    assert float((got - wanted).abs().max()) < (float(wanted.abs().max()) + 4 * ALPHA * 3.5) / 254
    assert all(torch.equal(end, strategy.ends[0]) for end in strategy.ends)


@dataclass(frozen=True)
class Broken:
    """A strategy in which the weights of learner 1 stop being finite once."""

    strategy: Downpour | EASGD
    lock_step: ClassVar[bool] = False

    async def __call__(self, me: Learner) -> None:
        if me.group.rank == 1:
            descend = me.descend

            def broken(g: Tensor, staleness: int | None = None) -> None:
                descend(g, staleness)
                if me.steps == 5:
                    me.weights.set_(torch.full_like(g, torch.nan))

            me.descend = broken  # type: ignore[method-assign]
        await self.strategy(me)


@pytest.mark.parametrize("strategy", [Downpour(shards=2), Downpour(2, 3), EASGD(2)], ids=named)
def test_a_learner_without_finite_weights_takes_the_centre(strategy: Downpour | EASGD) -> None:
    world = VirtualWorld(Cluster(3, ConstantSeconds(0.1)))
    got = fit(Experiment(Quadratic(), Broken(strategy), Budget(minibatches=120), SGD(0.1)), world)
    assert float((got**2).sum()) < 1.0


@dataclass(frozen=True)
class Watched(EASGD):
    """Elastic averaging that notes a learner's weights when its gradients end, and the shards before the end."""

    ends: dict[str, Tensor] = field(default_factory=dict, compare=False)

    async def learn(self, me: Learner) -> None:
        meet = me.averager.meet

        async def noted(barrier: str, seat: Seat) -> None:
            self.ends[f"{barrier}, learner {me.group.rank}"] = me.weights.snapshot()
            await meet(barrier, seat)
            if CENTRE in me.outer:
                self.ends[f"{barrier}, shard {me.group.rank}"] = me.outer[CENTRE].clone()

        me.averager.meet = noted  # type: ignore[method-assign]
        await super().learn(me)


@pytest.mark.parametrize(
    "world",
    [
        VirtualWorld(Cluster(3, LognormalSeconds(0.1, 0.5), Link(0.0, 1e9))),
        VirtualWorld(Cluster(3, LognormalSeconds(0.1, 0.5), Link(0.35, 1e9))),
        ThreadWorld(3, timeout_seconds=30),
    ],
    ids=["fast", "slow", "threads"],
)
def test_elastic_exchanges_keep_the_sum_of_centre_and_weights(world: World) -> None:
    """c + sum w is the sum of all steps once every exchange has ended."""
    task, strategy = Steps(), Watched(K=2, rate=0.3, shards=2)
    fit(Experiment(task, strategy, Budget(minibatches=MINIBATCHES), SGD(ALPHA)), world)
    centre = torch.cat([strategy.ends[f"all given, shard {holder}"] for holder in range(2)])
    weights = sum(strategy.ends[f"all given, learner {i}"] for i in range(3))
    assert torch.allclose(centre + weights, ALPHA * sum(task.centre(n) for n in range(MINIBATCHES)), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("strategy", "training"),
    [(Downpour(2, 2, 2), [0, 1, 2, 3]), (EASGD(2, shards=2), [0, 1, 2, 3]), (EASGD(2, servers=2), [2, 3, 4, 5])],
    ids=named,
)
def test_four_learners_train(strategy: Downpour | EASGD, training: list[int]) -> None:
    seen: list[Record] = []
    world = VirtualWorld(Cluster(learners_for(strategy, 4), ConstantSeconds(0.1)))
    run = Experiment(Quadratic(), strategy, Budget(minibatches=80), SGD(0.05))
    Trainer(run, world, observers=lambda _: (seen.append,)).fit()
    steps = [record for record in seen if record.kind == "step"]
    assert Counter(record.learner for record in steps) == dict.fromkeys(training, 20)
    assert max(record.seconds for record in steps) < 2.1  # 20 gradients each; no server takes a learner's place


@pytest.mark.parametrize("strategy", SHARDED + APART, ids=named)
def test_one_learner_is_the_plain_loop(strategy: Downpour | EASGD) -> None:
    experiment = Experiment(Quadratic(), strategy, Budget(minibatches=50), SGD(ALPHA, momentum=0.9))
    assert torch.equal(fit(experiment, VirtualWorld(1)), plain_loop(experiment))


@pytest.mark.parametrize("strategy", [Downpour(), EASGD(), Downpour(servers=2)], ids=named)
def test_learners_without_a_shard_may_die_and_come_back(strategy: Downpour | EASGD) -> None:
    faults = (Kill(2, 1.05), Kill(3, 1.5), Rejoin(3, 2.2))
    cluster = Cluster(learners=4, compute=ConstantSeconds(0.1), faults=faults, lease_seconds=0.5)
    experiment = Experiment(Quadratic(), strategy, Budget(minibatches=200), SGD(0.05), evaluate_every_epochs=0.03)
    got = fit(experiment, VirtualWorld(cluster))
    assert float((got**2).sum()) < 1.0


@pytest.mark.parametrize("placed", [(2, 0), (1, 2)], ids=["beside", "servers"])
@pytest.mark.parametrize(("push", "seconds", "most"), [(1, 0.0, 0), (4, 0.0, 3), (1, 0.13, 2), (4, 0.13, 3)])
def test_a_lost_learner_takes_with_it_the_steps_that_it_has_not_pushed(
    push: int, seconds: float, most: int, placed: tuple[int, int]
) -> None:
    """No step counts twice. A push waits for an exchange under way, of 2.6 gradients on the slow network."""
    missing, (begin, size) = [], (4.0, 120) if seconds else (0.5, 60)  # learners meet before the first gradient
    for phase in range(8):
        faults = (Kill(3, begin + 0.05 * phase),)
        cluster = Cluster(5, ConstantSeconds(0.1), Link(seconds, 1e18), faults=faults, lease_seconds=0.5)
        task = Tally(cut={"left": 10_000}, size=size)
        experiment = Experiment(task, Downpour(push, push, *placed), Budget(minibatches=size), SGD(1.0))
        found = fit(experiment, VirtualWorld(cluster))
        assert set(found.tolist()) <= {0.0, 1.0}
        missing.append(int((found == 0).sum()))
    assert max(missing) == most


@pytest.mark.parametrize("strategy", [Downpour(shards=2), EASGD(shards=2), Downpour(servers=2)], ids=named)
@pytest.mark.parametrize("faults", [(Kill(1, 1.0),), (Kill(1, 1.0), Rejoin(1, 1.2))], ids=["lost", "started again"])
def test_a_lost_shard_ends_the_run_by_name(strategy: Downpour | EASGD, faults: tuple[Kill | Rejoin, ...]) -> None:
    cluster = Cluster(learners=3, compute=ConstantSeconds(0.1), faults=faults, lease_seconds=0.5)
    experiment = Experiment(Quadratic(), strategy, Budget(minibatches=200), SGD(0.05))
    with pytest.raises(PeerLost, match=r"learner 1.* part of the parameters, is lost|learner 1 was started again"):
        fit(experiment, VirtualWorld(cluster))


EVEN, UNEVEN = (ConstantSeconds(0.1), LognormalSeconds(0.1, 0.2, 710822))


@pytest.mark.parametrize(
    ("strategy", "minibatches", "compute", "faults"),
    [
        (
            Downpour(),
            100,
            EVEN,
            (Stop(0, 1.581, 0.517), Kill(2, 0.494), Rejoin(2, 1.067), Kill(4, 0.258), Kill(7, 1.345)),
        ),
        (
            EASGD(),
            40,
            UNEVEN,
            (Stop(0, 0.131, 0.634), Kill(3, 0.64), Rejoin(3, 0.989), Kill(7, 0.565), Rejoin(7, 1.013)),
        ),
    ],
    ids=named,
)
def test_a_holder_that_was_suspended_ends_the_run(
    strategy: Downpour | EASGD, minibatches: int, compute: ComputeTime, faults: tuple[Kill | Rejoin | Stop, ...]
) -> None:
    """It counted as lost and serves no more. At the end it waited for learners that waited for its answers."""
    cluster = Cluster(8, compute, message_bytes=1e6, faults=faults, lease_seconds=0.5)
    with pytest.raises(PeerLost, match="learner 0"):
        time_strategy(strategy, cluster, minibatches)


@pytest.mark.parametrize("strategy", [Downpour(shards=2), EASGD(2, shards=3), EASGD(2, servers=1)], ids=named)
def test_threads_end_with_the_same_weights(strategy: Downpour | EASGD) -> None:
    """A gradient takes a millisecond, so that an exchange fits beside it."""
    experiment = Experiment(Quadratic(), strategy, Budget(minibatches=200), SGD(0.05))
    world = ThreadWorld(3, timeout_seconds=30, delay=lambda _: 1e-3)
    assert float((fit(experiment, world) ** 2).sum()) < 1.0


@pytest.mark.processes
@pytest.mark.timeout(120)
@pytest.mark.parametrize("periods", [(1, 1, 2, 0), (3, 2, 1, 0), (2, 1, 1, 1)])
def test_processes_add_every_step_once(pool: Pool, periods: tuple[int, int, int, int]) -> None:
    task = Steps()
    experiment = Experiment(task, Downpour(*periods), Budget(minibatches=MINIBATCHES), SGD(ALPHA))
    steps = ALPHA * sum(task.centre(n) for n in range(MINIBATCHES))
    for weights in pool.call(fit_in_process, 3, experiment):
        assert torch.allclose(torch.tensor(weights, dtype=torch.float64), steps, rtol=0, atol=1e-12)


@pytest.mark.parametrize("strategy", [*SHARDED, *APART], ids=named)
def test_learners_answer_with_their_part_from_the_first_request(
    strategy: Downpour | EASGD, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[int] = []
    answer = PairwiseAverager.answer

    def noted(averager: PairwiseAverager) -> Coroutine[Any, Any, None]:
        shown.append(len(averager.shown()) if averager.group.rank in (averager.holders or ()) else 0)
        return answer(averager)

    monkeypatch.setattr(PairwiseAverager, "answer", noted)
    fit(Experiment(Quadratic(), strategy, Budget(minibatches=12), SGD(ALPHA)), VirtualWorld(Cluster(4)))
    assert len(shown) == 4
    assert sum(shown) == Quadratic.size


@pytest.mark.parametrize(
    "strategy", [Downpour(1000, 1000), EASGD(1000, shards=2), EASGD(1000, servers=1), DecoupledDiLoCo(1000)], ids=named
)
def test_evaluations_see_the_centre(strategy: Downpour | EASGD, tmp_path: Path) -> None:
    """Without an exchange before the end, the centre stays at 0, where the loss is 0; the learners' weights do not."""
    experiment = Experiment(Quadratic(), strategy, Budget(minibatches=120), SGD(0.05), evaluate_every_epochs=0.02)
    Trainer(experiment, VirtualWorld(Cluster(3, ConstantSeconds(0.1))), tmp_path / "run").fit()
    records = [json.loads(line) for line in (tmp_path / "run/records.jsonl").read_text().splitlines()]
    losses = [record["figures"]["loss"] for record in records if record["kind"] == "evaluation"]
    assert len(losses) >= 5
    assert losses[:-1] == [0.0] * (len(losses) - 1)
    assert losses[-1] > 0


def test_evaluations_of_servers_see_every_push(tmp_path: Path) -> None:
    """Each of two servers shows the pushes that it has absorbed, although no learner has asked for its shard yet."""
    strategy, c = Downpour(push=1, pull=1000, servers=2), torch.stack([Steps().centre(n) for n in range(24)])
    experiment = Experiment(Steps(), strategy, Budget(minibatches=60), SGD(ALPHA), evaluate_every_epochs=0.02)
    Trainer(experiment, VirtualWorld(Cluster(4, ConstantSeconds(0.1))), tmp_path / "run").fit()
    model = load_file(tmp_path / "run/checkpoints/marks/0000000020.safetensors")["weights"]
    for part in (slice(0, 2), slice(2, 5)):
        sums = [ALPHA * c[:end, part].sum(0) for end in (18, 20, 22)]
        assert min(float((model[part] - steps).abs().max()) for steps in sums) < 1e-12


@pytest.mark.parametrize("servers", [-1, 3])
def test_numbers_of_servers_that_cannot_be(servers: int) -> None:
    with pytest.raises(ValueError, match=r"servers must be at least 0, got -1|servers=3 needs at least 4 learners"):
        fit(Experiment(Quadratic(), EASGD(servers=servers), Budget(minibatches=9), SGD(0.1)), VirtualWorld(3))


def test_shards_and_servers_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="shards=2 lie beside gradients, servers=1 take none"):
        Downpour(shards=2, servers=1)


@pytest.mark.parametrize("made", [lambda: Downpour(0), lambda: EASGD(K=0), lambda: Downpour(shards=0)])
def test_counts_are_positive(made: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="must be at least 1, got 0"):
        made()


@pytest.mark.parametrize("rate", [0.0, 1.5])
def test_the_moving_rate_is_a_fraction(rate: float) -> None:
    with pytest.raises(ValueError, match=r"rate must be in \(0, 1\]"):
        EASGD(rate=rate)
