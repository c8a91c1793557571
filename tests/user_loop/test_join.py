from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import murmur
from murmur.core.flat import Layout
from murmur.core.group import PeerLost, WorldMismatch
from murmur.core.learner import Learner, Strategy
from murmur.core.world import Program, Seat
from murmur.engine.budget import Budget
from murmur.engine.task import Loss, Score
from murmur.engine.trainer import Trainer
from murmur.strategies import (
    ADPSGD,
    ALL,
    ASGD,
    BMUF,
    KAVG,
    AdaptiveKAVG,
    Compressed,
    DelayByOne,
    DiLoCo,
    GossipPGA,
    NoLoCo,
    OwnShares,
    ParameterAveraging,
    SlowMo,
    StreamingDiLoCo,
    SuperLearners,
    SyncSGD,
)
from murmur.strategies.adaptive_kavg import Stages
from murmur.strategies.parameter_averaging import Jobs, MaxChange, RunningMean
from murmur.user_loop.handover import present
from murmur.user_loop.joined import Plan
from murmur.worlds.process.environment import Place
from murmur.worlds.process.torch_store import connect
from murmur.worlds.process.world import ProcessWorld
from murmur.worlds.threads import ThreadWorld
from tests.support.named import named
from tests.support.pool import LearnerFailed, Pool, PooledWorld
from tests.support.unscaled import Experiment
from tests.support.user_loops import ForeignLoop, Net, Words, evaluate, loss_of, moved, net, number, optimizer_of, state

LIMIT_SECONDS = 60  # a hang would last for ever
LOCK_STEP = [
    *(
        SyncSGD(),
        KAVG(1),
        KAVG(3),
        BMUF(3),
        SlowMo(3),
        DiLoCo(3),
        StreamingDiLoCo(4, 2, 1),
        GossipPGA(2),
        NoLoCo(2),
        AdaptiveKAVG(Stages((2,))),
        DelayByOne(),
    ),
    *(Compressed(KAVG(2), "float32"), SuperLearners(SyncSGD(), 2)),
]


def threads(size: int, timeout_seconds: float = 20.0) -> ThreadWorld:
    return ThreadWorld(size, timeout_seconds)


def ran(world: ThreadWorld | PooledWorld, program: Program[object]) -> list[object]:
    began = time.monotonic()
    ends = world.run(program)
    assert time.monotonic() - began < LIMIT_SECONDS
    return ends


NODES = {f"nodes of {outer}, {size}": (SuperLearners(outer, 2), size) for outer in (KAVG(2), ASGD()) for size in (3, 4)}
# A loop has its own share already.
IN_THREADS = {
    name: (make(), 4 if name == "SuperLearners" else 2) for name, make in ALL.items() if name != "OwnShares"
} | NODES
# These exercise the differences of processes: sums behind gradients, means beside them, edges, super-learners.
IN_PROCESSES = {name: IN_THREADS[name] for name in ("SyncSGD", "DelayByOne", "ADPSGD", "SuperLearners")}


@pytest.mark.parametrize(("name", "strategy", "size"), [(name, *case) for name, case in IN_THREADS.items()], ids=named)
def test_uneven_loops_end_with_one_model(name: str, strategy: Strategy, size: int) -> None:
    check_one_model(name, ran(threads(size), ForeignLoop(strategy, (17, 19, 18, 11))))


@pytest.mark.processes
@pytest.mark.parametrize(("name", "strategy", "size"), [(name, *case) for name, case in IN_PROCESSES.items()])
def test_uneven_processes_end_with_one_model(name: str, strategy: Strategy, size: int, pool: Pool) -> None:
    check_one_model(name, ran(PooledWorld(pool, size), ForeignLoop(strategy, (17, 19, 18, 11))))


def check_one_model(name: str, ends: list[object]) -> None:
    (first, _), *_ = ends  # type: ignore[misc]
    assert moved(first)
    for end, unused in ends:  # type: ignore[misc]
        assert torch.equal(end, first)
        assert not unused
        assert torch.isfinite(end).all()
        for (tensor, p), kept in zip(net(0).named_parameters(), Layout.everything(net(0)).views(end), strict=False):
            if tensor.startswith("frozen"):
                assert torch.equal(p, kept)
            if tensor.startswith("unused"):  # unchanged and without decay, except for the rounding of means
                assert torch.allclose(p, kept, rtol=0.01 if name == "Compressed" else 1e-5, atol=0)


