"""Implementation of `murmur train`: one learner of a launch, and the launch itself."""

from __future__ import annotations

import json
import logging
import math
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from murmur.core.errors import IncompleteRun, SettingError
from murmur.core.facts import Facts
from murmur.core.flat import Layout
from murmur.core.group import PeerLost, WorldMismatch
from murmur.core.membership import StoppedGracefully
from murmur.core.stop_signals import Stopped
from murmur.core.torch_private import HashStore, Store
from murmur.core.world import Seat, World
from murmur.engine.checkpoints.checkpoint import Checkpoints, write_whole
from murmur.engine.checkpoints.state import check_weights
from murmur.engine.experiment import Experiment, describe
from murmur.engine.record import Observer, ProgressLine
from murmur.engine.task import test_in
from murmur.engine.trainer import Trainer
from murmur.execution.cores import cores_here
from murmur.run.agreed_folder import FolderMember, MpiChannel, StoreChannel, folder_of_first, opened_for_all
from murmur.run.configuration import configure, load
from murmur.run.folder.opened import LATEST, OpenedRun, opened
from murmur.run.origin import described_origin
from murmur.run.saved_model import Choice, Initialised, choose, find_model, read_into, told_choice
from murmur.worlds.mpi.world import MpiWorld
from murmur.worlds.process.launch.environment import Place, check_meeting_point, place_of, threads_per_learner
from murmur.worlds.process.launch.launcher import PEER_LOST_STATUS, Launch, Restart
from murmur.worlds.process.launch.secret import draw, from_file
from murmur.worlds.process.launch.signals import STOPPED_STATUS, StopWhenPolled
from murmur.worlds.process.membership.failure_detector import LEAST_SECONDS
from murmur.worlds.process.world import START_SECONDS, ProcessWorld, device_of

log = logging.getLogger(__name__)
LAUNCH, RECOGNISED = "launch.json", "recognised.jsonl"
DECODED = "decoded"  # folder with the results of an unfinished test
WHOLE = ("model.safetensors", "model.json", "score.json")  # files of a complete run


@dataclass(frozen=True)
class RunRequest:
    """A training run as the command line requests it.

    Attributes:
        source: Experiment file or recipe.
        settings: Overrides of the form "name=value".
        strategy: Strategy as text, or None for the experiment's own.
        learners: Number of processes to start on this host.
        out: Folder for all files of the run; `LATEST` makes a new one.
        resume: Continue from the newest checkpoint in `out`.
        restarts: Number of times that each learner may be started again.
        threads: Compute threads per learner; None divides the cores among the learners.
        init: Run folder or model file that provides the initial weights; None initialises them at random.
        tested: Choice of the run's model to test.
        world: Library that moves vectors between learners.
        secret_file: User's file with the secret that the learners of this run share.
        lease_seconds: Shortest silence after which a learner counts as lost; None uses the world's default.
        start_seconds: Time that learners wait for one another at the start; None uses the world's default.
        force: Remove a run that is in `out` when this one begins.
    """

    source: str
    settings: tuple[str, ...] = ()
    strategy: str | None = None
    learners: int = 1
    out: Path = LATEST
    resume: bool = False
    restarts: int = 0
    threads: int | None = None
    init: Path | None = None
    tested: Choice = "lowest"
    world: Literal["torch", "mpi"] = "torch"
    secret_file: Path | None = None
    lease_seconds: float | None = None
    start_seconds: float | None = None
    force: bool = False

    @property
    def name(self) -> str:
        """Name of the experiment, for folders."""
        return Path(self.source).stem

    def experiment(self) -> Experiment:
        """Return the experiment with all settings applied.

        Raises:
            SettingError: a name is unknown, a value does not fit, or there is no model at `init`.
        """
        experiment = configure(load(self.source), self.settings, self.strategy, self.source)
        if self.init is None:
            return experiment
        stem = find_model(self.init)
        content = blake2b(stem.with_suffix(".safetensors").read_bytes(), digest_size=8).hexdigest()
        return replace(experiment, task=Initialised(experiment.task, stem, content))

    def command_line(self, place: Place, resume: bool) -> list[str]:  # noqa: ARG002 - all learners are started alike
        """Command line that starts one learner of this request."""
        words = [sys.executable, "-m", "murmur", "train", self.source, "--out", str(self.out)]
        for setting in self.settings:
            words += ["--set", setting]
        if self.strategy is not None:
            words += ["--strategy", self.strategy]
        if self.threads is not None:
            words += ["--threads", str(self.threads)]
        if self.init is not None:
            words += ["--init", str(self.init)]
        if self.tested != "lowest":
            words += ["--weights", self.tested]
        if self.lease_seconds is not None:
            words += ["--lease-seconds", str(self.lease_seconds)]
        if self.start_seconds is not None:
            words += ["--start-seconds", str(self.start_seconds)]
        return [*words, "--resume"] if resume or self.resume else words


