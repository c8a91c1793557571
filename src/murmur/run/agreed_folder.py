"""One folder for learners that another program started: learner 0 chooses, checks and locks it, and tells the others.

torchrun, srun and mpiexec start all learners alike, so no process before them could see to the folder. Learner 0 says
the folder, or why it refuses, in the store of the launch (or by MPI); the others wait for that.
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
from murmur.worlds.process.launch.environment import Place, check_meeting_point
from murmur.worlds.process.store.torch_store import connect

POLL_SECONDS = 0.05
FAREWELL_SECONDS = 5.0  # for the others to read why the run is refused, before the store ends with learner 0
FOLDER, BEGUN, HEARD = "murmur/folder", "murmur/begun", "murmur/heard"


class Channel(Protocol):
    """From learner 0 to the others."""

    def tell(self, text: str) -> None:
        """Learner 0 says something to all others."""

    def hear(self) -> str:
        """Wait for learner 0's text and return it."""

    def begun(self) -> Path | None:
        """The folder in which an earlier start of this same launch has begun; None if there was none."""

    def begin(self, out: Path) -> None:
        """The run has begun: a restart of this launch continues it."""


class StoreChannel:
    """By the store of a launch.

    Args:
        place: of this learner.
        start_seconds: how long it tries to reach the store.

    Attributes:
        store: this learner's connection to it.

    Raises:
        ConnectionError: there is no store.
    """

    def __init__(self, place: Place, start_seconds: float) -> None:
        check_meeting_point(place)
        self._place = place
        self.store: Store = connect(place, start_seconds)
        self.store.set_timeout(timedelta(seconds=start_seconds))
        # torchrun's store outlives its restarts, whose keys have a prefix each.
        self._kept = self.store.underlying_store if isinstance(self.store, PrefixStore) else self.store

    def tell(self, text: str) -> None:
        """Leave it in the store; a refusal waits until the others have read it."""
        self.store.set(FOLDER, text)
        deadline = time.monotonic() + FAREWELL_SECONDS
        while "refused" in json.loads(text) and time.monotonic() < deadline:
            if int(self.store.add(HEARD, 0)) >= self._place.size - 1:
                return
            time.sleep(POLL_SECONDS)

    def hear(self) -> str:
        """Wait for it, however long learner 0 needs to check: if it ends, so does the store."""
        while not self.store.check([FOLDER]):
            time.sleep(POLL_SECONDS)
        text = self.store.get(FOLDER).decode()
        self.store.add(HEARD, 1)
        return text

    def begun(self) -> Path | None:
        """As an earlier start of this launch left it in the store."""
        return Path(self._kept.get(BEGUN).decode()) if self._kept.check([BEGUN]) else None

    def begin(self, out: Path) -> None:
        """Leave it in the store."""
        self._kept.set(BEGUN, str(out))


class MpiChannel:
    """By MPI, whose launches are never restarted."""

    def __init__(self, world: MpiWorld) -> None:
        self._world = world

    def tell(self, text: str) -> None:
        """A broadcast."""
        self._world.from_first(text)

    def hear(self) -> str:
        """A broadcast."""
        return self._world.from_first("")

    def begun(self) -> Path | None:
        """There is no earlier start."""
        return None

    def begin(self, out: Path) -> None:
        """There will be no other start."""


@contextmanager
def opened_for_all(
    channel: Channel,
    wanted: tuple[Path, str, bool, bool],
    check: Callable[[OpenedRun], None],
) -> Iterator[OpenedRun]:
    """The folder of a run, which learner 0 opens and tells to the others, or why it cannot be used.

    Args:
        channel: to the others.
        wanted: folder, name, resume and force, as of `opened`.
        check: what else has to hold before the run may begin.

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
            channel.tell(json.dumps({"refused": str(error)}))
            raise
        channel.tell(json.dumps({"out": str(run.out), "resume": run.resume}))
        yield run


def folder_of_first(channel: Channel) -> tuple[Path, bool]:
    """The folder that learner 0 has opened, and whether the run in it is continued.

    Raises:
        SettingError: learner 0 has refused.
    """
    told = json.loads(channel.hear())
    if "refused" in told:
        raise SettingError(f"learner 0 refuses to begin: {told['refused']}")
    return Path(told["out"]), bool(told["resume"])


class FolderMember:
    """A learner other than learner 0: holds the folder's lock too, and records the end if learner 0 cannot."""

    def __init__(self, out: Path) -> None:
        self._out, self._lock = out, list[FolderLock]()

    def begin(self) -> None:
        """All have met, so that learner 0 holds the lock."""
        self._lock.append(FolderLock.join(self._out / LOCK))

    def end(self, status: int) -> int:
        """Write the final record where there is none; of a good end, only if the run is whole. Returns the status."""
        if self._lock and read_ending(self._out) is None and (status != 0 or self._is_whole()):
            write_ending(self._out, Ending.of(status))
        for lock in self._lock:
            lock.close()
        return status

    def _is_whole(self) -> bool:
        score, began = self._out / "score.json", self._out / RUN
        return score.is_file() and began.is_file() and score.stat().st_mtime >= began.stat().st_mtime
