"""The runs of `sixteen_devices.py`: their settings, the bars that they serve, and their order.

A minibatch of one learner, 164 windows, is cut among 16 learners, as in `murmur papers rings`; optimizer, schedule and
rate are those of that study's one learner, for every strategy: no rate is tried here. Moments of Adam are averaged
where a strategy can do that, since its local ones cost accuracy (docs/scaling.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from murmur.comparison.rows import digest_of
from murmur.core.facts import learners_for
from murmur.core.learner import Strategy
from murmur.engine.budget import Budget
from murmur.engine.experiment import Experiment
from murmur_papers.studies.cell import StudyCell
from murmur_papers.studies.machines import MACHINES, PACE_SECONDS
from murmur_papers.studies.networks import BLSTM, SETUPS, WINDOWS
from stretched import GeneratedPieces

FORMAT = 1  # to be raised with a change of code that changes figures
BLSTM_SETUP = SETUPS["blstm"]
RATE = 0.016  # of one learner, the best of the trials of `murmur papers rings`
SEEDS, SLOW = (0, 1, 2), 10.0
SPEED_UP, SPEED_UP_SLOW = "speed-up, equal learners", "speed-up, one slow learner"
DIFFERENCE, ORDER = "difference from the predicted time", "pairs of strategies in another order than predicted"
WORDS = "difference of word error rates from one learner's"
Kind = Literal["measured", "words", "devices"]


@dataclass(frozen=True)
class Scale:
    """Size of the study.

    Attributes:
        learners: number of learners that train.
        node: learners of a super-learner, which share a host.
        pace: seconds of a gradient.
        turns: turns of a run; None: the whole budget.
        alone: turns of one learner of that pace, which give its seconds.
        locked: turns of synchronous SGD beside a slow learner, which are timed and scaled.
        hidden: cells of a layer of generated tasks; that of the study.
    """

    learners: int = 16
    node: int = 4
    pace: float = PACE_SECONDS
    turns: int | None = None
    alone: int = 300
    locked: int = 100
    hidden: int = BLSTM.hidden


FULL, DRY = Scale(), Scale(turns=4, alone=8, locked=2)
MOMENTS = "moments='averaged'"
RANDOMISED, FIXED = f"ADPSGD(randomized_ring, {MOMENTS})", f"ADPSGD(ring, {MOMENTS})"
DELAYED = f"DelayByOne({MOMENTS})"
SYNCHRONOUS, K_STEPS, SERVED = "SyncSGD()", f"KAVG(8, {MOMENTS})", "ASGD()"


def nodes(scale: Scale) -> str:
    return f"SuperLearners({RANDOMISED}, {scale.node})"


@dataclass(frozen=True)
class Cell:
    """One run, or one measurement.

    Attributes:
        kind: "measured": pace of one learner, and the network; "words": one learner without a pace, decoded;
            "devices": learners on hosts of their own.
        slow: slowness of the last learner.
        turns: turns of the run; None: those of the scale.
        serves: bars that need it.
    """

    kind: Kind
    strategy: str = SYNCHRONOUS
    seed: int = 0
    slow: float = 1.0
    turns: int | None = None
    serves: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        if self.kind == "measured":
            return "measured: pace and network"
        slow = "" if self.slow == 1 else f", one {self.slow:g} times slower"
        who = "one learner, unpaced" if self.kind == "words" else self.strategy
        return f"{who}{slow}, seed {self.seed}"

    @property
    def made(self) -> Strategy:
        return StudyCell(strategy=self.strategy).made

    @property
    def decoded(self) -> bool:
        return self.kind == "words" or (self.kind == "devices" and self.turns is None)

    def digest(self, scale: Scale, generated: bool, hardware: str) -> str:
        """Sixteen hexadecimal digits of all that sets the row; what was measured holds for one kind of hardware."""
        told = {name: value for name, value in asdict(self).items() if name != "serves"}
        return digest_of([FORMAT, told, asdict(scale), generated, RATE, hardware if self.kind == "measured" else ""])

    def learners(self, scale: Scale) -> int:
        """Number of processes, servers included."""
        return learners_for(self.made, scale.learners) if self.kind == "devices" else 1

    def where(self, scale: Scale) -> list[int]:
        """Hosts of the learners: those of a super-learner share one."""
        shared = scale.node if self.strategy.startswith("SuperLearners") else 1
        return [rank // shared for rank in range(self.learners(scale))]


def cells(scale: Scale) -> list[Cell]:
    """All cells, in the order in which the bars need them."""
    first, slow = (SPEED_UP, DIFFERENCE, WORDS), (SPEED_UP_SLOW, DIFFERENCE)
    headline = [RANDOMISED, DELAYED, nodes(scale), FIXED]
    return [
        Cell("measured", serves=(SPEED_UP, SPEED_UP_SLOW, DIFFERENCE)),
        *(Cell("devices", strategy, serves=first) for strategy in headline),
        *(Cell("words", seed=seed, serves=(WORDS,)) for seed in SEEDS),
        *(Cell("devices", strategy, slow=SLOW, serves=slow) for strategy in (RANDOMISED, FIXED)),
        Cell("devices", SYNCHRONOUS, slow=SLOW, turns=scale.locked, serves=slow),
        *(Cell("devices", strategy, serves=(DIFFERENCE, ORDER)) for strategy in (SYNCHRONOUS, K_STEPS, SERVED)),
        *(Cell("devices", strategy, seed, serves=first) for seed in SEEDS[1:] for strategy in headline),
    ]


def named(all_cells: Sequence[Cell], names: Sequence[str]) -> Iterator[Cell]:
    """The cells whose name has one of these texts in it, with those that they need; all without texts."""
    for cell in all_cells:
        if not names or cell.kind == "measured" or any(name in cell.name for name in names):
            yield cell


def ratio_of_papers() -> float:
    """Seconds of a model through a node's card, over those of a gradient: the same for the machines of both papers.

    43.2 million weights take 6.9 ms through two cards of 100 Gb/s, and a gradient of 64 sequences 82 ms (Cui et al.
    2021); they take 13.8 ms through one card, and one of 128 sequences 163 ms (Zhang et al. 2019).
    """
    machines = MACHINES["cui2021"].cluster
    compute: Any = machines.compute
    return float((machines.message_bytes or 0.0) / machines.link.bytes_per_second / compute.seconds)


def bits_per_second(model_bytes: float, scale: Scale) -> float:
    """Speed of a host's link at which our model takes the papers' share of a gradient's seconds."""
    return 8 * model_bytes / (ratio_of_papers() * scale.pace)


