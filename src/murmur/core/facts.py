"""Facts that a strategy declares about itself, as attributes of its class.

A strategy is any `async def strategy(me)`. One that declares these attributes gets the features that depend on them:
restarts of single learners, elastic groups, added learners, comparison, simulation and planning. No feature depends on
the name of a class, so a user's strategy is treated like those of this package.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from itertools import count
from typing import Protocol, runtime_checkable

from murmur.core.mixing import Mixing, uniform


@dataclass(frozen=True)
class Facts:
    """Facts of a strategy. A fact that it does not declare has the default given here.

    Attributes:
        lock_step: All learners go through the same rounds together, so that the slowest sets the pace.
        tolerates_loss: Training goes on without a lost learner.
        accepts_new_learners: Learners may be added to a run under way.
        bitwise_alone: One learner is the plain training loop, to the bit (with one minibatch per step and no factor on
            the rate).
        ends_equal: All learners hold the same weights, to the bit, when the strategy has ended.
        staleness: Largest number of changes of the weights between the point of a gradient and its application;
            None: unbounded.
        follows_losses: Its exchanges depend on losses, so that they cannot be timed without gradients.
        sets_weights_every: Gradients between two exchanges that set all weights; None: exchanges only add to them.
        reads_weights: It uses the weights at the start of a round, beside the vectors that it keeps itself. A loop that
            is saved within a round then keeps them.
        assigns_minibatches: It chooses the minibatches of each learner, so that a loop with a data loader of its own
            cannot run it.
        least_learners: Smallest useful number of learners.
        follows_growth: It scales its steps with the number of learners itself, so that the rate is left alone.
        adds_steps: The model moves by the sum of all learners' steps, not by their mean.
        repeatable_steps: The members of a super-learner can repeat its leader's steps: those of the optimizer with the
            gradient itself, and with moments that the strategy leaves alone.
        gradients_a_step: Learners whose gradients are summed for one step of an optimizer; None: all.
        elementwise: It treats each element of the weights alone, and nothing else depends on values of elements or
            on losses, so that each shard of a sharded model can be averaged by itself.
        needs_plain_sgd: Its equation holds for steps of plain SGD only: a warning tells if the optimizer keeps moments.
    """

    lock_step: bool = True
    tolerates_loss: bool = False
    accepts_new_learners: bool = False
    bitwise_alone: bool = False
    ends_equal: bool = False
    staleness: int | None = None
    follows_losses: bool = False
    sets_weights_every: float | None = None
    reads_weights: bool = True
    assigns_minibatches: bool = False
    least_learners: int = 1
    follows_growth: bool = False
    adds_steps: bool = False
    repeatable_steps: bool = True
    gradients_a_step: int | None = 1
    elementwise: bool = False
    needs_plain_sgd: bool = False

    @classmethod
    def of(cls, strategy: object) -> Facts:
        """Return the facts that a strategy declares; the others are defaults, or those of the strategy that it runs."""
        others = cls()
        if isinstance(strategy, FactsOfInner):
            others = replace(cls.of(strategy.inner), **{name: getattr(cls, name) for name in NOT_OF_INNER})
        return replace(others, **{f.name: getattr(strategy, f.name) for f in fields(cls) if hasattr(strategy, f.name)})


# Facts that a strategy that runs another one has only if it declares them.
NOT_OF_INNER = (
    *("tolerates_loss", "accepts_new_learners", "staleness", "sets_weights_every", "least_learners"),
    *("elementwise", "reads_weights"),
)


class FactsOfInner(ABC):
    """Base of strategies that run another one, and take their facts from it; see `NOT_OF_INNER`."""

    @property
    @abstractmethod
    def inner(self) -> object:
        """The inner strategy."""

    def training_learners(self, learners: int) -> int:
        return training_learners(self.inner, learners)

    def vectors_sent(self, learners: int, samples: float) -> float:
        return vectors_of(self.inner, learners, samples)


@dataclass(frozen=True)
class Form:
    """Predicted time and memory of a strategy on a cluster.

    Attributes:
        seconds: Seconds of the whole cluster for one minibatch of one learner.
        binds: Bottleneck.
        vectors: Vectors of the model's length in a learner's memory, beside the optimizer's state and activations.
        lines: The formula, then the formula with numbers.
        rounds: Averaging rounds per gradient that the network carries; None if averaging is part of the step.
    """

    seconds: float
    binds: str
    vectors: float
    lines: tuple[str, ...]
    rounds: float | None = None


class Planner(Protocol):
    """Closed forms for a strategy's `planned` to choose from."""

    @property
    def samples(self) -> float:
        """Samples (frames) of a learner's minibatch.

        Raises:
            ValueError: They are unknown.
        """

    def synchronous(self, vectors: float) -> Form:
        """A mean of all gradients behind the backward pass, with `vectors` of the model's length in memory."""

    def every(self, K: int, vectors: float, jobs: Callable[[float, int], int] | None = None, sent: int = 1) -> Form:
        """A mean of all after K gradients, with `vectors` of the model's length in a learner's memory.

        `jobs`: learners that train when a fraction of the budget is used, of L; None: all of them, always. `sent`:
        vectors of the model's length in a mean (three with the moments of Adam).
        """

    def delayed(self, mixing: Mixing, sent: int = 1) -> Form:
        """A mean of `sent` vectors that overlaps the next gradient."""

    def in_step(self, mixing: Mixing, every: int, sent: int = 1, sent_by_all: int = 1) -> Form:
        """An exchange with neighbours after each gradient, for which learners wait, each `every`-th time with all.

        `sent`, `sent_by_all`: vectors of the model's length in an exchange with neighbours, and in a mean of all.
        """

    def mixed(self, mixing: Mixing, K: int, vectors: float) -> Form:
        """An exchange with neighbours after K gradients, for which learners wait; `vectors` as for `every`."""

    def streamed(self, K: int, fragments: int, tau: int, vectors: float) -> Form:
        """Means of one fragment after the other, each once in K gradients, that overlap the next `tau` gradients."""

    def pairwise(self, mixing: Mixing, more_vectors: float = 0, sent: int = 1) -> Form:
        """Gradients that wait for no exchange, with averaging between neighbours beside them.

        `more_vectors`: of the model's length in a learner's memory, beside those of averaging; `sent`: in an exchange.
        """

    def served(self, servers: int) -> Form:
        """Gradients that wait for an exchange with a model cut over the first `servers` ranks, which take none."""

    def sharded(self, shards: int, exchanges: float) -> Form:
        """Gradients that wait for no exchange, with `exchanges` a gradient with a server cut over `shards` learners."""

    def apart(self, servers: int, exchanges: float) -> Form:
        """The same with a server cut over the first `servers` ranks, which take no gradients."""

    def nodes(self, outer: object, size: int) -> Form:
        """Super-learners of `size` learners that sum their gradients, with a strategy among them."""


