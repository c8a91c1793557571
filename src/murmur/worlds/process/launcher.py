"""Launcher of learners on this host: one process and one restart budget each, and a separate store process.

Every process started here dies with the launcher, even if the launcher is killed without a chance to clean up.
"""

from __future__ import annotations

import logging
import math
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import IO

from murmur.core.stop_signals import SAME_SECONDS, usual_signals
from murmur.worlds.awake_clock import awake_clock, awake_seconds
from murmur.worlds.process.arrival import listening_address
from murmur.worlds.process.endings import PEER_LOST_STATUS, how_ended, status_of, status_of_all
from murmur.worlds.process.environment import (
    BEGUN_KEY,
    COME_KEY,
    ENDED_KEY,
    Place,
    child_variables,
    import_variables,
)
from murmur.worlds.process.fork_server import ForkServer, begin_detached, forks_here
from murmur.worlds.process.listener import listen
from murmur.worlds.process.membership_client import WORLD, ranks, stalls_of
from murmur.worlds.process.secret import draw, unnamed_file
from murmur.worlds.process.signals import (
    GRACE_SECONDS,
    STOPPED_STATUS,
    ChildProcess,
    StopSignals,
    die_with_parent,
    end_all,
    exit_code,
    has_reached_all,
    ignore_until_ready,
    is_stopped,
)
from murmur.worlds.process.store_server import StoreClient

log = logging.getLogger(__name__)

SAVING_SECONDS = 30.0  # the same for a learner's program, as under torchrun
POLL_SECONDS = 0.05
ASK_AGAIN_SECONDS = 0.5
RESUME_SECONDS = 2.0  # after a pause of the launcher, for its learners to be continued
LAST_WORDS_SECONDS = 1.0  # for learners of other hosts that have ended, and still speak to the store
ASK_SECONDS = 30.0  # for an answer of the store process, which may be slow on a busy host
Command = Callable[[Place, bool], Sequence[str]]  # (place, true to resume) -> the learner's command line


class Restart(Enum):
    TOGETHER = "all learners start again from the newest checkpoint (lock-step strategies cannot go on without one)"
    ALONE = "only the learner that failed starts again; the others go on, also without it"


@dataclass
class Unit:
    rank: int
    restarts_left: int
    process: ChildProcess | None = None
    code: int | None = None
    lost: bool = False


@dataclass(frozen=True)
class LaunchStanding:
    """Ranks that have come to the store, have begun to train (and so hold the model), and have ended training."""

    come: frozenset[int]
    begun: frozenset[int]
    ended: frozenset[int]

    def trains(self, unit: Unit) -> bool:
        running = unit.code is None and not is_stopped(unit.process)
        return running and unit.rank in self.begun - self.ended

    def has_ended(self, unit: Unit) -> bool:
        return unit.code in (0, STOPPED_STATUS) or (unit.code is None and unit.rank in self.ended)


