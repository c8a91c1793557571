"""Requests for the weights of other learners."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from murmur.core.group import Group, Message

ASK = 1.0  # kind of a request, first in its header; the number after it comes first in the header of the answer
GOSSIP, SNAPSHOT = "gossip", "snapshot"  # tags of requests and of answers
ANSWER_SECONDS = 5.0  # until a request is repeated; each further wait is twice as long


class WeightRequest:
    """Successive requests of one learner. Unanswered ones are repeated, for messages to a lost learner are dropped.

    Attributes:
        number: Number of the latest request.
    """

    def __init__(self, group: Group, now: Callable[[], float]) -> None:
        self._group, self._now, self.number = group, now, 0
        self._patience = self._again_at = 0.0

    def begin(self) -> None:
        """Begin a request for weights at about this moment; `ask` sends it."""
        self.number += 1
        self._patience, self._again_at = 0.0, self._now()

    def ask(self, silent: Sequence[int]) -> None:
        """Send the request to these ranks, at first and again whenever that is due."""
        if self._now() < self._again_at:
            return
        self._patience = 2 * self._patience or ANSWER_SECONDS
        self._again_at = self._now() + self._patience
        for rank in silent:
            if rank != self._group.rank:
                self._group.post(torch.empty(0), rank, GOSSIP, (ASK, self.number))

    async def poll(self, seconds: float) -> Message | None:
        """Return an answer, perhaps to an earlier request; None if none arrives within `seconds`."""
        return await self._group.plain.poll(SNAPSHOT, seconds)
