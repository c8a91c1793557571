"""Conformance checks of worlds: run `check_group(make_world)` on a new world before any strategy runs in it.

The checks are programs, like strategies. Each states one promise of `Group` or `Seat`. They use no test framework, so
that any world can be checked anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence

import torch

from murmur.core.group import Group, WorldMismatch
from murmur.core.world import Program, Seat, World


def check_group(make_world: Callable[[int], World], sizes: Sequence[int] = (1, 2, 3, 4)) -> None:
    """Run every check in worlds of the given sizes.

    Raises:
        AssertionError: A promise is broken; names the check and the size of the world.
    """
    for size in sizes:
        for check in CHECKS:
            try:
                results = make_world(size).run(check)
            except AssertionError as error:
                raise AssertionError(f"{check.__name__} in a world of {size}: {error}") from error
            _expect(len(results), size, f"{check.__name__}: results of a world of {size}")
    for refusal in REFUSALS:
        _check_refusal(make_world, refusal)


def _check_refusal(make_world: Callable[[int], World], refusal: Program[None]) -> None:
    try:
        make_world(2).run(refusal)
    except (WorldMismatch, RuntimeError, ValueError):
        return
    raise AssertionError(f"{refusal.__name__}: the world should have raised an error")


async def means_are_weighted(seat: Seat) -> None:
    """Check sum w x / sum w and the sum of the weights."""
    group = seat.group
    x = torch.full((5,), float(group.rank + 1))
    weights = [float(r + 1) for r in range(group.size)]
    mean = await group.mean(x, weight=weights[group.rank])
    wanted = sum(w * (r + 1) for r, w in enumerate(weights)) / sum(weights)
    _close(mean, torch.full((5,), wanted), "weighted mean")
    _expect(group.total_weight, sum(weights), "total weight")


async def equal_means_are_plain_sums(seat: Seat) -> None:
    """Check that with equal weights the mean of equal vectors of small integers is exact."""
    mean = await seat.group.mean(torch.arange(7.0), weight=640.0)
    _expect(mean.tolist(), list(range(7)), "mean of equal vectors")


async def weight_zero_is_left_out(seat: Seat) -> None:
    """Check that a learner without samples takes part, whatever its vector holds."""
    group = seat.group
    idle = group.rank > 0
    x = torch.full((3,), math.nan if idle else 2.5)
    mean = await group.mean(x, weight=0.0 if idle else 3.0)
    _expect(mean.tolist(), [2.5] * 3, "mean without the idle learners")


async def no_weight_stops_all(seat: Seat) -> None:
    """Check that without samples all learners see total_weight 0 in the same round, and keep their vectors."""
    x = torch.full((2,), float(seat.group.rank))
    mean = await seat.group.mean(x, weight=0.0)
    _expect(seat.group.total_weight, 0.0, "total weight")
    _expect(mean.tolist(), x.tolist(), "vector of an empty mean")


async def means_are_new_vectors(seat: Seat) -> None:
    """Check that a mean shares memory neither with its argument nor with the results of others."""
    x = torch.ones(4)
    mean = await seat.group.mean(x)
    mean.add_(seat.group.rank)
    _expect(x.tolist(), [1.0] * 4, "argument after the mean")
    again = await seat.group.mean(mean)
    _close(again, torch.full((4,), 1 + (seat.group.size - 1) / 2), "mean of changed results")


async def means_recur(seat: Seat) -> None:
    """Check means of long vectors that come again and again, of two lengths in turn, some without a weight."""
    group = seat.group
    kept = []
    for turn in range(12):
        x = torch.arange(5000.0 + turn % 2) * (group.rank + 1) + turn
        idle = group.rank > 0 and turn % 3 == 2
        mean = await group.mean(x.fill_(math.nan) if idle else x, weight=0.0 if idle else 2.0)
        factor = 1.0 if turn % 3 == 2 else (group.size + 1) / 2
        kept.append((mean, torch.arange(5000.0 + turn % 2) * factor + turn))
    for turn, (mean, wanted) in enumerate(kept):
        _expect(torch.allclose(mean, wanted, rtol=1e-6, atol=0.0), True, f"mean {turn}")


async def sums_in_place(seat: Seat) -> None:
    """Check sums in memory that members share, where the world has them."""
    group = seat.group
    sums = group.sum_in_place(torch.empty(5003))
    for turn in range(6 if sums is not None else 0):
        assert sums is not None
        sums.next().copy_(torch.arange(5003.0) * (group.rank + 1) + turn)
        await group.share_numbers(torch.empty(0), ())
        total = sums.total(2.0)
        wanted = torch.arange(5003.0) * (group.size * (group.size + 1) / 4) + turn * group.size / 2
        _expect(torch.allclose(total, wanted, rtol=1e-6, atol=0.0), True, f"sum {turn}")
        total.zero_()  # others may still read what they need


async def broadcasts_reach_all(seat: Seat) -> None:
    """Check that every member can be the root, and that integers survive."""
    for root in range(seat.group.size):
        got = await seat.group.broadcast(torch.tensor([seat.group.rank, 2**53 + seat.group.rank]), root)
        _expect(got.tolist(), [root, 2**53 + root], f"broadcast from {root}")


async def messages_keep_their_order(seat: Seat) -> None:
    """Check the order of messages from one learner under one tag, of any size. Tags do not mix; posting copies."""
    group = seat.group
    to, source = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    x = torch.zeros(3)
    for i in range(5):
        x.fill_(float(i))
        group.post(x, to, "numbers")
        group.post(-x, to, "negatives")
    for size in (50_000, 1, 2):
        group.post(torch.zeros(size), to, "sizes")
    _expect([(await group.recv(source, "sizes")).x.numel() for _ in range(3)], [50_000, 1, 2], "sizes in order")
    for i in range(5):
        negative, _, _ = await group.recv(source, "negatives")
        positive, who, _ = await group.recv(source, "numbers")
        _expect((positive.tolist(), negative.tolist(), who), ([float(i)] * 3, [-float(i)] * 3, source), f"message {i}")


async def any_source_can_be_received(seat: Seat) -> None:
    """Check that `recv` without a source receives from all learners, vectors of any length, including empty ones."""
    group = seat.group
    if group.rank > 0:
        group.post(torch.full((group.rank - 1,), float(group.rank)), 0, "report")
        return
    got = {}
    for _ in range(group.size - 1):
        x, who, _ = await group.recv(tag="report")
        got[who] = x.tolist()
    _expect(got, {r: [float(r)] * (r - 1) for r in range(1, group.size)}, "reports")


async def messages_carry_headers(seat: Seat) -> None:
    """Check that the header of a vector arrives unchanged, and that a learner can post to itself."""
    group = seat.group
    to, source = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    group.post(torch.ones(2), to, "headed", (group.rank, 0.25, -1e9))
    group.post(torch.empty(0), group.rank, "own", (7.0,))
    message = await group.recv(source, "headed")
    _expect((message.source, message.header), (source, (float(source), 0.25, -1e9)), "message with a header")
    own = await group.recv(group.rank, "own")
    _expect((own.x.numel(), own.header), (0, (7.0,)), "message to itself")


async def polls_have_a_deadline(seat: Seat) -> None:
    """Check that `poll` returns after its deadline, and that a later message is not lost."""
    group = seat.group
    came = seat.now
    _expect(await group.poll("early", 0.05), None, "poll without a message")
    _expect(seat.now - came >= 0.05, True, "poll lasts until its deadline")
    _expect(await group.poll("early", 0.0), None, "poll of 0 seconds")
    await group.mean(torch.zeros(1))
    group.post(torch.ones(1), (group.rank + 1) % group.size, "early")
    message = await group.poll("early", float("inf"))
    _expect(message is not None and message.source == (group.rank - 1) % group.size, True, "poll with a message")


async def claims_cover_the_budget(seat: Seat) -> None:
    """Check that each number is claimed by one learner, for claims of any size; `spent` follows the last claims."""
    group, membership = seat.group, seat.group.membership
    _expect(membership.view().live, tuple(range(group.size)), "live learners")
    await group.mean(torch.zeros(1))  # a learner that has ended is not live: none ends before all have looked
    mine: list[float] = []
    while not membership.spent:
        claim = membership.claim(5, 25, 1 + group.rank % 3)
        mine.extend(map(float, claim or ()))
        await seat.sleep(1e-4)
    group.post(torch.tensor(mine), 0, "claims")
    if group.rank == 0:
        messages = [await group.recv(rank, "claims") for rank in range(group.size)]
        _expect(sorted(n for x, _, _ in messages for n in x.tolist()), [float(n) for n in range(5, 25)], "all claims")


async def barriers_wait_for_all(seat: Seat) -> None:
    """Check that a barrier opens when every live learner has arrived, and stays open."""
    group, membership = seat.group, seat.group.membership
    await seat.sleep(1e-3 * group.rank)
    group.count("came", 1)
    while not membership.arrive("here"):
        await seat.sleep(1e-3)
    _expect(group.count("came"), group.size, "learners at the barrier")
    _expect(membership.arrive("here"), True, "open barrier")


async def splits_are_independent(seat: Seat) -> None:
    """Check that parts have their own ranks, means and counters; a learner in no part gets None."""
    group = seat.group
    parts = [list(range(0, group.size, 2)), list(range(1, group.size - 1, 2))]
    part = group.split([p for p in parts if p])
    mine = next((p for p in parts if group.rank in p), None)
    if mine is None:
        _expect(part, None, "group of a learner in no part")
        return
    if part is None:
        raise AssertionError("a member got no group")
    _expect((part.rank, part.size), (mine.index(group.rank), len(mine)), "rank and size")
    mean = await part.mean(torch.tensor([float(group.rank)]))
    _close(mean, torch.tensor([sum(mine) / len(mine)]), "mean of a part")
    part.count("members", 1)
    await part.mean(mean)
    _expect(part.count("members"), len(mine), "counter of a part")


async def counters_are_shared(seat: Seat) -> None:
    """Check that every amount is added once, and that claims are unique."""
    group = seat.group
    claims = [group.count("claims", 1) for _ in range(10)]
    _expect(claims, sorted(set(claims)), "one learner's claims grow")
    await group.mean(torch.zeros(1))
    _expect(group.count("claims"), 10 * group.size, "all claims")
    _expect(group.count("never used"), 0, "a new counter")


async def sums_run_beside(seat: Seat) -> None:
    """Check that several sums under way at once, in place, are right."""
    group = seat.group
    xs = [torch.full((1000,), float(group.rank + i)) for i in range(4)]
    pending = [group.start_sum(x) for x in xs]
    for i, (x, total) in enumerate(zip(xs, pending, strict=True)):
        got = await total
        wanted = float(sum(r + i for r in range(group.size)))
        _expect((got[0].item(), x[-1].item()), (wanted, wanted), f"sum {i}")


async def activities_run_beside(seat: Seat) -> None:
    """Check that a background activity averages on its own group beside the learner, and returns its value."""
    all_ranks = [list(range(seat.group.size))]
    own = seat.group.split(all_ranks)
    if own is None:
        raise AssertionError("a member got no group")
    activity = seat.spawn(_rounds(own, 20), "averaging")
    for k in range(20):
        mean = await seat.group.mean(torch.tensor([float(seat.group.rank * k)]))
        _close(mean, torch.tensor([(seat.group.size - 1) / 2 * k]), f"round {k}")
        await seat.work(lambda: None)
    _close(torch.tensor([await activity]), torch.tensor([20 * (seat.group.size - 1) / 2]), "value of the activity")


async def broadcasts_run_beside(seat: Seat) -> None:
    """Check that a broadcast can be read until the meeting after the next one, and that two tags do not mix."""
    group = seat.group
    before: list[Awaitable[torch.Tensor]] = []
    root = group.size - 1
    for k in range(5):
        x = torch.full((6,), float(10 * k + group.rank))
        begun = [group.start_broadcast(x + shift, root, tag) for shift, tag in ((0.0, "one"), (0.5, "other"))]
        for shift, vector in zip((0.0, 0.5), before, strict=False):
            _expect((await vector).tolist(), [10.0 * (k - 1) + root + shift] * 6, f"broadcast {k - 1}")
        before = begun
        await group.mean(torch.zeros(1))
    for vector in before:
        await vector


async def _rounds(group: Group, count: int) -> float:
    total = 0.0
    for _ in range(count):
        total += float(await group.mean(torch.tensor([float(group.rank)])))
    return total


async def different_lengths(seat: Seat) -> None:
    """Pass vectors of different lengths to one mean."""
    await seat.group.mean(torch.zeros(3 + seat.group.rank))


async def negative_weight(seat: Seat) -> None:
    """Pass a negative weight."""
    await seat.group.mean(torch.zeros(3), weight=-1.0)


async def failing_activity(seat: Seat) -> None:
    """Fail in an activity; the next gradient must raise."""

    async def fails() -> None:
        raise ValueError("planted")

    seat.spawn(fails(), "doomed")
    for _ in range(100):
        await seat.work(lambda: torch.randn(200, 200) @ torch.randn(200, 200))


async def one_fails(seat: Seat) -> None:
    """Fail in one learner; the others must not wait for it."""
    if seat.group.rank == 1:
        raise ValueError("planted")
    await seat.group.mean(torch.zeros(3))


def _expect(got: object, wanted: object, what: str) -> None:
    if got != wanted:
        raise AssertionError(f"{what}: got {got}, expected {wanted}")


def _close(got: torch.Tensor, wanted: torch.Tensor, what: str) -> None:
    if not torch.allclose(got, wanted, rtol=1e-6, atol=1e-7):
        raise AssertionError(f"{what}: got {got.tolist()}, expected {wanted.tolist()}")


CHECKS: tuple[Program[None], ...] = (
    means_are_weighted,
    equal_means_are_plain_sums,
    weight_zero_is_left_out,
    no_weight_stops_all,
    means_are_new_vectors,
    means_recur,
    sums_in_place,
    broadcasts_reach_all,
    messages_keep_their_order,
    any_source_can_be_received,
    messages_carry_headers,
    polls_have_a_deadline,
    claims_cover_the_budget,
    barriers_wait_for_all,
    splits_are_independent,
    counters_are_shared,
    sums_run_beside,
    broadcasts_run_beside,
    activities_run_beside,
)
REFUSALS: tuple[Program[None], ...] = (different_lengths, negative_weight, failing_activity, one_fails)
