"""Programs of sharded learners: two learners of two processes, and the same loop of two whole learners.

python -m tests.support.sharded_loops FOLDER PROGRAM ...      one of four processes, with RANK in its environment
"""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

import murmur
from murmur.core.learner import Strategy
from murmur.core.mixing import pairwise
from murmur.core.shards import own_part
from murmur.core.world import Seat
from murmur.engine import graceful_stop
from murmur.strategies import (
    ADPSGD,
    BMUF,
    KAVG,
    AdaptiveKAVG,
    Compressed,
    DelayByOne,
    DiLoCo,
    GossipPGA,
    NoLoCo,
    ParameterAveraging,
    SlowMo,
    SyncSGD,
)

LEARNERS, SHARDS, ROWS, STEPS, SAVED, SPOILED = 2, 2, 8, 11, 6, 4
EQUAL: dict[str, Strategy] = {
    "KAVG": KAVG(4),
    "KAVG with moments": KAVG(4, moments="averaged"),
    "DiLoCo": DiLoCo(3),
    "BMUF": BMUF(3, moments="at_outer"),
    "SlowMo": SlowMo(4),
    "SyncSGD": SyncSGD(),
    "DelayByOne": DelayByOne(),
    "GossipPGA": GossipPGA(3),
    "NoLoCo": NoLoCo(3),
}


class Uneven(nn.Module):
    """Model with first dimensions that two processes cannot halve, one of length 1, two types, and a frozen part."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 5)
        self.frozen = nn.Linear(5, 5)
        self.frozen.requires_grad_(False)
        self.middle = nn.Linear(5, 3).double()
        self.outer = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.middle(torch.tanh(self.frozen(self.inner(x))).double())
        return self.outer(torch.tanh(h).float())


def uneven(seed: int) -> Uneven:
    torch.manual_seed(seed)
    return Uneven()


def rows(n: int, learner: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(100 * n + learner)
    return torch.randn(ROWS, 6, generator=draw), torch.randn(ROWS, 1, generator=draw)


def loss_of(model: nn.Module, n: int, learner: int, shard: int = 0, shards: int = 1) -> Tensor:
    """Return the loss of a minibatch, or of the part of it that a process of the learner has."""
    x, y = (part[shard::shards] for part in rows(n, learner))
    return (model(x) - y).square().mean()


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 0.05, eps=1e-4)


def trained(
    strategy: Strategy,
    model: nn.Module,
    seat: Seat | None = None,
    mesh: DeviceMesh | None = None,
    steps: int = STEPS,
    spoiled: int | None = None,
) -> list[float]:
    """Train a model; return the norms of the steps that were clipped.

    Args:
        strategy: Strategy.
        model: Model.
        seat: Seat of a whole learner.
        mesh: Mesh of sharded learners.
        steps: Steps of each learner.
        spoiled: Step in which the first learner has an infinite loss, two steps before an infinite element
            of the gradient; with shards, both in its second process alone.
    """
    norms = []
    with murmur.join(strategy, model, adam(model), seat=seat, mesh=mesh) as me:
        for n in range(steps):
            if n == 5:
                with me.consensus() as mean:
                    mean(rows(n, 0)[0])
            loss = loss_of(model, n, me.rank, me.shard, me.shards)
            spoils = me.rank == 0 and me.shard == me.shards - 1
            if n == spoiled and spoils:
                loss = loss * math.inf
            loss.backward()
            if spoiled is not None and n == spoiled + 2 and spoils:
                own_part(next(model.parameters()).grad)[0, 0] = math.inf
            norm = me.step(samples=(ROWS + me.rank) / me.shards, loss=loss, clip=0.8 if n % 2 else None)
            norms += [] if norm is None else [float(norm)]
    return norms


def meshes() -> tuple[DeviceMesh, DeviceMesh]:
    both = init_device_mesh("cpu", (LEARNERS, SHARDS), mesh_dim_names=("learner", "shard"))
    return both["learner"], both["shard"]


def sharded(model: Uneven, mesh: DeviceMesh) -> Uneven:
    for part in (model.middle, model):
        fully_shard(part, mesh=mesh)
    return model


def whole(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers of a sharded model, as a whole."""
    for part in model.modules():
        if hasattr(part, "reshard"):
            part.reshard()
    named = model.state_dict().items()
    return {name: x.full_tensor() if hasattr(x, "full_tensor") else x.clone() for name, x in named}


def equal(folder: Path) -> dict[str, object]:
    """Train by each of the strategies that have one result; return models, and the norms of clipped steps."""
    learners, shards = meshes()
    found: dict[str, object] = {}
    for name, strategy in EQUAL.items():
        model = sharded(uneven(learners.get_local_rank()), shards)
        found[f"norms of {name}"] = trained(strategy, model, mesh=learners)
        found[name] = whole(model)
    return found


