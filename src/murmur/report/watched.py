"""The current state of a run, followed while its records grow."""

from __future__ import annotations

import json
import statistics
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from murmur.core.plain_files import UNREADABLE, read_plain
from murmur.core.recent_rate import RecentRate
from murmur.report.records import Records, is_number
from murmur.report.slow import WORDS
from murmur.report.tail import Tail
from murmur.run.folder.state import state_of

INTERVALS = 30  # of a learner's own steps
LEAST_SILENCE, SILENT_STEPS = 5.0, 20.0  # seconds; times the learner's usual step
BACK_SECONDS = 60.0  # for which a returned learner counts as back
QUIET_SECONDS = 60.0  # without a record, after which a run that has not ended counts as cut off
ENDINGS = ("stopped", "failed", "killed", "cut off")  # of a run that has not finished


@dataclass
class Seen:
    """Times of a learner: the run's seconds at its last step, its usual step, its own record's seconds, its return."""

    at: float
    intervals: deque[float]
    own: float = 0.0
    back: float | None = None

    @property
    def patience(self) -> float:
        """Seconds of silence after which the learner counts as lost."""
        usual = statistics.median(self.intervals) if self.intervals else 0.0
        return max(LEAST_SILENCE, SILENT_STEPS * usual)


class Watched:
    """A run folder that is followed.

    Args:
        folder: folder of the run.
        now: function that returns wall seconds since 1970.
    """

    def __init__(self, folder: Path, now: Callable[[], float]) -> None:
        self.folder, self._now, self._since = folder, now, now()
        self.tail = Tail(folder / "records.jsonl")
        self._begun = 0
        self.facts: Mapping[str, Any] = {}  # run.json; empty until it exists
        self._forget()

    def _forget(self) -> None:
        self.records = Records()
        self.damaged = 0
        self.epoch = 0.0
        self.minibatches = 0
        self.front = 0.0
        self.seen: dict[int, Seen] = {}
        self._read_bytes = 0
        self._start = (0.0, 0.0)
        self._rate = RecentRate()  # of samples

    def look(self) -> bool:
        """Read what is new; return True if there is more to read at once."""
        self.facts = _object(self.folder / "run.json")
        lines = self.tail.lines()
        if self.tail.begun != self._begun:
            self._begun = self.tail.begun
            self._forget()
        began_bytes = self.facts.get("records_bytes")
        for line in lines:
            if self._read_bytes == began_bytes:
                self._begin_start()
            self._read_bytes += len(line) + 1
            try:
                row = json.loads(line)
                self.records.add(row)
                self._place(row)
            except UNREADABLE:
                self.damaged += 1
        return self.tail.behind

    def _place(self, row: Mapping[str, Any]) -> None:
        self.epoch = max(self.epoch, float(row.get("epoch") or 0.0))
        self.minibatches = max(self.minibatches, int(row.get("minibatches") or 0))
        seconds = float(row["seconds"])
        self.front = max(self.front, seconds)
        if row["kind"] == "step":
            learner = int(row["learner"])
            seen = self.seen.setdefault(learner, Seen(self.front, deque(maxlen=INTERVALS)))
            if seconds < seen.own:  # a start that repeats the work after its checkpoint
                self._begin_start()
            seen.own = seconds
            self._start = (max(self._start[0], seconds), max(self._start[1], float(row.get("samples") or 0.0)))
            self._rate.add(*self._start)
            silent = self.front - seen.at
            if silent > seen.patience:
                seen.back = self.front
            else:
                seen.intervals.append(silent)
            seen.at = self.front

    def _begin_start(self) -> None:
        """Forget the speed of an earlier start of the run."""
        self._start = (0.0, 0.0)
        self._rate.forget()
        for seen in self.seen.values():
            seen.own = 0.0

    @property
    def score(self) -> Mapping[str, Any]:
        """score.json of this launch; empty until it exists."""
        return _object(self.folder / "score.json") if self._newer("score.json") else {}

    def _newer(self, name: str) -> bool:
        """True if a file was written after run.json, which every launch writes first."""
        file, began = self.folder / name, self.folder / "run.json"
        return file.is_file() and (not began.is_file() or file.stat().st_mtime >= began.stat().st_mtime)

    @property
    def progress(self) -> float | None:
        """Share of the budget that is done, from 0 to 1; None if run.json has no budget."""
        experiment = self.facts.get("experiment")
        budget = experiment.get("budget") if isinstance(experiment, Mapping) else None
        if not isinstance(budget, Mapping):
            return None
        done = {"samples": self.records.last_samples, "minibatches": self.minibatches, "epochs": self.epoch}
        for unit, so_far in done.items():
            total = budget.get(unit)
            if isinstance(total, int | float) and is_number(total):
                return min(1.0, so_far / total) if total > 0 else 1.0
        return min(1.0, self.epoch)

    @property
    def samples_per_second(self) -> float | None:
        """Samples per second of all learners, over the latest records of the present start."""
        return self._rate.per_second

    @property
    def seconds_to_go(self) -> float | None:
        """Remaining seconds at the present speed."""
        done = self.progress
        return self._rate.seconds_left(self.records.last_samples / done) if done else None

    @property
    def quiet_seconds(self) -> float:
        """Wall seconds since the last record, the start of the run, or the first look."""
        for name in ("records.jsonl", "run.json"):
            if (self.folder / name).is_file():
                return max(0.0, self._now() - (self.folder / name).stat().st_mtime)
        return self._now() - self._since

    @property
    def state(self) -> str:
        """State by lock and final record: "finished", "stopped", "failed", "killed", "testing", "going" or "starting".

        Without them, files and the time since the last record decide, and the state may be "cut off".
        """
        known = state_of(self.folder).name
        if known == "running":
            return "testing" if self.progress == 1.0 else "going" if self.records.steps_of else "starting"
        if known != "unknown":
            return known
        if self._newer("score.json") or self._newer("simulated.json"):
            return "finished"
        usual = [statistics.median(seen.intervals) for seen in self.seen.values() if seen.intervals]
        patience = max(QUIET_SECONDS, SILENT_STEPS * max(usual, default=0.0))
        if self.quiet_seconds > patience:
            return "cut off"
        if self.progress == 1.0:
            return "testing"
        return "going" if self.records.steps_of else "starting"

    def learner_state(self, learner: int, state: str) -> tuple[str, str]:
        """A learner's state, "computing", "slow", "lost", "back", "stopped" or "finished", and a description of it.

        `state` is that of the run.
        """
        seen, slow = self.seen[learner], [s for s in self.records.slow if s.learner == learner]
        silent = self.front - seen.at
        if state in ("finished", "testing"):
            return "finished", ""
        if silent > seen.patience:
            return "lost", f"silent for {silent:.0f} s"
        if state in ENDINGS:
            return "stopped", ""
        if slow and slow[-1].until_seconds is None:
            times = "" if slow[-1].factor is None else f"{slow[-1].factor:.1f} x "
            return "slow", f"{times}{WORDS.get(slow[-1].cause, slow[-1].cause)}"
        if seen.back is not None and self.front - seen.back < BACK_SECONDS:
            return "back", f"for {self.front - seen.back:.0f} s"
        return "computing", ""


def _object(path: Path) -> Mapping[str, Any]:
    """A JSON object; empty if there is none, or one that is just being written."""
    try:
        found = json.loads(read_plain(path))
    except (OSError, *UNREADABLE):
        return {}
    return found if isinstance(found, dict) else {}
