"""Agreement on one folder for learners that another program started: learner 0 chooses, checks and locks it.

torchrun, srun and mpiexec start all learners alike, so no earlier process can prepare the folder. Learner 0 sends the
folder, or its reason to refuse, through the store of the launch (or by MPI); the others wait for that message.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from murmur.core.errors import SettingError
from murmur.core.torch_private import PrefixStore, Store
from murmur.run.folder.contents import RUN
from murmur.run.folder.lock import LOCK, FolderLock
from murmur.run.folder.opened import OpenedRun, opened
from murmur.run.folder.state import Ending, read_ending, write_ending
from murmur.worlds.mpi.world import MpiWorld
from murmur.worlds.process.launch.addresses import check_meeting_point
from murmur.worlds.process.launch.environment import Place
from murmur.worlds.process.store.torch_store import connect

POLL_SECONDS = 0.05
REFUSAL_SECONDS = 5.0  # for the others to read the refusal, before the store ends with learner 0
FOLDER, BEGUN, RECEIVED = "murmur/folder", "murmur/begun", "murmur/received"


class Channel(Protocol):
    """Channel from learner 0 to the other learners."""

    def send(self, text: str) -> None:
        """Send a text from learner 0 to all others."""

    def receive(self) -> str:
        """Wait for learner 0's text and return it."""

    def begun(self) -> Path | None:
        """Folder in which an earlier start of the same launch has begun; None if there was none."""

    def begin(self, out: Path) -> None:
        """Record that the run has begun, so that a restart of this launch continues it."""


class StoreChannel:
    """Channel through the store of a launch.

    Args:
        place: Place of this learner.
        start_seconds: Time limit for a connection to the store.

    Attributes:
        store: Connection of this learner to the store.

    Raises:
        ConnectionError: the store cannot be reached.
    """

    def __init__(self, place: Place, start_seconds: float) -> None:
        check_meeting_point(place)
        self._place = place
        self.store: Store = connect(place, start_seconds)
        self.store.set_timeout(timedelta(seconds=start_seconds))
        # torchrun's store stays up across its restarts; each restart's keys have a prefix of their own.
        self._lasting = self.store.underlying_store if isinstance(self.store, PrefixStore) else self.store

    def send(self, text: str) -> None:
        """Put the text into the store; after a refusal, wait until the others have read it."""
        self.store.set(FOLDER, text)
        deadline = time.monotonic() + REFUSAL_SECONDS
        while "refused" in json.loads(text) and time.monotonic() < deadline:
            if int(self.store.add(RECEIVED, 0)) >= self._place.size - 1:
                return
            time.sleep(POLL_SECONDS)

    def receive(self) -> str:
        """Wait for the text without a time limit: if learner 0 ends, so does the store."""
        while not self.store.check([FOLDER]):
            time.sleep(POLL_SECONDS)
        text = self.store.get(FOLDER).decode()
        self.store.add(RECEIVED, 1)
        return text

    def begun(self) -> Path | None:
        """Folder that an earlier start of this launch put into the store; None if there was none."""
        return Path(self._lasting.get(BEGUN).decode()) if self._lasting.check([BEGUN]) else None

    def begin(self, out: Path) -> None:
        """Put the folder into the store."""
        self._lasting.set(BEGUN, str(out))


class MpiChannel:
    """Channel by MPI, whose launches are never restarted."""

    def __init__(self, world: MpiWorld) -> None:
        self._world = world

    def send(self, text: str) -> None:
        """Broadcast the text."""
        self._world.from_first(text)

    def receive(self) -> str:
        """Receive the broadcast text."""
        return self._world.from_first("")

    def begun(self) -> Path | None:
        """None: there is no earlier start."""
        return None

    def begin(self, out: Path) -> None:
        """Do nothing: there is no later start."""


@contextmanager
def opened_for_all(
    channel: Channel,
    wanted: tuple[Path, str, bool, bool],
    check: Callable[[OpenedRun], None],
) -> Iterator[OpenedRun]:
    """Open the folder of a run at learner 0, and send it, or the reason for a refusal, to the others.

    Args:
        channel: Channel to the others.
        wanted: Arguments folder, name, resume and force of `opened`.
        check: Further check before the run may begin.

    Raises:
        SettingError: the folder holds a run, or another process works in it.
    """
    before = channel.begun()
    if before is not None:
        wanted = (before, wanted[1], True, False)
    with ExitStack() as stack:
        try:
            run = stack.enter_context(opened(*wanted))
            check(run)
        except Exception as error:
            channel.send(json.dumps({"refused": str(error)}))
            raise
        channel.send(json.dumps({"out": str(run.out), "resume": run.resume}))
        yield run


def folder_of_first(channel: Channel) -> tuple[Path, bool]:
    """Return the folder that learner 0 has opened, and True if the run in it is resumed.

    Raises:
        SettingError: learner 0 has refused.
    """
    answer = json.loads(channel.receive())
    if "refused" in answer:
        raise SettingError(f"learner 0 refuses to begin: {answer['refused']}")
    return Path(answer["out"]), bool(answer["resume"])


class FolderMember:
    """Learner other than learner 0: holds the folder's lock too, and records the end if learner 0 cannot."""

    def __init__(self, out: Path) -> None:
        self._out, self._lock = out, list[FolderLock]()

    def begin(self) -> None:
        """Join the lock; all learners have met, so learner 0 already holds it."""
        self._lock.append(FolderLock.join(self._out / LOCK))

    def end(self, status: int, why: str = "") -> int:
        """Write the final record if there is none (for status 0, only if the run is complete); return the status."""
        if self._lock and read_ending(self._out) is None and (status != 0 or self._is_whole()):
            write_ending(self._out, Ending.of(status, why))
        for lock in self._lock:
            lock.close()
        return status

    def _is_whole(self) -> bool:
        score, began = self._out / "score.json", self._out / RUN
        return score.is_file() and began.is_file() and score.stat().st_mtime >= began.stat().st_mtime
