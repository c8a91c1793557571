"""One learner of a run; `python -m murmur.run.learner REQUEST.json` is one that murmur's launcher has started.

The folder of a run of several learners holds its request (request.json) and its meeting point (launch.json), without
the secret. A learner that is added takes the next unused number, and joins late like a lost one that was started again.
"""

from __future__ import annotations

import json
import logging
import math
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from murmur.core.counted import counted
from murmur.core.errors import IncompleteRun, SettingError, user_message
from murmur.core.facts import Facts, training_learners
from murmur.core.group import PeerLost, WorldMismatch
from murmur.core.membership import StoppedGracefully
from murmur.core.plain_files import UNREADABLE, read_plain
from murmur.core.printable import log_to_stderr, say
from murmur.core.stop_signals import Stoppable, Stopped, end_process
from murmur.core.torch_private import HashStore, Store
from murmur.core.whole_files import write_whole
from murmur.core.world import Seat, World
from murmur.engine.checkpoints.position import cut_of
from murmur.engine.experiment import Experiment
from murmur.engine.record import Observer, ProgressLine
from murmur.engine.scaling import described
from murmur.engine.task import REPORTS, DescribesModel, test_in
from murmur.engine.trainer import Trainer
from murmur.execution.messages import told_once
from murmur.execution.workers import cores_here
from murmur.run.folder.contents import LAUNCH, REQUEST, RUN, read_facts, refuse_links
from murmur.run.folder.lock import write_reason
from murmur.run.origin import source_of
from murmur.run.request import RunRequest
from murmur.run.saved_model import choose, read_into, told_choice
from murmur.strategies import ALL
from murmur.worlds.process.arrival import check_meeting_point
from murmur.worlds.process.endings import PEER_LOST_STATUS
from murmur.worlds.process.environment import Place, place_of, threads_per_learner
from murmur.worlds.process.failure_detector import LEAST_SECONDS
from murmur.worlds.process.secret import from_file
from murmur.worlds.process.signals import STOPPED_STATUS, StopWhenPolled, take_interrupts_again
from murmur.worlds.process.torch_store import connect
from murmur.worlds.process.world import START_SECONDS, ProcessWorld, device_of

log = logging.getLogger(__name__)
RECOGNISED = "recognised.jsonl"
DECODED = "decoded"  # folder with the results of an unfinished test
CONNECT_SECONDS = 10.0


class LearnerEnd(NamedTuple):
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

    `begins` is called after all learners have met, before any file is written. Stopped before or after training, the
    only learner raises `Stopped`; one of several returns the status that its launcher waits for.
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
    return ProcessWorld(
        place,
        device_of(place),
        store=HashStore() if place.port == 0 else store,
        lease_seconds=request.lease_seconds or LEAST_SECONDS,
        start_seconds=request.start_seconds or START_SECONDS,
    )


def write_launch(request: RunRequest, place: Place) -> None:
    """Write launch.json: the meeting point of this run's learners, for a learner added later; never the secret."""
    write_whole(request.out / LAUNCH, json.dumps(place.meeting_point, indent=1).encode())


