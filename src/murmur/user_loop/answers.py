"""Mean of all learners' models in the middle of a run; each learner answers at once, from a separate thread.

This is not a collective: any learner may ask, alone or not, after any number of steps, even while others have no data
left and wait at the end of their block. No learner waits for another's next step, so an uneven loop cannot hang. A
learner that has left its block after an error is not waited for.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from murmur.core.buffers import Buffers, Values, pack, unpack
from murmur.core.group import Group, PeerLost, weighted_mean
from murmur.core.world import drive
from murmur.user_loop.loop import Loop
from murmur.user_loop.source import LoopSource
from murmur.worlds.awake_clock import awake_seconds

log = logging.getLogger(__name__)
ASK, ANSWER = "ask for the model", "the model"
STOP, QUESTION = 0.0, 1.0
POLL_SECONDS = 0.25


class Answers:
    """One learner's side of requests for the mean model.

    While the model is lent to the mean, this learner answers and is saved with its own weights and buffers.

    Args:
        group: Group of all learners.
        loop: State of the loop.
        buffers: Buffers of its model.
    """

    def __init__(self, group: Group, loop: Loop, buffers: Buffers) -> None:
        self.group, self.loop, self.buffers = group, loop, buffers
        self._asked = 0
        self._beside: Values | None = None  # this learner's buffers while the model has the mean's

    async def serve(self) -> None:
        """Answer until `stop`; runs beside the loop."""
        while (message := await self.group.poll(ASK, math.inf)) is not None and message.header[0] != STOP:
            for kind, x in enumerate(self._own()):
                self.group.post(x, message.source, ANSWER, (message.header[1], kind))

    def stop(self) -> None:
        """End `serve`."""
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
        """True while the model is the mean."""
        return self._beside is not None

    def own_buffers(self) -> Values:
        """Return copies of this learner's buffers that may have changed since the start."""
        with self.loop.weights.section():
            own = self.buffers.loose() | (self._beside or {})
            return {name: x.detach().clone() for name, x in own.items()}

    def _own(self) -> tuple[Tensor, Tensor]:
        with self.loop.weights.section():
            return self.loop.weights.snapshot(), pack(self.buffers.changes(exact=False, instead=self._beside or {}))

    @contextmanager
    def in_place(self, source: LoopSource, live: Callable[[], Sequence[int]], timeout_seconds: float) -> Iterator[None]:
        """Set the model to the mean weights and buffers of the `live` learners at this moment, inside the block.

        Raises:
            PeerLost: A learner is lost, or did not answer in time.
        """
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
        """Ask each of these learners once in its present incarnation; one that was started again forgets questions."""
        present = self.group.membership.view().incarnations
        for rank in ranks:
            if rank not in asked or asked[rank] != present.get(rank):
                asked[rank] = present.get(rank)
                self.group.post(torch.empty(0), rank, ASK, (QUESTION, self._asked))

    def _check_there(self, ranks: Iterable[int]) -> None:
        """Check that learners whose answers are missing are still in their blocks.

        Raises:
            PeerLost: One has left it after an error, or its process is lost; names it.
        """
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
