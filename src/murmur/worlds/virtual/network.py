"""Model of a network: cards share outgoing bytes fairly and serve incoming bytes in order of arrival.

A message of b bytes from i to j passes

    device to host   b / C, one message of i after another (no time if C is infinite)
    the way out      shared fairly, as a fluid, by all pairs of learners whose messages leave through the same port;
                     none is faster than the port that it goes to; those of one pair go one after another
    latency          of the slower end
    the way in       B_j, shared by simultaneous arrivals; the message whose last byte comes first is served first
    host to device   b / C, one message of j after another

A port is a node's card for messages between nodes, and a learner's own link for messages inside a node. If the way in
were reserved when a message is *sent*, one slow sender would block all other messages to the same receiver. If the way
out were served in order, one slow receiver would block a sender.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from functools import partial

from murmur.core.trace import Transfer
from murmur.worlds.virtual.clock import TICK_SECONDS, Clock
from murmur.worlds.virtual.cluster import ALLREDUCE, Cluster, Link, Places, broadcast

Done = Callable[[], None]
NEVER = float("inf")
DUST = 1e-9  # fraction of a message that rounding may leave over


class Flows:
    """Messages of one port with the same `cap` on their rates: all have one rate, so they share a clock.

    `served` counts the bytes that each message here has sent since the beginning; one that joins at v is complete at
    v + its size.
    """

    def __init__(self, cap: float) -> None:
        self.cap, self.rate, self.served = cap, 0.0, 0.0
        self.due: list[tuple[float, int, float, Done]] = []  # (served at completion, order, size, action)


class WayOut:
    """The way out of a port: max-min fair sharing of its bytes per second."""

    def __init__(self, clock: Clock, bytes_per_second: float) -> None:
        self.clock, self.bytes_per_second = clock, bytes_per_second
        self._flows: dict[float, Flows] = {}
        self._active = self._count = 0
        self._at = 0.0
        self._wake = NEVER  # time of the earliest event planned for this port
        self._settling = False

    def add(self, size: float, cap: float, done: Done) -> None:
        """Send a message of `size` bytes, at no more than `cap` bytes per second; then call `done`."""
        self._advance()
        flows = self._flows.get(cap)
        if flows is None:
            flows = self._flows[cap] = Flows(cap)
        self._count += 1
        heapq.heappush(flows.due, (flows.served + size, self._count, size, done))
        self._active += 1
        if not self._settling:  # other messages that leave at this moment share with it
            self._settling = True
            self.clock.after(0.0, self._settle)

    def _settle(self) -> None:
        self._settling = False
        self._share()
        self._plan()

    def _advance(self) -> None:
        passed = self.clock.now - self._at
        if passed > 0:
            for flows in self._flows.values():
                flows.served += flows.rate * passed
            self._at = self.clock.now

    def _share(self) -> None:
        """Set rates by water-filling: the tightest caps first, then the others share the rest."""
        left, active = self.bytes_per_second, self._active
        if len(self._flows) == 1 and active:
            flows = next(iter(self._flows.values()))
            flows.rate = min(flows.cap, left / active)
            return
        busy = [flows for flows in self._flows.values() if flows.due]
        if len(busy) > 1:
            busy.sort(key=lambda flows: flows.cap)
        for flows in busy:
            flows.rate = min(flows.cap, left / active)
            left -= flows.rate * len(flows.due)
            active -= len(flows.due)

    def _plan(self) -> None:
        soonest = NEVER
        for flows in self._flows.values():
            if flows.due:
                soonest = min(soonest, self.clock.now + max(0.0, flows.due[0][0] - flows.served) / flows.rate)
        if soonest < self._wake:
            self._wake = soonest
            self.clock.after(soonest - self.clock.now, partial(self._look, soonest))

    def _look(self, planned: float) -> None:
        if planned != self._wake:
            return  # replaced by an earlier event
        self._wake = NEVER
        self._advance()
        through: list[tuple[int, Done]] = []
        for flows in self._flows.values():
            # A moment that the clock cannot tell from now becomes now; otherwise the event would never be reached.
            unseen = flows.rate * TICK_SECONDS + 4e-16 * (flows.rate * self.clock.now + flows.served)
            while flows.due and flows.due[0][0] - flows.served <= max(DUST * flows.due[0][2], unseen):
                _, order, _, done = heapq.heappop(flows.due)
                through.append((order, done))
            if not flows.due:
                flows.served = 0.0  # small numbers stay exact
        self._active -= len(through)
        if self._active:
            self._share()
            self._plan()
        for _, done in sorted(through) if len(through) > 1 else through:
            done()


class WayIn:
    """The way in of a port: a queue served at B bytes per second in the order of last bytes.

    A message's bytes arrive evenly between its first and its last one. With A(s) the bytes after s of it and of all
    earlier messages, it has been received at

        max(last byte, max_s s + A(s) / B),      s: the moments of first bytes

    (after any moment s the port cannot have been faster). Sums are kept for each s. Those before every message that is
    still arriving grow alike from now on, so that only the largest of them is kept.
    """

    def __init__(self, bytes_per_second: float) -> None:
        self.bytes_per_second = bytes_per_second
        self._coming: list[float] = []  # first bytes of messages that are still arriving
        self._came: list[tuple[float, float, float]] = []  # first byte, last byte, size
        self._sums: dict[float, float] = {}  # s -> s + A(s) / B

    def begin(self, first: float) -> None:
        """Record the arrival of a message's first byte."""
        self._coming.append(first)

    def end(self, first: float, last: float, size: float) -> float:
        """Record the arrival of its last byte; return the time at which it has been received."""
        message = (first, last, size)
        self._coming.remove(first)
        if not self._came and not self._coming and max(self._sums.values(), default=0.0) <= first:
            self._sums.clear()  # the port was idle before this message, and no other message is arriving
            self._sums[first] = taken_in = first + size / self.bytes_per_second
            return max(last, taken_in)
        self._came.append(message)
        for s in self._sums:
            self._sums[s] += _after(s, message) / self.bytes_per_second
        if first not in self._sums:
            self._sums[first] = first + sum(_after(first, m) for m in self._came) / self.bytes_per_second
        taken_in = max(last, *self._sums.values())
        self._forget()
        return taken_in

    def _forget(self) -> None:
        earliest = min(self._coming, default=NEVER)
        if len(self._came) > 1 or earliest == NEVER:
            self._came = [m for m in self._came if m[1] > earliest]
        old = [s for s in self._sums if s <= earliest]
        if len(old) > 1:
            most = max(self._sums.pop(s) for s in old)
            self._sums[max(old)] = most


