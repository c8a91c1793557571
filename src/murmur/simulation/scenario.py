"""Description of a simulation: a cluster in the words of the command line, and one run of an experiment on it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from murmur.core.errors import SettingError
from murmur.engine.experiment import Experiment, describe
from murmur.run.configuration import resolved
from murmur.run.folder.opened import LATEST
from murmur.run.saved_model import Choice
from murmur.simulation.parse import compute_times, factors_of, faults_of, kind_of
from murmur.worlds.virtual.cluster import Cluster, ComputeTime, Kill, RecordedSeconds, Rejoin, Stop

KIND, LEARNERS = "v100-ethernet", 8  # if neither the command line nor the experiment sets them


@dataclass(frozen=True)
class Scenario:
    """A cluster in words; fields that are None come from the experiment's own cluster, if it has one.

    Attributes:
        learners: Number of learners.
        kind: Name of a preset.
        nodes: Number of nodes; None: as many as the learners need.
        step_seconds: Seconds of a gradient (with jitter their median).
        trace: Run, or its trace.json, whose compute times are replayed.
        jitter: Spread (sigma of the logarithm) of compute times.
        stragglers: Texts such as 0=10x.
        kills, stops, rejoins: Texts such as 5@30s, 3@10s+20s, 5@60s.
        lease_seconds: Silence after which a learner counts as lost.
        model_bytes: Bytes of a vector on the wire, in place of the model's own size.
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

    def __post_init__(self) -> None:
        if self.trace is not None and (self.jitter or self.step_seconds is not None):
            raise SettingError(f"--trace {self.trace} sets times and jitter: leave out --step-seconds and --jitter")

    def unknown_step(self, experiment: Experiment) -> bool:
        """True if nothing states the seconds of a gradient, so that they must be measured."""
        own = experiment.cluster is not None and self.kind is None and not self.jitter
        return self.step_seconds is None and self.trace is None and not own

    def cluster(self, experiment: Experiment) -> Cluster:
        """Return the cluster.

        Raises:
            SettingError: an option is invalid, or nothing states the seconds of a gradient.
            ValueError: the cluster is invalid; the message names field and value.
        """
        own = experiment.cluster if self.kind is None else None
        if own is not None and not isinstance(own, Cluster):
            raise SettingError(f"the experiment's cluster is a {type(own).__name__}, not a Cluster: name a --cluster")
        learners = self.learners or (LEARNERS if own is None else own.learners)
        compute = self._compute(learners, None if own is None else own.compute)
        base = own or replace(kind_of(self.kind or KIND).cluster(learners, compute, 0.0), message_bytes=None)
        faults = faults_of(self.kills, self.stops, self.rejoins, learners)
        cut = experiment.scaled(learners).cut
        return replace(
            base,
            learners=learners,
            compute=compute if cut == 1 or self.trace is not None else PieceSeconds(compute, cut),
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
        if not self.stragglers:
            return own
        if not hasattr(own, "factors"):
            raise SettingError(
                f"--straggler {self.stragglers[0]!r}: the experiment's own compute times take no factors"
            )
        factors = factors_of(self.stragglers, learners)
        changed: ComputeTime = replace(own, factors=factors)  # type: ignore[type-var]
        return changed


@dataclass(frozen=True)
class PieceSeconds:
    """Compute times of pieces of a minibatch: equal shares of those of the whole."""

    whole: ComputeTime
    cut: float

    def __call__(self, learner: int, step: int) -> float:
        return self.whole(learner, step) / self.cut


def trace_of(path: Path) -> Path:
    """Return the trace of a run's folder, or the file itself."""
    return path / "trace.json" if path.is_dir() else path


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
        source: Experiment file or name of a recipe.
        settings: Overrides "name=value".
        strategy: Text of a strategy, or None for the experiment's own.
        scenario: The cluster.
        out: Folder of the run.
        resume: Continue from the newest checkpoint in `out`.
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
        """Name of the experiment, for folders."""
        return f"{Path(self.source).stem}-simulated"

    def __post_init__(self) -> None:
        if self.timing_only and self.resume:
            raise SettingError("--timing-only writes no checkpoints to --resume from: leave out one of the two")
        if self.timed_minibatches is not None and not self.timing_only:
            raise SettingError("--timed-minibatches is for --timing-only; budget.minibatches shortens training")
        if self.timing_only and self.batched:
            raise SettingError("--timing-only computes no gradients that could be --batched: leave out one of the two")

    def experiment(self) -> Experiment:
        """Return the resolved experiment; its digest equals that of a real run.

        Raises:
            SettingError: a name or value does not fit.
        """
        return resolved(self.source, self.settings, strategy=self.strategy)

    def facts(self, cluster: Cluster, experiment: Experiment) -> dict[str, Any]:
        """Entries about the simulation in run.json."""
        parts = {f.name: describe(getattr(cluster, f.name)) for f in fields(cluster) if f.name != "compute"}
        times: Any = describe(cluster.compute)
        if isinstance(cluster.compute, RecordedSeconds):  # thousands of numbers that are in the trace
            times = {"trace": str(self.scenario.trace), "factors": describe(cluster.compute.factors)}
        return {
            "kind": self.scenario.kind or (KIND if experiment.cluster is None else "the experiment's own"),
            "cluster": {name: "infinity" if value == math.inf else value for name, value in parts.items()},
            "compute": times,
            "tested": self.tested is not None,
        }
