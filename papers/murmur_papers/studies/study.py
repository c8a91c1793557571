"""A study: groups of runs, and claims that are judged from them by rules fixed beforehand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from murmur.comparison.rows import Row
from murmur_papers.studies.cell import StudyCell
from murmur_papers.studies.networks import SETUPS, Name, Optimizer, Shape
from murmur_papers.studies.run import loss
from murmur_papers.studies.verdicts import Compared, Verdict, ratio, shown, wer_difference

SEEDS, TWO_SEEDS, ONE_SEED = (0, 1, 2), (0, 1), (0,)
FURTHER_SEEDS = (3, 4, 5)  # of a claim that three seeds leave undecided
MOST_RATES, MOST_TRIALS = 6, 4  # tried with one learner, and with a system
AUTO_FIRST = (1.0, 0.5)  # factors on one learner's rate, on which Auto's rule acts; the first is that rule's own
Groups = Mapping[str, Sequence[Row]]
Go = Callable[[StudyCell], Row]
Group = Callable[[Go], Sequence[Row]]
Measure = Callable[[Row], float]  # by which trials are compared; the lowest value is the best


@dataclass(frozen=True)
class Alone:
    """One learner of a network, at the best of the rates to try (seed 0, held-out loss); see `best_of`.

    Fields that are None have the usual values of the network's `Setup`.

    Attributes:
        decoded: seeds whose test is decoded.
        times: factor on the frames of the runs; the trials keep theirs.
        tried: rates to try.
        part: trials have one part in so many of the frames; with 1 they are runs with seed 0.
        peak: factor on the rate that the schedule reaches.
        measure: loss by which trials are compared, here and in systems that refer to this learner.
    """

    network: Name
    optimizer: Optimizer | None = None
    minibatch: int | None = None
    budget: int | None = None
    schedule: Shape | None = None
    strategy: str = "SyncSGD()"
    seeds: tuple[int, ...] = SEEDS
    decoded: tuple[int, ...] = SEEDS
    times: int = 1
    tried: tuple[float, ...] | None = None
    part: int | None = None
    peak: float = 1.0
    measure: Measure = loss

    @property
    def cell(self) -> StudyCell:
        setup = SETUPS[self.network]
        optimizer = self.optimizer or setup.optimizer
        return StudyCell(
            network=self.network,
            strategy=self.strategy,
            minibatch=self.minibatch or setup.minibatch,
            budget=self.budget or setup.budget,
            optimizer=optimizer,
            schedule=self.schedule or setup.training[optimizer].schedule,
            peak=self.peak,
        )

    @property
    def rates(self) -> tuple[float, ...]:
        return self.tried or SETUPS[self.network].training[self.cell.optimizer].rates

    def rate(self, go: Go) -> float:
        cell = replace(self.cell, budget=self.cell.budget // (self.part or SETUPS[self.network].part))
        return best_of(self.rates, lambda rate: go(replace(cell, rate=rate)), MOST_RATES, self.measure)

    def best(self, go: Go) -> StudyCell:
        return replace(self.cell, rate=self.rate(go), budget=self.cell.budget * self.times)

    def __call__(self, go: Go) -> list[Row]:
        best = self.best(go)
        return [go(replace(best, seed=seed, decoded=seed in self.decoded)) for seed in self.seeds]


def best_of(first: Sequence[float], go: Callable[[float], Row], most: int, measure: Measure = loss) -> float:
    """The value with the lowest held-out loss among `most` values at most, by rows from `go`.

    While it is the lowest or the highest tried, the next one by the same factor is tried.
    """
    rows = {value: go(value) for value in first}  # all are asked for before one is read
    tried = {value: measure(row) for value, row in rows.items()}
    while len(tried) < most and (further := _further(tried)) is not None:
        tried[further] = measure(go(further))
    return min(tried, key=lambda value: tried[value])


def _further(tried: Mapping[float, float]) -> float | None:
    """The value, to two digits, beyond the end at which the loss is lowest; None if it is lowest elsewhere."""
    ordered = sorted(tried)
    for end, inner in ((ordered[0], ordered[1:]), (ordered[-1], ordered[-2::-1])):
        if tried[end] < min(tried[value] for value in inner):
            return float(f"{end * end / inner[0]:.2g}")
    return None


@dataclass(frozen=True)
class System:
    """Learners with a strategy, at the best of the trials of their rate (seed 0, held-out loss); see `best_of`.

    Attributes:
        alone: the one learner whose rate is the reference.
        change: settings of the run that differ from those of one learner.
        trials: factors on the reference rate to begin with.
        most: largest number of trials; with that of `trials` no further ones are made.
        part, decoded, times: as those of `Alone`.
    """

    alone: Alone
    change: Mapping[str, object]
    trials: tuple[float, ...] = AUTO_FIRST
    part: int | None = None
    seeds: tuple[int, ...] = SEEDS
    decoded: tuple[int, ...] = ONE_SEED
    times: int = 1
    most: int = MOST_TRIALS

    @property
    def cell(self) -> StudyCell:
        return replace(self.alone.cell, **dict(self.change))  # type: ignore[arg-type]

    @property
    def measure(self) -> Measure:
        return self.alone.measure

    def best(self, go: Go) -> StudyCell:
        reference = self.alone.rate(go)
        short = replace(self.cell, budget=self.cell.budget // (self.part or SETUPS[self.alone.network].part))
        best = best_of(self.trials, lambda factor: go(replace(short, rate=reference * factor)), self.most, self.measure)
        return replace(self.cell, rate=reference * best, budget=self.cell.budget * self.times)

    def __call__(self, go: Go) -> list[Row]:
        best = self.best(go)
        return [go(replace(best, seed=seed, decoded=seed in self.decoded)) for seed in self.seeds]


@dataclass(frozen=True)
class Brief:
    """A further run of a system at its best rate, with seed 0, other settings and one part in `parts` of the frames."""

    system: System
    change: Mapping[str, object]
    parts: int

    def __call__(self, go: Go) -> list[Row]:
        best = self.system.best(go)
        return [go(replace(best, budget=best.budget // self.parts, **dict(self.change)))]  # type: ignore[arg-type]


@dataclass(frozen=True)
class Outcome:
    """Result of our runs for a claim.

    Attributes:
        ours: our numbers.
        verdict: the class; of several comparisons, that of the losses.
        why: more figures.
        in_full: the verdicts of several comparisons, or the reason of an undecided one.
    """

    ours: str
    verdict: Verdict
    why: str = ""
    in_full: str = ""

    @property
    def told(self) -> str:
        return self.in_full or self.verdict


def undecided(ours: str, reason: str, why: str = "") -> Outcome:
    return Outcome(ours, "undecided", why, f"undecided: {reason}")


def compared(value: Compared, ours: str = "", why: str = "") -> Outcome:
    """The outcome of one comparison."""
    return Outcome(ours or shown(value), value.verdict, why, value.told)


def against(
    first: Sequence[Row], second: Sequence[Row], who: str, speed: str, faster: str = "", why: str = ""
) -> Outcome:
    """The outcome of runs at one operating point: speed, loss and words of `second` beside `first`.

    Args:
        who: the learners.
        speed: how fast they are.
        faster: verdict on the speed; "" without a published one.
    """
    losses, words = ratio(first, second), wer_difference(first, second)
    verdicts = f"loss {losses.told}; words {words.told}{f'; speed {faster}' if faster else ''}"
    ours = f"{who}: {speed}, loss {shown(losses)}, WER {shown(words)}"
    return Outcome(ours, losses.verdict, why, verdicts)


@dataclass(frozen=True)
class Claim:
    """One conclusion of a paper.

    Attributes:
        told: the words of the paper's abstract in quotation marks, with which a claim stands in the page's first table;
            or a conclusion that no abstract has.
        published: the paper's numbers; "" if none are accessible.
        rule: condition of the verdict; fixed before any run.
        needs: groups on which the verdict rests, the argument of `judge`.
        judge: function that gives the outcome; None for a claim that only a run at the paper's size can try.
        because: groups that are run only if the verdict is not good (`verdicts.GOOD`); `cause` tells their figures.
        no_loss: True for "as good as one learner", whose groups are run first.
        beside: groups whose figures stand beside the verdict, or decide it, once they are there.
        further: needed groups that get further seeds (`further_seeds`) if the verdict with the usual ones is
            "undecided". The rule is then applied once more, to all seeds (`verdicts.ratio`).
        cited: short name of the paper, if it is not that of the study.
        command: what makes the runs, if it is not `murmur papers` with the name of the study.
    """

    told: str
    published: str
    rule: str
    needs: tuple[str, ...]
    judge: Callable[[Groups], Outcome] | None
    because: tuple[str, ...] = ()
    cause: Callable[[Groups], str] | None = None
    no_loss: bool = False
    beside: tuple[str, ...] = ()
    further: tuple[str, ...] = ()
    cited: str = ""
    command: str = ""

    @property
    def quoted(self) -> bool:
        return self.told.startswith('"')


@dataclass(frozen=True)
class Study:
    """The experiments of one paper.

    Attributes:
        cited: short name of the paper; `paper`: authors, title, year.
        groups: functions that return the rows of a group, given a function that makes or finds the row of a cell.
        picture: function that draws a picture of the rows that are there into a folder, and returns the page's line
            that shows it; "" if there are too few rows.
    """

    name: str
    cited: str
    paper: str
    design: str
    groups: Mapping[str, Group]
    claims: tuple[Claim, ...] = ()
    machines: str = ""
    picture: Callable[[Go, Path], str] | None = None


def found(study: Study, go: Go, names: Sequence[str]) -> Groups:
    return {name: study.groups[name](go) for name in names}


def further(name: str) -> str:
    return f"{name}, further seeds"


def further_seeds(groups: Mapping[str, Alone | System]) -> dict[str, Group]:
    """The further seeds of groups, by the names of `further`."""
    return {further(name): replace(group, seeds=FURTHER_SEEDS) for name, group in groups.items()}


SUPER = "SuperLearners(ADPSGD(randomized_ring, moments='averaged'), 2)"
DELAY = "DelayByOne(moments='averaged')"
BEYOND = {"beyond: super-learners of two": SUPER, "beyond: delay-by-one, averaged moments": DELAY}


def beyond(alone: Alone, seeds: tuple[int, ...] = TWO_SEEDS, **change: object) -> dict[str, Group]:
    """The two best methods of docs/scaling.md, in a study's setting."""
    return {name: System(alone, {"strategy": strategy, **change}, seeds=seeds) for name, strategy in BEYOND.items()}
