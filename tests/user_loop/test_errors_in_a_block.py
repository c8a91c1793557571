"""Errors in calls and callbacks of a joined loop, which the loop catches: the block goes on, or says why it cannot."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import murmur
from murmur.core import mean_gradient as overlap
from murmur.core.facts import Facts
from murmur.core.group import PeerLost
from murmur.core.learner import Learner, Strategy
from murmur.core.pairwise import PairwiseAverager
from murmur.core.weights import Weights
from murmur.core.world import Seat
from murmur.engine.record import Record
from murmur.strategies import ADPSGD, BMUF, KAVG, DelayByOne, SuperLearners, SyncSGD
from murmur.user_loop.joined import Joined, Plan
from murmur.worlds.real import Activity
from murmur.worlds.threads import ThreadSeat, ThreadWorld
from tests.support.named import named
from tests.support.user_loops import Net, Words, batch, loss_of, moved, net, optimizer_of, state

STEPS, AT = 7, 3
STRATEGIES = [SyncSGD(), KAVG(2), DelayByOne(), BMUF(3), ADPSGD(), SuperLearners(KAVG(2), 2)]
OUTSIDE = ["data", "forward", "backward", "closure", "consensus", "inside", "behind"]
OPTIMIZER = ["before the step", "after the step"]
ERRORS: list[type[BaseException]] = [ValueError, MemoryError, KeyboardInterrupt]


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads whose sums overlap the gradients, with buckets so small that some are sent before the step."""
    monkeypatch.setattr(ThreadSeat, "overlaps", True)
    monkeypatch.setattr(overlap, "FIRST_BUCKET_BYTES", 64)


