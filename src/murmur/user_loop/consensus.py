"""The consensus of user loops: the mean model in the middle of a run, and at its end.

At the end all learners take over the consensus of the strategy, weights and buffers. Buffers of learners that gave no
gradients do not count: their running statistics are those of the start.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from murmur.core.buffers import BufferPlace, Buffers, Values, has_mean, mean_of_integers, pack, unpack
from murmur.core.flat import Layout
from murmur.core.group import Group, PeerLost, weighted_mean
from murmur.core.learner import Learner
from murmur.core.world import drive
from murmur.user_loop.loop import Loop
from murmur.user_loop.source import LoopSource
from murmur.worlds.awake_clock import awake_seconds

log = logging.getLogger(__name__)
SAME, CHANGED, NO_MEAN, OTHER_SHAPE = 0.0, 1.0, 2.0, 3.0  # of a buffer since the start
HALF_BITS = 32
ASK, ANSWER = "ask for the model", "the model"
STOP, QUESTION = 0.0, 1.0
POLL_SECONDS = 0.25


async def take_over(me: Learner, world: Group, source: LoopSource) -> None:
    """Set the model to the consensus of all learners of the `world`; a leader sends it to its members."""
    if me.role.follows:
        me.weights.set_((await world.recv(None, "end 0")).x)
        source.buffers.agree(unpack((await world.recv(None, "end 1")).x)[1])
        return
    # Without lock-step the strategy has ended with the consensus of the weights.
    weights = await me.group.mean(me.weights.snapshot()) if me.lock_step else me.weights.snapshot()
    trained = float(source.recorder.drawn > 0)
    if me.seat.group.size > 1 and source.buffers.places:
        changed = source.buffers.changes(exact=True)
        agreed = await (_together if me.lock_step else _alone)(me, source, changed, trained)
        source.buffers.agree(agreed)
    me.weights.set_(weights)
    members = me.role.members(me.group.rank)[1:]
    if members:
        raw = pack(source.buffers.changes(exact=True))
        for member in members:
            world.post(weights, member, "end 0")
            world.post(raw, member, "end 1")


async def _alone(me: Learner, source: LoopSource, changed: Values, trained: float) -> Values:
    def made(parts: Sequence[Tensor], _: str) -> Tensor:
        return pack(source.buffers.combined([unpack(part) for part in parts]))

    return unpack(await me.averager.agreed_by_trained(pack(changed, trained), "buffers", made))[1]


async def _together(me: Learner, source: LoopSource, changed: Values, trained: float) -> Values:
    """Return the buffers that learners in lock-step agree on; only those that one of them has changed are exchanged."""
    group, places = me.group.plain, source.buffers.places
    if group.size == 1:
        return changed
    said = await group.share_numbers(torch.empty(0), [trained, *(_state(place, changed) for place in places)])
    counted = [rank for rank, row in enumerate(said) if row[0] > 0] or list(group.live)
    means, firsts = list[BufferPlace](), list[BufferPlace]()
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


def _state(place: BufferPlace, changed: Values) -> float:
    if place.now is None:
        return OTHER_SHAPE
    if place.name not in changed:
        return SAME
    if place.reshaped(changed[place.name]):
        return OTHER_SHAPE
    return CHANGED if has_mean([changed[place.name]]) else NO_MEAN


def _is_real(place: BufferPlace) -> bool:
    return place.first.is_floating_point() or place.first.is_complex()


def _present(place: BufferPlace) -> Tensor:
    now = place.now
    assert now is not None  # its state would be the same on all learners, or another shape
    return now


async def _mean(group: Group, places: Sequence[BufferPlace], weight: float) -> Values | None:
    tensors = [_present(place).detach() for place in places]
    layout = Layout(torch.view_as_real(x) if x.is_complex() else x for x in tensors)
    mean = await group.mean(layout.gather(), weight)
    if group.total_weight == 0:
        return None
    views = zip(places, tensors, layout.views(mean), strict=True)
    return {place.name: torch.view_as_complex(view) if x.is_complex() else view for place, x, view in views}


async def _integers(group: Group, places: Sequence[BufferPlace], counted: Sequence[int]) -> Values:
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


async def _of_first(group: Group, places: Sequence[BufferPlace], root: int) -> Values:
    """Return these buffers of one learner; of the first that is left, if that one is lost meanwhile."""
    if not places:
        return {}
    raw = pack({place.name: now for place in places if (now := place.now) is not None})
    while True:
        root, formed = root if root in group.live else group.live[0], group.regrouped
        size = int(await group.broadcast(torch.tensor([float(raw.numel())], dtype=torch.float64), root))
        gives = group.rank == root and raw.numel() == size
        found = await group.broadcast(raw if gives else torch.zeros(size, dtype=torch.uint8), root)
        if group.regrouped == formed:
            return unpack(found)[1]


class Answers:
    """One learner's side of requests for the mean model in the middle of a run.

    This is not a collective: any learner may ask at any time, even while others wait at the end of their block, and
    each answers at once, from a separate thread. A learner that has left its block after an error is not waited for.
    While the model is lent to the mean, this learner answers and is saved with its own weights and buffers.

    Attributes:
        outlives: True if the others go on without a lost learner, also in the mean.
    """

    def __init__(self, group: Group, loop: Loop, buffers: Buffers, outlives: bool = False) -> None:
        self.group, self.loop, self.buffers, self.outlives = group, loop, buffers, outlives
        self._asked = 0
        self._beside: Values | None = None  # this learner's buffers while the model has the mean's

    async def serve(self) -> None:
        """Answer until `stop`; runs beside the loop."""
        while (message := await self.group.poll(ASK, math.inf)) is not None and message.header[0] != STOP:
            for kind, x in enumerate(self._own()):
                self.group.post(x, message.source, ANSWER, (message.header[1], kind))

    def stop(self) -> None:
        self.group.post(torch.empty(0), self.group.rank, ASK, (STOP,))

    def give_up(self) -> None:
        """Tell learners that ask from now on, or have asked, that this one has left its block after an error."""
        rank = self.group.rank
        try:
            self.group.count(_left(rank, self.group.membership.view().incarnations.get(rank)), 1)
        except (OSError, RuntimeError) as error:
            log.warning("learner %d cannot tell the others that it has failed: %s", rank, error)

    @property
    def lends(self) -> bool:
        return self._beside is not None

    def own_buffers(self) -> Values:
        with self.loop.weights.section():
            own = self.buffers.loose() | (self._beside or {})
            return {name: x.detach().clone() for name, x in own.items()}

    def _own(self) -> tuple[Tensor, Tensor]:
        with self.loop.weights.section():
            return self.loop.weights.snapshot(), pack(self.buffers.changes(exact=False, instead=self._beside or {}))

    @contextmanager
    def in_place(self, source: LoopSource, live: Callable[[], Sequence[int]], timeout_seconds: float) -> Iterator[None]:
        """Set the model to the mean weights and buffers of the `live` learners at this moment, inside the block."""
        weights = self.loop.weights
        with weights.held():
            alone = self.group.size == 1
            mean = (source.layout.gather(), Values()) if alone else drive(self._mean(live, timeout_seconds))
            with weights.lent(mean[0]), self._lent_buffers(mean[1]):
                yield

    @contextmanager
    def _lent_buffers(self, mean: Values) -> Iterator[None]:
        section, beside = self.loop.weights.section, self._beside
        with section():
            shown = {name: x.detach().clone() for name, x in self.buffers.present(mean).items()}
            self._beside = shown | (beside or {})
            self.buffers.put(mean)
        try:
            yield
        finally:
            with section():
                self.buffers.put(shown)
                self._beside = beside

    def _ask(self, ranks: Iterable[int], asked: dict[int, int | None]) -> None:
        present = self.group.membership.view().incarnations
        for rank in ranks:
            if rank not in asked or asked[rank] != present.get(rank):
                asked[rank] = present.get(rank)
                self.group.post(torch.empty(0), rank, ASK, (QUESTION, self._asked))

    def _check_there(self, ranks: Iterable[int]) -> None:
        if self.outlives:  # the membership shows it soon
            return
        view = self.group.membership.view()
        for rank in ranks:
            if rank not in view.live or self.group.count(_left(rank, view.incarnations.get(rank))) > 0:
                raise PeerLost(f"learner {rank} has failed, and there is no consensus without it", rank)

    async def _mean(self, live: Callable[[], Sequence[int]], timeout_seconds: float) -> tuple[Tensor, Values]:
        deadline = awake_seconds() + timeout_seconds
        self._asked += 1
        asked = dict[int, int | None]()
        given: list[dict[int, Tensor]] = [{self.group.rank: x} for x in self._own()]
        while missing := {rank for found in given for rank in set(live()) - found.keys()}:
            self._ask(missing, asked)
            message = await self.group.poll(ANSWER, POLL_SECONDS)
            if message is not None and message.header[0] == self._asked:
                given[int(message.header[1])][message.source] = message.x
            elif message is None:
                self._check_there(missing & set(live()))
                if awake_seconds() > deadline:
                    raise PeerLost(
                        f"learners {sorted(missing)} did not send their weights within {timeout_seconds:g} s"
                    )
        weights, buffers = ([found[rank] for rank in sorted(found)] for found in given)
        return weighted_mean(weights, [1.0] * len(weights)), self.buffers.combined([unpack(raw) for raw in buffers])


def _left(rank: int, incarnation: int | None) -> str:
    return f"learner {rank} has left its block in incarnation {incarnation}"
