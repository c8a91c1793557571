"""Resumes a launch from the newest checkpoint that all its learners can read."""

from __future__ import annotations

import json
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
from murmur.core.flat import Layout
from murmur.core.group import Group
from murmur.core.plain_files import making_sense, read_json, read_plain
from murmur.core.whole_files import FinishedLines
from murmur.engine.checkpoints.checkpoint import CheckpointPart, Checkpoints, kind_of_state, name_of, write_whole
from murmur.engine.checkpoints.cut import check_cut
from murmur.engine.checkpoints.position import Position
from murmur.engine.checkpoints.state import check_outputs, check_weights, keeps_optimizer, position_of, unpack
from murmur.engine.experiment import Experiment, describe, differences
from murmur.engine.record import read_line
from murmur.engine.task import data_of, outputs_of
from murmur.engine.task_source import TaskSource

log = logging.getLogger(__name__)
NONE = -1.0
ANEW = "start the run again with --resume, which writes it anew"
AWAY = "move it away to go on from the one before it"
AMOUNTS = ("minibatches", "samples")  # of an epoch
OF_STEPS = ("strategy", "optimizer", "schedule", "scaling", "seed", "max_gradient_norm")  # settings of training alone


@dataclass(frozen=True)
class Resume:
    """State from which a learner resumes.

    Attributes:
        mark: Number of minibatches assigned when the checkpoint was made.
        best: Lowest held-out loss so far.
        outer: Vectors of the strategy.
        other_data: True if the checkpoint was made on other data.
    """

    mark: int
    best: float
    outer: dict[str, Tensor]
    other_data: bool = False


def check_resumable(out: Path, scaled: Experiment, model: nn.Module) -> None:
    """Check that the newest checkpoint in `out`, if there is one, can be resumed; changes nothing there.

    Args:
        out: Folder of the run.
        scaled: Experiment with the rule of the run.
        model: Its model.

    Raises:
        ValueError: The checkpoint belongs to another model, to other outputs, to minibatches cut in other pieces, lies
            beyond the budget, or is that of its end and was made with other settings of training or on other data.
    """
    newest = Checkpoints(out / "checkpoints").newest(0)[0]
    if newest is not None:
        with _whole(out, newest):
            check_weights(newest, Layout.trainable(model).numel)
            check_outputs(newest, outputs_of(scaled.task))
            check_cut(out, newest, scaled.cut)
            check_budget(newest.facts["minibatches"], scaled.total)
            check_unchanged(newest.facts, scaled)


async def resume(source: TaskSource, out: Path) -> Resume | None:
    """Resume a source from the newest checkpoint in `out` that is complete for all learners; None if there is none.

    All learners call this together. Learner 0 logs the result, and deletes newer checkpoints that were not used.

    Raises:
        ValueError: The checkpoint belongs to another model, to minibatches cut in other pieces, or lies beyond the
            budget.
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
        check_cut(out, part, source.experiment.cut)
        check_budget(facts["minibatches"], source.total)
        check_weights(part, source.layout.numel)
        check_outputs(part, outputs_of(source.experiment.task))
        with making_sense(_place(out, part), AWAY):
            outer, position = unpack(source, part), position_of(part)
            best = math.inf if facts["best"] is None else float(facts["best"])
        source.begin_at(position)
        other_data = bool(change_of_data(facts, source.data))
        lowest = math.inf if other_data else best
        if group.rank == 0:
            _say(source, checkpoints, part, position, steps_after(out / "records.jsonl", facts["minibatches"]))
    if group.rank == 0:
        checkpoints.forget_after(facts["minibatches"])
    write_position(out, position, group.rank)
    return Resume(facts["minibatches"], lowest, outer, other_data)


@contextmanager
def _whole(out: Path, part: CheckpointPart) -> Iterator[None]:
    """Context of code that takes over a checkpoint: errors of facts of another kind name it; refusals pass.

    Raises:
        ValueError: A fact is missing or of another kind.
    """
    try:
        yield
    except (LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError) as error:
        raise ValueError(f"{_place(out, part)} is no checkpoint of a run ({error!r}): {AWAY}") from error


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
            kind_of_state(source.optimizer),
        )


def _changed(name: str, then: Any, now: Any) -> str:
    return f"{name} was {then} and is {now} now"


def change_of_data(facts: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Describe how the data of a checkpoint differ from the present ones; "" if they do not, or are not known."""
    then = facts.get("data") or {}  # an older version, or a task that does not identify its data
    if not then or not now or then["digest"] == now["digest"]:
        return ""
    counts = [f"{then[n]:,.0f} {n} an epoch then, {now[n]:,.0f} now" for n in AMOUNTS if then[n] != now[n]]
    return "; ".join(counts) or "as many minibatches and samples as now, but of other utterances, texts or lengths"


def check_budget(mark: int, total: int) -> None:
    """Check that a checkpoint does not lie beyond the budget.

    Raises:
        ValueError: It does.
    """
    if mark > total:
        raise ValueError(
            f"the checkpoint is that after {mark} minibatches, beyond the budget of {total}: give a budget of at least"
            f" {mark} minibatches, use the models that the run has saved, or choose another --out"
        )


def check_unchanged(facts: Mapping[str, Any], scaled: Experiment) -> None:
    """Check that no setting of training and no data have changed since a checkpoint that leaves nothing to train.

    Raises:
        ValueError: Some have, and would be recorded for steps that were made with others.
    """
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
    return sum(r["kind"] == "step" and r["minibatches"] >= done for r in read if r is not None)


def write_position(out: Path, position: Position, rank: int) -> None:
    """Write the position from which this launch began, for learners that join late."""
    if rank == 0:
        write_whole(_told(out), json.dumps(position.described()).encode())


def forget_position(out: Path) -> None:
    """Delete the written position: this launch starts from the beginning."""
    _told(out).unlink(missing_ok=True)


def write_outputs(out: Path, outputs: str) -> None:
    """Write the digest of what the model's outputs stand for, for learners that join late."""
    _outputs(out).parent.mkdir(parents=True, exist_ok=True)
    write_whole(_outputs(out), json.dumps(outputs).encode())


def join_late(source: TaskSource, out: Path) -> None:
    """Set the counts of a source of a learner that joins late to those of the others.

    Raises:
        ValueError: The outputs of the others' model stand for other classes.
    """
    path, mine = _outputs(out), outputs_of(source.experiment.task)
    if path.exists() and read_json(path, ANEW) != mine:
        raise ValueError(
            "the outputs of the model of the other learners stand for other classes (words, units, states), since this"
            " learner reads other data: copy their set to this host, with caches and the dates of files"
        )
    if _told(out).exists():
        with making_sense(_told(out), ANEW):
            source.begin_at(Position.read(json.loads(read_plain(_told(out)))))


def _outputs(out: Path) -> Path:
    return out / "checkpoints" / "outputs.json"


def _told(out: Path) -> Path:
    return out / "checkpoints" / "began.json"
