"""Folder of a joined loop: the files that a run of the engine writes too, except for checkpoints and models."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from murmur.core.errors import SettingError
from murmur.core.group import Group
from murmur.core.learner import Strategy
from murmur.core.stop_signals import STOPPED_STATUS, Stopped
from murmur.core.trace import Span
from murmur.core.whole_files import FinishedLines, write_whole
from murmur.engine.experiment import describe
from murmur.engine.record import Record, forget_records, read_line
from murmur.engine.recorder import Recorder, wait_for_spans
from murmur.engine.run_files import begin_trace, finish_trace, keep_trace
from murmur.run.folder.contents import LAUNCH, RUN, read_facts, refuse_links, remove_unused
from murmur.run.folder.lock import ENDED, LOCK, Ending, FolderLock, read_ending, write_ending
from murmur.run.folder.provenance import provenance
from murmur.user_loop.optimizer_list import name_of
from murmur.worlds.process.environment import Place

log = logging.getLogger(__name__)


def described(
    strategy: Strategy, optimizer: torch.optim.Optimizer, total_steps: int | None, learners: int
) -> dict[str, Any]:
    experiment = {
        "strategy": describe(strategy),
        "optimizer": {"type": name_of(optimizer), **describe(optimizer.defaults)},
        **({} if total_steps is None else {"budget": {"minibatches": total_steps}}),
    }
    return {"learners": learners, "experiment": experiment}


def ending_of(error: BaseException) -> Ending:
    match error:
        case Stopped():
            return Ending.of(STOPPED_STATUS, f"stopped by {error.name}")
        case KeyboardInterrupt():
            return Ending.of(STOPPED_STATUS, "stopped by SIGINT")
        case SystemExit(code=None):
            return Ending.of(0)
        case SystemExit(code=int(status)):
            return Ending.of(status)
        case SystemExit():
            return Ending.of(1, str(error.code))
    return Ending.of(1, f"{type(error).__name__}: {error}".rstrip(": "))


class RunFolder:
    """Folder for `run.json`, `records.jsonl` and `trace.json` of a loop, the same for all learners.

    A loop that resumes a saved state appends to the records there; another one is refused. A restart of the launch that
    has made them, from the beginning, replaces them. Nothing but the lock is written before the first step.
    """

    def __init__(self, out: Path, recorder: Recorder, facts: Mapping[str, Any], place: Place) -> None:
        self._out, self._recorder, self._place = out, recorder, place
        self._records, self._trace = out / "records.jsonl", out / "trace.json"
        # Restarts of a launch have its store and its launcher.
        launch = {"host": place.host, "port": place.port, "process": os.getppid()}
        self._facts = {"launch": launch, **facts}
        self._lock: FolderLock | None = None
        self._made = self._took = self._begun = False
        self._continued = False  # holds the records of a run, which may be another one
        self._restarted = False  # holds records that this launch has begun
        self._early: list[Record] = []  # made before the first step
        self._spans: list[Span] = []

    async def begin(self, group: Group) -> None:
        """Lock the folder, and find out if it holds a run."""
        seat = self._recorder.seat
        if group.rank == 0 and not seat.late:
            refuse_links(self._out)
            self._made = not self._out.exists()
            self._lock, self._took = FolderLock.take(self._out / LOCK), True
            facts = read_facts(self._out)
            same = facts.get("launch") == self._facts["launch"] and facts.get("records_bytes") == 0
            self._restarted = self._place.generation > 0 and same
            self._continued = self._done() is not None and not self._restarted
        if not seat.late:
            self._continued = bool(await group.broadcast(torch.tensor([float(self._continued)])))
        if self._lock is None:
            self._lock = FolderLock.join(self._out / LOCK)
        seat.trace.sink = self._spans.append
        self._recorder.add(self._keep)

    def _done(self) -> int | None:
        if not self._records.exists():
            return None
        found = (read_line(line) for line in FinishedLines(self._records))
        return max((record["minibatches"] for record in found if record is not None), default=None)

    def _keep(self, record: Record) -> None:
        if not self._begun:
            self._early.append(record)

    async def check(self, group: Group, lock_step: bool, loaded: int | None) -> None:
        """Open the files before the first step; learner 0 prepares them before the others write.

        `loaded` are the minibatches of the saved state that this learner has resumed. A loop that has not resumed would
        append to the records of another run, and is refused.
        """
        late = self._recorder.seat.late
        if self._continued and float(await group.mean(torch.tensor([float(loaded is None)]))) > 0:
            raise SettingError(
                f"{self._out} holds the records of a run: give another folder, delete it, or continue that run with"
                " me.load_state_dict() before the first step"
            )
        self._begun = True
        if group.rank == 0 and not late:
            self._prepare(lock_step, loaded)
        if not late:
            await group.broadcast(torch.zeros(1))
        self._recorder.write(self._records, self._trace)
        for record in self._early:
            self._recorder.observe(record)
        sink = self._recorder.seat.trace.sink
        assert sink is not None
        for span in self._spans:
            sink(span)

    def _prepare(self, lock_step: bool, loaded: int | None) -> None:
        (self._out / ENDED).unlink(missing_ok=True)
        done = self._done() or 0
        if loaded is not None:
            # A step counts the minibatches before it, and without lock-step its own too.
            ends = {"step": loaded + (not lock_step), "evaluation": loaded + 1}
            forget_records(self._records, ends, loaded)
        elif self._restarted:
            for path in (self._records, self._trace):
                path.unlink(missing_ok=True)
        keep_trace(self._trace, done)
        begin_trace(self._trace)
        told = {**provenance(self._records, sys.argv[0]), **self._facts}
        write_whole(self._out / RUN, json.dumps(told, indent=1).encode())
        if self._place.size > 1:
            write_whole(self._out / LAUNCH, json.dumps(self._place.meeting_point, indent=1).encode())

    async def finish(self, group: Group) -> None:
        await wait_for_spans(group, self._recorder.seat)
        finish_trace(self._trace)
        write_ending(self._out, Ending.of(0))

    def fail(self, error: BaseException) -> None:
        """Record that the run has ended by an error, unless the others have finished it without this learner."""
        if not self._begun or self._finished:
            return
        try:
            write_ending(self._out, ending_of(error))
        except OSError as unwritten:  # the exception that has ended the run matters more
            log.error("the end of the run is not recorded: %s", unwritten)

    @property
    def _finished(self) -> bool:
        ending = read_ending(self._out)
        return ending is not None and ending.state == "finished"

    def close(self) -> None:
        if self._begun and self._finished:
            self._recorder.seat.trace.sink = None  # the others have closed the trace without this learner
        self._recorder.end_trace()
        self._recorder.close()
        if not self._begun:
            self._recorder.seat.trace.sink = None
        if self._lock is None:
            return
        if self._took and not self._begun:
            self._lock.restore()
            if self._made:
                remove_unused(self._out, LOCK)
        self._lock.close()
