"""Implementation of `murmur train`: opens the run folder, then trains here or launches learners.

torchrun, srun and mpiexec start all learners alike, so no earlier process can prepare the folder. Learner 0 chooses,
checks and locks it, and sends it, or its reason to refuse, through the store of the launch (or by MPI) to the others.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from murmur.core.counted import counted
from murmur.core.errors import DamagedCheckpoint, SettingError
from murmur.core.facts import Facts, training_learners
from murmur.core.group import PeerLost
from murmur.core.torch_private import PrefixStore, Store
from murmur.core.whole_files import write_whole
from murmur.core.world import Seat
from murmur.engine.checkpoints.checkpoint import Checkpoints
from murmur.engine.checkpoints.checkpoint import read_facts as read_facts_of_pair
from murmur.engine.experiment import Experiment, describe
from murmur.engine.resume import check_resumable
from murmur.engine.scaling import described
from murmur.execution.messages import told_once
from murmur.execution.workers import cores_here
from murmur.run.folder.contents import REQUEST, RUN, OpenedRun, opened, read_facts
from murmur.run.folder.lock import LOCK, Ending, FolderLock, read_ending, write_ending
from murmur.run.folder.provenance import provenance
from murmur.run.learner import is_tested, run_learner, scaled_for, torch_world
from murmur.run.origin import described_origin
from murmur.run.request import RunRequest
from murmur.run.saved_model import prepare
from murmur.worlds.mpi.world import MpiWorld
from murmur.worlds.process.arrival import check_meeting_point
from murmur.worlds.process.endings import PEER_LOST_STATUS
from murmur.worlds.process.environment import Place, place_of, threads_per_learner
from murmur.worlds.process.launcher import Command, Launch, Restart
from murmur.worlds.process.secret import draw, from_file
from murmur.worlds.process.signals import STOPPED_STATUS
from murmur.worlds.process.torch_store import connect
from murmur.worlds.process.world import START_SECONDS

log = logging.getLogger(__name__)
MODEL = ("model.safetensors", "model.json")
LEARNER = run_learner.__module__
WHOLE = (*MODEL, "score.json")  # files of a complete run
POLL_SECONDS = 0.05
REFUSAL_SECONDS = 5.0  # for the others to read the refusal, before the store ends with learner 0
FOLDER, BEGUN, RECEIVED = "murmur/folder", "murmur/begun", "murmur/received"


def train(request: RunRequest, experiment: Experiment) -> int:
    """Train as one learner that another program has started, as the only learner, or by launching several learners."""
    if request.world == "mpi":
        return run_in_mpi(request, experiment)
    place = place_of()
    secret = draw() if request.secret_file is None else from_file(request.secret_file)
    if place is not None:
        place = place if request.secret_file is None else replace(place, secret=secret)
        return run_beside_others(request, experiment, place)
    with opened(request.out, request.name, request.resume, request.force) as run:
        request = replace(request, out=run.out, threads=share_threads(request))
        with told_once(log.info):
            prepare(experiment)
        check_model(request, experiment)
        if request.resume and is_finished(request, experiment):
            log.info("%s is finished, with its model and score: nothing is computed again", request.out)
            return 0
        run.begin()
        write_run(request, experiment)
        if request.learners == 1:
            return run.end(*run_learner(request, experiment, Place(0, 1, 0, "127.0.0.1", 0)))
        return run.end(launch(request, experiment, secret, run.lock.descriptor))


def is_finished(request: RunRequest, experiment: Experiment) -> bool:
    """True if the last launch in the folder has ended with a complete run, of the present budget."""
    ending = read_ending(request.out)
    return ending is not None and ending.state == "finished" and set(written_before(request, experiment)) == set(WHOLE)


def written_before(request: RunRequest, experiment: Experiment) -> tuple[str, ...]:
    """Names of the files of a complete run, of the present budget, that earlier launches have written."""
    if not request.resume or not all((request.out / name).is_file() for name in MODEL):
        return ()
    try:
        done = read_facts_of_pair(request.out / "model").get("minibatches")
    except DamagedCheckpoint:
        return ()
    if done != scaled_for(request, experiment, request.learners).total:
        return ()
    return WHOLE if is_tested(request.out) else MODEL


def launch(request: RunRequest, experiment: Experiment, secret: bytes, lock: int) -> int:
    started = Launch(
        command_of_learner(request),
        request.learners,
        request.restarts,
        Restart.ALONE if Facts.of(experiment.strategy).tolerates_loss else Restart.TOGETHER,
        threads=request.threads or 1,
        secret=secret,
        stop_signal=signal.SIGUSR1,
        grace_seconds=request.grace_seconds,
        missing=missing_from(request.out, written_before(request, experiment)),
        inherited=(lock,),
        forked=(LEARNER, type(experiment.task).__module__),
    )
    status = started.run()
    if status == STOPPED_STATUS:
        started.stop()
    return status


def command_of_learner(request: RunRequest) -> Command:
    """Write the request into the run's folder; return the command line that starts a learner on it."""
    request.write()
    words = [sys.executable, "-m", LEARNER, str(request.out / REQUEST)]
    return lambda _, resume: [*words, "--resume"] if resume else words


