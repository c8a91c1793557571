"""The plan of the studies: the runs that they ask for, with the claims that they serve and their stage.

A row that is not there raises `MissingRun` when it is read. A group is therefore followed as far as its rows decide: a
trial decides the rate of later runs, and a bisection its next size.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from murmur.comparison.rows import Row
from murmur_papers.studies.cell import StudyCell
from murmur_papers.studies.networks import Name
from murmur_papers.studies.run import Finder, MissingRun
from murmur_papers.studies.study import Claim, Go, Groups, Outcome, Study, found, undecided
from murmur_papers.studies.study import further as further_group
from murmur_papers.studies.verdicts import GOOD, EndedRunError
from murmur_papers.tasks.judged_frames import TRIAL

STANDING_IN = {"loss": 1.0, TRIAL: 1.0}
BASE, NO_LOSS, CLAIM, MORE, CAUSE = range(5)  # stages, the most urgent first


@dataclass(frozen=True)
class Needed:
    """A group of runs.

    Attributes:
        stage: BASE to CAUSE.
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
    causes = {group: name for name, claim in claims.items() for group in claim.because}
    for group in study.groups:
        using = {name: claim for name, claim in claims.items() if group in claim.needs}
        beside = [name for name, claim in claims.items() if group in claim.beside]
        left = tuple(name for name, claim in claims.items() if group in map(further_group, claim.further))
        if using:
            stage = NO_LOSS if any(claim.no_loss for claim in using.values()) else CLAIM
            yield Needed(stage, study, group, tuple(using))
        elif beside:
            yield Needed(MORE, study, group, tuple(f"{name}: beside" for name in beside))
        elif left:
            serves = tuple(f"{name}: further seeds" for name in left)
            yield Needed(CLAIM, study, group, serves, further=left)
        elif group in causes:
            yield Needed(CAUSE, study, group, (f"{causes[group]}: cause",), causes[group])
        else:
            yield Needed(BASE if not study.claims else MORE, study, group, (f"{study.name}: shown",))


@dataclass
class Planned:
    """A cell of the plan: its earliest stage, the claims that it serves, and whether its row is there."""

    cell: StudyCell
    stage: int
    serves: list[str]
    known: bool


class Unknown(dict[str, Any]):
    """Row of a run that has not been made: each look at it raises MissingRun."""

    def __init__(self, cell: StudyCell) -> None:
        super().__init__()
        self.cell = cell

    def __getitem__(self, name: str) -> Any:
        raise MissingRun(self.cell.told)

    def get(self, name: str, default: Any = None) -> Any:  # noqa: ARG002 - there is nothing
        raise MissingRun(self.cell.told)


def whole(
    studies: Sequence[Study], known: Mapping[str, Row], results: Mapping[str, Outcome | None] | None = None
) -> list[Planned]:
    """The cells that are there or can run now, each once, the most urgent stage first.

    A cause is planned only if its claim is judged and the verdict is not good, further seeds only if it is undecided
    without.

    Args:
        studies: studies.
        known: rows that are there.
        results: outcomes of the claims; None: judge them.
    """
    find, plan = Finder(known), dict[str, Planned]()
    results = outcomes(studies, find) if results is None else results
    first = outcomes(studies, find, further=False)
    for each in needed(studies):
        if each.further and "undecided" not in {_verdict(first[claim]) for claim in each.further}:
            continue
        if each.claim and _verdict(results[each.claim]) in (None, *GOOD):
            continue

        def go(cell: StudyCell, each: Needed = each) -> Row:
            try:
                row: Row = find(cell)
            except MissingRun:
                row = Unknown(cell)
            there = plan.setdefault(cell.digest, Planned(cell, each.stage, [], True))
            there.cell = replace(there.cell, decoded=there.cell.decoded or cell.decoded)
            there.known = there.known and not isinstance(row, Unknown)
            there.serves += [name for name in each.serves if name not in there.serves]
            return row

        try:
            each.study.groups[each.group](go)
        except MissingRun:
            continue
    return list(plan.values())


def foreseen(studies: Sequence[Study], find: Go) -> list[Planned]:
    """The cells of the whole plan, also those that depend on rows that are not there.

    A missing run stands in as one that is as good as all others, so that a later cell may have another rate, and a
    search other sizes. Runs that depend on verdicts, further seeds and causes, are left out.
    """
    plan = dict[str, Planned]()
    for each in needed(studies):
        if each.further or each.claim:
            continue

        def go(cell: StudyCell, each: Needed = each) -> Row:
            try:
                row, known = find(cell), True
            except MissingRun:
                row, known = {"cell": asdict(cell), "heldout": STANDING_IN, "ended": None, "prior": None}, False
            there = plan.setdefault(cell.digest, Planned(cell, each.stage, [], known))
            there.serves += [name for name in each.serves if name not in there.serves]
            return row

        each.study.groups[each.group](go)
    return list(plan.values())


def missing(studies: Sequence[Study], known: Mapping[str, Row], networks: Collection[Name]) -> list[StudyCell]:
    """The cells that are missing and can run now, the most urgent first; `networks`: those whose speech is there."""
    return [each.cell for each in whole(studies, known) if not each.known and each.cell.network in networks]


def judged(study: Study, claim: Claim, find: Go, further: bool = True) -> Outcome | None:
    """The outcome of a claim; None if rows are missing, or if no row can decide it.

    With `further`, a claim that its usual seeds leave undecided is judged on the further ones too, once they are there.
    The verdict is "undecided" if the rule needs the speed of a run that ended early.
    """
    if claim.judge is None:
        return None
    try:
        rows = found(study, find, claim.needs)
        beside = {k: v for name in claim.beside for k, v in _if_there(study, find, {name: name}).items()}
        outcome = claim.judge({**rows, **beside})
        if further and outcome.verdict == "undecided":
            more = _if_there(study, find, {name: further_group(name) for name in claim.further})
            every = {name: [*rows[name], *more[name]] for name in more}
            return claim.judge({**rows, **every, **beside}) if more else outcome
        return outcome
    except EndedRunError as error:
        return undecided("no speed", "a run ended early", str(error))
    except (MissingRun, FileNotFoundError):
        return None


def _if_there(study: Study, find: Go, groups: Mapping[str, str]) -> Groups:
    """The rows of some groups under other names; none while one of them is missing."""
    try:
        return {name: study.groups[group](find) for name, group in groups.items()}
    except MissingRun:
        return {}


def outcomes(studies: Sequence[Study], find: Go, further: bool = True) -> dict[str, Outcome | None]:
    """The outcomes of all claims, by their names, such as "asgd 1"; `further`: see `judged`."""
    return {
        f"{study.name} {number}": judged(study, claim, find, further)
        for study in studies
        for number, claim in enumerate(study.claims, 1)
    }


def _verdict(outcome: Outcome | None) -> str | None:
    return None if outcome is None else outcome.verdict
