"""State that a process inherits from the one that starts it, apart from its program, files and environment."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

RESTORED = frozenset({signal.SIGPIPE, signal.SIGXFSZ})  # `subprocess` takes back what Python ignores itself
LIMITS = tuple(sorted(number for name, number in vars(resource).items() if name.startswith("RLIMIT_")))
GET_DEATH_SIGNAL, SET_DEATH_SIGNAL = 2, 1


@dataclass(frozen=True)
class Inherited:
    """State that `subprocess` leaves to a new process.

    Attributes:
        ignored: Signals that it ignores.
        blocked: Signals that it blocks.
        umask: Its mask of permissions.
        limits: Its resource limits, in the order of `LIMITS`.
        processors: Processors on which it may run.
        death_signal: Signal that it gets at the end of its parent; 0: none.
        session: True if it leads a session of its own.
        group: True if it leads a group of its own.
    """

    ignored: tuple[int, ...]
    blocked: tuple[int, ...]
    umask: int
    limits: tuple[tuple[int, int], ...]
    processors: tuple[int, ...]
    death_signal: int = 0
    session: bool = False
    group: bool = False

    @classmethod
    def of_this_process(cls, death_signal: int = 0, session: bool = False, group: bool = False) -> Self:
        """Return the state of a child that this process starts now."""
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        mask = int(status["SigIgn"], 16)
        return cls(
            ignored=tuple(n for n in signal.valid_signals() if mask >> (n - 1) & 1 and n not in RESTORED),
            blocked=tuple(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
            umask=int(status["Umask"], 8),
            limits=tuple(resource.getrlimit(number) for number in LIMITS),
            processors=tuple(sorted(os.sched_getaffinity(0))),
            death_signal=death_signal,
            session=session,
            group=group,
        )

    @classmethod
    def after(cls, prepare: Callable[[], object]) -> Self | None:
        """Return the state of a child that calls `prepare` first; None if that does more than this class can say.

        A forked process calls it, as `preexec_fn` is called, and reads its own state.
        """
        with tempfile.TemporaryFile() as said:
            child = os.fork()
            if child == 0:
                try:
                    before = _rest()
                    prepare()
                    death = ctypes.c_int()
                    ctypes.CDLL(None).prctl(GET_DEATH_SIGNAL, ctypes.byref(death))
                    own = (death.value, os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid())
                    if _rest() == before:
                        os.write(said.fileno(), json.dumps(asdict(cls.of_this_process(*own))).encode())
                finally:
                    os._exit(0)
            os.waitpid(child, 0)
            said.seek(0)
            text = said.read()
        return cls.read(json.loads(text)) if text else None

    @classmethod
    def read(cls, fields: dict[str, object]) -> Self:
        """Read what `asdict` and JSON have made of a state."""
        return cls(**{name: _tuples(value) for name, value in fields.items()})  # type: ignore[arg-type]

    def take(self, parent_group: int) -> None:
        """Give this process the state, apart from the blocked signals."""
        if self.session:
            os.setsid()
        elif self.group:
            os.setpgid(0, 0)
        elif os.getpgrp() != parent_group:
            os.setpgid(0, parent_group)
        os.umask(self.umask)
        for number, limit in zip(LIMITS, self.limits, strict=True):
            if resource.getrlimit(number) != limit:
                resource.setrlimit(number, limit)
        if tuple(sorted(os.sched_getaffinity(0))) != self.processors:
            os.sched_setaffinity(0, self.processors)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_IGN if number in self.ignored else signal.SIG_DFL)
        for number in RESTORED:
            signal.signal(number, signal.SIG_IGN)  # as every interpreter does
        if signal.SIGINT not in self.ignored:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        die_with_parent(self.death_signal)


def die_with_parent(number: int) -> None:
    """Let the system send this process a signal at the end of its parent."""
    ctypes.CDLL(None).prctl(SET_DEATH_SIGNAL, number)


def _rest() -> object:
    """What `Inherited` does not hold: files, folder, user, and variables."""
    files = {link.name: os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}
    return files, os.getcwd(), os.geteuid(), dict(os.environ)


def _tuples(value: object) -> object:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
