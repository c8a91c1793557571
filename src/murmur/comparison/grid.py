"""The cells of a comparison: strategy x learners x kind x seed, and the baselines of one learner."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from typing import Any, Literal

from murmur.comparison.rows import digest_of
from murmur.core.errors import SettingError
from murmur.core.facts import Facts
from murmur.core.learner import Strategy
from murmur.engine.experiment import Experiment, describe
from murmur.run.configuration import configure, resolved
from murmur.simulation.scenario import Scenario, factors_of

Kind = Literal["processes", "virtual"]
CLUSTER_OPTIONS = {
    "kind": "--cluster",
    "step_seconds": "--step-seconds",
    "jitter": "--jitter",
    "stragglers": "--straggler",
}  # of a virtual cluster, by field of the scenario
ALONE = "SyncSGD()"  # with one learner, bit-identical to the plain training loop


@dataclass(frozen=True)
class Cell:
    """One run of a comparison.

    Attributes:
        kind: "processes" for one process per learner, or "virtual".
        seed: seed of weights, order of data, and all other random choices.
    """

    kind: Kind
    strategy: str
    learners: int
    seed: int

    @property
    def name(self) -> str:
        words = re.sub(r"[^\w.]+", "-", self.strategy).strip("-")
        return f"{words}-{self.learners}-{self.kind}-seed{self.seed}"


@dataclass(frozen=True)
class Grid:
    """The runs that a comparison covers.

    Attributes:
        strategies: texts such as "KAVG(8)".
        learners: numbers of learners in real runs.
        virtual: numbers of learners in virtual runs.
        scenario: virtual cluster; its number of learners is each cell's.
    """

    source: str
    settings: tuple[str, ...]
    strategies: tuple[str, ...]
    learners: tuple[int, ...] = ()
    virtual: tuple[int, ...] = ()
    seeds: tuple[int, ...] = (0,)
    scenario: Scenario = field(default_factory=Scenario)

    def __post_init__(self) -> None:
        if not self.learners and not self.virtual:
            raise SettingError("a comparison needs --learners or --virtual: give numbers of learners")
        if not self.seeds:
            raise SettingError("a comparison needs --seeds: at least one, such as 0")
        for name in ("learners", "virtual", "seeds"):
            numbers: tuple[int, ...] = getattr(self, name)
            least = 0 if name == "seeds" else 1
            if len(set(numbers)) < len(numbers) or min(numbers, default=1) < least:
                raise SettingError(f"--{name} {','.join(map(str, numbers))}: give different numbers from {least} on")
        self._check_scenario()
        _different(self.strategies, [self.strategy(text) for text in self.strategies])

    def _check_scenario(self) -> None:
        """Check that the options of the virtual cluster have an effect."""
        if not self.virtual:
            none = Scenario()
            given = [o for name, o in CLUSTER_OPTIONS.items() if getattr(self.scenario, name) != getattr(none, name)]
            if given:
                raise SettingError(f"{', '.join(given)} would change nothing without virtual learners: add --virtual")
            return
        factors_of(self.scenario.stragglers, max(self.virtual))
        if self.scenario.stragglers and max(self.virtual) == 1:
            raise SettingError(
                f"--straggler {self.scenario.stragglers[0]!r}: a run of one learner is the baseline and has none;"
                " add a larger number to --virtual"
            )

    @cached_property
    def base(self) -> Experiment:
        return resolved(self.source, self.settings)

    def strategy(self, text: str) -> Strategy:
        return configure(self.base, (), text).strategy

    def cells(self) -> list[Cell]:
        """All applicable cells, real ones first; the whole grid of the first seed before the next seed."""
        found = []
        pairs: list[tuple[Kind, tuple[int, ...]]] = [("processes", self.learners), ("virtual", self.virtual)]
        for seed in self.seeds:
            for kind, numbers in pairs:
                if numbers:
                    found.append(Cell(kind, ALONE, 1, seed))
                for learners in sorted(numbers):
                    cells = (Cell(kind, text, learners, seed) for text in self.strategies)
                    found += [cell for cell in cells if self.why_not(cell) is None]
        return found

    def why_not(self, cell: Cell) -> str | None:
        """Reason why a cell has no run of its own; None if it has one."""
        strategy = self.strategy(cell.strategy)
        facts = Facts.of(strategy)
        if cell.learners == 1 and facts.bitwise_alone:
            return "one learner is the plain training loop with every such strategy: that row stands for it"
        if cell.learners < facts.least_learners:
            return f"{cell.learners} learners are fewer than the {facts.least_learners} of one node"
        return None

    def settings_of(self, cell: Cell) -> tuple[str, ...]:
        """The settings of a cell with its seed: that of the experiment, and that of the task if it has one."""
        seeds = [f"seed={cell.seed}"]
        task: Any = self.base.task
        if is_dataclass(task) and "seed" in {f.name for f in fields(task)}:
            seeds.append(f"task.seed={cell.seed}")
        return (*self.settings, *seeds)

    def experiment(self, cell: Cell) -> Experiment:
        return resolved(self.source, self.settings_of(cell), strategy=cell.strategy)

    def digest(self, cell: Cell) -> str:
        content: dict[str, Any] = {"experiment": self.experiment(cell).digest(), "kind": cell.kind}
        if cell.kind == "virtual":
            content["cluster"] = describe(self.scenario_of(cell).cluster(self.base))
        return digest_of({**content, "learners": cell.learners})

    def scenario_of(self, cell: Cell) -> Scenario:
        """The virtual cluster of a cell, without a straggler whose number it lacks.

        A cell of one learner is the baseline of the others, so its learner is none of the stragglers.
        """
        if cell.learners == 1:
            return replace(self.scenario, learners=1, stragglers=("0=1x",) if self._own_straggler else ())
        here = tuple(word for word in self.scenario.stragglers if _learner(word) < cell.learners)
        return replace(self.scenario, learners=cell.learners, stragglers=here)

    @property
    def _own_straggler(self) -> bool:
        """True if learner 0 is a straggler of the experiment's own cluster, on which the cells run."""
        own = self.scenario.kind is None and self.scenario.step_seconds is None
        return own and 0 in getattr(getattr(self.base.cluster, "compute", None), "factors", {})


def _learner(straggler: str) -> int:
    return int(straggler.partition("=")[0])


def _different(texts: Sequence[str], made: Sequence[Strategy]) -> None:
    for place, strategy in enumerate(made):
        if (before := made.index(strategy)) < place:
            raise SettingError(f"--strategies: {texts[before]!r} and {texts[place]!r} are the same: name it once")


def split_strategies(text: str) -> tuple[str, ...]:
    """The strategies of "KAVG(8),SuperLearners(ADPSGD(), 2)": the items of a Python list."""
    source = f"[{text}]"
    try:
        parsed: ast.expr | None = ast.parse(source, mode="eval").body
    except (SyntaxError, ValueError):
        parsed = None
    if not isinstance(parsed, ast.List) or not parsed.elts or text.rstrip().endswith(","):
        raise SettingError(f"--strategies {text!r}: expected names such as 'KAVG(8),ADPSGD()', with brackets closed")
    return tuple(str(ast.get_source_segment(source, item)) for item in parsed.elts)
