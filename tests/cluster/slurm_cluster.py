"""A Slurm of several nodes on one host: each node has its own network, process, host-name and mount namespaces.

    with slurm_cluster(folder, nodes=4) as slurm:
        slurm.run(["srun", "-N", "2", "hostname"])

Needs root, Slurm, munge, and iproute2. Everything it writes lies in `folder`, and the configuration of a Slurm that is
installed here is not touched: munged has its own key and socket, the controller a free port. The nodes' names stand in
a /etc/hosts that only they see. A node ends with all its processes, and all nodes end with this process, also when it
is killed.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from murmur.worlds.process.signals import die_with_parent, end_all
from namespaces import Network, hosts
from namespaces import refusal as no_hosts

PROGRAMS = ("munged", "munge", "slurmctld", "slurmd", "srun", "sbatch", "scontrol", "scancel", "sinfo", "squeue")
START_SECONDS, BITS_PER_SECOND = 60.0, 10e9
NODE_DOWN_SECONDS = 10  # seconds of silence after which the controller marks a node as down; Slurm's default is 300
REQUEUE_SECONDS = 5  # seconds after which a requeued job may start; Slurm's default is 120

CONFIGURATION = """ClusterName=murmur-check
SlurmctldHost={controller}({address})
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire={again}
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n.spool
SlurmdPidFile={folder}/%n.pid
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdLogFile={folder}/%n.log
SlurmctldLogFile={folder}/slurmctld.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmdParameters=config_overrides
MpiDefault=none
SlurmdTimeout={down}
KillWait=5
SchedulerParameters=sched_interval=2,batch_sched_delay=0
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""
NODE = "NodeName={name} NodeAddr={address} CPUs={cores} Sockets=1 CoresPerSocket={cores} ThreadsPerCore=1\n"


def refusal() -> str | None:
    """Reason why no cluster can be started here; None if one can."""
    if os.geteuid() != 0:
        return "a Slurm of its own needs root"
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        return f"{', '.join(missing)} not found: apt-get install slurm-wlm munge"
    return no_hosts()


