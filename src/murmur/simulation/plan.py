"""A plan: the machines and the work that options and an experiment describe, for some numbers of learners."""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from threading import Thread

import torch
from rich.console import Console
from torch import Tensor, nn

from murmur.core.counted import counted
from murmur.core.errors import SettingError
from murmur.core.facts import learners_for
from murmur.core.flat import Layout
from murmur.core.learner import Strategy
from murmur.core.printable import say
from murmur.engine.experiment import Experiment, Published
from murmur.engine.scaling import described
from murmur.engine.task import seed_of, seed_torch
from murmur.run.configuration import strategy_of
from murmur.run.dry_run import FirstSteps, first_steps, turn_lines
from murmur.run.timed import timed
from murmur.simulation.planner.setting import FRAMES_PER_SECOND, Work, step_seconds
from murmur.simulation.planner.table import (
    PlanRow,
    Prediction,
    compared,
    draw_scaling,
    plan_table,
    ranked,
    scaled,
    shown,
)
from murmur.simulation.run import with_message
from murmur.simulation.scenario import KIND, PieceSeconds, Scenario, compute_times, kind_of
from murmur.worlds.virtual.cluster import Cluster, ComputeTime, Link
from murmur.worlds.virtual.presets import Preset

USUAL = ("SyncSGD", "KAVG(K=8)", "BMUF(K=8)", "DelayByOne", "ADPSGD", "ASGD")
UTILISATION = 0.3
USUAL_LEARNERS = 16  # if neither the command line nor the experiment sets their number
Given = Mapping[str, float | None]
NEEDS = {
    "model_bytes": "--model-bytes (of the weights, such as 165e6)",
    "corpus_hours": "--corpus-hours (audio of an epoch)",
    "frames_per_minibatch": "--frames-per-minibatch (of one learner)",
    "step_seconds": "--step-seconds (of a gradient) or --flops-per-frame",
}


