"""Settings that follow the number of learners: the rule, and its effect on runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from murmur.core.mixing import randomized_ring
from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment
from murmur.engine.optim.optimizer import SGD, Adam
from murmur.engine.record import Record
from murmur.engine.scaling import Auto, Fixed, described, scaling
from murmur.engine.schedule import Cosine, LargeBatch, TimesLearners
from murmur.engine.trainer import Trainer
from murmur.strategies import ADPSGD, ASGD, BMUF, KAVG, Downpour, ParameterAveraging, SuperLearners, SyncSGD
from murmur.tasks.toy import ToyTask
from murmur.testing.strategies import plain_loop
from murmur.worlds.threads import ThreadWorld
from murmur.worlds.virtual.cluster import Cluster, Kill, LognormalSeconds
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.tasks import Quadratic, fit


@dataclass(frozen=True)
class Samples(Quadratic):
    """Minibatches of 3 samples with centres of their own, every fourth one of 2; a piece holds some of them."""

    seen: list[tuple[int, int, int]] = field(default_factory=list, repr=False, compare=False)
    most_pieces = 3

    def weight(self, n: int) -> float:
        return 2.0 if n % 4 == 3 else 3.0

    def mean(self, n: int, first: int, last: int) -> tuple[Tensor, float] | None:
        own = [super(Samples, self).centre(10 * n + place) for place in range(first, last)]
        return (torch.stack(own).mean(0), float(len(own))) if own else None

    def minibatch(self, n: int) -> Any:
        self.seen.append((n, 0, 1))
        return self.mean(n, 0, int(self.weight(n)))

    def piece(self, n: int, number: int, of: int) -> Any:
        self.seen.append((n, number, of))
        size = int(self.weight(n))
        return self.mean(n, size * number // of, size * (number + 1) // of)


def run(strategy: Any, rule: Any, task: Any = None, **more: Any) -> Experiment:
    return Experiment(task or Samples(), strategy, Budget(minibatches=60), SGD(0.1), scaling=rule, **more)


def rates(experiment: Experiment, world: Any) -> list[Record]:
    found: list[Record] = []
    Trainer(experiment, world, observers=lambda _: (found.append,)).fit()
    return [record for record in found if record.kind == "step"]


@pytest.mark.parametrize("rule", [Auto(), Auto("stays"), Fixed()])
@pytest.mark.parametrize("optimizer", [SGD(0.1, momentum=0.9), Adam(1e-3)])
def test_one_learner_is_the_plain_loop_to_the_bit(rule: Any, optimizer: Any) -> None:
    task = ToyTask(samples=8, ragged=True, dropout=0.2, hidden=8)
    one = Experiment(task, KAVG(4), Budget(minibatches=31), optimizer, scaling=rule)
    assert torch.equal(fit(one, VirtualWorld(1)), plain_loop(one))


@pytest.mark.parametrize("learners", [2, 3])
def test_a_minibatch_that_stays_makes_exact_sums_one_learner(learners: int) -> None:
    """The weighted mean over the pieces of a minibatch is its gradient."""
    alone = fit(run(SyncSGD(), Auto("stays")), VirtualWorld(1))
    for world in (VirtualWorld(learners), ThreadWorld(learners, timeout_seconds=20)):
        assert torch.allclose(fit(run(SyncSGD(), Auto("stays")), world), alone, rtol=1e-12)
    inside = SuperLearners(KAVG(1), 3)
    assert learners == 2 or torch.allclose(fit(run(inside, Auto("stays")), VirtualWorld(3)), alone, rtol=1e-12)


@pytest.mark.parametrize("strategy", [SyncSGD(), KAVG(2), ADPSGD(randomized_ring)])
def test_every_piece_is_computed_once(strategy: Any) -> None:
    """Also those of a short minibatch that have no samples."""
    task = Samples()
    fit(run(strategy, Auto("stays"), task), VirtualWorld(Cluster(5, compute=LognormalSeconds(sigma=0.5))))
    assert sorted(task.seen) == [(n, number, 3) for n in range(60) for number in range(3)]


def test_a_minibatch_that_grows_raises_the_rate_after_a_warm_up() -> None:
    found = rates(run(SyncSGD(), Auto(warm=0.5)), VirtualWorld(4))
    for record in found:
        assert record.rate == pytest.approx(0.1 * (1 + 3 * min(1.0, record.minibatches / 60 / 0.5)))
    assert {r.rate for r in rates(run(SyncSGD(), Fixed()), VirtualWorld(4))} == {0.1}


def test_what_cannot_be_cut_grows() -> None:
    experiment = run(SyncSGD(), Auto("stays"), Quadratic())
    assert experiment.scaled(8).cut == 1
    assert run(SyncSGD(), Auto("stays")).scaled(8).rule.growth(8) == pytest.approx(8 / 3)


@pytest.mark.parametrize(
    ("strategy", "schedule"),
    [(ParameterAveraging(100), Cosine()), (SyncSGD(), LargeBatch(512)), (KAVG(2), TimesLearners())],
)
def test_what_scales_by_itself_is_left_alone(strategy: Any, schedule: Any) -> None:
    rule = run(strategy, Auto(), schedule=schedule).scaled(8).rule
    assert rule.factor(1.0, 8) == 1.0
    assert rule.betas((0.9, 0.999), 8) == (0.9, 0.999)


def test_horizons_of_adam_keep_their_samples() -> None:
    rule = scaling(KAVG(8))
    beta1, beta2 = rule.betas((0.9, 0.999), 4)
    assert (1 - beta2) / 4 == pytest.approx(1 - 0.999)
    assert (1 - beta1) / 2 == pytest.approx(1 - 0.9)
    assert rule.betas((0.9, 0.999), 1) == (0.9, 0.999)
    assert rule.betas((0.9, 0.999), 10_000) == (0.5, 0.9)
    assert rule.betas((0.3, 0.8), 10_000) == (0.3, 0.8)
    seen: list[tuple[float, float]] = []

    class Watched(Adam):
        def __call__(self, model: Any) -> torch.optim.Optimizer:
            made = super().__call__(model)
            made.register_step_pre_hook(lambda o, *_: seen.append(o.param_groups[0]["betas"]))
            return made

    fit(replace(run(SyncSGD(), Auto(), ToyTask(samples=4, hidden=4)), optimizer=Watched()), VirtualWorld(4))
    assert set(seen) == {(beta1, beta2)}


@pytest.mark.parametrize(("rule", "eta"), [(Auto(), 1 - 1 / 3), (Auto("stays"), 0.0), (Fixed(), 1 - 1 / 3)])
def test_block_momentum_gains_what_the_minibatch_grows(rule: Any, eta: float) -> None:
    derived, given = (fit(run(BMUF(4, eta=each), rule), VirtualWorld(3)) for each in (None, eta))
    assert torch.allclose(derived, given, rtol=1e-13)
    assert {record.rate for record in rates(run(BMUF(4), rule), VirtualWorld(3))} == {0.1}


@pytest.mark.parametrize("strategy", [KAVG(1), ADPSGD()])
def test_the_rate_follows_a_lost_learner(strategy: Any) -> None:
    cluster = Cluster(4, compute=LognormalSeconds(1.0, 0.1), faults=(Kill(3, 5.5),), lease_seconds=1.0)
    found = rates(run(strategy, Auto(warm=0.0)), VirtualWorld(cluster))
    assert found[0].rate == pytest.approx(0.4)
    assert found[-1].rate == pytest.approx(0.3)


def test_a_continued_run_keeps_the_cut_with_which_it_began(tmp_path: Path) -> None:
    def part(minibatches: int) -> Experiment:
        return replace(run(KAVG(1), Auto("stays")), budget=Budget(minibatches=minibatches))

    Trainer(part(30), VirtualWorld(3), tmp_path).fit()
    whole: list[Record] = []
    Trainer(part(60), VirtualWorld(2), tmp_path, lambda _: (whole.append,), resume=True).fit()
    steps = [record for record in whole if record.kind == "step"]
    assert {record.minibatches for record in steps} >= {90, 178}  # pieces, three of each minibatch
    assert {record.rate for record in steps if record.epoch > 0.03} == {0.1 * (1 + (2 / 3 - 1))}


@pytest.mark.parametrize("learners", [8, 4, 2, 1])
def test_a_continued_run_keeps_the_rate_for_moments_of_pieces(learners: int, tmp_path: Path) -> None:
    """Its minibatches stay cut in 8, so that Adam's moments stay those of eighths; the growth is L / 8."""

    def part(minibatches: int) -> Experiment:
        made = run(KAVG(4), Auto("stays", warm=0.0), ToyTask(samples=8, hidden=4))
        return replace(made, optimizer=Adam(0.01), budget=Budget(minibatches=minibatches))

    Trainer(part(20), VirtualWorld(8), tmp_path).fit()
    found: list[Record] = []
    Trainer(part(30), VirtualWorld(learners), tmp_path, lambda _: (found.append,), resume=True).fit()
    steps = [record.rate for record in found if record.kind == "step"]
    assert steps == [pytest.approx(0.01 * 2 * learners / 8)] * len(steps)


