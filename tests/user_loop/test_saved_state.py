"""State of a loop: a resumed run is the uninterrupted one."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import murmur
from murmur.core.facts import Facts
from murmur.core.flat import Layout
from murmur.core.learner import Strategy
from murmur.core.world import Seat
from murmur.strategies import (
    ADPSGD,
    ASGD,
    BMUF,
    EASGD,
    KAVG,
    AdaptiveKAVG,
    Compressed,
    DecoupledDiLoCo,
    DelayByOne,
    DiLoCo,
    GossipPGA,
    NoLoCo,
    ParameterAveraging,
    SlowMo,
    StreamingDiLoCo,
    SuperLearners,
    SyncSGD,
)
from murmur.strategies.adaptive_kavg import Stages
from murmur.strategies.parameter_averaging import Jobs
from murmur.user_loop.joined import Joined, Plan
from murmur.worlds.threads import ThreadWorld
from tests.support.named import named
from tests.support.user_loops import Net, Words, evaluate, loss_of, net, state

STEPS = 9
EXACT = [
    *(SyncSGD(), KAVG(4), KAVG(4, moments="averaged"), BMUF(3, eta=0.5), BMUF(4, moments="at_outer"), SlowMo(4)),
    *(DiLoCo(4), DiLoCo(3, moments="at_outer"), GossipPGA(4), GossipPGA(3, moments="averaged"), NoLoCo(4)),
    *(DelayByOne(), DelayByOne(moments="averaged"), StreamingDiLoCo(8, 2, 2), StreamingDiLoCo(6, 3, 0)),
    *(Compressed(KAVG(4)), Compressed(StreamingDiLoCo(6, 2, 2), "int8"), AdaptiveKAVG(Stages((3,)))),
    *(
        AdaptiveKAVG(Stages((2,)), minibatches=Stages((3,))),
        ParameterAveraging(frames_per_iteration=16.0, jobs=Jobs(2)),
    ),
    SuperLearners(SyncSGD(), 2),
]
Saved = Mapping[str, Any]
Step = Callable[[Joined, Net, int], None]


def through_a_file(saved: object) -> Any:
    """Return a state as it is read from a file, without pickled objects."""
    raw = io.BytesIO()
    torch.save(saved, raw)
    raw.seek(0)
    return torch.load(raw, weights_only=True)


def adam(model: Net) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 0.01)


def plan_of(size: int, steps: int = STEPS) -> Plan:
    return Plan(total_steps=steps * size, samples_per_step=4.0, evaluate=evaluate, timeout_seconds=20.0)


def one_step(me: Joined, model: Net, n: int) -> None:
    loss = loss_of(model, n * me.size + me.rank)
    loss.backward()
    me.step(4.0 + me.rank, loss.item())


def step_without_loss(me: Joined, model: Net, n: int) -> None:
    """Give no loss, and on one learner a gradient that is not finite in every fifth step."""
    (loss_of(model, n * me.size + me.rank) * (math.nan if n % 5 == 2 and me.rank == 0 else 1.0)).backward()
    me.step(4.0 + me.rank)


def whole_run(strategy: Strategy, size: int, step: Step = one_step) -> tuple[Tensor, list[list[Saved]]]:
    """Return the final state, and what each learner had saved before each step."""

    def body(seat: Seat) -> object:
        model, saved = net(0), []
        with murmur.join(strategy, model, adam(model), plan_of(size), seat) as me:
            for n in range(STEPS):
                saved.append(through_a_file(me.state_dict()))
                step(me, model, n)
        return state(model), saved

    ends = ThreadWorld(size, 20.0).run(Words(body))
    return ends[0][0], [saved for _, saved in ends]  # type: ignore[index,misc]


def resumed(strategy: Strategy, saved: list[Saved], begin: int, step: Step = one_step) -> list[tuple[Tensor, Saved]]:
    """Return the final state of all learners of a run that resumes before a step, and what they save two steps on."""

    def body(seat: Seat) -> object:
        model, later = net(0), {}
        with murmur.join(strategy, model, adam(model), plan_of(len(saved)), seat) as me:
            me.load_state_dict(saved[me.rank])
            for n in range(begin, STEPS):
                if n == begin + 2:
                    later = through_a_file(me.state_dict())
                step(me, model, n)
        return state(model), later

    return ThreadWorld(len(saved), 20.0).run(Words(body))  # type: ignore[return-value]


@pytest.mark.parametrize("strategy", EXACT, ids=named)
def test_lock_step_resumes_after_any_step_to_the_bit(strategy: Strategy) -> None:
    end, saved = whole_run(strategy, 4 if isinstance(strategy, SuperLearners) else 2)
    for begin in range(STEPS):
        again = resumed(strategy, [learner[begin] for learner in saved], begin)
        assert all(torch.equal(theirs, end) for theirs, _ in again), begin
        if begin == 2:  # a second interruption, of the resumed run
            twice = resumed(strategy, [later for _, later in again], 4)
            assert all(torch.equal(theirs, end) for theirs, _ in twice)


@pytest.mark.parametrize("strategy", [KAVG(4), SyncSGD(), StreamingDiLoCo(8, 2, 2), SlowMo(3)], ids=named)
def test_steps_without_losses_and_those_left_out_resume_to_the_bit(strategy: Strategy) -> None:
    end, saved = whole_run(strategy, 2, step_without_loss)
    assert saved[0][-1]["counters"][0]["skipped"] == 2
    for begin in range(STEPS):
        again = resumed(strategy, [learner[begin] for learner in saved], begin, step_without_loss)
        assert all(torch.equal(theirs, end) for theirs, _ in again), begin


@pytest.mark.parametrize(
    ("strategy", "kept"), [(KAVG(4), False), (BMUF(4), True), (Compressed(KAVG(4)), True)], ids=named
)
def test_a_round_holds_the_weights_of_its_start_if_its_strategy_reads_them(strategy: Strategy, kept: bool) -> None:
    _, saved = whole_run(strategy, 2)
    rounds = [found["round"][0] for found in saved[0]]
    assert [begun is not None for begun in rounds] == [False, True, True, True, False, True, True, True, False]
    assert all((begun["weights"] is not None) == kept for begun in rounds if begun is not None)


FIRST = 6
ASYNCHRONOUS = [ADPSGD(), EASGD(), ASGD(), DecoupledDiLoCo(2, 2), SuperLearners(ADPSGD(), 2)]


@pytest.mark.parametrize("strategy", ASYNCHRONOUS, ids=named)
def test_without_lock_step_progress_goes_on(strategy: Strategy) -> None:
    size = 4 if isinstance(strategy, SuperLearners) else 2
    taken = size * FIRST - (FIRST if isinstance(strategy, ASGD) else 0)  # a server takes no steps
    plan = Plan(2 * taken, scaling=murmur.scaling(strategy), timeout_seconds=20.0)

    def body(saved: list[tuple[Saved, float]] | None, seat: Seat) -> tuple[Saved, float]:
        model = net(0)
        with murmur.join(strategy, model, adam(model), plan, seat) as me:
            if saved is not None:
                me.load_state_dict(saved[me.rank][0])
                assert me.progress.fraction == saved[me.rank][1]
                assert torch.equal(Layout.trainable(model).gather(), saved[me.rank][0]["weights"])
            for n in range(FIRST):
                one_step(me, model, n)
            kept, fraction = through_a_file(me.state_dict()), me.progress.fraction
        return kept, fraction

    first = ThreadWorld(size, 20.0).run(Words(partial(body, None)))
    second = ThreadWorld(size, 20.0).run(Words(partial(body, first)))  # type: ignore[arg-type]
    # A member of a super-learner also knows the leader's claim that waits for its own next gradient. A leader whose
    # loop is over claims once more, without a gradient, if it does not know yet that its members' loops are over too.
    apart = 2 if isinstance(strategy, SuperLearners) else 1
    unused = apart / plan.total_steps if apart > 1 else 0.0
    assert max(fraction for _, fraction in first[::apart]) in (0.5, 0.5 + unused)  # type: ignore[misc]
    assert max(fraction for _, fraction in second[::apart]) == 1.0  # type: ignore[misc]


@pytest.mark.parametrize("strategy", [KAVG(4), GossipPGA(3), ADPSGD()], ids=named)
@pytest.mark.parametrize("now", [1, 3])
def test_other_numbers_of_learners_go_on_with_a_warning(
    strategy: Strategy, now: int, caplog: pytest.LogCaptureFixture
) -> None:
    def body(saved: list[Saved] | None, seat: Seat) -> tuple[Saved, int, Tensor]:
        model = net(0)
        with murmur.join(strategy, model, adam(model), Plan(timeout_seconds=20.0), seat) as me:
            if saved is not None:
                me.load_state_dict(saved[me.rank % len(saved)])
            for n in range(FIRST):
                one_step(me, model, n)
            kept, reached = through_a_file(me.state_dict()), me.progress.minibatches
        return kept, reached, state(model)

    first = ThreadWorld(2, 20.0).run(Words(partial(body, None)))
    assert not caplog.messages
    second = ThreadWorld(now, 20.0).run(Words(partial(body, [kept for kept, *_ in first])))  # type: ignore[misc]
    assert any("not the bits of an uninterrupted run" in message for message in caplog.messages)
    before = max(kept["minibatches"] for kept, *_ in first[:now])  # type: ignore[misc]
    after = max(kept["minibatches"] for kept, *_ in second)  # type: ignore[misc]
    # Without lock-step each learner knows the steps of the others up to its own latest one.
    assert after == pytest.approx(before + now * FIRST, abs=0 if Facts.of(strategy).lock_step else now)
    assert all(torch.equal(end, second[0][2]) for *_, end in second)  # type: ignore[index,misc]
