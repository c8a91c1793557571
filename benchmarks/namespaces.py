"""Hosts made of network namespaces: each a veth pair on one bridge, its bandwidth in both directions set by `tbf`.

    with hosts(2, bits_per_second=40e6) as network, learners(network, [0, 1], [sys.executable, __file__]) as running:
        running.do("train", ranks=[0, 1])        # each process runs `obey(place, {"train": ...})`

Needs root and `ip` and `tc`; `refusal()` names what is missing. All namespaces are removed at the end; those left by a
killed run are removed at the start of the next one. The store of the learners listens on the bridge.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import torch

from murmur.core.world import Seat
from murmur.worlds.process.environment import Place, child_variables
from murmur.worlds.process.listener import listen
from murmur.worlds.process.signals import die_with_parent, end_all
from murmur.worlds.process.store_server import MissingKey, StoreClient, StoreServer
from murmur.worlds.process.torch_store import connect
from murmur.worlds.process.world import ProcessWorld
from murmur.worlds.virtual.cluster import Link

MARK = "murbench"
QUEUE_SECONDS = 0.02  # largest queue of a link, as in a switch with a small buffer
LEAST_QUEUE_BYTES = 20_000
EXCHANGES = 11


def run(words: str, check: bool = True) -> str:
    """Run a command and return its output."""
    done = subprocess.run(words.split(), capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        raise OSError(f"`{words}` failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def refusal() -> str | None:
    """Reason why hosts cannot be made here; None if they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} (of iproute2) not installed"
    try:
        with hosts(1, 1e6):
            return None
    except OSError as error:
        return f"no network namespaces with tbf here: {error}"


@dataclass(frozen=True)
class Network:
    """Hosts on a bridge.

    Attributes:
        tag: part of all names: the number of the process that made them.
        mtu: bytes of the largest packet; 9000 (jumbo frames) if packets would cost more than the network itself.
    """

    tag: int
    mtu: int = 1500

    @property
    def bridge(self) -> str:
        return f"mb{self.tag}"

    def space(self, host: int) -> str:
        return f"{MARK}-{self.tag}-{host}"

    def port(self, host: int) -> str:
        """The bridge's end of a host's cable."""
        return f"mb{self.tag}p{host}"

    def address(self, host: int) -> str:
        return f"10.{201 + self.tag % 50}.{self.tag // 50 % 250}.{host + 1}"

    @property
    def store_address(self) -> str:
        return self.address(253)

    def inside(self, host: int, words: Sequence[str]) -> list[str]:
        """A command line that runs on a host."""
        return ["ip", "netns", "exec", self.space(host), *words]

    def limit(self, host: int, bits_per_second: float) -> None:
        """Set the bandwidth of a host's cable in both directions."""
        burst = int(max(self.mtu + 1_700, bits_per_second / 8 * 0.002))  # with less than a packet, none would pass
        queue = int(max(LEAST_QUEUE_BYTES, bits_per_second / 8 * QUEUE_SECONDS)) + burst
        shape = f"root tbf rate {bits_per_second:.0f}bit burst {burst} limit {queue}"
        run(f"ip netns exec {self.space(host)} tc qdisc replace dev eth0 {shape}")
        run(f"tc qdisc replace dev {self.port(host)} {shape}")

    def build(self, host: int) -> None:
        space, port = self.space(host), self.port(host)
        run(f"ip netns add {space}")
        run(f"ip link add {port} type veth peer name eth0 netns {space}")
        run(f"ip link set {port} mtu {self.mtu} master {self.bridge} up")
        run(f"ip -n {space} addr add {self.address(host)}/24 dev eth0")
        run(f"ip -n {space} link set eth0 mtu {self.mtu} up")
        run(f"ip -n {space} link set lo up")
        for end in (f"-n {space} link set eth0", f"link set {port}"):
            run(f"ip {end} gso_max_segs 1")  # tbf would split large segments and drop their tails
        # As with network cards, unsent data stays in a host's sockets, not in a queue that overflows.
        run(f"ip netns exec {space} sysctl -qw net.ipv4.tcp_limit_output_bytes={4 * self.mtu}")

    def tear_down(self) -> None:
        for line in run("ip netns list", check=False).splitlines():
            if line.startswith(f"{MARK}-{self.tag}-"):
                run(f"ip netns del {line.split()[0]}", check=False)
        run(f"ip link del {self.bridge}", check=False)


@contextmanager
def hosts(number: int, bits_per_second: float, mtu: int = 1500) -> Iterator[Network]:
    """`number` hosts with this bandwidth in each direction, in packets of at most `mtu` bytes.

    Raises:
        OSError: this machine does not permit it.
    """
    for line in run("ip netns list").splitlines():
        if line.startswith(MARK) and not Path(f"/proc/{(left := int(line.split('-')[1]))}").exists():
            Network(left).tear_down()
    network = Network(os.getpid(), mtu)
    previous = signal.signal(signal.SIGTERM, _leave)
    try:
        run(f"ip link add {network.bridge} mtu {mtu} type bridge")
        run(f"ip addr add {network.store_address}/24 dev {network.bridge}")
        run(f"ip link set {network.bridge} up")
        for host in range(number):
            network.build(host)
            network.limit(host, bits_per_second)
        yield network
    finally:
        network.tear_down()
        signal.signal(signal.SIGTERM, previous)


def _leave(number: int, frame: object) -> None:  # noqa: ARG001 - the signature of a handler
    raise SystemExit(128 + number)


