"""Records of a joined loop: its folder, its observers, held-out figures."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import torch

from murmur.core.group import Group
from murmur.core.world import ScriptBlock
from murmur.engine.record import Observer
from murmur.engine.recorder import Recorder
from murmur.engine.stragglers import EVERY_SECONDS, Pace
from murmur.user_loop.block_checks import BlockChecks
from murmur.user_loop.loop import LoopSeat
from murmur.user_loop.rounds import RoundSource
from murmur.user_loop.run_folder import RunFolder, described
from murmur.user_loop.source import Plan
from murmur.worlds.process.environment import Place


class Recorded(BlockChecks):
    """A joined loop with records."""

    size: int
    rank: int
    optimizer: torch.optim.Optimizer
    plan: Plan
    _out: Path | str
    _place: Place
    _block: ScriptBlock
    _world: Group
    _seat: LoopSeat
    _source: RoundSource
    _recorder: Recorder
    _folder: RunFolder | None = None

    async def _record(self, stack: ExitStack) -> None:
        if not self._out:
            return
        facts = described(self.strategy, self.optimizer, self.plan.total_steps, self.size)
        self._folder = RunFolder(Path(self._out), self._recorder, {**facts, **self._block.facts}, self._place)
        stack.callback(self._folder.close)
        await self._folder.begin(self._world)
        if self._seat.inner.works_beside and self.size > 1:
            self._source.pace = Pace(self._recorder, self._source.progress, EVERY_SECONDS)
            self._recorder.add(self._source.pace)

    def observe(self, observer: Observer) -> None:
        """Pass every further record of this learner to an observer, such as those of `murmur.integrations.trackers`."""
        self._check_inside("observe()")
        self._recorder.add(observer)

    def record(self, figures: Mapping[str, float]) -> None:
        """Record held-out figures of the consensus, with "loss" among them if it is known, for `murmur report`.

        One learner calls it. Without a folder for records it does nothing.
        """
        self._check_inside("record()")
        at = self._source.progress_after(self._source.minibatches)
        self._recorder.evaluation(at, self._source.learner.steps, figures, learner=self.rank)
