"""Seconds that bytes take. Cards serve arrivals in order; an exchange of all is charged as a ring allreduce.

A point-to-point message of b bytes from i to j reaches j's card after latency + b / min(B_i, B_j) and then needs the
card for b / B_j, after what arrived earlier. Reserving the card when a message is *sent* would let one slow sender
block everybody else's messages to the same receiver.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from murmur.worlds.virtual.clock import Clock
from murmur.worlds.virtual.cluster import Cluster


class Network:
    """Delivers messages on a clock and keeps the ledger of bytes."""

    def __init__(self, clock: Clock, cluster: Cluster) -> None:
        self.clock, self.cluster = clock, cluster
        self.sent_bytes: dict[int, float] = defaultdict(float)
        self.sent_messages: dict[int, int] = defaultdict(int)
        self._free: dict[int, float] = defaultdict(float)

    def size_of(self, num_bytes: int) -> float:
        """Bytes on the wire of a vector of `num_bytes`."""
        return num_bytes if self.cluster.message_bytes is None else self.cluster.message_bytes

    def send(self, source: int, to: int, num_bytes: int, deliver: Callable[[], None]) -> None:
        """Let `deliver` happen when the message has arrived in full."""
        size = self.size_of(num_bytes)
        self.sent_bytes[source] += size
        self.sent_messages[source] += 1
        if source == to:
            self.clock.after(0.0, deliver)
            return
        ours, theirs = self.cluster.link_of(source), self.cluster.link_of(to)
        slowest = min(ours.bytes_per_second, theirs.bytes_per_second)
        latency = max(ours.latency_seconds, theirs.latency_seconds)
        on_card = size / theirs.bytes_per_second

        def arrive() -> None:
            # The last byte is here now if the card was free; otherwise the card still has this message to take in.
            begun = max(self.clock.now - on_card, self._free[to])
            self._free[to] = begun + on_card
            self.clock.after(max(0.0, self._free[to] - self.clock.now), deliver)

        self.clock.after(latency + size / slowest, arrive)

    def allreduce_seconds(self, learners: Sequence[int], num_bytes: int) -> float:
        """Ring allreduce of b bytes over L learners: 2 (L - 1) steps of b / L bytes each over the slowest card."""
        size, count = self.size_of(num_bytes), len(learners)
        if count < 2:
            return 0.0
        links = [self.cluster.link_of(learner) for learner in learners]
        bandwidth = min(link.bytes_per_second for link in links)
        latency = max(link.latency_seconds for link in links)
        for learner in learners:
            self.sent_bytes[learner] += 2 * (count - 1) / count * size
            self.sent_messages[learner] += 2 * (count - 1)
        return 2 * (count - 1) * (latency + size / count / bandwidth)
