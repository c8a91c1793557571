"""Pool of learner processes for a whole test run: starting one takes seconds, using one milliseconds."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from murmur.core.world import Program
from murmur.worlds.process.environment import Place
from murmur.worlds.process.listener import listen
from murmur.worlds.process.store_server import StoreServer
from murmur.worlds.process.torch_store import connect
from murmur.worlds.process.world import ProcessWorld

TIMEOUT_SECONDS = 20.0


def _serve(pipe: Any, rank: int) -> None:
    torch.set_num_threads(1)
    while (job := pipe.recv()) is not None:
        function, place, arguments = job
        try:
            pipe.send((True, function(place, *arguments)))
        except BaseException as error:
            pipe.send((False, f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))


class LearnerFailed(RuntimeError):
    """Error raised by a learner process."""


class Pool:
    """`size` processes and one store."""

    def __init__(self, size: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.store = StoreServer(listen())
        self.port = self.store.address[1]
        self.jobs = 0
        self.pipes, self.processes = [], []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, rank), daemon=True)
            process.start()
            self.pipes.append(ours)
            self.processes.append(process)

    def call(self, function: Callable[..., Any], size: int, *arguments: Any) -> list[Any]:
        """Run function(place, *arguments) on `size` learners; return their values in order of rank."""
        self.jobs += 1
        for rank in range(size):
            place = Place(rank, size, rank, "127.0.0.1", self.port, generation=self.jobs)
            self.pipes[rank].send((function, place, arguments))
        answers = [self.pipes[rank].recv() for rank in range(size)]
        failures = [value for good, value in answers if not good]
        if failures:
            # The first failure has caused the others' losses of a peer.
            raise LearnerFailed(min(failures, key=lambda f: f.startswith("PeerLost")))
        return [value for _, value in answers]

    def close(self) -> None:
        for pipe in self.pipes:
            pipe.send(None)
        for process in self.processes:
            process.join(5)


def run_program(place: Place, program: Program[Any]) -> Any:
    """Run a program at one seat of a world of processes."""
    store = connect(place, TIMEOUT_SECONDS)
    return ProcessWorld(place, timeout_seconds=TIMEOUT_SECONDS, store=store).run(program)[0]


@dataclass(frozen=True)
class PooledWorld:
    """World of processes whose learners are the pool's."""

    pool: Pool
    size: int

    def run(self, program: Program[Any]) -> list[Any]:
        return self.pool.call(run_program, self.size, program)