class Counting(nn.Module):
    """Model with minibatches counted by BatchNorm, and constant integer and boolean buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.outer = nn.BatchNorm1d(2), nn.Linear(2, 1)
        self.register_buffer("key", torch.tensor([2**45 + 1, -7]))
        self.register_buffer("mask", torch.tensor([True, False]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(self.norm(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "strategy",
    [SyncSGD(), KAVG(2), ADPSGD(), SuperLearners(KAVG(2), 2), SuperLearners(ADPSGD(), 2), Compressed(KAVG(2), "int8")],
    ids=named,
)
def test_replicas_have_the_same_whole_numbers_at_the_end(strategy: Strategy) -> None:
    """Learners of 17, 19, 18 and 11 steps begin with different numbers."""

    def body(seat: Seat) -> list[torch.Tensor]:
        model, rank = Counting(), seat.group.rank
        model.norm.num_batches_tracked.fill_(100 * rank)  # type: ignore[operator]
        model.mask.fill_(rank == 1)  # type: ignore[operator]
        if rank > 0:
            model.key.zero_()  # type: ignore[operator]
        with murmur.join(strategy, model, torch.optim.SGD(model.parameters(), 0.01), seat=seat) as me:
            for _ in range((17, 19, 18, 11)[rank]):
                model(torch.randn(4, 2)).sum().backward()
                me.step()
        return [model.norm.num_batches_tracked, model.key, model.mask]  # type: ignore[list-item]

    async def program(seat: Seat) -> list[torch.Tensor]:
        return body(seat)

    ends = threads(4).run(program)
    assert all(torch.equal(mine, first) for end in ends[1:] for mine, first in zip(end, ends[0], strict=True))
    count, key, mask = ends[0]
    assert 11 <= int(count) <= 19
    assert (key.tolist(), mask.tolist()) == ([2**45 + 1, -7], [False, False])


@pytest.mark.parametrize("inner", [ADPSGD(), KAVG(2)], ids=named)
def test_a_consensus_of_super_learners_asks_all_learners(inner: Strategy) -> None:
    """Leaders have a group of their own while they train; a consensus in the block is of the world."""

    def body(seat: Seat) -> list[int]:
        model = torch.nn.Linear(1, 1, bias=False)
        with murmur.join(SuperLearners(inner, 2), model, torch.optim.SGD(model.parameters(), 0.1), seat=seat) as me:
            for _ in range(3):
                model.weight.sum().backward()
                me.step()
            return list(present(me._me, me._all))

    async def program(seat: Seat) -> list[int]:
        return body(seat)

    assert threads(4).run(program) == [[0, 1, 2, 3]] * 4


@pytest.mark.parametrize("outer", [ADPSGD(), KAVG(2), SyncSGD()], ids=named)
def test_a_member_goes_on_when_its_leader_has_no_more(outer: Strategy) -> None:
    def body(seat: Seat) -> float:
        model = nn.Linear(1, 1, bias=False)
        nn.init.ones_(model.weight)
        with murmur.join(SuperLearners(outer, 2), model, torch.optim.SGD(model.parameters(), 0.125), seat=seat) as me:
            for _ in range(1 + 2 * me.rank):
                model(torch.ones(1, 1)).sum().backward()
                me.step()
        return model.weight.item()

    assert ran(threads(2), Words(body)) == [1 - 3 * 0.125] * 2


async def one_step(me: Learner) -> None:
    me.descend(await me.gradient())


def test_a_strategy_may_end_before_the_loop() -> None:
    model = net(0)
    with murmur.join(one_step, model, optimizer_of(model)) as me:
        for n in range(3):
            with me.last_backward():
                loss_of(model, n).backward()
            me.step()
            if n == 0:
                after = state(model)[:-16]  # without the statistics of BatchNorm
    assert torch.equal(state(model)[:-16], after)


@dataclass(frozen=True)
class SameData:
    """The user loop's data as a task: minibatch n is one step of `accumulate` small ones."""

    accumulate: int = 3
    per_epoch: int = 12
    samples_per_epoch: float = 144.0

    def prepare(self) -> None:
        pass

    def model(self) -> nn.Module:
        return net(0)

    def minibatch(self, n: int) -> list[int]:
        return [n * self.accumulate + i for i in range(self.accumulate)]

    def loss(self, model: nn.Module, minibatch: list[int]) -> Loss:
        samples = 4.0 * len(minibatch)
        return Loss(sum(loss_of(model, n) for n in minibatch) / len(minibatch) * samples, samples)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        return dict(evaluate(model))

    def test(self, model: nn.Module) -> Score:
        return Score(self.evaluate(model))