@pytest.mark.parametrize("scale", [Auto(), Auto("stays"), Fixed()])
def test_a_rule_for_a_run_that_has_begun_is_that_of_its_cut(scale: Any) -> None:
    """For learners that resume and for those that join late, whose number is another one."""
    made = replace(run(KAVG(4), scale), optimizer=Adam(0.01))
    begun = made.scaled(3).rule
    assert {made.scaled(learners, begun.cut).rule for learners in (1, 2, 3, 12)} == {begun}


@pytest.mark.parametrize("strategy", [ASGD(), Downpour(2, 2)])
@pytest.mark.parametrize(("rule", "factor"), [(Auto(), 1.0), (Auto("stays"), 1 / 3)])
def test_added_steps_are_steps_of_single_pieces(strategy: Any, rule: Any, factor: float) -> None:
    """A server's model moves by each learner's gradient, not by their mean."""
    found = rates(run(strategy, rule), VirtualWorld(4))
    assert [record.rate for record in found] == [pytest.approx(0.1 * factor)] * len(found)
    assert run(strategy, rule).scaled(4).rule.betas((0.9, 0.999), 4)[1] == pytest.approx(1 - 0.001 * factor)


@pytest.mark.parametrize(
    ("strategy", "pieces"),
    [(SyncSGD(), 1), (KAVG(4), 3), (ADPSGD(), 3), (SuperLearners(ADPSGD(), 2), 1.5), (SuperLearners(SyncSGD(), 2), 1)],
)
def test_moments_of_pieces_raise_the_rate_of_adam(strategy: Any, pieces: float) -> None:
    """With pure noise of variance c s^2 on a piece, Adam's step is sqrt(c) times smaller."""
    for noise, optimizer in ((0.5, Adam(0.1)), (1 / 3, Adam(0.1)), (0.5, SGD(0.1))):
        experiment = replace(run(strategy, Auto("stays", noise=noise)), optimizer=optimizer)
        wanted = 0.1 * (pieces**noise if isinstance(optimizer, Adam) else 1.0) * (4 / 3)
        assert rates(experiment, VirtualWorld(4))[-1].rate == pytest.approx(wanted)
    assert scaling(strategy, pieces=3).noisy == pytest.approx(pieces ** (1 / 3))


