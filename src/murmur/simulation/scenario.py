"""Description of a simulation: a cluster in the words of the command line, and one run of an experiment on it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from murmur.core.errors import SettingError, nearest
from murmur.engine.checkpoints.position import cut_of
from murmur.engine.experiment import Experiment, describe
from murmur.run.configuration import resolved
from murmur.run.folder.contents import LATEST
from murmur.run.saved_model import Choice
from murmur.worlds.virtual.cluster import (
    Cluster,
    ComputeTime,
    ConstantSeconds,
    Kill,
    Link,
    LognormalSeconds,
    MeasuredSeconds,
    RecordedSeconds,
    Rejoin,
    Stop,
)
from murmur.worlds.virtual.presets import GBIT, PRESETS, Preset, preset

KIND, LEARNERS = "v100-ethernet", 8  # if neither the command line nor the experiment sets them


@dataclass(frozen=True)
class Scenario:
    """A cluster in words; fields that are None come from the experiment's own cluster, if it has one.

    Attributes:
        nodes: Number of nodes; None: as many as the learners need.
        step_seconds: Seconds of a gradient (with jitter their median).
        trace: Run, or its trace.json, whose compute times are replayed.
        stragglers: Texts such as 0=10x.
        kills, stops, rejoins: Texts such as 5@30s, 3@10s+20s, 5@60s.
        lease_seconds: Silence after which a learner counts as lost.
        model_bytes: Bytes of a vector on the wire, in place of the model's own size.
        gbit_per_second, latency_us: Network of a node, in place of the cluster's.
    """

    learners: int | None = None
    kind: str | None = None
    nodes: int | None = None
    step_seconds: float | None = None
    trace: Path | None = None
    jitter: float = 0.0
    stragglers: tuple[str, ...] = ()
    kills: tuple[str, ...] = ()
    stops: tuple[str, ...] = ()
    rejoins: tuple[str, ...] = ()
    lease_seconds: float | None = None
    model_bytes: float | None = None
    gbit_per_second: float | None = None
    latency_us: float | None = None

    def __post_init__(self) -> None:
        if self.trace is not None and (self.jitter or self.step_seconds is not None):
            raise SettingError(f"--trace {self.trace} sets times and jitter: leave out --step-seconds and --jitter")

    def linked(self, link: Link) -> Link:
        """Return a node's network with the numbers of this scenario."""
        latency = link.latency_seconds if self.latency_us is None else 1e-6 * self.latency_us
        return Link(latency, link.bytes_per_second if self.gbit_per_second is None else GBIT * self.gbit_per_second)

    def named(self, default: str) -> str:
        """Return the name of the cluster with the numbers that replace those of its network."""
        changed = ((self.gbit_per_second, "Gb/s"), (self.latency_us, "us"))
        return ", ".join([self.kind or default, *(f"{value:g} {unit}" for value, unit in changed if value is not None)])

    def unknown_step(self, experiment: Experiment) -> bool:
        """True if nothing states the seconds of a gradient, so that they must be measured."""
        own = experiment.cluster is not None and self.kind is None
        return self.step_seconds is None and self.trace is None and not own

    def cluster(self, experiment: Experiment) -> Cluster:
        own = experiment.cluster if self.kind is None else None
        if own is not None and not isinstance(own, Cluster):
            raise SettingError(f"the experiment's cluster is a {type(own).__name__}, not a Cluster: name a --cluster")
        learners = self.learners or (LEARNERS if own is None else own.learners)
        compute = self._compute(learners, None if own is None else own.compute)
        return self._cluster(own, learners, compute, experiment.scaled(learners).cut)

    def cluster_of_loops(self) -> Cluster:
        """Return the cluster of learners that run a user loop; a step takes its measured time if no other is given."""
        learners = self.learners or LEARNERS
        if self.trace is None and self.step_seconds is None:
            compute: ComputeTime = MeasuredSeconds(compute_times(1.0, self.jitter, self.stragglers, learners))
        else:
            compute = self._compute(learners, None)
        return self._cluster(None, learners, compute, 1.0)

    def _cluster(self, own: Cluster | None, learners: int, compute: ComputeTime, cut: float) -> Cluster:
        base = own or replace(kind_of(self.kind or KIND).cluster(learners, compute, 0.0), message_bytes=None)
        faults = faults_of(self.kills, self.stops, self.rejoins, learners)
        if self.trace is not None:
            cut /= cut_of_trace(self.trace, cut)
        return replace(
            base,
            link=self.linked(base.link),
            learners=learners,
            compute=compute if cut == 1 else PieceSeconds(compute, cut),
            nodes=self.nodes or base.nodes,
            faults=faults or base.faults,
            lease_seconds=base.lease_seconds if self.lease_seconds is None else self.lease_seconds,
            message_bytes=base.message_bytes if self.model_bytes is None else self.model_bytes,
        )

    def _compute(self, learners: int, own: ComputeTime | None) -> ComputeTime:
        if self.trace is not None:
            return RecordedSeconds.read(trace_of(self.trace), factors_of(self.stragglers, learners))
        if self.step_seconds is not None:
            return compute_times(self.step_seconds, self.jitter, self.stragglers, learners)
        if own is None:
            raise SettingError("the seconds of a gradient are unknown: give --step-seconds or --trace")
        jittered = jittery(own, self.jitter) if self.jitter else own
        if not self.stragglers:
            return jittered
        if not hasattr(jittered, "factors"):
            raise SettingError(
                f"--straggler {self.stragglers[0]!r}: the experiment's own compute times take no factors"
            )
        factors = factors_of(self.stragglers, learners)
        changed: ComputeTime = replace(jittered, factors=factors)  # type: ignore[type-var]
        return changed


