"""The plan of the studies: every cell with the claims that it serves, its stage and its hours; and the missing cells.

A trial decides the rate of later cells, and a bisection decides its next size. Cells that depend on missing rows are
planned with stand-in rows, which have equal, high losses. The first rate to try is then taken unless another trial has
a row. Further rates are planned beyond an end only if the trial at this end has a row. A size is usable if the row of
one learner is a stand-in too.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from murmur.studies.comparison.rows import Row
from murmur.studies.papers.cell import StudyCell
from murmur.studies.papers.networks import Name
from murmur.studies.papers.run import Finder, MissingRun
from murmur.studies.papers.study import Claim, Go, Groups, Outcome, Study, found
from murmur.studies.papers.study import further as further_group
from murmur.studies.papers.verdicts import EndedRunError

BASE, NO_LOSS, CLAIM, MORE, CAUSE = range(5)
STAND_IN_LOSS = 1e6  # above all others, so that a trial that is there stays the best
STAGES = ("one learner", "no loss", "claims", "more systems", "causes, if a verdict does not agree")


@dataclass(frozen=True)
class Needed:
    """A group of runs.

    Attributes:
        stage: place in `STAGES`.
        study: its study.
        group: its name.
        serves: claims whose verdict it serves, such as "asgd 1".
        claim: name of the claim whose cause it shows; "" for all others.
        further: names of the claims whose further seeds it holds.
    """

    stage: int
    study: Study
    group: str
    serves: tuple[str, ...]
    claim: str = ""
    further: tuple[str, ...] = ()


def needed(studies: Sequence[Study]) -> list[Needed]:
    """All groups of some studies, in the order in which they run."""
    every = [each for study in studies for each in _of(study)]
    return sorted(every, key=lambda each: each.stage)


def _of(study: Study) -> Iterator[Needed]:
    claims = {f"{study.name} {number}": claim for number, claim in enumerate(study.claims, 1)}
    causes = {group: name for name, claim in claims.items() for group in claim.because if group not in study.pictured}
    for group in study.groups:
        using = {name: claim for name, claim in claims.items() if group in claim.needs}
        beside = [name for name, claim in claims.items() if group in claim.beside]
        undecided = tuple(name for name, claim in claims.items() if group in map(further_group, claim.further))
        if using:
            stage = NO_LOSS if any(claim.no_loss for claim in using.values()) else CLAIM
            yield Needed(stage, study, group, tuple(using))
        elif beside:
            yield Needed(MORE, study, group, tuple(f"{name}: beside" for name in beside))
        elif undecided:
            serves = tuple(f"{name}: further seeds" for name in undecided)
            yield Needed(CLAIM, study, group, serves, further=undecided)
        elif group in causes:
            yield Needed(CAUSE, study, group, (f"{causes[group]}: cause",), causes[group])
        else:
            yield Needed(BASE if not study.claims else MORE, study, group, (f"{study.name}: shown",))


@dataclass
class Planned:
    """A cell of the plan.

    Attributes:
        cell: the run.
        stage: place in `STAGES`, the earliest of its groups'.
        serves: claims.
        known: True if its row is there.
    """

    cell: StudyCell
    stage: int
    serves: list[str]
    known: bool


def stand_in(cell: StudyCell) -> Row:
    """A row of a run that is not there, for the plan alone."""
    return {"digest": cell.digest, "cell": vars(cell), "heldout": {"loss": STAND_IN_LOSS}, "prior": None, "ended": None}


def whole(
    studies: Sequence[Study], known: Mapping[str, Row], results: Mapping[str, Outcome | None] | None = None
) -> list[Planned]:
    """Every cell, each once, in the order in which they run; causes of claims that agree are left out.

    Args:
        studies: studies.
        known: rows that are there.
        results: outcomes of the claims; None: judge them.
    """
    find, plan = Finder(dict(known)), dict[str, Planned]()
    results = outcomes(studies, find) if results is None else results
    first = outcomes(studies, find, further=False)
    for each in needed(studies):
        if each.further and not any(_undecided(first[claim]) for claim in each.further):
            continue
        if each.claim and not _open(results[each.claim]):
            continue

        def go(cell: StudyCell, each: Needed = each) -> Row:
            there = plan.get(cell.digest)
            try:
                row, present = find(cell), True
            except MissingRun:
                row, present = stand_in(cell), False
            if there is None:
                plan[cell.digest] = Planned(cell, each.stage, list(each.serves), present)
            else:
                there.cell = replace(there.cell, decoded=there.cell.decoded or cell.decoded)
                there.known = there.known and present
                there.serves += [name for name in each.serves if name not in there.serves]
            return row

        each.study.groups[each.group](go)
    return list(plan.values())


def judged(study: Study, claim: Claim, find: Go, further: bool = True) -> Outcome | None:
    """The outcome of a claim; None if rows are missing.

    With `further`, a claim that its usual seeds leave undecided is judged on the further ones too, once they are there.

    The verdict is "undecided" if the rule needs the speed of a run that ended early, or if the rows come from
    several builds of the same data.
    """
    try:
        rows, beside = found(study, find, claim.needs), _beside(study, claim, find)
        outcome = _on_one_build(claim, rows, beside)
        if further and claim.further and outcome.verdict == "undecided":
            return _with_further(study, claim, rows, beside, find) or outcome
        return outcome
    except EndedRunError as error:
        return Outcome("no speed", "undecided", str(error))
    except (MissingRun, FileNotFoundError):
        return None


def _on_one_build(claim: Claim, rows: Groups, beside: Groups) -> Outcome:
    """The outcome of the rule; "undecided" without it if the rows are of several builds."""
    if several := _several(rows):
        told = f"rows of {', '.join(several)} are of several builds of the data; murmur papers makes them again"
        return Outcome("not compared", "undecided", told)
    return claim.judge({**rows, **beside})


def _beside(study: Study, claim: Claim, find: Go) -> Groups:
    """The groups beside a claim; none while one of their rows is missing, or while they are of several builds."""
    try:
        rows = found(study, find, claim.beside)
    except MissingRun:
        return {}
    return {} if _several(rows) else rows


def _with_further(study: Study, claim: Claim, rows: Groups, beside: Groups, find: Go) -> Outcome | None:
    try:
        more = {name: study.groups[further_group(name)](find) for name in claim.further}
    except MissingRun:
        return None
    return _on_one_build(claim, {**rows, **{name: [*rows[name], *more[name]] for name in more}}, beside)


def _several(rows: Groups) -> list[Name]:
    return several_builds(row for group in rows.values() for row in group)


def several_builds(rows: Iterable[Row]) -> list[Name]:
    """Networks whose rows come from several builds of their data."""
    builds: dict[Name, set[str]] = {}
    for row in rows:
        builds.setdefault(row["cell"]["network"], set()).add(row.get("build", ""))
    return sorted(name for name, each in builds.items() if len(each) > 1)


def outcomes(studies: Sequence[Study], find: Go, further: bool = True) -> dict[str, Outcome | None]:
    """The outcomes of all claims, by their names, such as "asgd 1"; `further`: see `judged`."""
    return {
        f"{study.name} {number}": judged(study, claim, find, further)
        for study in studies
        for number, claim in enumerate(study.claims, 1)
    }


def _open(outcome: Outcome | None) -> bool:
    """True unless a claim is judged and agrees, so that no cause is to be shown."""
    return outcome is None or outcome.verdict != "agrees"


def _undecided(outcome: Outcome | None) -> bool:
    return outcome is not None and outcome.verdict == "undecided"


class Unknown(dict[str, Any]):
    """Row of a run that has not been made: each look at it raises MissingRun.

    Args:
        cell: Its cell.
    """

    def __init__(self, cell: StudyCell) -> None:
        super().__init__()
        self.cell = cell

    def __getitem__(self, name: str) -> Any:
        raise MissingRun(self.cell.told)

    def get(self, name: str, default: Any = None) -> Any:  # noqa: ARG002 - there is nothing
        raise MissingRun(self.cell.told)


def missing(studies: Sequence[Study], known: Mapping[str, Row], networks: Collection[Name]) -> list[StudyCell]:
    """The cells that are missing and can run now, each once, the most urgent stage first.

    Causes are missing only if their claim is judged and does not agree, further seeds only if it is undecided without
    them.

    Args:
        studies: studies.
        known: rows that are there.
        networks: networks whose speech is there; cells of others are left out.
    """
    find, lacking = Finder(dict(known)), dict[str, StudyCell]()
    results, first = outcomes(studies, find), outcomes(studies, find, further=False)
    for each in needed(studies):
        if each.further and not any(_undecided(first[claim]) for claim in each.further):
            continue
        if each.claim and (results[each.claim] is None or not _open(results[each.claim])):
            continue

        def go(cell: StudyCell) -> Row:
            try:
                return find(cell)
            except MissingRun:
                if cell.network not in networks:
                    return Unknown(cell)
                before = lacking.get(cell.digest)
                lacking[cell.digest] = replace(cell, decoded=cell.decoded or (before is not None and before.decoded))
                return Unknown(cell)

        try:
            each.study.groups[each.group](go)
        except MissingRun:
            continue
    return list(lacking.values())


def hours(cells: Sequence[StudyCell], known: Mapping[str, Row]) -> list[float]:
    """About the processor hours of runs: sums of frames and gradients, corrected by the rows of their network.

    Rows whose gradients a GPU has computed correct nothing.
    """
    measured: dict[str, list[float]] = {}
    for row in known.values():
        if row.get("device", "cpu") != "cpu":
            continue
        cell = StudyCell(**row["cell"])
        spent = row["cpu_seconds"] - row.get("decoding_seconds", 0.0)
        measured.setdefault(cell.network, []).append(spent / _training_seconds(cell))
    times = {name: statistics.median(each) for name, each in measured.items()}
    return [(times.get(cell.network, 1.0) * _training_seconds(cell) + _decoding_seconds(cell)) / 3600 for cell in cells]


def _training_seconds(cell: StudyCell) -> float:
    gradients = cell.budget / cell.piece_frames
    return cell.budget * cell.setup.frame_seconds + gradients * cell.setup.gradient_seconds


def _decoding_seconds(cell: StudyCell) -> float:
    return cell.setup.decoding_seconds if cell.decoded else 0.0
