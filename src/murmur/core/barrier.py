"""Barriers at the end of a run, which a learner may come to after the others have passed them without it.

A learner that falls silent for longer than its lease (a suspended process) counts as lost, and the others go on. When
it comes back it is live again, and they wait for it at their next barrier. At a barrier that they have passed already
they answer no more messages, so that it must not wait for them there.
"""

from __future__ import annotations

from murmur.core.group import Group
from murmur.core.membership import RunOver


class Barrier:
    """One barrier, as one learner sees it.

    Attributes:
        name: Name of the barrier; a group uses it once.
    """

    def __init__(self, group: Group, name: str) -> None:
        self.name, self._group, self._passes = name, group, f"passed {name}"
        self._came_as: int | None = None  # incarnation of this learner when it came to the barrier
        self._missed = self._came = False

    def missed(self) -> bool:
        """Return True if another learner had passed the barrier when this one came to it, or came back to it."""
        view = self._group.membership.view(fresh=not self._came)
        incarnation = view.incarnations.get(self._group.rank)
        if not self._came or incarnation != self._came_as:
            self._came, self._came_as = True, incarnation
            self._missed = self._group.count(self._passes) > 0
        return self._missed

    def check(self) -> None:
        """Check that this learner has not missed the barrier.

        Raises:
            RunOver: It has.
        """
        if self.missed():
            raise RunOver

    def arrive(self) -> bool:
        """Arrive; return True if all live learners have, or if one has passed. Call it until it returns True."""
        all_have = self._group.membership.arrive(self.name)
        # A learner that has passed, was counted as lost and is live again does not arrive a second time.
        return self._group.count(self._passes, int(all_have)) > 0
