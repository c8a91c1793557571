"""Models and optimizers in wrappers of other libraries are used, or refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import murmur
from murmur.core.torch_private import HashStore
from murmur.core.world import Seat
from murmur.strategies import KAVG, SyncSGD
from murmur.worlds.threads import ThreadWorld
from tests.support.user_loops import Words, loss_of, moved, net, optimizer_of, state


@pytest.fixture
def _process_group() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.1)


@pytest.mark.usefixtures("_process_group")
@pytest.mark.parametrize(
    ("wrap", "message"),
    [
        (DistributedDataParallel, "the model is wrapped in DistributedDataParallel, .*: join the model inside it"),
        (lambda m: nn.Sequential(DistributedDataParallel(m)), "0 is wrapped in DistributedDataParallel"),
        (
            lambda m: FullyShardedDataParallel(m, device_id=torch.device("cpu")),
            "the model is wrapped in FullyShardedDataParallel, .*: join the model before it is wrapped",
        ),
        (
            lambda m: fully_shard(m, mesh=dist.init_device_mesh("cpu", (1,))),
            r"the model is wrapped in FSDPModule, .*: join the model before it is wrapped \(fully_shard\)",
        ),
    ],
    ids=["DDP", "a part in DDP", "FSDP", "FSDP2"],
)
def test_models_that_average_themselves_are_refused(wrap: Callable[[nn.Module], nn.Module], message: str) -> None:
    model = wrap(nn.Linear(2, 2))
    with pytest.raises(ValueError, match=message):
        murmur.join(SyncSGD(), model, sgd(model))


@pytest.mark.usefixtures("_process_group")
def test_sharded_parameters_are_refused() -> None:
    model = nn.Linear(2, 2)
    mesh = dist.init_device_mesh("cpu", (1,))
    model.weight = nn.Parameter(dist.tensor.distribute_tensor(model.weight.data, mesh))
    with pytest.raises(ValueError, match=r"weight is a DTensor: .*; join the model before it is wrapped"):
        murmur.join(SyncSGD(), model, sgd(model))


@pytest.mark.usefixtures("_process_group")
def test_a_joined_model_is_not_called_through_a_wrapper() -> None:
    """The model inside is joined, but the loop calls the wrapper."""
    outer = DistributedDataParallel(nn.Linear(2, 2))

    def body(seat: Seat) -> None:
        inner = outer.module if seat.group.rank == 0 else nn.Linear(2, 2)
        with murmur.join(SyncSGD(), inner, sgd(inner), seat=seat) as me:
            if me.rank == 0:
                with pytest.raises(
                    RuntimeError, match=r"called inside DistributedDataParallel, .*: call the model alone"
                ):
                    outer(torch.ones(1, 2))

    ThreadWorld(2, 20.0).run(Words(body))


@pytest.mark.usefixtures("_process_group")
def test_optimizers_that_exchange_gradients_are_refused() -> None:
    model = nn.Linear(2, 2)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    with pytest.raises(ValueError, match=r"ZeroRedundancyOptimizer shards .*: join the plain optimizer"):
        murmur.join(SyncSGD(), model, optimizer)


class AcceleratedOptimizer(torch.optim.Optimizer):
    """Class of the name and the attributes of accelerate's."""

    def __init__(self, optimizer: torch.optim.Optimizer, scaler: Any = None) -> None:
        self.optimizer, self.scaler = optimizer, scaler

    @property
    def param_groups(self) -> Any:  # type: ignore[override]
        return self.optimizer.param_groups

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.optimizer.step(closure)


class DeepSpeedOptimizerWrapper(AcceleratedOptimizer):
    pass


class HorovodSGD(torch.optim.SGD):
    __module__ = "horovod.torch.optimizer"


def run(
    model: nn.Module, optimizer: Any, call: Callable[[nn.Module], nn.Module] = lambda m: m, routes: bool = False
) -> Any:
    with murmur.join(KAVG(2), model, optimizer) as me:
        if routes:
            with murmur.routed(me):
                for n in range(4):
                    loss_of(call(model), n).backward()
                    optimizer.step()
        else:
            for n in range(4):
                loss_of(call(model), n).backward()
                me.step()
        return me.state_dict()