def missing_from(out: Path, there: Sequence[str] = ()) -> Callable[[], str]:
    """Return a function that names the files of a complete run not written since now; "" once all are written.

    Those that are `there` need not be written again.
    """

    def stamp(name: str) -> tuple[int, int] | None:
        try:
            found = (out / name).stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns

    missed = {name: (None,) if name in there else (None, stamp(name)) for name in WHOLE}
    return lambda: ", ".join(str(out / name) for name in WHOLE if stamp(name) in missed[name])


def check_model(request: RunRequest, experiment: Experiment) -> None:
    """Check all that can end a run before its first step, once, before any learner begins and any file changes."""
    training_learners(experiment.strategy, request.learners)
    if request.init is None and not request.resume and not request.force:
        return  # there is no earlier work to lose, and each learner makes the same checks
    scaled = scaled_for(request, experiment, request.learners)
    model = experiment.model()
    experiment.optimizer(model)
    if request.resume:
        check_resumable(request.out, scaled, model)


def share_threads(request: RunRequest) -> int:
    """Return the compute threads of each learner; logs a warning if all threads outnumber the cores."""
    cores = cores_here()
    threads = request.threads or threads_per_learner(cores, request.learners)
    if threads * request.learners > cores:
        log.warning(
            "%s of %s on %s: they will slow each other down",
            *(counted(request.learners, "learner"), counted(threads, "thread"), counted(cores, "core")),
        )
    return threads


def run_in_mpi(request: RunRequest, experiment: Experiment) -> int:
    if request.secret_file is not None:
        raise SettingError("MPI carries a secret of its own to the learners: leave --secret-file out with --world mpi")
    world = MpiWorld() if request.lease_seconds is None else MpiWorld(lease_seconds=request.lease_seconds)
    if world.size == 1 or request.learners not in (1, world.size):
        learners = max(2, request.learners)
        raise SettingError(
            f"MPI has started {counted(world.size, 'learner')}; their number is the launcher's:"
            f" mpiexec -n {learners} murmur train {request.source} --world mpi, without --learners"
        )
    return run_beside_others(request, experiment, world.place, world)


def run_beside_others(request: RunRequest, experiment: Experiment, place: Place, world: MpiWorld | None = None) -> int:
    """Run one of the learners that another program has started; learner 0 opens the folder for all of them."""
    try:
        seconds = request.start_seconds or START_SECONDS
        channel: Channel = StoreChannel(place, seconds) if world is None else MpiChannel(world)
        out, resume = folder_of_first(channel) if place.rank > 0 else (request.out, request.resume)
    except (ConnectionError, PeerLost) as error:
        log.error("learner %d: %s", place.rank, error)
        return PEER_LOST_STATUS
    learns = torch_world(request, place, channel.store) if isinstance(channel, StoreChannel) else world
    if place.rank > 0:
        member = FolderMember(out)
        request = replace(request, out=out, resume=resume)
        return member.end(*run_learner(request, experiment, place, learns, lambda _: member.begin()))

    def settled(run: OpenedRun) -> RunRequest:
        return replace(request, out=run.out, resume=run.resume, learners=place.size)

    wanted = (request.out, request.name, request.resume, request.force)
    with opened_for_all(channel, wanted, lambda run: check_model(settled(run), experiment)) as run:

        def begins(seat: Seat) -> None:
            if not seat.late:
                run.begin()
                write_run(settled(run), experiment)
                settled(run).write()
                channel.begin(run.out)

        return run.end(*run_learner(settled(run), experiment, place, learns, begins))