def learn(file: Path, resume: bool) -> int:
    """Run the learner of this process on the request in a file; its place is in the environment.

    The launcher has checked the request and holds the folder; `resume` continues from the newest checkpoint there.
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


def report(request: RunRequest, experiment: Experiment, model: nn.Module) -> None:
    """Test the model that represents the run, chosen by held-out loss alone; print its lines and save its figures."""
    refuse_links(request.out)
    name, stem = choose(request.out, request.tested, experiment.digest())
    facts = read_into(model, stem)
    figures = facts["figures"]
    averaged = f" (mean of {len(facts['marks'])} evaluation points)" if "marks" in facts else ""
    log.info("testing the %s model%s, held-out loss %.5g", name, averaged, figures.get("loss", math.nan))
    began = time.monotonic()
    with told_once(log.info):
        score = test_in(experiment.task, model, request.out / DECODED)
    seconds = time.monotonic() - began
    told = told_choice(stem, request.tested, facts)
    shown = [*score.lines[: score.others], *(f"{line}; {told}" for line in score.lines[score.others :])]
    for line in shown:
        say(line)
    saved = {
        "test": dict(score.figures),
        "heldout": figures,
        "model": {"name": name, "minibatches": facts["minibatches"], "marks": facts.get("marks")},
        "lines": shown,
        "test_seconds": seconds,
    }
    if isinstance(experiment.task, DescribesModel):
        experiment.task.save_description(request.out)
    for made in sorted((request.out / DECODED / REPORTS).glob("*")):  # that folder is removed after the test
        (request.out / REPORTS).mkdir(exist_ok=True)
        made.replace(request.out / REPORTS / made.name)
    if score.recognised:
        lines = (json.dumps(asdict(each), ensure_ascii=False) + "\n" for each in score.recognised)
        write_whole(request.out / RECOGNISED, "".join(lines).encode())
    write_whole(request.out / "score.json", json.dumps(saved, indent=1).encode())  # written last: it completes the run
    shutil.rmtree(request.out / DECODED, ignore_errors=True)


@dataclass(frozen=True)
class AddedLearner:
    """A learner that joins a run under way, with the request of that run for this learner."""

    request: RunRequest
    experiment: Experiment
    place: Place


def one_more(run: Path, secret_file: Path, threads: int | None, trust: bool = False) -> AddedLearner:
    """Return the next learner of a run under way; `trust` runs any file that run.json names."""
    refuse_links(run)
    files = [run / name for name in (RUN, REQUEST, LAUNCH)]
    missing = [str(file) for file in files if not file.is_file()]
    if missing:
        raise SettingError(f"{run} is not a run of several learners that has begun: {', '.join(missing)} is missing")
    _fields(files[0], source=str)
    facts, request = read_facts(run), RunRequest.read(files[1])
    launch = _meeting_point(files[2])
    source = source_of(run, facts, trust)
    request = replace(request, source=source, out=run, resume=False, threads=threads, secret_file=secret_file)
    experiment = request.experiment()
    strategy = experiment.strategy
    if not Facts.of(strategy).accepts_new_learners:
        takes = ", ".join(name for name, made in ALL.items() if Facts.of(made()).accepts_new_learners)
        raise SettingError(
            f"{strategy} accepts no new learners (accepts_new_learners); of murmur's strategies {takes} accept them"
        )
    return AddedLearner(request, experiment, _next_place(launch, secret_file))


def beside(run: Path, secret_file: Path) -> Place:
    """Return the place of the next learner of a run of `murmur launch` that is under way."""
    file = run / LAUNCH
    if not file.is_file():
        raise SettingError(
            f"{run} is not a run of several learners that has begun: {file} is missing; loops of your own write it with"
            " murmur launch --out"
        )
    return replace(_next_place(_meeting_point(file), secret_file), out=str(run.resolve()))


def _meeting_point(file: Path) -> dict[str, Any]:
    launch = _fields(file, store=str, learners=int, host=str, port=int, generation=int)
    if launch["store"] == "torchrun":
        raise SettingError(
            "torchrun fixes the number of its learners: start the run with murmur train --learners, or murmur launch"
        )
    return launch


def _next_place(launch: Mapping[str, Any], secret_file: Path) -> Place:
    place = Place(0, launch["learners"], 0, launch["host"], launch["port"], launch["generation"], store="murmur")
    place = replace(place, secret=from_file(secret_file))
    store = connect(place, CONNECT_SECONDS)
    store.set_timeout(timedelta(seconds=CONNECT_SECONDS))
    number = int(store.add("learners added", 1))
    return replace(place, rank=place.size + number - 1)


def _fields(path: Path, **kinds: type) -> dict[str, Any]:
    try:
        found = json.loads(read_plain(path))
    except UNREADABLE as error:
        raise SettingError(f"{path} is damaged ({error}): learners can be added to a run that is under way") from error
    wrong = [n for n, kind in kinds.items() if not isinstance(found, dict) or not isinstance(found.get(n), kind)]
    if wrong:
        raise SettingError(f"{path} does not say {', '.join(wrong)}: it is of another version, or damaged")
    return {name: found[name] for name in kinds}


def main() -> None:
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
