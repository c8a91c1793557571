"""Learners on hosts of their own, forked from one process that has loaded the task, so that they share its memory.

    ran = on_hosts([0, 1], bits_per_second=40e6, work=train, folder=Path("runs/x"), seconds=600)

Hosts are network namespaces (`namespaces.py`). Each learner has a name of its own for its host, one thread of PyTorch,
and a file LOGS/RANK.log in the folder. A process between this one and the learners makes the hosts and serves their
store, so that this process stays without threads, and can be forked again.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import shutil
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from forked import Forked
from murmur.worlds.process.environment import Place
from murmur.worlds.process.listener import listen
from murmur.worlds.process.signals import die_with_parent
from murmur.worlds.process.store_server import StoreServer
from namespaces import hosts

MTU = 9000  # with packets of 1500 bytes the emulated network costs two cores more time
NEW_NAMES, NEW_NETWORK = 0x04000000, 0x40000000  # CLONE_NEWUTS, CLONE_NEWNET of sched.h
POLL_SECONDS, LAST_LINES = 0.2, 15
LOGS, FOUND = "logs", "found.json"
Work = Callable[[Place], Any]  # its result is written as JSON


class Failed(RuntimeError):
    """A forked process failed, or learners have not ended in time; the message has the end of a log."""


def enter(space: str, name: str) -> None:
    """Move this process, which has one thread, into a network namespace, and give its host a name.

    Raises:
        OSError: the system does not permit it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{space}", encoding="utf-8") as file:
        if libc.setns(file.fileno(), NEW_NETWORK) != 0 or libc.unshare(NEW_NAMES) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter {space}: {os.strerror(ctypes.get_errno())}")
    socket.sethostname(name)


def logged(log: Path, work: Callable[[], None]) -> int:
    """Do work in a forked process whose output goes to a file; return its exit status."""
    die_with_parent()()
    sys.stdout = sys.stderr = log.open("w", encoding="utf-8", buffering=1)
    for descriptor in (1, 2):  # of native code
        os.dup2(sys.stdout.fileno(), descriptor)
    try:
        work()
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def forked(log: Path, work: Callable[[], None]) -> Forked:
    return Forked(lambda: logged(log, work))


def waited(process: Forked, log: Path) -> None:
    """Wait for a forked process to end.

    Raises:
        Failed: it ended with another status than 0.
    """
    try:
        code = process.wait()
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(60)
    if code != 0:
        raise Failed(f"a process ended with status {code}; the end of {log}:\n{last_lines(log)}")


def last_lines(log: Path) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:])


def apart(folder: Path, name: str, work: Callable[[], Any]) -> Any:
    """Do work in a process of its own, and return its result, which passes through a file of JSON."""
    logs, found = folder / LOGS, folder / f"{name}.json"
    logs.mkdir(parents=True, exist_ok=True)
    found.unlink(missing_ok=True)
    waited(forked(logs / f"{name}.log", lambda: write(found, work())), logs / f"{name}.log")
    return json.loads(found.read_text(encoding="utf-8"))


def write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


@dataclass(frozen=True)
class OnHosts:
    """Results of learners on hosts.

    Attributes:
        found: results by rank.
        beside: result of the learner beside them; None without one.
        others_cores: mean number of cores that other processes of this machine kept busy, without kernel time.
    """

    found: list[Any]
    beside: Any
    others_cores: float


def on_hosts(
    where: Sequence[int], bits_per_second: float, work: Work, folder: Path, seconds: float, beside: Work | None = None
) -> OnHosts:
    """Run learner i on host where[i], and return the results.

    Args:
        where: hosts of the learners; those of one host are neighbours in rank.
        bits_per_second: speed of each host's link, in either direction.
        work: work of a learner.
        folder: folder for logs and results.
        seconds: time after which the learners count as hung.
        beside: work of one more learner, alone in a run of its own on a host of its own, at the same time.

    Raises:
        Failed: a learner failed, or the time is over.
    """
    shutil.rmtree(folder / LOGS, ignore_errors=True)
    conducted = apart(folder, "hosts", lambda: conduct(where, bits_per_second, work, folder, seconds, beside))
    return OnHosts(**conducted)


def conduct(
    where: Sequence[int], bits_per_second: float, work: Work, folder: Path, seconds: float, beside: Work | None
) -> dict[str, Any]:
    logs, count = folder / LOGS, max(where) + 1
    works = [work] * len(where) + ([] if beside is None else [beside])
    results = [folder / f"learner-{rank}.json" for rank in range(len(works))]
    with hosts(count + 1, bits_per_second, MTU) as network:
        listener, before = listen(network.store_address), busy()
        places = [place_of(where, rank, listener) for rank in range(len(where))]
        places.append(Place(0, 1, 0, *listener.getsockname()[:2], generation=1))
        begun = [
            forked(logs / f"{rank}.log", partial(learner, network.space(host), host, listener, partial(own, place), to))
            for rank, (host, place, own, to) in enumerate(zip([*where, count], places, works, results, strict=False))
        ]
        server = StoreServer(listener)  # after the forks: it has threads
        try:
            until = time.monotonic() + seconds
            while any(process.poll() is None for process in begun):
                time.sleep(POLL_SECONDS)
                check(begun, logs, time.monotonic() > until, seconds)
            check(begun, logs, False, seconds)
        finally:
            for process in begun:
                process.kill()
            for process in begun:
                process.wait()
            server.close()
        (began, used), (ended, others) = before, busy()
    found = [json.loads(path.read_text(encoding="utf-8")) for path in results]
    alone = found.pop() if beside is not None else None
    return {"found": found, "beside": alone, "others_cores": (others - used) / (ended - began)}


def busy() -> tuple[float, float]:
    """Time, and processor seconds of this machine's programs, less those of children that have ended; Linux."""
    user, nice = Path("/proc/stat").read_text(encoding="utf-8").split()[1:3]
    own = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    return time.monotonic(), (int(user) + int(nice)) / os.sysconf("SC_CLK_TCK") - own


def place_of(where: Sequence[int], rank: int, listener: socket.socket) -> Place:
    local, size = where[:rank].count(where[rank]), where.count(where[rank])
    return Place(rank, len(where), local, *listener.getsockname()[:2], local_size=size)


def check(begun: Sequence[Forked], logs: Path, over: bool, seconds: float) -> None:
    failed = [rank for rank, process in enumerate(begun) if process.poll() not in (None, 0)]
    if failed or over:
        why = f"learners {failed} failed" if failed else f"learners have not ended in {seconds:.0f} s"
        raise Failed(f"{why}; the end of the first log:\n{last_lines(logs / f'{(failed or [0])[0]}.log')}")


def learner(space: str, host: int, listener: socket.socket, work: Callable[[], Any], result: Path) -> None:
    """Run one learner in its process."""
    listener.close()
    enter(space, f"host{host}")
    torch.set_num_threads(1)
    write(result, work())
