"""Evaluation points of a run: the consensus is evaluated and a checkpoint is written.

Lock-step strategies pass one right after an average, all learners after the same number of gradients.
The seconds so spent are kept off the time axis.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from murmur.core.flat import is_finite
from murmur.core.group import Group
from murmur.core.learner import Learner
from murmur.engine.checkpoints.best import BestCheckpoints
from murmur.engine.checkpoints.checkpoint import Checkpoints, layout_of, write_pair
from murmur.engine.checkpoints.resume import Resume
from murmur.engine.checkpoints.state import pack
from murmur.engine.clock import Moment
from murmur.engine.counters import ADVICE
from murmur.engine.graceful_stop import Asked, GracefulStop
from murmur.engine.record import Record
from murmur.engine.schedule import listens
from murmur.engine.task_source import TaskSource

log = logging.getLogger(__name__)


class EvaluationPoints:
    """Evaluates and saves whenever the run has passed another `evaluate_every_epochs`, and when it is asked to stop."""

    def __init__(self, source: TaskSource, out: Path | None, asked: Asked | None = None) -> None:
        self.source, self.out = source, out
        self.halt = None if asked is None else GracefulStop(source, asked, self.save)
        self.checkpoints = Checkpoints(out / "checkpoints") if out else None
        self.kept = (
            BestCheckpoints(out / "checkpoints" / "marks", source.experiment.averaged_checkpoints) if out else None
        )
        self.best = math.inf
        every = source.experiment.evaluate_every_epochs * source.task.per_epoch
        self._every = max(1, round(every))
        self._next, self._late = self._every, source.seat.late
        self._groups: dict[str, Group] = {}
        if source.seat.group.rank < source.seat.group.size:  # one that was added later is in no part of the others
            self._beside(source.seat.group)

    def skip_to(self, done: int) -> None:
        """This learner takes part from here on: marks up to `done` minibatches are behind."""
        self._next, self._late = (done // self._every + 1) * self._every, False
        if self.halt is not None:
            self.halt.enter()

    def _beside(self, group: Group) -> Group:
        """A group of the same learners for evaluation alone: in full precision, and never in the way of averaging."""
        group = group.plain
        if group.name not in self._groups:
            twin = group.split([range(group.size)])
            assert twin is not None
            self._groups[group.name] = twin
        return self._groups[group.name]

    def begin(self) -> None:
        """Training begins, on all learners: from now on a request to stop is met at a boundary."""
        if self.halt is not None:
            self.halt.asked()

    async def boundary(self, me: Learner) -> None:
        """Called by the learner between gradients; in lock-step, where its weights are in step with the others'.

        A member of a node is called where its leader has saved, and saves too.
        """
        if me.told is not None:
            self.save(me, me.told)
            return
        if not me.lock_step:
            await self._pass_alone(me)
            if self.halt is not None:
                await self.halt.alone(me, self.source.progress().minibatches)
            return
        done = self.source.reached(me.steps)
        # Where some learner has no minibatch left the end is near, and the end evaluates by itself.
        if self._next <= done <= self.source.total - me.seat.group.size:
            self._next = (done // self._every + 1) * self._every
            await self.evaluate(me, done)
        if self.halt is not None:
            await self.halt.together(me, done, self._beside(me.group))

    async def evaluate(self, me: Learner, done: int) -> dict[str, float]:
        """Evaluate the consensus after `done` minibatches; save every learner's state, and the best model.

        Returns:
            The held-out figures, on learner 0; nothing on the others.
        """
        start = self.source.clock.moment()
        buffers = self.source.buffers
        weights = await self._beside(me.group).mean(me.weights.snapshot())
        averaged = await self._beside(me.group).mean(buffers.gather()) if buffers.tensors else buffers.gather()
        figures = self._evaluate((weights, averaged), done) if me.leads else None
        await self._tell(me, figures)
        return self._conclude(me, start, done, figures)

    async def _tell(self, me: Learner, figures: Mapping[str, float] | None) -> None:
        """Learner 0's held-out loss for all learners, if the schedule of the rates listens."""
        if not listens(self.source.experiment.schedule):
            return
        loss = math.nan if figures is None else figures.get("loss", math.nan)
        told = await self._beside(me.group).broadcast(torch.tensor([loss], dtype=torch.float64))
        self.source.heldout = (*self.source.heldout, float(told))

    def _evaluate(self, consensus: tuple[Tensor, Tensor], done: int) -> dict[str, float]:
        """Held-out figures of the consensus (weights, buffers), which is kept where it is among the best."""
        figures = dict(self.source.evaluate_with(*consensus))
        self._keep(*consensus, figures, done)
        return figures

    def _conclude(
        self,
        me: Learner,
        start: Moment,
        done: int,
        figures: dict[str, float] | None,
        distance: float | None = None,
    ) -> dict[str, float]:
        """Save this learner's state; tell observers the figures where it has evaluated."""
        self.save(me, done)
        self.source.clock.leave_out(start)
        if figures is not None:
            self._observe(figures, done, me.steps, distance)
        return figures or {}

    async def _pass_alone(self, me: Learner) -> None:
        """Without lock-step each learner passes a mark with its own claims; the others go on meanwhile.

        The first of the living evaluates the mean of what the others are at just then, with its own buffers.
        """
        claimed = self.source.progress().minibatches
        if self._late:  # the mark before this moment is the others'
            self._next, self._late = (claimed // self._every + 1) * self._every, False
        done = claimed // self._every * self._every
        if not self._next <= done < self.source.total:
            return
        self._next = done + self._every
        start = self.source.clock.moment()
        if not me.leads:
            self._conclude(me, start, done, None)
            return
        found = list((await me.averager.snapshots()).values())
        vectors = torch.stack([w for w in found if is_finite(w)] or found)
        mean = vectors.mean(0)
        distance = float((vectors - mean).square().sum(1).mean().sqrt())
        figures = self._evaluate((mean, self.source.buffers.gather()), done)
        self._conclude(me, start, done, figures, distance)

    async def finish(self, me: Learner) -> tuple[Tensor, Tensor, dict[str, float]]:
        """The consensus at the end of a run without lock-step: its weights, buffers, and figures where it leads."""
        start, source = self.source.clock.moment(), self.source
        source.log.finish()
        if self.halt is not None:
            await self.halt.at_end(me)
        weights = me.weights.snapshot()  # the strategy has ended with the consensus
        buffers = source.buffers.gather()
        if source.buffers.tensors:
            buffers = await me.averager.consensus(buffers, "buffers")
            source.buffers.scatter(buffers)
        figures = self._evaluate((weights, buffers), source.total) if me.leads else None
        return weights, buffers, self._conclude(me, start, source.total, figures, 0.0)

    def take_over(self, me: Learner, consensus: tuple[Tensor, Tensor]) -> dict[str, float]:
        """The held-out figures of the consensus (weights, buffers) at the end, where who led is lost."""
        start = self.source.clock.moment()
        return self._conclude(me, start, self.source.total, self._evaluate(consensus, self.source.total))

    def _keep(self, weights: Tensor, buffers: Tensor, figures: Mapping[str, float], done: int) -> None:
        if self.out is None or self.kept is None:
            return
        tensors = consensus_tensors(weights, buffers)
        self.kept.add(tensors, figures, done)
        if figures.get("loss", math.nan) < self.best:
            self.best = figures["loss"]
            write_pair(self.out / "best", tensors, {"minibatches": done, **self.facts(figures)})
        if done >= self.source.total:
            self._average(self.out, self.kept, done)

    def _average(self, out: Path, kept: BestCheckpoints, done: int) -> None:
        """averaged.safetensors: the mean of the kept models, with the held-out figures that it reaches itself."""
        if not kept.ranked():
            return
        tensors, marks = kept.mean()
        device = self.source.layout.device
        mean = {name: tensor.to(device) for name, tensor in tensors.items()}
        figures = self.source.evaluate_with(mean["weights"], mean["buffers"])
        write_pair(out / "averaged", tensors, {"minibatches": done, "marks": marks, **self.facts(figures)})

    def facts(self, figures: Mapping[str, float]) -> dict[str, Any]:
        """Facts saved beside a consensus model."""
        shapes = layout_of(self.source.model)
        return {"experiment": self.source.experiment.digest(), "figures": dict(figures), "tensors": shapes}

    def save(self, me: Learner, done: int) -> None:
        """Write this learner's part of the checkpoint after `done` minibatches."""
        if self.checkpoints is None:
            return
        tensors, facts = pack(me, self.source, done)
        facts["best"] = self.best if math.isfinite(self.best) else None
        self.checkpoints.save(done, me.seat.group.rank, tensors, facts)
        me.saved = done  # a leader tells the members of its node
        if me.leads:
            self.checkpoints.prune()

    def _observe(self, figures: Mapping[str, float], done: int, steps: int, distance: float | None = None) -> None:
        at, counters = self.source.progress_at(done), self.source.counters
        loss = figures.get("loss", math.nan)
        if "loss" in figures and counters.diverges(loss, min(self.best, loss)):
            log.warning(
                "epoch %.2f: held-out loss %.4g, training loss %.4g after %.4g at the first minibatch: %s",
                *(at.epoch, loss, counters.recent_loss, counters.first_loss, ADVICE),
            )
        self.source.observe(
            Record(
                kind="evaluation",
                learner=0,
                step=self.source.counters.steps + steps,  # those of earlier launches count too
                minibatches=done,
                samples=at.samples,
                epoch=at.epoch,
                seconds=self.source.clock.seconds,
                loss=loss,
                rate=at.rate,
                consensus_distance=distance,
                figures=figures,
            )
        )

    def go_on(self, resume: Resume) -> None:
        """Marks begin where the checkpoint was made that the run goes on from."""
        self.best = resume.best
        self._next = (resume.mark // self._every + 1) * self._every
        if self.kept is not None and self.source.seat.group.rank == 0:
            self.kept.forget_after(resume.mark)


def consensus_tensors(weights: Tensor, buffers: Tensor) -> dict[str, Tensor]:
    """The tensors of a saved consensus model."""
    return {"weights": weights, "buffers": buffers}
