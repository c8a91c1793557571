"""Settings that follow the number of learners: minibatch, learning rate, warm-up and horizons of the optimizer.

An experiment states the settings of one learner. With L learners each minibatch is cut in c pieces, one for a learner:

    growth  G = L / c        minibatch of a turn of all learners, over that of the experiment
    rate    r(t) (1 + (G - 1) min(1, t / warm))        t: share of the budget that is used, r(t): the schedule
    Adam    1 - beta1 times sqrt(G),    1 - beta2 times G
            rate times (c / s)^noise if each step of an optimizer takes the gradients of s < c learners

With L = 1 nothing changes, to the bit. Where the steps of all learners are added (a parameter server), each step takes
one piece: G = 1 / c, at once. The rate grows linearly with the minibatch and warms up from that of one learner (Goyal
et al. 2017, arXiv 1706.02677; IBM's schedule in Zhang et al. 2019). beta2 keeps its horizon in samples (Malladi et al.
2022, arXiv 2205.10287); beta1 follows by the root, as its momentum would vanish at G = 10. The second moment of a piece
holds more noise than that of a whole minibatch, so that local Adams move their mean less, by a factor between 1 and
sqrt(c). `docs/scaling.md` has derivation and measurements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from murmur.core.facts import Facts
from murmur.engine.task import Divisible

LEAST_BETA1, LEAST_BETA2 = 0.5, 0.9


@dataclass(frozen=True)
class Fixed:
    """The experiment's settings for every number of learners; each learner takes whole minibatches."""

    def of(self, learners: int, task: object, strategy: object, schedule: object) -> Scaled:  # noqa: ARG002 - fixed
        return self.with_cut(1, strategy, schedule)

    def with_cut(self, cut: int, strategy: object, schedule: object) -> Scaled:  # noqa: ARG002 - fixed
        return Scaled(cut=cut, warm=0.0, rate=False, horizons=False)


@dataclass(frozen=True)
class Auto:
    """Settings that follow the number of learners.

    Attributes:
        minibatch: "grows": every learner takes whole minibatches, so that the minibatch of all grows with their
            number, and the run has fewer turns; "stays": each minibatch is cut among the learners, as far as the task
            can cut it, and only the rest of their number lets it grow.
        warm: Share of the budget over which a larger rate is reached.
        noise: Power of the number of pieces in the rate of Adam, where each learner has moments of its pieces: 0 if
            gradients had no noise, 1/2 if they had nothing else.
    """

    minibatch: Literal["grows", "stays"] = "grows"
    warm: float = 0.3
    noise: float = 1 / 3

    def __post_init__(self) -> None:
        if not 0 <= self.warm < 1:
            raise ValueError(f"Auto.warm must be at least 0 and below 1, got {self.warm}")
        if not 0 <= self.noise <= 0.5:
            raise ValueError(f"Auto.noise must be from 0 to 0.5, got {self.noise}")

    def of(self, learners: int, task: object, strategy: object, schedule: object) -> Scaled:
        return self.with_cut(self._cut(learners, task), strategy, schedule)

    def with_cut(self, cut: int, strategy: object, schedule: object) -> Scaled:
        facts = Facts.of(strategy)
        free = not (facts.follows_growth or getattr(schedule, "follows_growth", False))
        pieces = 1.0 if facts.gradients_a_step is None else max(1.0, cut / facts.gradients_a_step)
        noisy = pieces**self.noise if free else 1.0
        return Scaled(cut=cut, warm=self.warm, rate=free, horizons=free, adds=facts.adds_steps, noisy=noisy)

    def _cut(self, learners: int, task: object) -> int:
        if self.minibatch == "grows" or not isinstance(task, Divisible):
            return 1
        return max(1, min(learners, task.most_pieces))


@dataclass(frozen=True)
class Scaled:
    """The rule of a run: settings as functions of the present number of learners.

    Attributes:
        cut: Pieces c of each minibatch; a piece is one learner's minibatch.
        warm: Share of the budget over which a larger rate is reached; 0: at once.
        rate: True if the rate follows the growth.
        horizons: True if the horizons of Adam follow the growth.
        adds: True if the steps of all learners are added.
        noisy: Factor on the rate of Adam because its moments are those of pieces.
    """

    cut: int = 1
    warm: float = 0.3
    rate: bool = True
    horizons: bool = True
    adds: bool = False
    noisy: float = 1.0

    def growth(self, learners: int) -> float:
        return (1 if self.adds else learners) / self.cut

    def factor(self, fraction: float, learners: int) -> float:
        """Return the factor on the learning rates for the used `fraction` of the budget (0 to 1) and L learners."""
        growth = self.growth(learners)
        if not self.rate or growth == 1:
            return 1.0
        reached = min(1.0, fraction / self.warm) if self.warm and growth > 1 else 1.0
        return 1.0 + (growth - 1.0) * reached

    def betas(self, betas: tuple[float, float], learners: int) -> tuple[float, float]:
        """Return Adam's betas for a number of learners; neither falls below LEAST_BETA1, LEAST_BETA2."""
        growth = self.growth(learners)
        if not self.horizons or growth == 1:
            return betas
        beta1, beta2 = betas
        shorter = 1 - (1 - beta1) * growth**0.5, 1 - (1 - beta2) * growth
        return max(shorter[0], min(beta1, LEAST_BETA1)), max(shorter[1], min(beta2, LEAST_BETA2))


Scaling = Auto | Fixed


def scaling(strategy: object, pieces: int = 1, warm: float = 0.3) -> Scaled:
    """Return the rule for a loop of one's own, in which the rate is that of a single learner.

        rule = murmur.scaling(strategy)
        LambdaLR(optimizer, lambda n: one_learner(n) * rule.factor(n / steps, me.size) * rule.noisy)

    `rule.noisy` is for Adam; it differs from 1 only with pieces.

    Args:
        strategy: Strategy of the learners.
        pieces: Number of pieces into which the loop cuts a single learner's minibatch: 1 if every learner takes whole
            minibatches, the number of learners if each takes a share.
        warm: Share of the steps over which a larger rate is reached.

    Raises:
        ValueError: A number is out of range.
    """
    if pieces < 1:
        raise ValueError(f"scaling() needs at least one piece, got {pieces}")
    return Auto(warm=warm).with_cut(pieces, strategy, None)


def described(rule: Scaled, learners: int, optimizer: Any) -> str:
    growth = rule.growth(learners)
    told = [f"minibatch of a turn x {growth:g}" + (f", cut in {rule.cut}" if rule.cut > 1 else "")]
    if rule.rate and growth != 1:
        warm = f" after a warm-up over {rule.warm:.0%} of the budget" if rule.warm and growth > 1 else ""
        told.append(f"rate x {growth:g}{warm}")
    if rule.noisy != 1 and hasattr(optimizer, "beta1"):
        told.append(f"rate x {rule.noisy:.3g} for moments of pieces")
    if rule.horizons and growth != 1 and hasattr(optimizer, "beta1"):
        told.append("betas {:.4g} and {:.4g}".format(*rule.betas((optimizer.beta1, optimizer.beta2), learners)))
    return "; ".join(told)
