"""One random run, and what is found of it: the oracle counts minibatches at the task."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

import torch
from torch import Tensor, nn

from fuzz_cases import Case, may_lose, strategy_of
from murmur.core.facts import Facts, FactsOfInner
from murmur.core.group import PeerLost
from murmur.core.learner import Learner, Strategy
from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment
from murmur.engine.optim.optimizer import SGD
from murmur.engine.scaling import Fixed
from murmur.engine.task import Loss
from murmur.engine.trainer import Trainer
from murmur.worlds.virtual.clock import Deadlock, Livelock
from murmur.worlds.virtual.world import VirtualWorld

PROCESSOR_SECONDS = 60.0
ENDED, LOST = "ended", "ended by a loss"
UNDONE, ENDLESS, STUCK, RAISED = "minibatches undone", "runs that never end", "deadlocks", "exceptions"


class Endless(Exception):
    """A run has used its processor seconds."""


KINDS: Mapping[type[Exception], str] = {Endless: ENDLESS, Livelock: ENDLESS, Deadlock: STUCK}


@dataclass(frozen=True)
class Counted:
    """A small quadratic problem that counts its minibatches.

    Attributes:
        taken: Number of gradients of each minibatch.
    """

    per_epoch: int = 16
    samples_per_epoch: float = 16.0
    taken: Counter[int] = field(default_factory=Counter, repr=False)

    def prepare(self) -> None:
        """Do nothing: minibatches are numbers."""

    def model(self) -> nn.Module:
        return nn.Linear(3, 4, bias=False)

    def minibatch(self, n: int) -> Tensor:
        self.taken[n] += 1
        return torch.tensor([1.0, n % 3 - 1.0, n % 5 - 2.0])

    def loss(self, model: nn.Module, minibatch: Tensor) -> Loss:
        return Loss(0.5 * model(minibatch).square().sum(), 1.0)

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        return {"loss": 0.0}


@dataclass(frozen=True)
class Begun(FactsOfInner):
    """A strategy that notes the learners that begin it: without one of them, the start of a run ends with its loss."""

    strategy: Strategy
    learners: set[int] = field(default_factory=set, repr=False)

    async def __call__(self, me: Learner) -> None:
        self.learners.add(me.group.rank)
        await self.strategy(me)

    @property
    def inner(self) -> Strategy:
        return self.strategy

    @property
    def tolerates_loss(self) -> bool:
        return Facts.of(self.strategy).tolerates_loss


@dataclass(frozen=True)
class Found:
    """Result of a case: its kind, and what is to be said of it."""

    kind: str
    said: str = ""
    undone: int = 0


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise `Endless` in the block once it has used so many processor seconds."""

    def end(_signal: int, _frame: FrameType | None) -> None:
        raise Endless

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)


def run(case: Case, seconds: float = PROCESSOR_SECONDS) -> Found:
    """Run a case.

    Raises:
        ValueError: Its strategy is refused.
    """
    task, strategy = Counted(), Begun(strategy_of(case.strategy))
    experiment = Experiment(task, strategy, Budget(minibatches=case.minibatches), SGD(0.01), scaling=Fixed())
    world = VirtualWorld(case.cluster())
    try:
        with at_most(seconds):
            outcome = Trainer(experiment, world).fit()
    except PeerLost as error:
        if may_lose(case, begun=len(strategy.learners) == case.learners):
            return Found(LOST)
        return Found(STUCK if "stuck" in str(error) else RAISED, f"PeerLost: {error}")
    except Exception as error:  # every other error is a finding
        return Found(KINDS.get(type(error), RAISED), f"{type(error).__name__}: {error}")
    if not outcome.leads:
        return Found(RAISED, "no learner has written the model")
    missing = [n for n in range(case.minibatches) if n not in task.taken]
    return Found(UNDONE, f"minibatches {missing}", len(missing)) if missing else Found(ENDED)
