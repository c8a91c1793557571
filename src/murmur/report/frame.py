"""A frame of `murmur watch`: a run on a terminal of 80 columns or more."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from murmur.core.counted import counted
from murmur.core.printable import printable
from murmur.report.about import strategy_of
from murmur.report.drawn import short
from murmur.report.records import is_number
from murmur.report.terminal_table import TerminalTable
from murmur.report.watched import ENDINGS, QUIET_SECONDS, Watched
from murmur.run.folder.state import state_of

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
    """The current state of the run."""
    parts: list[RenderableType] = [heading(run), progress(run), *figures(run)]
    if run.seen:
        parts.append(learners(run))
    if run.damaged:
        parts.append(Text(f"{counted(run.damaged, 'damaged record')} passed over", style="yellow"))
    parts += [Text(printable(line)) for line in ending(run)]
    return Group(*parts)


def heading(run: Watched) -> Text:
    """Folder, strategy, learners, state."""
    count = printable(str(run.facts.get("learners") or len(run.seen) or 1))
    folder = printable(" ".join(str(run.folder).split()))
    folder = folder if len(folder) <= LONGEST_FOLDER else f"…{folder[1 - LONGEST_FOLDER :]}"
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(run.state, style=STYLES[run.state]).append("  ").append(folder, style="bold")
    text.append(f"  {count} learner{'' if count == '1' else 's'}")
    strategy = printable(strategy_of(run.facts))
    return text.append(f"  {strategy}" if strategy != "-" else "")


def progress(run: Watched) -> RenderableType:
    """A bar, the share that is done, and the remaining time."""
    if run.tail.behind:
        share = run.tail.read_bytes / max(1, run.tail.size_bytes)
        return Text(f"reading records: {100 * share:.0f} %")
    done = run.progress
    virtual = " (virtual)" if "simulated" in run.facts else ""
    words = f"epoch {run.epoch:.2f}  {duration(run.records.last_seconds)} of training{virtual}"
    if done is None:
        return Text(f"{words}; run.json has no budget")
    if run.state == "going" and run.seconds_to_go is not None:
        words += f"  {duration(run.seconds_to_go)} to go"
    row = Table.grid(padding=(0, 1), expand=False)
    row.add_row(ProgressBar(total=1.0, completed=done, width=20), f"{100 * done:.1f} %", words)
    return row


def figures(run: Watched) -> list[Text]:
    """Losses, speed, and held-out figures."""
    records = run.records
    losses = [loss for _, _, loss in records.training_losses]
    made = []
    if losses:
        made.append(Text(f"training loss {losses[-1]:.4f}  {sparkline(losses)}"))
    if records.evaluations:
        last = records.evaluations[-1]
        told = "  ".join(f"{printable(short(name))} {value:.4g}" for name, value in list(last.figures.items())[:4])
        made.append(Text(f"held-out at epoch {last.epoch:.2f}: {told}", no_wrap=True, overflow="ellipsis"))
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
    """Advice on the next step, or the result."""
    if run.state == "cut off":
        since = duration(run.quiet_seconds)
        return [f"no record for {since}: cut off, or stuck. To go on: the same command with --resume"]
    if run.state in ENDINGS:
        return [f"{state_of(run.folder)}. To go on: the same command with --resume"]
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
