"""The end of a user loop: all learners take over the consensus of the strategy, weights and buffers.

Buffers of learners that gave no gradients do not count: their running statistics are those of the start.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from torch import Tensor

from murmur.core.buffers import Place, Values, has_mean, mean_of_integers, pack, unpack
from murmur.core.flat import Layout
from murmur.core.group import Group
from murmur.core.learner import Learner
from murmur.user_loop.source import LoopSource

log = logging.getLogger(__name__)
SAME, CHANGED, NO_MEAN, OTHER_SHAPE = 0.0, 1.0, 2.0, 3.0  # of a buffer since the start
HALF_BITS = 32


async def take_over(me: Learner, world: Group, source: LoopSource) -> None:
    """Set the model to the consensus of all learners; a leader sends it to its members.

    Args:
        me: Learner whose strategy has ended.
        world: Group of all learners.
        source: Source of its model.
    """
    if me.follows:
        me.weights.set_((await world.recv(None, "end 0")).x)
        source.buffers.put(unpack((await world.recv(None, "end 1")).x)[1])
        return
    # Without lock-step the strategy has ended with the consensus of the weights.
    weights = await me.group.mean(me.weights.snapshot()) if me.lock_step else me.weights.snapshot()
    trained = float(source.drawn > 0)
    if me.seat.group.size > 1 and source.buffers.places:
        changed = source.buffers.changes(exact=True)
        agreed = await (_together if me.lock_step else _alone)(me, source, changed, trained)
        source.buffers.put(agreed)
    me.weights.set_(weights)
    members = me.members(me.group.rank)[1:]
    if members:
        raw = pack(source.buffers.changes(exact=True))
        for member in members:
            world.post(weights, member, "end 0")
            world.post(raw, member, "end 1")


async def _alone(me: Learner, source: LoopSource, changed: Values, trained: float) -> Values:
    """Return the buffers that learners without lock-step agree on."""

    def made(parts: Sequence[Tensor], _: str) -> Tensor:
        return pack(source.buffers.combined([unpack(part) for part in parts]))

    return unpack(await me.averager.agreed_by_trained(pack(changed, trained), "buffers", made))[1]


async def _together(me: Learner, source: LoopSource, changed: Values, trained: float) -> Values:
    """Return the buffers that learners in lock-step agree on; only those that one of them has changed are exchanged."""
    group, places = me.group.plain, source.buffers.places
    if group.size == 1:
        return {}
    said = await group.share_numbers(torch.empty(0), [trained, *(_state(place, changed) for place in places)])
    counted = [rank for rank, row in enumerate(said) if row[0] > 0] or list(range(group.size))
    means, firsts = list[Place](), list[Place]()
    for number, place in enumerate(places, 1):
        states = [said[rank][number] for rank in counted]
        if any(states):
            one_mean = place.rule == "mean" and OTHER_SHAPE not in states and set(states) != {NO_MEAN}
            (means if one_mean else firsts).append(place)
    found = await _integers(group, [place for place in means if not _is_real(place)], counted)
    floats = [place for place in means if _is_real(place)]
    if floats:
        averaged = await _mean(group, floats, float(group.rank in counted))
        firsts += floats if averaged is None else []
        found |= averaged or {}
    for place in firsts:
        if place.rule == "mean" and group.rank == counted[0]:
            log.warning("%s has no mean over the learners: all take that of learner %d", place.name, counted[0])
    return found | await _of_first(group, firsts, counted[0])


def _state(place: Place, changed: Values) -> float:
    if place.now is None:
        return OTHER_SHAPE
    if place.name not in changed:
        return SAME
    if place.reshaped(changed[place.name]):
        return OTHER_SHAPE
    return CHANGED if has_mean([changed[place.name]]) else NO_MEAN


def _is_real(place: Place) -> bool:
    return place.first.is_floating_point() or place.first.is_complex()


def _present(place: Place) -> Tensor:
    now = place.now
    assert now is not None  # its state would be the same on all learners, or another shape
    return now


async def _mean(group: Group, places: Sequence[Place], weight: float) -> Values | None:
    """Return the means of floating-point buffers; None if each learner has one that is not finite."""
    tensors = [_present(place).detach() for place in places]
    layout = Layout(torch.view_as_real(x) if x.is_complex() else x for x in tensors)
    mean = await group.mean(layout.gather(), weight)
    if group.total_weight == 0:
        return None
    views = zip(places, tensors, layout.views(mean), strict=True)
    return {place.name: torch.view_as_complex(view) if x.is_complex() else view for place, x, view in views}


async def _integers(group: Group, places: Sequence[Place], counted: Sequence[int]) -> Values:
    """Return the rounded means of integer buffers, exact to the last digit."""
    if not places:
        return {}
    numbers = [number for place in places for number in _present(place).flatten().tolist()]
    halves = [half for number in numbers for half in (number >> HALF_BITS, number & ((1 << HALF_BITS) - 1))]
    said = await group.share_numbers(torch.empty(0), halves)
    found: Values = {}
    at = 0
    for place in places:
        end = at + 2 * place.first.numel()
        given = [[int(half) for half in said[rank][at:end]] for rank in counted]
        values = [[(h << HALF_BITS) + low for h, low in zip(row[::2], row[1::2], strict=True)] for row in given]
        shape, dtype = place.first.shape, place.first.dtype
        found[place.name] = mean_of_integers([torch.tensor(row, dtype=dtype).reshape(shape) for row in values])
        at = end
    return found


async def _of_first(group: Group, places: Sequence[Place], root: int) -> Values:
    """Return the buffers of one learner."""
    if not places:
        return {}
    there = {place.name: now for place in places if (now := place.now) is not None}
    raw = pack(there)
    size = int(await group.broadcast(torch.tensor([float(raw.numel())], dtype=torch.float64), root))
    mine = raw if group.rank == root else torch.empty(size, dtype=torch.uint8)
    return unpack(await group.broadcast(mine, root))[1]
