from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from murmur.core.learner import Progress, Strategy
from murmur.core.world import Seat
from murmur.engine.budget import Budget
from murmur.engine.optim.optimizer import SGD
from murmur.engine.record import Record
from murmur.engine.schedule import (
    Constant,
    Cosine,
    Exponential,
    LargeBatch,
    NewBob,
    TimesLearners,
    WarmUpAnneal,
)
from murmur.engine.task import seed_of
from murmur.engine.trainer import Trainer
from murmur.run.configuration import configure
from murmur.strategies import ADPSGD, KAVG, SyncSGD
from murmur.tasks.toy import ToyTask
from murmur.worlds.virtual.world import VirtualWorld
from tests.support.named import named
from tests.support.tasks import Quadratic
from tests.support.unscaled import Experiment


def at(epoch: float, fraction: float = 0.0) -> Progress:
    return Progress(0, 0.0, epoch, fraction, math.nan, math.nan)


def test_budgets_in_any_unit() -> None:
    task = ToyTask(samples=10, per_epoch=30)
    assert Budget().total(task) == 30
    assert Budget(epochs=2.5).total(task) == 75
    assert Budget(samples=101).total(task) == 11
    assert Budget(minibatches=7).total(task) == 7
    with pytest.raises(ValueError, match="epochs=1 and minibatches=2"):
        Budget(epochs=1, minibatches=2)
    with pytest.raises(ValueError, match="finite and not negative"):
        Budget(epochs=math.inf)


@given(st.integers(0, 10**9), st.integers(1, 10**7), st.integers(1, 5000), st.booleans())
@example(110, 100, 3, False)
@example(7, 100, 3, False)
@example(55, 100, 3, False)
def test_a_budget_of_whole_minibatches_is_that_number(
    minibatches: int, per_epoch: int, samples: int, summed: bool
) -> None:
    """Also where floating-point products lie above it; half a minibatch more is one more."""

    def given_as(more: float) -> tuple[int, int]:
        task = SimpleNamespace(per_epoch=per_epoch, samples_per_epoch=float(samples * per_epoch))
        epochs = (minibatches + more) / per_epoch
        epochs = sum([epochs / 10] * 10) if summed else epochs
        return tuple(  # type: ignore[return-value]
            budget.total(task)  # type: ignore[arg-type]
            for budget in (Budget(epochs=epochs), Budget(samples=(minibatches + more) * samples))
        )

    assert given_as(0.0) == (minibatches, minibatches)
    assert given_as(0.5) == (minibatches + 1, minibatches + 1)


@given(st.integers(0, 1000), st.integers(0, 10_000), st.integers(1, 10_000))
@example(2, 3, 10)
def test_large_batch_anneals_after_whole_epochs(whole: int, warm: int, per_epoch: int) -> None:
    """The warm-up need not be a whole number of epochs, and floating-point differences may lie below one."""
    schedule = LargeBatch(warm_epochs=warm / per_epoch, decay=0.5)
    epochs = (warm + whole * per_epoch) / per_epoch
    assert schedule(at(epochs)) == pytest.approx(0.5**whole)


def test_schedules() -> None:
    assert Constant(3.0)(at(5)) == 3.0
    assert Exponential(0.1, times=4.0)(at(0, 0.0)) == 4.0
    assert Exponential(0.1, times=4.0)(at(9, 1.0)) == pytest.approx(0.4)
    warm = WarmUpAnneal(peak=10.0, warm_epochs=10.0)
    assert [warm(at(e)) for e in (0, 5, 10)] == pytest.approx([1.0, 5.5, 10.0])
    assert warm(at(12)) == pytest.approx(5.0)  # two epochs of 1 / sqrt 2
    assert Cosine()(at(0, 1.0)) == pytest.approx(0.0, abs=1e-9)


