"""Checks that the learners run together: store, time of a round, bandwidth, equal experiments and versions."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

import torch

from murmur.core.counted import counted
from murmur.core.group import Group
from murmur.core.world import Seat
from murmur.run.host_checks import HostFinding

ROUNDS = 50
VECTOR_BYTES = 8 << 20
TRANSFERS = 5
TEXT_BYTES = 1 << 14  # size of the vector that carries the facts of a learner
SLOW_ROUND_SECONDS, SLOW_BYTES_PER_SECOND = 0.01, 50e6


@dataclass(frozen=True)
class Learned:
    """Facts that one learner sends to the others."""

    host: str
    python: str
    torch: str
    digest: str
    findings: tuple[HostFinding, ...]


async def examine(seat: Seat, mine: Learned) -> list[HostFinding]:
    """Measure the network and compare the learners; the same list on every learner."""
    told = [learned(each) for each in await gather(seat.group, asdict(mine))]
    size = seat.group.size
    hosts = sorted({each.host for each in told})
    found = [HostFinding("ok", "store", f"{counted(size, 'learner')} on {counted(len(hosts), 'host')} met")]
    for host in hosts:
        own = next((each.findings for each in told if each.host == host and each.findings), ())
        found += [replace(each, what=f"{host}, {each.what}") if len(hosts) > 1 else each for each in own]
    if size > 1:
        found += [await latency(seat.group), await bandwidth(seat.group)]
    found += compare_learners(told)
    return found


def learned(told: dict[str, Any]) -> Learned:
    """Read the facts of a learner from its JSON."""
    return Learned(**{**told, "findings": tuple(HostFinding(**each) for each in told["findings"])})


async def gather(group: Group, mine: dict[str, Any]) -> list[dict[str, Any]]:
    """Gather one JSON object from every member, in order of rank; each travels as a vector.

    Raises:
        ValueError: the object is longer than the vector.
    """
    raw = json.dumps(mine).encode()
    if len(raw) > TEXT_BYTES:
        raise ValueError(f"the facts of a learner take {len(raw)} bytes, the limit is {TEXT_BYTES}")
    vector = torch.zeros(TEXT_BYTES)
    vector[: len(raw)] = torch.tensor(list(raw), dtype=torch.float32)
    told = []
    for rank in range(group.size):
        theirs = await group.broadcast(vector.clone(), root=rank)
        told.append(json.loads(bytes(theirs.to(torch.uint8).tolist()).rstrip(b"\0")))
    return told


async def latency(group: Group) -> HostFinding:
    """Measure the median time of a mean of one number over all learners."""
    seconds = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        await group.mean(torch.zeros(1))
        seconds.append(time.perf_counter() - begin)
    middle = median(seconds)
    found = f"{1000 * middle:.2f} ms a round of all learners (slowest {1000 * max(seconds):.2f} ms)"
    if middle > SLOW_ROUND_SECONDS:
        remedy = "average rarely: KAVG with a large K, or an asynchronous strategy; are the cores busy with other work?"
        return HostFinding("warn", "latency", found, remedy)
    return HostFinding("ok", "latency", found)


async def bandwidth(group: Group) -> HostFinding:
    """Measure the bandwidth of a mean over all learners: bytes of the vector per second, median of a few means."""
    vector = torch.zeros(VECTOR_BYTES // 4)
    seconds = []
    for _ in range(TRANSFERS):
        begin = time.perf_counter()
        await group.mean(vector)
        seconds.append(time.perf_counter() - begin)
    speed = VECTOR_BYTES / median(seconds)
    found = f"{speed / 1e6:.0f} MB/s of averaged weights ({VECTOR_BYTES >> 20} MiB in {1000 * median(seconds):.1f} ms)"
    if speed < SLOW_BYTES_PER_SECOND:
        return HostFinding("warn", "bandwidth", found, "average rarely (KAVG), or send less often than every minibatch")
    return HostFinding("ok", "bandwidth", found)


def compare_learners(told: Sequence[Learned]) -> list[HostFinding]:
    """Check that all learners run the same Python, PyTorch and experiment."""
    return [
        _same(told, "Python", lambda t: t.python, "install the same Python on every host"),
        _same(told, "PyTorch", lambda t: t.torch, "install the same PyTorch on every host (constraints.txt)"),
        _same(told, "experiment", lambda t: t.digest, "start every learner with the same file, --set and version"),
    ]


def _same(told: Sequence[Learned], what: str, of: Callable[[Learned], str], remedy: str) -> HostFinding:
    values = {of(each) for each in told}
    if len(values) == 1:
        return HostFinding("ok", what, f"{values.pop()} everywhere")
    shown = ", ".join(f"learner {rank} ({each.host}): {of(each)}" for rank, each in enumerate(told))
    return HostFinding("bad", what, shown, remedy)


def host_name() -> str:
    """Name of this host."""
    return socket.gethostname()