@pytest.mark.parametrize("strategy", LOCK_STEP, ids=named)
def test_equals_the_trainer_where_lock_step(strategy: Strategy) -> None:
    size = 4 if isinstance(strategy, SuperLearners) else 2
    run = Experiment(SameData(), strategy, Budget(minibatches=6 * size), optimizer_of, evaluate_every_epochs=100)  # type: ignore[arg-type]
    wanted = state(Trainer(run, threads(size)).fit().model)
    ends = ran(threads(size), ForeignLoop(strategy, (18,) * size))
    assert torch.allclose(ends[0][0], wanted, atol=2e-6)  # type: ignore[index]


def test_uneven_kavg_is_the_equation() -> None:
    """17 and 19 minibatches, 3 per step: 6 steps of 12 samples, the last with 8, and 7 with a last one of 4."""
    K, counts = 4, (17, 19)
    models = [net(0), net(0)]
    optimizers = [optimizer_of(m) for m in models]
    for start in range(0, 7, K):
        used = [0.0, 0.0]
        for rank, model in enumerate(models):
            for step in range(start, min(start + K, -(-counts[rank] // 3))):
                positions = range(step * 3, min(step * 3 + 3, counts[rank]))
                for i in positions:
                    (loss_of(model, number(step, i, rank, 2, 3)) / len(positions)).backward()
                optimizers[rank].step()
                optimizers[rank].zero_grad()
                used[rank] += 4.0 * len(positions)
        with torch.no_grad():
            for a, b in zip(*(m.parameters() for m in models), strict=True):
                if a.requires_grad:
                    mean = (a * used[0] + b * used[1]) / sum(used)
                    a.copy_(mean)
                    b.copy_(mean)
    (end, _), _ = ran(threads(2), ForeignLoop(KAVG(K), counts))  # type: ignore[misc]
    own = net(0)
    with torch.no_grad():
        for p, a, b in zip(own.buffers(), models[0].buffers(), models[1].buffers(), strict=True):
            p.copy_((a + b) / 2 if p.is_floating_point() else a)
    own.load_state_dict({**models[0].state_dict(), **dict(own.named_buffers())})
    assert torch.allclose(end, state(own), atol=2e-6)


def test_alone_it_is_the_plain_loop_to_the_bit() -> None:
    model, plain = net(3), net(3)
    optimizer, other = optimizer_of(model), optimizer_of(plain)
    with murmur.join(KAVG(4), model, optimizer) as me:
        assert (me.rank, me.size) == (0, 1)
        for n in range(10):
            for m in (model, plain):
                (loss_of(m, 2 * n) / 2).backward()
                (loss_of(m, 2 * n + 1) / 2).backward()
                nn.utils.clip_grad_norm_(m.parameters(), 0.5)
            me.step()
            other.step()
            other.zero_grad()
            assert torch.equal(state(model), state(plain))


@pytest.mark.processes
@pytest.mark.parametrize("strategy", [SyncSGD(), KAVG(2), DelayByOne(), SuperLearners(SyncSGD(), 1)], ids=named)
@pytest.mark.parametrize("world", ["threads", "processes"])
def test_an_exception_aborts_the_group(strategy: Strategy, world: str, pool: Pool) -> None:
    where = threads(2) if world == "threads" else PooledWorld(pool, 2)
    began = time.monotonic()
    with pytest.raises((LearnerFailed, ArithmeticError), match="planted"):
        where.run(Failing(strategy))
    assert time.monotonic() - began < LIMIT_SECONDS


@dataclass(frozen=True)
class Failing:
    strategy: Strategy

    async def __call__(self, seat: Seat) -> None:
        model = net(0)
        with murmur.join(self.strategy, model, optimizer_of(model), seat=seat) as me:
            for n in range(10):
                if n == 5 and me.rank == 1:
                    raise ArithmeticError("planted")
                loss_of(model, n).backward()
                me.step()


def leaving(place: Place) -> object:
    """Fail in learner 1; the caller of its loop goes on with other work."""
    model = net(0)
    try:
        with (
            ProcessWorld(place, timeout_seconds=20, store=connect(place, 20)).seated() as seat,
            murmur.join(ADPSGD(), model, optimizer_of(model), seat=seat) as me,
        ):
            for n in range(10):
                if n == 3 and me.rank == 1:
                    raise ArithmeticError("planted")
                loss_of(model, n).backward()
                me.step()
    except ArithmeticError:
        return "left"
    return state(model).tolist()


def test_the_others_of_an_asynchronous_run_go_on(pool: Pool) -> None:
    ends = pool.call(leaving, 3)
    assert ends[0] == ends[2] != "left"
    assert ends[1] == "left"


@dataclass(frozen=True)
class Differing:
    what: str

    async def __call__(self, seat: Seat) -> None:
        odd = seat.group.rank == 1
        model = nn.Sequential(net(0), nn.Linear(3, 3)) if odd and self.what == "model" else net(0)
        strategy = KAVG(5) if odd and self.what == "strategy" else KAVG(4)
        kind = torch.optim.Adam if odd and self.what == "optimizer" else torch.optim.SGD
        with murmur.join(strategy, model, kind(model.parameters(), 0.1), seat=seat):
            pass


@pytest.mark.parametrize(
    ("what", "world"),
    [("model", "threads"), ("strategy", "threads"), ("optimizer", "threads"), ("model", "processes")],
)
def test_what_differs_is_named_at_the_start(what: str, world: str, pool: Pool) -> None:
    where = threads(3) if world == "threads" else PooledWorld(pool, 3)
    with pytest.raises((WorldMismatch, LearnerFailed), match=rf"the {what} of learners \[1\] differs from learner 0's"):
        where.run(Differing(what))


@pytest.mark.parametrize("strategy", [KAVG(100), ADPSGD(), SuperLearners(KAVG(100), 1)], ids=named)
def test_consensus_in_the_middle(strategy: Strategy) -> None:
    """Only learner 0 requests it, between its steps, after learner 1 has ended."""

    def body(seat: Seat) -> object:
        model = net(0)
        found: list[bool] = []
        with murmur.join(strategy, model, optimizer_of(model), seat=seat) as me:
            for n in range(6 if me.rank == 0 else 3):
                loss_of(model, 10 * me.rank + n).backward()
                me.step()
                if n >= 4:
                    time.sleep(0.1)
                    before = state(model)
                    with me.consensus() as consensus:
                        assert consensus is model
                        found.append(torch.equal(state(model), before))
                    assert torch.equal(state(model), before)
        return found

    assert ran(threads(2), Words(body)) == [[False, False], []]


def test_a_state_continues_to_the_bit() -> None:
    def run(steps: range, saved: tuple[dict[str, Tensor], dict[str, object]] | None) -> tuple[Net, dict[str, object]]:
        model = net(0)
        if saved is not None:
            model.load_state_dict(saved[0])
        optimizer = optimizer_of(model)
        with murmur.join(BMUF(4), model, optimizer) as me:
            if saved is not None:
                me.load_state_dict(saved[1])
            for n in steps:
                loss_of(model, n).backward()
                me.step()
            kept = me.state_dict()
            with pytest.raises(RuntimeError, match="too late"):
                me.load_state_dict(kept)
        return model, kept

    whole, _ = run(range(16), None)
    half, kept = run(range(8), None)
    again, last = run(range(8, 16), (half.state_dict(), kept))
    assert torch.equal(state(again), state(whole))
    assert (kept["steps"], last["steps"]) == (8, 16)


def test_misuse_is_refused() -> None:
    model = net(0)
    optimizer = optimizer_of(model)
    with murmur.join(KAVG(2), model, optimizer) as me:
        loss_of(model, 0).backward()
        with pytest.raises(RuntimeError, match=r"call me.step\(\)"):
            optimizer.step()
        with pytest.raises(ValueError, match="samples must be positive"):
            me.step(samples=0)
        model.frozen.requires_grad_(True)
        loss_of(model, 0).backward()
        with pytest.raises(RuntimeError, match=r"frozen.weight was frozen"):
            me.step()
        model.zero_grad()
    optimizer.step()
    with pytest.raises(ValueError, match="not parameters of the model"):
        murmur.join(KAVG(2), model.inner, optimizer)
    with pytest.raises(ValueError, match="closure"):
        murmur.join(KAVG(2), model, torch.optim.LBFGS(model.parameters()))
    for assigned in (OwnShares(), SuperLearners(OwnShares())):
        with pytest.raises(ValueError, match="join ADPSGD"):
            murmur.join(assigned, model, torch.optim.SGD(model.parameters(), 0.1))
    with pytest.raises(ValueError, match=r"Plan\(total_steps"), murmur.join(AdaptiveKAVG(), model, optimizer) as me:
        me.step()


def test_mixed_types_and_absent_gradients() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bf = nn.Parameter(torch.ones(3, 2, dtype=torch.bfloat16).t())  # not contiguous
            self.wide = nn.Parameter(torch.ones(2, dtype=torch.float64))
            self.sometimes = nn.Parameter(torch.ones(2))

    def body(seat: Seat) -> list[Tensor]:
        model = Mixed()
        optimizer = torch.optim.SGD(model.parameters(), 0.25, weight_decay=0.5)
        with murmur.join(KAVG(2), model, optimizer, seat=seat) as me:
            for n in range(4):
                loss = model.bf.float().sum() + (me.rank + 1) * model.wide.sum()
                if n == 0 and me.rank == 0:
                    loss = loss + model.sometimes.sum()
                loss.backward()
                me.step()
        return [p.detach() for p in model.parameters()]

    ends = ran(threads(2), Words(body))
    for a, b in zip(*ends, strict=True):  # type: ignore[call-overload]
        assert torch.equal(a, b)
    own = 1 - 0.25 * (1 + 0.5)  # learner 0's one step of `sometimes`; learner 1's stays 1: no gradient, no decay
    assert torch.allclose(ends[0][2], torch.full((2,), (own + 1) / 2))  # type: ignore[index]
    assert ends[0][0].dtype == torch.bfloat16  # type: ignore[index]


def test_adaptive_strategies_that_average_parameters() -> None:
    ends = ran(threads(2), ForeignLoop(ParameterAveraging(frames_per_iteration=24), (17, 19)))
    assert torch.equal(ends[0][0], ends[1][0])  # type: ignore[index]


@pytest.mark.parametrize(("decay", "share"), [("by jobs", 0.5), ("whole", 1.0)])
def test_parameter_averaging_divides_the_weight_decay_of_a_loop(decay: str, share: float) -> None:
    """Without gradients a step multiplies the weights by 1 - 2 lr (decay / J), for J = 2 at twice the rate."""
    free = MaxChange(None, None)
    strategy = ParameterAveraging(24, Jobs(2), free, combine=RunningMean(1), decay=decay)  # type: ignore[arg-type]

    def body(seat: Seat) -> float:
        model = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.ones_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), 0.25, weight_decay=0.5)
        plan = Plan(total_steps=6, samples_per_step=8.0, evaluate=lambda _: {"loss": 0.0})
        with murmur.join(strategy, model, optimizer, plan, seat=seat) as me:
            for _ in range(3):
                (0.0 * model.weight.sum()).backward()
                me.step(samples=8.0, loss=0.0)
        assert optimizer.param_groups[0]["weight_decay"] == 0.5
        return float(model.weight)

    assert ran(threads(2), Words(body)) == pytest.approx([(1 - 2 * 0.25 * 0.5 * share) ** 3] * 2)


@pytest.mark.parametrize(("strategy", "pieces"), [(SyncSGD(), 1), (KAVG(2), 2), (ADPSGD(), 1)])
@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam])
def test_rates_follow_the_number_of_learners(
    strategy: Strategy, pieces: int, make: Callable[..., torch.optim.Optimizer]
) -> None:
    """The optimizer of the loop, and its scheduler, keep the settings of one learner."""
    rule = murmur.scaling(strategy, pieces, warm=0.5)

    def body(seat: Seat) -> list[tuple[float, tuple[float, float] | None]]:
        model = torch.nn.Linear(2, 1)
        optimizer = make(model.parameters(), lr=0.1)
        falling = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1 / (1 + n))
        seen: list[tuple[float, tuple[float, float] | None]] = []
        optimizer.register_step_pre_hook(
            lambda taken, *_: seen.append((taken.param_groups[0]["lr"], taken.param_groups[0].get("betas")))
        )
        with murmur.join(strategy, model, optimizer, Plan(total_steps=16, scaling=rule), seat=seat) as me:
            for n in range(8):
                model(torch.ones(4, 2)).square().mean().backward()
                me.step()
                assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 / (1 + n))
                falling.step()
        assert optimizer.param_groups[0].get("betas", (0.9, 0.999)) == (0.9, 0.999)
        return seen

    growth = 2 / pieces
    for seen in ran(threads(2), Words(body)):
        noisy = rule.noisy if make is torch.optim.Adam else 1.0
        taken = [rate * (1 + n) / (0.1 * noisy) for n, (rate, _) in enumerate(seen)]
        assert taken[-1] == pytest.approx(growth)
        assert taken == pytest.approx(sorted(taken))
        assert 1 <= taken[0] < (1.5 if strategy.lock_step else 2.1)  # at its own pace the other may be done before
        betas = (1 - 0.1 * growth**0.5, 1 - 0.001 * growth) if make is torch.optim.Adam else None
        assert seen[0][1] == (None if betas is None else pytest.approx(betas))


