"""A learner of the world of processes enters the membership once the others can reach it."""

from __future__ import annotations

from typing import Any

import pytest
from torch.distributed import HashStore

from murmur.core.world import Seat
from murmur.worlds.process.environment import Place
from murmur.worlds.process.world import ProcessWorld


def test_the_mailbox_of_a_learner_is_open_when_it_enters(monkeypatch: pytest.MonkeyPatch) -> None:
    """A learner that was started again got no message that was sent to it between the two."""
    found = []
    enter = ProcessWorld._enter

    def watched(self: ProcessWorld, store: Any, waits: Any) -> Any:
        found.append(bool(store.check([f"mail/{self.place.rank}"])))
        return enter(self, store, waits)

    async def program(seat: Seat) -> int:
        return seat.group.rank

    monkeypatch.setattr(ProcessWorld, "_enter", watched)
    ProcessWorld(Place(0, 1, 0, "127.0.0.1", 0), "cpu", store=HashStore()).run(program)
    assert found == [True]