def jittery(own: ComputeTime, jitter: float) -> ComputeTime:
    """Return an experiment's own compute times with another spread."""
    if isinstance(own, ConstantSeconds):
        return LognormalSeconds(own.seconds, jitter, factors=own.factors)
    if isinstance(own, LognormalSeconds):
        return replace(own, sigma=jitter)
    raise SettingError(
        f"--jitter {jitter:g}: the experiment's own compute times take no other jitter; give --step-seconds too"
    )


@dataclass(frozen=True)
class PieceSeconds:
    """Compute times of pieces of a minibatch: equal shares of those of the whole.

    Attributes:
        whole: Compute times of a minibatch, or of the pieces of another run.
        cut: Number of pieces of the former; below 1 if these pieces are larger than that run's.
    """

    whole: ComputeTime
    cut: float

    def __call__(self, learner: int, step: int) -> float:
        return self.whole(learner, step) / self.cut


def trace_of(path: Path) -> Path:
    return path / "trace.json" if path.is_dir() else path


def cut_of_trace(path: Path, cut: float) -> int:
    """Return the number of pieces into which a traced run has cut its minibatches.

    Args:
        path: Folder of the run, or its trace.
        cut: Number of pieces in the run that replays it.
    """
    recorded = cut_of(trace_of(path).parent)
    if recorded is None and cut > 1:
        raise SettingError(
            f"--trace {path}: this run cuts each minibatch in {cut:g} pieces, and no checkpoints/began.json beside the"
            " trace says what its gradients were of: give --step-seconds (of a whole minibatch), or replay the trace"
            " with scaling.minibatch=grows, in which nothing is cut"
        )
    return recorded or 1


@dataclass(frozen=True)
class Onwards:
    """Compute times of a continued run in which learner i has already taken `done[i]` gradients."""

    compute: ComputeTime
    done: Mapping[int, int] = field(default_factory=dict)

    def __call__(self, learner: int, step: int) -> float:
        return self.compute(learner, step + self.done.get(learner, 0))


def continued(cluster: Cluster, seconds: float, done: Mapping[int, int]) -> Cluster:
    """Return the cluster of a run that is continued after a number of virtual seconds.

    Earlier faults are over: a continued run begins with all learners, like a real launch.
    """
    later = []
    for fault in cluster.faults:
        at = fault.at_seconds - seconds
        if at >= 0:
            later.append(replace(fault, at_seconds=at))
        elif isinstance(fault, Stop) and at + fault.for_seconds > 0:
            later.append(Stop(fault.learner, 0.0, at + fault.for_seconds))
    killed = {fault.learner for fault in later if isinstance(fault, Kill)}
    faults = tuple(f for f in later if not isinstance(f, Rejoin) or f.learner in killed)
    return replace(cluster, faults=faults, compute=Onwards(cluster.compute, done))


@dataclass(frozen=True)
class Simulation:
    """One simulated run.

    Attributes:
        strategy: Text of a strategy, or None for the experiment's own.
        threads: Compute threads of this process for real gradients.
        tested: Model of the run that is tested at the end; None: no test.
        timing_only: Compute no gradients: empty weights pass through the real protocols.
        batched: Compute gradients that are under way at the same time in one call, if the task supports it.
        force: Remove a run that is in `out` when this one begins.
        timed_minibatches: With `timing_only`: minibatches of all learners that are timed; None: the whole budget.
    """

    source: str
    settings: tuple[str, ...] = ()
    strategy: str | None = None
    scenario: Scenario = field(default_factory=Scenario)
    out: Path = LATEST
    resume: bool = False
    threads: int = 1
    tested: Choice | None = "lowest"
    timing_only: bool = False
    batched: bool = False
    force: bool = False
    timed_minibatches: int | None = None

    @property
    def name(self) -> str:
        return f"{Path(self.source).stem}-simulated"

    def __post_init__(self) -> None:
        if self.timing_only and self.resume:
            raise SettingError("--timing-only writes no checkpoints to --resume from: leave out one of the two")
        if self.timed_minibatches is not None and not self.timing_only:
            raise SettingError("--timed-minibatches is for --timing-only; budget.minibatches shortens training")
        if self.timing_only and self.batched:
            raise SettingError("--timing-only computes no gradients that could be --batched: leave out one of the two")

    def experiment(self) -> Experiment:
        return resolved(self.source, self.settings, strategy=self.strategy)

    def facts(self, cluster: Cluster, experiment: Experiment) -> dict[str, Any]:
        kind = self.scenario.kind or (KIND if experiment.cluster is None else "the experiment's own")
        return {**described_cluster(cluster, kind, self.scenario.trace), "tested": self.tested is not None}


