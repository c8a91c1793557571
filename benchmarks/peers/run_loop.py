"""One learner of one system in a plain loop: run_loop.py SYSTEM LEARNER PORT HIDDEN WORK STEPS.

Prints steps per second and held-out loss. A function per system holds its differences from plain PyTorch; the loop, the
data and the clock are shared. The network has two hidden layers of HIDDEN units. WORK products of small matrices, a
third of them forward and the rest backward, make a step as long as that of a deeper network. Seconds begin after WARM
steps and end with the loop.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torchft_manager import managed

LEARNERS, WARM, K, RATE, BATCH = 2, 24, 8, 0.05, 16
Step = Callable[[], None]
Last = Callable[[], AbstractContextManager[object]]
System = tuple[nn.Module, Step, Last]  # model, replacement of optimizer.step(), context of the backward pass


def work(count: int, square: Tensor) -> None:
    for _ in range(count):
        torch.mm(square, square)


class Work(torch.autograd.Function):
    """The identity, with `count` products of matrices forward and twice as many backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, count: int, square: Tensor) -> Tensor:
        ctx.count, ctx.square = count, square
        work(count, square)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        work(2 * ctx.count, ctx.square)
        return gradient, None, None


class Network(nn.Module):
    def __init__(self, hidden: int, products: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([nn.Linear(128, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, 10)])
        self.counts = (products // 6, products // 3 - products // 6)
        self.square = torch.full((64, 64), 1e-3)  # no buffer: it is no part of the model

    def forward(self, x: Tensor) -> Tensor:
        for layer, count in zip(self.layers, self.counts, strict=False):
            x = Work.apply(layer(x).relu(), count, self.square)
        return self.layers[-1](x)


def batches(learner: int, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    truth = torch.randn(128, 10, generator=torch.Generator().manual_seed(7))
    draw = torch.Generator().manual_seed(100 + learner)
    for _ in range(count):
        x = torch.randn(BATCH, 128, generator=draw)
        yield x, (x @ truth).argmax(1)


def loop(net: nn.Module, step: Step, last: Last, data: list[tuple[Tensor, Tensor]]) -> float:
    """Seconds of all steps after the first WARM ones."""
    began = math.nan
    for n, (x, y) in enumerate(data):
        if n == WARM:
            began = time.perf_counter()
        loss = cross_entropy(net(x), y)
        with last():
            loss.backward()
        step()
    return time.perf_counter() - began


@contextmanager
def ours(strategy: str, net: nn.Module, learner: int, port: int) -> Iterator[System]:
    import murmur
    from murmur import strategies
    from murmur.worlds.process.environment import Place

    made = {
        "SyncSGD": strategies.SyncSGD(),
        "KAVG": strategies.KAVG(K),
        "BMUF": strategies.BMUF(K, eta=0.5, zeta=1.0),
        "ADPSGD": strategies.ADPSGD(),
    }[strategy]
    place = Place(learner, LEARNERS, learner, "127.0.0.1", port, 0, LEARNERS, "learner 0")
    with murmur.join(made, net, torch.optim.SGD(net.parameters(), lr=RATE), seat=place) as me:
        yield net, me.step, me.last_backward


def _process_group(learner: int, port: int) -> None:
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=learner, world_size=LEARNERS)


def _step(optimizer: torch.optim.Optimizer, after: Step = lambda: None) -> Step:
    def step() -> None:
        optimizer.step()
        after()
        optimizer.zero_grad()

    return step


@contextmanager
def ddp(net: nn.Module, learner: int, port: int) -> Iterator[System]:
    _process_group(learner, port)
    wrapped = nn.parallel.DistributedDataParallel(net)
    yield wrapped, _step(torch.optim.SGD(net.parameters(), lr=RATE)), nullcontext


@contextmanager
def averager(net: nn.Module, learner: int, port: int) -> Iterator[System]:
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    _process_group(learner, port)
    mean = PeriodicModelAverager(period=K, warmup_steps=0)
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    yield net, _step(optimizer, lambda: mean.average_parameters(net.parameters())), nullcontext


@contextmanager
def accelerate(net: nn.Module, learner: int, port: int) -> Iterator[System]:
    from accelerate import Accelerator
    from accelerate.local_sgd import LocalSGD

    place = {"RANK": learner, "LOCAL_RANK": learner, "WORLD_SIZE": LEARNERS, "MASTER_PORT": port}
    os.environ.update({k: str(v) for k, v in place.items()}, MASTER_ADDR="127.0.0.1", ACCELERATE_USE_CPU="true")
    accelerator = Accelerator(cpu=True)
    torch.set_num_threads(1)  # the import has changed the number
    wrapped, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=RATE))
    with LocalSGD(accelerator=accelerator, model=wrapped, local_sgd_steps=K, enabled=True) as local:
        yield wrapped, _step(optimizer, local.step), nullcontext


@contextmanager
def torchft(kind: str, net: nn.Module, learner: int, port: int) -> Iterator[System]:
    from torchft import local_sgd

    inner = torch.optim.SGD(net.parameters(), lr=RATE)
    outer = torch.optim.SGD(net.parameters(), lr=1.0, momentum=0.5, nesterov=True)
    with managed(net, learner, LEARNERS, port) as manager:
        block = {
            "LocalSGD": lambda: local_sgd.LocalSGD(manager, net, inner, sync_every=K),
            "DiLoCo": lambda: local_sgd.DiLoCo(manager, [net], inner, outer, sync_every=K),
        }[kind]()
        with block:
            yield net, _step(inner), nullcontext


def main(system: str, learner: int, port: int, hidden: int, products: int, steps: int) -> None:
    torch.set_num_threads(1)
    kind, _, name = system.partition(".")
    opened = {"murmur": ours, "torchft": torchft}.get(kind)
    plain = {"ddp": ddp, "averager": averager, "accelerate": accelerate}.get(kind)
    net = Network(hidden, products)
    data = list(batches(learner, WARM + steps))
    with plain(net, learner, port) if plain else opened(name, net, learner, port) as running:  # type: ignore[misc]
        seconds = loop(*running, data)
    with torch.no_grad():
        held = [float(cross_entropy(net(x), y)) for x, y in batches(99, 20)]
    print(f"result {steps / seconds} {sum(held) / len(held)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
    sys.stdout.flush()
    os._exit(0)  # some systems leave threads that never end
