"""One learner of a run; `python -m murmur.run.learner REQUEST.json` is one that murmur's launcher has started."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from murmur.core.counted import counted
from murmur.core.errors import IncompleteRun, SettingError, user_message
from murmur.core.facts import training_learners
from murmur.core.group import PeerLost, WorldMismatch
from murmur.core.membership import StoppedGracefully
from murmur.core.native_thread import end_process
from murmur.core.printable import log_to_stderr
from murmur.core.stop_signals import Stoppable, Stopped
from murmur.core.torch_private import HashStore, Store
from murmur.core.world import Seat, World
from murmur.engine.checkpoints.checkpoint import write_whole
from murmur.engine.checkpoints.cut import cut_of
from murmur.engine.experiment import Experiment
from murmur.engine.record import Observer, ProgressLine
from murmur.engine.scaling import described
from murmur.engine.trainer import Trainer
from murmur.execution.cores import cores_here
from murmur.run.folder.contents import LAUNCH
from murmur.run.folder.state import write_reason
from murmur.run.request import RunRequest
from murmur.run.score import report
from murmur.worlds.process.launch.addresses import check_meeting_point
from murmur.worlds.process.launch.environment import Place, place_of, threads_per_learner
from murmur.worlds.process.launch.launcher import PEER_LOST_STATUS
from murmur.worlds.process.launch.signals import STOPPED_STATUS, StopWhenPolled, take_interrupts_again
from murmur.worlds.process.membership.failure_detector import LEAST_SECONDS
from murmur.worlds.process.world import START_SECONDS, ProcessWorld, device_of

log = logging.getLogger(__name__)


class LearnerEnd(NamedTuple):
    """End of a learner: its exit status, and the reason of a failure."""

    status: int
    why: str = ""


def run_learner(
    request: RunRequest,
    experiment: Experiment,
    place: Place,
    world: World | None = None,
    begins: Callable[[Seat], None] = lambda _: None,
) -> LearnerEnd:
    """Run one learner of a world (None: torch.distributed); learner 0 also tests the model and writes score.json.

    `begins` is called after all learners have met, before any file is written.

    Raises:
        Stopped: a signal arrived before or after training, and this is the only learner. One of several learners
            returns the status that its launcher waits for instead.
    """
    try:
        return _learn_and_test(request, experiment, place, world, begins)
    except Stopped as stopped:
        if place.size == 1:
            raise
        log.info("learner %d: stopped by %s before or after training", place.rank, stopped.name)
        return LearnerEnd(STOPPED_STATUS)


def _learn_and_test(
    request: RunRequest,
    experiment: Experiment,
    place: Place,
    world: World | None,
    begins: Callable[[Seat], None],
) -> LearnerEnd:
    torch.set_num_threads(request.threads or threads_per_learner(cores_here(), place.local_size))
    scaled = scaled_for(request, experiment, place.size)
    if world is None:
        check_meeting_point(place)  # before any slow work
    world = torch_world(request, place) if world is None else world

    def observers(seat: Seat) -> tuple[Observer, ...]:
        begins(seat)
        if seat.group.rank == 0 and place.size > 1 and isinstance(world, ProcessWorld) and not seat.late:
            write_launch(request, place)
        number = training_learners(experiment.strategy, place.size)
        if seat.group.rank not in (0, place.size - number):  # a server may take no steps
            return ()
        log.info("scaling with %s: %s", counted(number, "learner"), described(scaled.rule, number, scaled.optimizer))
        return (ProgressLine(scaled.total, number),)

    try:
        with StopWhenPolled() as asked:
            outcome = Trainer(experiment, world, request.out, observers, request.resume, asked).fit()
    except StoppedGracefully as stopped:
        log.info("learner %d: %s; go on with --resume --out %s", place.rank, stopped, request.out)
        return LearnerEnd(STOPPED_STATUS)
    except (PeerLost, ConnectionError) as error:
        log.error("learner %d: %s", place.rank, error)
        return LearnerEnd(PEER_LOST_STATUS)
    except (WorldMismatch, IncompleteRun, FloatingPointError, SettingError, ValueError, OSError) as error:
        log.error("learner %d: %s", place.rank, error)
        status = PEER_LOST_STATUS if isinstance(error, IncompleteRun) and error.lost else 1
        return LearnerEnd(status, str(error) if place.size == 1 else f"learner {place.rank}: {error}")
    asked.stop()  # a request after the last boundary: only the test is left
    if outcome.leads and not (outcome.found and is_tested(request.out)):
        report(request, experiment, outcome.model)
    return LearnerEnd(0)


def is_tested(out: Path) -> bool:
    """True if the test in a folder is not older than the model of the end of the run there."""
    model, score = out / "model.json", out / "score.json"
    return score.is_file() and score.stat().st_mtime_ns >= model.stat().st_mtime_ns


def scaled_for(request: RunRequest, experiment: Experiment, learners: int) -> Experiment:
    """Return the experiment as the learners of a run train it; minibatches stay cut as they were when it began."""
    return experiment.scaled(learners, cut_of(request.out) if request.resume else None)


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


def write_launch(request: RunRequest, place: Place) -> None:
    """Write launch.json: the meeting point of this run's learners, for a learner added later; never the secret."""
    facts = {"host": place.host, "port": place.port, "generation": place.generation, "learners": place.size}
    facts |= {"store": place.store}
    write_whole(request.out / LAUNCH, json.dumps(facts, indent=1).encode())


def learn(file: Path, resume: bool) -> int:
    """Run the learner of this process on the request in a file; its place is in the environment.

    The launcher has checked the request and holds the folder; `resume` continues from the newest checkpoint there.

    Returns:
        The exit status.

    Raises:
        SettingError: the file holds no request.
        ValueError: a launcher has not started this process.
    """
    place = place_of()
    if place is None:
        raise ValueError("murmur.run.learner is one learner of a launch: start a run with murmur train")
    request = RunRequest.read(file)
    try:
        ended = run_learner(replace(request, resume=resume or request.resume), request.experiment(), place)
    except Exception as error:
        tell_launcher(file.parent, f"learner {place.rank}: {type(error).__name__}: {error}")
        raise
    if ended.why:
        tell_launcher(file.parent, ended.why)
    return ended.status


def tell_launcher(folder: Path, why: str) -> None:
    """Leave the reason of a failure in the run's folder, for the launcher; standard error has it too."""
    try:
        write_reason(folder, why)
    except OSError as error:
        log.warning("the reason of the failure is not kept: %s", error)


def main() -> None:
    """Entry point of a learner's process. Arguments: the file of the request, and --resume at a restart."""
    log_to_stderr()
    take_interrupts_again()
    with Stoppable(tell=None):
        try:
            status = learn(Path(sys.argv[1]), resume="--resume" in sys.argv[2:])
        except Exception as error:
            message = user_message(error)
            if message is None:
                raise
            print(f"murmur: {message}", file=sys.stderr)
            status = 1
    end_process(status)


if __name__ == "__main__":
    main()
