"""Learners under faults: processes on separate hosts that can be killed, stopped, cut off and slowed down.

    with troubled(network, 4, words) as running:       # words(rank): the command line of a learner
        running.kill(1); running.stop(2); running.cut(3); running.start(1)

The learners find their place in torchrun's variables, like those of `namespaces.py`. `network=None` starts them all on
this host, where no link can be cut. Their steps are logged in files, one line per step (`StepLog`), read by `steps_of`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from murmur.engine.record import Record
from murmur.engine.task import Loss, Score, seed_of
from murmur.worlds.process.environment import Place, child_variables
from murmur.worlds.process.listener import listen
from murmur.worlds.process.signals import die_with_parent, end_all
from murmur.worlds.process.store_server import StoreServer
from namespaces import Network, run

LOOPBACK = "127.0.0.1"
INPUTS, CLASSES, MINIBATCH, HELD_OUT = 64, 10, 32, 1000


@dataclass
class Troubled:
    """A group of learners under faults.

    Attributes:
        network: hosts of the learners; None for this host alone.
        words: function that returns the command line of a learner, by rank.
        size: number of learners.
        store: address of the key-value server.
        processes: latest process of each learner, by rank.
    """

    network: Network | None
    words: Callable[[int], list[str]]
    size: int
    store: tuple[str, int]
    processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, rank: int) -> None:
        """Start a learner, for the first time or again."""
        local = rank if self.network is None else 0
        place = Place(rank, self.size, local, *self.store, local_size=self.size if self.network is None else 1)
        words = self.words(rank) if self.network is None else self.network.inside(rank, self.words(rank))
        # The kernel may otherwise hand a collective the host's name, which all hosts here share.
        variables = {**child_variables(place, 1), "GLOO_SOCKET_IFNAME": "lo" if self.network is None else "eth0"}
        self.processes[rank] = subprocess.Popen(
            words,
            env=variables,
            stdin=subprocess.DEVNULL,
            preexec_fn=die_with_parent(),  # noqa: PLW1509 - prctl takes no lock
        )

    def kill(self, rank: int) -> None:
        """Send SIGKILL."""
        self.processes[rank].kill()
        self.processes[rank].wait()

    def stop(self, rank: int) -> None:
        """Send SIGSTOP: its sockets stay open without answers."""
        os.kill(self.processes[rank].pid, signal.SIGSTOP)

    def go_on(self, rank: int) -> None:
        """Send SIGCONT."""
        os.kill(self.processes[rank].pid, signal.SIGCONT)

    def cut(self, rank: int) -> None:
        """Disconnect a host's cable.

        Raises:
            ValueError: all learners are on this host.
        """
        self._plug(rank, "down")

    def mend(self, rank: int) -> None:
        """Connect a host's cable again."""
        self._plug(rank, "up")

    def _plug(self, rank: int, how: str) -> None:
        if self.network is None:
            raise ValueError("learners on one host have no cables")
        run(f"ip link set {self.network.port(rank)} {how}")

    def wait(self, ranks: Sequence[int], seconds: float, again: Collection[int] = ()) -> dict[int, int | None]:
        """Exit statuses, None for processes that have not ended within `seconds`.

        Failing processes among `again` are started again once, as the launcher does.
        """
        deadline, left = time.monotonic() + seconds, set(again)
        while time.monotonic() < deadline and any(self.processes[r].poll() is None for r in ranks):
            for rank in [r for r in left if self.processes[r].poll() not in (None, 0)]:
                left.remove(rank)
                self.start(rank)
            time.sleep(0.05)
        return {r: self.processes[r].poll() for r in ranks}


@contextmanager
def troubled(network: Network | None, size: int, words: Callable[[int], list[str]]) -> Iterator[Troubled]:
    """Start `size` learners, and end all remaining ones on leaving."""
    with ExitStack() as stack:
        server = StoreServer(listen(LOOPBACK if network is None else network.store_address))
        stack.callback(server.close)
        averager = Troubled(network, words, size, server.address)
        stack.callback(lambda: end_all(list(averager.processes.values())))
        for rank in range(size):
            averager.start(rank)
        yield averager


@dataclass(frozen=True)
class PacedRegression:
    """Multinomial regression on drawn data, with gradients that sleep for `seconds` times `factor()`.

    Labels are drawn from a softmax of a fixed linear map, so that the held-out loss has a floor, which training nearly
    reaches: the final loss depends little on the number of learners.

    Attributes:
        seconds: time of a gradient.
        per_epoch: number of minibatches in an epoch.
        seed: seed of the training data; the map and the held-out data are always the same.
        factor: function called before each gradient.
        latest: number of the minibatch of the latest gradient.
    """

    seconds: float
    per_epoch: int
    seed: int = 0
    factor: Callable[[], float] = field(default=lambda: 1.0, repr=False)
    latest: list[int] = field(default_factory=lambda: [-1], repr=False)

    @property
    def samples_per_epoch(self) -> float:
        return float(MINIBATCH * self.per_epoch)

    def prepare(self) -> None:
        pass

    def model(self) -> nn.Module:
        return nn.Linear(INPUTS, CLASSES)

    def minibatch(self, n: int) -> tuple[Tensor, Tensor, int]:
        return (*self._draw(seed_of(self.seed, n), MINIBATCH), n)

    def loss(self, model: nn.Module, minibatch: tuple[Tensor, Tensor, int]) -> Loss:
        x, y, self.latest[0] = minibatch
        time.sleep(self.seconds * self.factor())
        return Loss(cross_entropy(model(x), y, reduction="sum"), float(len(y)))

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        x, y = self._draw(seed_of("held out"), HELD_OUT)
        return {"loss": float(cross_entropy(model(x), y))}

    def test(self, model: nn.Module) -> Score:
        return Score(self.evaluate(model))

    def _draw(self, seed: int, size: int) -> tuple[Tensor, Tensor]:
        draw = torch.Generator().manual_seed(seed)
        truth = torch.randn(INPUTS, CLASSES, generator=torch.Generator().manual_seed(1)) / INPUTS**0.5
        x = torch.randn(size, INPUTS, generator=draw)
        return x, torch.multinomial((x @ truth).softmax(1), 1, generator=draw).flatten()


def slowness_of(folder: Path, rank: int) -> Callable[[], float]:
    """Present slowness of a learner's gradients: read from a file, 1 without it."""
    file = folder / f"{rank}.slow"
    return lambda: float(file.read_text()) if file.exists() else 1.0


class StepLog:
    """Log of a learner's steps in a file: time (of the one monotonic clock), minibatch, averages so far."""

    def __init__(self, path: Path, task: PacedRegression, exchanges: Callable[[], int]) -> None:
        self._file = path.open("a", buffering=1)
        self._task, self._exchanges = task, exchanges

    def __call__(self, record: Record) -> None:
        if record.kind == "step":
            self.write()

    def write(self) -> None:
        """Log a step with the latest minibatch."""
        self._file.write(f"{time.monotonic():.4f} {self._task.latest[0]} {self._exchanges()}\n")


@dataclass(frozen=True)
class Step:
    """One line of a `StepLog`."""

    at: float
    minibatch: int
    exchanges: int


def steps_of(path: Path) -> list[Step]:
    """All complete lines of a log; empty if there is no such file yet."""
    if not path.exists():
        return []
    words = [line.split() for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return [Step(float(at), int(n), int(exchanges)) for at, n, exchanges in words]
