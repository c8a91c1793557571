"""Evaluation points of a run, and its end: the consensus is evaluated, then a checkpoint is written.

Lock-step strategies pass a point right after an average, all learners after the same number of gradients. Without
lock-step each learner passes it with its own claims. These seconds are kept off the time axis.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from murmur.core.learner import Learner
from murmur.engine.checkpoints.checkpointer import Checkpointer
from murmur.engine.checkpoints.resume import Resume
from murmur.engine.clock import Moment
from murmur.engine.cover import check_elastic
from murmur.engine.evaluator import Consensus, Evaluation, Evaluator
from murmur.engine.graceful_stop import Asked
from murmur.engine.task_source import TaskSource


class EvaluationPoints:
    """Runs evaluator and checkpointer every `evaluate_every_epochs`, and at the end of the run.

    Args:
        source: Source of the learner's gradients, with the progress of the run.
        out: Folder of the run; None writes nothing.
        asked: Returns True after a request to stop this process; None if there are no requests.
    """

    def __init__(self, source: TaskSource, out: Path | None, asked: Asked | None = None) -> None:
        self._source = source
        self._evaluator = Evaluator(source)
        self._checkpointer = Checkpointer(source, self._evaluator, out, asked)
        self._every = max(1, round(source.experiment.evaluate_every_epochs * source.experiment.per_epoch))
        self._next, self._late = self._every, source.seat.late

    def go_on(self, resume: Resume) -> None:
        """Continue from a checkpoint: the first point lies after it."""
        self._evaluator.lowest = resume.best
        self._next = (resume.mark // self._every + 1) * self._every
        self._checkpointer.go_on(resume)

    def skip_to(self, done: int) -> None:
        """Skip the points up to `done` minibatches, for a learner that joins late."""
        self._next, self._late = (done // self._every + 1) * self._every, False
        if self._checkpointer.stop is not None:
            self._checkpointer.stop.enter()

    def begin(self) -> None:
        """Answer requests to stop at boundaries from now on; called when training begins on all learners."""
        if self._checkpointer.stop is not None:
            self._checkpointer.stop.asked()

    async def boundary(self, me: Learner) -> None:
        """Evaluate and save if a point has been passed; called between gradients, in lock-step after an average.

        A member of a super-learner saves after its leader.
        """
        if me.told is not None:
            self.save(me, me.told)
        elif me.lock_step:
            await self._pass_together(me)
        else:
            await self._pass_alone(me)

    async def _pass_together(self, me: Learner) -> None:
        done, stop = self._source.reached(me.steps), self._checkpointer.stop
        # If some learner has no minibatch left, the end is near, and the end evaluates by itself.
        if self._next <= done <= self._source.total - me.seat.group.size:
            self._next = (done // self._every + 1) * self._every
            await self._together(me, done)
        if stop is not None:
            await stop.together(me, done, self._evaluator.beside(me.group))

    async def _together(self, me: Learner, done: int) -> Evaluation | None:
        """Evaluate the consensus after `done` minibatches on learner 0; save on every learner."""
        start = self._source.clock.moment()
        consensus = await self._evaluator.together(me)
        evaluation = self._evaluate(consensus, done) if me.leads else None
        await self._evaluator.tell_schedule(me, evaluation)
        return self._conclude(me, start, done, evaluation)

    async def _pass_alone(self, me: Learner) -> None:
        """Pass a point with this learner's own claims, without lock-step, while the others continue."""
        claimed, stop = self._source.progress().minibatches, self._checkpointer.stop
        if self._late:  # the point before this moment belongs to the others
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
        """Evaluate a consensus after `done` minibatches; write it if it is among the best."""
        evaluation = self._evaluator.evaluate(consensus, done)
        self._checkpointer.keep(evaluation)
        return evaluation

    def _conclude(self, me: Learner, start: Moment, done: int, evaluation: Evaluation | None) -> Evaluation | None:
        """Record the evaluation on the learner that made it; then save this learner's state.

        A launch that resumes from there does not evaluate again, so that the record must come before the checkpoint.
        """
        clock = self._source.clock
        clock.leave_out(start)
        if evaluation is not None:
            self._evaluator.record(evaluation, me.steps)
        start = clock.moment()
        self.save(me, done)
        clock.leave_out(start)
        return evaluation

    def save(self, me: Learner, done: int) -> None:
        """Write this learner's part of the checkpoint after `done` minibatches."""
        self._checkpointer.save(me, done)

    async def end(self, me: Learner) -> Mapping[str, float] | None:
        """Evaluate and save the consensus at the end of the run; the learner that leads writes the model.

        Returns:
            The held-out figures of the model; None if another learner leads.

        Raises:
            FloatingPointError: No learner has finite weights.
        """
        clock, total = self._source.clock, self._source.total
        start = clock.moment()
        if me.lock_step:
            consensus = await self._evaluator.last_together(me)
            check_elastic(me, self._source.to_do)
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
        """Evaluate and write the model at the end if the leader is lost; return its held-out figures."""
        start, total = self._source.clock.moment(), self._source.total
        consensus = self._evaluator.consensus(me.weights.snapshot(), self._source.buffers.gather())
        evaluation = self._evaluate(consensus, total)
        self._conclude(me, start, total, evaluation)
        return self._write_model(consensus, evaluation)

    def written(self) -> Mapping[str, float] | None:
        """Set the model to that of the end of the run; return its figures. None if no earlier launch has written it."""
        return self._checkpointer.read_model()

    def evaluate_again(self) -> Mapping[str, float]:
        """Evaluate, record and write the model of a checkpoint of the end, whose launch ended before it did so."""
        consensus = self._evaluator.consensus(self._source.layout.gather(), self._source.buffers.gather())
        evaluation = self._evaluate(consensus, self._source.total)
        self._evaluator.record(evaluation, 0)
        return self._write_model(consensus, evaluation)

    def _write_model(self, consensus: Consensus, evaluation: Evaluation) -> Mapping[str, float]:
        self._checkpointer.write_model(consensus, evaluation.figures)
        return evaluation.figures
