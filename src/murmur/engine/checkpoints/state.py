"""Contents of a learner's part of a checkpoint: everything that the rest of its run depends on.

Its weights, buffers, optimizer (with the estimates of natural gradient) and the strategy's own vectors are tensors;
what a schedule listens to, counters and the place in the data are facts. Random numbers are named by minibatches, so
there is no generator to save.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from murmur.core.learner import Learner
from murmur.engine.checkpoints.checkpoint import CheckpointPart, pack_optimizer, unpack_optimizer
from murmur.engine.checkpoints.position import Claims, Position, go_on
from murmur.engine.experiment import describe
from murmur.engine.task_source import TaskSource

OUTER = "outer."


def pack(me: Learner, source: TaskSource, mark: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and facts of a learner at a mark."""
    tensors, plain = pack_optimizer(source.optimizer)
    tensors["weights"] = me.weights.snapshot()
    if source.buffers.tensors:
        tensors["buffers"] = source.buffers.gather()
    outer = me.outer if me.outer_then is None else me.outer_then
    tensors.update({OUTER + name: vector for name, vector in outer.items()})
    facts = {
        "learners": savers(me),
        "world": me.seat.group.size,
        "seconds": source.clock.seconds,
        "experiment": source.experiment.digest(),
        "settings": describe(source.experiment),
        "optimizer": plain,
        "heldout": source.heldout,
        "counters": source.counters.described(me.steps),
        "claims": claims_of(me, source, mark).described(),
    }
    return tensors, facts


def savers(me: Learner) -> list[int]:
    """Learners with a part in a checkpoint: in lock-step all that are alive, else those that run the strategy."""
    if not me.lock_step:
        return [me.keepers[r] for r in me.view]
    return [learner for r in me.group.live for learner in me.members(r)]


def claims_of(me: Learner, source: TaskSource, mark: int) -> Claims:
    """Claims known to a learner; in lock-step there are none, and only moved minibatches are reported."""
    if me.lock_step:
        return Claims(moved=source.assignment.to_come(me.steps))
    holders = me.averager.holders
    unfinished = {*me.group.membership.unfinished(), *source.log.doing}
    done = source.log.save(mark)
    holds = holders is None or me.group.rank in holders
    return Claims(sorted(p for p in unfinished if p < mark), done if holds else (), source.assignment.moved)


def unpack(source: TaskSource, part: CheckpointPart) -> dict[str, Tensor]:
    """Let a source go on from a part of a checkpoint; gives the strategy's vectors.

    Raises:
        ValueError: the part is of another model.
    """
    check_weights(part, source.layout.numel)
    tensors, facts = part.tensors, part.facts
    device = source.layout.device
    source.layout.scatter(tensors["weights"].to(device))
    if source.buffers.tensors:
        source.buffers.scatter(tensors["buffers"].to(source.buffers.device))
    unpack_optimizer(source.optimizer, tensors, facts["optimizer"])
    source.clock.before = facts["seconds"]
    source.heldout = tuple(facts["heldout"])
    source.counters.read(facts["counters"])
    return {k.removeprefix(OUTER): t.to(device) for k, t in tensors.items() if k.startswith(OUTER)}


def check_weights(part: CheckpointPart, numel: int) -> None:
    """See that a part of a checkpoint is of a model of so many weights.

    Raises:
        ValueError: it is of another model.
    """
    found = part.tensors["weights"].numel()
    if found != numel:
        raise ValueError(
            f"the checkpoint holds {found} weights but the model has {numel}: it is of another experiment;"
            " choose another --out or delete it"
        )


def position_of(part: CheckpointPart) -> Position:
    """Position from which a launch resumes a checkpoint."""
    return go_on(part.facts["minibatches"], [Claims.read(facts["claims"]) for facts in part.all_facts])