def _after(s: float, message: tuple[float, float, float]) -> float:
    """Bytes of a message that arrive after the moment s."""
    first, last, size = message
    if first >= s:
        return size
    return size * (last - s) / (last - first) if last > s else 0.0


class Network:
    """Delivers messages on a clock, and counts the bytes sent by learners and through nodes' cards.

    Attributes:
        whole: Elements of the vector whose size is `Cluster.message_bytes`; None: every vector has that size.
        element_bytes: Bytes of one of its elements; None: those of every vector.
        transfers: Receives each vector sent to another learner, when it arrives (broadcasts: when they are sent).
    """

    def __init__(self, clock: Clock, cluster: Cluster) -> None:
        self.clock, self.cluster = clock, cluster
        self.whole: int | None = None
        self.element_bytes: int | None = None
        self.transfers: Callable[[Transfer], None] | None = None
        self.sent_bytes: dict[int, float] = defaultdict(float)
        self.card_bytes: dict[int, float] = defaultdict(float)
        self.gradient_seconds: dict[int, float] = defaultdict(float)  # of each learner's latest gradient
        self._out: dict[tuple[str, int], WayOut] = {}
        self._in: dict[tuple[str, int], WayIn] = {}
        self._lines: dict[tuple[int, int], deque[tuple[float, Done]]] = {}  # messages queued behind one of their pair
        self._copied_out: dict[int, float] = defaultdict(float)
        self._copied_in: dict[int, float] = defaultdict(float)
        # With one latency everywhere, messages arrive in the order in which they left: no event is needed.
        latencies = {link.latency_seconds for link in (cluster.link, *cluster.links.values())}
        self._one_latency = len(latencies) == 1

    def size_of(self, num_bytes: int, numel: int | None = None) -> float:
        """Return the bytes on the wire of a vector of `num_bytes`: none for an empty one (a request).

        With `Cluster.message_bytes` they are b n / P for a vector of the size of n of the model's P elements: a part of
        the vector (P,) costs its share, and a compressed vector as much less as its elements are shorter. A longer
        vector of the model's type costs b for each P elements in full (the weights and their moments; a few numbers
        beside the weights cost nothing), and one of unknown length b.
        """
        fixed = self.cluster.message_bytes
        if fixed is None or num_bytes == 0:
            return num_bytes
        if numel is None or self.whole is None:
            return fixed
        elements = numel if self.element_bytes is None else num_bytes / self.element_bytes
        share = elements / self.whole
        return fixed * (share // 1 if elements == numel and share >= 1 else share)

    def send(self, source: int, to: int, num_bytes: int, deliver: Done, numel: int | None = None) -> None:
        """Call `deliver` when a message with a vector of `num_bytes` and `numel` elements has arrived in full."""
        size = self.size_of(num_bytes, numel)
        self.sent_bytes[source] += size
        if source == to:
            self.clock.after(0.0, deliver)
            return
        if self.transfers is not None and num_bytes > 0:
            deliver = partial(self._record, source, to, self.clock.now, deliver)
        if self.cluster.node_of(source) != self.cluster.node_of(to):
            self.card_bytes[self.cluster.node_of(source)] += size
        begin = self._copied(self._copied_out, source, self.clock.now, size)
        if begin > self.clock.now:
            self.clock.after(begin - self.clock.now, partial(self._leave, source, to, size, deliver))
        else:
            self._leave(source, to, size, deliver)

    def _record(self, source: int, to: int, sent_seconds: float, deliver: Done) -> None:
        assert self.transfers is not None  # `send` asks for it
        self.transfers(Transfer(source, to, sent_seconds, self.clock.now))
        deliver()

    def _leave(self, source: int, to: int, size: float, deliver: Done) -> None:
        """Queue a message of a pair, so that a small one never overtakes a large one."""
        waiting = self._lines.get((source, to))
        if waiting is not None:
            waiting.append((size, deliver))
        else:
            self._lines[source, to] = deque()
            self._flow(source, to, size, deliver)

    def _next(self, source: int, to: int) -> None:
        waiting = self._lines[source, to]
        if waiting:
            self._flow(source, to, *waiting.popleft())
        else:
            del self._lines[source, to]

    def _flow(self, source: int, to: int, size: float, deliver: Done) -> None:
        cluster = self.cluster
        here, there = cluster.node_of(source), cluster.node_of(to)
        if here == there:
            out_port, in_port, ours, theirs = ("inside", source), ("inside", to), cluster.inside, cluster.inside
        else:
            out_port, in_port = ("card", here), ("card", there)
            ours, theirs = cluster.link_of(source), cluster.link_of(to)
        way_out = self._out.get(out_port)
        if way_out is None:
            way_out = self._out[out_port] = WayOut(self.clock, ours.bytes_per_second)
        way_in = self._in.get(in_port)
        if way_in is None:
            way_in = self._in[in_port] = WayIn(theirs.bytes_per_second)
        latency = max(ours.latency_seconds, theirs.latency_seconds)
        first = self.clock.now + latency
        way_in.begin(first)
        arrive = partial(self._arrive, way_in, to, (first, size), deliver)

        def left() -> None:
            if self._one_latency or here == there:
                arrive(latency)
            else:
                self.clock.after(latency, partial(arrive, 0.0))
            self._next(source, to)

        way_out.add(size, theirs.bytes_per_second, left)

    def _arrive(self, way_in: WayIn, to: int, message: tuple[float, float], deliver: Done, later: float) -> None:
        """Handle the last byte of a message, which comes `later` from now."""
        first, size = message
        taken_in = way_in.end(first, self.clock.now + later, size)
        self.clock.after(self._copied(self._copied_in, to, taken_in, size) - self.clock.now, deliver)

    def _copied(self, free: dict[int, float], learner: int, at: float, size: float) -> float:
        if self.cluster.copy_bytes_per_second == NEVER or size == 0:
            return at
        free[learner] = max(free[learner], at) + size / self.cluster.copy_bytes_per_second
        return free[learner]

    def allreduce_seconds(self, learners: Sequence[int], num_bytes: int, numel: int | None = None) -> float:
        """Return and record the cost of an allreduce of the cluster's kind, in seconds, with copies to the host.

        With `numel` elements, a part of the model's vector costs its share; None: it is a whole one.
        """
        if len(learners) < 2:
            return 0.0
        size = self.size_of(num_bytes, numel)
        cost = ALLREDUCE[self.cluster.allreduce](size, self.places(learners))
        for learner in learners:
            self.sent_bytes[learner] += cost.sent_bytes
        for node in self.cluster.places(learners):
            self.card_bytes[node] += cost.card_bytes
        return cost.seconds + self._copies(learners, size)

    def exposed_allreduce_seconds(self, learners: Sequence[int], num_bytes: int, gradient_seconds: float) -> float:
        """Return and record the cost of an allreduce behind a backward pass: the seconds after the end of that pass.

            C - min(C (1 - l / b), beta t)

        C: seconds of the allreduce; b: bytes of the vector; l: bytes of the last bucket, whose sum begins at the end of
        the pass; t: seconds of the gradient, beta: share of its backward pass. Sums of devices on several nodes pass
        through host memory, one after another at the end of the pass: nothing of them is hidden.
        """
        seconds, size = self.allreduce_seconds(learners, num_bytes), self.size_of(num_bytes)
        if size == 0 or self._copies(learners, size) > 0:
            return seconds
        last = self.cluster.last_bucket_bytes(size) / size
        return seconds - min(seconds * (1 - last), self.cluster.backward_share * gradient_seconds)

    def broadcast_seconds(self, learners: Sequence[int], num_bytes: int, root: int) -> float:
        """Return and record the cost of a broadcast by learner `root`, in seconds, with copies to the host."""
        if len(learners) < 2:
            return 0.0
        size = self.size_of(num_bytes)
        seconds = broadcast(size, self.places(learners))
        others = [learner for learner in learners if learner != root]
        for sender in (root, *others[:-1]):  # in a tree others send, and just as much
            self.sent_bytes[sender] += size
        nodes = list(self.cluster.places((root, *others)))
        for node in nodes[:-1]:
            self.card_bytes[node] += size
        seconds += self._copies(learners, size)
        if self.transfers is not None:
            for learner in others:
                self.transfers(Transfer(root, learner, self.clock.now, self.clock.now + seconds))
        return seconds

    def _copies(self, learners: Sequence[int], size: float) -> float:
        """Seconds of copies between devices and hosts; devices of one node reach each other directly."""
        apart = len(self.cluster.places(learners)) > 1 or self.cluster.learners_per_node == 1
        return 2 * size / self.cluster.copy_bytes_per_second if apart else 0.0

    def places(self, learners: Sequence[int]) -> Places:
        """Return the places of these learners with the slowest of their links."""
        cluster = self.cluster
        cards = [cluster.link_of(learner) for learner in learners]
        card = Link(max(c.latency_seconds for c in cards), min(c.bytes_per_second for c in cards))
        return Places(tuple(cluster.places(learners).values()), card, cluster.inside, cluster.reduce_bytes_per_second)
