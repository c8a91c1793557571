"""Learners that are groups of processes, of which each holds a shard of the model (FSDP2: `fully_shard`).

    mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("learner", "shard"))      # two learners of four processes
    fully_shard(model, mesh=mesh["shard"])
    with murmur.join(KAVG(8), model, optimizer, mesh=mesh["learner"]) as me: ...

The processes with shard s form a world of their own, in which process (l, s) is learner l and averages its elements of
the weights. A strategy that treats each element alone (`Facts.elementwise`) does the same in all of these worlds. What
it must know of a whole learner is agreed on by the learner's processes, in the loop's own thread: samples, loss and
finiteness of a step, the norm for clipping, requests to stop.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn

from murmur.core.buffers import BufferPlace, Buffers, from_bytes, is_dense, to_bytes, write
from murmur.core.facts import Facts
from murmur.core.flat import Layout
from murmur.core.group import PeerLost
from murmur.core.learner import Strategy
from murmur.core.shards import is_sharded, own_part
from murmur.core.world import SCRIPT, Seat
from murmur.engine.counters import ADVICE
from murmur.user_loop.loop import JoinedGroup, Offer
from murmur.user_loop.source import LoopSource, Plan
from murmur.worlds.process.arrival import address_towards
from murmur.worlds.process.environment import Place, meeting_host
from murmur.worlds.process.secret import draw
from murmur.worlds.process.torch_store import open_anywhere

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

MESHES = (
    'give a mesh of two dimensions, init_device_mesh("cuda", (learners, shards), mesh_dim_names=("learner", "shard")),'
    ' to both: fully_shard(model, mesh=mesh["shard"]), murmur.join(..., mesh=mesh["learner"])'
)
WORD_DIGITS = 8  # hexadecimal ones of a digest, which are exact as a number


class ShardedLayout(Layout):
    """Layout of a sharded model, whose parts are changed only while no part of the model is gathered.

    `modules` are those that gather: after a forward pass alone, the outer one keeps what it has gathered.
    """

    modules: Sequence[nn.Module] = ()

    def scatter(self, flat: Tensor) -> None:
        _release(self.modules)
        super().scatter(flat)

    def add_(self, flat: Tensor, alpha: float = 1.0) -> None:
        _release(self.modules)
        super().add_(flat, alpha)

    def pull_(self, theirs: Tensor, mine: Tensor | None, alpha: float) -> None:
        _release(self.modules)
        super().pull_(theirs, mine, alpha)


def _gathering(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if hasattr(module, "reshard")]


def _release(modules: Sequence[nn.Module]) -> None:
    for module in modules:
        module.reshard()  # type: ignore[operator]


class Shards:
    """The processes of one learner, as one of them sees them: one process, or the members of its FSDP group.

    Methods are collectives of all of them, in the same order.

    Attributes:
        index: Number of this process among them.
        count: Number of them.
    """

    def __init__(self, mesh: DeviceMesh | None, learners: DeviceMesh | None = None) -> None:
        self._mesh, self._learners = mesh, learners
        self.index, self.count = (0, 1) if mesh is None else (mesh.get_local_rank(), mesh.size())

    @classmethod
    def of(cls, model: nn.Module, mesh: DeviceMesh | None) -> Shards:
        """Return those of a model whose learners form a mesh; one process if that is None.

        Raises:
            ValueError: The model is not sharded over one dimension of processes, or the meshes do not fit.
        """
        if mesh is None:
            return cls(None)
        _release(_gathering(model))
        sharded = {name: p for name, p in model.named_parameters() if is_sharded(p)}
        meshes = {name: p.device_mesh for name, p in sharded.items()}  # type: ignore[attr-defined]
        if getattr(mesh, "ndim", None) != 1 or not _gathering(model) or not sharded:
            raise ValueError(f"mesh is for learners whose model is sharded by fully_shard: {MESHES}")
        name, own = next(iter(meshes.items()))
        for other, p in sharded.items():
            if meshes[other].ndim != 1 or not all(place.is_shard() for place in p.placements):  # type: ignore[attr-defined]
                raise ValueError(
                    f"{other} is sharded by {p.placements} over {meshes[other].ndim} dimensions of processes, but a"  # type: ignore[attr-defined]
                    f" learner is sharded over one, by fully_shard: {MESHES}"
                )
            if meshes[other] != own:
                raise ValueError(f"{name} and {other} are sharded over different processes: {MESHES}")
        common = set(own.mesh.flatten().tolist()) & set(mesh.mesh.flatten().tolist())
        if common != {dist.get_rank()}:
            raise ValueError(
                f"processes {sorted(common)} stand in the mesh of learners and in that of shards, where each process"
                f" has only itself in common: {MESHES}"
            )
        return cls(own, mesh)

    def check(self, strategy: Strategy, model: nn.Module, plan: Plan) -> None:
        """Raise ValueError if a strategy, a plan or a part of the model does not work for sharded learners."""
        if self._mesh is None:
            return
        facts = Facts.of(strategy)
        if not facts.elementwise:
            raise ValueError(
                f"{strategy} cannot average shards by themselves, as it does not declare Facts.elementwise: take one"
                " that does, such as KAVG, DiLoCo, SyncSGD or ADPSGD, or do not shard the model"
            )
        if plan.evaluate is not None:
            raise ValueError(
                "Plan(evaluate=...) needs a copy of the model, and FSDP makes none: evaluate inside me.consensus()"
            )
        if facts.lock_step:
            return
        if plan.scaling is not None:
            raise ValueError(
                "Plan(scaling=...) follows the progress of all learners, which the processes of a learner see at"
                f" different moments with {strategy}: set the rate in the loop"
            )
        whole = [name for name, p in model.named_parameters() if p.requires_grad and not is_sharded(p)]
        if whole:
            raise ValueError(
                f"{whole[0]} is whole in each process of a learner, and {strategy} would average its copies at"
                " different moments: apply fully_shard to the whole model"
            )

    def check_last_backward(self) -> None:
        if self._mesh is not None:
            raise RuntimeError(
                "last_backward() is not for sharded learners, whose gradients FSDP reduces in that pass: leave it out"
            )

    def layout(self, model: nn.Module) -> Layout:
        """Return the layout of the trainable parameters, of which this process holds its shards."""
        if self._mesh is None:
            return Layout.trainable(model)
        layout = ShardedLayout.trainable(model)
        assert isinstance(layout, ShardedLayout)
        layout.modules = _gathering(model)
        return layout

    def place(self, given: Seat | Place | None) -> Seat | Place | None:
        """Return this process's place among the learners of its mesh, which all of them ask for together.

        Without a mesh it is the given one.
        """
        if self._learners is None:
            return given
        if given is not None or SCRIPT.get() is not None:
            raise ValueError("learners of a mesh have their places by it: leave out seat, and start them with torchrun")
        return _place(self._learners.get_group(), self.index, self.count)

    def enter(self, source: LoopSource, group: JoinedGroup) -> None:
        """Let the checks and the steps of a source be those of all processes of the learner."""
        if self._mesh is None:
            return
        group.tolerates_loss = False  # a process that is lost ends all of its learner, and FSDP's groups are fixed
        source.numbers.agreed = source.stop.all_members = self.all
        source.stop.any_member = self.any
        source.local_optimizer.clipped = self.clip

    def all(self, flag: bool) -> bool:
        return self._sum([float(not flag)]) == [0.0]

    def any(self, flag: bool) -> bool:
        return self._sum([float(flag)]) != [0.0]

    def offered(self, offer: Offer, layout: Layout, ended: bool) -> Offer:
        """Return the step of the whole learner: the sum of samples, the mean loss.

        Gradients of parameters that FSDP leaves whole become the mean over the processes, as it makes those of shards.

        Raises:
            FloatingPointError: The strategy has ended in some processes, as no learner has finite weights there.
        """
        if self._mesh is None:
            return offer
        whole = [t for t in layout.tensors if not is_sharded(t)]
        unknown = offer.loss is None
        flags = [float(ended), float(offer.skipped), float(unknown), *(float(t.grad is not None) for t in whole)]
        samples, loss, over, skipped, losses_unknown, *present = self._sum([offer.samples, offer.loss or 0.0, *flags])
        if 0 < over < self.count:
            raise FloatingPointError(f"the weights of a shard are not finite on any learner: {ADVICE}")
        shared = Layout(t for t, there in zip(whole, present, strict=True) if there)
        if shared.tensors:
            g, _ = shared.gather_gradients()
            self._total(g)
            shared.hand_gradients(g.div_(self.count), [True] * len(shared.tensors))
        return replace(
            offer,
            samples=samples,
            loss=None if losses_unknown else loss / self.count,
            skipped=skipped > 0,
        )

    def clip(self, tensors: Sequence[Tensor], most_norm: float) -> Tensor:
        """Scale gradients of the whole learner down to a largest norm, in place; return their norm before."""
        there = [(is_sharded(t), own_part(t.grad)) for t in tensors if t.grad is not None]
        parts, whole = ([g for sharded, g in there if sharded is of] for of in (True, False))
        (square,) = self._sum([float(nn.utils.get_total_norm(parts)) ** 2])
        norm = math.sqrt(square + float(nn.utils.get_total_norm(whole)) ** 2)
        if norm > most_norm:
            for _, g in there:
                g.mul_(most_norm / (norm + 1e-6))  # the 1e-6 of torch.nn.utils.clip_grad_norm_
        return torch.tensor(norm)

    def digests(self, digest: str | None) -> list[str | None]:
        """Return the digests of all processes to the first one, and none to the others."""
        if self._mesh is None:
            return [digest]
        words = [] if digest is None else [digest[i : i + WORD_DIGITS] for i in range(0, len(digest), WORD_DIGITS)]
        said = self._gathered([float(int(word, 16)) for word in words] or [-1.0] * 4)
        if self.index > 0:
            return []
        return [None if row[0] < 0 else "".join(f"{int(x):0{WORD_DIGITS}x}" for x in row) for row in said]

    def begin(self, model: nn.Module, buffers: Buffers) -> None:
        """Give all processes of the learner the first one's parameters that are whole, and its buffers."""
        if self._mesh is None:
            return
        own = {name for name, rule in buffers.rules.items() if rule == "own"}
        self._spread([x for x in model.parameters() if not is_sharded(x)])
        self._spread([x for name, x in model.named_buffers() if name not in own])

    def finish(self, model: nn.Module, buffers: Buffers) -> None:
        """Make the processes of the learner agree on what each of them holds as a whole: buffers by their rules."""
        if self._mesh is None:
            return
        self._spread([x for x in model.parameters() if x.requires_grad and not is_sharded(x)])
        for place, x in self._changed(buffers):
            if place.rule == "mean" and x.is_floating_point():
                mean = x.detach().to(torch.promote_types(x.dtype, torch.float32), copy=True)
                self._total(mean)
                write(x, mean.div_(self.count).to(x.dtype))
            else:
                self._spread([x])

    @contextmanager
    def one_model(self, model: nn.Module, buffers: Buffers) -> Iterator[None]:
        """Make them agree inside the block."""
        before = {place.name: x.detach().clone() for place, x in self._changed(buffers)}
        self.finish(model, buffers)
        try:
            yield
        finally:
            buffers.put(before)

    def _changed(self, buffers: Buffers) -> list[tuple[BufferPlace, Tensor]]:
        """Return the buffers that some process may have changed, unless their lengths differ now."""
        if self._mesh is None or not buffers.places:
            return []
        here = [(place, place.now) for place in buffers.places]
        mine = [(-1.0, 0.0) if x is None else (float(x.numel()), float(place.touched(x))) for place, x in here]
        lengths, touched = torch.tensor(self._gathered([*sum(mine, ())])).view(self.count, -1, 2).unbind(2)
        counted = (lengths == lengths[0]).all(0) & touched.any(0)
        return [(place, x) for (place, x), some in zip(here, counted, strict=True) if some and x is not None]

    def _sum(self, numbers: Sequence[float]) -> list[float]:
        if self._mesh is None:
            return list(numbers)
        x = torch.tensor(numbers, dtype=torch.float64)
        self._total(x)
        return x.tolist()

    def _total(self, x: Tensor) -> None:
        """Add up vectors of all processes, in place."""
        assert self._mesh is not None
        there = x.to(self._mesh.device_type)
        with _naming_the_lost():
            dist.all_reduce(there, group=self._mesh.get_group())
        if there is not x:
            x.copy_(there)

    def _gathered(self, numbers: Sequence[float]) -> list[list[float]]:
        x = torch.zeros(self.count, len(numbers), dtype=torch.float64)
        x[self.index] = torch.tensor(numbers, dtype=torch.float64)
        self._total(x)
        return x.tolist()

    def _spread(self, tensors: Sequence[Tensor]) -> None:
        """Set dense tensors to those of the first process."""
        assert self._mesh is not None
        for x in filter(is_dense, tensors):
            raw = to_bytes(x).to(self._mesh.device_type, copy=True)
            with _naming_the_lost():
                dist.broadcast(raw, group=self._mesh.get_group(), group_src=0)
            if self.index > 0:
                write(x, from_bytes(raw.cpu(), x.dtype, x.shape).to(x.device))


