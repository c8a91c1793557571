"""Where this process stands in a launch: the only file that reads environment variables, and only launchers' ones.

Ours and torchrun say everything in torchrun's variables. srun and mpirun say rank and size; where the learners meet
follows from the job, or from MASTER_ADDR and MASTER_PORT where those are set.
"""

from __future__ import annotations

import errno
import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal
from zlib import crc32

from murmur.worlds.process.launch.secret import from_descriptor

Backend = Literal["gloo", "nccl"]
PORT_ERRORS = (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES)
# What a learner's keys in the store begin with: it has come there, can be reached, has begun to train, has ended.
COME_KEY, READY_KEY, BEGUN_KEY, ENDED_KEY = "host", "ready", "begun", "past"


@dataclass(frozen=True)
class Place:
    """One learner's place in a launch.

    Attributes:
        rank, size: position among all learners and their number.
        local_rank: position among the learners of this host.
        host, port: where the store listens.
        generation: how many times the launch was restarted; keys of earlier ones are not seen again.
        local_size: number of learners of this host.
        store: whose store listens there: our launcher's ("murmur"), torchrun's, or one that learner 0 has to open.
        secret: of the launch (see `secret`); empty where learners have none to prove that they are of one run.
        named_by: the variable or file that names `host`, for messages.
    """

    rank: int
    size: int
    local_rank: int
    host: str
    port: int
    generation: int = 0
    local_size: int = 1
    store: Literal["murmur", "torchrun", "learner 0"] = "murmur"
    secret: bytes = field(default=b"", repr=False)
    named_by: str = "MASTER_ADDR"

    @property
    def prefix(self) -> str:
        """What the keys of this launch begin with."""
        return f"generation-{self.generation}/"

    def variables(self) -> dict[str, str]:
        """torchrun's environment variables for this place; the secret is not among them."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_size),
            "MASTER_ADDR": self.host,
            "MASTER_PORT": str(self.port),
            "TORCHELASTIC_RESTART_COUNT": str(self.generation),
            "TORCHELASTIC_USE_AGENT_STORE": str(self.store == "torchrun"),
            "TORCHELASTIC_RUN_ID": "murmur" if self.store == "murmur" else "",
        }


def place_of(variables: Mapping[str, str] | None = None) -> Place | None:
    """The place that the variables of torchrun, srun or mpirun describe, or None outside a launch.

    Raises:
        ValueError: some of the variables are there but not all, or they contradict each other.
    """
    given = os.environ if variables is None else variables
    if "RANK" not in given or "WORLD_SIZE" not in given:
        return next((_place_by(launcher, given) for launcher in LAUNCHERS if launcher.started(given)), None)
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in given]
    if missing:
        raise ValueError(
            f"RANK and WORLD_SIZE are set but {' and '.join(missing)} are not: start learners with torchrun"
        )
    rank, size = int(given["RANK"]), int(given["WORLD_SIZE"])
    if not 0 <= rank < size:
        raise ValueError(f"RANK={rank} does not fit WORLD_SIZE={size}")
    return Place(
        rank=rank,
        size=size,
        local_rank=int(given.get("LOCAL_RANK", rank)),
        host=given["MASTER_ADDR"],
        port=int(given["MASTER_PORT"]),
        generation=int(given.get("TORCHELASTIC_RESTART_COUNT", 0)),
        local_size=int(given.get("LOCAL_WORLD_SIZE", size)),
        store=_store_of(given),
        secret=_secret_of(given),
    )


def take_place() -> Place | None:
    """The place of this process, which is taken out of the environment.

    A framework that finds it there would start distributed training of its own beside ours.
    """
    place = place_of()
    named = {name for launcher in LAUNCHERS for name in (launcher.rank, launcher.size, launcher.local_rank)}
    for name in (*(Place(0, 1, 0, "", 0).variables()), *named):
        os.environ.pop(name, None)
    return place


@dataclass(frozen=True)
class Launcher:
    """The variables of a launcher that does not say where its processes meet.

    Attributes:
        name: for messages.
        rank, size, local_rank, local_size: names of the variables.
        job: names of the variables that tell this launch from another one.
        inner: a variable of a launcher that this one starts, which then starts the learners.
    """

    name: str
    rank: str
    size: str
    local_rank: str
    local_size: str
    job: tuple[str, ...]
    inner: str = ""

    def started(self, given: Mapping[str, str]) -> bool:
        """Whether it has started this process as one of several."""
        return self.rank in given and int(given.get(self.size, 1)) > 1 and self.inner not in given


SLURM_STEP = ("SLURM_JOB_ID", "SLURM_STEP_ID")
# srun stands before mpiexec: with an MPI plugin it sets PMI's variables too, which say nothing of hosts.
LAUNCHERS = (
    Launcher(
        "mpirun",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
    ),
    Launcher(
        "srun",
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS",
        "SLURM_LOCALID",
        "SLURM_STEP_TASKS_PER_NODE",
        SLURM_STEP,
        inner="MPI_LOCALRANKID",
    ),
    Launcher("mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", ("PMI_JOBID",)),
)
FIRST_PORT, PORTS = 20000, 10000  # below the range from which systems give ports away by themselves


def _place_by(launcher: Launcher, given: Mapping[str, str]) -> Place:
    rank, size = int(given[launcher.rank]), int(given[launcher.size])
    if not 0 <= rank < size:
        raise ValueError(f"{launcher.rank}={rank} does not fit {launcher.size}={size}")
    local_size = tasks_on(int(given.get("SLURM_NODEID", 0)), given.get(launcher.local_size, str(size)))
    one_host = local_size == size
    host = given.get("MASTER_ADDR") or ("127.0.0.1" if one_host else first_host(given.get("SLURM_STEP_NODELIST", "")))
    # On one host all were started by the same process; on several, those that start them are tasks of a Slurm step.
    job = _joined(given, launcher.job) or (str(os.getppid()) if one_host else _joined(given, SLURM_STEP))
    port = given.get("MASTER_PORT") or (FIRST_PORT + crc32(job.encode()) % PORTS if job else 0)
    if not host or not port:
        raise ValueError(
            f"{launcher.name} started {size} learners but does not say where they meet: set MASTER_ADDR to the host of"
            " the first learner and MASTER_PORT to a free port there"
        )
    local_rank = int(given.get(launcher.local_rank, rank % local_size))
    named_by = "MASTER_ADDR" if given.get("MASTER_ADDR") or one_host else "SLURM_STEP_NODELIST"
    return Place(rank, size, local_rank, host, int(port), 0, local_size, "learner 0", named_by=named_by)


def _joined(given: Mapping[str, str], names: Sequence[str]) -> str:
    return "-".join(given[name] for name in names if name in given)


def tasks_on(node: int, per_host: str) -> int:
    """How many tasks a host has: of one number this, of Slurm's list the entry of node `node`.

    In Slurm's lists "2(x3),1" are three hosts of two and one of one.
    """
    counts: list[int] = []
    for entry in per_host.split(","):
        tasks, _, times = entry.removesuffix(")").partition("(x")
        counts += [int(tasks)] * int(times or 1)
    return counts[node] if node < len(counts) else counts[0]


def first_host(nodes: str) -> str:
    """The first of Slurm's list of hosts, such as a[07-09,12],b3."""
    found = re.match(r"([^\[,]*)(?:\[([^\],-]*)[^\]]*\])?([^,\[]*)", nodes)
    return "".join(part or "" for part in found.groups()) if found else ""


