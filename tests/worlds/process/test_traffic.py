"""Traffic over connections, and its duration, from the system's own figures."""

from __future__ import annotations

import math
import socket
import time
from threading import Thread

import pytest

from murmur.worlds.process.listener import listen
from murmur.worlds.process.traffic import Flow, Traffic, flow_of

pytestmark = pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="this system does not tell of connections")
SENT_BYTES = 3_000_000


def flow_to(pause_seconds: float) -> Flow:
    """Return the flow of a connection whose other end reads 64 KB at a time with pauses in between."""
    listener = listen()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    caller = socket.create_connection(listener.getsockname())
    caller.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
    called, _ = listener.accept()

    def read() -> None:
        left = SENT_BYTES
        while left > 0:
            left -= len(called.recv(1 << 16))
            time.sleep(pause_seconds)

    reader = Thread(target=read)
    reader.start()
    caller.sendall(bytes(SENT_BYTES))
    reader.join()
    time.sleep(0.05)  # until the last bytes are confirmed
    found = flow_of(caller)
    for line in (caller, called, listener):
        line.close()
    assert found is not None
    return found


def test_a_connection_tells_what_arrived_and_how_fast() -> None:
    slow, fast = flow_to(0.01), flow_to(0.0)
    assert slow.sent_bytes == pytest.approx(SENT_BYTES, abs=10)
    assert fast.sent_bytes == pytest.approx(SENT_BYTES, abs=10)
    assert slow.bytes_per_second < 30e6 < fast.bytes_per_second


def test_what_was_sent_counts_at_the_rate_of_the_fastest_connection() -> None:
    now = {"a": Flow(1000, 50), "b": Flow(0, 0)}
    traffic = Traffic(lambda: dict(now))
    assert all(map(math.isnan, traffic.since_last()))
    now.update(a=Flow(1600, 50), b=Flow(200, 100), c=Flow(200, 10))
    assert traffic.since_last() == (1 / 100, (600 + 200 + 200) / 100)
    now.update(a=Flow(1700, 50))
    assert traffic.since_last() == (1 / 50, 100 / 50), "only what has sent something since counts"
    del now["b"]
    assert all(map(math.isnan, traffic.since_last()))