def described_cluster(cluster: Cluster, kind: str, trace: Path | None) -> dict[str, Any]:
    """Describe a cluster for run.json; `trace` is the run whose compute times are replayed."""
    parts = {f.name: describe(getattr(cluster, f.name)) for f in fields(cluster) if f.name != "compute"}
    times: Any = describe(cluster.compute)
    replayed = cluster.compute.whole if isinstance(cluster.compute, PieceSeconds) else cluster.compute
    if isinstance(replayed, RecordedSeconds):  # thousands of numbers that are in the trace
        times = {"trace": str(trace), "factors": describe(replayed.factors)}
    return {
        "kind": kind,
        "cluster": {name: "infinity" if value == math.inf else value for name, value in parts.items()},
        "compute": times,
    }


Fault = Kill | Stop | Rejoin
UNITS = {"": 1.0, "s": 1.0, "min": 60.0, "h": 3600.0}
EXAMPLES = {"kill": "5@30s", "stop": "3@10s+20s", "rejoin": "5@60s"}


def kind_of(name: str) -> Preset:
    """Return the preset of that name."""
    if name not in PRESETS:
        raise SettingError(f"there is no cluster {name!r}{nearest(name, list(PRESETS))}")
    return preset(name)


def factors_of(stragglers: Sequence[str], learners: int) -> dict[int, float]:
    """Parse factors on compute times from texts such as 0=10x."""
    factors = {}
    for text in stragglers:
        found = re.fullmatch(r"(\d+)=(\d+(?:\.\d+)?)x?", text.strip())
        if found is None or not float(found[2]) > 0:
            raise SettingError(f"--straggler {text!r}: write LEARNER=FACTORx, such as 0=10x")
        factors[_learner(found[1], "straggler", text, learners)] = float(found[2])
    return factors


def compute_times(seconds: float, jitter: float, stragglers: Sequence[str], learners: int) -> ComputeTime:
    """Compute times of a cluster with stragglers: constant, or lognormal if there is jitter."""
    factors = factors_of(stragglers, learners)
    return LognormalSeconds(seconds, jitter, factors=factors) if jitter else ConstantSeconds(seconds, factors)


def faults_of(kills: Sequence[str], stops: Sequence[str], rejoins: Sequence[str], learners: int) -> tuple[Fault, ...]:
    """Parse kills (5@30s), stops (3@10s+20s: for 20 s) and restarts (5@60s) in virtual time; units s, min, h."""
    faults: list[Fault] = []
    for text in kills:
        learner, at, _ = _moment("kill", text, learners)
        faults.append(Kill(learner, at))
    for text in stops:
        learner, at, duration = _moment("stop", text, learners)
        faults.append(Stop(learner, at, duration))
    for text in rejoins:
        learner, at, _ = _moment("rejoin", text, learners)
        if not any(isinstance(f, Kill) and f.learner == learner and f.at_seconds < at for f in faults):
            raise SettingError(f"--rejoin {text!r}: learner {learner} is not killed before {at:g} s; add a --kill")
        faults.append(Rejoin(learner, at))
    return tuple(faults)


def _moment(option: str, text: str, learners: int) -> tuple[int, float, float]:
    time = r"(\d+(?:\.\d+)?)\s*(s|min|h|)"
    found = re.fullmatch(rf"(\d+)@{time}" + (rf"\+{time}" if option == "stop" else ""), text.strip())
    if found is None:
        form = "LEARNER@TIME+DURATION" if option == "stop" else "LEARNER@TIME"
        raise SettingError(f"--{option} {text!r}: write {form}, such as {EXAMPLES[option]} (s, min or h)")
    learner = _learner(found[1], option, text, learners)
    duration = float(found[4]) * UNITS[found[5]] if option == "stop" else 0.0
    return learner, float(found[2]) * UNITS[found[3]], duration


def _learner(digits: str, option: str, text: str, learners: int) -> int:
    if int(digits) >= learners:
        raise SettingError(f"--{option} {text!r}: there are learners 0..{learners - 1}")
    return int(digits)
