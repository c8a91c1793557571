"""State of a learner in its part of a checkpoint, and the resumption of a launch from the newest whole one.

Weights, buffers, optimizer state (with the estimates of natural gradient) and vectors of the strategy are tensors.
Held-out losses for the schedule, counters and the position in the data are facts. Random numbers are seeded by
minibatch, so no generator is saved.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from murmur.core.counted import counted
from murmur.core.facts import Facts
from murmur.core.flat import Layout
from murmur.core.group import Group
from murmur.core.learner import Learner
from murmur.core.plain_files import making_sense
from murmur.core.whole_files import FinishedLines
from murmur.engine.checkpoints.checkpoint import (
    CheckpointPart,
    Checkpoints,
    kind_of_state,
    layouts_of,
    name_of,
    pack_optimizer,
    set_vectors,
    unpack_optimizer,
)
from murmur.engine.checkpoints.position import Claims, Position, go_on, read_start
from murmur.engine.experiment import Experiment, describe, differences
from murmur.engine.record import began, read_line, steps_in
from murmur.engine.task import data_of, outputs_of
from murmur.engine.task_source import TaskSource

log = logging.getLogger(__name__)
NONE = -1.0
MOVE_IT = "move it away to go on from the one before it"
AMOUNTS = ("minibatches", "samples")  # of an epoch
OF_STEPS = ("strategy", "optimizer", "schedule", "scaling", "seed", "max_gradient_norm")  # settings of training alone
OUTER = "outer."
MOMENTS = "moments"  # vector of a strategy that averages the optimizers' moments (`strategies.block_moments`)


@dataclass(frozen=True)
class Resume:
    """State from which a learner resumes: minibatches assigned at the checkpoint, lowest loss, strategy's vectors."""

    mark: int
    best: float
    outer: dict[str, Tensor]
    other_data: bool = False


def check_resumable(out: Path, scaled: Experiment, model: nn.Module) -> None:
    """Check that the newest checkpoint in `out`, if there is one, can be resumed by the experiment with its rule.

    Raises:
        ValueError: The checkpoint belongs to another model, to other outputs, to minibatches cut in other pieces, lies
            beyond the budget, or is that of its end and was made with other settings of training or on other data.
    """
    newest = Checkpoints(out / "checkpoints").newest(0)[0]
    if newest is not None:
        with _whole(out, newest):
            check_fits(newest, scaled, Layout.trainable(model).numel)
            check_unchanged(newest.facts, scaled)


async def resume(source: TaskSource, out: Path) -> Resume | None:
    """Resume a source from the newest checkpoint in `out` that is complete for all learners; None if there is none.

    All learners call this together. Learner 0 logs the result, and deletes newer checkpoints that were not used.
    """
    group, checkpoints = source.seat.group, Checkpoints(out / "checkpoints")
    part, passed_over = await newest_of_all(checkpoints, group, source)
    if group.rank == 0:
        for why in passed_over:
            log.warning("a checkpoint is passed over: %s", why)
    if part is None:
        if group.rank == 0:
            log.warning("no whole checkpoint in %s: the run starts from the beginning", checkpoints.folder)
        return None
    facts = part.facts
    with _whole(out, part):
        check_fits(part, source.experiment, source.layout.numel)
        with making_sense(_place(out, part), MOVE_IT):
            outer = unpack(source, part)
            position = go_on(facts["minibatches"], [Claims.read(each["claims"]) for each in part.all_facts])
            best = math.inf if facts["best"] is None else float(facts["best"])
        source.begin_at(position)
        other_data = bool(change_of_data(facts, source.data))
        lowest = math.inf if other_data else best
        if group.rank == 0:
            _say(source, checkpoints, part, position, steps_after(out / "records.jsonl", facts["minibatches"]))
    if group.rank == 0:
        checkpoints.forget_after(facts["minibatches"])
    return Resume(facts["minibatches"], lowest, outer, other_data)