def test_a_rule_needs_the_length_of_the_run() -> None:
    with pytest.raises(ValueError, match="give total_steps too"):
        Plan(scaling=murmur.scaling(KAVG(2)))


LAUNCHED = """
import sys, torch, murmur
from murmur.strategies import KAVG
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
with murmur.join(KAVG(2), model, torch.optim.SGD(model.parameters(), 0.1)) as me:
    draw = torch.Generator().manual_seed(me.rank)
    for _ in range(5 + me.rank):
        model(torch.randn(8, 4, generator=draw)).square().mean().backward()
        me.step(samples=8)
open(sys.argv[1] + f"/{me.rank} of {me.size}", "w").write(str([p.tolist() for p in model.parameters()]))
"""


@pytest.mark.slow
@pytest.mark.processes
def test_torchrun(tmp_path: Path) -> None:
    program = tmp_path / "loop.py"
    program.write_text(LAUNCHED)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(program)]
    subprocess.run([*command, str(tmp_path)], check=True, timeout=60, capture_output=True)
    ends = [(tmp_path / f"{rank} of 2").read_text() for rank in range(2)]
    assert ends[0] == ends[1]


def test_peers_that_are_gone_are_named() -> None:
    def body(seat: Seat) -> None:
        model = net(0)
        with murmur.join(SyncSGD(), model, optimizer_of(model), Plan(timeout_seconds=1), seat) as me:
            loss_of(model, 0).backward()
            if me.rank == 1:
                raise ArithmeticError("planted")
            with pytest.raises(PeerLost, match="planted"):
                me.step()
            me.step()

    with pytest.raises(ArithmeticError, match="planted"):
        threads(2).run(Words(body))