def _store_of(given: Mapping[str, str]) -> Literal["murmur", "torchrun", "learner 0"]:
    if given.get("TORCHELASTIC_USE_AGENT_STORE", "False") == "True":
        return "torchrun"
    return "murmur" if given.get("TORCHELASTIC_RUN_ID", "").partition(":")[0] == "murmur" else "learner 0"


def _secret_of(given: Mapping[str, str]) -> bytes:
    ours, _, descriptor = given.get("TORCHELASTIC_RUN_ID", "").partition(":")
    return from_descriptor(int(descriptor)) if ours == "murmur" and descriptor.isdecimal() else b""


def child_variables(place: Place, threads: int, secret: int | None = None) -> dict[str, str]:
    """The environment of a learner process: ours, its place, and its number of compute threads.

    `secret`: the descriptor it inherits in which the launch's secret stands.
    """
    run = {} if secret is None else {"TORCHELASTIC_RUN_ID": f"murmur:{secret}"}
    return {**os.environ, **place.variables(), "OMP_NUM_THREADS": str(threads), **run}


def backend_of(devices: Sequence[str], hosts: Sequence[str], nccl_available: bool) -> Backend:
    """How a group should exchange vectors: NCCL between different GPUs of one host, gloo for everything else.

    Args:
        devices: the members' devices, "cpu" or "cuda:0" and so on, in order of rank.
        hosts: the members' host names.
        nccl_available: whether this build of PyTorch has NCCL.
    """
    one_host = len(set(hosts)) == 1
    own_gpus = all(d.startswith("cuda") for d in devices) and len(set(devices)) == len(devices)
    return "nccl" if nccl_available and one_host and own_gpus and len(devices) > 1 else "gloo"


