"""Place of this process in a launch. Only this file reads environment variables, and only those of launchers.

murmur's launcher and torchrun set all of torchrun's variables; murmur's also sets MURMUR_OUT, the folder of records.
srun and mpirun set rank and size; the meeting point follows from the job, or from MASTER_ADDR and MASTER_PORT if they
are set.
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

from murmur.accelerator.device import is_accelerator
from murmur.worlds.process.secret import from_descriptor

Backend = Literal["gloo", "nccl"]
PORT_ERRORS = (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES)
# First parts of a learner's keys in the store: it has come there, can be reached, has begun to train, has ended.
COME_KEY, READY_KEY, BEGUN_KEY, ENDED_KEY = "host", "ready", "begun", "past"


@dataclass(frozen=True)
class Place:
    """One learner's place in a launch: position and number of learners, and the host and port of the store.

    Attributes:
        local_rank, local_size: Position among the learners of this host, and their number.
        generation: Number of restarts of the launch; keys of earlier generations are not visible.
        store: Owner of the store: murmur's launcher ("murmur"), torchrun, or learner 0, which has to open it.
        secret: Secret of the launch; empty if learners cannot prove that they belong to one run.
        named_by: Variable or file that names `host`, for messages.
        local_known: False if `local_size` was not given.
        out: Folder for the records of the launch; empty: there is none.
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
    local_known: bool = True
    out: str = ""

    @property
    def prefix(self) -> str:
        """Prefix of the keys of this launch.

        torchrun counts the restarts of each of its agents, so the learners of one attempt have different numbers. A
        store of learner 0 begins empty in each attempt and needs none.
        """
        return f"generation-{0 if self.store == 'learner 0' else self.generation}/"

    @property
    def meeting_point(self) -> dict[str, str | int]:
        """Facts by which a learner that is added finds the others; never the secret."""
        where: dict[str, str | int] = {"host": self.host, "port": self.port, "generation": self.generation}
        return {**where, "learners": self.size, "store": self.store}

    def variables(self) -> dict[str, str]:
        """Return torchrun's environment variables for this place, without the secret, and murmur's for its records."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_RANK": str(self.local_rank),
            **({"LOCAL_WORLD_SIZE": str(self.local_size)} if self.local_known else {}),
            "MASTER_ADDR": self.host,
            "MASTER_PORT": str(self.port),
            "TORCHELASTIC_RESTART_COUNT": str(self.generation),
            "TORCHELASTIC_USE_AGENT_STORE": str(self.store == "torchrun"),
            "TORCHELASTIC_RUN_ID": "murmur" if self.store == "murmur" else "",
            "MURMUR_OUT": self.out,
        }


def place_of(variables: Mapping[str, str] | None = None) -> Place | None:
    """Return the place given by the variables of torchrun, srun or mpirun, or None outside a launch.

    Raises:
        ValueError: Some of the variables are missing, or they contradict each other.
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
    store = _store_of(given)
    if rank < 0 or (rank >= size and store != "murmur"):  # murmur adds learners beyond the first ones
        raise ValueError(f"RANK={rank} does not fit WORLD_SIZE={size}")
    return Place(
        rank=rank,
        size=size,
        local_rank=int(given.get("LOCAL_RANK", rank)),
        host=given["MASTER_ADDR"],
        port=int(given["MASTER_PORT"]),
        generation=int(given.get("TORCHELASTIC_RESTART_COUNT", 0)),
        local_size=int(given.get("LOCAL_WORLD_SIZE", size)),
        store=store,
        secret=_secret_of(given),
        local_known="LOCAL_WORLD_SIZE" in given,
        out=given.get("MURMUR_OUT", ""),
    )


def take_place() -> Place | None:
    """Return the place of this process, and remove it from the environment.

    A framework that finds it there would start its own distributed training.
    """
    place = place_of()
    named = {name for launcher in LAUNCHERS for name in (launcher.rank, launcher.size, launcher.local_rank)}
    for name in (*(Place(0, 1, 0, "", 0).variables()), *named):
        os.environ.pop(name, None)
    return place


def set_variables(variables: Mapping[str, str]) -> None:
    """Give this process these environment variables, and no others."""
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    os.environ.update({name: value for name, value in variables.items() if os.environ.get(name) != value})


def renew_variables(variables: Mapping[str, str]) -> None:
    """Give this process these environment variables, and no others, in new memory."""
    os.environ.clear()
    os.environ.update(variables)


def variables_now() -> dict[str, str]:
    return dict(os.environ)


def add_variables(place: Place) -> None:
    """Set torchrun's variables to a place, where the launcher has not, for frameworks that read no others."""
    for name, value in place.variables().items():
        os.environ.setdefault(name, value)