@dataclass(frozen=True)
class PlanRequest:
    """The options of a plan.

    Attributes:
        experiment: Experiment to plan; None for a plan of numbers.
        scenario: Machines; their number is a plan's own.
        flops_per_frame: Operations of a gradient, in place of its seconds.
        utilisation: Share of a device's peak speed that a gradient reaches; None: `UTILISATION`.
    """

    experiment: Experiment | None
    measure: bool
    scenario: Scenario
    given: Given
    flops_per_frame: float | None = None
    utilisation: float | None = None

    def __post_init__(self) -> None:
        if self.flops_per_frame is None and self.utilisation is not None:
            raise SettingError("--utilisation changes nothing without --flops-per-frame: give both, or leave it out")
        if self.flops_per_frame is not None and self.scenario.step_seconds is not None:
            raise SettingError(
                "--step-seconds and --flops-per-frame both set the time of a gradient: leave out one of them"
            )

    @cached_property
    def hardware(self) -> Preset:
        found = kind_of(self.scenario.kind or KIND)
        return replace(found, link=self.scenario.linked(found.link))

    @cached_property
    def measured(self) -> tuple[nn.Module, FirstSteps, Machine]:
        """Model and first steps of the experiment, and the speed of this machine, measured once."""
        assert self.experiment is not None
        with timed("first steps, sums and the loopback"):
            self.experiment.task.prepare()
            seed_torch(seed_of(self.experiment.seed, "model"), "cpu")
            model = self.experiment.model()
            return model, first_steps(self.experiment, model, "cpu"), measure_machine()

    @property
    def on_own_cluster(self) -> bool:
        """True if the experiment has a cluster and the seconds of a gradient on these machines are known."""
        if self.experiment is None or self.experiment.cluster is None:
            return False
        flops = None if self.flops_per_frame is None else "--flops-per-frame"
        asked = "--measure" if self.measure else flops
        if asked is not None and self.scenario.kind is None:
            raise SettingError(
                f"{asked}: the experiment's own cluster says how long a gradient takes: name a --cluster too, or give"
                " --step-seconds in place of it"
            )
        return asked is None and not self.scenario.unknown_step(self.experiment)

    def site(self, learners: int | None) -> Site:
        """Return the machines and the work of a number of learners; None: the experiment's or the usual number."""
        if self.on_own_cluster:
            assert self.experiment is not None
            return own_site(self.experiment, replace(self.scenario, learners=learners), self.given)
        return self._described_site(learners or USUAL_LEARNERS)

    def _described_site(self, learners: int) -> Site:
        """Site of numbers, which are measured on this machine as far as an experiment is given."""
        experiment, flops = self.experiment, self.flops_per_frame
        step, given, hardware = self.scenario.step_seconds, self.given, self.hardware
        if experiment is not None:
            pieces = experiment.scaled(learners).cut if given["frames_per_minibatch"] is None else 1
            given, found, hardware = self._measured_work(experiment, learners)
            if flops is None:
                step = found if step is None else step / pieces
        elif self.measure:
            raise SettingError("--measure needs an experiment: murmur plan FILE --measure")
        known = all_given({**given, "step_seconds": flops if step is None else step})
        seconds, work = known.pop("step_seconds"), Work(**known)
        if step is None:
            share = UTILISATION if self.utilisation is None else self.utilisation
            seconds = step_seconds(seconds, work.frames_per_minibatch, hardware.device_flops, share)
        if experiment is not None and (self.scenario.step_seconds is not None or flops is not None):
            say(f"in place of the measured step: {seconds:.6f} s, as given")
        compute = compute_times(seconds, self.scenario.jitter, self.scenario.stragglers, learners)
        return preset_site(hardware, learners, compute, work, self.scenario.named(KIND), experiment)

    def _measured_work(self, experiment: Experiment, learners: int) -> tuple[Given, float, Preset]:
        """Work of the experiment with some learners, in which numbers by hand take precedence; its seconds; machines.

        The network link is the preset's, but no faster than this host's loopback.
        """
        model, first, machine = self.measured
        layout, run = Layout.trainable(model), experiment.scaled(learners)
        seconds, frames = first.step_seconds / run.cut, experiment.task.samples_per_epoch / run.per_epoch
        say(f"scaling with {counted(learners, 'learner')}: {described(run.rule, learners, experiment.optimizer)}")
        for line in turn_lines(run, learners):
            say(line)
        found: Given = {
            "model_bytes": float(layout.numel * layout.empty().element_size()),
            "corpus_hours": experiment.task.samples_per_epoch / FRAMES_PER_SECOND / 3600,
            "frames_per_minibatch": frames,
            "optimizer_bytes": float(first.optimizer_bytes),
        }
        say(
            f"measured: {seconds:.6f} s a step, sums {machine.reduce_bytes_per_second / 1e9:.2f} GB/s, loopback "
            f"{machine.link_bytes_per_second / 1e9:.2f} GB/s and {machine.latency_seconds * 1e6:.0f} us"
        )
        asked = self.given["frames_per_minibatch"] or frames  # the seconds are those of the experiment's own frames
        if asked != frames:
            seconds *= asked / frames
            say(f"in proportion to --frames-per-minibatch {asked:g}: {seconds:.6f} s a step")
        link = Link(
            max(self.hardware.link.latency_seconds, machine.latency_seconds),
            min(self.hardware.link.bytes_per_second, machine.link_bytes_per_second),
        )
        slower = replace(self.hardware, link=link, reduce_bytes_per_second=machine.reduce_bytes_per_second)
        return {**found, **{k: v for k, v in self.given.items() if v is not None}}, seconds, slower


def all_given(given: Given) -> dict[str, float]:
    """Return the numbers that a plan needs."""
    missing = [NEEDS[name] for name, value in given.items() if value is None and name in NEEDS]
    if missing:
        raise SettingError(
            f"plan needs {', '.join(missing)}; or time an experiment on this machine: murmur plan EXPERIMENT --measure"
        )
    return {name: value for name, value in given.items() if value is not None}


def show_plan(
    request: PlanRequest,
    chosen: Sequence[str],
    learners: Sequence[int],
    price: float = 0.0,
    explain: bool = False,
    plot: Path | None = None,
) -> None:
    """Show the table of the strategies for some numbers of learners, and on request formulas and picture.

    Strategies are shown as they were written. Without some the usual ones are planned, beside that of an experiment on
    its own cluster; without numbers, the experiment's or the usual number.
    """
    if any(number < 1 for number in learners):
        raise SettingError(f"--learners {','.join(map(str, learners))}: give positive numbers, such as 16,32,64")
    sites = [request.site(number) for number in sorted(set(learners)) or (None,)]
    own = [request.experiment.strategy] if request.experiment is not None and request.on_own_cluster else []
    written = {shown(strategy): shown(strategy) for strategy in own if not chosen}
    written = {shown(strategy_of(text)): text.strip() for text in chosen or USUAL} | written
    asked = [strategy_of(text) for text in chosen]
    wanted = asked or [*own, *(usual for usual in map(strategy_of, USUAL) if usual not in own)]
    found = [
        [replace(row, strategy=written[row.strategy]) for row in ranked(wanted, site.cluster, site.work, price)]
        for site in sites
    ]
    place = {row.strategy: number for number, row in enumerate(found[-1])}
    rows = sorted((row for each in found for row in each), key=lambda row: (place[row.strategy], row.learners))
    on = f" on {counted(sites[0].learners, 'learner')}" if len(sites) == 1 else ""
    show(rows, f"one epoch{on}, {sites[0].name}", explain)
    if plot is not None:
        draw(plot, wanted, sites[0], written)
    if request.experiment is not None and request.experiment.published is not None:
        show_published(request.experiment.published, sites, asked or own, written)