def test_the_chosen_values_are_told() -> None:
    rule = scaling(KAVG(8))
    assert described(rule, 8, Adam()) == (
        "minibatch of a turn x 8; rate x 8 after a warm-up over 30% of the budget; betas 0.7172 and 0.992"
    )
    assert described(scaling(KAVG(8), pieces=8), 8, Adam()) == (
        "minibatch of a turn x 1, cut in 8; rate x 2 for moments of pieces"
    )
    assert described(scaling(ASGD(), pieces=8), 8, SGD()) == "minibatch of a turn x 0.125, cut in 8; rate x 0.125"


def test_values_stand_in_the_folder_of_a_run(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from murmur.cli import app

    settings = ("budget.minibatches=24", "task.hidden=8", "scaling.minibatch=stays")
    words = ["simulate", "toy", "--learners", "4", "--step-seconds", "0.1", "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(app, [*words, *(w for s in settings for w in ("--set", s))])
    assert done.exit_code == 0, done.output
    told: Mapping[str, Any] = json.loads((tmp_path / "run" / "run.json").read_text())["scaling"]
    assert (told["learners"], told["growth"], told["cut"]) == (4, 1.0, 4)
    simulated = json.loads((tmp_path / "run" / "simulated.json").read_text())
    assert simulated["minibatches"] == 96
    assert simulated["samples"] == 24 * 32
    assert simulated["seconds"] == pytest.approx(24 * 0.1 / 4, rel=0.5)


@pytest.mark.parametrize("values", [{"warm": 1.0}, {"warm": -0.1}, {"noise": 0.6}, {"noise": -0.1}])
def test_wrong_values_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(values))} must be"):
        Auto(**values)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one piece"):
        scaling(KAVG(8), pieces=0)