@dataclass(frozen=True)
class Launcher:
    """Variables of a launcher that does not set a meeting point; `name` is for messages.

    Attributes:
        job: Names of the variables that identify a launch.
        inner: Variable of a launcher that this one starts, and which then starts the learners.
    """

    name: str
    rank: str
    size: str
    local_rank: str
    local_size: str
    job: tuple[str, ...]
    inner: str = ""

    def started(self, given: Mapping[str, str]) -> bool:
        """True if it has started this process as one of several."""
        return self.rank in given and int(given.get(self.size, 1)) > 1 and self.inner not in given


SLURM_STEP = ("SLURM_JOB_ID", "SLURM_STEP_ID")
# srun comes before mpiexec: with an MPI plugin it also sets PMI's variables, which do not name hosts.
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
FIRST_PORT, PORTS = 20000, 10000  # below the range of ports that systems assign themselves


def _place_by(launcher: Launcher, given: Mapping[str, str]) -> Place:
    rank, size = int(given[launcher.rank]), int(given[launcher.size])
    if not 0 <= rank < size:
        raise ValueError(f"{launcher.rank}={rank} does not fit {launcher.size}={size}")
    local_size = tasks_on(int(given.get("SLURM_NODEID", 0)), given.get(launcher.local_size, str(size)))
    one_host = local_size == size
    host = given.get("MASTER_ADDR") or ("127.0.0.1" if one_host else first_host(given.get("SLURM_STEP_NODELIST", "")))
    # On one host all have the same parent process; on several, their parents are tasks of a Slurm step.
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
    """Return the tasks on a host, from one number for all or from entry `node` of Slurm's list.

    In Slurm's lists "2(x3),1" means three hosts of two tasks and one of one.
    """
    counts: list[int] = []
    for entry in per_host.split(","):
        tasks, _, times = entry.removesuffix(")").partition("(x")
        counts += [int(tasks)] * int(times or 1)
    return counts[node] if node < len(counts) else counts[0]


def first_host(nodes: str) -> str:
    """Return the first host of Slurm's list, such as a[07-09,12],b3."""
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
    """Return the environment of a learner; `secret` is an inherited descriptor of the file with the secret."""
    run = {} if secret is None else {"TORCHELASTIC_RUN_ID": f"murmur:{secret}"}
    return {**import_variables(threads), **place.variables(), **run}


def import_variables(threads: int) -> dict[str, str]:
    """Return the environment in which the program of learners is imported."""
    return {**os.environ, "OMP_NUM_THREADS": str(threads)}


def backend_of(devices: Sequence[str], hosts: Sequence[str], nccl_available: bool) -> Backend:
    """Return the backend of a group, from its members in order: NCCL between GPUs of one host, gloo otherwise."""
    one_host = len(set(hosts)) == 1
    own_gpus = all(map(is_accelerator, devices)) and len(set(devices)) == len(devices)
    return "nccl" if nccl_available and one_host and own_gpus and len(devices) > 1 else "gloo"


def addresses_of(host: str, named_by: str = "MASTER_ADDR") -> list[str]:
    """Return the IPv4 addresses of a host's name, given by a variable, option or file `named_by`; or ValueError."""
    try:
        found = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
        return list(dict.fromkeys(str(each[4][0]) for each in found))
    except (OSError, UnicodeError) as error:
        raise ValueError(
            f"host name {host!r} (from {named_by}) has no {_lacking(host)}address on {socket.gethostname()}: {error};"
            " set MASTER_ADDR to an address of learner 0's host that all learners can reach, or add the name to"
            " /etc/hosts (under Slurm: set the node's NodeAddr)"
        ) from error


def _lacking(host: str) -> str:
    try:
        return "IPv4 " if socket.getaddrinfo(host, None) else ""
    except (OSError, UnicodeError):
        return ""


def meeting_host(hosts: Sequence[str]) -> str:
    """Return the address on which learner 0 should listen; ValueError if its host's name leads only to itself."""
    if len(set(hosts)) == 1:
        return "127.0.0.1"
    named = os.environ.get("MASTER_ADDR")
    host = addresses_of(named or hosts[0], "MASTER_ADDR" if named else "the name of learner 0's host")[0]
    if host.startswith("127."):
        raise ValueError(
            f"the name of learner 0's host, {hosts[0]}, is {host} there, which others cannot reach: set MASTER_ADDR to"
            " an address of that host that they can"
        )
    return host


def threads_per_learner(cores: int, learners_here: int) -> int:
    """Return the compute threads of each learner of a host: an equal part of the cores, at least one."""
    return max(1, cores // max(1, learners_here))
