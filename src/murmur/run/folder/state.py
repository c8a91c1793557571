"""State of a run, from its lock (held while a process works on it) and ended.json (the end of its last launch)."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from murmur.core.plain_files import UNREADABLE, read_plain, write_plain
from murmur.core.stop_signals import STOPPED_STATUS
from murmur.run.folder.lock import LOCK, held, holder_of

ENDED = "ended.json"
FAILED = "failed.json"  # reason of a learner's failure, until the launcher ends the run
PEER_LOST_STATUS = 75  # as `murmur train --help` lists it
How = Literal["finished", "stopped", "failed"]
Name = Literal["running", "finished", "stopped", "failed", "killed", "unknown"]
NAMES = ("finished", "stopped", "failed")


@dataclass(frozen=True)
class Ending:
    """Final record of a launch.

    Attributes:
        state: Kind of ending.
        status: Exit status.
        why: Reason, as text.
        at: Date and time of the end, in UTC.
    """

    state: How
    status: int
    why: str
    at: str

    @classmethod
    def of(cls, status: int, why: str = "") -> Ending:
        """Return the ending for an exit status."""
        states: dict[int, tuple[How, str]] = {
            0: ("finished", "the run is complete"),
            STOPPED_STATUS: ("stopped", "stopped on request, and saved"),
            PEER_LOST_STATUS: ("failed", "a learner was lost"),
        }
        state, words = states.get(status, ("failed", f"ended with status {status}"))
        return cls(state, status, why or words, datetime.now(UTC).isoformat(timespec="seconds"))


@dataclass(frozen=True)
class RunState:
    """State of a run, with the reason as text."""

    name: Name
    why: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.why})" if self.why else self.name


def state_of(folder: Path) -> RunState:
    """Return the state of the run in a folder.

    It is "unknown" for a run of an older version, which has no lock, and for a run whose lock seems free but was taken
    on another host: the file system may not share locks between hosts.
    """
    ending, lock = read_ending(folder), held(folder / LOCK)
    if ending is not None and ending.state == "finished":
        return RunState("finished")
    if lock == "held":
        return RunState("running")
    if ending is not None:
        return RunState(ending.state, f"{ending.why}, {ending.at}")
    holder = holder_of(folder / LOCK)
    if lock == "free" and (holder is None or holder.host == socket.gethostname()):
        return RunState("killed", "no process works on it, and it has no final record")
    return RunState("unknown")


def read_ending(folder: Path) -> Ending | None:
    """Read the final record; None if there is none or it cannot be read."""
    try:
        found = json.loads(read_plain(folder / ENDED))
        state = found["state"]
        if state not in NAMES:
            return None
        return Ending(state, int(found["status"]), str(found["why"]), str(found["at"]))
    except (OSError, *UNREADABLE):
        return None


def write_reason(folder: Path, why: str) -> None:
    """Write why a learner of a launcher has failed; the launcher reads it when it ends the run."""
    new = folder / f".{FAILED}.{os.getpid()}"
    write_plain(new, json.dumps({"why": why}).encode())
    new.replace(folder / FAILED)


def take_reason(folder: Path) -> str:
    """Return the reason that a learner has written last, and delete it; "" if there is none or it cannot be read."""
    try:
        why = str(json.loads(read_plain(folder / FAILED))["why"])
    except (OSError, *UNREADABLE):
        why = ""
    (folder / FAILED).unlink(missing_ok=True)
    return why


def write_ending(folder: Path, ending: Ending) -> None:
    """Write the final record atomically."""
    new = folder / f".{ENDED}.{os.getpid()}"
    write_plain(new, json.dumps(asdict(ending), indent=1).encode())
    new.replace(folder / ENDED)