@contextmanager
def _naming_the_lost() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise PeerLost(
            f"a process of this learner is gone or too late ({reason}): all of its shards are lost"
        ) from error


@cache  # one launch for all blocks of this process
def _place(learners: dist.ProcessGroup, index: int, count: int) -> Place:
    rank, size = dist.get_rank(learners), dist.get_world_size(learners)
    told: list[tuple[str, str]] = [("", "")] * size
    dist.all_gather_object(told, (socket.gethostname(), f"{index} of {count}"), group=learners)
    hosts, shards = zip(*told, strict=True)
    if len({*shards}) > 1:
        raise ValueError(f"the processes of one mesh of learners hold shards {', '.join(shards)}: {MESHES}")
    before, here = hosts[:rank].count(hosts[rank]), hosts.count(hosts[rank])
    place = Place(rank, size, before, "127.0.0.1", 0, 0, here, "learner 0", named_by="the mesh of learners")
    if size == 1:
        return place
    opened: list[tuple[str, int, bytes]] = [("", 0, b"")]
    if rank == 0:
        first = open_anywhere(replace(place, host=address_towards(meeting_host(hosts)), secret=draw()))
        opened = [(first.host, first.port, first.secret)]
    dist.broadcast_object_list(opened, group=learners, group_src=0)
    host, port, secret = opened[0]
    return replace(place, host=host, port=port, secret=secret)
