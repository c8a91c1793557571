"""Learners that get into trouble: processes on hosts of their own that can be killed, stopped, cut off, slowed down.

    with troubled(network, 4, words) as flock:         # words(rank): the command line of a learner
        flock.kill(1); flock.stop(2); flock.cut(3); flock.start(1)

The learners find their place in torchrun's variables, as those of `namespaces.py` do. `network=None` starts them all on
this host, where no link can be cut. What they do stands in files: a line a step (`StepLog`), read by `steps_of`.
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
from murmur.engine.seeds import seed_of
from murmur.engine.task import Loss, Score
from murmur.worlds.process.launch.environment import Place, child_variables
from murmur.worlds.process.launch.launcher import die_with_parent, end_all
from murmur.worlds.process.store.server import StoreServer
from murmur.worlds.process.transport.listener import listen
from namespaces import Network, run

LOOPBACK = "127.0.0.1"
INPUTS, CLASSES, MINIBATCH, HELD_OUT = 64, 10, 32, 1000


@dataclass
class Troubled:
    """A flock and what befalls it.

    Attributes:
        network: its hosts; None: all on this one.
        words: command line of a learner, by rank.
        size: how many learners.
        store: address of the key-value server.
        processes: by rank, the latest of each.
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
        """SIGKILL."""
        self.processes[rank].kill()
        self.processes[rank].wait()

    def stop(self, rank: int) -> None:
        """SIGSTOP: its sockets stay open, and nobody answers."""
        os.kill(self.processes[rank].pid, signal.SIGSTOP)

    def go_on(self, rank: int) -> None:
        """SIGCONT."""
        os.kill(self.processes[rank].pid, signal.SIGCONT)

    def cut(self, rank: int) -> None:
        """Pull a host's cable.

        Raises:
            ValueError: all learners are on this host.
        """
        self._plug(rank, "down")

    def mend(self, rank: int) -> None:
        """Plug it in again."""
        self._plug(rank, "up")

    def _plug(self, rank: int, how: str) -> None:
        if self.network is None:
            raise ValueError("learners on one host have no cables")
        run(f"ip link set {self.network.port(rank)} {how}")

    def wait(self, ranks: Sequence[int], seconds: float, again: Collection[int] = ()) -> dict[int, int | None]:
        """Exit statuses, None for those that have not ended after so many seconds.

        Those among `again` that fail are started again once, as the launcher does.
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
    """Start `size` learners, and end whatever is left of them."""
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
    """Multinomial regression on drawn data, whose gradients take `seconds`, or `factor()` times as long, of sleep.

    Labels are drawn from a softmax of a fixed linear map, so that the held-out loss has a floor, which training comes
    near: what it ends with depends little on how many learners there were.

    Attributes:
        seconds: of a gradient.
        per_epoch: minibatches of an epoch.
        seed: of the training data; the map and the held-out data are always the same.
        factor: looked at before each gradient.
        latest: number of the minibatch whose gradient was computed last.
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
    """How many times as long a learner's gradients take at present: what stands in a file, 1 without it."""
    file = folder / f"{rank}.slow"
    return lambda: float(file.read_text()) if file.exists() else 1.0


class StepLog:
    """A learner's steps in a file that outlives it: time (of the one monotonic clock), minibatch, exchanges so far."""

    def __init__(self, path: Path, task: PacedRegression, exchanges: Callable[[], int]) -> None:
        self._file = path.open("a", buffering=1)
        self._task, self._exchanges = task, exchanges

    def __call__(self, record: Record) -> None:
        if record.kind == "step":
            self._file.write(f"{time.monotonic():.4f} {self._task.latest[0]} {self._exchanges()}\n")


@dataclass(frozen=True)
class Step:
    """One line of a `StepLog`."""

    at: float
    minibatch: int
    exchanges: int


def steps_of(path: Path) -> list[Step]:
    """All whole lines of a log; none if there is no such file yet."""
    if not path.exists():
        return []
    words = [line.split() for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return [Step(float(at), int(n), int(exchanges)) for at, n, exchanges in words]
