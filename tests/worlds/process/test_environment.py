from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from murmur.worlds.process.arrival import address_towards
from murmur.worlds.process.environment import (
    Place,
    add_variables,
    backend_of,
    first_host,
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


SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_STEP_NODELIST": "fast[07-08],slow",
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_NAMESPACE": "prterun-1",
}


def test_srun_and_mpirun_say_rank_and_size() -> None:
    place = place_of(SLURM)
    assert place is not None
    assert (place.rank, place.size, place.local_rank, place.local_size) == (3, 5, 1, 2)
    assert (place.host, place.store) == ("fast07", "learner 0")
    assert place_of({**SLURM, "SLURM_JOB_ID": "4712"}) != place  # simultaneous jobs meet at different ports
    given = place_of({**SLURM, "MASTER_ADDR": "there", "MASTER_PORT": "77"})
    assert given is not None
    assert (given.host, given.port) == ("there", 77)
    local = place_of(OPEN_MPI)
    assert local is not None
    assert (local.rank, local.size, local.local_rank, local.host) == (1, 4, 1, "127.0.0.1")
    hydra = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}
    found = [place_of({**hydra, "PMI_RANK": rank}) for rank in "01"]
    assert found[0] is not None
    assert found[1] is not None
    assert found[0].port == found[1].port


BY_PMI = {"PMI_RANK": "3", "PMI_SIZE": "5", "PMI_JOBID": "4711.0", "PMI_FD": "11"}


def test_variables_of_srun_become_those_of_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.environ", dict(SLURM))
    before = place_of()
    assert before is not None
    add_variables(before)
    after = place_of()
    assert after is not None
    assert os.environ["RANK"] == SLURM["SLURM_PROCID"]
    assert (after.rank, after.size, after.local_rank) == (before.rank, before.size, before.local_rank)
    assert (after.host, after.port, after.store) == (before.host, before.port, "learner 0")


def test_variables_of_a_launch_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {**Place(1, 2, 1, "127.0.0.1", 4000).variables(), "TORCHELASTIC_RUN_ID": "murmur:7"}
    monkeypatch.setattr("os.environ", dict(given))
    add_variables(Place(0, 3, 0, "127.0.0.1", 5000))
    assert given.items() <= dict(os.environ).items()
    assert os.environ["RANK"] == "1"


def test_srun_with_an_mpi_plugin_is_srun() -> None:
    """`srun --mpi=pmi2` adds MPI's variables, which give neither hosts nor the number of learners on a host."""
    assert place_of({**SLURM, **BY_PMI}) == place_of(SLURM)


def test_mpiexec_in_a_slurm_job_meets_where_the_step_of_its_proxies_begins() -> None:
    """srun starts a proxy per node for mpiexec: Slurm's variables are the proxy's, those of PMI the learner's."""
    proxy = {**SLURM, "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "n[1-2]"}
    hydra = {"PMI_SIZE": "4", "MPI_LOCALNRANKS": "2", "SLURM_NODEID": "1", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}
    found = place_of({**proxy, **hydra, "PMI_RANK": "3", "MPI_LOCALRANKID": "1"})
    assert found is not None
    assert (found.rank, found.size, found.local_rank, found.local_size, found.host) == (3, 4, 1, 2, "n1")
    first = place_of({**proxy, **hydra, "SLURM_PROCID": "0", "PMI_RANK": "0", "MPI_LOCALRANKID": "0"})
    assert first is not None
    assert first.port == found.port
    other = place_of({**proxy, **hydra, "SLURM_JOB_ID": "4712", "PMI_RANK": "3", "MPI_LOCALRANKID": "1"})
    assert other is not None
    assert other.port != found.port


@pytest.mark.parametrize(("node", "learners"), [(0, 2), (1, 2), (2, 1)])
def test_cores_are_shared_by_the_learners_of_this_host(node: int, learners: int) -> None:
    place = place_of({**SLURM, "SLURM_NODEID": str(node)})
    assert place is not None
    assert place.local_size == learners


def test_one_task_of_a_batch_job_is_no_launch() -> None:
    assert place_of({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "1"}) is None
    assert place_of({**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}) is None


def test_where_learners_meet_must_be_known() -> None:
    with pytest.raises(ValueError, match="mpirun started 4 learners but does not say where they meet: set MASTER_ADDR"):
        place_of({**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"})
    with pytest.raises(ValueError, match="PMI_RANK=2 does not fit PMI_SIZE=2"):
        place_of({"PMI_RANK": "2", "PMI_SIZE": "2"})


@pytest.mark.parametrize(
    ("nodes", "first"), [("a", "a"), ("a,b", "a"), ("a[07-09,12],b3", "a07"), ("n[3,5]-ib", "n3-ib"), ("", "")]
)
def test_first_host_of_a_list(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


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
