"""Random strategies on random clusters with random faults: a sample of the campaign of `make fuzz-runs`."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from fuzz_cases import Case, drawn, shrunk
from fuzz_oracle import ENDED, ENDLESS, LOST, RAISED, STUCK, UNDONE, run
from murmur.worlds.virtual.cluster import Kill, Rejoin, Stop

SEEDS = range(200_000, 200_240)
MENDED = {
    "a member of a super-learner is not started again": Case(
        "SuperLearners(EASGD(4, shards=1), 2)",
        9,
        38,
        faults=(Kill(6, 0.8), Rejoin(6, 3.8), Kill(3, 0.5)),
        lease_seconds=0.2,
    ),
    "a leader is started again before its lease has ended": Case(
        "SuperLearners(ADPSGD(ring), 2)", 4, 20, faults=(Kill(2, 0.35), Rejoin(2, 0.4)), lease_seconds=2.0
    ),
    "all of a super-learner is started again, at different moments": Case(
        "SuperLearners(ADPSGD(ring), 2)",
        4,
        40,
        faults=(Kill(2, 0.35), Rejoin(2, 0.5), Rejoin(3, 1.1)),
        lease_seconds=0.2,
    ),
    "a member comes when its leader has ended in order": Case(
        "SuperLearners(Downpour(3, 2, servers=1), 4)",
        8,
        8,
        faults=(Kill(5, 0.265), Rejoin(5, 0.265), Stop(0, 0.2, 0.3)),
        lease_seconds=2.0,
    ),
    "the group of leaders is made after one of them was lost": Case(
        "SuperLearners(QuasiGlobal(pairwise), 2)",
        8,
        7,
        slow=((2, 0.3),),
        faults=(Kill(7, 0.288), Rejoin(7, 3.288), Kill(6, 0.205), Rejoin(6, 0.255)),
        lease_seconds=2.0,
    ),
    "all give up but one that comes when all is done": Case(
        "Downpour(4, 2, shards=3)", 6, 1, faults=(Kill(2, 0.2), Kill(5, 0.2), Rejoin(5, 0.2)), lease_seconds=0.03
    ),
    "all are killed at the end but one that comes when all is done": Case(
        "A2CiD2", 3, 1, faults=(Kill(2, 0.4), Kill(1, 0.2), Kill(0, 0.3), Rejoin(0, 0.3)), lease_seconds=2.0
    ),
    "workers are killed at the end, and a server comes when all is done": Case(
        "ASGD(servers=1)", 2, 1, sigma=1.0, faults=(Kill(0, 0.3), Rejoin(1, 0.2), Kill(1, 0.1)), lease_seconds=2.0
    ),
    "a holder of a shard that counted as lost comes back while the others wait for each other": Case(
        "Downpour(2, 3, shards=3)", 4, 4, factors=((3, 0.3),), faults=(Stop(2, 0.01, 0.3),), lease_seconds=0.2
    ),
    "a learner comes back when the servers have answered the last pull": Case(
        "ASGD(servers=2)", 5, 11, slow=((1, 0.01),), faults=(Stop(3, 0.6, 3.0),), lease_seconds=2.0
    ),
    "a suspended member is killed and started again": Case(
        "SuperLearners(A2CiD2(), 3)",
        6,
        1,
        faults=(Stop(4, 0.1, 3.0), *(Kill(i, 0.2) for i in (3, 4, 5)), *(Rejoin(i, 0.3) for i in (3, 4, 5))),
        lease_seconds=0.2,
    ),
    "a member is suspended a second time, beyond the end of the first": Case(
        "SuperLearners(A2CiD2(), 2)",
        4,
        4,
        faults=(Stop(3, 0.2, 3.0), Stop(3, 0.1, 0.4), Kill(2, 0.004164791382340897), Rejoin(2, 1.0)),
        lease_seconds=0.03,
    ),
    "a suspended leader comes back after its member was started again": Case(
        "OwnShares(SuperLearners(QuasiGlobal(randomized_ring), 3))",
        2,
        1,
        faults=(Stop(0, 0.1, 3.0), Kill(1, 0.02), Rejoin(1, 3.0)),
        lease_seconds=0.2,
    ),
    "a leader comes back after its member was started again, and the others wait for it": Case(
        "SuperLearners(ASGD(servers=1), 2)",
        6,
        27,
        faults=(Stop(4, 0.7, 1.0), Kill(5, 1.0), Rejoin(5, 1.2032394852556458)),
        lease_seconds=0.5,
    ),
    "the share of a lost learner": Case("OwnShares(ADPSGD(ring))", 3, 60, faults=(Kill(2, 0.55),)),
    "compositions of four, with facts of facts": Case("Compressed(SuperLearners(OwnShares(ADPSGD(ring)), 2))", 3, 3),
}


@pytest.fixture(autouse=True)
def _no_log() -> object:
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("case", MENDED.values(), ids=MENDED)
def test_runs_that_failed_once(case: Case) -> None:
    assert run(case).kind in (ENDED, LOST)


def test_random_runs_end_with_all_minibatches_done() -> None:
    found = {seed: run(drawn(seed)) for seed in SEEDS}
    assert {seed: f for seed, f in found.items() if f.kind not in (ENDED, LOST)} == {}
    assert sum(f.kind == ENDED for f in found.values()) > len(SEEDS) / 2


def test_what_a_run_that_goes_wrong_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle sees minibatches that are left, waits without end, other errors, and losses that are no excuse."""
    import fuzz_oracle

    lazy = Case("OwnShares(ADPSGD(ring))", 3, 9)

    async def half(me):  # type: ignore[no-untyped-def]
        async for g in me.gradients(at_most=2):
            me.descend(g)

    async def stuck(me):  # type: ignore[no-untyped-def]
        await me.group.recv(0, "never")

    async def idle(me):  # type: ignore[no-untyped-def]
        while True:
            await me.seat.sleep(0.1)

    for strategy, kind in ((half, RAISED), (stuck, STUCK), (idle, ENDLESS)):
        monkeypatch.setattr(fuzz_oracle, "strategy_of", lambda _, made=strategy: made)
        assert run(lazy, 20.0).kind == kind
    monkeypatch.undo()
    monkeypatch.setattr(fuzz_oracle.Counted, "minibatch", lambda self, n: fuzz_oracle.torch.ones(3))
    assert run(lazy).kind == UNDONE


def test_a_failure_shrinks_to_the_faults_that_matter() -> None:
    case = replace(drawn(5), learners=6, faults=(Kill(1, 0.123), Stop(2, 0.2, 0.1), Kill(3, 0.456)))
    smallest = shrunk(case, lambda c: any(isinstance(f, Kill) and f.learner == 3 for f in c.faults))
    assert smallest.faults == (Kill(3, 0.0),)
    assert smallest.learners == 4
    assert smallest.minibatches == 1
    assert Case.read(smallest.described()) == smallest