@dataclass
class SlurmCluster:
    """A running cluster.

    Attributes:
        folder: Folder of the configuration, logs and state.
        network: Network with one host for each node.
        names: Names of the nodes.
        controller: Processes munged and slurmctld.
        nodes: First process of each node that is up.
    """

    folder: Path
    network: Network
    names: Sequence[str]
    controller: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    nodes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that point Slurm's programs to this cluster."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
        return {**inherited, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def run(
        self,
        words: Sequence[str],
        *,
        cwd: Path | None = None,
        more: Mapping[str, str] | None = None,
        seconds: float = 120,
    ) -> subprocess.CompletedProcess[str]:
        """Run one of Slurm's programs outside the nodes."""
        given = {**self.environment, **(more or {})}
        return subprocess.run(words, cwd=cwd, env=given, capture_output=True, text=True, check=False, timeout=seconds)

    def ask(self, words: str) -> str:
        """Return the output of one of Slurm's programs.

        Raises:
            OSError: the program failed.
        """
        done = self.run(words.split(), seconds=30)
        if done.returncode != 0:
            raise OSError(f"`{words}` failed: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def start_node(self, name: str) -> None:
        """Start a node: new namespaces with slurmd in them."""
        (self.folder / f"{name}.spool").mkdir(exist_ok=True)
        begin = f'hostname {name} && mount --bind "{self.folder}/hosts" /etc/hosts && slurmd -D -N {name}'
        unshare = ["unshare", "--uts", "--mount", "--pid", "--mount-proc", "--fork", "--kill-child", "sh", "-c"]
        host = self.names.index(name)
        # nsenter instead of `ip netns exec`, which hides the control groups that slurmd needs.
        enter = ["nsenter", f"--net=/run/netns/{self.network.space(host)}"]
        self.nodes[name] = self._start([*enter, *unshare, begin], name)

    def kill_node(self, name: str) -> None:
        """End every process of a node at once: slurmd, the steps and their processes."""
        process = self.nodes.pop(name)
        process.kill()
        process.wait()

    def processes_on(self, name: str) -> list[tuple[int, str]]:
        """The processes of a node and their command lines."""
        space = self.network.space(self.names.index(name))
        listed = subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True, check=True).stdout
        return [(int(pid), _command_line(int(pid))) for pid in listed.split()]

    def await_idle(self, seconds: float = START_SECONDS) -> None:
        """Wait until all nodes are up and idle."""
        self.wait_for(lambda: set(self.ask("sinfo -h -N -o %t").split()) == {"idle"}, "all nodes are idle", seconds)

    def wait_for(self, holds: Callable[[], bool], what: str, seconds: float) -> float:
        """Wait until a condition holds; return the seconds of the wait.

        Raises:
            TimeoutError: the condition did not hold in time; the message ends with Slurm's nodes and jobs.
            OSError: a daemon has ended.
        """
        began = time.monotonic()
        while not holds():
            for name, process in [*self.controller.items(), *self.nodes.items()]:
                if process.poll() is not None:
                    raise OSError(f"{name} has ended:\n{(self.folder / f'{name}.out').read_text()[-2000:]}")
            if time.monotonic() - began > seconds:
                now = self.run(["sinfo", "-N", "-l"]).stdout + self.run(["squeue", "-l"]).stdout
                raise TimeoutError(f"{what}: not within {seconds:g} s\n{now}")
            time.sleep(0.1)
        return time.monotonic() - began

    def start_controller(self) -> None:
        """Start munged and slurmctld."""
        key, socket_path = self.folder / "munge.key", self.folder / "munge.socket"
        key.touch(0o600)
        key.write_bytes(os.urandom(128))
        files = {"key": key, "log": self.folder / "munge.log", "pid": self.folder / "munge.pid"}
        files["seed"] = self.folder / "munge.seed"
        options = [f"--{name}-file={path}" for name, path in files.items()]
        # --force: the parent folder may be closed to other users, which munged refuses.
        munged = ["munged", "--foreground", "--force", f"--socket={socket_path}", *options]
        self.controller["munged"] = self._start(munged, "munged")
        self.wait_for(socket_path.exists, "munged listens", START_SECONDS)
        (self.folder / "state").mkdir()
        self.controller["slurmctld"] = self._start(["slurmctld", "-D"], "slurmctld")

    def _start(self, words: Sequence[str], name: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.out").open("ab") as out:
            return subprocess.Popen(
                words, env=self.environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                preexec_fn=die_with_parent(),  # noqa: PLW1509 - prctl takes no lock
            )  # fmt: skip

    def stop(self) -> None:
        """End everything."""
        self.run(["scancel", "--full", "--user", "root", "--signal", "KILL"])
        for name in list(self.nodes):
            self.kill_node(name)
        end_all(list(self.controller.values())[::-1])


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""  # it has ended since it was listed


@contextmanager
def slurm_cluster(folder: Path, nodes: int = 4, cores: int = 4) -> Iterator[SlurmCluster]:
    """Start a cluster of nodes n1, n2, ...

    Raises:
        TimeoutError, OSError: the cluster does not start; `folder` has the daemons' logs.
    """
    names = [f"n{i + 1}" for i in range(nodes)]
    folder.chmod(0o755)
    with ExitStack() as stack:
        network = stack.enter_context(hosts(nodes, BITS_PER_SECOND, mtu=9000))
        slurm = SlurmCluster(folder, network, names)
        addresses = {name: network.address(host) for host, name in enumerate(names)}
        (folder / "hosts").write_text(
            "127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for name, address in addresses.items())
        )
        general = CONFIGURATION.format(
            controller=socket.gethostname().partition(".")[0],
            address=network.store_address,
            port=_free_port(network.store_address),
            folder=folder,
            down=NODE_DOWN_SECONDS,
            again=REQUEUE_SECONDS,
        )
        each = "".join(NODE.format(name=name, address=addresses[name], cores=cores) for name in names)
        (folder / "slurm.conf").write_text(each + general)
        stack.callback(slurm.stop)
        slurm.start_controller()
        for name in names:
            slurm.start_node(name)
        slurm.await_idle()
        yield slurm


def _free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