@runtime_checkable
class Planned(Protocol):
    """A strategy with a closed form."""

    def planned(self, planner: Planner) -> Form:
        """Return the strategy's form, made by one of the planner's methods."""


def training_learners(strategy: object, learners: int) -> int:
    """Return the number of learners that take gradients, among `learners` in all; the others have the first ranks.

    A strategy that does not declare `training_learners` trains with all of them.

    Raises:
        ValueError: None would take gradients.
    """
    declared: Callable[[int], int] | None = getattr(strategy, "training_learners", None)
    return learners if declared is None else declared(learners)


def layers(strategy: object) -> Iterator[object]:
    """Yield a strategy, the one that it runs, the one that this runs, and so on."""
    yield strategy
    while isinstance(strategy, FactsOfInner):
        strategy = strategy.inner
        yield strategy


def check_only_layer(strategy: FactsOfInner) -> None:
    """Raise ValueError if a strategy runs another one of its own class, at any depth."""
    if any(isinstance(layer, type(strategy)) for layer in layers(strategy.inner)):
        raise ValueError(f"{type(strategy).__name__} stands twice in one strategy: once is enough")


def some_serve(strategy: object) -> bool:
    """Return True if some learners of a strategy take no gradients, for some number of learners."""
    *_, innermost = layers(strategy)
    return learners_for(innermost, 2) > 2


def learners_for(strategy: object, training: int) -> int:
    """Return the smallest number of learners of which at least `training` take gradients: these and the servers."""
    for learners in count(training):
        with suppress(ValueError):  # they would all serve
            if training_learners(strategy, learners) >= training:
                break
    return learners


def beside_servers(servers: int, learners: int) -> int:
    """Return the number of learners that train beside `servers` that only serve; a single learner needs none.

    Raises:
        ValueError: All of them would serve.
    """
    if learners == 1:
        return 1
    if servers >= learners:
        raise ValueError(
            f"servers={servers} needs at least {servers + 1} learners, so that one of them trains, got {learners}"
        )
    return learners - servers


def vectors_of(strategy: object, learners: int, samples: float) -> float:
    """Return the vectors of the model's length that a learner sends per gradient, on average over a long run.

    Adaptive rules count as at their beginning, parameter averaging at full width.

    Args:
        strategy: Strategy that declares `vectors_sent`.
        learners: Number of learners L.
        samples: Samples of a minibatch.

    Raises:
        TypeError: The strategy does not declare it.
    """
    declared: Callable[[int, float], float] | None = getattr(strategy, "vectors_sent", None)
    if declared is None:
        raise TypeError(f"{strategy} does not declare vectors_sent(learners, samples)")
    return declared(learners, samples)


def allreduce_vectors(learners: int) -> float:
    """Vectors that a learner sends for one mean of all, counted as a ring allreduce: 2 (L - 1) / L."""
    return 2 * (learners - 1) / learners


def mixing_vectors(mixing: Mixing, learners: int) -> float:
    """Vectors that a learner sends for one round of a mixing, on average over 100 rounds and all learners."""
    if mixing is uniform:
        return allreduce_vectors(learners)
    rounds, view = 100, range(learners)
    rows = [mixing(k, view, i) for k in range(rounds) for i in view]
    return sum(len(row) - 1 for row in rows) / len(rows)
