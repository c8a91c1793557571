"""Evaluation points of a run, and its end: the consensus is evaluated, then a checkpoint is written.

Lock-step strategies pass a point right after an average, all learners after the same number of gradients. Without
lock-step each learner passes it with its own claims. The seconds so spent are kept off the time axis.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from murmur.core.learner import Learner
from murmur.engine.checkpoints.checkpointer import Checkpointer
from murmur.engine.checkpoints.resume import Resume
from murmur.engine.clock import Moment
from murmur.engine.evaluator import Consensus, Evaluation, Evaluator
from murmur.engine.graceful_stop import Asked
from murmur.engine.task_source import TaskSource


class EvaluationPoints:
    """Fires evaluator and checkpointer whenever the run has passed another `evaluate_every_epochs`, and at its end.

    Args:
        source: Where the run stands.
        out: Folder of the run; None writes nothing.
        asked: Returns True once this process was asked to stop; None: it never is.
    """

    def __init__(self, source: TaskSource, out: Path | None, asked: Asked | None = None) -> None:
        self._source = source
        self._evaluator = Evaluator(source)
        self._checkpointer = Checkpointer(source, self._evaluator, out, asked)
        self._every = max(1, round(source.experiment.evaluate_every_epochs * source.task.per_epoch))
        self._next, self._late = self._every, source.seat.late

    def go_on(self, resume: Resume) -> None:
        """Points begin where the checkpoint was made that the run goes on from."""
        self._evaluator.lowest = resume.best
        self._next = (resume.mark // self._every + 1) * self._every
        self._checkpointer.go_on(resume)

    def skip_to(self, done: int) -> None:
        """This learner takes part from here on: points up to `done` minibatches are behind."""
        self._next, self._late = (done // self._every + 1) * self._every, False
        if self._checkpointer.stop is not None:
            self._checkpointer.stop.enter()

    def begin(self) -> None:
        """Training begins, on all learners: from now on a request to stop is met at a boundary."""
        if self._checkpointer.stop is not None:
            self._checkpointer.stop.asked()

    async def boundary(self, me: Learner) -> None:
        """Called by the learner between gradients; in lock-step, where its weights are in step with the others'.

        A member of a node is called where its leader has saved, and saves too.
        """
        if me.told is not None:
            self.save(me, me.told)
        elif me.lock_step:
            await self._pass_together(me)
        else:
            await self._pass_alone(me)

    async def _pass_together(self, me: Learner) -> None:
        done, stop = self._source.reached(me.steps), self._checkpointer.stop
        # Where some learner has no minibatch left the end is near, and the end evaluates by itself.
        if self._next <= done <= self._source.total - me.seat.group.size:
            self._next = (done // self._every + 1) * self._every
            await self._together(me, done)
        if stop is not None:
            await stop.together(me, done, self._evaluator.beside(me.group))

    async def _together(self, me: Learner, done: int) -> Evaluation | None:
        """Learner 0 evaluates the consensus after `done` minibatches; every learner saves."""
        start = self._source.clock.moment()
        consensus = await self._evaluator.together(me)
        evaluation = self._evaluate(consensus, done) if me.leads else None
        await self._evaluator.tell_schedule(me, evaluation)
        return self._conclude(me, start, done, evaluation)

    async def _pass_alone(self, me: Learner) -> None:
        """Without lock-step each learner passes a point with its own claims; the others go on meanwhile."""
        claimed, stop = self._source.progress().minibatches, self._checkpointer.stop
        if self._late:  # the point before this moment is the others'
            self._next, self._late = (claimed // self._every + 1) * self._every, False
        done = claimed // self._every * self._every
        if self._next <= done < self._source.total:
            self._next = done + self._every
            start = self._source.clock.moment()
            evaluation = self._evaluate(await self._evaluator.alone(me), done) if me.leads else None
            self._conclude(me, start, done, evaluation)
        if stop is not None:
            await stop.alone(me, self._source.progress().minibatches)

    def _evaluate(self, consensus: Consensus, done: int) -> Evaluation:
        """Evaluate a consensus after `done` minibatches; write it where it is among the best."""
        evaluation = self._evaluator.evaluate(consensus, done)
        self._checkpointer.keep(evaluation)
        return evaluation

    def _conclude(self, me: Learner, start: Moment, done: int, evaluation: Evaluation | None) -> Evaluation | None:
        """Save this learner's state; record the evaluation where it was made."""
        self.save(me, done)
        self._source.clock.leave_out(start)
        if evaluation is not None:
            self._evaluator.record(evaluation, me.steps)
        return evaluation

    def save(self, me: Learner, done: int) -> None:
        """Write this learner's part of the checkpoint after `done` minibatches."""
        self._checkpointer.save(me, done)

    async def end(self, me: Learner) -> Mapping[str, float] | None:
        """Evaluate and save the consensus at the end of the run; the learner that leads writes the model.

        Returns:
            The held-out figures of the model; None where another learner leads.

        Raises:
            FloatingPointError: no learner's weights are finite.
        """
        clock, total = self._source.clock, self._source.total
        start = clock.moment()
        if me.lock_step:
            consensus = await self._evaluator.last_together(me)
            clock.leave_out(start)
            evaluation = await self._together(me, total)
        else:
            self._source.log.finish()
            if self._checkpointer.stop is not None:
                await self._checkpointer.stop.at_end(me)
            consensus = await self._evaluator.last_alone(me)
            evaluation = self._evaluate(consensus, total) if me.leads else None
            self._conclude(me, start, total, evaluation)
        return None if evaluation is None else self._write_model(consensus, evaluation)

    def take_over(self, me: Learner) -> Mapping[str, float]:
        """Evaluate and write the model at the end, where the learner that led is lost; return its held-out figures."""
        start, total = self._source.clock.moment(), self._source.total
        consensus = Consensus(me.weights.snapshot(), self._source.buffers.gather())
        evaluation = self._evaluate(consensus, total)
        self._conclude(me, start, total, evaluation)
        return self._write_model(consensus, evaluation)

    def _write_model(self, consensus: Consensus, evaluation: Evaluation) -> Mapping[str, float]:
        self._checkpointer.write_model(consensus, evaluation.figures)
        return evaluation.figures
