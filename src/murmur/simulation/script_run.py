"""Simulated runs of a user's script, whose `murmur.join`, model and data each learner of a virtual cluster has."""

from __future__ import annotations

import ast
import json
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
import torch.distributed as dist

from murmur.core.errors import SettingError, user_message
from murmur.core.group import PeerLost
from murmur.core.path_checks import folder_to_write
from murmur.core.printable import say
from murmur.core.stop_signals import STOPPED_STATUS, Stopped
from murmur.core.whole_files import write_whole
from murmur.core.world import ScriptBlock, Seat
from murmur.report.read import read_run
from murmur.run.folder.contents import LATEST, RUN, WAYS, chosen_folder, refuse_work, remove_run, remove_unused, written
from murmur.run.folder.lock import LOCK, Ending, write_ending
from murmur.simulation.account import Account, EvaluationPoint, card_speeds
from murmur.simulation.planner.setting import slowness_of
from murmur.simulation.planner.timing import counted
from murmur.simulation.process_image import ProcessImage, ProcessImages
from murmur.simulation.run import VirtualProgress, allow_files
from murmur.simulation.scenario import KIND, Scenario, described_cluster
from murmur.simulation.script_learner import ScriptThread, SharedState
from murmur.simulation.several_strategies import show
from murmur.worlds.process.environment import Place, variables_now
from murmur.worlds.virtual.clock import Deadlock, Livelock
from murmur.worlds.virtual.cluster import Cluster, MeasuredSeconds
from murmur.worlds.virtual.world import VirtualWorld

NO_HOST = "a-simulated-launch-has-no-store.invalid"  # told by processes that try to join from outside


def is_script(source: str) -> bool:
    """True for a Python file that does not define `experiment` at its top level."""
    path = Path(source)
    if path.suffix != ".py" or not path.is_file():
        return False
    names = set[str]()
    for node in _parsed(path).body:
        match node:
            case ast.FunctionDef(name=name):
                names.add(name)
            case ast.Import() | ast.ImportFrom():
                names |= {alias.asname or alias.name for alias in node.names}
            case ast.Assign():
                names |= {ast.unparse(target) for target in node.targets}
    return "experiment" not in names


def _parsed(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes(), str(path))
    except SyntaxError as error:
        raise SettingError(f"{path}, line {error.lineno}: {error.msg}") from error


@dataclass(frozen=True)
class ScriptSimulation:
    """One simulated run of a script.

    Attributes:
        arguments: Arguments of the script.
        threads: Compute threads of this process.
        force: Remove a run that is in `out` when this one begins.
    """

    source: str
    arguments: tuple[str, ...] = ()
    scenario: Scenario = field(default_factory=Scenario)
    out: Path = LATEST
    threads: int = 1
    force: bool = False

    def run(self) -> int:
        """Simulate; show and write the results; return the exit status."""
        cluster = self.scenario.cluster_of_loops()
        folder_to_write(self.out, "--out")
        if not self.force and self.out != LATEST:
            refuse_work(self.out, WAYS)
        allow_files(cluster.learners)
        torch.set_num_threads(self.threads)
        made = self.out != LATEST and not self.out.exists()
        out = chosen_folder(self.out, f"{Path(self.source).stem}-simulated", False).absolute()
        for folder in (out, *out.glob("block-[0-9]*")) if self.force else ():
            remove_run(folder)
        began = time.monotonic()
        told = described_cluster(cluster, self.scenario.kind or KIND, self.scenario.trace) | {"tested": False}
        progress = VirtualProgress(None)
        terms = ScriptBlock(None, str(out), {"source": self.source, "simulated": told}, (progress,))
        learners, world = ScriptLearners(self, cluster, terms), VirtualWorld(cluster)
        try:
            with learners.images.open(), _without_default_group():
                world.run(learners)
            learners.check(world)
            account = replace(account_of(world, learners, out), real_seconds=time.monotonic() - began)
        except Exception as error:
            self._fail(error, out)
            if made and out.is_dir():
                remove_unused(out, LOCK)
            return 1
        except Stopped as stopped:
            if (out / RUN).exists():
                write_ending(out, Ending.of(STOPPED_STATUS, f"stopped by {stopped.name}"))
            raise
        write_whole(out / "simulated.json", json.dumps(account.described(), indent=1).encode())
        show([account], out)
        return 0

    def _fail(self, error: Exception, out: Path) -> None:
        """Tell why the run has ended; with the lines of the script, unless the message has all that is needed."""
        why = user_message(error) or str(error) or type(error).__name__
        own = isinstance(error, PeerLost | Deadlock | Livelock | FloatingPointError | SettingError)
        if not own and not getattr(error, "of_user", False):
            frames = traceback.extract_tb(error.__traceback__)
            first = next((n for n, frame in enumerate(frames) if Path(frame.filename) == self.script), 0)
            told = traceback.format_exception_only(error)
            say("".join([*traceback.format_list(frames[first:]), *told]), err=True)
            lines = [line for line in str(error).splitlines() if line.strip()]
            why = ": ".join([type(error).__name__, *lines[:1]]) + "".join(
                f", {note}" for note in getattr(error, "__notes__", [])
            )
        if (out / RUN).exists():
            write_ending(out, Ending.of(1, why))
        say(f"murmur: {self.source}: {why}", err=True)

    @property
    def script(self) -> Path:
        return Path(self.source).absolute()