def study_cell(cell: Cell, scale: Scale) -> StudyCell:
    return StudyCell(strategy=cell.strategy, learners=cell.learners(scale), rate=RATE, seed=cell.seed, machines="")


def experiment_of(cell: Cell, scale: Scale, task: Any) -> Experiment:
    """The experiment of a cell; its only evaluation is at the end, after the last step."""
    found = study_cell(cell, scale).experiment(task)
    turns = cell.turns or scale.turns
    budget = found.budget if turns is None else Budget(minibatches=turns)
    found = replace(found, budget=budget, evaluate_every_epochs=2.0 + 2 * budget.total(task) / task.per_epoch)
    if cell.kind == "measured":
        whole = -(-scale.alone // scale.learners)
        found = replace(found, budget=Budget(minibatches=whole)).scaled(1, cut=scale.learners)
    return found


def pieces(cell: Cell, scale: Scale) -> int:
    """Gradients of all learners, about; `Experiment.scaled` counts them for a task."""
    if cell.kind == "measured":
        return scale.alone
    budget = BLSTM_SETUP.budget / BLSTM_SETUP.unit_frames / BLSTM_SETUP.minibatch
    return round((cell.turns or scale.turns or budget) * (1 if cell.kind == "words" else scale.learners))


def generated_task(scale: Scale, seed: int) -> GeneratedPieces:
    """A task of generated frames, with the network of the study."""
    return GeneratedPieces(
        hours=0.1,
        classes=900,
        network=replace(BLSTM, hidden=scale.hidden),
        chunks=replace(WINDOWS, size=BLSTM_SETUP.minibatch),
        seed=seed,
    )