def odd(folder: Path) -> dict[str, object]:
    """Train where processes of a learner differ: in parts that FSDP leaves whole, and in a bad minibatch."""
    learners, shards = meshes()
    parts = uneven(dist.get_rank())
    for name, p in parts.named_parameters():
        if name.startswith("middle"):  # the first process of a learner has the others' parameters
            p.data.copy_(uneven(learners.get_local_rank()).get_parameter(name))
    fully_shard(parts.middle, mesh=shards)
    trained(KAVG(4), parts, mesh=learners)
    bad = sharded(uneven(learners.get_local_rank()), shards)
    trained(KAVG(4), bad, mesh=learners, spoiled=SPOILED)
    return {"parts": whole(parts), "bad": whole(bad)}


def pairs(folder: Path) -> dict[str, object]:
    """Train by ADPSGD with gradients that do not depend on the weights, so that their mean has one value."""
    learners, shards = meshes()
    torch.manual_seed(0)
    model = nn.Linear(6, 5)
    fully_shard(model, mesh=shards)
    begun = whole(model)
    linear(ADPSGD(), model, mesh=learners)
    moments = sharded(uneven(0), shards)
    trained(ADPSGD(pairwise, moments="averaged"), moments, mesh=learners)
    return {"begun": begun, "end": whole(model), "moments": whole(moments)}


def linear(strategy: Strategy, model: nn.Module, seat: Seat | None = None, mesh: DeviceMesh | None = None) -> nn.Module:
    with murmur.join(strategy, model, torch.optim.SGD(model.parameters(), 0.1), seat=seat, mesh=mesh) as me:
        for n in range(30):
            x = rows(n, me.rank)[0][me.shard :: me.shards]
            model(x).mean().backward()
            me.step()
    return model


def norm_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


def saved(folder: Path) -> dict[str, object]:
    """Train a model with records, save it in the middle of a round, and resume that in a second block."""
    learners, shards = meshes()
    found: dict[str, object] = {}
    place = folder / f"state-{learners.get_local_rank()}-{shards.get_local_rank()}"
    for name, begin in (("uninterrupted", 0), ("resumed", SAVED)):
        model = norm_net()
        fully_shard(model, mesh=shards)
        out = folder / "records" if begin == 0 else None
        with murmur.join(KAVG(4), model, adam(model), mesh=learners, out=out) as me:
            sampler = me.sampler(range(STEPS * 4 * LEARNERS * SHARDS), step_samples=4)
            if begin:
                state = {"run": me.state_dict()}
                dcp.load(state, checkpoint_id=place, no_dist=True)
                me.load_state_dict(state["run"])
            drawn = [n for n, _ in zip(sampler, range(4 * (STEPS - begin)), strict=False)]
            for n in range(begin, STEPS):
                if n == SAVED and not begin:
                    dcp.save({"run": me.state_dict()}, checkpoint_id=place, no_dist=True)
                loss_of(model, n, me.rank, me.shard, me.shards).backward()
                me.step()
            found[f"steps {name}"] = me.steps
        found[name] = whole(model)
        found[f"drawn {name}"] = drawn
        model.eval()
        with torch.no_grad():
            found[f"output {name}"] = model(rows(0, 0)[0])
    return found


def asked(folder: Path) -> dict[str, object]:
    """Train until a signal to one process stops all of them, all with the same data.

    The learners of one shard look for requests after each round, those of the other after ever more of them.
    """
    learners, shards = meshes()
    graceful_stop.CHECK_SECONDS = 1e9 * shards.get_local_rank()
    model = norm_net()
    fully_shard(model, mesh=shards)
    with murmur.join(KAVG(2), model, adam(model), mesh=learners) as me:
        for n in range(2000):
            if me.should_stop:
                break
            if n == 8 and (me.rank, me.shard) == (1, 1):
                os.kill(os.getpid(), signal.SIGTERM)
            loss_of(model, n, 0).backward()
            me.step()
            with me.consensus() as mean:
                mean.eval()
                shown = mean(rows(0, 0)[0]).detach()
                mean.train()
        return {"steps": me.steps, "shown": shown}


def scaled(folder: Path) -> dict[str, object]:
    """Train with a loss scaler, whose scale one process of the second learner overflows."""
    learners, shards = meshes()
    model = norm_net()
    fully_shard(model, mesh=shards)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with murmur.join(KAVG(2), model, adam(model), mesh=learners) as me:
        for n in range(6):
            loss = loss_of(model, n, me.rank, me.shard, me.shards)
            scaler.scale(loss * math.inf if (n, me.rank, me.shard) == (2, 1, 1) else loss).backward()
            scaler.step(me)
            scaler.update()
    return {"scale": scaler.get_scale(), **whole(model)}


