"""Collects learners' figures without a collective, and reports slow learners.

Every few seconds each learner sends a message of a few numbers to the leader, which judges them on arrival.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from datetime import datetime, timedelta

import torch

from murmur.core.learner import Learner
from murmur.core.trace import COMPUTE, DATA
from murmur.engine.record import Record, StragglerRecord
from murmur.engine.stragglers import Estimate, LinkEstimate, Straggler, Stragglers, Window
from murmur.engine.task_source import TaskSource

log = logging.getLogger(__name__)

PACE = "pace"
EVERY_SECONDS = 5.0
FEWEST_STEPS = 3  # in a window


class Pace:
    """Detection of slow learners by one learner: observes its records, and is called at its boundaries.

    Args:
        source: Source of the learner's gradients.
        every_seconds: Shortest length of a window.
    """

    def __init__(self, source: TaskSource, every_seconds: float = EVERY_SECONDS) -> None:
        self._source, self._seat, self._every = source, source.seat, every_seconds
        self._leader, self._rank = 0, source.seat.group.rank
        self._stragglers = Stragglers()
        self._began = self._looked = self._seat.now
        self._drawn = source.drawn
        self._totals: Mapping[str, float] = self._seat.trace.totals()
        self._compute: list[float] = []
        self._data: list[float] = []

    def __call__(self, record: Record) -> None:
        """Take in the record of a step of this learner."""
        if record.kind == "step":
            self._count()

    async def boundary(self, me: Learner) -> None:
        """Take in the windows of the other learners, between two gradients, if this learner leads."""
        self._count()
        if self._seat.now - self._looked >= self._every:
            self._looked = self._seat.now
            ranks = me.view
            live = [learner for rank in ranks for learner in me.members(rank)]
            self._leader = live[0]
            self._stragglers.only(live)
        if self._leader != self._rank:
            return
        while (message := await self._seat.group.poll(PACE, 0.0)) is not None:
            window = Window.from_note(message.source, message.header)
            found = self._stragglers.see(window, self._source.clock.seconds, self._source.progress().samples)
            if found is not None:
                self._say(found)

    def _count(self) -> None:
        """Add the cost of the gradients since the last call, and send the window if it is complete."""
        done = self._source.drawn - self._drawn
        if done == 0:
            return
        totals, before = self._seat.trace.totals(), self._totals
        compute, data = ((totals.get(kind, 0.0) - before.get(kind, 0.0)) / done for kind in (COMPUTE, DATA))
        self._totals, self._drawn = totals, self._source.drawn
        self._compute.append(compute)
        self._data.append(data)
        now = self._seat.now
        if now - self._began < self._every or len(self._compute) < FEWEST_STEPS:
            return
        byte_seconds, sending_seconds = self._seat.sending()
        link = LinkEstimate(byte_seconds, sending_seconds / len(self._compute))
        window = Window(self._rank, Estimate.of(self._compute), Estimate.of(self._data), link)
        self._began, self._compute, self._data = now, [], []
        self._seat.group.post(torch.empty(0), self._leader, PACE, window.note())

    def _say(self, found: Straggler) -> None:
        """Log one line, and write one record."""
        host = self._seat.host_of(found.learner)
        at, seconds = self._source.progress(), self._source.clock.seconds
        record = StragglerRecord(
            kind="straggler",
            learner=found.learner,
            step=self._source.counters.steps + self._source.drawn,
            minibatches=at.minibatches,
            samples=at.samples,
            epoch=at.epoch,
            seconds=seconds,
            loss=math.nan,
            host=host,
            cause=found.cause,
            factor=found.factor,
            since_seconds=found.since_seconds,
            since_samples=found.since_samples,
            over=found.over,
        )
        log.warning("%s", sentence(record, datetime.now()))
        self._source.observe(record)


WORDS = {
    "compute": "computes {factor:.1f}x slower than the median",
    "data": "waits for its data, its steps take {factor:.1f}x the median,",
    "network": "sends {factor:.1f}x slower than the median",
}


def sentence(record: StragglerRecord, now: datetime) -> str:
    """Return a record as one line of text; `now` is the time of day at which it was made."""
    name = f"learner {record.learner}" + (f" (host {record.host})" if record.host else "")
    what = WORDS[record.cause].format(factor=record.factor)
    lasted, ago = record.seconds - record.since_seconds, record.samples - record.since_samples
    if record.over:
        return (
            f"{name} keeps up again; for {lasted:.0f} s and {ago:,.0f} samples of all learners it was slow: it {what}"
        )
    since = (now - timedelta(seconds=lasted)).strftime("%H:%M:%S")
    return f"{name} {what} since {since}, {ago:,.0f} samples ago"
