"""Weights of other learners, asked for by letter."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from murmur.core.group import Group, Message

ASK = 1.0  # first number of a letter that asks; its second one stands first in the answer
GOSSIP, SNAPSHOT = "gossip", "snapshot"  # tags of requests and of answers
ANSWER_SECONDS = 5.0  # who has not answered by then is asked again, and after twice as long once more


class WeightRequest:
    """A learner's requests, one after the other; who is silent is asked again: letters to a lost learner are dropped.

    Attributes:
        number: of the latest one.
    """

    def __init__(self, group: Group, now: Callable[[], float]) -> None:
        self._group, self._now, self.number = group, now, 0
        self._patience = self._again_at = 0.0

    def begin(self, whom: Sequence[int]) -> None:
        """Ask for the weights of these ranks, all at about this moment."""
        self.number += 1
        self._patience, self._again_at = 0.0, self._now()
        self.remind(whom)

    def remind(self, silent: Sequence[int]) -> None:
        """Ask these again if it is time for that."""
        if self._now() < self._again_at:
            return
        self._patience = 2 * self._patience or ANSWER_SECONDS
        self._again_at = self._now() + self._patience
        for rank in silent:
            if rank != self._group.rank:
                self._group.post(torch.empty(0), rank, GOSSIP, (ASK, self.number))

    async def poll(self, seconds: float) -> Message | None:
        """An answer, to an earlier request perhaps; None if none has come after so many seconds."""
        return await self._group.plain.poll(SNAPSHOT, seconds)