def test_the_rate_of_a_large_batch() -> None:
    """Of a minibatch of 2560 against one of 256: 1 to 10 times over ten epochs, then 1/sqrt 2 after each epoch."""
    large = LargeBatch(batch=2560)
    found = [large(at(e)) for e in (0, 5, 9.99, 10, 10.9, 11, 11.9, 12, 14)]
    half = 2**-0.5
    assert found == pytest.approx([1, 5.5, 9.991, 10, 10, 10 * half, 10 * half, 5, 2.5])
    assert LargeBatch()(at(3)) == 1.0
    with pytest.raises(ValueError, match="LargeBatch needs batch finite and positive"):
        LargeBatch(batch=0)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Budget(minibatches=2.5), "budget.minibatches must be a whole number, got 2.5"),  # type: ignore[arg-type]
        (lambda: Constant(-1.0), "Constant needs times finite and not negative"),
        (lambda: Exponential(-0.1), "Exponential needs ratio finite and positive"),
        (lambda: Exponential(0.1, times=math.nan), "Exponential needs times finite and not negative"),
        (lambda: Cosine(-1.0), "Cosine needs warm finite and not negative"),
        (lambda: Cosine(2.0), "Cosine needs warm <= 1"),
        (lambda: Cosine(floor=-0.1), "Cosine needs floor finite and not negative"),
        (lambda: WarmUpAnneal(-2.0), "WarmUpAnneal needs peak finite and not negative"),
        (lambda: WarmUpAnneal(2.0, -3.0), "WarmUpAnneal needs warm_epochs finite and not negative"),
        (lambda: WarmUpAnneal(2.0, decay=math.inf), "WarmUpAnneal needs decay finite and positive"),
        (lambda: LargeBatch(512, warm_epochs=-1.0), "LargeBatch needs warm_epochs finite and not negative"),
        (lambda: LargeBatch(1.0, 1e-310), "LargeBatch needs a finite batch / reference"),
        (lambda: NewBob(ratio=3.0), "NewBob needs ratio <= 1"),
        (lambda: NewBob(ratio=-0.5), "NewBob needs ratio finite and positive"),
        (lambda: NewBob(math.nan), "NewBob needs ratio <= 1 and a finite improvement"),
    ],
)
def test_nonsense_is_refused_at_once(make: Callable[[], object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        make()


@given(
    st.sampled_from([Cosine, WarmUpAnneal, LargeBatch, Exponential, NewBob, Constant]),
    st.lists(st.floats(-2, 2), min_size=1, max_size=3),
    st.floats(0, 1),
    st.floats(0, 30),
)
def test_factors_are_never_negative(kind: type, settings: list[float], fraction: float, epoch: float) -> None:
    """Whatever settings are taken at all."""
    known = [f.name for f in fields(kind)][: len(settings)]
    try:
        schedule = kind(**dict(zip(known, settings, strict=False)))
    except ValueError:
        return
    factor = schedule(replace(at(epoch, fraction), heldout=(2.0, 1.0, 1.0)))
    assert math.isfinite(factor)
    assert factor >= 0


def test_newbob_waits_for_the_first_small_improvement_then_halves_at_every_mark() -> None:
    bob = NewBob(improvement=0.1, times=3.0)

    def factor(*losses: float) -> float:
        return bob(replace(at(1), heldout=losses))

    assert [factor(), factor(4.0), factor(4.0, 3.5)] == [3.0, 3.0, 3.0]
    assert factor(4.0, 3.5, 3.3) == 1.5
    assert factor(4.0, 3.5, 3.3, 2.0) == 0.75  # also after a large improvement
    assert factor(4.0, 5.0, 1.0, 0.1) == 0.375
    with pytest.raises(ValueError, match="do not meet at marks"):
        bob(replace(at(1), heldout=None))


def rates_of(experiment: Experiment, learners: int, out: Path | None = None, resume: bool = False) -> list[list[float]]:
    rates: list[list[float]] = [[] for _ in range(learners)]

    def observers(seat: Seat) -> tuple[object, ...]:
        def see(record: Record) -> None:
            if record.kind == "step":
                rates[record.learner].append(record.rate)

        return (see,)

    Trainer(experiment, VirtualWorld(learners), out, observers, resume).fit()  # type: ignore[arg-type]
    return rates


@dataclass(frozen=True)
class Told(Quadratic):
    """Held-out losses that are given beforehand, one for each mark in turn."""

    losses: Iterator[float] = field(default_factory=lambda: iter([4.0, 2.0, 1.9, 1.0, 0.9]), repr=False)

    def evaluate(self, model: object) -> Mapping[str, float]:
        return {"loss": next(self.losses)}


@pytest.mark.parametrize("strategy", [SyncSGD(), KAVG(2)], ids=named)
def test_all_learners_follow_the_held_out_loss_alike_and_after_resuming(strategy: Strategy, tmp_path: Path) -> None:
    schedule = TimesLearners(NewBob(0.1))
    experiment = Experiment(
        Told(per_epoch=6), strategy, Budget(minibatches=30), SGD(0.1), schedule, averaged_checkpoints=0
    )
    whole = rates_of(experiment, 3)
    assert whole[0] == pytest.approx([0.3] * 6 + [0.15] * 2 + [0.075] * 2)
    assert whole[0] == whole[1] == whole[2]
    short = replace(experiment, task=Told(per_epoch=6), budget=Budget(minibatches=12))
    assert rates_of(short, 3, tmp_path)[0] == whole[0][:4]
    rest = replace(experiment, task=Told(per_epoch=6, losses=iter([1.9, 1.0, 0.9])))
    assert rates_of(rest, 3, tmp_path, resume=True) == [own[4:] for own in whole]


def test_newbob_is_refused_where_learners_do_not_meet() -> None:
    with pytest.raises(ValueError, match="do not meet at marks"):
        rates_of(Experiment(Told(per_epoch=6), ADPSGD(), Budget(minibatches=12), schedule=NewBob()), 2)


def test_effective_rates_are_times_learners() -> None:
    experiment = Experiment(Quadratic(), KAVG(5), Budget(minibatches=40), SGD(0.1), TimesLearners(Exponential(0.1)))
    for learners in (1, 4):
        own = rates_of(experiment, learners)[0]
        assert own == pytest.approx([learners * 0.1 * 0.1 ** (n / 40) for n in range(0, 40, learners)])


def test_the_command_line_makes_schedules() -> None:
    made = configure(Experiment(Quadratic(), SyncSGD()), ["schedule=TimesLearners(Exponential(0.2))"])
    assert made.schedule == TimesLearners(Exponential(0.2))


@given(st.floats(0, 1), st.floats(0, 1))
def test_annealing_never_rises(a: float, b: float) -> None:
    low, high = sorted((a, b))
    assert Exponential(0.2)(at(0, high)) <= Exponential(0.2)(at(0, low))
    cosine = Cosine(warm=0.0)
    assert cosine(at(0, high)) <= cosine(at(0, low)) + 1e-12


@given(st.integers(), st.integers(), st.text(), st.text())
def test_seeds_are_named(a: int, b: int, p: str, q: str) -> None:
    assert (seed_of(a, p) == seed_of(b, q)) == ((a, p) == (b, q))
    assert 0 <= seed_of(a, p) < 2**63