class ScriptLearners:
    """Program of a virtual world whose learners run one script.

    Attributes:
        seats: Seats of each learner, one for each of its starts.
        blocks: Number of blocks of each learner that has ended.
        images: State of the process for each learner.
    """

    def __init__(self, run: ScriptSimulation, cluster: Cluster, terms: ScriptBlock) -> None:
        self.seats: list[list[Seat]] = [[] for _ in range(cluster.learners)]
        self.images = ProcessImages(run.script)
        self._run, self._cluster, self._terms, self._shared = run, cluster, terms, SharedState()
        self._code = compile(_parsed(run.script), str(run.script), "exec")
        self._variables = variables_now()
        self.blocks: dict[int, int] = {}

    async def __call__(self, seat: Seat) -> None:
        rank, run = seat.group.rank, self._run
        self.seats[rank].append(seat)
        variables = {**self._variables, **self._place(rank).variables()}
        image = ProcessImage.new(rank, variables, [run.source, *run.arguments])
        self.images.start(rank, image)
        names = image.modules["__main__"].__dict__
        thread = ScriptThread(self._code, names, seat, self._terms, self._shared)
        self.images.enter(rank)
        while (event := thread.resume()) is not None:
            await event
            self.images.enter(rank)
        self.blocks[rank] = thread.blocks

    def _place(self, rank: int) -> Place:
        cluster, out = self._cluster, self._terms.out
        node = [i for i in range(cluster.learners) if cluster.node_of(i) == cluster.node_of(rank)]
        return Place(rank, cluster.learners, node.index(rank), NO_HOST, 1, local_size=len(node), out=out)

    def check(self, world: VirtualWorld) -> None:
        """Raise SettingError if a learner has not joined, PeerLost if one gave up without any fault of the cluster."""
        apart = [rank for rank, blocks in sorted(self.blocks.items()) if blocks == 0]
        if apart:
            raise SettingError(
                f"learner {apart[0]} has ended without a block of murmur.join in its own thread and process, so there"
                " is nothing to simulate; a file of an experiment has a function experiment()"
            )
        if world.killed and not self._cluster.faults:
            raise PeerLost("\n".join(world.clock.notes), world.killed[0])


@contextmanager
def _without_default_group() -> Iterator[None]:
    """Refuse the default group of torch.distributed inside the block: a process is in it once."""
    own = dist.init_process_group

    def refuse(*_: object, **__: object) -> None:
        raise SettingError(
            "the script starts the default group of torch.distributed, of which this one process would be every"
            " member: take rank and size from murmur.join (me.rank, me.size), and leave init_process_group out"
        )

    dist.init_process_group = refuse
    try:
        yield
    finally:
        dist.init_process_group = own


def account_of(world: VirtualWorld, learners: ScriptLearners, out: Path) -> Account:
    """Account of a script's run, from the records of its blocks and its world; without real seconds."""
    further = [out / f"block-{number}" for number in range(2, max(learners.blocks.values()) + 1)]
    runs = [read_run(folder) for folder in (out, *further)]
    cluster, records = world.cluster, [run.records for run in runs]
    steps = Counter[int]()
    for each in records:
        steps += sum(each.staleness.values(), Counter())
    if not steps:
        raise SettingError("no learner has taken a step in its block: call me.step() after each backward pass")
    factors = cluster.compute.factor if isinstance(cluster.compute, MeasuredSeconds) else cluster.compute
    return Account(
        strategy=written(runs[0].facts["experiment"]["strategy"]),
        learners=cluster.learners,
        seconds=sum(each.last_seconds for each in records),
        real_seconds=0.0,
        since_seconds=0.0,
        minibatches=steps.total(),
        samples=sum(each.last_samples for each in records),
        staleness=steps,
        card_bytes_per_second=card_speeds(cluster),
        marks=tuple(EvaluationPoint.of(row) for each in records for row in each.evaluations),
        slowness=slowness_of(replace(cluster, compute=factors)),
        **counted(world, learners.seats),
    )
