"""Load on a store process: clients that give signs of life and claim, from one event loop, and how long claims take."""

from __future__ import annotations

import random
import selectors
import socket
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from murmur.worlds.process.listener import dial, listen
from murmur.worlds.process.membership_client import BEAT_SECONDS
from murmur.worlds.process.secret import draw, unnamed_file
from murmur.worlds.process.store_server import PURPOSE
from murmur.worlds.process.wire_format import PREFIX, REQUEST, Head, decode_lengths, encode_head

CLAIM_SECONDS = 0.5  # between two claims of a client
LEASE_SECONDS, ENTRY_SECONDS, SETTLE_SECONDS = 60.0, 120.0, 1.0


@dataclass
class Caller:
    """One connection of a client: its latest request, and what has come of the answer."""

    line: socket.socket
    head: Head
    sent_at: float = 0.0
    got: bytearray = field(default_factory=bytearray)

    def send(self) -> None:
        self.sent_at = time.monotonic()
        self.line.sendall(encode_head(self.head, 0, REQUEST))

    def answered(self) -> bool:
        """Read what has come; return True if the answer is complete."""
        self.got += self.line.recv(1 << 16)
        if len(self.got) < PREFIX.size:
            return False
        if len(self.got) < PREFIX.size + sum(decode_lengths(bytes(self.got[: PREFIX.size]), REQUEST)):
            return False
        self.got.clear()
        return True


def python_of(checkout: Path) -> str:
    """Return the interpreter that a checkout's `make` has set up."""
    return str(checkout / ".venv" / "bin" / "python")


@contextmanager
def store_process(checkout: Path) -> Iterator[tuple[tuple[str, int], bytes]]:
    """Run the store process of a checkout as its launcher does; yield its address and secret."""
    secret = draw()
    with unnamed_file(secret) as file, listen() as listener:
        passed = [listener.fileno(), file.fileno()]
        words = [python_of(checkout), "-m", "murmur.worlds.process.store_server", *map(str, passed)]
        process = subprocess.Popen(words, stdin=subprocess.PIPE, pass_fds=passed)
        address = listener.getsockname()[:2]
    try:
        yield address, secret
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(30)


def claim_seconds(checkout: Path, clients: int, seconds: float) -> list[float]:
    """Return the durations of all claims of so many clients in that time, each of which claims twice a second."""
    with store_process(checkout) as (address, secret), selectors.DefaultSelector() as selector:
        beats, claims = [], []
        for rank in range(clients):
            who: dict[str, Any] = {"do": "membership", "group": "world", "rank": rank}
            entry = {**who, "act": "enter", "size": clients, "lease": LEASE_SECONDS, "entry": ENTRY_SECONDS}
            beat = {**who, "act": "beat", "known": 0, "lease": LEASE_SECONDS, "seconds": BEAT_SECONDS}
            claim = {**who, "act": "claim", "known": 0, "first": 0, "total": 1 << 40, "size": 1}
            claim |= {"doing": [], "done": [], "count": 1}
            pulse = Caller(dial(address, secret, PURPOSE, 0, 60.0), beat)
            line = Caller(dial(address, secret, PURPOSE, 0, 60.0), entry)
            line.send()
            while not line.answered():
                pass
            line.head = claim
            beats.append(pulse)
            claims.append(line)
        for caller in (*beats, *claims):
            selector.register(caller.line, selectors.EVENT_READ, caller)
        found = _drive(selector, beats, claims, seconds)
        for caller in (*beats, *claims):
            caller.line.close()
    return found


def _drive(selector: selectors.BaseSelector, beats: list[Caller], claims: list[Caller], seconds: float) -> list[float]:
    began, drawn, found = time.monotonic(), random.Random(len(beats)), list[float]()
    turns = sorted((began + drawn.random() * CLAIM_SECONDS, n) for n in range(len(claims)))
    alive = {id(caller) for caller in beats}
    for caller in beats:
        caller.send()
    while time.monotonic() < began + SETTLE_SECONDS + seconds:
        at, n = turns[0]
        for key, _ in selector.select(max(0.0, at - time.monotonic())):
            caller = key.data
            if not caller.answered():
                continue
            if id(caller) in alive:
                caller.send()
            elif caller.sent_at > began + SETTLE_SECONDS:
                found.append(time.monotonic() - caller.sent_at)
        if time.monotonic() >= at:
            turns.append((turns.pop(0)[0] + CLAIM_SECONDS, n))
            claims[n].send()
    return found


def percentile_99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]