@contextmanager
def _whole(out: Path, part: CheckpointPart) -> Iterator[None]:
    """Name the checkpoint in errors of facts of another kind; refusals pass."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError) as error:
        raise ValueError(f"{_place(out, part)} is no checkpoint of a run ({error!r}): {MOVE_IT}") from error


def _place(out: Path, part: CheckpointPart) -> Path:
    return out / "checkpoints" / name_of(part.facts["minibatches"])


async def newest_of_all(
    checkpoints: Checkpoints, group: Group, source: TaskSource
) -> tuple[CheckpointPart | None, list[str]]:
    """Find this learner's part of the newest checkpoint that is complete for all, and its reasons against newer ones.

    Each learner proposes its newest readable one. The oldest proposal is tried next, until all learners agree.
    """
    before, passed_over = math.inf, list[str]()
    while True:
        part, why = checkpoints.newest(group.rank, before)
        passed_over += why
        mine = NONE if part is None else float(part.facts["minibatches"])
        table = source.layout.empty().new_zeros(group.size).double()
        table[group.rank] = mine
        found = (await group.start_sum(table)).tolist()
        if min(found) == max(found):
            return part, passed_over
        if mine > min(found):
            passed_over.append(f"{checkpoints.folder / f'{int(mine):010d}'}: another learner cannot read its part")
        before = min(found) + 1


def _say(source: TaskSource, checkpoints: Checkpoints, part: CheckpointPart, position: Position, lost: int) -> None:
    facts, size = part.facts, source.seat.group.size
    log.info(
        "going on from %s: %d of %s behind (epoch %.2f, held-out loss %s); %d are done again",
        checkpoints.folder / f"{facts['minibatches']:010d}",
        position.done,
        counted(source.total, "minibatch"),
        position.done / source.experiment.per_epoch,
        "not known" if facts["best"] is None else f"{facts['best']:.5g} at best",
        max(lost, facts["minibatches"] - position.done),
    )
    if facts["world"] != size:
        log.warning(
            "it was made by %s, there are %d now: not the bits of an uninterrupted run",
            *(counted(facts["world"], "learner"), size),
        )
    if facts["experiment"] != source.experiment.digest():
        changed = list(differences(facts.get("settings"), describe(source.experiment)))
        log.warning("it was made with other settings: %s", "; ".join(starmap(_changed, changed)) or facts["experiment"])
    other_data = change_of_data(facts, source.data)
    if other_data:
        log.warning(
            "it was made on other data (%s): evaluations before and after it may not be comparable, so that the best"
            " and the averaged model begin anew",
            other_data,
        )
    if not keeps_optimizer(part, source):
        log.warning(
            "its optimizer keeps another state than %s: the state of the optimizer (momentum, moments) starts again",
            kind_of_state(source.local_optimizer.optimizer),
        )


def _changed(name: str, then: Any, now: Any) -> str:
    return f"{name} was {then} and is {now} now"


def change_of_data(facts: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Describe how the data of a checkpoint differ from the present ones; "" if they do not, or are not known."""
    then = facts["data"]  # {}: of a task that does not identify its data
    if not then or not now or then["digest"] == now["digest"]:
        return ""
    counts = [f"{then[n]:,.0f} {n} an epoch then, {now[n]:,.0f} now" for n in AMOUNTS if then[n] != now[n]]
    return "; ".join(counts) or "as many minibatches and samples as now, but of other utterances, texts or lengths"


def check_fits(part: CheckpointPart, scaled: Experiment, weights: int) -> None:
    """Check that a checkpoint is of this experiment, whose model has so many weights, and not beyond its budget."""
    facts, found = part.facts, part.tensors["weights"].numel()
    if found != weights:
        raise ValueError(
            f"the checkpoint holds {found} weights but the model has {weights}: it is of another experiment;"
            " choose another --out or delete it"
        )
    if facts.get("outputs", "") not in ("", outputs_of(scaled.task)):
        raise ValueError(
            "the outputs of the checkpoint's model stand for other classes (words, units, states) than those of the"
            " present data: restore the data, or choose another --out"
        )
    others = {each["cut"] for each in part.all_facts} - {scaled.cut}
    if others:
        raise ValueError(
            f"the checkpoint is of minibatches cut in {', '.join(map(str, sorted(others)))}, but this run cuts them in"
            f" {scaled.cut}: choose another --out"
        )
    mark = facts["minibatches"]
    if mark > scaled.total:
        raise ValueError(
            f"the checkpoint is that after {mark} minibatches, beyond the budget of {scaled.total}: give a budget of at"
            f" least {mark} minibatches, use the models that the run has saved, or choose another --out"
        )


def check_unchanged(facts: Mapping[str, Any], scaled: Experiment) -> None:
    """Check that no setting of training and no data have changed since a checkpoint that leaves nothing to train."""
    if facts["minibatches"] != scaled.total:
        return
    changed = differences(facts.get("settings"), describe(scaled))
    found = [each for each in changed if each[0].partition(".")[0] in OF_STEPS]
    if found:
        raise ValueError(
            f"all {scaled.total} minibatches of the budget are done, so that {'; '.join(starmap(_changed, found))}"
            " without effect: leave this setting as it was, or give a larger budget"
        )
    other_data = change_of_data(facts, data_of(scaled.task))
    if other_data:
        raise ValueError(
            f"all {scaled.total} minibatches of the budget are done, on other data ({other_data}): restore the data, or"
            " give a larger budget"
        )


