"""A user's script as one learner of the virtual world: a thread of its own, of which one runs at a time.

The script runs until it waits for the world, inside a call of murmur. Its thread then stops, and the task of its
learner waits for that event on the virtual clock; when the event has happened, the thread goes on. The seconds of a
step pass inside `me.step()`; until that call the script takes no virtual time.

The thread of a learner that is killed never goes on.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Generator
from dataclasses import dataclass, replace
from pathlib import Path
from types import CodeType
from typing import Any

from torch import Tensor, nn

from murmur.core.errors import SettingError
from murmur.core.world import SCRIPT, ScriptBlock, ScriptLearner, Seat
from murmur.worlds.virtual.clock import Event

LOOK_SECONDS = 10.0
STILL_SECONDS = 300.0  # wall seconds without computing after which a learner waits for ever
STILL_SHARE = 0.01  # share of the processor's time that a loop of short waits takes


class ScriptError(RuntimeError):
    """A script that cannot go on, or has ended with a status other than 0."""

    of_user = True


class SharedState:
    """Parameters that the learners of one process have joined."""

    def __init__(self) -> None:
        self._joined: dict[int, tuple[weakref.ref[Tensor], int]] = {}  # by address of their memory

    def add(self, learner: int, model: nn.Module) -> None:
        """Add the parameters of a learner's model.

        Raises:
            SettingError: Another learner has joined one of them.
        """
        for name, parameter in model.named_parameters():
            place = parameter.untyped_storage().data_ptr()
            known, owner = self._joined.get(place, (None, learner))
            other = None if known is None else known()
            if owner != learner and other is not None and other.untyped_storage().data_ptr() == place:
                raise SettingError(
                    f"state outside the block: learners {owner} and {learner} have joined one parameter, {name} of"
                    f" {_holder_of(model)}, which every process of a launch has for itself: build the model in the"
                    " script, or in a module beside it"
                )
            self._joined[place] = weakref.ref(parameter), learner


def _holder_of(model: nn.Module) -> str:
    """Return the name of the module variable that holds a model."""
    for module, content in [(name, getattr(module, "__dict__", {})) for name, module in sys.modules.items()]:
        for name, value in list(content.items()):
            if value is model:
                return f"{module}.{name}"
    return f"a {type(model).__name__}"


@dataclass(frozen=True)
class _Happened:
    """An event to wait for, whatever its result."""

    event: Event[Any]

    def __await__(self) -> Generator[Event[Any], None, None]:
        yield self.event


class ScriptThread(ScriptLearner):
    """One learner of a script.

    Args:
        code: The script.
        variables: Variables of its module.
        terms: Terms of its first block; further ones have folders in that of the first.
        shared: Parameters that all learners have joined.

    Attributes:
        blocks: Number of blocks that it has begun.
    """

    def __init__(
        self, code: CodeType, variables: dict[str, Any], seat: Seat, terms: ScriptBlock, shared: SharedState
    ) -> None:
        self.rank, self.size, self.blocks = seat.group.rank, seat.group.size, 0
        self._code, self._variables, self._terms, self._shared = code, variables, replace(terms, seat=seat), shared
        self._process = os.getpid()
        self._awaited: Event[Any] | None = None
        self._error: BaseException | None = None
        self._go, self._stops = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name=f"learner {self.rank}", daemon=True)

    def resume(self) -> _Happened | None:
        """Let the script run; return what it waits for, or None if it has ended.

        Raises:
            ScriptError: The script does nothing, or has ended with a status other than 0.
            Exception: Any other error of the script.
        """
        if self._thread.ident is None:
            self._thread.start()
        self._awaited = None
        self._go.release()
        computed, still = self._processor_seconds(), 0.0
        while not self._stops.acquire(timeout=LOOK_SECONDS):
            now = self._processor_seconds()
            still = still + LOOK_SECONDS if now - computed < STILL_SHARE * LOOK_SECONDS else 0.0
            computed = now
            if still >= STILL_SECONDS:
                raise ScriptError(
                    f"learner {self.rank} has waited for {still:g} s {self._where()} without computing: learners of a"
                    " simulation run one at a time, so what another one is to do outside of murmur never comes"
                )
        if self._error is not None:
            self._error.add_note(f"in learner {self.rank} of the simulation")
            raise self._error
        return None if self._awaited is None else _Happened(self._awaited)

    def _run(self) -> None:
        SCRIPT.set(self)
        self._go.acquire()
        try:
            exec(self._code, self._variables)
        except SystemExit as ended:
            if ended.code not in (None, 0):
                self._error = ScriptError(f"learner {self.rank} has ended with exit status {ended.code}")
        except BaseException as error:
            self._error = error
        self._awaited = None
        self._stops.release()

    def wait(self, awaited: object) -> None:
        if os.getpid() != self._process or threading.current_thread() is not self._thread:
            raise ScriptError(
                f"learner {self.rank}: murmur was called in a thread or process that the script has started, and the"
                " virtual clock knows only the script itself: call it there"
            )
        if not isinstance(awaited, Event):
            raise TypeError(f"learner {self.rank} awaited {awaited!r}, which is not an event of the virtual world")
        self._awaited = awaited
        self._stops.release()
        self._go.acquire()

    def block(self, place: tuple[int, int] | None, model: nn.Module) -> ScriptBlock:
        if place is None:
            raise SettingError(
                "the script has taken its place from the environment, and joins without it: call"
                " murmur.join(..., seat=place) with what murmur.take_place() returned"
            )
        if place != (self.rank, self.size):
            raise SettingError(
                f"learner {self.rank} of {self.size} joins as learner {place[0]} of {place[1]}: the simulation sets"
                " their number; leave seat= out"
            )
        elsewhere = [f"{name} on {p.device}" for name, p in model.named_parameters() if p.device.type != "cpu"]
        if elsewhere:
            raise SettingError(f"{elsewhere[0]}: the learners of a simulation share this host: build the model on cpu")
        self._shared.add(self.rank, model)
        self.blocks += 1
        terms = self._terms
        return terms if self.blocks == 1 else replace(terms, out=os.path.join(terms.out, f"block-{self.blocks}"))

    def _processor_seconds(self) -> float:
        """Processor seconds of the thread; on systems that do not tell, the time of day."""
        try:  # pthread_getcpuclockid crashes if the thread ends meanwhile
            told = Path(f"/proc/self/task/{self._thread.native_id}/stat").read_text()
        except OSError:
            return time.monotonic()
        user, system = told.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def _where(self) -> str:
        frame = sys._current_frames().get(self._thread.ident or 0)
        while frame is not None and frame.f_code.co_filename != self._code.co_filename:
            frame = frame.f_back
        return "" if frame is None else f"at line {frame.f_lineno} of {self._code.co_filename}"
