"""The current state of a run, followed while its records grow."""

from __future__ import annotations

import json
import math
import os
import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from murmur.core.counted import counted
from murmur.core.plain_files import UNREADABLE, plain_file, read_plain
from murmur.core.printable import printable
from murmur.core.recent_rate import RecentRate
from murmur.report.about import strategy_of
from murmur.report.drawn import short
from murmur.report.records import WORDS, Records, is_number
from murmur.report.terminal_table import TerminalTable
from murmur.run.folder.lock import state_of

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


AT_ONCE = 4_000_000  # bytes


class Tail:
    """Whole lines of a file in the order in which they were appended; an incomplete line waits for its end.

    A file that was replaced or has become shorter is read from its beginning; `begun` counts these restarts.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.begun = 0
        self.read_bytes, self.size_bytes = 0, 0
        self._inode = -1
        self._rest = b""

    def lines(self) -> list[bytes]:
        """New lines, of at most AT_ONCE bytes; empty if nothing was added or there is no file yet."""
        try:
            file = plain_file(self.path)
        except FileNotFoundError:
            return []
        with file:
            found = os.fstat(file.fileno())
            if found.st_ino != self._inode or found.st_size < self.read_bytes:
                self._inode, self.read_bytes, self._rest = found.st_ino, 0, b""
                self.begun += 1
            file.seek(self.read_bytes)
            new = file.read(AT_ONCE)
        self.read_bytes += len(new)
        self.size_bytes = max(found.st_size, self.read_bytes)
        *whole, self._rest = (self._rest + new).split(b"\n")
        return whole

    @property
    def behind(self) -> bool:
        return self.read_bytes < self.size_bytes


BLOCKS = "▁▂▃▄▅▆▇█"
SPARKS = 24
MOST_LEARNERS = 16
LONGEST_FOLDER = 32
STYLES = {
    "finished": "green",
    "computing": "green",
    "going": "green",
    "testing": "cyan",
    "starting": "cyan",
    "back": "cyan",
    "slow": "yellow",
    "lost": "bold red",
    "stopped": "red",
    "failed": "bold red",
    "killed": "bold red",
    "cut off": "bold red",
}
ORDER = ("lost", "slow", "back", "computing", "stopped", "finished")


def frame(run: Watched) -> RenderableType:
    parts: list[RenderableType] = [heading(run), progress(run), *figures(run)]
    if run.seen:
        parts.append(learners(run))
    if run.damaged:
        parts.append(Text(f"{counted(run.damaged, 'damaged record')} passed over", style="yellow"))
    parts += [Text(printable(line)) for line in ending(run)]
    return Group(*parts)


def heading(run: Watched) -> Text:
    count = printable(str(run.facts.get("learners") or len(run.seen) or 1))
    folder = printable(" ".join(str(run.folder).split()))
    folder = folder if len(folder) <= LONGEST_FOLDER else f"…{folder[1 - LONGEST_FOLDER :]}"
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(run.state, style=STYLES[run.state]).append("  ").append(folder, style="bold")
    text.append(f"  {count} learner{'' if count == '1' else 's'}")
    strategy = printable(strategy_of(run.facts))
    return text.append(f"  {strategy}" if strategy != "-" else "")


def progress(run: Watched) -> RenderableType:
    if run.tail.behind:
        share = run.tail.read_bytes / max(1, run.tail.size_bytes)
        return Text(f"reading records: {100 * share:.0f} %")
    done = run.progress
    virtual = " (virtual)" if "simulated" in run.facts else ""
    words = f"{duration(run.records.last_seconds)} of training{virtual}"
    if done is None:
        return Text(f"{words}; run.json has no budget")
    words = f"epoch {run.epoch:.2f}  {words}"
    if run.state == "going" and run.seconds_to_go is not None:
        words += f"  {duration(run.seconds_to_go)} to go"
    row = Table.grid(padding=(0, 1), expand=False)
    row.add_row(ProgressBar(total=1.0, completed=done, width=20), f"{100 * done:.1f} %", words)
    return row


def figures(run: Watched) -> list[Text]:
    records = run.records
    losses = [loss for _, _, loss in records.training_losses]
    made = []
    if losses:
        made.append(Text(f"training loss {losses[-1]:.4f}  {sparkline(losses)}"))
    if records.evaluations:
        last = records.evaluations[-1]
        told = "  ".join(f"{printable(short(name))} {value:.4g}" for name, value in list(last.figures.items())[:4])
        at = f"after {last.samples:,.0f} samples" if last.epoch is None else f"at epoch {last.epoch:.2f}"
        made.append(Text(f"held-out {at}: {told}", no_wrap=True, overflow="ellipsis"))
    speed = run.samples_per_second
    words = [f"{records.last_samples:,.0f} samples"]
    words += [f"{speed:,.0f} samples/s"] if speed is not None else []
    words += [f"learning rate {records.rates[-1][1]:.4g}"] if records.rates else []
    words += [f"{100 * records.waiting_share:.1f} % not computing"] if records.waiting_share is not None else []
    made.append(Text("  ".join(words)))
    return made


def learners(run: Watched) -> TerminalTable:
    """A row for each learner; if there are many, those in trouble come first."""
    numbers = ("learner", "steps", "s/step", "computing", "staleness", "loss")
    table = TerminalTable((*numbers, "state"), right=numbers, box=None)
    state = run.state
    states = {learner: run.learner_state(learner, state) for learner in sorted(run.seen)}
    shown = sorted(states, key=lambda learner: (ORDER.index(states[learner][0]), learner))[:MOST_LEARNERS]
    if len(states) <= MOST_LEARNERS:
        shown = sorted(states)
    for learner in shown:
        state, words = states[learner]
        table.add_row(*cells(run, learner), Text(printable(f"{state} {words}").rstrip(), style=STYLES[state]))
    if len(shown) < len(states):
        rest = [states[learner][0] for learner in states if learner not in shown]
        told = ", ".join(f"{rest.count(state)} {state}" for state in ORDER if state in rest)
        table.add_row("...", "", "", "", "", "", f"and {told}")
    return table


def cells(run: Watched, learner: int) -> tuple[str, ...]:
    """Numbers of a learner: steps, seconds per step, share of computing, staleness and loss of the last step."""
    records = run.records
    spent, steps = records.seconds_of[learner], records.steps_of[learner]
    total, last = sum(spent.values()), records.latest[learner]
    counts = records.staleness[learner]
    mean = sum(stale * count for stale, count in counts.items()) / max(1, counts.total())
    return (
        str(learner),
        f"{steps:,}",
        f"{total / max(1, steps):.3g}",
        f"{100 * spent['compute'] / total:.0f} %" if total > 0 else "-",
        f"{mean:.1f}",
        f"{last['loss']:.4f}" if is_number(last.get("loss")) else "not finite",
    )


def ending(run: Watched) -> list[str]:
    is_loop = "launch" in run.facts  # of a user
    go_on = "To go on: the same command" + (", and me.load_state_dict() in the loop" if is_loop else " with --resume")
    if run.state == "cut off":
        return [f"no record for {duration(run.quiet_seconds)}: cut off, or stuck. {go_on}"]
    if run.state in ENDINGS:
        return [f"{state_of(run.folder)}. {go_on}"]
    if run.state != "finished":
        quiet = run.quiet_seconds
        return [f"no record for {duration(quiet)}, but its processes live"] if quiet > QUIET_SECONDS else []
    lines = run.score.get("lines")
    told = [str(line) for line in lines] if isinstance(lines, list) else []
    return [*told, f"murmur report {run.folder}"]


def sparkline(values: Sequence[float]) -> str:
    """A curve of characters from SPARKS: the mean of each stretch, scaled from lowest to highest."""
    size = math.ceil(len(values) / SPARKS)
    means = [sum(part) / len(part) for at in range(0, len(values), size) if (part := values[at : at + size])]
    low, high = min(means), max(means)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[round((mean - low) * scale)] for mean in means)


def duration(seconds: float) -> str:
    """Seconds in readable form: 4 s, 1 min 03 s, 2 h 05 min."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