def steps_after(records: Path, done: int) -> int:
    """Return the number of recorded steps beyond the first `done` minibatches, which the ended launch has lost."""
    if not records.is_file():
        return 0
    read = map(read_line, FinishedLines(records))
    return sum(steps_in(r) for r in read if r is not None and began(r) >= done)


def join_late(source: TaskSource, out: Path) -> None:
    """Set the counts of a source of a learner that joins late to those of the others."""
    start = read_start(out)
    if start is None:
        return
    outputs, position = start
    if outputs != outputs_of(source.experiment.task):
        raise ValueError(
            "the outputs of the model of the other learners stand for other classes (words, units, states), since this"
            " learner reads other data: copy their set to this host, with caches and the dates of files"
        )
    source.begin_at(position)


def pack(me: Learner, source: TaskSource, mark: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors, plain = pack_optimizer(source.local_optimizer.optimizer)
    others = {part: layout for part, layout in layouts_of(source.model).items() if layout.tensors and part != "weights"}
    tensors.update({part: layout.gather() for part, layout in others.items()})
    with me.outer.steady:
        tensors["weights"] = me.weights.snapshot()
        tensors.update({OUTER + name: vector for name, vector in me.outer.to_save.items()})
    learners, claims = savers(me), claims_of(me, source, mark)
    while savers(me) != learners:  # a learner was lost or has come: claims are of the same moment
        learners, claims = savers(me), claims_of(me, source, mark)
    facts = {
        "learners": learners,
        "world": me.seat.group.size,
        "seconds": source.recorder.clock.seconds,
        "counted": dict(me.seat.counted()),
        "experiment": source.experiment.digest(),
        "cut": source.experiment.cut,
        "outputs": outputs_of(source.experiment.task),
        "data": source.data,
        "settings": describe(source.experiment),
        "optimizer": plain,
        "optimizer_state": kind_of_state(source.local_optimizer.optimizer),
        "heldout": source.heldout,
        "counters": source.counters.described(
            me.steps - bool(source.log.doing and not me.lock_step)
        ),  # it is done again
        "claims": claims.described(),
    }
    return tensors, facts


def savers(me: Learner) -> list[int]:
    """Return the learners with a part in a checkpoint: all live ones in lock-step, else those that run the strategy."""
    if not me.lock_step:
        return [me.role.members(r).start for r in me.view]
    return [learner for r in me.group.live for learner in me.role.members(r)]


def claims_of(me: Learner, source: TaskSource, mark: int) -> Claims:
    """Return the claims known to a learner; in lock-step there are none, only moved minibatches."""
    if me.lock_step:
        return Claims(moved=source.turns.assignment.to_come(me.steps))
    takers = me.averager.takers
    unfinished = {*me.group.membership.unfinished(), *source.log.doing}
    done = source.log.done if Facts.of(source.experiment.strategy).assigns_minibatches else source.log.save(mark)
    takes = takers is None or me.group.rank in takers
    before = sorted(p for p in unfinished if p < mark)
    return Claims(before, done if takes else (), source.turns.assignment.moved, 1 if takers is None else len(takers))


def unpack(source: TaskSource, part: CheckpointPart) -> dict[str, Tensor]:
    """Set a source to the state in a part of a checkpoint; return the strategy's vectors."""
    tensors, facts = part.tensors, part.facts
    set_vectors(source.model, tensors)
    same = keeps_optimizer(part, source)
    if same:
        unpack_optimizer(source.local_optimizer.optimizer, tensors, facts["optimizer"])
    source.recorder.clock.before = float(facts["seconds"])
    source.heldout = tuple(float(loss) for loss in facts["heldout"])
    source.counters.read(facts["counters"])
    outer = {k.removeprefix(OUTER): t.to(source.layout.device) for k, t in tensors.items() if k.startswith(OUTER)}
    if not same:
        outer.pop(MOMENTS, None)
    return outer


def keeps_optimizer(part: CheckpointPart, source: TaskSource) -> bool:
    return bool(part.facts["optimizer_state"] == kind_of_state(source.local_optimizer.optimizer))