def write_run(request: RunRequest, experiment: Experiment, simulated: Mapping[str, Any] | None = None) -> None:
    """Write run.json, which holds all that is needed to repeat the run, before the first step.

    `simulated` describes the virtual cluster of a simulated run.
    """
    request = replace(request, learners=learners_of_steps(request, experiment))
    facts = {
        **provenance(request.out / "records.jsonl"),
        "source": request.source,
        "settings": list(request.settings),
        "strategy": request.strategy,
        "learners": request.learners,
        "init": None if request.init is None else str(request.init.absolute()),
        **described_origin(request.source, experiment.task, request.out),
        "experiment": describe(experiment),
        "scaling": scaling_facts(request, experiment),
        "digest": experiment.digest(),
        **({} if simulated is None else {"simulated": simulated}),
    }
    write_whole(request.out / "run.json", json.dumps(facts, indent=1).encode())


def learners_of_steps(request: RunRequest, experiment: Experiment) -> int:
    """Return the number of learners to record: the former one if all minibatches of a resumed run are done."""
    former = read_facts(request.out).get("learners") if request.resume else None
    if not isinstance(former, int):
        return request.learners
    done = max(Checkpoints(request.out / "checkpoints").marks(), default=0)
    return former if done == scaled_for(request, experiment, request.learners).total else request.learners


def scaling_facts(request: RunRequest, experiment: Experiment) -> dict[str, Any]:
    scaled = scaled_for(request, experiment, request.learners)
    training = training_learners(experiment.strategy, request.learners)
    growth = scaled.rule.growth(training)
    told = described(scaled.rule, training, experiment.optimizer)
    return {"learners": training, "growth": growth, **describe(scaled.rule), "told": told}


class StoreChannel:
    """Channel through the store of a launch; `store` is the connection of this learner."""

    def __init__(self, place: Place, start_seconds: float) -> None:
        check_meeting_point(place)
        self._place = place
        self.store: Store = connect(place, start_seconds)
        self.store.set_timeout(timedelta(seconds=start_seconds))
        # torchrun's store stays up across its restarts; each restart's keys have a prefix of their own.
        self._lasting = self.store.underlying_store if isinstance(self.store, PrefixStore) else self.store

    def send(self, text: str) -> None:
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

    def begun_folder(self) -> Path | None:
        return Path(self._lasting.get(BEGUN).decode()) if self._lasting.check([BEGUN]) else None

    def begin(self, out: Path) -> None:
        self._lasting.set(BEGUN, str(out))


class MpiChannel:
    """Channel by MPI, whose launches are never restarted."""

    def __init__(self, world: MpiWorld) -> None:
        self._world = world

    def send(self, text: str) -> None:
        self._world.from_first(text)

    def receive(self) -> str:
        return self._world.from_first("")

    def begun_folder(self) -> Path | None:
        return None

    def begin(self, out: Path) -> None:
        """Do nothing: there is no later start."""


Channel = StoreChannel | MpiChannel


@contextmanager
def opened_for_all(
    channel: Channel,
    wanted: tuple[Path, str, bool, bool],
    check: Callable[[OpenedRun], None],
) -> Iterator[OpenedRun]:
    """Open the folder of a run at learner 0, and send it, or the reason for a refusal, to the others.

    `wanted` are the arguments folder, name, resume and force of `opened`; `check` may refuse before the run begins.
    """
    before = channel.begun_folder()
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