@pytest.mark.parametrize("routes", [False, True])
def test_the_optimizer_in_a_wrapper_is_used(routes: bool) -> None:
    plain, wrapped = net(0), net(0)
    run(plain, optimizer_of(plain))
    run(wrapped, AcceleratedOptimizer(optimizer_of(wrapped)), routes=routes)
    assert moved(state(wrapped))
    assert torch.equal(state(wrapped), state(plain))


def test_wrappers_that_do_more_are_refused() -> None:
    model = net(0)
    with pytest.raises(ValueError, match=r"AcceleratedOptimizer holds a loss scaler.*scaler.step\(me\)"):
        murmur.join(SyncSGD(), model, AcceleratedOptimizer(optimizer_of(model), SimpleNamespace()))
    with pytest.raises(ValueError, match="DeepSpeedOptimizerWrapper belongs to DeepSpeed"):
        murmur.join(SyncSGD(), model, DeepSpeedOptimizerWrapper(optimizer_of(model)))
    with pytest.raises(ValueError, match="belongs to horovod"):
        murmur.join(SyncSGD(), model, HorovodSGD(model.parameters(), 0.1))


def test_other_types_are_refused() -> None:
    model = net(0)
    with pytest.raises(TypeError, match=r"the optimizer is of type Net: give a torch.optim.Optimizer"):
        murmur.join(SyncSGD(), model, model)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"the model is of type list: give a torch.nn.Module"):
        murmur.join(SyncSGD(), [*model.parameters()], optimizer_of(model))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda m: torch.compile(m, backend="eager"),
        nn.DataParallel,
        lambda m: nn.DataParallel(torch.compile(m, backend="eager")),
    ],
    ids=["compiled", "DataParallel", "both"],
)
def test_wrappers_that_leave_gradients_alone_are_joined(wrap: Callable[[nn.Module], nn.Module]) -> None:
    """The run is that of the model itself, and a state of the one is resumed by the other."""
    plain, inside = net(0), net(0)
    wrapped = wrap(inside)
    kept = run(plain, optimizer_of(plain))
    with_wrapper = run(wrapped, optimizer_of(inside))
    assert moved(state(inside))
    assert torch.equal(state(inside), state(plain))
    assert kept["buffers"][0].keys() == with_wrapper["buffers"][0].keys()
    again = wrap(net(0))
    with murmur.join(KAVG(2), again, sgd_like(again)) as me:
        me.load_state_dict(kept)
        with me.consensus() as model:
            assert model is again
    assert torch.equal(state(again), state(plain))  # which has the parameters of `kept`


def sgd_like(model: nn.Module) -> torch.optim.Optimizer:
    inner = model.module if isinstance(model, nn.DataParallel) else model
    return optimizer_of(getattr(inner, "_orig_mod", inner))


def test_a_compiled_learner_joins_one_that_is_not() -> None:
    def body(seat: Seat) -> Tensor:
        model = net(seat.group.rank)
        called = torch.compile(model, backend="eager") if seat.group.rank == 0 else model
        with murmur.join(SyncSGD(), called, optimizer_of(model), seat=seat) as me:
            for n in range(3):
                loss_of(called, 2 * n + me.rank).backward()
                me.step()
        return state(model)

    first, second = ThreadWorld(2, 20.0).run(Words(body))
    assert moved(first)  # type: ignore[arg-type]
    assert torch.equal(first, second)  # type: ignore[arg-type]


def test_a_model_is_compiled_once() -> None:
    """The comparison of the first batches makes no graph break and no second compilation."""
    compiled = [0, 0]

    def body(seat: Seat) -> None:
        model = nn.Sequential(nn.Linear(6, 3))
        rank = seat.group.rank

        def backend(graph: Any, _: object) -> Any:
            compiled[rank] += 1
            return graph.forward

        called = torch.compile(model, backend=backend, fullgraph=True)
        with murmur.join(SyncSGD(), called if rank else model, sgd(model), seat=seat) as me:
            for n in range(6):
                loss_of(called, 2 * n + rank).backward()
                me.step()

    ThreadWorld(2, 20.0).run(Words(body))
    assert compiled == [1, 1]