def train(request: RunRequest) -> int:
    """Train as one learner of a launch that is under way, as the only learner, or by launching several learners.

    Returns:
        The exit status.

    Raises:
        Stopped: a signal arrived; the learners have saved their state and ended.
    """
    if request.world == "mpi":
        return run_in_mpi(request)
    place = place_of()
    secret = draw() if request.secret_file is None else from_file(request.secret_file)
    if place is not None:
        place = place if request.secret_file is None else replace(place, secret=secret)
        if place.store == "murmur":  # the launcher has checked the folder; this process has inherited its lock
            return run_learner(request, place)
        return run_beside_others(request, place)
    experiment = request.experiment()
    with opened(request.out, request.name, request.resume, request.force) as run:
        request = replace(request, out=run.out, threads=share_threads(request))
        experiment.task.prepare()
        check_model(request, experiment)
        run.begin()
        write_run(request, experiment)
        if request.learners == 1:
            return run.end(run_learner(request, Place(0, 1, 0, "127.0.0.1", 0)))
        return run.end(launch(request, experiment, secret, run.lock.descriptor))


def launch(request: RunRequest, experiment: Experiment, secret: bytes, lock: int) -> int:
    """Start the learners on this host and wait for their end; they inherit the folder's lock."""
    started = Launch(
        request.command_line,
        request.learners,
        request.restarts,
        Restart.ALONE if Facts.of(experiment.strategy).tolerates_loss else Restart.TOGETHER,
        threads=request.threads or 1,
        secret=secret,
        stop_signal=signal.SIGUSR1,
        missing=missing_from(request.out),
        inherited=(lock,),
    )
    status = started.run()
    if status == STOPPED_STATUS:
        started.stop()
    return status


def missing_from(out: Path) -> Callable[[], str]:
    """Return a function that names the files of a complete run not written since now; "" once all are written."""

    def stamp(name: str) -> tuple[int, int] | None:
        try:
            found = (out / name).stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns

    before = {name: stamp(name) for name in WHOLE}
    return lambda: ", ".join(str(out / name) for name in WHOLE if stamp(name) in (None, before[name]))


def check_model(request: RunRequest, experiment: Experiment) -> None:
    """Check the initial weights once, before any learner begins.

    Raises:
        SettingError, DamagedCheckpoint: the model of `init` does not fit; names the tensor.
        ValueError: the checkpoint belongs to another model.
    """
    newest = Checkpoints(request.out / "checkpoints").newest(0)[0] if request.resume else None
    if request.init is not None or newest is not None:
        model = experiment.task.model()
        if newest is not None:
            check_weights(newest, Layout.trainable(model).numel)


def share_threads(request: RunRequest) -> int:
    """Return the compute threads of each learner; logs a warning if all threads outnumber the cores."""
    cores = cores_here()
    threads = request.threads or threads_per_learner(cores, request.learners)
    if threads * request.learners > cores:
        log.warning(
            "%d learners of %d threads on %d cores: they will slow each other down",
            request.learners,
            threads,
            cores,
        )
    return threads


