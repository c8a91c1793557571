"""A learner of `faults.py` that trains in a loop of its own, by `murmur.join`.

Each loop has its own data and goes on until all have taken the steps of the budget together: a lost learner's data stay
undone, and the others take more of theirs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import torch

import murmur
from murmur.core.learner import Strategy
from murmur.engine.schedule import Cosine
from murmur.worlds.process.environment import Place
from murmur.worlds.process.failure_detector import LEAST_SECONDS
from trouble import MINIBATCH, PacedRegression


def run_loop(
    strategy: Strategy,
    task: PacedRegression,
    place: Place,
    folder: Path,
    log_step: Callable[[], None],
    start_seconds: float,
) -> int:
    """Train until the budget is spent, and write the held-out figures; return the exit status."""
    model, schedule = task.model(), Cosine(warm=0.0)
    optimizer = torch.optim.SGD(model.parameters(), 0.2)
    seconds = {"timeout_seconds": 60.0, "lease_seconds": LEAST_SECONDS, "start_seconds": start_seconds}
    plan = murmur.Plan(task.per_epoch, MINIBATCH, **seconds)
    try:
        with murmur.join(strategy, model, optimizer, plan, place) as me:
            while me.progress.minibatches < task.per_epoch:
                optimizer.param_groups[0]["lr"] = 0.2 * schedule(me.progress)
                loss = task.loss(model, task.minibatch(me.steps * me.size + me.rank))
                (loss.total / loss.samples).backward()
                me.step(loss.samples)
                log_step()
    except murmur.PeerLost as error:
        (folder / f"{place.rank}.error").write_text(f"{time.monotonic()} {type(error).__name__}: {error}")
        return 1
    with torch.no_grad():
        (folder / "figures.json").write_text(json.dumps(task.evaluate(model)))
    return 0