def check_meeting_point(place: Place) -> None:
    """Try the name and, where this learner opens it, the port at which the learners meet, before anything else.

    Raises:
        ValueError: the name has no address here, or the port cannot be opened; says what to set.
    """
    where = f"{place.host}:{place.port}"
    if place.rank > 0 or place.store != "learner 0":
        resolve(place.host, place.named_by)
        return
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((resolve(place.host, place.named_by), place.port))
    except OSError as error:
        if error.errno not in PORT_ERRORS:
            raise
        raise ValueError(
            f"learner 0 on {socket.gethostname()} cannot listen at {where}: {error.strerror}; set MASTER_ADDR to an"
            " address of learner 0's host and MASTER_PORT to a free port there, the same for all learners"
        ) from error


def resolve(host: str, named_by: str = "MASTER_ADDR") -> str:
    """The address of a host's name.

    Args:
        host: the name, or an address.
        named_by: the variable, option or file that gave the name.

    Raises:
        ValueError: it has none; says where the name comes from and what to set.
    """
    try:
        return socket.gethostbyname(host)
    except (OSError, UnicodeError) as error:
        raise ValueError(
            f"host name {host!r} (from {named_by}) has no address on {socket.gethostname()}: {error}; set MASTER_ADDR"
            " to an address of learner 0's host that all learners can reach, or add the name to /etc/hosts (under"
            " Slurm: set the node's NodeAddr)"
        ) from error


def address_towards(host: str) -> str:
    """This host's address on the route to `host`: loopback for a store on loopback, nothing wider than needed."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((resolve(host), 9))  # a datagram socket: nothing is sent
        address: str = probe.getsockname()[0]
        return address


def meeting_host(hosts: Sequence[str]) -> str:
    """Where learner 0 of processes that know each other's host names should listen, from its own point of view.

    Raises:
        ValueError: this host's name leads nowhere but to itself.
    """
    if len(set(hosts)) == 1:
        return "127.0.0.1"
    named = os.environ.get("MASTER_ADDR")
    host = resolve(named or hosts[0], "MASTER_ADDR" if named else "the name of learner 0's host")
    if host.startswith("127."):
        raise ValueError(
            f"the name of learner 0's host, {hosts[0]}, is {host} there, which others cannot reach: set MASTER_ADDR to"
            " an address of that host that they can"
        )
    return host


def threads_per_learner(cores: int, learners_here: int) -> int:
    """Compute threads of each learner of a host: the cores shared out, at least one."""
    return max(1, cores // max(1, learners_here))
