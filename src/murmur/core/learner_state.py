"""State that checkpoints and super-learners keep of a learner, each part in an object of its own."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import RLock

from torch import Tensor


class StrategyVectors(dict[str, Tensor]):
    """Vectors of a strategy that a checkpoint must hold (block momentum), by name; empty at a first start.

    Attributes:
        steady: Lock held while they are saved; an activity that changes several parts of the state holds it too.
        rest: Brings all that the strategy has under way to its end, before a graceful stop saves; None: nothing is.
    """

    def __init__(self, vectors: Mapping[str, Tensor]) -> None:
        super().__init__(vectors)
        self.steady = RLock()
        self.rest: Callable[[], Awaitable[None]] | None = None
        self._before: dict[str, Tensor] | None = None

    def begin_exchange(self) -> None:
        """Save these vectors until the exchange that begins has ended: a resumed run begins it anew."""
        self._before = dict(self)

    def end_exchange(self) -> None:
        """Save the present vectors again."""
        self._before = None

    @property
    def to_save(self) -> Mapping[str, Tensor]:
        """Vectors from which, with the present weights, a resumed run begins."""
        return self if self._before is None else self._before


class SuperLearnerRole:
    """Role of a learner among super-learners; without these it represents itself alone.

    Attributes:
        follows: True if it has ended as a member of a super-learner, represented by the leader.
        apart: True if learners begin with weights or optimizers of different steps (those of saved loops).
    """

    def __init__(self) -> None:
        self.follows = self.apart = False
        self._bounds: Sequence[int] = range(sys.maxsize)  # learners may be added

    def lead(self, first: Sequence[int], learners: int) -> None:
        """Lead the members from this learner to the next of `first`, the positions of all leaders in the world."""
        self._bounds = [*first, learners]

    def members(self, rank: int) -> range:
        """Positions in the world of the learners behind a rank of the group; the first keeps its checkpoints."""
        return range(self._bounds[rank], self._bounds[rank + 1])


@dataclass
class LeaderCheckpoints:
    """Checkpoints of a super-learner: its members save theirs after the leader.

    Attributes:
        saved: Minibatches completed at the latest checkpoint of this learner; a leader tells its members once.
        told: Minibatches completed at the checkpoint that the leader of this member has just saved.
    """

    saved: int | None = None
    told: int | None = None

    def take(self) -> int | None:
        """Return the checkpoint that members have not been told of."""
        saved, self.saved = self.saved, None
        return saved
