"""Contents of a learner's part of a checkpoint: the whole state of its run.

Weights, buffers, optimizer state (with the estimates of natural gradient) and vectors of the strategy are tensors.
Held-out losses for the schedule, counters and the position in the data are facts. Random numbers are seeded by
minibatch, so no generator is saved.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from murmur.core.flat import Layout
from murmur.core.learner import Learner
from murmur.engine.checkpoints.checkpoint import CheckpointPart, kind_of_state, pack_optimizer, unpack_optimizer
from murmur.engine.checkpoints.position import Claims, Position, go_on
from murmur.engine.experiment import describe
from murmur.engine.task import outputs_of
from murmur.engine.task_source import TaskSource

OUTER = "outer."
MOMENTS = "moments"  # vector of a strategy that averages the optimizers' moments (`strategies.block_moments`)


def pack(me: Learner, source: TaskSource, mark: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and facts of a learner at an evaluation point."""
    tensors, plain = pack_optimizer(source.optimizer)
    if source.buffers.tensors:
        tensors["buffers"] = source.buffers.gather()
    integers = Layout.integers(source.model)
    if integers.tensors:
        tensors["integers"] = integers.gather()
    with me.steady:
        tensors["weights"] = me.weights.snapshot()
        tensors.update({OUTER + name: vector for name, vector in me.outer_to_keep.items()})
    learners, claims = savers(me), claims_of(me, source, mark)
    while savers(me) != learners:  # a learner was lost or has come: claims are of the same moment
        learners, claims = savers(me), claims_of(me, source, mark)
    facts = {
        "learners": learners,
        "world": me.seat.group.size,
        "seconds": source.clock.seconds,
        "counted": dict(me.seat.counted()),
        "experiment": source.experiment.digest(),
        "cut": source.experiment.cut,
        "outputs": outputs_of(source.experiment.task),
        "data": source.data,
        "settings": describe(source.experiment),
        "optimizer": plain,
        "optimizer_state": kind_of_state(source.optimizer),
        "heldout": source.heldout,
        "counters": source.counters.described(steps_taken(me, source)),
        "claims": claims.described(),
    }
    return tensors, facts


def steps_taken(me: Learner, source: TaskSource) -> int:
    """Return the steps of a learner in this launch, without that of a claim in progress, which is done again."""
    return me.steps - bool(source.log.doing and not me.lock_step)


def savers(me: Learner) -> list[int]:
    """Return the learners with a part in a checkpoint: all live ones in lock-step, else those that run the strategy."""
    if not me.lock_step:
        return [me.keepers[r] for r in me.view]
    return [learner for r in me.group.live for learner in me.members(r)]


def claims_of(me: Learner, source: TaskSource, mark: int) -> Claims:
    """Return the claims known to a learner; in lock-step there are none, only moved minibatches."""
    if me.lock_step:
        return Claims(moved=source.assignment.to_come(me.steps))
    takers = me.averager.takers
    unfinished = {*me.group.membership.unfinished(), *source.log.doing}
    done = source.log.save(mark)
    takes = takers is None or me.group.rank in takers
    before = sorted(p for p in unfinished if p < mark)
    return Claims(before, done if takes else (), source.assignment.moved, 1 if takers is None else len(takers))


def unpack(source: TaskSource, part: CheckpointPart) -> dict[str, Tensor]:
    """Set a source to the state in a part of a checkpoint; return the strategy's vectors.

    Raises:
        ValueError: The part belongs to another model.
    """
    check_weights(part, source.layout.numel)
    check_outputs(part, outputs_of(source.experiment.task))
    tensors, facts = part.tensors, part.facts
    device = source.layout.device
    source.layout.scatter(tensors["weights"].to(device))
    if source.buffers.tensors:
        source.buffers.scatter(tensors["buffers"].to(source.buffers.device))
    if "integers" in tensors:  # checkpoints of older versions hold none
        integers = Layout.integers(source.model)
        integers.scatter(tensors["integers"].to(integers.device))
    same = keeps_optimizer(part, source)
    if same:
        unpack_optimizer(source.optimizer, tensors, facts["optimizer"])
    source.clock.before = float(facts["seconds"])
    source.heldout = tuple(float(loss) for loss in facts["heldout"])
    source.counters.read(facts["counters"])
    outer = {k.removeprefix(OUTER): t.to(device) for k, t in tensors.items() if k.startswith(OUTER)}
    if not same:
        outer.pop(MOMENTS, None)
    return outer


def keeps_optimizer(part: CheckpointPart, source: TaskSource) -> bool:
    """Return True if the source's optimizer can go on with the state in a part; another one starts again."""
    then = part.facts.get("optimizer_state")
    if then is not None:
        return bool(then == kind_of_state(source.optimizer))
    settings = part.facts.get("settings", {})  # a checkpoint of an older version names the setting alone
    return "optimizer" not in settings or _class_of(settings["optimizer"]) == _class_of(
        describe(source.experiment.optimizer)
    )


def _class_of(described: Any) -> Any:
    """Return the class of a described value; a function is described by its name."""
    return described.get("type") if isinstance(described, Mapping) else described


def check_weights(part: CheckpointPart, numel: int) -> None:
    """Check that a part of a checkpoint belongs to a model with this number of weights.

    Raises:
        ValueError: It belongs to another model.
    """
    found = part.tensors["weights"].numel()
    if found != numel:
        raise ValueError(
            f"the checkpoint holds {found} weights but the model has {numel}: it is of another experiment;"
            " choose another --out or delete it"
        )


def check_outputs(part: CheckpointPart, outputs: str) -> None:
    """Check that the outputs of a checkpoint's model stand for the same classes as those of the model to be trained.

    Raises:
        ValueError: They do not.
    """
    if part.facts.get("outputs", "") not in ("", outputs):
        raise ValueError(
            "the outputs of the checkpoint's model stand for other classes (words, units, states) than those of the"
            " present data: restore the data, or choose another --out"
        )


def position_of(part: CheckpointPart) -> Position:
    """Return the position from which a launch resumes a checkpoint."""
    return go_on(part.facts["minibatches"], [Claims.read(facts["claims"]) for facts in part.all_facts])
