"""Accelerators, on a machine with the processor alone; tests marked `gpu` elsewhere use the rest."""

from __future__ import annotations

import pytest
import torch

from murmur.accelerator import device


def test_the_processor_needs_no_order_and_no_graph() -> None:
    ran = []
    order = device.kernels_in_order(torch.device("cpu"))
    with order, order:  # sections nest
        device.recorded(lambda: ran.append(1), torch.device("cpu"))()
    assert ran == [1]


@pytest.mark.parametrize(("name", "accelerator"), [("cpu", False), ("cuda", True), ("cuda:3", True), ("meta", False)])
def test_accelerators_are_known_by_name(name: str, accelerator: bool) -> None:
    assert device.is_accelerator(name) == device.is_accelerator(torch.device(name)) == accelerator


def test_a_host_without_accelerator_has_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert (device.names(), device.is_present("cpu"), device.is_present("cuda")) == ([], True, False)
    state = torch.get_rng_state()
    device.seed("cpu", 5)
    device.synchronize("cpu")
    assert torch.equal(torch.get_rng_state(), state)
