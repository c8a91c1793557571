from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from murmur.worlds.torch.environment import (
    Place,
    address_towards,
    backend_of,
    place_of,
    threads_per_learner,
)

PLACES = st.builds(
    Place,
    rank=st.integers(0, 3),
    size=st.integers(4, 200),
    local_rank=st.integers(0, 3),
    host=st.just("127.0.0.1"),
    port=st.integers(1, 65535),
    generation=st.integers(0, 9),
    local_size=st.integers(1, 8),
    store=st.sampled_from(["murmur", "torchrun", "learner 0"]),
)


@given(PLACES)
def test_variables_describe_the_place(place: Place) -> None:
    assert place_of(place.variables()) == place


def test_outside_a_launch_there_is_no_place() -> None:
    assert place_of({}) is None


def test_half_a_launch_is_an_error() -> None:
    with pytest.raises(ValueError, match="MASTER_ADDR and MASTER_PORT are not"):
        place_of({"RANK": "0", "WORLD_SIZE": "2"})
    with pytest.raises(ValueError, match="RANK=2 does not fit WORLD_SIZE=2"):
        place_of({"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "1"})


@pytest.mark.parametrize(
    ("devices", "hosts", "nccl", "backend"),
    [
        (["cuda:0", "cuda:1"], ["a", "a"], True, "nccl"),
        (["cuda:0", "cuda:1"], ["a", "a"], False, "gloo"),
        (["cuda:0", "cuda:0"], ["a", "a"], True, "gloo"),  # NCCL refuses two learners on one GPU
        (["cuda:0", "cuda:1"], ["a", "b"], True, "gloo"),
        (["cuda:0", "cpu"], ["a", "a"], True, "gloo"),
        (["cpu", "cpu"], ["a", "a"], True, "gloo"),
        (["cuda:0"], ["a"], True, "gloo"),
    ],
)
def test_backend(devices: list[str], hosts: list[str], nccl: bool, backend: str) -> None:
    assert backend_of(devices, hosts, nccl) == backend


def test_loopback_stays_on_loopback() -> None:
    assert address_towards("127.0.0.1") == "127.0.0.1"


@given(st.integers(1, 256), st.integers(1, 256))
def test_threads_share_the_cores(cores: int, learners: int) -> None:
    threads = threads_per_learner(cores, learners)
    assert threads >= 1
    assert threads == 1 or threads * learners <= cores
