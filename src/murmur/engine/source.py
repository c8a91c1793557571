"""Parts of a learner's source of gradients that the engine and user loops share."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from murmur.core.assignment import Turns
from murmur.core.buffers import Buffers, Values
from murmur.core.facts import Facts
from murmur.core.flat import Layout
from murmur.core.learner import Learner
from murmur.core.model_mode import evaluating
from murmur.core.moments import Moments
from murmur.core.source import WHOLE, Gradient, Progress
from murmur.engine.counters import BadNumbers
from murmur.engine.recorder import Recorder
from murmur.engine.scaling import Scaled

log = logging.getLogger(__name__)
SETTINGS = ("lr", "betas", "weight_decay")
Settings = Sequence[Mapping[str, Any]]  # of each group of parameters
Figures = Callable[[nn.Module], Mapping[str, float]]


class OptimizerSteps:
    """Optimizer of one learner's weights, inside a model.

    Attributes:
        moments: Its moments, as vectors.
        times: Factor of the strategy on the learning rates.
        decay_times: Factor of the strategy on the weight decay.
        recorded: True if its steps are recorded.
        most_norm: Largest norm of a gradient, to which a larger one is scaled down; None: no limit.
        norm: Norm of the latest gradient before that, if there was a limit.
        clipped: Scales the gradients of tensors down to a largest norm; returns their norm before.

    Args:
        rule: Rule by which its settings follow the number of learners.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        layout: Layout,
        numbers: BadNumbers,
        rule: Scaled,
        most_norm: float | None = None,
    ) -> None:
        self.optimizer, self.moments = optimizer, Moments(optimizer, layout)
        self.times = self.decay_times = 1.0
        self.recorded = True
        self.most_norm = most_norm
        self.norm: Tensor | None = None
        self.clipped: Callable[[Sequence[Tensor], float], Tensor] = nn.utils.clip_grad_norm_
        self._layout, self._numbers, self._rule = layout, numbers, rule

    @property
    def settings(self) -> Settings:
        return [{name: group[name] for name in SETTINGS if name in group} for group in self.optimizer.param_groups]

    def scale(self, settings: Settings, schedule: float, fraction: float, learners: int) -> float:
        """Set the settings of the next step, from those of one learner; return the learning rate of the first group.

        `schedule` is its factor on the rates, `fraction` the used share of the budget, `learners` their present number.
        """
        groups, rule = self.optimizer.param_groups, self._rule
        factor = schedule * self.times * rule.factor(fraction, learners)
        for group, own in zip(groups, settings, strict=True):
            betas, decay = own.get("betas"), own.get("weight_decay")
            group["lr"] = own["lr"] * factor * (1.0 if betas is None else rule.noisy)
            if betas is not None:
                group["betas"] = rule.betas(betas, learners)
            if decay:
                group["weight_decay"] = decay * self.decay_times
        return float(groups[0]["lr"])

    def step(self, g: Tensor | None, present: Sequence[bool]) -> None:
        """Step with a gradient (P,), or, if it is None, with that of the .grad fields."""
        if g is not None:
            self._layout.hand_gradients(g, present)
        if self.most_norm is not None:
            self.norm = self.clipped(self._layout.tensors, self.most_norm)
        self.optimizer.step()

    def restart(self) -> None:
        self.optimizer.state.clear()
        self._numbers.restarted()


def warn_of_optimizer(strategy: object, moments: Moments) -> None:
    """Warn if a strategy has an equation for plain SGD, and the optimizer keeps moments."""
    if Facts.of(strategy).needs_plain_sgd and moments.has_state:
        log.warning(
            "%s is for plain SGD, but %s has momentum or other moments of its own, and training may diverge: train with"
            " SGD(lr=...) without momentum, or take a strategy for any optimizer, such as ADPSGD",
            *(strategy, type(moments.optimizer).__name__),
        )


class HeldOut:
    """Held-out figures of other weights than the live ones, on a copy of the model with its frozen tensors."""

    def __init__(self, model: nn.Module, figures: Figures) -> None:
        self._model, self._figures = model, figures
        self._copied: Buffers | None = None

    def of(self, w: Tensor, buffers: Values) -> Mapping[str, float]:
        with torch.no_grad():
            copied = self._copied
            if copied is None or Layout.buffers(copied.model).numel != Layout.buffers(self._model).numel:
                copied = self._copied = Buffers(deepcopy(self._model), {}).begin(None)
            Layout.trainable(copied.model).scatter(w)
            copied.put(buffers)
            with evaluating(copied.model):
                return self._figures(copied.model)


class LearnerSource(ABC):
    """Source of a learner's gradients, without the gradients: turns, records, checks of numbers, and its optimizer."""

    def __init__(
        self,
        layout: Layout,
        optimizer: torch.optim.Optimizer,
        rule: Scaled,
        turns: Turns,
        recorder: Recorder,
        most_norm: float | None = None,
    ) -> None:
        self.layout, self.turns, self.recorder, self.counters = layout, turns, recorder, recorder.counters
        self.numbers = BadNumbers(layout, self.counters, recorder.seat.group.size)
        self.local_optimizer = OptimizerSteps(optimizer, layout, self.numbers, rule, most_norm)
        self.piece = WHOLE
        self._g = layout.empty()

    @abstractmethod
    def progress(self) -> Progress:
        """Return the progress of the run at this learner's present turn."""

    def nothing(self) -> Gradient:
        return Gradient.nothing(self.layout)

    def heard(self, loss: float, compute_seconds: float) -> None:
        self.recorder.heard(loss, compute_seconds)

    def followed(self, staleness: int) -> None:
        if self.local_optimizer.recorded and self.recorder.observers:
            self.recorder.step(self.progress(), self.turns.turn, staleness)

    async def boundary(self, me: Learner) -> None:  # noqa: ARG002 - for the sources that evaluate there
        self.numbers.end_round(self.local_optimizer.restart)