def diverged(folder: Path) -> dict[str, object]:
    """Train until the weights of one shard are infinite on all learners."""
    learners, shards = meshes()
    model = norm_net()
    fully_shard(model, mesh=shards)
    try:
        with murmur.join(KAVG(2), model, adam(model), mesh=learners) as me:
            for n in range(8):
                loss_of(model, n, me.rank, me.shard, me.shards).backward()
                if n == 3 and me.shard == 1:
                    own_part(next(model.parameters())).fill_(math.inf)
                me.step()
    except FloatingPointError as error:
        return {"said": str(error)}
    return {}


def lost(folder: Path) -> dict[str, object]:
    """Train until one process is killed."""
    learners, shards = meshes()
    model = norm_net()
    fully_shard(model, mesh=shards)
    strategy, steps = (KAVG(2), 100000) if (folder / "KAVG").exists() else (ADPSGD(), 100)
    with murmur.join(strategy, model, adam(model), mesh=learners) as me:
        for n in range(steps):
            if n == 4 and (me.rank, me.shard) == (1, 0):
                os.kill(os.getpid(), signal.SIGKILL)
            if n == 5 and me.rank == 0:
                time.sleep(1.0)  # the others are lost by now
                with me.consensus():
                    pass
            loss_of(model, n, me.rank, me.shard, me.shards).backward()
            me.step()
    return whole(model)


def refused(folder: Path) -> dict[str, object]:
    """Join what cannot be joined; return the messages."""
    learners, shards = meshes()
    everywhere = init_device_mesh("cpu", (LEARNERS * SHARDS,))
    both = init_device_mesh("cpu", (LEARNERS, SHARDS), mesh_dim_names=("replicate", "shard"))

    def made(mesh: DeviceMesh | None) -> nn.Module:
        model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 1))
        if mesh is not None:
            fully_shard(model, mesh=mesh)
        return model

    partly = made(None)
    fully_shard(partly[0], mesh=shards)
    figures = murmur.Plan(evaluate=lambda model: {"loss": 0.0})
    scaled = murmur.Plan(total_steps=8, scaling=murmur.scaling(ADPSGD()))
    tries: dict[str, Callable[[], object]] = {
        "no mesh": lambda: murmur.join(KAVG(), m := made(shards), adam(m)),
        "one learner of all": lambda: murmur.join(KAVG(), m := made(everywhere), adam(m), mesh=learners),
        "HSDP": lambda: murmur.join(KAVG(), m := made(both), adam(m), mesh=learners),
        "whole": lambda: murmur.join(KAVG(), m := made(None), adam(m), mesh=learners),
        "mesh of shards": lambda: murmur.join(KAVG(), m := made(shards), adam(m), mesh=shards),
        "norms": lambda: murmur.join(ParameterAveraging(), m := made(shards), adam(m), mesh=learners),
        "losses": lambda: murmur.join(AdaptiveKAVG(), m := made(shards), adam(m), mesh=learners),
        "compressed": lambda: murmur.join(Compressed(KAVG(), "int8"), m := made(shards), adam(m), mesh=learners),
        "figures": lambda: murmur.join(KAVG(), m := made(shards), adam(m), figures, mesh=learners),
        "scaling": lambda: murmur.join(ADPSGD(), m := made(shards), adam(m), scaled, mesh=learners),
        "whole beside shards": lambda: murmur.join(ADPSGD(), partly, adam(partly), mesh=learners),
    }
    found: dict[str, object] = {}
    for name, join in tries.items():
        try:
            join()
        except ValueError as error:
            found[name] = str(error)
    model = made(shards)
    with murmur.join(KAVG(), model, adam(model), mesh=learners, data="disjoint") as me:
        state = me.state_dict()
        for name, call in (
            ("state of another", lambda: me.load_state_dict({**state, "shard": ((1 - me.shard, SHARDS),)})),
            ("last backward", lambda: me.last_backward().__enter__()),
        ):
            try:
                call()
            except (ValueError, RuntimeError) as error:
                found[name] = str(error)
    return found


PROGRAMS: dict[str, Callable[[Path], dict[str, object]]] = {
    made.__name__: made for made in (equal, odd, pairs, saved, asked, scaled, refused, diverged, lost)
}


def main() -> None:
    folder, *programs = Path(sys.argv[1]), *sys.argv[2:]
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    meeting = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=LEARNERS * SHARDS)
    found = {program: PROGRAMS[program](folder) for program in programs}
    torch.save(found, folder / f"found-{rank}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