def show(rows: Sequence[PlanRow], title: str, explain: bool) -> None:
    console = Console()
    console.print(plan_table(rows, title))
    console.print("memory: vectors and optimizer of a learner, no activations; rounds: averaging rounds a gradient")
    console.print(
        "loss: held-out loss over one learner's at equal samples, lowest to highest of the sets of docs/scaling.md"
    )
    console.print("train: learners that take gradients; speed-up, efficiency and cost count those that only serve too")
    several = len({row.learners for row in rows}) > 1
    for row in rows if explain else ():
        head = f"{row.strategy}, {counted(row.learners, 'learner')}" if several else row.strategy
        console.print("\n".join([head, *(f"  {line}" for line in row.form.lines)]), markup=False, soft_wrap=True)


def draw(path: Path, wanted: Sequence[Strategy], site: Site, written: Mapping[str, str]) -> None:
    with timed("speed-up at 1 to 1024 learners"):
        curves = {written[shown(strategy)]: scaled(strategy, site.cluster_of, site.work_of) for strategy in wanted}
        draw_scaling(curves, path, "speed-up of an epoch")
    say(f"{path}")


def show_published(
    published: Published, sites: Sequence[Site], strategies: Sequence[Strategy], written: Mapping[str, str]
) -> None:
    epochs = sites[0].epochs
    rows = [row for site in sites for row in ranked(strategies, site.cluster, site.work)]
    say(f"the whole training, {epochs:g} epoch{'' if epochs == 1 else 's'}, at this pace:")
    predictions = [Prediction(written[r.strategy], r.learners, r.hours * epochs, r.speed_up) for r in rows]
    for line in compared(published, predictions):
        say(line)


@dataclass(frozen=True)
class Site:
    """Machines that a plan is for, and an epoch of work.

    Attributes:
        cluster_of: Cluster of a number of learners.
        work_of: One epoch on a number of learners, whose minibatches may be pieces of the experiment's.
    """

    cluster_of: Callable[[int], Cluster]
    work_of: Callable[[int], Work]
    learners: int
    name: str
    epochs: float = 1.0

    @property
    def work(self) -> Work:
        return self.work_of(self.learners)

    @property
    def cluster(self) -> Cluster:
        return self.cluster_of(self.learners)


def preset_site(
    hardware: Preset, learners: int, compute: ComputeTime, work: Work, name: str, experiment: Experiment | None = None
) -> Site:
    """Return a site of machines of one kind.

    Args:
        compute: Seconds of a minibatch of one of these learners.
        work: One epoch on these learners.
        experiment: Experiment whose rule sets the pieces of a minibatch for other numbers; None: it is not cut.
    """

    def share(count: int) -> float:
        return 1.0 if experiment is None else pieces_of(experiment, count) / pieces_of(experiment, learners)

    def work_of(count: int) -> Work:
        return replace(work, frames_per_minibatch=work.frames_per_minibatch / share(count))

    def cluster_of(count: int) -> Cluster:
        return hardware.cluster(count, cut_times(compute, share(count)), work.model_bytes)

    return Site(cluster_of, work_of, learners, name)