@pytest.fixture
def rounds_end(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """End the rounds of strategies that an error has ended, whose threads would go on beside later tests."""
    made: list[PairwiseAverager] = []

    def noted(self: PairwiseAverager, *given: Any) -> None:
        begin(self, *given)
        made.append(self)

    begin = PairwiseAverager.__init__
    monkeypatch.setattr(PairwiseAverager, "__init__", noted)
    yield
    for averager in made:
        averager.done()
    deadline = time.monotonic() + 30
    while any(thread.name == "averaging" for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@dataclass
class Trap:
    """Raises an error once, at a place of the loop."""

    where: str
    error: type[BaseException]
    armed: bool = False

    def at(self, where: str) -> None:
        if self.armed and where == self.where:
            self.armed = False
            raise self.error("an error of the loop")


def hooked(model: Net, optimizer: torch.optim.Optimizer, trap: Trap) -> None:
    model.inner.weight.register_hook(lambda _: trap.at("backward"))  # of the layer whose gradient comes last
    optimizer.register_step_pre_hook(lambda *_: trap.at("before the step"))
    optimizer.register_step_post_hook(lambda *_: trap.at("after the step"))


def step(me: Joined, model: Net, n: int, trap: Trap) -> None:
    trap.at("data")
    x, y = batch(n)

    def closure() -> Tensor:
        with me.last_backward():
            trap.at("inside")
            loss = torch.nn.functional.cross_entropy(model(x), y)
            trap.at("forward")
            loss.backward()
            trap.at("behind")
        trap.at("closure")
        return loss

    if trap.where == "closure":
        with murmur.routed(me):
            me.optimizer.step(lambda: float(loss_of(model, n).detach()) if not trap.at("closure") else 0.0)
        return
    closure()
    me.step()
    with me.consensus():
        trap.at("consensus")


def caught(seat: Seat, strategy: Strategy, trap: Trap, attempts: bool = True) -> tuple[Tensor, list[str]]:
    """Run a loop whose last learner meets an error, and passes over that minibatch; return its end and its errors."""
    rank, size, seen = seat.group.rank, seat.group.size, list[str]()
    model = net(rank)
    optimizer = optimizer_of(model)
    hooked(model, optimizer, trap)
    with murmur.join(strategy, model, optimizer, Plan(timeout_seconds=20.0), seat) as me:
        for n in range(STEPS):
            failing = n == AT and rank == size - 1
            if failing and not attempts:
                continue
            trap.armed = failing
            try:
                step(me, model, size * n + rank, trap)
            except trap.error as error:
                seen.append(str(error))
                optimizer.zero_grad()
    return state(model), seen


def ran(size: int, strategy: Strategy, where: str, error: type[BaseException], attempts: bool = True) -> list[Any]:
    return ThreadWorld(size, 20.0).run(Words(lambda seat: caught(seat, strategy, Trap(where, error), attempts)))


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("where", OUTSIDE)
@pytest.mark.parametrize("strategy", STRATEGIES, ids=named)
def test_a_block_goes_on_after_an_error(
    strategy: Strategy, where: str, error: type[BaseException], beside: None
) -> None:
    ends = ran(2, strategy, where, error)
    assert [len(seen) for _, seen in ends] == [0, 1]
    assert torch.equal(ends[0][0], ends[1][0])
    assert torch.isfinite(ends[0][0]).all()
    assert where == "closure" or moved(ends[0][0])


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("where", ["data", "inside", "forward", "backward", "behind"])
def test_a_minibatch_that_failed_is_in_no_mean(where: str, size: int, beside: None) -> None:
    """Parts of its gradient have been sent when the backward pass fails; no learner uses them."""
    ends = ran(size, SyncSGD(), where, MemoryError)
    wanted = ran(size, SyncSGD(), where, MemoryError, attempts=False)
    norm = slice(0, None) if where in ("data", "inside") else slice(0, -16)  # without the running statistics
    for (end, _), (other, _) in zip(ends, wanted, strict=True):
        assert torch.equal(end[norm], other[norm])


@pytest.mark.parametrize("where", [*OUTSIDE, *OPTIMIZER])
@pytest.mark.parametrize("strategy", [SyncSGD(), KAVG(2), ADPSGD()], ids=named)
def test_one_learner_goes_on_as_the_loop_without(strategy: Strategy, where: str) -> None:
    ((end, seen),) = ran(1, strategy, where, ValueError)
    trap, model = Trap(where, ValueError), net(0)
    optimizer = optimizer_of(model)
    hooked(model, optimizer, trap)
    for n in range(STEPS):
        trap.armed = n == AT
        try:
            trap.at("data")
            if where == "closure":
                trap.at("closure")
                float(loss_of(model, n).detach())
            else:
                trap.at("inside")
                loss = loss_of(model, n)
                trap.at("forward")
                loss.backward()
                trap.at("behind")
            optimizer.step()
        except ValueError:
            pass
        optimizer.zero_grad()
    assert torch.equal(end, state(model))
    assert seen == ["an error of the loop"]


def told(body: Callable[[], None]) -> str:
    try:
        body()
    except (RuntimeError, ValueError, KeyboardInterrupt) as error:
        return f"{type(error).__name__}: {error}"
    return ""


GONE = "cannot go on, as {} was ended in an earlier call by {} (an error of the loop): leave the block"


@pytest.mark.parametrize("where", OPTIMIZER)
@pytest.mark.usefixtures("rounds_end")
@pytest.mark.parametrize("strategy", STRATEGIES, ids=named)
def test_a_step_that_only_one_learner_missed_ends_the_strategy(strategy: Strategy, where: str) -> None:
    """The message has one line, at every further call and at the end of the block; the others are told."""

    def body(seat: Seat) -> list[str]:
        model, rank, said = net(0), seat.group.rank, list[str]()
        optimizer, trap = optimizer_of(model), Trap(where, ValueError)
        hooked(model, optimizer, trap)

        def behind(me: Joined, n: int) -> None:
            with me.last_backward():
                loss_of(model, n).backward()

        def block() -> None:
            with murmur.join(strategy, model, optimizer, Plan(timeout_seconds=20.0), seat) as me:
                for n in range(STEPS):
                    trap.armed = n == AT and rank == 1
                    for call in (partial(behind, me, n), me.step):
                        if rank == 0:
                            call()
                        else:
                            said.append(told(call))

        end = told(block)
        return [*said, end]

    first, last = ThreadWorld(2, 20.0).run(Words(body))  # type: ignore[misc]
    failed = 2 * AT + 1
    assert last[:failed] == [""] * failed
    assert last[failed] == "ValueError: an error of the loop"
    assert len(last) == 2 * STEPS + 1
    for said in last[failed + 1 :]:
        assert GONE.format(type(strategy).__name__, "ValueError") in said
        assert "\n" not in said
    assert ("PeerLost" in first[-1]) == (strategy != ADPSGD())


@dataclass(frozen=True)
class Evaluating:
    """A strategy that evaluates before each step."""

    lock_step: ClassVar[bool] = True

    async def __call__(self, me: Learner) -> None:
        async for g in me.gradients():
            me.evaluate()
            me.descend(g)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_failed_evaluation_and_an_interrupt_end_the_strategy(error: type[BaseException]) -> None:
    strategy, model, said = Evaluating() if error is ValueError else SyncSGD(), net(0), list[str]()
    optimizer, trap = optimizer_of(model), Trap("before the step", error, armed=error is KeyboardInterrupt)
    hooked(model, optimizer, trap)

    def evaluate(_: torch.nn.Module) -> dict[str, float]:
        raise ValueError("an error of the loop")

    def block() -> None:
        with murmur.join(strategy, model, optimizer, Plan(evaluate=evaluate)) as me:
            for n in range(3):
                loss_of(model, n).backward()
                said.append(told(me.step))

    end = told(block)
    gone = GONE.format(type(strategy).__name__, error.__name__)
    assert said[0] == f"{error.__name__}: an error of the loop"
    assert [gone in text for text in [*said[1:], end]] == [True] * 3
    assert "the end of the block" in end


@pytest.mark.parametrize("strategy", [SyncSGD(), KAVG(4), DelayByOne()], ids=named)
def test_a_consensus_does_not_wait_for_a_learner_that_has_failed(strategy: Strategy) -> None:
    def body(seat: Seat) -> str:
        model = net(0)

        def block() -> None:
            with murmur.join(strategy, model, optimizer_of(model), seat=seat) as me:
                loss_of(model, me.rank).backward()
                me.step()
                if me.rank == 1:
                    raise ValueError("a bad file")
                with me.consensus():
                    pass

        return told(block)

    first, last = ThreadWorld(2, 600.0).run(Words(body))
    assert last == "ValueError: a bad file"
    beside_it = "waits for learner 1, which has ended"  # its averaging may notice first
    assert first == "PeerLost: learner 1 has failed, and there is no consensus without it" or beside_it in first
    assert issubclass(PeerLost, RuntimeError)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
@pytest.mark.parametrize("strategy", [ADPSGD(), SuperLearners(ADPSGD(), 2), KAVG(2)], ids=named)
def test_averaging_goes_on_beside_an_evaluation_in_inference_mode(strategy: Strategy, mode: Any) -> None:
    """Averaging changes the live weights while they stand beside the mean, from a thread of its own."""

    def body(seat: Seat) -> Tensor:
        model = net(0)
        with murmur.join(strategy, model, optimizer_of(model), seat=seat) as me:
            for n in range(STEPS):
                loss_of(model, 2 * n + me.rank).backward()
                me.step()
                with mode(), me.consensus() as mean:
                    loss_of(mean, 0)
                    kept = me.state_dict()
                    Activity(averaged(me._loop.weights), "averaging", lambda _: None).result()
                assert not any(x.is_inference() for x in [kept["weights"], *kept["buffers"][0].values()])
        return state(model)

    first, last = ThreadWorld(2, 20.0).run(Words(body))
    assert torch.equal(first, last)  # type: ignore[arg-type]


async def averaged(weights: Weights) -> None:
    """Add what averaging with equal neighbours adds."""
    weights.add_(torch.zeros(weights.layout.numel))


@pytest.mark.parametrize("strategy", [SyncSGD(), ADPSGD()], ids=named)
def test_a_loop_in_inference_mode_leaves_ordinary_tensors(strategy: Strategy) -> None:
    """A block that begins, saves and ends in inference mode can be trained on."""
    model = net(0)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad])
    loss_of(model, 0).backward()
    with torch.inference_mode(), murmur.join(strategy, model, optimizer) as me:
        me.step()
    loss_of(model, 1).backward()
    optimizer.step()
    moments = [x for kept in optimizer.state.values() for x in kept.values()]
    assert not any(x.is_inference() for x in [*moments, *model.parameters(), *model.buffers()])


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("strategy", [SyncSGD(), KAVG(2), DelayByOne(), ADPSGD(), SuperLearners(KAVG(2), 2)], ids=named)
def test_a_block_goes_on_after_an_error_of_an_observer(strategy: Strategy, size: int) -> None:
    """The step of the record has been taken: lock-step runs have the bits of a run without the error."""

    def body(fails: bool, seat: Seat) -> tuple[Tensor, list[str]]:
        model, seen = net(0), list[str]()

        def observer(record: Record) -> None:
            if fails and record.step in (3, 4):
                raise OSError("the tracker does not answer")

        with murmur.join(strategy, model, optimizer_of(model), seat=seat) as me:
            if me.rank == 0:
                me.observe(observer)
            for n in range(STEPS):
                loss_of(model, me.size * n + me.rank).backward()
                try:
                    me.step()
                except OSError as error:
                    seen.append(str(error))
        return state(model), seen

    def ran(fails: bool) -> list[tuple[Tensor, list[str]]]:
        return ThreadWorld(size, 20.0).run(Words(partial(body, fails)))  # type: ignore[return-value]

    (end, seen), *others = ran(True)
    assert seen == ["the tracker does not answer"] * 2
    assert all(torch.equal(other, end) and told == [] for other, told in others)
    if Facts.of(strategy).lock_step or size == 1:
        assert torch.equal(end, ran(False)[0][0])


def test_no_activity_outlives_the_block_that_an_error_has_left() -> None:
    model = net(0)
    found: list[threading.Thread] = []

    def body() -> None:
        with murmur.join(ADPSGD(), model, optimizer_of(model)) as me:
            loss_of(model, 0).backward()
            me.step()
            found.extend(thread for thread in threading.enumerate() if thread.name == "averaging")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        body()
    (averaging,) = found
    averaging.join(30)
    assert not averaging.is_alive()
