"""Waits for collectives of gloo and of NCCL."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from murmur.core.group import PeerLost
from murmur.core.trace import Trace
from murmur.worlds.process.group import TorchGroup
from murmur.worlds.process.membership_client import Waits


class Never:
    """Work that does not end; NCCL's has been queued all the same."""

    waited = 0

    def is_completed(self) -> bool:
        return False

    def wait(self, timeout: object = None) -> None:
        self.waited += 1
        if timeout is not None:
            raise RuntimeError("timed out")


def group(nccl: object) -> Any:
    detector = SimpleNamespace(missing=lambda *_: None, tell_stalls=lambda: None)
    wiring = SimpleNamespace(
        failure_detector=detector, waits=Waits(), timeout_seconds=0.2, trace=Trace(0, lambda: 0.0, None)
    )
    made: Any = object.__new__(TorchGroup)
    made.__dict__.update(
        wiring=wiring, _nccl=nccl, _group=None, _who="world", name="world", members=[0, 1], _born={},
        _connections=None, _closed=False,
    )  # fmt: skip
    return made


@pytest.mark.parametrize("nccl", [None, object()], ids=["gloo alone", "beside NCCL"])
def test_collectives_of_gloo_end_in_time(nccl: object) -> None:
    with pytest.raises(PeerLost, match=r"not all took part within 0.2 s"):
        group(nccl)._wait(Never(), "broadcast")


def test_collectives_of_nccl_are_queued_without_a_look() -> None:
    work = Never()
    group(object())._wait_on_device(work, "sum")
    assert work.waited == 1
