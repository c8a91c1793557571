"""What is simulated: a cluster as it is asked for, and one run of an experiment on it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from murmur.core.errors import SettingError
from murmur.engine.experiment import Experiment, describe
from murmur.run.configuration import configure, load
from murmur.run.folder.opened import LATEST
from murmur.run.saved_model import Choice
from murmur.simulation.parse import compute_times, factors_of, faults_of, kind_of
from murmur.worlds.virtual.cluster import Cluster, ComputeTime, Kill, RecordedSeconds, Rejoin, Stop

KIND, LEARNERS = "v100-ethernet", 8  # where neither the command line nor the experiment says anything


@dataclass(frozen=True)
class Scenario:
    """A cluster in words; what is None comes from the experiment's own cluster, where it has one.

    Attributes:
        learners: how many.
        kind: a preset's name.
        nodes: how many there are; None: as many as the learners need.
        step_seconds: of a gradient (its median, with jitter).
        trace: a run, or its trace.json, whose compute times are replayed.
        jitter: spread (sigma of the logarithm) of compute times.
        stragglers: such as 0=10x.
        kills, stops, rejoins: such as 5@30s, 3@10s+20s, 5@60s.
        lease_seconds: silence after which a learner counts as dead.
        model_bytes: of a vector on the wire, in place of the real model's.
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
            raise SettingError(f"--trace {self.trace} has times and jitter of its own: leave the other ones out")

    def unknown_step(self, experiment: Experiment) -> bool:
        """Whether nothing says how long a gradient takes: it is to be measured."""
        own = experiment.cluster is not None and self.kind is None and not self.jitter
        return self.step_seconds is None and self.trace is None and not own

    def cluster(self, experiment: Experiment) -> Cluster:
        """The cluster.

        Raises:
            SettingError: a word that cannot be read, or nothing says how long a gradient takes.
            ValueError: a cluster that cannot be; names field and value.
        """
        own = experiment.cluster if self.kind is None else None
        if own is not None and not isinstance(own, Cluster):
            raise SettingError(f"the experiment's cluster is a {type(own).__name__}, not a Cluster: name a --cluster")
        learners = self.learners or (LEARNERS if own is None else own.learners)
        compute = self._compute(learners, None if own is None else own.compute)
        base = own or replace(kind_of(self.kind or KIND).cluster(learners, compute, 0.0), message_bytes=None)
        faults = faults_of(self.kills, self.stops, self.rejoins, learners)
        return replace(
            base,
            learners=learners,
            compute=compute,
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
            raise SettingError("nothing says how long a gradient takes: give --step-seconds or --trace")
        if not self.stragglers:
            return own
        if not hasattr(own, "factors"):
            raise SettingError(
                f"--straggler {self.stragglers[0]!r}: the experiment's own compute times take no factors"
            )
        factors = factors_of(self.stragglers, learners)
        changed: ComputeTime = replace(own, factors=factors)  # type: ignore[type-var]
        return changed


def trace_of(path: Path) -> Path:
    """The trace of a run's folder, or the file itself."""
    return path / "trace.json" if path.is_dir() else path


@dataclass(frozen=True)
class Onwards:
    """Compute times of a run that is continued: learner i has taken `done[i]` gradients before."""

    compute: ComputeTime
    done: Mapping[int, int] = field(default_factory=dict)

    def __call__(self, learner: int, step: int) -> float:
        return self.compute(learner, step + self.done.get(learner, 0))


def continued(cluster: Cluster, seconds: float, done: Mapping[int, int]) -> Cluster:
    """The cluster as a run finds it that is continued after so many virtual seconds.

    Faults of the time before are over: a run that is continued begins with all learners, like a real launch.
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
        source: experiment file or recipe.
        settings: "name=value" overrides.
        strategy: a strategy's text, or None for the experiment's own.
        scenario: the cluster.
        out: folder for everything the run leaves.
        resume: continue from the newest checkpoint in `out`.
        threads: of this process, for real gradients.
        tested: which of the run's models is tested at the end; None: none.
        timing_only: no gradients: weights that hold nothing pass through the real protocols.
        batched: gradients that are under way at the same time are computed by one call, where the task offers it.
        force: a run that is in `out` is removed when this one begins.
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

    @property
    def name(self) -> str:
        """The experiment's name, for folders."""
        return f"{Path(self.source).stem}-simulated"

    def __post_init__(self) -> None:
        if self.timing_only and self.resume:
            raise SettingError("--timing-only keeps no checkpoints to --resume from: leave one of the two out")
        if self.timing_only and self.batched:
            raise SettingError("--timing-only computes no gradients that could be --batched: leave one of the two out")

    def experiment(self) -> Experiment:
        """The resolved experiment; the same, to the digest, as that of a real run.

        Raises:
            SettingError: a name or value that does not fit.
        """
        return configure(load(self.source), self.settings, self.strategy, self.source)

    def facts(self, cluster: Cluster) -> dict[str, Any]:
        """What run.json says of the simulation."""
        parts = {f.name: describe(getattr(cluster, f.name)) for f in fields(cluster) if f.name != "compute"}
        times: Any = describe(cluster.compute)
        if isinstance(cluster.compute, RecordedSeconds):  # thousands of numbers that the trace holds already
            times = {"trace": str(self.scenario.trace), "factors": describe(cluster.compute.factors)}
        return {
            "kind": self.scenario.kind or (KIND if self.experiment().cluster is None else "the experiment's own"),
            "cluster": {name: "infinity" if value == math.inf else value for name, value in parts.items()},
            "compute": times,
            "tested": self.tested is not None,
        }
