"""Random cases for the campaign over whole runs: strategies, nested too, on clusters with faults.

A case is a pure function of its seed. It can be written as text, so that the smallest one that fails becomes a test.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache, partial
from typing import Any

from murmur.core.facts import Facts, training_learners
from murmur.core.learner import Strategy
from murmur.engine.experiment import Experiment
from murmur.run.configuration import configure
from murmur.strategies import ALL, SyncSGD
from murmur.tasks.toy import ToyTask
from murmur.worlds.virtual.cluster import Cluster, Kill, Link, LognormalSeconds, Rejoin, Stop

Fault = Kill | Stop | Rejoin
GRADIENT_SECONDS = 0.1
MOST_LEARNERS = 9
MOST_NESTING = 3
WRAPPERS = ("SuperLearners", "OwnShares", "Compressed")


@dataclass(frozen=True)
class Case:
    """A run.

    Attributes:
        strategy: Text of the strategy, as on the command line.
        learners: Number of learners.
        minibatches: Budget.
        sigma: Spread of compute times.
        factors: Factors on the compute times of single learners.
        slow: Network cards that are slow, as (learner, seconds of latency).
        faults: Kills, stops and restarts.
        lease_seconds: Silence after which a learner counts as lost.
    """

    strategy: str
    learners: int
    minibatches: int
    sigma: float = 0.0
    factors: tuple[tuple[int, float], ...] = ()
    slow: tuple[tuple[int, float], ...] = ()
    faults: tuple[Fault, ...] = ()
    lease_seconds: float = 0.5

    def described(self) -> dict[str, Any]:
        """Return the case as JSON values."""
        kinds = [{"kind": type(fault).__name__, **asdict(fault)} for fault in self.faults]
        return {**asdict(self), "faults": kinds}

    @classmethod
    def read(cls, described: Mapping[str, Any]) -> Case:
        """Return a case from its JSON values."""
        faults = tuple(_fault(**fault) for fault in described.get("faults", ()))
        pairs = {name: tuple(map(tuple, described.get(name, ()))) for name in ("factors", "slow")}
        return cls(**{**described, **pairs, "faults": faults})

    def cluster(self) -> Cluster:
        """Return the simulated cluster."""
        return Cluster(
            learners=self.learners,
            compute=LognormalSeconds(GRADIENT_SECONDS, self.sigma, self.minibatches, dict(self.factors)),
            links={learner: Link(seconds, 1e6) for learner, seconds in self.slow},
            faults=self.faults,
            lease_seconds=self.lease_seconds,
        )


def _fault(kind: str, **fields: Any) -> Fault:
    made: Fault = {"Kill": Kill, "Stop": Stop, "Rejoin": Rejoin}[kind](**fields)
    return made


@lru_cache(maxsize=1024)
def strategy_of(text: str) -> Strategy:
    """Return the strategy of a text.

    Raises:
        ValueError: The composition is refused.
    """
    return configure(Experiment(ToyTask(), SyncSGD()), strategy=text).strategy


def _plain(draw: random.Random, name: str) -> str:
    """Return the text of a strategy that runs no other one."""
    k = draw.randint(1, 5)
    mixing = draw.choice(["ring", "randomized_ring", "uniform", "pairwise", "exponential", "random_pairs"])
    arguments: dict[str, Callable[[], str]] = {
        "KAVG": lambda: f"{k}",
        "BMUF": lambda: f"{k}",
        "SlowMo": lambda: f"{k}",
        "DiLoCo": lambda: f"{k}",
        "GossipPGA": lambda: f"{k}, {mixing}",
        "NoLoCo": lambda: f"{k}",
        "ADPSGD": lambda: mixing,
        "A2CiD2": lambda: "",
        "QuasiGlobal": lambda: mixing,
        "ASGD": lambda: f"servers={draw.randint(1, 2)}",
        "Downpour": lambda: f"{k}, {draw.randint(1, 3)}, {_places(draw)}",
        "EASGD": lambda: f"{k}, {_places(draw)}",
        "DecoupledDiLoCo": lambda: (
            f"{k}, {draw.randint(1, k)}, {draw.randint(1, 4)}, slack={draw.choice([0.0, 0.5])}, {_places(draw)}"
        ),
    }
    return f"{name}({arguments[name]() if name in arguments else ''})"


def _places(draw: random.Random) -> str:
    return draw.choice(["shards=1", "shards=2", "shards=3", "servers=1", "servers=2"])


def _text(draw: random.Random, depth: int) -> str:
    plain = [name for name in ALL if name not in WRAPPERS]
    if depth == MOST_NESTING or draw.random() < (0.45, 0.6, 0.8)[depth]:
        return _plain(draw, draw.choice(plain))
    inner, wrapper = _text(draw, depth + 1), draw.choice(WRAPPERS)
    if wrapper == "SuperLearners":
        return f"SuperLearners({inner}, {draw.randint(1, 4)})"
    return f"{wrapper}({inner})"


def drawn(seed: int) -> Case:
    """Return the case of a seed: a composition that is not refused, on a cluster with faults."""
    draw = random.Random(f"run {seed}")
    while True:
        text, learners = _text(draw, 0), draw.randint(1, MOST_LEARNERS)
        try:
            strategy = strategy_of(text)
            training_learners(strategy, learners)
        except ValueError:
            continue  # refused
        if learners >= Facts.of(strategy).least_learners:
            break
    minibatches = draw.choice([0, 1, learners, draw.randint(2, 30), draw.randint(10, 60)]) or 7
    whole = draw.sample(range(learners), draw.randint(0, min(2, learners)))
    case = Case(
        text,
        learners,
        minibatches,
        sigma=draw.choice([0.0, 0.0, 0.3, 1.0]),
        factors=tuple((learner, draw.choice([0.3, 3.0, 10.0])) for learner in whole),
        slow=tuple((draw.randrange(learners), draw.choice([0.01, 0.3])) for _ in range(draw.choice([0, 0, 0, 1]))),
        lease_seconds=draw.choice([0.03, 0.2, 0.5, 2.0]),
    )
    seconds = GRADIENT_SECONDS * (2 + minibatches / learners)
    faults = tuple(_faults(draw, learners, 1.3 * seconds))
    endured = Facts.of(strategy).tolerates_loss or draw.random() < 0.1  # else most runs would end with the first loss
    return replace(case, faults=faults if endured else tuple(f for f in faults if _short(f, case.lease_seconds)))


def _faults(draw: random.Random, learners: int, seconds: float) -> Iterator[Fault]:
    for _ in range(draw.choice([0, 1, 1, 2, 3, 4])):
        # The first ranks hold the parts of a server, whose loss ends a run: they are hit less often.
        learner, at = max(draw.randrange(learners), draw.randrange(learners)), _moment(draw, seconds)
        if draw.random() < 0.4:
            yield Stop(learner, at, draw.choice([0.02, 0.3, 1.0, 3.0, _moment(draw, seconds)]))
            continue
        block = range(learner, min(learner + draw.choice([1, 1, 2, 3]), learners))  # a host, and all on it
        back = draw.random() < 0.6
        start = at + draw.choice([0.0, 0.05, 0.7, 3.0, _moment(draw, seconds)])
        for one in block:
            yield Kill(one, at)
        for one in block if back else ():
            yield Rejoin(one, start)


def _moment(draw: random.Random, seconds: float) -> float:
    """A random moment; often one at which gradients end, or the start."""
    at = draw.uniform(0, seconds)
    return draw.choice([at, at, round(at, 1), 0.0 if draw.random() < 0.1 else at])


def may_lose(case: Case, begun: bool) -> bool:
    """Return True if the loss of a learner may end this run with its documented error.

    Either not all learners had begun to train, or the strategy does not tolerate losses, or all units were hit, or one
    that holds a part of the model.
    """
    hit = {f.learner for f in case.faults if not isinstance(f, Rejoin) and not _short(f, case.lease_seconds)}
    strategy = strategy_of(case.strategy)
    if not hit:
        return False
    if not begun or not Facts.of(strategy).tolerates_loss:
        return True
    units = [range(learner, learner + 1) for learner in range(case.learners)]
    while (inner := getattr(strategy, "inner", None)) is not None:
        size = getattr(strategy, "node_size", 1)
        units = [range(some[0].start, some[-1].stop) for some in _batches(units, size)]
        strategy = inner
    whole = [not hit & set(unit) for unit in units]
    if not any(whole):
        return True
    servers = min(getattr(strategy, "servers", 0), len(units) - 1)
    holders = servers or getattr(strategy, "shards", 0)
    return not all(whole[: min(holders, len(units))]) or not any(whole[servers:])


def _short(fault: Fault, lease_seconds: float) -> bool:
    return isinstance(fault, Stop) and fault.for_seconds <= lease_seconds


def _batches(units: Sequence[range], size: int) -> list[Sequence[range]]:
    return [units[i : i + size] for i in range(0, len(units), size)]


def smaller(case: Case) -> Iterator[Case]:
    """Yield cases a little smaller than this one, for the search of the smallest that fails."""
    for i in range(len(case.faults)):
        yield replace(case, faults=case.faults[:i] + case.faults[i + 1 :])
    for i in range(len(case.factors)):
        yield replace(case, factors=case.factors[:i] + case.factors[i + 1 :])
    if case.slow:
        yield replace(case, slow=())
    if case.sigma:
        yield replace(case, sigma=0.0)
    named = {f.learner for f in case.faults} | {i for i, _ in case.factors} | {i for i, _ in case.slow}
    if case.learners > 1 and case.learners - 1 not in named:
        yield replace(case, learners=case.learners - 1)
    for fewer in (case.minibatches // 2, case.minibatches - 1):
        if 0 < fewer < case.minibatches:
            yield replace(case, minibatches=fewer)
    yield from _rounder(case)


def _rounder(case: Case) -> Iterator[Case]:
    """Yield the case with times of fewer digits."""
    for i, fault in enumerate(case.faults):
        for name in (f.name for f in fields(fault) if f.name.endswith("_seconds")):
            for digits in (0, 1, 2):
                value = round(getattr(fault, name), digits)
                if value != getattr(fault, name):
                    mended = replace(fault, **{name: value})
                    yield replace(case, faults=(*case.faults[:i], mended, *case.faults[i + 1 :]))


def shrunk(case: Case, fails: Callable[[Case], bool]) -> Case:
    """Return a smallest case for which `fails` is true, as it is for this one."""
    found: Case | None = case
    while found is not None:
        case = found
        found = next(filter(partial(_still, fails), smaller(case)), None)
    return case


def _still(fails: Callable[[Case], bool], case: Case) -> bool:
    try:
        return fails(case)
    except ValueError:
        return False  # the smaller case is refused
