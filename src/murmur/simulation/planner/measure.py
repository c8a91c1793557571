"""Measured speed of this machine: addition of vectors, and their transfer over TCP on the loopback interface."""

from __future__ import annotations

import socket
import statistics
import time
from dataclasses import dataclass
from threading import Thread

import torch

CHUNK = 8_000_000  # bytes of a timed message: a model of two million weights
REPEATS = 7


@dataclass(frozen=True)
class Machine:
    """Measured medians: half the seconds of a small round trip, and bytes per second."""

    latency_seconds: float
    link_bytes_per_second: float
    reduce_bytes_per_second: float


def measure_machine() -> Machine:
    """Time the loopback interface and the addition of vectors, in about a second.

    The loopback is the *upper bound* of a network: the cost of the protocol on this host's cores, without a wire.
    """
    latency, bandwidth = _loopback()
    return Machine(latency, bandwidth, _adding())


def _adding() -> float:
    a, b = torch.ones(CHUNK // 4), torch.ones(CHUNK // 4)
    seconds = []
    for _ in range(REPEATS + 1):
        begin = time.perf_counter()
        a.add_(b)
        seconds.append(time.perf_counter() - begin)
    return CHUNK / statistics.median(seconds[1:])


def _loopback() -> tuple[float, float]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)
        echo = Thread(target=_answer, args=(server,), daemon=True)
        echo.start()
        with socket.create_connection(server.getsockname(), timeout=10) as line:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            small = statistics.median(_round(line, 1) for _ in range(20 * REPEATS))
            large = statistics.median(_round(line, CHUNK) for _ in range(REPEATS))
        echo.join(10)
    return small / 2, CHUNK / max(large - small, 1e-9)


def _round(line: socket.socket, size: int) -> float:
    """Seconds from sending `size` bytes to the arrival of a one-byte reply."""
    begin = time.perf_counter()
    line.sendall(size.to_bytes(8, "big") + bytes(size))
    if len(line.recv(1)) != 1:
        raise ConnectionError("the other end of the loopback closed during the measurement")
    return time.perf_counter() - begin


def _answer(server: socket.socket) -> None:
    line, _ = server.accept()
    buffer = bytearray(1 << 20)
    with line:
        line.settimeout(10)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while head := line.recv(8, socket.MSG_WAITALL):
            left = int.from_bytes(head, "big")
            while left > 0 and (got := line.recv_into(buffer, min(left, len(buffer)))):
                left -= got
            line.sendall(b"!")