def own_site(experiment: Experiment, scenario: Scenario, given: Mapping[str, float | None]) -> Site:
    """Return the site of an experiment whose cluster says how long a gradient takes; nothing is measured.

    Args:
        experiment: The experiment.
        scenario: Changes to its cluster.
        given: Fields of `Work` that replace those of the task and of the model. Other frames of a minibatch take
            seconds in proportion, unless the scenario gives the seconds: these are then of the given frames.
    """
    experiment.task.prepare()
    task, cluster = experiment.task, with_message(scenario.cluster(experiment), experiment)
    assert cluster.message_bytes is not None
    found = {"corpus_hours": task.samples_per_epoch / FRAMES_PER_SECOND / 3600, "model_bytes": cluster.message_bytes}
    fixed = {**found, **{name: value for name, value in given.items() if value is not None}}
    fixed["optimizer_bytes"] = fixed["model_bytes"] * state_vectors(experiment)
    whole = replace(cluster, message_bytes=fixed["model_bytes"])
    asked = fixed.get("frames_per_minibatch")

    def frames_of(count: int) -> float:
        return task.samples_per_epoch / task.per_epoch / pieces_of(experiment, count)

    def work_of(count: int) -> Work:
        return Work(**{"frames_per_minibatch": frames_of(count), **fixed})

    def frames_timed() -> float:
        """Return the frames that take the seconds of the cluster."""
        return frames_of(whole.learners) if asked is None or scenario.step_seconds is None else asked

    def cluster_of(count: int) -> Cluster:
        times = cut_times(whole.compute, frames_timed() / work_of(count).frames_per_minibatch)
        if count == whole.learners:
            return replace(whole, compute=times)
        return replace(whole, learners=count, compute=times, nodes=None, links={}, faults=())

    epochs = experiment.budget.total(task) / task.per_epoch
    return Site(cluster_of, work_of, whole.learners, scenario.named("the experiment's cluster"), epochs)


def pieces_of(experiment: Experiment, learners: int) -> int:
    """Return the pieces of each minibatch with a number of learners, or with the fewest that the strategy can have."""
    fewest = learners_for(experiment.strategy, 2) - 1  # beside servers, of which a single learner has none
    return experiment.scaled(max(learners, fewest) if learners > 1 else 1).cut


def cut_times(compute: ComputeTime, share: float) -> ComputeTime:
    """Return the compute times of minibatches that are cut in `share` times as many pieces."""
    return compute if share == 1 else PieceSeconds(compute, share)


def state_vectors(experiment: Experiment) -> float:
    """Return the size of the optimizer's state after a step, in vectors of the model's length.

    The step is taken on zeros, without data: estimates that only a backward pass makes are left out (Fisher matrices).
    """
    model: nn.Module = experiment.model()
    optimizer, layout = experiment.optimizer(model), Layout.trainable(model)
    for weights in layout.tensors:
        weights.grad = torch.zeros_like(weights)
    optimizer.step()
    state = sum(v.nbytes for s in optimizer.state.values() for v in s.values() if isinstance(v, Tensor))
    return state / (layout.numel * layout.empty().element_size())


CHUNK = 8_000_000  # bytes of a timed message: a model of two million weights
REPEATS = 7


@dataclass(frozen=True)
class Machine:
    """Measured medians: half the seconds of a small round trip, and bytes per second."""

    latency_seconds: float
    link_bytes_per_second: float
    reduce_bytes_per_second: float


def measure_machine() -> Machine:
    """Time the loopback interface and the addition of vectors, in about a second.

    The loopback is the *upper bound* of a network: the cost of the protocol on this host's cores, without a wire.
    """
    latency, bandwidth = _loopback()
    return Machine(latency, bandwidth, _adding())


def _adding() -> float:
    a, b = torch.ones(CHUNK // 4), torch.ones(CHUNK // 4)
    seconds = []
    for _ in range(REPEATS + 1):
        begin = time.perf_counter()
        a.add_(b)
        seconds.append(time.perf_counter() - begin)
    return CHUNK / statistics.median(seconds[1:])


def _loopback() -> tuple[float, float]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)
        echo = Thread(target=_answer, args=(server,), daemon=True)
        echo.start()
        with socket.create_connection(server.getsockname(), timeout=10) as line:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            small = statistics.median(_round(line, 1) for _ in range(20 * REPEATS))
            large = statistics.median(_round(line, CHUNK) for _ in range(REPEATS))
        echo.join(10)
    return small / 2, CHUNK / max(large - small, 1e-9)


def _round(line: socket.socket, size: int) -> float:
    """Seconds from sending `size` bytes to the arrival of a one-byte reply."""
    begin = time.perf_counter()
    line.sendall(size.to_bytes(8, "big") + bytes(size))
    if len(line.recv(1)) != 1:
        raise ConnectionError("the other end of the loopback closed during the measurement")
    return time.perf_counter() - begin


def _answer(server: socket.socket) -> None:
    line, _ = server.accept()
    buffer = bytearray(1 << 20)
    with line:
        line.settimeout(10)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while head := line.recv(8, socket.MSG_WAITALL):
            left = int.from_bytes(head, "big")
            while left > 0 and (got := line.recv_into(buffer, min(left, len(buffer)))):
                left -= got
            line.sendall(b"!")