@pytest.mark.filterwarnings("ignore:Seems like `optimizer.step:UserWarning")  # a scheduler made before the routing
def test_a_framework_that_steps_the_optimizer_by_itself() -> None:
    model, plain = net(0), net(0)
    optimizer, other = optimizer_of(model), optimizer_of(plain)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    with murmur.join(KAVG(2), model, optimizer) as me, murmur.routed(me, samples=4):
        for n in range(6):
            loss_of(plain, n).backward()
            other.step()
            other.zero_grad()

            def closure(n: int = n) -> Tensor:
                loss = loss_of(model, n)
                loss.backward()
                return loss

            assert optimizer.step(closure) is not None  # type: ignore[arg-type]
            if n == 0:
                assert torch.equal(state(model), state(plain))
            schedule.step()
    assert optimizer.param_groups[1]["lr"] == pytest.approx(0.02 * 0.1**3)
    assert me.progress.minibatches == 6


def test_a_taken_place_is_out_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(1, 3, 1, "127.0.0.1", 9, 0, 3)
    for name, value in place.variables().items():
        monkeypatch.setenv(name, value)
    assert murmur.take_place() == place
    assert murmur.take_place() is None
    model = net(0)
    joined = murmur.join(KAVG(2), model, optimizer_of(model), seat=place)
    assert (joined.rank, joined.size) == (1, 3)
