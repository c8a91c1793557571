"""`murmur watch`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from murmur.core.errors import SettingError
from murmur.core.stop_signals import Stopped
from murmur.report.watch import ENDINGS, Watched, frame

SHOWN = 4  # runs in a message
app = typer.Typer(add_completion=False)

Run = Annotated[Path, typer.Argument(metavar="RUN", help="Folder (--out) of a run, running or ended.")]
Once = Annotated[bool, typer.Option("--once", help="Print one frame and exit.")]
Every = Annotated[float, typer.Option(min=0.1, help="Seconds between two frames.")]


@app.command()
def watch(run: Run, once: Once = False, every: Every = 1.0) -> None:
    """Watch a run in the terminal: progress, loss, speed, the state of every learner, time left.

    Example: murmur watch runs/toy

    Only new lines of records.jsonl are read, so long runs can be watched, also over ssh. A learner is slow when the
    run's own straggler report says so. It is lost when it has been silent for 20 of its steps and for at least 5 s
    while others went on, and shown as back for a minute after its return. The command ends with the run: with status 0
    if the run has finished, with 1 if it was stopped, failed or was killed, according to its lock and its final record
    (a run without them ends when no record has come for a minute). Ctrl-C ends the command and not the run.
    """
    if not run.is_dir():
        raise SettingError(f"there is no folder {run}: name the --out of a murmur train")
    refuse_several(run)
    watched, console = Watched(run, time.time), Console(highlight=False)
    if once:
        while watched.look():
            pass
        console.print(frame(watched))
        return
    try:
        state = follow(watched, console, every)
    except Stopped as stopped:
        raise typer.Exit(128 + stopped.number) from None
    raise typer.Exit(1 if state in ENDINGS else 0)


def refuse_several(folder: Path) -> None:
    """Refuse a folder that holds runs, and is none itself."""
    if (folder / "run.json").is_file() or (folder / "records.jsonl").is_file():
        return
    runs = sorted(path.parent for path in (*folder.glob("*/run.json"), *folder.glob("runs/*/run.json")))
    if runs or any((folder / name).is_file() for name in ("cells.jsonl", "compare.json")):
        some = ", ".join(map(str, runs[:SHOWN])) + (", ..." if len(runs) > SHOWN else "")
        raise SettingError(f"{folder} is the folder of several runs: name one of them" + (f": {some}" if runs else ""))


def follow(watched: Watched, console: Console, every: float) -> str:
    """Show the run until it ends; return its final state."""
    with Live(console=console, auto_refresh=False, transient=False) as live:
        while True:
            more = watched.look()
            live.update(frame(watched), refresh=True)
            if more:
                continue
            if (state := watched.state) in ("finished", *ENDINGS):
                return state
            time.sleep(every)