@dataclass
class HostLearners:
    """Learner processes on hosts, which receive orders through their store.

    Attributes:
        processes: processes of the learners, by rank.
        store: connection to the store.
        orders: number of orders given so far.
    """

    processes: list[subprocess.Popen[bytes]]
    store: StoreClient
    orders: int = 0

    def order(self, what: str, ranks: Sequence[int], **how: Any) -> None:
        """Give an order to these learners, which carry it out as one group; the others wait."""
        self.orders += 1
        self._tell({"what": what, "ranks": list(ranks), "how": how})

    def results(self, ranks: Sequence[int], seconds: float = 120.0) -> list[Any]:
        """Results of the latest order, by rank."""
        return [self._wait(f"done/{self.orders}/{rank}", seconds) for rank in ranks]

    def do(self, what: str, ranks: Sequence[int], **how: Any) -> list[Any]:
        """Give an order and wait for its results."""
        self.order(what, ranks, **how)
        return self.results(ranks)

    def done(self, rank: int) -> bool:
        """True if a learner has finished the latest order."""
        key = f"generation-0/done/{self.orders}/{rank}"
        return bool(self.store.call({"do": "check", "keys": [key]})[0]["there"])

    def dismiss(self) -> None:
        """Send the end of all orders."""
        self.orders += 1
        self._tell(None)

    def _tell(self, order: object) -> None:
        key = f"generation-0/order/{self.orders}"
        self.store.call({"do": "set", "key": key}, json.dumps(order).encode())

    def _wait(self, key: str, seconds: float) -> Any:
        deadline = time.monotonic() + seconds
        while True:
            try:
                return json.loads(self.store.wait([f"generation-0/{key}"], 0.5))
            except MissingKey as error:
                failed = [rank for rank, p in enumerate(self.processes) if p.poll() not in (None, 0)]
                if failed or time.monotonic() > deadline:
                    raise RuntimeError(f"no {key!r} in {seconds} s; learners that failed: {failed}") from error


def obey(place: Place, duties: Mapping[str, Callable[..., Any]]) -> None:
    """A learner's side of `HostLearners.order`: duties by name, called with the place in the group of that order."""
    store = connect(place, 600.0)
    for k in count(1):
        order = json.loads(store.get(f"order/{k}"))
        if order is None:
            return
        if place.rank in order["ranks"]:
            rank, size = order["ranks"].index(place.rank), len(order["ranks"])
            own = replace(place, rank=rank, size=size, generation=k)
            store.set(f"done/{k}/{place.rank}", json.dumps(duties[order["what"]](own, **order["how"])))


@contextmanager
def learners(network: Network, where: Sequence[int], words: Sequence[str]) -> Iterator[HostLearners]:
    """Start learner i on host where[i], one thread each; they find their place in torchrun's variables."""
    with ExitStack() as stack:
        server = StoreServer(listen(network.store_address))
        stack.callback(server.close)
        processes: list[subprocess.Popen[bytes]] = []
        stack.callback(end_all, processes)
        for rank, host in enumerate(where):
            local = where[:rank].count(host)
            place = Place(rank, len(where), local, *server.address, local_size=where.count(host))
            # Otherwise DistributedDataParallel's gloo resolves the host's name, and all hosts here have the same name.
            environment = {**child_variables(place, 1), "GLOO_SOCKET_IFNAME": "eth0"}
            command = network.inside(host, words)
            processes.append(
                subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, preexec_fn=die_with_parent())  # noqa: PLW1509 - prctl takes no lock
            )
        running = HostLearners(processes, StoreClient(*server.address))
        yield running
        running.dismiss()
        for process in processes:
            process.wait(60)


@dataclass(frozen=True)
class Pair:
    """Network measurements of two learners: medians, in seconds.

    Attributes:
        message: time of a small message and its answer.
        mean: time of the mean of a vector of both.
        exchange: time to send each one's vector to the other.
        adding: time to add one vector to another.
    """

    message: float
    mean: float
    exchange: float
    adding: float

    def link(self, num_bytes: float) -> Link:
        """The mean is 2 messages of half a vector and an addition of half of one: 2 (a + b / 2 B) + adding / 2."""
        latency = self.message / 2
        return Link(latency, num_bytes / (self.mean - 2 * latency - self.adding / 2))


def exchanges(place: Place, numel: int) -> dict[str, float]:
    """Measure a `Pair`, as a duty of two learners; the first one's figures count."""
    x, small, other = torch.zeros(numel), torch.zeros(1), 1 - place.rank
    times: dict[str, list[float]] = {name: [] for name in ("message", "mean", "exchange", "adding")}

    @contextmanager
    def timed(what: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        times[what].append(time.monotonic() - began)

    async def program(seat: Seat) -> None:
        group = seat.group
        for _ in range(EXCHANGES):
            await group.broadcast(small)  # together
            with timed("message"):
                if place.rank == 0:
                    group.post(small, other)
                await group.recv(other)
                if place.rank == 1:
                    group.post(small, other)
            await group.broadcast(small)
            with timed("mean"):
                await group.start_sum(x)
            await group.broadcast(small)
            with timed("exchange"):
                group.post(x, other)
                await group.recv(other)
            with timed("adding"):
                x.add_(x)

    ProcessWorld(place, timeout_seconds=60).run(program)
    return {what: statistics.median(found[1:]) for what, found in times.items()}