@contextmanager
def _quit_is_a_question() -> Iterator[None]:
    """Keep SIGQUIT (Ctrl-backslash) from ending this process and its children; it stays pending as a question."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGQUIT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass
class Launch:
    """A run of `learners` processes on this host, whose command lines `command` returns.

    Launches of several hosts start learners again alone, or not at all: none can end those of another host.

    Attributes:
        restarts: Number of restarts of each learner.
        restart: Learners that a failure restarts: all, or the failed one alone.
        host: Interface on which the store listens.
        threads: Compute threads of each learner.
        secret: Secret of the run's processes; drawn for each launch if not given.
        stop_signal: Signal that asks a learner to save and end; None: learners are sent SIGTERM.
        grace_seconds: Time for learners to end after a request to stop; then they are killed. None: no limit for
            learners with a stop signal, 30 s for others.
        missing: Returns the names of outputs that a complete run would have and this one lacks; empty if complete.
        out: Folder for the records of loops; empty: there is none.
        inherited: Descriptors of open files that learners inherit, such as a lock that they hold.
        forked: Module that learners with a stop signal run by `python -m`, and others to import; learners are forked
            from a process that has imported them. Empty: each learner is a new interpreter.
        hosts: Launches that run together, one on each host, each of as many learners; the first one has the store.
        number: Number of this one of them.
        port: Port of the store; 0: a free one.
        units: Learners of the present generation: fewer than `learners` if some were lost before training began.
    """

    command: Command
    learners: int
    restarts: int = 0
    restart: Restart = Restart.TOGETHER
    host: str = "127.0.0.1"
    threads: int = 1
    secret: bytes = field(default_factory=draw, repr=False)
    stop_signal: signal.Signals | None = None
    grace_seconds: float | None = None
    missing: Callable[[], str] = str
    out: str = ""
    inherited: Sequence[int] = ()
    forked: Sequence[str] = ()
    hosts: int = 1
    number: int = 0
    port: int = 0
    units: list[Unit] = field(default_factory=list)
    generation: int = 0
    _training: bool = False  # true once all learners of this generation have begun to train
    _ever_began: bool = False  # true once any learner of any generation has
    _secret_file: IO[bytes] = field(init=False, repr=False)
    _forks: ForkServer | None = field(default=None, init=False, repr=False)
    _asked: StopSignals = field(default_factory=StopSignals, repr=False)
    _asked_at: float = 0.0
    _end_at: float = math.inf  # time at which learners that still save are killed

    def run(self) -> int:
        """Start everything and wait for the end.

        Returns:
            0 if the run is complete, `STOPPED_STATUS` if the learners have saved and ended on request,
            `PEER_LOST_STATUS` if a learner or the store was lost, or the exit status of the learner whose failure ended
            the run.
        """
        with self._asked, usual_signals(), _quit_is_a_question():
            return self._run()

    def _run(self) -> int:
        self._secret_file = unnamed_file(self.secret)
        store = self._start_store(listen(self._address(), self.port)) if self.number == 0 else None
        first = self.number * self.learners
        self.units = [Unit(rank, self.restarts) for rank in range(first, first + self.learners)]
        try:
            for unit in self.units:
                self._start(unit, resume=False)
            return self._watch(store)
        finally:
            self._end()
            if self._forks is not None:
                self._forks.close()
            if store is not None:
                self._await_other_hosts()
                assert store.stdin is not None
                store.stdin.close()  # it then ends by itself
                end_all([store])
            self._secret_file.close()

    def _address(self) -> str:
        """Return the address at which the store listens: for learners of this host only, or of all."""
        if self.hosts == 1:
            return self.host
        return listening_address(Place(0, 2, 0, self.host, self.port, local_size=1, store="learner 0"))

    def stop(self) -> None:
        """End the work after a launch by `Stopped`, if a signal had asked this process to stop."""
        self._asked.stop()

    def _start_store(self, listener: socket.socket) -> subprocess.Popen[bytes]:
        with listener:
            self.port = listener.getsockname()[1]
            passed = [listener.fileno(), self._secret_file.fileno()]
            return subprocess.Popen(
                [sys.executable, "-m", "murmur.worlds.process.store_server", *map(str, passed)],
                stdin=subprocess.PIPE,
                pass_fds=passed,
                preexec_fn=begin_detached,  # noqa: PLW1509 - the other thread here only waits for signals
            )

    def _start(self, unit: Unit, resume: bool) -> None:
        here = len(self.units)
        at = (unit.rank - self.number * self.learners, self.host, self.port, self.generation, here)
        place = Place(unit.rank, here * self.hosts, *at, out=self.out)
        unit.code = None
        words = list(self.command(place, resume))
        variables = child_variables(place, self.threads, self._secret_file.fileno())
        if self.forked and self._forks is None and forks_here():
            self._forks = ForkServer(self.forked, import_variables(self.threads), self._passed)
        forks = self._forks
        forked = forks.fork(words[3:], variables) if forks and forks.await_ready(self._asked) else None
        unit.process = forked or subprocess.Popen(
            words,
            env=variables,
            stdin=subprocess.DEVNULL,
            pass_fds=self._passed,
            preexec_fn=self._begin_learner,  # noqa: PLW1509 - the other thread here only waits for signals
        )

    @property
    def _passed(self) -> list[int]:
        return [self._secret_file.fileno(), *self.inherited]

    def _begin_learner(self) -> None:
        die_with_parent()()
        if self.stop_signal is not None:
            ignore_until_ready()

    def _pass_on(self) -> None:
        """Pass a stop request on to the learners, repeatedly, for one may not be ready yet.

        If none has come to the store, they are ended at once: their interpreters still import, and ignore requests.
        """
        if not self._asked() or time.monotonic() - self._asked_at < ASK_AGAIN_SECONDS:
            return
        if self.stop_signal is None:
            self._end()
            left = {self._ended(unit) for unit in self.units if not unit.lost}
            saved = STOPPED_STATUS in left and left <= {0, STOPPED_STATUS}
            raise SystemExit(STOPPED_STATUS if saved else 128 + self._asked.number)
        first, self._asked_at = not self._asked_at, time.monotonic()
        if first and not self._any_has_come():
            self._end_at_once(self.units)
            for unit in self.units:
                unit.code = STOPPED_STATUS
            return
        if first:
            self._end_at = awake_seconds() + (math.inf if self.grace_seconds is None else self.grace_seconds)
            limit = "" if self.grace_seconds is None else f" for up to {self.grace_seconds:g} s"
            log.warning("%s: waiting%s until %s have saved and stopped", self._request(), limit, self._running())
        for unit in self.units:
            unit.restarts_left = 0
            if self._ended(unit) is None and unit.process is not None:
                unit.process.send_signal(self.stop_signal)

    def _any_has_come(self) -> bool:
        """True if a learner of this generation has come to the store; before that it has nothing to save."""
        try:
            with self._connected() as line:
                return bool(self._standing(line).come)
        except ConnectionError:
            return True  # the watch notices what has happened to the store

    def _end(self) -> None:
        """End the learners; kill them if they would save on request, which is of no use any more."""
        processes = [u.process for u in self.units if u.process]
        if self.stop_signal is not None:
            for process in processes:
                process.kill()
            end_all(processes)
        elif running := self._running():
            grace = SAVING_SECONDS if self.grace_seconds is None else self.grace_seconds
            why = f"{self._request()}: " if self._asked() else ""
            log.warning("%swaiting up to %g s for %s to stop", why, grace, running)
            killed = end_all(processes, grace, ask=not has_reached_all(self._asked.number))
            if killed:
                numbers = ranks([u.rank for u in self.units if u.process in killed])
                log.error("learners %s did not stop within %g s (--grace-seconds) and were killed", numbers, grace)

    def _running(self) -> str:
        running = [unit.rank for unit in self.units if unit.process is not None and self._ended(unit) is None]
        return f"learners {ranks(running)}" if running else ""

    def _request(self) -> str:
        """Name the signal that has asked to stop, and the way to end at once."""
        return f"{signal.Signals(self._asked.number).name} (another one, after {SAME_SECONDS:g} s, ends all at once)"

    def _watch(self, store: subprocess.Popen[bytes] | None) -> int:
        while True:
            time.sleep(POLL_SECONDS)
            self._pass_on()
            if awake_seconds() > self._end_at:
                grace = self.grace_seconds
                log.error("%s did not save within %g s (--grace-seconds) and are killed", self._running(), grace)
                return PEER_LOST_STATUS
            if store is not None and exit_code(store) is not None:
                log.error("the store process %s: the run cannot go on", how_ended(store.returncode))
                return PEER_LOST_STATUS
            if awake_clock().settles(RESUME_SECONDS):
                continue  # learners that are continued a little later are not stopped
            failed = [unit for unit in self.units if not unit.lost and self._ended(unit) not in self._well()]
            self._end_the_stopped()
            self._answer()
            code = None
            if failed:
                code = self._recover(failed)
            elif all(unit.code is not None or unit.lost for unit in self.units):
                code = self._conclude()
            if code is not None:
                return code

    def _well(self) -> tuple[int | None, ...]:
        """Statuses that are not failures; a learner that stops before it trains is followed by the others."""
        stopped = self._asked() and any(unit.code == STOPPED_STATUS for unit in self.units)
        return (None, 0, STOPPED_STATUS, PEER_LOST_STATUS) if stopped else (None, 0, STOPPED_STATUS)

    def _conclude(self) -> int:
        """Return the exit status after all learners have ended: 0 only if the run is complete."""
        codes = {status_of(unit.code) for unit in self.units}
        missing = self.missing()
        if 0 in codes and not missing:
            return 0
        if STOPPED_STATUS in codes:
            return STOPPED_STATUS
        log.error("all learners have ended, but the run is incomplete: %s is missing; --resume finishes it", missing)
        return status_of_all(codes)

    def _answer(self) -> None:
        """Log the stall table, if SIGQUIT has asked for it."""
        if signal.SIGQUIT not in signal.sigpending():
            return
        signal.sigwait([signal.SIGQUIT])
        try:
            with closing(StoreClient(self.host, self.port, GRACE_SECONDS, self.secret)) as line:
                log.warning("%s", stalls_of(line, self._prefix))
        except ConnectionError:
            log.warning("no learner waits for another one yet")

    def _ended(self, unit: Unit) -> int | None:
        if unit.code is None and unit.process is not None:
            unit.code = exit_code(unit.process)
        return unit.code

    def _cause(self, failed: Sequence[Unit], standing: LaunchStanding) -> Unit:
        """Return the learner whose failure made the others fail.

        It ended in a different way from the others, is stopped, or has never come to the store.
        """
        running = [unit for unit in self.units if unit.code is None]
        stopped = [unit for unit in running if is_stopped(unit.process)]
        absent = [unit for unit in running if unit.rank not in standing.come]
        own = [unit for unit in failed if unit.code != PEER_LOST_STATUS]
        return [*own, *stopped, *absent, *failed][0]

    def _end_the_stopped(self) -> None:
        """End stopped learners once all others have ended the run without them."""
        others = [unit for unit in self.units if unit.code != 0 and not unit.lost]
        if len(others) < len(self.units) and all(is_stopped(unit.process) for unit in others):
            for unit in others:
                log.error("learner %d is stopped, and the others have ended without it", unit.rank)
                unit.lost = True

    def _recover(self, failed: Sequence[Unit]) -> int | None:
        """Go on after a failure, with restarts or without the learner; return the exit status if that is impossible."""
        try:
            with self._connected() as line:
                standing = self._standing(line)
                self._training |= len(standing.begun) == len(self.units)
                self._ever_began |= bool(standing.begun)
                unit = self._cause(failed, standing)
                how, unit.code = how_ended(unit.code), PEER_LOST_STATUS if unit.code is None else unit.code
                self._tell(line, unit, how)
        except ConnectionError as error:
            log.error("the store process does not answer (%s): the run cannot go on", error)
            return PEER_LOST_STATUS
        others = [u for u in self.units if u is not unit and not u.lost]
        alone = self.restart is Restart.ALONE and self._training
        left = self._left_at_start(unit, failed)
        if alone and (any(map(standing.trains, others)) or self._other_hosts_live()):
            self._go_on_alone(unit, how)
        elif alone and any(map(standing.has_ended, others)) and not (self.missing() and unit.restarts_left):
            log.error("learner %d %s; the others have ended without it", unit.rank, how)
            self._give_up(unit, how)
        elif unit.restarts_left > 0 and self.hosts == 1:
            unit.restarts_left -= 1
            log.warning("learner %d %s; all start again together (%d left)", unit.rank, how, unit.restarts_left)
            self._start_together(self.units)
        elif left:
            log.error("learner %d %s before training began and has no restart left", unit.rank, how)
            log.warning("the other %d start again without it, as learners 0 to %d", len(left), len(left) - 1)
            self._start_together([Unit(rank, u.restarts_left) for rank, u in enumerate(left)])
        else:
            log.error("learner %d %s and has no restart left", unit.rank, how)
            return self._status_of_cause(unit)
        return None

    def _status_of_cause(self, unit: Unit) -> int:
        """Return the exit status for a learner that ends the run; or of the one that it has lost."""
        if status_of(unit.code) != PEER_LOST_STATUS:
            return status_of(unit.code)
        codes = {status_of(other.code) for other in self.units if other.lost}
        return status_of_all(codes)

    def _go_on_alone(self, unit: Unit, how: str) -> None:
        if unit.restarts_left == 0:
            log.error("learner %d %s and has no restart left; the others go on", unit.rank, how)
            self._give_up(unit, how)
            return
        unit.restarts_left -= 1
        log.warning("learner %d %s; restarting (%d left)", unit.rank, how, unit.restarts_left)
        self._end_at_once([unit])
        self._start(unit, resume=True)

    def _give_up(self, unit: Unit, how: str) -> None:
        """Leave a learner out from now on, and end all waits for it, such as those of its super-learner's members."""
        unit.lost = True
        with suppress(ConnectionError), self._connected() as line:
            self._tell(line, unit, how, final=True)  # the watch notices what has happened to the store

    def _left_at_start(self, unit: Unit, failed: Sequence[Unit]) -> list[Unit]:
        """Return the learners that can begin without one lost before training began; empty if none can.

        A learner that ended with an error of its own would fail again, and so would the others.
        """
        own = [u for u in failed if u.code is not None and u.code > 0 and u.code != PEER_LOST_STATUS]
        gone = [u for u in failed if u.code is not None and u.code < 0 and u.restarts_left == 0]
        if own or self._training or self.restart is not Restart.ALONE or self._asked() or self.hosts > 1:
            return []
        return [u for u in self.units if u is not unit and u not in gone]

    def _start_together(self, units: list[Unit]) -> None:
        """Begin a new generation of these learners.

        It resumes if any learner has trained. Before that, checkpoints in the folder may be those of another run.
        """
        # Kill them: none can do useful work any more, and checkpoints are written atomically.
        self._end_at_once(self.units)
        self.units, self.generation, self._training = units, self.generation + 1, False
        for unit in units:
            unit.lost = False
            self._start(unit, resume=self._ever_began)

    def _end_at_once(self, units: Sequence[Unit]) -> None:
        end_all([u.process for u in units if u.process], grace_seconds=0.0)

    def _connected(self) -> closing[StoreClient]:
        return closing(StoreClient(self.host, self.port, ASK_SECONDS, self.secret))

    def _standing(self, line: StoreClient) -> LaunchStanding:
        def with_key(name: str) -> frozenset[int]:
            keys = {u.rank: f"{self._prefix}{name}/{u.rank}" for u in self.units}
            return frozenset(r for r, key in keys.items() if line.call({"do": "check", "keys": [key]})[0]["there"])

        return LaunchStanding(with_key(COME_KEY), with_key(BEGUN_KEY), with_key(ENDED_KEY))

    def _other_hosts_live(self) -> bool:
        """True if a learner of another host is alive, as far as the store knows."""
        if self.hosts == 1:
            return False
        ask = {"do": "membership", "act": "view", "group": self._prefix + WORLD, "rank": 0}
        try:
            with self._connected() as line:
                live = {int(rank) for rank, _ in line.call(ask)[0]["live"]}
        except ConnectionError:
            return False  # no learner has come to the store, or it is gone
        return bool(live - {unit.rank for unit in self.units})

    def _await_other_hosts(self) -> None:
        """Keep the store for learners of other hosts that live, and then for their last words."""
        limit = self.grace_seconds if self._asked() and self.grace_seconds is not None else math.inf
        until = awake_seconds() + limit
        while self._other_hosts_live() and awake_seconds() < until:
            time.sleep(ASK_AGAIN_SECONDS)
        if self.hosts > 1:
            time.sleep(LAST_WORDS_SECONDS)

    def _tell(self, line: StoreClient, unit: Unit, how: str, final: bool = False) -> None:
        """Tell the others through their membership that a learner is gone, so that no wait for it goes on."""
        why = f"its process {how}"
        line.call({"do": "gone", "group": self._prefix + WORLD, "rank": unit.rank, "why": why, "final": final})
        line.call({"do": "delete", "key": f"{self._prefix}{BEGUN_KEY}/{unit.rank}"})

    @property
    def _prefix(self) -> str:
        return Place(0, 1, 0, self.host, 0, self.generation).prefix
