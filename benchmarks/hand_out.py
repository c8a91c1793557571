"""Hand-out of averaged weights inside super-learners: seconds between gradients that a learner spends on it.

Two super-learners of two processes each on this host, ADPSGD among them, ten million weights, gradients of 50 ms. The
hand-out of a leader is its opening of a step: additions that land on its weights, and what it begins to send to its
members. The hand-out of a member is the time from the opening to its gradient, without the step that it repeats. Both
are on the critical path; what runs beside the gradient is not counted. Seconds are wall seconds and processor seconds
of the training thread: four processes share few cores here, and a thread that waits for a core is no hand-out.

    python benchmarks/hand_out.py
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import torch

from measure import bar, close
from murmur.core.local_steps import LocalSteps
from murmur.strategies import ADPSGD, SuperLearners
from murmur.strategies.super_learners import STEP, Leader
from murmur.worlds.process.environment import Place, place_of
from murmur.worlds.process.group import TorchGroup
from murmur.worlds.process.launcher import Launch
from paced import Paced, train

KIND = "bar"
LEARNERS, NODE_SIZE, NUMEL, SECONDS, STEPS, REPEATS = 4, 2, 10_000_000, 0.05, 30, 3
SHARE, SKIPPED = 0.1, 5
Moment = tuple[float, float]  # wall seconds, processor seconds of this thread


def moment() -> Moment:
    return time.monotonic(), time.thread_time()


class Measured:
    """Times of a learner's hand-outs, taken around its verbs.

    Attributes:
        found: one pair (wall seconds, processor seconds) for each step.
    """

    def __init__(self) -> None:
        self.found: list[Moment] = []
        self._opened: Moment | None = None
        self._apart = [0.0, 0.0]

    def around(self, owner: Any, name: str, act: Callable[[Any, Moment, Moment], None]) -> None:
        """Call `act(result, before, after)` after each call of a method, coroutine or not."""
        inner = getattr(owner, name)

        async def timed(*args: Any, **named: Any) -> Any:
            before = moment()
            result = await inner(*args, **named)
            act((args, result), before, moment())
            return result

        @wraps(inner)
        def plain(*args: Any, **named: Any) -> Any:
            before = moment()
            result = inner(*args, **named)
            act((args, result), before, moment())
            return result

        setattr(owner, name, timed if name == "recv" else plain)

    def lead(self, _: Any, before: Moment, after: Moment) -> None:
        self.found.append((after[0] - before[0], after[1] - before[1]))

    def opened(self, call: Any, _: Moment, after: Moment) -> None:
        if call[0][2] == STEP:
            self._opened, self._apart = after, [0.0, 0.0]

    def repeated(self, _: Any, before: Moment, after: Moment) -> None:
        self._apart = [after[0] - before[0], after[1] - before[1]]

    def begins(self, _: Any, before: Moment, __: Moment) -> None:
        if self._opened is not None:
            wall, cpu = (b - o - a for b, o, a in zip(before, self._opened, self._apart, strict=True))
            self.found.append((wall, cpu))
            self._opened = None


def learner(place: Place) -> None:
    """One learner; its hand-outs go to a file."""
    torch.set_num_threads(1)
    measured = Measured()
    measured.around(Leader, "_open", measured.lead)
    measured.around(TorchGroup, "recv", measured.opened)
    measured.around(LocalSteps, "repeat", measured.repeated)
    measured.around(LocalSteps, "averaged", measured.begins)
    ran = train(place, Paced(SECONDS, NUMEL), SuperLearners(ADPSGD(), NODE_SIZE), STEPS * LEARNERS)
    found = {"found": measured.found[SKIPPED:], "step": ran.seconds_per_step if len(ran.steps) > SKIPPED else None}
    (Path(sys.argv[1]) / f"{place.rank}.json").write_text(json.dumps(found))


def measure() -> dict[str, float]:
    """Medians of one run: seconds of leaders and of members."""
    with tempfile.TemporaryDirectory() as folder:
        status = Launch(lambda place, resume: [sys.executable, __file__, folder], learners=LEARNERS).run()
        if status:
            raise SystemExit(status)
        rows = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(LEARNERS)]
    found: dict[str, float] = {"step": max(row["step"] for row in rows if row["step"] is not None)}
    for what, first in (("leader", 0), ("member", 1)):
        pairs = [pair for row in rows[first::NODE_SIZE] for pair in row["found"]]
        for kind, values in zip(("wall", "processor"), zip(*pairs, strict=True), strict=True):
            found[f"{what}, {kind}"] = statistics.median(values)
    return found


def main() -> None:
    place = place_of()
    if place is not None:
        learner(place)
        return
    runs = []
    for _ in range(REPEATS):
        runs.append(measure())
        print("  ".join(f"{name} {value * 1e3:.1f} ms" for name, value in runs[-1].items()), flush=True)
    middle = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    bars = [
        bar(f"hand-out of a {who}, {kind} seconds / {SECONDS:g} s", middle[f"{who}, {kind}"] / SECONDS, SHARE)
        for who in ("leader", "member")
        for kind in ("wall", "processor")
    ]
    close("hand_out", {"runs": runs, "medians": middle}, bars)


if __name__ == "__main__":
    main()
