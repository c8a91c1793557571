"""`murmur demo`: the embedded corpus, one learner beside two, as separate processes."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from murmur.settings import load
from murmur.training import Request, read_score, write_run
from murmur.worlds.torch.launch import Launch

RECIPE = "ctc"
LEARNERS = (1, 2)


def run_demo(out: Path) -> int:
    """Prepare, train with one and with two learners of one thread each, and print both results.

    Returns:
        The exit status.
    """
    console = Console()
    start = time.monotonic()
    console.print("[bold]1/3[/] preparing the corpus (digits spoken by espeak-ng)")
    load(RECIPE).task.prepare()
    console.print(f"    ready after {time.monotonic() - start:.0f} s")
    rows = []
    for step, learners in enumerate(LEARNERS, start=2):
        folder = out / f"learners-{learners}"
        console.print(f"[bold]{step}/3[/] training with {learners} learner{'s' if learners > 1 else ''}")
        request = Request(RECIPE, learners=learners, out=folder, threads=1)
        write_run(request, request.experiment())
        began = time.monotonic()
        code = Launch(request.command_line, learners).run()
        if code != 0:
            console.print(f"training with {learners} learners ended with status {code}", style="red")
            return code
        rows.append((learners, time.monotonic() - began, read_score(folder)))
    console.print(_table(rows))
    console.print(f"everything is in {out}; {time.monotonic() - start:.0f} s in all")
    sys.stdout.flush()
    return 0


def _table(rows: list[tuple[int, float, dict[str, object]]]) -> Table:
    table = Table(title="unseen voices")
    for name in ("learners", "seconds", "result"):
        table.add_column(name, justify="right" if name != "result" else "left")
    for learners, seconds, score in rows:
        lines = score["lines"]
        table.add_row(str(learners), f"{seconds:.0f}", "\n".join(lines) if isinstance(lines, list) else "")
    return table