def run_in_mpi(request: RunRequest) -> int:
    """Run one of the learners that an MPI launcher has started.

    Raises:
        SettingError: the launcher started a single process, or another number of learners than requested, or a secret
            file was given.
    """
    if request.secret_file is not None:
        raise SettingError("MPI carries a secret of its own to the learners: leave --secret-file out with --world mpi")
    world = MpiWorld() if request.lease_seconds is None else MpiWorld(lease_seconds=request.lease_seconds)
    if world.size == 1 or request.learners not in (1, world.size):
        learners = max(2, request.learners)
        raise SettingError(
            f"MPI has started {world.size} learner{'s' * (world.size > 1)}; their number is the launcher's:"
            f" mpiexec -n {learners} murmur train {request.source} --world mpi, without --learners"
        )
    return run_beside_others(request, world.place, world)


def run_beside_others(request: RunRequest, place: Place, world: MpiWorld | None = None) -> int:
    """Run one of the learners that another program has started; learner 0 opens the folder for all of them."""
    try:
        channel = StoreChannel(place, request.start_seconds or START_SECONDS) if world is None else MpiChannel(world)
        out, resume = folder_of_first(channel) if place.rank > 0 else (request.out, request.resume)
    except (ConnectionError, PeerLost) as error:
        log.error("learner %d: %s", place.rank, error)
        return PEER_LOST_STATUS
    learns = torch_world(request, place, channel.store) if isinstance(channel, StoreChannel) else world
    if place.rank > 0:
        member = FolderMember(out)
        request = replace(request, out=out, resume=resume)
        return member.end(run_learner(request, place, learns, lambda _: member.begin()))
    experiment = request.experiment()

    def settled(run: OpenedRun) -> RunRequest:
        return replace(request, out=run.out, resume=run.resume, learners=place.size)

    wanted = (request.out, request.name, request.resume, request.force)
    with opened_for_all(channel, wanted, lambda run: check_model(settled(run), experiment)) as run:

        def begins(seat: Seat) -> None:
            if not seat.late:
                run.begin()
                write_run(settled(run), experiment)
                channel.begin(run.out)

        return run.end(run_learner(settled(run), place, learns, begins))


def run_learner(
    request: RunRequest, place: Place, world: World | None = None, begins: Callable[[Seat], None] = lambda _: None
) -> int:
    """Run one learner of a world (None: torch.distributed); learner 0 also tests the model and writes score.json.

    `begins` is called after all learners have met, before any file is written.

    Raises:
        Stopped: a signal arrived before or after training, and this is the only learner. One of several learners
            returns the status that its launcher waits for instead.
    """
    try:
        return _learn_and_test(request, place, world, begins)
    except Stopped as stopped:
        if place.size == 1:
            raise
        log.info("learner %d: stopped by %s before or after training", place.rank, stopped.name)
        return STOPPED_STATUS


def _learn_and_test(request: RunRequest, place: Place, world: World | None, begins: Callable[[Seat], None]) -> int:
    torch.set_num_threads(request.threads or threads_per_learner(cores_here(), place.local_size))
    if world is None:
        check_meeting_point(place)  # before any slow work
    experiment = request.experiment()
    world = torch_world(request, place) if world is None else world

    def observers(seat: Seat) -> tuple[Observer, ...]:
        begins(seat)
        if seat.group.rank == 0 and place.size > 1 and isinstance(world, ProcessWorld) and not seat.late:
            write_launch(request, place)
        if seat.group.rank > 0:
            return ()
        return (ProgressLine(experiment.budget.total(experiment.task), seat.group.size),)

    try:
        with StopWhenPolled() as asked:
            outcome = Trainer(experiment, world, request.out, observers, request.resume, asked).fit()
    except StoppedGracefully as stopped:
        log.info("learner %d: %s; go on with --resume --out %s", place.rank, stopped, request.out)
        return STOPPED_STATUS
    except (PeerLost, ConnectionError) as error:
        log.error("learner %d: %s", place.rank, error)
        return PEER_LOST_STATUS
    except (WorldMismatch, IncompleteRun, FloatingPointError, SettingError, ValueError, OSError) as error:
        log.error("learner %d: %s", place.rank, error)
        return 1
    asked.stop()  # a request after the last boundary: only the test is left
    if outcome.leads:
        report(request, experiment, outcome.model)
    return 0


