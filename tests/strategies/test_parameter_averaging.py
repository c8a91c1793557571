"""Parameter averaging against its equation on the stacked matrix."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from murmur.engine.budget import Budget
from murmur.engine.optim.optimizer import SGD
from murmur.engine.scaling import Auto
from murmur.engine.task import Loss
from murmur.engine.trainer import Trainer
from murmur.strategies.parameter_averaging import (
    Jobs,
    MaxChange,
    ParameterAveraging,
    ProportionalShrink,
    RunningMean,
    SaturationShrink,
    WeightedMean,
    shares,
)
from murmur.strategies.super_learners import SuperLearners
from murmur.tasks.toy import ToyTask
from murmur.testing.strategies import plain_loop
from murmur.worlds.threads import ThreadWorld
from murmur.worlds.virtual.cluster import Cluster, ConstantSeconds, LognormalSeconds
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.named import named
from tests.support.pool import Pool
from tests.support.tasks import Groups, Point, Quadratic, fit, fit_in_process, weights_of
from tests.support.unscaled import Experiment

ALPHA, MOMENTUM, FRAMES = 0.02, 0.5, 8.0  # a minibatch holds 2 on average
DECAY = 0.05


@dataclass(frozen=True)
class Far(Quadratic):
    """Quadratic far from its optimum, with learners so different that some are outliers."""

    seen: list[int] = field(default_factory=list, repr=False, compare=False)

    def centre(self, n: int) -> Tensor:
        return 3.0 + 2 * super().centre(n)

    def minibatch(self, n: int) -> tuple[Tensor, float]:
        self.seen.append(n)
        return super().minibatch(n)

    most_pieces = 1

    def piece(self, n: int, number: int, of: int) -> tuple[Tensor, float] | None:
        """Up to three samples, cut in two pieces with centres of their own; a single sample fills the first one."""
        self.seen.append(n)
        centre, weight = super().minibatch(n)
        assert of == 2
        own = math.ceil(weight / 2) if number == 0 else math.floor(weight / 2)
        return (centre + (0.5, -0.5)[number], float(own)) if own else None

    def steps(self, n: int, pieces: int) -> list[tuple[Tensor, float]]:
        """The centres and weights of the steps with a minibatch."""
        whole = self.centre(n), self.weight(n)
        return [piece for k in range(2) if (piece := self.piece(n, k, 2))] if pieces == 2 else [whole]

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        assert isinstance(model, Point)
        spread = float((model.w.detach() - 3.0).square().sum())
        return {"loss": spread, "saturation": spread / 50}


KALDI = SGD(ALPHA, MOMENTUM, DECAY, keep_rate=True)
AVERAGING = [
    ParameterAveraging(FRAMES, Jobs(1), MaxChange(0.1, 0.2), outlier_margin=2.0, first_pieces=2),
    ParameterAveraging(
        FRAMES, Jobs(2, reach=0.5), MaxChange(0.2, None, output=0.3), ProportionalShrink(0.5), 1.0, "keep"
    ),
    ParameterAveraging(FRAMES, Jobs(3), MaxChange(None, 0.15), SaturationShrink(), 3.0, combine=WeightedMean(4)),
    ParameterAveraging(
        FRAMES, Jobs(4), MaxChange(None, None), outlier_margin=1e3, combine=RunningMean(1), decay="whole"
    ),
]


def experiment(strategy: ParameterAveraging, minibatches: int = 250) -> Experiment:
    return Experiment(Far(ragged=True), strategy, Budget(minibatches=minibatches), KALDI)


def loss_of(w: Tensor) -> float:
    return float((w - 3.0).square().sum())


def limited(step: Tensor, limit: MaxChange) -> Tensor:
    """Bound a step; the model has one tensor, which is its output layer."""
    for bound in (limit.per_tensor if limit.output is None else limit.output, limit.overall):
        if bound is not None and step.norm() > bound:
            step = step * (bound / step.norm())
    return step


def oracle(strategy: ParameterAveraging, learners: int, minibatches: int = 250) -> tuple[Tensor, Counter[str]]:
    task, facts = Far(ragged=True), Counter[str]()
    w, done = torch.zeros(task.size, dtype=torch.float64), 0
    newest: list[Tensor] = []
    momentum: dict[int, Tensor] = {}
    while done < minibatches:
        J = strategy.jobs(done / minibatches, learners)
        ends, losses, samples = [], [0.0] * learners, [0.0] * learners
        pieces = strategy.first_pieces if done == 0 else 1
        limit = strategy.limit.over(pieces**0.5)
        for j in range(learners):
            own = w
            for n in range(done + j, min(done + 4 * J, minibatches), J) if j < J else ():
                for centre, weight in task.steps(n, pieces):
                    facts["pieces"] += pieces == 2
                    losses[j] += weight * 0.5 * float(((own - centre) ** 2).sum())
                    samples[j] += weight
                    g = own - centre + DECAY / (J if strategy.decay == "by jobs" else 1) * own
                    momentum[j] = MOMENTUM * momentum[j] + g if j in momentum else g
                    step = -J * ALPHA * (1 - MOMENTUM) * momentum[j]
                    facts["limited"] += not torch.equal(limited(step, limit), step)
                    facts["limited in pieces"] += pieces == 2 and not torch.equal(limited(step, limit), step)
                    own = own + limited(step, limit)
            losses[j] /= max(samples[j], 1.0)
            ends.append(own)
        counted = shares(losses, samples, strategy.outlier_margin, done == 0)
        facts["left out"] += done > 0 and sum(c == 0 and s > 0 for c, s in zip(counted, samples, strict=True))
        facts[f"width {J}"] += 1
        w = sum((c * end for c, end in zip(counted, ends, strict=True)), torch.zeros_like(w)) / sum(counted)
        w = w * strategy.shrink(J * ALPHA * (1 - MOMENTUM), lambda w=w: {"saturation": loss_of(w) / 50})  # type: ignore[misc]
        newest = [w, *newest][: strategy.combine.models]
        if strategy.optimizer == "restart":
            momentum = {}
        done += 4 * J
    return strategy.combine(newest, loss_of), facts


@pytest.mark.parametrize("strategy", AVERAGING, ids=named)
@pytest.mark.parametrize(("learners", "minibatches"), [(1, 100), (4, 3), (4, 250)])
def test_equation(strategy: ParameterAveraging, learners: int, minibatches: int) -> None:
    wanted, _ = oracle(strategy, learners, minibatches)
    world = VirtualWorld(Cluster(learners=learners, compute=LognormalSeconds(sigma=0.8)))
    got = fit(experiment(strategy, minibatches), world)
    assert torch.allclose(got, wanted, rtol=1e-11, atol=1e-12)
    assert torch.equal(got, fit(experiment(strategy, minibatches), ThreadWorld(learners, timeout_seconds=20)))


def test_the_oracle_uses_every_rule() -> None:
    total = sum((oracle(strategy, 4)[1] for strategy in AVERAGING), Counter[str]())
    assert total["limited"] > 100
    assert total["pieces"] > 3
    assert total["limited in pieces"] > 0
    assert total["left out"] > 5
    assert all(total[f"width {J}"] > 0 for J in (1, 2, 3, 4))


@pytest.mark.parametrize("strategy", AVERAGING[1:3], ids=named)
@pytest.mark.parametrize(("minibatches", "learners"), [(101, 1), (101, 2), (102, 3), (101, 4), (103, 4)])
def test_every_budget_ends_and_every_minibatch_is_used_once(
    strategy: ParameterAveraging, minibatches: int, learners: int
) -> None:
    cluster = Cluster(learners=learners, compute=ConstantSeconds(0.01, {i: 1.0 + i for i in range(learners)}))
    run = experiment(strategy, minibatches)
    fit(run, VirtualWorld(cluster))
    assert isinstance(run.task, Far)
    assert sorted(run.task.seen) == list(range(minibatches))


@pytest.mark.parametrize("minibatches", [203])
def test_unequal_threads(minibatches: int) -> None:
    run = experiment(AVERAGING[0], minibatches)
    uneven = ThreadWorld(4, timeout_seconds=20, delay=lambda learner: 2e-4 * learner)
    assert torch.equal(fit(run, uneven), fit(run, VirtualWorld(4)))


@pytest.mark.processes
@pytest.mark.timeout(60)
def test_processes(pool: Pool) -> None:
    for learners, strategy in [(1, AVERAGING[0]), (3, AVERAGING[1]), (4, AVERAGING[2])]:
        for weights in pool.call(fit_in_process, learners, experiment(strategy)):
            wanted = oracle(strategy, learners)[0]
            assert torch.allclose(torch.tensor(weights, dtype=torch.float64), wanted, rtol=1e-9)


def test_super_learners_take_pieces_too() -> None:
    """Members compute the pieces of their own minibatches; a step is the mean over the members, at twice the rate."""
    task, w, done = Far(ragged=True), torch.zeros(5, dtype=torch.float64), 0
    averaging = ParameterAveraging(FRAMES, Jobs(), MaxChange(None, None), combine=RunningMean(1), first_pieces=2)
    while done < 24:
        pieces = 2 if done < 8 else 1
        for first in range(done, done + 8, 2):
            members = [task.steps(n, pieces) for n in (first, first + 1)]
            for k in range(pieces):
                here = [steps[k] for steps in members if k < len(steps)]
                w = w - 2 * ALPHA * sum(weight * (w - centre) for centre, weight in here) / sum(
                    weight for _, weight in here
                )
        done += 8
    run = replace(experiment(averaging, 24), strategy=SuperLearners(averaging, 2), optimizer=SGD(ALPHA))
    assert torch.allclose(fit(run, VirtualWorld(2)), w, rtol=1e-12)
    assert torch.allclose(fit(run, ThreadWorld(2, timeout_seconds=20)), w, rtol=1e-12)


@dataclass(frozen=True)
class Alike(Quadratic):
    """Quadratic whose pieces all have the same gradient at the same weights."""

    most_pieces: int = 8

    def centre(self, n: int) -> Tensor:
        return torch.ones(self.size, dtype=torch.float64)

    def piece(self, n: int, number: int, of: int) -> tuple[Tensor, float] | None:
        centre, weight = self.minibatch(n)
        return centre, weight * len(range(number, 8, of)) / 8


FREE = ParameterAveraging(16.0, Jobs(8), MaxChange(None, None), combine=RunningMean(1))


@pytest.mark.parametrize("learners", [2, 4, 8])
@pytest.mark.parametrize("node_size", [1, 2])
@pytest.mark.parametrize("growth", [1, 2])
def test_the_mean_goes_as_far_as_one_learner(learners: int, node_size: int, growth: int) -> None:
    """So it does if minibatches are cut; a minibatch of all that is G times as large has G times the rate."""
    strategy = FREE if node_size == 1 else SuperLearners(FREE, node_size)
    task = Alike(most_pieces=learners // growth)
    run = Experiment(task, strategy, Budget(minibatches=64), SGD(0.01), scaling=Auto("stays", warm=0.0))
    wanted = 1 - (1 - growth * 0.01) ** (64 / growth)
    assert torch.allclose(fit(run, VirtualWorld(learners)), torch.full((5,), wanted, dtype=torch.float64))


def test_kaldis_rate_is_that_of_the_jobs_also_for_pieces() -> None:
    run = Experiment(Alike(), replace(FREE, rate="by jobs"), Budget(minibatches=64), SGD(0.01), scaling=Auto("stays"))
    wanted = 1 - (1 - 4 * 0.01) ** 64
    assert torch.allclose(fit(run, VirtualWorld(4)), torch.full((5,), wanted, dtype=torch.float64))


def test_a_task_that_cannot_cut_its_minibatches_is_refused() -> None:
    run = replace(experiment(AVERAGING[0]), task=Quadratic())
    with pytest.raises(ValueError, match="Quadratic cannot cut its minibatches in 2"):
        fit(run, VirtualWorld(1))


def test_one_learner_without_rules_is_the_plain_loop_to_the_bit() -> None:
    plain = ParameterAveraging(40, Jobs(), MaxChange(None, None), optimizer="keep", combine=RunningMean(1))
    run = Experiment(ToyTask(samples=8, ragged=True, dropout=0.2), plain, Budget(minibatches=61), Groups())
    assert torch.equal(fit(run, VirtualWorld(1)), plain_loop(run))


def test_rate_zero_moves_nothing() -> None:
    run = replace(experiment(replace(AVERAGING[3], limit=MaxChange())), optimizer=SGD(0.0))
    assert not fit(run, VirtualWorld(4)).any()


@pytest.mark.parametrize("strategy", AVERAGING[:3], ids=named)
def test_a_run_goes_on_where_it_stopped(strategy: ParameterAveraging, tmp_path: Path) -> None:
    """Iteration, ramp, and the models to be combined are those of an uninterrupted run."""
    run = replace(experiment(strategy), evaluate_every_epochs=0.05)
    Trainer(run, VirtualWorld(3), tmp_path).fit()
    marks = sorted((tmp_path / "checkpoints").glob("[0-9]*"))
    assert int(marks[-2].name) < 250
    shutil.rmtree(marks[-1])
    resumed = Trainer(run, VirtualWorld(3), tmp_path, resume=True).fit()
    assert torch.equal(weights_of(resumed.model), fit(run, VirtualWorld(3)))


class Exploding(Far):
    """Task in which the gradient of minibatch 12 is nan, but its loss is finite."""

    def minibatch(self, n: int) -> tuple[Tensor, float]:
        centre, weight = super().minibatch(n)
        return centre, 7.5 if n == 12 else weight

    def loss(self, model: nn.Module, minibatch: tuple[Tensor, float]) -> Loss:
        assert isinstance(model, Point)
        found = super().loss(model, minibatch)
        root = (0.0 * model.w).sqrt().sum()  # 0, with slope 0 times infinity
        return replace(found, total=found.total + root) if minibatch[1] == 7.5 else found


def test_a_step_that_is_not_finite_is_discarded() -> None:
    run = replace(experiment(replace(AVERAGING[3], jobs=Jobs(2)), 40), task=Exploding(ragged=True))
    exploded, plain = fit(run, VirtualWorld(2)), fit(replace(run, task=Far(ragged=True)), VirtualWorld(2))
    assert exploded.isfinite().all()
    assert 0 < (exploded - plain).norm() < 0.2 * plain.norm()


def test_errors() -> None:
    with pytest.raises(ValueError, match="frames_per_iteration > 0"):
        ParameterAveraging(0)


@pytest.mark.parametrize(("first", "last"), [(1, 8), (3, 15), (2, 2), (1, 4)])
def test_the_ramp_is_kaldis(first: int, last: int) -> None:
    """J(i) = int(1/2 + J_0 + (J_1 - J_0) i / iterations); an iteration uses J(i) archives."""
    archives, used, i = 60 * 8, 0, 0
    iterations = 2 * archives // (first + last)
    while used < archives:
        kaldi = min(last, int(0.5 + first + (last - first) * i / iterations))
        assert abs(Jobs(first, last)(used / archives, 100) - kaldi) <= (1 if first < last else 0)
        used, i = used + kaldi, i + 1
    assert abs(i - iterations) <= 1
    widths = [Jobs(first, last)(f / 1000, 100) for f in range(1001)]
    assert (widths[0], widths[-1]) == (first, last)
    assert widths == sorted(widths)


@pytest.mark.parametrize(("first", "last"), [(1, 8), (2, 8), (1, 32)])
def test_full_width_after_half_of_the_iterations(first: int, last: int) -> None:
    """The ramp of kaldi-mpi: J(i) = int(1/2 + J_0 + (J_1 - J_0) i / (iterations / 2)), in frames in place of i."""
    reach = (first + last) / (first + 3 * last)
    iterations, used, at = 4000, 0, []
    widths = [min(last, int(0.5 + first + (last - first) * 2 * i / iterations)) for i in range(iterations)]
    for width in widths:
        at.append(used / sum(widths))
        used += width
    ours = [Jobs(first, last, reach)(f, last) for f in at]
    for width in range(first + 1, last + 1):  # each width begins at the same part of the budget
        assert at[ours.index(width)] == pytest.approx(at[widths.index(width)], abs=0.02)


def test_width_follows_the_learners_there_are() -> None:
    assert [Jobs()(f, 4) for f in (0.0, 1.0)] == [1, 4]
    assert [Jobs(3, 8)(f, 2) for f in (0.0, 1.0)] == [2, 2]
    assert Jobs(1, 8, reach=0.5)(0.5, 8) == 8
    assert Jobs(1, 8, reach=0.5)(0.25, 8) == Jobs(1, 8)(0.5, 8) < 8
    assert Jobs(1, 8)(3.0, 8) == 8  # the last iteration may reach past the end


def bounded(step: Tensor, sizes: list[int], each: float | None, whole: float | None) -> list[float]:
    parts = [part.clone() for part in step.split(sizes)]
    for part in parts:
        if each is not None and part.norm() > each:
            part.mul_(each / part.norm())
    flat = torch.cat(parts)
    if whole is not None and flat.norm() > whole:
        flat.mul_(whole / flat.norm())
    return flat.tolist()


@pytest.mark.parametrize("each", [None, 0.5, 2.0, 1e9])
@pytest.mark.parametrize("whole", [None, 0.3, 3.0, 1e9])
def test_steps_are_bounded(each: float | None, whole: float | None) -> None:
    sizes = [3, 1, 10]
    step = torch.randn(14, generator=torch.Generator().manual_seed(1)).double() * 2
    before = step.clone()
    limited = MaxChange(each, whole)(step, list(step.split(sizes)))
    assert limited is not None
    assert limited.tolist() == pytest.approx(bounded(step, sizes, each, whole), rel=1e-12)
    assert torch.equal(step, before)
    assert (limited is step) == (each in (None, 1e9) and whole in (None, 1e9))


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_an_infinite_step_is_discarded(bad: float) -> None:
    step = torch.tensor([1.0, bad, 0.0])
    assert MaxChange(None, None)(step, list(step.split([2, 1]))) is None


def test_a_step_of_nothing_stays() -> None:
    step = torch.zeros(4)
    assert MaxChange()(step, list(step.split([2, 2]))) is step


def test_weights_of_learners() -> None:
    losses, samples = [2.0, 1.5, 2.6, 9.0], [10.0, 20.0, 30.0, 0.0]
    assert shares(losses, samples, 1.0, first=False) == [10.0, 20.0, 0.0, 0.0]
    assert shares(losses, samples, 2.0, first=False) == [10.0, 20.0, 30.0, 0.0]
    assert shares(losses, samples, 1.0, first=True) == [0.0, 20.0, 0.0, 0.0]
    assert shares([math.nan, 3.0], [5.0, 5.0], 1.0, first=False) == [0.0, 5.0]
    assert shares([math.nan, 3.0], [5.0, 5.0], 1.0, first=True) == [0.0, 5.0]
    assert shares([0.0, 5.0], [0.0, 7.0], 1.0, first=True) == [0.0, 7.0]  # without samples a learner cannot be the best
    assert shares([0.0, 0.0], [0.0, 0.0], 1.0, first=True) == [0.0, 0.0]


def test_shrinks() -> None:
    assert ProportionalShrink(2.0)(0.1, dict) == pytest.approx(0.8)
    assert ProportionalShrink()(0.1, dict) == 1.0
    assert SaturationShrink()(0.1, lambda: {"saturation": 0.5}) == 0.99
    assert SaturationShrink()(0.1, lambda: {"saturation": 0.3}) == 1.0
    with pytest.raises(ValueError, match="gives no 'saturation', only loss"):
        SaturationShrink()(0.1, lambda: {"loss": 0.5})


def test_the_output_layer_has_a_bound_of_its_own() -> None:
    step = torch.tensor([3.0, 4.0, 0.0, 6.0, 8.0])
    parts = [step[:2], step[2:3], step[3:]]
    limited = MaxChange(1.0, None, output=2.0, output_tensors=1)(step, parts)
    assert torch.allclose(limited, torch.tensor([0.6, 0.8, 0.0, 1.2, 1.6]))
    limited = MaxChange(None, 5.0, output=2.0, output_tensors=1)(step, parts)
    scale = 5.0 / (25.0 + 4.0) ** 0.5
    assert torch.allclose(limited, scale * torch.tensor([3.0, 4.0, 0.0, 1.2, 1.6]))


def distance(target: Tensor) -> object:
    return lambda w: float((w - target).norm())


MODELS = [torch.tensor(m).double() for m in ([1.0, 0.0], [-1.0, 0.2], [0.0, 3.0], [5.0, 5.0])]


@pytest.mark.parametrize(("target", "n"), [([1.0, 0.0], 1), ([0.0, 0.0], 2), ([0.0, 1.1], 3), ([1.3, 2.1], 4)])
def test_the_running_mean_stops_where_it_is_best(target: list[float], n: int) -> None:
    best = RunningMean()(MODELS, distance(torch.tensor(target).double()))  # type: ignore[arg-type]
    assert torch.allclose(best, torch.stack(MODELS[:n]).mean(0))


def test_of_equally_good_means_that_of_fewest_models_counts() -> None:
    assert torch.equal(RunningMean()(MODELS, lambda _: 1.0), MODELS[0])


def test_weights_are_found_inside_the_hull() -> None:
    for target in ([0.0, 0.1], [0.5, 0.05], [0.0, 1.0], [2.0, 2.0]):
        loss = distance(torch.tensor(target).double())
        best = WeightedMean(halvings=6)(MODELS, loss)  # type: ignore[arg-type]
        solved = torch.linalg.lstsq(torch.stack([torch.cat([m, torch.ones(1).double()]) for m in MODELS]).T,
                                    torch.cat([best, torch.ones(1).double()])).solution  # fmt: skip
        assert loss(best) < 0.9 * min(loss(m) for m in MODELS)  # type: ignore[operator]
        assert solved.sum() == pytest.approx(1.0)
    assert torch.equal(WeightedMean()(MODELS, distance(MODELS[0])), MODELS[0])  # type: ignore[arg-type]


def test_errors_of_rules() -> None:
    with pytest.raises(ValueError, match="1 <= initial <= final"):
        Jobs(4, 2)
