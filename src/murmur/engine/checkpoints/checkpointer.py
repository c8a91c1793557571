"""Checkpointer of a run: writes the parts of checkpoints, the best models, their mean and the last consensus."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from murmur.core.errors import DamagedCheckpoint
from murmur.core.flat import Layout
from murmur.core.learner import Learner
from murmur.engine.checkpoints.best import BestCheckpoints
from murmur.engine.checkpoints.checkpoint import Checkpoints, layout_of, read_pair, write_pair
from murmur.engine.checkpoints.resume import Resume
from murmur.engine.checkpoints.state import pack
from murmur.engine.evaluator import Consensus, Evaluation, Evaluator
from murmur.engine.graceful_stop import Asked, GracefulStop
from murmur.engine.task import outputs_of
from murmur.engine.task_source import TaskSource


class Checkpointer:
    """Saves one learner's state and, if it leads, the models of the run.

    Args:
        source: Source of the learner's gradients, with the progress of the run.
        evaluator: Evaluates the averaged model.
        out: Folder of the run; None writes nothing.
        asked: Returns True after a request to stop this process; None if there are no requests.

    Attributes:
        stop: Graceful stop, which saves; None without `asked`.
    """

    def __init__(self, source: TaskSource, evaluator: Evaluator, out: Path | None, asked: Asked | None) -> None:
        self._source, self._evaluator, self._out = source, evaluator, out
        self._checkpoints = Checkpoints(out / "checkpoints") if out else None
        most = source.experiment.averaged_checkpoints
        self._best = BestCheckpoints(out / "checkpoints" / "marks", most) if out else None
        self.stop = None if asked is None else GracefulStop(source, asked, self.save)

    def save(self, me: Learner, done: int) -> None:
        """Write this learner's part of the checkpoint after `done` minibatches; the leader deletes old checkpoints."""
        if self._checkpoints is None:
            return
        tensors, facts = pack(me, self._source, done)
        lowest = self._evaluator.lowest
        facts["best"] = lowest if math.isfinite(lowest) else None
        self._checkpoints.save(done, me.seat.group.rank, tensors, facts)
        me.saved = done  # a leader tells its members
        if me.leads:
            self._checkpoints.prune()

    def keep(self, evaluation: Evaluation) -> None:
        """Write an evaluated consensus if it is among the best; at the end, also the mean of the best."""
        if self._out is None or self._best is None:
            return
        tensors, done = evaluation.consensus.tensors, evaluation.minibatches
        self._best.add(tensors, evaluation.figures, done)
        if evaluation.improves:
            write_pair(self._out / "best", tensors, {"minibatches": done, **self._facts(evaluation.figures)})
        if done >= self._source.total:
            self._average(self._out, self._best, done)

    def _average(self, out: Path, best: BestCheckpoints, done: int) -> None:
        """Write averaged.safetensors: the mean of the kept models, if any, with its own held-out figures."""
        found = best.mean(self._source.averaged.cpu())
        if found is None:
            return
        tensors, marks = found
        device = self._source.layout.device
        figures = self._evaluator.figures({name: tensor.to(device) for name, tensor in tensors.items()})
        write_pair(out / "averaged", tensors, {"minibatches": done, "marks": marks, **self._facts(figures)})

    def write_model(self, consensus: Consensus, figures: Mapping[str, float]) -> None:
        """Write model.safetensors: the consensus at the end of the run, with its held-out figures."""
        if self._out is not None:
            facts = {"minibatches": self._source.total, **self._facts(figures)}
            write_pair(self._out / "model", consensus.tensors, facts)

    def read_model(self) -> Mapping[str, float] | None:
        """Set the model to the written one of the end of the run; return its held-out figures, or None without one."""
        source = self._source
        if self._out is None:
            return None
        try:
            tensors, facts = read_pair(self._out / "model")
        except DamagedCheckpoint:
            return None
        if facts.get("minibatches") != source.total:
            return None
        layouts = {"weights": source.layout, "buffers": source.buffers, "integers": Layout.integers(source.model)}
        for name, layout in layouts.items():
            if layout.tensors:
                layout.scatter(tensors[name].to(layout.device))
        return dict(facts["figures"])

    def go_on(self, resume: Resume) -> None:
        """Delete models of evaluations that are made again: those after the checkpoint from which the run resumes.

        With other data than those of the checkpoint all are deleted: their losses cannot be compared with later ones.
        """
        if self._best is not None and self._source.seat.group.rank == 0:
            self._best.forget_after(-1 if resume.other_data else resume.mark)

    def _facts(self, figures: Mapping[str, float]) -> dict[str, Any]:
        """Return the facts saved beside a consensus model."""
        shapes = layout_of(self._source.model)
        told = {"experiment": self._source.experiment.digest(), "outputs": outputs_of(self._source.experiment.task)}
        return told | {"figures": dict(figures), "tensors": shapes}