def torch_world(request: RunRequest, place: Place, store: Store | None = None) -> ProcessWorld:
    """Make the world of processes on torch.distributed; a learner without a launcher needs no store server.

    `store` is an open connection to the store of the launch; None makes one.
    """
    return ProcessWorld(
        place,
        device_of(place),
        store=HashStore() if place.port == 0 else store,
        lease_seconds=request.lease_seconds or LEAST_SECONDS,
        start_seconds=request.start_seconds or START_SECONDS,
    )


def report(request: RunRequest, experiment: Experiment, model: nn.Module) -> None:
    """Test the model that represents the run, chosen by held-out loss alone; print its lines and save its figures."""
    name, stem = choose(request.out, request.tested, experiment.digest())
    facts = read_into(model, stem)
    figures = facts["figures"]
    averaged = f" (mean of {len(facts['marks'])} evaluation points)" if "marks" in facts else ""
    log.info("testing the %s model%s, held-out loss %.5g", name, averaged, figures.get("loss", math.nan))
    began = time.monotonic()
    score = test_in(experiment.task, model, request.out / DECODED)
    seconds = time.monotonic() - began
    told = told_choice(stem, request.tested, facts)
    shown = [*score.lines[: score.others], *(f"{line}; {told}" for line in score.lines[score.others :])]
    for line in shown:
        print(line, flush=True)
    saved = {
        "test": dict(score.figures),
        "heldout": figures,
        "model": {"name": name, "minibatches": facts["minibatches"], "marks": facts.get("marks")},
        "lines": shown,
        "test_seconds": seconds,
    }
    if score.recognised:
        lines = (json.dumps(asdict(each), ensure_ascii=False) + "\n" for each in score.recognised)
        write_whole(request.out / RECOGNISED, "".join(lines).encode())
    write_whole(request.out / "score.json", json.dumps(saved, indent=1).encode())  # written last: it completes the run
    shutil.rmtree(request.out / DECODED, ignore_errors=True)


def write_run(request: RunRequest, experiment: Experiment, simulated: Mapping[str, Any] | None = None) -> None:
    """Write run.json, which holds all that is needed to repeat the run, before the first step.

    `simulated` describes the virtual cluster of a simulated run.
    """
    facts = {
        "command": ["murmur", *sys.argv[1:]],
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "source": request.source,
        "settings": list(request.settings),
        "strategy": request.strategy,
        "learners": request.learners,
        "init": None if request.init is None else str(request.init.absolute()),
        **described_origin(request.source, experiment.task, request.out),
        "experiment": describe(experiment),
        "digest": experiment.digest(),
        "versions": versions(("murmur", "torch", "numpy")),
        "commit": commit(),
        "python": sys.version.split()[0],
        **({} if simulated is None else {"simulated": simulated}),
    }
    write_whole(request.out / "run.json", json.dumps(facts, indent=1).encode())


def write_launch(request: RunRequest, place: Place) -> None:
    """Write launch.json: the meeting point of this run's learners, for a learner added later; never the secret."""
    facts = {"host": place.host, "port": place.port, "generation": place.generation, "learners": place.size}
    facts |= {"store": place.store, "lease_seconds": request.lease_seconds}
    write_whole(request.out / LAUNCH, json.dumps(facts, indent=1).encode())


def versions(names: Sequence[str]) -> dict[str, str]:
    """Versions of packages; "source" for one that is not installed but runs from its source folder."""
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "source"
    return found


def commit() -> str | None:
    """Commit of the checkout that this package runs from; None for an installed package."""
    head = Path(__file__).resolve().parents[3] / ".git" / "HEAD"
    if not head.is_file():
        return None
    text = head.read_text().strip()
    if not text.startswith("ref: "):
        return text
    ref = head.parent / text[5:]
    return ref.read_text().strip() if ref.is_file() else None
