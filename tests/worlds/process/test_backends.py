"""gloo's sockets, found and cut."""

from __future__ import annotations

import socket
import time
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import torch
from torch._C import _distributed_c10d as c10d

from murmur.worlds.process.backends import Device, GlooSockets, connections, drop
from murmur.worlds.process.listener import listen

TIMEOUT_SECONDS = 20.0


def join(folder: Path, devices: list[Device], rank: int, made: dict[int, Any]) -> None:
    options = c10d.ProcessGroupGloo._Options()
    options._devices, options._threads, options._timeout = [devices[rank].gloo], 2, timedelta(seconds=TIMEOUT_SECONDS)
    made[rank] = c10d.ProcessGroupGloo(c10d.FileStore(str(folder / "store"), len(devices)), rank, len(devices), options)


def group_of(folder: Path, devices: list[Device]) -> dict[int, Any]:
    made: dict[int, Any] = {}
    threads = [Thread(target=join, args=(folder, devices, rank, made)) for rank in range(len(devices))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return made


def test_a_device_tells_where_it_listens() -> None:
    first, second = Device.at("127.0.0.1"), Device.at("127.0.0.1")
    assert first.address != second.address
    assert first.address[0] == "127.0.0.1"


def test_what_waits_for_a_silent_member_ends_at_once(tmp_path: Path) -> None:
    devices = [Device.at("127.0.0.1") for _ in range(3)]
    before = connections()
    made = group_of(tmp_path, devices)
    own = GlooSockets([device.address for device in devices], before)
    work = made[0].allreduce([torch.ones(100_000)])  # no other member takes part
    with pytest.raises(RuntimeError):
        work.wait(timedelta(seconds=0.2))
    assert not work.is_completed()
    began = time.monotonic()
    own.cut()
    with pytest.raises(RuntimeError):
        work.wait()
    del work
    made.clear()
    assert time.monotonic() - began < TIMEOUT_SECONDS / 4, "neither the operation nor the group lasts any longer"


class Lasting:
    """Group that ends when it is allowed to."""

    def __init__(self, may_end: Event, ended: Event) -> None:
        self.may_end, self.ended = may_end, ended

    def __del__(self) -> None:
        self.may_end.wait(TIMEOUT_SECONDS)
        self.ended.set()


def test_no_wait_for_a_group_that_does_not_end() -> None:
    may_end, ended = Event(), Event()
    drop([None, Lasting(may_end, ended)])
    assert not ended.is_set()
    may_end.set()
    assert ended.wait(TIMEOUT_SECONDS / 4)


def test_a_group_that_ends_is_gone_when_it_is_dropped() -> None:
    may_end, ended = Event(), Event()
    may_end.set()
    drop([Lasting(may_end, ended)])
    assert ended.is_set()


def test_connections_of_others_stay(tmp_path: Path) -> None:
    devices = [Device.at("127.0.0.1") for _ in range(2)]
    listener = listen()
    before = connections()
    caller = socket.create_connection(listener.getsockname())
    called, _ = listener.accept()
    made = group_of(tmp_path, devices)
    own = GlooSockets([device.address for device in devices], before)
    own.cut()
    caller.sendall(b"still here")
    assert called.recv(100) == b"still here"
    x = torch.ones(3)
    with pytest.raises(RuntimeError):
        made[0].allreduce([x]).wait(timedelta(seconds=5))
    for line in (caller, called, listener):
        line.close()


def test_a_descriptor_that_has_another_owner_by_now_is_left_alone(tmp_path: Path) -> None:
    devices = [Device.at("127.0.0.1") for _ in range(2)]
    before = connections()
    made = group_of(tmp_path, devices)
    own = GlooSockets([device.address for device in devices], before)
    made.clear()  # its descriptors are free again
    listener = listen()
    pairs = [socket.create_connection(listener.getsockname()) for _ in range(4)]
    taken = [listener.accept()[0] for _ in pairs]
    assert {line.fileno() for line in (*pairs, *taken)} & {c.descriptor for c in own.held}
    own.cut()
    for here, there in zip(pairs, taken, strict=True):
        here.sendall(b"x")
        assert there.recv(1) == b"x"
    for line in (*pairs, *taken, listener):
        line.close()
