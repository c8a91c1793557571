"""Seconds that a learner's bytes take on its network, as measured by the system. Standard library only."""

from __future__ import annotations

import math
import socket
import struct
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass

SENT_OFFSET, RATE_OFFSET, INFO_BYTES = 120, 160, 168  # tcpi_bytes_acked and tcpi_delivery_rate of Linux's tcp_info


@dataclass(frozen=True)
class Flow:
    """Traffic of one connection: bytes that have arrived at its other end, and the latest rate."""

    sent_bytes: int
    bytes_per_second: int


def flow_of(line: socket.socket) -> Flow | None:
    """Return the flow of a TCP connection; None if the system does not report it."""
    if not hasattr(socket, "TCP_INFO"):
        return None
    told = line.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_BYTES)
    if len(told) < INFO_BYTES:
        return None  # an old kernel
    (sent,), (rate,) = (struct.unpack_from("=Q", told, offset) for offset in (SENT_OFFSET, RATE_OFFSET))
    return Flow(sent, rate)


class Traffic:
    """Traffic sent by one learner; `flows` returns the flows of its present connections, by unique names."""

    def __init__(self, flows: Callable[[], Mapping[Hashable, Flow]]) -> None:
        self._flows = flows
        self._before: Mapping[Hashable, Flow] = flows()

    def since_last(self) -> tuple[float, float]:
        """Return seconds per byte on the fastest connection and bytes sent since the last call; nan if unknown.

        The fastest connection counts, because a slow one may be slow at its other end.
        """
        flows, before = self._flows(), self._before
        self._before = flows
        sent = {each: flow.sent_bytes - getattr(before.get(each), "sent_bytes", 0) for each, flow in flows.items()}
        fastest = max((flow.bytes_per_second for each, flow in flows.items() if sent[each] > 0), default=0)
        return (1 / fastest, sum(sent.values()) / fastest) if fastest > 0 else (math.nan, math.nan)
