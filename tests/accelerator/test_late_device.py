"""The late device keeps the rules of an accelerator: nothing has happened before a wait, and everything after it."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from threading import Thread

import pytest
import torch
from torch import nn

from tests.support.late_device import DEVICE, LateDevice, LateTensor, installed


@pytest.fixture
def device() -> Iterator[LateDevice]:
    with installed() as late:
        yield late


def is_poison(x: LateTensor) -> bool:
    return bool(x.here.isnan().all())


def test_work_runs_when_the_host_reads(device: LateDevice) -> None:
    x = torch.zeros(3, device=DEVICE)
    y = (x + 1).mul_(2)
    assert is_poison(y)
    assert y.tolist() == [2.0] * 3
    assert (device.pending, str(y.device)) == (0, DEVICE)


def test_streams_have_no_order_without_waits(device: LateDevice) -> None:
    x, aside = torch.zeros(2, device=DEVICE), device.new_stream()
    with device.using(aside):
        early = x + 1
        assert early.isnan().tolist() == [True, True]  # x was not there yet
    aside.wait_stream(device.present_stream())
    with device.using(aside):
        assert (x + 1).tolist() == [1.0, 1.0]


def test_an_event_orders_what_was_given_before_it(device: LateDevice) -> None:
    x, aside, event = torch.zeros(1, device=DEVICE), device.new_stream(), device.new_event()
    with device.using(aside):
        aside.wait_stream(device._first)
        x.add_(1)
        event.record(aside)
        x.add_(1)
    device.present_stream().wait_event(event)
    assert x.tolist() == [1.0]
    device.synchronize()
    assert x.tolist() == [2.0]


@pytest.mark.parametrize(("is_pinned", "sent"), [(True, 5.0), (False, 1.0)])
def test_only_copies_from_pinned_memory_read_late(device: LateDevice, is_pinned: bool, sent: float) -> None:
    here = device.pinned(torch.ones(2)) if is_pinned else torch.ones(2)
    before = torch.zeros(2, device=DEVICE)
    there = here.to(DEVICE, non_blocking=True)
    assert (before.here.tolist() == [0.0, 0.0]) != is_pinned  # the host has waited
    here.fill_(5.0)
    assert there.tolist() == [sent] * 2


def test_a_non_blocking_copy_to_the_host_arrives_late(device: LateDevice) -> None:
    x = torch.ones(2, device=DEVICE)
    here = x.to("cpu", non_blocking=True)
    assert here.isnan().all()
    device.synchronize()
    assert here.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("recorded", [False, True])
def test_freed_memory_is_used_again(device: LateDevice, recorded: bool) -> None:
    aside = device.new_stream()
    with device.using(aside):
        x = torch.ones(2, device=DEVICE)
    here = device.present_stream()
    here.wait_stream(aside)
    y = x * 2
    if recorded:
        x.record_stream(here)
    del x
    assert y.tolist() == [2.0, 2.0] if recorded else y.isnan().all()


def test_memory_that_only_its_stream_uses_is_safe(device: LateDevice) -> None:
    y = torch.ones(2, device=DEVICE) * 2 + 1
    assert y.tolist() == [3.0, 3.0]


def test_threads_may_begin_on_streams_of_their_own() -> None:
    with installed(own_streams=True) as device:
        found = []
        thread = Thread(target=lambda: found.append(device.present_stream()))
        thread.start()
        thread.join()
        assert found != [device.present_stream()]


def test_a_graph_is_recorded_and_repeated(device: LateDevice) -> None:
    x = torch.zeros(1, device=DEVICE)
    replay = device.graph(lambda: x.add_(1) and None)
    assert x.tolist() == [0.0]
    replay()
    replay()
    assert x.tolist() == [2.0]


def test_tensors_of_host_and_device_do_not_mix(device: LateDevice) -> None:
    with pytest.raises(RuntimeError, match="tensors of the host"):
        torch.ones(2, device=DEVICE) + torch.ones(2)
    assert (torch.ones(2, device=DEVICE) + torch.tensor(1.0)).tolist() == [2.0, 2.0]


def test_random_moments_are_repeatable() -> None:
    def left(seed: int | None) -> list[int]:
        with installed(seed) as device:
            x, found = torch.zeros(2, device=DEVICE), []
            for _ in range(20):
                x = x + 1
                found.append(device.pending)
            assert x.tolist() == [20.0, 20.0]
            return found

    assert left(None) == list(range(2, 22))
    assert left(1) == left(1) != left(2)


@pytest.mark.parametrize("seed", [None, 1])
def test_a_plain_loop_has_the_bits_of_the_processor(seed: int | None) -> None:
    with installed(seed):
        here = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        parameters, there = list(here.parameters()), deepcopy(here)
        there.to(DEVICE)
        x, y = torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])
        losses = []
        for model, inputs, labels in ((here, x, y), (there, x.to(DEVICE), y.to(DEVICE))):
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
            for _ in range(3):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(inputs), labels)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
            losses.append(loss.item())
        assert losses[0] == losses[1]
        for p, q in zip(parameters, there.parameters(), strict=True):
            assert type(q) is LateTensor
            assert torch.equal(p, q.cpu())
