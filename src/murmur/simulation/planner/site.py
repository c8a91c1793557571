"""Machines and work of a plan, from numbers, or from an experiment with a cluster of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from murmur.core.facts import learners_for
from murmur.core.flat import Layout
from murmur.engine.experiment import Experiment
from murmur.simulation.planner.work import FRAMES_PER_SECOND, Work
from murmur.simulation.run import with_message
from murmur.simulation.scenario import PieceSeconds, Scenario
from murmur.worlds.virtual.cluster import Cluster, ComputeTime
from murmur.worlds.virtual.presets import Preset


@dataclass(frozen=True)
class Site:
    """Machines that a plan is for, and an epoch of work.

    Attributes:
        cluster_of: Cluster of a number of learners.
        work_of: One epoch on a number of learners, whose minibatches may be pieces of the experiment's.
        learners: Number of learners of the plan.
        name: Description of the machines.
        epochs: Epochs of the whole training.
    """

    cluster_of: Callable[[int], Cluster]
    work_of: Callable[[int], Work]
    learners: int
    name: str
    epochs: float = 1.0

    @property
    def work(self) -> Work:
        """One epoch on the learners of the plan."""
        return self.work_of(self.learners)


def preset_site(
    hardware: Preset, learners: int, compute: ComputeTime, work: Work, name: str, experiment: Experiment | None = None
) -> Site:
    """Return a site of machines of one kind.

    Args:
        hardware: Kind of the machines.
        learners: Number of learners of the plan.
        compute: Seconds of a minibatch of one of these learners.
        work: One epoch on these learners.
        name: Description of the machines.
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
    return Site(cluster_of, work_of, whole.learners, scenario.kind or "the experiment's cluster", epochs)


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
    model: nn.Module = experiment.task.model()
    optimizer, layout = experiment.optimizer(model), Layout.trainable(model)
    for weights in layout.tensors:
        weights.grad = torch.zeros_like(weights)
    optimizer.step()
    state = sum(v.nbytes for s in optimizer.state.values() for v in s.values() if isinstance(v, Tensor))
    return state / (layout.numel * layout.empty().element_size())
